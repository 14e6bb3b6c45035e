"""An edit of one section leaves the others as they were checked."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload import InputError, LoadedScenario, load_scenario
from simoffload.documents import Edit, edited
from simoffload.scenario import resolve

EDITS = {
    "workload.batch_size": 2,
    "strategy.weights": "raid",
    "nodes": 2,
    "profiles.pfs/ddn-ai400x2.read": "30 GB/s",
    "engine.timeout": "100 s",
    "model.num_hidden_layers": 3,
}
INVALID = {
    "workload.batch_size": 0,
    "strategy.weights": "tape",
    "strategy.ds_config.zero_optimization.stage": 7,
    "equipment.accelerator": "nowhere",
    "nodes": 0,
    "profiles.nothing.read": "1 GB/s",
    "model.name": "gpt-9",
    "engine.timeout": "-1 s",
    "checkpoint": {"tier": "raid"},
}


@pytest.fixture(scope="module")
def scenario() -> LoadedScenario:
    return load_scenario("ddn/bloom-176b", overrides=["model.dtype=float16", "strategy.weights=CPU"])


@pytest.mark.parametrize(("path", "value"), EDITS.items())
def test_an_edited_scenario_is_that_of_its_document(scenario: LoadedScenario, path: str, value: Any) -> None:
    changed = scenario.edited(Edit.at(path, value))
    fresh = resolve(changed.document)
    assert changed.scenario == fresh.scenario
    assert changed.model == fresh.model
    assert changed.machine.tiers == fresh.machine.tiers
    assert changed.machine.inputs() == fresh.machine.inputs()


def test_an_edit_keeps_what_it_does_not_change(scenario: LoadedScenario) -> None:
    changed = scenario.edited(Edit.at("workload.batch_size", 2))
    assert changed.machine is scenario.machine
    assert changed.model is scenario.model
    assert changed.scenario.model is scenario.scenario.model
    faster = scenario.edited(Edit.at("profiles.pfs/ddn-ai400x2.read", "30 GB/s"))
    assert faster.scenario.workload is scenario.scenario.workload
    assert faster.machine is not scenario.machine


@pytest.mark.parametrize(("path", "value"), INVALID.items())
def test_an_edit_is_refused_as_its_document_is(scenario: LoadedScenario, path: str, value: Any) -> None:
    edit = Edit.at(path, value)
    with pytest.raises(InputError) as refused:
        scenario.edited(edit)
    with pytest.raises(InputError) as expected:
        resolve(edited(scenario.document, [edit]))
    assert refused.value.problems == expected.value.problems


def test_a_model_is_named_by_its_own_keys(scenario: LoadedScenario) -> None:
    # A model whose keys are in another order is equal, but its name lists them as they are written.
    keys = {"num_hidden_layers": 3, "vocab_size": 1000}
    named = [
        scenario.edited(Edit.at("model", {"name": "bloom-7b1", **own})).model.name
        for own in (keys, dict(reversed(keys.items())))
    ]
    assert named == [
        "bloom-7b1 (num_hidden_layers=3, vocab_size=1000)",
        "bloom-7b1 (vocab_size=1000, num_hidden_layers=3)",
    ]
