"""Homes of tensors: which tier holds each tensor of a model's weights, and in which kind of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import Layer, ModelShape, Module
from simoffload.strategies.held import Held
from simoffload.strategies.memory import ROUNDING, pinned_rounding


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
