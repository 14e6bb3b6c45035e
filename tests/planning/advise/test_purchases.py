"""The search through the catalogue finds what is best, within what was asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import product
from typing import NoReturn

import pytest

from simoffload.documents import Edit
from simoffload.errors import InputError, WorkLimitError
from simoffload.extensions.purchases import search as purchases
from simoffload.extensions.purchases.search import (
    Frontier,
    SimulatedPurchase,
    families,
    joined_edits,
    limits_of,
    search_catalogue,
)
from simoffload.extensions.purchases.search_report import searched
from simoffload.planning import evaluator
from simoffload.planning.advise import advise
from simoffload.planning.advise.options import drives, options_of
from simoffload.planning.compare import compare
from simoffload.planning.costs import load_costs
from simoffload.planning.economics import economics
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.service_levels import parse_service
from simoffload.results.capacity import Change
from simoffload.results.inference import InferenceResult
from simoffload.scenario import LoadedScenario, read_scenario
from simoffload.simulation import Scope, fit, simulate
from tests.planning.advise.conftest import BATCHES, SPACE, STORAGE_BOUND, TIERS, batch, family, loaded, tier

REFUSED = (family(tier("nowhere")), family(tier("elsewhere")))


@pytest.fixture
def scenario() -> LoadedScenario:
    return loaded(STORAGE_BOUND)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[LoadedScenario]:
    """A catalogue of fifteen purchases; everything that is simulated to the end."""
    monkeypatch.setattr(purchases, "families", lambda *_: SPACE)
    done: list[LoadedScenario] = []

    def recorded(one: LoadedScenario, *, scope: Scope, **_: object) -> object:
        done.extend([one] if scope == "all" else [])
        return simulate(one, scope=scope)

    monkeypatch.setattr(evaluator, "simulate", recorded)
    return done


def dominated(point: SimulatedPurchase, others: tuple[SimulatedPurchase, ...]) -> bool:
    """Whether another one is at least as cheap and as fast, and one of both more."""
    return any(
        (one.purchase <= point.purchase and one.rate > point.rate)
        or (one.purchase < point.purchase and one.rate >= point.rate)
        for one in others
    )


def everything(scenario: LoadedScenario) -> Iterator[tuple[float, float]]:
    """Purchase and rate of each of the fifteen, simulated."""
    for storage, size in product(TIERS, BATCHES):
        changed = scenario.edited(*tier(storage).edits, *batch(size).edits)
        result = simulate(changed)
        yield economics(changed, result).purchase or math.inf, 1 / (result.unit_s or math.inf)


def test_the_front_is_what_nothing_beats_although_few_are_simulated(
    scenario: LoadedScenario, simulated: list[LoadedScenario]
) -> None:
    found = search_catalogue(scenario)
    assert found.combinations == 15
    assert len(simulated) - 1 <= len(found.points) <= 5, "and the scenario itself"
    assert found.outcomes["cannot be among the best"] == 15 - len(found.points)
    points = list(everything(scenario))
    best = [
        (price, rate)
        for price, rate in points
        if not any(p <= price and r >= rate and (p, r) != (price, rate) for p, r in points)
    ]
    assert [(one.purchase, one.rate) for one in found.front] == sorted(set(best))
    assert found.best is not None
    assert found.best.rate == max(rate for _, rate in points)


def test_what_is_too_dear_is_no_answer(scenario: LoadedScenario, simulated: list[LoadedScenario]) -> None:
    """Neither the appliance of 500,000 nor the file server of 150,000."""
    found = search_catalogue(scenario, budget=250_000)
    assert max(point.purchase for point in found.points) == 200_000
    assert all(one.scenario.strategy.model_dump()["weights"] in TIERS[:3] for one in simulated)
    nothing = search_catalogue(scenario, budget=5)
    assert nothing.outcomes == {"simulated": 0, "exceed the budget": 15}


@pytest.mark.usefixtures("simulated")
def test_a_service_level_is_kept(scenario: LoadedScenario) -> None:
    """The first token within a time that the file server does not reach."""
    levels = [parse_service("ttft=1s", InferenceResult), parse_service("tokens_per_s=500", InferenceResult)]
    found = search_catalogue(scenario, service=levels)
    for point in found.points:
        result = point.result.metrics()
        assert point.meets is (result["ttft_s"] <= 1 and result["tokens_per_s"] >= 500)
    assert found.front
    assert all(point.meets for point in found.front)
    nothing = search_catalogue(scenario, service=[parse_service("ttft=1us", InferenceResult)])
    assert (nothing.best, nothing.front) == (None, ())
    assert nothing.nearest is not None
    assert nothing.nearest.result.metrics()["ttft_s"] == min(
        simulate(scenario.edited(*tier("hbm").edits, *batch(size).edits)).ttft_s for size in BATCHES
    )


@pytest.mark.usefixtures("simulated")
def test_the_cheapest_for_its_work_is_the_best_if_asked_for(scenario: LoadedScenario) -> None:
    found = search_catalogue(scenario, objective="cost", service=[parse_service("ttft=1s", InferenceResult)])
    fitting = [point for point in found.points if point.meets]
    assert found.best is not None
    assert _per_token(found.best) == min(map(_per_token, fitting))


def _per_token(point: SimulatedPurchase) -> float:
    cost = point.economics.metrics()["cost_per_million_tokens"]
    assert cost is not None
    return cost


def test_where_everything_is_refused_there_is_no_best(
    scenario: LoadedScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purchases, "families", lambda *_: REFUSED)
    found = search_catalogue(scenario)
    assert (found.best, found.front, found.points) == (None, (), ())
    assert found.outcomes["are refused by the program or the machine"] == 6, "each once"


def test_what_comes_to_the_same_scenario_is_simulated_once(
    scenario: LoadedScenario, simulated: list[LoadedScenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The platform that the scenario has anyway, with as many ranks."""
    there = Change("hardware", "its own", (Edit.at("platform", "dgx-a100"), Edit.at("strategy.ranks", 8)))
    spaces = {None: SPACE, "dgx-a100": tuple(one._replace(platform=there) for one in SPACE)}
    monkeypatch.setattr(purchases, "families", lambda _, name, *__: spaces[name])
    found = search_catalogue(scenario, platforms=["dgx-a100"])
    assert (found.combinations, found.outcomes["are equal to others"] > 0) == (30, True)
    assert len(simulated) - 1 <= len(found.points), "none of the points twice"


