"""Programs made of homes and hooks: all that a strategy needs which is not more than its hooks.

A program states where each tensor is (``homes``) and lists its hooks (``hooks``). Memory, tiers, placements
and schedules follow from both.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.models.quantization import QUANTIZATIONS
from simoffload.strategies.base import Placement, refused
from simoffload.strategies.cache.kv_cache import DEFAULT, CachingStrategy, KvCache
from simoffload.strategies.divided import Degrees
from simoffload.strategies.held import Held
from simoffload.strategies.homes import Homes, held_weights
from simoffload.strategies.passes.pass_writer import ForwardPass, Hook
from simoffload.strategies.plan import InferencePlan
from simoffload.workload import Inference


class HookedStrategy(CachingStrategy):
    """A HookedStrategy is a program of inference that its homes and its hooks describe completely.

    Each of its ``ranks`` processes has one GPU and a copy of the model. The section ``kv_cache`` places the
    key-value cache as transformers can, or streams it.
    """

    serves: ClassVar = frozenset({"inference"})
    formats: ClassVar = tuple(QUANTIZATIONS)

    @abstractmethod
    def homes(self, model: ModelShape, machine: Machine) -> Homes:
        """Return the home of each tensor. Raises InputError for what the program refuses."""

    @abstractmethod
    def hooks(self, plan: HookedPlan, forward: ForwardPass) -> Sequence[Hook]:
        """Return the hooks of a pass, without that of the cache."""

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> HookedPlan:
        """Apply the strategy. Raises InputError for what the program refuses."""
        homes, cache = self.homes(model, machine), self.cache_of(model, workload, machine)
        for home in homes.all:
            tier = machine.tiers.get(home.tier)
            if tier is None:
                text = f'"{home.tier}" is no tier of {machine.platform} (has: {", ".join(machine.tiers)})'
                raise InputError.at("strategy.kind", f"{self.kind} keeps weights there, and {text}")
            if home.in_place and tier.kind != "dram":
                text = f"{self.kind} reads weights on {home.tier} in place, but kernels read host memory only"
                raise InputError.at("strategy.kind", text)
        return HookedPlan(model, workload, machine, self, homes, cache)

    def places(self, machine: Machine) -> Placement:
        """Return the tier that the first of its keys of tiers names; without such keys, host memory."""
        named = [getattr(self, key) for key in self.tier_keys]
        return Placement(next((one for one in named if one in machine.tiers), "dram"))

    def placements(self, machine: Machine) -> tuple[Placement, ...]:
        """Return the tiers that its first key of tiers can name."""
        key = next(iter(self.tier_keys), None)
        if key is None:
            return (self.places(machine),)
        only = self.tier_keys[key] == "storage"
        return tuple(Placement(name) for name, one in machine.tiers.items() if one.is_storage or not only)

    def retarget(self, placement: Placement, machine: Machine) -> tuple[Edit, ...]:
        """Return the edit that names another tier. Raises PlacementError if the program has no such key."""
        if placement == self.places(machine):
            return ()
        if placement not in self.placements(machine):
            raise refused(placement, self.kind, f"it keeps weights on {self.places(machine).weights}")
        return (Edit(("strategy", next(iter(self.tier_keys))), placement.weights),)


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

    @property
    def held_weights(self) -> Iterator[Held]:
        """Weights in the homes of their tensors."""
        return held_weights(self.homes.all, copies=self.machine.ranks_per_node(self.strategy.ranks))

    def weights_hooks(self, forward: ForwardPass) -> Sequence[Hook]:
        """Return the hooks of the strategy."""
        return self.strategy.hooks(self, forward)
