"""Bills, energy and costs of answers, reckoned by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import simoffload as so
from simoffload.planning.costs import CostList, load_costs
from simoffload.planning.economics import (
    FIRST,
    SECOND,
    Costed,
    Economics,
    break_even_points,
    economics,
    verdicts,
)
from simoffload.results.result import SimulationResult
from tests.planning.costs.conftest import TODAY

SHORT = ("workload.output_length=2",)


def rendered(name: str, costs: CostList, *overrides: str) -> tuple[SimulationResult, Economics]:
    scenario = so.load_scenario(name, overrides=[*SHORT, *overrides])
    result = so.simulate(scenario)
    return result, economics(scenario, result, costs)


def test_a_bill_counts_the_machine_and_the_storage_in_use(costs: CostList) -> None:
    _, one = rendered("micron/opt-30b-nvme", costs)
    lines = {item.key: item.total for item in one.bill.items}
    assert lines == {
        "host/smc-521ge-256gb": 5000.0,
        "memory": pytest.approx(256 * 10.0),
        "accelerator/l40s": 10000.0,
        "drive/micron-9550-pro-7.68tb": pytest.approx(768.0),  # not the other drive of the platform
    }
    assert one.purchase == pytest.approx(18328.0)


def test_power_lies_between_idle_and_active_as_devices_are_busy(costs: CostList) -> None:
    result, one = rendered("micron/opt-30b-nvme", costs)
    assert one.energy is not None
    draws = {draw.key: draw for draw in one.energy.draws}
    assert result.step is not None
    compute = sum(
        share.busy_s
        for each in result.passes[1:]
        for share in each.shares
        if share.cause_text == "GPU compute"
    )
    assert draws["accelerator/l40s"].busy == pytest.approx(compute / one.energy.time_s)
    assert draws["accelerator/l40s"].watts == pytest.approx(100 + 200 * compute / one.energy.time_s)
    assert draws["memory"].number == 16  # modules of 16 GB
    assert 0.5 < draws["drive/micron-9550-pro-7.68tb"].busy < 1
    assert one.energy.watts == pytest.approx(sum(draw.watts for draw in draws.values()))


def test_costs_follow_from_the_bill_and_the_energy(costs: CostList) -> None:
    result, one = rendered("micron/opt-30b-nvme", costs)
    found, seconds = one.metrics(), result.metrics()["e2e_s"]
    assert one.energy is not None
    assert one.energy.time_s == seconds
    assert one.costs.hours == 8766 / 2  # a year, half used
    per_h = 18328 / 4383 + one.energy.watts / 1000 * 2 * 0.1
    assert found["cost_per_h"] == pytest.approx(per_h)
    tokens = 48 * 2
    assert found["cost_per_million_tokens"] == pytest.approx(per_h * seconds / 3600 / tokens * 1e6)
    assert found["energy_per_token_j"] == pytest.approx(one.energy.watts * seconds / tokens)
    assert found["kwh_per_million_tokens"] == pytest.approx(
        one.energy.watts * one.energy.time_s * 2 / 3.6e6 / tokens * 1e6
    )
    assert (found["rent_per_h"], one.at_least()["rent_per_h"]) == (None, 2.0), "GPUs without the drive"
    assert found["return_per_purchase"] == pytest.approx(tokens * 3600 / seconds / 18328 * 1000)


def test_a_whole_machine_covers_what_its_file_has_and_no_more(costs: CostList) -> None:
    added = 'profiles={"raid0-4x-pm1733-3.84tb": {"count": 6}, "dgx-a100-1tib": {"memory_capacity": "2 TiB"}}'
    _, shipped = rendered("ddn/bloom-7b1", costs, "strategy.weights=raid")
    assert shipped.purchase == 200_000.0
    _, more = rendered("ddn/bloom-7b1", costs, "strategy.weights=raid", added)
    extra = {item.key: item.total for item in more.bill.items if not item.covered}
    assert extra == {
        "platform/dgx-a100": 200_000.0,
        "memory": 1024 * 10.0,  # the second TiB, in modules of GiB
        "drive/samsung-pm1733-3.84tb": pytest.approx(2 * 384.0),
    }


def test_training_steps_and_checkpoints_have_costs_too(costs: CostList) -> None:
    step, checkpoint = (
        economics(scenario, so.simulate(scenario), costs)
        for scenario in map(so.load_scenario, ("xinnor/llama-1b", "checkpoint/mlperf-8b"))
    )
    assert step.tokens == 4096
    assert step.metrics()["cost_per_run"]
    assert step.metrics()["cost_per_million_tokens"]
    assert checkpoint.metrics()["energy_per_run_j"]
    assert checkpoint.metrics()["cost_per_million_tokens"] is None


def test_what_has_no_price_is_named(costs: CostList) -> None:
    _, one = rendered("zero-inference-2022/opt-30b", costs)
    assert "accelerator/v100-32g-sxm" in one.missing
    assert any("the totals leave it out" in warning for warning in one.warnings)


def test_at_the_price_of_a_flip_both_answers_cost_the_same(costs: CostList) -> None:
    _, drive = rendered("micron/opt-30b-nvme", costs)
    _, memory = rendered("micron/opt-30b-hbm", costs)
    for electricity in (True, False):
        found = {flip.what: flip for flip in break_even_points(drive, memory, electricity=electricity)}
        gpu = found["accelerator/l40s"]
        sums = [
            one.purchase + (gpu.at - gpu.now) * number
            for one, number in ((drive, 1), (memory, 6))
            if one.purchase
        ]
        mine, other = (
            (total / one.costs.hours + (one.metrics()["electricity_per_h"] or 0) * electricity)
            * (one.energy.time_s if one.energy else 0)
            for total, one in zip(sums, (drive, memory), strict=True)
        )
        assert mine == pytest.approx(other)
        assert gpu.first_cheaper_above  # the dearer GPUs are, the better one of them looks
        assert found[FIRST].now == drive.purchase
        assert found[SECOND].now == memory.purchase
        assert not found[FIRST].first_cheaper_above


def test_what_does_not_fit_has_a_bill_and_no_costs(costs: CostList) -> None:
    _, one = rendered("ddn/bloom-176b", costs, "strategy.weights=gpu")
    assert one.purchase == 200_000.0
    assert one.energy is None
    assert one.metrics()["cost_per_million_tokens"] is None
    assert break_even_points(one, one) == ()


def test_two_appliances_are_one_filesystem_of_twice_the_size_and_price(costs: CostList) -> None:
    one, two = (
        rendered("ddn/bloom-7b1", costs, "strategy.weights=ai400x2", f"profiles.ddn-ai400x2.count={count}")
        for count in (1, 2)
    )
    tiers = [{use.tier: use.capacity for use in result.capacity}["ai400x2"] for result, _ in (one, two)]
    assert tiers == [140 * 10**12, 280 * 10**12]
    assert (two[1].purchase or 0) - (one[1].purchase or 0) == 500_000.0


def test_drives_of_two_tiers_come_with_a_machine_that_has_both(tmp_path: Path) -> None:
    path = tmp_path / "whole.yaml"
    whole = "devices: {platform/h200-8nvme: {price: 400000}}"
    path.write_text(f"kind: costs\nid: w\nname: w\ndate: 2026-11-01\n{whole}\n", encoding="utf-8")
    both = ["platform=h200-8nvme", "strategy.weights=raid4", "strategy.optimizer=raid8", "strategy.ranks=1"]
    buffers = "strategy.ds_config.zero_optimization.offload_param.buffer_size=1.1e9"
    scenario = so.load_scenario("training/bloom-7b1", overrides=[*both, buffers])
    assert economics(scenario, so.fit(scenario), load_costs(path, today=TODAY)).purchase == 400_000.0


def test_a_machine_that_is_there_already_costs_nothing_but_electricity(tmp_path: Path) -> None:
    path = tmp_path / "owned.yaml"
    owned = "devices: {platform/dgx-a100: {price: 0}}"
    path.write_text(f"kind: costs\nid: o\nname: o\ndate: 2026-11-01\n{owned}\n", encoding="utf-8")
    _, one = rendered("ddn/bloom-7b1", load_costs(path, today=TODAY), "strategy.weights=raid")
    found = one.metrics()
    assert one.purchase == 0
    assert found["cost_per_h"] == found["electricity_per_h"]


def test_drives_that_wear_out_first_are_bought_again() -> None:
    """A drive that lasts d days costs price / (24 d) an hour, however long the purchase is written off."""
    scenario = so.load_scenario("xinnor/llama-16b-optimizer")
    result = so.simulate(scenario)
    one = economics(scenario, result, load_costs(today=TODAY))
    assert isinstance(result, so.TrainingResult)
    (worn,) = result.drive_lifetime
    drive = next(item for item in one.bill.items if item.kind == "drive")
    assert worn.drive_lifetime.days < 10
    (again,) = one.replacements
    price = drive.total or 0
    assert again.per_h + price / one.costs.hours == pytest.approx(price / (24 * worn.drive_lifetime.days))
    found = one.metrics()
    parts = ("purchase_per_h", "replacement_per_h", "electricity_per_h")
    assert found["cost_per_h"] == pytest.approx(sum(found[part] or 0 for part in parts))


def test_cost_is_compared_by_token(costs: CostList) -> None:
    """Four times the batch makes more tokens in a step that costs more."""
    found = []
    for batch in (1, 4):
        scenario = so.load_scenario("xinnor/llama-1b", overrides=[f"workload.batch_size={batch}"])
        result = so.simulate(scenario)
        found.append(Costed(str(batch), result, economics(scenario, result, costs)))
    runs = [one.economics.metrics()["cost_per_run"] or 0 for one in found]
    assert runs[1] > runs[0]
    (verdict,) = verdicts(found)
    assert (verdict.cheapest, verdict.next) == ("4", "1")
    millions = [one.economics.metrics()["cost_per_million_tokens"] or 0 for one in found]
    assert verdict.ratio == pytest.approx(millions[0] / millions[1])
