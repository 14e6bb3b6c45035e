"""Scenarios that are loaded: one file becomes checked parts, a machine, a model and a strategy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from simoffload.brief import named_values
from simoffload.documents import (
    SUFFIXES,
    Document,
    Edit,
    candidates,
    edited,
    either,
    exists,
    listing,
    named,
    plain_document,
    quoted,
    read_document,
    split_assignment,
    suggest,
    validate,
    without,
)
from simoffload.errors import InputError, PlacementError, Problem, shortened
from simoffload.extending import additions, at, found, missing_note, sections
from simoffload.hardware import (
    CPU,
    STORAGE_KINDS,
    Drives,
    GpuSlots,
    Library,
    Machine,
    Platform,
    in_hbm,
    installed_memory,
    load_platform,
    memory_warnings,
    platforms_for_more,
    platforms_with,
    spelled,
)
from simoffload.limits import keep, limited, now_doing
from simoffload.models import (
    GGUF,
    TIME_IS_A_BOUND,
    Dtype,
    ModelShape,
    ModelSpec,
    is_model,
    is_model_file,
    model_file,
    model_label,
    named_in_text,
    read_gguf,
    resembled_model,
    similar_models,
)
from simoffload.results import ProgramChoice
from simoffload.scenario.cache import ScenarioCache
from simoffload.scenario.schema import (
    EngineOptions,
    Scenario,
    overridden,
    renamed,
    usual_kind_of,
    with_its_slots,
)
from simoffload.shipped import shipped_folder
from simoffload.strategies import BEST, Plan, Strategy, fields_of, strategy_for, strategy_in, strategy_of
from simoffload.strategies.base import (
    RESIDENT,
    Description,
    MovablePart,
    Placement,
    Placements,
    TierChoice,
    WorkloadKind,
    moving,
    placements_of,
    state_tiers,
    tier_paths,
)
from simoffload.units import plural
from simoffload.workload import Inference, Training

# -- A machine by its parts ------------------------------------------------------------------------
# A GPU, memory and drives that are named instead of a platform.


_NEW = {"at": "nvme", "through": "server"}
"""Names of tiers that are added, by how they are attached."""


_COUNTED = re.compile(r"([1-9][0-9]?) ?[xX×] ?([a-zA-Z0-9].+)")
"""A number of GPUs and what they are, as people write them: 2x4090."""


class MachineParts(NamedTuple):
    """Parts that replace those of a platform, or that choose one; None stands for what is not named."""

    gpu: str | None = None
    """Id of the accelerator in every slot that has a GPU."""
    gpus: int | None = None
    """Number of GPUs that are used; with 0 the CPU computes everything."""
    memory: str | None = None
    """Size of the host memory; as modules are sold, 64 GB are 64 GiB."""
    drive: str | None = None
    """Id of a drive, of an array, or of a server, which becomes a storage tier."""
    networked: bool = False
    """Whether a machine with a network is preferred, as several are asked for, or a drive behind one."""
    alone: bool = False
    """Whether the GPU is the only one of its machine, which it chose."""

    def platforms(self) -> list[str]:
        """Return the shipped platforms with enough of the GPU, the smallest first, or else those that take so
        many (``GpuSlots``); none if no GPU is named.

        Raises InputError for an unknown GPU, and for one that no platform has or takes.
        """
        if self.gpu is None:
            return []
        library, gpu = Library(), self._gpu(self.gpu)
        with _option("--gpu" if self.gpus in (None, 1) else "--gpus"):
            try:
                with suppress(InputError):
                    return self._connected(platforms_with(library, gpu, self.gpus or 1))
                return platforms_for_more(library, gpu, self.gpus or 1)
            except InputError as error:
                hint = "name a platform with --set platform=ID, which then gets this GPU"
                raise InputError.at("", f"{error.problems[0].message}; {hint}") from None

    @staticmethod
    def _gpu(name: str) -> str:
        """Return the id of a GPU. Raises InputError for an unknown one, and for several."""
        with _option("--gpu"):
            if counted := _COUNTED.fullmatch(name.strip()):
                number, one = counted.groups()
                raise InputError.at(
                    "", f"{quoted(name)} is a number of GPUs; write --gpu {one} --gpus {number}"
                )
            if "," in name:
                text = f"{quoted(name)} are several GPUs; name one (compare MODEL --platforms ID,ID compares "
                raise InputError.at("", f"{text}machines)")
            return Library().find(name, ("accelerator",)).profile.id

    def _connected(self, platforms: list[str]) -> list[str]:
        """Return platforms; those with a network first if that is preferred, or the drive is behind one."""
        if not (self.networked or (self.drive is not None and behind_network(self.drive))):
            return platforms
        return sorted(platforms, key=lambda name: not load_platform(name).profile.network)

    def of_card(self, scenario: LoadedScenario) -> MachineParts:
        """Return the parts for the machine that the GPU alone chose, which has one GPU if one is named, or if
        no number is and one holds the weights; for other work than inference it keeps all."""
        work = scenario.scenario.workload
        if scenario.machine.gpus == 1 or self.gpus not in (None, 1):
            return self
        if self.gpus is None:
            programs = (strategy_of(kind, work.kind) for kind in strategy_for(work.kind))
            counts = {key for one in programs if one for key in ("ranks", *one.traits.gpu_keys)}
            stated = [("nodes",), ("equipment", "gpus"), *(("strategy", key) for key in counts)]
            room = scenario.machine.tiers["hbm"].capacity - scenario.machine.accelerator.reserved_bytes
            fits = isinstance(work, Inference) and scenario.model.weight_bytes <= room
            if not fits or any(path in scenario.document.marks for path in stated):
                return self
        return self._replace(gpus=1, alone=True)

    def is_composed(self, platform: str | None) -> bool:
        """Return whether more GPUs are named than a shipped platform has, so that only ``edits`` sets their
        number."""
        if self.gpus is None or platform is None:
            return False
        with suppress(InputError):
            return self.gpus > len(load_platform(platform).profile.gpus)
        return False

    def edits(self, scenario: LoadedScenario) -> tuple[Edit, ...]:
        """Return the edits that give a scenario's machine these parts. Raises InputError."""
        return tuple(self._edits(scenario, scenario.platform()))

    def _edits(self, scenario: LoadedScenario, platform: Platform) -> Iterator[Edit]:
        if self.gpu is not None:
            gpu = self._gpu(self.gpu)
            if gpu != platform.profile.accelerator:
                yield Edit(("equipment", "accelerator"), gpu)
        if self.memory is not None:
            with _option("--memory"):
                size = installed_memory(self.memory)
            yield Edit(("profiles", f"host/{platform.host.id}", "memory_capacity"), size)
        if self.drive is not None:
            with _option("--drive"):
                yield self._storage(platform, Drives.read(Library(), self.drive))
        if (slots := self._slots(scenario)) is not None:
            yield from slots.edits
        if self.gpus == 0:
            yield from _without_gpus(scenario)
        elif self.gpus is not None and self.gpus != scenario.scenario.strategy.gpus:
            edits = scenario.scenario.strategy.sizes().gpus(self.gpus)
            if not edits:
                text = f"{scenario.scenario.strategy.kind} cannot use {self.gpus} GPUs"
                raise InputError.at("", text, path="--gpus")
            yield from edits

    def assumed(self, scenario: LoadedScenario) -> tuple[str, ...]:
        """Return what is assumed of a machine that is composed, as more GPUs than its platform has are asked
        for; nothing for others."""
        slots = None if self.alone else self._slots(scenario)
        if slots is None:
            return ()
        here = self._with_gpu(scenario)
        text = (
            f"the machine is composed: {here.profile.id} with {self.gpus} x {here.accelerator.id}, "
            f"{slots.about}; assumed are its host ({here.host.id}), slots, cooling and a power supply for "
            "all of them, and no copies between GPUs except through host memory"
        )
        return (text,)

    def _slots(self, scenario: LoadedScenario) -> GpuSlots | None:
        """Return where the GPUs are of which the platform's file has fewer; None if it has enough.

        Raises InputError if the platform does not take so many.
        """
        if self.gpus is None or scenario.scenario.nodes > 1:
            return None
        platform = self._with_gpu(scenario)
        if self.alone:
            return GpuSlots(platform.profile.gpus[:1], {}, "")
        if self.gpus <= len(platform.profile.gpus):
            return None
        slots = GpuSlots.of(platform, self.gpus)
        if slots is None:
            text = f"{platform.profile.id} does not take {self.gpus} GPUs; name the GPU without a platform, "
            text += "for a machine that does, or several machines (nodes)"
            raise InputError.at("", text, path="--gpus")
        return slots

    def _with_gpu(self, scenario: LoadedScenario) -> Platform:
        """Return the platform of a scenario with the GPU that is named."""
        if self.gpu is None:
            return scenario.platform()
        gpu = self._gpu(self.gpu)
        return scenario.platform(Edit(("equipment", "accelerator"), gpu))

    def _storage(self, platform: Platform, drives: Drives) -> Edit:
        """Return the edit that puts storage in the place of the first tier of its kind, or else of the first
        that is attached in its way, or adds a tier."""
        way = "at" if STORAGE_KINDS[drives.kind].local else "through"
        tiers = {one: tier for one, tier in platform.profile.tiers.items() if getattr(tier, way)}
        kinds = {one.id: one.kind for one in platform.profiles}
        of_kind = (one for one, tier in tiers.items() if kinds.get(tier.profile) == drives.kind)
        name = next(of_kind, next(iter(tiers), None))
        where = getattr(tiers[name], way) if name else ((CPU,) if way == "at" else platform.profile.nics)
        if not where:
            here, server = platform.profile.id, drives.profile
            text = f"{here} has no network adapter, over which {server} is reached; name a drive"
            raise InputError.at("", text)
        tier = drives.tier(tuple(where)) if way == "at" else {"profile": drives.profile, way: list(where)}
        return Edit(("equipment", "tiers", name or _NEW[way]), tier)


