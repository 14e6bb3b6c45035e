"""The same work on several targets, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from simoffload.errors import InputError, Problem
from simoffload.hardware import load_platform
from simoffload.results.result import SimulationResult
from simoffload.scenario import LoadedScenario
from simoffload.simulation import Progress, fit, simulate

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Comparison", "compare", "compare_fit", "compare_scenarios", "on_targets"]

SCHEMA = "simoffload/comparison/1"


@dataclass(frozen=True)
class Comparison:
    """Results by label, in the order asked for, and what they are measured against."""

    results: dict[str, SimulationResult]
    baseline: str | None = None
    """Label that ratios refer to; None = of each model the first result that has times."""

    @property
    def fits(self) -> bool:
        """Whether at least one of the targets is large enough."""
        return any(result.fits for result in self.results.values())

    def baseline_of(self, label: str) -> str | None:
        """Label of the result of the same model that the ratio of ``label`` refers to, if any has times."""
        model = self.results[label].model
        alike = (one for one, result in self.results.items() if result.model == model and result.per_token_s)
        return next((one for one in alike if self.baseline in {None, one}), None)

    def ratio(self, label: str) -> float | None:
        """Time per token on ``label`` over that on its baseline; None where one of them has no time."""
        baseline = self.baseline_of(label)
        mine = self.results[label].per_token_s
        theirs = self.results[baseline].per_token_s if baseline is not None else None
        return mine / theirs if mine and theirs else None

    @property
    def ranking(self) -> tuple[str, ...]:
        """Labels of what was simulated, the least time per token first."""
        times = {label: result.per_token_s for label, result in self.results.items()}
        return tuple(
            sorted((label for label in times if times[label]), key=lambda label: times[label] or 0.0)
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        return {
            "schema": SCHEMA,
            "ranking": list(self.ranking),
            "compared": [
                {
                    "label": label,
                    "baseline": self.baseline_of(label),
                    "ratio": self.ratio(label),
                    "result": result.to_dict(),
                }
                for label, result in self.results.items()
            ],
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per label: model, platform, target, fits, all metrics, bottleneck, ratio."""
        import pandas as pd

        rows = {
            label: {
                "model": result.model,
                "platform": result.platform,
                "target": result.target,
                "fits": result.fits,
                **result.metrics(),
                "bottleneck": result.bottleneck,
                "bound_fraction": result.bound_fraction,
                "ratio": self.ratio(label),
            }
            for label, result in self.results.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index")


def on_targets(scenario: LoadedScenario, targets: Sequence[str]) -> dict[str, LoadedScenario]:
    """The same work on every target, by the target as it was written.

    A target is a tier of the scenario's platform ("gpu" and "cpu" are understood) or ``platform:tier``.
    Raises InputError for unknown targets, all of them at once.
    """
    problems: list[Problem] = []
    moved: dict[str, LoadedScenario] = {}
    for target in targets:
        if target in moved:
            problems.append(Problem("", None, None, "", f'target "{target}" is given twice'))
            continue
        try:
            platform, _, tier = target.rpartition(":")
            moved[target] = (_on_platform(scenario, platform) if platform else scenario).on(tier)
        except InputError as error:
            problems += [one if one.path else one._replace(key="") for one in error.problems]
    if problems:
        raise InputError(problems)
    return moved


def _on_platform(scenario: LoadedScenario, platform: str) -> LoadedScenario:
    named = {"platform": platform, "name": f"{scenario.name} on {platform}"}
    inner = scenario.scenario.model_copy(update=named)
    machine = load_platform(platform).machine(nodes=inner.nodes)
    document = replace(scenario.document, data={**scenario.document.data, **named})
    return replace(scenario, scenario=inner, document=document, machine=machine)


def compare(
    scenario: LoadedScenario,
    targets: Sequence[str],
    *,
    baseline: str | None = None,
    keep_timelines: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Simulate a scenario with its weights on each of several targets.

    ``baseline`` is one of the targets; by default the first that has times. Raises InputError for
    an unknown target and for what DeepSpeed would refuse, before anything is simulated.
    """
    moved = on_targets(scenario, targets)
    return compare_scenarios(moved, baseline=baseline, keep_timelines=keep_timelines, progress=progress)


def compare_scenarios(
    scenarios: Mapping[str, LoadedScenario],
    *,
    baseline: str | None = None,
    keep_timelines: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Simulate several scenarios; see ``compare``."""
    capacities = compare_fit(
        scenarios, baseline=baseline
    )  # a slip in the last is found before the first runs
    results = {
        label: simulate(scenarios[label], keep_timelines=keep_timelines, progress=_labelled(progress, label))
        if capacity.fits
        else capacity
        for label, capacity in capacities.results.items()
    }
    return replace(capacities, results=results)


def _labelled(progress: Progress | None, label: str) -> Progress | None:
    return (lambda line: progress(f"{label}: {line}")) if progress is not None else None


def compare_fit(scenarios: Mapping[str, LoadedScenario], *, baseline: str | None = None) -> Comparison:
    """Answer only which of several scenarios fit."""
    if baseline is not None and baseline not in scenarios:
        known = ", ".join(scenarios)
        message = f'"{baseline}" is not one of what is compared: {known}'
        raise InputError((Problem("", None, None, "baseline", message),))
    results, problems = _each(scenarios, fit)
    if problems:
        raise InputError(problems)
    return Comparison(results, baseline)


def _each(
    scenarios: Mapping[str, LoadedScenario], answer: Callable[[LoadedScenario], SimulationResult]
) -> tuple[dict[str, SimulationResult], list[Problem]]:
    """Apply ``answer`` to all; keep going after an InputError and name where each problem arose."""
    results: dict[str, SimulationResult] = {}
    problems: list[Problem] = []
    for label, scenario in scenarios.items():
        try:
            results[label] = answer(scenario)
        except InputError as error:
            problems += [_named(problem, label) for problem in error.problems]
    return results, problems


def _named(problem: Problem, label: str) -> Problem:
    return problem if problem.path else problem._replace(path=label)
