"""Expected error of a prediction: an 80 % interval for every time, and when two results are a tie.

A time has, to first order, the relative standard deviation sigma, with sigma² = Σ (share × spread)² + model².
The share of an input (the host thread, copies, storage and so on) is its exposed time over the time; its
spread is that of the machine's numbers (``hardware.spreads``). The part of the model is its error on real
runs. Times are lognormal: P10 and P90 are time × exp(∓1.2816 × sigma). So are rates, their reciprocals.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import exp, hypot, inf, log, sqrt
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter

from simoffload.hardware import P90, Spread, TierKind, TimeInput, repeated_reads
from simoffload.results import InferenceResult, PassResult, Share, SimulationResult, by_name
from simoffload.schedule import Cause, CauseKind
from simoffload.strategies import SERVED, SERVED_OTHERS, Strategy, in_new_form, strategy_in

# -- errors of real runs ---------------------------------------------------------------------------

_ERRORS_FILE = "calibration_errors.csv"
"""File of errors on real runs. ``python -m validation`` writes it."""
ErrorProfile = Literal["own", "shipped"]
"""Profile that predicted a run: that of its own machine, so that errors are those of the model, or a shipped
one."""
Work = Literal["decode", "prefill", "step"]
Place = Literal["memory", "nvme"]
"""Place of the weights, and in training of the optimizer: only memory of GPUs and hosts, or also drives."""
UNSEEN_TIERS: Mapping[TierKind, str] = {
    "hbm": "",
    "dram": "",
    "nvme": "",
    "nfs": "an NFS server",
    "pfs": "a parallel filesystem",
    "nvmeof": "drives over NVMe-oF",
    "remote": "the memory of another host",
}
"""Tiers that no recorded real run used, by their kind; "" for kinds that some used."""


class CalibrationError(NamedTuple):
    """A CalibrationError holds the prediction errors of one kind of pass in one group of real runs."""

    profile: ErrorProfile
    group: str
    """Group of real runs, as a strategy names it under ``evidence``: zero."""
    part: str
    """holdout, or fit for runs that were in view while the mechanisms were worked out."""
    work: Work
    place: Place
    runs: int
    mean: float
    """Mean of the absolute relative errors."""
    worst: float
    """Relative error of the largest magnitude, with its sign: positive means predicted too slow."""
    fewest_gpus: int
    most_gpus: int


def place_of(devices: Iterable[str]) -> Place:
    """Return whether drives hold something, given DeepSpeed's devices (none, cpu, nvme) or kinds of tiers."""
    return "nvme" if "nvme" in devices else "memory"


@cache
def calibration_errors() -> tuple[CalibrationError, ...]:
    """Return the shipped table of errors."""
    text = (files("simoffload.planning") / _ERRORS_FILE).read_text("utf-8")
    rows = TypeAdapter(tuple[CalibrationError, ...])
    return rows.validate_python(tuple(csv.DictReader(io.StringIO(text))))


# -- confidence ------------------------------------------------------------------------------------

_MOST_RUNS = "zero"
"""Group of runs whose errors are used for strategies without recorded runs."""
_CALLED: Mapping[Work, str] = {"decode": "decode steps", "prefill": "prefills", "step": "training steps"}
_WITH: Mapping[ErrorProfile, str] = {"own": "the profiles of their machines", "shipped": "shipped profiles"}
_WHERE: Mapping[Place, str] = {"memory": "in memory", "nvme": "from drives in the host"}

