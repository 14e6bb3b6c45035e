"""What the GPUs need, what loaders and storage reach: reckoned by hand, and as published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from simoffload.extensions.storage.data_loading import data_loading_sentences, predict_data_loading
from simoffload.hardware import Machine, load_platform
from simoffload.workload import Dataset
from tests.simulation.data_loading.conftest import GB, MB, MIB, dataset


def test_one_worker_waits_for_every_request(small: Machine) -> None:
    """8 samples of 600 us are 4.8 ms; a step of 4 ms waits 0.8 ms, and two workers suffice."""
    data_loading = predict_data_loading(dataset(), small, ranks=1, batch_size=8, step_time=4e-3)
    cold = data_loading.cold
    assert cold.batch_s == pytest.approx(4.8e-3, rel=1e-6)
    assert cold.first_batch_s == pytest.approx(4.8e-3, rel=1e-6)
    assert cold.step_s == pytest.approx(4.8e-3, rel=1e-6)
    assert cold.starvation == pytest.approx(1 / 6, rel=1e-6)
    assert (cold.limit, cold.link) == ("requests", "")
    assert cold.needed == pytest.approx(2 * GB)
    assert cold.reachable == pytest.approx(1 * MB / 600e-6, rel=1e-6)
    assert data_loading.workers_needed == 2


def test_two_workers_fill_the_drive(small: Machine) -> None:
    """Two workers could read 3.33 GB/s and the drive delivers 2: 8 MB in 4 ms; nothing is left over."""
    data_loading = predict_data_loading(dataset(workers=2), small, ranks=1, batch_size=8, step_time=4e-3)
    assert data_loading.cold.reachable == pytest.approx(2 * GB, rel=1e-6)
    assert (data_loading.cold.limit, data_loading.cold.starvation) == ("gpu", 0)
    hungry = predict_data_loading(dataset(workers=2), small, ranks=1, batch_size=8, step_time=2e-3)
    assert (hungry.cold.limit, hungry.cold.link) == ("link", "disk read")
    assert hungry.cold.starvation == pytest.approx(0.5, rel=1e-6)
    assert hungry.workers_needed is None
    assert hungry.cold.needed == pytest.approx(4 * GB)


def test_more_requests_in_flight_do_what_more_workers_do(small: Machine) -> None:
    """Ten requests of 100 kB in flight: 1 MB in 150 us is more than the drive has."""
    one = dataset(request_size="100 kB")
    slow = predict_data_loading(one, small, ranks=1, batch_size=8, step_time=2e-3).cold
    assert slow.batch_s == pytest.approx(8 * 10 * 150e-6, rel=1e-6)
    ten = dataset(request_size="100 kB", requests_in_flight=10)
    fast = predict_data_loading(ten, small, ranks=1, batch_size=8, step_time=2e-3).cold
    assert (fast.limit, fast.link) == ("link", "disk read")
    assert fast.batch_s == pytest.approx(4e-3, rel=1e-6)


def test_ranks_share_the_drive(small: Machine) -> None:
    """Four ranks with two workers each get 0.5 GB/s each: 8 MB in 16 ms."""
    data_loading = predict_data_loading(dataset(workers=2), small, ranks=4, batch_size=8, step_time=4e-3)
    assert data_loading.cold.batch_s == pytest.approx(16e-3, rel=1e-6)
    assert data_loading.cold.reachable == pytest.approx(2 * GB, rel=1e-6)
    assert data_loading.cold.needed == pytest.approx(8 * GB)
    assert data_loading.cold.first_batch_s == pytest.approx(8 * MB / 0.25e9, rel=1e-6)  # workers share, too


def test_local_drives_of_two_hosts_and_one_server_for_both(round_numbers: Path) -> None:
    """Four ranks per host; every host has its drive, and both have one filesystem of 20 GB/s."""
    two = load_platform(round_numbers / "small.yaml").machine(nodes=2)
    local = predict_data_loading(dataset(workers=8), two, ranks=8, batch_size=1, step_time=1)
    assert local.cold.reachable == pytest.approx(4 * GB, rel=1e-6)
    assert local.stored == 2 * local.size == 2_000 * GB
    assert local.fits
    remote = dataset(tier="pfs", workers=64)
    one_host = predict_data_loading(remote, two, ranks=4, batch_size=1, step_time=1)
    hosts = predict_data_loading(remote, two, ranks=8, batch_size=1, step_time=1)
    assert one_host.cold.reachable == pytest.approx(8 * GB, rel=1e-6)  # its two ports, or what is in flight
    assert hosts.cold.reachable == pytest.approx(16 * GB, rel=1e-6)
    assert hosts.stored == hosts.size


def test_a_dataset_that_is_too_large(small: Machine) -> None:
    data_loading = predict_data_loading(dataset(samples=1_000_001), small, ranks=1, batch_size=1, step_time=1)
    assert (data_loading.stored, data_loading.fits) == (1_000_001 * MB, False)
    assert (
        data_loading_sentences(dataset(samples=1_000_001), data_loading)[-1]
        == "disk is too small for 1 TB of data"
    )


def test_decoding_takes_workers_and_cores(small: Machine) -> None:
    """600 us of reading and 3.4 ms of decoding: 4 ms a sample and worker, 1.7 ms on two cores."""
    data = dataset(workers=4, decode_time="3.4 ms")
    cold = predict_data_loading(data, small, ranks=1, batch_size=8, step_time=4e-3).cold
    assert cold.batch_s == pytest.approx(8 * 4e-3 / 4, rel=1e-6)
    assert (cold.limit, cold.starvation) == ("decode", pytest.approx(0.5, rel=1e-6))
    few = predict_data_loading(data, small, ranks=1, batch_size=8, step_time=4e-3, cores=2)
    assert few.cold.batch_s == pytest.approx(8 * 1.7e-3, rel=1e-6)
    assert (few.cold.limit, few.workers_needed, few.remaining) == ("cores", None, "cores")
    assert data_loading_sentences(data, few)[-1].endswith("decoding needs more cores, or must cost less")
    many = predict_data_loading(data, small, ranks=1, batch_size=8, step_time=4e-3, cores=64)
    assert (many.cold.limit, many.workers_needed) == ("decode", 8)


def test_opening_and_copying_count(small: Machine) -> None:
    """1.4 ms to open, 256 pages in one request (100 + 524 us), 200 us to copy 1 MB at 5 GB/s."""
    data = dataset(page_cache=True, open_time="1.4 ms", request_size="2 MB")
    cold = predict_data_loading(data, small, ranks=1, batch_size=1, step_time=1e-3).cold
    pages = -(-MB // 4096) * 4096
    assert cold.batch_s == pytest.approx(1.4e-3 + 100e-6 + pages / 2e9 + 200e-6, rel=1e-6)
    assert cold.limit == "files"
    sharded = data.model_copy(update={"samples_per_file": 1000, "shuffle": "shard"})
    cold = predict_data_loading(sharded, small, ranks=1, batch_size=1, step_time=1e-4).cold
    assert cold.limit == "requests"
    assert cold.batch_s == pytest.approx(1.4e-6 + (100e-6 + 1e-3) / 2 + 200e-6, rel=1e-6)


def test_without_workers_the_gpu_waits_for_every_batch(small: Machine) -> None:
    data_loading = predict_data_loading(dataset(workers=0), small, ranks=1, batch_size=8, step_time=4e-3)
    assert data_loading.cold.step_s == pytest.approx(8.8e-3, rel=1e-6)
    assert (data_loading.cold.limit, data_loading.workers_needed) == ("no_workers", 2)


def test_a_target_that_serves_few_requests(small: Machine) -> None:
    """4 KiB at 100 000 requests/s are 410 MB/s, far below the drive's 2 GB/s."""
    data = dataset(sample_size="4 KiB", workers=64)
    arguments: dict[str, Any] = {"ranks": 1, "batch_size": 1000, "step_time": 1e-3}
    cold = predict_data_loading(data, small, requests_per_second=100_000, **arguments).cold
    assert (cold.limit, cold.link) == ("link", "disk requests/s")
    assert cold.reachable == pytest.approx(409.6e6, rel=1e-6)
    assert predict_data_loading(data, small, **arguments).cold.reachable > 1.9 * GB


