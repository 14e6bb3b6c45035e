"""Training under ZeRO: states divided among the ranks, and kept in HBM, host memory or on storage.

This one strategy covers what DeepSpeed calls ZeRO-Offload (optimizer in host memory), ZeRO-Infinity (states
on storage) and Twin-Flow (``ratio``), which differ only in ds_config. References: Ren et al., ZeRO-Offload,
arXiv 2101.06840; Rajbhandari et al., ZeRO-Infinity, arXiv 2104.07857. ``micro_step`` and ``step`` replay
the mechanism.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine, in_hbm
from simoffload.models import SINGLE, ModelShape, Repeated
from simoffload.results import Change, Estimate, Facts, StorageRequests
from simoffload.schedule import Schedule
from simoffload.strategies.base import AnyTier, Description, EvidenceBasis, Held, Plan, Tunable, Tunables
from simoffload.strategies.ds_config import (
    BITSANDBYTES,
    FILE,
    DeepSpeedConfig,
    TrainingSettings,
    Use,
    ZenFlowSection,
    batch_problems,
    exported_config,
    memory_settings,
    resolve_training,
    stages,
)
from simoffload.strategies.passes.pass_writer import Routes, StagePass
from simoffload.strategies.passes.timing import TRAINED_PASS, ranks_beyond, without_deepspeed
from simoffload.strategies.plan import StepPart, StepWork
from simoffload.strategies.programs.zero_strategy import (
    Written,
    ZeroStrategy,
    device_of,
    training_moves,
    within_config,
)
from simoffload.strategies.training.adapters import (
    PEFT,
    Lora,
    lora_moves,
    quantized_base,
    work_of,
)
from simoffload.strategies.training.memory import TrainingMemory, estimates_for
from simoffload.strategies.training.micro_step import (
    ActivationOffload,
    MicroStep,
    MicroStepWriter,
    ReplayPeaks,
    TrainedLayers,
    TrainingStreams,
    trained_layers,
)
from simoffload.strategies.training.state import (
    PAGING_RATE,
    Places,
    RankFiles,
    StorageStage,
    TorchTraining,
    TrainingState,
    Update,
    check_buffers,
    optimizer_changes,
    optimizer_script,
    paged_out,
    sums_of,
    with_paging,
)
from simoffload.strategies.training.step import (
    StepPlan,
    SuperOffloadStep,
    TorchStep,
    ZenFlowStep,
)
from simoffload.strategies.zero.coordinator import Tensor
from simoffload.strategies.zero.replay import LayerStack, Parameters
from simoffload.strategies.zero.trace import parts_of_training
from simoffload.units import plural
from simoffload.workload import Training


class ZeroTraining(ZeroStrategy):
    """Training with states divided among the ranks, in HBM, host memory or on storage."""

    serves: ClassVar = frozenset({"training"})
    states: ClassVar = ("weights", "optimizer")

    kind: Literal["deepspeed"] = "deepspeed"
    optimizer: AnyTier | None = None
    """Tier of the optimizer states; by default the one that ``ds_config`` names."""
    cpu_threads: Annotated[int, Field(strict=True, ge=1, le=4096)] | None = None
    """Threads of each rank's optimizer on the CPU (``OMP_NUM_THREADS``); by default all cores of the host, as
    ``deepspeed`` sets none, with SuperOffload and ZenFlow those over its ranks (``--bind_cores_to_rank``)."""

    lora: Lora | None = None
    """Adapters that are trained instead of all weights."""

    def written(self, key: str) -> Written:
        """Return the offload section of ds_config; None for device "none", which does not contradict any
        tier."""
        section = super().written(key)
        return None if section is not None and section.device == "none" else section

    @property
    def description(self) -> Description:
        """DeepSpeed with the version of the scenario, and what is trained: adapters with LoRA."""
        found = super().description
        if self.lora is None:
            return found
        return found._replace(program=f"{found.program} and {PEFT}", trains="adapters")

    def plan(self, model: ModelShape, workload: Training, machine: Machine) -> ZeroTrainingPlan:
        """Apply the strategy. Raises InputError for missing hardware and for settings that DeepSpeed
        refuses."""
        if self.lora is not None:
            model = self.lora.adapt(model, machine)
        settings, warnings = self._settings(model, workload)
        weights, more = self.tier("weights", machine)
        optimizer, others = self.tier("optimizer", machine)
        settings = settings._replace(
            params=settings.params._replace(device=device_of(weights, machine)),
            optimizer_device=device_of(optimizer, machine),
        )
        _check_places(settings, model)
        plan = ZeroTrainingPlan(
            model=model,
            workload=workload,
            machine=machine,
            settings=settings,
            places=Places(self.ranks, weights, optimizer, self._threads(settings, machine)),
            warnings=(
                *warnings,
                *more,
                *others,
                *self.precision_warnings(model),
                *self.direct_warnings(settings.params, machine),
                *_mode_warnings(settings, workload),
                *(self.lora.warnings if self.lora is not None else ()),
            ),
            config=self.ds_config,
        )
        plan.check()
        if plan.paged_out:
            plan = replace(plan, warnings=(*plan.warnings, PAGING_RATE))
        if settings.ratio == 1.0:
            return plan
        return replace(plan, warnings=(*plan.warnings, *_share_warnings(settings, plan.state.updates)))

    def tunables(self, machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield the tiers, stages and settings of ZeRO, adapters, and states with fewer bits."""
        yield self._placements(machine)._replace(kept=work_of(self.lora))
        if not isinstance(plan, ZeroTrainingPlan):
            return
        settings, above = plan.settings, tuple(stages(plan.settings))
        yield from training_moves(plan, above, self.ranks, settings.params.buffer_size)
        yield Tunable("partition", above)
        yield from memory_settings(self.ds_config, self._use(plan))
        yield Tunable("precision", self._precisions(plan.model))
        if self.lora is None:
            there = machine.row(plan.places.weights).is_gpu
            on_gpu = () if there else (Edit.at("strategy.weights", "hbm"),)
            yield Tunable("adapters", lora_moves(plan.model, self.kind, self.ranks, packed=on_gpu))
        yield self.faster(plan)

    def _threads(self, settings: TrainingSettings, machine: Machine) -> int:
        """Return the threads of each rank: their number was set, or the launcher leaves it."""
        divides = settings.super_offload or settings.zenflow is not None
        left = machine.cores_per_rank(self.ranks) if divides else machine.host.cpu_optimizer.cores.value
        return self.cpu_threads or left

    def _use(self, plan: ZeroTrainingPlan) -> Use:
        work, tiers = plan.workload, {"weights": plan.places.weights, "optimizer": plan.places.optimizer}
        use, steps = self.use(plan.model, tiers, plan.machine), work.gradient_accumulation_steps
        return use._replace(batch=work.batch_size, accumulation=steps)

    def _precisions(self, model: ModelShape) -> Iterator[Change]:
        """Yield frozen weights in 4 bit, if adapters are trained, and moments in 8 bit or paged, if they are
        on the GPU."""
        if self.lora is not None:
            yield from quantized_base(model)
        offloads = self.written("optimizer") is not None or not in_hbm(self.optimizer or "hbm")
        if not offloads:  # its kernels need states on the GPU
            section = self.ds_config.optimizer
            now = section.type if section is not None else None
            yield from optimizer_changes(("strategy", "ds_config", "optimizer", "type"), now=now)

    def exports(self, plan: Plan) -> dict[str, Any]:
        """Return the configuration files with which DeepSpeed runs the plan: content by name."""
        assert isinstance(plan, ZeroTrainingPlan)
        config, adapters = exported_config(self.ds_config, self._use(plan)), dict[str, Any]()
        if self.lora is not None:
            adapters = self.lora.files(plan.model, divided=plan.zero3)
        if plan.settings.optimizer not in BITSANDBYTES or self.ds_config.optimizer is None:
            return {FILE: config, **adapters}
        # DeepSpeed knows none of them by name: the program passes it to deepspeed.initialize.
        config = {key: value for key, value in config.items() if key != "optimizer"}
        script = optimizer_script(self.ds_config.optimizer.type)
        return {FILE: config | {"zero_allow_untested_optimizer": True}, "optimizer.py": script, **adapters}

    def _settings(self, model: ModelShape, workload: Training) -> tuple[TrainingSettings, tuple[str, ...]]:
        problems = batch_problems(
            self.ds_config,
            batch=workload.batch_size,
            accumulation=workload.gradient_accumulation_steps,
            ranks=self.ranks,
        )
        try:
            found = resolve_training(
                self.ds_config,
                version=self.deepspeed_version,
                hidden_size=model.hidden_size,
                dtype_bytes=model.dtype_bytes,
            )
        except InputError as error:
            raise within_config(problems + list(error.problems)) from None
        if problems:
            raise within_config(problems)
        return found


