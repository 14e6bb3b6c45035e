"""A scenario with everything resolved: its plan, its edits, its placements and the names of its tiers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, get_args

from simoffload.documents import Document, Edit, candidates, edited, either, named, quoted
from simoffload.errors import InputError, Problem
from simoffload.hardware import Machine, Platform, memory_warnings, spelled
from simoffload.limits import keep, limited, now_doing
from simoffload.models import Dtype, ModelShape
from simoffload.scenario.cache import ScenarioCache
from simoffload.scenario.overrides import with_its_slots
from simoffload.scenario.schema import Scenario
from simoffload.strategies import Plan, Strategy, strategy_for
from simoffload.strategies.held import state_tiers
from simoffload.strategies.tunables import RESIDENT, Placement, Placements, TierChoice, moving, placements_of
from simoffload.units import plural
from simoffload.workload import Inference

T = TypeVar("T")


@dataclass(frozen=True)
class LoadedScenario:
    """A scenario that was checked, with everything that it refers to."""

    scenario: Scenario
    document: Document
    """The content of the file with overrides applied and the content of a ds_config instead of its path."""
    model: ModelShape
    machine: Machine
    remarks: tuple[str, ...] = ()
    """Remarks for the user about how the scenario was derived from another one."""
    cache: ScenarioCache = field(default_factory=ScenarioCache, repr=False, compare=False)
    """The cache that it was built with, which its variants share."""

    @property
    def name(self) -> str:
        """The name of the scenario in reports."""
        return str(self.document.data["name"])

    def on(self, target: str) -> LoadedScenario:
        """Return the same work with the offloaded data on another tier.

        ``target`` is the tier of the weights (or of the checkpoints, where they are the work); in training
        ``weights+optimizer`` names both tiers. "gpu" and "cpu" mean the tiers "hbm" and "dram". "resident" is
        not a tier but another strategy, a complete copy in each GPU without ZeRO, which replaces the section
        ``strategy``. Raises InputError if the machine has no such tier, and its subclass PlacementError if
        the strategy cannot use it.
        """
        strategy = self.scenario.strategy
        edits = moving(strategy, placement_of(target, self.machine), self.machine)
        changed = self._resolved(edited(self.document, edits))
        return replace(
            changed, remarks=(*changed.remarks, *_kind_changed(strategy, changed.scenario.strategy))
        )

    def changed(self, *edits: Edit) -> Document:
        """Return the document with edits.

        Edits name profiles ``kind/id``; a profile that the document names by its id keeps that name.
        """
        document = self.document
        for path, value in edits:
            section, *inner = path
            if section == "profiles" and inner:
                inner[0] = spelled(document.data.get("profiles") or {}, str(inner[0]))
            document = edited(document, [Edit((section, *inner), value)])
        return document

    def edited(self, *edits: Edit) -> LoadedScenario:
        """Return the scenario with edits, resolved again.

        Changes to profiles and of PCIe generations that the new machine does not have are dropped. Raises
        InputError.
        """
        return self._resolved(self._possible(*edits))

    def platform(self, *edits: Edit) -> Platform:
        """Return the platform with edits; raises InputError if they are not valid."""
        return self.cache.platform(self._possible(*edits))

    def _possible(self, *edits: Edit) -> Document:
        changed, own = self.changed(*edits), self.document.data.get("profiles") or {}
        if any(path == ("platform",) for path, _ in edits):
            changed = with_its_slots(changed, self.cache)
        if not own or all(changed.shares(key, self.document) for key in ("platform", "equipment")):
            return changed
        uses = self.cache.platform(changed, changed=False).profiles
        has = {name for use in uses for name in (use.id, f"{use.kind}/{use.id}")}
        kept = {
            name: one for name, one in changed.data["profiles"].items() if named(name, has) or name not in own
        }
        return edited(changed, [Edit(("profiles",), kept)], in_place=True)

    def _resolved(self, document: Document) -> LoadedScenario:
        from simoffload.scenario.loading import resolve

        return replace(resolve(document, cache=self.cache, similar=self), remarks=self.remarks)

    @property
    def placements(self) -> Placements:
        """Where the strategy keeps its states on the machine, and where else it can."""
        return placements_of(self.scenario.strategy, self.machine)

    @property
    def places(self) -> tuple[str, str]:
        """The tiers of the weights (or of the checkpoints) and of the optimizer; "" where there is none."""
        try:
            weights, optimizer = self.placements.now()
        except InputError:
            return "", ""
        return weights, optimizer or ""

    @limited
    def plan(self) -> Plan:
        """Return the plan of the strategy for this model, workload and machine.

        Raises InputError, with its place in the file, for settings that the real program would refuse, and
        WorkLimitError beyond one of the scenario's limits.
        """
        keep(self.scenario.engine.limits)
        now_doing("planning")
        workload, strategy = self.scenario.workload, self.scenario.strategy
        if workload.kind not in strategy.serves:
            raise self._mismatch()
        if self.model.quantization is not None and workload.kind != "inference":
            raise self._quantized_training()
        if workload.kind == "training":
            self.check_passes()
        if workload.kind != "checkpoint":
            self._check_arithmetic()
        plan = self._checked(lambda: strategy.plan(self.model, workload, self.machine))
        self._checked(lambda: plan.held)  # raises if DeepSpeed would run out of buffers
        options = self.scenario.checkpoint
        if options is None:
            return plan
        saving = self._checked(lambda: plan.saving(options))
        if saving is None:
            text = f"checkpoints of {strategy.kind} are not modelled; remove this section"
            raise InputError([self.document.problem(("checkpoint",), text, at_key=True)])
        return saving

    def check_passes(self) -> None:
        """Raise InputError for the training of a model with linear attention, which is not modelled."""
        if self.model.state_bytes and self.scenario.workload.kind == "training":
            text = (
                f"{self.model.name} has linear attention, of whose training neither time nor memory is "
                "modelled; inference is, with a lower bound of the time"
            )
            raise InputError([self.document.problem(("model",), text)])

    def _check_arithmetic(self) -> None:
        """Raise InputError for a data type in which the GPUs do not compute."""
        gpu, dtype = self.machine.accelerator, self.model.dtype
        rates = {name: getattr(gpu.compute, name, None) for name in get_args(Dtype)}
        if rates[dtype] is None:
            able = [name for name, rate in rates.items() if rate is not None]
            overflows = not self.model.traits.float16  # its numbers do not fit into float16
            has = either([name for name in able if not (overflows and name == "float16")])
            text = f"{gpu.id} does not support {dtype}; write {has}"
            raise InputError([self.document.problem(("model", "dtype"), text)])

    def check_positions(self) -> None:
        """Raise InputError for a context that a learned table of positions does not have."""
        most, work = self.model.learned_positions, self.scenario.workload
        if most is None or work.max_context <= most:
            return
        key, sizes = "sequence_length", f"sequence_length up to {most}"
        if isinstance(work, Inference):
            key = "prompt_length" if work.prompt_length >= most else "output_length"
            sizes = f"prompt_length + output_length up to {most + 1}"
        text = (
            f"a context of {work.max_context} tokens does not fit into the {most} learned positions of "
            f"{self.model.name}; use {sizes}, or a model whose positions are computed, such as llama-3.1-8b"
        )
        raise InputError([self.document.problem(("workload", key), text)])

    def exports(self) -> dict[str, Any]:
        """Return the configuration files with which real programs do what is simulated, by file name.

        For ZeRO this is the complete ds_config.json; empty if there is nothing to configure. Raises what
        :meth:`plan` raises.
        """
        return self.exports_of(self.plan())

    def exports_of(self, plan: Plan) -> dict[str, Any]:
        """Return the configuration files of a plan; none for what no program does."""
        return {} if plan.facts.hypothetical else self.scenario.strategy.exports(plan)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings beyond those of the plan: about model, renamed keys, edits, host memory, idle hosts."""
        memory = memory_warnings(self.machine.host, self.machine.inputs())
        return (
            *self.model.notes,
            *map(str, self.document.warnings),
            *self.remarks,
            *memory,
            *self._idle_hosts,
        )

    @property
    def _idle_hosts(self) -> tuple[str, ...]:
        machine, gpus = self.machine, self.scenario.strategy.gpus
        used = machine.nodes_of(gpus)
        if used >= machine.nodes:
            return ()
        idle = f"{machine.nodes - used} of {machine.nodes} hosts are idle"
        hosts = f"{plural(used, 'host')} with {plural(machine.gpus_per_node, 'GPU')} each"
        needed = f"{plural(gpus, 'rank')} {'needs' if gpus == 1 else 'need'} {hosts}"
        remedy = f"set nodes: {used}"
        if self.scenario.strategy.traits.gpu_keys == ("ranks",):
            remedy += f", or strategy.ranks: {machine.gpus}"
        return (f"{idle} but count in prices, power and rent: {needed}; {remedy}",)

    @property
    def context_warnings(self) -> tuple[str, ...]:
        """Warning about a context for which a model with computed positions was not made."""
        limit, work = self.model.max_position_embeddings, self.scenario.workload
        if limit is None or work.max_context <= limit:
            return ()
        needed = work.max_context
        return (f"context of {needed} tokens is more than the {limit} that {self.model.name} was made for",)

    def link_warnings(self, plan: Plan) -> tuple[str, ...]:
        """Return warnings about devices in use that are faster than the links in front of them."""
        named = (self.scenario.checkpoint, self.scenario.dataset)
        return self.machine.overruns({*state_tiers(plan), *(one.tier for one in named if one is not None)})

    def _quantized_training(self) -> InputError:
        """Return the error for a workload that changes or saves quantized weights."""
        text = (
            f"training with weights in {self.model.quantization} is not supported; write quantization: none, "
            "or for QLoRA strategy.lora.quantize: nf4"
        )
        return InputError([self.document.problem(("model", "quantization"), text)])

    def _mismatch(self) -> InputError:
        work = self.scenario.workload.kind
        known = either(strategy_for(work))
        text = f"{self.scenario.strategy.kind} is not for a workload of {work}; use {known}"
        return InputError([self.document.problem(("strategy", "kind"), text)])

    def _checked(self, action: Callable[[], T]) -> T:
        strategy, gpus = self.scenario.strategy, self.machine.gpus
        if strategy.gpus > gpus:
            more = f" with {strategy.gpus} GPUs" if strategy.gpus > strategy.ranks else ""
            has = f"the platform has {plural(gpus, 'GPU')}"
            text = f"{plural(strategy.ranks, 'rank')}{more}, but {has}; lower it or raise nodes"
            raise InputError([self.document.problem(("strategy", strategy.traits.gpu_keys[0]), text)])
        try:
            return action()
        except InputError as error:
            raise InputError(self._placed(problem) for problem in error.problems) from None

    def _placed(self, problem: Problem) -> Problem:
        """Add the position in the document to a problem that names only a key."""
        if problem.path:
            return problem
        return self.document.problem(tuple(problem.key.split(".")), problem.message)


