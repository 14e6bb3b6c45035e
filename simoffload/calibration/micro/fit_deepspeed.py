"""DeepSpeed on the host: the fields of ``DeepSpeedCosts``, ``CpuOptimizer`` and ``TrainingCosts``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from simoffload.calibration.host_costs import (
    REAL_MODELS,
    HostCosts,
    Traced,
    fit_host_costs,
    non_negative,
    traced,
)
from simoffload.calibration.micro.fit_parts import copy_seconds, wait_s
from simoffload.calibration.micro.fitted import Fitted, rate_text, seconds_text
from simoffload.calibration.training_costs import fit_training_costs
from simoffload.hardware import Machine
from simoffload.hardware.profiles import DeepSpeedCosts
from simoffload.models import load_model
from simoffload.strategies.ds_config import DeepSpeedConfig
from simoffload.strategies.timing import DEEPSPEED_ADAM
from simoffload.strategies.training.plan import ZeroTrainingPlan
from simoffload.strategies.training.zero_training import ZeroTraining
from simoffload.strategies.zero_inference import ZeroInference, ZeroInferencePlan
from simoffload.workload import Inference, Training

__all__ = ["fit_costs", "fit_cpu_optimizer", "fit_hooks", "fit_training", "plan_of", "training_plan_of"]

_SMALL_TENSOR = 128 * 1024
"""[B] of the small models' matrices."""
_LEAST = 256 << 20
"""Parameters of a step that says something about memory: four tensors of 1 GiB. Of smaller ones a part stays
in the caches of a server's CPU (320 MB on an Emerald Rapids)."""


# -- inference ------------------------------------------------------------------------------------


def fit_costs(sections: dict[str, Any], machine: Machine) -> dict[str, Fitted]:
    """Costs by the name of the field; empty where hooks were not measured. ``machine`` counts GPUs only."""
    runs = sections.get("hooks", {}).get("runs", [])
    if not any(run["ranks"] == 1 for run in runs):
        return {}
    fit = fit_hooks(sections, machine)
    ranks = sorted({run["ranks"] for run in runs})
    what = (
        "decode steps of small OPT, BLOOM and Llama models under ZeRO-3, module by module, on "
        f"{_ranks_text(ranks)}; least absolute residuals over the events that DeepSpeed's "
        f"coordinator makes, scaled to whole steps (mean residual of a small model's step "
        f"{fit.mean_residual:.1%}), then x {REAL_MODELS} for models of real size"
    )
    return {
        key: Fitted(seconds_text(value), what, fit.rows, fit.worst_residual)
        for key, value in fit.values.items()
        if key in DeepSpeedCosts.model_fields
    }


def _ranks_text(ranks: list[int]) -> str:
    return f"{', '.join(map(str, ranks))} {'rank' if ranks == [1] else 'ranks'}"


def fit_hooks(sections: dict[str, Any], machine: Machine) -> HostCosts:
    """The fit over the small models' modules, as far as ``machine`` has GPUs for their ranks."""
    wait, queued = wait_s(sections), copy_seconds(sections, _SMALL_TENSOR)
    if wait and queued:
        copy = wait[0] + queued
    else:
        path = machine.host_to_device(0, pinned=True)
        copy = path.latency + _SMALL_TENSOR / path.curve.rate(_SMALL_TENSOR)
    runs = [run for run in sections["hooks"]["runs"] if run["ranks"] <= machine.gpus]
    return fit_host_costs(_traced(run, machine, copy) for run in runs)


def _traced(run: Mapping[str, Any], machine: Machine, copy: float) -> Traced:
    return traced(run, plan_of(run, machine), copy_latency=copy)


def plan_of(run: Mapping[str, Any], machine: Machine) -> ZeroInferencePlan:
    """The plan of a recorded run on a machine."""
    strategy = ZeroInference(ranks=run["ranks"], ds_config=DeepSpeedConfig.model_validate(run["ds_config"]))
    model = load_model({**run["model"], "attention": run["attention"]})
    return strategy.plan(model, Inference.model_validate(run["workload"]), machine)


