"""The answer to a stream of requests: replications with the scenario's plan, and the rate within limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any, Literal, NamedTuple

import numpy as np

from simoffload.documents import Edit, read_option, suggest
from simoffload.errors import InputError, WorkLimitError, shortened
from simoffload.limits import keep, limited, now_doing
from simoffload.progress import stage, steps
from simoffload.scenario import LoadedScenario, ScenarioSource, loaded
from simoffload.scenario.streams import Clients, Closed, Constant, Poisson, StreamLimits, StreamOptions
from simoffload.serving.answers import (
    CONFIDENCE,
    MEASURES,
    ReplicatedMean,
    RequestTimeline,
    StreamMeasures,
    mser,
    replicated_mean,
)
from simoffload.serving.prefixes import RadixCache
from simoffload.serving.replica import serve_alone
from simoffload.serving.requests import Requests, drawn
from simoffload.serving.scheduler import ReplicaState, Scheduler, StaticBatches, VllmScheduler
from simoffload.serving.steps import StepTable, simulated_steps
from simoffload.serving.traces import read_trace
from simoffload.strategies import ServingLimits
from simoffload.units import format_number, percent

__all__ = ["RateTrial", "StreamResult", "stream", "with_limits"]

_SCHEMA = "simoffload/stream/1"
_FEW = 1000
"""Number of requests below which the 99th percentile varies by more than about 15 %: it did by 14.5 % for
1,000 independent lognormal values."""
_BACKLOG = 0.05
"""Share of requests in the queue at the last arrival from which a warning says so (our choice)."""
_DOUBLINGS = 20
_EXACTLY = 1.02
"""Ratio of the ends at which the search for a rate stops (our choice)."""


class RateTrial(NamedTuple):
    """A RateTrial is a rate of requests, or a number of users, that was tried."""

    load: float
    """Requests per second, users, or the factor of a trace's rate."""
    attained: ReplicatedMean
    """Share of requests that keep all limits."""
    goodput: ReplicatedMean
    """Requests per second that keep all limits."""
    binds: str
    """Limit that most requests miss: "ttft", "tpot" or "e2el"; "" if all keep all."""

    def holds(self, limits: StreamLimits) -> bool:
        """Return whether enough requests keep the limits."""
        return self.attained.value >= limits.attain


