"""Keys of ds_config.json that are not simulated: without effect, left out, refused, or unknown to DeepSpeed.

A key that DeepSpeed reads is one of four things: simulated; without effect, because no time and no memory of
a steady state depends on it; left out, which a warning tells wherever its value is not the one that is
simulated; or refused, where the answer would be far off. Read in DeepSpeed 0.19.6, in deepspeed/runtime:
config.py, engine.py, precision_config.py, zero/config.py, zero/offload_config.py, zenflow/zenflow_config.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from simoffload.documents import suggest
from simoffload.errors import InputError, Problem, shortened
from simoffload.strategies.ds_config.sections import (
    ActivationCheckpointingSection,
    CheckpointSection,
    CheckpointWriterSection,
    ConfigSection,
    DataTypesSection,
    DeepSpeedConfig,
    OffloadOptimizerSection,
    OffloadParamSection,
    OptimizerSection,
    PrecisionSection,
    ZenFlowSection,
    ZeroSection,
)

__all__ = [
    "REFUSED",
    "STRICT",
    "UNSUPPORTED",
    "WITHOUT_EFFECT",
    "UnsupportedKey",
    "key_warnings",
    "refuse_keys",
    "section_warnings",
]


class UnsupportedKey(NamedTuple):
    """A key that is not simulated."""

    simulated: Any = None
    """Its value that is; of others a warning tells."""
    instead: str = ""
    """What is simulated, or what DeepSpeed does, in the words of the warning."""
    stages: tuple[int, ...] = (0, 1, 2, 3)
    """Stages of ZeRO that read it."""
    training: bool = False
    """Nothing of inference depends on it."""
    matters: Callable[[Any], bool] = lambda _section: True
    """Whether it is read, as the rest of its section stands."""


_REDUCTION = "gradients are reduced in the model's type"
_SYNCHRONIZES = "DeepSpeed waits for the GPU after each collective to time it, and overlaps less"


def _other_type(config: DeepSpeedConfig) -> bool:
    """Whether gradients travel in another type than the enabled one (``DeepSpeedEngine``)."""
    enabled = "fp16" if config.fp16.enabled is True else "bfp16" if config.bf16.enabled is True else ""
    return getattr(config, "communication_data_type", None) != enabled


_TRAINING = UnsupportedKey(training=True)
_STAGE_3 = UnsupportedKey(simulated=False, stages=(3,))
_OWN_CHECKPOINTS = UnsupportedKey(
    simulated=False, training=True, matters=lambda section: section.cpu_checkpointing
)
UNSUPPORTED: dict[type[ConfigSection], dict[str, UnsupportedKey]] = {
    DeepSpeedConfig: {
        **dict.fromkeys(
            ("weight_quantization", "tensor_parallel", "expert_parallel", "compile"), UnsupportedKey()
        ),
        **dict.fromkeys(("sparse_attention", "compression_training", "hybrid_engine"), UnsupportedKey()),
        **dict.fromkeys(("elasticity", "autotuning", "progressive_layer_drop"), _TRAINING),
        **dict.fromkeys(("curriculum_learning", "data_efficiency", "eigenvalue"), _TRAINING),
        **dict.fromkeys(("quantize_training", "nebula", "datastates_ckpt", "amp"), _TRAINING),
        "graph_harvesting": UnsupportedKey(simulated=False),
        "sparse_gradients": UnsupportedKey(simulated=False, training=True),
        "comms_logger": UnsupportedKey(instead=_SYNCHRONIZES),
        "torch_autocast": UnsupportedKey(instead="the model's dtype decides sizes and times", training=True),
        "communication_data_type": UnsupportedKey(instead=_REDUCTION, training=True, matters=_other_type),
        "zero_force_ds_cpu_optimizer": UnsupportedKey(
            simulated=True, instead="on the CPU it is DeepSpeed's own Adam that runs", training=True
        ),
    },
    ZeroSection: {
        "contiguous_gradients": UnsupportedKey(
            simulated=True,
            instead="gradients are copied into a bucket of reduce_bucket_size, as stages 1 and 2 always do "
            "that offload the optimizer",
            stages=(1, 2, 3),
            training=True,
        ),
        "reduce_scatter": UnsupportedKey(
            simulated=True,
            instead="gradients are reduce-scattered; DeepSpeed would all-reduce them, twice the bytes",
            stages=(3,),
            training=True,
            matters=lambda zero: zero.contiguous_gradients,
        ),
        "use_multi_rank_bucket_allreduce": UnsupportedKey(
            simulated=True,
            instead="gradients are all-reduced; DeepSpeed would reduce each to the rank that keeps it",
            stages=(1, 2),
            training=True,
            matters=lambda zero: zero.reduce_scatter,
        ),
        "cpu_offload_use_pin_memory": UnsupportedKey(instead="DeepSpeed ignores it, too; set pin_memory"),
        "legacy_stage1": UnsupportedKey(simulated=False, instead="DeepSpeed 0.5.9 and later stop at it"),
        "stage3_module_granularity_threshold": UnsupportedKey(simulated=0, stages=(3,)),
        "zero_hpz_partition_size": UnsupportedKey(simulated=1, stages=(3,)),
        "mics_shard_size": UnsupportedKey(simulated=-1, stages=(3,)),
        "leaf_module": UnsupportedKey(stages=(3,)),
        "zeropp_loco_param": UnsupportedKey(stages=(3,), training=True),
        "zero_quantized_gradients": _STAGE_3._replace(training=True),
        "stage3_use_all_reduce_for_fetch_params": _STAGE_3,
        "stage3_allgather_sequential": _STAGE_3,
        "zero_quantized_weights": _STAGE_3,
        "zero_quantized_nontrainable_weights": _STAGE_3,
        "mics_hierarchical_params_gather": _STAGE_3,
        "pipeline_loading_checkpoint": _STAGE_3,
        "enable_sanity_checks": _STAGE_3,
    },
    OffloadOptimizerSection: {
        "fast_init": UnsupportedKey(
            simulated=False,
            instead="start-up moves the same bytes in another order; with parameters on storage DeepSpeed "
            "stops unless offload_param.buffer_size holds the largest sub-group, which is not checked",
            stages=(3,),
            training=True,
        ),
    },
    ZenFlowSection: {
        "auto_ratio": UnsupportedKey(
            simulated=0.99,
            instead='the interval that is assumed for update_interval "auto" is that of 0.99',
            training=True,
            matters=lambda zenflow: zenflow.update_interval == "auto",
        ),
    },
    ActivationCheckpointingSection: dict.fromkeys(
        ("contiguous_memory_optimization", "synchronize_checkpoint_boundary", "profile"), _OWN_CHECKPOINTS
    ),
    CheckpointSection: {
        "use_node_local_storage": UnsupportedKey(simulated=False),
        "parallel_write": UnsupportedKey(),
    },
    CheckpointWriterSection: {"io_multiplier": UnsupportedKey(simulated=1)},
}

WITHOUT_EFFECT: dict[type[ConfigSection], frozenset[str]] = {
    # Logs, schedules of the learning rate, scaling of gradients in place of another multiplication, and a
    # profile of one step; "bfloat16" is the old name of bf16. Timers of wall_clock_breakdown read events.
    DeepSpeedConfig: frozenset(
        [
            "steps_per_print",
            "dump_state",
            "wall_clock_breakdown",
            "memory_breakdown",
            "log_level",
            "timers",
            "vocabulary_size",
            "flops_profiler",
            "tensorboard",
            "wandb",
            "csv_monitor",
            "comet",
            "scheduler",
            "prescale_gradients",
            "gradient_predivide_factor",
            "gradient_allreduce_op",
            "zero_allow_untested_optimizer",
            "disable_allgather",
            "managed_gradient_accumulation",
            "seq_parallel_communication_data_type",
            "dataloader_drop_last",
            "use_data_before_expert_parallelism",
            "pipeline",
            "bfloat16",
        ]
    ),
    # round_robin_gradients spreads the ranks' copies to host memory over the backward pass of stages 1 and 2,
    # which is what is simulated: every rank copies its share of each bucket. Others are about loading, saving
    # and unused parameters; allgather_partitions is read by nobody (0.9.4 to 0.19.6).
    ZeroSection: frozenset(
        [
            "round_robin_gradients",
            "allgather_partitions",
            "load_from_fp32_weights",
            "elastic_checkpoint",
            "stage3_gather_16bit_weights_on_model_save",
            "stage3_gather_fp16_weights_on_model_save",
            "ignore_unused_parameters",
            "memory_efficient_linear",
            "override_module_apply",
            "log_trace_cache_warnings",
            "save_muon_momentum_buffer_in_memory",
        ]
    ),
    # partition_activations divides checkpoints among tensor-parallel ranks, of which there is one here: the
    # whole is kept (checkpointing.py, get_partition_size). number_checkpoints is of contiguous ones alone.
    ActivationCheckpointingSection: frozenset({"partition_activations", "number_checkpoints"}),
    # Hyperparameters; moments follow the master weights' type, whatever fp32_optimizer_states says of
    # 16-bit ones (cpu_adam.py). legacy_fusion is of stage 0, where one kernel updates what several would.
    OptimizerSection: frozenset({"params", "legacy_fusion"}),
    # param_dtype must be the enabled type; buffers are a few tables of positions.
    DataTypesSection: frozenset({"param_dtype", "buffer_dtype"}),
    # Loss scaling changes what gradients are multiplied by; a check for overflow is one more look at a rank's
    # gradients in HBM.
    PrecisionSection: frozenset(
        [
            "auto_cast",
            "loss_scale",
            "initial_scale_power",
            "loss_scale_window",
            "hysteresis",
            "consecutive_hysteresis",
            "min_loss_scale",
            "immediate_grad_update",
            "check_grad_overflow",
            "check_overflow",
        ]
    ),
    CheckpointSection: frozenset({"tag_validation", "load_universal"}),
    CheckpointWriterSection: frozenset({"show_statistics"}),
}
"""Keys, by section, on which no time and no memory of a steady state depends."""

STRICT = (ZeroSection, OffloadParamSection, OffloadOptimizerSection, ZenFlowSection, PrecisionSection)
"""Sections that DeepSpeed reads with ``extra="forbid"`` (config_utils.py)."""
REFUSED = {
    ZeroSection: {
        "cpu_offload": "is the old name of offload_optimizer: {device: cpu}; write that",
        "cpu_offload_param": "is the old name of offload_param: {device: cpu}; write that",
        "cpu_offload_params": "is the old name of offload_param: {device: cpu}; write that",
    },
    PrecisionSection: dict.fromkeys(
        ("fp16_master_weights_and_grads", "bf16_master_weights_and_grads", "bf16_optimizer_states"),
        "is not modelled: master weights, gradients and moments are counted in single precision, up to twice "
        "what DeepSpeed would keep; leave it out to see that",
    ),
}


_OF_INFERENCE = ("cpu_offload_param", "cpu_offload_params")
"""Refused keys that inference, too, depends on."""


def key_warnings(config: DeepSpeedConfig, *, training: bool) -> list[str]:
    """Warnings about all keys that DeepSpeed does not know or that are not simulated."""
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
    """Warnings about keys of one section that DeepSpeed does not know or that are not simulated."""
    known, silent = UNSUPPORTED.get(type(section), {}), WITHOUT_EFFECT.get(type(section), frozenset())
    warnings = [
        f"ds_config {where}{key}: {_shown(getattr(section, key))}not modelled{_because(left.instead)}"
        for key, left in known.items()
        if _is_reported(section, key, left, stage=stage, training=training)
    ]
    fields = type(section).model_fields
    refused = REFUSED.get(type(section), {})
    for key in section.model_extra or {}:
        if key in known or key in silent or key in refused:
            continue
        if f"stage3_{key}" in {*fields, *known, *silent}:
            warnings.append(f"ds_config {where}{shortened(key)} is not read here; write stage3_{key}")
            continue
        does = "at which DeepSpeed stops" if isinstance(section, STRICT) else "DeepSpeed ignores it"
        hint = suggest(key, [*fields, *known, *silent])
        warnings.append(f"ds_config {where}{shortened(key)}: unknown key, {does}{hint}")
    return warnings


def refuse_keys(config: DeepSpeedConfig, *, training: bool) -> None:
    """Raise InputError, with DeepSpeed's keys, for what would make the answer far off."""
    problems = [
        Problem("", None, None, f"{where}{key}", message)
        for where, section in _sections(config, training=training)
        for key, message in REFUSED.get(type(section), {}).items()
        if (training or key in _OF_INFERENCE) and getattr(section, key, False) is True
    ]
    amp = getattr(config, "amp", None)
    on = isinstance(amp, dict) and amp.get("enabled") is True
    if training and on and config.zero_optimization.stage > 0:  # engine.py, _do_optimizer_sanity_check
        text = "amp does not go with ZeRO, and DeepSpeed stops; enable fp16 or bf16"
        problems.append(Problem("", None, None, "amp.enabled", text))
    if problems:
        raise InputError(problems)


