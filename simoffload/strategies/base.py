"""Strategies and plans: a strategy turns a model, a workload and a machine into a plan of memory and phases.

A strategy is a class, registered by ``registry.register``, to which no code outside ``strategies`` refers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from types import MappingProxyType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    get_args,
    get_origin,
)

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from simoffload.documents import Edit, Frozen, either
from simoffload.errors import InputError, PlacementError
from simoffload.hardware import Machine, Provenance
from simoffload.models import Layer, ModelShape, Module
from simoffload.results import Change, Facts, HeldKind, MemoryStage, MemoryTerm, StorageTraffic
from simoffload.schedule import Schedule
from simoffload.workload import Method, Speculation

# -- what tiers hold for a run, and what follows from it -------------------------------------------
# Homes of tensors, memory, targets and storage traffic.
#
# A plan lists all of it once (``Plan.held``): the weights in their homes, what hooks hold beside them, the
# cache, optimizer states, files and working memory. Everything else here is derived from this list.


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
    """What it is: "weights", "optimizer", "cache", "activations" or "checkpoints" at home there, "staging" on
    its way to a GPU, or "working", what is needed for work beside these."""
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
    """Return the tiers beside HBM that hold a tenth or more of the weights beside HBM, in the platform's
    order."""
    return _with_a_tenth(plan, inside=False)


def offloaded_tiers(plan: Plan) -> tuple[str, ...]:
    """Return the tiers beside HBM that hold a tenth of all weights or more, in the platform's order."""
    return _with_a_tenth(plan, inside=True)


def _with_a_tenth(plan: Plan, *, inside: bool) -> tuple[str, ...]:
    """Return the tiers beside HBM that hold a tenth or more of the weights, with or without those in HBM."""
    sizes = dict.fromkeys(plan.machine.tiers, 0)
    for one in plan.held:
        sizes[one.tier] += one.size if one.kind == "weights" else 0
    within = sizes.pop("hbm", 0)  # of one GPU, which may have only a part of those in HBM
    total = sum(sizes.values())
    total = max(total + within, plan.model.weight_bytes) if inside else total
    return tuple(name for name, size in sizes.items() if size and 10 * size >= total)


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

TierSizes = Mapping[Home, tuple[int, ...]]
"""Sizes [B] of tensors by their home."""


class Homes:
    """Homes give each module of a model the home of its tensors.

    ``place`` returns the home of a module from the number of its layer, -1 outside of the layers.
    """

    def __init__(self, model: ModelShape, place: Callable[[int, Module], Home]) -> None:
        self._model, self._place = model, place
        self._known: dict[tuple[int, tuple[Home, ...]], TierSizes] = {}
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
    def layers(self) -> tuple[TierSizes, ...]:
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
    def outside(self) -> TierSizes:
        """Tensors of the modules before and after the layers by their home."""
        return self._of(-1, (*self._model.modules_before, *self._model.modules_after))

    def _of(self, number: int, modules: Layer) -> TierSizes:
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
    tensors: Mapping[Home, Iterable[int]], machine: Machine, *, ranks: int = 1, remedy: str = ""
) -> Iterator[Held]:
    """Yield what tensors of some sizes [B] need in their homes: of a GPU, of a host whose processes of all
    ``ranks`` have their own, and of a storage tier, which they share, one copy for each host with drives of
    its own. ``remedy`` is for host memory."""
    targets, hosts = machine.targets, machine.nodes_of(ranks)
    sums: dict[tuple[str, bool], list[int]] = {}
    for home, sizes in tensors.items():
        sums.setdefault((home.tier, home.pinned), []).extend(sizes)
    for (tier, pinned), sizes in sums.items():
        local = tier in targets and bool(targets[tier].drives)
        row = machine.row(tier)
        own = ranks if row.is_host else hosts if local else 1
        each = machine.ranks_per_node(ranks) if row.is_dram else own
        why = remedy if row.is_dram else ""
        yield Held(tier, "weights", each * sum(sizes), pinned, why, kind="weights")
        if pinned:
            yield Held(tier, ROUNDING, each * pinned_rounding(sizes), pinned, why)


# -- tunables --------------------------------------------------------------------------------------
# What planning may change of a program, and where a program keeps its states.
#
# Planning selects tunables by their purpose, and asks nothing else of a program before it changes it.


