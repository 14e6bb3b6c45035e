"""Keys of ds_config.json, each declared once: its type, default, meaning, and a :class:`Key` with the rest.

Names and defaults are DeepSpeed's (deepspeed/runtime/zero/config.py, offload_config.py,
runtime/zenflow/zenflow_config.py and runtime/swap_tensor/constants.py, read at 0.19.6 and run at 0.19.8).
Sizes are in elements, not in bytes, unless stated.

A key that DeepSpeed reads is either a field of its section, and simulated, or in ``others`` of the section.
Its ``Key`` states what it means where the file leaves it open, when an exported file states it, and whether a
value that is not simulated gives a warning or is refused. Reading (settings.py), checking, export, schema and
reference use this declaration; a class of :class:`ForkKeys` adds keys. Read in DeepSpeed 0.19.6, in
deepspeed/runtime: config.py, engine.py, precision_config.py, zero/config.py and offload_config.py,
zenflow/zenflow_config.py. Combinations of values that DeepSpeed refuses are checked by the functions at the
end (asserts in engine.py, stage3.py, stage_1_and_2.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from simoffload.documents import Frozen, quoted, suggest
from simoffload.errors import InputError, Problem, shortened
from simoffload.strategies.base import type_parts

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


OffloadDevice = Literal["none", "cpu", "nvme"]


class Use(NamedTuple):
    """A Use is the run for which a ds_config is read or written; it decides what the file leaves open."""

    version: tuple[int, ...]
    hidden_size: int
    stage: int
    training: bool
    ranks: int = 1
    batch: int = 1
    """Number of sequences per GPU."""
    accumulation: int = 1
    """Number of micro-steps in one step."""
    dtype: str = ""
    """Data type of the model; this and the following are known when a file is written."""
    places: Mapping[str, tuple[OffloadDevice, str | None]] = {}
    """Device and folder on storage of what is offloaded, by the name of its section."""


_ANY: Any = object()


class Key(NamedTuple):
    """A Key states what becomes of a key of ds_config, beside its type, default and meaning."""

    auto: Callable[[int], Any] | None = None
    """Function of the hidden size that returns what transformers writes for "auto"; None: the default."""
    in_effect: Callable[[Any, Use], Any] = lambda value, _use: value
    """Function that returns the value in effect for the one written: defaults of a version or stage, and what
    the run decides. None: the run has no such key."""
    exported: Callable[[Any, Use], bool] = lambda _section, _use: False
    """Function of the section that returns whether an exported file states a key that the run reads and the
    user did not write; what the user wrote is exported in any case."""
    keeps_auto: bool = False
    """Whether "auto" below this key is a value of DeepSpeed's own, or no simulated time depends on it."""
    simulated: Any = _ANY
    """Value that is simulated; other values cause a warning. By default none does."""
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


def _always(_section: Any, _use: Use) -> bool:
    return True


def _stores(_section: Any, use: Use) -> bool:
    """Return whether weights or states are on storage."""
    return any(device == "nvme" for device, _ in use.places.values())


def _if_trained(default: Callable[[], Any]) -> Callable[[Any, Use], Any]:
    """Return a function that removes a key from inference; in training it has a default."""
    return lambda now, use: (default() if now is None else now) if use.training else None


def _at_stage_3(_section: Any, use: Use) -> bool:
    return use.stage == 3


def _below_stage_3(_section: Any, use: Use) -> bool:
    return use.stage < 3


def _is_empty(section: ConfigSection, _use: Use) -> bool:
    """Return whether a section, which has an effect by its presence, would be lost as an empty one."""
    return not section.model_fields_set


def _on(*devices: OffloadDevice) -> Callable[[ConfigSection, Use], bool]:
    """Return a function that tells whether what a section offloads is on one of these devices."""
    return lambda section, use: value_in_effect(section, "device", use) in devices


def _kept_in_cpu(section: ConfigSection, use: Use) -> bool:
    return use.training and _on("nvme")(section, use)


def _placed(section: str) -> tuple[Key, Key]:
    """Return the keys for the device and the folder of what a section offloads."""

    def part(index: int) -> Key:
        return Key(
            in_effect=lambda now, use: use.places[section][index] if use.places else now, exported=_always
        )

    return part(0), part(1)


def _pinned(written: bool | None, use: Use) -> bool:
    """``pin_memory`` is true by default from DeepSpeed 0.19.5 on."""
    return written if written is not None else use.version >= (0, 19, 5)


