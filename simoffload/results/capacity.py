"""Memory capacity: whether each tier can hold what a run needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from simoffload.brief import brief
from simoffload.documents import Edit
from simoffload.hardware import TIER_KINDS, Tier, TierKind, in_hbm
from simoffload.results.metrics import by_name
from simoffload.units import formatted_apart

if TYPE_CHECKING:
    from simoffload.results.training import StorageRequests

ADDED = "added for comparison"
"""Beginning of the remark on a result that nobody asked for."""


HeldKind = Literal["weights", "optimizer", "cache", "activations", "checkpoints", "staging", "working"]
"""What is held: states that have their home on a tier, what is staged on its way to a GPU, or what is needed
for work beside both."""


class MemoryTerm(NamedTuple):
    """A MemoryTerm is one part of the memory that a tier must hold."""

    tier: str
    name: str
    size: int
    """[B] per GPU on the tier "hbm", per host on "dram", of the whole target on other tiers."""
    pinned: bool = False
    """Whether the term is page-locked host memory."""
    remedy: str = ""
    """Setting that makes the term smaller, other than a different tier for the weights."""
    once: bool = False
    """Whether the term exists only in the first step."""
    spare: bool = False
    """Whether the program leaves the memory free."""
    kind: HeldKind = "working"


_NARROW = 0.02
"""Free fraction of a GPU's memory below which a run may fail although it fits: drivers differ by 0.6 %, the
memory of CUDA's context and libraries, an estimate, by about 1 % of a large GPU, and the allocator's blocks
leave gaps. Our choice."""


class MemoryStage(NamedTuple):
    """A MemoryStage lists the memory terms of all tiers at one stage of a run."""

    name: str
    """Name of the stage: "initialisation", "forward and backward", "optimizer step", …"""
    terms: tuple[MemoryTerm, ...]
    once: bool = False
    """Whether the stage precedes the first step."""


class CacheBlocks(NamedTuple):
    """CacheBlocks are the blocks of a paged key-value cache that each GPU has."""

    number: int
    """Number of blocks on each GPU."""
    size: int
    """Number of tokens of a block, in the layers of one group."""
    tokens: int
    """Number of tokens, of all sequences of one replica together, whose keys and values they hold."""
    utilization: float
    """Fraction of the GPU's memory that the program fills."""
    stated: bool
    """Whether the user states the number; otherwise it is what all other parts leave of that memory."""
    groups: int = 1
    """Number of groups of layers that have blocks of their own."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return by_name(
            self, "blocks=number block_tokens=size tokens gpu_memory_utilization=utilization stated"
        )


class Estimate(NamedTuple):
    """An Estimate is the memory of a training run according to a published rule of thumb."""

    name: str
    per_host: int | None
    """[B] of host memory on every node; None if the estimator does not give it."""
    per_gpu: int | None
    """[B]"""
    total: int | None
    """Memory over all hosts [B], for estimators that give only this."""
    formula: str
    """Formula in one line: P parameters, L of the largest module, n nodes, g GPUs per node, G in all."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts are the properties of a run that are known before its simulation."""

    spread_bound: float | None = None
    """Upper bound of the decode throughput [tokens/s]; None unless GPUs gather weights from HBM
    (``spread_bound``)."""
    forward_flops: float = 0.0
    """Forward passes of one step on one GPU [FLOP]."""
    backward_flops: float = 0.0
    """Backward passes of one step on one GPU, without recomputation [FLOP]."""
    recomputed_flops: float = 0.0
    """Recomputation by checkpointing in one step on one GPU [FLOP]."""
    requests: tuple[StorageRequests, ...] = ()
    """Full-size requests to storage up to the end of the first step; () if there are none."""
    estimates: tuple[Estimate, ...] = ()
    """Memory estimates by published rules of thumb; () if none applies to the strategy."""
    cache_blocks: CacheBlocks | None = None
    """Blocks of a paged cache for which a GPU has memory; None without one."""
    chunks: int = 1
    """Number of parts in which a prefill is computed, one after the other."""
    weight_moves: int = 0
    """How often a prefill moves weights outside HBM to the GPU; 0: none are there, or this is not counted."""
    first_pass: str = ""
    """Why the first pass after loading takes longer than later ones, as a clause; "" where it does not."""
    hypothetical: str = ""
    """What the plan does that no program does, as a clause; "" for the plan of a program."""

    def what_if(self, clause: str) -> Facts:
        """Return the facts of a plan that also does what a clause says, which no program does."""
        return replace(self, hypothetical="; ".join(filter(None, (clause, self.hypothetical))))


