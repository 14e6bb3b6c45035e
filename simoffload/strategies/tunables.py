"""Tunables: what planning may change of a program, and where a program keeps its states.

Planning selects tunables by their purpose, and asks nothing else of a program before it changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from simoffload.documents import Edit
from simoffload.errors import PlacementError
from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.results import Change
from simoffload.strategies.held import state_tiers

if TYPE_CHECKING:
    from simoffload.strategies.base import Plan, Strategy

Purpose = Literal[
    "tier", "partition", "memory", "cache", "precision", "adapters", "setting", "division", "baseline"
]
"""What a tunable is for: more of the states on another ``tier``, or divided among the ranks (``partition``);
a setting that takes ``memory``; the placement of the key-value ``cache``; fewer bits (``precision``);
``adapters`` trained instead of the model; a ``setting`` that may make the run faster; and, of a program in
place of another one, the ``division`` of the weights between GPUs and a larger memory, and the ``baseline``
without offloading."""
TierChoice = Literal["any", "storage"]
RESIDENT = "resident"
"""The target that is no tier but a full copy in each GPU, under the strategy of the same name."""
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
StorageTier = Annotated[str, Field(min_length=1), NamesTier("storage")]
"""Type of a field that names a tier of drives or servers."""


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
    caveat: Callable[[str, int], str] = lambda _tier, _ranks: ""
    """Function from a tier and a number of ranks to what prevents a misreading after "weights on <tier>"."""
    allowing: Callable[[ModelShape, str, int], Iterable[tuple[Edit, ...]]] = lambda *_: [()]
    """Function that returns edits with which all states fit on a tier, divided among a number of ranks, of
    which the first one is used that the program does not refuse."""


def _nothing(*_changed: str) -> tuple[Edit, ...]:
    return ()


class Sizes(NamedTuple):
    """Sizes are the edits that change how much a program works on, with all settings that repeat it."""

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
    def of(cls, strategy: Strategy, along: Callable[..., tuple[Edit, ...]] = _nothing) -> Sizes:
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
            return () if known.copied else (Edit(("strategy",), {"kind": RESIDENT, "ranks": strategy.gpus}),)
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