def threads_key(version: tuple[int, ...]) -> str:
    """Return the key of ``aio`` that a version reads for the number of threads of one read or write: its name
    was changed in DeepSpeed 0.16.4 (commit c9da489)."""
    return "intra_op_parallelism" if version >= (0, 16, 4) else "thread_count"


def _threads(name: str) -> Key:
    return Key(
        in_effect=lambda now, use: (now or 1) if threads_key(use.version) == name else None, exported=_always
    )


FIRST_GDS = (0, 15, 0)
"""Version with which GPUDirect Storage came."""


def _direct(written: bool, use: Use) -> bool:
    return written and use.version >= FIRST_GDS


_PINNED = Key(in_effect=_pinned, exported=_on("cpu", "nvme"))
_ON_STORAGE = Key(exported=_on("nvme"))
_UPDATED = Key(exported=_always, training=True)
_WARNED = Key(simulated=None)
_TRAINING = Key(simulated=None, training=True)
_STAGE_3 = Key(simulated=False, stages=(3,))
_FETCHED = Key(exported=_at_stage_3)
_OLD_NAME = "is the old name of {0}: {{device: cpu}}; write that"
_WEIGHTS, _WEIGHTS_PATH = _placed("offload_param")
_STATES, _STATES_PATH = _placed("offload_optimizer")


class ConfigSection(Frozen):
    """A ConfigSection is a section of ds_config.json; unknown keys are kept for warnings."""

    model_config = ConfigDict(extra="allow")

    read_by: ClassVar[Literal["all", "training", "checkpoints"]] = "all"
    """Kind of work for which the section is read."""
    strict: ClassVar[bool] = False
    """Whether DeepSpeed stops at an unknown key (``extra="forbid"`` in config_utils.py)."""
    others: ClassVar[Mapping[str, Key]] = {}
    """Keys that DeepSpeed reads and that are not simulated. One without a value that is simulated (``Key()``)
    has no effect on time and memory of a long run."""


class OffloadParamSection(ConfigSection):
    """``zero_optimization.offload_param`` specifies where weights are."""

    strict: ClassVar = True

    device: Annotated[OffloadDevice | None, _WEIGHTS] = None
    """Device of the weights, unless the scenario names a tier."""
    nvme_path: Annotated[str | None, _WEIGHTS_PATH] = None
    """Folder on the storage. Unless the scenario names a tier, the name of a folder in this path selects
    it."""
    buffer_count: Annotated[Positive, _ON_STORAGE] = 5
    """Number of swap buffers for weights on storage."""
    buffer_size: Annotated[AutoElements, _ON_STORAGE] = 100_000_000
    """[elements] of each swap buffer; it must hold the largest partition of a parameter."""
    max_in_cpu: Annotated[AutoElements, _ON_STORAGE._replace(exported=_kept_in_cpu)] = 1_000_000_000
    """[elements] of weights that stay in host memory under NVMe offload."""
    pin_memory: Annotated[bool | None, _PINNED] = None
    """Whether weights are in page-locked host memory; None: default of the version."""


class OffloadOptimizerSection(ConfigSection):
    """``zero_optimization.offload_optimizer`` specifies where and how the optimizer runs."""

    read_by: ClassVar = "training"
    strict: ClassVar = True

    device: Annotated[OffloadDevice, _STATES] = "none"
    """Device of the optimizer states, unless the scenario names a tier."""
    nvme_path: Annotated[str | None, _STATES_PATH] = None
    """Folder on the storage. Unless the scenario names a tier, the name of a folder in this path selects
    it."""
    buffer_count: Annotated[Positive, _ON_STORAGE] = 4
    """Number of swap buffers of the optimizer, each of the size of the largest sub-group."""
    pin_memory: Annotated[bool | None, _PINNED] = None
    """Whether gradients and states are in page-locked host memory; None: default of the version."""
    pipeline_read: Annotated[bool, _ON_STORAGE] = False
    """Whether the next sub-group is read while one is updated."""
    pipeline_write: Annotated[bool, _ON_STORAGE] = False
    """Whether a sub-group is written while the next is updated."""
    fast_init: Annotated[
        bool,
        Key(
            simulated=False,
            instead="start-up moves the same bytes in another order; with parameters on storage DeepSpeed "
            "stops unless offload_param.buffer_size holds the largest sub-group, which is not checked",
            stages=(3,),
            training=True,
        ),
    ] = False
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

    read_by: ClassVar = "training"
    strict: ClassVar = True

    topk_ratio: Annotated[Fraction, Key(exported=_is_empty)] = 0.1
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
    auto_ratio: Annotated[
        Fraction,
        Key(
            simulated=0.99,
            instead='the interval that is assumed for update_interval "auto" is that of 0.99',
            training=True,
            matters=lambda zenflow: zenflow.update_interval == "auto",
        ),
    ] = 0.99
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

    strict: ClassVar = True

    classes: Names | None = None
    """Names of classes, with or without their module; None: the blocks of experts in
    ``DEFAULT_LEAF_MODULE_CLASSES`` (zero/leaf_module_config.py)."""
    names: Names = ()
    """Full names of modules; not simulated, as they are those of single layers."""
    name_suffixes: Names = ()
    """Ends of names of modules, such as "mlp"."""


