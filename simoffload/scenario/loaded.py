"""A scenario that was read and resolved, and the plans that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from simoffload.documents import Document, Edit, edited, quoted, suggest
from simoffload.errors import InputError, Problem
from simoffload.hardware import Machine, Platform
from simoffload.hardware.changes import spelled
from simoffload.hardware.links import memory_warnings
from simoffload.limits import keep, limited, now_doing
from simoffload.models import ModelShape
from simoffload.scenario.cache import ScenarioCache
from simoffload.scenario.schema import Scenario
from simoffload.strategies import Plan, Strategy, strategy_for
from simoffload.strategies.base import TierChoice
from simoffload.strategies.placement import Placement

__all__ = [
    "READ_TIER",
    "RESIDENT",
    "LoadedScenario",
    "other_work",
    "placement_of",
    "storage_name",
    "tier_name",
]

T = TypeVar("T")


@dataclass(frozen=True)
class LoadedScenario:
    """A scenario with everything it refers to, checked and resolved."""

    scenario: Scenario
    document: Document
    """What was read, overrides applied and a ds_config in place of its path."""
    model: ModelShape
    machine: Machine
    remarks: tuple[str, ...] = ()
    """What the user should know of how it came about."""
    cache: ScenarioCache = field(default_factory=ScenarioCache, repr=False, compare=False)
    """What it was built with, for others that are like it."""

    @property
    def name(self) -> str:
        """The scenario's name."""
        return str(self.document.data["name"])

    def on(self, target: str) -> LoadedScenario:
        """The same work elsewhere; InputError if the machine has no such tier.

        Elsewhere are the weights, or the checkpoints of a scenario of checkpoints; of training
        ``weights+optimizer`` says both. "gpu" and "cpu" mean the tiers "hbm" and "dram". "resident" is no
        place but another strategy, which edits the whole section: a whole copy in each GPU, without ZeRO.
        Raises PlacementError, an InputError, where the strategy has no meaning on a tier.
        """
        strategy = self.scenario.strategy
        if target == RESIDENT:
            edits = strategy.resident()
        else:
            edits = strategy.retarget(placement_of(target, self.machine), self.machine)
        changed = self._resolved(edited(self.document, edits))
        return replace(
            changed, remarks=(*changed.remarks, *_kind_changed(strategy, changed.scenario.strategy))
        )

    def changed(self, *edits: Edit) -> Document:
        """The document with edits made to it.

        Profiles are named ``kind/id`` in edits; where the document has one by its id, it goes on so.
        """
        document = self.document
        for path, value in edits:
            section, *inner = path
            if section == "profiles" and inner:
                inner[0] = spelled(document.data.get("profiles") or {}, str(inner[0]))
            document = edited(document, [Edit((section, *inner), value)])
        return document

    def edited(self, *edits: Edit) -> LoadedScenario:
        """The scenario with edits, resolved anew: every question about a changed scenario begins here.

        Numbers of profiles that the changed machine does not have any more are left out. Raises InputError.
        """
        return self._resolved(self._possible(*edits))

    def platform(self, *edits: Edit) -> Platform:
        """Its platform with edits; raises InputError for one that cannot be."""
        return self.cache.platform(self._possible(*edits))

    def _possible(self, *edits: Edit) -> Document:
        changed, own = self.changed(*edits), self.document.data.get("profiles") or {}
        if not own:
            return changed
        uses = self.cache.platform(changed, changed=False).profiles
        has = {name for use in uses for name in (use.id, f"{use.kind}/{use.id}")}
        kept = {name: one for name, one in changed.data["profiles"].items() if name in has or name not in own}
        return edited(changed, [Edit(("profiles",), kept)], in_place=True)

    def _resolved(self, document: Document) -> LoadedScenario:
        from simoffload.scenario.loading import resolve

        return replace(resolve(document, cache=self.cache), remarks=self.remarks)

    @property
    def places(self) -> tuple[str, str]:
        """Tiers of the weights (or of the checkpoints) and of the optimizer; "" where there is none."""
        try:
            weights, optimizer = self.scenario.strategy.places(self.machine)
        except InputError:
            return "", ""
        return weights, optimizer or ""

    @limited
    def plan(self) -> Plan:
        """Apply the strategy; InputError, with its place in the file, for what DeepSpeed would refuse.

        Raises WorkLimitError beyond one of the scenario's limits.
        """
        keep(self.scenario.engine.limits)
        now_doing("planning")
        workload, strategy = self.scenario.workload, self.scenario.strategy
        if workload.kind not in strategy.serves:
            raise self._mismatch()
        plan = self._checked(lambda: strategy.plan(self.model, workload, self.machine))
        self._checked(lambda: plan.memory_stages)  # counted in a pass in which DeepSpeed may lack buffers
        options = self.scenario.checkpoint
        if options is None:
            return plan
        saving = self._checked(lambda: plan.saving(options))
        if saving is None:
            text = f"checkpoints of {strategy.kind} are not modelled; leave the section out"
            raise InputError([self.document.problem(("checkpoint",), text, at_key=True)])
        return saving

    def exports(self) -> dict[str, Any]:
        """Configuration files with which real programs do what is simulated, content by name.

        Of ZeRO the complete ds_config.json; empty where there is nothing to configure. Raises what
        :meth:`plan` raises.
        """
        return self.scenario.strategy.exports(self.plan())

    @property
    def warnings(self) -> tuple[str, ...]:
        """About how it came about, the host's memory, and hosts that do nothing; beyond those of the plan."""
        memory = memory_warnings(self.machine.host, self.machine.inputs())
        return (*self.remarks, *memory, *self._idle_hosts)

    @property
    def _idle_hosts(self) -> tuple[str, ...]:
        machine, gpus = self.machine, self.scenario.strategy.gpus
        used = machine.nodes_of(gpus)
        if used >= machine.nodes:
            return ()
        text = (
            f"{machine.nodes - used} of {machine.nodes} hosts are idle, and counted in prices, power and rent"
        )
        taken = f"with {machine.gpus_per_node} GPU(s) each, {gpus} rank(s) take {used}"
        return (f"{text} all the same: {taken}; set nodes: {used}, or strategy.ranks: {machine.gpus}",)

    def link_warnings(self, plan: Plan) -> tuple[str, ...]:
        """Devices in use that are faster than the links that they are behind."""
        named = (self.scenario.checkpoint, self.scenario.dataset)
        return self.machine.overruns({*plan.tiers, *(one.tier for one in named if one is not None)})

    def _mismatch(self) -> InputError:
        *others, last = strategy_for(self.scenario.workload.kind)
        known = f"{', '.join(others)} or {last}" if others else last
        work = self.scenario.workload.kind
        text = f"{self.scenario.strategy.kind} is not for a workload of {work}; use {known}"
        return InputError([self.document.problem(("strategy", "kind"), text)])

    def _checked(self, action: Callable[[], T]) -> T:
        strategy, gpus = self.scenario.strategy, self.machine.gpus
        if strategy.gpus > gpus:
            more = f" with {strategy.gpus} GPUs" if strategy.gpus > strategy.ranks else ""
            text = (
                f"{strategy.ranks} ranks{more}, but the platform has {gpus} GPU(s); lower it or raise nodes"
            )
            raise InputError([self.document.problem(("strategy", "ranks"), text)])
        try:
            return action()
        except InputError as error:
            raise InputError(self._placed(problem) for problem in error.problems) from None

    def _placed(self, problem: Problem) -> Problem:
        """Give a problem that names only a key the place of that key in the document."""
        if problem.path:
            return problem
        return self.document.problem(tuple(problem.key.split(".")), problem.message)


