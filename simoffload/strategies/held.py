"""What the tiers of a machine hold for a run, and what follows from it: memory, targets and storage traffic.

A plan lists all of it once (``Plan.held``): the weights in their homes, what hooks hold beside them, the
cache, optimizer states, files and working memory. Everything else here is derived from this list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple

from simoffload.results import MemoryStage, MemoryTerm, StorageTraffic

if TYPE_CHECKING:
    from simoffload.strategies.base import Plan

INITIALISATION = "initialisation"
"""Name of the stage of a run before its first step."""

HeldKind = Literal["weights", "optimizer", "cache", "activations", "checkpoints", "staging", "working"]
"""What is held: states that have their home on a tier, what is staged on its way to a GPU, or what is needed
for work beside both."""

Traffic = Callable[[], tuple[int | Fraction, int | Fraction]]
"""Function that returns what is read from a tier and written to it [B]."""

_STATES = frozenset({"weights", "optimizer", "cache", "activations", "checkpoints"})


class Held(NamedTuple):
    """A Held is one part of what a tier holds for a run."""

    tier: str
    name: str
    size: int
    """[B] per GPU on the tier "hbm", per host on "dram" (from a hook: per process), of the whole target on
    other tiers."""
    pinned: bool = False
    """Whether it is page-locked host memory."""
    remedy: str = ""
    """Setting that makes it smaller, other than a different tier for the weights."""
    once: bool = False
    """Whether it exists only in the first step."""
    spare: bool = False
    """Whether the program leaves the memory free."""
    kind: HeldKind = "working"
    stage: str = ""
    """Name of the stage of the run in which it is held; "" for all of them."""
    traffic: Traffic | None = None
    """What all ranks read from it and write to it, in one step of training or in one generation; None for
    what no storage holds."""

    @property
    def term(self) -> MemoryTerm:
        """The memory that it needs."""
        tier, name, size, pinned, remedy, once, spare, *_ = self
        return MemoryTerm(tier, name, size, pinned, remedy, once, spare)


def memory_stages(plan: Plan) -> tuple[MemoryStage, ...]:
    """Return the memory that each tier must hold at each stage of the run."""
    return stages_of(plan.held)


def stages_of(held: Sequence[Held]) -> tuple[MemoryStage, ...]:
    """Return the memory at each stage of what is held."""
    always = [one.term for one in held if not one.stage]
    stages: dict[str, list[MemoryTerm]] = {}
    for one in held:
        if one.stage:
            stages.setdefault(one.stage, []).append(one.term)
    return tuple(
        MemoryStage(name, (*terms, *always), once=name == INITIALISATION)
        for name, terms in (stages or {"": []}).items()
    )


def target(plan: Plan) -> str:
    """Return the tier that holds the weights, the last one in the platform's order if there are several; if
    only checkpoints are simulated, that of the checkpoints."""
    return _last(plan, "weights") or _last(plan, "checkpoints")


def weights_tiers(plan: Plan) -> tuple[str, ...]:
    """Return the tiers beside HBM that hold a tenth of the weights or more, in the platform's order."""
    sizes = dict.fromkeys(plan.machine.tiers, 0)
    for one in plan.held:
        sizes[one.tier] += one.size if one.kind == "weights" else 0
    beside = sum(sizes.values()) - sizes["hbm"]
    return tuple(name for name, size in sizes.items() if name != "hbm" and beside <= 10 * size and size)


def optimizer_target(plan: Plan) -> str:
    """Return the tier that holds the optimizer states, the last one if there are several; "" if there are
    none."""
    return _last(plan, "optimizer")


def _last(plan: Plan, kind: HeldKind) -> str:
    found = {one.tier for one in plan.held if one.kind == kind}
    return next((name for name in reversed(plan.machine.tiers) if name in found), "")


def state_tiers(plan: Plan) -> Collection[str]:
    """Return the tiers that hold states, without those that only stage them."""
    return {one.tier for one in plan.held if one.kind in _STATES}


def movable(plan: Plan) -> tuple[int, str]:
    """Return size [B] and name of the states that could be on another tier: checkpoints, or the weights."""
    saved = sum(one.size for one in plan.held if one.kind == "checkpoints")
    return (saved, "checkpoint") if saved else (plan.model.weight_bytes, "weights")


def traffic(plan: Plan) -> tuple[StorageTraffic, ...]:
    """Return the bytes that one step, or one generation, moves to and from each tier of storage."""
    sums: dict[str, tuple[int | Fraction, int | Fraction]] = {}
    transfers = {(one.tier, one.name): one.traffic for one in plan.held if one.traffic is not None}
    for (tier, _), moving in transfers.items():  # what is held at several stages moves once
        before, now = sums.get(tier, (0, 0)), moving()
        sums[tier] = before[0] + now[0], before[1] + now[1]
    return tuple(StorageTraffic(tier, round(read), round(written)) for tier, (read, written) in sums.items())
