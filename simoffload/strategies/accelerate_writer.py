"""The schedule of a pass under Accelerate: hooks, copies, kernels, and updates of an offloaded cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from simoffload.hardware import Curve, Path
from simoffload.models import Module
from simoffload.schedule import Cause, Device, Schedule
from simoffload.strategies.cache_routes import CacheRoutes, TransferRoute
from simoffload.strategies.cache_updates import CacheStreams
from simoffload.strategies.mapped_files import loops_rate, mapped_read
from simoffload.strategies.passes.pass_writer import ForwardPass
from simoffload.strategies.streamed_cache import CacheUpdate
from simoffload.strategies.streams import HOST, StreamWriter
from simoffload.strategies.timing import Timing

if TYPE_CHECKING:
    from simoffload.strategies.accelerate_plan import AcceleratePlan

_SMALL, _SHARED, _SEGMENT = 1 << 20, 10 << 20, 20 << 20
"""[B] Tensors up to the first size are small; those up to the second share blocks of the third
(c10/cuda/CUDACachingAllocator.cpp: kSmallSize, kMinLargeAlloc, kLargeBuffer)."""
_NEVER_WRITTEN = 2.2
"""Rate of copies from pages that were never written, over that from others (measured in the same place)."""


class NewTensors(NamedTuple):
    """NewTensors are the results of one size that kernels of a module make."""

    size: int
    """Size [B] of each."""
    number: int

    @property
    def blocks(self) -> int:
        """Number of blocks that PyTorch allocates for them, if it has none; 0 for small tensors."""
        if self.size <= _SMALL:
            return 0
        return self.number if self.size >= _SHARED else -(-self.number * self.size // _SEGMENT)

    def seconds(self, block: float, rate: int) -> float:
        """Return the time [s] of allocating or releasing these blocks, from that of a block and the rate of
        its bytes; that of small blocks is part of ``EagerCosts.tensor``."""
        return self.blocks and self.blocks * block + self.number * self.size / rate


class AccelerateWriter(StreamWriter):
    """An AccelerateWriter writes one pass: the host thread, the compute stream of each GPU, and the streams
    that move an offloaded cache."""

    def __init__(self, plan: AcceleratePlan, forward: ForwardPass, timing: Timing) -> None:
        gpus = plan.options.num_gpus
        cache = plan.cache.streams
        several = (Device("host thread"), *(Device("GPU", gpu) for gpu in range(gpus)))
        super().__init__(
            name=forward.name,
            gpus=(plan.main,),
            streams=("host", *["compute"] * gpus, *cache),
            machine=plan.machine,
            devices=(*several, *[Device("GPU", plan.main)] * len(cache)) if gpus > 1 else (),
        )
        self.timing = timing
        self._plan, self._at = plan, plan.executed[0]
        self._own = plan.machine.host.eager_costs
        allocation = plan.machine.accelerator.allocation
        assert allocation is not None, "machines complete their profiles"
        self._allocate = allocation.allocate.value, allocation.allocate_rate.value
        self._release = allocation.release.value, allocation.release_rate.value
        tokens = sum(one.number * one.new_tokens for one in forward.batch)
        self._hidden = tokens * plan.model.hidden_size * plan.model.dtype_bytes
        self._emptied, self._releasing = False, 0.0
        self._loops: dict[int, int] = {}  # rate [B/s] of copying a file of a size

    def begin(self, segment: str) -> None:
        """Begin a layer, or the part before or after the layers."""
        self.flush()
        self.builder.segment(segment)

    def again(self) -> None:
        """Write the operations of the last layer once more."""
        self.flush()
        self.builder.again()

    def hook(self, module: Module, sizes: tuple[int, ...], *, disk: bool) -> None:
        """Run the hook before a module: it brings tensors of ``sizes`` [B] to the main GPU, one by one."""
        self.label = module.name
        if self._plan.hooked and (
            module.parameters or (module.kind == "container" and self._plan.dispatched)
        ):
            self.spend(self._own.hook.value)
        if module.parameters:
            self._emptied = bool(sizes)
        for size in sizes:
            if disk:
                self._read(size)
            self.spend(self._own.tensor.value + size / self._allocate[1] + size / self._release[1])
            self.flush()
            compute = 1 + self._plan.main
            route, latency = self._to_gpu(size, disk=disk)
            self.add("copy", compute, fixed=latency, size=size, route=route, after=self.so_far(HOST))
            self.host_waits(compute)
            self.cool(self.transfer_s(route, latency, size))
            self.spend(self._releasing)
            self._releasing = 0.0

    def _to_gpu(self, size: int, *, disk: bool) -> tuple[int, int]:
        """Return route and latency [ps] of the copy of a tensor to the main GPU."""
        pinned = self._plan.options.pin_memory and not disk
        if pinned or disk or self._plan.options.initialized:
            return self.copies([size], to_device=True, pinned=pinned)

        def path(gpu: int) -> Path:
            written, most = (self.machine.host_to_device(gpu, pinned=one) for one in (False, True))
            points = tuple((at, int(_NEVER_WRITTEN * rate)) for at, rate in written.curve.points)
            return replace(written, curve=Curve(points).lower(most.curve))

        return self.transfers(Cause("host-to-gpu", memory="never written"), path, [size])

    def _read(self, size: int) -> None:
        """Let the host thread copy a mapped file into a new tensor, whose pages come from the operating
        system at the rate that FSDP's new tensors were measured to get.

        While pages are read that are not in the page cache, the threads copy and obtain new pages; what the
        read does not hide of this follows it.
        """
        self.flush()
        traffic = 2 * size
        rate = self._loops.get(size) or loops_rate(self.machine.host, traffic=traffic, new=size)
        self._loops[size] = rate
        left = traffic
        if not self._plan.cached:
            route, latency = mapped_read(self, self._plan.target, size, traffic=traffic)
            self.add("read", HOST, fixed=latency, size=size, route=route)
            left -= int(rate * self.transfer_s(route, 0, size))
        if left > 0:
            self.add("cpu", HOST, size=left, route=self.cpu_work(Cause("mapped-copies"), rate))

    def kernels(
        self,
        label: str,
        duration: int,
        launch: int,
        *,
        gpu: int,
        results: Sequence[NewTensors] = (),
        update: tuple[CacheUpdate, int] | None = None,
    ) -> None:
        """Launch the kernels of a module on a GPU, and move the hidden states there if it is another one.

        Its ``results`` need new memory if PyTorch's cache has been emptied, as it will be before the next
        module that is brought to the GPU.

        ``update``: that of the layer's cache, and the GPU of the next layer. The prefetch stream is one of
        the main GPU (``torch.Stream()``), so that copies to another one are on its compute stream.
        """
        if not duration:
            return
        if self._emptied and gpu == self._plan.main:
            self.spend(sum(one.seconds(*self._allocate) for one in results))
            self._releasing += sum(one.seconds(*self._release) for one in results)
        self.flush()
        self.add("launch", HOST, fixed=launch, label=label)
        if gpu != self._at:
            before, path = self._at, self.machine.send(self._at, gpu)
            cause = Cause("gpu-to-gpu", gpus=(before, gpu))
            route, latency = self.transfers(cause, lambda _: path, [self._hidden])
            after = self.so_far(HOST, 1 + before)
            self.add(
                "copy",
                1 + gpu,
                fixed=latency,
                size=self._hidden,
                route=route,
                label="hidden states",
                after=after,
            )
            self._at = gpu
        if update is None:
            self.add("compute", 1 + gpu, fixed=duration, label=label, after=self.so_far(HOST))
            return
        own, to = update
        prefetch = 1 + self._plan.options.num_gpus
        fetching = prefetch if to == self._plan.main else 1 + to
        own.write(
            self.builder,
            CacheStreams(HOST, 1 + gpu, prefetch, fetching),
            CacheRoutes(self.builder, self.machine, own.tier, partial(self._cache_route, gpu, to)),
            label=label,
            joining=self.timing.joining(own.joined, duration),
            duration=duration,
        )

    def _cache_route(
        self, gpu: int, to: int, cause: Cause, path_of: Callable[[int], Path], following: bool
    ) -> TransferRoute:
        """Return the route of the cache of one GPU, or of the one of the next layer; all GPUs read and write
        storage on one route."""
        path = path_of(to if following else gpu)
        if path.hops != path_of(self._plan.main).hops:
            cause = cause._replace(gpus=(to if following else gpu,))
        return TransferRoute(cause, *self.way((cause,), lambda _: path))

    def end(self) -> Schedule:
        """Return the pass, at the end of which the host thread waits for the GPUs and chooses tokens."""
        self.label = "pass"
        for stream in range(1, 1 + self._plan.options.num_gpus):
            self.host_waits(stream)
        self.spend(self.costs.pass_overhead.value)
        return self.build()
