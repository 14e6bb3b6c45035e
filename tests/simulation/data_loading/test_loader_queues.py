"""Batches made ahead, against a replay of the rules and against real loaders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simoffload.extensions.storage.data_loading import (
    GpuStep,
    Pace,
    data_loading_sentences,
    predict_data_loading,
)
from simoffload.hardware import Machine, load_platform
from tests.examples import some
from tests.hardware.conftest import FILES, curve
from tests.simulation.data_loading.conftest import MIB, dataset


def replay(steps: int, step: GpuStep, workers: int, prefetch: int, made: float) -> list[float]:
    """Times [s] at which steps end.

    Batch k is made by worker k mod W after its batch k - W, and after batch k - L was taken; batches are
    taken in order, while the GPU works on none and pauses not.
    """
    ahead, done, taken, free, ends = workers * prefetch, [], [], 0.0, []
    for k in range(steps * step.batches):
        asked = taken[k - ahead] if k >= ahead else 0.0
        done.append(max(asked, done[k - workers] if k >= workers else 0.0) + made)
        taken.append(max(done[-1], free))
        free = taken[-1] + step.batch_s
        if (k + 1) % step.batches == 0:
            free += step.pause_s
            ends.append(free)
    return ends


@given(
    st.integers(1, 8),
    st.integers(1, 4),
    st.integers(1, 24),
    st.floats(0.01, 10),
    st.floats(0, 20),
)
@settings(max_examples=some(100))
def test_steps_take_as_long_as_in_a_replay(
    workers: int, prefetch: int, batches: int, made: float, pause: float
) -> None:
    """The GPU works 1 s on a batch, a worker makes one in ``made`` seconds."""
    step = GpuStep(batches + pause, batches, pause)
    data = dataset(workers=workers, prefetch_factor=prefetch)
    interval = made / workers
    ends = replay(60, step, workers, prefetch, made)
    steady = (ends[-1] - ends[-31]) / 30
    predicted = step.waiting(interval, data)
    assert predicted == pytest.approx(steady, rel=0.02, abs=made / 10)
    epoch = step.epoch(60, Pace(interval, made, "requests"), data)
    assert epoch == pytest.approx(ends[-1], rel=0.05, abs=2 * made)


@pytest.mark.parametrize(
    ("workers", "prefetch", "made", "batches", "batch_s", "pause_s", "measured"),
    [
        (1, 2, 0.04, 1, 0.10, 0.0, 0.101),
        (1, 2, 0.16, 1, 0.05, 0.0, 0.161),
        (2, 2, 0.16, 1, 0.05, 0.0, 0.080),
        (4, 2, 0.16, 1, 0.05, 0.0, 0.052),
        (0, 2, 0.08, 1, 0.05, 0.0, 0.131),
        (2, 2, 0.08, 16, 0.02, 1.0, 1.530),
        (2, 8, 0.08, 16, 0.02, 1.0, 1.336),
        (4, 1, 0.16, 8, 0.01, 0.6, 0.808),
        (1, 2, 0.08, 8, 0.02, 0.5, 1.008),
        (8, 2, 0.20, 4, 0.02, 0.2, 0.285),
    ],
)
def test_steps_of_a_real_loader(
    workers: int, prefetch: int, made: float, batches: int, batch_s: float, pause_s: float, measured: float
) -> None:
    """PyTorch 2.11's DataLoader on 16 cores, its samples and the step asleep: mean of 4 to 28 steps [s]."""
    data = dataset(workers=workers, prefetch_factor=prefetch)
    step = GpuStep(batches * batch_s + pause_s, batches, pause_s)
    assert step.waiting(made / max(1, workers), data) == pytest.approx(measured, rel=0.04)


def test_prefetching_deeper_carries_through_the_optimizers_pause(small: Machine) -> None:
    """Sixteen batches of 4.8 ms come in 20 ms; only four are ready after a pause of 80 ms."""
    data = dataset(workers=2, prefetch_factor=2)
    arguments: dict[str, Any] = {
        "ranks": 1,
        "batch_size": 8,
        "gradient_accumulation_steps": 16,
        "step_time": 0.1,
        "pause_time": 0.08,
    }
    shallow = predict_data_loading(data, small, **arguments)
    # 4 ms a batch: 6 rounds of two workers, the second 1.25 ms later, and the work on the last one
    assert shallow.cold.step_s == pytest.approx(0.08 + 6 * 8e-3 + 2 * 1.25e-3, rel=1e-6)
    assert shallow.cold.limit == "look_ahead"
    assert data_loading_sentences(data, shallow)[1:] == (
        "4 batches, all that are prefetched, do not last from one optimizer step to the next",
        "a larger prefetch_factor or 8 workers per rank would be enough",
    )  # 8 x 2 batches are all of a step; with 7 the last two of 28 ms come at 110.5 ms
    deep = predict_data_loading(data.model_copy(update={"prefetch_factor": 8}), small, **arguments)
    assert (deep.cold.limit, deep.cold.starvation) == ("gpu", 0)