_OFFLOADS = _FETCHED._replace(in_effect=lambda now, _use: now or OffloadParamSection())
_OFFLOADS_STATES = _UPDATED._replace(
    in_effect=_if_trained(OffloadOptimizerSection), exported=lambda _zero, use: use.stage > 0
)


class ZeroSection(ConfigSection):
    """``zero_optimization`` specifies what is partitioned and what is offloaded."""

    strict: ClassVar = True
    others: ClassVar = {
        "use_multi_rank_bucket_allreduce": Key(
            simulated=True,
            instead="gradients are all-reduced; DeepSpeed would reduce each to the rank that keeps it",
            stages=(1, 2),
            training=True,
            matters=lambda zero: zero.reduce_scatter,
        ),
        "cpu_offload_use_pin_memory": _WARNED._replace(instead="DeepSpeed ignores it, too; set pin_memory"),
        "legacy_stage1": Key(simulated=False, instead="DeepSpeed 0.5.9 and later stop at it"),
        "stage3_module_granularity_threshold": Key(simulated=0, stages=(3,)),
        "zero_hpz_partition_size": Key(simulated=1, stages=(3,)),
        "mics_shard_size": Key(simulated=-1, stages=(3,)),
        "zeropp_loco_param": _TRAINING._replace(stages=(3,)),
        "zero_quantized_gradients": _STAGE_3._replace(training=True),
        **_all("stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential", _STAGE_3),
        "zero_quantized_nontrainable_weights": _STAGE_3._replace(
            instead="weights that are frozen (requires_grad_(False)) would be stored and copied in 8 bits"
        ),
        **_all("mics_hierarchical_params_gather pipeline_loading_checkpoint enable_sanity_checks", _STAGE_3),
        "cpu_offload": Key(refused=_OLD_NAME.format("offload_optimizer"), training=True),
        **_all("cpu_offload_param cpu_offload_params", Key(refused=_OLD_NAME.format("offload_param"))),
        # About loading, saving and unused parameters; nobody reads allgather_partitions (0.9.4 to 0.19.6).
        **_all("allgather_partitions load_from_fp32_weights elastic_checkpoint", Key()),
        **_all("ignore_unused_parameters memory_efficient_linear override_module_apply", Key()),
        **_all("stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save", Key()),
        **_all("log_trace_cache_warnings save_muon_momentum_buffer_in_memory", Key()),
    }

    stage: Annotated[Literal[0, 1, 2, 3], Key(exported=_always)] = 3
    """Partitioned states: 0 none, 1 optimizer states, 2 also gradients, 3 also weights."""
    offload_param: Annotated[OffloadParamSection | None, _OFFLOADS] = None
    """Offloading of weights from the GPU (stage 3)."""
    offload_optimizer: Annotated[OffloadOptimizerSection | None, _OFFLOADS_STATES] = None
    """Offloading of optimizer states from the GPU."""
    leaf_module: Annotated[LeafModuleSection | None, _TRAINING._replace(stages=(3,))] = None
    """Modules whose parameters are fetched together (stage 3); None: blocks of experts that DeepSpeed
    knows."""
    zenflow: Annotated[ZenFlowSection | None, Key(keeps_auto=True)] = None
    """ZenFlow: important columns are updated on the GPU, the others later on the CPU."""
    contiguous_gradients: Annotated[
        bool,
        Key(
            simulated=True,
            instead="gradients are copied into a bucket of reduce_bucket_size, as stages 1 and 2 always do "
            "that offload the optimizer",
            stages=(1, 2, 3),
            training=True,
        ),
    ] = True
    """Whether gradients are copied into a bucket of ``reduce_bucket_size``. False is not simulated
    (stage3.py, ``__add_grad_to_ipg_bucket``)."""
    reduce_scatter: Annotated[
        bool,
        Key(
            simulated=True,
            instead="gradients are reduce-scattered; DeepSpeed would all-reduce them, twice the bytes",
            stages=(3,),
            training=True,
            matters=lambda zero: zero.contiguous_gradients,
        ),
    ] = True
    """Whether gradients are reduce-scattered. False is not simulated in stage 3, where it is an all-reduce
    (``__avg_scatter_contiguous_grads``); stages 1 and 2 all-reduce in any case (stage_1_and_2.py,
    ``average_tensor``)."""
    reduce_bucket_size: Annotated[AutoElements, _UPDATED._replace(auto=lambda h: h * h)] = 500_000_000
    """[elements] of gradients that are reduced in one operation."""
    allgather_bucket_size: Annotated[AutoElements, _UPDATED._replace(exported=_below_stage_3)] = 500_000_000
    """[elements] that stages 1 and 2 gather in one operation after an update."""
    sub_group_size: Annotated[AutoElements, _UPDATED._replace(exported=_at_stage_3)] = 1_000_000_000
    """[elements] that stage 3 updates in one operation."""
    # It spreads the ranks' copies over the backward pass of stages 1 and 2, which is what is simulated: every
    # rank copies its share of each bucket.
    round_robin_gradients: Annotated[bool, Key()] = False
    """Whether the ranks' copies to host memory are spread over the backward pass; true is always
    simulated."""
    overlap_comm: Annotated[
        bool | None,
        Key(in_effect=lambda now, use: use.stage == 3 if now is None else now, exported=_at_stage_3),
    ] = None
    """Whether gradients are reduced in parallel with the backward pass; None: in stage 3."""
    stage3_prefetch_bucket_size: Annotated[
        AutoElements, _FETCHED._replace(auto=lambda hidden: int(0.9 * hidden * hidden))
    ] = 50_000_000
    """[elements] that are gathered in advance."""
    stage3_param_persistence_threshold: Annotated[
        AutoElements, _FETCHED._replace(auto=lambda hidden: 10 * hidden)
    ] = 100_000
    """Largest size [elements] of a parameter that always stays gathered."""
    stage3_model_persistence_threshold: AutoElements = sys.maxsize
    """[elements] in total of parameters that stay gathered because of their size."""
    stage3_max_live_parameters: Annotated[AutoElements, _FETCHED] = 1_000_000_000
    """[elements] of gathered parameters on a GPU, at most."""
    stage3_max_reuse_distance: Annotated[AutoElements, _FETCHED] = 1_000_000_000
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
    symmetric: Annotated[bool, AfterValidator(_asymmetric), Key()]
    """Whether groups have no minimum; DeepSpeed stops at true."""


