"""The sections of a ds_config.json that decide how ZeRO offloads parameters, gradients and optimizer.

Names and defaults are DeepSpeed's (deepspeed/runtime/zero/config.py, offload_config.py,
runtime/zenflow/zenflow_config.py and runtime/swap_tensor/constants.py, read at 0.19.6 and run at 0.19.8).
Elements are elements, not bytes.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from simoffload.documents import suggest

__all__ = [
    "AioSection",
    "CheckpointSection",
    "DeepSpeedConfig",
    "OffloadOptimizerSection",
    "OffloadParamSection",
    "ZenFlowSection",
    "ZeroSection",
    "unread",
]


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
AutoPositive = Annotated[
    Literal["auto"] | Annotated[int, Field(strict=True, ge=1, le=2**40)], BeforeValidator(_whole)
]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


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


class OffloadOptimizerSection(_Section):
    """``zero_optimization.offload_optimizer``."""

    device: Literal["none", "cpu", "nvme"] = "none"
    nvme_path: str | None = None
    buffer_count: Positive = 4
    pin_memory: bool | None = None
    pipeline_read: bool = False
    pipeline_write: bool = False
    fast_init: bool = False
    ratio: Fraction = 1.0
    """Twin-Flow: share of the sub-groups whose optimizer runs on the CPU (stage 3)."""
    super_offload: bool = False
    cpuadam_cores_perc: Fraction = 0.8


class ZenFlowSection(_Section):
    """``zero_optimization.zenflow``."""

    topk_ratio: Fraction = 0.1
    select_strategy: Literal["auto", "step", "epoch"] = "auto"
    select_interval: Literal["auto"] | Positive = "auto"
    update_interval: Literal["auto"] | Positive = "auto"
    overlap_step: bool = False
    offload: bool = False
    auto_ratio: Fraction = 0.99
    full_warm_up_rounds: Elements = 0
    pt_reserved_cores_perc: Fraction = 0.5


class ZeroSection(_Section):
    """``zero_optimization``."""

    stage: Literal[0, 1, 2, 3] = 3
    offload_param: OffloadParamSection | None = None
    offload_optimizer: OffloadOptimizerSection | None = None
    zenflow: ZenFlowSection | None = None
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    reduce_bucket_size: AutoElements = 500_000_000
    allgather_bucket_size: AutoElements = 500_000_000
    sub_group_size: AutoElements = 1_000_000_000
    round_robin_gradients: bool = False
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


class OptimizerSection(_Section):
    """``optimizer``."""

    type: Annotated[str, Field(min_length=1)] = "AdamW"
    params: dict[str, Any] = Field(default_factory=dict)


class DataTypesSection(_Section):
    """``data_types``."""

    grad_accum_dtype: Literal["fp32", "fp16", "bf16"] | None = None


class ActivationCheckpointingSection(_Section):
    """``activation_checkpointing``: read only by DeepSpeed's own checkpoint function."""

    partition_activations: bool = False
    cpu_checkpointing: bool = False


def _lower(value: Any) -> Any:
    """DeepSpeed takes these names in either case."""
    return value.lower() if isinstance(value, str) else value


class CheckpointWriterSection(_Section):
    """``checkpoint.writer`` (deepspeed/runtime/model_checkpointing/constants.py); "mock" writes nothing."""

    type: Annotated[Literal["python", "fast"], BeforeValidator(_lower)] = "fast"
    io_buffer_size: Positive = 64 * 2**20
    io_buffer_double: bool = True
    data_parallel: Annotated[Literal["replica", "socket", "machine"], BeforeValidator(_lower)] | None = None
    decoupled: bool = False


class CheckpointSection(_Section):
    """``checkpoint``."""

    checkpoint_serialization: bool = True
    writer: CheckpointWriterSection | None = None


class PrecisionSection(_Section):
    """``fp16`` or ``bf16``; the model's dtype decides what is simulated."""

    enabled: bool | Literal["auto"] = False


def _one_precision(value: PrecisionSection, info: ValidationInfo) -> PrecisionSection:
    """DeepSpeed refuses both (deepspeed/runtime/config.py)."""
    other = info.data.get("fp16")
    if value.enabled is True and other is not None and other.enabled is True:
        raise ValueError("bf16 and fp16 cannot both be enabled; leave one out")
    return value


class DeepSpeedConfig(_Section):
    """A ds_config.json, as far as it decides what is offloaded and how."""

    zero_optimization: ZeroSection = ZeroSection()
    aio: AioSection = AioSection()
    optimizer: OptimizerSection | None = None
    fp16: PrecisionSection = PrecisionSection()
    bf16: Annotated[PrecisionSection, AfterValidator(_one_precision)] = PrecisionSection()
    train_batch_size: AutoPositive | None = None
    train_micro_batch_size_per_gpu: AutoPositive | None = None
    gradient_accumulation_steps: AutoPositive | None = None
    gradient_clipping: Annotated[float, Field(ge=0.0)] | Literal["auto"] = 0.0
    data_types: DataTypesSection = DataTypesSection()
    activation_checkpointing: ActivationCheckpointingSection = ActivationCheckpointingSection()
    checkpoint: CheckpointSection | None = None


# Keys that DeepSpeed reads and that change nothing here.
_SILENT = {
    "steps_per_print",
    "dump_state",
    "wall_clock_breakdown",
    "memory_breakdown",
    "amp",
    "scheduler",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "prescale_gradients",
    "communication_data_type",
    "flops_profiler",
    "comms_logger",
    "tensorboard",
    "wandb",
    "csv_monitor",
}
_SILENT_ZERO = {
    "allgather_partitions",
    "cpu_offload",
    "load_from_fp32_weights",
    "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save",
    "elastic_checkpoint",
    "ignore_unused_parameters",
    "memory_efficient_linear",
    "log_trace_cache_warnings",
}
_SILENT_CHECKPOINT = {"tag_validation", "load_universal", "show_statistics"}
_NOT_MODELLED = {
    "use_node_local_storage",
    "parallel_write",
    "io_multiplier",
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
_SILENT_BY_SECTION = {
    "DeepSpeedConfig": _SILENT,
    "ZeroSection": _SILENT_ZERO,
    "CheckpointSection": _SILENT_CHECKPOINT,
    "CheckpointWriterSection": _SILENT_CHECKPOINT,
}


def unread(section: _Section, where: str) -> list[str]:
    """Warnings about keys of a section that DeepSpeed does not know or that are not modelled."""
    silent = _SILENT_BY_SECTION.get(type(section).__name__, set())
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
