"""Storage bandwidth against throughput: what faster storage would bring, and how fast is fast enough."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from simoffload.bisection import least_factor
from simoffload.brief import brief
from simoffload.documents import Document, Edit, edited
from simoffload.hardware import TIER_KINDS, Machine, Target
from simoffload.planning.evaluator import Evaluator, EvaluatorSource, evaluator_of
from simoffload.planning.profile_parameters import edit_of, profile_parameters, scaled
from simoffload.progress import Watcher, stage, step, watched_by
from simoffload.results import InferenceResult, SimulationResult, Time, TrainingResult, by_name
from simoffload.scenario import LoadedScenario
from simoffload.schedule import Cause
from simoffload.units import format_number, format_rate

NO_STORAGE = "weights and optimizer are in memory, so the speed of storage has no effect"
_FACTORS = tuple(2 ** (step * 2 / 3) for step in range(-4, 9))
"""Multiples of the platform's own storage rate to simulate, from a sixth to forty."""
_FASTEST, _SLOWEST = 1e3, 1e-3
"""Multiples of the platform's own rate: the fastest storage, which stands for unlimited, and the slowest."""
_MOST = len(_FACTORS) + 1 + 2 * 11
"""Most rates that are simulated: these, the fastest, and those of two searches to 1 % of a thousandfold."""
_ENOUGH = 1.02
"""Time relative to that with the fastest storage below which faster storage is not worth it: our choice."""
_HARDLY = 1.05
"""Gain of the fastest storage below which a higher rate is said to hardly help: our choice."""
_LATENCIES = ("read_latency", "write_latency")
"""Latency keys of drives, which shrink as rates grow: no real drive gains more from its rate alone."""


class BandwidthPoint(NamedTuple):
    """The throughput at one rate of storage."""

    rate: int
    """[B/s] that the storage reads for one host, or writes where that takes more of its time."""
    throughput: float
    """[1/s] units of work."""
    bound: float
    """[1/s] that no schedule can beat: bytes over the rate of whatever is fullest, the storage or else."""


class RequiredRate(NamedTuple):
    """The lowest rate of storage at which a condition holds."""

    rate: int
    """[B/s]"""
    factor: float
    """Rate as a multiple of the platform's own."""
    throughput: float
    """Throughput at that rate [1/s], in units of work."""
    profiles: dict[str, dict[str, Any]]
    """Section of a scenario that makes the storage so fast."""


@dataclass(frozen=True, kw_only=True)
class StorageCurve:
    """A StorageCurve is the throughput of work on a machine with slower and faster storage."""

    __repr__ = brief

    tier: str
    verb: str
    """Operation that takes more of the storage's time: "reads", "writes" or "writes into its write cache"."""
    unit: str
    points: tuple[BandwidthPoint, ...]
    """Simulated points, the slowest storage first."""
    own: BandwidthPoint
    """Point of the platform's own storage."""
    fastest: float
    """[1/s] with storage a thousand times faster."""
    hidden: RequiredRate | None
    """Lowest rate at which storage is not what most of a step's time is spent on; None where no rate is
    enough."""
    enough: RequiredRate
    """Lowest rate above which faster storage gains less than 2 %."""
    held_back: str
    """Resource that limits the storage once it is a thousand times faster."""
    what: str = "storage"
    """What the tier is: storage, or memory."""
    scope: str = ""
    """Effect of more drives where drive slots limit the rate; else empty."""

    @property
    def capped(self) -> bool:
        """Whether the last point is at the highest rate that ports, adapters and connections allow."""
        return self.points[-1].rate < int(self.own.rate * _FACTORS[-1] * 0.99)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences about how fast the storage is, and how fast it would have to be."""
        own = f"the {self.what} ({self.tier}) {self.verb} {format_rate(self.own.rate)}"
        if self.hidden is None:
            why = f": {self._limit}" if self.held_back else ""
            fast = "the drives are" if self.what == "storage" else "it is"
            return own, f"however fast {fast}, {self.what} takes the most time{why}", self._gains()
        return own, f"it is the bottleneck below {format_rate(self.hidden.rate)}", self._gains()

    @property
    def _limit(self) -> str:
        """What limits the storage at any rate, as a clause."""
        named = self.held_back.startswith("the ")
        return f"{self.held_back} remains" if named else f"the link {self.held_back} limits it"

    def _gains(self) -> str:
        """Return how much faster storage gains, and from which rate hardly anything."""
        gain, enough = self.fastest / self.own.throughput, format_rate(self.enough.rate)
        if self.enough.factor <= 1:
            most = f"{format_number(gain)} times the throughput at most{self.scope}"
            return f"faster {self.what} gains less than 2 %; {enough} would be enough ({most})"
        if gain < _HARDLY:
            most = f"{(gain - 1) * 100:.0f} % at most{self.scope}"
            return f"a higher rate hardly helps: it gains {most}, above {enough} less than 2 %"
        most = f"{format_number(gain)} times the throughput at most{self.scope}"
        return f"above {enough} faster {self.what} gains less than 2 % ({most})"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        ends = "not_the_bottleneck_from=hidden fast_enough_from=enough"
        return by_name(self, f"tier unit points own fastest {ends} held_back sentences")


def storage_curve(scenario: EvaluatorSource, *, progress: Watcher | None = None) -> StorageCurve | None:
    """Simulate a scenario with slower and faster storage; None where no storage is used (``NO_STORAGE``).

    The rates of the drives, with all that their slots have, or of the server with as many ports as it takes,
    change together; cables, slots, adapters of the hosts and memory stay. Raises
    InputError where the scenario does not fit, and what ``simulate`` raises.
    """
    evaluator = evaluator_of(scenario)
    result, _ = evaluator.timed()
    tier = _tier(evaluator.scenario.machine, result)
    with watched_by(progress), stage(_MOST):
        return _Storage(evaluator, tier).curve() if tier else None


def _tier(machine: Machine, result: SimulationResult) -> str | None:
    """Return the storage that holds weights, optimizer, checkpoints, a cache that the step reads, or pages of
    a mapped file; of several, the one with most exposed time."""
    assert result.step is not None
    shares = result.step.shares
    reads = (share.cause.tier for share in shares if share.group == "storage" and share.cause.purpose)
    used = dict.fromkeys((*result.targets, *reads))
    found = [tier for tier in used if tier in machine.targets]

    def exposed(tier: str) -> Time:
        return sum(share.exposed_ps for share in shares if _uses(share.cause, tier))

    return max(found, key=exposed, default=None)


def _uses(cause: Cause, tier: str) -> bool:
    """Return whether a cause of time is that a tier is read or written."""
    return cause.kind in ("read", "write") and cause.tier == tier


def _writes(machine: Machine, result: SimulationResult, tier: str) -> bool:
    """Return whether writes need more of the storage's time than reads do, each as bytes over its rate."""
    assert result.step is not None
    bounds = result.step.bounds
    read, write = (
        max(bounds.get(machine.resources[way[0]].name, 0.0) for way in resources)
        for resources in zip(
            *((one.read_resources, one.write_resources) for one in machine.topology.access[tier]), strict=True
        )
    )
    return write > read