class TierUse(NamedTuple):
    """A TierUse compares the peak need of a tier with its capacity."""

    tier: str
    kind: str
    """Name of the kind of the tier."""
    scope: str
    """Scope of ``needed`` and ``capacity``: "per GPU", "per host" or "in all"."""
    needed: int
    """[B]"""
    capacity: int
    """[B]"""
    terms: tuple[MemoryTerm, ...]
    stage: str = ""
    """Stage of the run with the largest need; "" if there is only one."""
    passing: int = 0
    """Part of the need that is released after the first step [B]."""

    def __repr__(self) -> str:
        return brief(self)

    @property
    def row(self) -> TierKind:
        """What the tier can do."""
        return TIER_KINDS[self.kind]

    @property
    def steady(self) -> int:
        """[B] that the tier holds at most from the second step on."""
        return self.needed - self.passing

    @property
    def fits(self) -> bool:
        """Whether the need is within the capacity."""
        return self.needed <= self.capacity

    @property
    def headroom(self) -> int:
        """[B] that are free; negative if it does not fit."""
        return self.capacity - self.needed

    @property
    def free(self) -> int:
        """[B] that are not used, with those that the program leaves free."""
        return self.headroom + sum(term.size for term in self.terms if term.spare)

    @property
    def narrow(self) -> str:
        """Sentence about memory of a GPU that fits with little to spare; "" for any other."""
        share, of_gpu = self.free / self.capacity, any(in_hbm(term.tier) for term in self.terms)
        if not of_gpu or not self.fits or share >= _NARROW:
            return ""
        free = f"{self.tier} fits with {self.free / (1 << 20):,.0f} MiB free {self.scope} ({share:.1%})"
        text = "a driver that keeps more, or gaps between allocations, may make it run out of memory"
        return f"{free.replace('%', ' %')}: {text}"

    def sentence(self) -> str:
        """Return a sentence about a tier that is too small."""
        needed, has = formatted_apart(self.needed, self.capacity, binary=self.row.is_memory)
        return f"{self.tier} needs {needed} {self.scope}, has {has}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; sizes are in bytes."""
        sizes = "needed_bytes=needed steady_bytes=steady capacity_bytes=capacity headroom_bytes=headroom"
        return {
            **by_name(self, f"tier kind scope {sizes} fits"),
            **({"stage": self.stage} if self.stage else {}),
            "terms": [by_name(term, "name bytes=size pinned") for term in self.terms],
        }


class Change(NamedTuple):
    """A Change is a set of edits of a scenario with a description: an alternative that ``fit`` or ``advise``
    tries."""

    kind: str
    """Kind of change. ``fit`` changes "tier", "stage", "setting", "batch", "context", "precision",
    "strategy", "gpus", "machines", "capacity" or "lora", several with " + " between; ``advise`` changes
    "hardware", "placement", "workload" or "setting"."""
    description: str
    """Description such as "batch 16 → 11 on each GPU"; empty for the unchanged scenario."""
    edits: tuple[Edit, ...] = ()
    uses: tuple[TierUse, ...] = ()
    """Peak use of each tier with the change; empty where it was not calculated."""
    key: str = ""
    """Short name, unique among the changes of ``advise``, from which file names are made."""
    priced: bool = True
    """Whether the price of the change is known."""
    quality: str = ""
    """What is known of answers that the change alters (``quality``), as with fewer bits for weights or cache,
    or adapters that are trained instead of the model; empty if they stay the same."""
    barred: str = ""
    """Reason why the change is impossible; empty if it is possible."""

    def __repr__(self) -> str:
        return brief(self)

    def with_(self, other: Change) -> Change:
        """Return one change with the edits of this one and of another one."""
        kind = self.kind if self.kind == other.kind else f"{self.kind} + {other.kind}"
        description, edits = f"{self.description}, {other.description}", (*self.edits, *other.edits)
        return Change(kind, description, edits, quality=_joined(self.quality, other.quality))

    def followed_by(self, other: Change) -> Change:
        """Return the change that makes this one and then ``other``, whose memory it leaves."""
        joined = self.with_(other)
        return other._replace(
            kind=f"{self.kind} + {other.kind}",
            description=f"{self.description}, and {other.description}",
            edits=joined.edits,
            quality=joined.quality,
        )

    def of_quality(self, texts: str) -> Change:
        """Return the change with what else is known of the answers that it alters."""
        return self._replace(quality=_joined(self.quality, texts))

    @property
    def same_work(self) -> bool:
        """Whether the answers, or in training the model, stay the same."""
        return not self.quality

    @property
    def rank(self) -> int:
        """Place among other changes, whatever they gain: those that keep the answers come first."""
        return 0 if self.same_work else 1

    @property
    def assignments(self) -> tuple[str, ...]:
        """Edits in the form of arguments of ``--set``."""
        return tuple(one.assignment for one in self.edits)

    @property
    def sets_program(self) -> bool:
        """Whether the change sets what a user types: a setting, another program, or another form of the
        weights."""
        return self.kind == "setting" or any(
            one.path == ("strategy",) or one.path[0] == "model" for one in self.edits
        )

    @property
    def tightest(self) -> TierUse:
        """Tier with the smallest free fraction once the change is made."""
        return min(self.uses, key=lambda use: use.headroom / use.capacity)


