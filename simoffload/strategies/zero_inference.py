"""ZeRO-Inference: weights partitioned over the ranks and kept in HBM, host memory or on storage.

Reference: docs/_posts/2022-09-10-zero-inference.md of deepspeedai/DeepSpeed; the mechanism is the one of
ZeRO-3 parameter offload, replayed by ``coordinator`` and ``forward``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, Literal

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine, Tier
from simoffload.models import ModelShape, Module
from simoffload.results import Change, Facts, MemoryStage, MemoryTerm
from simoffload.schedule import Schedule
from simoffload.strategies.base import Plan
from simoffload.strategies.called_experts import (
    fetches_called,
    only_called,
    order_lasts,
    refuse_ranks,
    tokens_of,
)
from simoffload.strategies.coordinator import Tensor
from simoffload.strategies.cpu_attention import (
    COMMAND,
    CpuAttention,
    cpu_attention,
    cpu_attention_memory,
    example_command,
)
from simoffload.strategies.ds_config import resolve_settings
from simoffload.strategies.ds_config.export import FILE, Work, inference_config, tunables
from simoffload.strategies.ds_config.leaf_modules import leaf_warnings
from simoffload.strategies.ds_config.quantization import with_quantized_weights
from simoffload.strategies.ds_config.sections import OffloadParamSection
from simoffload.strategies.extrapolation import arithmetic_beyond, ranks_beyond, transfers_beyond
from simoffload.strategies.forward import Partitioning
from simoffload.strategies.kv_cache import DEFAULT, ZERO_INFERENCE, CacheEngine, CachingStrategy, KvCache
from simoffload.strategies.memory import pinned_rounding, working_memory
from simoffload.strategies.passes.pass_writer import ForwardPass
from simoffload.strategies.plan import InferencePlan
from simoffload.strategies.requirements import TRANSFORMERS, check_capability
from simoffload.strategies.resident import ResidentPlan, spread_bound
from simoffload.strategies.schedule_templates import InferenceLayers, ScheduleTemplates, schedule_templates_of
from simoffload.strategies.streamed_cache import CacheUpdate, Parts
from simoffload.strategies.terms import Split, Tunable
from simoffload.strategies.zero import (
    ZeroStrategy,
    check_buffer_size,
    device_of,
    gathered,
    inference_moves,
    within_config,
)
from simoffload.workload import Inference

_PREFETCH = (
    "lower stage3_prefetch_bucket_size, stage3_max_live_parameters or stage3_param_persistence_threshold"
)
_MOSTLY = 0.9  # fraction of the weights on the target below which a warning is given (our choice)
_BUFFERS = "lower offload_param.buffer_count or buffer_size"


class ZeroInference(ZeroStrategy, CachingStrategy):
    """ZeRO-Inference: weights partitioned over the ranks, in HBM, host memory or on storage."""

    serves: ClassVar = frozenset({"inference"})
    tier_keys: ClassVar = {"weights": "any"}
    cache_engine: ClassVar[CacheEngine] = ZERO_INFERENCE

    kind: Literal["zero_inference"] = "zero_inference"

    def caveat(self, tier: str, *, ranks: int) -> str:
        """Return a note for weights in HBM: every GPU gathers them for every token."""
        return gathered(tier, ranks=ranks)

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> ZeroInferencePlan:
        """Apply the strategy. Raises InputError for missing hardware and for settings that DeepSpeed
        refuses."""
        try:
            settings, warnings = resolve_settings(
                self.ds_config, version=self.deepspeed_version, hidden_size=model.hidden_size
            )
            model, ignored = with_quantized_weights(model, self.ds_config, settings)
        except InputError as error:
            raise within_config(error.problems) from None
        check_capability(TRANSFORMERS, model, machine)
        tier, more = self.tier("weights", machine)
        settings = settings._replace(device=device_of(tier, machine))
        plan = ZeroInferencePlan(
            model=model,
            workload=workload,
            machine=machine,
            placement=Partitioning(tier, self.ranks, model.dtype_bytes, settings),
            warnings=(*warnings, *leaf_warnings(settings), *ignored, *more),
            cache=self.cache_of(model, workload, machine),
        )
        if not plan.order_lasts:
            refuse_ranks(self.ranks)
        check_buffer_size([tensor for tensor, _ in plan.layered.counted], settings)
        direct = self.direct_warnings(settings, machine)
        return replace(plan, warnings=(*plan.warnings, *direct, *plan.remarks(machine.tiers[tier].kind)))

    def moves(self, plan: Plan) -> Iterator[tuple[Change, ...]]:
        """Yield changes that move the cache to host memory, and the weights to each tier."""
        assert isinstance(plan, ZeroInferencePlan)
        size = plan.placement.settings.buffer_size
        return chain(self.cache_moves(plan), inference_moves(plan, ranks=self.ranks, buffer_size=size))

    @classmethod
    def splits(cls, model: ModelShape, machine: Machine, *, gpus: int) -> Iterator[tuple[Split, ...]]:
        """Yield all weights in host memory, then on storage; none of them stays on a GPU."""
        needed, usual = -(-model.largest_parameter // gpus), int(OffloadParamSection().buffer_size)

        def split(tier: Tier) -> Split:
            section: dict[str, Any] = {"kind": "zero_inference", "ranks": gpus, "weights": tier.name}
            if tier.is_storage and needed > usual:
                section["ds_config"] = {"zero_optimization": {"offload_param": {"buffer_size": needed}}}
            return Split(0, lambda _: section, lambda _: f"weights on {tier.name} (zero_inference)")

        yield tuple(split(one) for one in machine.tiers.values() if one.kind != "hbm")

    def filled(self, model: ModelShape) -> tuple[Edit, ...]:
        """Return edits that put weights in host memory unless ds_config places them, with large enough swap
        buffers."""
        placed = super().filled(model)
        section = self.ds_config.zero_optimization.offload_param or OffloadParamSection()
        slice_numel = -(-model.largest_parameter // self.ranks)
        if "buffer_size" not in section.model_fields_set and slice_numel > int(section.buffer_size):
            key = "strategy.ds_config.zero_optimization.offload_param.buffer_size"
            return (*placed, Edit.at(key, slice_numel))
        return placed

    def exports(self, plan: Plan) -> dict[str, Any]:
        """Return the configuration files with which DeepSpeed runs the plan: content by name."""
        assert isinstance(plan, ZeroInferencePlan)
        path = self.swap_path("weights", plan.target, plan.machine)
        work = Work(self.ranks, plan.workload.batch_size, plan.model.dtype, weights_path=path)
        config = inference_config(self.ds_config, plan.placement.settings, work)
        program = {COMMAND: self._command(plan)} if plan.cache.attends_on_cpu else self.generation_config()
        return {FILE: config, **program}

    def _command(self, plan: ZeroInferencePlan) -> str:
        """Return the command of DeepSpeed's example that runs the plan."""
        quantized = self.ds_config.quantized_initialization
        bits = () if quantized is None else (f"--quant_bits {quantized.num_bits}",)
        settings = plan.placement.settings
        offloaded = {
            "none": (),
            "cpu": ("--cpu-offload",),
            "nvme": ("--disk-offload", f"--offload-dir /mnt/{plan.target}"),
        }
        options = (f"--pin-memory {int(settings.pin_memory)}", *offloaded[settings.device or "none"], *bits)
        return example_command(plan.cache, plan.model, plan.workload, options, ranks=self.ranks)