def _kind_changed(before: Strategy, after: Strategy) -> tuple[str, ...]:
    if before.kind == after.kind:
        return ()
    text = f"strategy.kind is {after.kind} here, not {before.kind}: every GPU holds a complete copy, and no"
    text = f"{text} other setting of the strategy applies; compare --strategy FILE accepts any strategy"
    return text, *other_work(before, after)


def other_work(before: Strategy, after: Strategy) -> tuple[str, ...]:
    """Return remarks about how the work of another strategy differs from that of ``before``."""
    differences = []
    trains, trained = after.description.trains, before.description.trains
    if trains != trained:
        differences.append(
            f"strategy.kind {after.kind} trains {trains} here, not {trained}, so the work differs"
        )
    if before.gpus == after.gpus and before.replicas != after.replicas:
        now, then = _batches(after.replicas), _batches(before.replicas)
        differences.append(
            f"{after.gpus} GPUs work on {now} here, on {then} before, so the amount of work differs"
        )
    return tuple(differences)


def _batches(batches: int) -> str:
    """Return the number of batches as "one batch" or "2 batches side by side"."""
    return "one batch" if batches == 1 else f"{batches} batches side by side"


_ALIASES = {"gpu": "hbm", "cpu": "dram", "ram": "dram"}


def canonical_target(target: str) -> str:
    """Return a target of ``--on`` with the machine's names instead of aliases: "hbm+dram" for "gpu+cpu"."""
    platform, colon, tiers = target.rpartition(":")
    names = (_ALIASES.get(name.lower(), name) for name in tiers.split("+"))
    return f"{platform}{colon}{'+'.join(names)}"


