"""The baselines that ``compare`` adds: the same work without offloading, if the GPUs can hold the weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from simoffload.planning.evaluator import Evaluator
from simoffload.planning.replaced import replaced
from simoffload.planning.serving import baseline, class_of
from simoffload.results import Change, SimulationResult
from simoffload.scenario import LoadedScenario
from simoffload.strategies import strategy_for


def without_offloading(
    known: Mapping[str, LoadedScenario], results: Mapping[str, SimulationResult]
) -> list[tuple[str, LoadedScenario]]:
    """Return the work of the scenarios that offload weights, done without offloading, by label."""
    found: dict[str, LoadedScenario] = {}
    for label, scenario in known.items():
        if results[label].refused or scenario.places[0] in ("", "hbm"):
            continue
        for kind in strategy_for(scenario.scenario.workload.kind):
            name = in_place_of_target(label, kind, scenario)
            if name in found or name in known:
                continue
            edits = baseline(class_of(kind), scenario, scenario.model)
            if not edits:
                continue
            gpus = scenario.edited(*edits).scenario.strategy.gpus
            held = "one GPU holds the weights" if gpus == 1 else f"{gpus} GPUs hold the weights together"
            change = Change("placement", f"added for comparison: {held}, without offloading", edits)
            change = replaced(Evaluator(scenario), change)
            twin = scenario.edited(*change.edits)
            if not any(_same_work(twin, one) for one in (*known.values(), *found.values())):
                found[name] = replace(twin, remarks=(change.description,))
    return list(found.items())


def _same_work(one: LoadedScenario, other: LoadedScenario) -> bool:
    """Whether two scenarios differ in nothing but their names and descriptions."""
    keys = (one.document.data.keys() | other.document.data.keys()) - {"name", "description"}
    return all(one.document.data.get(key) == other.document.data.get(key) for key in keys)


def in_place_of_target(label: str, kind: str, scenario: LoadedScenario) -> str:
    """Return a label with a kind of strategy in place of the target at its end, or the kind alone if it has
    none, so that one baseline is added."""
    before, target = _TARGET.match(label).groups()  # type: ignore[union-attr]  # matches every text
    is_target = {*target.split("+")} <= {"resident", *scenario.machine.tiers}
    return f"{before}{kind}" if is_target else kind


_TARGET = re.compile(r"(.*?)([^ :]*)$", re.DOTALL)
"""The target in a label, after a platform or the name of a scenario."""