@dataclass(frozen=True)
class ZeroInferencePlan(InferencePlan):
    """A ZeroInferencePlan is the plan of ZeRO-Inference for one model on one machine."""

    model: ModelShape
    workload: Inference
    machine: Machine
    placement: Partitioning
    warnings: tuple[str, ...]
    cache: KvCache = DEFAULT
    traced: ClassVar = True
    zero3: ClassVar = True

    @property
    def target(self) -> str:
        """Tier that holds the weights."""
        return self.placement.tier

    def tunables(self) -> Iterator[Tunable]:
        """Yield the settings of fetching parameters."""
        return tunables(self.placement.settings)

    @property
    def whole_copies(self) -> Plan | None:
        """Return the plan with a full copy of the weights on each GPU; None if the weights are already in
        HBM."""
        if self.target == "hbm":
            return None
        return ResidentPlan(
            model=self.model, workload=self.workload, machine=self.machine, ranks=self.placement.ranks
        )

    @property
    def facts(self) -> Facts:
        """Also why the first pass is slower, and the upper bound of the throughput with divided weights; None
        for one GPU and for weights outside HBM."""
        why = "DeepSpeed does not know the order of modules yet and cannot prefetch"
        place, found = self.placement, replace(super().facts, first_pass=why)
        if place.settings.device != "none" or place.ranks == 1:
            return found
        bound = spread_bound(self.model, self.workload, self.machine, ranks=place.ranks)
        return replace(found, spread_bound=bound)

    @property
    def cached_parts(self) -> Parts:
        """The whole model in each process."""
        return ((self.model, self.placement.ranks),)

    @cached_property
    def templates(self) -> ScheduleTemplates:
        """Templates of the passes, in which the durations of kernels are filled in later."""
        return schedule_templates_of(self.model, self.machine, self.placement, self.cache_form)

    @property
    def modules(self) -> Sequence[Module]:
        """Modules that launch kernels, each once."""
        return self.templates.modules

    @property
    def layered(self) -> InferenceLayers:
        """Model that the coordinator replays with any number of layers."""
        return self.templates.layered

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every parameter tensor with its partition."""
        return self.layered.tensors

    @property
    def extrapolations(self) -> tuple[str, ...]:
        """Warnings about numbers used outside the range in which they were measured."""
        place = self.placement
        return (
            *ranks_beyond(place.ranks, self.machine, costs=self.machine.host.deepspeed),
            *transfers_beyond(
                [tensor for tensor, _ in self.layered.counted],
                place.dtype_bytes,
                place.settings,
                self.machine,
                tier=place.tier,
            ),
            *arithmetic_beyond(self.model, self.workload, self.machine),
        )

    def remarks(self, kind: str) -> list[str]:
        """Return warnings about likely misreadings, such as weights on another tier or the requirements of
        GDS."""
        settings = self.placement.settings
        remarks = []
        if not self.order_lasts:
            remarks.append(
                "experts are separate modules and not leaf modules: only those to which a token is routed "
                "are fetched, but others in every pass, so that DeepSpeed prefetches nothing of use"
            )
        if settings.device == "nvme":
            sizes = [(count * tensor.slice_numel, tensor.on_nvme) for tensor, count in self.layered.counted]
            there = sum(size for size, swapped in sizes if swapped) / sum(size for size, _ in sizes)
            if there < _MOSTLY:
                remarks.append(
                    f"{there:.0%} of the weights are stored on {self.target}: slices below the larger of "
                    f"1 MiB and aio.block_size ({settings.min_swap_bytes} B) stay in host memory; "
                    "more ranks make slices smaller"
                )
        if settings.use_gds and settings.device != "nvme":
            remarks.append(f"ds_config aio.use_gds has no effect with weights: {self.target}")
        elif settings.use_gds and kind in {"nfs", "pfs"}:
            remarks.append(
                f"aio.use_gds on {self.target} needs a client for GPUDirect Storage (NFS: over RDMA)"
            )
        return remarks

    @cached_property
    def fetches_called(self) -> bool:
        """Whether experts are modules of their own of which only those are fetched that are called."""
        return fetches_called(self.model, self.placement.settings)

    @cached_property
    def order_lasts(self) -> bool:
        """Whether the order of modules that DeepSpeed has recorded is that of later passes, too; if not,
        nothing is prefetched."""
        work = self.workload
        tokens = work.batch_size * (1 if work.decode_steps else work.prompt_length)
        return not self.fetches_called or order_lasts(self.model, tokens)

    @cached_property
    def _known(self) -> dict[int, ZeroInferencePlan]:
        """Plans with the experts that are called, by the number of tokens of a pass."""
        return {}

    def called(self, forward: ForwardPass) -> ZeroInferencePlan:
        """Return the plan with the experts that a pass calls; the plan itself if all are fetched."""
        if not self.fetches_called:
            return self
        tokens = tokens_of(forward.batch)
        if tokens not in self._known:
            model = only_called(self.model, tokens)
            self._known[tokens] = self if model is self.model else replace(self, model=model)
        return self._known[tokens]

    def durations(self, forward: ForwardPass) -> tuple[int, ...]:
        """Return the GPU time of each module in a pass [ps]."""
        plan = self.called(forward)
        if self.cache.attends_on_cpu:  # the GPU works on the new tokens only
            alone = tuple(one._replace(context=one.new_tokens) for one in forward.batch)
            return plan.timings.durations(alone)
        return plan.timings.durations(forward.batch)

    def _cache_transfers(self, forward: ForwardPass) -> tuple[int, ...]:
        if not self.cache.attends_on_cpu:
            return super()._cache_transfers(forward)
        return (cpu_attention(self.cache, self.model, forward.batch).attended.traffic,)

    def schedule(self, forward: ForwardPass) -> Schedule:
        """Return the schedule of one pass."""
        plan, warm = self.called(forward), self.order_lasts and not forward.first
        durations = self.durations(forward)
        work: CpuAttention | Sequence[CacheUpdate | None]
        if self.cache.attends_on_cpu:
            work = cpu_attention(self.cache, self.model, forward.batch)
        elif self.cache.moves:
            work = self.cache_updates(forward.batch)
        else:
            return plan.templates.schedule(durations, name=forward.name, warm=warm)
        streams = self.cache.streams
        return plan.templates.write(
            durations, forward.batch, work, name=forward.name, warm=warm, streams=streams
        )

    @property
    def memory_stages(self) -> tuple[MemoryStage, ...]:
        """Memory that each tier must hold while tokens are generated."""
        return (MemoryStage("", self.memory),)

    @cached_property
    def memory(self) -> tuple[MemoryTerm, ...]:
        """Memory that each tier must hold at its peak, with pinned buffers listed separately."""
        place, size = self.placement, self.placement.dtype_bytes
        direct = place.settings.copies_directly(place.ranks)
        peak = self.layered.peak
        terms = []
        if not (direct and place.settings.device == "none"):  # else the parameter is the partition itself
            terms.append(MemoryTerm("hbm", "gathered parameters, peak", peak.on_gpu * size, remedy=_PREFETCH))
        if not direct:
            terms.append(MemoryTerm("hbm", "all-gather buffer", peak.gather * size, remedy=_PREFETCH))
        copies = self.machine.ranks_per_node(place.ranks)
        if self.cache.attends_on_cpu:
            cache = cpu_attention_memory(self.cache, self.model, self.workload, copies=copies)
        else:
            cache = self.cache_memory(self.model, copies=copies)
        terms += working_memory(self.model, self.workload, self.machine, cache=cache)
        return (*terms, *self._weights())

    def _weights(self) -> list[MemoryTerm]:
        place, settings, size = self.placement, self.placement.settings, self.placement.dtype_bytes
        per_host = self.machine.ranks_per_node(place.ranks)
        counted = self.layered.counted
        in_memory = [(tensor.slice_numel * size, count) for tensor, count in counted if not tensor.on_nvme]
        full_stack = sum(part * count for part, count in in_memory)
        swapped = sum(tensor.slice_numel * size * count for tensor, count in counted if tensor.on_nvme)
        if settings.device == "none":
            return [MemoryTerm("hbm", "weight partition", full_stack)]
        terms = [MemoryTerm("dram", "weights", full_stack * per_host, pinned=settings.pin_memory)]
        if settings.pin_memory:
            rounding = sum(count * pinned_rounding([part]) for part, count in in_memory) * per_host
            terms.append(MemoryTerm("dram", "rounding of pinned allocations", rounding, pinned=True))
        if settings.device == "nvme":
            pool = settings.buffer_count * settings.buffer_size * size
            if settings.use_gds:
                terms.append(MemoryTerm("hbm", "swap buffers", pool, remedy=_BUFFERS))
            else:
                terms.append(
                    MemoryTerm("dram", "swap buffers", pool * per_host, pinned=True, remedy=_BUFFERS)
                )
            terms.append(MemoryTerm(place.tier, "weights", swapped * place.ranks))
        return terms
