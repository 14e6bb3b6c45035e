"""Vertices joined by cables, and the way with the fewest cables between two of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from fractions import Fraction

from simoffload.hardware.paths import Resource

__all__ = ["Graph", "Hops", "Load", "Resources"]

Hops = tuple[tuple[int, Fraction], ...]

_WHOLE = Fraction(1)


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

    def put(self, resources: Iterable[int], share: Fraction | int = _WHOLE) -> None:
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
