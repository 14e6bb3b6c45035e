"""vLLM's offloading of weights to host memory: read in place over the link (UVA), or prefetched by layer.

Source: vLLM 0.33, ``model_executor/offloader/uva.py`` and ``prefetch.py``, ``config/offload.py``.

* UVA: the parameters of the layers, in order, until ``cpu_offload_gb`` of each GPU is spent, stay in pinned
  host memory, which kernels read directly: nothing is copied or prefetched. A kernel takes the longer of its
  own time and the transfer of its weights at the rate of a pinned copy (Min et al., EMOGI, VLDB 2020: aligned
  reads over PCIe reach that rate), and reads them once. A prefill of many tokens may read them more often,
  for each tile of rows that misses the L2 cache; this is not modelled.
* Prefetch: of each ``offload_group_size`` layers the last ``offload_num_in_group`` are offloaded. When one of
  them has been computed, the copy of the one ``offload_prefetch_step`` later begins on a stream of its own,
  into the slot that was released; the last ones copy the first of the next pass, and the pass ends with these
  copies (``join_after_forward``).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import Layer, ModelShape, Module
from simoffload.results import MemoryStage, MemoryTerm
from simoffload.schedule import Op
from simoffload.strategies.base import Placement, Plan, refused
from simoffload.strategies.divided import DividedModel
from simoffload.strategies.kv_cache import VLLM
from simoffload.strategies.pinned_weights import BACKEND, PinnedWeights, of_marlin, pinned_weights
from simoffload.strategies.stage_writer import COMPUTE, HOST, PassWriter
from simoffload.strategies.tensor_parallel import (
    DividedStrategy,
    TensorParallel,
    TensorParallelPlan,
    arrangements,
    vllm_command,
)
from simoffload.strategies.terms import Split, Tunable
from simoffload.strategies.timing import copy_name, effective_rate, picoseconds
from simoffload.units import plural
from simoffload.workload import Inference

_GIB = 1 << 30
_MORE, _LESS = "raise cpu_offload_gb", "lower cpu_offload_gb"
Count = Annotated[int, Field(strict=True, ge=1, le=100_000)]


class OffloadOptions(NamedTuple):
    """OffloadOptions are vLLM's options for offloading weights."""

    budget: int
    """Size of the weights of each GPU that kernels read in host memory [B]; 0 with groups."""
    group: int
    """Number of layers of a group; 0 without prefetching."""
    number: int
    """Number of layers at the end of each group that are offloaded."""
    step: int
    """Number of offloaded layers by which a copy is ahead."""


