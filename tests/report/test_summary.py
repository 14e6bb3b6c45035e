"""The sentence with which a report begins."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from simoffload.planning.answers import simulate
from simoffload.report.comparison import groups
from simoffload.report.document import LONGEST
from simoffload.report.from_comparison import comparison_document
from simoffload.report.from_result import result_document
from simoffload.report.markdown import markdown
from simoffload.report.summary import common_name, group_summary, result_summary
from simoffload.results.result import SimulationResult
from simoffload.scenario import read_scenario

Make = Callable[..., SimulationResult]


def summary(*results: SimulationResult) -> str:
    (group,) = groups(results)
    return group_summary(group)


def test_a_win_says_by_how_much(make_result: Make, make_refusal: Make) -> None:
    fast, slow = make_result(target="dram"), make_result(target="nfs", time_s=20)
    assert summary(make_refusal(target="hbm"), slow, fast) == (
        "dram is fastest: 3.86 tokens/s of all 8 sequences (3.28 to 5.45), "
        "nfs takes 10× as long (8.52 to 11.7); hbm does not fit."
    )


def test_a_tie_is_called_one(make_result: Make) -> None:
    near = [make_result(target=target, time_s=time) for target, time in (("a", 2.0), ("b", 2.01))]
    text = summary(*near)
    assert text.startswith("a gives 3.86 tokens/s of all 8 sequences (")
    assert text.endswith("); b is as fast within the uncertainty.")


def test_the_only_one_that_fits(make_result: Make, make_refusal: Make) -> None:
    text = summary(make_refusal(target="hbm"), make_result(target="dram"))
    assert text == (
        "only dram fits: 3.86 tokens/s of all 8 sequences (3.28 to 5.45; 2.08 s per token of each)."
    )


def test_nothing_fits(make_refusal: Make) -> None:
    results = [make_refusal(target=target) for target in ("hbm", "raid")]
    assert summary(*results) == (
        "hbm does not fit (raid lacks 4 GB in all); raid does not fit (raid lacks 4 GB in all)."
    )


def test_all_are_refused(make_refusal: Make) -> None:
    results = [make_refusal(target=target, refused=("no such thing",)) for target in ("hbm", "raid")]
    assert summary(*results) == "every answer is refused: no such thing."
    assert result_summary(results[0]) == "bloom-7b1 is refused on dgx-a100: no such thing."


def test_training_is_compared_by_its_step(make_training: Make) -> None:
    fast = make_training(target="dram", optimizer_target="dram", phases=make_training().phases[:3])  # type: ignore[attr-defined]
    text = summary(make_training(), fast)
    assert (
        text
        == "dram+dram is fastest: 21 s per step (20.3 to 24.8 s), hbm+raid takes 1.9× as long (1.51 to 2.4)."
    )
    page = json.dumps(comparison_document([make_training(), fast]).to_dict())
    assert "time per token" not in page.lower()
    assert "time/token" not in page


def test_steps_with_different_work_are_compared_by_throughput(make_training: Make) -> None:
    large = make_training(name="large", batch_size=8)
    text = summary(make_training(name="small"), large)
    assert "6,554 tokens/s" in text
    assert "per step" not in text


@pytest.mark.parametrize("name", ["ddn/bloom-7b1", "checkpoint/mlperf-8b", "xinnor/llama-1b"])
def test_one_result_has_at_most_five_numbers(name: str) -> None:
    result = simulate(read_scenario(name))
    text = result_summary(result)
    assert len(text) <= LONGEST
    names = [result.model.partition(" (")[0], result.platform, *result.targets]
    for known in (*names, *(share.cause_text for share in result.step.shares)):  # type: ignore[union-attr]
        text = text.replace(known, "")
    text = re.sub(r" of all \d+ sequences", "", re.sub(r" \([\d.,]+ to [\d.,]+( s)?\)", " (±1 %)", text))
    assert 2 <= len(re.findall(r"\d[\d.,]*", text)) <= 5


def test_a_sentence_is_never_longer(make_result: Make) -> None:
    names = [f"{letter * 90} with a name" for letter in "abc"]
    results = [make_result(name=name, target="raid", time_s=2 + at) for at, name in enumerate(names)]
    text = summary(*results)
    assert len(text) <= LONGEST
    assert text.endswith(".")


def test_every_format_begins_with_it(make_result: Make) -> None:
    results = [make_result(target="dram"), make_result(target="nfs", time_s=20)]
    document = comparison_document(results)
    (answer,) = document.summary
    assert document.verdicts == (answer,)
    data: dict[str, Any] = document.to_dict()
    assert (data["name"], data["summary"]) == ("small", [answer])
    assert "Verdict: dram is fastest: 3.86 tokens/s of all 8 sequences" in markdown(document)
    assert result_document(results[0]).heading == "small"


def test_names_of_several_scenarios() -> None:
    assert common_name(["a", "a"]) == "a"
    assert common_name(["a", "b"]) == "a and b"
    assert common_name(["a", "b", "c"]) == "a, b and c"
    assert common_name(["a", "b", "c", "d"]) == "a and 3 others"
