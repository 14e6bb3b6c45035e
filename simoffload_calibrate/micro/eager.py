"""Decode steps of small models in transformers' code without DeepSpeed (child process only).

A model is built in its first round and kept; every round times a few of its steps.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from simoffload_calibrate.child import Job, synchronize
from simoffload_calibrate.hugging_face import built
from simoffload_calibrate.passes import generation

_STEPS = 7
"""The number of timed decode steps in a round; a new model first makes as many that are not timed."""


def measure_eager(job: Job) -> dict[str, Any]:
    """Measure decode steps of every small model: on the GPU, under Accelerate, and divided among GPUs."""
    models: dict[str, torch.nn.Module] = job.kept.setdefault("eager", {})
    runs: list[dict[str, Any]] = []
    for case in job.data["cases"]:
        if not job.in_time():
            break
        name = case["name"]
        if name not in models:
            models[name] = _built(job, case)
            _steps(job, case, models[name])
        seconds = _steps(job, case, models[name])
        keys = ("name", "model", "workload", "strategy")
        runs.append({**{key: case[key] for key in keys}, "ranks": case["ranks"], "seconds": seconds})
    return {"runs": runs}


def _built(job: Job, case: dict[str, Any]) -> torch.nn.Module:
    folder = Path(job.data["folder"]) / "model" if job.ranks > 1 else Path(tempfile.mkdtemp())
    try:
        return built(case, job.device, folder)
    finally:
        if job.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _steps(job: Job, case: dict[str, Any], model: torch.nn.Module) -> list[float]:
    """Return the times [s] of the decode steps of a generation."""
    torch.manual_seed(0)  # the same tokens on all ranks
    times = []
    with torch.no_grad():
        step = generation(model, case, job.device)
        step()
        for _ in range(_STEPS):
            synchronize()
            begin = time.perf_counter()
            step()
            synchronize()
            times.append(time.perf_counter() - begin)
    return times
