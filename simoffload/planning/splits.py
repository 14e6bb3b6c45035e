"""Search for the best division of the weights between GPUs and offload, under every strategy and format."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from simoffload.bisection import first_with_room
from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.serving import class_of, in_format, stored_as, weight_formats
from simoffload.results import Change, TierUse, peak_uses
from simoffload.strategies import Strategy, strategy_for
from simoffload.strategies.held import memory_stages
from simoffload.strategies.tunables import Tunable, tier_paths
from simoffload.workload import Inference


class Division(NamedTuple):
    """A Division is one way to divide the weights between GPUs and other tiers, which the machine decides how
    far to go."""

    kind: str
    """Kind of the strategy that divides them."""
    gpus: int
    format: str
    """Name of the format of the weights; "" for the scenario's own."""
    position: int
    """Position among what the strategy offers (``Strategy.instead``)."""

    def most(self, evaluator: Evaluator) -> Change | None:
        """Return the division with the most weights on the GPUs that fits, None if none does.

        Only memory is calculated: a division with more weights on the GPUs is not slower.
        """
        model = stored_as(evaluator.scenario, self.format)
        for tunable in next(islice(_offers(evaluator, self, model), self.position, None), ()):
            change = _most(evaluator, tunable, model)
            if change is not None:
                break
        else:
            return None
        key = "-".join(filter(None, (f"split-{self.kind}-{self.gpus}", change.key)))
        change = change._replace(key=key)
        return in_format(evaluator, change, self.format) if self.format else change


def divisions(evaluator: Evaluator) -> Iterator[Division]:
    """Yield the divisions for each strategy of inference, number of GPUs and format of the weights: on the
    GPUs of the scenario, and on all of its machine."""
    if not isinstance(evaluator.workload, Inference):
        return
    for kind in strategy_for("inference"):
        for gpus in dict.fromkeys((evaluator.strategy.gpus, evaluator.scenario.machine.gpus)):
            for name in ("", *weight_formats(evaluator.scenario, class_of(kind))):
                one = Division(kind, gpus, name, 0)
                offers = _offers(evaluator, one, stored_as(evaluator.scenario, name))
                yield from (one._replace(position=at) for at, _ in enumerate(offers))


def splits(evaluator: Evaluator) -> Iterator[Change]:
    """Yield of each of ``divisions`` the one with the most weights on the GPUs that fits."""
    return (change for one in divisions(evaluator) if (change := one.most(evaluator)) is not None)


def of_other_strategies(evaluator: Evaluator) -> Iterator[Change]:
    """Yield for each strategy but the scenario's the first of ``splits``, with unchanged weights if they
    fit."""
    seen = {evaluator.strategy.kind}
    for one in divisions(evaluator):
        change = None if one.kind in seen else one.most(evaluator)
        if change is not None:
            seen.add(one.kind)
            yield change._replace(kind="strategy")


def _offers(evaluator: Evaluator, one: Division, model: ModelShape) -> Iterator[tuple[Tunable, ...]]:
    machine, work = evaluator.scenario.machine, evaluator.workload
    return class_of(one.kind).instead(evaluator.strategy, model, work, machine, one.gpus)


def _most(evaluator: Evaluator, tunable: Tunable, model: ModelShape) -> Change | None:
    """Return the first change of a division for which HBM is large enough, if the other tiers are, too: they
    need more with every part that is not on the GPUs."""
    values = tuple(tunable.values) if tunable.purpose == "division" else ()
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
        except InputError:
            return ()
        return peak_uses(memory_stages(plan), there.machine.tiers)

    def room(index: int) -> dict[str, float] | None:
        free = {use.tier: use.headroom / use.capacity for use in uses(index) if use.kind == "hbm"}
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
    if any(machine.tiers[one].is_storage for one in named if one in machine.tiers):
        return inf
    hosts = machine.nodes_of(strategy.gpus)
    return strategy.gpus * machine.tiers["hbm"].capacity + hosts * machine.tiers["dram"].capacity


def _strategy(tunable: Tunable, value: Any) -> Strategy:
    """Return the strategy that a change of a tunable writes."""
    section = next(edit.value for edit in tunable.change(value).edits if edit.path == ("strategy",))
    return class_of(section["kind"]).model_validate(section)