Purpose = Literal[
    "tier", "partition", "memory", "cache", "precision", "adapters", "setting", "division", "baseline"
]
"""What a tunable is for: more of the states on another ``tier``, or divided among the ranks (``partition``);
a setting that takes ``memory``; the placement of the key-value ``cache``; fewer bits (``precision``);
``adapters`` trained instead of the model; a ``setting`` that may make the run faster; and, of a program in
place of another one, the ``division`` of the weights between GPUs and a larger memory, and the ``baseline``
without offloading."""
TierChoice = Literal["any", "storage", "files"]
RESIDENT = "resident"
"""The target that is no tier but a full copy in each GPU, by plain transformers code."""
BEST = "best"
"""The kind that stands for the fastest of the programs that people use."""
Suits = Callable[[ModelShape, Machine], bool]
"""Function that returns whether people use a program for a model on a machine."""
WHOLE_COPIES = "a whole copy of {} in each GPU"
"""Phrase for that placement of {} in sentences."""


class Tunable(NamedTuple):
    """A Tunable is a series of changes of a program to try, in this order.

    The first one that suffices is used of the purposes ``tier``, ``partition``, ``memory`` and ``division``;
    of the others each change is an alternative of its own.
    """

    purpose: Purpose
    values: Iterable[Any]
    """The changes, or the values of which ``change`` makes them. They are a sequence for ``memory``, where
    from one value on all need little enough of what is too small, and for ``division``, where each keeps less
    on the GPUs than the one before."""
    change: Callable[[Any], Change] = lambda change: change
    """Function that makes a change of a value."""
    frees: str = ""
    """Word by which the remedies of a :class:`MemoryTerm` refer to the tunable."""

    @property
    def changes(self) -> Iterator[Change]:
        """All changes, made when they are asked for."""
        return map(self.change, self.values)


@dataclass(frozen=True)
class NamesTier:
    """A NamesTier in the type of a field says that its value names a tier of the machine."""

    choice: TierChoice


AnyTier = Annotated[str, Field(min_length=1), NamesTier("any")]
"""Type of a field that names a tier."""
StorageTier = Annotated[str, Field(min_length=1), NamesTier("files")]
"""Type of a field that names a tier of drives or servers, on which a program opens files."""


def _named(value: object) -> object:
    if not isinstance(value, str) or not value:
        raise PydanticCustomError("tier_type", "must be the name of a tier")
    return value


TierName = Annotated[str, BeforeValidator(_named), Field(min_length=1), NamesTier("any")]
"""Name of a tier of the platform, which only the machine can confirm."""


@cache
def tier_paths(section: type[BaseModel]) -> Mapping[str, TierChoice]:
    """Return the keys of a section that name tiers, then those of the sections in it: ``kv_cache.tier``.

    If each of the first is given, they name all tiers that a strategy uses.
    """
    found: dict[str, TierChoice] = {}
    inner: dict[str, TierChoice] = {}
    for key, field in section.model_fields.items():
        for part in (*field.metadata, *type_parts(field.annotation)):
            if isinstance(part, NamesTier):
                found[key] = part.choice
            elif isinstance(part, type) and issubclass(part, BaseModel):
                inner |= {f"{key}.{path}": choice for path, choice in tier_paths(part).items()}
    return found | inner


def type_parts(annotation: Any) -> Iterator[Any]:
    """Yield a type, the types of which it consists, and what is said of them."""
    yield annotation
    for part in get_args(annotation):
        yield from type_parts(part)


class Placement(NamedTuple):
    """A Placement names the tiers of a machine that hold weights and optimizer."""

    weights: str
    """Tier of the weights, or of the checkpoints if only checkpoints are simulated."""
    optimizer: str | None = None
    """Tier of the optimizer states; None if not specified."""

    def __str__(self) -> str:
        return self.weights if self.optimizer is None else f"{self.weights}+{self.optimizer}"


class MovablePart(NamedTuple):
    """A MovablePart is what a scenario keeps on a tier of its own beside the weights: a cache, a data set."""

    tier: str
    edits: Callable[[str], tuple[Edit, ...]]
    """Function that returns the edits to another tier."""
    choice: TierChoice = "any"


