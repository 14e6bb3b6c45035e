"""Settings of a run: ds_config with the version's defaults and Hugging Face's values for "auto"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from simoffload.documents import quoted
from simoffload.errors import InputError
from simoffload.strategies.ds_config.keys import (
    FIRST_GDS,
    AioSection,
    DeepSpeedConfig,
    LeafModuleSection,
    OffloadDevice,
    Use,
    ZenFlowSection,
    key_warnings,
    refuse_keys,
    refuse_selection,
    refuse_values,
    threads_key,
    values_in_effect,
)
from simoffload.units import plural

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
