"""All that a program from outside the package needs: a strategy made of fields, homes and hooks.

A program is one class that derives from ``HookedStrategy``: its fields are the keys of the section
``strategy``, ``homes`` says where each tensor is kept, and ``hooks`` lists what happens around the modules of
a pass. Memory, tiers, schedules and the key-value cache follow from them. ``register`` makes the program
known to every command, ``register_cache_format`` a format of the key-value cache. CONTRIBUTING has examples.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, get_args

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import QUANTIZATIONS, ModelShape, Module
from simoffload.results import Change
from simoffload.schedule import Cause, Dependency
from simoffload.strategies.base import (
    HBM,
    Held,
    Home,
    Homes,
    NamesTier,
    Placement,
    Placements,
    Plan,
    TierChoice,
    Tunable,
    Tunables,
    held_weights,
)
from simoffload.strategies.cache.kv_cache import DEFAULT, CachingStrategy, KvCache, register_cache_format
from simoffload.strategies.divided import Degrees
from simoffload.strategies.hooks.staging import Prefetched, ReadInPlace
from simoffload.strategies.passes.pass_writer import (
    COMPUTE,
    HOST,
    STAGING,
    Call,
    ForwardPass,
    Hook,
    Part,
    PassWriter,
    StagePass,
    parts_of,
)
from simoffload.strategies.plan import InferencePlan
from simoffload.strategies.registry import register
from simoffload.workload import Inference

__all__ = [
    "COMPUTE",
    "HBM",
    "HOST",
    "STAGING",
    "Call",
    "Cause",
    "Change",
    "Dependency",
    "Edit",
    "ForwardPass",
    "Held",
    "Home",
    "Homes",
    "Hook",
    "HookedPlan",
    "HookedStrategy",
    "InputError",
    "Machine",
    "ModelShape",
    "Module",
    "Part",
    "PassWriter",
    "Placement",
    "Placements",
    "Prefetched",
    "StagePass",
    "Tunable",
    "Tunables",
    "register",
    "register_cache_format",
]


# --------------------------------------------------------------------------------------------------
# Programs made of homes and hooks.
#
# A program states where each tensor is (``homes``) and lists its hooks (``hooks``). Memory, tiers, placements
# and schedules follow from both.


class HookedStrategy(CachingStrategy):
    """A HookedStrategy is a program of inference that its homes and its hooks describe completely.

    Each of its ``ranks`` processes has one GPU and a copy of the model. The section ``kv_cache`` places the
    key-value cache as transformers can, or streams it.
    """

    serves: ClassVar = frozenset({"inference"})
    traits: ClassVar = CachingStrategy.traits._replace(formats=tuple(QUANTIZATIONS))
    tier_keys: ClassVar[Mapping[str, TierChoice]] = {}
    """Keys that name tiers, the first one that of the weights: of ``any`` tier, of ``storage``, or
    of one with ``files``."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Give the fields of ``tier_keys`` the type of names of tiers. Raises ValueError for other keys."""
        if strange := cls.tier_keys.keys() - cls.model_fields.keys():
            raise ValueError(f"{cls.__qualname__}.tier_keys: it has no field {', '.join(sorted(strange))}")
        for key, choice in cls.tier_keys.items():
            if cls.model_fields[key].annotation not in (str, str | None):
                text = f"{cls.__qualname__}.tier_keys.{key}: its field is no text"
                raise ValueError(f"{text}; each of these keys names one tier")
            if choice not in get_args(TierChoice):
                text = f'"any", "storage" or "files", got {choice!r}'
                raise ValueError(f"{cls.__qualname__}.tier_keys.{key}: which tiers can it name? {text}")
            cls.model_fields[key].metadata.append(NamesTier(choice))

    @abstractmethod
    def homes(self, model: ModelShape, machine: Machine) -> Homes:
        """Return the home of each tensor. Raises InputError for what the program refuses."""

    @abstractmethod
    def hooks(self, plan: HookedPlan, forward: ForwardPass) -> Sequence[Hook]:
        """Return the hooks of a pass, without that of the cache."""

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> HookedPlan:
        """Apply the strategy. Raises InputError for what the program refuses."""
        homes, cache = self.homes(model, machine), self.cache_of(model, workload, machine)
        _expect(self.kind, "homes()", homes, Homes)
        for home in homes.all:
            if home.gpu:
                text = f"{self.kind} has one GPU in each process, and a home of it is on another one"
                raise InputError.at("strategy.kind", text)
            tier = machine.tiers.get(home.tier)
            if tier is None:
                text = f'"{home.tier}" is no tier of {machine.platform} (has: {", ".join(machine.tiers)})'
                raise InputError.at("strategy.kind", f"{self.kind} keeps weights there, and {text}")
            if home.in_place and not (tier.row.is_dram and home.pinned):
                text = f"reads weights on {home.tier} in place, but kernels read pinned host memory only"
                raise InputError.at("strategy.kind", f"{self.kind} {text}")
        if any(home.in_place for home in homes.outside):
            text = "reads embedding or head in place, but only layers are: keep these in HBM"
            raise InputError.at("strategy.kind", f"{self.kind} {text}")
        return HookedPlan(model, workload, machine, self, homes, cache)

    def tunables(self, machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield the tiers that its first key of tiers can name, none without such keys; and those of the
        cache."""
        key, *_ = *self.tier_keys, ""
        choice, fixed = self.tier_keys.get(key), "the homes of its tensors are fixed (no tier_keys)"
        tiers = [name for name, one in machine.tiers.items() if choice and one.row.chosen_by(choice)]

        def now() -> Placement:
            if not key:
                raise InputError.at("strategy.kind", f"{self.kind}: {fixed}")
            return Placement(getattr(self, key))

        def edits(placement: Placement) -> tuple[Edit, ...]:
            return () if placement == now() else (Edit(("strategy", key), placement.weights),)

        yield Placements(
            now=now,
            possible=tuple(map(Placement, tiers)),
            edits=edits,
            refusal=f"{key} can be {', '.join(tiers) or 'no tier of it'}" if key else fixed,
            storage=bool(key),
        )
        if plan is None:
            return
        for name in sorted(tiers, key=lambda one: machine.tiers[one].capacity):
            if found := edits(Placement(name)):
                yield Tunable("tier", [Change("tier", f"weights on {name}", found)])
        yield from self.cache_tunables(plan)


@dataclass(frozen=True)
class HookedPlan(InferencePlan):
    """A HookedPlan is the plan of a program made of homes and hooks."""

    model: ModelShape
    workload: Inference
    machine: Machine
    strategy: HookedStrategy
    homes: Homes
    cache: KvCache = DEFAULT
    warnings: tuple[str, ...] = ()

    @property
    def degrees(self) -> Degrees:  # type: ignore[override]  # given by the number of processes
        """Numbers of parts, stages and replicas: every process has a replica."""
        return Degrees(1, 1, self.strategy.ranks)

    @cached_property
    def _parts(self) -> tuple[tuple[Part, ...], ...]:
        """Parts of a pass, in which the GPUs of the homes compute."""
        return (parts_of(self.stages[0], lambda layer, module: self.homes.home(layer, module).gpu),)

    @property
    def held_weights(self) -> Iterator[Held]:
        """Weights in the homes of their tensors."""
        return held_weights(self.homes.all, self.machine, ranks=self.strategy.ranks)

    def weights_hooks(self, forward: ForwardPass) -> Sequence[Hook]:
        """Return the hooks of the strategy, and that of the weights that are read in place."""
        found = self.strategy.hooks(self, forward)
        _expect(self.strategy.kind, "hooks()", found, Sequence)
        for one in found:
            _expect(self.strategy.kind, "each of hooks()", one, Hook)
            if isinstance(one, Prefetched):
                one.memories = [tier.name for tier in self.machine.tiers.values() if tier.row.is_memory]
        away = [home.tier for home in self.homes.all if home.tier != HBM.tier and not home.in_place]
        if away and not found:
            text = f"keeps weights on {away[0]}, and has no hook that brings them: add Prefetched(plan.homes)"
            raise InputError.at("strategy.kind", f"{self.strategy.kind} {text}")
        inside = self.homes.in_place
        return (*found, ReadInPlace(self.model, (inside,))) if inside else tuple(found)


def _expect(kind: str, what: str, found: object, wanted: type) -> None:
    """Raise InputError unless a method of a program returned what it should."""
    if not isinstance(found, wanted):
        text = f"{what} of {kind} must be of type {wanted.__name__}, got {type(found).__name__}"
        raise InputError.at("strategy.kind", text)
