"""A training run under ZeRO on a machine: what it keeps where, and the schedules of a step's parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.models.shape import SINGLE
from simoffload.results.capacity import Estimate, Moment
from simoffload.results.training import StorageRequests, StorageTraffic
from simoffload.schedule import Schedule
from simoffload.strategies.aio import aio_unit
from simoffload.strategies.calibrated import ranks_beyond
from simoffload.strategies.coordinator import Tensor
from simoffload.strategies.ds_config.training import TrainingSettings
from simoffload.strategies.forward import Placement
from simoffload.strategies.plan import StepPart
from simoffload.strategies.training.activation_offload import ActivationOffload
from simoffload.strategies.training.facts import Places, StepFacts, Update
from simoffload.strategies.training.memory import estimates_for, training_moments
from simoffload.strategies.training.modes import step_of
from simoffload.strategies.training.step import Step
from simoffload.strategies.training.step_work import StepWork
from simoffload.strategies.training.storage_io import (
    RankFiles,
    StorageStage,
    Transfer,
    full_requests,
    rank_files,
    stages_until_first_step,
    steady_stages,
)
from simoffload.strategies.training.swap import GradientSwapper, SubGroup, sub_groups
from simoffload.strategies.training.tensors import partitioned
from simoffload.strategies.training.timing import TrainingTiming
from simoffload.strategies.training.walk import Parameters, Peak, Walk, buckets, gathered_peak
from simoffload.strategies.training.writer import MicroStepWriter, Stage
from simoffload.workload import Training

__all__ = ["Places", "ZeroTrainingPlan"]


class _NoSink:
    """A swapper's machine on which nothing happens."""

    def to_swap_buffer(self, _sizes: Sequence[int], /) -> None: ...

    def write(self, _size: int, /, *, tier: str, label: str) -> None: ...

    def wait_writes(self) -> None: ...