def _unless_empty(value: Any) -> Any:
    """DeepSpeed takes an empty section for none."""
    return None if value == {} else value


class WeightQuantizationSection(ConfigSection):
    """``weight_quantization`` stores weights in 4 or 8 bits in inference."""

    others: ClassVar = {
        "post_init_quant": _WARNED._replace(instead="write quantized_initialization"),
        **_all("enabled num_bits q_type q_groups", Key()),
    }

    quantized_initialization: Annotated[
        QuantizedInitializationSection | None, BeforeValidator(_unless_empty)
    ] = None
    """Quantization of linear layers and embeddings while the model is loaded (from DeepSpeed 0.10.3 on)."""


class AioSection(ConfigSection):
    """``aio`` specifies how storage is read and written."""

    block_size: Annotated[Positive, Field(multiple_of=512), Key(exported=_always)] = 1 << 20
    """Size of one request [B]; files are opened with O_DIRECT."""
    queue_depth: Annotated[Positive, Key(exported=_always)] = 8
    """Number of requests in flight of each thread."""
    intra_op_parallelism: Annotated[Positive | None, _threads("intra_op_parallelism")] = None
    """Number of threads that share one read or write."""
    thread_count: Annotated[Positive | None, _threads("thread_count")] = None
    """Former name of ``intra_op_parallelism``, read before DeepSpeed 0.16.4."""
    single_submit: bool = False
    """Whether requests are submitted one at a time."""
    overlap_events: bool = True
    """Whether requests are submitted while others complete."""
    use_gds: Annotated[bool, Key(in_effect=_direct, exported=lambda aio, use: _direct(aio.use_gds, use))] = (
        False
    )
    """Whether GPUDirect Storage transfers between drive and HBM without host memory."""


