"""Advice recommends what helps, and what it says of a change is what running that change gives."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from simoffload.cli.planning import SIGNATURE, recommended
from simoffload.documents import Edit
from simoffload.errors import WorkLimitError
from simoffload.planning.advise import WORTH, Advice, advise
from simoffload.planning.advise.evaluate import EvaluatedChange, _together
from simoffload.planning.advise.options import memory
from simoffload.planning.bandwidth import storage_curve
from simoffload.planning.economics import economics
from simoffload.report.from_result import advice_document
from simoffload.report.sections.advice import GAINS, advice_verdict, advised
from simoffload.results.capacity import Change
from simoffload.results.result import SimulationResult
from simoffload.scenario import LoadedScenario, read_scenario
from simoffload.scenario.cache import canonical
from simoffload.simulation import simulate
from tests.broken.training import FSDP
from tests.planning.advise.conftest import HOST_BOUND, STORAGE_BOUND, known, loaded, run

MORE_DRIVES = ("raid-5-drives", "raid-8-drives")


def gains(advice: Advice) -> dict[str, float]:
    return {one.change.key: one.gain for one in advice.tried if one.gain is not None}


def test_more_drives_help_where_the_storage_decides(stored: Advice) -> None:
    assert stored.result.bottleneck == "raid read"
    one, twice = (gains(stored)[key] for key in MORE_DRIVES)
    assert WORTH < 1.1 < one < twice
    assert stored.by_cost[0].change.key == "raid-8-drives"
    assert "raid-5-drives" in [tried.change.key for tried in stored.uncertain]


def test_more_or_faster_drives_do_not_help_where_the_host_decides(hosted: Advice) -> None:
    assert hosted.result.bottleneck == "host thread"
    found = gains(hosted)
    assert all(1 <= found[key] < WORTH for key in MORE_DRIVES)
    assert not [one for one in hosted.helping if "drives" in one.change.description]
    assert found["faster-thread"] > 1.1
    assert hosted.by_cost == ()


def test_drives_are_no_option_where_nothing_lies_on_them() -> None:
    found = gains(advise(loaded(HOST_BOUND).on("dram")))
    assert not [key for key in found if "drives" in key or "solidigm" in key]
    assert found["faster-thread"] > WORTH


@pytest.mark.parametrize("case", ["stored", "hosted"])
def test_a_recommended_scenario_gives_what_was_said(
    case: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    advice: Advice = request.getfixturevalue(case)
    rendered = advised(advice, None)
    assert rendered[0].title == GAINS
    tables = [table for one in rendered if one.title in {GAINS, "Smaller gains"} for table in one.tables]
    rows = {row[0].name: row[2].text for table in tables for row in table.rows}
    results = run(advice, tmp_path)
    assert len(results) == len(advice.helping) > len(rows) > 5
    base = advice.result.unit_s
    assert base is not None
    for one, result in zip(advice.helping, results, strict=True):
        assert result.metrics() == one.result.metrics()
        assert result.unit_s is not None
        assert base / result.unit_s == one.gain
    for one in advice.decisions(advice.helping):
        low, high = one.gain_interval
        assert low < one.gain < high
        assert rows.pop(one.change.key) == f"{one.gain:.3g}× [{low:.3g} to {high:.3g}]"
    assert not rows


def test_what_helps_shows_more_than_one_in_three_digits(stored: Advice, hosted: Advice) -> None:
    for one in (*stored.helping, *hosted.helping):
        assert float(f"{one.gain:.3g}") > 1


def test_files_are_called_after_their_rank(stored: Advice) -> None:
    names = [name for name in recommended(stored) if not name.endswith((".sh", ".py"))]
    assert names[:2] == ["01-vllm.yaml", "02-on-resident.yaml"]
    ranks = [one.change.rank for one in stored.helping]
    fewer = ranks.index(1) + 1
    assert 1 not in ranks[: fewer - 1]
    assert f"{fewer:02d}-vllm-int4-g128.yaml" in names, "after all that keep the answers"
    rank = [one.change.key for one in stored.helping].index("raid-8-drives") + 1
    assert f"{rank:02d}-raid-8-drives.yaml" in names
    assert all(
        text.startswith(f"{SIGNATURE}\n")
        for name, text in recommended(stored).items()
        if name.endswith(".yaml")
    )


def test_what_is_there_already_costs_nothing_and_drives_their_price(stored: Advice) -> None:
    extra = {one.change.key: one.extra for one in stored.tried}
    assert extra["on-dram"] == extra["batch-8"] == extra["use_gds"] == 0
    assert extra["raid-8-drives"] == 4 * (extra["raid-5-drives"] or 0) > 0
    assert extra["faster-thread"] is None, "no list has a price of that"
    paid = {one.change.key: one.gain_per_cost for one in stored.by_cost}
    assert (
        paid["raid-8-drives"] == (gains(stored)["raid-8-drives"] - 1) / (extra["raid-8-drives"] or 0) * 1000
    )
    assert list(paid.values()) == sorted(paid.values(), key=lambda one: -(one or 0))


def test_what_has_no_price_as_before_does_not_matter() -> None:
    """Nobody knows what its GPUs cost, and a larger batch needs no more of them."""
    overrides = ["workload.output_length=2", 'profiles."host/dgx2-1.5tb".memory_maximum=3 TiB']
    found = advise(read_scenario("zero-inference-2022/opt-30b", overrides=overrides))
    assert found.economics.bill.missing == ("host/dgx2-1.5tb", "accelerator/v100-32g-sxm")
    extra = {one.change.key: one.extra for one in found.tried}
    assert extra["batch-512"] == 0
    assert (extra["memory-x2"] or 0) > 10_000


def test_no_more_memory_is_advised_than_the_board_takes() -> None:
    def advised_memory(maximum: str) -> Change:
        key = "profiles.dgx-a100-1tib.memory_maximum"
        scenario = read_scenario("ddn/bloom-7b1", overrides=[f"{key}={maximum}"])
        return next(memory(scenario))

    assert advised_memory("3 TiB").description == "2 TiB of host memory instead of 1 TiB"
    assert advised_memory("1536 GiB").description == "1.5 TiB of host memory instead of 1 TiB"
    barred = advised_memory("1 TiB")
    assert (barred.description, barred.barred) == (
        "more host memory than 1 TiB",
        "host/dgx-a100-1tib supports no more",
    )


def test_all_settings_at_once_are_a_recommendation_of_their_own(hosted: Advice) -> None:
    together = next(one for one in hosted.tried if one.change.key == "settings")
    assert together.change.description == "all settings that gain alone, combined (block_size, use_gds)"
    aio = together.scenario.document.data["strategy"]["ds_config"]["aio"]
    assert (aio["use_gds"], aio["block_size"]) == (True, 4194304)
    # One setting alone is told once.
    assert "settings" not in gains(advise(known(STORAGE_BOUND)))


def test_every_option_is_tried_once_and_changes_something(stored: Advice, hosted: Advice) -> None:
    for advice in (stored, hosted):
        changes = [*(one.change for one in advice.tried), *advice.impossible]
        assert len(changes) == len({one.key for one in changes})
        for one in changes:
            assert advice.scenario.changed(*one.edits).data != advice.scenario.document.data, one.key


def test_settings_that_repeat_the_workload_are_left_to_it() -> None:
    """A larger batch would contradict a ds_config that has the batch, too, and be refused."""
    found = advise(read_scenario("zenflow/qwen2.5-3b"))
    assert found.scenario.document.data["strategy"]["ds_config"]["train_batch_size"] == 8
    assert gains(found)["batch-8"] > gains(found)["accumulate-2"] > 1.4
    batch = next(one for one in found.tried if one.change.key == "batch-8")
    assert batch.scenario.document.data["strategy"]["ds_config"]["train_batch_size"] == "auto"


def test_advice_on_fsdp_and_on_work_without_offload() -> None:
    """Neither has settings of ZeRO to turn."""
    inference = read_scenario("ddn/bloom-7b1", overrides=["workload.output_length=2"])
    for scenario in (loaded(FSDP), inference.on("resident")):
        found = advise(scenario)
        assert [one for one in found.helping if one.change.key.startswith("batch-")]
        assert "faster-thread" in gains(found)
        assert not [one for one in found.tried if one.change.kind == "setting"]


def test_advice_on_checkpoints() -> None:
    overrides = ["platform=dgx-a100", "strategy.tier=raid"]
    found = advise(read_scenario("checkpoint/phi-3-mini", overrides=overrides))
    assert found.result.bottleneck == "raid write"
    assert gains(found)["raid-5-drives"] == pytest.approx(5 / 4, rel=0.01)
    assert "batch-2" not in gains(found)


def test_more_of_a_single_drive_is_an_array() -> None:
    found = advise(read_scenario("xinnor/llama-1b", overrides=["strategy.optimizer=nvme"]))
    one = next(one for one in found.tried if one.change.key == "nvme-2-drives")
    assert one.gain is not None
    assert one.gain > 1.4
    assert one.scenario.machine.targets["nvme"].drives == 2


def test_an_option_beyond_a_limit_is_told_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def limited(scenario: LoadedScenario, **options: Any) -> SimulationResult:
        if scenario.machine.targets["raid"].drives == 5:
            raise WorkLimitError("stopped by engine.timeout (--timeout) before decode 1")
        return simulate(scenario, **options)

    monkeypatch.setattr("simoffload.planning.evaluator.simulate", limited)
    reported: list[str] = []
    found = advise(loaded(STORAGE_BOUND), progress=reported.append)
    why = "stopped by engine.timeout (--timeout) before decode 1"
    assert {one.key: one.barred for one in found.untried} == {"raid-5-drives": why}
    assert "raid-5-drives" not in {one.key for one in found.impossible}
    data = found.to_dict()
    number = found.number_tried
    assert number >= len(found.tried) + len(found.impossible)
    assert (data["number_tried"], data["stopped"]) == (number, why)
    assert [one["key"] for one in data["untried"]] == ["raid-5-drives"]
    assert (
        f"Not complete: {number} of {number + 1} changes were tried: {why}." in advice_verdict(found).in_full
    )
    titles = [one.title for one in advised(found, None)]
    assert "Changes that were not tried" in titles
    assert "raid-8-drives" in gains(found)
    assert any(re.match(r"\d+ of \d+: raid-8-drives: simulating ", line) for line in reported), (
        "who watches sees which"
    )


def test_an_option_is_resolved_and_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved: Counter[tuple[str, str]] = Counter()
    simulated: Counter[str] = Counter()
    edit = LoadedScenario.edited

    def edited(scenario: LoadedScenario, *edits: Edit) -> LoadedScenario:
        resolved[canonical(scenario.document.data), repr(edits)] += 1
        return edit(scenario, *edits)

    def simulating(scenario: LoadedScenario, **named: Any) -> Any:
        simulated[canonical(scenario.document.data)] += 1
        return simulate(scenario, **named)

    monkeypatch.setattr(LoadedScenario, "edited", edited)
    monkeypatch.setattr("simoffload.planning.evaluator.simulate", simulating)
    found = advise(loaded(STORAGE_BOUND))
    assert set(simulated.values()) == {1}
    again = {edits for (_, edits), times in resolved.items() if times > 1}
    assert all(edits.count("batch_size") == 1 == edits.count("path=") for edits in again), (
        "of splits only the batch"
    )
    assert len(found.tried) > 10


def test_settings_may_have_lists_as_values() -> None:
    """They are put together by key, whatever the values are."""

    def setting(key: str, gain: float, *edits: Edit) -> EvaluatedChange:
        nothing: Any = None
        change = Change("setting", key, edits, key=key)
        return EvaluatedChange(
            change=change, scenario=nothing, result=nothing, economics=nothing, gain=gain, extra=None
        )

    one, other = Edit.at("strategy.a", [1, {"b": 2}]), Edit.at("strategy.c", {"d": []})
    assert _together([setting("one", 1.2, one)]) is None
    both = _together([setting("one", 1.2, one), setting("other", 1.1, other)])
    assert both is not None
    assert dict(both.edits) == dict([one, other])
    assert _together([setting("one", 1.2, one), setting("both", 1.3, other, one)]) is None


def test_costs_are_those_of_the_result(stored: Advice) -> None:
    one = stored.tried[0]
    assert one.economics.metrics() == economics(one.scenario, one.result).metrics()


def test_plain_values(stored: Advice) -> None:
    rendered = stored.to_dict()
    assert rendered["schema"] == "simoffload/advice/1"
    keys = [one["key"] for one in rendered["options"]]
    assert rendered["objective"] == "throughput"
    assert keys[:2] == ["vllm", "on-resident"]
    fewer = keys.index("vllm-int4-g128")
    assert keys[fewer + 1] == "vllm-fp8"
    assert {one["same_answers"] for one in rendered["options"][:fewer]} == {True}
    assert rendered["options"][0]["gain"] == stored.tried[0].gain
    assert rendered["by_cost"] == [one.change.key for one in stored.by_cost]
    changes = {one["key"]: one["changes"] for one in rendered["options"]}
    assert changes["batch-32"] == [{"path": ["workload", "batch_size"], "value": 32}]


MIXTURE = """\
name: mixture
model: {name: qwen3-235b-a22b, quantization: q4_k_m}
platform: rtx-4090-desktop
profiles: {desktop-ddr5-128gb: {memory_capacity: 120 GiB}}
workload: {batch_size: 1, prompt_length: 512, output_length: 32}
strategy: {kind: llama_cpp, cpu_moe: all}
"""


def test_what_costs_nothing_stands_above_a_purchase_that_gains_as_much() -> None:
    """With experts on the GPU as --fit places them the CPU reads no more than has room, as with more memory
    or a second card, for which hundreds of USD are asked."""
    found = advise(loaded(MIXTURE), objective="tpot")
    free = found.helping[0]
    paid = {one.change.key: one for one in found.helping if not one.is_free}
    assert (free.change.key, free.is_free) == ("fit", True)
    assert set(paid) == {"memory-x2", "second-card"}
    assert free.gain is not None
    assert min(one.gain or 0 for one in paid.values()) > 0.8 * free.gain > 2
    assert {one.instead for one in paid.values()} == {free.change}
    assert found.helping.index(free) < min(map(found.helping.index, paid.values()))
    assert found.by_cost == ()
    assert "192 GiB" not in advice_verdict(found).in_full
    plain = {one["key"]: one for one in found.to_dict()["options"]}
    assert plain["memory-x2"]["as_much_for_nothing"] == "fit"
    curve = storage_curve(found.scenario)
    assert curve is not None, "page faults are read from the drive"
    sections = {one.title: one for one in advised(found, curve)}
    assert " -cmoe" not in sections["What to type"].listings[0].text
    assert "placement chosen by --fit" in sections["What to type"].sentences[0]
    assert curve.tier == "nvme"


def test_a_placement_that_may_lose_data_is_warned_of() -> None:
    found = advise(read_scenario("checkpoint/mlperf-70b"))
    (text,) = found.new_warnings
    assert text == "raid is in each node: a node that is lost takes its part of the checkpoint with it"
    assert found.new_warnings[text] == ["checkpoints on raid"]
    document = advice_document(found, None)
    assert f"with checkpoints on raid: {text}" in document.warnings
