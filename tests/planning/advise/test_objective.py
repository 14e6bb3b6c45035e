"""What advice ranks changes and purchases by: a larger batch is throughput, not speed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import pytest

import simoffload as so
from simoffload.errors import InputError
from simoffload.extensions.purchases import search as purchases
from simoffload.extensions.purchases.search import search_catalogue
from simoffload.extensions.purchases.search_report import purchase_verdict
from simoffload.planning.advise import Advice, EvaluatedChange, advise
from simoffload.planning.advise.evaluate import objective_of
from simoffload.planning.economics import COST_METRICS
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.service_levels import parse_service
from simoffload.report.sections.advice import LARGER, advice_verdict, advised
from simoffload.results.inference import InferenceResult
from simoffload.scenario import read_scenario
from tests.planning.advise.conftest import SPACE, STORAGE_BOUND, assert_in_order, known, loaded

ONE = "workload.batch_size=1"


@pytest.fixture(scope="module")
def single() -> Advice:
    """Advice on work with one sequence at a time on each GPU."""
    return advise(known(STORAGE_BOUND, ONE))


def test_a_batch_of_one_asks_for_latency() -> None:
    one, four = loaded(STORAGE_BOUND, ONE), loaded(STORAGE_BOUND)
    training, checkpoint = read_scenario("training/bloom-7b1"), read_scenario("checkpoint/phi-3-mini")
    assert [objective_of(work, None).name for work in (one, four, training, checkpoint)] == [
        "latency",
        *["throughput"] * 3,
    ]
    assert objective_of(one, "throughput").name == "throughput"


def test_a_larger_batch_is_throughput_and_no_gain_of_a_single_sequence(single: Advice) -> None:
    assert not [one for one in single.helping if one.change.key.startswith("batch-")]
    larger = {one.change.key: one for one in single.larger_batches}
    assert {"batch-2", "batch-4", "batch-8"} <= set(larger)
    assert (larger["batch-8"].throughput or 0) > 7 > 1.05 > (larger["batch-8"].gain or 9)
    verdict = advice_verdict(single).in_full
    assert verdict.index("largest gain: ") < verdict.index("more throughput: batch 8 per GPU instead of 1 (")
    assert not verdict.partition("largest gain: ")[2].startswith("batch")
    (section,) = (one for one in advised(single, None) if one.title == LARGER)
    assert section.tables[0].head[:3] == ("change", "throughput gain", "tokens/s")
    plain = single.to_dict()
    assert (plain["objective"], plain["options"][0]["only_throughput"]) == ("latency", False)
    assert set(plain["larger_batches"]) == set(larger)


def test_latency_ranks_by_the_time_of_a_request(single: Advice) -> None:
    for one in single.tried:
        assert one.gain == (single.result.metrics()["e2e_s"] or 0) / (one.result.metrics()["e2e_s"] or 1)
    assert_in_order(single.helping, lambda one: one.result.metrics()["e2e_s"])


@pytest.mark.parametrize(
    ("overrides", "metric"),
    [(["workload.output_length=1"], "ttft_s"), (["workload.batch_size=4"], "e2e_s")],
    ids=["prefill alone", "a batch"],
)
def test_latency_may_be_asked_for(overrides: list[str], metric: str) -> None:
    found = so.advise(known(STORAGE_BOUND, *overrides), objective="latency")
    assert_in_order(found.helping, lambda one: one.result.metrics()[metric])
    assert found.objective.name == "latency"
    assert not [one for one in found.helping if one.change.key.startswith("batch-")]
    assert found.larger_batches


def test_latency_of_training_is_the_time_of_a_step() -> None:
    found = advise(read_scenario("xinnor/llama-1b"), objective="latency")
    before = found.result.metrics()["step_s"] or 0
    for one in found.tried:
        assert one.gain == before / (one.result.metrics()["step_s"] or 1)
    assert not [one for one in found.helping if one.change.key.startswith(("batch-", "accumulate-"))]


def test_throughput_may_be_asked_for_and_a_batch_of_one_still_grows_last() -> None:
    found = advise(known(STORAGE_BOUND, ONE), objective="throughput")
    keys = [one.change.key for one in found.helping if one.change.same_work]
    batches = [at for at, key in enumerate(keys) if key.startswith("batch-")]
    assert len(batches) == 3
    assert batches == list(range(len(keys) - 3, len(keys)))


@pytest.mark.parametrize("ask", [advise, search_catalogue])
def test_an_unknown_objective_is_one_clear_error(ask: object) -> None:
    with pytest.raises(InputError) as caught:
        ask(loaded(STORAGE_BOUND), objective="latancy")  # type: ignore[operator]
    (problem,) = caught.value.problems
    assert problem.message.startswith(
        "is not one of throughput, latency, cost, ttft, prompt_tokens_per_s, tpot, "
    )
    assert ", energy_per_token_j, " in problem.message
    assert problem.message.endswith('; did you mean "latency"?')


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ttft", lambda one: one.result.metrics()["ttft_s"]),
        ("tokens_per_s", lambda one: -(one.result.metrics()["tokens_per_s"] or 0)),
        ("energy_per_token_j", lambda one: one.economics.metrics()["energy_per_token_j"]),
        ("return_per_purchase", lambda one: -(one.economics.metrics()["return_per_purchase"] or 0)),
    ],
)
def test_a_metric_may_be_asked_for(name: str, values: Callable[[EvaluatedChange], float]) -> None:
    """Changes are in the order of the metric, and their gain is how many times better it is."""
    found = so.advise(known(STORAGE_BOUND), objective=name)
    if name in COST_METRICS:  # which count what a purchase costs
        order = [(one.change.rank, values(one)) for one in found.tried]
        assert order == sorted(order)
    else:
        assert_in_order(found.tried, values)
    now = abs(values(found))  # type: ignore[arg-type]  # it has a result and costs, too
    for one in found.tried:
        better = abs(values(one)) / now if values(one) < 0 else now / values(one)
        assert one.gain == pytest.approx(better)
    assert found.helping
    assert found.to_dict()["objective"] == found.objective.name
    label = found.objective.metric.label if found.objective.metric else ""
    assert f"largest gain of {label}: " in advice_verdict(found).in_full


def test_purchases_by_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best has the least of all, also of a metric that no time bounds."""
    monkeypatch.setattr(purchases, "families", lambda *_: SPACE)
    scenario = loaded(STORAGE_BOUND)
    found = search_catalogue(scenario, objective="power_w")
    powers = [one.economics.metrics()["power_w"] or 0 for one in found.points]
    assert found.best is not None
    assert found.best.economics.metrics()["power_w"] == min(powers)
    assert purchase_verdict(found, budget=None, service=[]).startswith("lowest mean power: ")
    soonest = search_catalogue(scenario, objective="ttft").best
    assert soonest is not None
    assert soonest.result.metrics()["ttft_s"] == min(
        one.result.metrics()["ttft_s"] or 9e9 for one in found.points
    )


