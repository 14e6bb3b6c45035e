"""The answer to a stream of requests: latencies, costs and intervals, and the load within limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import exp, hypot, inf, isfinite, log
from typing import Any, Literal, NamedTuple, Unpack

from simoffload.bisection import largest_that_fits, least_factor
from simoffload.brief import brief
from simoffload.documents import Edit, split_assignment
from simoffload.errors import InputError, WorkLimitError
from simoffload.extensions.serving.answers import (
    CONFIDENCE,
    ReplicatedMean,
    RequestMetrics,
    RequestTimeline,
    StreamMeasures,
    replicated_mean,
    student_quantile,
)
from simoffload.extensions.serving.replica import StepMix
from simoffload.extensions.serving.simulate import StreamSimulation, proposing
from simoffload.extensions.serving.steps import SimulatedSteps
from simoffload.planning.confidence import confidence
from simoffload.planning.costs import CostList
from simoffload.planning.economics import Economics, economics
from simoffload.planning.question import QuestionOptions, assignments, loaded
from simoffload.planning.reported import ReportedAnswer
from simoffload.planning.service_levels import parse_services
from simoffload.progress import Watcher, stage, step, steps, watched_by
from simoffload.results import InferenceResult, PassResult
from simoffload.scenario import LoadedScenario, ScenarioSource, names_model
from simoffload.scenario.streams import (
    Clients,
    Closed,
    Constant,
    Lognormal,
    Poisson,
    StreamLimits,
    StreamOptions,
)
from simoffload.simulation import fit, with_sources
from simoffload.strategies import ServingLimits

__all__ = [
    "COVERED",
    "RateTrial",
    "StreamPasses",
    "StreamResult",
    "capacity_by_chance",
    "chat_overrides",
    "counted",
    "error_interval",
    "simulated_stream",
    "stated_rate",
    "step_errors",
    "stream",
    "stream_passes",
    "with_requests_named",
]

_SCHEMA = "simoffload/stream/1"
COVERED = 0.8
"""Share of real streams that are expected within the interval of a metric, as of the times of ``run``."""
_MOST = 1e6
"""Largest rate that is tried [1/s], and factor of a trace's (our choice)."""
_DOUBLINGS = 20
_RESCALED = 2_000
"""Most requests of which the effect of longer steps is simulated (our choice)."""
_APART = 1.25
"""Factor between rates that are tried with longer steps (our choice)."""
StepFactors = tuple[float, float]
"""Factors of the times of steps with chunks of prompts, and of others."""


_ENERGY = ("rent_per_million_tokens", "kwh_per_million_tokens", "energy_per_token_j", "power_w")


class RateTrial(NamedTuple):
    """A RateTrial is a rate of requests, or a number of users, that was tried."""

    load: float
    """Requests per second, users, or the factor of a trace's rate."""
    metrics: dict[str, ReplicatedMean]
    """Mean and interval of each metric over the replications."""
    binds: str
    """Limit that most requests miss: "ttft", "tpot" or "e2el"; "" if all keep all."""

    def __repr__(self) -> str:
        return brief(self)

    @property
    def attained(self) -> ReplicatedMean:
        """Share of requests that keep all limits."""
        return self.metrics["attained"]

    @property
    def goodput(self) -> ReplicatedMean:
        """Requests per second that keep all limits."""
        return self.metrics["goodput_per_s"]

    def holds(self, limits: StreamLimits) -> bool:
        """Return whether enough requests keep the limits."""
        return self.attained.value >= limits.attain


