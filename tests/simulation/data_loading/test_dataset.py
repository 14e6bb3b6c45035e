"""Sizes of samples and of requests."""

from __future__ import annotations

import pytest

from simoffload.workload import Dataset
from tests.simulation.data_loading.conftest import KIB, dataset


@pytest.mark.parametrize("size", [1, 100, 4095, 4096, 4097, 10_000, 16_384])
def test_scattered_samples_touch_more_pages_than_they_fill(size: int) -> None:
    """Mean over all 4096 places in a page at which a sample may begin."""
    pages = sum((start + size - 1) // 4096 + 1 for start in range(4096)) / 4096
    data = dataset(sample_size=f"{size} B", samples_per_file=10**6, page_cache=True)
    assert data.bytes_per_read == pages * 4096


def test_bytes_of_whole_files_ordered_reads_and_direct_reads() -> None:
    own = dataset(sample_size="5000 B", page_cache=True)
    assert own.bytes_per_read == 8192
    ordered = dataset(sample_size="5000 B", page_cache=True, samples_per_file=9, shuffle="shard")
    assert ordered.bytes_per_read == 5000
    assert dataset(sample_size="5000 B", samples_per_file=9).bytes_per_read == 5000


def test_requests() -> None:
    """Linux reads 128 KiB ahead in order; a scattered sample is read as it is."""
    usual = {"tier": "disk", "sample_size": "16 KiB", "samples": 10**6, "samples_per_file": 10**6}
    scattered = Dataset.model_validate(usual | {"shuffle": "full"})
    assert (scattered.request, scattered.in_flight) == (20_479, 20_479)
    ordered = Dataset.model_validate(usual | {"shuffle": "none", "requests_in_flight": 2})
    assert (ordered.request, ordered.in_flight) == (128 * KIB, 256 * KIB)
