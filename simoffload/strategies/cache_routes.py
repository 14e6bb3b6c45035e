"""The routes on which a writer of passes moves keys and values: over the link of a GPU, and of a tier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simoffload.hardware import Machine, Path
from simoffload.schedule import Cause, Hops, ScheduleBuilder
from simoffload.strategies.timing import copy_cause, effective_rate, picoseconds

REQUEST = 1 << 20
"""Size [B] of the largest request to a file of the cache: our choice."""
DEPTH = 64
"""Number of requests in flight of each GPU, in each direction: our choice; enough for the full rate of the
shipped drives and filesystems."""


class TransferRoute(NamedTuple):
    """A TransferRoute is one route of the ranks that a writer writes."""

    cause: Cause
    first: Path
    """Path of the first rank, which determines the rate of a single transfer."""
    hops: tuple[Hops, ...]
    """Links that the transfers of each rank cross."""


@dataclass(frozen=True)
class CacheRoutes:
    """CacheRoutes are routes and latencies of the transfers of a cache, for the GPUs of one writer."""

    builder: ScheduleBuilder
    machine: Machine
    tier: str
    """Tier that holds the cache."""
    find: Callable[[Cause, Callable[[int], Path], bool], TransferRoute]
    """Function from the cause of a route, the path of each GPU, and whether the GPU is that of the next
    layer, if it is another one."""

    def __call__(self, sizes: Sequence[int], to_device: bool, *, ahead: bool = True) -> tuple[int, int]:
        """Return route and latency [ps] of copies over the link, one after the other: to the GPU of the next
        layer, or without ``ahead`` of this one; or from the GPU of this layer."""
        machine = self.machine
        copy = machine.host_to_device if to_device else machine.device_to_host
        cause = copy_cause(to_device=to_device, pinned=True).of_cache(self.tier)
        cause, first, hops = self.find(cause, lambda gpu: copy(gpu, pinned=True), to_device and ahead)
        route = self.builder.route(cause=cause, hops=hops, cap=effective_rate(first, sizes))
        return route, picoseconds(first.latency * len(sizes))

    def files(self, size: int, *, written: bool) -> tuple[int, int]:
        """Return route and latency [ps] of reading, or writing, ``size`` [B] of a layer on the tier.

        Little's law limits the rate on storage: requests in flight over the latency of one. Of reads they are
        at most those of two layers, for which there are buffers.
        """
        machine, tier = self.machine, self.tier
        reach = machine.storage_write if written else machine.storage_read
        cause = Cause("write" if written else "read").of_cache(tier)
        cause, first, hops = self.find(cause, lambda gpu: reach(tier, gpu), False)
        rate = first.curve.rate(size)
        if machine.tiers[tier].is_storage:
            block = min(size, REQUEST)
            outstanding = DEPTH * block if written else min(2 * size, DEPTH * block)
            rate = first.file_rate(size, outstanding=outstanding, block=block)
        return self.builder.route(cause=cause, hops=hops, cap=rate), picoseconds(first.latency)
