"""The sections of a ds_config.json that determine how ZeRO offloads parameters, gradients and optimizer.

Names and defaults are DeepSpeed's (deepspeed/runtime/zero/config.py, offload_config.py,
runtime/zenflow/zenflow_config.py and runtime/swap_tensor/constants.py, read at 0.19.6 and run at 0.19.8).
Sizes are in elements, not in bytes, unless stated.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo

from simoffload.documents import Frozen, quoted


def _integer(value: Any) -> Any:
    """Accept 5e7 as an integer, as DeepSpeed does; keep Hugging Face's "auto"."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return value


def _elements(value: Any) -> Any:
    """Accept what ``_integer`` accepts. Raises ValueError for text that is not "auto", such as "4 GB"."""
    if isinstance(value, str) and value != "auto":
        raise ValueError(
            f'must be "auto" or a whole number of elements (not bytes), e.g. 4e9, got {quoted(value)}'
        )
    return _integer(value)


Elements = Annotated[int, BeforeValidator(_integer), Field(strict=True, ge=0, le=2**63 - 1)]
AutoElements = Annotated[
    Literal["auto"] | Annotated[int, Field(strict=True, ge=0, le=2**63 - 1)], BeforeValidator(_elements)
]
Positive = Annotated[int, BeforeValidator(_integer), Field(strict=True, ge=1, le=2**40)]
AutoPositive = Annotated[
    Literal["auto"] | Annotated[int, Field(strict=True, ge=1, le=2**40)], BeforeValidator(_integer)
]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class ConfigSection(Frozen):
    """A ConfigSection is a section of ds_config.json; unknown keys are kept for warnings."""

    model_config = ConfigDict(extra="allow")


class OffloadParamSection(ConfigSection):
    """``zero_optimization.offload_param`` specifies where weights are."""

    device: Literal["none", "cpu", "nvme"] | None = None
    """Device of the weights, unless the scenario names a tier."""
    nvme_path: str | None = None
    """Folder on the storage. Unless the scenario names a tier, the name of a folder in this path selects
    it."""
    buffer_count: Positive = 5
    """Number of swap buffers for weights on storage."""
    buffer_size: AutoElements = 100_000_000
    """[elements] of each swap buffer; it must hold the largest partition of a parameter."""
    max_in_cpu: AutoElements = 1_000_000_000
    """[elements] of weights that stay in host memory under NVMe offload."""
    pin_memory: bool | None = None
    """Whether weights are in page-locked host memory; None: default of the version."""


class OffloadOptimizerSection(ConfigSection):
    """``zero_optimization.offload_optimizer`` specifies where and how the optimizer runs."""

    device: Literal["none", "cpu", "nvme"] = "none"
    """Device of the optimizer states, unless the scenario names a tier."""
    nvme_path: str | None = None
    """Folder on the storage. Unless the scenario names a tier, the name of a folder in this path selects
    it."""
    buffer_count: Positive = 4
    """Number of swap buffers of the optimizer, each of the size of the largest sub-group."""
    pin_memory: bool | None = None
    """Whether gradients and states are in page-locked host memory; None: default of the version."""
    pipeline_read: bool = False
    """Whether the next sub-group is read while one is updated."""
    pipeline_write: bool = False
    """Whether a sub-group is written while the next is updated."""
    fast_init: bool = False
    """Whether master weights are made through the parameters' swap buffers. It only affects start-up:
    the same bytes in another order (``_initialize_from_swapped_fp16_params``)."""
    ratio: Fraction = 1.0
    """Twin-Flow: share of the sub-groups whose optimizer runs on the CPU (stage 3)."""
    super_offload: bool = False
    """Whether SuperOffload's separate process updates on the CPU in parallel with backward."""
    cpuadam_cores_perc: Fraction = 0.8
    """Share of the cores that SuperOffload's process uses."""


