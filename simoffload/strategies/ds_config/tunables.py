"""Settings of ds_config that may need less memory, and those that states on a tier need."""

from __future__ import annotations

from collections.abc import Iterator

from simoffload.documents import Edit
from simoffload.models import ModelShape
from simoffload.strategies.base import Move, Tunable
from simoffload.strategies.ds_config.export import BATCH
from simoffload.strategies.ds_config.parameters import OffloadSettings
from simoffload.strategies.ds_config.sections import DeepSpeedConfig
from simoffload.strategies.ds_config.training import TrainingSettings

__all__ = ["allowing", "fetching", "released", "stages", "training"]

_CONFIG = ("strategy", "ds_config")
_ZERO = (*_CONFIG, "zero_optimization")
_ALL_GPUS, _MICRO_BATCH, _ACCUMULATION = BATCH
_REPEATED = {"batch_size": _MICRO_BATCH, "gradient_accumulation_steps": _ACCUMULATION}
"""Keys of ds_config that repeat the workload, by its own."""
_BUFFERS = (8, 16, 32, 64, 128)
"""Numbers of swap buffers that are tried where DeepSpeed asks for more."""
Value = int | bool


def fetching(settings: OffloadSettings) -> Iterator[Tunable]:
    """Of parameters that are gathered, prefetched and swapped."""
    for word, now in (
        ("stage3_prefetch_bucket_size", settings.prefetch_bucket_size),
        ("stage3_max_live_parameters", settings.max_live_parameters),
        ("stage3_max_reuse_distance", settings.max_reuse_distance),
        ("stage3_param_persistence_threshold", settings.param_persistence_threshold),
    ):
        yield Tunable(word, (*_ZERO, word), now, _halved)
    section = (*_ZERO, "offload_param")
    yield Tunable("buffer_size", (*section, "buffer_size"), settings.buffer_size, _halved)
    yield Tunable("offload_param.buffer_count", (*section, "buffer_count"), settings.buffer_count, _fewer)
    yield Tunable("offload_param.max_in_cpu", (*section, "max_in_cpu"), settings.max_in_cpu, _halved)
    yield Tunable("pin_memory", (*section, "pin_memory"), settings.pin_memory, _off)


def training(settings: TrainingSettings) -> Iterator[Tunable]:
    """The same, and of gradients, sub-groups, the optimizer and checkpoints of activations."""
    yield from fetching(settings.params)
    yield Tunable("reduce_bucket_size", (*_ZERO, "reduce_bucket_size"), settings.reduce_bucket_size, _halved)
    yield Tunable("sub_group_size", (*_ZERO, "sub_group_size"), settings.sub_group_size, _halved)
    yield Tunable("overlap_comm", (*_ZERO, "overlap_comm"), settings.overlap_comm, _off)
    section = (*_ZERO, "offload_optimizer")
    yield Tunable("offload_optimizer.buffer_count", (*section, "buffer_count"), settings.buffer_count, _fewer)
    yield Tunable("offload_optimizer.pin_memory", (*section, "pin_memory"), settings.pin_memory, _off)
    on_host = (*_CONFIG, "activation_checkpointing", "cpu_checkpointing")
    yield Tunable("cpu_checkpointing", on_host, settings.cpu_checkpointing, _toggled)
    if settings.zenflow is not None:
        overlap = (*_ZERO, "zenflow", "overlap_step")
        yield Tunable("zenflow.overlap_step", overlap, settings.zenflow.overlap_step, _off)
        yield Tunable("zenflow.offload", (*_ZERO, "zenflow", "offload"), settings.zenflow.offload, _toggled)


def stages(settings: TrainingSettings) -> Iterator[Move]:
    """ZeRO stages above that of the settings."""
    for stage in range(settings.stage + 1, 4):
        yield Move("stage", f"ZeRO stage {stage}", (Edit((*_ZERO, "stage"), stage),))


def allowing(
    config: DeepSpeedConfig, model: ModelShape, tier: str, *, ranks: int, buffer_size: int
) -> Iterator[tuple[Edit, ...]]:
    """What must be set so that DeepSpeed takes all states on a tier, divided among so many ranks.

    How many swap buffers it asks for is only known when it asks: more and more of them are other ways.
    """
    found = []
    largest = -(-model.largest_parameter // ranks)
    if largest > buffer_size:
        found.append(Edit((*_ZERO, "offload_param", "buffer_size"), largest))
    zero = config.zero_optimization
    if zero.stage < 3:
        found.append(Edit((*_ZERO, "stage"), 3))
    if zero.zenflow is not None and tier == "hbm":
        found.append(Edit((*_ZERO, "zenflow"), None))
    if zero.offload_optimizer is not None and zero.offload_optimizer.super_offload and tier != "dram":
        found.append(Edit((*_ZERO, "offload_optimizer", "super_offload"), False))
    yield tuple(found)
    for count in _BUFFERS if tier not in {"hbm", "dram"} else ():
        yield (*found, Edit((*_ZERO, "offload_param", "buffer_count"), count))


def released(config: DeepSpeedConfig, *changed: str) -> tuple[Edit, ...]:
    """The batch of all GPUs, and what repeats ``changed`` keys of the workload, left to the workload."""
    repeated = (_ALL_GPUS, *(_REPEATED[key] for key in changed))
    found = (key for key in repeated if getattr(config, key) not in (None, "auto"))
    return tuple(Edit(("strategy", "ds_config", key), "auto") for key in found)


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
