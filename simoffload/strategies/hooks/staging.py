"""Hooks for weights that are not on the GPU: layers are brought some layers ahead, or read where they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from typing import NamedTuple

from simoffload.models import ModelShape, Module
from simoffload.schedule import Cause
from simoffload.strategies.base import HBM, Held, Homes
from simoffload.strategies.passes.pass_writer import HOST, STAGING, Call, Hook, Part, PassWriter


class Prefetched(Hook):
    """Layers are brought to the GPU a number of layers ahead, as soon as the layer before the present one has
    been computed; what is outside of the layers, when the part begins that uses it.

    Reads of files begin as soon as the host thread is there and one of the two buffers is free. A copy from
    pageable memory takes the host thread, which launches the kernels of the present layer after
    it, so that such a copy is hidden by no computation, however far ahead.
    """

    streams = STAGING
    memories: Collection[str] = ()
    """Tiers that are memory of the machine, set by the plan: of what is there no buffers are needed."""

    def __init__(self, homes: Homes, *, ahead: int = 1) -> None:
        if ahead < 0:
            raise ValueError(f"ahead is the number of layers that are brought ahead, from 0; got {ahead}")
        self._homes, self._ahead = homes, ahead

    def state(self, part: Part) -> Hashable:
        """Return the homes and sizes of what is brought in a part."""
        return (part.layer == 0, *map(id, self._brought(part.layer))) if part.layer >= 0 else None

    def _brought(self, layer: int) -> Iterator[object]:
        layers = self._homes.layers
        first = 0 if layer == 0 else layer + self._ahead
        yield from layers[first : layer + self._ahead + 1]

    def enter(self, part: Part, out: PassWriter) -> None:
        """Bring the first layers, or the one that is the number of layers ahead."""
        layers, at = self._homes.layers, part.layer
        if at < 0:
            for call in part.calls:
                out.stage(self, self._homes.sizes(call.module), self._homes.home(at, call.module))
            return
        first = 0 if at == 0 else at + self._ahead
        for layer in range(first, min(at + self._ahead + 1, len(layers))):
            for home, sizes in layers[layer].items():
                if layer == at:  # into the place of the layer before
                    out.stage(self, sizes, home, after=out.on_gpu())
                else:
                    out.stage(self, sizes, home, layer=layer, after=out.on_gpu())

    def holds(self) -> Iterator[Held]:
        """Yield room on the GPU for the layers in flight, and two pinned buffers for those in files."""
        layers, outside = self._homes.layers, self._homes.outside
        brought = [
            sum(sum(sizes) for home, sizes in one.items() if home.tier != HBM.tier and not home.in_place)
            for one in (*layers, outside)
        ]
        if alone := brought.pop():
            yield Held("hbm", "embedding and head on their way", alone, kind="staging")
        if most := max(brought, default=0):
            number = min(1 + self._ahead, sum(map(bool, brought)))
            yield Held("hbm", "layers on their way", number * most, kind="staging")
        stored = [
            sum(sum(sizes) for home, sizes in one.items() if not (home.mapped or home.tier in self.memories))
            for one in (*layers, outside)
        ]
        if most := max(stored, default=0):
            name = "buffers of layers on their way"
            yield Held("dram", name, 2 * most, pinned=True, kind="staging")


_EXPERT_ROWS = 128
"""Most tokens of an expert for which vLLM's kernels of experts read its weights once (``BLOCK_SIZE_M`` of the
files in ``fused_moe/configs`` is 16 to 128)."""


class Readings(NamedTuple):
    """Readings are how kernels read the weights of a module in place."""

    touched: float
    """Share of the weights that are read."""
    times: int
    """How often they are read."""


def readings(model: ModelShape, module: Module, tokens: int, *, rows: int) -> Readings:
    """Return how often kernels read the weights of a module in host memory for ``tokens`` computed at once:
    for every tile of ``rows``, norms for every token, experts for those of their own."""
    touched = 1.0
    if module.share < 1:  # of experts, only those to which a token is routed
        touched, rows = model.touched_share(module, tokens), min(rows, _EXPERT_ROWS)
    elif module.kind == "norm":
        rows = 1
    computed = tokens * module.share / touched
    return Readings(touched, max(1, ceil(computed / rows)))


InPlace = Sequence[Mapping[str, tuple[int, ...]]]
"""For each layer, the sizes [B] of the tensors of modules that are read in place, by the module's name."""


class ReadInPlace(Hook):
    """Kernels read weights in pinned host memory; what follows waits for both.

    Source: vLLM 0.33, ``model_executor/offloader/uva.py``.
    """

    streams = ("copy",)
    joined = ("copy",)

    def __init__(self, model: ModelShape, stages: Sequence[InPlace]) -> None:
        self._model, self._stages = model, stages

    def state(self, part: Part) -> Hashable:
        """Return the tensors that are read in a layer."""
        if part.layer < 0:
            return ()
        return tuple([tuple(layers[part.layer].items()) for layers in self._stages])

    def enter(self, part: Part, out: PassWriter) -> None:
        """Note the weights of a layer that are in host memory."""
        self._here = self._stages[out.stage_number][part.layer] if part.layer >= 0 else {}

    def launched(self, call: Call, out: PassWriter) -> None:
        """Read the weights of a module beside its kernels.

        Without a call for each tensor, small ones are read at the same rate as large ones.
        """
        sizes = self._here.get(call.module.name)
        if not sizes:
            return
        reads = out.machine.accelerator.reads
        touched, times = readings(self._model, call.module, out.now.tokens, rows=reads.rows.value)
        size = sum(max(1, round(touched * size)) * times for size in sizes)
        cause = Cause("in-place")
        path, hops = out.way((cause,), partial(out.machine.host_to_device, pinned=True))
        rate = int(path.curve.points[-1][1] * reads.rate_share.value)
        route, stream = out.builder.route(cause=cause, hops=hops, cap=rate), self.stream("copy")
        after = (*out.so_far(HOST), *out.on_gpu())
        out.await_(stream, out.add("copy", stream, size=size, route=route, after=after))


def size_of(layers: Sequence[Mapping[str, tuple[int, ...]]]) -> int:
    """Return the size [B] of the offloaded tensors of some layers."""
    counts, distinct = Counter(map(id, layers)), {id(layer): layer for layer in layers}
    return sum(counts[key] * sum(map(sum, layer.values())) for key, layer in distinct.items())