@dataclass(frozen=True)
class ZeroTrainingPlan(StepWork):
    """A ZeroTrainingPlan is the plan of training under ZeRO for one model on one machine."""

    model: ModelShape
    workload: Training
    machine: Machine
    settings: TrainingSettings
    places: Places
    warnings: tuple[str, ...] = ()
    config: DeepSpeedConfig = field(default_factory=DeepSpeedConfig)
    """Configuration from which the settings of the run and of its checkpoints are read."""
    saved: Plan | None = None
    """Plan of the run's checkpoints; None if it saves none."""
    saves: ClassVar = True
    torch: TorchTraining | None = None
    """How PyTorch trains without DeepSpeed; None under it."""

    @property
    def basis(self) -> EvidenceBasis:
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
        return self.layered.state

    @cached_property
    def parameters(self) -> Parameters:
        """All tensors with their partitions, and the modules that use them."""
        return self.layered.full.parameters

    @cached_property
    def layered(self) -> TrainedLayers:
        """Model for replays with any number of its layers."""
        state = TrainingState(self.model, self.settings, self.places)
        return trained_layers(state, self.workload)

    def check(self) -> None:
        """Raise InputError for settings that DeepSpeed refuses at start-up."""
        self.step.check()
        check_buffers(self.state)

    # -- schedules ------------------------------------------------------------------------------

    @property
    def zero3(self) -> bool:  # type: ignore[override]  # given by the settings
        """Whether ZeRO-3 runs the modules."""
        return self.settings.stage == 3

    def schedule(self, part: StepPart) -> Schedule:
        """Return the schedule of one part of a step."""
        if part.kind != "pass":
            out = MicroStepWriter(self, part, TrainingStreams())
            if out.swapper is not None:
                self.layered.fill(out.swapper)
            self.step.write(out, part)
            return out.build()
        backward = part.phase == "backward"
        for stack in self._stacks(part):
            layers = stack.trace.layers
            decisions = self.layered.decisions(stack) if self.zero3 else None
            hook = MicroStep(stack, decisions, self.state, self._activations(layers), part)
            out = MicroStepWriter(self, part, hook)
            parts = parts_of_training(
                self.model.of_layers(layers),
                stack.trace,
                backward=backward,
                layers=self.model.num_hidden_layers,
            )
            schedule = out.write([StagePass(parts, self.timing, self.batch)])
            if hook.complete:
                break
        return schedule

    @cached_property
    def routes(self) -> Routes:
        """Cache of the routes of transfers, which all parts share."""
        return {}

    def _stacks(self, part: StepPart) -> Iterator[LayerStack]:
        """Yield the stacks that can represent the model in a pass, the shortest first."""
        return self.layered.stacks() if part.phase == "forward" else self.layered.stacks_back(reduces=False)

    def _activations(self, layers: int) -> ActivationOffload | None:
        """Return the copies of checkpoints to host memory, for a model with so many ``layers``."""
        work, model = self.workload, self.model
        if not (self.settings.cpu_checkpointing and work.gradient_checkpointing):
            return None
        size = work.tokens * model.hidden_size * model.dtype_bytes
        return ActivationOffload(size=size, layers=layers, version=self.settings.params.version)

    def overhead_s(self, _part: StepPart, /) -> float:
        """Host time of a part beside its modules [s]."""
        return self.machine.host.deepspeed.pass_overhead.value

    # -- bytes ----------------------------------------------------------------------------------

    @cached_property
    def peak(self) -> ReplayPeaks | None:
        """Peaks and reads of a replayed micro-step; None below stage 3."""
        return self.layered.peak(warm=True) if self.zero3 else None

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
        read = self.peak.read if self.peak else Repeated[Tensor]()
        return RankFiles(self.state).steady([(read, self.step.cycle)])

    @cached_property
    def first_io(self) -> tuple[StorageStage, ...]:
        """Transfers of one rank to and from storage until the end of the first step."""
        passed: list[tuple[Repeated[Tensor], int]] = []
        if self.zero3:
            later = self.peak.read if self.peak else Repeated[Tensor]()
            stored = self.settings.params.device == "nvme"
            first = self.layered.peak(warm=False).read if stored else later
            passed = [(first, 1), (later, self.workload.gradient_accumulation_steps - 1)]
        return RankFiles(self.state).until_first_step(passed)

    @property
    def requests(self) -> tuple[StorageRequests, ...]:
        """Full-size requests of one rank from the start of the run to the end of its first step."""
        block, threads = self.settings.params.block_size, self.settings.params.threads
        counts = sums_of(self.first_io, lambda one: one.full_requests(block=block, threads=threads))
        return tuple(StorageRequests(tier, block, *sums) for tier, sums in counts.items())

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """What each tier holds at each stage of the run."""
        found = TrainingMemory(self.state, self.workload, self.machine, self.peak, self.torch).held()
        stored = {name for name, tier in self.machine.tiers.items() if tier.row.is_storage}
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
        if not self.settings.optimizer.startswith("paged"):
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