def _without_gpus(scenario: LoadedScenario) -> tuple[Edit, ...]:
    """Return the edits with which the CPU computes everything, under the program that can do so where it is
    yet to be chosen. Raises InputError for other programs."""
    strategy, work = scenario.scenario.strategy, scenario.scenario.workload.kind
    if strategy.traits.on_cpu:
        return strategy.sizes().gpus(0)
    able = {
        kind: one for kind in strategy_for(work) if (one := strategy_of(kind, work)) and one.traits.on_cpu
    }
    section = scenario.document.data["strategy"]
    among = section.get("among") or able
    kind = next((one for one in able if one in among), None) if strategy.kind == BEST else None
    if kind is None:
        titles = f"only {either([one.traits.title for one in able.values()])}" if able else "no program"
        text = f"0: {titles} does {work} on the CPU alone; give a number of GPUs"
        raise InputError.at("", text, path="--gpus")
    alone = able[kind].model_validate({"kind": kind}).sizes().gpus(0)
    return (Edit.at("strategy.among", [kind]), Edit.at("strategy.ranks", 1), *alone)


def behind_network(drive: str) -> bool:
    """Return whether a drive, an array or a server that is named is reached over a network."""
    with suppress(InputError):
        return not STORAGE_KINDS[Drives.read(Library(), drive).kind].local
    return False


