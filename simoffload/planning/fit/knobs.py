"""Settings that make a need smaller: those that the parts of a tier name as their remedies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from simoffload.results.capacity import TierUse
from simoffload.scenario import LoadedScenario
from simoffload.strategies.ds_config import OffloadSettings
from simoffload.strategies.ds_config.training import TrainingSettings
from simoffload.strategies.training.plan import ZeroTrainingPlan
from simoffload.strategies.zero_inference import ZeroInferencePlan
from simoffload.workload import Checkpointing, Training, TrainingCheckpoints

__all__ = ["Knob", "Step", "knobs_for"]

Value = int | bool


class Step(NamedTuple):
    """A setting and a value for it."""

    words: str
    keys: tuple[str, ...]
    value: Value


class Knob(NamedTuple):
    """A setting at its value."""

    word: str
    """What remedies call it."""
    keys: tuple[str, ...]
    """Where it stands in a scenario."""
    now: Value
    values: Callable[[Value], Iterator[Value]]
    """Other values, the nearest first."""

    def steps(self) -> Iterator[Step]:
        """Its other values."""
        for value in self.values(self.now):
            if isinstance(value, bool):
                yield Step(f"{self.word} {'set' if value else 'unset'}", self.keys, value)
            else:
                yield Step(f"{self.word} {self.now:,} → {value:,}", self.keys, value)


def knobs_for(scenario: LoadedScenario, lacking: Sequence[TierUse]) -> Iterator[Knob]:
    """Settings that alone may make room on all of the ``lacking`` tiers.

    A setting is left out where the parts that name it are smaller than what lacks.
    """
    for knob in _knobs(scenario):
        named = ([term.size for term in use.terms if knob.word in term.remedy] for use in lacking)
        if all(sum(sizes) >= -use.headroom for use, sizes in zip(lacking, named, strict=True)):
            yield knob


def _knobs(scenario: LoadedScenario) -> Iterator[Knob]:
    plan, workload = scenario.plan(), scenario.scenario.workload
    for section, kept in (("workload", workload), ("checkpoint", scenario.scenario.checkpoint)):
        if isinstance(kept, Checkpointing | TrainingCheckpoints):
            yield Knob("keep", (section, "keep"), kept.keep, _fewer)
    if isinstance(workload, Training):
        now = workload.gradient_checkpointing
        yield Knob("gradient_checkpointing", ("workload", "gradient_checkpointing"), now, _toggled)
        steps = workload.gradient_accumulation_steps
        yield Knob("gradient_accumulation_steps", ("workload", "gradient_accumulation_steps"), steps, _one)
    if isinstance(plan, ZeroInferencePlan):
        yield from _fetching(plan.placement.settings)
    if isinstance(plan, ZeroTrainingPlan):
        yield from _fetching(plan.settings.params)
        yield from _training(plan.settings)


_CONFIG = ("strategy", "ds_config")
_ZERO = (*_CONFIG, "zero_optimization")


def _fetching(settings: OffloadSettings) -> Iterator[Knob]:
    """Of parameters that are gathered, prefetched and swapped."""
    for word, now in (
        ("stage3_prefetch_bucket_size", settings.prefetch_bucket_size),
        ("stage3_max_live_parameters", settings.max_live_parameters),
        ("stage3_max_reuse_distance", settings.max_reuse_distance),
        ("stage3_param_persistence_threshold", settings.param_persistence_threshold),
    ):
        yield Knob(word, (*_ZERO, word), now, _halved)
    section = (*_ZERO, "offload_param")
    yield Knob("buffer_size", (*section, "buffer_size"), settings.buffer_size, _halved)
    yield Knob("offload_param.buffer_count", (*section, "buffer_count"), settings.buffer_count, _fewer)
    yield Knob("offload_param.max_in_cpu", (*section, "max_in_cpu"), settings.max_in_cpu, _halved)
    yield Knob("pin_memory", (*section, "pin_memory"), settings.pin_memory, _off)


def _training(settings: TrainingSettings) -> Iterator[Knob]:
    """Of gradients, sub-groups, the optimizer and checkpoints of activations."""
    yield Knob("reduce_bucket_size", (*_ZERO, "reduce_bucket_size"), settings.reduce_bucket_size, _halved)
    yield Knob("sub_group_size", (*_ZERO, "sub_group_size"), settings.sub_group_size, _halved)
    yield Knob("overlap_comm", (*_ZERO, "overlap_comm"), settings.overlap_comm, _off)
    yield Knob("stage", (*_ZERO, "stage"), settings.stage, _higher_stage)
    section = (*_ZERO, "offload_optimizer")
    yield Knob("offload_optimizer.buffer_count", (*section, "buffer_count"), settings.buffer_count, _fewer)
    yield Knob("offload_optimizer.pin_memory", (*section, "pin_memory"), settings.pin_memory, _off)
    on_host = (*_CONFIG, "activation_checkpointing", "cpu_checkpointing")
    yield Knob("cpu_checkpointing", on_host, settings.cpu_checkpointing, _toggled)
    if settings.zenflow is not None:
        overlap = (*_ZERO, "zenflow", "overlap_step")
        yield Knob("zenflow.overlap_step", overlap, settings.zenflow.overlap_step, _off)
        yield Knob("zenflow.offload", (*_ZERO, "zenflow", "offload"), settings.zenflow.offload, _toggled)


def _halved(now: Value) -> Iterator[Value]:
    while now > 1:
        now //= 2
        yield now
    yield 0


def _fewer(now: Value) -> Iterator[Value]:
    yield from range(now - 1, 0, -1)


def _one(now: Value) -> Iterator[Value]:
    if now > 1:
        yield 1


def _off(now: Value) -> Iterator[Value]:
    if now:
        yield False


def _toggled(now: Value) -> Iterator[Value]:
    yield not now


def _higher_stage(now: Value) -> Iterator[Value]:
    yield from range(now + 1, 4)
