"""What is recommended as files: scenarios to run, and a ds_config to paste."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from simoffload.exchange.scenario_file import pasteable, scenario_text
from simoffload.hardware.library import is_path
from simoffload.planning.advise.evaluate import Advice, Tried
from simoffload.planning.advise.purchases import Search, SimulatedPurchase
from simoffload.scenario import LoadedScenario
from simoffload.strategies.ds_config.export import BATCH, FILE

__all__ = ["SIGNATURE", "recommended", "user_files"]

SIGNATURE = "# Written by simoffload advise."
"""First line of every scenario that is written."""
_SHIPPED = "hardware_profiles/"
_LONGEST_NAME = 200


def recommended(advice: Advice, search: Search | None = None) -> dict[str, str]:
    """Texts by file name: every change that helps, the best purchase and the front of a search.

    A scenario that refers to files of its own needs ``user_files`` beside it.
    """
    found: dict[str, str] = {}
    for rank, one in enumerate(advice.helping, start=1):
        name = f"{rank:02d}-{one.option.key}".replace("+", "-and-")
        found[f"{name}.yaml"] = _scenario(advice.scenario, one, one.option.description)
        if one.option.kind == "setting":
            exports = one.result.provenance.exports
            found |= {f"{name}.{file}": pasteable(content) for file, content in exports.items()}
    if search is not None and search.best is not None:
        description = f"best by {search.objective}: {', '.join(search.best.description)}"
        found["best.yaml"] = _scenario(advice.scenario, search.best, description)
    for rank, point in enumerate(search.front if search else (), start=1):
        found[f"front-{rank:02d}.yaml"] = _scenario(advice.scenario, point, ", ".join(point.description))
    return found


def _scenario(base: LoadedScenario, found: Tried | SimulatedPurchase, description: str) -> str:
    """What was simulated with all settings of DeepSpeed, but the batch, which the workload says."""
    data: Mapping[str, Any] = found.scenario.document.data
    exported = found.result.provenance.exports.get(FILE)
    if exported is not None:
        config = {key: value for key, value in exported.items() if key not in BATCH}
        data = {**data, "strategy": {**data["strategy"], "ds_config": config}}
    named = {
        "name": f"{base.name}: {description}"[:_LONGEST_NAME],
        "description": f"{base.name} with {description}.",
    }
    return f"{SIGNATURE}\n{scenario_text({**data, **named})}"


def user_files(scenarios: Iterable[LoadedScenario]) -> dict[str, Path]:
    """The user's own files that scenarios of one folder need, by where they lie in it."""
    found: dict[str, Path] = {}
    for scenario in scenarios:
        root = scenario.document.root
        if root is not None:
            own = (path for path in _own(scenario, root) if path.is_relative_to(root))
            found |= {path.relative_to(root).as_posix(): path for path in own}
    return found


def _own(scenario: LoadedScenario, root: Path) -> Iterator[Path]:
    for use in scenario.machine.profiles:
        if not use.path.startswith(_SHIPPED):
            yield Path(use.path)
    model = scenario.document.data.get("model")
    if isinstance(model, Mapping) and isinstance(model.get("config"), str):
        config = root / model["config"]
        yield config / "config.json" if config.is_dir() else config
    if is_path(scenario.scenario.platform):
        yield root / scenario.scenario.platform
