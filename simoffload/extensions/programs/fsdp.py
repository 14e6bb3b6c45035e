"""PyTorch's FSDP with its states on the GPU or in host memory, for comparison with offloading under ZeRO.

Reference: Zhao et al., PyTorch FSDP, arXiv 2304.11277. Every decoder layer is a unit
(``transformer_auto_wrap_policy``), and each matrix of an adapter; all other modules are the root unit. With
gradient accumulation, unsharded gradients are added up on the GPU (``no_sync``), as PyTorch requires with
offloading.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import SINGLE, ModelShape, Module
from simoffload.results import Change, HeldKind, cause_text
from simoffload.schedule import Cause, CauseKind, OpKind, Schedule
from simoffload.strategies.base import (
    Description,
    EvidenceBasis,
    Held,
    Placement,
    Placements,
    Plan,
    ProgramTraits,
    Strategy,
    Tunable,
    Tunables,
    pinned_rounding,
)
from simoffload.strategies.memory import activations_of, held_quantized, system_memory
from simoffload.strategies.passes.pass_writer import COMPUTE, HOST, Call, Hook, Part, PassWriter, StagePass
from simoffload.strategies.passes.timing import ranks_beyond
from simoffload.strategies.plan import StepPart, StepWork
from simoffload.strategies.training.adapters import (
    PEFT,
    Lora,
    lora_moves,
    quantized_base,
    work_of,
)
from simoffload.strategies.training.memory import MICRO_STEP, OPTIMIZER_STEP
from simoffload.strategies.training.state import (
    PAGED,
    PAGING_RATE,
    TORCH_ADAM,
    TORCH_ADAM_NEW,
    TORCH_FOREACH,
    TORCH_WEIGHT_DECAY,
    moments,
    optimizer_changes,
    optimizer_script,
    packed_numels,
    paged,
    paged_out,
    update_traffic,
    with_paging,
)
from simoffload.strategies.training.step import micro_steps, optimizer_part
from simoffload.strategies.zero.trace import Trace, micro_step, parts_of_training
from simoffload.workload import Training

Prefetch = Literal["pre", "post", "none"]


class Fsdp(Strategy):
    """Training under PyTorch's FSDP; keys and defaults have PyTorch's names and values."""

    serves: ClassVar = frozenset({"training"})
    traits: ClassVar = ProgramTraits(title="FSDP", evidence="fsdp", method="FSDP", gathers="FSDP")

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
    """Threads of each rank's optimizer (``OMP_NUM_THREADS``); by default 1, which torchrun sets if a host has
    several ranks, and all cores of the host for one."""
    lora: Lora | None = None
    """Adapters that are trained instead of all weights."""

    @property
    def description(self) -> Description:
        """The program that reads the exported files of adapters, and what is trained."""
        if self.lora is None:
            return super().description
        return super().description._replace(program=PEFT, trains="adapters")

    def tunables(self, machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield all states in HBM or all in host memory, moments in 8 bit or paged, and adapters."""
        here = "dram" if self.cpu_offload else "hbm"
        yield Placements(
            now=lambda: Placement(here, here),
            possible=(Placement("hbm", "hbm"), Placement("dram", "dram")),
            edits=lambda other: (Edit.at("strategy.cpu_offload", machine.row(other.weights).is_dram),),
            refusal="it keeps parameters and optimizer together, in HBM (hbm+hbm) or with CPUOffload in host "
            "memory (dram+dram)",
            kept=work_of(self.lora),
        )
        if plan is None:
            return
        offload = Edit.at("strategy.cpu_offload", True)
        yield Tunable("tier", [Change("tier", "states on dram", (offload,))])
        if not self.cpu_offload and self.mixed_precision:
            yield Tunable("precision", optimizer_changes(("strategy", "optimizer"), now=self.optimizer))
        if self.lora is not None:
            yield Tunable("precision", quantized_base(plan.model))
            return
        yield Tunable("adapters", lora_moves(plan.model, self.kind, self.ranks))

    def plan(self, model: ModelShape, workload: Training, machine: Machine) -> FsdpPlan:
        """Apply the strategy. Raises InputError for settings that are not modelled."""
        if self.lora is not None:
            model = self.lora.adapt(model, machine)
            _check_adapters(model)
        if self.optimizer != "AdamW" and self.cpu_offload:
            text = f"{self.optimizer} in host memory is not modelled; unset cpu_offload, or take AdamW"
            raise InputError.at("strategy.optimizer", text)
        if self.optimizer != "AdamW" and not (self.mixed_precision or model.dtype_bytes == SINGLE):
            text = f"{self.optimizer} is modelled for shards in single precision; set mixed_precision"
            raise InputError.at("strategy.optimizer", text)
        cores = machine.host.cpu_optimizer.cores.value
        threads = self.cpu_threads or (1 if machine.ranks_per_node(self.ranks) > 1 else cores)
        plan = FsdpPlan(
            model=model,
            workload=workload,
            machine=machine,
            strategy=self,
            threads=threads,
            warnings=self.lora.warnings if self.lora is not None else (),
        )
        return replace(plan, warnings=(*plan.warnings, PAGING_RATE)) if plan.paged_out else plan

    def exports(self, plan: Plan) -> dict[str, Any]:
        """Return how a program makes the optimizer, if it is one of bitsandbytes, and the adapters."""
        found = {} if self.optimizer == "AdamW" else {"optimizer.py": optimizer_script(self.optimizer)}
        return found if self.lora is None else {**found, **self.lora.files(plan.model, divided=True)}


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
    def basis(self) -> EvidenceBasis:
        """Costs of operations, of FSDP's hooks, and of the pages of AdamW's new tensors."""
        costs, unmeasured = self.machine.host.fsdp_costs, self.machine.host.fsdp is None
        beyond = ranks_beyond(self.strategy.ranks, self.machine, costs=costs)
        return EvidenceBasis(
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
        adapters: dict[tuple[int, str], int] = {}
        if not model.all_trainable:
            for number, layer in enumerate(model.layers):
                units[number] = tuple(one for one in layer if not _is_trained(one))
                for module in filter(_is_trained, layer):
                    adapters[number, module.name] = unit = model.num_hidden_layers + len(adapters)
                    units[unit] = (module,)
        return Units(
            self.strategy.ranks,
            {unit: packed_numels(modules, model) for unit, modules in units.items()},
            {unit: sum(len(one.parameters) for one in modules) for unit, modules in units.items()},
            element=model.dtype_bytes,
            trained_element=SINGLE if self.strategy.mixed_precision else model.dtype_bytes,
            adapters=adapters,
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
        parts: tuple[Part, ...] = (Part(part.phase, ()),)
        hook: Hook = FsdpOptimizer(self)
        if part.phase != "optimizer":
            backward = part.phase == "backward"
            parts = parts_of_training(self.model, self.trace, backward=backward, layers=self.trace.layers)
            hook = FsdpUnits(self.units, self.runtime(part), part)
        out = PassWriter(
            name=part.title, machine=self.machine, hooks=(hook,), gpus=(range(self.strategy.ranks),)
        )
        return out.write([StagePass(parts, self.timing, self.batch)])

    @cached_property
    def trace(self) -> Trace:
        """Every hook and kernel of a micro-step, in order."""
        work = self.workload
        return micro_step(self.model, checkpointing=work.gradient_checkpointing, reentrant=work.use_reentrant)

    @property
    def _inside(self) -> Inside:
        """Units within each layer, in the order of their calls."""
        found: list[list[int]] = [[] for _ in self.model.layers]
        for (layer, _), unit in self.units.adapters.items():
            found[layer].append(unit)
        return found

    @property
    def _ended(self) -> tuple[int, ...]:
        """Number of the units within each layer that its recomputation comes to the end of: not that in which
        it stops."""
        if not self.workload.gradient_checkpointing:
            return ()
        ended = [0] * self.trace.layers
        for event in self.trace.backward:
            ends = event.kind == "release" and not event.backward
            ended[event.instance.layer] += ends and _is_trained(event.instance.module)
        return tuple(ended)

    def runtime(self, part: StepPart) -> FsdpRuntime:
        """Return FSDP's state before a micro-step in the steady state."""
        layers, count = self.model.num_hidden_layers, min(self._micro_steps, _SETTLED)
        runtime = FsdpRuntime(layers=layers, settings=self.strategy, inside=self._inside, ended=self._ended)
        for index in range(_SETTLED * count):
            runtime.micro_step(boundary=index % count == count - 1)
        for _ in range(min(part.micro_step, count - 1)):
            runtime.micro_step(boundary=False)
        return runtime

    # -- memory ---------------------------------------------------------------------------------

    @property
    def _per_host(self) -> int:
        return self.machine.ranks_per_node(self.strategy.ranks)

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """What each tier holds in a micro-step and in the optimizer step (an estimate)."""
        strategy, slices, states = self.strategy, self.units.slices, self._states
        beside = (
            Held("hbm", "CUDA context, NCCL and workspace", self.machine.accelerator.reserved_bytes),
            system_memory(self.machine),
        )
        new = sum(slices) if strategy.optimizer == "AdamW" else 0  # at once (_foreach_sqrt); or one kernel
        if strategy.cpu_offload:  # of one tensor after the other
            new = TORCH_ADAM_NEW * max(slices) * self._per_host
        adam = Held(states[0].tier, "temporaries of AdamW", self.units.trained_element * new)
        stages = {MICRO_STEP: (*states, *self._gpu, *beside), OPTIMIZER_STEP: (*states, *beside, adam)}
        found = (one._replace(stage=stage) for stage, held in stages.items() for one in held)
        return tuple(with_paging(found, self.machine, per_host=self._per_host))

    @cached_property
    def paged_out(self) -> int:
        """[B] of moments that one GPU pages out in each step, and back."""
        return paged_out(self.held, per_host=self._per_host)

    @property
    def _states(self) -> tuple[Held, ...]:
        """Return shards, gradients and moments; in host memory the first two are page-locked."""
        slices, size, shards = self.units.slices, self.units.trained_element, self.units.shard_bytes
        offload, total = self.strategy.cpu_offload, sum(self.units.slices)
        tier, here, remedy = ("dram", self._per_host, _HOSTS) if offload else ("hbm", 1, _OFFLOAD)
        bits = 8 if self.strategy.optimizer.endswith("8bit") else 32
        pages = self.strategy.optimizer.startswith("Paged")
        elsewhere = sum(paged(one, bits=bits) for one in slices) if pages else 0
        states = 2 * size * total
        if self.strategy.optimizer != "AdamW":
            states = sum(moments(one, bits=bits) for one in slices)
        named: tuple[tuple[str, int, bool, HeldKind], ...] = (
            ("parameters", sum(shards), offload, "weights"),
            ("gradients", size * total, offload, "optimizer"),
            ("moments", states - elsewhere, False, "optimizer"),
            (PAGED, elsewhere, False, "optimizer"),
        )
        terms = [
            Held(tier, name, here * held, pinned, remedy, kind=kind) for name, held, pinned, kind in named
        ]
        if offload:
            rounding = here * pinned_rounding([*shards, *(size * one for one in slices)])
            terms.append(Held("dram", "rounding of pinned allocations", rounding, pinned=True))
        return tuple(terms)

    @property
    def _gpu(self) -> tuple[Held, ...]:
        units, strategy = self.units, self.strategy
        root, element = units.numels[ROOT], units.element
        layers = sorted(numel for unit, numel in units.numels.items() if unit != ROOT)
        limited = strategy.limit_all_gathers and strategy.reshard_after_forward and units.ranks > 1
        unsharded = root + sum(layers[-_LIMITED:] if limited else layers)
        remedy = "set limit_all_gathers and reshard_after_forward"
        # A layer's gradients are concatenated while earlier ones are reduced; the root's stay to the end.
        trained = [units.numels[unit] for unit in units.trained if unit != ROOT]
        root = root if units.trains(ROOT) else 0
        gradients = 2 * root + 3 * max(trained)
        if self._micro_steps > 1:
            gradients += root + sum(trained)
        acts = activations_of(self.model, self.workload)
        kept = _BATCH if self.workload.gradient_checkpointing else _KEPT
        shard = units.trained_element * max(units.slices) if units.trained_element != element else 0
        return (
            Held("hbm", "gathered parameters", element * unsharded, remedy=remedy, kind="staging"),
            Held("hbm", "shard before its cast", shard if strategy.cpu_offload else 0),
            Held("hbm", "whole gradients", element * gradients),
            *held_quantized(self.model, self.workload),
            Held("hbm", "activations", acts.peak, remedy=kept),
        )


# --------------------------------------------------------------------------------------------------
# Hooks of PyTorch's FSDP: its units are gathered, freed and reduced around the parts of a pass.
#
# Units are the decoder layers and the root, which owns all else; each is one flat parameter. The decisions of
# FSDP's hooks depend on the order of units and on the settings, not on time (``FsdpRuntime``). Source:
# torch/distributed/fsdp/_runtime_utils.py, _flat_param.py and _limiter_utils.py of PyTorch 2.13
# (``FullyShardedDataParallel``); the tests compare with real runs.
#
# Streams: ``copy`` (the pre-unshard stream: copies of shards to the GPU, and their cast), ``comm`` (NCCL: the
# all-gathers and reduce-scatters of one process group, in the order in which they are issued) and ``reduce``
# (the post-backward stream). A single rank is not sharded (``NO_SHARD``): nothing is gathered, and copies of
# gradients block. The times of FSDP's Python code are in ``FsdpCosts``; launches of forward have the cost
# that they have without ZeRO-3.


ROOT = -1
"""Number of the unit that owns all tensors outside the layers; the unit of a layer has the layer's number."""
Inside = Sequence[Sequence[int]]
"""Numbers of the units within each layer, from the number of layers on: PEFT makes each matrix of an adapter
a unit (``fsdp_auto_wrap_policy``, peft/utils/other.py), as the tensors of a unit are all trained or all
frozen."""
_IN_FLIGHT = 2  # _max_num_inflight_all_gathers, hard-coded in PyTorch

_ADAM_OPERATIONS = 8
"""PyTorch operations of AdamW on one tensor (torch/optim/adam.py, ``_single_tensor_adam``)."""


class FsdpSink:
    """An FsdpSink receives FSDP's operations in the order of the host thread; this base ignores them."""

    def unshard(self, unit: int, /) -> None:
        """Copy the shard to the GPU and cast it."""

    def limit(self, event: int, /) -> None:
        """Let the host wait for the memory of an earlier :meth:`free`, which returned ``event``."""

    def gather(self, unit: int, /) -> None:
        """All-gather the shards that were copied."""

    def need(self, unit: int, /) -> None:
        """Let the kernels wait for the unit."""

    def free(self, _unit: int, /) -> int:
        """Free memory when all kernels launched so far are done; return an identifier of this point."""
        return -1

    def reduce(self, unit: int, /) -> None:
        """Reduce the unit's gradients, and keep them in the memory of the optimizer."""


class FsdpRuntime:
    """FsdpRuntime is the state of FSDP on one rank; before ``begin`` it makes no calls."""

    def __init__(
        self, *, layers: int, settings: Fsdp, inside: Inside = (), ended: Sequence[int] = ()
    ) -> None:
        """``inside`` has the units within each layer; ``ended`` is the number of them that its recomputation
        comes to the end of, () without recomputation."""
        self.layers = layers
        self.settings = settings
        self.inside = inside or ((),) * layers
        self._ended = ended
        units = (unit for layer in range(layers) for unit in (*self.inside[layer], layer))
        order = (*units, ROOT)
        self._before = dict(zip(order[1:], order, strict=False))
        """The unit whose forward pass ends before that of each unit."""
        self._sharded = settings.ranks > 1
        self._went_back: set[int] = set()
        """Units whose hook before backward has run in this micro-step."""
        self._left: tuple[int, bool] | None = None
        """Frozen layer whose hook after backward runs after the one before backward of the next layer: both
        wait for the gradient of the tensor between them."""
        self._unsharded: set[int] = set()
        self._prefetched: set[int] = set()
        self._free_events: deque[int | None] = deque()
        self._sink = FsdpSink()

    def begin(self, sink: FsdpSink) -> None:
        """Begin to send calls to a sink; all earlier calls count as finished."""
        self._sink = sink
        self._free_events = deque([None] * len(self._free_events))

    def micro_step(self, *, boundary: bool) -> None:
        """Run all hooks of forward and backward."""
        self.forward()
        self.pre_backward(ROOT)
        for layer in reversed(range(self.layers)):
            self.pre_backward(layer)
            self._adapters_backward(layer, boundary=boundary)
            self.post_backward(layer, boundary=boundary)
        self.post_backward(ROOT, boundary=boundary)

    def _adapters_backward(self, layer: int, *, boundary: bool) -> None:
        """Run the hooks of the units within a layer in backward; that in which recomputation stops has run
        its first one before."""
        inside, ended = self.inside[layer], self._ended[layer] if self._ended else None
        stops = ended is not None and ended < len(inside)
        if stops:
            self.pre_backward(inside[-1])
        self._pass_through(inside[: ended or 0])
        for number, unit in enumerate(reversed(inside)):
            if number or not stops:
                self.pre_backward(unit)
            self.post_backward(unit, boundary=boundary)

    def forward(self) -> None:
        """Run all hooks of a forward pass."""
        self.pre_forward(ROOT)
        for layer in range(self.layers):
            self.pre_forward(layer)
            self._pass_through(self.inside[layer])
            self.post_forward(layer)

    def _pass_through(self, units: Sequence[int]) -> None:
        """Run the hooks of units in forward or in recomputation."""
        for unit in units:
            self.pre_forward(unit)
            self.post_forward(unit)

    # -- hooks ----------------------------------------------------------------------------------

    def pre_forward(self, unit: int) -> None:
        """Run the hook before a unit in forward; it does nothing if that before backward has run."""
        if unit == ROOT:
            self._went_back.clear()
        elif unit in self._went_back:
            return
        if unit not in self._prefetched:
            self._unshard(unit)
        self._sink.need(unit)

    def post_forward(self, unit: int) -> None:
        """Run the hook after a unit in forward; the root stays gathered for backward."""
        self._prefetched.discard(unit)
        if unit != ROOT and self.settings.reshard_after_forward:
            self._reshard(unit)

    def pre_backward(self, unit: int) -> None:
        """Run the hook before gradients of a unit are computed."""
        if unit not in self._prefetched:
            self._unshard(unit)
        self._went_back.add(unit)
        self._sink.need(unit)
        if self.settings.backward_prefetch == "pre":
            self._prefetch(unit)
        self._let_go()

    def post_backward(self, unit: int, *, boundary: bool) -> None:
        """Handle a unit's complete gradients; within ``no_sync`` (no ``boundary``) they stay unsharded."""
        if unit != ROOT and not self._trains(unit):
            self._left = unit, boundary
            return
        self._let_go()
        self._after_backward(unit, boundary=boundary)

    def _let_go(self) -> None:
        if self._left is not None:
            (unit, boundary), self._left = self._left, None
            self._after_backward(unit, boundary=boundary)

    def _after_backward(self, unit: int, *, boundary: bool) -> None:
        self._prefetched.discard(unit)
        if boundary or self.settings.reshard_after_forward:
            self._reshard(unit)
        if self.settings.backward_prefetch == "post" and unit != ROOT:
            self._prefetch(unit)
        if boundary and self._trains(unit):
            self._sink.reduce(unit)

    # -- what they have in common ---------------------------------------------------------------

    def _prefetch(self, unit: int) -> None:
        following = self._before.get(unit)
        if following is not None and following not in self._prefetched | self._went_back:
            self._unshard(following)
            self._prefetched.add(following)

    def _unshard(self, unit: int) -> None:
        # With offloading a shard is copied again even if the unit is whole (pre_unshard).
        unsharded = self._sharded and unit in self._unsharded
        if self.settings.cpu_offload or not unsharded:
            self._sink.unshard(unit)
        if self.settings.limit_all_gathers and len(self._free_events) >= _IN_FLIGHT:
            event = self._free_events.popleft()
            if event is not None:
                self._sink.limit(event)
        if self._sharded and not unsharded:
            self._sink.gather(unit)
        self._unsharded.add(unit)

    def _trains(self, unit: int) -> bool:
        """Return whether a unit has gradients: with units of adapters no other one has."""
        return unit >= self.layers or not any(self.inside)

    def _reshard(self, unit: int) -> None:
        self._unsharded.discard(unit)
        if self._sharded:
            point = self._sink.free(unit)
            if self.settings.limit_all_gathers:
                self._free_events.append(point)


class Units(NamedTuple):
    """Units are the flat parameters, sharded among the ranks."""

    ranks: int
    numels: Mapping[int, int]
    """Number of elements by layer, and of ``ROOT``."""
    tensors: Mapping[int, int]
    """Number of parameter tensors by layer, and of ``ROOT``."""
    element: int
    """Size of an element in the type in which parameters are gathered and used [B]."""
    trained_element: int
    """Size of an element of a trained shard and its gradient [B]; frozen ones keep the type in which they are
    used (``prepare_model`` of accelerate)."""
    adapters: Mapping[tuple[int, str], int] = MappingProxyType({})
    """Units of the matrices of adapters, by layer and name of the module. With them all others are frozen."""

    def slice(self, unit: int) -> int:
        """[elements] of one rank's shard, padded to a whole number."""
        return -(-self.numels[unit] // self.ranks)

    def name(self, unit: int) -> str:
        """Return the name of a unit in timelines."""
        if self.adapters and self.trains(unit):
            return "adapter"
        return "root" if unit == ROOT else "layer"

    def trains(self, unit: int) -> bool:
        """Return whether a unit has gradients."""
        return not self.adapters or unit in self.adapters.values()

    def shard_element(self, unit: int) -> int:
        """Return the size of an element of a shard [B]."""
        return self.trained_element if self.trains(unit) else self.element

    @property
    def trained(self) -> tuple[int, ...]:
        """Units that have gradients: those of the adapters, if there are any."""
        return tuple(self.adapters.values()) if self.adapters else tuple(self.numels)

    @property
    def slices(self) -> tuple[int, ...]:
        """Number of elements of one rank's shard of each trained unit."""
        return tuple(map(self.slice, self.trained))

    @property
    def shard_bytes(self) -> tuple[int, ...]:
        """Size of one rank's shard of each unit [B]."""
        return tuple(self.shard_element(unit) * self.slice(unit) for unit in self.numels)


class FsdpUnits(Hook, FsdpSink):
    """FsdpUnits write what FSDP does before and after each unit of a pass, as its runtime decides."""

    streams = ("copy", "comm", "reduce")
    listed_first = ("copy", "comm")
    carried: ClassVar[bool] = False

    def __init__(self, units: Units, runtime: FsdpRuntime, part: StepPart) -> None:
        """Write a ``part`` of a step; ``runtime`` is in the state before its micro-step."""
        self._units, self._runtime, self._settings, self._part = units, runtime, runtime.settings, part
        self._backward = part.phase == "backward"
        if self._backward:
            runtime.forward()
        self._ready: dict[int, tuple[int, int]] = {}
        """Operation after which a unit can be used, as (stream, number)."""
        self._layer = ROOT
        self._goes_back = self._backward
        """Whether the hooks that run are those of a backward pass, not of recomputation."""

    def start(self, out: PassWriter) -> None:
        """Begin to send the runtime's calls to the writer."""
        self._out, self._fsdp = out, out.machine.host.fsdp_costs
        self._slower = self._fsdp.operation.value / out.costs.operation.value
        """Ratio of the host time of an operation in forward, which autograd records, to that in inference."""
        self._copies, self._comm, self._reduces = map(self.stream, self.streams)
        self._runtime.begin(self)

    # -- parts and calls ------------------------------------------------------------------------

    def enter(self, part: Part, out: PassWriter) -> None:
        """Run the hook before a layer, and before the first part that of the root."""
        before = self._runtime.pre_backward if self._backward else self._runtime.pre_forward
        self._layer = self._unit(part)
        if part is out.now.parts[0]:
            out.spend(out.costs.pass_overhead.value)
            before(ROOT)
        if (unit := self._unit(part)) != ROOT:
            if unit == 0 and not self._backward:
                # transformers asks whether sequences are packed or padded (masking_utils.py,
                # find_packed_sequence_indices): the answer comes from the GPU, behind the root.
                out.host_waits(COMPUTE)
            before(unit)

    def before(self, call: Call, out: PassWriter) -> None:
        """Take the host's time for checkpoints, and for calling a module in forward."""
        if (unit := self._units.adapters.get((self._layer, call.module.name))) is not None:
            self._within(unit, call.facts)
        if self._backward:
            self._goes_back = (self._goes_back or call.facts == "back") and call.facts != "checkpoint"
        if call.facts == "checkpoint":
            out.spend((self._fsdp.recompute if self._backward else self._fsdp.checkpoint).value)
        if call.kernels == "forward":
            out.spend(out.now.timing.launch_s(call.module) * self._slower)

    def launch(self, call: Call, out: PassWriter) -> bool:
        """Launch kernels, in backward from autograd's thread."""
        if call.kernels == "backward":
            out.spend(self._fsdp.backward_call.value + out.now.timing.dequantizing_s(call.module))
        out.flush()
        return True

    def leave(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        """Run the hook after a layer."""
        unit = self._unit(part)
        if not self._backward:
            self._runtime.post_forward(unit)
        elif unit != ROOT:
            self._complete(unit)

    def end(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Reduce the gradients of the root, and let the host wait for them and for the last kernel."""
        if self._backward:
            out.builder.segment("after backward")
            self._complete(ROOT)
            out.host_waits(self._reduces)
        out.host_waits(COMPUTE)

    def finish(self, out: PassWriter) -> bool:  # noqa: ARG002
        """Nothing else is at the end of a pass."""
        return True

    def _unit(self, part: Part) -> int:
        """Return the unit of a part."""
        if part.layer < 0:
            return ROOT
        return self._runtime.layers - 1 - part.layer if self._backward else part.layer

    def _within(self, unit: int, event: Hashable) -> None:
        """Run the hooks of a unit within a layer at an event of its module."""
        if event == "fetch" and self._goes_back:
            self._runtime.pre_backward(unit)
        elif event == "launch":
            self._runtime.pre_forward(unit)
        elif event == "release" and self._goes_back:
            self._complete(unit)
        elif event == "release":
            self._runtime.post_forward(unit)

    def _complete(self, unit: int) -> None:
        """Add up a unit's gradients over micro-steps, and run the hook after its backward pass."""
        out, passes = self._out, 5 if self._part.micro_step else 2
        out.label = self._units.name(unit)
        if self._units.trains(unit):
            out.flush()
            traffic = passes * self._units.numels[unit] * self._units.element
            out.add("reduce", COMPUTE, fixed=out.now.timing.hbm_traffic(traffic), after=out.so_far(HOST))
        self._runtime.post_backward(unit, boundary=self._part.boundary)

    # -- what the runtime calls -----------------------------------------------------------------

    def unshard(self, unit: int) -> None:
        """Write a copy from page-locked memory and a cast in HBM, on their own stream."""
        out, units, numel = self._out, self._units, self._units.slice(unit)
        shard_element = units.shard_element(unit)
        out.label = units.name(unit)
        out.spend(self._fsdp.unshard.value)
        if self._settings.cpu_offload:
            out.spend(self._fsdp.copy_call.value)
            size = numel * shard_element
            copied = out.copy([size], self._copies, to_device=True, pinned=True)
            self._ready[unit] = self._copies, copied
        if shard_element != units.element:
            fixed = out.now.timing.hbm_traffic(numel * (shard_element + units.element))
            out.flush()
            cast = out.add("concat", self._copies, fixed=fixed, after=out.so_far(HOST))
            self._ready[unit] = self._copies, cast

    def limit(self, event: int) -> None:
        """Let the host wait for kernels."""
        self._out.host_waits(COMPUTE, event)

    def gather(self, unit: int) -> None:
        """All-gather the unit's shards after all copies and casts written so far."""
        self._out.spend(self._fsdp.gather.value)
        ordinal = self._collective("all-gather", "gather", self._units.slice(unit), behind=self._copies)
        self._ready[unit] = self._comm, ordinal

    def need(self, unit: int) -> None:
        """Run the unit's hooks and make views of its tensors; the next kernel waits."""
        out, costs, units = self._out, self._fsdp, self._units
        if units.ranks == 1:  # what is not sharded is let go as well, unless it was not cast
            out.spend(costs.reshard.value)
        if self._goes_back:
            out.spend(costs.backward_hook.value)
        else:
            out.spend(costs.forward_hook.value + units.tensors[unit] * costs.view.value)
        if unit in self._ready:
            out.await_(*self._ready.pop(unit))

    def free(self, _unit: int) -> int:
        """Free memory after the last kernel."""
        self._out.spend(self._fsdp.reshard.value)
        return self._out.count(COMPUTE) - 1

    def reduce(self, unit: int) -> None:
        """Write a reduction of gradients: division against overflow, reduce-scatter, second division, cast to
        the type of the shard, and with offloading a copy to page-locked memory."""
        out, units, numel = self._out, self._units, self._units.slice(unit)
        out.spend(self._fsdp.reduce.value)
        if self._settings.cpu_offload:
            out.spend(self._fsdp.copy_call.value)
        out.flush()
        after = out.so_far(HOST, COMPUTE)
        if units.ranks > 1:
            fixed = out.now.timing.hbm_traffic(2 * units.numels[unit] * units.element)
            out.add("reduce", self._reduces, fixed=fixed, after=after)
            self._collective("gradient-reduction", "reduce", numel, behind=self._reduces)
            after = out.so_far(self._comm)
        fixed = out.now.timing.hbm_traffic((3 * units.element + units.trained_element) * numel)
        out.add("reduce", self._reduces, fixed=fixed, after=after)
        if self._settings.cpu_offload:
            out.copy([numel * units.trained_element], self._reduces, to_device=False, pinned=True)
            if units.ranks == 1:
                out.host_waits(self._reduces)

    def _collective(self, cause: CauseKind, kind: OpKind, numel: int, *, behind: int) -> int:
        """Write an all-gather or reduce-scatter of ``numel`` elements; return its number on the stream."""
        size = numel * (self._units.ranks - 1) * self._units.element
        return self._out.exchange(kind, cause, self._comm, size, behind=(behind,))


class FsdpOptimizer(Hook):
    """An FsdpOptimizer is AdamW over all shards on their device."""

    carried: ClassVar[bool] = False

    def __init__(self, plan: FsdpPlan) -> None:
        self._plan, self._units = plan, plan.units

    def enter(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        """Write PyTorch's AdamW in a sequence of operations, or one of bitsandbytes."""
        out.spend(out.machine.host.fsdp_costs.step_call.value)
        name = self._plan.strategy.optimizer
        if name != "AdamW":
            self._bitsandbytes(8 if name.endswith("8bit") else 32, out)
        elif self._plan.strategy.cpu_offload:
            self._on_cpu(out)
        else:
            out.flush()
            element = self._units.trained_element
            traffic = (TORCH_FOREACH + TORCH_WEIGHT_DECAY) * element // SINGLE * sum(self._units.slices)
            self._on_gpu(traffic, "AdamW", out)

    def end(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Let the host wait for the last kernel."""
        out.host_waits(COMPUTE)

    def finish(self, out: PassWriter) -> bool:  # noqa: ARG002
        """Nothing else is at the end of a step."""
        return True

    def _on_cpu(self, out: PassWriter) -> None:
        """Write the update of one flat parameter after the other."""
        machine, element = out.machine, self._units.trained_element
        traffic = (TORCH_ADAM + TORCH_WEIGHT_DECAY) * element // SINGLE
        cpu = machine.host.cpu_optimizer
        processes = machine.ranks_per_node(out.ranks)
        share = cpu.limit.value / max(cpu.numa_nodes.value, processes)
        threads, new = cpu.running(self._plan.threads, processes), TORCH_ADAM_NEW * element
        rate = machine.host.fsdp_costs.adamw_rate(threads, traffic=traffic, new=new, share=share)
        cause = Cause("cpu-adamw")
        for unit in self._units.trained:
            out.spend(_ADAM_OPERATIONS * out.costs.operation.value)
            out.flush()
            size, route = traffic * self._units.slice(unit), out.cpu_work(cause, rate)
            out.add("cpu", HOST, size=size, route=route, label=cause_text(cause))

    def _bitsandbytes(self, bits: int, out: PassWriter) -> None:
        """Write one kernel for each flat parameter, for which the host waits."""
        if self._plan.paged_out:  # the driver moved them out for activations and gradients
            for to_device in (False, True):
                out.copy([self._plan.paged_out], COMPUTE, to_device=to_device, pinned=True)
        for unit in self._units.trained:
            out.spend(out.costs.operation.value)
            out.flush()
            self._on_gpu(update_traffic(self._units.slice(unit), bits=bits), "AdamW of bitsandbytes", out)
            out.host_waits(COMPUTE)

    def _on_gpu(self, traffic: int, label: str, out: PassWriter) -> None:
        fixed = out.now.timing.hbm_traffic(traffic)
        out.add("update", COMPUTE, fixed=fixed, label=label, after=out.so_far(HOST))


# --------------------------------------------------------------------------------------------------
# Checks of the keys of FSDP, and what is said of them.


_LIMITED = 3
"""Most layers gathered with ``limit_all_gathers``: one in use, one ready, one being gathered."""
_SETTLED = 3
"""Number of steps, and of micro-steps in each, after which FSDP's state repeats (our choice)."""
_BATCH = "lower batch_size or sequence_length"
_KEPT = f"{_BATCH}, or set gradient_checkpointing"
_OFFLOAD = "set cpu_offload, or use more ranks"
_HOSTS = "use more hosts"
_UNMEASURED = "host-thread costs of FSDP and its AdamW: scaled from another host's"


def _check_adapters(model: ModelShape) -> None:
    """Raise InputError for adapters outside of the layers, whose units are not modelled."""
    outside = (*model.modules_before, *model.modules_after)
    if names := [module.name for module in outside if _is_trained(module)]:
        text = (
            f"adapters outside of the layers ({names[0]}) are not modelled under fsdp; name those of layers"
        )
        raise InputError.at("strategy.lora.target_modules", text)


def _is_trained(module: Module) -> bool:
    return any(one.trainable for one in module.parameters)
