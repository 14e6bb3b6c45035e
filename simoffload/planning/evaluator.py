"""Evaluation of edited scenarios: all planning questions about a changed scenario are asked here."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

from simoffload.bisection import largest_that_fits, smallest_that_fits
from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import spelled
from simoffload.planning.question import QuestionOptions, loaded
from simoffload.results import Change, SimulationResult, TierUse
from simoffload.scenario import LoadedScenario, ScenarioSource
from simoffload.scenario.cache import canonical
from simoffload.simulation import Execution, Scope, remembering, simulate
from simoffload.simulation.capacity import memory_footprint
from simoffload.strategies import Plan, Strategy, base
from simoffload.strategies.base import Purpose, SizeEdits, Tunable
from simoffload.workload import Checkpointing, Workload

if TYPE_CHECKING:
    from simoffload.planning.economics import Economics

Counted = Callable[[int], tuple[Edit, ...]]
"""Returns the edits that make a count of something."""
_PASSES = 16
"""Number of passes that are remembered: those of the unchanged scenario, with which many changes agree."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """An Evaluation is a changed scenario with its result and its cost."""

    scenario: LoadedScenario
    result: SimulationResult
    economics: Economics


@dataclass
class _Record:
    """What was worked out of one document so far."""

    scenario: LoadedScenario | None = None
    uses: tuple[TierUse, ...] | None = None
    results: dict[Scope, SimulationResult] = field(default_factory=dict)


@dataclass
class _SharedWork:
    """What evaluators of a scenario and of it with changes share: all that was worked out, and the effort."""

    records: dict[str, _Record] = field(default_factory=dict)
    """Records of documents, by their text."""
    execution: Execution = field(default_factory=lambda: remembering(_PASSES))
    tried: dict[str, None] = field(default_factory=dict)
    """Descriptions of tried changes, in the order in which they were first tried."""
    barred: dict[str, None] = field(default_factory=dict)
    """Sentences about changes that would help and are impossible."""
    planned: int = 0
    """Number of scenarios whose memory was calculated."""


class Evaluator:
    """Answers what a scenario needs and how fast it is with edits, each once for all that ask.

    ``result`` is the result of the unchanged scenario, where it is known. Evaluators of a scenario and of it
    with changes (``changed_by``) share what they work out.
    """

    def __init__(
        self,
        scenario: LoadedScenario,
        *,
        result: SimulationResult | None = None,
        shared: _SharedWork | None = None,
    ) -> None:
        self.scenario = scenario
        self.shared = shared or _SharedWork()
        self._by_edits: dict[str, _Record] = {}
        unchanged = self._record()
        unchanged.scenario = scenario
        if result is not None:
            unchanged.results["all"] = result

    def _record(self, *edits: Edit) -> _Record:
        """Return the record of the document to which edits lead."""
        key = repr(edits)
        if key not in self._by_edits:
            document = self.scenario.changed(*edits)
            self._by_edits[key] = self.shared.records.setdefault(canonical(document.data), _Record())
        return self._by_edits[key]

    def same(self, *edits: Edit) -> Hashable:
        """Return a value that is equal for edits that lead to the same document."""
        return id(self._record(*edits))

    def changes_nothing(self, *edits: Edit) -> bool:
        """Return whether edits lead to the scenario as it is."""
        return self._record(*edits) is self._record()

    # -- simulations ----------------------------------------------------------------------------

    def edited(self, *edits: Edit) -> LoadedScenario:
        """Return the scenario with edits. Raises InputError for edits that lead to no scenario."""
        known = self._record(*edits)
        if known.scenario is None:
            known.scenario = self.scenario.edited(*edits)
        return known.scenario

    def answer(self, *edits: Edit, scope: Scope = "all") -> tuple[LoadedScenario, SimulationResult]:
        """Return the scenario with edits and its simulation, as far as the question needs it.

        Raises InputError for edits that the scenario, its machine or the program refuses, SimulationError if
        the engine cannot finish, and WorkLimitError beyond one of the scenario's limits.
        """
        scenario, results = self.edited(*edits), self._record(*edits).results
        found = results.get("all") or results.get(scope)
        if found is None:
            found = results[scope] = simulate(scenario, scope=scope, execution=self.shared.execution)
        return scenario, found

    def least(self, *edits: Edit) -> SimulationResult:
        """Return a result that no simulation with edits beats, with every decode step as short as the first.

        Raises what ``answer`` raises.
        """
        return self.answer(*edits, scope="first")[1]

    def timed(self) -> tuple[SimulationResult, float]:
        """Return the result of the unchanged scenario, and its ``compared_s`` [s].

        Raises InputError if it does not fit, and what ``answer`` raises.
        """
        _, result = self.answer()
        if result.compared_s is None:
            text = f"the scenario does not fit, so that it has no time to explain: {'; '.join(result.advice)}"
            raise InputError.at("", text, path=self.scenario.document.path)
        return result, result.compared_s

    # -- memory ---------------------------------------------------------------------------------

    @property
    def strategy(self) -> Strategy:
        """Strategy of the unchanged scenario."""
        return self.scenario.scenario.strategy

    @property
    def workload(self) -> Workload:
        """Workload of the unchanged scenario."""
        return self.scenario.scenario.workload

    @cached_property
    def plan(self) -> Plan:
        """Plan of the unchanged scenario."""
        return self.scenario.plan()

    @property
    def target(self) -> str:
        """Tiers of the weights, and of training of the optimizer, as in "dram+nvme"."""
        return "+".join(filter(None, (base.target(self.plan), base.optimizer_target(self.plan))))

    def tunables(self, purpose: Purpose) -> Iterator[Tunable]:
        """Yield the tunables of the unchanged scenario that have a purpose."""
        for one in self.strategy.tunables(self.scenario.machine, self.plan):
            if isinstance(one, Tunable) and one.purpose == purpose:
                yield one

    def changes(self, purpose: Purpose) -> Iterator[Change]:
        """Yield the changes of these tunables, which do not know how the scenario names its model."""
        for one in self.tunables(purpose):
            for change in one.changes:
                yield change._replace(edits=tuple(map(self._of_model, change.edits)))

    def _of_model(self, edit: Edit) -> Edit:
        """Return an edit of a key of the model in its form for the scenario, and any other as it is."""
        section, *keys = edit.path
        return self.model(str(keys[0]), edit.value) if section == "model" and len(keys) == 1 else edit

    def changed_by(self, *edits: Edit) -> Evaluator:
        """Return an evaluator of the changed scenario, to be changed further. Raises InputError."""
        return Evaluator(self.edited(*edits), shared=self.shared)

    def needs(self, *edits: Edit) -> tuple[TierUse, ...] | None:
        """Return what each tier must hold with these edits; None if they are refused."""
        known = self._counted(*edits)
        return None if isinstance(known, str) else known

    def refusal(self, *edits: Edit) -> str:
        """Return why these edits are refused; empty if they are not."""
        known = self._counted(*edits)
        return known if isinstance(known, str) else ""

    def _counted(self, *edits: Edit) -> tuple[TierUse, ...] | str:
        try:
            known = self._record(*edits)
            if known.uses is None:
                timed = next(iter(known.results.values()), None)
                known.uses = timed.capacity if timed else memory_footprint(self.edited(*edits))
                self.shared.planned += timed is None
            return known.uses
        except InputError as error:
            return error.problems[0].message

    def fits(self, *edits: Edit) -> bool:
        """Return whether all tiers are large enough with these edits, and the edits are not refused."""
        uses = self.needs(*edits)
        return uses is not None and all(use.fits for use in uses)

    def room(self, *edits: Edit) -> dict[str, float] | None:
        """Return the share of each tier that is free with these edits; None if they are refused."""
        uses = self.needs(*edits)
        return None if uses is None else {use.tier: use.headroom / use.capacity for use in uses}

    def _falls(self, *edits: Edit) -> bool:
        """Return whether more than these edits ask for may need less of a tier that is too small: page-locked
        memory is rounded to powers of two."""
        uses = self.needs(*edits) or ()
        return all(any(term.pinned for term in use.terms) for use in uses if not use.fits)

    def largest(self, edits: Counted, *, start: int, most: int) -> int | None:
        """Return the largest count up to ``most`` that fits; see ``largest_that_fits``."""
        return largest_that_fits(
            lambda count: self.room(*edits(count)),
            start=start,
            most=most,
            falls=lambda count: self._falls(*edits(count)),
        )

    def largest_batch(self, *, most: int) -> int | None:
        """Return the largest batch up to ``most`` that fits, of which every part has the size of now; smaller
        parts only where not even one such part fits."""
        unit = self.sizes.unit
        start = self._batch_size // unit
        parts = self.largest(lambda count: self.batch(count * unit), start=start, most=most // unit)
        if parts is None and unit > 1:
            return self.largest(self.batch, start=unit, most=unit)
        return None if parts is None else parts * unit

    def smallest(self, edits: Counted, *, start: int, most: int) -> int | None:
        """Return the smallest count from ``start`` on that fits; see ``smallest_that_fits``."""
        return smallest_that_fits(lambda count: self.room(*edits(count)), start=start, most=most)

    def trying(self, *description: str) -> None:
        """Record the descriptions of tried changes."""
        self.shared.tried |= dict.fromkeys(description)

    def bar(self, sentence: str) -> None:
        """Record why a change that would help is impossible."""
        self.shared.barred |= {sentence: None}

    # -- edits ----------------------------------------------------------------------------------

    def named(self, profile: str) -> str:
        """Return a profile ``kind/id`` as the scenario names it in its section ``profiles``."""
        return spelled(self.scenario.document.data.get("profiles") or {}, profile)

    def model(self, key: str, value: Any) -> Edit:
        """Return the edit that gives the model another value of one of its keys."""
        model = self.scenario.document.data["model"]
        if isinstance(model, str):  # a name alone has no keys
            return Edit(("model",), {"name": model, key: value})
        return Edit(("model", key), value)

    def in_format(self, name: str) -> int:
        """Return the size [B] of the weights in a format."""
        return self.edited(self.model("quantization", name)).model.weight_bytes

    def batch(self, count: int) -> tuple[Edit, ...]:
        """Return the edits that set the number of sequences per batch."""
        return self.sizes.batch(count)

    @cached_property
    def sizes(self) -> SizeEdits:
        """Edits to other sizes of the work of the unchanged scenario."""
        return self.strategy.sizes(self._batch_size)

    @property
    def _batch_size(self) -> int:
        assert not isinstance(self.workload, Checkpointing), "checkpoints have no batch"
        return self.workload.batch_size

    def spread(self, nodes: int, *, per_node: int) -> tuple[Edit, ...]:
        """Return the edits that set the number of hosts and of GPUs used on each."""
        return (Edit(("nodes",), nodes), *self.strategy.sizes().gpus(nodes * per_node))


EvaluatorSource = ScenarioSource | Evaluator
"""A scenario that is asked about, or an evaluator of it that may know some of the answer already."""


def evaluator_of(asked: EvaluatorSource, **machine: Unpack[QuestionOptions]) -> Evaluator:
    """Return the evaluator of a scenario, with what is named beside it (``loaded``); an evaluator is returned
    as it is. Raises InputError for a file that is no scenario."""
    return asked if isinstance(asked, Evaluator) else Evaluator(loaded(asked, **machine))