@pytest.mark.usefixtures("simulated")
def test_without_prices_there_is_no_front_and_nothing_within_a_budget() -> None:
    scenario = read_scenario("zero-inference-2022/opt-30b", overrides=["workload.output_length=2"])
    found = search_catalogue(scenario)
    assert found.missing == ("host/dgx2-1.5tb", "accelerator/v100-32g-sxm")
    assert found.front == ()
    assert found.best is not None
    assert math.isinf(found.best.purchase)
    dear = search_catalogue(scenario, budget=1e9)
    assert (dear.best, len(dear.points)) == (None, 0)
    assert "exceed the budget" not in dear.outcomes
    assert dear.outcomes["have a part without a price, which no budget allows"] > 0


def test_an_unknown_platform_names_near_ones(scenario: LoadedScenario) -> None:
    with pytest.raises(InputError, match='did you mean "dgx-h100"'):
        search_catalogue(scenario, platforms=["dgx-h10"])


def choices(scenario: LoadedScenario) -> Iterator[Change]:
    """Storage that can be chosen with the scenario's own program and format."""
    for one in families(Evaluator(scenario), None, load_costs()):
        yield from (choice for choice in one.storage if one.program is None and not choice.quality)


def offers(scenario: LoadedScenario) -> list[str]:
    return [choice.description for choice in choices(scenario)]


def test_the_shipped_catalogue_has_what_is_sold(scenario: LoadedScenario) -> None:
    description = offers(scenario)
    assert description[0] == "storage unchanged"
    assert "RAID0 of 8 x solidigm-ps1010-7.68tb" in description
    assert not [word for word in description if " of 16 x " in word], "a DGX A100 has eight bays"
    assert not [word for word in description if "azure" in word], "parts of rented machines"
    assert "2 x ddn-ai400x2" in description


@pytest.mark.parametrize("budget", [None, 250_000.0, 1.0])
@pytest.mark.usefixtures("simulated")
def test_what_became_of_the_combinations_adds_up_to_all(
    scenario: LoadedScenario, budget: float | None
) -> None:
    found = search_catalogue(scenario, budget=budget)
    data = found.to_dict()
    assert sum(found.outcomes.values()) == found.combinations == 15
    assert data["outcomes"] == found.outcomes
    assert data["simulated"] == len(found.points) == found.outcomes["simulated"]
    counts = ", ".join(f"{number} {text}" for text, number in found.outcomes.items())
    (section,) = searched(found, budget=budget, service=())
    assert counts in section.sentences
    assert "all simulated" not in " ".join(section.sentences)