class ZenFlowSection(ConfigSection):
    """``zero_optimization.zenflow`` updates important columns at once, the others later."""

    topk_ratio: Fraction = 0.1
    """Share of the columns that are updated on the GPU immediately."""
    select_strategy: Literal["auto", "step", "epoch"] = "auto"
    """Unit of the interval between two selections of columns."""
    select_interval: Literal["auto"] | Positive = "auto"
    """Steps (or epochs) between two selections of columns."""
    update_interval: Literal["auto"] | Positive = "auto"
    """Steps between two updates on the CPU."""
    overlap_step: bool = False
    """Whether the update on the CPU runs in parallel with the next steps."""
    offload: bool = False
    """Whether moments of the selected columns are kept in host memory."""
    auto_ratio: Fraction = 0.99
    """Fraction of the tensors that must be due before an update with ``update_interval: auto``; only its
    default is simulated, as an assumed interval."""
    full_warm_up_rounds: Elements = 0
    """Number of first steps in which everything is updated."""
    pt_reserved_cores_perc: Fraction = 0.5
    """Share of the cores that the update leaves to PyTorch."""


def _listed(value: Any) -> Any:
    """Accept one name for a list of one, as DeepSpeed does."""
    return [value] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class LeafModuleSection(ConfigSection):
    """``zero_optimization.leaf_module`` lists modules whose parameters are fetched together when they are
    entered (from DeepSpeed 0.18.0 on; for earlier versions: what ``set_z3_leaf_modules`` was called with)."""

    classes: Names | None = None
    """Names of classes, with or without their module; None: the blocks of experts in
    ``DEFAULT_LEAF_MODULE_CLASSES`` (zero/leaf_module_config.py)."""
    names: Names = ()
    """Full names of modules; not simulated, as they are those of single layers."""
    name_suffixes: Names = ()
    """Ends of names of modules, such as "mlp"."""


class ZeroSection(ConfigSection):
    """``zero_optimization`` specifies what is partitioned and what is offloaded."""

    stage: Literal[0, 1, 2, 3] = 3
    """Partitioned states: 0 none, 1 optimizer states, 2 also gradients, 3 also weights."""
    offload_param: OffloadParamSection | None = None
    """Offloading of weights from the GPU (stage 3)."""
    offload_optimizer: OffloadOptimizerSection | None = None
    """Offloading of optimizer states from the GPU."""
    leaf_module: LeafModuleSection | None = None
    """Modules whose parameters are fetched together (stage 3); None: blocks of experts that DeepSpeed
    knows."""
    zenflow: ZenFlowSection | None = None
    """ZenFlow: important columns are updated on the GPU, the others later on the CPU."""
    contiguous_gradients: bool = True
    """Whether gradients are copied into a bucket of ``reduce_bucket_size``. False is not simulated
    (stage3.py, ``__add_grad_to_ipg_bucket``)."""
    reduce_scatter: bool = True
    """Whether gradients are reduce-scattered. False is not simulated in stage 3, where it is an all-reduce
    (``__avg_scatter_contiguous_grads``); stages 1 and 2 all-reduce in any case (stage_1_and_2.py,
    ``average_tensor``)."""
    reduce_bucket_size: AutoElements = 500_000_000
    """[elements] of gradients that are reduced in one operation."""
    allgather_bucket_size: AutoElements = 500_000_000
    """[elements] that stages 1 and 2 gather in one operation after an update."""
    sub_group_size: AutoElements = 1_000_000_000
    """[elements] that stage 3 updates in one operation."""
    round_robin_gradients: bool = False
    """Whether the ranks' copies to host memory are spread over the backward pass; true is always
    simulated."""
    overlap_comm: bool | None = None
    """Whether gradients are reduced in parallel with the backward pass; None: in stage 3."""
    stage3_prefetch_bucket_size: AutoElements = 50_000_000
    """[elements] that are gathered in advance."""
    stage3_param_persistence_threshold: AutoElements = 100_000
    """Largest size [elements] of a parameter that always stays gathered."""
    stage3_model_persistence_threshold: AutoElements = sys.maxsize
    """[elements] in total of parameters that stay gathered because of their size."""
    stage3_max_live_parameters: AutoElements = 1_000_000_000
    """[elements] of gathered parameters on a GPU, at most."""
    stage3_max_reuse_distance: AutoElements = 1_000_000_000
    """Largest distance [elements] to the next use of a parameter at which it stays gathered."""
    zero_quantized_weights: bool = False
    """Whether partitions are quantized to 8 bits on the GPU before they are all-gathered (ZeRO++)."""


