"""Mapped files under Accelerate and FlexGen, and against a run."""

from __future__ import annotations

from typing import Any

import pytest

import simoffload as so
from simoffload.documents import Edit
from simoffload.hardware import load_platform
from simoffload.scenario import LoadedScenario, read_scenario
from simoffload.schedule import Schedule
from tests.strategies import scenarios
from tests.strategies.scenarios import bytes_of

MIB = 1 << 20


def scenario(platform: str, **strategy: Any) -> LoadedScenario:
    model = {"name": "opt-30b", "dtype": "float16"}
    work = {"batch_size": 1, "prompt_length": 32, "steps": 1}
    return scenarios.scenario(model=model, platform=platform, **work, strategy=strategy)


def under_accelerate(platform: str, tier: str, **keys: Any) -> LoadedScenario:
    return scenario(platform, kind="accelerate", device_map="disk", offload_folder=tier, **keys)


def under_flexgen(platform: str, tier: str, **keys: Any) -> LoadedScenario:
    return scenario(platform, kind="flexgen", disk=tier, weights_gpu_percent=0, **keys)


def decode(given: LoadedScenario) -> Schedule:
    found: Any = given.plan()
    return found.schedule(found.forward("decode", 1, 33))


def read_times(given: LoadedScenario) -> dict[int, float]:
    """[s] of a read of each size, alone."""
    schedule = decode(given)
    ops = {op.size: op for block in schedule.blocks for op in block.ops if op.kind == "read"}
    return {size: op.fixed * 1e-12 + size / schedule.routes[op.route].cap for size, op in ops.items()}


@pytest.mark.parametrize(
    ("platform", "tier", "limit"),
    [("dgx-a100", "raid", "copying"), ("rtx-4090-desktop", "nvme", "drive"), ("gcp-t4", "nvme", "drive")],
)
def test_files_that_are_not_cached_take_the_same_time_under_both_programs(
    platform: str, tier: str, limit: str
) -> None:
    """A layer's attention and MLP matrices, of 98 and 392 MiB, and the embedding."""
    accelerate, flexgen = (
        read_times(one(platform, tier, page_cache=False)) for one in (under_accelerate, under_flexgen)
    )
    large = {size for size in accelerate.keys() & flexgen.keys() if size > 50 * MIB}
    assert {98 * MIB, 392 * MIB} <= large
    assert {size: accelerate[size] for size in large} == {size: flexgen[size] for size in large}
    machine = load_platform(platform).machine()
    drive = machine.storage_read(tier, 0).curve.rate(98 * MIB)
    rate = 98 * MIB / flexgen[98 * MIB]
    assert (rate == pytest.approx(drive, rel=0.01)) == (limit == "drive")
    assert rate <= drive


def test_what_a_host_was_measured_to_give_holds_for_both() -> None:
    stated = {"value": "1 GB/s", "origin": "measured", "source": "a run", "date": "2026-11-24"}
    measured = {"mapped_read": stated}
    for made in (under_accelerate, under_flexgen):
        given = made("dgx-a100", "raid", page_cache=False)
        host = f"host/{given.machine.host.id}"
        slow = given.edited(Edit(("profiles",), {host: measured}))
        assert read_times(slow)[98 * MIB] == pytest.approx(98 * MIB / 1e9, rel=0.01)


def test_new_pages_are_hidden_by_a_slow_drive_only() -> None:
    """A run: 200 MiB at 2.3 GB/s into memory in use, 1.8 into new memory; from a drive of 1.0 GB/s both."""

    def cpu(platform: str, tier: str) -> int:
        return bytes_of(decode(under_accelerate(platform, tier, page_cache=False)), "cpu")

    assert cpu("dgx-a100", "raid") > 0 == cpu("gcp-t4", "nvme")


def test_a_faster_drive_does_not_slow_accelerate_down() -> None:
    """Behind a slot of four lanes of PCIe 4 a drive of 20 GB/s is as fast as one of 9."""
    times = []
    for rate in (5, 7, 9, 20):
        given = read_scenario(
            "serving/llama-3.1-70b", overrides=[f'profiles."drive/samsung-980-pro-2tb".read={rate} GB/s']
        )
        times.append(so.simulate(given).tpot_s or 0.0)
    assert times == sorted(times, reverse=True)
    assert times[-1] == pytest.approx(times[-2], rel=1e-4)