def tier_name(name: str, machine: Machine, key: str) -> str:
    """Return the machine's name for a tier; "gpu", "cpu" and "ram" are aliases. Raises InputError."""
    meant = named(_ALIASES.get(name.lower(), name), machine.tiers)
    if len(meant) == 1:
        return meant[0]
    raise _no_tier("tier", name, machine, tuple(machine.tiers), key)


def storage_name(name: str, machine: Machine, key: str) -> str:
    """Return the name of a tier that must be on storage. Raises InputError if it is not."""
    storage = tuple(tier.name for tier in machine.tiers.values() if tier.is_storage)
    meant = named(name, storage)
    if len(meant) == 1:
        return meant[0]
    raise _no_tier("storage tier", name, machine, storage, key)


def _no_tier(what: str, name: str, machine: Machine, tiers: tuple[str, ...], key: str) -> InputError:
    synonyms = {"hbm": "hbm (or gpu)", "dram": "dram (or cpu)"}
    has = ", ".join(synonyms.get(tier, tier) for tier in tiers) or "none"
    message = (
        f'no {what} {quoted(name)} on platform "{machine.platform}" (has: {has}){candidates(name, tiers)}'
    )
    return InputError.at(key, message)


READ_TIER: Mapping[TierChoice, Callable[[str, Machine, str], str]] = {
    "any": tier_name,
    "storage": storage_name,
}
"""The function that checks the name of a tier, by which tiers are valid."""


def placement_of(target: str, machine: Machine) -> Placement:
    """Return the placement for ``weights`` or ``weights+optimizer``, with the machine's names of tiers.

    Raises InputError if the machine has no such tier.
    """
    if target == RESIDENT:
        return Placement(RESIDENT, "hbm")
    weights, plus, optimizer = target.partition("+")
    return Placement(
        tier_name(weights, machine, "strategy.weights"),
        tier_name(optimizer, machine, "strategy.optimizer") if plus else None,
    )
