"""Costs of the host thread: the fields of ``DeepSpeedCosts``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simoffload.calibration.host_costs import REAL_MODELS, HostCosts, Traced, fit_host_costs, traced
from simoffload.calibration.micro.fit_links import copy_seconds, wait_s
from simoffload.calibration.micro.fitted import Fitted, seconds_text
from simoffload.errors import InputError, Problem
from simoffload.hardware import Machine
from simoffload.hardware.profiles import DeepSpeedCosts
from simoffload.models import load_model
from simoffload.strategies.ds_config import DeepSpeedConfig
from simoffload.strategies.zero_inference import ZeroInference, ZeroInferencePlan
from simoffload.workload import Inference

__all__ = ["fit_costs", "fit_hooks", "plan_of"]

_SMALL_TENSOR = 128 * 1024
"""[B] of the small models' matrices."""


def fit_costs(sections: dict[str, Any], machine: Machine) -> dict[str, Fitted]:
    """Costs by the name of the field; empty where hooks were not measured. ``machine`` counts GPUs only."""
    runs = sections.get("hooks", {}).get("runs", [])
    if not any(run["ranks"] == 1 for run in runs):
        return {}
    try:
        fit = fit_hooks(sections, machine)
    except ValueError as error:
        text = f"sections.hooks: {error}; measure with the versions of docs/CALIBRATION.md, or --skip hooks"
        raise InputError((Problem("micro.json", None, None, "", text),)) from None
    ranks = sorted({run["ranks"] for run in runs})
    what = (
        "decode steps of small OPT, BLOOM and Llama models under ZeRO-3, module by module, on "
        f"{', '.join(map(str, ranks))} rank(s); least absolute residuals over the events that DeepSpeed's "
        f"coordinator makes, scaled to whole steps (mean residual of a small model's step "
        f"{fit.mean_residual:.1%}), then x {REAL_MODELS} for models of real size"
    )
    return {
        key: Fitted(seconds_text(value), what, fit.rows, fit.worst_residual)
        for key, value in fit.values.items()
        if key in DeepSpeedCosts.model_fields
    }


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
