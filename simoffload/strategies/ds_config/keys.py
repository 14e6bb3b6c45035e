"""Keys of ds_config.json: the sections with the keys that are simulated, and what becomes of all others.

Names and defaults are DeepSpeed's (deepspeed/runtime/zero/config.py, offload_config.py,
runtime/zenflow/zenflow_config.py and runtime/swap_tensor/constants.py, read at 0.19.6 and run at 0.19.8).
Sizes are in elements, not in bytes, unless stated.

A key that DeepSpeed reads is either a field of its section, and simulated, or in the table of keys that are
not. The table states for each whether it has no effect on time and memory of a long run (no warning), whether
a value other than the simulated one gives a warning, or whether it is refused because the result would be far
off. Read in DeepSpeed 0.19.6, in deepspeed/runtime: config.py, engine.py, precision_config.py, zero/config.py
and offload_config.py, zenflow/zenflow_config.py. Combinations of values that DeepSpeed refuses are checked by
the functions at the end (asserts in engine.py, stage3.py, stage_1_and_2.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo

from simoffload.documents import Frozen, quoted, suggest
from simoffload.errors import InputError, Problem, shortened

PRECISIONS = {"float16": "fp16", "bfloat16": "bf16"}
"""Sections of ds_config that enable a data type."""


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


_ZENFLOW_STEPS_AUTO = 4
"""Steps between CPU updates if ``update_interval`` is "auto", which depends on gradients: an update comes
when 99 % of the tensors have accumulated enough of the norm. The published runs use 4
(blogs/deepspeed-zenflow; an estimate)."""


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

    @property
    def interval(self) -> int:
        """Micro-steps between two updates on the CPU."""
        return _ZENFLOW_STEPS_AUTO if self.update_interval == "auto" else self.update_interval

    @property
    def selects_every(self) -> int:
        """Micro-steps between two selections of columns; 0 = once per epoch, outside the simulated steps."""
        by_step = self.select_strategy == "step" and self.select_interval != "auto"
        return int(self.select_interval) if by_step else 0


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
    """``fp16`` or ``bf16``: the data type of a model that states none; else it decides only about the search
    for overflow."""

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


class Key(NamedTuple):
    """A Key states what happens if ds_config has a certain key that is not simulated."""

    simulated: Any = None
    """Value that is simulated; other values cause a warning."""
    instead: str = ""
    """Text of the warning: what is simulated, or what DeepSpeed does instead."""
    stages: tuple[int, ...] = (0, 1, 2, 3)
    """Stages of ZeRO that read the key."""
    training: bool = False
    """Whether the key affects training only."""
    matters: Callable[[Any], bool] = lambda _section: True
    """Function that returns whether the key has an effect, given its section."""
    refused: str = ""
    """Reason for which the value true is refused; "" if it is not."""


def _all(names: str, key: Key) -> dict[str, Key]:
    return dict.fromkeys(names.split(), key)


def _other_type(config: DeepSpeedConfig) -> bool:
    """Return whether gradients are communicated in another type than the enabled one
    (``DeepSpeedEngine``)."""
    enabled = {"fp16": "fp16", "bf16": "bfp16", None: ""}[config.precision]
    return getattr(config, "communication_data_type", None) != enabled


_SILENT = Key(stages=())
_TRAINING = Key(training=True)
_STAGE_3 = Key(simulated=False, stages=(3,))
_OLD_NAME = "is the old name of {0}: {{device: cpu}}; write that"
NOT_SIMULATED: dict[type[ConfigSection], dict[str, Key]] = {
    DeepSpeedConfig: {
        **_all("tensor_parallel expert_parallel compile", Key()),
        **_all("sparse_attention compression_training hybrid_engine", Key()),
        **_all("elasticity autotuning progressive_layer_drop curriculum_learning", _TRAINING),
        **_all("data_efficiency eigenvalue quantize_training nebula datastates_ckpt amp", _TRAINING),
        "graph_harvesting": Key(simulated=False),
        "sparse_gradients": Key(simulated=False, training=True),
        "comms_logger": Key(
            instead="DeepSpeed waits for the GPU after each collective to time it, and overlaps less"
        ),
        "torch_autocast": Key(instead="the model's dtype decides sizes and times", training=True),
        "communication_data_type": Key(
            instead="gradients are reduced in the model's type", training=True, matters=_other_type
        ),
        "zero_force_ds_cpu_optimizer": Key(
            simulated=True, instead="on the CPU it is DeepSpeed's own Adam that runs", training=True
        ),
        # Logs, schedules of the learning rate, scaling of gradients in place of another multiplication, and a
        # profile of one step; "bfloat16" is the old name of bf16. Timers of wall_clock_breakdown read events.
        **_all("steps_per_print dump_state wall_clock_breakdown memory_breakdown log_level timers", _SILENT),
        **_all("vocabulary_size flops_profiler tensorboard wandb csv_monitor comet scheduler", _SILENT),
        **_all("prescale_gradients gradient_predivide_factor gradient_allreduce_op", _SILENT),
        **_all("zero_allow_untested_optimizer disable_allgather managed_gradient_accumulation", _SILENT),
        **_all("seq_parallel_communication_data_type dataloader_drop_last pipeline bfloat16", _SILENT),
        **_all("use_data_before_expert_parallelism", _SILENT),
    },
    ZeroSection: {
        "contiguous_gradients": Key(
            simulated=True,
            instead="gradients are copied into a bucket of reduce_bucket_size, as stages 1 and 2 always do "
            "that offload the optimizer",
            stages=(1, 2, 3),
            training=True,
        ),
        "reduce_scatter": Key(
            simulated=True,
            instead="gradients are reduce-scattered; DeepSpeed would all-reduce them, twice the bytes",
            stages=(3,),
            training=True,
            matters=lambda zero: zero.contiguous_gradients,
        ),
        "use_multi_rank_bucket_allreduce": Key(
            simulated=True,
            instead="gradients are all-reduced; DeepSpeed would reduce each to the rank that keeps it",
            stages=(1, 2),
            training=True,
            matters=lambda zero: zero.reduce_scatter,
        ),
        "cpu_offload_use_pin_memory": Key(instead="DeepSpeed ignores it, too; set pin_memory"),
        "legacy_stage1": Key(simulated=False, instead="DeepSpeed 0.5.9 and later stop at it"),
        "stage3_module_granularity_threshold": Key(simulated=0, stages=(3,)),
        "zero_hpz_partition_size": Key(simulated=1, stages=(3,)),
        "mics_shard_size": Key(simulated=-1, stages=(3,)),
        "leaf_module": Key(stages=(3,), training=True),
        "zeropp_loco_param": Key(stages=(3,), training=True),
        "zero_quantized_gradients": _STAGE_3._replace(training=True),
        **_all("stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential", _STAGE_3),
        "zero_quantized_nontrainable_weights": _STAGE_3._replace(
            instead="weights that are frozen (requires_grad_(False)) would be stored and copied in 8 bits"
        ),
        **_all("mics_hierarchical_params_gather pipeline_loading_checkpoint enable_sanity_checks", _STAGE_3),
        "cpu_offload": Key(refused=_OLD_NAME.format("offload_optimizer"), training=True),
        **_all("cpu_offload_param cpu_offload_params", Key(refused=_OLD_NAME.format("offload_param"))),
        # round_robin_gradients spreads the ranks' copies to host memory over the backward pass of stages 1
        # and 2, which is what is simulated: every rank copies its share of each bucket. Others are about
        # loading, saving and unused parameters; allgather_partitions is read by nobody (0.9.4 to 0.19.6).
        **_all("round_robin_gradients allgather_partitions load_from_fp32_weights", _SILENT),
        **_all("elastic_checkpoint ignore_unused_parameters memory_efficient_linear", _SILENT),
        **_all("stage3_gather_16bit_weights_on_model_save", _SILENT),
        **_all("stage3_gather_fp16_weights_on_model_save", _SILENT),
        **_all("override_module_apply log_trace_cache_warnings save_muon_momentum_buffer_in_memory", _SILENT),
    },
    OffloadOptimizerSection: {
        "fast_init": Key(
            simulated=False,
            instead="start-up moves the same bytes in another order; with parameters on storage DeepSpeed "
            "stops unless offload_param.buffer_size holds the largest sub-group, which is not checked",
            stages=(3,),
            training=True,
        )
    },
    ZenFlowSection: {
        "auto_ratio": Key(
            simulated=0.99,
            instead='the interval that is assumed for update_interval "auto" is that of 0.99',
            training=True,
            matters=lambda zenflow: zenflow.update_interval == "auto",
        )
    },
    WeightQuantizationSection: {
        "post_init_quant": Key(instead="write quantized_initialization"),
        **_all("enabled num_bits q_type q_groups", _SILENT),
    },
    # A field that accepts one value only.
    QuantizedInitializationSection: {"symmetric": _SILENT},
    ActivationCheckpointingSection: {
        **_all(
            "contiguous_memory_optimization synchronize_checkpoint_boundary profile",
            Key(simulated=False, training=True, matters=lambda section: section.cpu_checkpointing),
        ),
        # partition_activations divides checkpoints among tensor-parallel ranks, of which there is one here:
        # the whole is kept (checkpointing.py, get_partition_size). number_checkpoints is of contiguous ones.
        **_all("partition_activations number_checkpoints", _SILENT),
    },
    # Hyperparameters; moments follow the master weights' type, whatever fp32_optimizer_states says of
    # 16-bit ones (cpu_adam.py). legacy_fusion is of stage 0, where one kernel updates what several would.
    OptimizerSection: _all("params legacy_fusion", _SILENT),
    # param_dtype must be the enabled type; buffers are a few tables of positions.
    DataTypesSection: _all("param_dtype buffer_dtype", _SILENT),
    PrecisionSection: {
        **_all(
            "fp16_master_weights_and_grads bf16_master_weights_and_grads bf16_optimizer_states",
            Key(
                refused="is not modelled: master weights, gradients and moments are counted in single "
                "precision, up to twice what DeepSpeed would keep; leave it out to see that",
                training=True,
            ),
        ),
        # Loss scaling changes what gradients are multiplied by. check_grad_overflow acts in stages 1 and 2
        # alone, where it is one more look at gradients in HBM; stage 3 checks those in float16 in any case.
        **_all("auto_cast loss_scale initial_scale_power loss_scale_window hysteresis", _SILENT),
        **_all("consecutive_hysteresis min_loss_scale immediate_grad_update", _SILENT),
        **_all("check_grad_overflow check_overflow", _SILENT),
    },
    CheckpointSection: {
        "use_node_local_storage": Key(simulated=False),
        "parallel_write": Key(),
        **_all("tag_validation load_universal", _SILENT),
    },
    CheckpointWriterSection: {"io_multiplier": Key(simulated=1), "show_statistics": _SILENT},
}
"""Keys that are not simulated, by section; also fields of which only some values are simulated."""

_OFFLOADING = (OffloadParamSection, OffloadOptimizerSection)
_STRICT = (ZeroSection, LeafModuleSection, *_OFFLOADING, ZenFlowSection, PrecisionSection)
"""Sections in which DeepSpeed refuses unknown keys (``extra="forbid"`` in config_utils.py)."""


def key_warnings(config: DeepSpeedConfig, *, training: bool) -> list[str]:
    """Return warnings about all keys that DeepSpeed ignores or that are not simulated."""
    found: list[str] = []
    for where, section in _sections(config, training=training):
        found += section_warnings(section, where, stage=config.zero_optimization.stage, training=training)
    if training and config.optimizer is not None and config.optimizer.params.get("torch_adam") is True:
        found.append(
            "ds_config optimizer.params.torch_adam: true is not modelled; an optimizer on the CPU is "
            "DeepSpeed's own Adam, which takes less time than PyTorch's"
        )
    return found


def section_warnings(
    section: ConfigSection, where: str, *, stage: int = 3, training: bool = True
) -> list[str]:
    """Return warnings about keys of one section that DeepSpeed ignores or that are not simulated."""
    known, warnings = NOT_SIMULATED.get(type(section), {}), []
    for key, left in known.items():
        if _is_reported(section, key, left, stage=stage, training=training):
            instead = f"; {left.instead}" if left.instead else ""
            warnings.append(f"ds_config {where}{key}: {_shown(getattr(section, key))}not modelled{instead}")
    for key in _unknown(section):
        if f"stage3_{key}" in {**type(section).model_fields, **known}:
            warnings.append(f"ds_config {where}{shortened(key)} is not read here; write stage3_{key}")
        elif not isinstance(section, _STRICT):
            text = f"unknown key, which DeepSpeed ignores{_similar(key, section)}"
            warnings.append(f"ds_config {where}{shortened(key)}: {text}")
    return warnings


def _unknown(section: ConfigSection) -> list[str]:
    """Return the keys of a section that are neither read nor in the table."""
    return [key for key in section.model_extra or {} if key not in NOT_SIMULATED.get(type(section), {})]


def _similar(key: str, section: ConfigSection) -> str:
    read = {**type(section).model_fields, **NOT_SIMULATED.get(type(section), {})}
    return suggest(key, [name for name, one in read.items() if not getattr(one, "refused", "")])


def _stopped_by(config: DeepSpeedConfig) -> Iterator[Problem]:
    """Yield a problem for each unknown key at which DeepSpeed stops, in any section and for any kind of
    work."""
    for where, section in _sections(config, training=True):
        for key in _unknown(section) if isinstance(section, _STRICT) else ():
            if f"stage3_{key}" not in type(section).model_fields:
                text = f"unknown key, at which DeepSpeed stops{_similar(key, section)}"
                yield Problem("", None, None, f"{where}{key}", text)


def refuse_keys(config: DeepSpeedConfig, *, training: bool) -> None:
    """Raise InputError, with DeepSpeed's keys, for keys at which DeepSpeed stops, and for refused values."""
    problems = [
        *_stopped_by(config),
        *(
            Problem("", None, None, f"{where}{key}", one.refused)
            for where, section in _sections(config, training=training)
            for key, one in NOT_SIMULATED.get(type(section), {}).items()
            if one.refused and (training or not one.training) and getattr(section, key, False) is True
        ),
    ]
    amp = getattr(config, "amp", None)
    on = isinstance(amp, dict) and amp.get("enabled") is True
    if training and on and config.zero_optimization.stage > 0:  # engine.py, _do_optimizer_sanity_check
        text = "amp cannot be combined with ZeRO: DeepSpeed stops; enable fp16 or bf16"
        problems.append(Problem("", None, None, "amp.enabled", text))
    if problems:
        raise InputError(problems)


