"""Service levels that a run must keep: limits of times and rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from simoffload.documents import quoted, suggest
from simoffload.errors import InputError, shortened
from simoffload.results import SimulationResult
from simoffload.units import format_number, format_seconds, parse_seconds

_TIMES = {"ttft": "ttft_s", "tpot": "tpot_s", "e2e": "e2e_s", "step": "step_s", "save": "save_s"}
"""Short names of metrics with an upper limit [s]."""
_RATES = ("tokens_per_s", "decode_tokens_per_s", "samples_per_s")
"""Names of metrics with a lower limit [1/s]."""
_EXAMPLE = "write e.g. tpot=200ms, ttft=2s, step=10s or tokens_per_s=50"


class ServiceLevel(NamedTuple):
    """A ServiceLevel is a metric and its limit."""

    metric: str
    limit: float
    """Limit of the metric: [s], or [1/s] for rates."""

    @property
    def text(self) -> str:
        """Return the limit as text, such as "tpot ≤ 200 ms"."""
        return f"{self.name} {'≥' if self.is_rate else '≤'} {self.shown(self.limit)}"

    @property
    def is_rate(self) -> bool:
        """Whether the limit is a lower one of a rate, and not an upper one of a time."""
        return self.metric in _RATES

    @property
    def name(self) -> str:
        """Name of the metric as people write it: "tpot", "tokens_per_s"."""
        return self.metric if self.is_rate else self.metric.removesuffix("_s")

    def shown(self, value: float) -> str:
        """Return a value of the metric as text."""
        return format_number(value) if self.is_rate else format_seconds(value)

    def kept(self, result: SimulationResult) -> bool:
        """Return whether a result keeps the limit; a result without this metric does not."""
        return self.missed(result) <= 1

    def missed(self, result: SimulationResult) -> float:
        """Return how many times too long a time is, or too small a rate; at most 1 if the limit is kept."""
        value = result.metrics().get(self.metric)
        if not value:
            return math.inf
        return self.limit / value if self.is_rate else value / self.limit


def parse_service(text: str, result: type[SimulationResult]) -> ServiceLevel:
    """Read ``tpot=200ms`` for a kind of result. Raises InputError."""
    name, equals, value = (part.strip() for part in text.partition("="))
    metric = _TIMES.get(name, name)
    known = [*(short for short, full in _TIMES.items() if full in result.formulas), *_RATES]
    mine = [one for one in known if _TIMES.get(one, one) in result.formulas]
    if not equals or not value:
        raise _refusal(text, f"has no limit; {_EXAMPLE}")
    if metric not in (*_TIMES.values(), *_RATES):
        raise _refusal(text, f"unknown metric {quoted(name)}{suggest(name, mine)}; {_EXAMPLE}")
    if metric not in result.formulas:
        raise _refusal(text, f"{name} is not a metric of this kind of work; it has {', '.join(mine)}")
    try:
        limit = float(value) if metric in _RATES else parse_seconds(value)
    except ValueError as error:
        reason = (
            str(error).partition("; write e.g.")[0]
            if metric not in _RATES
            else f"{quoted(value)} is not a number"
        )
        raise _refusal(text, f"{reason}; {_EXAMPLE}") from None
    if not 0 < limit < math.inf:
        raise _refusal(text, f"must be above zero and finite; {_EXAMPLE}")
    return ServiceLevel(metric, limit)


def parse_services(slo: str | Sequence[str], result: type[SimulationResult]) -> tuple[ServiceLevel, ...]:
    """Read one or several limits for a kind of result. Raises InputError."""
    return tuple(parse_service(text, result) for text in ((slo,) if isinstance(slo, str) else slo))


def most_missed(service: Iterable[ServiceLevel], result: SimulationResult) -> float:
    """Return how many times too long a time is, or too small a rate, where a service level is missed most; at
    most 1 if all are kept, and 0 if there are none."""
    return max((level.missed(result) for level in service), default=0.0)


def _refusal(text: str, message: str) -> InputError:
    return InputError.at(shortened(text), message, path="--slo")
