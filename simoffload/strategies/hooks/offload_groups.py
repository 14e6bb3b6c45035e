"""Hooks of vLLM's offloading of weights: kernels read them in host memory, or layers are copied ahead.

Source: vLLM 0.33, ``model_executor/offloader/uva.py`` and ``prefetch.py``; ``vllm_cpu_offload`` says what
they do.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from simoffload.hardware import TimeInput, repeated_reads
from simoffload.schedule import Dependency
from simoffload.strategies.passes.pass_writer import Call, Hook, Part, PassWriter
from simoffload.strategies.pinned_weights import readings
from simoffload.strategies.streams import HOST
from simoffload.strategies.timing import copy_name, effective_rate, picoseconds

if TYPE_CHECKING:
    from simoffload.strategies.vllm_cpu_offload import VllmOffloadPlan

_READ_ONCE = 112
"""Most rows of a product for which one reading of its weights is certain: on an H100 every product of up to
112 rows took at most 1.17 readings, some of 128 rows took 1.97 (the microbenchmark of ``repeated_reads``)."""


class _Offloaded(Hook):
    """An _Offloaded hook moves weights from host memory on a stream of its own."""

    streams = ("copy",)
    joined = streams

    def __init__(self, plan: VllmOffloadPlan) -> None:
        self._plan = plan

    def _weights(self, layer: int, out: PassWriter) -> Mapping[str, tuple[int, ...]]:
        return self._plan.offloaded[out.stage_number][layer] if layer >= 0 else {}

    def _fetch(self, name: str, label: str, sizes: Sequence[int], *, calls: int, out: PassWriter) -> int:
        """Move tensors of ``sizes`` [B] in ``calls`` transfers after all that the GPU did so far; return the
        number of the operation."""
        path, hops = out.way((name,), partial(out.machine.host_to_device, pinned=True))
        # Without a call for each tensor, small ones are read at the same rate as large ones.
        share = out.machine.accelerator.reads.rate_share.value
        rate = effective_rate(path, sizes) if calls else path.curve.points[-1][1] * share
        route = out.builder.route(name=name, hops=hops, cap=int(rate))
        after: tuple[Dependency, ...] = (*out.so_far(HOST), *out.on_gpu())
        fixed, stream = picoseconds(calls * path.latency), self.stream("copy")
        return out.add("copy", stream, fixed=fixed, size=sum(sizes), route=route, label=label, after=after)


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
        """Read the weights of a module beside its kernels."""
        sizes = self._here.get(call.module.name)
        if not sizes:
            return
        tile = out.machine.accelerator.reads.rows.value
        touched, rows, times = readings(self._plan.model, call.module, out.now.tokens, rows=tile)
        sizes = tuple(max(1, round(touched * size)) * times for size in sizes)
        once = times == 1 and rows <= _READ_ONCE
        name = TimeInput.IN_PLACE if once else repeated_reads(times)
        out.await_(self.stream("copy"), self._fetch(name, call.module.name, sizes, calls=0, out=out))


class Prefetch(_Offloaded):
    """The last layers of each group are copied ahead, into slots that others have left."""

    def __init__(self, plan: VllmOffloadPlan) -> None:
        super().__init__(plan)
        step, self._following = plan.options.step, list[Mapping[int, int]]()
        for layers in plan.offloaded:
            there = [at for at, layer in enumerate(layers) if layer]
            ahead = there[step % len(there) :] + there[: step % len(there)]
            self._following.append(dict(zip(there, ahead, strict=True)))

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
        """Copy the layer that takes the slot of this one."""
        following = self._following[out.stage_number].get(part.layer)
        if following is not None:
            sizes = [size for one in self._weights(following, out).values() for size in one]
            name = copy_name(to_device=True, pinned=True)
            copied = self._fetch(name, "layer", sizes, calls=len(sizes), out=out)
            out.promise(following, self.stream("copy"), copied)