def _asymmetric(value: bool) -> bool:
    if value:
        raise ValueError("DeepSpeed supports asymmetric quantization only; write false")
    return value


class QuantizedInitializationSection(ConfigSection):
    """``weight_quantization.quantized_initialization`` quantizes linear layers and embeddings at loading.

    DeepSpeed has no defaults (deepspeed/inference/quantization/utils.py).
    """

    num_bits: Literal[4, 8]
    """Number of bits of each weight."""
    group_size: Positive
    """Weights with one scale and minimum; the dimension ``group_dim`` must be a multiple of it."""
    group_dim: Literal[0, 1]
    """Dimension along which weights share a scale: 1 is that of the columns."""
    symmetric: Annotated[bool, AfterValidator(_asymmetric)]
    """Whether groups have no minimum; DeepSpeed stops at true."""


def _unless_empty(value: Any) -> Any:
    """DeepSpeed takes an empty section for none."""
    return None if value == {} else value


class WeightQuantizationSection(ConfigSection):
    """``weight_quantization`` stores weights in 4 or 8 bits in inference."""

    quantized_initialization: Annotated[
        QuantizedInitializationSection | None, BeforeValidator(_unless_empty)
    ] = None
    """Quantization of linear layers and embeddings while the model is loaded (from DeepSpeed 0.10.3 on)."""


class AioSection(ConfigSection):
    """``aio`` specifies how storage is read and written."""

    block_size: Annotated[Positive, Field(multiple_of=512)] = 1 << 20
    """Size of one request [B]; files are opened with O_DIRECT."""
    queue_depth: Positive = 8
    """Number of requests in flight of each thread."""
    intra_op_parallelism: Positive | None = None
    """Number of threads that share one read or write."""
    thread_count: Positive | None = None
    """Former name of ``intra_op_parallelism``, read before DeepSpeed 0.16.4."""
    single_submit: bool = False
    """Whether requests are submitted one at a time."""
    overlap_events: bool = True
    """Whether requests are submitted while others complete."""
    use_gds: bool = False
    """Whether GPUDirect Storage transfers between drive and HBM without host memory."""


class OptimizerSection(ConfigSection):
    """``optimizer`` names the optimizer and its hyperparameters."""

    type: Annotated[str, Field(min_length=1)] = "AdamW"
    """Type of the optimizer: AdamW, Adam, SGD, Adafactor, or bitsandbytes' AdamW8bit, PagedAdamW or
    PagedAdamW8bit."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Hyperparameters, whose values do not affect the time; ``torch_adam`` causes a warning."""


class DataTypesSection(ConfigSection):
    """``data_types`` names the data type of accumulated gradients."""

    grad_accum_dtype: Literal["fp32", "fp16", "bf16"] | None = None
    """Data type in which gradients are accumulated; None: the model's type."""


class ActivationCheckpointingSection(ConfigSection):
    """``activation_checkpointing`` is read only by DeepSpeed's own checkpoint function."""

    partition_activations: bool = False
    """Whether checkpoints are divided among tensor-parallel ranks; without effect, as there is one such
    rank."""
    cpu_checkpointing: bool = False
    """Whether checkpointed activations are kept in host memory."""


def _lower(value: Any) -> Any:
    """DeepSpeed takes these names in either case."""
    return value.lower() if isinstance(value, str) else value


