"""What tiers hold for a run, and what follows from it: homes of tensors, memory, targets and storage traffic.

A plan lists all of it once (``Plan.held``): the weights in their homes, what hooks hold beside them, the
cache, optimizer states, files and working memory. Everything else here is derived from this list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import Layer, ModelShape, Module
from simoffload.results import HeldKind, MemoryStage, MemoryTerm, StorageTraffic

if TYPE_CHECKING:
    from simoffload.strategies.base import Plan

INITIALISATION = "initialisation"
"""Name of the stage of a run before its first step."""

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
        tier, name, size, pinned, remedy, once, spare, kind, *_ = self
        return MemoryTerm(tier, name, size, pinned, remedy, once, spare, kind)


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


# -- page-locked memory ----------------------------------------------------------------------------

ROUNDING = "rounding of pinned allocations"
"""Name of what PyTorch's pinned allocator adds to allocations."""


def pinned_block(size: int) -> int:
    """Return the size [B] of the block in which PyTorch's pinned allocator puts ``size`` [B]: a power of two.

    Source: aten/src/ATen/core/CachingHostAllocator.h of PyTorch 2.x (PowerOf2Ceil).
    """
    return 1 << (size - 1).bit_length() if size else 0


def pinned_rounding(sizes: Sequence[int]) -> int:
    """Return the bytes [B] that PyTorch's pinned allocator adds to allocations of some sizes [B]."""
    counts = Counter(sizes).items()  # identical layers make the same allocations
    return sum(count * (pinned_block(size) - size) for size, count in counts if size > 0)


# -- homes of tensors ------------------------------------------------------------------------------


class Home(NamedTuple):
    """A Home is where a tensor is kept."""

    tier: str = "hbm"
    """Name of the tier that holds it: "hbm", "dram", or another one of the platform."""
    gpu: int = 0
    """Number of the GPU of the process that keeps it, or that computes with it."""
    pinned: bool = False
    """Whether it is page-locked, if it is in host memory."""
    mapped: bool = False
    """Whether it is read through a memory map, if it is in a file; each time from its tier, as programs of
    your own keep nothing in the page cache."""
    in_place: bool = False
    """Whether kernels read it in pinned host memory, over the link, so that nothing is copied."""


HBM = Home()

Sizes = Mapping[Home, tuple[int, ...]]
"""Sizes [B] of tensors by their home."""


class Homes:
    """Homes give each module of a model the home of its tensors.

    ``place`` returns the home of a module from the number of its layer, -1 outside of the layers.
    """

    def __init__(self, model: ModelShape, place: Callable[[int, Module], Home]) -> None:
        self._model, self._place = model, place
        self._known: dict[tuple[int, tuple[Home, ...]], Sizes] = {}
        self._stored: dict[int, list[tuple[Module, tuple[int, ...]]]] = {}

    def home(self, layer: int, module: Module) -> Home:
        """Return the home of the tensors of a module."""
        return self._place(layer, module)

    def sizes(self, module: Module) -> tuple[int, ...]:
        """Return the sizes [B] of the tensors of a module, one for each tensor that is stored."""
        dtype_bytes = self._model.dtype_bytes
        return tuple(
            size for one in module.parameters if not one.tied for _, size in one.stored_tensors(dtype_bytes)
        )

    @cached_property
    def layers(self) -> tuple[Sizes, ...]:
        """Tensors of each layer by their home; those of equal layers are one object."""
        return tuple(self._of(number, layer) for number, layer in enumerate(self._model.layers))

    @cached_property
    def in_place(self) -> tuple[Mapping[str, tuple[int, ...]], ...]:
        """For each layer the sizes [B] of tensors that kernels read where they are, by the module's name; ()
        if there are none."""
        if not any(home.in_place for home in self.all):
            return ()
        return tuple(
            {
                one.name: sizes
                for one in layer
                if (sizes := self.sizes(one)) and self._place(number, one).in_place
            }
            for number, layer in enumerate(self._model.layers)
        )

    @cached_property
    def outside(self) -> Sizes:
        """Tensors of the modules before and after the layers by their home."""
        return self._of(-1, (*self._model.modules_before, *self._model.modules_after))

    def _of(self, number: int, modules: Layer) -> Sizes:
        kind = id(modules) if number >= 0 else -1
        if kind not in self._stored:
            self._stored[kind] = [(one, sizes) for one in modules if (sizes := self.sizes(one))]
        stored = self._stored[kind]
        key = kind, tuple([self._place(number, one) for one, _ in stored])
        if key not in self._known:
            found: dict[Home, tuple[int, ...]] = {}
            for home, (_, sizes) in zip(key[1], stored, strict=True):
                if not isinstance(home, Home):
                    raise InputError.at("strategy.kind", f"a home must be of type Home, got {home!r}")
                found[home] = found.get(home, ()) + sizes
            self._known[key] = found
        return self._known[key]

    @cached_property
    def all(self) -> Mapping[Home, Sequence[int]]:
        """All tensors by their home."""
        found: dict[Home, list[int]] = {}
        for one in (self.outside, *self.layers):
            for home, sizes in one.items():
                found.setdefault(home, []).extend(sizes)
        return found


def held_weights(
    tensors: Mapping[Home, Iterable[int]],
    machine: Machine,
    *,
    ranks: int = 1,
    remedies: Mapping[str, str] | None = None,
) -> Iterator[Held]:
    """Yield what tensors of some sizes [B] need in their homes: of a GPU, of a host whose processes of all
    ``ranks`` have their own, and of a storage tier, which they share, one copy for each host with drives of
    its own; ``remedies`` by tier."""
    targets, hosts = machine.targets, machine.nodes_of(ranks)
    sums: dict[tuple[str, bool], list[int]] = {}
    for home, sizes in tensors.items():
        sums.setdefault((home.tier, home.pinned), []).extend(sizes)
    for (tier, pinned), sizes in sums.items():
        local = tier in targets and bool(targets[tier].drives)
        each = machine.ranks_per_node(ranks) if tier == "dram" else hosts if local else 1
        remedy = (remedies or {}).get(tier, "")
        yield Held(tier, "weights", each * sum(sizes), pinned, remedy, kind="weights")
        if pinned:
            yield Held(tier, ROUNDING, each * pinned_rounding(sizes), pinned, remedy)