_READ = (
    "zero_optimization",
    "zero_optimization.offload_param",
    "zero_optimization.leaf_module",
    "aio",
    "weight_quantization",
    "weight_quantization.quantized_initialization",
)
"""Sections that are read for any kind of work, in order."""
_READ_IN_TRAINING = (
    "zero_optimization.offload_optimizer",
    "zero_optimization.zenflow",
    *("optimizer", "fp16", "bf16", "data_types", "activation_checkpointing"),
)


def _sections(config: DeepSpeedConfig, *, training: bool) -> Iterator[tuple[str, ConfigSection]]:
    """Yield the sections that are read, with the prefix of their keys."""
    yield "", config
    for path in (*_READ, *(_READ_IN_TRAINING if training else ())):
        section: ConfigSection | None = config
        for name in path.split("."):
            section = getattr(section, name, None)
        if section is not None:
            yield f"{path}.", section


def _is_reported(section: ConfigSection, key: str, left: Key, *, stage: int, training: bool) -> bool:
    value = getattr(section, key, left.simulated)
    if left.refused or value in (left.simulated, None, "auto", {}) or (left.training and not training):
        return False
    off = isinstance(value, dict) and value.get("enabled") is False
    return not off and stage in left.stages and left.matters(section)


def _shown(value: Any) -> str:
    if isinstance(value, dict | list | tuple | ConfigSection):
        return ""
    return f"{shortened(json.dumps(value, default=str))} is "


