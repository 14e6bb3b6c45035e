"""Settings of a run: ds_config with the version's defaults and Hugging Face's values for "auto"; and the
ds_config that is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from simoffload.documents import Edit, quoted
from simoffload.errors import InputError
from simoffload.models import ModelShape
from simoffload.recent import Recent
from simoffload.results import Change
from simoffload.strategies.base import Plan, Tunable, memory_tunables, uses_storage
from simoffload.strategies.base import target as target_of
from simoffload.strategies.ds_config.keys import (
    FIRST_GDS,
    AioSection,
    ConfigSection,
    DeepSpeedConfig,
    Key,
    LeafModuleSection,
    OffloadDevice,
    OffloadParamSection,
    Use,
    ZenFlowSection,
    key_warnings,
    keys_of,
    read_in,
    refuse_keys,
    refuse_selection,
    refuse_values,
    threads_key,
    value_in_effect,
    values_in_effect,
)
from simoffload.units import plural

# -- settings of a run -----------------------------------------------------------------------------
# ds_config with the version's defaults and Hugging Face's values for "auto".


LATEST = "0.19.8"
_ALIGNED = 1024
"""[B] to which each aio thread's part of a file is padded (``AIO_ALIGNED_BYTES``, swap_tensor/utils.py)."""


OptimizerKind = Literal["adam", "sgd", "adam8bit", "adafactor", "paged_adam", "paged_adam8bit"]

_ADAM = ("adam", "adamw", "torchadam", "fusedadam", "deepspeedcpuadam")
_KINDS: dict[str, OptimizerKind] = {
    **dict.fromkeys(_ADAM, "adam"),
    "sgd": "sgd",
    **dict.fromkeys(("adamw8bit", "adam8bit"), "adam8bit"),
    "adafactor": "adafactor",
    **dict.fromkeys(("pagedadam", "pagedadamw", "pagedadam32bit", "pagedadamw32bit"), "paged_adam"),
    **dict.fromkeys(("pagedadam8bit", "pagedadamw8bit"), "paged_adam8bit"),
}
BITSANDBYTES: dict[str, int] = {"adam8bit": 8, "paged_adam": 32, "paged_adam8bit": 8}
"""Bits of each moment of bitsandbytes' optimizers, which a program passes to DeepSpeed itself."""
_DTYPES = {"fp32": 4, "fp16": 2, "bf16": 2}


