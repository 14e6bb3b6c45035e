"""A scenario for a model that is given by its name alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simoffload.documents import Document, Edit, edited, set_value
from simoffload.errors import InputError
from simoffload.hardware import list_profiles
from simoffload.limits import limited
from simoffload.scenario.cache import ScenarioCache
from simoffload.scenario.loaded import LoadedScenario
from simoffload.scenario.loading import resolve

__all__ = ["default_scenario"]

_WORKLOAD = {"kind": "inference", "batch_size": 1, "prompt_length": 512, "output_length": 32}
"""One short conversation on each GPU; our choice."""


@limited
def default_scenario(
    model: str, platform: str | None = None, *, overrides: Sequence[str] = ()
) -> LoadedScenario:
    """Inference of a model under ZeRO-Inference on all GPUs of a platform.

    One sequence on each GPU, 512 tokens in and 32 out; the weights in host memory unless ds_config says
    where; DeepSpeed's defaults except that swap buffers hold the largest parameter. ``overrides``
    (``a.b=value``) replace any of it, the platform as well.
    Raises InputError for an unknown model or platform, or if there is no platform.
    """
    data: dict[str, Any] = {"name": model, "model": model, "workload": _WORKLOAD}
    if platform is not None:
        data["platform"] = platform
    document = Document(model, {**data, "strategy": {}}, Path())
    for assignment in overrides:
        document = set_value(document, assignment)
    if "platform" not in document.data:
        known = ", ".join(one.id for one in list_profiles("platform"))
        text = f"a model needs a platform: --on PLATFORM:TIER,… or --set platform=PLATFORM, of {known}"
        raise InputError([document.problem((), text)])
    cache = ScenarioCache()
    return resolve(_filled(resolve(document, cache=cache)), cache=cache)


def _filled(scenario: LoadedScenario) -> Document:
    """The document with what follows from model and platform, unless it says that itself."""
    document, strategy = scenario.document, scenario.scenario.strategy
    if "ranks" not in document.data["strategy"]:
        strategy = strategy.model_copy(update={"ranks": scenario.machine.gpus})
    ranks = Edit.at("strategy.ranks", strategy.ranks)
    return edited(document, (ranks, *strategy.filled(scenario.model)))
