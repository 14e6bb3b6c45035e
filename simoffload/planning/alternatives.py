"""Alternatives for the work of a scenario: other tiers for its states, other formats, other programs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain, islice, takewhile
from math import inf
from typing import Any, NamedTuple

from simoffload.bisection import first_with_room
from simoffload.documents import Edit
from simoffload.errors import InputError, PlacementError
from simoffload.hardware import Machine
from simoffload.models import QUANTIZATIONS, ModelShape, quantized
from simoffload.planning.evaluator import Evaluator
from simoffload.results import (
    ADDED,
    Change,
    SimulationResult,
    TierUse,
    peak_uses,
    quality_of_cache,
    quality_of_weights,
)
from simoffload.scenario import LoadedScenario, Scenario
from simoffload.strategies import Strategy, strategy_for, strategy_of
from simoffload.strategies.base import RESIDENT, Placement, Tunable, memory_stages, moving, tier_paths
from simoffload.workload import Checkpointing, Inference, Training

ANSWERS_CHANGE = "(answers change)"
"""Fewer bits for each weight are another model, whose answers differ."""
ROOM = 0.9
"""Share of a memory that weights may take, beside a cache and buffers: our choice."""


def only_with(evaluator: Evaluator, purchase: Change, tiers: Sequence[str]) -> Iterator[Change]:
    """Yield a purchase with each way to do the work that is not possible without it."""
    there = evaluator.changed_by(*purchase.edits)
    placed = (one for one in places(evaluator.scenario, tiers) if there.fits(*one.edits))
    for change in (*placed, *(one.replacing(there) for one in other_programs(evaluator))):
        if change is not None and not evaluator.fits(*change.edits):
            yield change._replace(
                kind=purchase.kind,
                description=f"{purchase.description}, with {change.description}",
                edits=(*purchase.edits, *change.edits),
                key=f"{purchase.key}-{change.key}",
            )


# -- on other tiers -------------------------------------------------------------------------------


def places(scenario: LoadedScenario, tiers: Sequence[str]) -> Iterator[Change]:
    """Yield other tiers for the weights or checkpoints and, in training, for the optimizer."""
    strategy = scenario.scenario.strategy
    for placement in _placements(scenario, tiers):
        description = placement_words(scenario, placement, ranks=strategy.ranks)
        edits = moving(strategy, placement, scenario.machine)
        yield Change("placement", description, edits, key=f"on-{placement}")


def resident(scenario: LoadedScenario) -> Iterator[Change]:
    """Yield a full copy of all states on each GPU, instead of states that are partitioned or offloaded."""
    strategy = scenario.scenario.strategy
    if not strategy.description.on_gpus:
        return
    with suppress(PlacementError):
        if edits := moving(strategy, Placement(RESIDENT), scenario.machine):
            without = f", without {strategy.traits.method}" if strategy.traits.method else ""
            description = f"a whole copy of the model in each GPU{without}"
            yield Change("placement", description, edits, key="on-resident")


def _placements(scenario: LoadedScenario, tiers: Sequence[str]) -> Iterator[Placement]:
    """Yield placements of the strategy that differ from the present one."""
    names = scenario.machine.tiers
    possible = scenario.placements.possible
    if not isinstance(scenario.scenario.workload, Training):
        yield from (one for one in possible if one.weights not in tiers and one.optimizer is None)
        return
    weights, now = tiers[0], tiers[-1]
    pairs = [Placement(weights, tier) for tier in names]
    pairs += [Placement("hbm", "dram"), *(Placement(tier, tier) for tier in names)]
    yield from (pair for pair in dict.fromkeys(pairs) if pair in possible and pair != (weights, now))


def placement_words(scenario: LoadedScenario, placement: Placement, *, ranks: int) -> str:
    """Describe a placement: "weights on dram, optimizer on nvme", with what the strategy adds to it."""
    work, (weights, optimizer) = scenario.scenario.workload, placement
    description = f"{'checkpoints' if isinstance(work, Checkpointing) else 'weights'} on {weights}"
    description += f", optimizer on {optimizer}" if optimizer else ""
    return description + scenario.placements.caveat(weights, ranks)


# -- in other formats -----------------------------------------------------------------------------


def formats(evaluator: Evaluator) -> Iterator[Change]:
    """Yield the formats with fewer bits in which the strategy's program loads weights, for inference with a
    model that is not quantized."""
    unchanged = Change("precision", "", key="format")
    for name in formats_of(evaluator, evaluator.strategy):
        change = _in_format(evaluator, unchanged, name)
        yield change._replace(description=f"weights {change.description}")


def with_formats(evaluator: Evaluator, change: Change) -> Iterator[Change]:
    """Yield a change, and the same with the weights in each format that its program loads."""
    yield change
    kinds = (edit.value["kind"] for edit in change.edits if edit.path == ("strategy",))
    kind = next(kinds, evaluator.strategy.kind)
    for name in formats_of(evaluator, class_of(kind)):
        yield _in_format(evaluator, change, name)


def _in_format(evaluator: Evaluator, change: Change, name: str) -> Change:
    """Return a change with the weights stored in a format with fewer bits."""
    return change._replace(
        description=", ".join(filter(None, (change.description, f"stored as {name} {ANSWERS_CHANGE}"))),
        edits=(evaluator.model("quantization", name), *change.edits),
        key="-".join(filter(None, (change.key, name))),
        quality=quality_of_weights(name),
    )


def formats_of(evaluator: Evaluator, strategy: Strategy | type[Strategy]) -> tuple[str, ...]:
    """Return the names of formats that may replace the data type of the weights, or the format of a release
    that the program does not load; of the ``smaller`` ones of the program the largest for which memory has
    room, where it has none for any other."""
    scenario, traits = evaluator.scenario, strategy.traits
    if scenario.scenario.workload.kind != "inference":
        return ()
    loaded = scenario.model.quantization is not None and traits.loads(scenario.model)
    names = () if loaded else traits.formats
    if not traits.smaller:
        return names
    room = ROOM * memory_of(scenario.machine, scenario.machine.gpus)
    if min((evaluator.in_format(one) for one in names), default=scenario.model.weight_bytes) <= room:
        return names
    return (*names, *islice((one for one in traits.smaller if evaluator.in_format(one) <= room), 1))


def class_of(kind: str, work: str = "inference") -> type[Strategy]:
    """Return the strategy of a registered kind for a kind of workload."""
    strategy = strategy_of(kind, work)
    assert strategy is not None
    return strategy


def memory_of(machine: Machine, gpus: int) -> int:
    """Return the size [B] of the memory of some GPUs and of their hosts, once where it is the same."""
    hbm, dram = (machine.tiers[one] for one in ("hbm", "dram"))
    return (0 if hbm.pool else gpus * hbm.capacity) + machine.nodes_of(gpus) * dram.capacity


# -- by other programs ----------------------------------------------------------------------------


class OtherProgram(NamedTuple):
    """An OtherProgram is one way to do the work of inference: GPUs hold the weights, or these are
    divided between GPUs and other tiers, as far as the machine allows."""

    kind: str
    """Kind of the strategy that does it."""
    gpus: int
    format: str
    """Name of the format of the weights; "" for the scenario's own."""
    division: int | None = None
    """Position among the divisions that the strategy offers (``Strategy.instead``); None: no division."""

    def on(self, evaluator: Evaluator) -> Change | None:
        """Return the change to it, of a division to the one with the most weights on the GPUs that fits; None
        if GPUs cannot hold the weights or do so already, and if no division fits.

        Only memory is calculated: a division with more weights on the GPUs is not slower.
        """
        change = self._held(evaluator) if self.division is None else self._divided(evaluator)
        return _in_format(evaluator, change, self.format) if change and self.format else change

    def replacing(self, evaluator: Evaluator) -> Change | None:
        """Return the same change with what it keeps of the present strategy (``replaced``)."""
        change = self.on(evaluator)
        return None if change is None else replaced(evaluator, change)

    def model(self, evaluator: Evaluator) -> ModelShape:
        """Return the model of a scenario with its weights in the format."""
        model = evaluator.scenario.model
        if not self.format:
            return model
        if model.quantization is None:
            return quantized(model, QUANTIZATIONS[self.format])
        return evaluator.edited(evaluator.model("quantization", self.format)).model

    def offers(self, evaluator: Evaluator) -> Iterator[tuple[Tunable, ...]]:
        """Yield what the strategy offers for the work (``Strategy.instead``)."""
        machine, work, model = evaluator.scenario.machine, evaluator.workload, self.model(evaluator)
        return class_of(self.kind, work.kind).instead(evaluator.strategy, model, work, machine, self.gpus)

    def baseline(self, evaluator: Evaluator) -> tuple[Edit, ...]:
        """Return the edits by which it does the work without offloading; none if it does not."""
        offers = (one for one in chain.from_iterable(self.offers(evaluator)) if one.purpose == "baseline")
        return next((change.edits for one in offers for change in one.changes), ())

    def _held(self, evaluator: Evaluator) -> Change | None:
        edits = self.baseline(evaluator)
        section = next((one.value for one in edits if one.path == ("strategy",)), None)
        served = None if section is None else class_of(self.kind).model_validate(section)
        if served is None or (served == evaluator.strategy and not self.format):
            return None
        where = f"divided among {served.gpus} GPUs" if served.gpus > 1 else "in the HBM of one GPU"
        title = served.traits.title or self.kind
        return Change("placement", f"weights {where} ({title})", edits, key=self.kind)

    def _divided(self, evaluator: Evaluator) -> Change | None:
        model = self.model(evaluator)
        offered = next(islice(self.offers(evaluator), self.division, None), ())
        fitting = (_most(evaluator, one, model) for one in offered if one.purpose == "division")
        change = next(filter(None, fitting), None)
        if change is None:
            return None
        return change._replace(key="-".join(filter(None, (f"split-{self.kind}-{self.gpus}", change.key))))


