"""PyTorch's FSDP with its states on the GPU or in host memory, for comparison with offloading under ZeRO.

Its hooks are in ``hooks/fsdp_units``. Reference: Zhao et al., PyTorch FSDP, arXiv 2304.11277. Every decoder
layer is a unit (``transformer_auto_wrap_policy``), all other modules are the root unit. With gradient
accumulation, unsharded gradients are added up on the GPU (``no_sync``), as PyTorch requires with offloading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import SINGLE, ModelShape, Sequences, parameters_of
from simoffload.results import Change
from simoffload.schedule import Schedule
from simoffload.strategies.base import Basis, Plan, ProgramTraits, Strategy
from simoffload.strategies.held import Held, HeldKind
from simoffload.strategies.hooks.fsdp_units import (
    ROOT,
    FsdpOptimizer,
    FsdpRuntime,
    FsdpUnits,
    Prefetch,
    Units,
)
from simoffload.strategies.memory import activations_of, pinned_rounding, system_memory
from simoffload.strategies.passes.pass_writer import Hook, Part, PassWriter, StagePass
from simoffload.strategies.passes.timing import TrainingTiming, ranks_beyond
from simoffload.strategies.plan import StepPart, StepWork
from simoffload.strategies.programs.zero_strategy import lora_moves
from simoffload.strategies.training.memory import MICRO_STEP, OPTIMIZER_STEP
from simoffload.strategies.training.state import (
    PAGED,
    PAGING_RATE,
    TORCH_ADAM_NEW,
    moments,
    optimizer_changes,
    optimizer_script,
    paged,
    paged_out,
    with_paging,
)
from simoffload.strategies.training.step import micro_steps, optimizer_part
from simoffload.strategies.tunables import Placement, Placements, Tunable, Tunables
from simoffload.strategies.zero.trace import Trace, micro_step, parts_of_training
from simoffload.workload import Training

_LIMITED = 3
"""Most layers gathered with ``limit_all_gathers``: one in use, one ready, one being gathered."""
_SETTLED = 3
"""Number of steps, and of micro-steps in each, after which FSDP's state repeats (our choice)."""
_BATCH = "lower batch_size or sequence_length"
_KEPT = f"{_BATCH}, or set gradient_checkpointing"
_OFFLOAD = "set cpu_offload, or use more ranks"
_HOSTS = "use more hosts"
_UNMEASURED = "host-thread costs of FSDP and its AdamW: scaled from another host's"