@dataclass(frozen=True)
class StreamResult:
    """A StreamResult has the measures of every replication of a stream."""

    scenario: LoadedScenario
    options: StreamOptions
    limits: ServingLimits
    gpus: int
    """Number of GPUs of a replica."""
    measures: tuple[StreamMeasures, ...]
    evaluations: int
    """Number of steps that were simulated; the others are interpolated."""
    worst: float
    """Largest relative difference of an interpolated step from a simulated one that was met."""
    notes: tuple[str, ...] = ()
    trials: tuple[RateTrial, ...] = ()
    """Loads that were tried, in ascending order."""
    stopped: str = field(default="")
    """Why not all was simulated."""

    @cached_property
    def estimates(self) -> dict[str, ReplicatedMean]:
        """Mean and interval of each metric over the replications."""
        values = [one.values for one in self.measures]
        return {name: replicated_mean([one[name] for one in values]) for name in MEASURES}

    @property
    def unit(self) -> Literal["users", "requests/s", "times the trace's rate"]:
        """What the load of a trial counts."""
        if isinstance(self.options.arrivals, Closed):
            return "users"
        return "requests/s" if _rate(self.options) else "times the trace's rate"

    @property
    def best(self) -> RateTrial | None:
        """Largest load at which the limits are kept; None if it was not asked for, or there is none."""
        held = [one for one in self.trials if one.holds(self.options.slo)]
        return held[-1] if held else None

    @property
    def timeline(self) -> RequestTimeline:
        """Running and waiting requests of the first replication."""
        return self.measures[0].timeline()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; None stands for what is not known."""
        best = self.best
        return {
            "schema": _SCHEMA,
            "name": self.scenario.name,
            "requests": [one.number for one in self.measures],
            "warm_up_requests": [one.skip for one in self.measures],
            "replications": len(self.measures),
            "confidence": CONFIDENCE,
            "metrics": {name: _plain(one) for name, one in self.estimates.items()},
            "kv_blocks": self.limits.blocks,
            "kv_cache_tokens": self.limits.blocks * self.limits.block_size,
            "max_num_batched_tokens": self.limits.tokens,
            "max_num_seqs": self.limits.sequences,
            "gpus": self.gpus,
            "simulated_steps": self.evaluations,
            "worst_interpolation": self.worst,
            "timeline": self.timeline._asdict(),
            "load_unit": self.unit,
            "best_load": None if best is None else best.load,
            "best_load_per_gpu": None if best is None else best.load / self.gpus,
            "trials": [
                {
                    "load": one.load,
                    "kept": one.holds(self.options.slo),
                    "attained": _plain(one.attained),
                    "goodput_per_s": _plain(one.goodput),
                    "binds": one.binds,
                }
                for one in self.trials
            ],
            "notes": list(self.notes),
            "stopped": self.stopped,
        }


def _plain(one: ReplicatedMean) -> dict[str, float | None]:
    return {name: value if isfinite(value) else None for name, value in one._asdict().items()}


def stream(
    scenario: ScenarioSource, *, slo: str | Sequence[str] = (), exact_steps: bool = False
) -> StreamResult:
    """Simulate the requests of a scenario's section ``stream``, and with ``slo`` (``ttft=2s``) also find the
    largest rate, or number of users, at which enough of them keep the limits.

    ``exact_steps`` simulates every step instead of interpolating between some. Raises InputError for a
    scenario without the section, and for requests that can never be served.
    """
    replicas = _Replicas(loaded(scenario), slo=(slo,) if isinstance(slo, str) else slo, exact=exact_steps)
    measures, stopped = list[StreamMeasures](), ""
    trials = list[RateTrial]()
    try:
        for number in steps(range(replicas.replications), lambda one: f"replication {one + 1}"):
            measures.append(replicas.run(replicas.options, number))
        if slo:
            for trial in _search(replicas):
                trials.append(trial)
    except WorkLimitError as error:
        if not measures:
            raise
        stopped = str(error)
    trials.sort(key=lambda one: one.load)
    return StreamResult(
        replicas.scenario,
        replicas.options,
        replicas.limits,
        replicas.gpus,
        tuple(measures),
        replicas.table.evaluations,
        replicas.table.worst,
        tuple(replicas.notes(measures)),
        tuple(trials),
        stopped,
    )


def with_limits(scenario: LoadedScenario, texts: Sequence[str]) -> LoadedScenario:
    """Return the scenario with the limits ``ttft=2s``, ``tpot=50ms``, ``e2el=20s`` or ``attain=0.99``.

    Raises InputError.
    """
    names, edits = tuple(StreamLimits.model_fields), list[Edit]()
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if name not in names:
            message = f"no limit of a stream{suggest(name, names)}; it has {', '.join(names)}"
            raise InputError.at(shortened(name), message, path="--slo")
        if not equals:
            raise InputError.at(name, "has no limit; write e.g. ttft=2s", path="--slo")
        edits.append(Edit(("stream", "slo", name), read_option(value, option="--slo", key=name).data))
    return scenario.edited(*edits) if edits else scenario


class _Replicas:
    """Replicas of a scenario, one for each replication, with a common table of steps."""

    @limited
    def __init__(self, scenario: LoadedScenario, *, slo: Sequence[str], exact: bool) -> None:
        keep(scenario.scenario.engine.limits)
        now_doing("planning the stream")
        options = scenario.scenario.stream
        if options is None:
            text = "the scenario has no section stream, which says what requests arrive (docs/streams.md)"
            raise InputError([scenario.document.problem((), text)])
        scenario = with_limits(scenario, slo)
        self.scenario, self.options = scenario, scenario.scenario.stream or options
        self.failed = 0
        strategy = scenario.scenario.strategy
        self.gpus = max(1, strategy.gpus // max(1, strategy.replicas))
        self.limits, planned = self._limits(scenario)
        self.table = StepTable(simulated_steps(planned), sizes=self.limits.graphs, exact=exact)

    def _limits(self, scenario: LoadedScenario) -> tuple[ServingLimits, LoadedScenario]:
        """Return the limits of the engine, and the scenario with a batch that fills a step."""
        options, found = self.options, getattr(scenario.plan(), "serving_limits", None)
        if found is not None:
            sequences = options.max_num_seqs or found.sequences
            tokens = max(options.max_num_batched_tokens or found.tokens, sequences)
            work = {
                "kind": "inference",
                "batch_size": sequences,
                "prompt_length": -(-tokens // sequences),
                "output_length": 1,
            }
            scenario = scenario.edited(Edit(("workload",), work))
            found = getattr(scenario.plan(), "serving_limits", None)
        stated = (options.max_num_batched_tokens, options.max_num_seqs, options.kv_blocks)
        if found is None and None in stated:
            text = (
                f"{scenario.scenario.strategy.kind} is no engine with limits of its own: state "
                "max_num_batched_tokens, max_num_seqs and kv_blocks"
            )
            raise self._refusal(text)
        usual = found or ServingLimits(0, 0, 0, 16, ())
        size = options.block_size or usual.block_size
        limits = ServingLimits(
            stated[0] or usual.tokens,
            stated[1] or usual.sequences,
            stated[2] or usual.blocks * usual.block_size // size,
            size,
            usual.graphs,
        )
        if limits.sequences > limits.tokens and options.scheduler == "vllm":
            text = (
                f"max_num_seqs {limits.sequences} is above max_num_batched_tokens {limits.tokens}; lower it"
            )
            raise self._refusal(text)
        if not limits.blocks:
            text = "no block of the key-value cache fits beside the weights; see simoffload fit"
            raise self._refusal(text)
        return limits, scenario

    def _refusal(self, text: str) -> InputError:
        return InputError([self.scenario.document.problem(("stream",), text, at_key=True)])

    @property
    def replications(self) -> int:
        """Number of replications: one of a trace with its own stamps, in which nothing is random."""
        recorded = self.options.trace is not None and self.options.arrivals is None
        return 1 if recorded else self.options.replications

    @limited
    def run(self, options: StreamOptions, number: int) -> StreamMeasures:
        """Simulate a replication of the stream."""
        keep(self.scenario.scenario.engine.limits)
        now_doing("simulating requests")
        requests = self._requests(options, number)
        limits = self.limits
        scheduler: Scheduler = StaticBatches(batch_size=limits.sequences)
        if options.scheduler == "vllm":
            scheduler = VllmScheduler(max_num_batched_tokens=limits.tokens, max_num_seqs=limits.sequences)
        caching = options.enable_prefix_caching and options.scheduler == "vllm"
        cache = RadixCache(limits.block_size) if caching else None
        state = ReplicaState(blocks=limits.blocks, block_size=limits.block_size, cache=cache)
        try:
            served = serve_alone(
                requests,
                scheduler=scheduler,
                state=state,
                times=self.table,
                async_scheduling=options.async_scheduling and options.scheduler == "vllm",
                after=None if requests.is_open else requests.after,
            )
        except InputError as error:
            raise self._placed(error) from None
        skip = options.warm_up
        if skip is None and options.trace is not None and options.arrivals is None:
            skip = 0
        order = np.argsort(served.queued, kind="stable")
        first = mser(served.ttft[order]) if skip is None else int(skip * len(order))
        return StreamMeasures(served, limits=options.slo, skip=first)

    def _requests(self, options: StreamOptions, number: int) -> Requests:
        if options.trace is None:
            return drawn(options, replication=number)
        draw = np.random.default_rng(np.random.SeedSequence(options.seed, spawn_key=(number,)))
        try:
            trace = read_trace(options, root=self.scenario.document.root, draw=draw)
        except InputError as error:
            raise self._placed(error) from None
        self.failed = trace.failed
        return trace.requests

    def _placed(self, error: InputError) -> InputError:
        document = self.scenario.document
        return InputError(
            one if one.path else document.problem(tuple(one.key.split(".")), one.message, at_key=True)
            for one in error.problems
        )

    def notes(self, measures: Sequence[StreamMeasures]) -> Iterator[str]:
        """Yield what a reader must know to judge the numbers."""
        least = min(one.number for one in measures)
        if least < _FEW:
            yield (
                f"{least} requests are too few for p99: of {_FEW} independent ones it varies by 15 %; raise "
                "num_prompts"
            )
        if self.failed:
            yield f"{self.failed} recorded requests failed or were of a warm-up, and are left out"
        share = max(float(one.served.preemptions.sum()) / max(1, len(one.served.first)) for one in measures)
        if share > 0.05:
            yield (
                f"{share:.0%} of the requests are preempted: repeated real runs then differ by 14 to 22 %, "
                "and more KV blocks help"
            )
        left, growth = max(one.backlog for one in measures)
        if left > _BACKLOG and not isinstance(self.options.arrivals, Closed):
            yield (
                f"{percent(left)} of the requests wait when the last one arrives: the load is more than the "
                f"replica serves, the queue grows by {format_number(growth)} requests/s, and a longer stream "
                "has longer times"
            )


# -- the largest load ----------------------------------------------------------------------------


def _rate(options: StreamOptions) -> float:
    """Return the rate of open arrivals [1/s]; 0 of those that have none."""
    match options.arrivals:
        case Poisson(request_rate=rate) | Constant(request_rate=rate):
            return rate
        case Clients(clients=clients):
            return sum(one.request_rate for one in clients)
        case _:
            return 0.0


def _at(scenario: LoadedScenario, load: float) -> StreamOptions:
    """Return the stream of a scenario with another load, and the same random numbers."""
    options = scenario.scenario.stream
    assert options is not None
    arrivals = ("stream", "arrivals")
    match options.arrivals:
        case Poisson() | Constant():
            edits = [Edit((*arrivals, "request_rate"), load)]
        case Clients(clients=clients):
            factor = load / _rate(options)
            edits = [
                Edit((*arrivals, "clients", at, "request_rate"), one.request_rate * factor)
                for at, one in enumerate(clients)
            ]
        case Closed():
            edits = [Edit((*arrivals, "users"), round(load))]
        case None if options.trace is not None:
            edits = [Edit(("stream", "trace", "rate_factor"), options.trace.rate_factor * load)]
        case _:
            text = "a ramp has no rate to vary; write arrivals of kind poisson, constant, clients or closed"
            raise InputError.at("stream.arrivals", text, path="--slo")
    changed = scenario.edited(*edits).scenario.stream
    assert changed is not None
    return changed


def _search(replicas: _Replicas) -> Iterator[RateTrial]:
    """Yield loads that are tried: doubled or halved until some keep the limits and two others do not, then
    halves of the range between, as goodput need not fall evenly with the load."""
    options = replicas.options
    limits = options.slo
    counted = isinstance(options.arrivals, Closed)
    begin = float(options.arrivals.users) if isinstance(options.arrivals, Closed) else _rate(options) or 1.0
    _at(replicas.scenario, begin)  # refuses a ramp
    most = float(options.num_prompts or 1000) if counted else 1e6
    tried: dict[float, bool] = {}

    with stage() as searching:

        def attempt(load: float) -> RateTrial:
            searching.step(f"load {load:.4g}")
            found = _tried(replicas, load)
            tried[load] = found.holds(limits)
            return found

        yield attempt(begin)
        load, failed = begin, 0 if tried[begin] else 1
        while tried[begin] and failed < 2 and load < most and len(tried) <= _DOUBLINGS:
            load = min(2 * load, most)
            yield attempt(load)
            failed = 0 if tried[load] else failed + 1
        while not any(tried.values()) and len(tried) <= _DOUBLINGS and (load > 1 or not counted):
            load = max(1.0, load // 2) if counted else load / 2
            yield attempt(load)
        held = [one for one, good in tried.items() if good]
        above = [one for one, good in tried.items() if not good and held and one > max(held)]
        if not held or not above:
            return
        low, high = max(held), min(above)
        while (high - low > 1) if counted else (high / low > _EXACTLY):
            middle = float((low + high) // 2) if counted else (low * high) ** 0.5
            yield attempt(middle)
            low, high = (middle, high) if tried[middle] else (low, middle)


def _tried(replicas: _Replicas, load: float) -> RateTrial:
    options = _at(replicas.scenario, load)
    found = [replicas.run(options, number) for number in range(replicas.replications)]
    limits = options.slo
    single = {
        name: sum(one.share_within(StreamLimits.model_construct(**{name: limit})) for one in found)
        for name in ("ttft", "tpot", "e2el")
        if (limit := getattr(limits, name)) is not None
    }
    attained = replicated_mean([one.values["attained"] for one in found])
    missed = attained.value < 1 and bool(single)
    return RateTrial(
        load,
        attained,
        replicated_mean([one.values["goodput_per_s"] for one in found]),
        min(single, key=lambda name: single[name]) if missed else "",
    )
