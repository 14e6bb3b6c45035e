"""Training under ZeRO: states partitioned over the ranks, and kept in HBM, host memory or on storage.

One strategy for what DeepSpeed calls ZeRO-Offload (optimizer in host memory), ZeRO-Infinity (states on
storage) and Twin-Flow (``ratio``): they differ in ds_config only. References: Ren et al., ZeRO-Offload,
arXiv 2101.06840; Rajbhandari et al., ZeRO-Infinity, arXiv 2104.07857; the mechanism is replayed by ``walk``,
``writer`` and ``optimizer``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product, starmap
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from simoffload.documents import Edit
from simoffload.errors import InputError, Problem
from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.models.lora import nf4_bits, with_lora
from simoffload.strategies.base import FasterSetting, Move, Plan, Strategy
from simoffload.strategies.direct_storage import gds_warnings
from simoffload.strategies.ds_config import LATEST, DeepSpeedConfig, parse_version
from simoffload.strategies.ds_config.export import FILE, Work, training_config
from simoffload.strategies.ds_config.faster import faster_settings
from simoffload.strategies.ds_config.parameters import fetch_settings
from simoffload.strategies.ds_config.sections import OffloadOptimizerSection, OffloadParamSection
from simoffload.strategies.ds_config.training import TrainingSettings, batch_problems, resolve_training
from simoffload.strategies.ds_config.tunables import allowing, released, stages
from simoffload.strategies.moves import lora_moves, training_moves
from simoffload.strategies.offload_devices import (
    device_of,
    offload_tier,
    swap_path,
    tier_edits,
    weights_in_memory,
)
from simoffload.strategies.placement import Placement, refused
from simoffload.strategies.training.plan import ZeroTrainingPlan
from simoffload.strategies.training.state import Places
from simoffload.strategies.training.step_variants import interval_warnings, mode_warnings, share_warnings
from simoffload.workload import Training

__all__ = ["Lora", "ZeroTraining"]


class Lora(BaseModel):
    """Adapters beside frozen weights, in PEFT's names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    r: Annotated[int, Field(strict=True, ge=1, le=65_536)]
    """Rank."""
    target_modules: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
    """Linear layers that get adapters, by the end of their names: q_proj, v_proj, …"""
    quantize: Literal["nf4"] | None = None
    """QLoRA: frozen weights in 4 bit."""


