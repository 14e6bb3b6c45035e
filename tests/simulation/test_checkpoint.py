"""Scenarios of checkpoints: times, intervals and wear worked out apart, capacity, targets, comparisons."""

from __future__ import annotations

import json
from math import expm1, sqrt
from typing import Any

import pytest

from simoffload.documents import parse_json
from simoffload.errors import InputError
from simoffload.extensions.storage.result import CheckpointResult
from simoffload.models import load_model
from simoffload.planning.compare import compare, compare_scenarios
from simoffload.scenario import LoadedScenario, read_scenario, resolve
from simoffload.simulation import fit, simulate
from tests.strategies.checkpoint.cases import FAST

HOUR = 3600.0


def scenario(
    *, model: Any = "llama-3.1-8b", platform: str = "dgx-h100", nodes: int = 1, ranks: int = 8,
    tier: str = "pfs", swap: str | None = None, **workload: Any,
) -> LoadedScenario:  # fmt: skip
    strategy = {"ranks": ranks, "tier": tier} | ({"swap": swap} if swap else {})
    tree = {
        "name": "saved",
        "model": model,
        "platform": platform,
        "nodes": nodes,
        "workload": {"kind": "checkpoint", **workload},
        "strategy": strategy,
    }
    return resolve(parse_json(json.dumps(tree), name="saved.json"))


def saved(**options: Any) -> CheckpointResult:
    result = simulate(scenario(**options))
    assert isinstance(result, CheckpointResult)
    assert result.fits, result.advice
    return result


def metric(result: CheckpointResult, name: str) -> float:
    value = result.metrics()[name]
    assert value is not None
    return value


def test_many_hosts_fill_the_filesystem() -> None:
    """14 B x 70.55e9 at 65 GB/s; ranks wait 1 ms for each portion, in which the others do not fill it all."""
    result = saved(model="llama-3.1-70b", nodes=8, ranks=64, contents="sharded", writer=FAST)
    size = 14 * load_model("llama-3.1-70b").num_parameters
    assert metric(result, "checkpoint_bytes") == pytest.approx(size, rel=1e-6)
    assert metric(result, "save_s") == pytest.approx(size / 65e9, rel=0.04)
    assert metric(result, "bytes_per_s") == pytest.approx(65e9, rel=0.04)
    assert result.bottleneck == "pfs write"
    assert metric(result, "stall_s") == metric(result, "blocking_s") == metric(result, "save_s")


def test_phases_sum_up() -> None:
    result = saved(offload_optimizer="cpu", contents="sharded")
    saving = [phase.result.time_s for phase in result.checkpoint.saving]
    assert sum(saving) == pytest.approx(metric(result, "save_s"))
    assert result.step is not None
    assert result.step.time_s == pytest.approx(metric(result, "save_s"))
    assert sum(share.exposed_s for share in result.step.shares) == pytest.approx(metric(result, "save_s"))
    restoring = [one.time_s for one in result.checkpoint.restoring]
    assert sum(restoring) == pytest.approx(metric(result, "restore_s"))
    assert [one.name for one in result.passes] == [
        *(phase.result.name for phase in result.checkpoint.saving),
        *(one.name for one in result.checkpoint.restoring),
    ]


def test_intervals_after_young_and_daly() -> None:
    """Two hosts of 1000 h fail every 500 h; formulas as printed, with the simulated stall."""
    result = saved(
        nodes=2, ranks=16, contents="sharded", interval="1 h", node_mtbf="1000 h", restart_time="10 min"
    )
    cost, mtbf = metric(result, "stall_s"), 500 * HOUR
    assert metric(result, "mtbf_s") == mtbf
    assert metric(result, "young_s") == pytest.approx(sqrt(2 * cost * mtbf))
    ratio = sqrt(cost / (2 * mtbf))
    higher = sqrt(2 * cost * mtbf) * (1 + ratio / 3 + ratio**2 / 9) - cost
    assert metric(result, "daly_s") == pytest.approx(higher)
    assert metric(result, "stall_share") == pytest.approx(cost / (HOUR + cost))
    wall = mtbf * 2.718281828459045 ** ((600 + metric(result, "restore_s")) / mtbf)
    assert metric(result, "efficiency") == pytest.approx(HOUR / (wall * expm1((HOUR + cost) / mtbf)))
    assert metric(result, "efficiency") < metric(result, "best_efficiency") < 1


