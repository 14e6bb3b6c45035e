"""No schedule stages more than the memory of its plan declares, of the shipped scenarios of inference.

``test_combinations.py`` asks the same of every program with every cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import simoffload as so
from simoffload.documents import parse_yaml, yaml_text
from simoffload.scenario import resolve
from simoffload.strategies import registry
from simoffload.strategies.base import Held
from simoffload.strategies.hooks.staging import Prefetched
from simoffload.strategies.programs.vllm import Prefetch
from tests.examples import one_of_each
from tests.strategies.staging import declared, excess, parts_apart
from tests.strategies.test_toy import SCENARIO, Streamed

MANY = 200
"""Layers of made-up models, whose schedules take long to write out."""


def test_shipped_scenarios_stage_what_they_declare() -> None:
    found, seen = {}, 0
    for one in one_of_each(so.list_scenarios()):
        loaded = so.load_scenario(one)
        if loaded.scenario.workload.kind == "inference" and loaded.model.num_hidden_layers <= MANY:
            seen += 1
            with parts_apart():
                found[loaded.name] = excess(loaded.plan())
    assert seen > 12
    assert {name: beyond for name, beyond in found.items() if beyond} == {}


class Ahead(Prefetched):
    """Brings its layers one layer further ahead than it says."""

    def holds(self) -> Iterator[Held]:
        return Prefetched(self._homes, ahead=self._ahead - 1).holds()


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "registered", {"streamed": Streamed})


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("ahead", [1, 2])
def test_a_hook_that_stages_one_layer_more_is_found(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = resolve(parse_yaml(SCENARIO, name="s.yaml"))
    hooks = {1: Prefetched, 2: Ahead}
    monkeypatch.setattr(Streamed, "hooks", lambda _, plan, __: (hooks[ahead](plan.homes, ahead=ahead),))
    with parts_apart():
        plan: Any = scenario.plan()
        layer = max(sum(map(sum, one.values())) for one in plan.homes.layers)
        assert declared(plan)["hbm"] == 2 * layer
        expected = (
            {} if ahead == 1 else {(name, "hbm"): (3 * layer, 2 * layer) for name in ("prefill", "decode 2")}
        )
        assert excess(plan) == expected


def test_a_slot_that_is_not_declared_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM with two slots for layers, of which the plan counts one."""
    section = {"kind": "vllm", "offload_group_size": 4, "offload_prefetch_step": 2}
    work = {"batch_size": 2, "prompt_length": 96, "output_length": 4}
    content = {
        "name": "s",
        "model": "opt-6.7b",
        "platform": "dgx-a100",
        "workload": work,
        "strategy": section,
    }
    scenario = resolve(parse_yaml(yaml_text(content), name="s.yaml"))
    holds = Prefetch.holds
    with parts_apart():
        assert excess(scenario.plan()) == {}
        monkeypatch.setattr(
            Prefetch, "holds", lambda self: [one._replace(size=one.size // 2) for one in holds(self)]
        )
        found = excess(scenario.plan())
    assert {key: staged / most for key, (staged, most) in found.items()} == {
        ("prefill", "hbm"): 2.0,
        ("decode 2", "hbm"): 2.0,
    }