class OffloadSettings(NamedTuple):
    """OffloadSettings are the settings of parameter offloading, with the defaults of the version.

    A field with the name of a key of ds_config has its value in effect and its unit.
    """

    version: tuple[int, ...]
    device: OffloadDevice | None
    """Device in the configuration; None if it does not name one."""
    stage3_prefetch_bucket_size: int
    stage3_max_live_parameters: int
    stage3_max_reuse_distance: int
    stage3_param_persistence_threshold: int
    stage3_model_persistence_threshold: int
    overlap_comm: bool
    """Whether copies and gathers have their own stream; if not, they are on the stream of the kernels."""
    pin_memory: bool
    buffer_count: int
    buffer_size: int
    max_in_cpu: int
    block_size: int
    queue_depth: int
    threads: int
    """``intra_op_parallelism``, whatever the version calls it."""
    use_gds: bool
    quantized_gather: bool = False
    leaf_module: LeafModuleSection | None = None

    def copies_directly(self, ranks: int) -> bool:
        """Whether copies are asynchronous and nothing is gathered: on one rank since 0.9.0 (#2953)."""
        return ranks == 1 and self.version >= (0, 9, 0)

    @property
    def swap_buffers_pinned(self) -> bool:
        """Whether copies from the swap buffers run at the rate of pinned memory.

        Since DeepSpeed 0.19.4 the buffers are locked in memory but unknown to CUDA (pull request 8212), and
        copies from them run at the rate of pageable memory.
        """
        return self.version < (0, 19, 4)

    def source(self, on_nvme: bool) -> bool | None:
        """Return whether a partition is copied from pinned memory; None if GDS reads it into the GPU."""
        if not on_nvme:
            return self.pin_memory
        return None if self.use_gds else self.swap_buffers_pinned

    @property
    def min_swap_bytes(self) -> int:
        """[B] below which a partition stays in host memory (partitioned_param_swapper.py)."""
        return max(1 << 20, self.block_size)

    @property
    def outstanding_bytes(self) -> int:
        """[B] that one rank has in flight to storage, at most."""
        return self.block_size * self.queue_depth * self.threads

    @property
    def alignment(self) -> int:
        """[B] of which every file and swap buffer is a multiple."""
        return _ALIGNED * self.threads

    def aligned(self, size: int) -> int:
        """Return the size [B] of a file or swap buffer for ``size`` [B], padded for every aio thread."""
        return -(-size // self.alignment) * self.alignment


class TrainingSettings(NamedTuple):
    """TrainingSettings are the settings of ZeRO training, with the defaults of the DeepSpeed version.

    A field with the name of a key of ds_config has its value in effect and its unit.
    """

    stage: int
    params: OffloadSettings
    """Settings of fetching parameters; below stage 3 parameters are not fetched."""
    optimizer: OptimizerKind
    optimizer_device: OffloadDevice
    pin_memory: bool
    buffer_count: int
    pipeline_read: bool
    pipeline_write: bool
    ratio: float
    super_offload: bool
    cpuadam_cores: float
    zenflow: ZenFlowSection | None
    reduce_bucket_size: int
    allgather_bucket_size: int
    sub_group_size: int
    overlap_comm: bool
    gradient_bytes: int
    """[B] of an element of the accumulated gradients (``data_types.grad_accum_dtype``)."""
    gradient_clipping: bool
    precision: Literal["fp16", "bf16"] | None
    """Type that ds_config enables; None if it enables none, so that the model's type decides."""
    cpu_checkpointing: bool

    @property
    def pipelined(self) -> bool:
        """Whether DeepSpeed uses its ``PipelinedOptimizerSwapper``."""
        return self.pipeline_read or self.pipeline_write


def parse_version(text: str) -> tuple[int, ...]:
    """Convert "0.16.4" to (0, 16, 4). Raises ValueError for text that is not a version."""
    parts = text.split(".")
    if not 2 <= len(parts) <= 4 or not all(part.isdigit() and len(part) < 5 for part in parts):
        raise ValueError(f'{quoted(text)} is not a DeepSpeed version; write e.g. "0.16.4"')
    return tuple(int(part) for part in parts)


def _version_warnings(aio: AioSection, threads: int, version: str) -> Iterator[str]:
    """Yield warnings about keys of ``aio`` that a version ignores, and about the version."""
    number = parse_version(version)
    if aio.use_gds and number < FIRST_GDS:
        yield f"ds_config aio.use_gds is ignored by DeepSpeed {version}; it came with 0.15.0"
    if number > parse_version(LATEST):
        yield f"DeepSpeed {version} is newer than {LATEST}, the last that was studied"
    key = threads_key(number)
    (other,) = {"intra_op_parallelism", "thread_count"} - {key}
    if (ignored := getattr(aio, other)) is not None:
        yield (
            f"ds_config aio.{other}: {ignored} is ignored by DeepSpeed {'.'.join(map(str, number))}, "
            f"which reads aio.{key}; it runs {plural(threads, 'thread')}"
        )


def resolve_settings(
    config: DeepSpeedConfig, *, version: str = LATEST, hidden_size: int
) -> tuple[OffloadSettings, tuple[str, ...]]:
    """Apply the version's defaults and Hugging Face's "auto" rules; return settings and warnings.

    Raises ValueError for text that is not a version, and InputError, with DeepSpeed's key, for a stage that
    does not offload parameters and for refused keys.
    """
    key = id(config), version, hidden_size
    return _RESOLVED.get(key, lambda: (config, _resolved(config, version, hidden_size)))[1]


_Resolved = tuple[OffloadSettings, tuple[str, ...]]
_RESOLVED = Recent[tuple[int, str, int], tuple[DeepSpeedConfig, _Resolved]]()
"""Settings and warnings by the identity of configurations, which many scenarios share."""


def _resolved(config: DeepSpeedConfig, version: str, hidden_size: int) -> _Resolved:
    stage = config.zero_optimization.stage
    if stage != 3:
        text = f"{stage} does not offload parameters; ZeRO-Inference needs 3"
        raise InputError.at("zero_optimization.stage", text)
    refuse_keys(config, training=False)
    settings, warnings = fetch_settings(config, version=version, hidden_size=hidden_size)
    return settings, (*key_warnings(config, training=False), *warnings)


def use_of(config: DeepSpeedConfig, *, version: str, hidden_size: int, training: bool) -> Use:
    """Return the run for which a ds_config is read. Raises ValueError for text that is not a version."""
    return Use(parse_version(version), hidden_size, config.zero_optimization.stage, training)


def fetch_settings(
    config: DeepSpeedConfig, *, version: str, hidden_size: int
) -> tuple[OffloadSettings, tuple[str, ...]]:
    """Return the settings of fetching parameters in stage 3, and warnings about the effect of the version.

    Raises ValueError for text that is not a version.
    """
    use, aio = use_of(config, version=version, hidden_size=hidden_size, training=False), config.aio
    zero = values_in_effect(config.zero_optimization, use)
    values = zero | values_in_effect(zero["offload_param"], use) | values_in_effect(aio, use)
    settings = OffloadSettings(
        version=use.version,
        threads=values[threads_key(use.version)],
        quantized_gather=zero["zero_quantized_weights"],
        **_named(OffloadSettings, values),
    )
    warnings = [*_version_warnings(aio, settings.threads, version)]
    if "aio" in config.model_fields_set and (aio.single_submit or not aio.overlap_events):
        text = "ds_config aio.single_submit / overlap_events: not modelled; a full queue is assumed"
        warnings.insert(0, text)
    return settings, tuple(warnings)


def _named(settings: type[NamedTuple], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the keys that settings have under the same name."""
    return {name: values[name] for name in settings._fields if name in values}


def resolve_training(
    config: DeepSpeedConfig, *, version: str = LATEST, hidden_size: int, dtype_bytes: int
) -> tuple[TrainingSettings, tuple[str, ...]]:
    """Apply defaults and "auto" for training; return settings and warnings.

    Raises InputError, with DeepSpeed's key, for combinations that DeepSpeed refuses or that are not modelled.
    """
    zero = config.zero_optimization
    refuse_keys(config, training=True)
    params, warnings = fetch_settings(config, version=version, hidden_size=hidden_size)
    use = use_of(config, version=version, hidden_size=hidden_size, training=True)
    values = values_in_effect(zero, use)
    offload = values["offload_optimizer"]
    refuse_values(config)
    kind = _kind(config)
    if offload.device != "none" and kind != "adam":
        text = f"only Adam is run on the CPU by DeepSpeed; got {config.optimizer and config.optimizer.type}"
        raise InputError.at("optimizer.type", text)
    if zero.zenflow is not None:
        refuse_selection(zero.zenflow)
    dtype = config.data_types.grad_accum_dtype
    settings = TrainingSettings(
        params=params,
        optimizer=kind,
        optimizer_device=offload.device,
        cpuadam_cores=offload.cpuadam_cores_perc,
        **_named(TrainingSettings, values | values_in_effect(offload, use)),
        gradient_bytes=_DTYPES[dtype] if dtype else dtype_bytes,
        gradient_clipping=config.gradient_clipping != 0.0,
        precision=config.precision,
        cpu_checkpointing=config.activation_checkpointing.cpu_checkpointing,
    )
    return settings, (*key_warnings(config, training=True), *warnings)


def _kind(config: DeepSpeedConfig) -> OptimizerKind:
    name = config.optimizer.type if config.optimizer else "AdamW"
    kind = _KINDS.get(name.lower().replace("_", ""))
    if kind is None:
        known = "AdamW, Adam, SGD, AdamW8bit, PagedAdamW, PagedAdamW8bit, Adafactor"
        raise InputError.at("optimizer.type", f"{quoted(name)} is not modelled; known: {known}")
    return kind


# -- writing a ds_config ---------------------------------------------------------------------------
# The complete one that reproduces a simulation, and other values of its keys to try.
#
# The complete one is the user's configuration with the values that the simulation used: devices and paths
# of tiers, defaults of the version, values for "auto", and the batch. Keys that have no effect, or that
# some versions do not know, are included only if the user wrote them. Names and defaults:
# deepspeed/runtime/config.py and zero/ (0.19.8).


FILE = "ds_config.json"
"""File name in DeepSpeed's documentation."""
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
"""Keys that repeat the batch and the number of ranks of the scenario."""

Tree = dict[str, Any]


def exported_config(section: ConfigSection, use: Use, *, keeps_auto: bool = False) -> Tree:
    """Return a section, or the whole configuration, with which DeepSpeed carries out a run: what the user
    wrote with the values in effect, and the keys that the run needs beside it."""
    keys, tree = keys_of(type(section)), {}
    for name in dict.fromkeys((*keys, *section.model_fields_set)):
        key = keys.get(name, Key())
        left_out = () if keeps_auto else (None, "auto")
        written = name in section.model_fields_set and getattr(section, name) not in left_out
        if written or (read_in(section, name, use) and key.exported(section, use)):
            tree[name] = _exported(value_in_effect(section, name, use), use, keeps_auto or key.keeps_auto)
    return {name: value for name, value in tree.items() if value not in (None, {})}


def _exported(value: Any, use: Use, keeps_auto: bool) -> Any:
    if isinstance(value, ConfigSection):
        return exported_config(value, use, keeps_auto=keeps_auto)
    if isinstance(value, dict) and not keeps_auto:  # of a key that is not simulated
        kept = {name: one for name, one in value.items() if one not in (None, "auto")}
        return {name: _exported(one, use, keeps_auto) for name, one in kept.items()}
    return value


# -- other values ----------------------------------------------------------------------------------

_ALL_GPUS, _MICRO_BATCH, _ACCUMULATION = BATCH
_REPEATED = {"batch_size": _MICRO_BATCH, "gradient_accumulation_steps": _ACCUMULATION}
"""Keys of ds_config that repeat the workload, by the workload's key."""
_BUFFERS = (8, 16, 32, 64, 128)
"""Numbers of swap buffers to try if DeepSpeed requires more."""
_WITHIN_ZERO = ("offload_param", "offload_optimizer", "zenflow")
Value = int | bool


def _halved(now: Value) -> Sequence[Value]:
    return [now >> part for part in range(1, now.bit_length())] + [0]


def _fewer(now: Value) -> Sequence[Value]:
    return range(now - 1, 0, -1)


def _off(now: Value) -> Sequence[Value]:
    return [False] if now else []


def _toggled(now: Value) -> Sequence[Value]:
    return [not now]


class _TunedKey(NamedTuple):
    """A _TunedKey is a key of ds_config for which other values are tried."""

    section: str
    key: str
    less: Callable[[Value], Sequence[Value]] | None = None
    """Function that returns values that may need less memory, the nearest first."""
    factors: tuple[float, ...] = ()
    """Factors by which the value of the key is multiplied to try to make a run faster."""
    word: str = ""
    """Label of settings that only change speed, to distinguish them from those of other keys."""

    @property
    def path(self) -> tuple[str, ...]:
        """Path of the key in a scenario."""
        return _path(self.section, self.key)


_FETCHING = (
    _TunedKey("zero_optimization", "stage3_prefetch_bucket_size", _halved, (4, 0.25), "prefetch"),
    _TunedKey("zero_optimization", "stage3_max_live_parameters", _halved, (4, 0.25), "live"),
    _TunedKey("zero_optimization", "stage3_max_reuse_distance", _halved),
    _TunedKey("zero_optimization", "stage3_param_persistence_threshold", _halved),
    _TunedKey("offload_param", "buffer_size", _halved),
    _TunedKey("offload_param", "buffer_count", _fewer, (2,), "parameter buffers"),
    _TunedKey("offload_param", "max_in_cpu", _halved),
    _TunedKey("offload_param", "pin_memory", _off),
)
"""Keys to try for parameters that are gathered, prefetched and swapped."""
_STORAGE_READS = (
    _TunedKey("aio", "block_size", factors=(4,), word="block"),
    _TunedKey("aio", "queue_depth", factors=(4,), word="depth"),
)
_TRAINING = (
    _TunedKey("zero_optimization", "reduce_bucket_size", _halved, (4, 0.25), "reduce bucket"),
    _TunedKey("zero_optimization", "sub_group_size", _halved, (4, 0.25), "sub group"),
    _TunedKey("zero_optimization", "overlap_comm", _off),
    _TunedKey("offload_optimizer", "buffer_count", _fewer, (2,), "optimizer buffers"),
    _TunedKey("offload_optimizer", "pin_memory", _off),
    _TunedKey("activation_checkpointing", "cpu_checkpointing", _toggled),
    _TunedKey("zenflow", "overlap_step", _off),
    _TunedKey("zenflow", "offload", _toggled),
)
"""Keys to try for gradients, sub-groups, the optimizer and activation checkpoints."""
_NAMES = {("offload_param", "buffer_size"): "buffer_size", ("offload_param", "pin_memory"): "pin_memory"}
"""Names of keys in ``fit``; others have their own, with the section for offload and ZenFlow."""


def _path(section: str, key: str) -> tuple[str, ...]:
    """Return the path of a key in a scenario; "" names the top level of ds_config."""
    above = ("zero_optimization", section) if section in _WITHIN_ZERO else (section,) if section else ()
    return ("strategy", "ds_config", *above, key)


def _edit(section: str, key: str, value: Any) -> Edit:
    return Edit(_path(section, key), value)


def memory_settings(config: DeepSpeedConfig, use: Use) -> Iterator[Tunable]:
    """Yield settings that may reduce the memory on their own."""
    for tuned in (*_FETCHING, *_TRAINING):
        section: Any = config
        for name in tuned.path[2:-1]:
            section = section and value_in_effect(section, name, use)
        if section is None or tuned.less is None or not read_in(section, tuned.key, use):
            continue
        spelled = f"{tuned.section}.{tuned.key}" if tuned.section in _WITHIN_ZERO else tuned.key
        name = _NAMES.get((tuned.section, tuned.key), spelled)
        now = value_in_effect(section, tuned.key, use)
        yield from memory_tunables(name, tuned.path, now, tuned.less(now))


def stages(settings: TrainingSettings) -> Iterator[Change]:
    """Yield changes to each ZeRO stage above the present one."""
    for stage in range(settings.stage + 1, 4):
        yield Change("stage", f"ZeRO stage {stage}", (_edit("zero_optimization", "stage", stage),))


def larger_buffers(model: ModelShape, ranks: int, buffer_size: int | None = None) -> tuple[Edit, ...]:
    """Return the edit to swap buffers that hold the largest partition of a parameter; none if those of
    ``buffer_size`` do, by default the usual ones."""
    largest, usual = -(-model.largest_parameter // ranks), int(OffloadParamSection().buffer_size)
    fits = largest <= (usual if buffer_size is None else buffer_size)
    return () if fits else (_edit("offload_param", "buffer_size", largest),)


def allowing(
    config: DeepSpeedConfig, model: ModelShape, device: OffloadDevice, *, ranks: int, buffer_size: int
) -> Iterator[tuple[Edit, ...]]:
    """Yield edits with which DeepSpeed accepts all states on a device, divided among ``ranks`` processes.

    The edits differ in the number of swap buffers, because what DeepSpeed requires is known only by trying.
    """
    found = [*larger_buffers(model, ranks, buffer_size)]
    zero = config.zero_optimization
    if zero.stage < 3:
        found.append(_edit("zero_optimization", "stage", 3))
    if zero.zenflow is not None and device == "none":
        found.append(_edit("zero_optimization", "zenflow", None))
    if zero.offload_optimizer is not None and zero.offload_optimizer.super_offload and device != "cpu":
        found.append(_edit("offload_optimizer", "super_offload", False))
    yield tuple(found)
    for count in _BUFFERS if device == "nvme" else ():
        yield (*found, _edit("offload_param", "buffer_count", count))


def released(config: DeepSpeedConfig, *changed: str) -> tuple[Edit, ...]:
    """Return edits that remove the total batch and the keys that repeat ``changed`` keys of the workload."""
    repeated = (_ALL_GPUS, *(_REPEATED[key] for key in changed))
    return tuple(_edit("", key, "auto") for key in repeated if getattr(config, key) not in (None, "auto"))


# -- less time --------------------------------------------------------------------------------------


def faster_settings(config: DeepSpeedConfig, version: str, plan: Plan, *, trains: bool) -> Iterator[Change]:
    """Yield settings, switches and versions to try, including some that DeepSpeed may refuse; ``trains``:
    there is an optimizer."""
    model, machine, storage = plan.model, plan.machine, uses_storage(plan)
    has_gds, target = machine.accelerator.gpudirect_storage, machine.targets.get(target_of(plan))
    direct = has_gds is not None and has_gds.value and target is not None and target.has_rdma
    zero, aio = config.zero_optimization, config.aio
    for tuned in (*_FETCHING, *(_STORAGE_READS if storage else ()), *(_TRAINING if trains else ())):
        yield from _turned(config, model, tuned)
    if storage:
        key = threads_key(parse_version(version))
        now = getattr(aio, key) or 1
        yield _setting(f"{key} {4 * now} instead of {now}", f"{key}-{4 * now}", _edit("aio", key, 4 * now))
    for stage in (1, 2, 3) if trains else ():  # with which training gives the same result
        if stage != zero.stage:
            edit = _edit("zero_optimization", "stage", stage)
            yield _setting(f"ZeRO stage {stage} instead of {zero.stage}", f"stage-{stage}", edit)
    if zero.offload_param is not None and not storage:
        pin = not zero.offload_param.pin_memory
        edit, kind = _edit("offload_param", "pin_memory", pin), "page-locked" if pin else "pageable"
        text = f"weights in {kind} memory (pin_memory)"
        yield _setting(text, f"pin_memory-{str(pin).lower()}", edit)
    if direct and not aio.use_gds:
        yield _setting("reads straight into the GPU (use_gds)", "use_gds", _edit("aio", "use_gds", True))
    optimizer, keys = zero.offload_optimizer, ("pipeline_read", "pipeline_write")
    if trains and storage and optimizer is not None and not all(getattr(optimizer, key) for key in keys):
        text = f"reads and writes during the update ({', '.join(keys)})"
        yield _setting(text, "pipeline", *(_edit("offload_optimizer", key, True) for key in keys))
    if parse_version(version) < parse_version(LATEST):
        threads = aio.thread_count
        renamed = () if threads is None else (_edit("aio", "intra_op_parallelism", threads),)
        newer = Edit.at("strategy.deepspeed_version", LATEST)
        yield _setting(f"DeepSpeed {LATEST} instead of {version}", f"deepspeed-{LATEST}", newer, *renamed)


def _setting(description: str, key: str, *edits: Edit) -> Change:
    return Change("setting", description, edits, key=key)


def _turned(config: DeepSpeedConfig, model: ModelShape, tuned: _TunedKey) -> Iterator[Change]:
    section: Any = config
    for name in tuned.path[2:-1]:
        section = getattr(section, name, None)
    now = getattr(section, tuned.key, None)
    if now == "auto":
        now = 0.9 * model.hidden_size**2 if "prefetch" in tuned.key else None
    if not now:
        return
    for factor in tuned.factors:
        value = int(now * factor)
        if value == int(now) or value < 1:
            continue
        within = f"{tuned.path[-2]}." if tuned.path[-2].startswith("offload_") else ""
        description = f"{within}{tuned.key} {value:,} instead of {int(now):,}"
        name = f"{tuned.word}-{value}".replace(" ", "-")
        yield _setting(description, name, Edit(tuned.path, value))