def test_without_interval_and_failures_nothing_is_said_of_them() -> None:
    metrics = saved().metrics()
    for name in ("interval_s", "stall_share", "mtbf_s", "young_s", "daly_s", "efficiency", "lost_work_s"):
        assert metrics[name] is None, name


def test_wear_of_the_hosts_drives() -> None:
    """12 B x 8.03e9 every half hour and a stall, on eight drives of 3.84 TB rated for one write a day."""
    result = saved(tier="raid", interval="30 min", writer=FAST)
    (worn,) = result.drive_lifetime
    size = 12 * load_model("llama-3.1-8b").num_parameters
    a_day = size * 86_400 / (1800 + metric(result, "stall_s"))
    assert (worn.tier, worn.unit, worn.drive_lifetime.drives) == ("raid", "checkpoint", 8)
    assert worn.drive_lifetime.per_drive_day == pytest.approx(a_day / 8, rel=1e-6)
    assert worn.drive_lifetime.drive_writes_per_day == pytest.approx(a_day / 8 / 3.84e12, rel=1e-6)
    assert worn.drive_lifetime.years == pytest.approx(5 / worn.drive_lifetime.drive_writes_per_day, rel=1e-6)
    assert not any("wear out" in text for text in result.warnings)


def test_only_the_host_of_rank_0_writes_a_consolidated_model() -> None:
    one = saved(tier="raid", contents="consolidated", interval="10 s")
    two = saved(tier="raid", contents="consolidated", interval="10 s", nodes=2, ranks=16)
    assert two.checkpoint.written_by_host == (two.checkpoint.size, 0)
    (alone,), (pair,) = one.drive_lifetime, two.drive_lifetime
    time = metric(two, "stall_s") + 10, metric(one, "stall_s") + 10
    assert pair.drive_lifetime.per_drive_day * time[0] == pytest.approx(
        alone.drive_lifetime.per_drive_day * time[1]
    )
    assert pair.drive_lifetime.drives == 16


def test_drives_that_do_not_last_are_warned_about() -> None:
    (text,) = (text for text in saved(tier="raid", interval="10 s").warnings if "wear out" in text)
    assert "raid: 96.4 GB a checkpoint" in text
    assert "before the warranty of 5 years ends" in text


def test_wear_of_a_file_server_is_not_known() -> None:
    assert saved(tier="pfs", interval="10 s").drive_lifetime == ()
    assert saved(tier="raid").drive_lifetime == ()  # nor how often checkpoints are saved


def test_a_full_filesystem_is_an_answer() -> None:
    result = fit(scenario(tier="raid", keep=400))
    assert not result.fits
    (use,) = (use for use in result.capacity if not use.fits)
    assert use.needed == 400 * 12 * load_model("llama-3.1-8b").num_parameters
    assert result.advice == (
        "raid needs 38.5 TB in all, has 30.7 TB; lower keep: 400 (largest part: saved checkpoints)",
    )
    assert simulate(scenario(tier="raid", keep=400)).step is None


def test_what_is_too_large_for_one_tier_may_fit_on_another() -> None:
    """RAID10 of four drives of 7.68 TB holds 15.4 TB; 16.5 TB fit on RAID5."""
    tree = read_scenario("checkpoint/mlperf-1t", overrides=["nodes=1", "strategy.ranks=8"])
    result = fit(tree_on(tree, "h100-storage-choices", "raid10"))
    assert not result.fits
    assert "smallest tier that holds the checkpoint: raid5 (23 TB)" in " ".join(result.advice)


def tree_on(loaded: LoadedScenario, platform: str, tier: str) -> LoadedScenario:
    data = loaded.document.data
    changed = data | {"platform": platform, "strategy": {**data["strategy"], "tier": tier}}
    return resolve(parse_json(json.dumps(changed), name="other.json"))


def test_a_host_without_the_memory_for_a_snapshot_is_told_apart() -> None:
    result = fit(scenario(model="llama-3.1-405b", mode="snapshot", contents="sharded", nodes=1, ranks=8))
    assert not result.fits
    assert "mode: blocking (largest part: snapshot)" in " ".join(result.advice)


def test_targets_are_storage_tiers() -> None:
    moved = scenario().on("raid")
    assert moved.plan().tier == "raid"
    assert moved.document.data["strategy"]["tier"] == "raid"
    for target in ("dram", "hbm+raid"):
        with pytest.raises(InputError, match="has: raid, nfs, pfs, nvmeof"):
            scenario().on(target)
    with pytest.raises(InputError, match="checkpoints go to storage"):
        scenario().on("resident")