# --------------------------------------------------------------------------------------------------
# Checks of a training run under ZeRO, and what is said of it.


_SAME_SHARE = 0.005
"""Difference of shares below which messages would show the same percentage."""


def _check_places(settings: TrainingSettings, model: ModelShape) -> None:
    """Raise InputError for combinations of tiers that DeepSpeed refuses."""
    params, optimizer = settings.params.device, settings.optimizer_device
    if model.quantization is not None and params not in (None, "none"):
        text = (
            "ZeRO-3 trains adapters on weights of bitsandbytes with all parameters on the GPUs alone (PEFT's "
            "guide sets offload_param: none); write hbm, use strategy.kind: fsdp with cpu_offload, or remove "
            "model.quantization"
        )
        raise InputError.at("strategy.weights", text)
    if settings.stage < 3 and params != "none":
        text = f"parameters leave the GPU only in stage 3, not {settings.stage}"
        raise InputError.at("strategy.weights", text)
    if settings.stage < 3 and optimizer == "nvme":
        text = f"the optimizer goes to storage only in stage 3, not {settings.stage}"
        raise InputError.at("strategy.optimizer", text)
    if settings.stage == 0 and optimizer != "none":
        raise InputError.at("strategy.optimizer", "stage 0 offloads nothing")
    if settings.optimizer.startswith("paged") and optimizer != "none":
        text = "bitsandbytes pages out moments on the GPU alone; leave the optimizer there, or take AdamW"
        raise InputError.at("strategy.ds_config.optimizer.type", text)
    if settings.zenflow is not None and optimizer == "none":
        text = "ZenFlow needs the optimizer in host memory or on storage, not on the GPU"
        raise InputError.at("strategy.optimizer", text)
    if settings.super_offload and optimizer != "cpu":
        text = "SuperOffload needs the optimizer in host memory"
        raise InputError.at("strategy.optimizer", text)
    if params == "nvme" and optimizer == "none":
        text = "DeepSpeed refuses parameters on storage with the optimizer on the GPU; name a tier"
        raise InputError.at("strategy.optimizer", text)