class ProgramRate(NamedTuple):
    """A ProgramRate is one way to do the work of a scenario, with the rate of its best form."""

    kind: str
    title: str
    """Name of the program in sentences."""
    tokens_per_s: float | None
    """Throughput of all sequences together; None if it does not fit."""
    edits: tuple[Edit, ...] = ()
    """Edits that lead to it from the scenario for which a program was chosen."""
    where: str = ""
    """Tier of the weights, if it is not HBM."""


class ProgramChoice(NamedTuple):
    """A ProgramChoice says how the program of a scenario was chosen."""

    programs: tuple[ProgramRate, ...]
    """Programs that were simulated, the fastest first, which is the one of the scenario."""
    named: str = ""
    """What limited the choice, such as "weights on nvme"; "" for nothing."""
    without: ProgramRate | None = None
    """What would be faster without that limit; None if nothing would."""
    among: tuple[str, ...] = ()
    """Kinds of the programs that were named; empty if all that people use were tried."""
    untried: tuple[str, ...] = ()
    """Names of programs that a limit of time, memory or operations left out."""

    def __repr__(self) -> str:
        return brief(self)


def _joined(*texts: str) -> str:
    return "; ".join(dict.fromkeys(filter(None, texts)))


class Remedies(NamedTuple):
    """Remedies are the smallest changes that make a scenario fit, and the changes that were tried to find
    them."""

    changes: tuple[Change, ...]
    tried: tuple[str, ...]
    """Descriptions of the tried changes, each listed once."""
    barred: tuple[str, ...] = ()
    """Sentences about changes that would help but are impossible, with the reason."""
    stopped: str = ""
    """The limit that kept it from trying more; empty if none was reached."""

    def __repr__(self) -> str:
        return brief(self)


def tier_uses(terms: Iterable[MemoryTerm], tiers: Mapping[str, Tier]) -> tuple[TierUse, ...]:
    """Group the terms by tier, in the order of the machine's tiers; tiers without terms are left out.

    Terms of a tier that has no memory of its own are counted on the tier whose memory it is (``Tier.pool``).
    """
    terms = tuple(terms)
    pools = {name: tier.pool or name for name, tier in tiers.items()}
    uses = []
    for name, tier in tiers.items():
        mine = tuple(term for term in terms if pools.get(term.tier) == name and term.size)
        if mine:
            needed = sum(term.size for term in mine)
            passing = sum(term.size for term in mine if term.once)
            scope = tier.row.scope
            uses.append(TierUse(name, tier.kind, scope, needed, tier.capacity, mine, passing=passing))
    return tuple(uses)


def peak_uses(memory_stages: Iterable[MemoryStage], tiers: Mapping[str, Tier]) -> tuple[TierUse, ...]:
    """Return, for each tier, the largest need over all stages and the need from the second step on.

    If several stages need the same, the first one is named.
    """
    largest: dict[str, TierUse] = {}
    steady: dict[str, int] = {}
    for moment in memory_stages:
        for use in tier_uses(moment.terms, tiers):
            if use.tier not in largest or use.needed > largest[use.tier].needed:
                largest[use.tier] = use._replace(stage=moment.name)
            if not moment.once:
                steady[use.tier] = max(use.steady, steady.get(use.tier, 0))
    peaks = (largest[name] for name in tiers if name in largest)
    return tuple(use._replace(passing=use.needed - steady.get(use.tier, 0)) for use in peaks)