class Placements(NamedTuple):
    """Placements say where a program keeps its offloaded states on a machine, and where else it can; by
    default the weights are in HBM only."""

    now: Callable[[], Placement] = lambda: Placement("hbm")
    """Function that returns the present placement; it raises InputError if the machine has no such tier."""
    possible: tuple[Placement, ...] = (Placement("hbm"),)
    """All placements, as ``compare --on`` names them."""
    edits: Callable[[Placement], tuple[Edit, ...]] = lambda _: ()
    """Function that returns the edits to one of them, or to one that leaves its optimizer where it is;
    ``strategy.kind`` never changes."""
    refusal: str = "it has no other placement"
    """Reason against all other placements."""
    name: str = ""
    """Name in reports, if the tier of the weights does not identify the placement."""
    phrase: str = ""
    """Phrase for the placement of {} in sentences, such as "parts of {} in each GPU"."""
    storage: bool = False
    """Whether drives and servers that are bought can hold the states."""
    copied: bool = False
    """Whether every GPU has a full copy already."""
    no_copies: str = ""
    """Reason why a full copy in each GPU is not equivalent work."""
    kept: Mapping[str, Any] = MappingProxyType({})
    """Keys of the strategy that say what the work is, and that a full copy in each GPU keeps."""
    caveat: Callable[[str, int], str] = lambda _tier, _ranks: ""
    """Function from a tier and a number of ranks to what prevents a misreading after "weights on <tier>"."""
    allowing: Callable[[ModelShape, str, int], Iterable[tuple[Edit, ...]]] = lambda *_: [()]
    """Function that returns edits with which all states fit on a tier, divided among a number of ranks, of
    which the first one is used that the program does not refuse."""


def _nothing(*_changed: str) -> tuple[Edit, ...]:
    return ()


class SizeEdits(NamedTuple):
    """SizeEdits are the edits that change how much a program works on, with all settings that repeat it."""

    batch: Callable[[int], tuple[Edit, ...]]
    """Function that returns the edits to a number of sequences of a batch."""
    gpus: Callable[[int], tuple[Edit, ...]]
    """Function that returns the edits to a number of GPUs; none for a number that it cannot use."""
    along: Callable[..., tuple[Edit, ...]] = _nothing
    """Function that returns the edits that go along when keys of the workload, or the number of ranks,
    change: they remove settings that repeat it."""
    unit: int = 1
    """Number of sequences by which a batch grows, which is more than 1 if its parts keep their size."""
    divided: Callable[[int], tuple[tuple[Edit, ...], ...]] | None = None
    """Function that returns the edits to any number of sequences for each number of equal parts, the fewest
    first; None where ``batch`` has all."""

    @classmethod
    def of(cls, strategy: Strategy, along: Callable[..., tuple[Edit, ...]] = _nothing) -> SizeEdits:
        """Return those of a strategy whose ``ranks`` are its GPUs; none of these where they are a Literal."""
        fixed = get_origin(type(strategy).model_fields["ranks"].annotation) is Literal
        return cls(
            lambda count: (Edit.at("workload.batch_size", count), *along("batch_size")),
            lambda gpus: () if fixed else (Edit(("strategy", "ranks"), gpus), *along()),
            along,
        )


Tunables = Iterator[Placements | Tunable]
"""The placement of a program, and with a plan all that planning may change."""


def placements_of(strategy: Strategy, machine: Machine) -> Placements:
    """Return where a program keeps its states on a machine."""
    found = (one for one in strategy.tunables(machine) if isinstance(one, Placements))
    return next(found, Placements())


def moving(strategy: Strategy, placement: Placement, machine: Machine) -> tuple[Edit, ...]:
    """Return the edits that move the states of a program to another placement.

    Raises PlacementError if the program does not have it.
    """
    known = placements_of(strategy, machine)
    tiers = {one.weights for one in known.possible} if placement.optimizer is None else ()
    named, why = str(placement), known.refusal
    if placement.weights == RESIDENT:
        if not known.no_copies:
            section = {"kind": "transformers", "ranks": strategy.gpus, **known.kept}
            return () if known.copied else (Edit(("strategy",), section),)
        named, why = RESIDENT, known.no_copies
    elif placement in known.possible or placement.weights in tiers:
        return known.edits(placement)
    elif placement.optimizer and placement._replace(optimizer=None) in known.possible:
        why = "it has no optimizer; name the tier of the weights"
    raise PlacementError.at("strategy.kind", f'{strategy.kind} cannot be on "{named}": {why}')