@dataclass(frozen=True, kw_only=True, repr=False)
class StreamPasses(InferenceResult):
    """StreamPasses represent the steps of a stream: ``prefill`` those with chunks of prompts, ``decode`` the
    others, each by the step with their mean numbers."""

    made: int
    """Number of tokens that are generated in the window of a stream."""
    times: tuple[float, float, float]
    """Time in it of the steps with chunks, of the others, and between steps [s]."""

    @property
    def spent(self) -> tuple[tuple[PassResult, float], ...]:
        """Time of each kind of step [s], and that in which nothing is computed."""
        idle = PassResult("idle", 0, 0, round(self.times[2] * 1e12), (), (), {})
        passes = (self.prefill, self.decode[0] if self.decode else None, idle)
        return tuple((one, time) for one, time in zip(passes, self.times, strict=True) if one and time > 0)

    @property
    def tokens(self) -> int:
        """Number of tokens that are generated in the window of a stream."""
        return self.made

    @cached_property
    def composed(self) -> dict[str, tuple[tuple[PassResult, float], ...]]:
        """Kinds of steps, by the metric whose error is theirs."""
        decode = self.decode[0] if self.decode else None
        each = {"ttft_s": self.prefill or decode, "tpot_s": decode or self.prefill}
        return {name: ((one, 1.0),) for name, one in each.items() if one is not None}