def test_a_metric_that_nothing_improves_is_refused() -> None:
    with pytest.raises(InputError, match="--objective: kv_load: has no value in this scenario"):
        advise(known(STORAGE_BOUND), objective="kv_load")
    with pytest.raises(InputError, match="step: is not one of throughput"):
        advise(known(STORAGE_BOUND), objective="step")


def test_purchases_by_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best purchase has the shortest time, within budget and service level, not the largest batch."""
    monkeypatch.setattr(purchases, "families", lambda *_: SPACE)
    level = parse_service("tpot=10s", InferenceResult)
    scenario = loaded(STORAGE_BOUND)
    found = search_catalogue(scenario, objective="latency", budget=1e6, service=[level])
    assert found.best is not None
    times = {one.result.metrics()["e2e_s"] or 0 for one in found.points}
    assert found.best.result.metrics()["e2e_s"] == min(times)
    front = [one.result.metrics()["e2e_s"] or 0 for one in found.front]
    assert all(one > two for one, two in pairwise(front))
    verdict = purchase_verdict(found, budget=1e6, service=[level])
    assert verdict.startswith("shortest time: weights on hbm, batch 4; 182 tokens/s [")
    by_rate = search_catalogue(scenario, budget=1e6, service=[level])
    assert by_rate.best is not None
    assert by_rate.best.description[-1] == "batch 16"
    assert search_catalogue(known(STORAGE_BOUND, ONE)).objective.name == "latency"


@cache
def served() -> Evaluator:
    return Evaluator(read_scenario("serving/gpt-oss-120b"))


def test_a_program_is_listed_once() -> None:
    """vLLM on one GPU that holds all weights is one program, however its offload is left out."""
    found = advise(served())
    assert not [one for one in found.tried if "without offload" in one.change.description]
    typed = [one.result.provenance.exports for one in found.tried if one.change.kind == "placement"]
    assert found.result.provenance.exports not in typed


def test_one_gain_has_its_interval() -> None:
    batch = read_scenario("serving/gpt-oss-120b", overrides=["workload.batch_size=8"])
    found = advise(Evaluator(batch), objective="throughput")
    assert len(found.uncertain) == 1
    (text,) = next(
        one for one in advised(found, None) if one.title == "Gains within the prediction error"
    ).sentences
    assert text.endswith("the 80 % interval of its gain contains 1")


def test_what_to_type_is_shown_where_a_change_makes_it_fit() -> None:
    """Of a change with the same answers, whatever its kind, and of one with other answers."""
    overrides = ["workload.batch_size=64", "workload.prompt_length=60000"]
    found = advise(read_scenario("serving/gpt-oss-120b", overrides=overrides))
    assert not found.result.fits
    typed = [one for one in advised(found, None) if one.title == "What to type"]
    (first,) = typed
    assert first.sentences[0].startswith(f"with {found.helping[0].change.description}")
    assert first.listings[0].text.startswith("# Replace the name")
    assert not first.page_only


@pytest.mark.parametrize("name", ["energy_per_token_j", "return_per_purchase"])
def test_what_follows_from_times_is_as_uncertain_as_they_are(name: str) -> None:
    found = advise(known(STORAGE_BOUND), objective=name)
    assert {one.margin > 0 for one in found.tried if one.gain and one.change.kind == "placement"} == {True}
