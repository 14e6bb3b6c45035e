"""The knobs of training, resolved: gradients, sub-groups, and where and when the optimizer runs."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from simoffload.documents import quoted
from simoffload.errors import InputError, Problem
from simoffload.strategies.ds_config.parameters import (
    LATEST,
    OffloadSettings,
    fetch_settings,
    parse_version,
    values,
)
from simoffload.strategies.ds_config.sections import (
    DeepSpeedConfig,
    OffloadOptimizerSection,
    ZenFlowSection,
)
from simoffload.strategies.ds_config.unsupported_keys import key_warnings, refuse_keys

__all__ = ["OptimizerKind", "TrainingSettings", "ZenFlow", "batch_problems", "resolve_training", "trains"]

OptimizerKind = Literal["adam", "sgd", "adam8bit", "adafactor"]

_KINDS: dict[str, OptimizerKind] = {
    "adam": "adam",
    "adamw": "adam",
    "torchadam": "adam",
    "fusedadam": "adam",
    "deepspeedcpuadam": "adam",
    "sgd": "sgd",
    "adamw8bit": "adam8bit",
    "adam8bit": "adam8bit",
    "adafactor": "adafactor",
}
_DTYPES = {"fp32": 4, "fp16": 2, "bf16": 2}
_ZENFLOW_STEPS_AUTO = 4
"""Steps between CPU updates where ``update_interval`` is "auto": it depends on the gradients' values (an
update comes when 99 % of the tensors have gathered enough of the norm). The published runs use 4
(blogs/deepspeed-zenflow; an estimate)."""


class ZenFlow(NamedTuple):
    """Important columns of the gradients are applied on the GPU at once, the others later on the CPU."""

    topk_ratio: float
    update_interval: int
    """Steps between two updates on the CPU."""
    overlap_step: bool
    """The update on the CPU runs beside the next steps."""
    offload: bool
    """Moments of the selected columns lie in host memory."""
    full_warm_up_rounds: int
    reserved_cores: float
    """Share of the cores that the update's process leaves to PyTorch (``pt_reserved_cores_perc``)."""
    select_interval: int = 0
    """Micro-steps between two selections of columns; 0 = once per epoch, which no step shows."""


class TrainingSettings(NamedTuple):
    """The resolved knobs of one training run."""

    stage: int
    params: OffloadSettings
    """How parameters are fetched; below stage 3 they stay on the GPU."""
    optimizer: OptimizerKind
    optimizer_device: Literal["none", "cpu", "nvme"]
    pin_memory: bool
    """Gradients and optimizer states in page-locked memory."""
    buffer_count: int
    """Swap buffers of the optimizer, each of the largest sub-group."""
    pipeline_read: bool
    pipeline_write: bool
    ratio: float
    """Share of the sub-groups whose optimizer runs on the CPU (Twin-Flow)."""
    super_offload: bool
    cpuadam_cores: float
    """Share of the cores that SuperOffload's process uses."""
    zenflow: ZenFlow | None
    reduce_bucket_size: int
    """[elements]"""
    allgather_bucket_size: int
    """[elements]"""
    sub_group_size: int
    """[elements]"""
    overlap_comm: bool
    gradient_bytes: int
    """[B] of an element in which gradients are accumulated (``data_types.grad_accum_dtype``)."""
    gradient_clipping: bool
    cpu_checkpointing: bool
    """Checkpointed activations lie in host memory."""

    @property
    def pipelined(self) -> bool:
        """Whether ``PipelinedOptimizerSwapper`` is used."""
        return self.pipeline_read or self.pipeline_write

    @property
    def config(self) -> dict[str, dict[str, Any]]:
        """What ds_config would say, by the section."""
        fetching = self.params.config
        buckets = values(self, "reduce_bucket_size", "allgather_bucket_size", "sub_group_size")
        zero = fetching["zero_optimization"] | {"overlap_comm": self.overlap_comm, **buckets}
        return fetching | {
            "zero_optimization": zero,
            "offload_optimizer": values(
                self, "pin_memory", "buffer_count", "pipeline_read", "pipeline_write"
            ),
            "activation_checkpointing": values(self, "cpu_checkpointing"),
            "zenflow": values(self.zenflow, "overlap_step", "offload") if self.zenflow else {},
        }


def resolve_training(
    config: DeepSpeedConfig, *, version: str = LATEST, hidden_size: int, dtype_bytes: int
) -> tuple[TrainingSettings, tuple[str, ...]]:
    """Apply defaults, "auto" and what DeepSpeed refuses; return settings and warnings.

    Raises InputError, with DeepSpeed's key, for combinations that DeepSpeed refuses or that are not modelled.
    """
    zero = config.zero_optimization
    number = parse_version(version)
    refuse_keys(config, training=True)
    params, warnings = fetch_settings(config, version=version, hidden_size=hidden_size)
    offload = zero.offload_optimizer or OffloadOptimizerSection()
    _refuse(config, params, offload)
    auto = {"reduce_bucket_size": hidden_size * hidden_size}

    def pick(key: str) -> int:
        value = getattr(zero, key)
        return int(auto.get(key, type(zero).model_fields[key].default) if value == "auto" else value)

    pinned = offload.pin_memory if offload.pin_memory is not None else number >= (0, 19, 5)
    dtype = config.data_types.grad_accum_dtype
    settings = TrainingSettings(
        stage=zero.stage,
        params=params,
        optimizer=_kind(config),
        optimizer_device=offload.device,
        pin_memory=pinned,
        buffer_count=offload.buffer_count,
        pipeline_read=offload.pipeline_read,
        pipeline_write=offload.pipeline_write,
        ratio=offload.ratio,
        super_offload=offload.super_offload,
        cpuadam_cores=offload.cpuadam_cores_perc,
        zenflow=_zenflow(zero.zenflow),
        reduce_bucket_size=pick("reduce_bucket_size"),
        allgather_bucket_size=pick("allgather_bucket_size"),
        sub_group_size=pick("sub_group_size"),
        overlap_comm=zero.overlap_comm if zero.overlap_comm is not None else zero.stage == 3,
        gradient_bytes=_DTYPES[dtype] if dtype else dtype_bytes,
        gradient_clipping=config.gradient_clipping != 0.0,
        cpu_checkpointing=config.activation_checkpointing.cpu_checkpointing,
    )
    return settings, (*key_warnings(config, training=True), *warnings)


