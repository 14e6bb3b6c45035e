"""Drives that write fast until their cache is full: hand-computed steps and checkpoints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simoffload import write_report
from simoffload.documents import parse_json
from simoffload.errors import InputError
from simoffload.extensions.storage.result import CheckpointResult
from simoffload.hardware import load_profile
from simoffload.results.training import CachedWrites, TrainingResult
from simoffload.scenario import LoadedScenario, resolve
from simoffload.shipped import shipped_folder
from simoffload.simulation import simulate
from tests.report.conftest import result_text

GB = 10**9
DRIVE = "samsung-980-pro-2tb"
INTO, AFTER, READ = 5.1 * GB, 2 * GB, 7 * GB
"""[B/s] of a 980 PRO."""


def scenario(
    layers: int = 32, *, platform: str = "rtx-4090-desktop", optimizer: str = "nvme", **more: Any
) -> LoadedScenario:
    """Llama-3-8B, 8.03e9 parameters, of whose states a step reads and writes 16 B each: 128 GB."""
    work = {"kind": "training", "batch_size": 1, "sequence_length": 1024, **more.pop("workload", {})}
    tree = {
        "name": "written",
        "model": {"name": "llama-3.1-8b", "num_hidden_layers": layers},
        "platform": platform,
        "workload": work,
        "strategy": {"weights": "dram", "optimizer": optimizer, "ds_config": {"bf16": {"enabled": True}}},
        **more,
    }
    return resolve(parse_json(json.dumps(tree), name="written.json"))


def trained(*layers: int, **more: Any) -> TrainingResult:
    result = simulate(scenario(*layers, **more))
    assert isinstance(result, TrainingResult)
    assert result.fits, result.advice
    return result


def rendered(result: TrainingResult) -> CachedWrites:
    (one,) = result.write_caches
    return one


def cache(size: str) -> dict[str, Any]:
    return {DRIVE: {"write_cache": {"capacity": size}}}


def writing_s(result: TrainingResult) -> float:
    """[s] in which the drive was written to."""
    assert result.step is not None
    return next(use.busy_s for use in result.step.links if use.link == "nvme write")


def test_128_gb_a_step_leave_the_drive_no_time_to_empty_its_cache() -> None:
    """Reading 18.4 s, writing 64.2 s at 2 GB/s: of what is left of the step it empties what fills it anew."""
    result = trained()
    one = rendered(result)
    assert (one.written, one.capacity) == (128_483_115_008, 215 * GB)
    assert result.step_s == pytest.approx(
        one.written / READ + one.written / AFTER + one.cached / INTO, rel=0.001
    )
    assert one.cached == pytest.approx(15.5 * GB, rel=0.01)
    slow = (one.written - one.cached) / AFTER
    assert one.rate == pytest.approx(one.written / (one.cached / INTO + slow), rel=1e-6)
    assert writing_s(result) == pytest.approx(one.cached / INTO + slow, rel=0.02)
    assert "write cache exceeded: nvme: a step writes 128 GB, and only 15.5 GB" in " ".join(result.warnings)


@pytest.mark.parametrize(("size", "cached"), [("64 GB", 64 * GB), ("215 GB", 128_483_115_008)])
def test_a_first_step_fills_an_empty_cache_and_writes_the_rest_behind_it(size: str, cached: int) -> None:
    """64 GB at 5.1 GB/s and 64.5 GB at 2 GB/s: 44.8 s; all of it at 5.1 GB/s: 25.2 s."""
    result = trained(profiles=cache(size), workload={"write_caches": "empty"})
    one = rendered(result)
    assert one.cached == cached
    assert writing_s(result) == pytest.approx(cached / INTO + (one.written - cached) / AFTER, rel=0.005)
    assert any("write cache" in text for text in result.warnings) is one.exceeded is (size == "64 GB")


def test_a_long_step_empties_the_cache_in_time() -> None:
    """256 micro-steps between two updates: as fast as with an empty cache, to the picosecond."""
    work = {"gradient_accumulation_steps": 256}
    steady = trained(1, workload=work)
    empty = trained(1, workload=work | {"write_caches": "empty"})
    assert steady.step_s == empty.step_s
    assert rendered(steady) == rendered(empty)
    assert rendered(steady).rate == INTO
    assert not any("write cache" in text for text in steady.warnings)
    assert "fit into the write cache of 215 GB: 5.1 GB/s" in result_text(steady)


def test_the_longer_the_step_the_more_finds_room() -> None:
    """From one micro-step, in which next to nothing does, to so many that everything does."""
    runs = [
        rendered(trained(1, workload={"gradient_accumulation_steps": steps, "sequence_length": 4096}))
        for steps in (1, 8, 64)
    ]
    assert runs[0].rate < runs[1].rate <= runs[2].rate == INTO


def test_an_array_has_the_caches_of_its_drives() -> None:
    """RAID0 of two: twice the cache, twice both rates, at the array's efficiency of 0.97."""
    array = {"raid0-3x-dramless-gen4-2tb": {"count": 2}}
    one = rendered(trained(4, platform="xinnor-workstation", optimizer="raid", profiles=array))
    assert one.capacity == 2 * 680 * GB
    assert (one.cache_rate, one.rate_after) == (int(2 * 4.85 * GB * 0.97), int(2 * 0.6 * GB * 0.97))
    assert one.rate_after <= one.rate < one.cache_rate