class OptimizerSection(ConfigSection):
    """``optimizer`` names the optimizer and its hyperparameters."""

    read_by: ClassVar = "training"
    # Moments follow the master weights' type, whatever fp32_optimizer_states says of 16-bit ones
    # (cpu_adam.py). legacy_fusion is of stage 0, where one kernel updates what several would.
    others: ClassVar = {"legacy_fusion": Key()}

    type: Annotated[str, Field(min_length=1), Key(exported=_always)] = "AdamW"
    """Type of the optimizer: AdamW, Adam, SGD, Adafactor, or bitsandbytes' AdamW8bit, PagedAdamW or
    PagedAdamW8bit."""
    params: Annotated[dict[str, Any], Key()] = Field(default_factory=dict)
    """Hyperparameters, whose values do not affect the time; ``torch_adam`` causes a warning."""


class DataTypesSection(ConfigSection):
    """``data_types`` names the data type of accumulated gradients."""

    read_by: ClassVar = "training"
    # param_dtype must be the enabled type; buffers are a few tables of positions.
    others: ClassVar = _all("param_dtype buffer_dtype", Key())

    grad_accum_dtype: Literal["fp32", "fp16", "bf16"] | None = None
    """Data type in which gradients are accumulated; None: the model's type."""


class ActivationCheckpointingSection(ConfigSection):
    """``activation_checkpointing`` is read only by DeepSpeed's own checkpoint function."""

    read_by: ClassVar = "training"
    others: ClassVar = {
        **_all(
            "contiguous_memory_optimization synchronize_checkpoint_boundary profile",
            Key(simulated=False, training=True, matters=lambda section: section.cpu_checkpointing),
        ),
        "number_checkpoints": Key(),  # of contiguous ones
    }

    # checkpointing.py, get_partition_size: the whole is kept.
    partition_activations: Annotated[bool, Key()] = False
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

    read_by: ClassVar = "checkpoints"
    others: ClassVar = {"io_multiplier": Key(simulated=1), "show_statistics": Key()}

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

    read_by: ClassVar = "checkpoints"
    others: ClassVar = {
        "use_node_local_storage": Key(simulated=False),
        "parallel_write": _WARNED,
        **_all("tag_validation load_universal", Key()),
    }

    checkpoint_serialization: bool = True
    """Whether checkpoints use PyTorch's zip format; otherwise the older one."""
    writer: CheckpointWriterSection | None = None
    """DeepSpeed's writer of checkpoints; without it ``torch.save`` writes."""


class PrecisionSection(ConfigSection):
    """``fp16`` or ``bf16``: the data type of a model that states none; else it decides only about the search
    for overflow."""

    read_by: ClassVar = "training"
    strict: ClassVar = True
    others: ClassVar = {
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
        **_all("auto_cast loss_scale initial_scale_power loss_scale_window hysteresis", Key()),
        **_all("consecutive_hysteresis min_loss_scale immediate_grad_update", Key()),
        **_all("check_grad_overflow check_overflow", Key()),
    }

    enabled: bool | Literal["auto"] = False
    """Whether DeepSpeed computes in this data type."""


def _one_precision(value: PrecisionSection, info: ValidationInfo) -> PrecisionSection:
    """Raise ValueError if both are enabled, which DeepSpeed refuses (deepspeed/runtime/config.py)."""
    other = info.data.get("fp16")
    if value.enabled is True and other is not None and other.enabled is True:
        raise ValueError("bf16 and fp16 cannot both be enabled; leave one out")
    return value


def _other_type(config: DeepSpeedConfig) -> bool:
    """Return whether gradients are communicated in another type than the enabled one
    (``DeepSpeedEngine``)."""
    enabled = {"fp16": "fp16", "bf16": "bfp16", None: ""}[config.precision]
    return getattr(config, "communication_data_type", None) != enabled


