"""Strategy for scenarios with only checkpoints, and the plan of the checkpoints of a training run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from simoffload.documents import Edit
from simoffload.errors import InputError, Problem
from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.results import Change
from simoffload.strategies.base import Placement, Plan, Strategy, refused
from simoffload.strategies.checkpoint.plan import CheckpointPlan, plan_checkpoint
from simoffload.strategies.ds_config import DeepSpeedConfig
from simoffload.strategies.ds_config.keys import section_warnings
from simoffload.strategies.ds_config.settings import OptimizerKind
from simoffload.workload import Checkpointing, Optimizer, TrainingCheckpoints, Writer

if TYPE_CHECKING:
    from simoffload.strategies.training.plan import ZeroTrainingPlan


class CheckpointStorage(Strategy):
    """CheckpointStorage is the strategy for checkpoints that are simulated without training."""

    serves: ClassVar = frozenset({"checkpoint"})
    tier_keys: ClassVar = {"tier": "storage", "swap": "storage"}

    kind: Literal["checkpoint"] = "checkpoint"
    tier: Annotated[str, Field(min_length=1)]
    """Storage tier to which checkpoints are written."""
    swap: Annotated[str, Field(min_length=1)] | None = None
    """Tier of the optimizer's swap files with ``offload_optimizer: nvme``; by default the first tier with
    local drives."""

    def places(self, _machine: Machine) -> Placement:
        """Return the tier to which checkpoints are written."""
        return Placement(self.tier)

    def placements(self, machine: Machine) -> tuple[Placement, ...]:
        """Return each tier of storage as a placement."""
        storage = (tier for tier in machine.tiers.values() if tier.is_storage)
        return tuple(Placement(tier.name) for tier in storage)

    def retarget(self, placement: Placement, machine: Machine) -> tuple[Edit, ...]:
        """Return the edits that move checkpoints to another storage tier. Raises PlacementError otherwise."""
        known = self.placements(machine)
        if placement not in known:
            has = ", ".join(map(str, known)) or "none"
            raise refused(placement, self.kind, f"checkpoints go to storage (has: {has})")
        return (Edit.at("strategy.tier", placement.weights),)

    def resident(self) -> tuple[Edit, ...]:
        """Raise PlacementError: checkpoints in GPU memory would be lost with it."""
        raise refused("resident", self.kind, "checkpoints go to storage")

    def moves(self, plan: Plan) -> Iterator[tuple[Change, ...]]:
        """Yield changes that write checkpoints to each storage tier."""
        machine = plan.machine
        tiers = [one.weights for one in self.placements(machine)]
        for tier in sorted(tiers, key=lambda one: machine.tiers[one].capacity):
            yield (Change("tier", f"checkpoints on {tier}", (Edit.at("strategy.tier", tier),)),)

    def plan(self, model: ModelShape, workload: Checkpointing, machine: Machine) -> CheckpointPlan:
        """Apply the strategy. Raises InputError for missing hardware and for what DeepSpeed cannot do."""
        return plan_checkpoint(model, workload, machine, ranks=self.ranks, tier=self.tier, swap=self.swap)


_OPTIMIZERS: dict[OptimizerKind, Optimizer] = {
    "adam": "adam",
    "sgd": "momentum",
    "adam8bit": "adam_8bit",
    "paged_adam": "adam",
    "paged_adam8bit": "adam_8bit",
    # On ZeRO's flat partitions Adafactor keeps one element each (strategies/training/memory.py).
    "adafactor": "momentum",
}


def plan_of_training(options: TrainingCheckpoints, plan: ZeroTrainingPlan) -> CheckpointPlan:
    """Plan the checkpoints of a training run, before the time of its step is known.

    ``interval_steps`` has an effect only once this time is known (``CheckpointPlan.after``). Raises
    InputError, with keys below ``checkpoint``, for options that contradict each other or the run.
    """
    workload = _workload(options, plan)
    try:
        workload.writer.check()
        workload.check()
        found = plan_checkpoint(
            plan.model,
            workload,
            plan.machine,
            ranks=plan.places.ranks,
            tier=options.tier,
            swap=plan.places.optimizer if workload.offload_optimizer == "nvme" else None,
        )
        every = {"interval_steps": options.interval_steps}
        return replace(found, workload=workload.model_copy(update=every))
    except ValueError as error:
        raise InputError.at("checkpoint", str(error)) from None
    except InputError as error:
        raise InputError(_below_checkpoint(one) for one in error.problems) from None


def _below_checkpoint(problem: Problem) -> Problem:
    """Convert the keys of an error from a scenario with only checkpoints to those of the section
    ``checkpoint``."""
    for room in ("workload.", "strategy."):
        if problem.key.startswith(room):
            return problem._replace(key=f"checkpoint.{problem.key.removeprefix(room)}")
    return problem


def _workload(options: TrainingCheckpoints, plan: ZeroTrainingPlan) -> Checkpointing:
    """Return the workload with the scenario's values, which take precedence over ds_config."""
    settings, section = plan.settings, plan.config.checkpoint
    given = {name: getattr(options, name) for name in type(options).model_fields if name != "tier"}
    decoupled = section is not None and section.writer is not None and section.writer.decoupled
    if decoupled and "mode" not in options.model_fields_set:
        given["mode"] = "decoupled"
    return Checkpointing.model_construct(
        **given
        | {
            "writer": _writer(options.writer, plan),
            "interval_steps": None,
            "stage": settings.stage,
            "optimizer": _OPTIMIZERS[settings.optimizer],
            "offload_optimizer": settings.optimizer_device,
            "sub_group_size": settings.sub_group_size,
        }
    )


def _writer(written: Writer, plan: ZeroTrainingPlan) -> Writer:
    """Return the writer that ``checkpoint.writer`` and ``aio`` of ds_config specify, with the scenario's
    additions."""
    aio, section = plan.settings.params, plan.config.checkpoint
    values: dict[str, Any] = {
        "block_size": aio.block_size,
        "queue_depth": aio.queue_depth,
        "intra_op_parallelism": aio.threads,
    }
    if section is not None:
        values["checkpoint_serialization"] = section.checkpoint_serialization
        if section.writer is not None:
            values |= {
                "type": section.writer.type,
                "io_buffer_size": section.writer.io_buffer_size,
                "io_buffer_double": section.writer.io_buffer_double,
                "data_parallel": section.writer.data_parallel or "none",
            }
    values |= {name: getattr(written, name) for name in written.model_fields_set}
    made = Writer().model_copy(update=values)
    if aio.use_gds and made.is_direct and "use_gds" not in written.model_fields_set:
        return made.model_copy(update={"use_gds": True})
    return made


def config_warnings(config: DeepSpeedConfig) -> tuple[str, ...]:
    """Return warnings about keys of ``checkpoint`` that are unknown to DeepSpeed or not modelled."""
    section = config.checkpoint
    if section is None:
        return ()
    more = section_warnings(section.writer, "checkpoint.writer.") if section.writer is not None else []
    return (*section_warnings(section, "checkpoint."), *more)