class CheckpointWriterSection(ConfigSection):
    """``checkpoint.writer`` selects and configures the writer of checkpoints.

    (deepspeed/runtime/model_checkpointing/constants.py; "mock" writes nothing.)
    """

    type: Annotated[Literal["python", "fast"], BeforeValidator(_lower)] = "fast"
    """Writer of files: Python's file object, or FastPersist."""
    io_buffer_size: Positive = 64 * 2**20
    """[B] of the pinned buffer."""
    io_buffer_double: bool = True
    """Whether one half of the buffer is filled while the other is written."""
    data_parallel: Annotated[Literal["replica", "socket", "machine"], BeforeValidator(_lower)] | None = None
    """Ranks that each write a part of the data that all ranks hold."""
    decoupled: bool = False
    """Whether a separate process writes while training continues."""


class CheckpointSection(ConfigSection):
    """``checkpoint`` specifies how checkpoints are written."""

    checkpoint_serialization: bool = True
    """Whether checkpoints use PyTorch's zip format; otherwise the older one."""
    writer: CheckpointWriterSection | None = None
    """DeepSpeed's writer of checkpoints; without it ``torch.save`` writes."""


class PrecisionSection(ConfigSection):
    """``fp16`` or ``bf16``; the model's dtype decides what is simulated, except for the search for
    overflow."""

    enabled: bool | Literal["auto"] = False
    """Whether DeepSpeed computes in this data type."""


def _one_precision(value: PrecisionSection, info: ValidationInfo) -> PrecisionSection:
    """Raise ValueError if both are enabled, which DeepSpeed refuses (deepspeed/runtime/config.py)."""
    other = info.data.get("fp16")
    if value.enabled is True and other is not None and other.enabled is True:
        raise ValueError("bf16 and fp16 cannot both be enabled; leave one out")
    return value


class DeepSpeedConfig(ConfigSection):
    """DeepSpeedConfig is a ds_config.json, as far as it determines what is offloaded and how."""

    zero_optimization: ZeroSection = ZeroSection()
    """Settings of partitioning and offloading."""
    aio: AioSection = AioSection()
    """Settings of reading and writing storage."""
    weight_quantization: WeightQuantizationSection | None = None
    """Storage of weights in 4 or 8 bits (inference only)."""
    optimizer: OptimizerSection | None = None
    """Optimizer of the training; AdamW if none is given."""
    fp16: PrecisionSection = PrecisionSection()
    """Whether DeepSpeed computes in half precision."""
    bf16: Annotated[PrecisionSection, AfterValidator(_one_precision)] = PrecisionSection()
    """Whether DeepSpeed computes in brain floating point."""
    train_batch_size: AutoPositive | None = None
    """Sequences per step on all ranks; must agree with the scenario."""
    train_micro_batch_size_per_gpu: AutoPositive | None = None
    """Sequences per GPU; must agree with the scenario's ``batch_size``."""
    gradient_accumulation_steps: AutoPositive | None = None
    """Micro-steps per step; must agree with the scenario."""
    gradient_clipping: Annotated[float, Field(ge=0.0)] | Literal["auto"] = 0.0
    """Largest norm of the gradients; with 0 the norm is not computed."""
    data_types: DataTypesSection = DataTypesSection()
    """Data types of accumulated values."""
    activation_checkpointing: ActivationCheckpointingSection = ActivationCheckpointingSection()
    """DeepSpeed's own checkpointing of activations."""
    checkpoint: CheckpointSection | None = None
    """Settings of writing checkpoints; without them ``torch.save`` writes."""

    @property
    def quantized_initialization(self) -> QuantizedInitializationSection | None:
        """Quantization of the weights at loading; None without one."""
        section = self.weight_quantization
        return None if section is None else section.quantized_initialization

    @property
    def precision(self) -> Literal["fp16", "bf16"] | None:
        """Data type that is enabled; None if none is, or if it is "auto"."""
        return "fp16" if self.fp16.enabled is True else "bf16" if self.bf16.enabled is True else None
