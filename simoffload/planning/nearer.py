"""Memory of a machine that would do where everything that is compared is storage.

A comparison of storage to buy is beside the point if the weights fit into the memory of the host, or, with
fewer bits, into that of the GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter
from typing import Any

from simoffload.errors import InputError, SimulationError, WorkLimitError
from simoffload.limits import keep, limited, now_doing
from simoffload.planning.alternatives import in_gpus, in_place_of_target
from simoffload.planning.evaluator import Evaluator
from simoffload.progress import steps
from simoffload.results import ADDED, Change, SimulationResult, by_name
from simoffload.scenario import LoadedScenario
from simoffload.simulation import simulate
from simoffload.strategies.tunables import moving
from simoffload.units import format_bytes, format_number, format_seconds
from simoffload.workload import Checkpointing


@dataclass(frozen=True, kw_only=True)
class NearerPlace:
    """A NearerPlace holds what is compared in memory that the machine has, simulated."""

    label: str
    """Label of its row in the comparison, where that is asked for."""
    change: Change
    """The edits of the offers that lead to it; ``same_work`` is false for weights with fewer bits."""
    scenario: LoadedScenario
    result: SimulationResult
    fastest: str
    """Label of the fastest of the offers that it makes needless."""
    gain: float
    """Time on that offer divided by the time here (``SimulationResult.compared_by``)."""

    @property
    def text(self) -> str:
        """Return where it is, how much of that is filled, how fast it is, and whether answers change."""
        result = self.result
        filled = (use for use in result.capacity if use.tier in result.targets)
        room = ", ".join(
            f"{_size(use.needed)} of {_size(use.capacity)} {use.scope} ({use.tier})" for use in filled
        )
        time = f"{result.step_metric.column} {format_seconds(result.step_time_s or 0.0)}"
        faster = f"{format_number(self.gain)} times as fast as {self.fastest}"
        check = "" if self.change.same_work else ", but check the quality of its answers first"
        return f"{self.change.description}: {room}, {time}, {faster}{check}"

    def is_as(self, other: NearerPlace) -> bool:
        """Return whether two places are the same for the same work, whatever storage the offers have."""
        mine, theirs = ((one.change.key, one.scenario.machine.platform, one.result) for one in (self, other))
        return mine[:2] == theirs[:2] and mine[2].metrics() == theirs[2].metrics()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        change = by_name(self.change, "description same_work changes=edits")
        return {**by_name(self, "label fastest gain text"), **change, "metrics": self.result.metrics()}


def _size(count: int) -> str:
    return format_bytes(count, binary=True)


@dataclass
class NearerSearch:
    """A NearerSearch finds where the work of offers of storage would fit into memory of their machines."""

    keep_timelines: bool = False
    found: list[NearerPlace] = field(default_factory=list)
    stopped: str = ""
    """The limit that kept it from trying all places; empty if it tried them."""

    def run(
        self, offers: Mapping[str, LoadedScenario], results: Mapping[str, SimulationResult]
    ) -> NearerSearch:
        """Find places, within the limits of an offer for the whole search, and return the search itself.

        For each work, that is the fastest place with the same answers and, unless that is in the GPUs, the
        form of the weights with most bits that fits there; neither if it is slower than an offer. None unless
        all offers that have times are on storage, and for checkpoints, which must outlive the memory.
        """
        timed = {label: time for label in offers if (time := results[label].compared_s)}
        if all(_on_storage(offers[label]) for label in timed):
            try:
                self._search(offers, timed)
            except WorkLimitError as error:
                self.stopped = str(error)
        return self

    @limited
    def _search(self, offers: Mapping[str, LoadedScenario], timed: Mapping[str, float]) -> None:
        for label in steps(sorted(timed, key=timed.__getitem__), str):
            keep(offers[label].scenario.engine.limits)
            now_doing("looking for memory that would do")
            evaluator = Evaluator(offers[label])
            candidates = [one for one in _candidates(evaluator) if evaluator.fits(*one.edits)]
            same = [one for one in candidates if one.same_work]
            fewer = [one for one in candidates if not one.same_work]
            named = steps(same, attrgetter("description"))
            places = [one for each in named if (one := self._place(evaluator, each, label, timed[label]))]
            best = sorted(places, key=lambda one: -one.gain)[:1]
            if not any(one.result.targets[0] == "hbm" for one in places):
                named = steps(fewer, attrgetter("description"))
                fitting = (self._place(evaluator, each, label, timed[label]) for each in named)
                best += list(islice((one for one in fitting if one), 1))
            self.found += [one for one in best if not any(one.is_as(other) for other in self.found)]

    def _place(self, evaluator: Evaluator, change: Change, offer: str, time: float) -> NearerPlace | None:
        """Return a place with its simulation; None if it is slower, is refused or has too many operations."""
        label = in_place_of_target(offer, change.key, evaluator.scenario)
        try:
            scenario = evaluator.edited(*change.edits)
            scenario = replace(scenario, remarks=(f"{ADDED}: {change.description}",))
            result = simulate(scenario, keep_timelines=self.keep_timelines)
        except (InputError, SimulationError):
            return None
        except WorkLimitError as error:
            self.stopped = str(error)
            return None
        if not result.compared_s or result.compared_s > time:
            return None
        return NearerPlace(
            label=label,
            change=change,
            scenario=scenario,
            result=result,
            fastest=offer,
            gain=time / result.compared_s,
        )


def _on_storage(scenario: LoadedScenario) -> bool:
    """Return whether a scenario keeps anything but checkpoints on storage."""
    checkpoints = isinstance(scenario.scenario.workload, Checkpointing)
    return not checkpoints and any(tier in scenario.machine.targets for tier in scenario.places)


def _candidates(evaluator: Evaluator) -> Iterator[Change]:
    """Yield the placements of the strategy in memory, and the weights in the GPUs, those with most bits
    first."""
    strategy, machine = evaluator.strategy, evaluator.scenario.machine
    for one in evaluator.scenario.placements.possible:
        tiers = [tier for tier in one if tier is not None]
        if all(tier in {"hbm", "dram"} for tier in tiers):
            named = ("GPU memory" if tier == "hbm" else "host memory" for tier in dict.fromkeys(tiers))
            where = " and ".join(named)
            held = "the weights" if one.optimizer is None else "the weights and optimizer states"
            described = f"{where} would hold {held}"
            yield Change("placement", described, moving(strategy, one, machine), key=str(one))
    divided = filter(None, (one.replacing(evaluator) for one in in_gpus(evaluator)))
    yield from sorted(divided, key=lambda one: -evaluator.edited(*one.edits).model.weight_bytes)
