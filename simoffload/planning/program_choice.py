"""The choice of a program: what each can do with the work, simulated, and which is the fastest."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from simoffload.documents import Edit, either, quoted
from simoffload.errors import InputError, WorkLimitError
from simoffload.limits import sharing
from simoffload.planning.alternatives import OtherProgram
from simoffload.planning.evaluator import Evaluator
from simoffload.progress import working_on
from simoffload.results import ProgramChoice, ProgramRate, SimulationResult
from simoffload.scenario import LoadedScenario
from simoffload.strategies import Placement, fields_of, suited_to
from simoffload.strategies.base import moving, offloaded_tiers, optimizer_target, placements_of, state_tiers
from simoffload.strategies.programs.best import Best, choice_in
from simoffload.units import plural
from simoffload.workload import Checkpointing

_OWN_KEYS = frozenset(Best.model_fields)
"""Keys of a choice, which no program is asked for."""
_COUNTS = frozenset({"num_gpus"})
"""Keys of programs that state a number of GPUs, which a choice keeps, as it keeps ``ranks``."""
_CLEARLY = 1.03
"""Gain from which a program is called faster than another: our choice."""


def choose(scenario: LoadedScenario) -> LoadedScenario:
    """Return a scenario that chooses its program under the fastest one (:func:`question.chosen`).

    All simulations together have the time of the scenario's limit. Raises WorkLimitError where one of the
    limits leaves no program.
    """
    with sharing(scenario.scenario.engine.timeout):
        return _chosen(scenario)


def _chosen(scenario: LoadedScenario) -> LoadedScenario:
    found = _Candidates(scenario, _Limit.of(scenario))
    fitting, limit = found.fitting(), found.limit
    best = _by_program([one for one in fitting if not one.hypothetical] or fitting)
    if not best and found.beyond:
        raise next(iter(found.beyond.values()))
    if not best:
        first = found.first()
        if limit.uses is not None and limit.uses not in state_tiers(first.plan()):
            title = first.scenario.strategy.traits.title or first.scenario.strategy.kind
            who, other = (title, "program") if limit.among else ("what people use", "tier")
            text = f"{who} keeps nothing on {limit.uses} here; name another {other}, or leave it out"
            raise InputError([scenario.document.problem(("strategy", "uses"), text)])
        return first
    without: ProgramRate | None = None
    if limit.text:
        free = _Candidates(scenario, limit.lifted(), evaluator=found.evaluator)
        real = [one for one in free.fitting() if not one.hypothetical]
        faster = [one for one in _by_program(real) if one.rate > best[0].rate * _CLEARLY]
        without = faster[0].program if faster else None
    programs = tuple(one.program for one in best)
    untried = tuple(title for title in found.beyond if title not in {one.title for one in programs})
    choice = ProgramChoice(programs, limit.text, without, limit.among, untried)
    return replace(best[0].scenario, choice=choice, remarks=scenario.remarks)


class _Limit(NamedTuple):
    """What a scenario names of the programs from which it chooses."""

    among: tuple[str, ...]
    uses: str | None
    weights: str | None
    optimizer: str | None
    stated: Mapping[str, Any]
    """Settings that the program must have."""

    @classmethod
    def of(cls, scenario: LoadedScenario) -> _Limit:
        strategy = choice_in(scenario.scenario.strategy)
        section = scenario.document.data["strategy"]
        stated = {key: value for key, value in section.items() if key not in _OWN_KEYS}
        return cls(strategy.among, strategy.uses, strategy.weights, strategy.optimizer, stated)

    def lifted(self) -> _Limit:
        """Return the limit to the same programs and number of GPUs, wherever their states are and whatever
        is set."""
        kept = {key: value for key, value in self.stated.items() if key in _COUNTS}
        return _Limit(self.among, None, None, None, kept)

    @property
    def text(self) -> str:
        """What limits the choice beside the names of programs, in words."""
        named = {"weights": self.weights, "optimizer": self.optimizer}
        placed = [f"{what} on {tier}" for what, tier in named.items() if tier]
        used = [f"states on {self.uses}"] if self.uses else []
        return " and ".join((*placed, *used, *(key for key in self.stated if key not in _COUNTS)))

    @property
    def places(self) -> bool:
        """Whether it names a tier."""
        return any((self.uses, self.weights, self.optimizer))

    def allows(self, scenario: LoadedScenario) -> bool:
        """Return whether a scenario has the settings, and its plan the states where they must be."""
        section = scenario.document.data["strategy"]
        if any(section.get(key) != value for key, value in self.stated.items()):
            return False
        if not self.places:
            return True
        plan = scenario.plan()
        return (
            self.weights in (None, *(offloaded_tiers(plan) or ("hbm",)))
            and self.optimizer in (None, optimizer_target(plan))
            and (self.uses is None or self.uses in state_tiers(plan))
        )


class _Way(NamedTuple):
    """One form of a program that fits, simulated."""

    scenario: LoadedScenario
    result: SimulationResult
    program: ProgramRate
    hypothetical: bool
    """Whether no program does it in this way."""

    @property
    def rate(self) -> float:
        """Units of work per second."""
        return 1 / self.result.unit_s if self.result.unit_s else 0.0


def _by_program(forms: Collection[_Way]) -> list[_Way]:
    """Return the fastest way of each program, the fastest first; of programs that are as fast within a few
    percent the one that was tried first."""
    best: dict[str, _Way] = {}
    for one in sorted(forms, key=lambda one: -one.rate):
        best.setdefault(one.program.kind, one)
    found = list(best.values())
    near = (one for one in forms if best[one.program.kind] is one and one.rate * _CLEARLY >= found[0].rate)
    first = next(near, None)
    return sorted(found, key=lambda one: one is not first)


def _counted(scenario: LoadedScenario) -> LoadedScenario:
    """Return a scenario that chooses its program with its numbers of GPUs, by default all, and sequences."""
    strategy, section = choice_in(scenario.scenario.strategy), scenario.document.data["strategy"]
    edits = [] if "ranks" in section else [Edit.at("strategy.ranks", scenario.machine.gpus)]
    if strategy.sequences is not None:
        edits.append(Edit.at("workload.batch_size", strategy.sequences))
    return scenario.edited(*edits) if edits else scenario


class _Candidates:
    """The ways to do the work of a scenario that chooses its program."""

    def __init__(
        self, scenario: LoadedScenario, limit: _Limit, *, evaluator: Evaluator | None = None
    ) -> None:
        scenario = _counted(scenario)
        self.scenario, self.limit = scenario, limit
        self.evaluator = evaluator or Evaluator(scenario)
        strategy, work = scenario.scenario.strategy, scenario.scenario.workload
        assert not isinstance(work, Checkpointing)
        self._gpus, self._sequences = strategy.ranks, work.batch_size * strategy.replicas
        self.beyond: dict[str, WorkLimitError] = {}
        """Programs, by name, of which a form was beyond a limit of the scenario."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the programs from which one is chosen."""
        work, model, machine = (
            self.scenario.scenario.workload.kind,
            self.scenario.model,
            self.scenario.machine,
        )
        return self.limit.among or suited_to(work, model, machine)

    def _has(self, kind: str) -> bool:
        """Return whether a program has all settings that are stated."""
        return self.limit.stated.keys() <= fields_of(kind, self.scenario.scenario.workload.kind)

    def first(self) -> LoadedScenario:
        """Return the scenario under the first program that has all settings, as it is by default, or
        with its states where they must be. Raises InputError where none has."""
        having = [kind for kind in self.kinds if self._has(kind)]
        if not having:
            keys = ", ".join(self.limit.stated)
            text = f"no program has {keys} together; name one with strategy.kind"
            if self.limit.among:
                text = f"{either(self.limit.among)} has no {keys}; remove it, or name another program"
            raise InputError([self.scenario.document.problem(("strategy",), text)])
        if self.limit.places:
            placed = (self.evaluator.edited(*edits) for kind in having for edits in self._placed(kind))
            there = next(filter(self._allowed, placed), None)
            if there is not None:
                return there
            if self.limit.optimizer is not None and self.limit.weights is None:
                text = f"{either(having)} cannot keep the optimizer on {quoted(self.limit.optimizer)}"
                raise InputError([self.scenario.document.problem(("strategy", "optimizer"), text)])
        plain = self.evaluator.edited(*self._plain(having[0]))
        if self.limit.weights is None:
            return plain
        named = Placement(self.limit.weights, self.limit.optimizer)
        return plain.edited(*moving(plain.scenario.strategy, named, plain.machine))

    def _allowed(self, scenario: LoadedScenario) -> bool:
        """Return whether a scenario can be planned, with its states where they must be."""
        with suppress(InputError):
            return self.limit.allows(scenario)
        return False

    def fitting(self) -> list[_Way]:
        """Return all that fit and are where they must be, simulated."""
        found: dict[Hashable, _Way] = {}
        for kind in self.kinds:
            if self._has(kind):
                working_on(f"choosing a program: {kind}")
                for edits in self._forms(kind):
                    way = self._way(kind, edits)
                    if way is not None:
                        found.setdefault(self.evaluator.same(*edits), way)
        return list(found.values())

    def _way(self, kind: str, edits: tuple[Edit, ...]) -> _Way | None:
        with suppress(InputError):
            strategy = self.evaluator.edited(*edits).scenario.strategy
            if strategy.gpus > self._gpus or not self.evaluator.fits(*edits):
                return None
            if not self.limit.allows(self.evaluator.edited(*edits)):
                return None
            title = strategy.traits.title or kind
            try:
                there, result = self.evaluator.answer(*edits, scope="first")
            except WorkLimitError as error:
                self.beyond.setdefault(title, error)
                return None
            plan = there.plan()
            where = "+".join(offloaded_tiers(plan))
            rate = result.metrics().get("tokens_per_s")
            return _Way(
                there, result, ProgramRate(kind, title, rate, edits, where), bool(plan.facts.hypothetical)
            )
        return None

    def _forms(self, kind: str) -> Iterator[tuple[Edit, ...]]:
        """Yield the forms of a program: the places of its states, and what it offers itself."""
        yield from self._placed(kind)
        yield from self._offered(kind)

    def _offered(self, kind: str) -> Iterator[tuple[Edit, ...]]:
        one = OtherProgram(kind, self._gpus, "")
        divided = (one._replace(division=at) for at, _ in enumerate(one.offers(self.evaluator)))
        for way in chain((one,), divided):
            change = None
            with suppress(InputError):
                change = way.on(self.evaluator)
            if change is not None:
                yield tuple(self._stating(edit) for edit in change.edits)

    def _stating(self, edit: Edit) -> Edit:
        replaces = edit.path == ("strategy",)
        return edit._replace(value={**edit.value, **self.limit.stated}) if replaces else edit

    def _plain(self, kind: str) -> tuple[Edit, ...]:
        """Return the edits to a program with its defaults on all GPUs, and what is stated of it."""
        edits: tuple[Edit, ...] = (Edit(("strategy",), {"kind": kind, **self.limit.stated}),)
        strategy = self.evaluator.edited(*edits).scenario.strategy
        spread = strategy.sizes().gpus(self._gpus) if self._gpus != strategy.gpus else ()
        edits = (*edits, *(one for one in spread if one.path[1] not in self.limit.stated))
        strategy = self.evaluator.edited(*edits).scenario.strategy
        if not strategy.replicas:
            stated = ", ".join(self.limit.stated)
            text = f"{stated} need more than {plural(self._gpus, 'GPU')}; lower them, or raise --gpus"
            raise InputError([self.scenario.document.problem(("strategy",), text)])
        batch, rest = divmod(self._sequences, strategy.replicas)
        work = self.evaluator.workload
        if not rest and not isinstance(work, Checkpointing) and batch != work.batch_size:
            edits = (*edits, Edit.at("workload.batch_size", batch))
        return (*edits, *strategy.filled(self.scenario.model))

    def _placed(self, kind: str) -> Iterator[tuple[Edit, ...]]:
        """Yield a program with its states in each place that is allowed; of places on storage only where
        none in memory has room."""
        try:
            plain = self._plain(kind)
            strategy = self.evaluator.edited(*plain).scenario.strategy
        except InputError:
            return
        places = placements_of(strategy, self.scenario.machine)
        if len(places.possible) < 2:
            yield plain
            return
        near: tuple[int, int] | None = None
        for place in sorted(places.possible, key=self._distance):
            if near is not None and self._distance(place) > near and not self.limit.places:
                return
            if self.limit.weights not in (None, place.weights):
                continue
            if self.limit.optimizer not in (None, place.optimizer):
                continue
            edits = (*plain, *places.edits(place))
            if near is None and self.evaluator.fits(*edits):
                near = self._distance(place)
            yield edits

    def _distance(self, place: Placement) -> tuple[int, int]:
        """Return how far from the GPUs a place is: that of its farthest state, and of all together."""
        kinds = (self.scenario.machine.tiers[one] for one in place if one)
        each = [2 if one.row.is_storage else int(not one.row.is_gpu) for one in kinds]
        return max(each), sum(each)