@contextmanager
def _option(name: str) -> Iterator[None]:
    """Name the option where a problem names no file."""
    try:
        yield
    except InputError as error:
        raise InputError(one if one.path else one._replace(path=name) for one in error.problems) from None


# -- A scenario with everything resolved -----------------------------------------------------------
# Its plan, its edits, its placements and the names of its tiers.


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
    choice: ProgramChoice | None = field(default=None, repr=False, compare=False)
    """How its program was chosen; None if the scenario states it."""
    moved_part: str = ""
    """Name of the part of ``parts`` that ``on`` moved; "" for the weights, and where it moved nothing."""

    @property
    def name(self) -> str:
        """The name of the scenario in reports."""
        return str(self.document.data["name"])

    def __repr__(self) -> str:
        """Return what runs where: the model, the machine, the program and the work."""
        program, work = self.scenario.strategy.kind, self.document.data.get("workload", {})
        named = {"name": self.name, "model": self.model.name, "platform": self.machine.platform}
        return named_values(self, {**named, "program": program, **work})

    def on(self, target: str) -> LoadedScenario:
        """Return the same work with what is offloaded on another tier.

        ``target`` is the tier of the weights (or of the checkpoints, where they are the work); in training
        ``weights+optimizer`` names both tiers. ``part=tier`` says what moves: "weights", or one of ``parts``.
        Without a name, a part that is on a tier moves where the weights are in HBM (``offloaded``), but "hbm"
        is for the weights. "gpu" and "cpu" mean the tiers "hbm" and "dram". "resident" is not a tier but
        another strategy, a complete copy in each GPU without ZeRO, which replaces the section ``strategy``.
        Raises InputError if the machine has no such tier, and its subclass PlacementError if the strategy
        cannot use it.
        """
        part, tier = self.named(target)
        if part not in self.weights_called:
            return self._with_part(part, tier)
        strategy = self.scenario.strategy
        try:
            edits = moving(strategy, placement_of(tier, self.machine), self.machine)
        except PlacementError as error:
            raise PlacementError(self._naming_parts(error.problems)) from None
        changed = self._resolved(edited(self.document, edits))
        return replace(
            changed, remarks=(*changed.remarks, *_kind_changed(strategy, changed.scenario.strategy))
        )

    @property
    def parts(self) -> dict[str, MovablePart]:
        """What ``on`` can move beside the weights, by name: the cache, blocks of a connector, the data set,
        checkpoints of training."""
        sections = {name: getattr(self.scenario, name) for name in _OF_TRAINING}
        return dict(self.scenario.strategy.parts) | {
            name: MovablePart(section.tier, partial(_tier_edit, name), _OTHER_TIERS[name]["tier"])
            for name, section in sections.items()
            if section is not None
        }

    @property
    def weights_called(self) -> tuple[str, ...]:
        """Names of what the placements of the strategy are of; the first is usual."""
        saves = self.scenario.workload.kind == "checkpoint"
        return ("checkpoint", "weights") if saves else ("weights",)

    @property
    def offloaded(self) -> str:
        """Name of what a target moves that does not say it: the weights, unless they and the optimizer are in
        HBM and another part is not."""
        first, *_ = self.weights_called
        if any(tier and not in_hbm(tier) for tier in self.places):  # which may be of another platform
            return first
        return next((name for name, one in self.parts.items() if not in_hbm(one.tier)), first)

    def named(self, target: str) -> tuple[str, str]:
        """Return what a target moves, and the tiers. Raises InputError for what the scenario does not
        have."""
        part, equals, tier = target.rpartition("=")
        if not equals:
            named = canonical_target(tier)
            of_weights = named == RESIDENT or in_hbm(named) or "+" in tier
            return (self.weights_called[0] if of_weights else self.offloaded), tier
        known = (self.weights_called[0], *self.parts)
        if part not in (*known, *self.weights_called):
            has = ", ".join(known)
            text = f"{quoted(part)} is nothing that this scenario keeps on a tier (it has: {has})"
            raise InputError.at(target, f"{text}{suggest(part, known)}")
        return part, tier

    def _with_part(self, name: str, tier: str) -> LoadedScenario:
        """Return the scenario with one of its ``parts`` on another tier. Raises InputError."""
        part = self.parts[name]
        there = tier_name(tier, self.machine, name, part.choice)
        edits = part.edits(there) if there != part.tier else ()
        return replace(self._resolved(edited(self.document, edits)), moved_part=name)

    def _naming_parts(self, problems: Iterable[Problem]) -> list[Problem]:
        """Return the problems of a placement, of which the first says what else can be moved."""
        first, *rest = problems
        others = [f"{name}=TIER" for name in self.parts]
        also = f"; what can be elsewhere: {either(others)}" if others else ""
        return [first._replace(message=f"{first.message}{also}"), *rest]

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
        adapts = workload.kind == "training" and strategy.description.trains != Description().trains
        if self.model.quantization is not None and workload.kind != "inference" and not adapts:
            raise self._quantized_training()
        if workload.kind == "training":
            self.check_passes()
        if workload.kind != "checkpoint":
            self._check_arithmetic()
        if strategy.kind != BEST:
            self._check_drafting()
        plan = self._checked(lambda: strategy.plan(self.model, workload, self.machine))
        self._checked(lambda: plan.held)  # raises if DeepSpeed would run out of buffers
        for planned in self.additions("planned"):
            plan = self._checked(partial(planned, self, plan))
        return plan

    def additions(self, when: str, *, writes: bool = False) -> Iterator[Callable[..., Any]]:
        """Yield the functions that are called for what extensions add to a run, at a time that a field of
        ``Addition`` names: those for its sections, and if it ``writes`` to storage."""
        asked = {name for name in _OF_TRAINING if getattr(self.scenario, name) is not None}
        for one in additions().values() if asked or writes else ():
            place = getattr(one, when)
            if place and (not one.section or one.section in asked):
                yield at(place)

    def check_passes(self) -> None:
        """Raise InputError for the training of a model with linear attention, which is not modelled."""
        if self.model.state_bytes and self.scenario.workload.kind == "training":
            text = (
                f"{self.model.name} has linear attention, of whose training neither time nor memory is "
                "modelled; inference is, with a lower bound of the time"
            )
            raise InputError([self.document.problem(("model",), text)])

    def _check_drafting(self) -> None:
        """Raise InputError for speculative decoding that the program or the model does not have."""
        work, strategy = self.scenario.workload, self.scenario.strategy
        asked = work.speculation if isinstance(work, Inference) else None
        found, program = None, strategy.traits.title or strategy.kind
        if asked is not None and not strategy.traits.drafting.methods:
            known = (strategy_of(kind, work.kind) for kind in strategy_for(work.kind))
            able = (one.model_fields["kind"].default for one in known if one and one.traits.drafting.methods)
            text = f"{program} has no speculative decoding; remove it, or set strategy.kind to"
            found = "workload.speculation", f"{text} {either(sorted(able))}"
        elif asked is not None and isinstance(work, Inference):
            drafting, size = strategy.traits.drafting, work.batch_size
            found = drafting.problem(asked, self.model, size, program=program)
        elif self.model.draft_model is not None:
            text = "proposes tokens with a section workload.speculation only; add one, or remove it"
            found = "model.draft_model", text
        if found is not None:
            raise InputError([self.document.problem(tuple(found[0].split(".")), found[1])])

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
        """Return the configuration files of a plan; none for what no program does, or they do not say."""
        work, strategy = self.scenario.workload, self.scenario.strategy
        speculates = isinstance(work, Inference) and work.speculation is not None
        if plan.facts.hypothetical or (speculates and not strategy.traits.drafting.exported):
            return {}
        return strategy.exports(plan)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings beyond those of the plan: about model, renamed keys, edits, host memory, idle hosts."""
        memory, notes = memory_warnings(self.machine.host, self.machine.inputs()), self.model.notes
        known = self.scenario.strategy.traits.measured_updates
        return (
            *(one for one in notes if one != TIME_IS_A_BOUND or not known),
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
            f"weights in {self.model.quantization} are not trained; write quantization: none, or train "
            "adapters on them (QLoRA): quantization: nf4-dq with strategy.lora: {r: 16}"
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
    if before.kind in (after.kind, BEST):  # a choice was not stated
        return ()
    text = f"strategy.kind is {after.kind} here, not {before.kind}: every GPU holds a complete copy, and no"
    text = f"{text} other setting of the strategy applies; compare takes scenarios of any strategies"
    return text, *_other_work(before, after)


def _other_work(before: Strategy, after: Strategy) -> tuple[str, ...]:
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
    platform, colon, rest = target.rpartition(":")
    part, equals, tiers = rest.rpartition("=")
    names = (_ALIASES.get(name.lower(), name) for name in tiers.split("+"))
    return f"{platform}{colon}{part}{equals}{'+'.join(names)}"


def tier_name(name: str, machine: Machine, key: str, choice: TierChoice = "any") -> str:
    """Return the machine's name for a tier, which must be one of the ``choice``; "gpu", "cpu" and "ram" are
    aliases. Raises InputError."""
    tiers = [one.name for one in machine.tiers.values() if one.row.chosen_by(choice)]
    meant = named(_ALIASES.get(name.lower(), name), tiers)
    if len(meant) == 1:
        return meant[0]
    synonyms = {tier: f"{tier} (or {alias})" for alias, tier in reversed(_ALIASES.items())}
    has = ", ".join(synonyms.get(tier, tier) for tier in tiers) or "none"
    what = f"no {'tier' if choice == 'any' else 'storage tier'} {quoted(name)}"
    message = f'{what} on platform "{machine.platform}" (has: {has}){candidates(name, tiers)}'
    if name in machine.tiers and machine.tiers[name].row.is_storage:
        message = f"a program opens files there, and {quoted(name)} has none (with files: {has})"
    raise InputError.at(key, message)


def _tier_edit(section: str, tier: str) -> tuple[Edit, ...]:
    return (Edit((section, "tier"), tier),)


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


# -- loading ---------------------------------------------------------------------------------------
# A scenario file, a shipped scenario or a model's name becomes a resolved scenario.


ScenarioSource = LoadedScenario | str | Path | Mapping[str, Any]
"""A scenario, its content as a mapping, the path of its file, or the name of a shipped one."""
M = TypeVar("M", bound=BaseModel)

_OF_TRAINING: dict[str, TierChoice] = {"checkpoint": "files", "dataset": "storage"}
_OF_MACHINE = ("platform", "equipment", "profiles", "nodes")
_OTHER_TIERS: dict[str, Mapping[str, TierChoice]] = {
    name: {"tier": one} for name, one in _OF_TRAINING.items()
}
"""The tiers that a scenario names outside its strategy: which tiers are valid, by section and key."""


def list_scenarios() -> tuple[str, ...]:
    """Return the names of the shipped scenarios, as ``read_scenario`` accepts them."""
    return _names_in(shipped_folder("scenarios"))


@cache
def _names_in(folder: Path) -> tuple[str, ...]:
    return tuple(
        sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))
    )


def find_scenario(name: str) -> Path | None:
    """Return the file of a shipped scenario; None if there is none of that name."""
    meant = named(name, list_scenarios())
    return shipped_folder("scenarios") / f"{meant[0]}.yaml" if len(meant) == 1 else None


def gguf_document(source: str) -> Document | None:
    """Return the metadata of a GGUF file as a document; None for the path of another file.

    Raises InputError for a file that llama.cpp would not load.
    """
    if not source.lower().endswith(GGUF):
        return None
    return Document(source, dict(read_gguf(source).metadata), Path(source).parent)


def names_model(source: str) -> bool:
    """Return whether a text names a model, by name or by its file, and neither another file nor a shipped
    scenario; in ddn/bloom-1b1 a folder of scenarios is no organisation of the hub."""
    if model_file(source) is not None:
        return True
    if not is_model(source) or Path(source).is_file() or find_scenario(source) is not None:
        return False
    return not any(name.startswith(f"{source.partition('/')[0]}/") for name in list_scenarios())


@limited
def read_scenario(
    source: str | Path, *, overrides: Sequence[str] = (), placed: bool = True
) -> LoadedScenario:
    """Read a scenario file (or a shipped scenario by name), apply ``a.b=value`` overrides, and resolve it;
    ``placed`` as in ``resolve``.

    Raises InputError with all problems, each with its file, line, key and what is valid.
    """
    return resolve(located(source), overrides=overrides, placed=placed)


def read_source(source: ScenarioSource, *, overrides: Sequence[str] = ()) -> LoadedScenario:
    """Return a scenario with overrides, which is read first unless it was loaded.

    Raises what ``read_scenario`` raises.
    """
    if isinstance(source, LoadedScenario):
        return resolve(source.document, overrides=overrides, cache=source.cache) if overrides else source
    if isinstance(source, Mapping):
        return resolve(plain_document(source, name="scenario"), overrides=overrides)
    return read_scenario(Path(source), overrides=overrides)


@limited
def resolve(
    document: Document,
    *,
    overrides: Sequence[str] = (),
    cache: ScenarioCache | None = None,
    placed: bool = True,
    similar: LoadedScenario | None = None,
) -> LoadedScenario:
    """Check a document and load everything that it refers to. Raises InputError.

    Scenarios that share a ``cache`` read common files once. A scenario that is not ``placed`` is only the
    origin of others on targets: it may name tiers that its own platform does not have. What the document has
    in common with that of a ``similar`` scenario is taken from there.
    """
    cache = ScenarioCache() if cache is None else cache
    document = overridden(document, overrides, cache)
    if similar is not None and similar.cache is cache and similar.document.root == document.root:
        with suppress(InputError):  # the complete check tells every problem, with its place
            return _checked(document, cache, placed=placed, similar=similar)
    return _checked(document, cache, placed=placed)


def _checked(
    document: Document, cache: ScenarioCache, *, placed: bool, similar: LoadedScenario | None = None
) -> LoadedScenario:
    problems: list[Problem] = []
    document = renamed(document, problems)
    _keep_limits(document)
    document = completed(document, cache, problems)
    if absent := tuple(_absent(document)):
        raise InputError(absent)
    common = _common(document, similar)
    try:
        scenario = validate(document, Scenario, checked=common)
    except InputError as error:
        problems = [*error.problems, *problems]
        _check_the_rest(document, cache, problems)
        raise _all_of(problems, document) from None
    model: ModelShape | None
    machine: Machine | None
    if similar is not None and "model" in common:
        model = similar.model
    else:
        model = _try(document, problems, "model", lambda: cache.model(scenario.model, root=document.root))
    if similar is not None and all(document.shares(key, similar.document) for key in _OF_MACHINE):
        machine = similar.machine
    else:
        machine = _machine(document, cache, problems, nodes=scenario.nodes)
    if machine is not None:
        scenario = _with_tiers(document, scenario, machine, problems if placed else [])
    else:
        _check_the_rest(document, cache, problems)
    problems += _out_of_place(document, scenario)
    if problems or model is None or machine is None:
        raise _all_of(problems, document)
    return LoadedScenario(scenario, document, model, machine, cache=cache)


def _absent(document: Document) -> Iterator[Problem]:
    """Yield a problem for a kind of work, or for sections, of an extension that is not here."""
    work = document.data.get("workload")
    kind = work.get("kind") if isinstance(work, dict) else None
    known = strategy_in(document.data)
    served = known is not None and kind in known.serves
    if kind in get_args(WorkloadKind) and not served and not strategy_for(str(kind)):
        yield document.problem(("workload", "kind"), _needs_more(f"a workload of {kind}"))
        return
    sections = [name for name in _OF_TRAINING if document.data.get(name) is not None]
    asked = {one.section for one in additions().values()} if sections else set()
    if unknown := [name for name in sections if name not in asked]:
        yield document.problem((unknown[0],), _needs_more(f"what {either(unknown)} asks for"), at_key=True)


def _needs_more(what: str) -> str:
    return "; ".join(filter(None, (f"nothing here knows {what}", missing_note())))


def _common(document: Document, similar: LoadedScenario | None) -> dict[str, Any]:
    """Return the checked sections of a similar scenario that the document shares with it."""
    if similar is None:
        return {}
    shared = (name for name in Scenario.model_fields if document.shares(name, similar.document))
    return {name: getattr(similar.scenario, name) for name in shared if name in document.data}


def _keep_limits(document: Document) -> None:
    """Apply the limits of a document that is not yet checked; invalid ones are reported by the check."""
    with suppress(ValidationError):
        keep(EngineOptions.model_validate(document.data.get("engine", {})).limits)


def _all_of(problems: list[Problem], document: Document) -> InputError:
    """Join problems into one error: each once, those of the document first, each file in its own order."""

    def order(problem: Problem) -> tuple[bool, str, int, int]:
        return problem.path != document.path, problem.path, problem.line or 0, problem.column or 0

    return InputError(sorted(dict.fromkeys(problems), key=order))


def _machine(
    document: Document, cache: ScenarioCache, problems: list[Problem], *, nodes: int = 1, changed: bool = True
) -> Machine | None:
    platform = _try(document, problems, "platform", lambda: cache.platform(document, changed=changed))
    if platform is None:
        return None
    return _try(document, problems, "nodes", lambda: cache.machine(platform, nodes=nodes))


def _check_the_rest(document: Document, cache: ScenarioCache, problems: list[Problem]) -> None:
    """Add the problems with references in the valid sections of an invalid scenario."""
    data, own = document.data, [one.key for one in problems if one.path in ("--set", document.path)]
    broken = {re.split(r"[.\[]", key)[0] for key in own}
    if "model" in data and "model" not in broken:
        spec = validate(document, ModelSpec, at=("model",))
        _try(document, problems, "model", lambda: cache.model(spec, root=document.root))
    if "platform" not in data or broken.intersection({"platform", "equipment"}):
        return
    machine = _machine(document, cache, problems, changed="profiles" not in broken)
    if machine is None:
        return
    for section, names in _tier_keys(data).items():
        part = data.get(section)
        for key, choice in names.items() if isinstance(part, dict) else ():
            place, written = f"{section}.{key}", _value(part, key)
            if isinstance(written, str) and place not in own:
                _try(document, problems, place, partial(tier_name, written, machine, place, choice))


def _tier_keys(data: Mapping[str, Any]) -> dict[str, Mapping[str, TierChoice]]:
    """Return which tiers are valid wherever a scenario names one, by section and key."""
    known = strategy_in(data)
    return _OTHER_TIERS | ({} if known is None else {"strategy": tier_paths(known)})


def _value(part: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key, in a section of ``part`` if the key has a dot; None if it is not there."""
    *outer, last = key.split(".")
    for name in outer:
        part = part.get(name) or {}
        if not isinstance(part, Mapping):
            return None
    return part.get(last)


