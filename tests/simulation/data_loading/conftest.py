"""The library of round numbers that hardware is tested with, and a dataset to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simoffload.hardware import Machine, load_platform
from simoffload.workload import Dataset
from tests.hardware.conftest import FILES

KB, MB, GB, KIB, MIB = 10**3, 10**6, 10**9, 2**10, 2**20


@pytest.fixture(scope="module")
def round_numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drive of 2 GB/s and 100 us, two of them in RAID0 at 3 GB/s, servers; memcpy at 5 GB/s."""
    folder = tmp_path_factory.mktemp("library")
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.lstrip())
    return folder


@pytest.fixture(scope="module")
def small(round_numbers: Path) -> Machine:
    """Four GPUs, 90 GB of memory for the page cache."""
    return load_platform(round_numbers / "small.yaml").machine()


def dataset(**changes: Any) -> Dataset:
    """1 MB in one direct request of 100 us + 500 us on "disk": 600 us a sample."""
    usual = {
        "tier": "disk",
        "sample_size": "1 MB",
        "samples": 1_000_000,
        "workers": 1,
        "page_cache": False,
        "request_size": "1 MB",
    }
    return Dataset.model_validate(usual | changes)