def _mode_warnings(settings: TrainingSettings, workload: Training) -> Iterator[str]:
    """Yield warnings about effects of a mode that the simulated step does not show."""
    if settings.zenflow is not None:
        yield from _zenflow(settings.zenflow, workload.gradient_accumulation_steps)
    if settings.super_offload and settings.gradient_clipping:
        yield "gradient_clipping keeps SuperOffload from updating during backward: the step comes afterwards"
    if settings.cpu_checkpointing and workload.gradient_checkpointing:
        yield (
            "ds_config activation_checkpointing.cpu_checkpointing: only DeepSpeed's own checkpoint function "
            "(deepspeed.checkpointing.checkpoint) reads it; Hugging Face's gradient checkpointing does not"
        )
    elif settings.cpu_checkpointing:
        yield (
            "ds_config activation_checkpointing.cpu_checkpointing: without the workload's "
            "gradient_checkpointing there are no checkpoints to offload"
        )
    if settings.zenflow is not None and settings.zenflow.update_interval == "auto":
        yield (
            'zenflow.update_interval "auto" depends on the gradients; '
            f"{settings.zenflow.interval} micro-steps are assumed"
        )


def _share_warnings(settings: TrainingSettings, updates: Sequence[Update]) -> Iterator[str]:
    """Yield a warning about ``ratio``: only whole sub-groups go to the CPU (``_create_fp32_partitions``)."""
    asked, groups = settings.ratio, len(updates)
    zero = f"ds_config offload_optimizer.ratio {asked:g}"
    if settings.optimizer_device == "none":
        yield f"{zero}: without an offloaded optimizer it does nothing"
        return
    on_storage = sum(update.on_gpu and update.swapped for update in updates)
    if on_storage:
        yield (
            f"{zero}: states on storage stay there and are updated on the CPU, those of {on_storage} of "
            f"{plural(groups, 'sub-group')} by PyTorch's slower Adam"
        )
        return
    on_cpu = [update.numel for update in updates if not update.on_gpu]
    share = sum(on_cpu) / max(1, sum(update.numel for update in updates))
    if abs(share - asked) >= _SAME_SHARE:
        yield (
            f"{zero} of {plural(groups, 'sub-group')} puts {len(on_cpu)} on the CPU, {share:.0%} of the "
            "parameters; a smaller sub_group_size comes closer"
        )