def stream_passes(
    scenario: LoadedScenario, simulated: SimulatedSteps, measures: Sequence[StreamMeasures]
) -> StreamPasses | None:
    """Return what represents the steps in the windows of streams, on average; None of some without requests.

    ``simulated`` are the steps of the scenario's plan.
    """
    mixes = [
        StepMix(
            *map(sum, zip(*(one.served.log.mix(*one.window, chunks=chunks) for one in measures), strict=True))
        )
        for chunks in (True, False)
    ]
    mixed, decoding = (simulated.mean(one) if one.steps else None for one in mixes)
    if mixed is None and decoding is None:
        return None
    usual = mixes[1] if decoding else mixes[0]
    sequences = max(1, usual.sequences // usual.steps)
    work = {"batch_size": sequences, "prompt_length": max(1, usual.contexts // max(1, usual.sequences))}
    scenario = scenario.edited(
        Edit(("workload",), {"kind": "inference", "output_length": 2, **work, **proposing(scenario)})
    )
    capacity = with_sources(scenario, scenario.plan(), fit(scenario))
    number, busy = len(measures), (mixes[0].time, mixes[1].time)
    times = (*busy, max(0.0, sum(one.duration for one in measures) - sum(busy)))
    known = {one.name: getattr(capacity, one.name) for one in fields(capacity)}
    return StreamPasses(
        **known | {"prefill": mixed, "decode": (decoding,) if decoding else ()},
        made=max(1, round(sum(one.tokens for one in measures) / number)),
        times=(times[0] / number, times[1] / number, times[2] / number),
    )


def step_errors(passes: StreamPasses) -> tuple[StepFactors, StepFactors]:
    """Return the factors by which the steps with chunks of prompts, and others, are shorter in one of ten
    real runs, and longer in another one."""
    sure = confidence(passes)
    shorter, longer = zip(sure.factors("ttft_s"), sure.factors("tpot_s"), strict=True)
    return shorter, longer


class LoadCosts(NamedTuple):
    """What costs are of: the measures and the steps of all replications at a load."""

    load: float | None
    """Largest load within the limits, in the unit of trials; None: as the scenario states it."""
    measures: tuple[StreamMeasures, ...]
    passes: StreamPasses | None


@dataclass(frozen=True, repr=False)
class StreamResult(ReportedAnswer):
    """A StreamResult has the measures of every replication of a stream."""

    report = "simoffload.extensions.serving.report:stream_document"

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
    passes: StreamPasses | None = field(default=None, repr=False)
    """Steps of a replication on average; None without requests."""
    rescaled: tuple[StreamMeasures, ...] = field(default=(), repr=False)
    """First requests of the first replication, simulated as they are, with steps as short as they may be in
    reality, and with steps as long as they may be."""
    notes: tuple[str, ...] = ()
    trials: tuple[RateTrial, ...] = ()
    """Loads that were tried, in ascending order."""
    stopped: str = field(default="")
    """Why not all was simulated."""
    prices: CostList | None = field(default=None, repr=False)
    """Prices and powers; None: those of the shipped list."""
    at_best: LoadCosts | None = field(default=None, repr=False)
    """The largest load within the limits, of which costs are; None if none is known."""
    capacity: tuple[float, float] | None = None
    """Ends between which the largest load within the limits of 80 % of real replicas is expected."""

    @cached_property
    def estimates(self) -> dict[str, ReplicatedMean]:
        """Mean and interval of each metric over the replications."""
        return self._estimates(CONFIDENCE)

    def _estimates(self, confidence: float) -> dict[str, ReplicatedMean]:
        return _means(self.measures, confidence=confidence)

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Ends between which 80 % of real streams are expected in the long run, by metric: errors of steps,
        which all go in one direction, and the chance of arrivals and lengths."""
        if not self.rescaled:
            return {}
        as_is, *others = (one.metrics() for one in self.rescaled)
        found = {}
        for name, (value, low, high) in self._estimates(COVERED).items():
            chance = max(value - low, high - value) if isfinite(low) else 0.0
            ends = error_interval(value, as_is[name], [one[name] for one in others], chance)
            if all(map(isfinite, ends)):
                found[name] = ends[0], min(_largest(name), ends[1])
        return found

    @cached_property
    def costs(self) -> Economics | None:
        """Bill, power, energy and cost of a replica at the largest load within the limits, or else at the
        stated one; None without requests."""
        passes = self.priced_at.passes
        return None if passes is None else economics(self.scenario, passes, self.prices)

    @property
    def priced_at(self) -> LoadCosts:
        """The load of which costs are."""
        return self.at_best or LoadCosts(None, self.measures, self.passes)

    def priced(self) -> dict[str, float | None]:
        """Return what tokens and requests cost and take at least, with the prices and powers that are known;
        tokens within limits are those of requests that keep all."""
        if self.costs is None:
            return {}
        found, all_of_them = self.costs.at_least(), self.priced_at.measures
        good = sum(one.tokens_within for one in all_of_them) / sum(one.tokens for one in all_of_them)
        million, run = found["cost_per_million_tokens"], found["cost_per_run"]
        number = sum(one.completed for one in all_of_them) / len(all_of_them)
        return {
            "cost_per_million_tokens": million,
            "cost_per_million_tokens_within": million / good if million is not None and good else None,
            "cost_per_request": None if run is None else run / number,
            **{name: found[name] for name in _ENERGY},
        }

    @property
    def unit(self) -> Literal["users", "requests/s", "times the trace's rate"]:
        """What the load of a trial counts."""
        if isinstance(self.options.arrivals, Closed):
            return "users"
        return "requests/s" if stated_rate(self.options) else "times the trace's rate"

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
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "costs": self.priced(),
            "costs_load": self.priced_at.load,
            "economics": None if self.costs is None else self.costs.to_dict(),
            "kv_blocks": self.limits.blocks,
            "kv_cache_tokens": self.limits.cache_tokens,
            "max_num_batched_tokens": self.limits.tokens,
            "max_num_seqs": self.limits.sequences,
            "gpus": self.gpus,
            "simulated_steps": self.evaluations,
            "worst_interpolation": self.worst,
            "timeline": self.timeline._asdict(),
            "load_unit": self.unit,
            "best_load": None if best is None else best.load,
            "best_load_interval": None if self.capacity is None else list(self.capacity),
            "best_load_per_gpu": None if best is None else best.load / self.gpus,
            "trials": [
                {
                    "load": one.load,
                    "kept": one.holds(self.options.slo),
                    "attained": _plain(one.attained),
                    "goodput_per_s": _plain(one.goodput),
                    "binds": one.binds,
                    "metrics": {name: _plain(value) for name, value in one.metrics.items()},
                }
                for one in self.trials
            ],
            "notes": list(self.notes),
            "stopped": self.stopped,
        }


def error_interval(
    value: float, as_is: float, changed: Sequence[float], chance: float
) -> tuple[float, float]:
    """Return the ends of the interval of a metric that becomes ``changed`` instead of ``as_is`` with shorter
    and longer steps, and whose mean over replications is uncertain by ``chance``.

    Both add as independent errors do: of logarithms where all is above zero, so that times are, and else of
    the values.
    """
    if min(value - chance, as_is, *changed) > 0:
        changes = [log(one / as_is) for one in changed]
        random = log(value / (value - chance))
        least, most = (hypot(random, end) for end in (min(0.0, *changes), max(0.0, *changes)))
        return value * exp(-least), value * exp(most)
    changes = [one - as_is for one in changed]
    least, most = (hypot(chance, end) for end in (min(0.0, *changes), max(0.0, *changes)))
    return max(0.0, value - least), value + most


def _means(
    measures: Sequence[StreamMeasures], *, confidence: float = CONFIDENCE
) -> dict[str, ReplicatedMean]:
    """Return the mean and the interval of each metric over replications, within what it can be."""
    values = [one.metrics() for one in measures]
    found = {}
    for name in StreamMeasures.declared:
        mean, *ends = replicated_mean([one[name] for one in values], confidence=confidence)
        found[name] = ReplicatedMean(mean, *(min(max(end, 0.0), _largest(name)) for end in ends))
    return found


def _largest(name: str) -> float:
    """Return the largest value that a metric can have."""
    return 1.0 if name in ("attained", "cached") else inf


def _plain(one: ReplicatedMean) -> dict[str, float | None]:
    return {name: value if isfinite(value) else None for name, value in one._asdict().items()}


def counted(number: str, unit: str) -> str:
    """Return a load as text with its unit, which is singular after "1"."""
    singular = {"users": "user", "requests/s": "request/s"}
    return f"{number} {singular.get(unit, unit) if number == '1' else unit}"


# -- the stream of a model that is named alone ---------------------------------------------------


_CHAT: Mapping[str, Any] = {
    "arrivals": {"kind": "poisson", "request_rate": 1},
    "prompt": {"kind": "lognormal", "median": 1032, "sigma": 0.97, "max": 7930},
    "output": {"kind": "lognormal", "median": 238, "sigma": 0.91, "max": 1000},
}
"""Requests of a chat: a rate of our choice, and lengths as in Azure's conversations of 2023 (traces/)."""


_SLOTS = {"max_num_batched_tokens": 2048, "max_num_seqs": 4}
"""Limits of a program that has none of its own: those with which llama-server begins (``-b``, ``-np``)."""
_LONG = 131_072
"""Tokens for which there is room where neither requests nor the model have a limit (our choice)."""


def chat_overrides(stated: Sequence[str]) -> list[str]:
    """Return the overrides that make requests of a chat arrive at a model, unless other overrides state a
    stream or its trace."""
    keys = [split_assignment(one)[0] for one in stated]
    if any(key == "stream" or key.startswith("stream.trace") for key in keys):
        return []
    return [Edit(("stream",), dict(_CHAT)).assignment]


def with_requests_named(scenario: LoadedScenario) -> LoadedScenario:
    """Return a scenario whose answer says which requests arrive, as nobody stated all of them; a program that
    is no engine serves a few at a time."""
    served = _with_slots(scenario)
    before, options = scenario.scenario.stream, served.scenario.stream
    if before is None or options is None:
        return scenario
    named, strategy = list[str](), served.scenario.strategy
    if options.max_num_seqs != before.max_num_seqs:
        named.append(f"{options.max_num_seqs} at a time (max_num_seqs)")
    if isinstance(options.arrivals, Poisson):
        named.append(f"{counted(f'{options.arrivals.request_rate:g}', 'requests/s')} at random times")
    for name, length in (("prompts", options.prompt), ("outputs", options.output)):
        if isinstance(length, Lognormal):
            named.append(f"{name} of {length.median:,g} tokens in the median")
    if not named:
        return served
    text = (
        f"{served.model.name} is a model, to which requests of a chat arrive: {', '.join(named)}, under "
        f"{strategy.traits.title or strategy.kind}; --set stream.arrivals.request_rate=N, and keys of prompt "
        "and output, change them"
    )
    return replace(served, remarks=(*served.remarks, text))


def _with_slots(scenario: LoadedScenario) -> LoadedScenario:
    """Return a scenario of which a program that is no engine has the limits of a small one, as far as they
    are not stated: room for requests that are as long as they can be, or as the model was made for; itself
    under an engine."""
    options = scenario.scenario.stream
    if options is None or getattr(scenario.plan(), "serving_limits", None) is not None:
        return scenario
    longest = options.longest or scenario.model.max_position_embeddings or _LONG
    sequences = options.max_num_seqs or _SLOTS["max_num_seqs"]
    limits = {**_SLOTS, "kv_blocks": sequences * -(-longest // (options.block_size or 16))}
    edits = [Edit(("stream", key), value) for key, value in limits.items() if not getattr(options, key)]
    return scenario.edited(*edits) if edits else scenario


def stream(
    scenario: ScenarioSource,
    *,
    slo: str | Sequence[str] = (),
    costs: CostList | None = None,
    exact_steps: bool = False,
    progress: Watcher | None = None,
    **machine: Unpack[QuestionOptions],
) -> StreamResult:
    """Simulate the requests of a scenario's section ``stream``, and with ``slo`` (``ttft=2s``) also find the
    largest rate, or number of users, at which enough of them keep the limits.

    ``costs`` is a list of prices and powers, by default the shipped one. ``exact_steps`` simulates every step
    instead of interpolating between some. ``machine`` as in ``simulate``; a model that is named alone gets
    requests of a chat. Raises InputError for a scenario without the section, and for requests that can never
    be served.
    """
    of_model = not isinstance(scenario, LoadedScenario | Mapping) and names_model(str(scenario))
    if of_model:
        stated = assignments(machine.get("overrides") or ())
        machine["overrides"] = [*chat_overrides(stated), *stated]
    asked = loaded(scenario, **machine)
    asked = with_requests_named(asked) if of_model else asked
    if asked.scenario.stream is not None:
        asked = _with_limits(asked, slo)
    with watched_by(progress):
        return simulated_stream(StreamSimulation(asked, exact=exact_steps), search=bool(slo), costs=costs)


def simulated_stream(
    simulation: StreamSimulation,
    *,
    search: bool = False,
    intervals: bool = True,
    costs: CostList | None = None,
) -> StreamResult:
    """Simulate all replications, and with ``search`` also find the largest load within the limits; their
    ``intervals`` take simulations of their own."""
    measures, stopped = list[StreamMeasures](), ""
    trials, rescaled = dict[float, RateTrial](), tuple[StreamMeasures, ...]()
    passes = at_best = capacity = None
    try:
        for number in steps(range(simulation.replications), lambda one: f"replication {one + 1}"):
            measures.append(simulation.run(simulation.options, number))
        passes = stream_passes(simulation.planned, simulation.steps, measures)
        if passes is not None and intervals:
            rescaled = _rescaled(simulation, measures[0], passes)
        if search:
            at_best = _search(simulation, trials)
        if at_best is not None and passes is not None and intervals:
            capacity = _capacity(simulation, trials, at_best, step_errors(passes))
    except WorkLimitError as error:
        stopped = f"{error}{simulation.checkpoints.advice()}"
        if not measures:
            raise WorkLimitError(stopped) from error
    if not stopped:
        simulation.checkpoints.clear()
    return StreamResult(
        simulation.scenario,
        simulation.options,
        simulation.limits,
        simulation.gpus,
        tuple(measures),
        simulation.table.evaluations,
        simulation.table.worst,
        passes,
        rescaled,
        (*simulation.scenario.remarks, *simulation.notes(measures)),
        tuple(trials[load] for load in sorted(trials)),
        stopped,
        costs,
        at_best,
        capacity,
    )


def _with_limits(scenario: LoadedScenario, slo: str | Sequence[str]) -> LoadedScenario:
    """Return the scenario with limits ``ttft=2s``, ``tpot=50ms``, ``e2el=20s`` or ``attain=0.99``.

    Raises InputError.
    """
    levels = parse_services(slo, RequestMetrics)
    edits = [
        Edit(("stream", "slo", one.name), f"{one.limit} s" if one.metric.unit.name == "s" else one.limit)
        for one in levels
    ]
    try:
        found = scenario.edited(*edits) if edits else scenario
    except InputError as error:
        raise InputError(
            one._replace(path="--slo", line=None, column=None) for one in error.problems
        ) from None
    if edits and found.scenario.stream and not found.scenario.stream.slo.any:
        raise InputError.at("--slo", "attain needs a limit that so many requests keep, such as ttft=2s")
    return found


def _rescaled(
    simulation: StreamSimulation, measures: StreamMeasures, passes: StreamPasses
) -> tuple[StreamMeasures, ...]:
    """Return the first requests as they are, with steps as short as in one of ten real runs, and with steps
    that are as long."""
    options = simulation.options
    if len(measures.served.queued) > _RESCALED:
        fewer = simulation.scenario.edited(Edit(("stream", "num_prompts"), _RESCALED))
        options = fewer.scenario.stream or options
        measures = simulation.run(options, 0)
    found = [measures]
    for chunks, decoding in step_errors(passes):
        found.append(simulation.run(options, 0, chunks=chunks, decoding=decoding))
    return tuple(found)


# -- the largest load ----------------------------------------------------------------------------


def stated_rate(options: StreamOptions) -> float:
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
            factor = load / stated_rate(options)
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


def _search(simulation: StreamSimulation, tried: dict[float, RateTrial]) -> LoadCosts | None:
    """Try loads until the largest one that keeps the limits is known, and return it.

    Rates are doubled until two do not, or halved until one does, as goodput need not fall evenly with the
    load; then the range between is halved.
    """
    options = simulation.options
    begin = stated_rate(options) or 1.0
    _at(simulation.scenario, begin)  # refuses a ramp
    best: LoadCosts | None = None

    def margin(load: float) -> float:
        """Return by how much more requests keep the limits than must."""
        nonlocal best
        if load not in tried:
            step(f"at {load:.4g}")
            tried[load], measures = _tried(simulation, load)
            if tried[load].holds(options.slo) and (best is None or load > (best.load or 0)):
                best = LoadCosts(load, tuple(measures), None)
        return tried[load].attained.value - options.slo.attain

    with stage():
        if isinstance(options.arrivals, Closed):
            _most_users(simulation, options.arrivals.users, margin)
        else:
            load, missed = begin, 0
            if margin(begin) >= 0:
                while missed < 2 and (load := 2 * load) <= _MOST:
                    missed = 0 if margin(load) >= 0 else missed + 1
            while max(map(margin, list(tried))) < 0 and len(tried) <= _DOUBLINGS:
                load /= 2
                margin(load)
            _largest_rate({load: margin(load) for load in list(tried)}, margin)
    if best is None:
        return None
    return best._replace(passes=stream_passes(simulation.planned, simulation.steps, best.measures))


def _most_users(simulation: StreamSimulation, begin: int, margin: Callable[[float], float]) -> float:
    """Return the largest number of users at which a margin is not negative; 0 if there is none."""
    most = simulation.users(_at(simulation.scenario, _MOST))
    found = largest_that_fits(
        lambda users: {"attained": margin(users)}, start=begin, most=most, falls=lambda _: False
    )
    return found or 0.0


def _largest_rate(known: Mapping[float, float], margin: Callable[[float], float]) -> float:
    """Return the largest rate at which a margin is not negative, which lies above the largest known one; 0
    if there is none."""
    held = max((one for one in known if known[one] >= 0), default=0.0)
    above = min((one for one in known if one > held and known[one] < 0), default=0.0)
    if not (held and above):
        return held
    return 1 / least_factor(
        1 / above, 1 / held, lambda gap: margin(1 / gap), {1 / one: known[one] for one in (held, above)}
    )


def _capacity(
    simulation: StreamSimulation,
    trials: Mapping[float, RateTrial],
    best: LoadCosts,
    errors: tuple[StepFactors, StepFactors],
) -> tuple[float, float] | None:
    """Return the ends of the interval of the largest load within the limits.

    Its first requests are served as they are, and with all steps as short and as long as in one of ten real
    runs; both change the largest load by a factor. The chance of arrivals and lengths is that with which a
    load keeps the limits or not.
    """
    load, scenario = best.load or 0.0, simulation.scenario
    if max(trials) <= load:
        return None  # so few requests that no load is too large
    if len(best.measures[0].served.queued) > _RESCALED:
        scenario = scenario.edited(Edit(("stream", "num_prompts"), _RESCALED))
    shorter, longer = errors
    as_is, *changed = (
        _capacity_with(simulation, scenario, load, one) for one in ((1.0, 1.0), longer, shorter)
    )
    if not as_is:
        return None
    attain, number = simulation.options.slo.attain, simulation.replications
    low, high = capacity_by_chance(list(trials.values()), load, attain=attain, replications=number)
    factors = [min(1.0, changed[0] / as_is), max(1.0, changed[1] / as_is)]
    least = exp(-hypot(log(factors[0]), log(low / load))) if factors[0] and low else 0.0
    return load * least, load * exp(hypot(log(factors[1]), log(high / load)))


def _capacity_with(
    simulation: StreamSimulation, scenario: LoadedScenario, begin: float, longer: Sequence[float]
) -> float:
    """Return the largest load within limits with ``longer`` steps, those with chunks of prompts and others,
    in the first replication; 0 if none was found."""
    margins, (chunks, decoding) = dict[float, float](), longer

    def margin(load: float) -> float:
        if load not in margins:
            found = simulation.run(_at(scenario, load), 0, chunks=chunks, decoding=decoding)
            margins[load] = found.attained - simulation.options.slo.attain
        return margins[load]

    if isinstance(simulation.options.arrivals, Closed):
        return _most_users(simulation, round(begin), margin)
    factor = _APART if margin(begin) >= 0 else 1 / _APART
    held, load = margin(begin) >= 0, begin
    for _ in range(_DOUBLINGS):
        load = min(_MOST, load * factor)
        if (margin(load) >= 0) != held or load == _MOST:
            break
    return _largest_rate(margins, margin)


def capacity_by_chance(
    trials: Sequence[RateTrial], best: float, *, attain: float, replications: int
) -> tuple[float, float]:
    """Return between which loads the largest one lies by the chance of arrivals and lengths: where the ends
    of the interval of the share of requests within limits cross ``attain``."""
    if replications < 2:
        return best, best
    parts = [(1 + share) / 2 for share in (COVERED, CONFIDENCE)]
    narrower, wider = (student_quantile(part, replications - 1) for part in parts)

    def crossing(end: Literal["low", "high"], outward: Sequence[RateTrial], sign: int) -> float:
        """Return the load, from ``best`` on, at which an end of the interval crosses."""
        before = best, 0.0
        for one in outward:
            value = one.attained.value
            margin = sign * (value + narrower / wider * (getattr(one.attained, end) - value) - attain)
            if margin >= 0:
                share = before[1] / (before[1] - margin) if margin > before[1] else 0.0
                return float(before[0] * (one.load / before[0]) ** share)
            before = one.load, margin
        return before[0]

    ordered = sorted(trials, key=lambda one: one.load)
    below = [one for one in reversed(ordered) if one.load <= best]
    return crossing("low", below, 1), crossing("high", [one for one in ordered if one.load >= best], -1)


def _tried(simulation: StreamSimulation, load: float) -> tuple[RateTrial, list[StreamMeasures]]:
    options = _at(simulation.scenario, load)
    found = [simulation.run(options, number) for number in range(simulation.replications)]
    limits = options.slo
    single = {
        name: sum(one.share_within(StreamLimits.model_construct(**{name: limit})) for one in found)
        for name in ("ttft", "tpot", "e2el")
        if (limit := getattr(limits, name)) is not None
    }
    metrics = _means(found)
    missed = metrics["attained"].value < 1 and bool(single)
    binds = min(single, key=lambda name: single[name]) if missed else ""
    return RateTrial(load, metrics, binds), found
