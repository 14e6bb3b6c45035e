"""Gradients on their way to storage through swap buffers."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from simoffload.strategies.training.state import GradientSwapper
from simoffload.strategies.zero.coordinator import Tensor


def tensors(numels: Sequence[int]) -> list[Tensor]:
    return [Tensor(str(index), numel, numel, False, False) for index, numel in enumerate(numels)]


# -- swap buffers of gradients -------------------------------------------------------------------------


class Log:
    """What the swapper asks of the machine."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def to_swap_buffer(self, sizes: Sequence[int], /) -> None:
        self.calls.append(("copy", sum(sizes)))

    def write_file(self, size: int, /, *, label: str) -> None:
        assert label == "gradients"
        self.calls.append(("write", size))

    def wait_writes(self) -> None:
        self.calls.append(("wait", 0))


def swapper(
    *, buffers: int = 4, buffer_numel: int = 100, alignment: int = 4, smallest: int = 0
) -> GradientSwapper:
    return GradientSwapper(buffers=buffers, buffer_numel=buffer_numel, alignment=alignment, smallest=smallest)


def test_a_buffer_is_written_when_the_next_gradient_finds_no_room() -> None:
    """Buffers of 400 B; gradients of 160 B each."""
    log, swap = Log(), swapper()
    swap.insert(log, tensors([40, 40, 40]))
    assert log.calls == [("copy", 320), ("write", 320), ("copy", 160)]
    swap.flush(log)
    assert log.calls[3:] == [("write", 160), ("wait", 0)]


def test_when_every_buffer_is_being_written_the_host_waits_for_all_of_them() -> None:
    log, swap = Log(), swapper(buffers=2)
    swap.insert(log, tensors([100, 100, 100, 100, 100]))
    assert [name for name, _ in log.calls] == [
        *("copy", "write"),
        *("copy", "write", "wait"),
        *("copy", "write"),
        *("copy", "write", "wait"),
        "copy",
    ]


def test_small_gradients_stay_in_memory() -> None:
    log, swap = Log(), swapper(smallest=200)
    swap.insert(log, tensors([49, 50, 1]))
    assert log.calls == [("copy", 200)]
    assert [swap.size(one) > 0 for one in tensors([49, 50])] == [False, True]


def test_nothing_is_written_of_nothing() -> None:
    log, swap = Log(), swapper(smallest=200)
    swap.insert(log, tensors([1, 2, 3]))
    swap.flush(log)
    assert log.calls == [("wait", 0)]


@given(
    buckets=st.lists(st.lists(st.integers(1, 64), max_size=8), max_size=8),
    buffers=st.integers(1, 5),
    smallest=st.integers(0, 100),
)
def test_every_large_gradient_is_written_once_in_buffers_that_hold_it(
    buckets: list[list[int]], buffers: int, smallest: int
) -> None:
    log, swap = Log(), swapper(buffers=buffers, buffer_numel=64, smallest=smallest)
    for bucket in buckets:
        swap.insert(log, tensors(bucket))
    swap.flush(log)
    large = [4 * numel for bucket in buckets for numel in bucket if 4 * numel >= smallest]
    sums = {name: sum(size for call, size in log.calls if call == name) for name in ("copy", "write")}
    assert sums == {"copy": sum(large), "write": sum(large)}
    assert all(size <= 4 * 64 for call, size in log.calls if call == "write")
    waiting = 0
    for call, _ in log.calls:
        waiting = {"write": waiting + 1, "wait": 0}.get(call, waiting)
        assert waiting <= buffers, "no buffer is filled again before it is written"


def test_what_is_no_whole_unit_stays_in_memory() -> None:
    """``_adjust_for_misaligned_lengths``: of 70 elements in units of 16, 64 are written and 6 are kept. As
    in tests/calibration/test_cpu_training_io.py, "tensors that are no whole units of four I/O threads"."""
    log, swap = Log(), swapper(alignment=64)
    swap.insert(log, tensors([70]))
    swap.flush(log)
    assert log.calls == [("copy", 4 * 64), ("write", 4 * 64), ("wait", 0)]


def test_buffers_are_rounded_up_to_the_alignment() -> None:
    """``largest_numel = _io_aligned_numel(largest_numel)``: gradients of 64 elements of two sub-groups fit
    into a buffer for 127 in units of 64."""
    log, swap = Log(), swapper(buffer_numel=127, alignment=256)
    swap.insert(log, tensors([64, 64]))
    assert [name for name, _ in log.calls] == ["copy"]
