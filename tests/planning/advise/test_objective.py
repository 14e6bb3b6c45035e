"""What advice ranks changes and purchases by: a larger batch is throughput, not speed."""

from __future__ import annotations

from itertools import pairwise

import pytest

import simoffload as so
from simoffload.errors import InputError
from simoffload.planning.advise import Advice, advise, purchases, search_catalogue
from simoffload.planning.advise.objective import objective_of
from simoffload.planning.service_levels import parse_service
from simoffload.report.sections.advice import LARGER, advice_verdict, advised, purchase_verdict
from simoffload.results.inference import InferenceResult
from simoffload.scenario import load_scenario
from tests.planning.advise.conftest import SPACE, STORAGE_BOUND, loaded

ONE = "workload.batch_size=1"


@pytest.fixture(scope="module")
def single() -> Advice:
    """Advice on work with one sequence at a time on each GPU."""
    return advise(loaded(STORAGE_BOUND, ONE))


def test_a_batch_of_one_asks_for_latency() -> None:
    one, four = loaded(STORAGE_BOUND, ONE), loaded(STORAGE_BOUND)
    assert (objective_of(one, None), objective_of(four, None)) == ("latency", "throughput")
    assert objective_of(one, "throughput") == "throughput"
    assert objective_of(load_scenario("training/bloom-7b1"), None) == "throughput"
    assert objective_of(load_scenario("checkpoint/phi-3-mini"), None) == "throughput"


def test_a_larger_batch_is_throughput_and_no_gain_of_a_single_sequence(single: Advice) -> None:
    assert not [one for one in single.helping if one.change.key.startswith("batch-")]
    larger = {one.change.key: one for one in single.larger_batches}
    assert {"batch-2", "batch-4", "batch-8"} <= set(larger)
    assert (larger["batch-8"].throughput or 0) > 7 > 1.05 > (larger["batch-8"].gain or 9)
    verdict = advice_verdict(single).in_full
    assert verdict.index("largest gain: ") < verdict.index("more throughput: batch 8 per GPU instead of 1 (")
    assert not verdict.partition("largest gain: ")[2].startswith("batch")
    (section,) = (one for one in advised(single, None) if one.title == LARGER)
    assert section.tables[0].head[:3] == ("change", "throughput gain", "TPOT")
    plain = single.to_dict()
    assert (plain["objective"], plain["options"][0]["only_throughput"]) == ("latency", False)
    assert set(plain["larger_batches"]) == set(larger)


def test_latency_ranks_by_the_time_of_a_token(single: Advice) -> None:
    for one in single.tried:
        assert one.gain == (single.result.metrics()["tpot_s"] or 0) / (one.result.metrics()["tpot_s"] or 1)
    order = [(one.change.rank, one.result.metrics()["tpot_s"]) for one in single.helping]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("overrides", "metric"),
    [(["workload.output_length=1"], "ttft_s"), (["workload.batch_size=4"], "tpot_s")],
    ids=["prefill alone", "a batch"],
)
def test_latency_may_be_asked_for(overrides: list[str], metric: str) -> None:
    found = so.advise(loaded(STORAGE_BOUND, *overrides), objective="latency")
    times = [(one.change.rank, one.result.metrics()[metric]) for one in found.helping]
    assert times == sorted(times)
    assert found.objective == "latency"
    assert not [one for one in found.helping if one.change.key.startswith("batch-")]
    assert found.larger_batches


def test_latency_of_training_is_the_time_of_a_step() -> None:
    found = advise(load_scenario("xinnor/llama-1b"), objective="latency")
    before = found.result.metrics()["step_s"] or 0
    for one in found.tried:
        assert one.gain == before / (one.result.metrics()["step_s"] or 1)
    assert not [one for one in found.helping if one.change.key.startswith(("batch-", "accumulate-"))]


def test_throughput_may_be_asked_for_and_a_batch_of_one_still_grows_last() -> None:
    found = advise(loaded(STORAGE_BOUND, ONE), objective="throughput")
    keys = [one.change.key for one in found.helping if one.change.same_work]
    batches = [at for at, key in enumerate(keys) if key.startswith("batch-")]
    assert len(batches) == 3
    assert batches == list(range(len(keys) - 3, len(keys)))


@pytest.mark.parametrize("ask", [advise, search_catalogue])
def test_an_unknown_objective_is_one_clear_error(ask: object) -> None:
    with pytest.raises(InputError) as caught:
        ask(loaded(STORAGE_BOUND), objective="latancy")  # type: ignore[operator]
    (problem,) = caught.value.problems
    assert problem.message == 'is not one of throughput, latency, cost; did you mean "latency"?'


def test_purchases_by_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best purchase has the shortest time, within budget and service level, not the largest batch."""
    monkeypatch.setattr(purchases, "families", lambda *_: SPACE)
    level = parse_service("tpot=10s", InferenceResult)
    scenario = loaded(STORAGE_BOUND)
    found = search_catalogue(scenario, objective="latency", budget=1e6, service=[level])
    assert found.best is not None
    times = {one.result.step_time_s or 0 for one in found.points}
    assert found.best.result.step_time_s == min(times)
    assert all(one.result.step_time_s > two.result.step_time_s for one, two in pairwise(found.front))
    verdict = purchase_verdict(found, budget=1e6, service=[level])
    assert verdict.startswith("shortest time: weights on hbm, batch 4; TPOT ")
    by_rate = search_catalogue(scenario, budget=1e6, service=[level])
    assert by_rate.best is not None
    assert by_rate.best.description[-1] == "batch 16"
    assert search_catalogue(loaded(STORAGE_BOUND, ONE)).objective == "latency"


def test_a_program_is_listed_once() -> None:
    """vLLM on one GPU that holds all weights is one program, however its offload is left out."""
    found = advise(load_scenario("serving/gpt-oss-120b"))
    assert not [one for one in found.tried if "without offload" in one.change.description]
    typed = [one.result.provenance.exports for one in found.tried if one.change.kind == "placement"]
    assert found.result.provenance.exports not in typed


def test_one_gain_has_its_interval() -> None:
    found = advise(load_scenario("serving/gpt-oss-120b"), objective="throughput")
    assert len(found.uncertain) == 1
    (text,) = next(
        one for one in advised(found, None) if one.title == "Gains within the prediction error"
    ).sentences
    assert text.endswith("the 80 % interval of its gain contains 1")


def test_what_to_type_is_shown_where_a_change_makes_it_fit() -> None:
    """Of a change with the same answers, whatever its kind, and of one with other answers."""
    overrides = ["workload.batch_size=64", "workload.prompt_length=60000"]
    found = advise(load_scenario("serving/gpt-oss-120b", overrides=overrides))
    assert not found.result.fits
    typed = [one for one in advised(found, None) if one.title == "What to type"]
    (first,) = typed
    assert first.sentences[0].startswith(f"with {found.helping[0].change.description}")
    assert first.listings[0].text.startswith("# Replace the name")
    assert not first.page_only