def other_programs(evaluator: Evaluator) -> Iterator[OtherProgram]:
    """Yield the programs of ``in_gpus``, and then of ``divisions``."""
    return chain(in_gpus(evaluator), divisions(evaluator))


def in_gpus(evaluator: Evaluator) -> Iterator[OtherProgram]:
    """Yield for each strategy of inference and format of the weights that one GPU, or several together, hold
    the weights."""
    return _programs(evaluator, evaluator.strategy.gpus)


def divisions(evaluator: Evaluator) -> Iterator[OtherProgram]:
    """Yield the divisions of each strategy of inference, number of GPUs and format of the weights: on the
    GPUs of the scenario, and on all of its machine."""
    for one in _programs(evaluator, evaluator.strategy.gpus, evaluator.scenario.machine.gpus):
        yield from (one._replace(division=at) for at, _ in enumerate(one.offers(evaluator)))


def possible(evaluator: Evaluator, found: Iterable[OtherProgram]) -> Iterator[Change]:
    """Yield the changes to those of some programs that are possible."""
    return filter(None, (one.on(evaluator) for one in found))


def _programs(evaluator: Evaluator, *gpus: int) -> Iterator[OtherProgram]:
    """Yield each strategy of inference that offers to do the work of others, in each format; none where no
    GPU is used, as all of them need one."""
    possible = isinstance(evaluator.workload, Inference) and evaluator.strategy.description.on_gpus
    for kind in strategy_for("inference") if possible else ():
        own = takewhile(lambda one: one is not Strategy, class_of(kind).mro())
        if not any("instead" in vars(one) for one in own):  # it offers nothing, in whatever format
            continue
        names = ("", *formats_of(evaluator, class_of(kind)))
        yield from (OtherProgram(kind, number, name) for number in dict.fromkeys(gpus) for name in names)