def _kind(config: DeepSpeedConfig) -> OptimizerKind:
    name = config.optimizer.type if config.optimizer else "AdamW"
    kind = _KINDS.get(name.lower().replace("_", ""))
    if kind is None:
        known = "AdamW, Adam, SGD, AdamW8bit, Adafactor"
        raise _refused("optimizer.type", f"{quoted(name)} is not modelled; known: {known}")
    return kind


def _zenflow(section: ZenFlowSection | None) -> ZenFlow | None:
    if section is None:
        return None
    interval = section.update_interval
    _refuse_selection(section)
    by_step = section.select_strategy == "step" and section.select_interval != "auto"
    return ZenFlow(
        topk_ratio=section.topk_ratio,
        update_interval=_ZENFLOW_STEPS_AUTO if interval == "auto" else interval,
        overlap_step=section.overlap_step,
        offload=section.offload,
        full_warm_up_rounds=section.full_warm_up_rounds,
        reserved_cores=section.pt_reserved_cores_perc,
        select_interval=int(section.select_interval) if by_step else 0,
    )


def _refuse_selection(section: ZenFlowSection) -> None:
    """Raise InputError where ``configure_zenflow`` (runtime/zenflow/engine.py) raises."""
    key, every = "zero_optimization.zenflow.select_interval", section.select_interval
    if section.select_strategy == "auto" and every != "auto":
        text = f'{every} with select_strategy "auto" stops DeepSpeed; leave it out, or set select_strategy'
        raise _refused(key, text)
    if section.select_strategy != "auto" and every == "auto":
        raise _refused(key, f'select_strategy "{section.select_strategy}" needs a number')
    update = 0 if section.update_interval == "auto" else section.update_interval
    if section.select_strategy == "step" and int(every) < update:
        raise _refused(key, f"{every} is less than update_interval {update}, which DeepSpeed refuses")


def _refuse(config: DeepSpeedConfig, params: OffloadSettings, offload: OffloadOptimizerSection) -> None:
    """Raise InputError for what DeepSpeed refuses (asserts in engine.py, stage3.py, stage_1_and_2.py)."""
    zero, key = config.zero_optimization, "zero_optimization."
    if zero.stage < 3 and params.device not in (None, "none"):
        text = f'"{params.device}" needs stage 3, not {zero.stage}: below it parameters are not partitioned'
        raise _refused(f"{key}offload_param.device", text)
    if zero.stage < 1 and offload.device != "none":
        text = f'"{offload.device}" needs stage 1, 2 or 3, not {zero.stage}'
        raise _refused(f"{key}offload_optimizer.device", text)
    if zero.stage < 3 and offload.device == "nvme":
        text = f'"nvme" needs stage 3, not {zero.stage}; below it the optimizer goes to "cpu" at most'
        raise _refused(f"{key}offload_optimizer.device", text)
    if params.device == "nvme" and offload.device == "none":
        text = '"nvme" with the optimizer on the GPU is refused by DeepSpeed; set offload_optimizer.device'
        raise _refused(f"{key}offload_param.device", text)
    if zero.zenflow is not None and zero.stage < 1:
        raise _refused(f"{key}zenflow", f"needs stage 1, 2 or 3, not {zero.stage}")
    if offload.super_offload and zero.stage != 3:
        raise _refused(f"{key}offload_optimizer.super_offload", f"needs stage 3, not {zero.stage}")
    if offload.ratio < 1.0 and zero.stage != 3:
        raise _refused(f"{key}offload_optimizer.ratio", f"{offload.ratio:g} needs stage 3, not {zero.stage}")
    kind = _kind(config)
    if offload.device != "none" and kind != "adam":
        text = f"only Adam is run on the CPU by DeepSpeed; got {config.optimizer and config.optimizer.type}"
        raise _refused("optimizer.type", text)


def _refused(key: str, message: str) -> InputError:
    return InputError((Problem("", None, None, key, message),))


def trains(config: DeepSpeedConfig) -> bool:
    """Whether a ds_config on its own is for training: it has a word on the optimizer or on gradients."""
    zero, given = config.zero_optimization, config.model_fields_set
    of_training = ("optimizer", "gradient_accumulation_steps", "gradient_clipping", "data_types")
    sections = (zero.offload_optimizer, zero.zenflow)
    return zero.stage != 3 or not given.isdisjoint(of_training) or any(one is not None for one in sections)


def batch_problems(config: DeepSpeedConfig, *, batch: int, accumulation: int, ranks: int) -> list[Problem]:
    """Where batch sizes contradict the workload's (train_batch_size = micro batch x accumulation x ranks)."""
    given: dict[str, tuple[Any, int]] = {
        "train_micro_batch_size_per_gpu": (config.train_micro_batch_size_per_gpu, batch),
        "gradient_accumulation_steps": (config.gradient_accumulation_steps, accumulation),
        "train_batch_size": (config.train_batch_size, batch * accumulation * ranks),
    }
    return [
        Problem(
            "", None, None, key, f"{value} contradicts the workload, which makes it {right}; leave it out"
        )
        for key, (value, right) in given.items()
        if value not in (None, "auto", right)
    ]