def test_comparison_is_by_the_time_until_saved() -> None:
    found = compare(scenario(writer=FAST), ("nfs", "pfs", "raid"), baseline="raid")
    times = {label: found.results[label].unit_s for label in found.results}
    assert (
        found.ranking == tuple(sorted(times, key=lambda label: times[label] or 0)) == ("pfs", "raid", "nfs")
    )
    slow, base = times["nfs"], times["raid"]
    assert slow
    assert base
    assert found.ratio("nfs") == pytest.approx(slow / base)
    frame = found.to_frame()
    assert set(frame["workload"]) == {"checkpoint"}
    assert frame.loc["pfs", "save_s"] == times["pfs"]
    json.dumps(found.to_dict(), allow_nan=False)


def test_checkpoints_are_not_compared_with_inference() -> None:
    other = read_scenario(
        "storage/llama-3.1-405b", overrides=["model=llama-3.1-8b", "workload.output_length=2"]
    )
    found = compare_scenarios({"saved": scenario(), "run": other})
    assert [found.baseline_of(label) for label in found.results] == ["saved", "run"]
    assert set(found.to_frame()["workload"]) == {"checkpoint", "inference"}


def test_several_jobs_share_the_filesystem() -> None:
    """Four of 978 GB take four times as long on a filesystem that one of them fills."""
    big = {"model": "llama-3.1-70b", "nodes": 8, "ranks": 64, "contents": "sharded", "writer": FAST}
    one, four = saved(**big), saved(**big, jobs=4)
    assert metric(four, "save_s") == pytest.approx(4 * metric(one, "save_s"), rel=0.03)
    assert metric(four, "restore_s") == metric(one, "restore_s")


def test_decoupled_checkpoints_hide_behind_the_step() -> None:
    options: dict[str, Any] = {"writer": FAST, "mode": "decoupled", "interval": "10 min", "tier": "raid"}
    hidden = saved(**options, step_time="60 s", update_time="5 s")
    assert metric(hidden, "stall_s") == 0.0
    assert metric(hidden, "save_s") > 0
    assert hidden.unit_s == metric(hidden, "save_s")
    shown = saved(**options, step_time="2 s", update_time="1 s")
    assert metric(shown, "stall_s") == pytest.approx(metric(shown, "save_s") - 1)
    assert any("give step_time" in text for text in saved(**options).warnings)


def test_a_commit_that_deepspeed_gives_up_on_is_warned_about() -> None:
    result = saved(model="llama-3.1-70b", tier="nfs", jobs=2, writer=FAST, mode="decoupled", step_time="2 s")
    assert metric(result, "stall_s") > 300
    assert any("gives up after 300 s" in text for text in result.warnings)


def test_json_has_everything() -> None:
    data = json.loads(json.dumps(saved(interval="1 h", tier="raid", keep=2).to_dict(), allow_nan=False))
    one = data["checkpoint"]
    assert (one["tier"], one["keep"], data["workload"]["kind"]) == ("raid", 2, "checkpoint")
    assert sum(part["size"] * part["writers"] for part in one["parts"]) == one["bytes"]
    assert data["metrics"]["save_s"] == one["outlook"]["commit_s"]
    assert data["drive_lifetime"][0]["tier"] == "raid"
    assert data["step"]["time_s"] == data["metrics"]["save_s"]
    assert set(data["formulas"]) == set(data["metrics"])


def test_frame_has_a_row_for_every_cause_of_every_phase() -> None:
    result = saved()
    frame = result.to_frame()
    assert list(frame["pass"].unique()) == [one.name for one in result.passes]
    assert frame["exposed_s"].sum() == pytest.approx(metric(result, "save_s") + metric(result, "restore_s"))


def test_swap_files_are_read_from_their_tier() -> None:
    result = saved(offload_optimizer="nvme", swap="raid", tier="pfs")
    assert result.checkpoint.parts[0].device == "nvme"
    assert {use.link for use in result.passes[0].links} >= {"raid read", "pfs write"}


@pytest.mark.parametrize("kind", ["deepspeed", "transformers"])
def test_other_strategies_are_not_for_checkpoints(kind: str) -> None:
    tree = scenario().document.data | {"strategy": {"kind": kind, "ranks": 1}}
    with pytest.raises(InputError, match="not for a workload of checkpoint; use checkpoint"):
        resolve(parse_json(json.dumps(tree), name="saved.json")).plan()