def _sections(config: DeepSpeedConfig, *, training: bool) -> Iterator[tuple[str, ConfigSection]]:
    """The sections that are read, with what goes before their keys."""
    zero = config.zero_optimization
    yield "", config
    yield "zero_optimization.", zero
    if zero.offload_param is not None:
        yield "zero_optimization.offload_param.", zero.offload_param
    yield "aio.", config.aio
    if not training:
        return
    if zero.offload_optimizer is not None:
        yield "zero_optimization.offload_optimizer.", zero.offload_optimizer
    if zero.zenflow is not None:
        yield "zero_optimization.zenflow.", zero.zenflow
    if config.optimizer is not None:
        yield "optimizer.", config.optimizer
    yield "fp16.", config.fp16
    yield "bf16.", config.bf16
    yield "data_types.", config.data_types
    yield "activation_checkpointing.", config.activation_checkpointing


def _is_reported(
    section: ConfigSection, key: str, left: UnsupportedKey, *, stage: int, training: bool
) -> bool:
    value = getattr(section, key, left.simulated)
    if value in (left.simulated, None, "auto", {}) or (left.training and not training):
        return False
    off = isinstance(value, dict) and value.get("enabled") is False
    return not off and stage in left.stages and left.matters(section)


def _shown(value: Any) -> str:
    return "" if isinstance(value, dict | list) else f"{shortened(json.dumps(value, default=str))} is "


def _because(instead: str) -> str:
    return f"; {instead}" if instead else ""
