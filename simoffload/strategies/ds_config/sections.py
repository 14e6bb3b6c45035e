"""DeepSpeed's own configuration: the keys that decide how ZeRO-3 offloads parameters.

Names and defaults are DeepSpeed's (deepspeed/runtime/zero/config.py, offload_config.py and
runtime/swap_tensor/constants.py, read at 0.19.6 and run at 0.19.8; versions where a default or a name changed
are said below).
Elements are elements, not bytes.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from simoffload.documents import suggest
from simoffload.errors import InputError, Problem

__all__ = ["DeepSpeedConfig", "OffloadSettings", "parse_version", "resolve_settings"]

LATEST = "0.19.8"
_FIRST_GDS = (0, 15, 0)


def _whole(value: Any) -> Any:
    """Accept 5e7 where an integer is meant, as DeepSpeed does; keep Hugging Face's "auto"."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return value


Elements = Annotated[int, BeforeValidator(_whole), Field(strict=True, ge=0, le=2**63 - 1)]
AutoElements = Annotated[
    Literal["auto"] | Annotated[int, Field(strict=True, ge=0, le=2**63 - 1)], BeforeValidator(_whole)
]
Positive = Annotated[int, BeforeValidator(_whole), Field(strict=True, ge=1, le=2**40)]


class _Section(BaseModel):
    """A section of ds_config.json; keys that we do not know are kept to be warned about."""

    model_config = ConfigDict(frozen=True, extra="allow")


class OffloadParamSection(_Section):
    """``zero_optimization.offload_param``."""

    device: Literal["none", "cpu", "nvme"] | None = None
    nvme_path: str | None = None
    buffer_count: Positive = 5
    buffer_size: AutoElements = 100_000_000
    max_in_cpu: AutoElements = 1_000_000_000
    pin_memory: bool | None = None


class ZeroSection(_Section):
    """``zero_optimization``."""

    stage: Literal[0, 1, 2, 3] = 3
    offload_param: OffloadParamSection | None = None
    overlap_comm: bool | None = None
    stage3_prefetch_bucket_size: AutoElements = 50_000_000
    stage3_param_persistence_threshold: AutoElements = 100_000
    stage3_model_persistence_threshold: AutoElements = sys.maxsize
    stage3_max_live_parameters: AutoElements = 1_000_000_000
    stage3_max_reuse_distance: AutoElements = 1_000_000_000


class AioSection(_Section):
    """``aio``."""

    block_size: Annotated[Positive, Field(multiple_of=512)] = 1 << 20
    """Files are opened with O_DIRECT."""
    queue_depth: Positive = 8
    intra_op_parallelism: Positive | None = None
    thread_count: Positive | None = None
    single_submit: bool = False
    overlap_events: bool = True
    use_gds: bool = False


class DeepSpeedConfig(_Section):
    """A ds_config.json, as far as it decides parameter offload."""

    zero_optimization: ZeroSection = ZeroSection()
    aio: AioSection = AioSection()


# Keys that DeepSpeed reads and that change nothing in a forward pass of inference.
_SILENT = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "steps_per_print",
    "dump_state",
    "wall_clock_breakdown",
    "memory_breakdown",
    "fp16",
    "bf16",
    "amp",
    "optimizer",
    "scheduler",
    "gradient_clipping",
    "data_types",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "prescale_gradients",
    "communication_data_type",
    "flops_profiler",
    "comms_logger",
    "tensorboard",
    "wandb",
    "csv_monitor",
    "checkpoint",
    "activation_checkpointing",
}
_SILENT_ZERO = {
    "contiguous_gradients",
    "reduce_scatter",
    "reduce_bucket_size",
    "allgather_partitions",
    "allgather_bucket_size",
    "sub_group_size",
    "offload_optimizer",
    "cpu_offload",
    "round_robin_gradients",
    "load_from_fp32_weights",
    "zenflow",
    "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save",
    "elastic_checkpoint",
    "ignore_unused_parameters",
    "memory_efficient_linear",
    "log_trace_cache_warnings",
}
_NOT_MODELLED = {
    "stage3_module_granularity_threshold",
    "stage3_use_all_reduce_for_fetch_params",
    "stage3_allgather_sequential",
    "zero_hpz_partition_size",
    "zero_quantized_weights",
    "zero_quantized_nontrainable_weights",
    "leaf_module",
    "zero_quantized_gradients",
    "mics_shard_size",
    "mics_hierarchical_params_gather",
    "pipeline_loading_checkpoint",
    "cpu_offload_params",
    "cpu_offload_param",
    "cpu_offload_use_pin_memory",
    "weight_quantization",
}


class OffloadSettings(NamedTuple):
    """The resolved knobs of one run."""

    version: tuple[int, ...]
    device: Literal["none", "cpu", "nvme"] | None
    """As configured; None = the configuration does not say."""
    prefetch_bucket_size: int
    """[elements]"""
    max_live_parameters: int
    """[elements]"""
    max_reuse_distance: int
    """[elements]"""
    param_persistence_threshold: int
    """[elements]"""
    model_persistence_threshold: int
    """[elements]"""
    overlap_comm: bool
    """False puts copies and gathers on the stream of the kernels."""
    pin_memory: bool
    buffer_count: int
    buffer_size: int
    """[elements]"""
    block_size: int
    """[B]"""
    queue_depth: int
    threads: int
    """Worker threads of one aio handle (``intra_op_parallelism``)."""
    use_gds: bool

    def copies_directly(self, ranks: int) -> bool:
        """One rank copies its parameters asynchronously and gathers nothing; before DeepSpeed 0.9.0 even
        one rank made blocking copies and an all-gather with itself (pull request 2953)."""
        return ranks == 1 and self.version >= (0, 9, 0)

    @property
    def swap_buffers_pinned(self) -> bool:
        """Whether CUDA knows the swap buffers; since DeepSpeed 0.19.4 they are only locked in memory (pull
        request 8212), and copies from them go at the pace of pageable memory."""
        return self.version < (0, 19, 4)

    def source(self, on_nvme: bool) -> bool | None:
        """Whether a partition is copied from pinned memory; None if it is not copied, being read by GPUDirect
        Storage into the GPU's."""
        if not on_nvme:
            return self.pin_memory
        return None if self.use_gds else self.swap_buffers_pinned

    @property
    def min_swap_bytes(self) -> int:
        """[B] slices smaller than this stay in host memory (partitioned_param_swapper.py)."""
        return max(1 << 20, self.block_size)

    @property
    def outstanding_bytes(self) -> int:
        """[B] the most that one rank has in flight to storage."""
        return self.block_size * self.queue_depth * self.threads


