"""What strategies plan with: shared capacities, cables that join them, and the paths of bytes over them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from simoffload.hardware.quantities import Curve

__all__ = ["Graph", "Hops", "Load", "Path", "Resource", "Resources", "Tier", "TierKind"]

TierKind = Literal["hbm", "dram", "nvme", "nfs", "pfs", "nvmeof"]


class Resource(NamedTuple):
    """A capacity that concurrent transfers share."""

    name: str
    capacity: int
    """[B/s]"""
    kind: str
    """pcie, duplex (both directions of a cable), dram, drive, nic, server or nvlink."""


class Tier(NamedTuple):
    """A place where weights may lie."""

    name: str
    kind: TierKind
    capacity: int
    """[B] per GPU (hbm), per host (dram), else of the whole target (local drives: of all hosts)."""
    device: str
    """Id of the profile."""
    reserved: int = 0
    """[B] of the capacity that is not for weights: context and workspace (hbm), operating system (dram)."""


@dataclass(frozen=True)
class Path:
    """How bytes get from one place to another."""

    name: str
    hops: tuple[tuple[int, Fraction], ...]
    """Pairs (index into ``Machine.resources``, bytes on it per byte of payload), by rising index."""
    latency: float
    """[s] once per transfer."""
    curve: Curve
    """Rate [B/s] of one transfer alone, by its size [B]."""
    request_latency: float = 0.0
    """[s] of one request, unloaded (storage)."""
    request_rate: int = 0
    """[B/s] at which one request streams (storage)."""
    chunk: int = 0
    """[B] after which a request goes on to the next device of an array; 0 = never (storage)."""
    width: int = 1
    """Devices that one request can stream from (storage)."""
    by_outstanding: Curve | None = None
    """Measured rate [B/s] by the bytes in flight, where the drive's profile has it."""

    def outstanding_rate(self, outstanding: int, *, block: int) -> int:
        """[B/s] that ``outstanding`` [B] in flight in requests of ``block`` [B] reach at most.

        The measured curve where there is one, else Little's law: outstanding bytes over the time of one
        request. Only for storage.
        """
        if self.by_outstanding is not None:
            return self.by_outstanding.rate(outstanding)
        devices = min(self.width, -(-block // self.chunk)) if self.chunk else 1
        per_request = self.request_latency + block / (self.request_rate * devices)
        return max(1, int(outstanding / per_request))


Hops = tuple[tuple[int, Fraction], ...]

_FULL_SHARE = Fraction(1)


class Resources:
    """The growing list of a machine's resources."""

    def __init__(self) -> None:
        self._all: list[Resource] = []

    def add(self, name: str, capacity: int, kind: str) -> int:
        """Append a resource; returns its index."""
        self._all.append(Resource(name, capacity, kind))
        return len(self._all) - 1

    def finish(self) -> tuple[Resource, ...]:
        """All of them."""
        return tuple(self._all)


class Load:
    """Bytes on each resource per byte of payload, summed up."""

    def __init__(self) -> None:
        self._on: dict[int, Fraction] = {}

    def put(self, resources: Iterable[int], share: Fraction | int = _FULL_SHARE) -> None:
        """Add ``share`` bytes to each of ``resources``."""
        share = share if isinstance(share, Fraction) else Fraction(share)
        for index in resources:
            before = self._on.get(index)
            self._on[index] = share if before is None else before + share

    def hops(self) -> Hops:
        """Pairs (resource, bytes per byte of payload), by rising index."""
        return tuple(sorted(self._on.items()))


class Graph:
    """An undirected graph whose cables carry different resources in each direction."""

    def __init__(self) -> None:
        self._cables: dict[str, dict[str, tuple[int, ...]]] = {}

    def connect(self, a: str, b: str, *, there: tuple[int, ...], back: tuple[int, ...]) -> None:
        """Lay a cable: ``there`` are the resources crossed from ``a`` to ``b``, ``back`` the other way."""
        self._cables.setdefault(a, {})[b] = there
        self._cables.setdefault(b, {})[a] = back

    def route(self, start: str, end: str) -> tuple[int, ...]:
        """Resources crossed from ``start`` to ``end``, over the fewest cables; of equals, the first laid.

        Raises KeyError if ``end`` cannot be reached.
        """
        return tuple(index for a, b in self._way(start, end) for index in self._cables[a][b])

    def passes(self, vertex: str, *, start: str, end: str) -> bool:
        """Whether the route crosses ``vertex`` between its ends."""
        return any(b == vertex for _, b in self._way(start, end)[:-1])

    def _way(self, start: str, end: str) -> list[tuple[str, str]]:
        before: dict[str, str] = {start: start}
        queue = deque([start])
        while queue and end not in before:
            vertex = queue.popleft()
            for neighbour in self._cables.get(vertex, {}):
                if neighbour not in before:
                    before[neighbour] = vertex
                    queue.append(neighbour)
        way = []
        while end != start:
            way.append((before[end], end))
            end = before[end]
        return way[::-1]