def _kind_changed(before: Strategy, after: Strategy) -> tuple[str, ...]:
    if before.kind == after.kind:
        return ()
    text = f"strategy.kind is {after.kind} here, not {before.kind}: every GPU holds a whole copy, and nothing"
    text = f"{text} else that the strategy says counts; compare --strategy FILE does that with any strategy"
    return text, *other_work(before, after)


def other_work(before: Strategy, after: Strategy) -> tuple[str, ...]:
    """What makes the work of another strategy other work, on as many GPUs."""
    differences = []
    if before.trains != after.trains:
        differences.append(
            f"strategy.kind {after.kind} trains {after.trains} here, not {before.trains}: other work"
        )
    if before.gpus == after.gpus and before.replicas != after.replicas:
        now, then = _batches(after.replicas), _batches(before.replicas)
        differences.append(f"{after.gpus} GPUs work on {now} here, on {then} before: another amount of work")
    return tuple(differences)


def _batches(batches: int) -> str:
    """ "one batch", "2 batches side by side"."""
    return "one batch" if batches == 1 else f"{batches} batches side by side"


_ALIASES = {"gpu": "hbm", "cpu": "dram", "ram": "dram"}
RESIDENT = "resident"
"""Not a tier: a whole copy in each GPU."""


def tier_name(name: str, machine: Machine, key: str) -> str:
    """The machine's name for a tier; "gpu", "cpu" and "ram" are understood. InputError if there is none."""
    known = _ALIASES.get(name.lower(), name)
    if known in machine.tiers:
        return known
    raise _no_tier("tier", name, machine, tuple(machine.tiers), key)


def storage_name(name: str, machine: Machine, key: str) -> str:
    """The same for what must be on storage. Raises InputError."""
    storage = tuple(tier.name for tier in machine.tiers.values() if tier.kind not in {"hbm", "dram"})
    if name in storage:
        return name
    raise _no_tier("storage tier", name, machine, storage, key)


def _no_tier(what: str, name: str, machine: Machine, tiers: tuple[str, ...], key: str) -> InputError:
    has = ", ".join(tiers) or "none"
    message = f'no {what} {quoted(name)} on platform "{machine.platform}" (has: {has}){suggest(name, tiers)}'
    return InputError.at(key, message)


READ_TIER: Mapping[TierChoice, Callable[[str, Machine, str], str]] = {
    "any": tier_name,
    "storage": storage_name,
}
"""What reads the name of a tier, by which tiers may be named."""


def placement_of(target: str, machine: Machine) -> Placement:
    """The tiers of ``weights`` or ``weights+optimizer``, in the machine's names.

    Raises InputError if the machine has no such tier.
    """
    if target == RESIDENT:
        return Placement(RESIDENT, "hbm")
    weights, plus, optimizer = target.partition("+")
    return Placement(
        tier_name(weights, machine, "strategy.weights"),
        tier_name(optimizer, machine, "strategy.optimizer") if plus else None,
    )