def _storage_for(platform: str, *overrides: str) -> tuple[list[str], tuple[str, ...]]:
    """What can be bought for a platform, in words, and what is said about it."""
    there = (f"platform={platform}", "strategy.ranks=1", "strategy.weights=dram", *overrides)
    bought = read_scenario("ddn/bloom-7b1", overrides=list(there))
    return offers(bought), limits_of(bought, None, load_costs())


def test_nothing_is_bought_that_a_desktop_cannot_take() -> None:
    """One M.2 slot and no rack: no array, no server; its own drive and file server stay."""
    description, said = _storage_for("rtx-4090-desktop")
    assert description == [
        "storage unchanged",
        "weights on hbm",
        "weights on dram",
        "weights on nvme",
        "weights on nfs",
        "a whole copy of the model in each GPU, without ZeRO",
    ]
    assert said == (
        "arrays that cannot be attached are left out: rtx-4090-desktop has 1 M.2 slot",
        "servers and filesystems are left out: rtx-4090-desktop stands on a desk, without a rack",
    )
    arrays = [word for word in _storage_for("xinnor-workstation")[0] if "RAID" in word]
    assert arrays == ["RAID0 of 2 x generic-dramless-gen4-2tb"], "three M.2 slots"


def test_slots_and_place_that_are_not_stated_are_assumed_and_said() -> None:
    description, said = _storage_for("gh200")
    assert "RAID6 of 16 x micron-7450-pro-7.68tb, xiRAID" in description
    assert said == (
        "host/grace-480gb does not state its drive_slots: assumed that it has as many slots as needed",
    )
    description, said = _storage_for("lambda-vector-a6000")
    assert not [word for word in description if "RAID" in word]
    assert (
        said[0] == "host/lambda-vector-252gb does not state its drive_slots: assumed that it has 1 M.2 slot"
    )


def test_a_server_is_reached_over_adapters_of_its_network() -> None:
    """File servers of a DGX H100 over Ethernet, though its InfiniBand adapters for storage are more."""
    scenario = read_scenario(
        "storage/llama-3.1-405b", overrides=["platform=dgx-h100", "strategy.weights=raid"]
    )
    through = {
        choice.description: edit.value["through"]
        for choice in choices(scenario)
        for edit in choice.edits
        if isinstance(edit.value, dict) and "through" in edit.value
    }
    assert through["1 x nfs-100gbe"] == ["eth0"]
    assert through["1 x nvmeof-rdma-4x-ps1010"] == through["1 x lustre-generic"] == ["storage0", "storage1"]


def test_a_second_drive_is_impossible_with_one_slot() -> None:
    desktop = read_scenario(
        "ddn/bloom-7b1", overrides=["platform=rtx-4090-desktop", "strategy.ranks=1", "strategy.weights=nvme"]
    )
    platform, costs = desktop.platform(), load_costs()
    found = [one.key for one in drives(platform, "nvme", costs)]
    assert found == ["nvme-samsung-990-pro-2tb"], "in place of the one that it has"
    workstation = read_scenario("xinnor/llama-1b").platform()
    barred = {one.key: one.barred for one in drives(workstation, "raid", costs)}
    assert barred == {f"raid-{number}-drives": "host/i5-14600k-96gb has 3 M.2 slots" for number in (4, 6)}


WHOLE = "a whole copy of the model in each GPU, without ZeRO"


def whole_copies(scenario: LoadedScenario, platform: str | None = None) -> tuple[Edit, ...]:
    """What changes for whole copies with twice the batch on a platform."""
    found = families(Evaluator(scenario), platform, load_costs())
    (one,) = (one for one in found if one.storage[0].description == WHOLE)
    return joined_edits((one.platform, *one.storage, one.batches[1][1]))


@pytest.mark.parametrize("config", ["", "strategy.ds_config.train_batch_size=32"])
def test_a_whole_copy_in_each_gpu_is_tried_as_compare_shows_it(config: str) -> None:
    """DeepSpeed's total batch does not hinder another batch."""
    scenario = loaded(STORAGE_BOUND, *filter(None, [config]))
    copies = scenario.edited(*whole_copies(scenario))
    doubled = scenario.edited(*Evaluator(scenario).batch(8))
    shown = compare(doubled, ["resident"]).results["resident"]
    assert simulate(copies).metrics() == shown.metrics()


def test_a_whole_copy_is_tried_on_all_gpus_of_another_machine() -> None:
    """A model that is too large for one GPU of 40 GiB, and not for one of 80."""
    scenario = loaded(STORAGE_BOUND, "model=opt-30b", "strategy.ranks=2", "workload.output_length=1")
    assert not fit(scenario.edited(*whole_copies(scenario))).fits
    there = scenario.edited(*whole_copies(scenario, "dgx-h100"))
    assert (there.scenario.strategy.kind, there.scenario.strategy.gpus) == ("transformers", 8)
    assert fit(there).fits