def _most(evaluator: Evaluator, tunable: Tunable, model: ModelShape) -> Change | None:
    """Return the first change of a division for which HBM is large enough, if the other tiers are, too: they
    need more with every part that is not on the GPUs."""
    values = tuple(tunable.values)
    if not values:
        return None
    last, now, work = _strategy(tunable, values[-1]), evaluator.strategy, evaluator.workload
    assert isinstance(work, Inference)
    batch, rest = divmod(work.batch_size * now.replicas, last.replicas)
    # Another tier of its own is a placement, and its replicas must have equal parts of the sequences.
    if rest or (len(values) == 1 and type(last) is type(now)):
        return None
    batched = () if batch == work.batch_size else (Edit.at("workload.batch_size", batch),)
    there = evaluator.edited(*batched)

    @cache
    def uses(index: int) -> tuple[TierUse, ...]:
        """Return what the tiers need; nothing for what the strategy refuses."""
        try:
            plan = _strategy(tunable, values[index]).plan(model, there.scenario.workload, there.machine)
            return peak_uses(memory_stages(plan), there.machine.tiers)
        except InputError:
            return ()

    def room(index: int) -> dict[str, float] | None:
        free = {use.tier: use.headroom / use.capacity for use in uses(index) if use.row.is_gpu}
        return free or None

    if model.weight_bytes > _room_for(last, there.machine):
        return None  # which no division changes
    index = first_with_room(len(values), room)
    if index is None or not all(use.fits for use in uses(index)):
        return None
    change = tunable.change(values[index])
    return change._replace(edits=(*change.edits, *batched))


def _room_for(strategy: Strategy, machine: Machine) -> float:
    """Return the size [B] of the memory of a strategy's GPUs and hosts; without limit if it names storage."""
    named = (getattr(strategy, key, None) for key in tier_paths(type(strategy)))
    if any(machine.tiers[one].row.is_storage for one in named if one in machine.tiers):
        return inf
    return memory_of(machine, strategy.gpus)


def _strategy(tunable: Tunable, value: Any) -> Strategy:
    """Return the strategy that a change of a tunable writes."""
    section = next(edit.value for edit in tunable.change(value).edits if edit.path == ("strategy",))
    return class_of(section["kind"]).model_validate(section)


