"""Predicting published figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from simoffload.results.checkpoint import CheckpointResult
from simoffload.results.inference import InferenceResult
from simoffload.results.result import SimulationResult
from simoffload.results.training import StorageTraffic, TrainingResult
from simoffload.scenario import LoadedScenario, load_scenario
from simoffload.simulation import Progress, fit, simulate
from simoffload.validation.counted import PLANNED
from simoffload.validation.tables import Reference, load_references

__all__ = ["PublishedRow", "compare_published"]

Value = float | str | None
"""A number, an order of tiers, or None where the simulation says that it does not fit."""


class PublishedRow(NamedTuple):
    """A published figure beside its prediction."""

    reference: Reference
    predicted: Value

    @property
    def error(self) -> float | None:
        """(predicted - published) / published; None where they are no numbers."""
        if not isinstance(self.predicted, float) or self.reference.metric == "fits":
            return None
        return self.predicted / float(self.reference.published) - 1

    @property
    def holds(self) -> bool | None:
        """Whether the prediction keeps the reference's rule; None where there is none."""
        reference = self.reference
        if reference.rule == "report":
            return None
        if reference.rule == "equal":
            return self.predicted == (
                reference.published if reference.metric == "order" else float(reference.published)
            )
        return isinstance(self.predicted, float) and _RULES[reference.rule](reference, self.predicted)


def _bounds(reference: Reference) -> tuple[float, float]:
    """Of the rule ``between``, written as "2.0 to 2.4"."""
    low, _, high = reference.tolerance.partition(" to ")
    return float(low), float(high)


_RULES: dict[str, Callable[[Reference, float], bool]] = {
    "within": lambda ref, value: abs(value / float(ref.published) - 1) <= float(ref.tolerance),
    "factor": lambda ref, value: (
        1 / float(ref.tolerance) <= value / float(ref.published) <= float(ref.tolerance)
    ),
    "at_most": lambda ref, value: value <= float(ref.published),
    "at_least": lambda ref, value: value >= float(ref.published),
    "between": lambda ref, value: _bounds(ref)[0] <= value <= _bounds(ref)[1],
}


class _Case:
    """One scenario on one target."""

    def __init__(self, scenario: LoadedScenario, progress: Progress | None) -> None:
        self.scenario = scenario
        self._progress = progress

    @cached_property
    def fits(self) -> bool:
        """Whether it fits, found without simulating."""
        return fit(self.scenario).fits

    @cached_property
    def result(self) -> SimulationResult | None:
        """The simulation, if it fits."""
        return simulate(self.scenario, progress=self._progress) if self.fits else None


def _named(metric: str) -> Callable[[SimulationResult], float | None]:
    return lambda result: result.metrics()[metric]


def _until_it_returns(result: SimulationResult) -> float | None:
    """[GiB/s] of a checkpoint, until the call of save returns."""
    metrics = result.metrics()
    size, time = metrics["checkpoint_bytes"], metrics["blocking_s"]
    return size / time / 2**30 if size and time else None


def _traffic_per_parameter(result: SimulationResult, size: Callable[[StorageTraffic], int]) -> float | None:
    """[B] of one step of training for each parameter, on all tiers of storage."""
    traffic = result.traffic if isinstance(result, TrainingResult) else ()
    return sum(map(size, traffic)) / result.parameters


_METRICS: dict[str, Callable[[SimulationResult], float | None]] = {
    **{
        name: _named(name)
        for kind in (InferenceResult, TrainingResult, CheckpointResult)
        for name in kind.formulas
    },
    "decode_tokens_per_s_per_gpu": lambda result: (
        (result.metrics()["decode_tokens_per_s"] or 0.0) / result.ranks
    ),
    "per_token_ms": lambda result: (result.per_token_s or 0.0) * 1e3,
    "e2e_days": lambda result: (result.metrics()["e2e_s"] or 0.0) / 86_400,
    "gib_per_s": _until_it_returns,
    "read_b_per_parameter": lambda result: _traffic_per_parameter(result, lambda traffic: traffic.read),
    "written_b_per_parameter": lambda result: _traffic_per_parameter(result, lambda traffic: traffic.written),
}


class _Predictor:
    """Simulates what references ask for, each case once."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._loaded: dict[tuple[str, str], LoadedScenario] = {}
        self._cases: dict[tuple[str, str, str], _Case] = {}

    def __call__(self, reference: Reference) -> Value:
        if reference.metric == "order":
            return self._order(reference)
        case = self._case(reference, reference.target)
        if reference.metric == "fits":
            return float(case.fits)
        if reference.metric in PLANNED:
            return PLANNED[reference.metric](case.scenario)
        if case.result is None:
            return None
        if reference.metric == "ratio":
            base = self._base(reference)
            return case.result.per_token_s / base if case.result.per_token_s and base else None
        return _METRICS[reference.metric](case.result)

    def _case(self, reference: Reference, target: str) -> _Case:
        key = reference.scenario, reference.overrides
        if key not in self._loaded:
            overrides = [part for part in reference.overrides.split(";") if part]
            self._loaded[key] = load_scenario(reference.scenario, overrides=overrides)
        if (*key, target) not in self._cases:
            loaded = self._loaded[key]
            self._cases[*key, target] = _Case(loaded.on(target) if target else loaded, self._progress)
        return self._cases[*key, target]

    def _base(self, reference: Reference) -> float | None:
        """[s] a token on the tier, or with the overrides, that a ratio refers to."""
        other = reference.relative_to
        if "=" not in other:
            return self._time(reference, other)
        both = ";".join(part for part in (reference.overrides, other) if part)
        return self._time(reference._replace(overrides=both), reference.target)

    def _time(self, reference: Reference, target: str) -> float | None:
        result = self._case(reference, target).result
        return result.per_token_s if result else None

    def _order(self, reference: Reference) -> str:
        """The tiers of the published order, by predicted time; those that do not fit are left out."""
        times = {tier: self._time(reference, tier) for tier in reference.published.split(" < ")}
        return " < ".join(
            sorted((tier for tier in times if times[tier]), key=lambda tier: times[tier] or 0.0)
        )


def compare_published(
    ids: Sequence[str] = (), *, progress: Progress | None = None
) -> tuple[PublishedRow, ...]:
    """Predict published figures: those whose id begins with one of ``ids``, or all."""
    predict = _Predictor(progress)
    wanted = (one for one in load_references() if not ids or one.id.startswith(tuple(ids)))
    return tuple(PublishedRow(reference, predict(reference)) for reference in wanted)
