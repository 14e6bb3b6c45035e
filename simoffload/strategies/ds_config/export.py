"""A ds_config.json that says all that was simulated, for ``deepspeed.initialize`` and for a scenario.

It is what was written with what was assumed laid over it: tiers as devices and paths, the version's defaults,
values for Hugging Face's "auto", the workload's batch. Keys that matter nowhere, or that not every version
knows, stand there only if they were written. Names and defaults are those of deepspeed/runtime/config.py,
zero/config.py and zero/offload_config.py (0.19.8).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from simoffload.strategies.ds_config.sections import DeepSpeedConfig
from simoffload.strategies.ds_config.settings import OffloadSettings, TrainingSettings

__all__ = ["BATCH", "FILE", "Work", "inference_config", "training_config"]

FILE = "ds_config.json"
"""The name that it has in DeepSpeed's documentation."""
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
"""Keys that say again what a scenario's workload and number of ranks say."""
_MAX_GRAD_NORM = 1.0
"""Norm that "auto" clips gradients to: default of ``max_grad_norm`` (transformers, training_args.py)."""
_PRECISIONS = {"float16": "fp16", "bfloat16": "bf16"}
_AUTO_STAYS = ("zenflow", "optimizer", "scheduler")
"""Sections in which "auto" is DeepSpeed's own, or a hyperparameter that nothing simulated depends on."""
_OFFLOADED = {
    "offload_param": {"cpu": ("pin_memory",), "nvme": ("pin_memory", "buffer_count", "buffer_size")},
    "offload_optimizer": {
        "cpu": ("pin_memory",),
        "nvme": ("pin_memory", "buffer_count", "pipeline_read", "pipeline_write"),
    },
}
"""Keys of the offload sections that matter, by device."""
_STAGE_3 = (
    "overlap_comm",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
)

Tree = dict[str, Any]


class Work(NamedTuple):
    """What a run does and where its files are, beyond its settings."""

    ranks: int
    batch: int
    """Sequences on a GPU."""
    dtype: str
    """Of the model."""
    accumulation: int = 1
    """Micro-steps of a step."""
    weights_path: str | None = None
    """Folder of weights on storage; None where they are elsewhere."""
    optimizer_path: str | None = None
    """Folder of the optimizer's states on storage; None where they are elsewhere."""


def inference_config(written: DeepSpeedConfig, settings: OffloadSettings, work: Work) -> Tree:
    """The configuration of ZeRO-Inference: without an optimizer, with which DeepSpeed would train."""
    said, values = _said(written.model_dump(exclude_unset=True)), settings.config
    zero = said.get("zero_optimization", {})
    return _laid(
        {
            **_batch_and_type(said, work),
            "optimizer": None,
            "scheduler": None,
            "zero_optimization": {
                "stage": 3,
                **_kept(values["zero_optimization"], zero, _STAGE_3),
                "offload_param": _offloaded(
                    "offload_param", settings.device, work.weights_path, values, zero
                ),
                "offload_optimizer": None,
            },
            "aio": _aio(said, values, stored=settings.device == "nvme"),
        },
        said,
    )


def training_config(written: DeepSpeedConfig, settings: TrainingSettings, work: Work) -> Tree:
    """The configuration of training, with AdamW where no optimizer is named."""
    said, values = _said(written.model_dump(exclude_unset=True)), settings.config
    zero, weights, optimizer = (
        said.get("zero_optimization", {}),
        settings.params.device,
        settings.optimizer_device,
    )
    needed = (*_STAGE_3, "sub_group_size") if settings.stage == 3 else ("allgather_bucket_size",)
    sections: Tree = {
        "stage": settings.stage,
        **_kept(values["zero_optimization"], zero, ("reduce_bucket_size", *needed)),
    }
    if settings.stage == 3:
        sections["offload_param"] = _offloaded("offload_param", weights, work.weights_path, values, zero)
        if weights == "nvme":
            sections["offload_param"]["max_in_cpu"] = settings.params.max_in_cpu
    if settings.stage > 0:
        path = work.optimizer_path
        sections["offload_optimizer"] = _offloaded("offload_optimizer", optimizer, path, values, zero)
    clipping = {"gradient_clipping": _MAX_GRAD_NORM} if written.gradient_clipping == "auto" else {}
    return _laid(
        {
            **_batch_and_type(said, work),
            "gradient_accumulation_steps": work.accumulation,
            **clipping,
            "optimizer": {"type": written.optimizer.type if written.optimizer else "AdamW"},
            "zero_optimization": sections,
            "aio": _aio(said, values, stored="nvme" in (weights, optimizer)),
        },
        said,
    )


def _said(tree: Tree) -> Tree:
    """What was written, without what is left to somebody else."""
    kept = {key: value for key, value in tree.items() if value not in (None, "auto")}
    return {
        key: _said(value) if isinstance(value, dict) and key not in _AUTO_STAYS else value
        for key, value in kept.items()
    }


def _laid(over: Mapping[str, Any], said: Mapping[str, Any]) -> Tree:
    """What was written with another tree over it, in which None takes a key away."""
    rest = {key: value for key, value in said.items() if key not in over}
    laid = {
        key: _laid(value, said.get(key, {})) if isinstance(value, Mapping) else value
        for key, value in over.items()
    }
    return {key: value for key, value in (laid | rest).items() if value not in (None, {})}


def _kept(values: Mapping[str, Any], said: Collection[str], needed: Collection[str]) -> Tree:
    return {key: value for key, value in values.items() if key in needed or key in said}


def _batch_and_type(said: Tree, work: Work) -> Tree:
    """DeepSpeed does not start without a batch size, in inference either."""
    sizes = (work.batch * work.accumulation * work.ranks, work.batch, work.accumulation)
    mine = _PRECISIONS.get(work.dtype)
    types = {key: {"enabled": key == mine} for key in _PRECISIONS.values()}
    return {
        **_kept(dict(zip(BATCH, sizes, strict=True)), said, (BATCH[1],)),
        **_kept(types, said, () if mine is None else (mine,)),
    }


def _offloaded(section: str, device: str | None, path: str | None, values: Tree, zero: Tree) -> Tree:
    """Where states are, and what of their buffers matters there."""
    needed = _OFFLOADED[section].get(device or "none", ())
    return {
        "device": device or "none",
        "nvme_path": path,
        **_kept(values[section], zero.get(section, ()), needed),
    }


def _aio(said: Tree, values: Tree, *, stored: bool) -> Tree:
    """How storage is read and written, by the name of the threads that the version reads."""
    known = values["aio"]
    needed = [key for key in known if key != "use_gds" or known[key]] if stored or "aio" in said else []
    ignored = {"thread_count", "intra_op_parallelism"} - known.keys()
    return {**_kept(known, said.get("aio", ()), needed), **dict.fromkeys(ignored)}