def _out_of_place(document: Document, scenario: Scenario) -> list[Problem]:
    """Return a problem for each section that is not valid for the kind of work."""
    work = scenario.workload
    if scenario.stream is not None and work.kind != "inference":
        text = f"is valid only for a workload of inference, not for {work.kind}; remove it"
        return [document.problem(("stream",), text, at_key=True)]
    if isinstance(work, Training):
        return []
    misplaced = [name for name in _OF_TRAINING if getattr(scenario, name) is not None]
    text = f"is valid only for a training workload, not for {work.kind}; remove it"
    return [document.problem((name,), text, at_key=True) for name in misplaced]


def _with_tiers(
    document: Document, scenario: Scenario, machine: Machine, problems: list[Problem]
) -> Scenario:
    """Return the scenario with the machine's names of tiers, and add a problem for each unknown one."""
    keys = {"strategy": tier_paths(type(scenario.strategy)), **_OTHER_TIERS}

    def resolved(part: M, section: str) -> M:
        for key, choice in keys[section].items():
            place = f"{section}.{key}"

            def named(value: str, place: str = place, choice: TierChoice = choice) -> str:
                read = partial(tier_name, value, machine, place, choice)
                return _try(document, problems, place, read) or value

            part = _with_value(part, key.split("."), named)
        return part

    parts = {section: getattr(scenario, section) for section in keys}
    changes = {section: resolved(part, section) for section, part in parts.items() if part is not None}
    return scenario.model_copy(update=changes)


