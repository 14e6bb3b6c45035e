"""ZeRO-Inference: weights partitioned over the ranks and kept in HBM, host memory or on storage.

Reference: docs/_posts/2022-09-10-zero-inference.md of deepspeedai/DeepSpeed; the mechanism is the one of
ZeRO-3 parameter offload, replayed by ``coordinator`` and ``forward``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape, Module
from simoffload.results.capacity import MemoryTerm, Moment
from simoffload.schedule import Schedule
from simoffload.strategies.calibrated import arithmetic_beyond, ranks_beyond, transfers_beyond
from simoffload.strategies.coordinator import Actions, Coordinator, Idle, Tensor
from simoffload.strategies.ds_config import (
    LATEST,
    DeepSpeedConfig,
    parse_version,
    resolve_settings,
)
from simoffload.strategies.forward import ForwardWriter, Placement, Visit
from simoffload.strategies.memory import pinned_rounding, working_memory
from simoffload.strategies.offload_devices import device_of, offload_tier
from simoffload.strategies.partition import partitioned_tensor
from simoffload.strategies.plan import ForwardPass
from simoffload.strategies.timing import Timing
from simoffload.workload import Inference

__all__ = ["ZeroInference", "ZeroInferencePlan"]

_PREFETCH = (
    "lower stage3_prefetch_bucket_size, stage3_max_live_parameters or stage3_param_persistence_threshold"
)
_MOSTLY = 0.9  # of the weights; our choice: with less on the target an answer is not about it alone
_BUFFERS = "lower offload_param.buffer_count or buffer_size"


class ZeroInference(BaseModel):
    """The strategy as a scenario names it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["zero_inference"] = "zero_inference"
    ranks: Annotated[int, Field(strict=True, ge=1, le=65_536)] = 1
    """GPUs, one process each."""
    weights: Annotated[str, Field(min_length=1)] | None = None
    """Tier of the platform that holds the weights; by default what ``ds_config`` says."""
    ds_config: DeepSpeedConfig = DeepSpeedConfig()
    """DeepSpeed's configuration, inline or the path of a ds_config.json."""
    deepspeed_version: str = LATEST

    @field_validator("deepspeed_version", mode="before")
    @classmethod
    def _is_version(cls, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise ValueError(f'must be text; write "{value}" in quotes')
        if isinstance(value, str):
            parse_version(value)
        return value

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> ZeroInferencePlan:
        """Apply the strategy; InputError for what the machine lacks or DeepSpeed would refuse."""
        try:
            settings, warnings = resolve_settings(
                self.ds_config, version=self.deepspeed_version, hidden_size=model.hidden_size
            )
        except InputError as error:
            raise InputError(
                one._replace(key=f"strategy.ds_config.{one.key}") for one in error.problems
            ) from None
        tier, more = offload_tier(
            "weights", self.weights, section="offload_param", configured=settings.device, machine=machine
        )
        device = device_of(tier, machine)
        plan = ZeroInferencePlan(
            model=model,
            workload=workload,
            machine=machine,
            placement=Placement(tier, self.ranks, model.dtype_bytes, settings._replace(device=device)),
            warnings=(*warnings, *more),
        )
        plan.check()
        return replace(plan, warnings=(*plan.warnings, *plan.remarks(machine.tiers[tier].kind)))


def _visits(segment: str, modules: Sequence[Module]) -> list[Visit]:
    """Give work without hooks (attention between its projections) to the module called before it."""
    visits: list[Visit] = []
    for module in modules:
        if module.hooked:
            visits.append(Visit("" if visits else segment, module))
        else:
            visits[-1] = visits[-1]._replace(unhooked=(*visits[-1].unhooked, module))
    return visits


@dataclass(frozen=True)
class ZeroInferencePlan:
    """ZeRO-Inference of one model on one machine."""

    model: ModelShape
    workload: Inference
    machine: Machine
    placement: Placement
    warnings: tuple[str, ...]

    @property
    def target(self) -> str:
        """Tier that holds the weights."""
        return self.placement.tier

    @property
    def traced(self) -> bool:
        """DeepSpeed records its trace in the first pass."""
        return True

    @cached_property
    def visits(self) -> tuple[Visit, ...]:
        """Every hooked module in the order of its pre-forward hook."""
        model = self.model
        layer = _visits("layer", model.layer)
        head, tail = _visits("head", model.modules_before), _visits("tail", model.modules_after)
        return (*head, *(layer * model.num_hidden_layers), *tail)

    @cached_property
    def _parameters(self) -> tuple[tuple[Tensor, ...], tuple[tuple[int, ...], ...]]:
        """All tensors, and per visited module the indices of those that it owns."""
        place = self.placement
        tensors: list[Tensor] = []
        uses: list[tuple[int, ...]] = []
        shared: dict[str, int] = {}
        persistent = 0
        for visit in self.visits:
            indices = []
            for parameter in visit.module.parameters:
                if parameter.tied:
                    indices.append(shared[parameter.name])
                    continue
                tensor = partitioned_tensor(
                    parameter.name,
                    parameter.numel,
                    persistent=persistent,
                    settings=place.settings,
                    ranks=place.ranks,
                    dtype_bytes=place.dtype_bytes,
                )
                persistent += parameter.numel if tensor.persistent else 0
                shared[parameter.name] = len(tensors)
                indices.append(len(tensors))
                tensors.append(tensor)
            uses.append(tuple(indices))
        return tuple(tensors), tuple(uses)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every parameter tensor with its partition."""
        return self._parameters[0]

    @property
    def extrapolations(self) -> tuple[str, ...]:
        """What lies outside of the range in which the machine was measured."""
        place = self.placement
        return (
            *ranks_beyond(place.ranks, self.machine),
            *transfers_beyond(self.tensors, place.dtype_bytes, place.settings, self.machine, tier=place.tier),
            *arithmetic_beyond(self.model, self.workload, self.machine),
        )

    def check(self) -> None:
        """Raise InputError for what DeepSpeed refuses at start-up."""
        settings = self.placement.settings
        if settings.device != "nvme":
            return
        largest = max(
            (tensor for tensor in self.tensors if tensor.on_nvme), key=lambda t: t.slice_numel, default=None
        )
        if largest is not None and largest.slice_numel > settings.buffer_size:
            raise InputError.at(
                "strategy.ds_config.zero_optimization.offload_param.buffer_size",
                f"DeepSpeed would stop here: More elements {largest.slice_numel} than buffer size "
                f"{settings.buffer_size} ({largest.name}); set buffer_size to at least {largest.slice_numel} "
                "elements",
            )

    def remarks(self, kind: str) -> list[str]:
        """What a reader might take wrongly: weights that are elsewhere, GDS that needs more."""
        settings = self.placement.settings
        remarks = []
        if settings.device == "nvme":
            size = sum(tensor.slice_numel for tensor in self.tensors)
            there = sum(tensor.slice_numel for tensor in self.tensors if tensor.on_nvme) / size
            if there < _MOSTLY:
                remarks.append(
                    f"only {there:.0%} of the weights lie on {self.target}: slices below the larger of 1 MiB "
                    f"and aio.block_size ({settings.min_swap_bytes} B) stay in host memory, and more ranks "
                    "make slices smaller"
                )
        if settings.use_gds and settings.device != "nvme":
            remarks.append(f"ds_config aio.use_gds has no effect with weights: {self.target}")
        elif settings.use_gds and kind in {"nfs", "pfs"}:
            remarks.append(
                f"aio.use_gds on {self.target} needs a client for GPUDirect Storage (NFS: over RDMA)"
            )
        return remarks

    def schedule(self, forward: ForwardPass) -> Schedule:
        """The operations of one pass."""
        timing = Timing(
            machine=self.machine,
            model=self.model,
            batch=self.workload.batch_size,
            new_tokens=forward.new_tokens,
            context=forward.context,
        )
        writer = ForwardWriter(name=forward.name, placement=self.placement, timing=timing, visits=self.visits)
        self._coordinator(writer, warm=not forward.first).run()
        return writer.finish()

    def walk(self, actions: Actions) -> None:
        """Call ``actions`` as DeepSpeed would in a pass whose trace is known."""
        self._coordinator(actions, warm=True).run()

    def _coordinator(self, actions: Actions, *, warm: bool) -> Coordinator:
        tensors, uses = self._parameters
        return Coordinator(
            tensors=tensors,
            uses=uses,
            settings=self.placement.settings,
            ranks=self.placement.ranks,
            warm=warm,
            actions=actions,
        )

    @property
    def moments(self) -> tuple[Moment, ...]:
        """What each tier must hold while tokens are generated."""
        return (Moment("", self.memory),)

    @cached_property
    def memory(self) -> tuple[MemoryTerm, ...]:
        """What each tier must hold at its peak, pinned buffers apart."""
        place, size = self.placement, self.placement.dtype_bytes
        direct = place.settings.copies_directly(place.ranks)
        peak = self._coordinator(Idle(), warm=True)
        peak.run()
        terms = []
        if not (direct and place.settings.device == "none"):  # else the parameter is the partition itself
            terms.append(
                MemoryTerm("hbm", "gathered parameters, peak", peak.peak_on_gpu * size, remedy=_PREFETCH)
            )
        if not direct:
            terms.append(MemoryTerm("hbm", "all-gather buffer", peak.largest_gather * size, remedy=_PREFETCH))
        terms += working_memory(self.model, self.workload, self.machine)
        return (*terms, *self._weights())

    def _weights(self) -> list[MemoryTerm]:
        place, settings, size = self.placement, self.placement.settings, self.placement.dtype_bytes
        per_host = self.machine.ranks_per_node(place.ranks)
        in_memory = [tensor.slice_numel * size for tensor in self.tensors if not tensor.on_nvme]
        swapped = sum(tensor.slice_numel * size for tensor in self.tensors if tensor.on_nvme)
        if settings.device == "none":
            return [MemoryTerm("hbm", "weight partition", sum(in_memory))]
        terms = [MemoryTerm("dram", "weights", sum(in_memory) * per_host, pinned=settings.pin_memory)]
        if settings.pin_memory:
            rounding = pinned_rounding(in_memory) * per_host
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