def test_memory_grows_to_what_the_board_takes() -> None:
    """128 GiB on a board of 192."""
    desktop = read_scenario(
        "ddn/bloom-7b1", overrides=["platform=rtx-4090-desktop", "strategy.ranks=1", "strategy.weights=dram"]
    )
    for one in families(Evaluator(desktop), None, load_costs()):
        assert [choice.description for choice in one.memory] == ["", "192 GiB of host memory"]


def test_nothing_is_put_into_a_machine_that_is_only_rented() -> None:
    rented = read_scenario("deepnvme/llama-3-70b")
    assert not [word for word in offers(rented) if "RAID" in word]
    keys = [one.key for one in options_of(Evaluator(rented), simulate(rented), load_costs())]
    assert not [key for key in keys if "drives" in key or "ps1010" in key]


def test_checkpoints_are_bought_storage_and_no_memory() -> None:
    scenario = read_scenario("checkpoint/mlperf-8b")
    description = offers(scenario)
    own = [f"checkpoints on {tier}" for tier in scenario.machine.targets]
    assert description[: 1 + len(own)] == ["storage unchanged", *own], "neither in HBM nor in host memory"


def test_the_scenario_itself_is_simulated_first(
    scenario: LoadedScenario, simulated: list[LoadedScenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it keeps already is said; what it cannot do is an error before anything else is simulated."""
    found = search_catalogue(scenario, service=[parse_service("ttft=1h", InferenceResult)])
    assert simulated[0] is scenario
    assert found.keeps
    assert not search_catalogue(scenario).keeps
    assert not search_catalogue(scenario, service=[parse_service("ttft=1us", InferenceResult)]).keeps
    tried: list[LoadedScenario] = []

    def hopeless(one: LoadedScenario, **_: object) -> NoReturn:
        tried.append(one)
        raise WorkLimitError("stopped")

    monkeypatch.setattr(evaluator, "simulate", hopeless)
    with pytest.raises(WorkLimitError, match="stopped"):
        search_catalogue(scenario)
    assert tried == [scenario]


def test_a_limit_holds_for_the_whole_search_which_answers_with_what_it_has(
    simulated: list[LoadedScenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each simulation alone would be within it."""
    scenario = loaded(STORAGE_BOUND, "engine.timeout=2 s")
    quick = evaluator.simulate

    def slow(one: LoadedScenario, *, scope: Scope, **_: object) -> object:
        if len(simulated) >= 2:
            time.sleep(0.5)
        return quick(one, scope=scope)

    monkeypatch.setattr(evaluator, "simulate", slow)
    monkeypatch.setattr(Frontier, "beats", lambda *_, **__: False)
    began = time.monotonic()
    found = search_catalogue(scenario)
    assert time.monotonic() - began < 4
    assert 1 <= found.simulated < 15
    assert found.outcomes["were not looked at"] > 0
    assert found.best is not None
    assert found.to_dict()["stopped"].startswith("stopped by engine.timeout (--timeout) after 2 s while ")


TUNED = """\
name: tuned
model: llama-3.1-8b
platform: rtx-4090-desktop
workload: {kind: training, batch_size: 1, sequence_length: 1024}
strategy:
  kind: deepspeed
  ranks: 1
  ds_config: {zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}}
"""
SHORT = ["workload.output_length=2"]


@pytest.mark.parametrize(
    "changed",
    [
        read_scenario("serving/llama-3.1-70b", overrides=SHORT),
        loaded(STORAGE_BOUND),
        loaded(TUNED),
    ],
    ids=lambda one: one.name,
)
def test_no_single_change_that_the_budget_pays_is_better(changed: LoadedScenario) -> None:
    known = Evaluator(changed)
    advice = advise(known)
    for extra in (500.0, 50_000.0):
        found = search_catalogue(known, extra=extra, advice=advice)
        assert sum(found.outcomes.values()) == found.combinations
        paid = [one for one in advice.tried if one.extra is not None and one.extra <= extra]
        assert paid
        for rank, best in enumerate((found.best, found.other or found.best)):
            singles = [one.result for one in paid if one.change.rank <= rank]
            fastest = min((found.objective.ranking(one) or math.inf for one in singles), default=0.0)
            if fastest:
                assert best is not None
                assert best.bought is not None
                assert best.bought <= extra
                assert 1 / best.speed <= fastest
