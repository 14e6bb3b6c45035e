"""Hooks that bring weights from their homes to the GPU: some layers ahead, or when a module is called."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from simoffload.hardware import FEW_READINGS
from simoffload.models import ModelShape, Module
from simoffload.schedule import Cause
from simoffload.strategies.held import Held
from simoffload.strategies.homes import HBM, Home, Homes
from simoffload.strategies.passes.pass_writer import STAGING, Call, Hook, Part, PassWriter
from simoffload.strategies.passes.streams import HOST

if TYPE_CHECKING:
    from simoffload.strategies.programs.vllm import VllmOffloadPlan


class Prefetched(Hook):
    """Layers are brought to the GPU a number of layers ahead, as soon as the layer before the present one has
    been computed; what is outside of the layers, when the part begins that uses it.

    A copy from pageable memory takes the host thread, which launches the kernels of the present layer after
    it, so that such a copy is hidden by no computation, however far ahead.
    """

    streams = STAGING

    def __init__(self, homes: Homes, *, ahead: int = 1) -> None:
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
            yield Held("hbm", "layers on their way", (1 + self._ahead) * most, kind="staging")
        stored = [
            sum(sum(sizes) for home, sizes in one.items() if home.tier not in ("hbm", "dram"))
            for one in (*layers, outside)
        ]
        if most := max(stored, default=0):
            name = "buffers of layers on their way"
            yield Held("dram", name, 2 * most, pinned=True, kind="staging")


# --------------------------------------------------------------------------------------------------
# Hooks of vLLM's offloading of weights: kernels read them in host memory, or layers are copied ahead.
#
# Source: vLLM 0.33, ``model_executor/offloader/uva.py`` and ``prefetch.py``; ``programs.vllm`` says what they
# do.


_READ_ONCE = 112
"""Most rows of a product for which one reading of its weights is certain: on an H100 every product of up to
112 rows took at most 1.17 readings, some of 128 rows took 1.97 (the microbenchmark of ``repeated_reads``)."""


_EXPERT_ROWS = 128
"""Most tokens of an expert for which vLLM's kernels of experts read its weights once (``BLOCK_SIZE_M`` of the
files in ``fused_moe/configs`` is 16 to 128)."""


class Readings(NamedTuple):
    """Readings are how kernels read the weights of a module in place."""

    touched: float
    """Share of the weights that are read."""
    rows: float
    """Rows that are multiplied with each of them."""
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
    return Readings(touched, computed, max(1, ceil(computed / rows)))


class _Offloaded(Hook):
    """An _Offloaded hook moves weights on streams of its own."""

    streams: tuple[str, ...] = ("copy",)
    joined = ("copy",)

    def __init__(self, plan: VllmOffloadPlan) -> None:
        self._plan = plan

    def _weights(self, layer: int, out: PassWriter) -> Mapping[str, tuple[int, ...]]:
        return self._plan.offloaded[out.stage_number][layer] if layer >= 0 else {}


class ReadInPlace(_Offloaded):
    """Kernels read weights in host memory; what follows waits for both."""

    def state(self, part: Part) -> Hashable:
        """Return the tensors that are read in a layer."""
        if part.layer < 0:
            return ()
        return tuple([id(stage[part.layer]) for stage in self._plan.offloaded])

    def enter(self, part: Part, out: PassWriter) -> None:
        """Note the weights of a layer that are in host memory."""
        self._here = self._weights(part.layer, out)

    def launched(self, call: Call, out: PassWriter) -> None:
        """Read the weights of a module beside its kernels.

        Without a call for each tensor, small ones are read at the same rate as large ones.
        """
        sizes = self._here.get(call.module.name)
        if not sizes:
            return
        reads = out.machine.accelerator.reads
        touched, rows, times = readings(self._plan.model, call.module, out.now.tokens, rows=reads.rows.value)
        size = sum(max(1, round(touched * size)) * times for size in sizes)
        once = times == 1 and rows <= _READ_ONCE
        cause = Cause("in-place", readings=0 if once else min(times, FEW_READINGS))
        path, hops = out.way((cause,), partial(out.machine.host_to_device, pinned=True))
        rate = int(path.curve.points[-1][1] * reads.rate_share.value)
        route, stream = out.builder.route(cause=cause, hops=hops, cap=rate), self.stream("copy")
        after = (*out.so_far(HOST), *out.on_gpu())
        out.await_(stream, out.add("copy", stream, size=size, route=route, after=after))


class Prefetch(_Offloaded):
    """The last layers of each group are copied ahead, into slots that others have left."""

    def __init__(self, plan: VllmOffloadPlan) -> None:
        super().__init__(plan)
        self._home = Home(plan.options.tier, pinned=True)
        self.streams = ("copy",) if plan.options.tier == "dram" else STAGING
        step, self._following = plan.options.step, list[Mapping[int, int]]()
        for layers in plan.offloaded:
            there = [at for at, layer in enumerate(layers) if layer]
            ahead = there[step % len(there) :] + there[: step % len(there)]
            self._following.append(dict(zip(there, ahead, strict=True)))

    def holds(self) -> Iterator[Held]:
        """Yield the slots on the GPU that needs most, and two pinned buffers for layers in files."""
        options = self._plan.options
        sizes = [[size_of([layer]) for layer in stage] for stage in self._plan.offloaded]
        slots = options.step * max(sizes[self._plan.fullest_stage])
        yield Held("hbm", "prefetch slots", slots, remedy="lower offload_prefetch_step", kind="staging")
        if options.tier != "dram":
            name, largest = "buffers of layers on their way", max(map(max, sizes))
            yield Held("dram", name, 2 * largest, pinned=True, kind="staging")

    def state(self, part: Part) -> Hashable:
        """Return how far ahead a layer copies another one, and its tensors."""
        return tuple(
            [
                (ahead[part.layer] - part.layer, id(layers[ahead[part.layer]]))
                for ahead, layers in zip(self._following, self._plan.offloaded, strict=True)
                if part.layer in ahead
            ]
        )

    def leave(self, part: Part, out: PassWriter) -> None:
        """Copy the layer that takes the slot of this one; a CUDA graph launches the copies."""
        following = self._following[out.stage_number].get(part.layer)
        if following is not None:
            sizes = [size for one in self._weights(following, out).values() for size in one]
            out.stage(self, sizes, self._home, layer=following, after=out.on_gpu(), call_s=0.0, label="layer")


def size_of(layers: Sequence[Mapping[str, tuple[int, ...]]]) -> int:
    """Return the size [B] of the offloaded tensors of some layers."""
    return sum(size for layer in layers for one in layer.values() for size in one)