def memory_tunables(
    word: str, path: tuple[str, ...], now: float | bool, *values: Sequence[float]
) -> Iterator[Tunable]:
    """Yield for each direction of a setting its other values, the nearest first."""

    def change(value: float) -> Change:
        how = ("set" if value else "unset") if isinstance(value, bool) else f"{now:,} → {value:,}"
        return Change("setting", f"{word} {how}", (Edit(path, value),))

    return (Tunable("memory", one, change, word) for one in values)


def uses_storage(plan: Plan) -> bool:
    """Whether states are on drives or servers, so that settings of reads matter."""
    return any(tier in plan.machine.targets for tier in state_tiers(plan))


# -- strategies and plans --------------------------------------------------------------------------


WorkloadKind = Literal["inference", "training", "checkpoint"]
SERVED, SERVED_OTHERS = "vllm", "vllm (others)"
"""Groups of the real runs of vLLM, all on one GPU, with which compiled serving is compared: of dense models
in 16 bits on the GPU, and of those with experts, fewer bits or weights in host memory."""
_Inference = Literal[
    "first pass", "prefill", "draft prefill", "draft", "decode", "load", "store", "allocation"
]
_Others = Literal["forward", "backward", "optimizer", "save", "restore"]
PhaseKind = Literal[_Inference, _Others]


class Earlier(NamedTuple):
    """The times of a phase that was already simulated."""

    time_s: float
    """Time from the phase's beginning to its end [s]."""
    repeat: Fraction = Fraction(1)
    """How often the phase occurs in one step."""
    unfinished_s: float = 0.0
    """Time [s] for which work of the phase continues after its end, such as an update on the CPU."""


@dataclass(frozen=True)
class Phase:
    """A Phase is a part of the work that begins and ends when the host waits for all streams."""

    name: str
    """Name of the phase in reports, unique in its plan."""
    kind: PhaseKind
    schedule: Callable[[Mapping[str, Earlier]], Schedule]
    """Function that builds the schedule from the times of the phases in ``depends_on``."""
    new_tokens: int = 0
    """Number of new tokens that each sequence feeds in."""
    context: int = 0
    """Number of tokens that the last new token attends to, including itself."""
    repeat: Fraction = Fraction(1)
    """How often the phase occurs in one step (inference: in one generation)."""
    depends_on: tuple[str, ...] = ()
    """Names of the phases whose times the schedule needs; without cycles."""
    ends_with: str | None = None
    """Stream whose end is the end of the phase, although others may continue."""
    background: bool = False
    """Whether training continues during the phase."""


@dataclass(frozen=True)
class PhaseSeries:
    """A PhaseSeries is a set of phases that differ only in their position, such as decode steps."""

    kind: PhaseKind
    steps: int
    """Number of phases in the series, numbered from 1."""
    step: Callable[[int], Phase]
    durations: Callable[[int], tuple[int, ...]]
    """Function from the number of a phase to the GPU time of each module [ps]."""
    cache_transfers: Callable[[int], tuple[int, ...]] = lambda _: ()
    """Function from its number to the bytes of cache updates; phases with equal times and bytes are equal."""
    times: int = 1
    """How often each occurs, such as the passes of a draft in a decode step."""


class EvidenceBasis(NamedTuple):
    """An EvidenceBasis says on which measured numbers and real runs the times of a plan rest."""

    host_costs: tuple[Provenance, ...] = ()
    """Costs of the host thread that stand for its speed: launches and hooks."""
    cpu_costs: tuple[Provenance, ...] = ()
    """Numbers that decide the work of the CPU, if that is not Adam's."""
    gpu_rates: tuple[Provenance, ...] = ()
    """Rates of the GPU's kernels that decide its time, if these are not PyTorch's."""
    evidence: str = ""
    """Group of the real runs that were like it, if more than the settings decides it."""
    uncompared: tuple[str, ...] = ()
    """What no real run did with which predictions were compared, each to follow "no real run"."""
    extrapolations: tuple[str, ...] = ()
    """Warnings about numbers used outside the range in which they were measured."""