@given(
    st.integers(1, 16),
    st.integers(1, 64),
    st.floats(1e-4, 1),
    st.integers(1, 4),
    st.integers(0, 3),
)
@settings(max_examples=some(25))
def test_no_fewer_workers_than_proposed_suffice(
    small: Machine, workers: int, batch: int, step_time: float, ranks: int, decode_ms: int
) -> None:
    data = dataset(tier="raid", workers=workers, decode_time=f"{decode_ms} ms", request_size="512 KiB")
    arguments: dict[str, Any] = {"ranks": ranks, "batch_size": batch, "step_time": step_time}
    needed = predict_data_loading(data, small, **arguments).workers_needed

    def starves(count: int) -> bool:
        with_them = data.model_copy(update={"workers": count})
        return predict_data_loading(with_them, small, **arguments).cold.starvation > 0

    if needed is None:
        assert starves(1024)
    else:
        assert not starves(needed)
        assert needed == 1 or starves(needed - 1)


MEASURED_READS = [(4096, 161), (20480, 625), (81920, 1574), (135168, 2254), (540672, 3819), (1052672, 2261)]
MEASURED_READS += [(2105344, 3513), (4210688, 3822)]
"""Bytes in flight and MB/s of direct reads at random places, 1 to 4 processes."""


@pytest.mark.parametrize(
    ("size", "workers", "batch", "cached_us", "measured"),
    [
        (4096, 1, 64, 6.8, 28_698),
        (16_384, 1, 64, 8.4, 25_348),
        (131_072, 1, 16, 36.7, 8_048),
        (MIB, 1, 4, 243.1, 1_034),
        (4 * MIB, 1, 2, 666.9, 339),
        (4096, 2, 64, 6.8, 52_829),
        (16_384, 4, 64, 8.4, 47_480),
        (131_072, 4, 16, 36.7, 12_432),
        (MIB, 4, 4, 243.1, 1_982),
    ],
)
def test_a_real_loader_is_no_faster_and_up_to_half_as_slow(
    round_numbers: Path, size: int, workers: int, batch: int, cached_us: float, measured: float
) -> None:
    """Samples/s of PyTorch 2.11's DataLoader, cold buffered reads at random places of a file of 20 GiB.

    A virtual machine with 16 cores, ext4 on a virtual disk with 8 MiB of read-ahead, Linux 6.18, 2026-11-21.
    What is predicted from direct reads and from the time of a sample found in the cache leaves out how long
    Linux takes to fill the cache: 0.7 to 1 us a page with one worker, more with several on one file.
    """
    points = [f"[{in_flight} B, {rate} MB/s]" for in_flight, rate in MEASURED_READS]
    text = FILES["drive/disk.yaml"].replace("2 GB/s", "3822 MB/s").replace("100 us", "24 us")
    text = text.replace("value: 4,", "value: 16,") + f"read_by_outstanding: {curve(*points)}\n"
    (round_numbers / "drive" / "measured.yaml").write_text(text.lstrip().replace("id: disk", "id: measured"))
    platform = FILES["small.yaml"].replace("{profile: disk,", "{profile: measured,")
    (round_numbers / "measured.yaml").write_text(platform.lstrip())
    machine = load_platform(round_numbers / "measured.yaml").machine()
    decoding = cached_us - size / machine.host.memcpy_rate.value * 1e6
    data = dataset(
        sample_size=f"{size} B",
        samples_per_file=10**6,
        workers=workers,
        page_cache=True,
        request_size="8 MiB",
        decode_time=f"{max(decoding, 0):.3f} us",
    )
    cold = predict_data_loading(data, machine, ranks=1, batch_size=batch, step_time=1e-6).cold
    assert 0.95 < batch / cold.batch_s / measured < 2.3
