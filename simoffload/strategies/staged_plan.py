"""The plan of a model that goes through the stages of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from simoffload.hardware import Path, Provenance
from simoffload.models import Module, Sequences
from simoffload.results import Facts
from simoffload.schedule import Cause, Hops, Schedule
from simoffload.strategies.base import Phase, PhaseKind, PhaseSeries
from simoffload.strategies.blocks import BlockMoves, block_phases
from simoffload.strategies.degrees import Degrees
from simoffload.strategies.divided import DividedModel, divide
from simoffload.strategies.extrapolation import arithmetic_beyond
from simoffload.strategies.fused_timing import FusedPassTimings, LaunchedPassTimings, experts_kernel
from simoffload.strategies.plan import ForwardPass, InferencePlan
from simoffload.strategies.served_runs import (
    FEW_SEQUENCES,
    MOST_SEQUENCES,
    Stored,
    served_runs,
    stored_weights,
    unserved,
)
from simoffload.strategies.stage_writer import PassWriter
from simoffload.strategies.streamed_cache import Parts
from simoffload.strategies.timing import PassTimings


class StagedPlan(InferencePlan):
    """A StagedPlan is a plan in which the model goes through the stages of a pipeline, one or several, each
    with a part of all its layers on every GPU."""

    degrees: Degrees
    compiled: bool
    """Whether kernels are launched as CUDA graphs."""

    @property
    def fused(self) -> bool:
        """Whether kernels are fused: in compiled code, if nothing else fuses them."""
        return self.compiled

    @cached_property
    def divided(self) -> DividedModel:
        """Part of the model on one GPU of each stage. Raises InputError if there are no equal parts."""
        tensor, pipeline, _ = self.degrees
        return divide(self.model, tensor=tensor, pipeline=pipeline, fused=self.fused)

    @cached_property
    def known_paths(self) -> dict[tuple[int, Cause], tuple[Path, tuple[Hops, ...]]]:
        """Paths of transfers that its writers have asked for, by stage and name."""
        return {}

    @cached_property
    def stage_timings(self) -> tuple[PassTimings, ...]:
        """GPU times of the modules of each stage."""
        fused = FusedPassTimings if self.compiled else LaunchedPassTimings
        kind = fused if self.fused else PassTimings
        return tuple(
            kind(
                machine=self.machine,
                model=stage,
                modules=stage.distinct_modules,
                zero3=False,
                cache=self.cache_form,
            )
            for stage in self.divided.stages
        )

    @property
    def paged_cache(self) -> bool:
        """Whether the cache is in pages, as in vLLM."""
        return self.fused

    @property
    def modules(self) -> tuple[Module, ...]:
        """Modules of all stages; those of a layer are listed once in each stage."""
        return tuple(module for stage in self.divided.stages for module in stage.distinct_modules)

    @property
    def stored_weights(self) -> tuple[Stored, ...]:
        """Forms in which the weights are stored, and the kernels that read them."""
        native = self.machine.accelerator.compute.float8 is not None
        return stored_weights(self.modules, native_float8=native)

    @property
    def host_costs(self) -> tuple[Provenance, ...]:
        """Costs of launching kernels that are not in CUDA graphs, of calling experts, and of preparing a
        step."""
        if not self.compiled:
            return super().host_costs
        costs = self.machine.host.compiled_costs
        called = costs.mxfp4 if experts_kernel(self.model) == "mxfp4" else costs.experts
        return (costs.kernel, costs.step, *([called] if self.model.num_experts else []))

    @property
    def gpu_rates(self) -> tuple[Provenance, ...]:
        """Rates of the kernels of compiled code, with those of the weights' formats and of experts."""
        if not self.fused:
            return ()
        experts, kernels = bool(self.model.num_experts), [one.kernel for one in self.stored_weights]
        return self.machine.accelerator.kernels.deciding(kernels, experts=experts)

    @property
    def uncompared(self) -> tuple[str, ...]:
        """What no run of vLLM did with which predictions were compared: see ``served_runs``."""
        if not self.fused:
            return ()
        gpu, batch = self.machine.accelerator.name, self.workload.batch_size
        found = list(unserved(self.stored_weights, gpu))
        if self.model.latent_width is not None:
            found.append("served latent attention")
        if self.degrees.ranks > 1:
            found.append("served from several GPUs")
        known = served_runs(gpu) is not None
        if batch > (MOST_SEQUENCES if known else FEW_SEQUENCES):
            found.append(f"served {batch} sequences at once on {gpu}")
        return tuple(found if self.compiled else [*found, "launched fused kernels one by one"])

    @property
    def extrapolations(self) -> tuple[str, ...]:
        """Warnings about numbers used outside the range in which they were measured."""
        return tuple(arithmetic_beyond(self.divided.stages[-1], self.workload, self.machine))

    def durations(self, forward: ForwardPass) -> tuple[int, ...]:
        """Return the GPU time of each module of each stage for each micro-batch of a pass [ps]."""
        batches = self.micro_batches(forward)
        return tuple(time for batch in batches for one in self.stage_timings for time in one.durations(batch))

    def micro_batches(self, forward: ForwardPass) -> list[tuple[Sequences, ...]]:
        """Return the parts in which a pass goes through the stages: several only in a prefill."""
        count = min(self.degrees.pipeline, (first := forward.batch[0]).number)
        if len(forward.batch) > 1 or (first.new_tokens < first.context and not forward.loads):
            return [forward.batch]
        each, more = divmod(first.number, count)
        return [(first._replace(number=each + (part < more)),) for part in range(count)]

    @property
    def repeats(self) -> bool:
        """Whether the layers of a stage do the same, the first and the last included."""
        return not self.cache.moves

    def writer(self, name: str) -> PassWriter:
        """Return the writer of a pass."""
        return PassWriter(self, name)

    def schedule(self, forward: ForwardPass) -> Schedule:
        """Return the schedule of a pass: each micro-batch goes through one stage after the other."""
        writer = self.writer(forward.name)
        writer.begin(forward)
        batches = self.micro_batches(forward)
        first = 0
        for at, batch in enumerate(batches):
            if at > 1 and batch == batches[at - 1] == batches[at - 2] and not forward.loads:
                first = writer.again(first)
                continue
            first = writer.segments
            for number, timings in enumerate(self.stage_timings):
                repeats = self.repeats and len(batches) * self.degrees.pipeline == 1
                repeats = repeats and not (forward.loads or forward.stores)
                writer.stage(number, timings.timing(batch), batch, repeats=repeats)
        return writer.build()

    @cached_property
    def block_moves(self) -> BlockMoves | None:
        """Blocks that the connector of the cache moves; None without one."""
        connector = self.cache.connector
        if connector is None:
            return None
        element, stages = int(self.cache.element_bytes(self.model.dtype_bytes)), self.divided.stages
        return BlockMoves(connector, stages, self.degrees, self.workload, self.machine, element)

    @property
    def facts(self) -> Facts:
        """Also the traffic of blocks."""
        moves = self.block_moves
        return super().facts if moves is None else Facts(traffic=(moves.traffic,))

    @property
    def cached_parts(self) -> Parts:
        """The part of each stage on each of its GPUs."""
        return tuple((stage, self.degrees.tensor * self.degrees.data) for stage in self.divided.stages)

    def decode_step(self, number: int) -> ForwardPass:
        """Return a decode step, during which a part of the new blocks is stored."""
        moves = self.block_moves
        return super().decode_step(number)._replace(stores=moves is not None and moves.parts > 0)

    def _phase(self, one: ForwardPass, kind: PhaseKind) -> Phase:
        """Return the phase of a pass; stores may continue after it."""
        last = f"stage {self.degrees.pipeline - 1}: host" if self.degrees.pipeline > 1 else "host"
        return replace(super()._phase(one, kind), ends_with=last if one.stores else None)

    @property
    def phases(self) -> tuple[Phase | PhaseSeries, ...]:
        """Phases of the plan: with a connector, also the loads and stores of blocks alone."""
        moves, found = self.block_moves, super().phases
        if moves is None:
            return found
        prefill, *alone = block_phases(moves, lambda one: self.writer(one.name).transfers(one))
        return (self._phase(prefill, "prefill"), *alone, *found[1:])
