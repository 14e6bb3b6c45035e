"""Operations of a pass of vLLM with weights in host memory, read in place or prefetched by layer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from simoffload.hardware import FEW_READINGS
from simoffload.models import Layer, Module
from simoffload.schedule import Cause, Op
from simoffload.strategies.pinned_weights import readings
from simoffload.strategies.stage_writer import COMPUTE, HOST, PassWriter
from simoffload.strategies.timing import copy_cause, effective_rate, picoseconds

if TYPE_CHECKING:
    from simoffload.strategies.vllm_cpu_offload import VllmOffloadPlan

_READ_ONCE = 112
"""Most rows of a product for which one reading of its weights is certain: on an H100 every product of up to
112 rows took at most 1.17 readings, some of 128 rows took 1.97 (the microbenchmark of ``repeated_reads``)."""


class OffloadWriter(PassWriter):
    """An OffloadWriter moves weights from host memory on a stream of its own."""

    more = ("copy",)
    _plan: VllmOffloadPlan
    _entered = 0

    @property
    def _copies(self) -> int:
        return self._stream(self._first_of_cache - 1)

    @property
    def _joined(self) -> Sequence[int]:
        return (len(self._names) - 1,)

    def _layer(self, number: int, modules: Layer) -> None:
        self._entered = number
        super()._layer(number, modules)
        self._entered = -1

    def _state(self, number: int, modules: Layer) -> Hashable:
        """Return the number of the layer in a stage with offloaded layers, which differ in what is."""
        return number if any(self._plan.offloaded[self._number]) else super()._state(number, modules)

    def _fetch(self, cause: Cause, label: str, sizes: Sequence[int], *, calls: int) -> int:
        """Move tensors of ``sizes`` [B] in ``calls`` transfers after all that the GPU did so far; return the
        number of the operation."""
        path, hops = self._paths(cause, lambda _, gpu: self._machine.host_to_device(gpu, pinned=True))
        # Without a call for each tensor, small ones are read at the same rate as large ones.
        share = self._machine.accelerator.reads.rate_share.value
        rate = effective_rate(path, sizes) if calls else path.curve.points[-1][1] * share
        route = self._builder.route(cause=cause, hops=hops, cap=int(rate))
        after = self._dependencies(HOST, COMPUTE, *self._reduced)
        fixed = picoseconds(calls * path.latency)
        return self._builder.add(Op("copy", label, self._copies, fixed, sum(sizes), route, after))


class InPlaceWriter(OffloadWriter):
    """An InPlaceWriter lets kernels read weights in host memory; what follows waits for both."""

    def _before_kernels(self, module: Module) -> None:
        layers = self._plan.offloaded[self._number]
        sizes = layers[self._entered].get(module.name) if self._entered >= 0 else None
        if not sizes:
            return
        tile = self._machine.accelerator.reads.rows.value
        touched, rows, times = readings(self._plan.model, module, self._tokens, rows=tile)
        sizes = tuple(max(1, round(touched * size)) * times for size in sizes)
        once = times == 1 and rows <= _READ_ONCE
        cause = Cause("in-place", readings=0 if once else min(times, FEW_READINGS))
        copied = self._fetch(cause, module.name, sizes, calls=0)
        self._awaited.append((self._copies, copied, -1))


class PrefetchWriter(OffloadWriter):
    """A PrefetchWriter copies the layers of groups ahead of their use."""

    def again(self, first: int) -> int:
        """Write a micro-batch once more, whose copies are then the last ones."""
        before = tuple(self._builder.written)
        begin, width = super().again(first), len(self._names)
        for stage, layer in self._copied:
            stream = stage * width + self._first_of_cache - 1
            self._copied[stage, layer] += self._builder.written[stream] - before[stream]
        return begin

    def _layer(self, number: int, modules: Layer) -> None:
        """Wait for the copy of an offloaded layer, unless the pass before made it, and behind the layer begin
        that of the one that takes its slot."""
        copied = self._copied.get((self._number, number))
        if copied is not None:
            self._awaited.append((self._copies, copied, -1))
        super()._layer(number, modules)
        following = self._following[self._number].get(number)
        if following is None:
            return
        weights = self._plan.offloaded[self._number][following]
        sizes = [size for one in weights.values() for size in one]
        cause = copy_cause(to_device=True, pinned=True)
        copied = self._fetch(cause, "layer", sizes, calls=len(sizes))
        self._copied[self._number, following] = copied

    @cached_property
    def _following(self) -> tuple[Mapping[int, int], ...]:
        """Layer of each stage that takes the slot of an offloaded one."""
        stages = ([at for at, layer in enumerate(layers) if layer] for layers in self._plan.offloaded)
        step = self._plan.options.step
        return tuple(
            dict(zip(one, one[step % len(one) :] + one[: step % len(one)], strict=True)) for one in stages
        )

    @cached_property
    def _copied(self) -> dict[tuple[int, int], int]:
        """Number of the last copy of each layer of each stage."""
        return {}
