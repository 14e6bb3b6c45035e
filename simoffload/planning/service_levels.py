"""Service levels that a run must keep: limits of times and rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from simoffload.documents import either, quoted, suggest
from simoffload.errors import InputError, shortened
from simoffload.results import Metric, SimulationResult, WithMetrics, declared_metrics, kinds_of_results

_EXAMPLES = {
    "tpot": "200ms",
    "ttft": "2s",
    "step": "10s",
    "save": "5s",
    "tokens_per_s": "50",
    "attain": "0.99",
}


class ServiceLevel(NamedTuple):
    """A ServiceLevel is a metric and its limit."""

    metric: Metric
    limit: float
    """Limit of the metric, in its unit."""

    @property
    def text(self) -> str:
        """Return the limit as text, such as "tpot ≤ 200 ms"."""
        return f"{self.name} {'≥' if self.metric.larger else '≤'} {self.metric.short(self.limit)}"

    @property
    def name(self) -> str:
        """Name of the metric as people write it: "tpot", "tokens_per_s"."""
        return short_name(self.metric)

    def of(self, result: SimulationResult) -> float | None:
        """Return the value of a result; None if it has none."""
        return result.metrics().get(self.metric.name)

    def kept(self, result: SimulationResult) -> bool:
        """Return whether a result keeps the limit; a result without this metric does not."""
        return self.missed(result) <= 1

    def missed(self, result: SimulationResult) -> float:
        """Return how many times too long a time is, or too small a rate; at most 1 if the limit is kept."""
        value = self.of(result)
        if value is None or (self.metric.larger and not value):
            return math.inf
        return self.limit / value if self.metric.larger else value / self.limit


def short_name(metric: Metric) -> str:
    """Return the name of a metric as people write it: times without ``_s``."""
    return metric.name.removesuffix("_s") if metric.unit.name == "s" else metric.name


def limited_metrics(metrics: Iterable[Metric]) -> dict[str, Metric]:
    """Return the metrics of which a direction is better, by their short names."""
    return {short_name(one): one for one in metrics if one.better}


def parse_service(text: str, result: type[WithMetrics]) -> ServiceLevel:
    """Read ``tpot=200ms`` for a kind of result. Raises InputError."""
    name, equals, value = (part.strip() for part in text.partition("="))
    mine = limited_metrics(result.declared.values())
    metric = mine.get(name) or next((one for one in mine.values() if one.name == name), None)
    examples = [f"{one}={limit}" for one, limit in _EXAMPLES.items() if one in mine]
    example = f"write e.g. {either(examples or ['METRIC=LIMIT'])}"
    if not equals or not value:
        raise _refusal(text, f"has no limit; {example}")
    if metric is None:
        known = declared_metrics()
        if name in known or name in limited_metrics(known.values()):
            raise _refusal(text, f"{name} is no limit of this kind of work; it has {', '.join(mine)}")
        hint = suggest(name, mine) or f"; this kind of work has {', '.join(mine)}"
        raise _refusal(text, f"unknown metric {quoted(name)}{hint}; {example}")
    try:
        limit = metric.parse(value)
    except ValueError as error:
        reason = str(error).partition("; write e.g.")[0]
        if metric.unit.parse is float:
            reason = f"{quoted(value)} is not a number"
        if "," in value:
            example = "write each limit with a --slo of its own"
        raise _refusal(text, f"{reason}; {example}") from None
    if not 0 < limit < math.inf:
        raise _refusal(text, f"must be above zero and finite; {example}")
    return ServiceLevel(metric, limit)


def parse_services(slo: str | Sequence[str], result: type[WithMetrics]) -> tuple[ServiceLevel, ...]:
    """Read one or several limits for a kind of result. Raises InputError."""
    return tuple(parse_service(text, result) for text in ((slo,) if isinstance(slo, str) else slo))


def most_missed(service: Iterable[ServiceLevel], result: SimulationResult) -> float:
    """Return how many times too long a time is, or too small a rate, where a service level is missed most; at
    most 1 if all are kept, and 0 if there are none."""
    return max((level.missed(result) for level in service), default=0.0)


def metric_named(asked: str, kind: str | None, *, besides: Sequence[str | Metric] = ()) -> Metric:
    """Return the metric of a kind of work, None for any, or of those ``besides`` that ``--objective`` names.

    Raises InputError for an unknown one, or one of which no direction is better; the words ``besides`` are
    named, too.
    """
    declared = next((one.declared for one in kinds_of_results() if one.kind == kind), declared_metrics())
    more = [one for one in besides if isinstance(one, Metric)]
    found = limited_metrics((*declared.values(), *more))
    metric = found.get(asked) or next((one for one in found.values() if one.name == asked), None)
    if metric is not None:
        return metric
    given, known = shortened(asked), (*(one for one in besides if isinstance(one, str)), *found)
    raise InputError.at(given, f"is not one of {', '.join(known)}{suggest(given, known)}", path="--objective")


def judged(result: SimulationResult, service: Iterable[ServiceLevel]) -> SimulationResult:
    """Return a result that is judged by the metric whose limit it misses most; as it is if it keeps all."""
    missed = [(level.missed(result), level) for level in service]
    most, level = max(missed, key=lambda one: one[0], default=(0.0, None))
    return replace(result, asked=level.metric.name) if level is not None and most > 1 else result


def _refusal(text: str, message: str) -> InputError:
    return InputError.at(shortened(text), message, path="--slo")
