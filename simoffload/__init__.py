"""Simulate offloading large language models to CPU memory, drives and file servers.

Every public name is imported when it is first used, so that ``import simoffload`` costs nothing.
"""

TYPE_CHECKING = False  # to type checkers it is true; importing typing takes longer than all the rest here
if TYPE_CHECKING:
    from simoffload.errors import InputError, Problem, SimoffloadError, SimulationError
    from simoffload.exchange.chrome_trace import write_trace
    from simoffload.extensions.purchases.search import search_catalogue
    from simoffload.extensions.serving.streams import StreamResult, stream
    from simoffload.extensions.storage.result import CheckpointResult
    from simoffload.extensions.sweep.run import SweepResult, sweep
    from simoffload.hardware import list_profiles, load_platform
    from simoffload.models import list_models, load_model
    from simoffload.planning.advise import advise
    from simoffload.planning.answers import Answer, fit, simulate
    from simoffload.planning.bandwidth import storage_curve
    from simoffload.planning.caches import cache_limits, cache_speed, prefix_loading
    from simoffload.planning.compare import Comparison, compare, compare_scenarios
    from simoffload.planning.confidence import confidence
    from simoffload.planning.costs import load_costs
    from simoffload.planning.economics import break_even_points, economics
    from simoffload.planning.explanation import sensitivity
    from simoffload.planning.question import load_scenario, question
    from simoffload.planning.reach import best_batch, reach
    from simoffload.planning.remedies import smallest_changes
    from simoffload.planning.service_levels import parse_service
    from simoffload.planning.sizing import largest, machines_needed
    from simoffload.planning.targets import on_targets
    from simoffload.report.html import write_comparison, write_report
    from simoffload.results.inference import InferenceResult
    from simoffload.results.metrics import metric
    from simoffload.results.result import SimulationResult
    from simoffload.results.training import TrainingResult
    from simoffload.scenario import LoadedScenario, list_scenarios
    from simoffload_calibrate.importers.measured_profiles import import_profile

__all__ = [
    "Answer",
    "CheckpointResult",
    "Comparison",
    "InferenceResult",
    "InputError",
    "LoadedScenario",
    "Problem",
    "SimoffloadError",
    "SimulationError",
    "SimulationResult",
    "StreamResult",
    "SweepResult",
    "TrainingResult",
    "advise",
    "best_batch",
    "break_even_points",
    "cache_limits",
    "cache_speed",
    "compare",
    "compare_scenarios",
    "confidence",
    "economics",
    "fit",
    "import_profile",
    "largest",
    "list_models",
    "list_profiles",
    "list_scenarios",
    "load_costs",
    "load_model",
    "load_platform",
    "load_scenario",
    "machines_needed",
    "metric",
    "on_targets",
    "parse_service",
    "prefix_loading",
    "question",
    "reach",
    "search_catalogue",
    "sensitivity",
    "simulate",
    "smallest_changes",
    "storage_curve",
    "stream",
    "sweep",
    "write_comparison",
    "write_report",
    "write_trace",
]

__version__: str

_NAMES = {
    "simoffload.errors": "InputError Problem SimoffloadError SimulationError",
    "simoffload.exchange.chrome_trace": "write_trace",
    "simoffload.extensions.purchases.search": "search_catalogue",
    "simoffload.extensions.serving.streams": "StreamResult stream",
    "simoffload.extensions.storage.result": "CheckpointResult",
    "simoffload.extensions.sweep.run": "SweepResult sweep",
    "simoffload.hardware": "list_profiles load_platform",
    "simoffload.models": "list_models load_model",
    "simoffload.planning.advise": "advise",
    "simoffload.planning.answers": "Answer fit simulate",
    "simoffload.planning.bandwidth": "storage_curve",
    "simoffload.planning.caches": "cache_limits cache_speed prefix_loading",
    "simoffload.planning.compare": "Comparison compare compare_scenarios",
    "simoffload.planning.confidence": "confidence",
    "simoffload.planning.costs": "load_costs",
    "simoffload.planning.economics": "break_even_points economics",
    "simoffload.planning.explanation": "sensitivity",
    "simoffload.planning.question": "load_scenario question",
    "simoffload.planning.reach": "best_batch reach",
    "simoffload.planning.remedies": "smallest_changes",
    "simoffload.planning.service_levels": "parse_service",
    "simoffload.planning.sizing": "largest machines_needed",
    "simoffload.planning.targets": "on_targets",
    "simoffload.report.html": "write_comparison write_report",
    "simoffload.results.inference": "InferenceResult",
    "simoffload.results.metrics": "metric",
    "simoffload.results.result": "SimulationResult",
    "simoffload.results.training": "TrainingResult",
    "simoffload.scenario": "LoadedScenario list_scenarios",
    "simoffload_calibrate.importers.measured_profiles": "import_profile",
}
"""Public names by the modules that have them."""
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


_RENAMED = {"flips": "break_even_points", "default_scenario": "question"}
"""Public names that were renamed: old name, new name. The old ones work for one release."""


def __getattr__(name: str) -> object:
    """Import a public name from its home (PEP 562); an old name gives a DeprecationWarning.

    Raises AttributeError for a name that is not public.
    """
    from importlib import import_module

    if name == "__version__":
        return import_module("simoffload.shipped").__version__
    if name in _RENAMED:
        from warnings import warn

        text = f"simoffload.{name} was renamed; use simoffload.{_RENAMED[name]}"
        warn(text, DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value: object = getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith(("simoffload.extensions", "simoffload_calibrate")):
            raise
        raise AttributeError(f"simoffload.{name} is of an extension that is missing here: {error}") from None
    if not isinstance(value, type):
        from simoffload.public import public

        value = public(value)  # type: ignore[arg-type]
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
