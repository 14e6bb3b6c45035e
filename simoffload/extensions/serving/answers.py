"""What a stream of requests met: latencies, rates and memory, with intervals from replications.

Definitions are those of ``vllm bench serve`` (vLLM 0.33.0, ``vllm/benchmarks/serve.py``): TTFT from arrival
to the first token; TPOT the time after it over the tokens after it, of requests with several; ITL every gap
between two tokens, of all requests together; E2EL from arrival to the last token; percentiles are linear.
Latencies are those of the requests that arrive after the warm-up. Rates, and numbers of requests at a time,
are those of a window from the end of the warm-up to the begin of the drain, when no request is left to be
admitted, or the first of some users has none left. Those of vLLM depend on the number of requests: it divides
all by the time to the last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import cos, nan, pi, sin, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simoffload.extensions.serving.replica import Served
from simoffload.results import Metric, MetricAttribute, WithMetrics, metric
from simoffload.scenario.streams import StreamLimits
from simoffload.units import format_number, per_second

__all__ = [
    "CONFIDENCE",
    "ReplicatedMean",
    "RequestMetrics",
    "RequestTimeline",
    "StreamMeasures",
    "mser",
    "quantiles",
    "replicated_mean",
    "student_quantile",
]

Times = npt.NDArray[np.float64]
CONFIDENCE = 0.9
"""Share of intervals that contain the long-run value (our choice)."""
_PARTS = {"mean": nan, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_BATCH = 5
"""Number of values that MSER-5 averages."""
_POINTS = 200
"""Points of a timeline (our choice)."""


def mser(values: Times) -> int:
    """Return how many values at the begin MSER-5 leaves out, at most half of them.

    White, Cobb and Spratt, "A comparison of five steady-state truncation heuristics", WSC 2000: of the means
    of five values each, those are left out without which the standard error of the others is least.
    """
    count = len(values) // _BATCH
    if count < 2:
        return 0
    means = values[: count * _BATCH].reshape(count, _BATCH).mean(axis=1)[::-1]
    number = np.arange(1, count + 1)
    mean = means.cumsum() / number
    errors = ((means**2).cumsum() / number - mean**2) / number
    kept = number >= count - count // 2
    return _BATCH * (count - int(number[kept][errors[kept].argmin()]))


def quantiles(values: Times, weights: npt.NDArray[np.integer[Any]], parts: Sequence[float]) -> list[float]:
    """Return quantiles of values of which each occurs as often as its weight, as ``np.percentile`` with
    linear interpolation; NaN of none."""
    total = int(weights.sum())
    if not total:
        return [nan] * len(parts)
    order = values.argsort()
    ends = weights[order].cumsum()

    def at(place: int) -> float:
        return float(values[order[ends.searchsorted(place, side="right")]])

    found = []
    for part in parts:
        place, rest = divmod(part * (total - 1), 1)
        low = at(int(place))
        found.append(low + rest * (at(int(place) + 1) - low) if rest else low)
    return found


def _per_second(rate: float) -> str:
    return per_second(rate, " requests/s")


# -- one stream ----------------------------------------------------------------------------------


class RequestTimeline(NamedTuple):
    """A RequestTimeline has the number of requests over time, at equal distances."""

    time: list[float]
    running: list[int]
    waiting: list[int]


class RequestMetrics(WithMetrics):
    """RequestMetrics are the metrics of each request of a stream; a request keeps limits of them or does
    not."""

    def __init__(self, served: Served, *, limits: StreamLimits | None = None) -> None:
        self.served, self._limits = served, limits or StreamLimits()

    @metric()
    def ttft_s(self) -> Times:
        """TTFT [s]: time from arrival to the first token."""
        return self.served.ttft

    @metric()
    def tpot_s(self) -> Times:
        """TPOT [s]: time after the first token over the tokens after it."""
        return self.served.tpot

    @metric()
    def e2el_s(self) -> Times:
        """E2EL [s]: time from arrival to the last token."""
        return self.served.finished - self.served.queued

    @metric(better="higher")
    def attain(self) -> npt.NDArray[np.bool_]:
        """Requests within limits []: requests that keep all limits over all requests."""
        good = np.ones(len(self.served.queued), dtype=bool)
        for name in ("ttft", "tpot", "e2el"):
            if (limit := getattr(self._limits, name)) is not None:
                good &= np.nan_to_num(getattr(self, f"{name}_s"), nan=0.0) <= limit
        return good


def _latency(kind: str, part: str, of: Metric) -> MetricAttribute[float]:
    """Return the metric of a stream that is the mean or a percentile of one of its requests."""

    def value(measures: StreamMeasures) -> float:
        return measures.latency(kind, part)

    which = "mean" if part == "mean" else f"{part[1:]}th percentile"
    value.__name__ = f"{kind}_{part}_s"
    value.__doc__ = f"{of.title} {part} [s]: {which} of the {of.formula}."
    return MetricAttribute(value)


def _latencies() -> dict[str, MetricAttribute[float]]:
    """Return the metrics of a stream that are parts of those of requests, and of the gaps between tokens."""
    found = {name: RequestMetrics.declared[f"{name}_s"] for name in ("ttft", "tpot", "e2el")}
    gaps = replace(found["tpot"], title="ITL", formula="time between two tokens of a request")
    found = {"ttft": found["ttft"], "tpot": found["tpot"], "itl": gaps, "e2el": found["e2el"]}
    each = (_latency(kind, part, one) for kind, one in found.items() for part in _PARTS)
    return {one.metric.name: one for one in each}


class StreamMeasures(WithMetrics):
    """StreamMeasures are the metrics of one simulated stream, without the first ``skip`` requests, and
    without what is after ``until`` [s], when the last request is admitted, or the first user leaves."""

    locals().update(_latencies())

    def __init__(
        self,
        served: Served,
        *,
        limits: StreamLimits | None = None,
        skip: int = 0,
        until: float | None = None,
    ) -> None:
        self._until = float(served.scheduled.max(initial=0.0)) if until is None else until
        self.served, self.skip, self._requests = served, skip, RequestMetrics(served, limits=limits)
        order = np.argsort(served.queued, kind="stable")
        self._counted = order[skip:]

    def _of(self, values: Times) -> Times:
        return values[self._counted]

    @property
    def number(self) -> int:
        """Number of requests after the warm-up."""
        return len(self._counted)

    @cached_property
    def _begin(self) -> float:
        return float(self._of(self.served.queued)[0]) if self.number else 0.0

    @cached_property
    def window(self) -> tuple[float, float]:
        """Begin and end of the time of which rates are [s]: from the first counted arrival to the drain, or
        to the last token where most requests finish in the drain."""
        if not self.number:
            return 0.0, 0.0
        finished, until = self.served.finished, self._until
        before = ((finished > self._begin) & (finished <= until)).sum()
        return self._begin, until if before > (finished > until).sum() else float(finished.max())

    @property
    def duration(self) -> float:
        """Length of the window [s]."""
        begin, end = self.window
        return end - begin

    def _inside(self, since: Times, until: Times) -> Times:
        """Return how much of each of some times is in the window [s]."""
        begin, end = self.window
        return np.asarray(np.maximum(0.0, np.minimum(until, end) - np.maximum(since, begin)))

    def _happens(self, times: Times) -> npt.NDArray[np.bool_]:
        begin, end = self.window
        return (times > begin) & (times <= end)

    @property
    def completed(self) -> int:
        """Number of requests that finish in the window."""
        return int(self._happens(self.served.finished).sum())

    @cached_property
    def _generated(self) -> Times:
        """Tokens of each request in the window, those after the first one at equal distances."""
        served = self.served
        lasting = served.finished - served.first
        share = self._inside(served.first, served.finished) / np.where(lasting > 0, lasting, 1.0)
        return np.asarray(self._happens(served.first) + (served.output - 1) * share)

    @property
    def tokens(self) -> float:
        """Number of tokens that are generated in the window."""
        return float(self._generated.sum())

    @cached_property
    def _latencies(self) -> dict[str, dict[str, float]]:
        each = {name: self._of(getattr(self._requests, f"{name}_s")) for name in ("ttft", "tpot", "e2el")}
        each["tpot"] = each["tpot"][~np.isnan(each["tpot"])]
        parts = [part for part in _PARTS.values() if part == part]
        found = {}
        for name, values in each.items():
            some = len(values) > 0
            shares = np.quantile(values, parts).tolist() if some else [nan] * len(parts)
            found[name] = dict(zip(_PARTS, [float(values.mean()) if some else nan, *shares], strict=True))
        gaps, weights = self._gaps
        total = weights.sum()
        mean = float(gaps @ weights / total) if total else nan
        found["itl"] = dict(zip(_PARTS, [mean, *quantiles(gaps, weights, parts)], strict=True))
        return found

    @cached_property
    def _gaps(self) -> tuple[Times, npt.NDArray[np.int32]]:
        """Times between tokens, and how many requests had each."""
        log = self.served.log
        inside = (log.begin >= self._begin) & (log.sequences > 0)
        steps = log.steps[inside]
        place = np.arange(steps.sum(), dtype=np.int32)
        place -= np.repeat((steps.cumsum() - steps).astype(np.int32), steps)
        times, growth = np.repeat(log.time[inside], steps), np.repeat(log.growth[inside], steps)
        growth *= place
        times += growth
        return times, np.repeat(log.sequences[inside].astype(np.int32), steps)

    def latency(self, kind: str, part: str) -> float:
        """Return the mean or a percentile of a latency [s]: ``latency("ttft", "p99")``."""
        return self._latencies[kind][part]

    def _rate(self, amount: float) -> float:
        return amount / self.duration if self.duration else nan

    @metric(text=_per_second)
    def requests_per_s(self) -> float:
        """Requests [1/s]: requests that finish in the window over its length."""
        return self._rate(self.completed)

    @metric()
    def output_tokens_per_s(self) -> float:
        """Output tokens [1/s]: tokens that are generated in the window over its length."""
        return self._rate(self.tokens)

    @metric()
    def total_tokens_per_s(self) -> float:
        """Tokens [1/s]: these and tokens of prompts with their first token in the window over its length."""
        prompts = self.served.prompt[self._happens(self.served.first)].sum()
        return self._rate(self.tokens + float(prompts))

    @property
    def _whole_s(self) -> float:
        """Time from the first arrival to the last token [s]."""
        served = self.served
        return float(served.finished.max() - served.queued.min()) if len(served.queued) else nan

    @metric(text=_per_second)
    def whole_requests_per_s(self) -> float:
        """Requests, whole run [1/s]: requests over the time from the first arrival to the last token."""
        return len(self.served.queued) / self._whole_s if self._whole_s else nan

    @metric()
    def whole_output_tokens_per_s(self) -> float:
        """Output tokens, whole run [1/s]: their tokens over the same time, as vllm bench serve prints it."""
        return float(self.served.output.sum()) / self._whole_s if self._whole_s else nan

    def share_within(self, limits: StreamLimits) -> float:
        """Return the share of counted requests that keep other limits."""
        good = RequestMetrics(self.served, limits=limits).attain[self._counted]
        return float(good.mean()) if self.number else nan

    @property
    def tokens_within(self) -> float:
        """Number of those that are of requests which keep all limits."""
        return float(self._generated[self._requests.attain].sum())

    @metric(text=_per_second)
    def goodput_per_s(self) -> float:
        """Goodput [1/s]: requests that keep all limits and finish in the window over its length."""
        good = self._requests.attain & self._happens(self.served.finished)
        return self._rate(float(good.sum()))

    @metric(better="higher")
    def attained(self) -> float:
        """Requests within limits []: requests that keep all limits over all requests."""
        return float(self._requests.attain[self._counted].mean()) if self.number else nan

    @metric(text=format_number)
    def running(self) -> float:
        """Running requests []: sum of the times in the window from admission to the end over its length."""
        return self._rate(float(self._inside(self.served.scheduled, self.served.finished).sum()))

    @metric(text=format_number)
    def waiting(self) -> float:
        """Waiting requests []: sum of the times in the window from arrival to admission over its length."""
        return self._rate(float(self._inside(self.served.queued, self.served.scheduled).sum()))

    @metric(text=format_number)
    def preemptions(self) -> float:
        """Preemptions []: requests whose blocks were taken from them, counted each time."""
        return float(self.served.preemptions[self._counted].sum())

    @metric(better="higher")
    def cached(self) -> float:
        """Prompt tokens from the cache []: tokens found in the prefix cache over tokens of prompts."""
        prompt = self.served.prompt[self._counted].sum()
        return float(self.served.cached[self._counted].sum() / prompt) if prompt else nan

    @property
    def backlog(self) -> tuple[float, float]:
        """Share of all requests that wait when the last one arrives, and by how many the queue grew each
        second in the second half of arrivals, when as many ran as can."""
        queued, scheduled = self.served.queued, self.served.scheduled
        if len(queued) < 2 or queued.max() == queued.min():
            return 0.0, 0.0
        half, last = float(np.median(queued)), float(queued.max())
        before, waiting = (float(((queued <= at) & (scheduled > at)).sum()) for at in (half, last))
        return waiting / len(queued), (waiting - before) / (last - half) if last > half else 0.0

    def timeline(self, points: int = _POINTS) -> RequestTimeline:
        """Return how many requests ran and waited, from the first arrival to the last token."""
        queued, scheduled, finished = map(
            np.sort, (self.served.queued, self.served.scheduled, self.served.finished)
        )
        if not len(queued):
            return RequestTimeline([], [], [])
        time = np.linspace(queued[0], finished[-1], points)
        came, began, ended = (one.searchsorted(time, side="right") for one in (queued, scheduled, finished))
        return RequestTimeline(time.tolist(), (began - ended).tolist(), (came - began).tolist())


# -- replications --------------------------------------------------------------------------------


class ReplicatedMean(NamedTuple):
    """An ReplicatedMean is the mean of a metric over replications, with its interval."""

    value: float
    low: float
    high: float
    """Ends of the interval; NaN with fewer than two replications."""


def replicated_mean(values: Sequence[float], *, confidence: float = CONFIDENCE) -> ReplicatedMean:
    """Return the mean of independent replications and its t-interval; values that are NaN do not count."""
    known = np.array([one for one in values if one == one])
    if not len(known):
        return ReplicatedMean(nan, nan, nan)
    mean = float(known.mean())
    if len(known) < 2:
        return ReplicatedMean(mean, nan, nan)
    half = (
        student_quantile((1 + confidence) / 2, len(known) - 1) * float(known.std(ddof=1)) / sqrt(len(known))
    )
    return ReplicatedMean(mean, mean - half, mean + half)


def student_quantile(part: float, freedom: int) -> float:
    """Return the quantile, from 0.5 to 1, of Student's t distribution of so many degrees of freedom.

    Abramowitz and Stegun 26.7.3 and 26.7.4, inverted by halving.
    """
    low, high = 0.0, pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        if (1 + _within(angle, freedom)) / 2 < part:
            low = angle
        else:
            high = angle
    return sqrt(freedom) * sin(low) / cos(low)


def _within(angle: float, freedom: int) -> float:
    """Return the probability that t lies between -x and x, where x = sqrt(freedom) tan(angle)."""
    square, total = cos(angle) ** 2, 0.0
    first = 1 if freedom % 2 else 0
    term = cos(angle) if first else 1.0
    for number in range(first, freedom - 1, 2):
        total += term
        term *= square * (number + 1) / (number + 2)
    if first:
        return 2 / pi * (angle + sin(angle) * total)
    return sin(angle) * total
