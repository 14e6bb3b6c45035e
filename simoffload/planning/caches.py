"""Placements of the key-value cache: which fit, with how many sequences and how many tokens each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nextafter
from typing import Any, cast

from simoffload.bisection import least_factor
from simoffload.brief import brief
from simoffload.documents import Edit
from simoffload.hardware import Machine, Path
from simoffload.planning.alternatives import ANSWERS_CHANGE
from simoffload.planning.evaluator import Evaluator, EvaluatorSource, evaluator_of
from simoffload.planning.sizing import LargestValue, batch_limit, context_limit
from simoffload.results import Change, InferenceResult, PassResult, Share, TierUse, by_name, cause_text
from simoffload.schedule import Op, Schedule
from simoffload.simulation.runner import Runner
from simoffload.strategies import Earlier, Phase, PhaseSeries
from simoffload.units import format_bytes, format_number, format_rate, format_seconds
from simoffload.workload import Inference


@dataclass(frozen=True)
class CachePlacement:
    """A CachePlacement is the scenario with its key-value cache elsewhere, or as it is."""

    change: Change
    """Change to the placement; without edits for the present one."""
    there: Evaluator = field(repr=False, compare=False)
    """Evaluator of the scenario with the change."""
    uses: tuple[TierUse, ...]
    """What each tier must hold with the batch and the lengths of the scenario."""

    @property
    def placement(self) -> str:
        """Description of the placement, such as "dram, static"."""
        return self.change.description

    @property
    def lacking(self) -> tuple[TierUse, ...]:
        """Tiers that are too small."""
        return tuple(use for use in self.uses if not use.fits)

    @property
    def fits(self) -> bool:
        """Whether all tiers are large enough."""
        return not self.lacking

    @property
    def outside(self) -> int:
        """What tiers other than HBM must hold [B]."""
        return sum(use.needed for use in self.uses if not use.row.is_gpu)

    @property
    def move(self) -> str:
        """Description of the move, which says whether answers change."""
        text = f"key-value cache on {self.placement}"
        return text if self.change.same_work else f"{text} {ANSWERS_CHANGE}"


@dataclass(frozen=True)
class CacheLimits(CachePlacement):
    """CacheLimits are the largest batch and the longest context with the cache in one placement."""

    __repr__ = brief

    batch: LargestValue
    """Number of sequences, with the lengths of the scenario."""
    full: tuple[str, ...]
    """Tiers that a larger batch overfills."""
    context: LargestValue
    """[tokens] of prompt and output, with the batch of the scenario, up to the positions of the model."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; ``set`` is what ``--set`` takes, ``lacking_bytes`` what each
        tier lacks."""
        return {
            **by_name(self, "placement"),
            "now": not self.change.edits,
            "set": list(self.change.assignments),
            **by_name(self, "fits"),
            "lacking_bytes": {use.tier: -use.headroom for use in self.lacking},
            **by_name(self, "batch_size=batch full context"),
        }


def cache_limits(scenario: EvaluatorSource) -> tuple[CacheLimits, ...]:
    """Return what fits with each placement of the key-value cache that the program of a scenario has.

    The prompt grows for the longest context, up to the positions that the model was made for. Empty for other
    work than inference, and where there is no choice. Raises InputError for a scenario that its program
    refuses; placements that it refuses are left out.
    """
    evaluator = evaluator_of(scenario)
    workload = evaluator.workload
    if not isinstance(workload, Inference):
        return ()
    return tuple(_limits(evaluator, one, workload) for one in placements(evaluator))


def placements(evaluator: Evaluator) -> tuple[CachePlacement, ...]:
    """Return the placements of the key-value cache that the program does not refuse; empty where there is no
    choice."""
    found = []
    for one in evaluator.changes("cache") if isinstance(evaluator.workload, Inference) else ():
        uses = evaluator.needs(*one.edits)
        if uses is not None:
            found.append(CachePlacement(one, evaluator.changed_by(*one.edits), uses))
    return tuple(found) if len(found) > 1 else ()


_LARGER = 8
"""Largest factor by which a batch grows with a move of the cache: the largest that ``advise`` tries without
one."""


def cache_options(evaluator: Evaluator) -> Iterator[Change]:
    """Yield the other placements of the key-value cache, and those that hold the largest batch with it, as
    options of ``advise``.

    If the present placement fits, and no other leaves less outside HBM, it is in HBM: other tiers and fewer
    bits are then worth their price only for a larger batch, and are left out with the present one.
    """
    known = placements(evaluator)
    now = next((one for one in known if not one.change.edits), None)
    least = min((one.outside for one in known), default=0)
    resident = now is not None and now.fits and now.outside == least
    for one in known:
        if one.change.edits and not (resident and (one.outside > least or not one.change.same_work)):
            yield one.change._replace(description=one.move)
    if now is not None and now.fits:
        yield from _with_larger_batches(now, known)


def _with_larger_batches(now: CachePlacement, known: Sequence[CachePlacement]) -> Iterator[Change]:
    """Yield the first placement with the largest batch, if it is larger than that of ``now``: in the present
    format, and in another."""
    work = now.there.workload
    assert isinstance(work, Inference)
    batch = work.batch_size
    held = {id(one): one.there.largest_batch(most=_LARGER * batch) or 0 for one in known}
    for same in (True, False):
        of_format = [one for one in known if one.change.same_work == same]
        one = max(of_format, key=lambda one: held[id(one)], default=now)
        most = held[id(one)]
        if most > max(held[id(now)], batch):
            yield one.change._replace(
                description=f"{one.move}, batch {most} instead of {batch}",
                edits=(*one.change.edits, *one.there.batch(most)),
                key=f"{one.change.key}-batch-{most}",
            )


def _limits(evaluator: Evaluator, one: CachePlacement, workload: Inference) -> CacheLimits:
    there, positions = one.there, evaluator.scenario.model.max_position_embeddings
    context = context_limit(there, workload, positions=positions)
    batch, unit = batch_limit(there, workload), there.strategy.sizes(workload.batch_size).unit
    most = batch.most or 0
    more = most + (1 if most < unit else unit)
    beyond = there.needs(*there.batch(more)) or ()
    full = tuple(use.tier for use in beyond if not use.fits)
    return CacheLimits(one.change, there, one.uses, batch, full, context)


# -- cache speed -----------------------------------------------------------------------------------
# How fast the tier of the key-value cache is, from which rate on it no longer shows, and whether it loads a
# prefix sooner than that is computed.


_ENOUGH = 1.05
"""Time of a pass relative to that with an infinitely fast tier from which the tier no longer shows: our
choice."""
_SLOWEST, _INFINITE = 1e-6, 1e9
"""Speeds of the slowest tier that is tried, and of one that takes no time, relative to the own one."""


@dataclass(frozen=True, kw_only=True)
class CacheSpeed:
    """A CacheSpeed states what the tier of the key-value cache means for the time of a pass."""

    __repr__ = brief

    tier: str
    name: str
    """Name of the pass: "decode 1", or "prefill" if blocks are loaded for it."""
    way: str
    """Slowest part of the way of keys and values: "GPU to host", "nvme read", "attention on the CPU"."""
    limit: str
    """What limits it: a link, the CPU, or the rate of a single transfer."""
    size: int
    """[B] that this part moves for all GPUs."""
    rate: float
    """[B/s] at which it moves keys and values of each host if nothing else takes time."""
    time_s: float
    """[s] of the pass."""
    fastest_s: float
    """[s] of the pass if moving keys and values takes no time."""
    enough: float
    """Lowest rate [B/s] of a host from which the pass takes at most 5 % longer than that."""
    links: int | None
    """Rate [B/s] of the links between the GPUs in use of a host and its memory, added up; None where the
    slowest part is work of the CPU."""

    @property
    def no_longer_shows(self) -> str:
        """Clause about the rate from which the tier no longer shows."""
        text = f"from {format_rate(self.enough)} on the tier no longer shows (within 5 % of any faster one)"
        if self.enough <= self.rate:
            return f"{text}: it does not show now"
        if self.links is not None and self.enough > self.links:
            text = f"{text}, which is more than the {format_rate(self.links)} of the links of its GPUs"
        return text

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences about the pass with a faster tier, about the rate of the tier, and what limits it."""
        takes = f"{self.name} takes {format_seconds(self.time_s)}"
        ratio, fastest = format_number(self.time_s / self.fastest_s), format_seconds(self.fastest_s)
        own = f"keys and values of each host move at {format_rate(self.rate)} ({self.way})"
        return (
            f"{takes}, {ratio} times the {fastest} that it takes with an infinitely fast tier ({self.tier})",
            f"{own}, limited by {self.limit}; {self.no_longer_shows}",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return by_name(
            self, "tier pass=name way limit size rate time_s fastest_s enough link=links sentences"
        )


def with_speeds(schedule: Schedule, *, cache: float = 1.0, others: float = 1.0) -> Schedule:
    """Return a schedule in which transfers of the cache, and all other operations, are some times as fast.

    A transfer that is ``cache`` times as fast has that part of its bytes and of its latency, so that every
    link and CPU on its way is as fast for it, while it shares them with others.
    """
    moves = [route.cause.moves_cache for route in schedule.routes]

    def scaled(op: Op) -> Op:
        speed = cache if op.route >= 0 and moves[op.route] else others
        if speed == 1.0:
            return op
        size = max(1, round(op.size / speed)) if op.size else 0
        return op._replace(fixed=round(op.fixed / speed), size=size)

    return schedule._replace(blocks=schedule.with_operations(scaled))


class FasterCache:
    """A FasterCache simulates the pass that shows the tier of the cache most, with tiers of any speed."""

    def __init__(self, evaluator: Evaluator, phase: Phase, result: PassResult, slowest: Share) -> None:
        self._phase, self._slowest, self._result = phase, slowest, result
        self._runner = Runner(evaluator.scenario, keep=False, scope="compared")
        self._machine, self._gpus = evaluator.scenario.machine, evaluator.answer()[1].gpus
        hosts = self._machine.nodes_of(self._gpus)
        self.rate = slowest.size / hosts / self.time_s(others=_INFINITE)
        """[B/s] at which the slowest part of the way moves keys and values of a host."""

    @classmethod
    def of(cls, evaluator: Evaluator) -> FasterCache | None:
        """Return the passes of a scenario whose cache is, or is stored, on a tier other than HBM; None for
        others. Raises InputError where the scenario does not fit."""
        result, _ = evaluator.timed()
        if not isinstance(result, InferenceResult) or result.prefill is None:
            return None
        phases: dict[str, Phase | PhaseSeries] = {one.kind: one for one in evaluator.plan.phases}
        passes = {"decode": result.decode[:1], "prefill": (result.prefill,)}
        for kind, found in passes.items():
            phase = phases[kind]
            for one in found:
                first = phase.step(1) if isinstance(phase, PhaseSeries) else phase
                moving = [share for share in one.shares if share.cause.moves_cache and share.size]
                if first.ends_with:  # no pass waits for stores of blocks
                    moving = [share for share in moving if share.exposed_ps]
                if moving:
                    return cls(evaluator, first, one, max(moving, key=lambda share: share.busy_ps))
        return None

    def time_s(self, *, cache: float = 1.0, others: float = 1.0) -> float:
        """Return the time [s] of the pass if the cache's transfers are ``cache`` times as fast, and
        everything else ``others`` times."""

        def schedule(earlier: Mapping[str, Earlier]) -> Schedule:
            return with_speeds(self._phase.schedule(earlier), cache=cache, others=others)

        return self._runner.phase(replace(self._phase, schedule=schedule), {}).time_s

    def least(self, most: float) -> float:
        """Return the lowest rate [B/s] of a host with which the pass takes at most ``most`` [s]."""
        return self.rate * least_factor(_SLOWEST, _INFINITE, lambda speed: most - self.time_s(cache=speed))

    def speed(self) -> CacheSpeed:
        """Return what the tier means for the pass."""
        fastest, slowest = self.time_s(cache=_INFINITE), self._slowest
        tier = slowest.cause.tier
        return CacheSpeed(
            tier=tier,
            name=self._result.name,
            way=cause_text(slowest.cause._replace(purpose="")),
            limit=_named(slowest.limit, self._machine, tier),
            size=slowest.size,
            rate=self.rate,
            time_s=self._result.time_s,
            fastest_s=fastest,
            enough=self.least(_ENOUGH * fastest),
            links=None if slowest.group == "host" else _links(self._machine, self._gpus),
        )


def cache_speed(scenario: EvaluatorSource) -> CacheSpeed | None:
    """Return how fast the tier of a scenario's key-value cache is, and from which rate on it no longer shows;
    None for a cache in HBM alone.

    The first decode step is simulated with faster and slower tiers, or the prefill if keys and values move in
    it only. Raises InputError where the scenario does not fit, and what ``simulate`` raises.
    """
    found = FasterCache.of(evaluator_of(scenario))
    return None if found is None else found.speed()


@dataclass(frozen=True, kw_only=True)
class PrefixLoading:
    """PrefixLoading states what the tier of a prefix means for the time to first token."""

    __repr__ = brief

    tier: str
    size: int
    """Blocks of the prefixes that are loaded [B], of all GPUs."""
    computed_s: float
    """Time to first token [s] if the whole prompt is computed."""
    stored_s: float
    """Time to first token [s] if they are loaded and new blocks are stored as in the scenario; all other
    times and rates are without stores."""
    break_even: float
    """Lowest rate [B/s] of a host from which loading is faster than computing."""
    speed: CacheSpeed
    """How fast the tier is; its pass is the prefill, whose time is that to the first token."""

    @property
    def loaded_s(self) -> float:
        """Time to first token [s] if they are loaded."""
        return self.speed.time_s

    @property
    def loads(self) -> bool:
        """Whether loading the prefix is faster than computing it."""
        return self.loaded_s < self.computed_s

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences about loading or computing, and about the rate of the tier."""
        ratio = max(self.loaded_s, self.computed_s) / min(self.loaded_s, self.computed_s)
        first = (
            f"{'loading' if self.loads else 'computing'} the prefix is {format_number(ratio)} times as fast: "
            f"the first token comes after {format_seconds(self.loaded_s)} with {format_bytes(self.size)} "
            f"loaded from {self.tier}, after {format_seconds(self.computed_s)} with all computed"
        )
        own = f"each host loads at {format_rate(self.speed.rate)}, limited by {self.speed.limit}"
        even = f"from {format_rate(self.break_even)} on loading is faster than computing"
        found = (first, f"{own}; {even}; {self.speed.no_longer_shows}")
        now, then = format_seconds(self.loaded_s), format_seconds(self.stored_s)
        if now == then:
            return found
        return *found, f"this is without stores: with them, the first token comes after {then}, not {now}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        speed = by_name(self.speed, "rate limit fastest_s enough link=links")
        return by_name(self, "tier size loaded_s computed_s stored_s break_even loads sentences") | speed


def prefix_loading(scenario: EvaluatorSource) -> PrefixLoading | None:
    """Return whether loading the prefixes of a scenario is faster than computing them, and from which rate
    their tier no longer shows; None for a scenario that loads none.

    Both ways are simulated, without stores of new blocks: who computes a prefix has more to store, which a
    slower tier would make more expensive than loading. The rate is that at which each host loads blocks,
    whatever their path, so that it can be more than its links carry. Raises InputError where the scenario
    does not fit, and what ``simulate`` raises.
    """
    evaluator = evaluator_of(scenario)
    result, _ = evaluator.timed()
    if not isinstance(result, InferenceResult) or result.load is None:
        return None
    stored_s, key = result.ttft_s, "strategy.kv_cache.connector"
    phases = (one for one in evaluator.plan.phases if isinstance(one, Phase))
    if any(one.kind == "prefill" and one.ends_with for one in phases):  # the pass stores blocks
        evaluator = Evaluator(evaluator.edited(Edit.at(f"{key}.store", False)))
    _, other = evaluator.answer(Edit.at(f"{key}.prefix", 0))
    computed_s, faster = cast("InferenceResult", other).ttft_s, FasterCache.of(evaluator)
    assert computed_s is not None
    assert stored_s is not None
    if faster is None:
        return None
    blocks = next(one for one in result.traffic if one.read)
    return PrefixLoading(
        tier=blocks.tier,
        size=blocks.read,
        computed_s=computed_s,
        stored_s=stored_s,
        break_even=faster.least(nextafter(computed_s, 0.0)),
        speed=faster.speed(),
    )


def _links(machine: Machine, gpus: int) -> int:
    """Return the rate [B/s] of the links between the GPUs in use of a host and its memory, added up."""
    slots = machine.topology.gpu_pcie_links[: machine.ranks_per_node(gpus)]
    links = (slot.pcie.copy_curve(to_device=True, lanes=slot.lanes).points[-1][1] for slot in slots)
    return int(sum(links))


def _named(limit: str, machine: Machine, tier: str) -> str:
    """Return what limits a transfer, with the device to which a link belongs."""

    def links(*given: Path) -> set[str]:
        return {machine.resources[at].name for path in given for at, _ in path.hops}

    memory = {machine.resources[at].name for at in machine.topology.memories}
    paths = (machine.host_to_device(0, pinned=True), machine.device_to_host(0, pinned=True))
    if limit in memory:
        return f"host memory ({limit})"
    if limit in links(*paths):
        return f"the PCIe link of the GPU ({limit})"
    if tier in machine.targets:
        paths = (machine.storage_read(tier, 0), machine.storage_write(tier, 0))
        return f"the storage {tier} ({limit})" if limit in links(*paths) else limit
    return limit
