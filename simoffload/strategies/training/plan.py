"""Plan of a training run under ZeRO on a machine: places of its states, and the schedules of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial

from simoffload.hardware import Machine
from simoffload.models import ModelShape, Sequences
from simoffload.results import Estimate, Facts, StorageRequests
from simoffload.schedule import Schedule
from simoffload.strategies.base import Basis
from simoffload.strategies.ds_config import DeepSpeedConfig
from simoffload.strategies.ds_config.settings import TrainingSettings
from simoffload.strategies.held import Held
from simoffload.strategies.optimizers import paged_out, with_paging
from simoffload.strategies.passes.pass_writer import StagePass
from simoffload.strategies.passes.period import Recurrence
from simoffload.strategies.passes.streams import Routes
from simoffload.strategies.passes.timing import TrainingTiming, ranks_beyond
from simoffload.strategies.plan import StepPart, StepWork
from simoffload.strategies.programs.checkpoint import CheckpointPlan, config_warnings, plan_of_training
from simoffload.strategies.training.memory import estimates_for, held_in_training
from simoffload.strategies.training.micro_step import (
    ActivationOffload,
    MicroStep,
    MicroStepWriter,
    ReplayPeaks,
    TrainedLayers,
    TrainingStreams,
    gathered_peak,
)
from simoffload.strategies.training.state import (
    GradientSwapper,
    Places,
    RankFiles,
    StorageStage,
    TrainingState,
    check_buffers,
    sums_of,
)
from simoffload.strategies.training.step import StepPlan, SuperOffloadStep, ZenFlowStep
from simoffload.strategies.zero.coordinator import Tensor
from simoffload.strategies.zero.replay import LayerStack, Parameters
from simoffload.strategies.zero.trace import parts_of_training
from simoffload.workload import Training, TrainingCheckpoints


@dataclass(frozen=True)
class ZeroTrainingPlan(StepWork):
    """A ZeroTrainingPlan is the plan of training under ZeRO for one model on one machine."""

    model: ModelShape
    workload: Training
    machine: Machine
    settings: TrainingSettings
    places: Places
    warnings: tuple[str, ...] = ()
    weight_bits: float | None = None
    """Size of an element of quantized frozen weights [bit]; None if they are not quantized."""
    config: DeepSpeedConfig = field(default_factory=DeepSpeedConfig)
    """Configuration from which the settings of the run and of its checkpoints are read."""
    saved: CheckpointPlan | None = None
    """Plan of the run's checkpoints; None if it saves none."""

    @property
    def basis(self) -> Basis:
        """Numbers on which its times rest, with warnings about those used outside of their range."""
        beyond = ranks_beyond(self.places.ranks, self.machine, costs=self.machine.host.deepspeed)
        return super().basis._replace(extrapolations=tuple(beyond))

    @cached_property
    def step(self) -> StepPlan:
        """Step of the configured mode: plain, ZenFlow or SuperOffload."""
        if self.settings.zenflow is not None:
            return ZenFlowStep(self)
        return SuperOffloadStep(self) if self.settings.super_offload else StepPlan(self)

    @property
    def processes(self) -> int:
        """Number of ranks on one host."""
        return self.machine.ranks_per_node(self.places.ranks)

    @property
    def parts(self) -> tuple[StepPart, ...]:
        """Parts of one step of a long run."""
        return self.step.parts

    # -- state ----------------------------------------------------------------------------------

    @cached_property
    def state(self) -> TrainingState:
        """State of the run: tensors, partitions and sub-groups, with their tiers."""
        return TrainingState(self.model, self.settings, self.places, self.weight_bits)

    @cached_property
    def parameters(self) -> Parameters:
        """All tensors with their partitions, and the modules that use them."""
        return self.layered.full.parameters

    @cached_property
    def layered(self) -> TrainedLayers:
        """Model for replays with any number of its layers."""
        return TrainedLayers(self.state, self.workload)

    def check(self) -> None:
        """Raise InputError for settings that DeepSpeed refuses at start-up."""
        self.step.check()
        check_buffers(self.state)

    # -- schedules ------------------------------------------------------------------------------

    @cached_property
    def timing(self) -> TrainingTiming:
        """Durations of modules on this machine."""
        return TrainingTiming(
            machine=self.machine,
            model=self.model,
            batch=self.workload.batch_size,
            length=self.workload.sequence_length,
            zero3=self.settings.stage == 3,
        )

    def schedule(self, part: StepPart) -> Schedule:
        """Return the schedule of one part of a step."""
        if part.kind != "pass":
            out = MicroStepWriter(self, part, TrainingStreams())
            if out.swapper is not None:
                self.layered.fill(out.swapper)
            self.step.write(out, part)
            return out.build()
        backward, work = part.phase == "backward", self.workload
        batch = (Sequences(work.batch_size, work.sequence_length, work.sequence_length),)
        for stack in self._stacks(part):
            layers = stack.trace.layers
            hook = MicroStep(stack, self.state, self._activations(layers), part)
            out = MicroStepWriter(self, part, hook)
            parts = parts_of_training(self.model.of_layers(layers), stack.trace, backward=backward)
            recurrence = Recurrence(stack.backward if backward else stack.forward)
            schedule = out.write([StagePass(parts, self.timing, batch, recurrence=recurrence)])
            if hook.recurs and recurrence.found:
                break
        return schedule

    @cached_property
    def routes(self) -> Routes:
        """Cache of the routes of transfers, which all parts share."""
        return {}

    def _stacks(self, part: StepPart) -> Iterator[LayerStack]:
        """Yield the stacks that can represent the model in a pass, the shortest first."""
        if part.phase == "forward":
            return self.layered.stacks()
        swaps = part.boundary and self.settings.stage == 3 and self.settings.optimizer_device != "none"
        return self.layered.stacks_back(GradientSwapper.of(self.state) if swaps else None)

    def _activations(self, layers: int) -> ActivationOffload | None:
        """Return the copies of checkpoints to host memory, for a model with so many ``layers``."""
        work, model = self.workload, self.model
        if not (self.settings.cpu_checkpointing and work.gradient_checkpointing):
            return None
        size = work.tokens * model.hidden_size * model.dtype_bytes
        return ActivationOffload(size=size, layers=layers, version=self.settings.params.version)

    # -- bytes ----------------------------------------------------------------------------------

    @cached_property
    def peak(self) -> ReplayPeaks | None:
        """Peaks and reads of a replayed micro-step; None below stage 3."""
        return self._peak(warm=True) if self.settings.stage == 3 else None

    def _peak(self, *, warm: bool) -> ReplayPeaks:
        stacks = self.layered.stacks_back(None, warm=warm)
        peaks = (gathered_peak(stack, self.state, warm=warm) for stack in stacks)
        return next(found for found in peaks if found is not None)  # that of the whole, at the latest

    def saving(self, options: TrainingCheckpoints) -> ZeroTrainingPlan:
        """Return the plan with checkpoints as ``options`` and ds_config specify; InputError for conflicts."""
        saved = plan_of_training(options, self)
        found = replace(self, saved=saved, warnings=(*self.warnings, *config_warnings(self.config)))
        vars(found).update({name: value for name, value in vars(self).items() if name not in vars(found)})
        return found

    @property
    def facts(self) -> Facts:
        """FLOP, requests to storage and published memory estimates."""
        return replace(super().facts, requests=self.requests, estimates=self.estimates)

    @cached_property
    def _transferred(self) -> Mapping[str, tuple[Fraction, Fraction]]:
        """Bytes that one step of all ranks reads and writes of each kind of files."""
        cycles = Fraction(self.workload.gradient_accumulation_steps, self.step.cycle)
        sums = sums_of(self.steady_io, lambda one: self.places.ranks * one.size, by=lambda one: one.what)
        return {what: (cycles * read, cycles * written) for what, (read, written) in sums.items()}

    @cached_property
    def steady_io(self) -> tuple[StorageStage, ...]:
        """Transfers of one rank to and from storage in one later step."""
        read = self.peak.read if self.peak else ()
        return self._files.steady([(read, self.step.cycle)])

    @cached_property
    def first_io(self) -> tuple[StorageStage, ...]:
        """Transfers of one rank to and from storage until the end of the first step."""
        passed: list[tuple[Sequence[Tensor], int]] = []
        if self.settings.stage == 3:
            later = self.peak.read if self.peak else ()
            first = self._peak(warm=False).read
            passed = [(first, 1), (later, self.workload.gradient_accumulation_steps - 1)]
        return self._files.until_first_step(passed)

    @cached_property
    def _files(self) -> RankFiles:
        """Files that one rank reads and writes."""
        return RankFiles(self.state)

    @property
    def requests(self) -> tuple[StorageRequests, ...]:
        """Full-size requests of one rank from the start of the run to the end of its first step."""
        block, threads = self.settings.params.block_size, self.settings.params.threads
        counts = sums_of(self.first_io, lambda one: one.full_requests(block=block, threads=threads))
        return tuple(StorageRequests(tier, block, *sums) for tier, sums in counts.items())

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """What each tier holds at each stage of the run."""
        found = held_in_training(self.state, self.workload, self.machine, peak=self.peak)
        stored = {name for name, tier in self.machine.tiers.items() if tier.is_storage}
        return tuple(
            one._replace(traffic=partial(self._traffic, one.name)) if one.tier in stored else one
            for one in with_paging(found, self.machine, per_host=self.processes)
        )

    def _traffic(self, name: str) -> tuple[Fraction, Fraction]:
        """Return the bytes that all ranks read and write in one step of files with a name."""
        return self._transferred.get(name, (Fraction(0), Fraction(0)))

    @cached_property
    def paged_out(self) -> int:
        """[B] of moments that one GPU pages out in each step, and back."""
        if not self.settings.optimizer.startswith("Paged"):
            return 0
        return paged_out(self.held, per_host=self.processes)

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """Memory that DeepSpeed's own estimators and a rule of thumb give."""
        settings, machine = self.settings, self.machine
        return estimates_for(
            self.model,
            stage=settings.stage,
            ranks=self.places.ranks,
            nodes=machine.nodes_of(self.places.ranks),
            offload_optimizer=settings.optimizer_device != "none",
            offload_params=settings.params.device not in (None, "none"),
        )
