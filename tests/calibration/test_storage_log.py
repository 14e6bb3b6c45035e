"""Every request to the swappers' handles is recorded, by swapper and operation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from simoffload_calibrate.deepspeed.recorders import StorageLog


class Handle:
    """An aio handle that returns the number of its requests."""

    def __init__(self) -> None:
        self.pending = 0

    def async_pread(self, _buffer: Any, _path: str, _offset: int = 0) -> int:
        self.pending += 1
        return 0

    async_pwrite = async_pread

    def wait(self) -> int:
        done, self.pending = self.pending, 0
        return done

    def is_pinned(self, _buffer: Any) -> bool:
        return True


class Buffer:
    """A tensor of 32-bit numbers."""

    def __init__(self, numel: int) -> None:
        self._numel = numel

    def numel(self) -> int:
        return self._numel

    def element_size(self) -> int:
        return 4


class Model:
    """A model with one parameter, whose slice is or is not on storage."""

    def __init__(self, swapper: Any = None) -> None:
        self._weight = SimpleNamespace(nvme_swapper=swapper, ds_id=7)

    def named_parameters(self) -> list[tuple[str, Any]]:
        return [("model.weight", self._weight)]


def sums(log: StorageLog, owner: str) -> dict[str, tuple[float, float]]:
    return {name: (row["count"], row["bytes"]) for name, row in log.sums()[owner].items()}


def test_one_handle_of_the_optimizer_serves_both_directions() -> None:
    handle = Handle()
    gradients = SimpleNamespace(aio_handle=handle)
    swapper = SimpleNamespace(aio_handle=handle, gradient_swapper=gradients)
    log = StorageLog(Model(), SimpleNamespace(optimizer_swapper=swapper))
    assert log.swapper is None
    log.start()
    gradients.aio_handle.async_pwrite(Buffer(100), "/x/0_5_gradient_0_100.tensor.swp", 0)
    assert gradients.aio_handle.wait() == 1
    for name in ("0_5", "exp_avg-0_5", "exp_avg_sq-0_5"):
        swapper.aio_handle.async_pread(Buffer(1000), f"/x/{name}.tensor.swp", 0)
    assert swapper.aio_handle.wait() == 3
    swapper.aio_handle.async_pwrite(Buffer(1000), "/x/0_5.tensor.swp", 0)
    assert swapper.aio_handle.wait() == 1
    assert log.stop() == []
    assert sums(log, "optimizer") == {
        "write": (2, 4400),
        "wait write": (2, 0),
        "read": (3, 12000),
        "wait read": (1, 0),
    }
    assert swapper.aio_handle.is_pinned(Buffer(1))


def test_the_pipelined_swapper_reads_and_writes_through_two_handles() -> None:
    write = Handle()
    swapper = SimpleNamespace(
        aio_handle=write,
        write_aio_handle=write,
        read_aio_handle=Handle(),
        gradient_swapper=SimpleNamespace(aio_handle=write),
    )
    log = StorageLog(Model(), SimpleNamespace(optimizer_swapper=swapper))
    log.start()
    swapper.read_aio_handle.async_pread(Buffer(10), "/x/6_9.tensor.swp", 0)
    swapper.write_aio_handle.async_pwrite(Buffer(20), "/x/0_5.tensor.swp", 0)
    swapper.read_aio_handle.wait()
    swapper.write_aio_handle.wait()
    assert sums(log, "optimizer") == {
        "read": (1, 40),
        "write": (1, 80),
        "wait read": (1, 0),
        "wait write": (1, 0),
    }


def test_parameters_have_rows_with_their_names() -> None:
    swapper = SimpleNamespace(
        aio_read_handle=Handle(),
        aio_write_handle=Handle(),
        aio_handle=Handle,  # DeepSpeed's class of handles, not one of them
        available_swap_in_buffers=lambda: 4,
    )
    log = StorageLog(Model(swapper), None)
    assert swapper.aio_handle is Handle
    swapper.aio_read_handle.async_pread(Buffer(10), "/x/7_param.tensor.swp")
    log.start()
    swapper.aio_read_handle.async_pread(Buffer(10), "/x/7_param.tensor.swp")
    swapper.aio_read_handle.wait()
    rows = log.stop()
    assert [(row[0], row[1], row[2], row[5]) for row in rows] == [
        ("read", "model.weight", 40, 4),
        ("wait read", "", 0, 4),
    ]
    assert sums(log, "parameters") == {"read": (1, 40), "wait read": (1, 0)}


def test_every_recording_begins_anew() -> None:
    swapper = SimpleNamespace(aio_handle=Handle())
    log = StorageLog(Model(), SimpleNamespace(optimizer_swapper=swapper))
    log.start()
    swapper.aio_handle.async_pread(Buffer(10), "/x/a", 0)
    log.stop()
    swapper.aio_handle.async_pread(Buffer(10), "/x/a", 0)
    log.start()
    assert log.sums() == {}
