"""A scenario: which model does what work on which platform, and what is offloaded where."""

from __future__ import annotations

from simoffload.scenario.cache import ScenarioCache, canonical
from simoffload.scenario.loaded import LoadedScenario, canonical_target, other_work, placement_of, tier_name
from simoffload.scenario.loading import (
    SWEEP,
    USUAL_WORK,
    ScenarioSource,
    completed,
    default_scenario,
    find_scenario,
    list_scenarios,
    load_scenario,
    loaded,
    locate,
    names_model,
    resolve,
)
from simoffload.scenario.overrides import Changed, changed_platform, of_platform, opened, overridden
from simoffload.scenario.parts import MachineParts
from simoffload.scenario.schema import RENAMED, EngineOptions, Scenario

__all__ = [
    "RENAMED",
    "SWEEP",
    "USUAL_WORK",
    "Changed",
    "EngineOptions",
    "LoadedScenario",
    "MachineParts",
    "Scenario",
    "ScenarioCache",
    "ScenarioSource",
    "canonical",
    "canonical_target",
    "changed_platform",
    "completed",
    "default_scenario",
    "find_scenario",
    "list_scenarios",
    "load_scenario",
    "loaded",
    "locate",
    "names_model",
    "of_platform",
    "opened",
    "other_work",
    "overridden",
    "placement_of",
    "resolve",
    "tier_name",
]