_BEYOND = "; this prediction is beyond the calibrated range, where errors may be larger"
_UNKNOWN = 2.0
"""Factor of the error where no real run is comparable: training runs were 11.5 % wrong when training was
first predicted, and 6.0 % once such runs were known (docs/measurements/training.md)."""
_SERVED = log(2) / P90
"""Largest standard deviation of a time of compiled serving: from half to twice the prediction 80 % of times
are expected, however little is known (our choice)."""
_OUTSIDE = 1.4
"""Factor of the error outside the range in which the machine was measured: geometric mean of 0.9, 1.4, 1.6,
1.6 and 1.6 for recorded runs of decode steps, prefills (in memory and from drives) and FSDP."""
_PHASE = 1.2
"""Error of a single phase of a step over that of the step. It was chosen from 18 earlier held-out runs: 14.5,
14.1 and 9.1 % of forward, backward and optimizer, 10.2 % of steps. For the present ones (docs/VALIDATION.md)
it is conservative: 11.4, 7.5 and 10.1 %, and 9.3 % of steps, which is a factor of 1.04."""
_CORRELATION = 0.8
"""Correlation of the errors of one model on one machine with the weights in the same place: in nine pairs of
runs that differ in one setting, ratios were 2.2 % (decode) and 2.9 % (prefill) wrong, single times 3.6 and
4.4 %: 1 - 0.022² / (2 x 0.036²). The present table (docs/VALIDATION.md, Settings) would give about 0.6."""
_BETWEEN_GPUS: frozenset[CauseKind] = frozenset(
    ("all-gather", "all-reduce", "gradient-reduction", "stage-to-stage", "gpu-to-gpu")
)
"""Transfers whose time the links between GPUs decide; of all others it is that of copies."""
_LEAST = 0.005
"""Smallest part of the error that a sentence names; our choice."""
_DECIDES = 0.5
"""Share of a time from which the host thread is said to decide it."""