class ZeroTraining(Strategy):
    """Training with states partitioned over the ranks, in HBM, host memory or on storage."""

    serves: ClassVar = frozenset({"training"})
    tier_keys: ClassVar = {"weights": "any", "optimizer": "any"}
    evidence: ClassVar = "zero"

    kind: Literal["zero_training"] = "zero_training"
    weights: Annotated[str, Field(min_length=1)] | None = None
    """Tier of the 16-bit parameters; by default what ``ds_config`` says."""
    optimizer: Annotated[str, Field(min_length=1)] | None = None
    """Tier of the optimizer's states; by default what ``ds_config`` says."""
    ds_config: DeepSpeedConfig = DeepSpeedConfig()
    """DeepSpeed's configuration, inline or the path of a ds_config.json."""
    deepspeed_version: str = LATEST
    """Text; it decides names, defaults and mechanisms."""
    cpu_threads: Annotated[int, Field(strict=True, ge=1, le=4096)] | None = None
    """Threads of each rank's CPU optimizer (``OMP_NUM_THREADS``); by default the cores over the ranks."""

    lora: Lora | None = None
    """Train adapters only."""

    @field_validator("deepspeed_version", mode="before")
    @classmethod
    def _version(cls, value: Any) -> Any:
        if isinstance(value, float | int):
            raise ValueError(f'{value} is a number, and versions are text; write "{value}" in quotes')
        if isinstance(value, str):
            parse_version(value)
        return value

    def places(self, machine: Machine) -> Placement:
        """Where it keeps weights and optimizer. Raises InputError if the machine has no tier of a device."""
        zero = self.ds_config.zero_optimization
        weights, _ = _tier("weights", self.weights, "offload_param", zero.offload_param, machine)
        optimizer, _ = _tier(
            "optimizer", self.optimizer, "offload_optimizer", zero.offload_optimizer, machine
        )
        return Placement(weights, optimizer)

    def placements(self, machine: Machine) -> tuple[Placement, ...]:
        """Weights and optimizer on any two tiers."""
        return tuple(starmap(Placement, product(machine.tiers, repeat=2)))

    def retarget(self, placement: Placement, machine: Machine) -> tuple[Edit, ...]:
        """The weights elsewhere, and the optimizer if it is named."""
        zero = self.ds_config.zero_optimization
        weights = tier_edits("weights", placement.weights, "offload_param", zero.offload_param, machine)
        if placement.optimizer is None:
            return weights
        section = "offload_optimizer"
        return (
            *weights,
            *tier_edits("optimizer", placement.optimizer, section, zero.offload_optimizer, machine),
        )

    def resident(self) -> tuple[Edit, ...]:
        """Whole copies without ZeRO. Raises PlacementError where it trains adapters alone."""
        if self.lora is not None:
            why = "it trains all parameters, not adapters alone; leave strategy.lora out for that"
            raise refused("resident", self.kind, why)
        return super().resident()

    def plan(self, model: ModelShape, workload: Training, machine: Machine) -> ZeroTrainingPlan:
        """Apply the strategy; InputError for what the machine lacks or DeepSpeed would refuse."""
        model, weight_bits = self._adapted(model)
        settings, warnings = self._settings(model, workload)
        zero = self.ds_config.zero_optimization
        weights, more = _tier("weights", self.weights, "offload_param", zero.offload_param, machine)
        optimizer, others = _tier(
            "optimizer", self.optimizer, "offload_optimizer", zero.offload_optimizer, machine
        )
        settings = settings._replace(
            params=settings.params._replace(device=device_of(weights, machine)),
            optimizer_device=device_of(optimizer, machine),
        )
        _check_places(settings)
        asked = settings.params.use_gds and settings.params.device == "nvme"
        direct = gds_warnings(machine, "strategy.ds_config.aio.use_gds") if asked else ()
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
                *direct,
                *mode_warnings(settings, workload),
                *interval_warnings(self.ds_config.zero_optimization, settings),
                *_quantized_warnings(weight_bits),
            ),
            weight_bits=weight_bits,
            config=self.ds_config,
        )
        plan.check()
        if settings.ratio == 1.0:
            return plan
        return replace(plan, warnings=(*plan.warnings, *share_warnings(settings, plan.state.updates)))

    def moves(self, plan: Plan) -> Iterator[tuple[Move, ...]]:
        """Weights, optimizer and both on every tier, also in higher stages."""
        assert isinstance(plan, ZeroTrainingPlan)
        return training_moves(
            plan.model,
            plan.machine,
            Placement(plan.target, plan.optimizer_target),
            tuple(self.stages(plan)),
            ranks=self.ranks,
            buffer_size=plan.settings.params.buffer_size,
        )

    def stages(self, plan: Plan) -> Iterator[Move]:
        """Higher stages of ZeRO."""
        assert isinstance(plan, ZeroTrainingPlan)
        return stages(plan.settings)

    def adapters(self, model: ModelShape) -> Iterator[Move]:
        """LoRA, unless that is what it trains."""
        return lora_moves(model) if self.lora is None else iter(())

    def precisions(self) -> Iterator[Move]:
        """Frozen weights in 4 bit."""
        if self.lora is not None and self.lora.quantize is None:
            edits = (Edit(("strategy", "lora", "quantize"), "nf4"),)
            yield Move("precision", "frozen weights in nf4", edits)

    def release_fixed_batch(self, *changed: str) -> tuple[Edit, ...]:
        """Keys of ds_config that repeat the workload."""
        return released(self.ds_config, *changed)

    def allowing(self, model: ModelShape, tier: str, *, ranks: int) -> Iterator[tuple[Edit, ...]]:
        """Stage 3, swap buffers for the largest parameter, no mode that is bound to another tier."""
        settings, _ = fetch_settings(
            self.ds_config, version=self.deepspeed_version, hidden_size=model.hidden_size
        )
        return allowing(self.ds_config, model, tier, ranks=ranks, buffer_size=settings.buffer_size)

    def settings(self, model: ModelShape, *, storage: bool, direct: bool) -> Iterator[FasterSetting]:
        """DeepSpeed's knobs and stages."""
        return faster_settings(
            self.ds_config, model, self.deepspeed_version, storage=storage, direct=direct, trains=True
        )

    def filled(self, _model: ModelShape) -> tuple[Edit, ...]:
        """Weights in host memory unless ds_config says where."""
        return weights_in_memory(self.weights, self.ds_config)

    def exports(self, plan: Plan) -> dict[str, Any]:
        """The files with which DeepSpeed does what was planned: content by name."""
        assert isinstance(plan, ZeroTrainingPlan)
        zero, workload = self.ds_config.zero_optimization, plan.workload
        work = Work(
            self.ranks,
            workload.batch_size,
            plan.model.dtype,
            workload.gradient_accumulation_steps,
            swap_path(plan.target, zero.offload_param, machine=plan.machine),
            swap_path(plan.optimizer_target, zero.offload_optimizer, machine=plan.machine),
        )
        return {FILE: training_config(self.ds_config, plan.settings, work)}

    def _adapted(self, model: ModelShape) -> tuple[ModelShape, float | None]:
        """The model with its adapters, and the bits of a frozen weight."""
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
            raise _within(problems + list(error.problems)) from None
        if problems:
            raise _within(problems)
        return found


