"""The power of a GPU in real runs beside what the list of costs and the simulator make of it.

docs/measurements/power.md tells of the runs; the list's powers come from other measurements of that GPU.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simoffload.documents import Document
from simoffload.planning.economics import economics
from simoffload.scenario import resolve
from simoffload.simulation import simulate

FOLDER = Path(__file__).parents[3] / "docs" / "measurements"
DATA = FOLDER / "h200-2026-11-21"
FILES = ("energy-runs.json", "energy-runs-2.json")
RUNS = {run["name"]: run for name in FILES for run in json.loads((DATA / name).read_text())["runs"]}
STEADY = {"inference": 1, "training": 2}
"""Repetition from which on passes count."""


def kind(run: dict[str, Any]) -> str:
    return str(run["workload"].get("kind", "inference"))


def measured(run: dict[str, Any], *, prefill: bool) -> float:
    """[W] of all GPUs in use on average over a generation, or its prefill, or a step."""
    passes = [one for one in run["passes"] if one["repetition"] >= STEADY[kind(run)]]
    if prefill:
        passes = [one for one in passes if one["name"] == "prefill"]
    return sum(one["gpu_joules"] for one in passes) / sum(one["seconds"] for one in passes)


def predicted(run: dict[str, Any], *, prefill: bool) -> float:
    strategy = {"inference": "deepspeed", "training": "deepspeed"}[kind(run)]
    work = {**run["workload"], **({"output_length": 1} if prefill else {})}
    scenario = resolve(
        Document(
            "",
            {
                "name": run["name"],
                "model": {**run["model"], "attention": run["attention"]},
                "platform": "dgx-h200",
                "workload": work,
                "strategy": {"kind": strategy, "ranks": run["ranks"], "ds_config": run["ds_config"]},
            },
        )
    )
    energy = economics(scenario, simulate(scenario)).energy
    assert energy is not None
    (gpus,) = (draw for draw in energy.draws if draw.key == "accelerator/h200-sxm")
    return gpus.watts - (8 - run["ranks"]) * gpus.idle_w  # the other GPUs of the machine idle


CASES = [
    ("opt-30b cpu b16 p128", True),
    ("opt-30b cpu b16 p128", False),
    ("opt-6.7b cpu b64 p512", True),
    ("opt-6.7b cpu b64 p512", False),
    ("opt-1.3b cpu optimizer b8 s1024", False),
    ("llama-2-13b cpu b8 p256 r2", True),
    ("llama-2-13b cpu b8 p256 r2", False),
    ("opt-13b cpu b4 p32", True),
    ("opt-13b cpu b4 p32", False),
    ("bloom-3b cpu optimizer b4 s512 r2", False),
]


@pytest.mark.parametrize(("name", "prefill"), CASES)
def test_the_page_has_what_was_measured_and_what_is_predicted(name: str, prefill: bool) -> None:
    page = (FOLDER / "power.md").read_text()
    what = "prefill" if prefill else {"inference": "generation", "training": "step"}[kind(RUNS[name])]
    (row,) = re.findall(rf"\| {re.escape(name)} \| {what} \| (\d+) W \| (\d+) W \| ([+-]\d+) % \|", page)
    mine, theirs = predicted(RUNS[name], prefill=prefill), measured(RUNS[name], prefill=prefill)
    assert row == (f"{theirs:.0f}", f"{mine:.0f}", f"{(mine / theirs - 1) * 100:+.0f}")


def test_idle_and_active_power_are_those_of_the_measurement() -> None:
    phases = json.loads((DATA / "power.json").read_text())["phases"]
    listed = (Path(__file__).parents[3] / "hardware_profiles" / "costs" / "reference.yaml").read_text()
    h200 = listed[listed.index("accelerator/h200-sxm") :]
    idle, active = re.findall(r"(?:idle|active): {value: (\d+) W", h200)[:2]
    assert idle == f"{phases['context, idle']['watts']:.0f}"
    assert active == f"{phases['GEMM 8192x8192x8192 bf16']['watts']:.0f}"