def test_what_else_crosses_the_drive(small: Machine) -> None:
    """The optimizer's traffic takes 1.5 of 2 GB/s."""
    data = dataset(workers=4)
    cold = predict_data_loading(
        data, small, ranks=1, batch_size=8, step_time=1e-3, background={"disk read": 1.5e9}
    ).cold
    assert (cold.link, cold.reachable) == ("disk read", pytest.approx(0.5 * GB, rel=1e-6))


def test_memory_is_shared_by_batches_made_ahead_and_the_page_cache(small: Machine) -> None:
    """2 ranks x 4 workers x 2 batches x 8 samples of 10 MB = 1.28 GB."""
    data = dataset(workers=4, page_cache=True, decoded_size="10 MB")
    data_loading = predict_data_loading(data, small, ranks=2, batch_size=8, step_time=0.1)
    assert (data_loading.look_ahead, data_loading.cache) == (1_280_000_000, 90 * GB - 1_280_000_000)
    assert data_loading.bridged_s == pytest.approx(8 * 0.1)
    tight = predict_data_loading(data, small, ranks=2, batch_size=8, step_time=0.1, free_host_memory=GB)
    assert tight.cache == 0


STORAGE_V1 = [
    # workload, sample [B], batch, step [s], accelerators, utilization [%], samples/s, MiB/s
    ("unet3d", 146_600_628, 7, 0.323, 36, 93.585, 708.853, 99_104.2),
    ("unet3d", 146_600_628, 7, 0.323, 2, 92.351, 39.771, 5_560.36),
    ("resnet50", 114_660, 400, 0.224, 512, 92.516, 843_065.2, 92_187.8),
    ("cosmoflow", 2_828_486, 1, 0.0035, 64, 70.264, 12_556.6, 33_871.0),
]
"""mlcommons/storage configs/dlio/workload/*_h100.yaml and mlcommons/storage_results_v1.0@1c5efa73: run 1 of
DDN's AI400X2T with 18, 32 and 16 clients and of HPE's C500 with one host."""


