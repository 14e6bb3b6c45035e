"""A scenario: which model does what work on which platform, offloaded how."""

from __future__ import annotations

from simoffload.scenario.cache import ScenarioCache
from simoffload.scenario.defaults import default_scenario
from simoffload.scenario.loaded import LoadedScenario
from simoffload.scenario.loading import find_scenario, list_scenarios, load_scenario, resolve
from simoffload.scenario.schema import EngineOptions, Scenario

__all__ = [
    "EngineOptions",
    "LoadedScenario",
    "Scenario",
    "ScenarioCache",
    "default_scenario",
    "find_scenario",
    "list_scenarios",
    "load_scenario",
    "resolve",
]