_OPTIMIZES = _UPDATED._replace(in_effect=_if_trained(OptimizerSection), keeps_auto=True)
_BATCH = Key(in_effect=lambda _now, use: use.batch, exported=_always)
_STEPS = _UPDATED._replace(in_effect=lambda _now, use: use.accumulation)
_ALL_GPUS = Key(in_effect=lambda _now, use: use.batch * use.accumulation * use.ranks)
_CLIPS = _UPDATED._replace(auto=lambda _: 1.0, exported=lambda now, _use: now.gradient_clipping == "auto")
"""transformers' default of ``max_grad_norm`` (training_args.py)."""


def _precision(dtype: str) -> Key:
    """Return the key of the section that enables a data type: an exported file enables that of the model."""
    return Key(
        in_effect=lambda now, use: now.model_copy(update={"enabled": use.dtype == dtype}),
        exported=lambda _config, use: use.dtype == dtype,
    )


class DeepSpeedConfig(ConfigSection):
    """DeepSpeedConfig is a ds_config.json, as far as it determines what is offloaded and how."""

    others: ClassVar = {
        **_all("tensor_parallel expert_parallel compile", _WARNED),
        **_all("sparse_attention compression_training hybrid_engine", _WARNED),
        **_all("elasticity autotuning progressive_layer_drop curriculum_learning", _TRAINING),
        **_all("data_efficiency eigenvalue quantize_training nebula datastates_ckpt amp", _TRAINING),
        "graph_harvesting": Key(simulated=False),
        "sparse_gradients": Key(simulated=False, training=True),
        "comms_logger": _WARNED._replace(
            instead="DeepSpeed waits for the GPU after each collective to time it, and overlaps less"
        ),
        "torch_autocast": _TRAINING._replace(instead="the model's dtype decides sizes and times"),
        "communication_data_type": _TRAINING._replace(
            instead="gradients are reduced in the model's type", matters=_other_type
        ),
        "zero_force_ds_cpu_optimizer": Key(
            simulated=True, instead="on the CPU it is DeepSpeed's own Adam that runs", training=True
        ),
        # Logs, schedules of the learning rate, scaling of gradients in place of another multiplication, and a
        # profile of one step; "bfloat16" is the old name of bf16. Timers of wall_clock_breakdown read events.
        **_all("steps_per_print dump_state wall_clock_breakdown memory_breakdown log_level timers", Key()),
        **_all("vocabulary_size flops_profiler tensorboard wandb csv_monitor comet", Key()),
        "scheduler": Key(in_effect=_if_trained(lambda: None), keeps_auto=True),
        **_all("prescale_gradients gradient_predivide_factor gradient_allreduce_op", Key()),
        **_all("zero_allow_untested_optimizer disable_allgather managed_gradient_accumulation", Key()),
        **_all("seq_parallel_communication_data_type dataloader_drop_last pipeline bfloat16", Key()),
        **_all("use_data_before_expert_parallelism", Key()),
    }

    zero_optimization: Annotated[ZeroSection, Key(exported=_always)] = ZeroSection()
    """Settings of partitioning and offloading."""
    aio: Annotated[AioSection, Key(exported=_stores)] = AioSection()
    """Settings of reading and writing storage."""
    weight_quantization: WeightQuantizationSection | None = None
    """Storage of weights in 4 or 8 bits (inference only)."""
    optimizer: Annotated[OptimizerSection | None, _OPTIMIZES] = None
    """Optimizer of the training; AdamW if none is given."""
    fp16: Annotated[PrecisionSection, _precision("float16")] = PrecisionSection()
    """Whether DeepSpeed computes in half precision."""
    bf16: Annotated[PrecisionSection, AfterValidator(_one_precision), _precision("bfloat16")] = (
        PrecisionSection()
    )
    """Whether DeepSpeed computes in brain floating point."""
    train_batch_size: Annotated[AutoPositive | None, _ALL_GPUS] = None
    """Sequences per step on all ranks; must agree with the scenario."""
    train_micro_batch_size_per_gpu: Annotated[AutoPositive | None, _BATCH] = None
    """Sequences per GPU; must agree with the scenario's ``batch_size``."""
    gradient_accumulation_steps: Annotated[AutoPositive | None, _STEPS] = None
    """Micro-steps per step; must agree with the scenario."""
    gradient_clipping: Annotated[Annotated[float, Field(ge=0.0)] | Literal["auto"], _CLIPS] = 0.0
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


