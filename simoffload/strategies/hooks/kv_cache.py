"""Hooks of a key-value cache that each layer updates in a pass: offloaded to host memory, or streamed.

*Offloaded*: transformers 5.23.0, ``Cache.update`` of ``cache_utils.py``. When layer l adds keys and values,

1. the compute stream waits for the prefetch stream, so that the cache of layer l is there;
2. the prefetch stream waits for the compute stream, and then copies the cache of the next offloaded layer to
   the GPU; the last layer does so for the first one of the next pass;
3. the compute stream joins the cached and the new tokens (dynamic: ``torch.cat``; static: in place);
4. the compute stream copies the whole result to host memory, before the kernels of attention.

Both copies are of pinned memory, and nothing blocks the host thread.

*Streamed*: what no program has (``streamed_cache``). Copies, reads and writes have a stream each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from simoffload.schedule import Dependency, OpKind
from simoffload.strategies.cache.cache_updates import CACHE_LABEL, LayerUpdate
from simoffload.strategies.cache.kv_cache import KvCache
from simoffload.strategies.cache.streamed_cache import CacheUpdate, StreamedUpdate, on_tier
from simoffload.strategies.passes.pass_writer import COMPUTE, Call, Hook, Part, PassWriter, StagePass
from simoffload.strategies.passes.streams import DEPTH, HOST, REQUEST
from simoffload.strategies.passes.timing import copy_cause

Updates = Callable[[StagePass], Sequence[CacheUpdate | None]]
"""Function from what is written of a stage to what each of its layers moves."""


class MovedCache(Hook):
    """Keys and values of a layer move between the GPU and another tier when it computes attention."""

    def __init__(self, cache: KvCache, updates: Updates, *, gpus: Sequence[int] = (), main: int = 0) -> None:
        """``gpus``: the GPU of each layer, of a process that drives several; ``main``: that on which the
        cache's own streams are."""
        self.streams, self._tier = cache.streams, cache.tier
        self._updates_of, self._gpus, self._main = updates, gpus, main

    def begin(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Find what each layer moves; if some are left out, the last one is still that of the model."""
        updates, last = self._updates_of(stage), max(part.layer for part in stage.parts)
        self._updates = (*updates[:last], updates[-1]) if last >= 0 else ()

    def state(self, part: Part) -> Hashable:
        """Return what a layer moves, and to which GPU."""
        return (self._updates[part.layer], self._following(part.layer)) if part.layer >= 0 else None

    def _following(self, layer: int) -> int:
        """Return the GPU of the next layer."""
        return self._gpus[(layer + 1) % len(self._gpus)] if self._gpus else self._main

    def enter(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        """Note what the layer moves."""
        self._now = self._updates[part.layer] if part.layer >= 0 else None
        self._to = self._following(part.layer)

    def kernels(self, call: Call, duration: int, after: tuple[Dependency, ...], out: PassWriter) -> bool:
        """Write attention with the update of the layer's cache."""
        if self._now is None or call.module.kind != "attention":
            return False
        if isinstance(self._now, LayerUpdate):
            self._offloaded(self._now, call, duration, after, out)
        else:
            self._streamed(self._now, call, duration, after, out)
        return True

    # -- offloaded ------------------------------------------------------------------------------

    def _offloaded(
        self, update: LayerUpdate, call: Call, duration: int, after: tuple[Dependency, ...], out: PassWriter
    ) -> None:
        """Write the copies of the next layer's cache and of this one's, and what joins it with new tokens.

        The prefetch stream is one of the main GPU (``torch.Stream()``), so that copies to another one are on
        its compute stream. ``duration`` includes the time of joining.
        """
        compute, prefetch, to = COMPUTE + call.gpu, self.first, self._to
        host, joining = out.so_far(HOST), out.now.timing.joining(update.joined, duration)
        ahead = bool(update.fetched) and to == self._main
        if update.fetched:
            behind = out.so_far(HOST, compute) if ahead else host
            stream = prefetch if to == self._main else COMPUTE + to
            self._copy(stream, update.fetched, behind, to, out, to_device=True)
        # The copy that the layer before has begun; in the first layer the pass before has.
        own = Dependency(out.first + prefetch, 1 if ahead else 0)
        out.add("compute", compute, fixed=joining, label="torch.cat", after=(*after, own))
        if update.stored:  # a layer with a window of one token keeps none
            self._copy(compute, update.stored, host, call.gpu, out, to_device=False)
        out.add("compute", compute, fixed=duration - joining, after=host)

    # -- streamed -------------------------------------------------------------------------------

    def _streamed(
        self,
        update: StreamedUpdate,
        call: Call,
        duration: int,
        after: tuple[Dependency, ...],
        out: PassWriter,
    ) -> None:
        """Write the loads ahead, attention of ``duration`` [ps], and the stores behind it."""
        load, store = (Dependency(out.first + self.stream(one)) for one in ("load", "store"))
        ahead = update.following is not None
        if update.own is not None:
            self._load(update.own, call.gpu, out, ahead=False)
        if update.following is not None:
            self._load(update.following, self._to, out, ahead=True)
        # The layer is there; and the new tokens of the layer before the last one have left their place.
        waits = (load._replace(back=int(ahead)), store._replace(back=1))
        out.add("compute", COMPUTE + call.gpu, fixed=duration, after=(*after, *waits))
        computed = Dependency(out.first + COMPUTE + call.gpu)
        if "write" not in self.streams:
            self._copy(self.stream("store"), update.stored, (computed,), call.gpu, out, to_device=False)
            return
        write = Dependency(out.first + self.stream("write"), 1)
        self._copy(self.stream("store"), update.stored, (computed, write), call.gpu, out, to_device=False)
        self._file("write", update.stored, store, out, latency=update.first)

    def _load(self, sizes: Sequence[int], gpu: int, out: PassWriter, *, ahead: bool) -> None:
        """Load a layer: the next one, if ``ahead``, into the place of the layer before this one."""
        after = [Dependency(out.first + self.stream("store"))] if ahead else []
        if "read" in self.streams:
            # A buffer is free again when the layer before the last one has left it.
            left = Dependency(out.first + self.stream("load"), 1)
            self._file("read", sizes, left, out, latency=not ahead)
            after.append(Dependency(out.first + self.stream("read")))
        self._copy(self.stream("load"), sizes, tuple(after), gpu, out, to_device=True)

    def _file(
        self, kind: OpKind, sizes: Sequence[int], after: Dependency, out: PassWriter, *, latency: bool
    ) -> None:
        """Read or write files. The latency shows once: requests of two layers are in flight at a time."""
        stored, written = out.machine.tiers[self._tier].is_storage, kind == "write"
        size, fixed, route = on_tier(sizes, paged=stored), 0, -1
        if size:
            block = min(size, REQUEST)
            in_flight = DEPTH * block if written else min(2 * size, DEPTH * block)
            route, fixed = out.file(
                self._tier, size, block=block, in_flight=in_flight, written=written, cache=self._tier
            )
        fixed = fixed if latency else 0
        stream = self.stream("write" if written else "read")
        out.add(kind, stream, fixed=fixed, size=size, route=route, label=CACHE_LABEL, after=(after,))

    # -- both -----------------------------------------------------------------------------------

    def _copy(
        self,
        stream: int,
        sizes: Sequence[int],
        after: tuple[Dependency, ...],
        gpu: int,
        out: PassWriter,
        *,
        to_device: bool,
    ) -> None:
        route, fixed = self._link(sizes, gpu, out, to_device=to_device) if sizes else (-1, 0)
        size = sum(sizes)
        out.add("copy", stream, fixed=fixed, size=size, route=route, label=CACHE_LABEL, after=after)

    def _link(self, sizes: Sequence[int], gpu: int, out: PassWriter, *, to_device: bool) -> tuple[int, int]:
        """Return route and latency [ps] of copies between a GPU and host memory; GPUs of one process whose
        links differ have routes of their own."""
        if not self._gpus:
            return out.copies(sizes, to_device=to_device, pinned=True, cache=self._tier)
        reach = out.machine.host_to_device if to_device else out.machine.device_to_host
        path, cause = reach(gpu, pinned=True), copy_cause(to_device=to_device, pinned=True)
        if path.hops != reach(self._main, pinned=True).hops:
            cause = cause._replace(gpus=(gpu,))
        return out.transfers(cause.of_cache(self._tier), lambda _: path, sizes)
