"""Kernels of FlexGen's 4-bit states, compared with their measurement on an H100."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from simoffload.extensions.programs.flexgen import (
    EXPAND_CACHE,
    EXPAND_WEIGHT,
    SQUEEZE_KEYS,
    SQUEEZE_VALUES,
    Kernel,
    Kernels,
    kernels_s,
)
from simoffload.hardware import Accelerator, load_profile

MEASURED = Path(__file__).parents[2] / "docs" / "measurements" / "h100-2026-11-23" / "flexgen-kernels.json"
TABLES: dict[str, Kernels] = {
    "expand weight": EXPAND_WEIGHT,
    "expand cache": EXPAND_CACHE,
    "squeeze keys of a prompt": SQUEEZE_KEYS,
    "squeeze values of a prompt": SQUEEZE_VALUES,
}


def gpu(name: str) -> Accelerator:
    found = load_profile("accelerator", name)
    assert isinstance(found, Accelerator)
    return found


def rows(part: str) -> list[dict[str, Any]]:
    """Return the measurements of operations on large tensors."""
    found: list[dict[str, Any]] = json.loads(MEASURED.read_text())["rows"]
    return [one for one in found if one["part"] == part and prod(one["shape"]) > 50e6]


@pytest.mark.parametrize("part", TABLES)
def test_the_times_of_addresses_are_the_measured_ones(part: str) -> None:
    """In the order of the operations; vectorized ones have none."""
    addition = 4 / gpu("h100-sxm").strided_rate.value  # type: ignore[union-attr]
    times: dict[str, list[float]] = {}
    for row in rows(part):
        if not row["operation"].startswith("all"):
            times.setdefault(row["operation"], []).append(row["seconds"] / prod(row["shape"]))
    large = [sum(each) / len(each) / addition for each in times.values()]
    for kernel, measured in zip(TABLES[part], large, strict=False):
        assert kernel.additions in (0.0, pytest.approx(measured, abs=0.002))
    assert len(TABLES[part]) >= len(large)


@pytest.mark.parametrize("part", TABLES)
def test_all_operations_in_new_tensors_take_the_sum(part: str) -> None:
    """The last kernels of ``squeeze`` are small, and the copy to the cache was measured apart."""
    kernels = TABLES[part][:-5] if part.startswith("squeeze") else TABLES[part]
    found = [row for row in rows(part) if row["operation"].startswith("all")]
    predicted = sum(kernels_s(kernels, prod(row["shape"]), gpu("h100-sxm")) for row in found)
    assert predicted == pytest.approx(sum(row["seconds"] for row in found), rel=0.1)


def test_memory_or_addresses_whichever_takes_longer() -> None:
    """A T4 has 0.14 of the H100's multiprocessors and clock, and 0.09 of its memory rate."""
    t4 = gpu("t4")
    assert t4.strided_rate is not None
    latency = t4.kernel_latency_s
    assert kernels_s((Kernel(4.0, 0.1),), 10**9, t4) == pytest.approx(4e9 / 240e9 + latency)
    assert kernels_s((Kernel(4.0, 2.0),), 10**9, t4) == pytest.approx(8e9 / 193e9 + latency)
    unknown = t4.model_copy(update={"strided_rate": None})
    assert kernels_s((Kernel(4.0, 2.0),), 10**9, unknown) == pytest.approx(4e9 / 240e9 + latency)