class Fsdp(Strategy):
    """Training under PyTorch's FSDP; keys and defaults have PyTorch's names and values."""

    serves: ClassVar = frozenset({"training"})
    traits: ClassVar = ProgramTraits(evidence="fsdp", method="FSDP", gathers="FSDP")

    kind: Literal["fsdp"] = "fsdp"
    cpu_offload: bool = False
    """Whether parameters, gradients and optimizer are in host memory (``CPUOffload``)."""
    backward_prefetch: Prefetch = "pre"
    """When the next unit is gathered in backward: before or after the gradients of the present one, or on
    demand."""
    limit_all_gathers: bool = True
    """Whether at most two units are gathered ahead of the one in use."""
    reshard_after_forward: bool = True
    """Whether sharding is ``FULL_SHARD``; otherwise it is ``SHARD_GRAD_OP``."""
    mixed_precision: bool = True
    """Whether only shards and optimizer states are in single precision and all else has the model's type."""
    optimizer: Literal["AdamW", "AdamW8bit", "PagedAdamW", "PagedAdamW8bit"] = "AdamW"
    """Optimizer of PyTorch, or one of bitsandbytes, which needs its states on the GPU: moments in 8 bit, or
    paged out to host memory where they do not fit."""
    cpu_threads: Annotated[int, Field(strict=True, ge=1, le=4096)] | None = None
    """Threads of each rank's optimizer (``OMP_NUM_THREADS``, which torchrun sets to 1 if it is not set); by
    default the host's cores over its ranks."""

    def tunables(self, _machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield all states in HBM or all in host memory, moments in 8 bit or paged, and LoRA under ZeRO, as
        adapters under FSDP are not modelled."""
        here = "dram" if self.cpu_offload else "hbm"
        yield Placements(
            now=lambda: Placement(here, here),
            possible=(Placement("hbm", "hbm"), Placement("dram", "dram")),
            edits=lambda other: (Edit.at("strategy.cpu_offload", other.weights == "dram"),),
            refusal="it keeps parameters and optimizer together, in HBM (hbm+hbm) or with CPUOffload in host "
            "memory (dram+dram); strategy.kind zero_training offloads otherwise",
        )
        if plan is None:
            return
        offload = Edit.at("strategy.cpu_offload", True)
        yield Tunable("tier", [Change("tier", "states on dram", (offload,))])
        if not self.cpu_offload and self.mixed_precision:
            yield Tunable("precision", optimizer_changes(("strategy", "optimizer"), now=self.optimizer))
        config = {"zero_optimization": {"stage": 3}}
        strategy = {"kind": "zero_training", "ranks": self.ranks, "ds_config": config}
        adapters = lora_moves(plan.model, before=(Edit(("strategy",), strategy),))
        stated = (one._replace(description=f"{one.description}, under ZeRO-3") for one in adapters)
        yield Tunable("adapters", stated)

    def plan(self, model: ModelShape, workload: Training, machine: Machine) -> FsdpPlan:
        """Apply the strategy. Raises InputError for settings that are not modelled."""
        if not model.all_trainable:
            text = "fsdp trains all parameters; frozen ones are modelled under zero_training"
            raise InputError.at("strategy.kind", text)
        if self.optimizer != "AdamW" and self.cpu_offload:
            text = f"{self.optimizer} in host memory is not modelled; unset cpu_offload, or take AdamW"
            raise InputError.at("strategy.optimizer", text)
        if self.optimizer != "AdamW" and not (self.mixed_precision or model.dtype_bytes == SINGLE):
            text = f"{self.optimizer} is modelled for shards in single precision; set mixed_precision"
            raise InputError.at("strategy.optimizer", text)
        threads = self.cpu_threads or machine.cores_per_rank(self.ranks)
        plan = FsdpPlan(model=model, workload=workload, machine=machine, strategy=self, threads=threads)
        return replace(plan, warnings=(PAGING_RATE,)) if plan.paged_out else plan

    def exports(self, plan: Plan) -> dict[str, Any]:  # noqa: ARG002
        """Return how a program makes the optimizer, if it is one of bitsandbytes."""
        return {} if self.optimizer == "AdamW" else {"optimizer.py": optimizer_script(self.optimizer)}


@dataclass(frozen=True)
class FsdpPlan(StepWork):
    """An FsdpPlan is the plan of FSDP training for one model on one machine."""

    model: ModelShape
    workload: Training
    machine: Machine
    strategy: Fsdp
    threads: int
    """Number of threads of one rank's optimizer on the CPU."""
    warnings: tuple[str, ...] = ()

    @property
    def basis(self) -> Basis:
        """Costs of operations, of FSDP's hooks, and of the pages of AdamW's new tensors."""
        costs, unmeasured = self.machine.host.fsdp_costs, self.machine.host.fsdp is None
        beyond = ranks_beyond(self.strategy.ranks, self.machine, costs=costs)
        return Basis(
            (costs.operation, costs.forward_hook, costs.backward_hook),
            (costs.page_limit,) if self.strategy.cpu_offload else (),
            extrapolations=(*([_UNMEASURED] if unmeasured else []), *beyond),
        )

    @property
    def _micro_steps(self) -> int:
        return self.workload.gradient_accumulation_steps

    # -- schedules ------------------------------------------------------------------------------

    @cached_property
    def units(self) -> Units:
        """Flat parameters, sharded among the ranks."""
        model = self.model
        units = {**dict(enumerate(model.layers)), ROOT: (*model.modules_before, *model.modules_after)}
        return Units(
            self.strategy.ranks,
            {unit: parameters_of(modules) for unit, modules in units.items()},
            {unit: sum(len(one.parameters) for one in modules) for unit, modules in units.items()},
            element=model.dtype_bytes,
            shard_element=SINGLE if self.strategy.mixed_precision else model.dtype_bytes,
        )

    @property
    def parts(self) -> tuple[StepPart, ...]:
        """Parts of one step; later micro-steps that differ have their own parts."""
        count = self._micro_steps
        forward, *backward = micro_steps(count, cycle=count)
        passes = [forward]
        if count > 1 and not self.strategy.reshard_after_forward:
            later = StepPart("forward", "forward, later micro-steps", Fraction(count - 1), micro_step=1)
            passes = [StepPart("forward", "forward, first micro-step"), later]
        return (*passes, *backward, optimizer_part())

    def schedule(self, part: StepPart) -> Schedule:
        """Return the schedule of one part of a step."""
        work = self.workload
        timing = TrainingTiming(
            machine=self.machine,
            model=self.model,
            batch=work.batch_size,
            length=work.sequence_length,
            zero3=False,
        )
        parts: tuple[Part, ...] = (Part(part.phase, ()),)
        hook: Hook = FsdpOptimizer(self)
        if part.phase != "optimizer":
            backward = part.phase == "backward"
            parts = parts_of_training(self.model, self.trace, backward=backward, layers=self.trace.layers)
            hook = FsdpUnits(self.units, self._runtime(part), part)
        out = PassWriter(
            name=part.title, machine=self.machine, hooks=(hook,), gpus=(range(self.strategy.ranks),)
        )
        length = work.sequence_length
        return out.write([StagePass(parts, timing, (Sequences(work.batch_size, length, length),))])

    @cached_property
    def trace(self) -> Trace:
        """Every hook and kernel of a micro-step, in order."""
        work = self.workload
        return micro_step(self.model, checkpointing=work.gradient_checkpointing, reentrant=work.use_reentrant)

    def _runtime(self, part: StepPart) -> FsdpRuntime:
        """Return FSDP's state before a micro-step in the steady state."""
        layers, count = self.model.num_hidden_layers, min(self._micro_steps, _SETTLED)
        runtime = FsdpRuntime(layers=layers, settings=self.strategy)
        for index in range(_SETTLED * count):
            runtime.micro_step(boundary=index % count == count - 1)
        for _ in range(min(part.micro_step, count - 1)):
            runtime.micro_step(boundary=False)
        return runtime

    # -- memory ---------------------------------------------------------------------------------

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """What each tier holds in a micro-step and in the optimizer step (an estimate)."""
        ranks = self.machine.ranks_per_node(self.strategy.ranks)
        found = (one._replace(stage=stage) for stage, held in self._stages.items() for one in held)
        return tuple(with_paging(found, self.machine, per_host=ranks))

    @property
    def _tier(self) -> str:
        """Tier that holds all states."""
        return "dram" if self.strategy.cpu_offload else "hbm"

    @cached_property
    def paged_out(self) -> int:
        """[B] of moments that one GPU pages out in each step, and back."""
        return paged_out(self.held, per_host=self.machine.ranks_per_node(self.strategy.ranks))

    @property
    def _stages(self) -> Mapping[str, tuple[Held, ...]]:
        states, host = self._states, system_memory(self.machine)
        adam = "temporaries of AdamW"
        size = self.units.shard_element * sum(self.units.slices)  # of all tensors at once (_foreach_sqrt)
        if self.strategy.optimizer != "AdamW":  # one kernel, without any
            size = 0
        if self.strategy.cpu_offload:  # of one tensor after the other
            size = TORCH_ADAM_NEW * self.units.shard_element * max(self.units.slices) * self._sharing
        return {
            MICRO_STEP: (*states, *self._gpu, host),
            OPTIMIZER_STEP: (*states, self._context, host, Held(self._tier, adam, size)),
        }

    @property
    def _sharing(self) -> int:
        """Number of ranks that share the tier of the states."""
        return self.machine.ranks_per_node(self.strategy.ranks) if self.strategy.cpu_offload else 1

    @property
    def _states(self) -> tuple[Held, ...]:
        """Return shards, gradients and moments; in host memory the first two are page-locked."""
        slices, size = self.units.slices, self.units.shard_element
        offload, total = self.strategy.cpu_offload, sum(self.units.slices)
        here = self._sharing
        remedy = _HOSTS if offload else _OFFLOAD
        bits = 8 if self.strategy.optimizer.endswith("8bit") else 32
        pages = self.strategy.optimizer.startswith("Paged")
        elsewhere = sum(paged(one, bits=bits) for one in slices) if pages else 0
        states = 2 * size * total
        if self.strategy.optimizer != "AdamW":
            states = sum(moments(one, bits=bits) for one in slices)
        named: tuple[tuple[str, int, bool, HeldKind], ...] = (
            ("parameters", size * total, offload, "weights"),
            ("gradients", size * total, offload, "optimizer"),
            ("moments", states - elsewhere, False, "optimizer"),
            (PAGED, elsewhere, False, "optimizer"),
        )
        terms = [
            Held(self._tier, name, here * held, pinned, remedy, kind=kind)
            for name, held, pinned, kind in named
        ]
        if offload:
            rounding = 2 * here * pinned_rounding([size * one for one in slices])
            terms.append(Held("dram", "rounding of pinned allocations", rounding, pinned=True))
        return tuple(terms)

    @property
    def _gpu(self) -> tuple[Held, ...]:
        units, strategy = self.units, self.strategy
        root, element = units.numels[ROOT], units.element
        layers = sorted(numel for unit, numel in units.numels.items() if unit != ROOT)
        layer = layers[-1]
        limited = strategy.limit_all_gathers and strategy.reshard_after_forward and units.ranks > 1
        unsharded = root + sum(layers[-_LIMITED:] if limited else layers)
        remedy = "set limit_all_gathers and reshard_after_forward"
        # A layer's gradients are concatenated while earlier ones are reduced; the root's stay to the end.
        gradients = 2 * root + 3 * layer
        if self._micro_steps > 1:
            gradients += root + sum(layers)
        acts = activations_of(self.model, self.workload)
        kept = _BATCH if self.workload.gradient_checkpointing else _KEPT
        shard = units.shard_element * max(units.slices) if units.shard_element != element else 0
        return (
            Held("hbm", "gathered parameters", element * unsharded, remedy=remedy, kind="staging"),
            Held("hbm", "shard before its cast", shard if strategy.cpu_offload else 0),
            Held("hbm", "whole gradients", element * gradients),
            Held("hbm", "activations", acts.peak, remedy=kept),
            self._context,
        )

    @property
    def _context(self) -> Held:
        size = self.machine.accelerator.reserved_bytes
        return Held("hbm", "CUDA context, NCCL and workspace", size)
