"""What a result answers when it is asked, and that it costs nothing unless it is."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import simoffload as so
from simoffload.planning import remedies as changes
from simoffload.report.sections.capacity import remedies_section
from tests.cli.conftest import SCENARIO

TOO_LARGE = ["strategy.weights=hbm"]


ASKED = """
import sys
import simoffload as so

def imported(step):
    print(step, *{{name.split(".")[2] for name in sys.modules if ".planning." in name}})

result = so.{0}(so.load_scenario("ddn/bloom-7b1"))
too_large = so.{0}(so.load_scenario("ddn/bloom-176b", overrides=["strategy.weights=hbm"]))
imported("answered")
assert result.remedies is None
imported("fits")
if "{0}" == "simulate":
    result.confidence
    imported("confidence")
    result.costs
    imported("costs")
assert too_large.remedies.changes
imported("remedies")
"""


@pytest.mark.parametrize("function", ["simulate", "fit"])
def test_planning_is_imported_when_it_is_asked(function: str) -> None:
    """Modules of planning that a program of Python has imported after each of its questions."""
    program = [sys.executable, "-c", ASKED.format(function)]
    printed = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    found = {step: set(modules) for step, *modules in map(str.split, printed.splitlines())}
    assert found["answered"] == found["fits"] == {"answers", "question"}
    if function == "simulate":
        assert found["confidence"] == {"answers", "confidence", "errors", "question"}
        assert "costs" in found["costs"]
    assert "remedies" in found["remedies"]
    assert all("remedies" not in modules for step, modules in found.items() if step != "remedies")


def test_what_was_worked_out_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    result = so.fit(so.load_scenario("ddn/bloom-176b", overrides=TOO_LARGE))
    asked = []
    search = changes.search_changes
    monkeypatch.setattr(changes, "search_changes", lambda scenario: asked.append(1) or search(scenario))
    assert result.remedies is result.remedies
    assert result.to_dict()["changes"]
    assert asked == [1]


def test_a_result_answers_as_the_functions_do() -> None:
    scenario = so.load_scenario("ddn/bloom-7b1")
    result = so.simulate(scenario)
    assert result.costs is not None
    assert result.costs.to_dict() == so.economics(scenario, result).to_dict()
    assert result.confidence == so.confidence(result)
    too_large = so.load_scenario("ddn/bloom-176b", overrides=TOO_LARGE)
    sure = so.simulate(too_large).confidence
    assert "does not fit: " in sure.sentence
    with pytest.raises(KeyError, match="no time is predicted"):
        _ = sure.sigma
    remedies = so.simulate(too_large).remedies
    assert remedies is not None
    assert remedies.changes == so.smallest_changes(too_large)


@pytest.mark.parametrize("name", ["ddn/bloom-7b1", "xinnor/llama-1b", "checkpoint/mlperf-8b"])
def test_an_answer_is_of_the_kind_of_its_result(name: str) -> None:
    answer = so.simulate(name)
    alone = answer.result
    assert isinstance(answer, so.Answer)
    assert isinstance(answer, type(alone))
    assert not isinstance(alone, so.Answer)
    assert type(answer).declared is type(alone).declared  # a metric that is registered now is known to both
    assert {name: answer.to_dict()[name] for name in alone.to_dict()} == alone.to_dict()
    again = pickle.loads(pickle.dumps(answer))
    assert (again, again.costs, again.remedies) == (answer, None, None)


def test_an_answer_is_judged_by_its_costs() -> None:
    usual, name = so.simulate("ddn/bloom-7b1"), "cost_per_million_tokens"
    asked = replace(usual, asked=name)
    assert asked.compared_metric.name == name
    assert asked.compared_s == asked.costs.metrics()[name]
    assert asked.written(asked.compared_metric).endswith(" USD")
    assert asked.result.compared_metric.name == usual.compared_metric.name  # which has no costs


def test_what_was_asked_for_memory_alone_has_no_costs_and_no_error() -> None:
    result = so.fit(so.load_scenario("ddn/bloom-7b1"))
    assert result.costs is None
    with pytest.raises(KeyError, match="only memory was computed"):
        _ = result.confidence.sigma
    assert result.intervals() == {}
    assert "economics" not in result.to_dict()


def test_prices_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("kind: costs\nid: mine\nname: mine\ndate: 2026-11-01\nelectricity: 9\n")
    mine = so.simulate(so.load_scenario("ddn/bloom-7b1"), costs=so.load_costs(path))
    assert mine.costs is not None
    assert mine.costs.metrics()["electricity_per_h"] == pytest.approx(
        mine.costs.metrics()["power_w"] / 1000 * mine.costs.costs.assumption("pue").value * 9
    )
    shipped = so.simulate(so.load_scenario("ddn/bloom-7b1")).to_dict()["economics"]["metrics"]
    assert mine.to_dict()["economics"]["metrics"]["cost_per_h"] > shipped["cost_per_h"]


def test_a_search_for_remedies_keeps_the_limits_of_the_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    so.fit(so.load_scenario("ddn/bloom-176b", overrides=TOO_LARGE))  # what is read once is no part of it
    hurried = so.load_scenario("ddn/bloom-176b", overrides=[*TOO_LARGE, "engine.timeout=2 s"])
    result = so.fit(hurried)
    monkeypatch.setattr(changes, "adapters", lambda _: [time.sleep(0.001) for _ in range(60_000)])
    remedies = result.remedies
    assert remedies is not None
    assert remedies.stopped.startswith("stopped by engine.timeout (--timeout) after 2 s while planning")
    assert remedies.changes, "what was found until then"
    assert f"the search is not complete: {remedies.stopped}" in remedies_section(remedies).sentences


def test_a_comparison_says_of_each_what_it_says_itself(tmp_path: Path) -> None:
    """Only where one is taken out of it: side by side costs are told once and remedies not searched for."""
    scenario = so.load_scenario("ddn/bloom-7b1")
    found = so.compare(scenario, ["dram", "raid"])
    alone = so.simulate(scenario.on("raid"))
    assert found.results["raid"].to_dict() == alone.to_dict()
    compared = found.to_dict()["compared"][1]
    assert compared["economics"] == alone.to_dict()["economics"]
    assert "economics" not in compared["result"]
    so.write_comparison(list(found.results.values()), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count("Cost and energy</h2>") == 1
    so.write_report(found.results["raid"], tmp_path / "page.html")
    assert "Cost and energy" in (tmp_path / "page.html").read_text()


def test_a_scenario_may_be_named_by_its_path(tmp_path: Path) -> None:
    """In every public function that takes one; what it is not is said with what to write."""
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    scenario = so.load_scenario(path)
    result = so.simulate(path)
    assert result.metrics() == so.simulate(str(path)).metrics() == so.simulate(scenario).metrics()
    assert so.fit("ddn/bloom-7b1").fits
    comparison = so.compare(str(path), ["gpu", "dram"], baseline="gpu")
    assert list(comparison.results) == ["hbm", "dram", "vllm"]
    assert comparison.baseline == "hbm"
    assert list(so.compare_scenarios({"a": path}).results) == ["a"]
    assert list(so.on_targets(path, ["dgx-h100:cpu"])) == ["dgx-h100:dram"]
    assert so.economics(path, result).to_dict() == so.economics(scenario, result).to_dict()
    assert so.largest(path) == so.largest(scenario)
    assert so.machines_needed(path) == so.machines_needed(scenario)
    assert so.smallest_changes(path) == ()
    short = tmp_path / "short.yaml"
    short.write_text(SCENARIO.replace("output_length: 3", "output_length: 1"))
    curve = so.storage_curve(short)
    assert curve is not None
    assert curve.tier == "raid"
    with pytest.raises(so.InputError, match='a model needs a machine: gpu="ID"'):
        so.simulate("bloom-7b1")
    with pytest.raises(so.InputError, match="scenario: must be a LoadedScenario, a text, a path or"):
        so.simulate(7)  # type: ignore[arg-type]


def test_results_and_comparisons_plot() -> None:
    result = so.simulate("ddn/bloom-7b1")
    assert result.plot().layout.yaxis.ticktext[0] == result.bottleneck
    assert list(so.fit("ddn/bloom-7b1").plot().layout.yaxis.ticktext) == [use.tier for use in result.capacity]
    compared = so.compare("ddn/bloom-7b1", ["dram", "raid"])
    assert list(compared.plot().layout.yaxis.ticktext) == ["vLLM", "dram", "raid"]
    with pytest.raises(ValueError, match="only a result of"):
        replace(result, scenario=None).plot()