# -- what another program keeps -------------------------------------------------------------------


def replaced(evaluator: Evaluator, change: Change) -> Change:
    """Return a change of the strategy that keeps the key-value cache as it is, where the other program has
    such a cache and it fits as well, and otherwise states what becomes of it.

    Other numbers of GPUs, or of sequences on all of them, are stated, too. A change that leaves the strategy,
    or that is refused, is returned as it is.
    """
    if not any(edit.path == ("strategy",) for edit in change.edits):
        return change
    change = _with_cache(evaluator, change)
    try:
        there = evaluator.edited(*change.edits).scenario
    except InputError:
        return change
    description = ", ".join((change.description, *_differences(evaluator, change, there)))
    change = change._replace(description=description)
    stored = there.strategy.description.cache_format
    if stored == evaluator.strategy.description.cache_format:
        return change
    if change.same_work:
        change = change._replace(description=f"{description} {ANSWERS_CHANGE}")
    return change.of_quality(quality_of_cache(stored))


def _with_cache(evaluator: Evaluator, change: Change) -> Change:
    cache = evaluator.scenario.document.data["strategy"].get("kv_cache")
    edits = tuple(
        edit._replace(value={"kv_cache": cache, **edit.value}) if edit.path == ("strategy",) else edit
        for edit in change.edits
    )
    uses = evaluator.needs(*edits) if cache else None
    if uses is None or (evaluator.fits(*change.edits) and not all(one.fits for one in uses)):
        return change
    return change._replace(edits=edits, uses=uses if change.uses else ())


def _differences(evaluator: Evaluator, change: Change, there: Scenario) -> Iterator[str]:
    now, other = evaluator.strategy, there.strategy
    if "GPU" not in change.description and other.gpus != now.gpus:
        yield f"{other.gpus} GPU{'s' * (other.gpus > 1)} instead of {now.gpus}"
    sequences = [
        one.replicas * getattr(work, "batch_size", 0)
        for one, work in ((now, evaluator.workload), (other, there.workload))
    ]
    if "batch" not in change.description and sequences[0] != sequences[1]:
        yield f"{sequences[1]} sequences at once instead of {sequences[0]}"
    before, after = now.description, other.description
    if (after.cache, after.cache_format) != (before.cache, before.cache_format):
        yield f"key-value cache on {after.cache} instead of {before.cache}"


# -- without offloading ---------------------------------------------------------------------------


def without_offloading(
    known: Mapping[str, LoadedScenario], results: Mapping[str, SimulationResult]
) -> list[tuple[str, LoadedScenario]]:
    """Return the work of the scenarios that offload weights, done without offloading, by label."""
    found: dict[str, LoadedScenario] = {}
    for label, scenario in known.items():
        if results[label].refused or scenario.machine.row(scenario.places[0] or "hbm").is_gpu:
            continue
        for kind in strategy_for(scenario.scenario.workload.kind):
            name = in_place_of_target(label, kind, scenario)
            if name in found or name in known:
                continue
            evaluator = Evaluator(scenario)
            edits = OtherProgram(kind, evaluator.strategy.gpus, "").baseline(evaluator)
            if not edits:
                continue
            gpus = scenario.edited(*edits).scenario.strategy.gpus
            held = "one GPU holds the weights" if gpus == 1 else f"{gpus} GPUs hold the weights together"
            change = Change("placement", f"{ADDED}: {held}, without offloading", edits)
            change = replaced(evaluator, change)
            twin = scenario.edited(*change.edits)
            if not any(_same_work(twin, one) for one in (*known.values(), *found.values())):
                found[name] = replace(twin, remarks=(change.description,))
    return list(found.items())


def _same_work(one: LoadedScenario, other: LoadedScenario) -> bool:
    """Whether two scenarios differ in nothing but their names and descriptions."""
    keys = (one.document.data.keys() | other.document.data.keys()) - {"name", "description"}
    return all(one.document.data.get(key) == other.document.data.get(key) for key in keys)


def in_place_of_target(label: str, kind: str, scenario: LoadedScenario) -> str:
    """Return a label with a kind of strategy in place of the target at its end, or the kind alone if it has
    none, so that one baseline is added."""
    before, target = _TARGET.match(label).groups()  # type: ignore[union-attr]  # matches every text
    is_target = {*target.split("+")} <= {"resident", *scenario.machine.tiers}
    return f"{before}{kind}" if is_target else kind


_TARGET = re.compile(r"(.*?)([^ :]*)$", re.DOTALL)
"""The target in a label, after a platform or the name of a scenario."""
