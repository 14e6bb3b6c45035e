"""Unified memory: a GPU without memory of its own works in its host's."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from simoffload.errors import InputError
from simoffload.hardware import load_platform
from tests.hardware.conftest import crossed, number

OWN = f"hbm_capacity: {number('10 GB')}\n"
SHARED = f"unified_memory: {number('true')}\n"


def put(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.fixture
def unified(folder: Path) -> Path:
    """The small platform with one GPU, which uses the memory of the host."""
    put(folder, "accelerator/chip.yaml", OWN, SHARED)
    put(folder, "small.yaml", "gpus: [left, left, right, right]", "gpus: [left]")
    return folder


def test_both_tiers_are_the_memory_of_the_host(unified: Path) -> None:
    tiers = load_platform(unified / "small.yaml").machine().tiers
    assert (tiers["hbm"].capacity, tiers["hbm"].pool) == (tiers["dram"].capacity, "dram") == (10**11, "dram")
    assert tiers["dram"].pool == ""


@pytest.mark.parametrize(("pinned", "traffic"), [(True, 2), (False, 4)])
def test_a_copy_reads_and_writes_the_same_memory(unified: Path, pinned: bool, traffic: int) -> None:
    machine = load_platform(unified / "small.yaml").machine()
    for path in (machine.host_to_device(0, pinned=pinned), machine.device_to_host(0, pinned=pinned)):
        assert crossed(machine, path)["dram"] == traffic


@pytest.mark.parametrize("gds", [True, False])
def test_a_read_for_the_gpu_ends_in_the_memory_of_the_host(unified: Path, gds: bool) -> None:
    machine = load_platform(unified / "small.yaml").machine()
    for path in (machine.storage_read("disk", 0, gds=gds), machine.storage_write("disk", 0, gds=gds)):
        assert crossed(machine, path)["dram"] == Fraction(1)


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("", "hbm_capacity is missing: give it, or unified_memory"),
        (OWN + SHARED, "unified_memory is true, so leave hbm_capacity out"),
        (f"unified_memory: {number('false')}\n", "hbm_capacity is missing"),
        (f"unified_memory: {number('yes please')}\n", "unified_memory.value"),
        (SHARED, "works in the memory of its host, which only one can"),
    ],
)
def test_contradictions_are_refused_with_one_message(folder: Path, new: str, message: str) -> None:
    put(folder, "accelerator/chip.yaml", OWN, new)
    with pytest.raises(InputError) as caught:
        load_platform(folder / "small.yaml")
    (problem,) = caught.value.problems
    assert message in str(problem)


def test_memory_of_its_own_may_be_stated(folder: Path) -> None:
    put(folder, "accelerator/chip.yaml", OWN, OWN + f"unified_memory: {number('false')}\n")
    assert load_platform(folder / "small.yaml").machine().tiers["hbm"].pool == ""