def _with_value(part: M, path: list[str], changed: Callable[[str], str]) -> M:
    """Return a part of a scenario with the value at a path changed, if it was given."""
    first, *inner = path
    value = getattr(part, first, None)
    if value is None or (inner and first not in part.model_fields_set):
        return part
    found = _with_value(value, inner, changed) if inner else changed(value)
    return part.model_copy(update={first: found})


def locate(source: str | Path) -> Path:
    """Return the file of a scenario given by path or shipped name. Raises InputError if there is none."""
    path = Path(source)
    if model_file(str(source)) is None and (path.suffix in SUFFIXES or exists(path)):
        return path
    shipped = find_scenario(str(source))
    if shipped is not None:
        return shipped
    raise InputError.at("", _no_scenario(str(source)), path=shortened(str(source)))


def located(source: str | Path) -> Document:
    """Return the document of a scenario given by path or shipped name, as which messages name it. Raises
    InputError if there is none."""
    path = locate(source)
    document = read_document(path)
    return document if path == Path(source) else replace(document, path=str(source))


def _no_scenario(name: str) -> str:
    """Return what is wrong with a name that is neither the file of a scenario nor a shipped one."""
    if names_model(name):
        return "is a model, not a scenario; question (run, fit and compare) makes a scenario from it"
    text = "no such file, and no shipped scenario or model of that name"
    if looks := resembled_model(name):
        return f"{text}: {looks}"
    if profile := Library().hint(name):
        return f"{text}{profile}"
    hint = (candidates(name, list_scenarios()) if "/" in name else "") or similar_models(name)
    hint = hint or "; list: simoffload scenarios list, simoffload models list"
    return f"{text}{hint}; name any other model by its config.json or .gguf file"