def test_drives_whose_rate_is_sustained_have_no_cache() -> None:
    """Whatever is said of caches, a data-centre drive writes as it did."""
    runs = [
        trained(2, platform="h100-2nvme", workload={"write_caches": state}) for state in ("steady", "empty")
    ]
    assert runs[0].write_caches == runs[1].write_caches == ()
    assert runs[0].step_s == runs[1].step_s
    assert json.loads(json.dumps(runs[0].to_dict()))["write_caches"] == []


# -- checkpoints -----------------------------------------------------------------------------------


FAST = {
    "type": "fast",
    "patched_torch": True,
    "checkpoint_serialization": False,
    "io_buffer_size": "1 GiB",
    "queue_depth": 32,
}
"""FastPersist, which keeps the drive writing all the time."""


def saved(**workload: Any) -> CheckpointResult:
    """Llama-3-8B's 112 GB of weights and Adam's states from one GPU to a 980 PRO with a cache of 50 GB."""
    tree = {
        "name": "saved",
        "model": {"name": "llama-3.1-8b", "dtype": "bfloat16"},
        "platform": "rtx-4090-desktop",
        "profiles": cache("50 GB"),
        "workload": {"kind": "checkpoint", "contents": "sharded", "writer": FAST, **workload},
        "strategy": {"ranks": 1, "tier": "nvme"},
    }
    result = simulate(resolve(parse_json(json.dumps(tree), name="saved.json")))
    assert isinstance(result, CheckpointResult)
    return result


@pytest.mark.parametrize(
    ("interval", "cached"), [({}, 50), ({"interval": "1 h"}, 50), ({"interval": "10 s"}, 20)]
)
def test_a_checkpoint_is_a_burst_into_the_cache(interval: dict[str, str], cached: int) -> None:
    """Once, or after an hour, the cache is empty; 10 s at 2 GB/s empty 20 GB of it."""
    found = saved(**interval).checkpoint
    (one,) = found.write_caches
    assert one.cached == cached * GB
    assert found.outlook is not None
    least = one.cached / INTO + (one.written - one.cached) / AFTER
    assert least <= found.outlook.commit_s < 1.05 * least


def test_a_checkpoint_finds_no_room_on_drives_that_steps_keep_full() -> None:
    alone = trained(2, platform="xinnor-workstation", optimizer="raid", checkpoint={"tier": "nvme"})
    beside = trained(2, platform="xinnor-workstation", optimizer="nvme", checkpoint={"tier": "nvme"})
    assert alone.checkpoint is not None
    assert beside.checkpoint is not None
    (rested,), (busy,) = alone.checkpoint.write_caches, beside.checkpoint.write_caches
    assert (rested.cached, busy.cached) == (rested.written, 0)
    assert busy.rate == busy.rate_after == 0.6 * GB
    assert "nvme: a checkpoint writes" in " ".join(beside.warnings)


# -- what is told, and what is refused ---------------------------------------------------------------


def test_every_output_says_the_rate_and_why(tmp_path: Path) -> None:
    result = trained(2)
    page = tmp_path / "report.html"
    write_report(result, page)
    sentence = rendered(result).sentence
    assert "on average (5.1 GB/s into the cache, 2 GB/s after)" in sentence
    shown = re.sub("<[^>]*>", "", page.read_text())
    for text in (shown, " ".join(result_text(result).split())):
        assert sentence in text
    (row,) = json.loads(json.dumps(result.to_dict()))["write_caches"]
    assert row["sentence"] == sentence
    assert row["rate"] == rendered(result).rate


IMPOSSIBLE = [
    ("rate_after", "2000 MB/s", "6 GB/s", "write_cache", "rate_after 6 GB/s is above write 5.1 GB/s"),
    ("capacity", "215 GB", "3 TB", "write_cache", "capacity 3 TB is not below the drive's 2 TB"),
    ("rate_after", "2000 MB/s", "0 GB/s", "write_cache.rate_after.value", "must be above 0"),
    ("rate_after", "2000 MB/s", "2 GB", "write_cache.rate_after.value", "is a size, not a rate"),
]


@pytest.mark.parametrize(("key", "_", "value", "place", "complaint"), IMPOSSIBLE)
def test_a_scenario_cannot_make_an_impossible_cache(
    key: str, _: str, value: str, place: str, complaint: str
) -> None:
    with pytest.raises(InputError) as caught:
        scenario(profiles={DRIVE: {"write_cache": {key: value}}})
    (problem,) = caught.value.problems
    assert problem.key == f"profiles.{DRIVE}.{place.removesuffix('.value')}"
    assert complaint in problem.message


@pytest.mark.parametrize(("_", "old", "new", "key", "complaint"), IMPOSSIBLE)
def test_a_profile_with_an_impossible_cache_is_refused(
    tmp_path: Path, _: str, old: str, new: str, key: str, complaint: str
) -> None:
    shipped = shipped_folder("hardware_profiles") / "drive" / f"{DRIVE}.yaml"
    (tmp_path / "mine.yaml").write_text(shipped.read_text().replace(old, new))
    with pytest.raises(InputError) as caught:
        load_profile("drive", "./mine.yaml", root=tmp_path)
    (problem,) = caught.value.problems
    assert problem.key == key
    assert problem.line
    assert complaint in problem.message
