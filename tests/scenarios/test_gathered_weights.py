"""Weights in the HBM of several GPUs under ZeRO-3 are gathered for every token, and reports say so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simoffload.documents import parse_json
from simoffload.planning.advise.options import places
from simoffload.planning.answers import fit, simulate
from simoffload.planning.compare import compare
from simoffload.planning.economics import Costed, economics
from simoffload.report.from_result import result_document
from simoffload.report.html import write_report
from simoffload.report.markdown import write_markdown
from simoffload.report.sections.costs import costs, costs_compared
from simoffload.scenario import LoadedScenario, resolve
from tests.report.conftest import compare_text, result_text

GATHERS = "each of 4 GPUs gathers every layer over the links between GPUs for every token"


def scenario(weights: str = "hbm", **changes: Any) -> LoadedScenario:
    data: dict[str, Any] = {
        "name": "served",
        "model": "opt-1.3b",
        "platform": "dgx-a100",
        "workload": {"batch_size": 2, "prompt_length": 100, "output_length": 4},
        "strategy": {"kind": "deepspeed", "ranks": 4, "weights": weights},
    }
    return resolve(parse_json(json.dumps(data | changes), name="test.json"))


def test_the_bound_is_bytes_over_the_rate_of_hbm() -> None:
    """Each GPU reads a quarter of the weights, and the cache of two sequences of 101, 102 and 103 tokens."""
    loaded = scenario()
    cache = 2 * 102 * 2 * 24 * 32 * 64 * 2
    positions = (2048 + 2) * 2048  # looked up by row, unlike the words, which are the head's matrix, too
    part = (loaded.model.num_parameters - positions) * 2 / 4
    expected = 2 * 4 * loaded.machine.accelerator.hbm_rate / (part + cache)
    result = simulate(loaded)
    assert result.metrics()["spread_bound_tokens_per_s"] == pytest.approx(expected)
    assert result.to_dict()["metrics"]["spread_bound_tokens_per_s"] == pytest.approx(expected)
    assert result.metrics()["decode_tokens_per_s"] < expected


def test_all_tokens_may_go_to_the_same_experts() -> None:
    """Mixtral 8x7B: two of eight experts of each layer, attention, router, norms and head; no embedding."""
    work = {"batch_size": 1, "prompt_length": 100, "output_length": 2}
    result = fit(scenario(model="mixtral-8x7b", workload=work))
    experts = 2 * 3 * 4096 * 14336
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024
    layer = experts + attention + 8 * 4096 + 2 * 4096
    weights = 2 * (32 * layer + 4096 + 32000 * 4096)
    cache = 101 * 2 * 32 * 8 * 128 * 2
    rate = scenario().machine.accelerator.hbm_rate
    assert result.metrics()["spread_bound_tokens_per_s"] == pytest.approx(4 * rate / (weights / 4 + cache))


@pytest.mark.parametrize(
    "other",
    [
        scenario("dram"),
        scenario(strategy={"kind": "deepspeed", "ranks": 1, "weights": "hbm"}),
        scenario(strategy={"kind": "transformers", "ranks": 4}),
        scenario(model="bloom-176b"),
        scenario(workload={"batch_size": 2, "prompt_length": 100, "output_length": 1}),
    ],
    ids=["host memory", "one GPU", "whole copies", "too large", "no decode"],
)
def test_nothing_else_has_it(other: LoadedScenario) -> None:
    result = fit(other)
    assert "spread_bound_tokens_per_s" not in result.metrics()


def test_it_is_said_wherever_the_answer_is(tmp_path) -> None:
    loaded = scenario()
    result = simulate(loaded)
    bound = result.metrics()["spread_bound_tokens_per_s"]
    assert bound is not None
    (warning,) = (text for text in result.warnings if GATHERS in text)
    assert "is not tensor parallelism" in warning
    assert (
        f"up to {bound:,.0f} tokens/s in decode by their bytes alone (a bound, not a prediction)" in warning
    )
    text = " ".join(result_text(result).split())
    assert "ZeRO-3: every GPU gathers every layer for every token" in text
    assert GATHERS in text
    assert result.to_dict()["warnings"] == list(result.warnings)
    assert any(GATHERS in one for one in fit(loaded).warnings)
    write_report(result, tmp_path / "report.html")
    write_markdown(result_document(result), tmp_path / "report.md")
    for name in ("report.html", "report.md"):
        assert GATHERS in " ".join((tmp_path / name).read_text().split())


def test_it_is_said_beside_others_and_beside_costs() -> None:
    loaded = scenario()
    found = compare(loaded, ["dram", "hbm"])
    results = list(found.results.values())
    assert f"hbm: weights in HBM under ZeRO-3: {GATHERS}" in " ".join(compare_text(results).split())
    frame = found.to_frame()
    assert GATHERS in frame.loc["hbm", "warnings"]
    assert frame.loc["hbm", "spread_bound_tokens_per_s"] > 0
    priced = economics(loaded, found.results["hbm"])
    hourly = priced.metrics()["cost_per_h"]
    assert hourly is not None
    least = hourly / 3600 / frame.loc["hbm", "spread_bound_tokens_per_s"] * 1e6
    alone, _ = costs(found.results["hbm"], priced)
    (reported,) = (one for one in alone.sentences if "gathers every layer" in one)
    assert f"a million output tokens would cost at least {least:.3g} USD" in reported

    (several,) = costs_compared(
        [Costed(label, found.results[label], one) for label, one in found.economics.items()]
    )
    assert f"hbm: {reported}" in several.sentences


def test_advice_to_move_weights_there_says_it_too() -> None:
    found = {option.key: option.description for option in places(scenario("dram"), ["dram"])}
    assert found["on-hbm"] == "weights on hbm (ZeRO-3, gathered for every token)"


def test_fit_says_it_of_weights_that_it_moves_there() -> None:
    """Host memory of a host that has too little of it; HBM has room."""
    small = scenario("dram", profiles={"dgx-a100-1tib": {"memory_capacity": "17 GiB"}})
    remedies = fit(small).remedies
    assert remedies is not None
    assert "weights on hbm (ZeRO-3, gathered for every token)" in [
        one.description for one in remedies.changes
    ]