# -- combinations of values ---------------------------------------------------------------------------


def refuse_values(config: DeepSpeedConfig) -> None:
    """Raise InputError, with DeepSpeed's keys, for combinations of values that DeepSpeed refuses in
    training."""
    zero, key = config.zero_optimization, "zero_optimization."
    offload = zero.offload_optimizer or OffloadOptimizerSection()
    params = zero.offload_param or OffloadParamSection()
    if config.quantized_initialization is not None:
        text = "weights in 4 or 8 bits cannot be trained; leave it out"
        raise InputError.at("weight_quantization.quantized_initialization", text)
    if zero.stage < 3 and params.device not in (None, "none"):
        text = f'"{params.device}" needs stage 3, not {zero.stage}: below it parameters are not partitioned'
        raise InputError.at(f"{key}offload_param.device", text)
    if zero.stage < 1 and offload.device != "none":
        text = f'"{offload.device}" needs stage 1, 2 or 3, not {zero.stage}'
        raise InputError.at(f"{key}offload_optimizer.device", text)
    if zero.stage < 3 and offload.device == "nvme":
        text = f'"nvme" needs stage 3, not {zero.stage}; below it the optimizer goes to "cpu" at most'
        raise InputError.at(f"{key}offload_optimizer.device", text)
    if params.device == "nvme" and offload.device == "none":
        text = '"nvme" with the optimizer on the GPU is refused by DeepSpeed; set offload_optimizer.device'
        raise InputError.at(f"{key}offload_param.device", text)
    if zero.zenflow is not None and zero.stage < 1:
        raise InputError.at(f"{key}zenflow", f"needs stage 1, 2 or 3, not {zero.stage}")
    if offload.super_offload and zero.stage != 3:
        raise InputError.at(f"{key}offload_optimizer.super_offload", f"needs stage 3, not {zero.stage}")
    if offload.ratio < 1.0 and zero.stage != 3:
        raise InputError.at(
            f"{key}offload_optimizer.ratio", f"{offload.ratio:g} needs stage 3, not {zero.stage}"
        )


