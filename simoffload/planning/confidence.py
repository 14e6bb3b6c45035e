"""Expected error of a prediction: an 80 % interval for every time and rate, and when two results are a tie.

An interval is what comparable real runs took over what was predicted for them, from P10 to P90. Runs are
comparable that have the program and what limits it in common, and what the numbers of that rest on
(``hardware.evidence``): measurements of the machine itself, of others of its kind, or estimates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt
from typing import Any

from simoffload.brief import brief
from simoffload.hardware import P90, TIER_KINDS, Evidence, InputSource, TimeInput
from simoffload.planning.errors import CalibrationError, Comparable, LimitedBy, calibration_errors
from simoffload.results import Share, SimulationResult, by_name
from simoffload.schedule import Cause, CauseKind
from simoffload.strategies import Strategy, in_new_form, strategy_in

# -- confidence ------------------------------------------------------------------------------------

_CORRELATION = 0.8
"""Correlation of the errors of one model on one machine with one limit: in nine pairs of runs that differ in
one setting, ratios were 2.2 % (decode) and 2.9 % (prefill) wrong, single times 3.6 and 4.4 %:
1 - 0.022² / (2 x 0.036²). Held-out runs of one model and limit have 0.92 with shipped profiles."""
_ON_ONE_MACHINE = 0.4
"""Correlation of the errors of any two times on one machine: 0.5 to 0.7 under ZeRO with shipped profiles, 0
to 0.25 with its own, 0 to 0.5 under llama.cpp, 0 to 0.3 under vLLM (docs/explanations.md)."""
_BETWEEN_GPUS: frozenset[CauseKind] = frozenset(
    ("all-gather", "all-reduce", "gradient-reduction", "stage-to-stage", "gpu-to-gpu")
)
"""Transfers whose time the links between GPUs decide; of all others it is that of copies."""
_DECIDES = 0.5
"""Share of a time from which the host thread is said to decide it."""
_LIMITED: Mapping[LimitedBy, str] = {
    "GPU": "kernels of the GPU",
    "host": "the host thread",
    "link": "transfers",
    "CPU": "work of the CPU",
    "storage": "storage",
}
_LIMITS: Mapping[TimeInput, LimitedBy] = {
    TimeInput.HOST: "host",
    TimeInput.CPU: "CPU",
    TimeInput.COPIES: "link",
    TimeInput.PAGEABLE: "link",
    TimeInput.LINKS: "link",
    TimeInput.GPU: "GPU",
    TimeInput.FAULTS: "storage",
    TimeInput.EXPERT_FAULTS: "storage",
}
_PROGRAMS = {
    "": "all programs",
    "zero": "DeepSpeed ZeRO",
    "fsdp": "FSDP",
    "accelerate": "Accelerate",
    "tensor_parallel": "transformers",
    "vllm": "vLLM",
    "vllm (others)": "vLLM with experts, fewer bits or offloading",
    "llama_cpp": "llama.cpp",
}
_PREDICTED: Mapping[str, str] = {
    "own": "with what was measured on their machines",
    "same kind": "with what was measured on another machine of the kind",
    "shipped": "with shipped measurements of their kind of machine",
    "estimated": "with estimates",
    "": "with any profile",
}


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """The error to expect of a prediction."""

    __repr__ = brief

    program: str
    """Group of the real runs with which it is compared; "" for all."""
    unlike: str
    """What no real run did, as the end of a sentence, "used a parallel filesystem; none saved a checkpoint";
    empty where some did. The error is then expected to be larger than that of ``row``."""
    extrapolates: bool
    """Whether the work is outside the range in which the machine was measured."""
    unknowns: int = 0
    """Number of things in ``unlike``."""
    elsewhere: bool = False
    """Whether the profile of the user is that of another machine of the kind."""
    result: SimulationResult = field(repr=False, compare=False)
    """Result whose error this is."""

    def shares(self, metric: str | None = None) -> dict[str, float]:
        """Return the exposed share of each input in a metric, by default the compared time, the largest
        first; empty without times."""
        passes = self.result.composed.get(metric or self.result.compared_by, ())
        total, found = sum(time for _, time in passes), dict[str, float]()
        for one, time in passes:
            for share in one.shares:
                if share.exposed_ps:
                    part = _part(share, self.result.provenance.sources)
                    exposed = float(share.exposed_ps / one.time_ps) * time / total
                    found[part] = found.get(part, 0.0) + exposed
        return dict(sorted(found.items(), key=lambda one: -one[1]))

    def decided_by(self, metric: str | None = None) -> tuple[str, InputSource]:
        """Return the input that takes most of a metric, and what it rests on."""
        part = next(iter(self.shares(metric)), self._at_rest)
        found = self.result.provenance.sources.get(part, InputSource("estimated", ""))
        other = self.elsewhere and found.evidence == "own"
        return part, found._replace(evidence="same kind") if other else found

    @property
    def _at_rest(self) -> str:
        """The input that decides where nothing was simulated: a tier of storage that holds something."""
        stored = {use.tier for use in self.result.capacity if not use.row.is_memory}
        return next((tier for tier in self.result.targets if tier in stored), TimeInput.GPU)

    def comparable(self, metric: str | None = None) -> Comparable:
        """Return the real runs with which a metric is compared, by default the compared time."""
        part, found = self.decided_by(metric)
        limit = _LIMITS.get(part, "storage")  # type: ignore[call-overload]  # names of tiers are no inputs
        return Comparable(self.program, limit, found.evidence, self.unknowns)

    @property
    def row(self) -> CalibrationError:
        """Errors of real runs that are comparable with the compared time."""
        return calibration_errors().of(self.comparable())

    def factors(self, metric: str) -> tuple[float, float]:
        """Return P10 and P90 of a metric over its predicted value. Raises KeyError for one that is neither
        time nor rate."""
        if not self.result.composed.get(metric):
            raise KeyError(
                self._no_time or ("only memory was computed" if self.result.step is None else metric)
            )
        low, high = calibration_errors().factors(self.comparable(metric))
        return (1 / high, 1 / low) if self.result.declared[metric].larger else (low, high)

    def sigma_of(self, metric: str) -> float:
        """Return the relative standard deviation of a predicted time or rate.

        Raises KeyError for metrics that are neither.
        """
        low, high = self.factors(metric)
        return log(high / low) / (2 * P90)

    @property
    def sigma(self) -> float:
        """Relative standard deviation of the compared time."""
        return self.sigma_of(self.result.compared_by)

    def interval(self, metric: str) -> tuple[float, float]:
        """Return P10 and P90 of a predicted time or rate: 80 % of real runs are expected between them.

        Raises KeyError for metrics that are neither.
        """
        low, high = self.factors(metric)
        value = self.result.metrics()[metric]
        assert value is not None
        return value * low, value * high

    @property
    def _no_time(self) -> str:
        """Why there is no error; "" for what fits."""
        why = self.result.shortfall
        return why and f"no time is predicted, of which there could be an error: {why}"

    @property
    def measured(self) -> str:
        """Name of the predicted time or rate whose error is that of the compared metric."""
        name = self.result.compared_metric.name
        return name if name in self.result.composed else self.result.compared_by

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Return P10 and P90 of every predicted time and rate that has a value, by metric."""
        values, known = self.result.metrics(), self.result.composed
        return {name: self.interval(name) for name, value in values.items() if value and name in known}

    @property
    def caution(self) -> str:
        """Sentence about a time that an unmeasured host thread decides; "" for any other."""
        share = self.shares().get(TimeInput.HOST, 0.0)
        host = self.result.provenance.sources.get(TimeInput.HOST)
        if host is None or host.evidence == "own" or share <= _DECIDES:
            return ""
        return (
            f"{share * 100:.0f} % of this time is the host thread's, whose speed was not measured on this "
            "machine; simoffload calibrate micro measures it"
        )

    @property
    def relative_error(self) -> float:
        """Mean of the absolute relative errors of the compared runs."""
        return self.row.mean

    @property
    def runs(self) -> int:
        """Number of real times behind the expected error."""
        return self.row.runs

    @property
    def source(self) -> str:
        """Description of the compared runs: "86 held-out times of DeepSpeed ZeRO on 16 machines, limited by
        transfers and predicted with estimates"."""
        row = self.row
        held = "held-out " if row.held_out else ""
        machines = f"{row.machines} machine{'s' * (row.machines > 1)}"
        where = f"{_PROGRAMS.get(row.program, row.program)} on {machines}"
        seen = "" if held else ", some of them in view when it was developed"
        return (
            f"{row.runs} {held}times of {where}, limited by {_LIMITED[row.limit]} and predicted "
            f"{_PREDICTED[row.evidence]}{seen}"
        )

    @property
    def origin(self) -> str:
        """What decides the width: "host thread, 62 % of the time, estimated"."""
        part, found = self.decided_by()
        share = self.shares().get(part, 0.0)
        return f"{part}, {share * 100:.0f} % of the time, {_FROM[found.evidence]}"

    @property
    def sentence(self) -> str:
        """Sentence that states the expected error and its source."""
        if self._no_time:
            return self._no_time
        row = self.row
        worst = f"{row.worst * 100:+.0f} %".replace("-", "−")
        text = f"±{row.mean * 100:.1f} %, the mean error of {self.source} (the worst {worst})"
        if self.unlike:
            text = f"unknown: no real run {self.unlike}; expect more than {text}"
        elif row[:3] != self.comparable()[:3]:
            text = f"too few real runs were like it; expect more than {text}"
        return text + _BEYOND * self.extrapolates

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **by_name(self, "relative_error"),
            "known": not self.unlike,
            **by_name(self, "runs"),
            **by_name(self.row, "machines worst"),
            **by_name(self, "source extrapolates sentence caution"),
            **self._interval(),
        }

    def _interval(self) -> dict[str, Any]:
        """Return the interval of the compared metric and what decides it; nothing without times."""
        metric = self.measured
        if metric not in self.result.composed:
            return {}
        (low, high), (part, found) = self.interval(metric), self.decided_by()
        return {
            "metric": metric,
            "p10": low,
            "p90": high,
            **by_name(self, "sigma"),
            **by_name(self.comparable(), "program limit"),
            "decided_by": part,
            **by_name(found, "evidence profile"),
            "shares": self.shares(),
        }