def completed(document: Document, cache: ScenarioCache, problems: list[Problem]) -> Document:
    """Return the document with default kinds of workload and strategy, renamed keys under their new names,
    and the content of a ds_config instead of its path.

    Errors are added to ``problems``.
    """
    if others := document.data.keys() - Scenario.model_fields:
        for key in sorted(others & {*sections(), *found().missing}):  # of a command of its own
            document = without(document, key)
    document = renamed(document, problems)
    if isinstance(named := document.data.get("model"), str) and is_model_file(named):
        document = edited(document, [Edit(("model",), named_in_text(named))], in_place=True)
    if "stream" in document.data and "workload" not in document.data:
        document = edited(document, [Edit(("workload",), _BESIDE_STREAM)], in_place=True)
    document = _with_kind(document, "workload", "inference")
    workload = document.data.get("workload")
    if "strategy" not in document.data:
        document = edited(document, [Edit(("strategy",), {})], in_place=True)
    strategy = document.data["strategy"]
    if not isinstance(strategy, dict):
        return document
    for key in ("weights", "optimizer"):
        if key in strategy and strategy[key] is None:
            text = "is empty; name a tier of the platform, e.g. dram, or remove the key"
            problems.append(document.problem(("strategy", key), text))
    kind = strategy.get("kind") or usual_kind_of(workload, strategy.keys())
    document = _with_kind(document, "strategy", kind)
    known = strategy_in(document.data)
    document = _without_other_keys(document, problems)
    for key, content in known.traits.files.items() if known is not None else ():
        place = f"strategy.{key}"
        read = _try(document, problems, place, partial(cache.opened, document, key, content))
        document = read or edited(document, [Edit(("strategy", key), {})], in_place=True)
    return _in_precision(document)