class VllmCpuOffload(DividedStrategy):
    """vLLM's offloading of weights to host memory, in addition to parallelism as in ``tensor_parallel``."""

    evidence: ClassVar = ""
    cache_engine: ClassVar = VLLM

    kind: Literal["vllm_cpu_offload"] = "vllm_cpu_offload"
    compiled: Annotated[bool, Field(strict=True)] = True
    """Whether kernels are replayed from CUDA graphs; false: ``--enforce-eager``, the host launches each."""
    cpu_offload_gb: Annotated[float, Field(ge=0, le=1e6)] = 0
    """Weights of each GPU that stay in host memory and are read over the link by kernels [GiB]."""
    offload_group_size: Annotated[int, Field(strict=True, ge=0, le=100_000)] = 0
    """Number of layers of a group, of which the last are offloaded and prefetched; 0: no prefetching."""
    offload_num_in_group: Count = 1
    """Number of offloaded layers at the end of each group."""
    offload_prefetch_step: Count = 1
    """Number of offloaded layers by which a copy is ahead, and of slots for them on the GPU."""

    @property
    def placement_name(self) -> str:  # type: ignore[override]  # the tier identifies it if all is on GPUs
        """Name of weights in GPU and host memory."""
        return "vLLM offload" if self._offloads else ""

    @property
    def placement_words(self) -> str:  # type: ignore[override]  # depends on what is offloaded
        """Phrase for weights in GPU and host memory."""
        return "{} in GPU and host memory" if self._offloads else TensorParallel.placement_words

    @property
    def _offloads(self) -> bool:
        return bool(self.cpu_offload_gb or self.offload_group_size)

    @property
    def options(self) -> OffloadOptions:
        """vLLM's options for offloading. Raises InputError for those that contradict each other."""
        group, number = self.offload_group_size, self.offload_num_in_group
        if group and self.cpu_offload_gb:
            text = "offload_group_size prefetches weights, cpu_offload_gb reads them in place; set one to 0"
            raise InputError.at("strategy.offload_group_size", text)
        if group and number > group:
            text = f"{number} is more than offload_group_size {group}"
            raise InputError.at("strategy.offload_num_in_group", text)
        return OffloadOptions(int(self.cpu_offload_gb * _GIB), group, number, self.offload_prefetch_step)

    def places(self, _machine: Machine) -> Placement:
        """Return host memory as the place of the weights if some are offloaded."""
        return Placement("dram" if self._offloads else "hbm")

    def placements(self, machine: Machine) -> tuple[Placement, ...]:
        """Return the present placement, and HBM."""
        return tuple(dict.fromkeys((self.places(machine), Placement("hbm"))))

    def retarget(self, placement: Placement, machine: Machine) -> tuple[Edit, ...]:
        """Return the edits that offload nothing if the placement is HBM. Raises PlacementError for a tier
        that is not used."""
        if placement not in self.placements(machine):
            raise refused(placement, self.kind, "set cpu_offload_gb or offload_group_size")
        if placement == self.places(machine):
            return ()
        return Edit.at("strategy.cpu_offload_gb", 0), Edit.at("strategy.offload_group_size", 0)

    @classmethod
    def splits(cls, model: ModelShape, machine: Machine, *, gpus: int) -> Iterator[tuple[Split, ...]]:
        """Yield a number of GiB of the weights on each GPU, with the others in pinned host memory."""
        total = model.weight_bytes // gpus // _GIB + 1

        def split(sizes: dict[str, int]) -> Split:
            several = {key: size for key, size in sizes.items() if size > 1}

            def section(count: int) -> dict[str, Any]:
                return {"kind": "vllm_cpu_offload", **several, "cpu_offload_gb": total - count}

            def description(count: int) -> str:
                offloaded = f"with cpu_offload_gb {total - count}" if count < total else "without offload"
                return f"vLLM on {plural(gpus, 'GPU')} {offloaded}"

            return Split(total, section, description)

        yield tuple(map(split, arrangements(gpus, machine)))

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> VllmOffloadPlan:
        """Apply the strategy. Raises InputError for options that vLLM refuses."""
        model = model.as_served()
        plan = VllmOffloadPlan(
            model=model,
            workload=workload,
            machine=machine,
            degrees=self.degrees,
            compiled=self.compiled,
            target=self.places(machine).weights,
            options=self.options,
            cache=self.connected_cache(model, workload, machine),
        )
        assert plan.offloaded  # raises for groups that do not fit the layers
        return plan

    @property
    def program(self) -> str:
        """The program that the exported command starts."""
        return "vLLM"

    def exports(self, plan: Plan) -> dict[str, Any]:
        """Return the command that serves the model."""
        assert isinstance(plan, VllmOffloadPlan)
        given = [f"--cpu-offload-gb {self.cpu_offload_gb:g}"] if self.cpu_offload_gb else []
        if self.offload_group_size:
            keys = ("offload_group_size", "offload_num_in_group", "offload_prefetch_step")
            given = [f"--{key.replace('_', '-')} {getattr(self, key)}" for key in keys]
        given += [BACKEND] if plan.repacked else []
        command = vllm_command(plan, self.degrees, *given, compiled=self.compiled)
        return {"vllm-serve.sh": plan.pinned.environment + command}


Weights = Mapping[str, tuple[int, ...]]
"""Sizes [B] of the offloaded tensors of a layer, by module."""