class CacheGroups(NamedTuple):
    """CacheGroups are the equal groups of layers of which each has blocks of its own in a paged cache.

    A block has some tokens in the layers of one group, and all groups take theirs from one pool. A sequence
    keeps its blocks in groups with full attention, and in sliding groups those that its window reaches. That
    counts one more than need be where a window begins with a block, 1 in 9 for a window of 128 tokens.

    A block of recurrent layers has their states after its last token. They count as sliding groups: of a
    sequence the last block is kept, which a window of one token reaches; with prefix caching, that of two
    tokens, also the state where an earlier block ends, from which a sequence that shares the prefix goes on.

    Source: ``v1/core/kv_cache_utils.py`` and ``v1/core/single_type_kv_cache_manager.py`` of vLLM 0.25.1
    (``MambaManager`` in the mode ``align``).
    """

    full: int = 1
    """Number of groups with full attention, times their ``pages``."""
    sliding: int = 0
    """Number of groups with a sliding window, times their ``pages``."""
    window: int = 1
    """Tokens to which one attends in a sliding group."""
    step: int = 1
    """Most new tokens of a step; those before them leave the window when the next step begins."""
    size: int = 16
    """Tokens that a block holds."""
    pages: tuple[int, int] = (1, 1)
    """Blocks that count for one in each group, full and sliding: two in the kind of which a token takes twice
    as many bytes as in the other."""
    recurrent: bool = False
    """Whether the sliding groups are of recurrent layers."""

    @property
    def number(self) -> int:
        """Number of groups of both kinds together."""
        return self.full + self.sliding

    def caching(self) -> CacheGroups:
        """Return the groups of an engine that caches prefixes."""
        return self._replace(window=2) if self.recurrent else self

    def reach(self, size: int) -> int:
        """Return the most blocks of ``size`` tokens that a window touches."""
        return -(-(self.window - 1) // size) + 1

    def most(self, size: int, *, batches: int = 1) -> int:
        """Return the most blocks of ``size`` tokens in a sliding group that a sequence holds for which so
        many steps are scheduled at once."""
        return -(-(self.window - 1 + batches * self.step) // size) + 1

    def held(self, tokens: int, size: int) -> int:
        """Return the blocks of ``size`` tokens that a sequence holds whose tokens are computed."""
        blocks = -(-tokens // size)
        return self.full * blocks + self.sliding * min(blocks, self.reach(size))

    def peak(self, past: int, tokens: int, size: int) -> int:
        """Return the most blocks of ``size`` tokens that a sequence of ``tokens`` holds while those after the
        first ``past`` ones are computed, in as many steps as it takes."""
        blocks = -(-tokens // size)
        left = blocks - max(0, past - self.window + 1) // size
        most = self.window if self.recurrent else self.most(size)
        return self.full * blocks + self.sliding * min(blocks, most, max(left, self.reach(size)))


ONE_GROUP = CacheGroups()
"""The only group of a model with full attention in all layers."""


class ServingLimits(NamedTuple):
    """ServingLimits are those of an engine that serves a stream of requests on one replica."""

    tokens: int
    """Most tokens of a step (``max_num_batched_tokens``)."""
    sequences: int
    """Most sequences at once (``max_num_seqs``)."""
    blocks: int
    """Number of blocks of the key-value cache on each GPU."""
    block_size: int
    """Number of tokens of a block."""
    graphs: tuple[int, ...]
    """Batch sizes of which CUDA graphs are captured, up to which a step of fewer tokens is padded."""
    groups: CacheGroups = ONE_GROUP
    """Groups of layers that have blocks of their own."""
    room: int | None = None
    """Number of blocks for which each GPU has memory; None where it is not known."""

    @property
    def cache_tokens(self) -> int:
        """Number of tokens of short sequences that the cache holds; it holds more of those that are longer
        than a window."""
        return self.blocks // self.groups.number * self.block_size


class Plan(ABC):
    """A Plan is a strategy applied to a model, a workload and a machine: what tiers hold, and phases."""

    model: ModelShape
    machine: Machine
    warnings: tuple[str, ...]
    """Warnings that the user should read before the run."""
    saved: Plan | None = None
    """Plan of the checkpoints that the run saves; None if it saves none."""
    saves: ClassVar[bool] = False
    """Whether checkpoints of its runs are modelled."""

    @property
    @abstractmethod
    def held(self) -> Sequence[Held]:
        """What each tier holds for the run (functions of this module derive memory, targets and traffic)."""

    @property
    @abstractmethod
    def phases(self) -> tuple[Phase | PhaseSeries, ...]:
        """Phases in the order of reports; inference has a prefill and one series of decode steps."""

    @property
    def facts(self) -> Facts:
        """Properties of the run that are known without its times."""
        return Facts()

    @property
    def basis(self) -> EvidenceBasis:
        """Measured numbers and real runs on which its times rest."""
        costs = self.machine.host.deepspeed
        return EvidenceBasis(host_costs=(costs.linear_call, costs.hook))

    @property
    def serving_limits(self) -> ServingLimits | None:
        """Limits of the engine that runs the plan, if it serves streams of requests."""
        return None


class Drafting(NamedTuple):
    """A Drafting says which speculative decoding a program has."""

    methods: tuple[Method, ...] = ()
    """What proposes tokens, the first of them without a choice of the user."""
    vocabulary: int = 0
    """Most tokens by which the vocabularies of both models may differ."""
    one_sequence: bool = False
    """Whether it takes one sequence at a time only."""
    exported: bool = False
    """Whether the exported commands have it."""

    def problem(
        self, asked: Speculation, model: ModelShape, sequences: int, *, program: str
    ) -> tuple[str, str] | None:
        """Return the key and the text of what a ``program`` or a model has not of what is asked for; None if
        nothing is missing."""
        draft, key = model.draft_model, "workload.speculation"
        method = asked.method or ("mtp" if draft is None else "draft_model")
        if method not in self.methods:
            return key, f"{program} has no method {method}; it has {either(self.methods)}"
        if self.one_sequence and sequences > 1:
            text = (
                f"{program} verifies the tokens of one sequence at a time; set it to 1, or strategy.kind to"
            )
            return "workload.batch_size", f"{text} vllm or llama_cpp"
        if self.one_sequence and model.state_bytes:
            text = f"{program} does not take back what recurrent layers of {model.name} have seen; remove it"
            return key, f"{text}, or set strategy.kind to vllm or llama_cpp"
        if method == "draft_model" and draft is None:
            return key, "method draft_model needs a model that proposes tokens: name it in model.draft_model"
        if method == "mtp" and not model.predictors:
            text = f"{model.name} has no module that predicts further tokens (num_nextn_predict_layers)"
            return key, f"{text}; name a smaller model in model.draft_model, or set method to ngram"
        if draft is None:
            return None
        if method != "draft_model":
            return "model.draft_model", f"is not used by method {method}; remove one of both"
        if abs(draft.vocab_size - model.vocab_size) <= self.vocabulary:
            return None
        text = f"{draft.name} has {draft.vocab_size:,} tokens in its vocabulary, {model.name} has"
        text += f" {model.vocab_size:,}, and {program} verifies tokens of the same one"
        return "model.draft_model", f"{text}; name a model of the same family"


class ProgramTraits(NamedTuple):
    """The ProgramTraits are what is known of its program, whatever its settings are."""

    title: str = ""
    """Name of the program in sentences: "DeepSpeed ZeRO"; "" for that of ``kind``."""
    evidence: str | Callable[[Mapping[str, Any]], str] = ""
    """Group of the real runs with which its predictions were compared, or a function that returns it for the
    settings of a run; "" for none."""
    unseen: Mapping[str, tuple[Any, ...]] = {}
    """Values of settings with which no run of that group was made; None: without this key."""
    formats: tuple[str, ...] = ()
    """Formats with fewer bits in which the program loads weights, as ``model.quantization`` names them."""
    smaller: tuple[str, ...] = ()
    """Formats with still fewer bits, the largest first, for machines that have no room for any of these."""
    loads: Callable[[ModelShape], bool] = lambda _: True
    """Function that returns whether it loads a model as it is released; if not, one of its formats may be."""
    method: str = ""
    """Name of the method that partitions states among GPUs: "ZeRO", "FSDP"; "" for none."""
    gathers: str = ""
    """Name of the method by which each GPU gathers partitioned layers: "ZeRO-3"; "" for none."""
    files: Mapping[str, type[BaseModel]] = {}
    """Keys whose values may be paths of files, with the schema of those files."""
    gpu_keys: tuple[str, ...] = ("ranks",)
    """Keys that set the number of GPUs, the one to change first."""
    on_cpu: bool = False
    """Whether the CPU computes layers that the GPU has no room for."""
    rates_prompts: bool = False
    """Whether its users state the rate of prompts beside that of generation, as its own benchmark does."""
    spans_hosts: bool = True
    """Whether its processes may be on several hosts."""
    drafting: Drafting = Drafting()
    """Speculative decoding that it has."""
    measured_updates: bool = False
    """Whether its kernels that update states of recurrent layers were measured."""
    suits: Suits | None = None
    """Whether people use it for a model on a machine; None: only where it is named. Of a program of the
    package the registry says so."""


class Description(NamedTuple):
    """A Description says what the settings of a strategy make of its program."""

    program: str = ""
    """Program and version that read the files of ``exports``; "" without such files."""
    cache: str = "hbm"
    """Place, and what else is said, of the key-value cache."""
    cache_format: str = ""
    """Format of the cache; "" for the model's data type."""
    trains: str = "all weights"
    """Name of what training changes: all weights, or adapters."""
    on_gpus: bool = True
    """Whether GPUs compute, or the CPU alone."""


class Strategy(Frozen, ABC):
    """A Strategy defines what is offloaded, and how."""

    serves: ClassVar[frozenset[WorkloadKind]]
    """Kinds of workload that the strategy supports."""
    traits: ClassVar[ProgramTraits] = ProgramTraits()
    """What is known of its program, whatever its settings are."""

    kind: str
    ranks: Annotated[int, Field(strict=True, ge=1, le=65_536)] = 1
    """Number of ranks (processes), each with one GPU."""

    @classmethod
    def alternatives(cls, within: Mapping[str, Any]) -> tuple[type[Strategy], ...]:
        """Return the classes of all strategies, for documents that contain one of them: of a kind that has
        several, the one for the workload that is ``within`` the same document."""
        from simoffload.strategies.registry import kinds, strategy_of

        work = within.get("workload")
        work = work.get("kind") if isinstance(work, Mapping) else getattr(work, "kind", None)
        return tuple(one for kind in kinds() if (one := strategy_of(kind, work)))

    @property
    def parts(self) -> Mapping[str, MovablePart]:
        """What ``--on`` can move beside the weights, by name: "cache", "connector"."""
        return {}

    @classmethod
    def instead(
        cls, _other: Strategy, _model: ModelShape, _workload: Any, _machine: Machine, _gpus: int
    ) -> Iterator[tuple[Tunable, ...]]:
        """Yield what does the work of another strategy with this one: divisions of the weights between
        so many GPUs and other tiers, and the baseline without offloading that ``compare`` adds.

        Of each tuple of alternatives the first that fits is used.
        """
        return iter(())

    @property
    def gpus(self) -> int:
        """Number of GPUs that the processes use."""
        return self.ranks

    @property
    def replicas(self) -> int:
        """Number of data-parallel replicas, each of which processes ``batch_size`` sequences; all stages of a
        pipeline together are one replica."""
        return self.ranks

    @abstractmethod
    def plan(self, model: ModelShape, workload: Any, machine: Machine) -> Plan:
        """Apply the strategy. Raises InputError for missing hardware and for settings that the real program
        refuses."""

    @abstractmethod
    def tunables(self, machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield where the states are on a machine, and with a plan all that planning may change."""

    def sizes(self, _batch_size: int = 1) -> SizeEdits:
        """Return the edits that change how much it works on, which is a batch of so many sequences so far."""
        return SizeEdits.of(self)

    def filled(self, _model: ModelShape) -> tuple[Edit, ...]:
        """Return edits that complete a scenario that was made from the name of a model, without keys of
        ``strategy``."""
        return ()

    @property
    def description(self) -> Description:
        """What its settings make of the program, in words."""
        return Description()

    def exports(self, _plan: Any) -> dict[str, Any]:
        """Return configuration files with which real programs run the plan: content by name."""
        return {}