@cache
def keys_of(section: type[ConfigSection]) -> Mapping[str, Key]:
    """Return the keys of a section that DeepSpeed reads, those that are simulated first."""
    fields = {
        name: next((one for one in field.metadata if isinstance(one, Key)), Key())
        for name, field in section.model_fields.items()
    }
    return {**fields, **section.others}


def value_in_effect(section: ConfigSection, name: str, use: Use) -> Any:
    """Return the value that a run uses for a key, whatever the file leaves open."""
    key, value = keys_of(type(section)).get(name, Key()), getattr(section, name, None)
    if value == "auto" and key.auto is not None:
        value = key.auto(use.hidden_size)
    elif value == "auto":
        field = type(section).model_fields.get(name)
        value = None if field is None else field.default
    return key.in_effect(value, use)


def values_in_effect(section: ConfigSection, use: Use) -> dict[str, Any]:
    """Return the values in effect of all keys of a section that are simulated."""
    return {name: value_in_effect(section, name, use) for name in type(section).model_fields}


def read_in(section: ConfigSection, name: str, use: Use) -> bool:
    """Return whether a run of this kind reads a key."""
    known = keys_of(type(section))
    return name in known and (use.training or not (section.read_by == "training" or known[name].training))


class ForkKeys(ConfigSection):
    """ForkKeys are what a class from outside adds to a section: its fields, and those in its ``others``."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    of: ClassVar[type[ConfigSection]]
    """Section to which the keys are added."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Add the keys to the section, and to everything that contains it."""
        super().__pydantic_init_subclass__(**kwargs)
        cls.of.model_fields.update(cls.model_fields)
        cls.of.others = {**cls.of.others, **cls.others}
        keys_of.cache_clear()
        _rebuild(cls.of)
        extensions.append(cls)


extensions: list[type[ForkKeys]] = []
"""All classes with keys from outside, so that worker processes can import them."""


def _rebuild(section: type[BaseModel]) -> None:
    """Build the validators of a section and of all sections that contain it again."""
    section.model_rebuild(force=True)
    for model in _derived(Frozen):
        if any(section in type_parts(field.annotation) for field in model.model_fields.values()):
            _rebuild(model)


def _derived(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for one in model.__subclasses__():
        yield one
        yield from _derived(one)


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
    known, warnings = keys_of(type(section)), []
    for key, left in known.items():
        if _is_reported(section, key, left, stage=stage, training=training):
            instead = f"; {left.instead}" if left.instead else ""
            warnings.append(f"ds_config {where}{key}: {_shown(getattr(section, key))}not modelled{instead}")
    for key in _unknown(section):
        if f"stage3_{key}" in known:
            warnings.append(f"ds_config {where}{shortened(key)} is not read here; write stage3_{key}")
        elif not section.strict:
            text = f"unknown key, which DeepSpeed ignores{_similar(key, section)}"
            warnings.append(f"ds_config {where}{shortened(key)}: {text}")
    return warnings


def _unknown(section: ConfigSection) -> list[str]:
    """Return the keys of a section that DeepSpeed does not read."""
    return [key for key in section.model_extra or {} if key not in keys_of(type(section))]


def _similar(key: str, section: ConfigSection) -> str:
    return suggest(key, [name for name, one in keys_of(type(section)).items() if not one.refused])


def _stopped_by(config: DeepSpeedConfig) -> Iterator[Problem]:
    """Yield a problem for each unknown key at which DeepSpeed stops, in any section and for any kind of
    work."""
    for where, section in _sections(config, training=True):
        for key in _unknown(section) if section.strict else ():
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
            for key, one in keys_of(type(section)).items()
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


def _sections(config: DeepSpeedConfig, *, training: bool) -> Iterator[tuple[str, ConfigSection]]:
    """Yield the sections that are read, with the prefix of their keys, those for training last."""
    for work in ("all", "training") if training else ("all",):
        yield from (one for one in _within("", config) if one[1].read_by == work)


def _within(where: str, section: ConfigSection) -> Iterator[tuple[str, ConfigSection]]:
    """Yield a section and all sections in it."""
    yield where, section
    for name in type(section).model_fields:
        inner = getattr(section, name)
        if isinstance(inner, ConfigSection):
            yield from _within(f"{where}{name}.", inner)


def _is_reported(section: ConfigSection, key: str, left: Key, *, stage: int, training: bool) -> bool:
    value = getattr(section, key, left.simulated)
    if left.simulated is _ANY or value in (left.simulated, None, "auto", {}):
        return False
    if left.training and not training:
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
