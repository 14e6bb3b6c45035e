"""The sections of a ds_config.json that decide how ZeRO offloads parameters, gradients and optimizer.

Names and defaults are DeepSpeed's (deepspeed/runtime/zero/config.py, offload_config.py,
runtime/zenflow/zenflow_config.py and runtime/swap_tensor/constants.py, read at 0.19.6 and run at 0.19.8).
Elements are elements, not bytes.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

__all__ = [
    "ActivationCheckpointingSection",
    "AioSection",
    "CheckpointSection",
    "CheckpointWriterSection",
    "DataTypesSection",
    "DeepSpeedConfig",
    "OffloadOptimizerSection",
    "OffloadParamSection",
    "OptimizerSection",
    "PrecisionSection",
    "Section",
    "ZenFlowSection",
    "ZeroSection",
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


class Section(BaseModel):
    """A section of ds_config.json; keys that we do not know are kept to be warned about."""

    model_config = ConfigDict(frozen=True, extra="allow")


class OffloadParamSection(Section):
    """``zero_optimization.offload_param``."""

    device: Literal["none", "cpu", "nvme"] | None = None
    nvme_path: str | None = None
    buffer_count: Positive = 5
    buffer_size: AutoElements = 100_000_000
    max_in_cpu: AutoElements = 1_000_000_000
    pin_memory: bool | None = None


class OffloadOptimizerSection(Section):
    """``zero_optimization.offload_optimizer``."""

    device: Literal["none", "cpu", "nvme"] = "none"
    nvme_path: str | None = None
    buffer_count: Positive = 4
    pin_memory: bool | None = None
    pipeline_read: bool = False
    pipeline_write: bool = False
    fast_init: bool = False
    """Only of start-up: master weights are made from parameters on storage through the parameters' swap
    buffers, the same bytes in another order (``_initialize_from_swapped_fp16_params``)."""
    ratio: Fraction = 1.0
    """Twin-Flow: share of the sub-groups whose optimizer runs on the CPU (stage 3)."""
    super_offload: bool = False
    cpuadam_cores_perc: Fraction = 0.8


class ZenFlowSection(Section):
    """``zero_optimization.zenflow``."""

    topk_ratio: Fraction = 0.1
    select_strategy: Literal["auto", "step", "epoch"] = "auto"
    select_interval: Literal["auto"] | Positive = "auto"
    update_interval: Literal["auto"] | Positive = "auto"
    overlap_step: bool = False
    offload: bool = False
    auto_ratio: Fraction = 0.99
    """Share of the tensors that make an update under ``update_interval: auto``, whose interval is assumed."""
    full_warm_up_rounds: Elements = 0
    pt_reserved_cores_perc: Fraction = 0.5


class ZeroSection(Section):
    """``zero_optimization``."""

    stage: Literal[0, 1, 2, 3] = 3
    offload_param: OffloadParamSection | None = None
    offload_optimizer: OffloadOptimizerSection | None = None
    zenflow: ZenFlowSection | None = None
    contiguous_gradients: bool = True
    """False is not simulated: no bucket of ``reduce_bucket_size``, and no copies into it (stage3.py,
    ``__add_grad_to_ipg_bucket``)."""
    reduce_scatter: bool = True
    """False is not simulated in stage 3 (``__avg_scatter_contiguous_grads``: an all-reduce); stages 1 and 2
    all-reduce either way (stage_1_and_2.py, ``average_tensor``)."""
    reduce_bucket_size: AutoElements = 500_000_000
    allgather_bucket_size: AutoElements = 500_000_000
    sub_group_size: AutoElements = 1_000_000_000
    round_robin_gradients: bool = False
    """Spreads the ranks' copies to host memory over the backward pass, as all simulated ranks do."""
    overlap_comm: bool | None = None
    stage3_prefetch_bucket_size: AutoElements = 50_000_000
    stage3_param_persistence_threshold: AutoElements = 100_000
    stage3_model_persistence_threshold: AutoElements = sys.maxsize
    stage3_max_live_parameters: AutoElements = 1_000_000_000
    stage3_max_reuse_distance: AutoElements = 1_000_000_000


class AioSection(Section):
    """``aio``."""

    block_size: Annotated[Positive, Field(multiple_of=512)] = 1 << 20
    """Files are opened with O_DIRECT."""
    queue_depth: Positive = 8
    intra_op_parallelism: Positive | None = None
    thread_count: Positive | None = None
    single_submit: bool = False
    overlap_events: bool = True
    use_gds: bool = False


class OptimizerSection(Section):
    """``optimizer``."""

    type: Annotated[str, Field(min_length=1)] = "AdamW"
    params: dict[str, Any] = Field(default_factory=dict)
    """Hyperparameters, which cost the same whatever they are; ``torch_adam`` is warned about."""


class DataTypesSection(Section):
    """``data_types``."""

    grad_accum_dtype: Literal["fp32", "fp16", "bf16"] | None = None


class ActivationCheckpointingSection(Section):
    """``activation_checkpointing``: read only by DeepSpeed's own checkpoint function."""

    partition_activations: bool = False
    """Divides checkpoints among tensor-parallel ranks, of which there is one here."""
    cpu_checkpointing: bool = False


def _lower(value: Any) -> Any:
    """DeepSpeed takes these names in either case."""
    return value.lower() if isinstance(value, str) else value


class CheckpointWriterSection(Section):
    """``checkpoint.writer`` (deepspeed/runtime/model_checkpointing/constants.py); "mock" writes nothing."""

    type: Annotated[Literal["python", "fast"], BeforeValidator(_lower)] = "fast"
    io_buffer_size: Positive = 64 * 2**20
    io_buffer_double: bool = True
    data_parallel: Annotated[Literal["replica", "socket", "machine"], BeforeValidator(_lower)] | None = None
    decoupled: bool = False


class CheckpointSection(Section):
    """``checkpoint``."""

    checkpoint_serialization: bool = True
    writer: CheckpointWriterSection | None = None


class PrecisionSection(Section):
    """``fp16`` or ``bf16``; the model's dtype decides what is simulated."""

    enabled: bool | Literal["auto"] = False


def _one_precision(value: PrecisionSection, info: ValidationInfo) -> PrecisionSection:
    """DeepSpeed refuses both (deepspeed/runtime/config.py)."""
    other = info.data.get("fp16")
    if value.enabled is True and other is not None and other.enabled is True:
        raise ValueError("bf16 and fp16 cannot both be enabled; leave one out")
    return value


class DeepSpeedConfig(Section):
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
