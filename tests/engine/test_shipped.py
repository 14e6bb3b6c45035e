"""Shipped scenarios, with few layers: with rank symmetry and steady states as in full."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import simoffload as so
from simoffload.engine import execute
from simoffload.extensions.storage.program import CheckpointPlan
from simoffload.results.passes import summarize_pass
from simoffload.schedule import Schedule
from simoffload.shipped import shipped_folder
from simoffload.strategies.plan import StepWork
from tests.examples import one_of_each

FOLDER = shipped_folder("scenarios")
NAMES = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.yaml"))
LAYERS = 14


def schedules(name: str) -> Iterator[Schedule]:
    content = yaml.safe_load(Path(FOLDER / f"{name}.yaml").read_text())
    model = content["model"]
    fields = model if isinstance(model, dict) else {"name": model}
    short = json.dumps(fields | {"num_hidden_layers": LAYERS})
    checkpoint = content["workload"]["kind"] == "checkpoint"
    plan = so.load_scenario(name, overrides=[] if checkpoint else [f"model={short}"]).plan()
    if isinstance(plan, CheckpointPlan):
        yield from (phase.schedule({}) for phase in (*plan.save(), *plan.restore()))
    elif isinstance(plan, StepWork):
        yield from (plan.schedule(part) for part in plan.parts)
    else:
        yield plan.schedule(plan.forward("first", 8, 8, first=True))
        yield plan.schedule(plan.forward("decode 1", 1, 9))


@pytest.mark.parametrize("name", one_of_each(NAMES))
def test_folded_and_jumped_as_in_full(name: str) -> None:
    for schedule in schedules(name):
        # What thousands of ranks do at their links takes long to run in full, and 16 show it as well.
        few = cut(schedule, 16)
        full, short = execute(few, rank_symmetry=False, steady_state=False), execute(few)
        for total in ("makespan", "link_bytes", "link_busy", "link_saturated"):
            assert getattr(short, total) == getattr(full, total)
        assert sorted(zip(*short.all_operations, strict=True)) == sorted(
            zip(*full.all_operations, strict=True)
        )
        assert summarize_pass(short, new_tokens=1, context=9) == summarize_pass(full, new_tokens=1, context=9)


def cut(schedule: Schedule, ranks: int) -> Schedule:
    """The first ranks alone."""
    if schedule.ranks <= ranks:
        return schedule
    routes = tuple(route._replace(hops=route.hops[:ranks]) for route in schedule.routes)
    return schedule._replace(ranks=ranks, routes=routes)