# -- training -------------------------------------------------------------------------------------


def fit_cpu_optimizer(sections: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Fitted]:
    """Rates of Adam from its steps by threads; empty where it was not measured with several of them.

    "in_training" are steps inside of real training, from traces of ``calibrate deepspeed`` (the calls of
    ``_optimizer_step``), which an older record of small tensors may be completed with.

    The squared time of a byte is a / threads^2 + b x processes^2: a is of one thread, b of the memory that it
    runs on. A process by itself has the memory of one NUMA node, several have an equal share of all.
    """
    section = sections.get("cpu_adam", {})
    steps = [row for row in section.get("steps", []) if row["threads"] == 1 or row["parameters"] >= _LEAST]
    rows = [*steps, *_together(sections), *section.get("in_training", [])]
    if len({row["threads"] for row in rows}) < 2:
        return {}
    nodes = int(facts.get("numa_nodes", 1))
    threads = np.array([row["threads"] for row in rows], dtype=float)
    # In units of what all nodes together give.
    sharing = np.array([max(nodes, row.get("processes", 1)) for row in rows], dtype=float)
    per_byte = np.array([row["seconds"] / (DEEPSPEED_ADAM * row["parameters"]) for row in rows])
    table = np.stack([threads**-2, sharing**2], axis=1) / per_byte[:, None] ** 2
    scale = np.array([per_byte.max(), per_byte.min() / nodes]) ** 2
    found = non_negative(table * scale, np.ones(len(rows)), negligible=0.02) * scale
    if not found.all():
        return {}
    residual = float(np.max(np.abs(np.sqrt(table @ found) - 1)))
    what = (
        "DeepSpeed's CPU Adam by threads and processes p, 28 B a parameter: squared time of a byte = "
        "a / threads^2 + b x p^2"
    )
    return {
        "cores": Fitted(int(facts["cores"]), "cores that Linux has", 1),
        "numa_nodes": Fitted(nodes, "NUMA nodes that Linux has", 1),
        "thread": Fitted(rate_text(found[0] ** -0.5), what, len(rows), residual),
        "limit": Fitted(rate_text(found[1] ** -0.5), what, len(rows), residual),
    }


def _together(sections: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Steps of several processes at once, the time of the slowest of which counts."""
    for section in sections.get("cpu_adam_together", {}).values():
        for row in section["together"]:
            if row["parameters"] >= _LEAST:
                yield {**row, "seconds": max(row["seconds"])}


def fit_training(sections: Mapping[str, Any], machine: Machine) -> dict[str, Fitted]:
    """Costs by the name of the field; empty where training was not measured. ``machine`` has the GPUs."""
    runs = [run for run in sections.get("hooks", {}).get("training", []) if run["ranks"] <= machine.gpus]
    if not runs:
        return {}
    fit = fit_training_costs((run, training_plan_of(run, machine)) for run in runs)
    ranks = sorted({run["ranks"] for run in runs})
    scaled = f", then x {fit.factor} for models of real size" if fit.factor != 1 else ""
    what = (
        "phases of training steps of small OPT, BLOOM and Llama models under ZeRO-3 on "
        f"{_ranks_text(ranks)}; least absolute residuals (mean {fit.mean_residual:.1%})"
    )
    return {
        key: Fitted(
            round(value, 3) if key == "graph" else seconds_text(value),
            what if key == "graph" else what + scaled,
            fit.phases,
            fit.worst_residual,
        )
        for key, value in fit.values.items()
    }


def training_plan_of(run: Mapping[str, Any], machine: Machine) -> ZeroTrainingPlan:
    """The plan of a recorded run on a machine."""
    strategy = ZeroTraining(
        ranks=run["ranks"],
        ds_config=DeepSpeedConfig.model_validate(run["ds_config"]),
        cpu_threads=run.get("threads") if isinstance(run.get("threads"), int) else None,
    )
    model = load_model({**run["model"], "attention": run["attention"]})
    return strategy.plan(model, Training.model_validate(run["workload"]), machine)
