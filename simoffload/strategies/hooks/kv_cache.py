"""Hooks of a key-value cache that each layer updates in a pass: offloaded, or streamed from any tier."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

from simoffload.hardware import Path
from simoffload.schedule import Dependency, cache_route, way_of
from simoffload.strategies.cache_routes import CacheRoutes, TransferRoute
from simoffload.strategies.cache_updates import CacheStreams
from simoffload.strategies.kv_cache import KvCache
from simoffload.strategies.passes.pass_writer import COMPUTE, Call, Hook, Part, PassWriter, StagePass
from simoffload.strategies.streamed_cache import CacheUpdate
from simoffload.strategies.streams import HOST

Updates = Callable[[StagePass], Sequence[CacheUpdate | None]]
"""Function from what is written of a stage to what each of its layers moves."""


class MovedCache(Hook):
    """Keys and values of a layer move between the GPU and another tier when it computes attention."""

    def __init__(
        self,
        cache: KvCache,
        updates: Updates,
        *,
        gpus: Sequence[int] = (),
        main: int = 0,
    ) -> None:
        """``gpus``: the GPU of each layer, of a process that drives several; ``main``: that on which the
        cache's own streams are."""
        self.streams, self._tier = cache.streams, cache.tier
        self._updates_of, self._gpus, self._main = updates, gpus, main
        self._layer = -1

    def begin(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Find what each layer moves."""
        self._updates = self._updates_of(stage)

    def _update(self, layer: int) -> CacheUpdate | None:
        return self._updates[layer] if layer >= 0 else None

    def _following(self, layer: int) -> int:
        """Return the GPU of the next layer."""
        return self._gpus[(layer + 1) % len(self._gpus)] if self._gpus else 0

    def state(self, part: Part) -> Hashable:
        """Return what a layer moves, and to which GPU."""
        return (self._update(part.layer), self._following(part.layer)) if part.layer >= 0 else None

    def enter(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        """Note the layer."""
        self._layer = part.layer

    def kernels(self, call: Call, duration: int, after: tuple[Dependency, ...], out: PassWriter) -> bool:
        """Write attention with the update of the layer's cache."""
        update = self._update(self._layer) if call.module.kind == "attention" else None
        if update is None:
            return False
        to, first = self._following(self._layer), out.first
        prefetch = first + self.first
        fetching = prefetch if to == self._main or not self._gpus else first + COMPUTE + to
        update.write(
            out.builder,
            CacheStreams(first + HOST, first + COMPUTE + call.gpu, prefetch, fetching),
            CacheRoutes(out.builder, out.machine, update.tier, partial(self._route, out, call.gpu, to)),
            label=call.module.name,
            joining=out.now.timing.joining(update.joined, duration),
            duration=duration,
            after=after,
        )
        return True

    def _route(
        self, out: PassWriter, gpu: int, to: int, name: str, path_of: Callable[[int], Path], following: bool
    ) -> TransferRoute:
        """Return the route of the cache of every rank, or of one of the GPUs of a process, which read and
        write storage on one route."""
        if not self._gpus:
            return TransferRoute(name, *out.way((name,), path_of))
        path = path_of(to if following else gpu)
        if path.hops != path_of(self._main).hops:
            name = cache_route(f"{way_of(name)} {to if following else gpu}", self._tier)
        return TransferRoute(name, *out.way((name,), lambda _: path))
