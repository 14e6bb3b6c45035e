"""Construction of a model with random weights under ZeRO-3 (child process only)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import deepspeed
import torch
import torch._dynamo  # before zero.Init: newer torch imports it lazily and then meets patched tensors
import transformers
from deepspeed.accelerator import get_accelerator

from simoffload_calibrate.child import release_memory
from simoffload_calibrate.passes import architecture, configuration

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def dtype_of(case: Mapping[str, Any]) -> str:
    """Return the case's dtype; bfloat16 instead of float16 on a CPU that cannot compute in float16.

    Both have 2 B, so the same bytes move in the same order; times on a CPU are not used.
    """
    accelerator = get_accelerator()
    if (
        case["dtype"] == "float16"
        and accelerator.device_name() == "cpu"
        and not accelerator.is_fp16_supported()
    ):
        return "bfloat16"
    return str(case["dtype"])


def engine_config(case: Mapping[str, Any], *, nvme_path: str) -> dict[str, Any]:
    """Return the case's ``ds_config`` with batch, dtype and swap folder filled in."""
    config: dict[str, Any] = {**case["ds_config"]}
    zero = {**config.get("zero_optimization", {})}
    for part in ("offload_param", "offload_optimizer"):
        if zero.get(part):
            zero[part] = {**zero[part]}
            if zero[part].get("device") == "nvme":
                zero[part]["nvme_path"] = nvme_path
    config["zero_optimization"] = zero
    work = case["workload"]
    config["train_micro_batch_size_per_gpu"] = work["batch_size"]
    config.pop("train_batch_size", None)
    config["gradient_accumulation_steps"] = work.get("gradient_accumulation_steps", 1)
    dtype = dtype_of(case)
    config["fp16"] = {"enabled": dtype == "float16", "loss_scale": 1.0}
    config["bf16"] = {"enabled": dtype == "bfloat16"}
    if work["kind"] == "training":
        config.setdefault("optimizer", {"type": "AdamW", "params": {"lr": 1e-5}})
    else:
        zero.pop("offload_optimizer", None)
        config.pop("optimizer", None)
        config.pop("scheduler", None)
    config.setdefault("steps_per_print", 10**9)
    return config


@contextlib.contextmanager
def _layers_initialize() -> Iterator[None]:
    """Skip the model's own initialization, which fails on partitioned tensors and takes minutes.

    Layers fill their weights with random numbers on the GPU when they are created. Zeros would not do: a GPU
    draws less power for products of zeros and then runs faster, and DeepSpeed skips the optimizer's step when
    gradients are not finite.
    """
    model_class: Any = transformers.PreTrainedModel
    initialize = model_class.init_weights
    model_class.init_weights = lambda model: model.tie_weights()
    try:
        yield
    finally:
        model_class.init_weights = initialize


def build(case: Mapping[str, Any], config: dict[str, Any]) -> torch.nn.Module:
    """Construct the model inside ``zero.Init``, which partitions every parameter when it is created."""
    training = case["workload"]["kind"] == "training"
    with (
        _layers_initialize(),
        deepspeed.zero.Init(config_dict_or_path=config, dtype=DTYPES[dtype_of(case)]),
    ):
        model: torch.nn.Module = architecture(case)(configuration(case))
    _fill_others(model)
    if training and case["workload"]["gradient_checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": case["workload"]["use_reentrant"]})
    model.train(training)
    return model


def _fill_others(model: torch.nn.Module) -> None:
    """Fill matrices of modules that do not initialize themselves, such as experts and routers."""
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            continue
        for parameter in module.parameters(recurse=False):
            if len(getattr(parameter, "ds_shape", ())) > 1:
                with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                    torch.nn.init.normal_(parameter.data, 0.0, 0.02)


def initialize(model: torch.nn.Module, config: dict[str, Any]) -> Any:
    """Return DeepSpeed's engine around the model."""
    with contextlib.suppress(AttributeError):
        model.config.use_cache = "optimizer" not in config
    parameters = model.parameters() if "optimizer" in config else None
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=parameters)
    return engine


def forget(engine: Any) -> None:
    """Release all memory of a run, including pinned host memory."""
    with contextlib.suppress(Exception):
        engine.destroy()
    release_memory()