def parse_version(text: str) -> tuple[int, ...]:
    """Turn "0.16.4" into (0, 16, 4); ValueError if it is no such thing."""
    parts = text.split(".")
    if not 2 <= len(parts) <= 4 or not all(part.isdigit() and len(part) < 5 for part in parts):
        raise ValueError(f'"{text}" is not a DeepSpeed version; write e.g. "0.16.4"')
    return tuple(int(part) for part in parts)


def _threads(aio: AioSection, version: tuple[int, ...], warnings: list[str]) -> int:
    """``thread_count`` was renamed in 0.16.4; the name of the other side is silently ignored."""
    renamed = version >= (0, 16, 4)
    value, other = (
        (aio.intra_op_parallelism, aio.thread_count)
        if renamed
        else (aio.thread_count, aio.intra_op_parallelism)
    )
    if other is not None:
        wrong, right = (
            ("thread_count", "intra_op_parallelism") if renamed else ("intra_op_parallelism", "thread_count")
        )
        warnings.append(
            f"ds_config aio.{wrong}: {other} is ignored by DeepSpeed {'.'.join(map(str, version))}, "
            f"which reads aio.{right}; it runs {value or 1} thread(s)"
        )
    return value or 1


def _unread(section: _Section, where: str, silent: set[str]) -> list[str]:
    warnings = []
    for key in section.model_extra or {}:
        if key in silent:
            continue
        if key in _NOT_MODELLED:
            warnings.append(f"ds_config {where}{key}: known to DeepSpeed, not modelled here")
            continue
        hint = suggest(key, [*type(section).model_fields, *silent])
        warnings.append(f"ds_config {where}{key}: unknown key, DeepSpeed ignores it{hint}")
    return warnings


def resolve_settings(
    config: DeepSpeedConfig, *, version: str = LATEST, hidden_size: int
) -> tuple[OffloadSettings, tuple[str, ...]]:
    """Apply the version's defaults and Hugging Face's "auto" rules; return settings and warnings.

    Raises ValueError for what is no version and InputError, with DeepSpeed's key, for a stage that does not
    offload parameters. "auto" follows transformers'
    integration: prefetch 0.9 h^2, persistence 10 h; other keys fall back to DeepSpeed's default.
    """
    number = parse_version(version)
    zero, aio = config.zero_optimization, config.aio
    if zero.stage != 3:
        text = f"{zero.stage} does not offload parameters; ZeRO-Inference needs 3"
        raise InputError([Problem("", None, None, "zero_optimization.stage", text)])
    offload = zero.offload_param or OffloadParamSection()
    auto = {
        "stage3_prefetch_bucket_size": int(0.9 * hidden_size * hidden_size),
        "stage3_param_persistence_threshold": 10 * hidden_size,
    }

    def pick(section: BaseModel, key: str) -> int:
        value = getattr(section, key)
        return int(auto.get(key, type(section).model_fields[key].default) if value == "auto" else value)

    warnings = _unread(config, "", _SILENT) + _unread(zero, "zero_optimization.", _SILENT_ZERO)
    warnings += _unread(offload, "zero_optimization.offload_param.", set()) + _unread(aio, "aio.", set())
    if "aio" in config.model_fields_set and (aio.single_submit or not aio.overlap_events):
        warnings.append("ds_config aio.single_submit / overlap_events: not modelled; a full queue is assumed")
    if aio.use_gds and number < _FIRST_GDS:
        warnings.append(f"ds_config aio.use_gds is ignored by DeepSpeed {version}; it came with 0.15.0")
    if number > parse_version(LATEST):
        warnings.append(f"DeepSpeed {version} is newer than {LATEST}, the last that was studied")
    threads = _threads(aio, number, warnings)
    pin = offload.pin_memory if offload.pin_memory is not None else number >= (0, 19, 5)
    settings = OffloadSettings(
        version=number,
        device=offload.device,
        prefetch_bucket_size=pick(zero, "stage3_prefetch_bucket_size"),
        max_live_parameters=pick(zero, "stage3_max_live_parameters"),
        max_reuse_distance=pick(zero, "stage3_max_reuse_distance"),
        param_persistence_threshold=pick(zero, "stage3_param_persistence_threshold"),
        model_persistence_threshold=pick(zero, "stage3_model_persistence_threshold"),
        overlap_comm=zero.overlap_comm is not False,
        pin_memory=pin,
        buffer_count=offload.buffer_count,
        buffer_size=pick(offload, "buffer_size"),
        block_size=aio.block_size,
        queue_depth=aio.queue_depth,
        threads=threads,
        use_gds=aio.use_gds and number >= _FIRST_GDS,
    )
    return settings, tuple(warnings)