def _zenflow(zenflow: ZenFlowSection, accumulation: int) -> Iterator[str]:
    interval = zenflow.interval
    if accumulation != interval:
        yield (
            f"ZenFlow updates on the CPU every {interval} micro-steps (update_interval) instead of "
            f"gradient_accumulation_steps; a step here is {plural(accumulation, 'micro-step')} all the same"
        )
    if zenflow.full_warm_up_rounds:
        yield (
            f"ZenFlow's first {zenflow.full_warm_up_rounds} micro-steps (full_warm_up_rounds) update "
            "everything and take longer; the result is a later step"
        )
    if zenflow.selects_every % interval:
        yield (
            f"zenflow.select_interval {zenflow.selects_every} is not a multiple of update_interval "
            f"{interval}: DeepSpeed updates at each selection, too, which is left out"
        )


# -- whole copies: stage 0 ----------------------------------------------------------------------


_ZERO_TRAINING = Edit.at("strategy.kind", "deepspeed")
_DIVIDE = "set strategy.kind: deepspeed, which divides and offloads them"


def plan_whole_copies(
    model: ModelShape,
    workload: Training,
    machine: Machine,
    *,
    ranks: int,
    lora: Lora | None = None,
    mixed_precision: bool = True,
    fused: bool = True,
) -> Plan:
    """Return the plan of plain data parallelism, with a full copy on every GPU (ZeRO stage 0) that PyTorch
    trains.

    DeepSpeed gives adapters the model's data type; PEFT alone keeps them in single precision. All weights are
    in single precision with ``mixed_precision``, and AdamW may be ``fused``.
    """
    config = DeepSpeedConfig.model_validate({"zero_optimization": {"stage": 0}})
    if lora is not None:
        model = lora.adapt(model, machine, single=lora.autocast_adapter_dtype, autocast=mixed_precision)
    plan = ZeroTraining(ranks=ranks, ds_config=config).plan(model, workload, machine)
    given = {one.name: getattr(plan, one.name) for one in fields(plan)}
    given["warnings"] = (*plan.warnings, *(lora.warnings if lora is not None else ()))
    single = mixed_precision if lora is None else lora.autocast_adapter_dtype
    element = SINGLE if single else model.dtype_bytes
    casts = lora is None and element != model.dtype_bytes
    given["torch"] = TorchTraining(element, casts=casts, fused=fused)
    given["settings"] = plan.settings._replace(gradient_bytes=element)
    return _WholeCopiesTrained(**given)


def stages_of_zero(plan: Plan) -> Iterator[Change]:
    """Yield the stages of ZeRO for training."""
    if isinstance(plan, ZeroTrainingPlan):
        for stage in stages(plan.settings):
            yield stage._replace(edits=(_ZERO_TRAINING, *stage.edits))


@dataclass(frozen=True)
class _WholeCopiesTrained(ZeroTrainingPlan):
    """Plan of plain data parallelism: ZeRO stage 0, with no settings that reduce memory, and without
    DeepSpeed itself, whose launches take longer."""

    @cached_property
    def step(self) -> StepPlan:
        """AdamW of PyTorch, with gradients that autograd leaves in place."""
        assert self.torch is not None
        return TorchStep(self, self.torch)

    @property
    def casts(self) -> int:  # type: ignore[override]  # given by the precision
        """[B] of traffic per element with which weights of products are cast in each pass."""
        assert self.torch is not None
        return self.torch.element + self.model.dtype_bytes if self.torch.casts else 0

    def overhead_s(self, part: StepPart, /) -> float:
        """Host time of a part beside its modules [s]: of the operations that a forward pass has there."""
        return TRAINED_PASS * self.timing.operation_s if part.phase == "forward" else 0.0

    @property
    def launch_factor(self) -> float:
        """Host time of launches over that under DeepSpeed, as in inference."""
        return without_deepspeed(self.machine)

    @property
    def basis(self) -> EvidenceBasis:
        """Numbers on which its times rest: of operations without DeepSpeed."""
        return super().basis._replace(host_costs=(self.machine.host.eager_costs.operation,))

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """What each tier holds, with another strategy as the remedy."""
        return tuple(
            one._replace(remedy=_DIVIDE)
            if one.remedy and not one.remedy.startswith("lower batch_size")
            else one
            for one in super().held
        )