def _quantized_warnings(weight_bits: float | None) -> tuple[str, ...]:
    if weight_bits is None:
        return ()
    text = "times of nf4 weights are those of 16-bit ones: neither the smaller copies nor the dequantization"
    return (f"{text} are modelled; the memory is",)


def _within(problems: Sequence[Problem]) -> InputError:
    return InputError(one._replace(key=f"strategy.ds_config.{one.key}") for one in problems)


def _tier(
    key: str,
    named: str | None,
    section: str,
    written: OffloadParamSection | OffloadOptimizerSection | None,
    machine: Machine,
) -> tuple[str, tuple[str, ...]]:
    """A tier and what to warn of; a device of "none" goes with any tier that is named."""
    if written is not None and written.device == "none":
        written = None
    return offload_tier(key, named, section=section, written=written, machine=machine)


def _check_places(settings: TrainingSettings) -> None:
    """What DeepSpeed refuses once the scenario's tiers are known."""
    params, optimizer = settings.params.device, settings.optimizer_device
    if settings.stage < 3 and params != "none":
        text = f"parameters leave the GPU only in stage 3, not {settings.stage}"
        raise InputError.at("strategy.weights", text)
    if settings.stage < 3 and optimizer == "nvme":
        text = f"the optimizer goes to storage only in stage 3, not {settings.stage}"
        raise InputError.at("strategy.optimizer", text)
    if settings.stage == 0 and optimizer != "none":
        raise InputError.at("strategy.optimizer", "stage 0 offloads nothing")
    if settings.zenflow is not None and optimizer == "none":
        text = "ZenFlow needs the optimizer in host memory or on storage, not on the GPU"
        raise InputError.at("strategy.optimizer", text)
    if settings.super_offload and optimizer != "cpu":
        text = "SuperOffload needs the optimizer in host memory"
        raise InputError.at("strategy.optimizer", text)
    if params == "nvme" and optimizer == "none":
        text = "DeepSpeed refuses parameters on storage with the optimizer on the GPU; name a tier"
        raise InputError.at("strategy.optimizer", text)