class IntervalTerm(NamedTuple):
    """An IntervalTerm is one input's part of the relative standard deviation of a time."""

    part: str
    """What the input decides: the host thread, copies, a storage tier and so on."""
    share: float
    """Exposed share of the time."""
    spread: Spread

    @property
    def contribution(self) -> float:
        """Relative standard deviation of the time from this input alone."""
        return self.share * self.spread.value

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **by_name(self, "part share"),
            "spread": self.spread.value,
            "measured": self.spread.measured,
            "profile": self.spread.source,
            **by_name(self, "contribution"),
        }


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """The error to expect of a prediction."""

    row: CalibrationError
    """Errors of the most similar real runs, predicted with the profiles of their own machines."""
    unlike: str
    """What no real run did, as the end of a sentence, "used a parallel filesystem; none saved a checkpoint";
    empty where some did. The error is then expected to be larger than that of ``row``."""
    extrapolates: bool
    """Whether the work is outside the range in which the machine was measured."""
    unknowns: int = 0
    """Number of things in ``unlike``, each of which doubles the error."""
    largest: float = inf
    """Largest relative standard deviation of a time."""
    result: SimulationResult = field(repr=False, compare=False)
    """Result whose error this is."""

    def terms(self, metric: str | None = None) -> tuple[IntervalTerm, ...]:
        """Return the inputs' parts of the error of a metric, the largest first; empty without times.

        By default the metric is the compared time.
        """
        known = self.result.provenance.spreads
        shares = _shares(self.result.composed.get(metric or self.result.compared_by, ()), known)
        found = [IntervalTerm(part, share, known[part]) for part, share in shares.items() if part in known]
        return tuple(sorted(found, key=lambda term: -term.contribution))

    def of_model(self, metric: str | None = None) -> float:
        """Return the relative standard deviation that is due to the model, by default of the compared time.

        It is the mean error of real runs. Their standard deviation is 1.25 times that, but spreads of inputs
        explain 38 % of its square (docs/explanations.md), and must not count twice. Errors of passes on one
        machine are correlated, so that those of a sum are weighted by time. With the inputs it is at most
        ``largest``.
        """
        passes = self._passes(metric)
        mean = sum(time * self._row(one).mean for one, time in passes) / sum(time for _, time in passes)
        phase = _PHASE if metric and self.result.declared[metric].is_part else 1.0
        unknown = _UNKNOWN**self.unknowns if self.unlike else _OUTSIDE if self.extrapolates else 1.0
        room = self.largest**2 - sum(term.contribution**2 for term in self.terms(metric))
        return min(mean * phase * unknown, sqrt(max(0.0, room)))

    def sigma_of(self, metric: str) -> float:
        """Return the relative standard deviation of a predicted time or rate.

        Raises KeyError for metrics that are neither.
        """
        sigma = hypot(self.of_model(metric), *(term.contribution for term in self.terms(metric)))
        return min(sigma, self.largest)

    @property
    def sigma(self) -> float:
        """Relative standard deviation of the compared time."""
        return self.sigma_of(self.result.compared_by)

    def interval(self, metric: str) -> tuple[float, float]:
        """Return P10 and P90 of a predicted time or rate: 80 % of real runs are expected between them.

        Raises KeyError for metrics that are neither.
        """
        value, factor = self.result.metrics()[metric], exp(P90 * self.sigma_of(metric))
        assert value is not None
        return value / factor, value * factor

    @property
    def measured(self) -> str:
        """Name of the predicted time or rate whose error is that of the compared metric."""
        name = self.result.compared_metric.name
        return name if name in self.result.composed else self.result.compared_by

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Return P10 and P90 of every predicted time and rate that has a value, by metric."""
        values, known = self.result.metrics(), self.result.composed
        return {name: self.interval(name) for name, value in values.items() if value and name in known}

    def _passes(self, metric: str | None) -> tuple[tuple[PassResult, float], ...]:
        return self.result.composed[metric or self.result.compared_by]

    def _row(self, one: PassResult) -> CalibrationError:
        """Return the errors of real runs of the kind of a pass."""
        result = self.result
        of_token = isinstance(result, InferenceResult) and one is result.token_pass
        decodes = of_token and self.row.work == "decode"
        work = self.row.work if decodes or result.kind != "inference" else "prefill"
        return self.row if work == self.row.work else _row(self.row.group, work, self.row.place)

    @property
    def caution(self) -> str:
        """Sentence about a time that an unmeasured host thread decides; "" for any other."""
        host = next((term for term in self.terms() if term.part == TimeInput.HOST), None)
        if host is None or host.spread.measured or host.share <= _DECIDES:
            return ""
        return (
            f"{host.share * 100:.0f} % of this time is the host thread's, whose speed was not measured on "
            f"this machine (±{host.spread.value * 100:.0f} %); simoffload calibrate micro measures it"
        )

    @property
    def _profile(self) -> ErrorProfile:
        host = self.result.provenance.spreads.get(TimeInput.HOST)
        return "own" if host is not None and host.measured else "shipped"

    @property
    def quoted(self) -> CalibrationError:
        """Errors of the same runs as those of ``row``, with a shipped profile unless the host of this machine
        was measured; ``row`` itself where no run was predicted so."""
        kind = self._profile, *self.row[1:5]
        return next((row for row in calibration_errors() if row[:5] == kind), self.row)

    @property
    def relative_error(self) -> float:
        """Mean of the absolute relative errors of the compared runs."""
        return self.quoted.mean

    @property
    def runs(self) -> int:
        """Number of real runs behind the expected error."""
        return self.quoted.runs

    @property
    def source(self) -> str:
        """Description of the compared runs: "23 held-out runs of decode steps in memory on 1 to 4 GPUs"."""
        row = self.quoted
        held = "held-out " if row.part == "holdout" else ""
        gpus = "1 GPU" if row.most_gpus == 1 else f"{row.fewest_gpus} to {row.most_gpus} GPUs"
        seen = "" if held else ", all known when the model was developed"
        what = f"{_CALLED[row.work]} {_WHERE[row.place]} on {gpus}"
        runs = "run" if row.runs == 1 else "runs"
        return f"{row.runs} {held}{runs} of {what}{seen}, predicted with {_WITH[row.profile]}"

    @property
    def origin(self) -> str:
        """Parts of the error, the largest first: "model ±17 %, host thread ±12 %, copies ±3.0 %"."""
        parts = [(term.part, term.contribution) for term in self.terms() if term.contribution >= _LEAST]
        parts.append(("model", self.of_model()))
        parts.sort(key=lambda part: -part[1])
        return ", ".join(f"{name} ±{size * 100:.1f} %" for name, size in parts)

    @property
    def sentence(self) -> str:
        """Sentence that states the expected error and its source."""
        row = self.quoted
        worst = f"{row.worst * 100:+.0f} %".replace("-", "−")
        text = f"±{row.mean * 100:.1f} %, the mean error of {self.source} (the worst {worst})"
        if self.unlike:
            text = f"unknown: no real run {self.unlike}; expect more than {text}"
        elif row.profile != self._profile:
            text = f"{text}; expect more with a shipped profile"
        return text + _BEYOND * self.extrapolates

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **by_name(self, "relative_error"),
            "known": not self.unlike,
            **by_name(self, "runs"),
            **by_name(self.quoted, "profile worst"),
            **by_name(self, "source extrapolates sentence caution"),
            **self._interval(),
        }

    def _interval(self) -> dict[str, Any]:
        """Return the interval of the compared metric and what it consists of; nothing without times."""
        metric = self.measured
        if metric not in self.result.composed:
            return {}
        low, high = self.interval(metric)
        return {
            "metric": metric,
            "p10": low,
            "p90": high,
            **by_name(self, "sigma"),
            "of_model": self.of_model(),
            "terms": [term.to_dict() for term in self.terms()],
        }


def confidence(result: SimulationResult) -> Confidence:
    """Return the error to expect of a result, from its kind of work and from where weights and optimizer are
    stored.

    Held-out runs count; where there are none of a kind, those that were in view. None is of checkpoints or
    of storage over a network, and most are of ZeRO: the errors of what is most like it (of the first two:
    from drives in the host) then stand for the least that is to be expected.
    """
    kinds = {use.tier: use.kind for use in result.capacity}
    default: TierKind = "hbm"
    held = [kinds.get(tier, default) for tier in result.targets]
    unseen = _unseen(result)
    far = result.kind == "checkpoint" or any(UNSEEN_TIERS[kind] for kind in held)
    group = _MOST_RUNS if unseen else evidence_of(result)
    unlike = [one for one in (_unlike(result, held) or unseen, *result.uncompared) if one]
    return Confidence(
        row=_row(group, _work(result), "nvme" if far else place_of(held)),
        unlike="; none ".join(unlike),
        unknowns=len(unlike),
        largest=_SERVED if evidence_of(result) in (SERVED, SERVED_OTHERS) else inf,
        extrapolates=bool(result.extrapolations),
        result=result,
    )


def evidence_of(result: SimulationResult) -> str:
    """Return the group of real runs that were like a result."""
    if result.evidence:
        return result.evidence
    settings, _ = in_new_form(result.provenance.scenario.get("strategy") or {})
    group = _strategy(result)[1].traits.evidence
    return group if isinstance(group, str) else group(settings)


def _strategy(result: SimulationResult) -> tuple[str, type[Strategy]]:
    """Return the kind of a result's strategy, and its class."""
    section, _ = in_new_form(result.provenance.scenario.get("strategy") or {})
    return str(section.get("kind")), strategy_in(result.provenance.scenario) or Strategy


