"""The coordinator makes the calls that DeepSpeed makes, in its order.

Letters: R = reads submitted, W = host waits for all reads, F = fetch on demand, P = prefetch,
w = wait for a gather, T = throttled by an older fetch event, ] = kernels launched.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from simoffload.errors import InputError
from simoffload.strategies.ds_config import DeepSpeedConfig, OffloadSettings, resolve_settings
from simoffload.strategies.zero.coordinator import RECENT_EVENTS, Coordinator, CoordinatorSink, Tensor


class Log(CoordinatorSink):
    """Records the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.events = 0

    def read(self, tensors: Sequence[Tensor], /) -> None:
        self.calls.append("R" + "+".join(tensor.name for tensor in tensors))

    def wait_reads(self) -> None:
        self.calls.append("W")

    def gather(self, _handle: int, tensors: Sequence[Tensor], /, *, prefetch: bool) -> None:
        self.calls.append(("P" if prefetch else "F") + "+".join(tensor.name for tensor in tensors))

    def wait(self, handle: int, /) -> None:
        self.calls.append(f"w{handle}")

    def fetch_event(self) -> None:
        self.events += 1

    def throttle(self) -> None:
        self.calls.append(f"T{self.events - RECENT_EVENTS}")

    def __str__(self) -> str:
        return " ".join(self.calls)


def settings(device: str, **knobs: int) -> OffloadSettings:
    zero = {"stage": 3, "offload_param": {"device": device}}
    resolved, _ = resolve_settings(
        DeepSpeedConfig.model_validate({"zero_optimization": zero}), version="0.18.3", hidden_size=1024
    )
    return resolved._replace(**knobs)


def walk(
    uses: Sequence[tuple[int, ...]],
    tensors: Sequence[Tensor],
    knobs: OffloadSettings,
    *,
    ranks: int = 1,
    warm: bool = True,
) -> tuple[str, Coordinator]:
    log = Log()
    coordinator = Coordinator(tensors=tensors, uses=uses, settings=knobs, ranks=ranks, warm=warm, sink=log)
    for step, used in enumerate(uses):
        log.calls.append(f"[{step}")
        coordinator.fetch()
        log.calls.append("]")
        coordinator.release(used)
    return str(log), coordinator


def tensors(count: int, *, nvme: bool, numel: int = 2_000_000) -> list[Tensor]:
    return [Tensor(f"p{i}", numel, numel, nvme, persistent=False) for i in range(count)]


def test_first_pass_fetches_each_tensor_on_demand_and_lets_it_go() -> None:
    calls, coordinator = walk([(), (0,), (1,), (2,)], tensors(3, nvme=False), settings("cpu"), warm=False)
    assert calls == "[0 ] [1 F0 w0 ] [2 F1 w1 ] [3 F2 w2 ]".replace("F", "Fp")
    assert coordinator.peak_on_gpu == 2_000_000


def test_a_bucket_of_one_tensor_prefetches_one_ahead() -> None:
    calls, _ = walk(
        [(), (0,), (1,), (2,)], tensors(3, nvme=False), settings("cpu", stage3_prefetch_bucket_size=1)
    )
    assert calls == "[0 Pp0 ] [1 w0 Pp1 ] [2 w1 Pp2 ] [3 w2 ]"


def test_the_tensor_that_crosses_the_bucket_is_still_taken() -> None:
    calls, _ = walk(
        [(), (0,), (1,), (2,), (3,)],
        tensors(4, nvme=False),
        settings("cpu", stage3_prefetch_bucket_size=3_000_000),
    )
    assert calls.startswith("[0 Pp0+p1 ] [1 w0 Pp2+p3 ]")


def test_live_parameters_hold_prefetch_back() -> None:
    knobs = settings("cpu", stage3_max_live_parameters=2_000_000)
    calls, _ = walk([(), (0,), (1,), (2,)], tensors(3, nvme=False), knobs)
    # The first is prefetched with nothing live; afterwards each module's own tensor fills the limit.
    assert calls == "[0 Pp0 ] [1 w0 ] [2 Fp1 w1 ] [3 Fp2 w2 ]"


def test_bucket_zero_means_no_prefetch_at_all() -> None:
    calls, _ = walk([(), (0,), (1,)], tensors(2, nvme=False), settings("cpu", stage3_prefetch_bucket_size=0))
    assert calls == "[0 ] [1 Fp0 w0 ] [2 Fp1 w1 ]"