@pytest.mark.parametrize(
    ("workload", "size", "batch", "step_time", "count", "utilization", "samples", "rate"), STORAGE_V1
)
def test_what_published_accelerators_asked_of_their_storage(
    small: Machine,
    workload: str,
    size: int,
    batch: int,
    step_time: float,
    count: int,
    utilization: float,
    samples: float,
    rate: float,
) -> None:
    """Needed bytes/s x the published utilization are the published MiB/s.

    The run's time has 3 % of starts of epochs in it, resnet50's on 512 accelerators nothing of that.
    """
    data = dataset(sample_size=f"{size} B", samples=10**9, tier="pfs")
    needed = (
        predict_data_loading(data, small, ranks=1, batch_size=batch, step_time=step_time).cold.needed * count
    )
    assert rate * MIB == pytest.approx(samples * size, rel=1e-3)
    assert needed * utilization / 100 == pytest.approx(rate * MIB, rel=0.035), workload


def test_one_emulated_h100_needs_three_gigabytes_per_second(small: Machine) -> None:
    """7 x 146.6 MB / 0.323 s; a drive of 2 GB/s starves it to 63 %, whatever the workers."""
    data = dataset(sample_size="146600628 B", samples=1000, workers=4)
    data_loading = predict_data_loading(data, small, ranks=1, batch_size=7, step_time=0.323)
    assert data_loading.cold.needed == pytest.approx(3.177 * GB, rel=1e-3)
    assert 1 - data_loading.cold.starvation == pytest.approx(2 / 3.177, rel=1e-3)
    assert data_loading.workers_needed is None
    assert data_loading_sentences(data, data_loading) == (
        "the GPUs wait for data in 37.0 % of the time: 3.18 GB/s needed, 2 GB/s reachable",
        "disk read is saturated",
        "no number of workers is enough: storage must deliver 3.18 GB/s",
    )


def test_sentences_tell_what_helps(small: Machine) -> None:
    """245 pages in 602 us and 200 us of copying: 6.41 ms for 8 samples where 5 are given."""
    data = dataset(epochs=2, page_cache=True, request_size="2 MB", samples=50_000)
    data_loading = predict_data_loading(data, small, ranks=1, batch_size=8, step_time=5e-3)
    waitless = "the GPUs do not wait for data: 0 B/s needed, 1.67 GB/s reachable"
    assert data_loading_sentences(data, data_loading) == (
        "the GPUs wait for data in 22.0 % of the time: 1.61 GB/s needed, 1.67 GB/s reachable",
        "requests wait for storage: one worker per rank with 980 KiB in flight",
        "2 workers per rank would be enough",
        "from epoch 2 on the page cache (83.8 GiB per host) has 100 % of what is read; " + waitless,
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"sample_size": "16"},
        {"sample_size": "0 B"},
        {"samples": 0},
        {"workers": -1},
        {"prefetch_factor": 0},
        {"decode_time": "-1 ms"},
        {"shuffle": "some"},
        {"num_workers": 4},
    ],
)
def test_datasets_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        dataset(**wrong)


def test_dataset_survives_a_round_trip() -> None:
    data = dataset(decode_time="3 ms", decoded_size="2 MB")
    assert Dataset.model_validate(data.model_dump(mode="json")) == data