class _BandwidthRun(NamedTuple):
    rate: int
    throughput: float
    result: SimulationResult


class _Storage:
    """Simulates a scenario with storage of other speeds."""

    def __init__(self, evaluator: Evaluator, tier: str) -> None:
        self._evaluator, self._tier = evaluator, tier
        self._scenario, self._result = evaluator.answer()
        self._what = "memory" if self._scenario.machine.row(tier).is_memory else "storage"
        self._writes = _writes(self._scenario.machine, self._result, tier)
        self._runs: dict[float, _BandwidthRun] = {1.0: self._run(self._scenario, self._result)}

    def curve(self) -> StorageCurve:
        factors = {self._rate(factor): factor for factor in (*_FACTORS, 1.0)}  # one for each rate
        own, fastest = self._point(self.at(1.0)), self.at(_FASTEST)
        assert fastest.result.step is not None
        wanted = Cause("write" if self._writes else "read", self._tier)
        shares = fastest.result.step.shares
        held_back = next((one.limit for one in shares if one.cause._replace(purpose="") == wanted), "")
        return StorageCurve(
            tier=self._tier,
            verb=self._verb(),
            unit=self._result.unit,
            points=tuple(self._point(self.at(factors[rate])) for rate in sorted(factors)),
            own=own,
            fastest=fastest.throughput,
            hidden=self._least(self._others) if self._others(fastest) >= 0 else None,
            enough=self._least(lambda run: run.throughput * _ENOUGH - fastest.throughput),
            held_back=held_back,
            what=self._what,
            scope=self._scope(held_back),
        )

    def _verb(self) -> str:
        """Return what the rate is of: drives with a write cache write slower once it is full."""
        drive = self._scenario.machine.targets[self._tier].drive
        cached = drive is not None and drive.write_cache is not None
        return ("writes into its write cache" if cached else "writes") if self._writes else "reads"

    def _scope(self, held_back: str) -> str:
        """Return the scope of the curve where the cables of the drives are the limit: faster drives stay in
        their slots."""
        drives = self._scenario.machine.targets[self._tier].drives
        if f"{self._tier}." not in held_back:  # no cable of a drive
            return ""
        slots = f"the slots of its {drives} drives" if drives > 1 else "the slot of its drive"
        if self._what == "memory":
            return " in its slot"
        return f" in {slots}; more drives have more slots"

    def at(self, factor: float) -> _BandwidthRun:
        """Simulate the scenario with storage that is ``factor`` times as fast."""
        if factor not in self._runs:
            step(f"{self._tier} at {format_number(factor)} times its rate")
            self._runs[factor] = self._run(*self._evaluator.answer(*self._edits(factor), scope="steps"))
        return self._runs[factor]

    def _run(self, scenario: LoadedScenario, result: SimulationResult) -> _BandwidthRun:
        assert result.unit_s is not None
        return _BandwidthRun(self._rate_of(scenario.machine), 1 / result.unit_s, result)

    def _rate(self, factor: float) -> int:
        """Return the rate [B/s] of storage that is ``factor`` times as fast."""
        return self._rate_of(self._evaluator.edited(*self._edits(factor)).machine)

    def _rate_of(self, machine: Machine) -> int:
        target = machine.targets[self._tier]
        rate = min((target.write if self._writes else target.read).rate, self._adapters(machine))
        return min(rate, target.client_rate or rate)

    def _edits(self, factor: float) -> tuple[Edit, ...]:
        target = self._scenario.machine.targets[self._tier]
        found, rates = [], TIER_KINDS[target.kind].rates
        for number in profile_parameters(self._scenario.machine):
            quicker = number.key in _LATENCIES and factor > 1
            if number.profile == target.device and (quicker or number.key in rates):
                one = scaled(number, 1 / factor if quicker else factor)
                found += [] if one is None else [edit_of(number.profile, number.key, one[0])]  # a factor of 1
        return *found, *self._ports(target, factor), *self._lanes(target, factor)

    def _adapters(self, machine: Machine) -> int:
        """Return the rate [B/s] of a host's adapters on the route to a server; unlimited for local drives."""
        access = machine.topology.access[self._tier][0]
        if machine.targets[self._tier].drives:
            return sys.maxsize
        resources = (((one.outward if self._writes else one.inward), one.share) for one in access.ingresses)
        return min(int(machine.resources[port].capacity / share) for way, share in resources for port in way)

    def _lanes(self, target: Target, factor: float) -> Iterator[Edit]:
        """Yield the lanes that faster drives take, as far as their slots have them, in the drives' own
        generation of PCIe."""
        drive, pcie_link = target.drive, target.pcie_link
        if drive is None or pcie_link is None:
            return
        platform = self._scenario.platform()
        slots = [platform.slots[vertex] for vertex in platform.profile.tiers[self._tier].at or ()]
        most = max((slot.payload_rate(pcie_link.lanes) for slot in slots if slot), default=0)
        wanted = min(int(factor * max(drive.read.value, drive.write.value)), most)
        lanes = -(-pcie_link.lanes * wanted // pcie_link.payload_rate)
        if lanes > pcie_link.lanes:
            yield edit_of(f"drive/{drive.id}", "pcie.lanes", lanes)

    def _ports(self, target: Target, factor: float) -> Iterator[Edit]:
        """Yield as many ports of the server, with mounts over them, as the host's adapters can use."""
        ports = target.ports
        if ports is None:
            return
        most = self._adapters(self._scenario.machine)
        served = min(max(ports.read, ports.write), ports.total)
        number = -(-min(int(factor * served), most) // ports.rate)
        if number <= ports.number:
            return
        profile = f"{target.kind}/{target.id}"
        yield edit_of(profile, "links", number)
        if ports.mounts:
            yield edit_of(profile, "mounts", max(number, ports.mounts))

    def _point(self, run: _BandwidthRun) -> BandwidthPoint:
        return BandwidthPoint(run.rate, run.throughput, _bound(run.result))

    def _others(self, run: _BandwidthRun) -> Time:
        """Return how much longer [ps] another cause takes than the storage; negative where none does."""
        assert run.result.step is not None
        storage, others = (
            max(
                (one.exposed_ps for one in run.result.step.shares if _uses(one.cause, self._tier) == of),
                default=0,
            )
            for of in (True, False)
        )
        is_storage = _uses(run.result.step.bottleneck.cause, self._tier)
        return others - storage - (is_storage and others == storage)

    def _least(self, margin: Callable[[_BandwidthRun], Time | float]) -> RequiredRate:
        """Find the slowest storage for which a margin is not negative, which it is not for faster storage
        either."""
        known = {factor: float(margin(run)) for factor, run in self._runs.items()}
        first = min(factor for factor, one in known.items() if one >= 0)
        low, high = (_SLOWEST, 1.0) if first <= 1 else (1.0, _FASTEST)
        if min(known.values()) >= 0:
            known[low] = float(margin(self.at(low)))
        if known.get(low, -1.0) < 0:
            high = least_factor(low, high, lambda factor: float(margin(self.at(factor))), known)
        else:
            high = low
        run = self.at(high)
        alone = edited(Document("", {}), self._edits(high))
        return RequiredRate(run.rate, high, run.throughput, alone.data.get("profiles", {}))


def _bound(result: SimulationResult) -> float:
    """Return the throughput [1/s] that no schedule can exceed on a machine: in each pass its fullest resource
    decides.

    Of decode steps the first counts, in which attention reads the shortest cache.
    """
    if isinstance(result, InferenceResult):
        assert result.prefill is not None
        time, parts = result.e2e_s, [(result.prefill, 1.0)]
        parts += [(one, float(result.output_length - 1)) for one in result.decode[:1]]
    elif isinstance(result, TrainingResult):
        time, parts = result.step_s, [(phase.result, float(phase.times)) for phase in result.phases]
    else:
        assert result.step is not None
        time, parts = result.step_time_s, [(result.step, 1.0)]
    assert time is not None
    assert result.unit_s is not None
    return time / result.unit_s / sum(count * one.bound_s for one, count in parts)
