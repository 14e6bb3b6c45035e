"""A run of a Hugging Face model, which is a task of one process per rank (child process only).

One rank runs under Accelerate, as the case's device map says, several under tensor parallelism.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import cpu_offload, disk_offload, dispatch_model, infer_auto_device_map, init_empty_weights
from accelerate.utils import get_balanced_memory
from torch import distributed

from simoffload_calibrate.child import Job, release_memory
from simoffload_calibrate.deepspeed.recorders import gpu_activity
from simoffload_calibrate.passes import TimedPasses, architecture, configuration, generation, run_facts

_REPETITIONS = 3
"""The number of timed generations; the first one allocates memory and plans attention for each length."""
_SPREAD = 0.02
"""The standard deviation of random weights, as in the models' own initialization."""


def built(case: Mapping[str, Any], device: str, folder: Path) -> torch.nn.Module:
    """Return the case's model where its strategy places it; ``folder`` is for its files."""
    return (_divided if case["ranks"] > 1 else _offloaded)(case, device, folder)


def _in_memory(case: Mapping[str, Any], device: str) -> torch.nn.Module:
    """Return the model in host memory, with random weights, on ordinary pages that were written.

    Zeros would not do: a GPU draws less power for products of zeros and then runs faster, and pages that were
    never written are all the same page of the operating system, which the CPU's cache holds.
    """
    with init_empty_weights(include_buffers=False):
        model: torch.nn.Module = architecture(case)(configuration(case))
    dtype = getattr(torch, case["dtype"])
    for module in model.modules():
        for name, empty in module.named_parameters(recurse=False):
            if empty.is_meta:
                norm = empty.ndim < 2 and name == "weight"
                if not (case["strategy"] or {}).get("initialized", True):
                    untouched = torch.empty(empty.shape, dtype=dtype)
                    setattr(module, name, torch.nn.Parameter(untouched, requires_grad=False))
                    continue
                filled = torch.empty(empty.shape, dtype=dtype, device=device)
                filled = filled.fill_(1.0) if norm else filled.normal_(0.0, _SPREAD)
                setattr(module, name, torch.nn.Parameter(filled.cpu(), requires_grad=False))
    model.tie_weights()
    return model.eval()


def _offloaded(case: Mapping[str, Any], device: str, folder: Path) -> torch.nn.Module:
    """Return the model with its modules at the homes of the case's device map.

    The calls are those of the program that the strategy exports.
    """
    model, strategy = _in_memory(case, device), case["strategy"]
    chosen = strategy.get("device_map", "auto")
    pinned: dict[str, Any] = {}
    if strategy.get("pin_memory"):
        pinned = {"state_dict": {key: one.pin_memory() for key, one in model.state_dict().items()}}
    if chosen == "cpu":
        return _module(cpu_offload(model, execution_device=torch.device(device), **pinned))
    if chosen == "disk":
        return _module(disk_offload(model, str(folder), execution_device=torch.device(device)))
    homes = _auto(model, strategy) if chosen == "auto" else case["homes"]
    found = set(homes.values())
    skipped: Any = getattr(model, "_skip_keys_device_placement", None)  # as in from_pretrained
    if len(found) == 1 and not found & {"cpu", "disk"}:
        return model.to(device)
    return _module(dispatch_model(model, homes, offload_dir=str(folder), skip_keys=skipped, **pinned))


def _auto(model: torch.nn.Module, strategy: Mapping[str, Any]) -> dict[str, Any]:
    limits = {int(key) if key != "cpu" else key: size for key, size in (strategy["max_memory"] or {}).items()}
    blocks = getattr(model, "_no_split_modules", None)
    memory = get_balanced_memory(model, limits or None, no_split_module_classes=blocks)
    homes: dict[str, Any] = infer_auto_device_map(model, memory, no_split_module_classes=blocks)
    return homes


def _module(model: Any) -> torch.nn.Module:
    assert isinstance(model, torch.nn.Module)
    return model


def _divided(case: Mapping[str, Any], device: str, folder: Path) -> torch.nn.Module:
    """Return this rank's part of a model under tensor parallelism, loaded from files that rank 0 writes."""
    if distributed.get_rank() == 0:
        model: Any = _in_memory(case, device)
        model.save_pretrained(folder)
        del model
        release_memory()
    distributed.barrier()
    attention = {"attn_implementation": case["attention"]} if case["attention"] else {}
    found = architecture(case).from_pretrained(
        folder, dtype=getattr(torch, case["dtype"]), tp_plan="auto", **attention
    )
    distributed.barrier()
    return _module(found)


def carry_out(job: Job) -> dict[str, Any]:
    """Run the case of a task and return its record."""
    case = job.data["case"]
    if job.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)  # the same tokens on all ranks
    folder = Path(job.data["swap_folder"]) / f"{case['index']:03d}"
    try:
        return _measured(case, job.device, folder)
    finally:
        release_memory()
        if job.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _measured(case: Mapping[str, Any], device: str, folder: Path) -> dict[str, Any]:
    """Return the record of a case, whose model is released with the return."""
    begin = time.perf_counter()
    model = built(case, device, folder)
    loading = time.perf_counter() - begin
    times = TimedPasses(device)
    with torch.no_grad():
        for repetition in range(_REPETITIONS):
            step = generation(model, case, device)
            for index in range(case["workload"]["output_length"]):
                times.add(f"decode {index}" if index else "prefill", repetition, step)
        traces = {}
        if case["trace"] and device != "cpu":  # of a new generation: a static cache has room for one only
            step = generation(model, case, device)
            step()
            traces["gpu decode"] = gpu_activity(step)
    return {
        **run_facts(case, model, ranks=case["ranks"]),
        "dtype": case["dtype"],
        "loading_s": round(loading, 3),
        "passes": times.passes,
        "traces": traces,
    }
