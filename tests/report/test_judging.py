"""What comparisons are judged by: each verdict names the right winner, and agrees with its own table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from simoffload.planning.compare import Comparison, compare
from simoffload.planning.service_levels import judged, parse_service
from simoffload.report.comparison import Group, groups, times_compared
from simoffload.report.presentation import cells, speed_text
from simoffload.report.summary import group_summary, result_summary
from simoffload.results import InferenceResult
from simoffload.results.result import SimulationResult
from tests.report.conftest import COMPUTE_TIME, step

Make = Callable[..., InferenceResult]


@pytest.fixture
def make(make_result: Make) -> Make:
    """A request with a time to the first token and a time per output token [s]."""

    def made(target: str, ttft: float, tpot: float, *, batch: int = 1, output: int = 101) -> InferenceResult:
        return make_result(
            target=target,
            ranks=1,
            gpus=1,
            replicas=1,
            batch_size=batch,
            output_length=output,
            prefill=step("prefill", ttft),
            decode=(step("decode 1", tpot, cause=COMPUTE_TIME),) if output > 1 else (),
            decode_total_s=(output - 1) * tpot,
        )

    return made


def verdict(*results: SimulationResult) -> tuple[str, Group]:
    """The verdict in full, whose winner has the best value of the table, and is first in chart and
    ranking."""
    (group,) = groups(results)
    text, best = group_summary(group).in_full, group.ordered[0]
    values = [group.value(row) or 0.0 for row in group.rows]
    assert text.startswith(f"{best.label} ")
    assert group.value(best) == (max(values) if group.measure.larger else min(values))
    assert group.measure.column in cells(best.result)
    assert times_compared([group])["layout"]["yaxis"]["ticktext"][0] == best.label
    assert Comparison({one.target: one for one in results}).ranking[0] == best.label
    ratios = {row.label: row.ratio or 0.0 for row in group.rows}
    assert min(ratios, key=ratios.__getitem__) == best.label
    return text, group


def test_prefix_stores_with_equal_decode_steps_are_no_tie(make: Make) -> None:
    stores = [("dram", 0.38), ("raid", 2.33), ("nfs", 3.97)]
    text, group = verdict(*(make(name, ttft, 0.99 / 127, batch=16, output=128) for name, ttft in stores))
    assert group.leading == ("dram",)
    assert text.startswith("dram is fastest: 1,495 tokens/s of all 16 sequences (")
    assert "raid takes 2.42× as long" in text
    assert [row.result.tokens_per_s for row in group.rows] == pytest.approx([1495, 617, 413], rel=1e-3)
    assert [row.margin for row in group.rows] == [None] * 3


def test_the_pass_with_most_of_the_time_has_the_bottleneck(make: Make) -> None:
    result = make("nfs", 3.82, 1.14 / 127, output=128)
    assert (result.bottleneck, result.limit) == ("raid read", "raid")
    assert "; raid read takes 81 % of the prefill, which is 77 % of the time" in result_summary(result)
    other = make("nfs", 1.0, 3.96 / 127, output=128)
    assert other.bottleneck == "GPU compute"
    assert other.to_dict()["step"]["pass"] == "decode 1"
    assert other.to_dict()["compared_metric"] == "tokens_per_s"


def test_batches_are_compared_by_all_their_sequences(make: Make) -> None:
    text, _ = verdict(make("hbm", 1.0, 1.0), make("dram", 10.2, 10.2, batch=144))
    assert text.startswith("dram is fastest: 14.1 tokens/s of all 144 sequences (")
    assert " (12 to 20), hbm takes 14.1× as long (" in text
    assert "; hbm has the shortest TTFT (1 s instead of 10.2 s)" in text
    assert "per output token" not in text


def test_a_long_prefill_decides_short_outputs(make: Make) -> None:
    text, group = verdict(make("raid", 20.0, 0.05, output=11), make("dram", 1.0, 0.2, output=11))
    assert group.leading == ("dram",)
    assert text.startswith("dram is fastest: 3.67 tokens/s (")
    assert "; raid has the shortest TPOT (50 ms instead of 200 ms)" in text


def test_many_tokens_decide_against_the_first(make: Make) -> None:
    text, _ = verdict(make("raid", 1.0, 0.2, output=1001), make("dram", 5.0, 0.1, output=1001))
    assert text.startswith("dram is fastest: 9.53 tokens/s (")
    assert "; raid has the shortest TTFT (1 s instead of 5 s)" in text


def test_what_is_alike_in_all_respects_is_a_tie_without_a_clause(make: Make) -> None:
    text, group = verdict(make("raid", 1.0, 0.1), make("dram", 1.01, 0.1))
    assert group.leading == ("raid", "dram")
    assert text.endswith("; dram is as fast within the uncertainty.")


def test_a_tie_says_which_is_sooner(make: Make) -> None:
    text, group = verdict(make("raid", 2.0, 0.5, output=1001), make("dram", 0.2, 0.5, output=1001))
    assert group.leading == ("dram", "raid")
    assert text.endswith(
        "; raid is as fast within the uncertainty; dram has the shortest TTFT (200 ms instead of 2 s)."
    )


def test_prompts_alone_are_compared_by_their_time(make: Make) -> None:
    text, group = verdict(make("raid", 2.0, 0, output=1), make("dram", 1.0, 0, output=1))
    assert group.measure.name == "ttft_s"
    assert text.startswith("dram is fastest: 1 s to the first token (")
    assert text.endswith(", raid takes 2× as long (1.7 to 2.35).")


def test_the_metric_that_is_asked_for_decides(make: Make) -> None:
    made = make("raid", 1.0, 0.2, output=1001), make("dram", 5.0, 0.1, output=1001)
    text, group = verdict(*(replace(one, asked="ttft_s") for one in made))
    assert text.startswith("raid is fastest: 1 s to the first token (")
    assert ", dram takes 5× as long" in text
    assert "; dram has the shortest TPOT (100 ms instead of 200 ms)" in text
    assert {row.result.bottleneck for row in group.rows} == {"raid read"}, "that of the prefill"


def test_a_limit_that_is_missed_has_its_own_bottleneck(make: Make) -> None:
    result = make("raid", 2.0, 0.1)
    limits = [parse_service(text, InferenceResult) for text in ("ttft=1s", "tpot=200ms")]
    assert (result.bottleneck, judged(result, limits).bottleneck) == ("GPU compute", "raid read")
    assert judged(result, limits[1:]) is result
    assert judged(result, limits).to_dict()["compared_metric"] == "ttft_s"


@pytest.mark.parametrize(
    ("objective", "metric"),
    [("energy_per_token_j", "energy_per_token_j"), ("cost", "cost_per_million_tokens")],
)
def test_energy_and_money_decide_where_they_are_asked_for(objective: str, metric: str) -> None:
    found = compare("xinnor/llama-1b", ["hbm+dram", "hbm+nvme"], objective=objective)
    (group,) = groups(tuple(found.results.values()))
    each = {row.label: found.economics[row.label].metrics()[metric] or 0.0 for row in group.rows}
    best = min(each, key=each.__getitem__)
    assert found.ranking[0] == group.ordered[0].label == best
    text = group_summary(group).in_full
    assert text.startswith((f"{best} has the lowest ", f"{best} takes "))
    assert group.measure.name == metric


def test_a_rate_as_people_read_it(make: Make) -> None:
    fast, slow = make("hbm", 0.025, 0.025, output=401), make("raid", 21.3, 21.3)
    assert speed_text(fast).startswith("40 tokens/s (")
    assert speed_text(slow).startswith("0.0469 tokens/s (")
    assert speed_text(slow).endswith("; 21.3 s per token)")