_FROM: Mapping[Evidence, str] = {
    "own": "measured on this machine",
    "same kind": "measured on another machine of the kind",
    "shipped": "measured on machines of the kind",
    "estimated": "estimated",
}
_BEYOND = "; this prediction is beyond the calibrated range, where errors may be larger"


def confidence(result: SimulationResult, *, elsewhere: bool = False) -> Confidence:
    """Return the error to expect of a result; ``elsewhere``: the profile of the user, if it is one, is that
    of another machine of the kind.

    No recorded real run saved a checkpoint or used storage over a network: the errors of all runs that are
    limited in the same way then stand for the least that is to be expected.
    """
    kinds = {use.tier: use.kind for use in result.capacity}
    unseen = _unseen(result)
    other = _unlike(result, [kinds.get(tier, "hbm") for tier in result.targets])
    unlike = [one for one in (other or unseen, *result.uncompared) if one]
    return Confidence(
        program="" if unseen or result.kind == "checkpoint" else evidence_of(result),
        unlike="; none ".join(unlike),
        unknowns=len(unlike),
        extrapolates=bool(result.extrapolations),
        elsewhere=elsewhere,
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


def _unlike(result: SimulationResult, held: Sequence[str]) -> str:
    """Return why no real runs stand for a result, to follow the words "no real run"; empty if some do."""
    if result.kind == "checkpoint":
        return "saved a checkpoint"
    unseen = (TIER_KINDS[kind].unseen for kind in held)
    return next((f"used {one}" for one in unseen if one), "")


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


def _part(share: Share, known: Mapping[str, InputSource]) -> str:
    """Return which of the ``known`` inputs decides the time of a cause; the name of a tier for storage."""
    cause = share.cause
    if share.group == "GPU":
        return TimeInput.GPU
    if share.group == "storage":
        return cause.purpose if cause.purpose in known else cause.tier
    if share.group == "transfers":
        return _of_transfers(cause)
    return TimeInput.HOST if cause.kind == "host-thread" else TimeInput.CPU


def _of_transfers(cause: Cause) -> TimeInput:
    """Return the input that decides the time of transfers between memories and of collectives."""
    if cause.kind in _BETWEEN_GPUS:
        return TimeInput.LINKS
    return TimeInput.COPIES if cause.memory == "pinned" else TimeInput.PAGEABLE


def ratio_sigma(first: SimulationResult, second: SimulationResult, *, by: str = "compared_by") -> float:
    """Return the relative standard deviation of the ratio of the compared times of two results.

    ``by`` names another metric of them, or the property that does. Errors on one machine cancel in part, and
    mostly where one model is limited by the same number.
    """
    pair = confidence(first), confidence(second)
    names: list[str] = [getattr(one, by) if by.endswith("_by") else by for one in (first, second)]
    one, two = (each.sigma_of(name) for each, name in zip(pair, names, strict=True))
    correlation = 0.0
    if first.platform == second.platform:
        mine, other = (
            (each.decided_by(name), each.result.model) for each, name in zip(pair, names, strict=True)
        )
        found = mine == other and pair[0].program == pair[1].program
        correlation = _CORRELATION if found else _ON_ONE_MACHINE
    return sqrt(one**2 + two**2 - 2 * correlation * one * two)


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