def _unlike(result: SimulationResult, held: Sequence[TierKind]) -> str:
    """Return why no real runs stand for a result, to follow the words "no real run"; empty if some do."""
    if result.kind == "checkpoint":
        return "saved a checkpoint"
    return next((f"used {UNSEEN_TIERS[kind]}" for kind in held if UNSEEN_TIERS[kind]), "")


def _unseen(result: SimulationResult) -> str:
    """Return what of the strategy no real run used, to follow these words; empty if some were like it."""
    kind, strategy = _strategy(result)
    settings = result.provenance.scenario.get("strategy") or {}
    values = {key: _setting(settings, key) for key in strategy.traits.unseen}
    found = {key: value for key, value in values.items() if value in strategy.traits.unseen[key]}
    named = [key if value is True else f"{key}: {value}" for key, value in found.items() if value is not None]
    with_settings = f" with {' and '.join(named)}" if named else ""
    program = strategy.traits.title or f"strategy.kind {kind}"
    return f"used {program}{with_settings}" if found or not evidence_of(result) else ""


def _setting(settings: Any, key: str) -> Any:
    """Return the value of a key, which names a section if it has a dot; None if it is not there."""
    for name in key.split("."):
        settings = settings.get(name) if isinstance(settings, Mapping) else None
    return settings


def _work(result: SimulationResult) -> Work:
    """Return the kind of pass whose errors stand for a result: decode steps where more than one token is
    made."""
    if not isinstance(result, InferenceResult):
        return "step"
    return "decode" if result.output_length > 1 else "prefill"