def test_bucket_zero_switches_off_reading_ahead_too() -> None:
    calls, _ = walk([(), (0,), (1,)], tensors(2, nvme=True), settings("nvme", stage3_prefetch_bucket_size=0))
    assert calls == "[0 ] [1 Rp0 W Fp0 w0 ] [2 Rp1 W Fp1 w1 ]"


def test_a_chain_of_linears_on_nvme_looks_one_tensor_ahead() -> None:
    """The order measured with DeepSpeed 0.18.3 for 30 linear layers: read, wait, read, wait …"""
    calls, _ = walk([(), (0,), (1,), (2,)], tensors(3, nvme=True), settings("nvme"))
    assert calls == "[0 Rp0 ] [1 W Fp0 w0 Rp1 ] [2 W Fp1 w1 Rp2 ] [3 W Fp2 w2 ]"


def test_a_container_before_a_linear_lets_the_read_run_three_ahead() -> None:
    """A hook with nothing to fetch gathers what is being read, which allows reads of twice its size."""
    calls, _ = walk([(), (), (0,), (1,), (2,), (3,), (4,)], tensors(5, nvme=True), settings("nvme"))
    assert calls.startswith("[0 Rp0 ] [1 W Pp0 Rp1+p2+p3 ] [2 w0 W Pp1+p2+p3 Rp4 ]")


def test_small_slices_stay_in_memory_and_are_prefetched_up_to_the_next_read() -> None:
    mixed = [Tensor("norm", 1000, 1000, False, False), Tensor("big", 2_000_000, 2_000_000, True, False)]
    calls, _ = walk([(), (0,), (1,)], mixed, settings("nvme"))
    assert calls == "[0 Pnorm Rbig ] [1 w0 W Pbig ] [2 w1 ]"


def test_several_ranks_wait_for_the_third_last_fetch_event() -> None:
    calls, _ = walk(
        [(), *((i,) for i in range(5))],
        tensors(5, nvme=False),
        settings("cpu", stage3_prefetch_bucket_size=0),
        ranks=8,
    )
    assert "[4 Fp3 T0 w3 ]" in calls
    assert "[5 Fp4 T1 w4 ]" in calls
    one_rank, _ = walk(
        [(), *((i,) for i in range(5))],
        tensors(5, nvme=False),
        settings("cpu", stage3_prefetch_bucket_size=0),
    )
    assert "T" not in one_rank


def test_persistent_tensors_are_never_fetched_again() -> None:
    mixed = [Tensor("norm", 1000, 1000, False, True), Tensor("big", 2_000_000, 2_000_000, False, False)]
    calls, coordinator = walk([(), (0,), (1,)], mixed, settings("cpu", stage3_prefetch_bucket_size=0))
    assert calls == "[0 ] [1 ] [2 Fbig w0 ]"
    assert coordinator.peak_on_gpu == 2_001_000
    cold, _ = walk([(), (0,), (1,)], mixed, settings("cpu", stage3_prefetch_bucket_size=0), warm=False)
    assert cold == "[0 ] [1 Fnorm w0 ] [2 Fbig w1 ]"


def test_a_tied_weight_is_fetched_twice_unless_it_comes_back_within_the_reuse_distance() -> None:
    uses = [(), (0,), (1,), (0,)]
    far, _ = walk(
        uses,
        tensors(2, nvme=False),
        settings("cpu", stage3_prefetch_bucket_size=0, stage3_max_reuse_distance=2_000_000),
    )
    near, _ = walk(
        uses,
        tensors(2, nvme=False),
        settings("cpu", stage3_prefetch_bucket_size=0, stage3_max_reuse_distance=2_000_001),
    )
    assert far == "[0 ] [1 Fp0 w0 ] [2 Fp1 w1 ] [3 Fp0 w2 ]"
    assert near == "[0 ] [1 Fp0 w0 ] [2 Fp1 w1 ] [3 ]"


def test_too_few_swap_buffers_are_named_before_the_run() -> None:
    knobs = settings("nvme", buffer_count=1)
    with pytest.raises(InputError, match=r"Not enough buffers 1 for swapping 2 \(p0, p1\)"):
        walk([(), (0, 1)], tensors(2, nvme=True), knobs, warm=False)


def test_swap_buffers_limit_how_far_reads_go_ahead() -> None:
    calls, _ = walk([(), (), (0,), (1,), (2,), (3,)], tensors(4, nvme=True), settings("nvme", buffer_count=2))
    assert calls.startswith("[0 Rp0 ] [1 W Pp0 Rp1 ]")