def refuse_selection(section: ZenFlowSection) -> None:
    """Raise InputError where ``configure_zenflow`` (runtime/zenflow/engine.py) raises."""
    key, every = "zero_optimization.zenflow.select_interval", section.select_interval
    if section.select_strategy == "auto" and every != "auto":
        text = f'{every} with select_strategy "auto" stops DeepSpeed; leave it out, or set select_strategy'
        raise InputError.at(key, text)
    if section.select_strategy != "auto" and every == "auto":
        raise InputError.at(key, f'select_strategy "{section.select_strategy}" needs a number')
    update = 0 if section.update_interval == "auto" else section.update_interval
    if section.select_strategy == "step" and int(every) < update:
        raise InputError.at(key, f"{every} is less than update_interval {update}, which DeepSpeed refuses")


def trains(config: DeepSpeedConfig) -> bool:
    """Return whether a ds_config is for training: whether it configures the optimizer or gradients."""
    zero, given = config.zero_optimization, config.model_fields_set
    of_training = ("optimizer", "gradient_accumulation_steps", "gradient_clipping", "data_types")
    sections = (zero.offload_optimizer, zero.zenflow)
    return zero.stage != 3 or not given.isdisjoint(of_training) or any(one is not None for one in sections)


def batch_problems(config: DeepSpeedConfig, *, batch: int, accumulation: int, ranks: int) -> list[Problem]:
    """Return contradictions to the workload (train_batch_size = micro batch x accumulation x ranks)."""
    values: dict[str, tuple[Any, int]] = {
        "train_micro_batch_size_per_gpu": (config.train_micro_batch_size_per_gpu, batch),
        "gradient_accumulation_steps": (config.gradient_accumulation_steps, accumulation),
        "train_batch_size": (config.train_batch_size, batch * accumulation * ranks),
    }
    return [
        Problem(
            "", None, None, key, f"{value} contradicts the workload, which makes it {right}; leave it out"
        )
        for key, (value, right) in values.items()
        if value not in (None, "auto", right)
    ]