@dataclass(frozen=True)
class ZeroTrainingPlan(StepWork):
    """ZeRO training of one model on one machine."""

    model: ModelShape
    workload: Training
    machine: Machine
    settings: TrainingSettings
    places: Places
    warnings: tuple[str, ...] = ()
    weight_bits: float | None = None
    """[bit] of an element of frozen weights where they are quantized."""

    @property
    def target(self) -> str:
        """Tier that holds the weights."""
        return self.places.weights

    @property
    def optimizer_target(self) -> str:
        """Tier that holds the optimizer's states."""
        return self.places.optimizer

    @property
    def extrapolations(self) -> tuple[str, ...]:
        """What lies outside of the range in which the machine was measured."""
        return tuple(ranks_beyond(self.places.ranks, self.machine))

    @cached_property
    def step(self) -> Step:
        """A step as the configured mode has it: plain, ZenFlow, SuperOffload."""
        return step_of(
            StepFacts(
                settings=self.settings,
                timing=self.timing,
                places=self.places,
                parameters=self.parameters,
                updates=self.updates,
                dtype_bytes=self.model.dtype_bytes,
                accumulation=self.workload.gradient_accumulation_steps,
            )
        )

    @property
    def parts(self) -> tuple[StepPart, ...]:
        """One step of the steady state."""
        return self.step.parts

    # -- tensors --------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> Parameters:
        """All tensors with their partitions, and the modules that need them."""
        return partitioned(
            self.trace, self.settings, ranks=self.places.ranks, dtype_bytes=self.model.dtype_bytes
        )

    @cached_property
    def trained(self) -> tuple[Tensor, ...]:
        """The tensors that the optimizer updates; all of them but for LoRA."""
        parameters = self.parameters
        indices = sorted({index for found in parameters.trained.values() for index in found})
        return tuple(parameters.tensors[index] for index in indices)

    @cached_property
    def updates(self) -> tuple[Update, ...]:
        """What the optimizer does with every sub-group."""
        settings = self.settings
        if settings.stage == 3:
            groups = sub_groups(self.trained, settings.sub_group_size)
        else:
            groups = (SubGroup(self.trained),)
        on_cpu_from = int((1 - settings.ratio) * len(groups))
        updates = []
        for index, group in enumerate(groups):
            on_gpu = settings.optimizer_device == "none" or index < on_cpu_from
            swapped = (
                settings.optimizer_device == "nvme"  # whatever ``ratio`` says (_swappable_optimizer_subgroup)
                and group.numel * SINGLE >= settings.params.min_swap_bytes
            )
            updates.append(Update(group, on_gpu, swapped, self._place(group)))
        return tuple(updates)

    def _place(self, group: SubGroup) -> str:
        device = self.settings.params.device
        if device == "nvme":
            return "nvme" if any(tensor.on_nvme for tensor in group.tensors) else "dram"
        return "dram" if device == "cpu" else "hbm"

    def check(self) -> None:
        """Raise InputError for what DeepSpeed refuses at start-up."""
        self.step.check()
        settings = self.settings.params
        largest = max(
            (tensor for tensor in self.parameters.tensors if tensor.on_nvme),
            key=lambda tensor: tensor.slice_numel,
            default=None,
        )
        if largest is not None and largest.slice_numel > settings.buffer_size:
            key = "strategy.ds_config.zero_optimization.offload_param.buffer_size"
            text = (
                f"DeepSpeed would stop here: More elements {largest.slice_numel} than buffer size "
                f"{settings.buffer_size} ({largest.name}); set buffer_size to at least {largest.slice_numel}"
            )
            raise InputError.at(key, text)
        at_once = min(
            sum(update.swapped for update in self.updates),
            1 + self.settings.pipeline_read + self.settings.pipeline_write,
        )
        if self.settings.buffer_count < 4 * at_once:
            key = "strategy.ds_config.zero_optimization.offload_optimizer.buffer_count"
            text = (
                f"{self.settings.buffer_count} buffers; DeepSpeed needs {4 * at_once}, for master, moments "
                f"and gradient of {at_once} sub-group(s) at work, read ahead, written behind; it would stop"
            )
            raise InputError.at(key, text)

    # -- schedules ------------------------------------------------------------------------------

    @property
    def timing(self) -> TrainingTiming:
        """Durations on this machine."""
        return TrainingTiming(
            machine=self.machine,
            model=self.model,
            batch=self.workload.batch_size,
            length=self.workload.sequence_length,
        )

    @property
    def placement(self) -> Placement:
        """Where parameters live."""
        return Placement(self.places.weights, self.places.ranks, self.model.dtype_bytes, self.settings.params)

    def swapper(self) -> GradientSwapper | None:
        """Buffers of gradients on their way to storage; None if they stay in memory."""
        if not any(update.swapped for update in self.updates):
            return None
        settings = self.settings.params
        return GradientSwapper(
            tier=self.places.optimizer,
            buffers=self.settings.buffer_count,
            buffer_numel=max(update.group.numel for update in self.updates),
            alignment=aio_unit(settings.threads),
            smallest=settings.min_swap_bytes,
        )

    def schedule(self, part: StepPart) -> Schedule:
        """The operations of one part of a step."""
        swapper = self.swapper()
        write = self.step.writers.get(part.title)
        if write is not None and swapper is not None:
            self._fill(swapper)
        out = MicroStepWriter(
            name=part.title,
            placement=self.placement,
            settings=self.settings,
            timing=self.timing,
            stage=Stage(accumulates=part.micro_step > 0, boundary=part.boundary),
            swapper=swapper,
            hooks=self.step.hooks(),
            activations=self._activations(),
            staying=frozenset(
                id(tensor)
                for update in self.updates
                if update.on_gpu and not update.swapped
                for tensor in update.group.tensors
            ),
        )
        if write is not None:
            write(out, part)
            return out.build()
        walk = Walk(
            trace=self.trace,
            parameters=self.parameters,
            settings=self.settings,
            ranks=self.places.ranks,
            out=out,
        )
        if part.phase == "forward":
            walk.forward()
        else:
            walk.backward()
        return out.build()

    def _fill(self, swapper: GradientSwapper) -> None:
        """Leave in the swap buffers what backward has not filled one with."""
        for tensors in buckets(self.trace, self.parameters, self.settings.reduce_bucket_size):
            swapper.insert(_NoSink(), tensors)

    def _activations(self) -> ActivationOffload | None:
        """Copies of checkpoints, if those go to host memory."""
        work, model = self.workload, self.model
        if not (self.settings.cpu_checkpointing and work.gradient_checkpointing):
            return None
        size = work.tokens * model.hidden_size * model.dtype_bytes
        return ActivationOffload(
            size=size, layers=model.num_hidden_layers, version=self.settings.params.version
        )

    # -- bytes ----------------------------------------------------------------------------------

    @cached_property
    def peak(self) -> Peak | None:
        """What a walk through a micro-step gathers and reads; None below stage 3."""
        if self.settings.stage < 3:
            return None
        return gathered_peak(self.trace, self.parameters, self.settings, self.places.ranks)

    @cached_property
    def traffic(self) -> tuple[StorageTraffic, ...]:
        """What one step moves to and from storage, all ranks together."""
        moved = _by_tier(self.steady_io, lambda transfer: transfer.size * self.places.ranks)
        cycles = Fraction(self.workload.gradient_accumulation_steps, self.step.cycle)
        return tuple(
            StorageTraffic(tier, round(read * cycles), round(written * cycles))
            for tier, (read, written) in moved.items()
        )

    @cached_property
    def steady_io(self) -> tuple[StorageStage, ...]:
        """What one rank moves to and from storage from update to update of the steady state."""
        read = self.peak.read if self.peak else ()
        return steady_stages(self._files(read * self.step.cycle))

    @cached_property
    def first_io(self) -> tuple[StorageStage, ...]:
        """What one rank moves to and from storage from the start to the end of the first step."""
        passed: tuple[Tensor, ...] = ()
        if self.settings.stage == 3:
            walked = (self.trace, self.parameters, self.settings, self.places.ranks)
            later = self.peak.read if self.peak else ()
            first = gathered_peak(*walked, warm=False).read
            passed = (*first, *later * (self.workload.gradient_accumulation_steps - 1))
        return stages_until_first_step(self._files(passed))

    @property
    def requests(self) -> tuple[StorageRequests, ...]:
        """Whole requests of one rank from the start of the run to the end of its first step."""
        block, threads = self.settings.params.block_size, self.settings.params.threads
        counts = _by_tier(
            self.first_io, lambda transfer: full_requests(transfer.sizes, block=block, threads=threads)
        )
        return tuple(StorageRequests(tier, block, *sums) for tier, sums in counts.items())

    def _files(self, passed: Sequence[Tensor]) -> RankFiles:
        """One rank's files, with the partitions that forward and backward read."""
        return rank_files(
            self.updates,
            self.swapper(),
            passed=passed,
            dtype_bytes=self.model.dtype_bytes,
            alignment=aio_unit(self.settings.params.threads),
            tiers=(self.places.weights, self.places.optimizer),
        )

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """What each tier must hold at each stage of the run."""
        peak = self.peak
        return training_moments(
            self.model,
            self.workload,
            self.settings,
            self.machine,
            ranks=self.places.ranks,
            weights_tier=self.places.weights,
            optimizer_tier=self.places.optimizer,
            gathered_elements=peak.gathered if peak else None,
            gathered_while_reducing=peak.while_reducing if peak else None,
            gather_batch=peak.largest if peak else None,
            weight_bits=self.weight_bits,
        )

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """What DeepSpeed's own estimators and a rule of thumb would say."""
        settings, machine = self.settings, self.machine
        return estimates_for(
            self.model,
            stage=settings.stage,
            ranks=self.places.ranks,
            nodes=machine.nodes_of(self.places.ranks),
            offload_optimizer=settings.optimizer_device != "none",
            offload_params=settings.params.device not in (None, "none"),
        )


def _by_tier(
    stages: Sequence[StorageStage], measure: Callable[[Transfer], int]
) -> dict[str, tuple[int, int]]:
    """Sums over what is read from each tier, and over what is written to it."""
    sums: dict[str, tuple[int, int]] = {}
    for transfer in (one for stage in stages for one in stage.transfers):
        read, written = sums.get(transfer.tier, (0, 0))
        size = measure(transfer)
        sums[transfer.tier] = (read, written + size) if transfer.written else (read + size, written)
    return sums
