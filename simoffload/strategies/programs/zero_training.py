"""Training under ZeRO: states divided among the ranks, and kept in HBM, host memory or on storage.

This one strategy covers what DeepSpeed calls ZeRO-Offload (optimizer in host memory), ZeRO-Infinity (states
on storage) and Twin-Flow (``ratio``), which differ only in ds_config. References: Ren et al., ZeRO-Offload,
arXiv 2101.06840; Rajbhandari et al., ZeRO-Infinity, arXiv 2104.07857. ``micro_step`` and ``step`` replay
the mechanism.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from simoffload.documents import Edit, Frozen
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.models.lora import nf4_bits, with_lora
from simoffload.results import FROZEN_NF4, Change
from simoffload.strategies.base import Plan
from simoffload.strategies.ds_config import DeepSpeedConfig
from simoffload.strategies.ds_config.export import FILE, Work, exported_config, memory_settings, stages
from simoffload.strategies.ds_config.keys import ZeroSection, batch_problems
from simoffload.strategies.ds_config.settings import BITSANDBYTES, TrainingSettings, ZenFlow, resolve_training
from simoffload.strategies.held import Held
from simoffload.strategies.optimizers import PAGING_RATE, optimizer_changes, optimizer_script
from simoffload.strategies.programs.zero_strategy import (
    Written,
    ZeroStrategy,
    device_of,
    lora_moves,
    training_moves,
    within_config,
)
from simoffload.strategies.training.plan import ZeroTrainingPlan
from simoffload.strategies.training.state import Places, Update
from simoffload.strategies.tunables import AnyTier, Tunable, Tunables
from simoffload.units import plural
from simoffload.workload import Training

_QUANTIZED = (
    "times of nf4 weights are those of 16-bit ones: neither the smaller copies nor the dequantization are "
    "modelled; the memory is"
)
_SAME_SHARE = 0.005
"""Difference of shares below which messages would show the same percentage."""


class Lora(Frozen):
    """Lora configures LoRA adapters on frozen weights, with PEFT's names."""

    r: Annotated[int, Field(strict=True, ge=1, le=65_536)]
    """Rank of the adapters' matrices."""
    target_modules: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
    """Linear layers with adapters, by the end of their names: q_proj, v_proj, …"""
    quantize: Literal["nf4"] | None = None
    """Quantization of frozen weights to 4 bit (QLoRA)."""


