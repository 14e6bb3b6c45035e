"""Decode and training steps of small models under ZeRO-3, part by part (child process only).

A model is built in its first round and kept; every round measures a few of its steps.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simoffload_calibrate.child import Job
from simoffload_calibrate.deepspeed.worker import Run

_PASSES = 7
"""The number of timed passes of a generation: the prefill and decode steps. As many of a new model are not
timed: DeepSpeed records the order of modules in the first one, and attention at a length of the context that
is new takes about 35 ms more (records of four machines with H100 and H200)."""
_WARM_UP_AGAIN = 2
"""The number of untimed passes of a model in later rounds."""
_TRACED = 2
"""The number of decode steps that are traced module by module."""
_WARM_UP_STEPS = 2
"""The number of untimed micro-steps of a new model, in complete steps."""
_MICRO_STEPS = 2
"""The number of timed micro-steps in each round, in complete steps."""
_MODULE_TIMES = ("module", "fetch", "fetched", "launched", "released")


def measure_decode(job: Job) -> dict[str, Any]:
    """Measure decode steps of every small model for inference, and trace some of them."""
    return _measured(job, _decode, "runs")


def measure_training(job: Job) -> dict[str, Any]:
    """Measure the passes of training steps of every small model for training."""
    return _measured(job, _train, "training")


def _measured(job: Job, steps: Callable[[Job, Run, bool], dict[str, Any]], part: str) -> dict[str, Any]:
    results: dict[str, Any] = {part: [], "held_back": [], "failed": [], "left_out": []}
    for case, run, new in _models(job, part, results):
        run.passes.clear()
        record = run.record()
        keys = ("name", "model", "workload", "ranks", "ds_config", "attention")
        result = {key: record[key] for key in keys}
        if part == "training":
            result["threads"] = record["threads"]
        begin = time.perf_counter()
        result |= steps(job, run, new)
        if new:  # the additional times of a first round, for the expected times in benchmarks.py
            result["building_s"] = record["loading_s"]
            result["first_round_s"] = round(time.perf_counter() - begin, 3)
        results["held_back" if case["held_back"] else part].append(result)
    return results


def _models(job: Job, part: str, results: dict[str, Any]) -> Iterator[tuple[Mapping[str, Any], Run, bool]]:
    """Yield cases with their models and whether a model is new; note those that are left out or fail."""
    built: dict[str, Run | None] = job.kept.setdefault(part, {})
    for case in job.data["cases"]:
        name = case["name"]
        if not job.in_time():
            results["left_out"].append(name)
            continue
        new = name not in built
        if new:
            try:
                built[name] = _built(case)
            except Exception as error:
                if job.ranks > 1:  # the other ranks would wait
                    raise
                sys.stderr.write(traceback.format_exc())
                built[name] = None
                results["failed"].append({"name": name, "error": f"{type(error).__name__}: {error}"[:300]})
        run = built[name]
        if run is not None:
            yield case, run, new


def _built(case: Mapping[str, Any]) -> Run:
    run = Run(case, nvme_path="")
    gc.collect()
    gc.freeze()  # DeepSpeed starts many collections, which then do not visit the model
    return run


def _decode(job: Job, run: Run, new: bool) -> dict[str, Any]:
    run.generate(0, passes=_PASSES if new else _WARM_UP_AGAIN)
    run.passes.clear()
    run.generate(job.data["round"], passes=_PASSES)
    passes = [{key: one[key] for key in ("name", "repetition", "seconds")} for one in run.passes]
    return {"passes": passes, "traces": {"decode 1": [_modules(one) for one in run.trace_decode(_TRACED)]}}


def _train(job: Job, run: Run, new: bool) -> dict[str, Any]:
    micro_steps = run.case["workload"]["gradient_accumulation_steps"]
    for _ in range(max(1, _WARM_UP_STEPS // micro_steps) if new else 0):
        run.train_step(0)
    run.passes.clear()
    for _ in range(max(1, _MICRO_STEPS // micro_steps)):
        run.train_step(job.data["round"])
    keys = ("name", "repetition", "micro_step", "seconds")
    passes = [{key: one[key] for key in keys} for one in run.passes]
    return {"passes": passes, "traces": {}}


def _modules(trace: Mapping[str, Any]) -> dict[str, Any]:
    return {"seconds": trace["seconds"], "modules": {key: trace["modules"][key] for key in _MODULE_TIMES}}