def _row(group: str, work: Work, place: str) -> CalibrationError:
    """Return the errors of held-out runs, if there are any; else of another place, or of another group."""
    mine = [
        row
        for row in calibration_errors()
        if row.work == work and (row.profile == "own" or row.group == group)
    ]
    mine.sort(key=lambda row: (row.profile != "own", row.part != "holdout"))
    near = [row for row in mine if row.place == place]
    return next((row for rows in (near, mine) for row in rows if row.group == group), (near or mine)[0])


def _shares(passes: Sequence[tuple[PassResult, float]], known: Container[str]) -> dict[str, float]:
    """Return the exposed share of each input in passes that follow one another, by the input's name."""
    total = sum(time for _, time in passes)
    found: dict[str, float] = {}
    for one, time in passes:
        for share in one.shares:
            if share.exposed_ps:
                part = _part(share, known)
                found[part] = found.get(part, 0.0) + float(share.exposed_ps / one.time_ps) * time / total
    return found


def _part(share: Share, known: Container[str]) -> str:
    """Return which of the ``known`` inputs decides the time of a cause; the name of a tier for storage."""
    cause = share.cause
    if share.group == "GPU":
        return TimeInput.GPU
    if share.group == "storage":
        return cause.purpose if cause.purpose in known else cause.tier
    if share.group == "transfers":
        return _of_transfers(cause, known)
    inputs = {"host-thread": TimeInput.HOST, "cpu-overflow-check": TimeInput.OVERFLOW_CHECK}
    part = inputs.get(cause.kind, TimeInput.CPU)
    return part if part in known else TimeInput.CPU


def _of_transfers(cause: Cause, known: Container[str]) -> str:
    """Return which of the ``known`` inputs decides the time of transfers between memories and of
    collectives."""
    if cause.kind in _BETWEEN_GPUS:
        return TimeInput.LINKS
    if cause.memory != "pinned":
        return TimeInput.PAGEABLE
    part: str = TimeInput.COPIES
    if cause.kind == "in-place":
        part = repeated_reads(cause.readings) if cause.readings else TimeInput.IN_PLACE
    return part if part in known else TimeInput.COPIES


def ratio_sigma(first: SimulationResult, second: SimulationResult, *, by: str = "compared_by") -> float:
    """Return the relative standard deviation of the ratio of the compared times of two results.

    ``by`` names another metric of them, or the property that does. An input that both take from the same
    profile has one error: only the difference of its shares counts. Errors of the simulation cancel in part
    for one model on one machine with the weights in the same place.
    """
    pair = confidence(first), confidence(second)
    names: list[str] = [getattr(one, by) if by.endswith("_by") else by for one in (first, second)]
    ours, theirs = ({t.part: t for t in one.terms(name)} for one, name in zip(pair, names, strict=True))
    squares = 0.0
    for part in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(part), theirs.get(part)
        if mine and other and mine.spread == other.spread:
            squares += (mine.contribution - other.contribution) ** 2
        else:
            squares += sum(term.contribution**2 for term in (mine, other) if term)
    one, two = (each.of_model(name) for each, name in zip(pair, names, strict=True))
    same = (first.model, first.platform) == (second.model, second.platform)
    correlation = _CORRELATION if same and pair[0].row == pair[1].row else 0.0
    squares += one**2 + two**2 - 2 * correlation * one * two
    return sqrt(squares)


def margin(first: SimulationResult, second: SimulationResult, *, by: str = "compared_by") -> float:
    """Return by how much two results must differ, relative to the faster one, to tell which is faster.

    From there on the 80 % interval of their ratio does not contain 1.
    """
    return exp(P90 * ratio_sigma(first, second, by=by)) - 1


def tie(first: SimulationResult, second: SimulationResult) -> bool:
    """Return whether two results are too close to tell which is faster: see ``margin``.

    Raises ValueError unless both have times.
    """
    if first.compared_s is None or second.compared_s is None:
        raise ValueError("only a scenario that fits has a time to compare")
    fast, slow = sorted((first.compared_s, second.compared_s))
    return slow / fast - 1 <= margin(first, second)