class ZeroTraining(ZeroStrategy):
    """Training with states divided among the ranks, in HBM, host memory or on storage."""

    serves: ClassVar = frozenset({"training"})
    states: ClassVar = ("weights", "optimizer")

    kind: Literal["zero_training"] = "zero_training"
    optimizer: AnyTier | None = None
    """Tier of the optimizer states; by default the one that ``ds_config`` names."""
    cpu_threads: Annotated[int, Field(strict=True, ge=1, le=4096)] | None = None
    """Threads of each rank's optimizer on the CPU (``OMP_NUM_THREADS``); by default the host's cores over its
    ranks."""

    lora: Lora | None = None
    """Adapters that are trained instead of all weights."""

    def written(self, key: str) -> Written:
        """Return the offload section of ds_config; None for device "none", which does not contradict any
        tier."""
        section = super().written(key)
        return None if section is not None and section.device == "none" else section

    @property
    def trains(self) -> str:
        """Name of what is trained: adapters with LoRA, else all weights."""
        return "all weights" if self.lora is None else "adapters"

    def plan(self, model: ModelShape, workload: Training, machine: Machine) -> ZeroTrainingPlan:
        """Apply the strategy. Raises InputError for missing hardware and for settings that DeepSpeed
        refuses."""
        model, weight_bits = self._adapted(model)
        settings, warnings = self._settings(model, workload)
        weights, more = self.tier("weights", machine)
        optimizer, others = self.tier("optimizer", machine)
        settings = settings._replace(
            params=settings.params._replace(device=device_of(weights, machine)),
            optimizer_device=device_of(optimizer, machine),
        )
        _check_places(settings)
        threads = self.cpu_threads or machine.cores_per_rank(self.ranks)
        plan = ZeroTrainingPlan(
            model=model,
            workload=workload,
            machine=machine,
            settings=settings,
            places=Places(self.ranks, weights, optimizer, threads),
            warnings=(
                *warnings,
                *more,
                *others,
                *self.direct_warnings(settings.params, machine),
                *_mode_warnings(settings, workload),
                *_interval_warnings(self.ds_config.zero_optimization, settings),
                *([_QUANTIZED] if weight_bits is not None else []),
            ),
            weight_bits=weight_bits,
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
        why = "it trains all parameters, not adapters alone; leave strategy.lora out for that"
        yield self._placements(machine)._replace(no_copies="" if self.lora is None else why)
        if not isinstance(plan, ZeroTrainingPlan):
            return
        settings, above = plan.settings, tuple(stages(plan.settings))
        yield from training_moves(plan, above, ranks=self.ranks, buffer_size=settings.params.buffer_size)
        yield Tunable("partition", above)
        yield from memory_settings(settings)
        yield Tunable("precision", self._precisions())
        if self.lora is None:
            yield Tunable("adapters", lora_moves(plan.model))
        yield self.faster(plan)

    def _precisions(self) -> Iterator[Change]:
        """Yield frozen weights in 4 bit, if adapters are trained, and moments in 8 bit or paged, if they are
        on the GPU."""
        if self.lora is not None and self.lora.quantize is None:
            edits = (Edit(("strategy", "lora", "quantize"), "nf4"),)
            yield Change("precision", "frozen weights in nf4 (QLoRA)", edits, quality=FROZEN_NF4)
        offloads = self.written("optimizer") is not None or self.optimizer not in (None, "hbm")
        if not offloads:  # its kernels need states on the GPU
            section = self.ds_config.optimizer
            now = section.type if section is not None else None
            yield from optimizer_changes(("strategy", "ds_config", "optimizer", "type"), now=now)

    def exports(self, plan: Plan) -> dict[str, Any]:
        """Return the configuration files with which DeepSpeed runs the plan: content by name."""
        assert isinstance(plan, ZeroTrainingPlan)
        workload = plan.workload
        work = Work(
            self.ranks,
            workload.batch_size,
            plan.model.dtype,
            workload.gradient_accumulation_steps,
            self.swap_path("weights", plan.places.weights, plan.machine),
            self.swap_path("optimizer", plan.places.optimizer, plan.machine),
        )
        config = exported_config(self.ds_config, plan.settings, work)
        if plan.settings.optimizer not in BITSANDBYTES or self.ds_config.optimizer is None:
            return {FILE: config}
        # DeepSpeed knows none of them by name: the program passes it to deepspeed.initialize.
        config = {key: value for key, value in config.items() if key != "optimizer"}
        script = optimizer_script(self.ds_config.optimizer.type)
        return {FILE: config | {"zero_allow_untested_optimizer": True}, "optimizer.py": script}

    def _adapted(self, model: ModelShape) -> tuple[ModelShape, float | None]:
        """Return the model with its adapters, and the size of an element of frozen weights [bit]."""
        if self.lora is None:
            return model, None
        try:
            adapted = with_lora(model, r=self.lora.r, target_modules=self.lora.target_modules)
        except InputError as error:
            raise InputError(one._replace(key=f"strategy.{one.key}") for one in error.problems) from None
        return adapted, nf4_bits() if self.lora.quantize else None

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


def _check_places(settings: TrainingSettings) -> None:
    """Raise InputError for combinations of tiers that DeepSpeed refuses."""
    params, optimizer = settings.params.device, settings.optimizer_device
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


def _interval_warnings(zero: ZeroSection, settings: TrainingSettings) -> Iterator[str]:
    """Yield a warning if ZenFlow's update interval depends on the gradients."""
    if zero.zenflow is not None and settings.zenflow is not None and zero.zenflow.update_interval == "auto":
        yield (
            'zenflow.update_interval "auto" depends on the gradients; '
            f"{settings.zenflow.update_interval} micro-steps are assumed"
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


def _zenflow(zenflow: ZenFlow, accumulation: int) -> Iterator[str]:
    interval = zenflow.update_interval
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
    if zenflow.select_interval % interval:
        yield (
            f"zenflow.select_interval {zenflow.select_interval} is not a multiple of update_interval "
            f"{interval}: DeepSpeed updates at each selection, too, which is left out"
        )


# -- whole copies: stage 0 ----------------------------------------------------------------------

_ZERO_TRAINING = Edit.at("strategy.kind", "zero_training")
_DIVIDE = "set strategy.kind: zero_training, which divides and offloads them"


def plan_whole_copies(model: ModelShape, workload: Training, machine: Machine, *, ranks: int) -> Plan:
    """Return the plan of plain data parallelism, with a full copy on every GPU (ZeRO stage 0)."""
    config = DeepSpeedConfig.model_validate({"zero_optimization": {"stage": 0}})
    plan = ZeroTraining(ranks=ranks, ds_config=config).plan(model, workload, machine)
    return _WholeCopiesTrained(**{one.name: getattr(plan, one.name) for one in fields(plan)})


def stages_of_zero(plan: Plan) -> Iterator[Change]:
    """Yield the stages of ZeRO for training."""
    if isinstance(plan, ZeroTrainingPlan):
        for stage in stages(plan.settings):
            yield stage._replace(edits=(_ZERO_TRAINING, *stage.edits))


@dataclass(frozen=True)
class _WholeCopiesTrained(ZeroTrainingPlan):
    """Plan of plain data parallelism: ZeRO stage 0, with no settings that reduce memory."""

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """What each tier holds, with another strategy as the remedy."""
        return tuple(
            one._replace(remedy=_DIVIDE)
            if one.remedy and not one.remedy.startswith("lower batch_size")
            else one
            for one in super().held
        )
