"""Settings of a run: ds_config with the version's defaults and Hugging Face's values for "auto"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from simoffload.documents import quoted
from simoffload.errors import InputError
from simoffload.strategies.ds_config.keys import (
    AioSection,
    DeepSpeedConfig,
    LeafModuleSection,
    OffloadOptimizerSection,
    OffloadParamSection,
    ZenFlowSection,
    key_warnings,
    refuse_keys,
    refuse_selection,
    refuse_values,
)
from simoffload.units import plural

LATEST = "0.19.8"
_FIRST_GDS = (0, 15, 0)
_FIRST_INTRA_OP = (0, 16, 4)
"""Version from which ``aio.thread_count`` is called ``intra_op_parallelism`` (DeepSpeed's commit c9da489)."""
_PIN_BY_DEFAULT = (0, 19, 5)
"""Version from which ``pin_memory`` is true by default."""
_STAGE_3 = {
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "param_persistence_threshold": "stage3_param_persistence_threshold",
    "model_persistence_threshold": "stage3_model_persistence_threshold",
    "max_live_parameters": "stage3_max_live_parameters",
    "max_reuse_distance": "stage3_max_reuse_distance",
}
"""Keys of ds_config for the settings of stage 3."""
_BUCKETS = ("reduce_bucket_size", "allgather_bucket_size", "sub_group_size")
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

    Sizes are in [elements] unless stated.
    """

    version: tuple[int, ...]
    device: Literal["none", "cpu", "nvme"] | None
    """Device in the configuration; None if it does not name one."""
    prefetch_bucket_size: int
    max_live_parameters: int
    max_reuse_distance: int
    param_persistence_threshold: int
    model_persistence_threshold: int
    overlap_comm: bool
    """Whether copies and gathers have their own stream; if not, they are on the stream of the kernels."""
    pin_memory: bool
    buffer_count: int
    buffer_size: int
    max_in_cpu: int
    """Parameters that training keeps in host memory although they are offloaded to storage."""
    block_size: int
    """[B]"""
    queue_depth: int
    threads: int
    """Worker threads of one aio handle (``intra_op_parallelism``)."""
    use_gds: bool
    quantized_gather: bool = False
    """Whether partitions are quantized to 8 bits before they are all-gathered."""
    leaf_module: LeafModuleSection | None = None
    """Modules whose parameters are fetched together, as far as ds_config names them."""

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
    def config(self) -> dict[str, dict[str, Any]]:
        """Return the settings in the form of ds_config, by section."""
        stage_3 = {key: getattr(self, name) for name, key in _STAGE_3.items()}
        return {
            "zero_optimization": {"overlap_comm": self.overlap_comm, **stage_3},
            "offload_param": _values(self, "pin_memory", "buffer_count", "buffer_size", "max_in_cpu"),
            "aio": {
                **_values(self, "block_size", "queue_depth"),
                threads_key(self.version): self.threads,
                "use_gds": self.use_gds,
            },
        }

    @property
    def alignment(self) -> int:
        """[B] of which every file and swap buffer is a multiple."""
        return _ALIGNED * self.threads

    def aligned(self, size: int) -> int:
        """Return the size [B] of a file or swap buffer for ``size`` [B], padded for every aio thread."""
        return -(-size // self.alignment) * self.alignment


class TrainingSettings(NamedTuple):
    """TrainingSettings are the settings of ZeRO training, with the defaults of the DeepSpeed version.

    Sizes are in [elements] unless stated.
    """

    stage: int
    params: OffloadSettings
    """Settings of fetching parameters; below stage 3 parameters are not fetched."""
    optimizer: OptimizerKind
    optimizer_device: Literal["none", "cpu", "nvme"]
    pin_memory: bool
    """Whether gradients and optimizer states are in page-locked memory."""
    buffer_count: int
    """Number of swap buffers of the optimizer, each of the size of the largest sub-group."""
    pipeline_read: bool
    pipeline_write: bool
    ratio: float
    """Share of the sub-groups whose optimizer runs on the CPU (Twin-Flow)."""
    super_offload: bool
    cpuadam_cores: float
    """Share of the cores that SuperOffload's process uses."""
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
    """Whether checkpointed activations are kept in host memory."""

    @property
    def pipelined(self) -> bool:
        """Whether DeepSpeed uses its ``PipelinedOptimizerSwapper``."""
        return self.pipeline_read or self.pipeline_write

    @property
    def config(self) -> dict[str, dict[str, Any]]:
        """Return the settings in the form of ds_config, by section."""
        fetching = self.params.config
        zero = fetching["zero_optimization"] | _values(self, "overlap_comm", *_BUCKETS)
        return fetching | {
            "zero_optimization": zero,
            "offload_optimizer": _values(
                self, "pin_memory", "buffer_count", "pipeline_read", "pipeline_write"
            ),
            "activation_checkpointing": _values(self, "cpu_checkpointing"),
            "zenflow": _values(self.zenflow, "overlap_step", "offload") if self.zenflow else {},
        }


def _values(settings: NamedTuple | BaseModel, *names: str) -> dict[str, Any]:
    """Return the settings that have the same names in ds_config."""
    return {name: getattr(settings, name) for name in names}


def parse_version(text: str) -> tuple[int, ...]:
    """Convert "0.16.4" to (0, 16, 4). Raises ValueError for text that is not a version."""
    parts = text.split(".")
    if not 2 <= len(parts) <= 4 or not all(part.isdigit() and len(part) < 5 for part in parts):
        raise ValueError(f'{quoted(text)} is not a DeepSpeed version; write e.g. "0.16.4"')
    return tuple(int(part) for part in parts)


def threads_key(version: tuple[int, ...]) -> str:
    """Return the key of ``aio`` that a version reads for the number of threads of one read or write."""
    return "intra_op_parallelism" if version >= _FIRST_INTRA_OP else "thread_count"


def _threads(aio: AioSection, version: tuple[int, ...], warnings: list[str]) -> int:
    """Return the threads of one aio handle; a version ignores the key that it does not know."""
    key = threads_key(version)
    (other,) = {"intra_op_parallelism", "thread_count"} - {key}
    threads, ignored = getattr(aio, key) or 1, getattr(aio, other)
    if ignored is not None:
        warnings.append(
            f"ds_config aio.{other}: {ignored} is ignored by DeepSpeed {'.'.join(map(str, version))}, "
            f"which reads aio.{key}; it runs {plural(threads, 'thread')}"
        )
    return int(threads)


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


def fetch_settings(
    config: DeepSpeedConfig, *, version: str, hidden_size: int
) -> tuple[OffloadSettings, tuple[str, ...]]:
    """Return the settings of fetching parameters in stage 3, and warnings about the effect of the version.

    "auto" is what transformers' integration sets: prefetch 0.9 h^2, persistence 10 h; for other keys
    DeepSpeed's default. Raises ValueError for text that is not a version.
    """
    number = parse_version(version)
    zero, aio = config.zero_optimization, config.aio
    offload = zero.offload_param or OffloadParamSection()
    auto = {
        "stage3_prefetch_bucket_size": int(0.9 * hidden_size * hidden_size),
        "stage3_param_persistence_threshold": 10 * hidden_size,
    }

    warnings: list[str] = []
    if "aio" in config.model_fields_set and (aio.single_submit or not aio.overlap_events):
        warnings.append("ds_config aio.single_submit / overlap_events: not modelled; a full queue is assumed")
    if aio.use_gds and number < _FIRST_GDS:
        warnings.append(f"ds_config aio.use_gds is ignored by DeepSpeed {version}; it came with 0.15.0")
    if number > parse_version(LATEST):
        warnings.append(f"DeepSpeed {version} is newer than {LATEST}, the last that was studied")
    threads = _threads(aio, number, warnings)
    settings = OffloadSettings(
        version=number,
        device=offload.device,
        **{name: _pick(zero, key, auto) for name, key in _STAGE_3.items()},
        overlap_comm=zero.overlap_comm is not False,
        pin_memory=_pinned(offload, number),
        buffer_count=offload.buffer_count,
        buffer_size=_pick(offload, "buffer_size"),
        max_in_cpu=_pick(offload, "max_in_cpu"),
        **_values(aio, "block_size", "queue_depth"),
        threads=threads,
        use_gds=aio.use_gds and number >= _FIRST_GDS,
        quantized_gather=zero.zero_quantized_weights,
        leaf_module=zero.leaf_module,
    )
    return settings, tuple(warnings)


def _pick(section: BaseModel, key: str, auto: Mapping[str, int] | None = None) -> int:
    """Return the value of a key; for "auto" that of Hugging Face, for a missing key DeepSpeed's default."""
    value = getattr(section, key)
    return int((auto or {}).get(key, type(section).model_fields[key].default) if value == "auto" else value)


def _pinned(section: OffloadParamSection | OffloadOptimizerSection, version: tuple[int, ...]) -> bool:
    return section.pin_memory if section.pin_memory is not None else version >= _PIN_BY_DEFAULT


def resolve_training(
    config: DeepSpeedConfig, *, version: str = LATEST, hidden_size: int, dtype_bytes: int
) -> tuple[TrainingSettings, tuple[str, ...]]:
    """Apply defaults and "auto" for training; return settings and warnings.

    Raises InputError, with DeepSpeed's key, for combinations that DeepSpeed refuses or that are not modelled.
    """
    zero = config.zero_optimization
    refuse_keys(config, training=True)
    params, warnings = fetch_settings(config, version=version, hidden_size=hidden_size)
    offload = zero.offload_optimizer or OffloadOptimizerSection()
    refuse_values(config)
    kind = _kind(config)
    if offload.device != "none" and kind != "adam":
        text = f"only Adam is run on the CPU by DeepSpeed; got {config.optimizer and config.optimizer.type}"
        raise InputError.at("optimizer.type", text)
    if zero.zenflow is not None:
        refuse_selection(zero.zenflow)
    auto = {"reduce_bucket_size": hidden_size * hidden_size}
    buckets: dict[str, Any] = {key: _pick(zero, key, auto) for key in _BUCKETS}
    dtype = config.data_types.grad_accum_dtype
    settings = TrainingSettings(
        stage=zero.stage,
        params=params,
        optimizer=kind,
        optimizer_device=offload.device,
        pin_memory=_pinned(offload, params.version),
        **_values(offload, "buffer_count", "pipeline_read", "pipeline_write", "ratio", "super_offload"),
        cpuadam_cores=offload.cpuadam_cores_perc,
        zenflow=zero.zenflow,
        **buckets,
        overlap_comm=zero.overlap_comm if zero.overlap_comm is not None else zero.stage == 3,
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
