"""Hooks of Hugging Face Accelerate: offloaded modules come to their GPU, and hidden states to the next one.

Reference: accelerate 1.15.0, ``AlignDevicesHook`` in ``hooks.py``; ``programs.accelerate`` says what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

from simoffload.hardware import Curve, Path
from simoffload.models import Module, Sequences
from simoffload.schedule import Cause
from simoffload.strategies.passes.pass_writer import COMPUTE, Call, Hook, Part, PassWriter, StagePass
from simoffload.strategies.passes.streams import HOST, loops_rate, mapped_read
from simoffload.strategies.passes.timing import depends_on_context, of_tokens

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


Results = Callable[[Module, Sequence[Sequences]], Sequence[NewTensors]]
"""Function from a module and a batch to the new tensors that the module's kernels make."""


class Offloaded(NamedTuple):
    """An Offloaded is what the hook of a module does; the call of the module has it as its facts."""

    hooked: bool
    """Whether the module has a hook."""
    sizes: tuple[int, ...] = ()
    """Sizes [B] of the tensors that the hook brings to the module's GPU."""
    on_disk: bool = False


class AlignDevices(Hook):
    """Offloaded tensors of a module come to its GPU one after the other, with blocking copies on the compute
    stream, after each of which PyTorch's cache of GPU memory is emptied.

    So the next results need new memory, which the cache gives back with the next tensor.
    """

    carry: tuple[int, float] = (-1, 0.0)
    """Number of the GPU whose memory was emptied for the last module with weights, or -1; and the time [s] of
    releasing the results since then."""

    def __init__(
        self,
        results: Results,
        *,
        known: dict[Hashable, tuple[float, float]] | None = None,
        pinned: bool = False,
        initialized: bool = True,
        folder: str = "",
        page_cache: bool = True,
    ) -> None:
        """``known``: times of new memory that other passes have found; ``pinned`` and ``initialized``: the
        weights in host memory; ``folder`` and ``page_cache``: the tier of files, and whether they are in the
        page cache."""
        self._known = {} if known is None else known
        self._results, self._pinned, self._initialized = results, pinned, initialized
        self._folder, self._page_cache = folder, page_cache

    state = Hook.of_modules

    def start(self, out: PassWriter) -> None:
        """Find what hooks and new memory cost."""
        self._costs, memory = out.machine.host.eager_costs, out.machine.accelerator.allocation
        assert memory is not None, "machines complete their profiles"
        self._allocate = memory.allocate.value, memory.allocate_rate.value
        self._release = memory.release.value, memory.release_rate.value

    def before(self, call: Call, out: PassWriter) -> None:
        """Run the hook of a module."""
        brought, compute = call.facts, COMPUTE + call.gpu
        assert isinstance(brought, Offloaded)
        if brought.hooked:
            out.spend(self._costs.hook.value)
        if call.module.parameters:
            self.carry = call.gpu if brought.sizes else -1, self.carry[1]
        for size in brought.sizes:
            if brought.on_disk:
                self._read(size, out)
            out.spend(self._costs.tensor.value + size / self._allocate[1] + size / self._release[1])
            out.flush()
            route, latency = self._to_gpu(size, out, on_disk=brought.on_disk)
            out.add("copy", compute, fixed=latency, size=size, route=route, after=out.so_far(HOST))
            out.host_waits(compute)
            out.cool(out.transfer_s(route, latency, size))
            out.spend(self.carry[1])
            self.carry = call.gpu, 0.0

    def _to_gpu(self, size: int, out: PassWriter, *, on_disk: bool) -> tuple[int, int]:
        """Return route and latency [ps] of the copy of a tensor to the GPU."""
        pinned = self._pinned and not on_disk
        if pinned or on_disk or self._initialized:
            return out.copies([size], to_device=True, pinned=pinned)

        def path(gpu: int) -> Path:
            written, most = (out.machine.host_to_device(gpu, pinned=one) for one in (False, True))
            points = tuple((at, int(_NEVER_WRITTEN * rate)) for at, rate in written.curve.points)
            return replace(written, curve=Curve(points).lower(most.curve))

        return out.transfers(Cause("host-to-gpu", memory="never written"), path, [size])

    def _read(self, size: int, out: PassWriter) -> None:
        """Let the host thread copy a mapped file into a new tensor, whose pages come from the operating
        system at the rate that FSDP's new tensors were measured to get.

        While pages are read that are not in the page cache, the threads copy and obtain new pages; what the
        read does not hide of this follows it.
        """
        out.flush()
        left = traffic = 2 * size
        rate = loops_rate(out.machine.host, traffic=traffic, new=size)
        if not self._page_cache:
            route, latency = mapped_read(out, self._folder, size, traffic=traffic)
            out.add("read", HOST, fixed=latency, size=size, route=route)
            left -= int(rate * out.transfer_s(route, 0, size))
        if left > 0:
            out.add("cpu", HOST, size=left, route=out.cpu_work(Cause("mapped-copies"), rate))

    def launch(self, call: Call, out: PassWriter) -> bool:
        """Allocate new memory for the results of a module, if PyTorch's cache is empty; then the driver
        launches it."""
        emptied, releasing = self.carry
        if call.gpu == emptied:
            allocating, release = self._new_memory_s(call.module, out.now)
            out.spend(allocating)
            self.carry = emptied, releasing + release
        return False

    def _new_memory_s(self, module: Module, stage: StagePass) -> tuple[float, float]:
        """Return the times [s] of allocating and of releasing the results of a module."""
        key = module, None if depends_on_context(module) else of_tokens(stage.batch)
        if key not in self._known or key[1] is None:
            made = self._results(module, stage.batch)
            self._known[key] = (
                sum(one.seconds(*self._allocate) for one in made),
                sum(one.seconds(*self._release) for one in made),
            )
        return self._known[key]

    def leave(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        """End the work of the host thread in a part."""
        out.flush()


class HiddenStates(Hook):
    """Hidden states move to the GPU of the next module, if that is another one of the process."""

    def __init__(self, token: int, gpu: int) -> None:
        """``token``: size [B] of the hidden states of one; ``gpu``: number of the first GPU in use."""
        self._token = token
        self.carry: int = gpu
        """Number of the GPU that has them."""

    state = Hook.of_modules

    def launched(self, call: Call, out: PassWriter) -> None:
        """Copy the hidden states before the kernels of a module."""
        before, self.carry = self.carry, call.gpu
        if call.gpu == before:
            return
        path, size = out.machine.send(before, call.gpu), self._token * out.now.tokens
        route, latency = out.transfers(Cause("gpu-to-gpu", gpus=(before, call.gpu)), lambda _: path, [size])
        out.add(
            "copy",
            COMPUTE + call.gpu,
            fixed=latency,
            size=size,
            route=route,
            label="hidden states",
            after=out.so_far(HOST, COMPUTE + before),
        )
