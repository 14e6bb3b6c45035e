"""One search over ways to do the work and over what is bought with them."""

from __future__ import annotations

from functools import cache

import pytest

from simoffload.bisection import first_with_room
from simoffload.documents import parse_yaml
from simoffload.extensions.purchases.search import Frontier, families, joined_edits, search_catalogue
from simoffload.extensions.purchases.search_report import searched
from simoffload.planning.advise import Advice, advise
from simoffload.planning.costs import load_costs
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.service_levels import parse_service
from simoffload.results import InferenceResult
from simoffload.scenario import LoadedScenario, read_scenario, resolve
from simoffload.simulation import simulate

DESKTOP = """\
name: desktop
model: {name: llama-3.3-70b, dtype: bfloat16}
platform: rtx-4090-desktop
workload: {batch_size: 1, prompt_length: 512, output_length: 32}
strategy:
  kind: deepspeed
  weights: nvme
  ds_config: {zero_optimization: {offload_param: {buffer_size: 1.1e9}}}
profiles: {host/desktop-ddr5-128gb: {memory_capacity: 64 GiB}}
"""


@cache
def desktop() -> LoadedScenario:
    """A model of 131 GiB on one GPU of 24, with 64 GiB of host memory."""
    return resolve(parse_yaml(DESKTOP, name="desktop.yaml"))


@cache
def known() -> Evaluator:
    """What is simulated of it, once for all searches."""
    return Evaluator(desktop())


@cache
def advice() -> Advice:
    return advise(known())


def test_what_keeps_answers_is_beaten_by_its_like_only() -> None:
    frontier = Frontier()
    frontier.add(1, price=100.0, speed=9.0)
    assert not frontier.beats(0, price=100.0, speed=1.0)
    assert frontier.beats(1, price=100.0, speed=9.0)
    assert not frontier.beats(1, price=99.0, speed=9.0)
    frontier.add(0, price=100.0, speed=2.0)
    assert frontier.beats(0, price=100.0, speed=1.0)
    assert frontier.beats(1, price=101.0, speed=2.0)


@pytest.mark.parametrize("first", [0, 1, 37, 99, None])
def test_the_first_with_room_is_found_whether_room_grows_evenly_or_not(first: int | None) -> None:
    for power in (1, 3):
        tried: list[int] = []

        def room(index: int, power: int = power, tried: list[int] = tried) -> dict[str, float] | None:
            tried.append(index)
            return {"hbm": -1.0 if first is None else (index - first + 0.5) ** power}

        assert first_with_room(100, room) == first
        assert len(tried) <= (4 if power == 1 else 12)


def test_what_is_refused_has_no_room() -> None:
    assert first_with_room(100, lambda index: None if index < 40 else {"hbm": 1.0}) == 40


@pytest.mark.parametrize(
    ("name", "overrides"),
    [("accelerate/opt-30b", ["workload.output_length=8"]), ("ddn/bloom-7b1", []), ("xinnor/llama-1b", [])],
)
def test_no_result_is_faster_than_its_least_one(name: str, overrides: list[str]) -> None:
    scenario = read_scenario(name, overrides=overrides)
    least, exact = Evaluator(scenario).least(), simulate(scenario)
    for shortest, time in ((least.unit_s, exact.unit_s), (least.step_time_s, exact.step_time_s)):
        assert shortest is not None
        assert time is not None
        assert 0.5 * time < shortest <= time


def test_memory_is_advised_with_what_it_makes_possible() -> None:
    """Alone it gains nothing, and nothing else fits into the memory that is there."""
    gains = {one.change.key: one.gain or 0.0 for one in advice().tried}
    assert gains["memory-x2"] < 1.01
    best, *_ = advice().helping
    assert best.change.key == "memory-x2-split-llama_cpp-1"
    text = "128 GiB of host memory instead of 64 GiB, with llama.cpp with 69 of 80 layers on the CPU, loaded"
    assert best.change.description.startswith(text)
    assert (best.change.same_work, best.extra) == (True, pytest.approx(825.6))
    assert (best.gain or 0) > 6
    pairs = [one for one in advice().tried if one.change.key.startswith("memory-x") and one.change.edits[1:]]
    assert len(pairs) == 1, "the least one that is faster than anything without it"


def test_a_search_offers_what_is_free_before_what_is_bought() -> None:
    found = search_catalogue(known(), budget=6000)
    assert found.best is not None
    assert found.other is not None
    assert found.best.purchase - found.other.purchase == pytest.approx(825.6)
    assert found.other.speed > 5 * found.best.speed
    assert found.best.description[0] == "128 GiB of host memory"
    assert [one.rank for one in found.front] == sorted(one.rank for one in found.front)
    assert found.front[-1] is found.other
    assert found.simulated < 20 < found.outcomes["cannot be among the best"]


@pytest.mark.parametrize(("extra", "bought"), [(826, "128 GiB of host memory"), (825, "batch 1 per GPU")])
def test_what_is_spent_beyond_the_machine_is_what_is_bought(extra: float, bought: str) -> None:
    """A drive that is there and no longer used is money that has been spent."""
    found = search_catalogue(known(), extra=extra)
    assert found.best is not None
    assert found.best.description[0] == bought
    (section,) = searched(found, budget=None, service=())
    assert f"at most {extra:,} USD beyond the present machine" in section.sentences[0]


def test_other_programs_are_tried_where_the_scenario_has_no_tier_of_its_own() -> None:
    """A DGX H100 has no tier "nvme", and its GPUs hold the weights together."""
    ways = [one for one in families(Evaluator(desktop()), "dgx-h100", load_costs()) if one.program]
    assert {one.storage[0].edits[0].path for one in ways} == {("strategy", "weights")}
    assert {one.storage[0].description for one in ways} == {""}
    edits = joined_edits((ways[0].platform, *ways[0].storage))
    found = [one.program.replacing(Evaluator(desktop()).changed_by(*edits)) for one in ways if one.program]
    assert "vllm" in [change.key for change in found if change]


def test_a_service_level_that_nothing_keeps_names_what_is_nearest() -> None:
    """It is found without a simulation of all that miss it by more."""
    found = search_catalogue(known(), service=[parse_service("tpot=1ms", InferenceResult)])
    fastest = search_catalogue(known(), objective="latency")
    assert (found.best, found.front) == (None, ())
    assert found.nearest is not None
    assert fastest.other is not None
    nearest, best = (one.result.metrics()["tpot_s"] for one in (found.nearest, fastest.other))
    assert nearest == best, "by what is asked"
    assert found.simulated < 10