@dataclass(frozen=True)
class VllmOffloadPlan(TensorParallelPlan):
    """A VllmOffloadPlan is a plan of a model of which some weights are in host memory."""

    options: OffloadOptions = field(kw_only=True)

    @property
    def fused(self) -> bool:
        """Whether kernels are fused: always, as vLLM has its own."""
        return True

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]  # computed here
        """Also a warning about options of groups without groups."""
        found, options = (*super().warnings, *self.pinned.warnings), self.options
        if options.group or options.number == options.step == 1:
            return found
        key = "offload_num_in_group" if options.number > 1 else "offload_prefetch_step"
        return (*found, f"strategy.{key} has no effect without offload_group_size: nothing is prefetched")

    @property
    def repacked(self) -> bool:
        """Whether experts have kernels that vLLM does not choose by itself on every card."""
        return bool(self.options.budget or self.options.group) and of_marlin(self.model) is not self.model

    @cached_property
    def divided(self) -> DividedModel:
        """Part of the model on one GPU of each stage. Raises InputError if there are no equal parts."""
        found = super().divided
        return found._replace(stages=tuple(map(of_marlin, found.stages))) if self.repacked else found

    @cached_property
    def pinned(self) -> PinnedWeights:
        """Pinned weights of all stages of one GPU each."""
        return pinned_weights(
            [size for stage in self.offloaded for layer in stage for one in layer.values() for size in one]
        )

    @cached_property
    def offloaded(self) -> tuple[tuple[Weights, ...], ...]:
        """Offloaded tensors of each layer of each stage. Raises InputError if no layer is in a group."""
        return tuple(map(self._of_stage, self.divided.stages))

    def _of_stage(self, stage: ModelShape) -> tuple[Weights, ...]:
        budget, group, number, step = self.options
        size = stage.dtype_bytes
        by_kind = {
            kind: {
                module.name: tuple(each for one in module.parameters for _, each in one.stored_tensors(size))
                for module in kind
                if module.parameters
            }
            for kind, _ in stage.kinds
        }
        layers: list[Weights] = [by_kind[layer] for layer in stage.layers]
        if not group:
            spent = accumulate((_total([one]) for one in layers), initial=0)
            return tuple(_within(budget - before, one) for before, one in zip(spent, layers, strict=False))
        chosen = tuple(one if at % group >= group - number else {} for at, one in enumerate(layers))
        if step > (offloaded := sum(map(bool, chosen))):
            key = "offload_prefetch_step" if offloaded else "offload_group_size"
            text = f"only {offloaded} of the {len(layers)} layers of a GPU are offloaded"
            raise InputError.at(f"strategy.{key}", f"{text}; lower it")
        return chosen

    @property
    def repeats(self) -> bool:
        """Whether the layers of a stage do the same: only if all weights are on the GPU."""
        return super().repeats and not any(map(_total, self.offloaded))

    @property
    def tiers(self) -> frozenset[str]:
        """HBM, and host memory if weights are offloaded."""
        return super().tiers | {"hbm"}

    def writer(self, name: str) -> PassWriter:
        """Return the writer of a pass."""
        if self.repeats:
            return super().writer(name)
        return _PrefetchWriter(self, name) if self.options.group else _InPlaceWriter(self, name)

    def tunables(self) -> Iterator[Tunable]:
        """Yield larger values of ``cpu_offload_gb`` for HBM, then smaller ones for host memory, unless layers
        are prefetched."""
        most = max(one.weight_bytes for one in self.divided.stages) // _GIB + 1
        if not self.options.group:
            now = self.options.budget // _GIB
            values = (*range(now + 1, most + 1), *range(now - 1, -1, -1))
            yield Tunable("cpu_offload_gb", ("strategy", "cpu_offload_gb"), now, lambda _: iter(values))

    @property
    def memory_stages(self) -> tuple[MemoryStage, ...]:
        """Weights, slots and working memory of the GPU that needs most, and all pinned weights of a host."""
        machine, (tensor, _, data) = self.machine, self.degrees
        pairs = list(zip(self.divided.stages, self.offloaded, strict=True))
        stage, inside = max(pairs, key=lambda one: one[0].weight_bytes - _total(one[1]))
        terms = [MemoryTerm("hbm", "weights", stage.weight_bytes - _total(inside), remedy=_MORE)]
        if self.options.group:
            slots = self.options.step * max(_total([layer]) for layer in inside)
            terms.append(MemoryTerm("hbm", "prefetch slots", slots, remedy="lower offload_prefetch_step"))
        if self.pinned.size:
            each, nodes = tensor * data, machine.nodes_of(self.degrees.ranks)
            remedy = "" if self.options.group else _LESS
            sizes = {"weights": self.pinned.size, "rounding of pinned allocations": self.pinned.rounding}
            for name, size in sizes.items():
                terms.append(MemoryTerm("dram", name, -(-size * each // nodes), pinned=True, remedy=remedy))
        return (MemoryStage("", (*terms, *self.working_memory(stage))),)


def _total(layers: Sequence[Weights]) -> int:
    return sum(size for layer in layers for one in layer.values() for size in one)


def _within(budget: int, sizes: Weights) -> Weights:
    """Return the tensors of a layer that are offloaded before ``budget`` [B] is spent; the last one may
    exceed it."""
    found: dict[str, tuple[int, ...]] = {}
    for name, tensors in sizes.items() if budget > 0 else ():
        for size in tensors:
            if budget > 0:
                found[name] = (*found.get(name, ()), size)
                budget -= size
    return found


class _OffloadWriter(PassWriter):
    """An _OffloadWriter moves weights from host memory on a stream of its own."""

    more = ("copy",)
    _plan: VllmOffloadPlan
    _entered = 0

    @property
    def _copies(self) -> int:
        return self._stream(self._first_of_cache - 1)

    @property
    def _joined(self) -> Sequence[int]:
        return (len(self._names) - 1,)

    def _layer(self, number: int, modules: Layer) -> None:
        self._entered = number
        super()._layer(number, modules)
        self._entered = -1

    def _state(self, number: int, modules: Layer) -> Hashable:
        """Return the number of the layer in a stage with offloaded layers, which differ in what is."""
        return number if any(self._plan.offloaded[self._number]) else super()._state(number, modules)

    def _fetch(self, name: str, label: str, sizes: Sequence[int], *, calls: int) -> int:
        """Move tensors of ``sizes`` [B] in ``calls`` transfers after all that the GPU did so far; return the
        number of the operation."""
        path, hops = self._paths(name, lambda _, gpu: self._machine.host_to_device(gpu, pinned=True))
        # Without a call for each tensor, small ones are read at the rate of large copies.
        rate = effective_rate(path, sizes) if calls else path.curve.points[-1][1]
        route = self._builder.route(name=name, hops=hops, cap=int(rate))
        after = self._dependencies(HOST, COMPUTE, *self._reduced)
        fixed = picoseconds(calls * path.latency)
        return self._builder.add(Op("copy", label, self._copies, fixed, sum(sizes), route, after))


class _InPlaceWriter(_OffloadWriter):
    """An _InPlaceWriter lets kernels read weights in host memory; what follows waits for both."""

    def _before_kernels(self, module: Module) -> None:
        layers = self._plan.offloaded[self._number]
        sizes = layers[self._entered].get(module.name) if self._entered >= 0 else None
        if not sizes:
            return
        if module.share < 1:  # of experts, only those to which a token is routed
            touched = self._plan.model.touched_share(module, self._tokens)
            sizes = tuple(max(1, round(touched * size)) for size in sizes)
        copied = self._fetch("weights read in host memory", module.name, sizes, calls=0)
        self._awaited.append((self._copies, copied, -1))


class _PrefetchWriter(_OffloadWriter):
    """A _PrefetchWriter copies the layers of groups ahead of their use."""

    def _layer(self, number: int, modules: Layer) -> None:
        """Wait for the copy of an offloaded layer, unless the pass before made it, and behind the layer begin
        that of the one that takes its slot."""
        copied = self._copied.get((self._number, number))
        if copied is not None:
            self._awaited.append((self._copies, copied, -1))
        super()._layer(number, modules)
        following = self._following[self._number].get(number)
        if following is None:
            return
        weights = self._plan.offloaded[self._number][following]
        sizes = [size for one in weights.values() for size in one]
        name = copy_name(to_device=True, pinned=True)
        copied = self._fetch(name, "layer", sizes, calls=len(sizes))
        self._copied[self._number, following] = copied

    @cached_property
    def _following(self) -> tuple[Mapping[int, int], ...]:
        """Layer of each stage that takes the slot of an offloaded one."""
        stages = ([at for at, layer in enumerate(layers) if layer] for layers in self._plan.offloaded)
        step = self._plan.options.step
        return tuple(
            dict(zip(one, one[step % len(one) :] + one[: step % len(one)], strict=True)) for one in stages
        )

    @cached_property
    def _copied(self) -> dict[tuple[int, int], int]:
        """Number of the last copy of each layer of each stage."""
        return {}
