"""Numbers and verdicts of the answers to a scenario, under keys of our own; texts are left out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import simoffload as so
from simoffload.errors import InputError
from simoffload.extensions.serving.streams import stream
from simoffload.planning.advise import advise
from simoffload.planning.answers import fit
from simoffload.planning.compare import compare_scenarios
from simoffload.planning.economics import Economics
from simoffload.planning.targets import on_targets
from simoffload.results.result import SimulationResult
from simoffload.scenario import LoadedScenario

FOLDER = Path(__file__).parent
ADVISED = frozenset({"ddn/bloom-7b1", "micron/opt-30b-nvme", "training/bloom-7b1", "xinnor/llama-1b"})
"""Those for which advise is asked, too: it takes a hundred simulations."""
FEW = (
    "accelerate/opt-30b",
    "checkpoint/mlperf-8b",
    "deepnvme/mixtral-8x22b",
    "flexgen/opt-30b",
    "flexgen/opt-6.7b-cache-on-disk",
    "fsdp/llama-3.1-8b",
    "gpt-fast/llama-2",
    "llama-cpp/gpt-oss-120b",
    "micron/opt-30b-nvme",
    "mooncake/qwen3-8b",
    "serving/llama-3.1-8b-chat",
    "superoffload/qwen3-14b",
    "training/llama-3.1-8b-qlora",
    "vllm/llama-3.1-8b-blocks",
    "xinnor/llama-1b",
    "zenflow/qwen2.5-1.5b",
)
"""Those of the fast tests: every kind of work and every program."""


def file_of(name: str) -> Path:
    """The file with the answers to a shipped scenario."""
    return FOLDER / f"{name.replace('/', '--')}.json"


def text(found: Mapping[str, Any]) -> str:
    """Canonical JSON, a number a line."""
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def answers(name: str) -> dict[str, Any]:
    """What run, fit, compare and, of some, stream and advise say of a shipped scenario."""
    scenario = so.load_scenario(name)
    result = so.simulate(scenario)
    assert result.costs is not None
    found: dict[str, Any] = {
        "run": _run(result) | _costs(result.costs),
        "fit": _fit(scenario),
        "compare": _compare(scenario),
    }
    if scenario.scenario.stream is not None:
        found["stream"] = _stream(scenario)
    return found | ({"advise": _advise(scenario)} if name in ADVISED else {})


def _run(result: SimulationResult) -> dict[str, Any]:
    plain = SimulationResult.to_dict(result)
    passes = {
        one["name"]: {
            "time_ps": one["time_ps"],
            "exposed_ps": {cause["cause"]: cause["exposed_ps"] for cause in one["time_by_cause"]},
        }
        for one in plain.get("passes", ())
    }
    return _verdict(result) | {"memory": _memory(plain), "passes": passes}


def _stream(scenario: LoadedScenario) -> dict[str, Any]:
    """Means of the metrics, to six digits: lengths come from logarithms, which differ in the last digit."""
    found = stream(scenario)
    values = {name: one.value for name, one in found.estimates.items()}
    values |= {
        f"{name} {end}": at
        for name, ends in found.intervals.items()
        for end, at in zip(("low", "high"), ends, strict=True)
    }
    return {"kv_blocks": found.limits.blocks} | {name: float(f"{one:.6g}") for name, one in values.items()}


def _verdict(result: SimulationResult) -> dict[str, Any]:
    """Whether it fits and what was simulated; nothing but the fact of a refusal."""
    if result.refused:
        return {"refused": True}
    return {"fits": result.fits, "metrics": result.metrics() if result.compared_s else {}}


def _memory(plain: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("needed_bytes", "steady_bytes", "capacity_bytes")
    return {one["tier"]: {key: one[key] for key in keys} for one in plain["capacity"]}


def _costs(found: Economics) -> dict[str, Any]:
    return {"costs": {key: value for key, value in found.metrics().items() if not isinstance(value, str)}}


def _fit(scenario: LoadedScenario) -> dict[str, Any]:
    """What the scenario needs, and what would make it fit the first of its targets that is too small."""
    found: dict[str, Any] = {"memory": _memory(SimulationResult.to_dict(fit(scenario)))}
    for target, moved in on_targets(scenario, _targets(scenario)).items():
        try:
            result = fit(moved)
        except InputError:
            continue
        if not result.fits:
            remedies = result.remedies
            assert remedies is not None
            changes = [list(one.assignments) for one in remedies.changes]
            return found | {"too small": target, "remedies": changes}
    return found


def _targets(scenario: LoadedScenario) -> list[str]:
    storage = [tier for tier in scenario.machine.tiers if tier not in {"hbm", "dram"}]
    match scenario.scenario.workload.kind:
        case "checkpoint":
            return storage
        case "training":
            return ["hbm+hbm", "hbm+dram", "dram+dram", *(f"{tier}+{tier}" for tier in storage)]
        case _:
            return ["hbm", "dram", *storage]


def _compare(scenario: LoadedScenario) -> dict[str, Any]:
    found = compare_scenarios(on_targets(scenario, _targets(scenario)))
    return {
        label: _verdict(result) | (_costs(found.economics[label]) if label in found.economics else {})
        for label, result in found.results.items()
    }


def _advise(scenario: LoadedScenario) -> list[dict[str, Any]]:
    """Changes in the order of what they gain."""
    return [
        {"gain": one.gain, "extra_cost": one.extra, "metrics": one.result.metrics()}
        for one in advise(scenario).tried
    ]