def _without_other_keys(document: Document, problems: list[Problem]) -> Document:
    """Return the document without the keys of its strategy that only other programs have, of the kind "best"
    those that no program has, and add a problem for each."""
    section, work = document.data["strategy"], document.data.get("workload")
    served = str(work.get("kind", "inference")) if isinstance(work, dict) else "inference"
    own, kind = strategy_in(document.data), section["kind"]
    if own is None or not strategy_for(served):
        return document  # which is refused
    wrong = dict[str, str]()
    for key in sorted(section.keys() - own.model_fields.keys() - own.elsewhere.keys()):
        having = _having(key, served)
        if kind == BEST and not having:
            known = {one for each in strategy_for(served) for one in fields_of(each, served)}
            wrong[key] = f"unknown key{suggest(str(key), sorted(known))}; no program has it"
        elif kind != BEST and (having or (having := _having(key, "training", " (training)"))):
            has = f"it is one of {' and '.join(having)}"
            wrong[key] = f"unknown key of {kind}; {has} (known here: {listing(list(own.model_fields))})"
    if not wrong:
        return document
    problems += [document.problem(("strategy", key), text, at_key=True) for key, text in wrong.items()]
    kept = {key: value for key, value in section.items() if key not in wrong}
    return edited(document, [Edit(("strategy",), kept)], in_place=True)


def _having(key: str, work: str, after: str = "") -> list[str]:
    """Return the programs that have a key of the strategy for a kind of work, each with a text ``after``."""
    return [f"{one}{after}" for one in strategy_for(work) if one != BEST and key in fields_of(one, work)]


def _in_precision(document: Document) -> Document:
    """Return the document with the data type that its ds_config enables, if the model states none: DeepSpeed
    casts the model to it (0.19.8, runtime/engine.py: ``_configure_distributed_model``)."""
    config, model = document.data["strategy"].get("ds_config"), document.data.get("model")
    model = {"name": model} if isinstance(model, str) else model
    if not isinstance(config, dict) or not isinstance(model, dict) or model.get("dtype") is not None:
        return document
    from simoffload.strategies.ds_config import PRECISIONS

    sections = ((config.get(key), dtype) for dtype, key in PRECISIONS.items())
    enabled = [dtype for one, dtype in sections if isinstance(one, dict) and one.get("enabled") is True]
    if len(enabled) != 1:
        return document
    return edited(document, [Edit(("model",), {**model, "dtype": enabled[0]})], in_place=True)


