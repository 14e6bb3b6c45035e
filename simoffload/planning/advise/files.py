"""What is recommended, as files: scenarios to run, and the user's own files that they need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from simoffload.documents import Edit, ds_config_text, edited, yaml_text
from simoffload.hardware import is_path
from simoffload.models import GGUF
from simoffload.planning.advise.evaluate import Advice
from simoffload.planning.advise.purchases import Search
from simoffload.planning.evaluator import Evaluated
from simoffload.scenario import LoadedScenario
from simoffload.strategies.ds_config.export import BATCH, FILE

SIGNATURE = "# Written by simoffload advise."
"""First line of every scenario that is written."""
_SHIPPED = "hardware_profiles/"
_LONGEST_NAME = 200


def recommended(advice: Advice, search: Search | None = None) -> dict[str, str]:
    """Return the files to write, by name: every change that helps, the best purchase, and the front of a
    search.

    A scenario that refers to files of its own needs ``user_files`` next to it.
    """
    found: dict[str, str] = {}
    for rank, one in enumerate((*advice.helping, *advice.larger_batches), start=1):
        name = f"{rank:02d}-{one.change.key}".replace("+", "-and-")
        found[f"{name}.yaml"] = _scenario(advice.scenario, one, one.change.description)
        if one.change.sets_program:
            exports = one.result.provenance.exports
            found |= {f"{name}.{file}": ds_config_text(content) for file, content in exports.items()}
    if search is not None and search.best is not None:
        description = f"best by {search.objective.name}: {', '.join(search.best.description)}"
        found["best.yaml"] = _scenario(advice.scenario, search.best, description)
    for rank, point in enumerate(search.front if search else (), start=1):
        found[f"front-{rank:02d}.yaml"] = _scenario(advice.scenario, point, ", ".join(point.description))
    return found


def _scenario(base: LoadedScenario, found: Evaluated, description: str) -> str:
    """Return a scenario file of what was simulated, with all settings of DeepSpeed but the batch, which the
    workload sets."""
    name = f"{base.name}: {description}"[:_LONGEST_NAME]
    edits = [Edit.at("name", name), Edit.at("description", f"{base.name} with {description}.")]
    exported = found.result.provenance.exports.get(FILE)
    if exported is not None:
        config = {key: value for key, value in exported.items() if key not in BATCH}
        written = found.scenario.document.data["strategy"].get("ds_config") or {}
        config |= {key: written[key] for key in ("optimizer",) if key in written}  # one that a program passes
        edits.append(Edit.at("strategy.ds_config", config))
    return f"{SIGNATURE}\n{yaml_text(edited(found.scenario.document, edits).data)}"


def user_files(scenarios: Iterable[LoadedScenario]) -> dict[str, Path]:
    """Return the user's own files that scenarios of one folder need, by their path in it, GGUF files
    excepted."""
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
        if not config.name.lower().endswith(GGUF):  # as large as the model
            yield config / "config.json" if config.is_dir() else config
    if is_path(scenario.scenario.platform):
        yield root / scenario.scenario.platform
