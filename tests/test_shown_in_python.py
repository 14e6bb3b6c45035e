"""What Python shows of an answer: a few lines of text, in a notebook sentence and chart, by Tab few names."""

from __future__ import annotations

import html
import pickle
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import simoffload as so
from simoffload.brief import WIDTH, in_lines

MOST_LINES, MOST_CHARACTERS, MOST_NAMES = 10, 1_500, 26


@cache
def scenario() -> so.LoadedScenario:
    return so.load_scenario("accelerate/opt-30b")


@cache
def result() -> so.SimulationResult:
    return so.simulate(scenario())


@cache
def hurried() -> so.LoadedScenario:
    """A scenario whose searches end soon, with what they have."""
    return so.load_scenario("xinnor/llama-1b", overrides=["engine.timeout=3 s"])


ANSWERS: dict[str, Callable[[], Any]] = {
    "advise": lambda: so.advise(hurried()),
    "cache_limits": lambda: so.cache_limits(scenario())[0],
    "checkpoint": lambda: so.simulate("checkpoint/mlperf-8b"),
    "compare": lambda: so.compare(scenario(), ["dram", "nvme"]),
    "confidence": lambda: result().confidence,
    "costs": lambda: result().costs,
    "does not fit": lambda: so.simulate(so.question("llama-3.3-70b", gpu="rtx-4090", program="vllm")),
    "fit": lambda: so.fit(scenario()),
    "largest": lambda: so.largest(scenario()),
    "list_models": so.list_models,
    "list_profiles": so.list_profiles,
    "list_scenarios": so.list_scenarios,
    "load_costs": so.load_costs,
    "load_model": lambda: so.load_model("qwen3-8b"),
    "load_platform": lambda: so.load_platform("dgx-a100"),
    "load_scenario": scenario,
    "machines_needed": lambda: so.machines_needed(scenario()),
    "prefix_loading": lambda: so.prefix_loading("mooncake/qwen3-8b"),
    "reach": lambda: so.reach(scenario(), slo="tpot=2s", by="workload.batch_size", within="1..4"),
    "remedies": lambda: ANSWERS["does not fit"]().remedies,
    "search_catalogue": lambda: so.search_catalogue(hurried()),
    "simulate": result,
    "step": lambda: result().step,
    "storage_curve": lambda: so.storage_curve(scenario()),
    "stream": lambda: so.stream("serving/llama-3.1-8b-chat", overrides={"stream.num_prompts": 50}),
    "sweep": lambda: so.sweep(scenario(), "workload.batch_size=1,2", workers=1),
    "sweep rows": lambda: so.sweep(scenario(), "workload.batch_size=1,2", workers=1).rows,
    "timeline": lambda: next(iter(so.simulate(scenario(), keep_timelines=True).timelines.values())),
    "training": lambda: so.simulate(hurried()),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_a_few_lines(name: str) -> None:
    text = repr(ANSWERS[name]())
    assert 0 < len(text) <= MOST_CHARACTERS
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= WIDTH


def test_a_result_says_what_a_terminal_says_first() -> None:
    first, _, values, *others = repr(result()).splitlines()
    assert first.startswith("opt-30b, float16 on 2 × ")
    rate = result().declared["tokens_per_s"].text(result().metrics()["tokens_per_s"] or 0.0)
    assert values.startswith(rate.partition(" ")[0])
    assert any(one.startswith(f"limited by: {result().bottleneck}") for one in others)


def test_a_result_that_does_not_fit_says_what_is_lacking_without_a_search() -> None:
    found = so.simulate(so.question("llama-3.3-70b", gpu="rtx-4090", program="vllm"))
    assert "does not fit: hbm needs 138 GiB per GPU" in repr(found)
    assert "hbm lacks" in document(found._repr_html_() or "")
    assert "remedies" not in vars(found)


def test_a_result_of_another_process_has_its_numbers() -> None:
    copy = pickle.loads(pickle.dumps(result()))
    assert repr(copy).startswith("InferenceResult(name='opt-30b")
    assert f"tokens_per_s={result().metrics()['tokens_per_s']:.6g}" in repr(copy)
    assert copy._repr_html_() is None


def document(element: str) -> str:
    """The page in the frame of a notebook."""
    found = re.fullmatch(r'<iframe height="\d+" [^>]*srcdoc="([^"]*)"></iframe>', element)
    assert found is not None
    return html.unescape(found[1])


@pytest.mark.parametrize("name", ["compare", "reach", "simulate", "stream", "sweep", "training"])
def test_a_notebook_shows_sentence_and_chart(name: str) -> None:
    page = document(ANSWERS[name]()._repr_html_())
    assert len(re.findall('<p class="verdict[^>]*>', page)) == 1
    assert page.count('role="img"') == 1
    assert "<table" not in page


def test_tab_offers_what_a_user_wants() -> None:
    for one in (result(), so.simulate(hurried()), so.simulate("checkpoint/mlperf-8b")):
        names = [name for name in dir(one) if not name.startswith("_")]
        assert len(names) <= MOST_NAMES
        assert {"metrics", "plot", "to_frame", "fits", "costs"} <= set(names)
        for name in names:
            getattr(type(one), name, None) or vars(one)[name]  # each exists


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("advise", {"change", "kind", "gain", "helps", "extra"}),
        ("compare", {"fits", "tokens_per_s"}),
        ("reach", {"batch_size", "tpot [s]"}),
        ("search_catalogue", {"configuration"}),
        ("simulate", {"cause", "time_s"}),
        ("stream", {"metric", "value"}),
        ("sweep", {"workload.batch_size", "tokens_per_s"}),
    ],
)
def test_every_answer_has_a_table(name: str, columns: set[str]) -> None:
    found = ANSWERS[name]()
    table = found.to_frame()
    assert columns <= set(table.columns)
    assert len(table) > 0
    if name != "search_catalogue":  # which has no chart
        assert found.plot().data


def test_a_long_text_ends_in_dots() -> None:
    lines = in_lines(*(f"line {number}" for number in range(12))).splitlines()
    assert len(lines) == MOST_LINES
    assert lines[-1] == "line 9 …"