def _with_kind(document: Document, section: str, kind: str) -> Document:
    """Return the document with the kind of a section as its first key, by default ``kind``."""
    given = document.data.get(section)
    if not isinstance(given, dict) or next(iter(given), None) == "kind":
        return document
    return edited(document, [Edit((section,), {"kind": kind, **given})], in_place=True)


def _try(document: Document, problems: list[Problem], key: str, action: Callable[[], T]) -> T | None:
    """Run ``action`` and record its problems, placed at ``key`` unless they name a position themselves."""
    try:
        return action()
    except InputError as error:
        for problem in error.problems:
            within = problem.key if not problem.path and problem.key.startswith(f"{key}.") else key
            location = tuple(within.split("."))
            if problem.line is not None or problem.path in ("--set", document.path):
                problems.append(problem)
            else:  # a problem with a complete file, or with none, belongs where the document refers to it
                text = f"{problem.path}: {problem.message}" if problem.path else problem.message
                problems.append(document.problem(location, text))
        return None


USUAL_WORK: Mapping[str, dict[str, Any]] = {
    "inference": {
        "kind": "inference",
        "batch_size": 1,
        "prompt_length": 2048,
        "output_length": 512,
        "context": 8192,
    },
    "training": {
        "kind": "training",
        "batch_size": 1,
        "sequence_length": 2048,
        "gradient_checkpointing": True,
    },
}
"""The workload of a default scenario by its kind: one turn of a conversation with room for some more, or one
sequence that is trained, on each GPU (our choice)."""
_BESIDE_STREAM = {"kind": "inference", "batch_size": 1, "prompt_length": 512, "output_length": 32}
"""The workload of a scenario that has only a stream of requests."""


@limited
def default_scenario(
    model: str,
    platform: str | None = None,
    *,
    overrides: Sequence[str] = (),
    gpus: int | None = None,
    placed: bool = True,
) -> LoadedScenario:
    """Return a scenario of a model, by name or file, on ``gpus`` GPUs of a platform, by default on all, whose
    program is yet to be chosen.

    It has one sequence on each GPU, 2048 tokens in and 512 out with room for 8192 (fewer if the model has
    fewer positions). With ``workload.kind=training`` among the overrides it trains 2048 tokens with gradient
    checkpointing.
    ``overrides`` (``a.b=value``) replace any of these, including the platform. ``placed`` as in ``resolve``.
    Raises InputError for an unknown model or platform, or if there is no platform.
    """
    kinds = [value for key, value in map(split_assignment, overrides) if key == "workload.kind"]
    work = USUAL_WORK.get(str(kinds[-1]) if kinds else "", USUAL_WORK["inference"])
    typed, model = model, model_file(model) or model
    data: dict[str, Any] = {"name": model_label(model), "model": model, "workload": work}
    if platform is not None:
        data["platform"] = platform
    document = Document(typed, {**data, "strategy": {}}, Path())
    cache = ScenarioCache()
    cache.allow_model(model)
    document = overridden(document, overrides, cache)
    if "platform" not in document.data:
        listed = "(simoffload profiles list platform)"
        text = "a model needs a machine: --gpu ID, such as --gpu rtx-4090 (simoffload profiles list gpu); or "
        text += f"--set platform=ID or --on PLATFORM:TIER {listed}"
        if gpus == 0:
            text = "a model needs a machine, also without a GPU: --set platform=FILE with what simoffload "
            text += f"detect writes of yours, or --set platform=ID, whose GPU is not used {listed}"
        raise InputError([document.problem((), text)])
    scenario = resolve(document, cache=cache, placed=placed)
    given = {split_assignment(one)[0] for one in overrides}
    filled = edited(_filled(scenario, gpus), _within_positions(scenario, given))
    return resolve(filled, cache=cache, placed=placed)


def _within_positions(scenario: LoadedScenario, given: set[str]) -> tuple[Edit, ...]:
    """Return the edits of usual lengths for which a model has too few positions, unless they are given."""
    most, work, usual = (
        scenario.model.max_position_embeddings,
        scenario.scenario.workload,
        USUAL_WORK["inference"],
    )
    if most is None or not isinstance(work, Inference) or most >= usual["context"] or "workload" in given:
        return ()
    free = {key for key in ("prompt_length", "output_length", "context") if f"workload.{key}" not in given}
    output = work.output_length
    if "output_length" in free:
        taken = 0 if "prompt_length" in free else work.prompt_length
        output = max(1, min(output, most // 4, most - taken))
    fitting = {
        "prompt_length": max(1, min(work.prompt_length, most - output)),
        "output_length": output,
        "context": most,
    }
    return tuple(Edit(("workload", key), size) for key, size in fitting.items() if key in free)


def _filled(scenario: LoadedScenario, gpus: int | None) -> Document:
    """Return the document with the values that follow from model and platform, unless it has them."""
    document, strategy = scenario.document, scenario.scenario.strategy
    spread = strategy.sizes().gpus(gpus or scenario.machine.gpus)[:1]
    for edit in spread:
        if edit.path not in document.marks:  # which has those that are stated
            strategy = strategy.model_copy(update={str(edit.path[1]): edit.value})
            document = edited(document, spread)
    return edited(document, strategy.filled(scenario.model))
