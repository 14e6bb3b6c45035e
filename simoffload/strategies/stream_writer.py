"""Writing operations down as DeepSpeed's host thread issues them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial

from simoffload.hardware import Path
from simoffload.schedule import Dependency, Op, Schedule
from simoffload.schedule.builder import ScheduleBuilder
from simoffload.strategies.timing import Timing, copy_name, effective_rate, picoseconds, shares

__all__ = ["HOST", "StreamWriter", "Ways"]

HOST = 0

Ways = dict[tuple[object, ...], tuple[Path, tuple[tuple[tuple[int, Fraction], ...], ...]]]
"""What is known of routes of a machine's ranks; writers for the same ones may share it."""


class StreamWriter:
    """Streams of a rank, the first of which is the host thread, written when something depends on it."""

    def __init__(
        self, *, name: str, ranks: int, streams: Sequence[str], timing: Timing, ways: Ways | None = None
    ) -> None:
        self.timing = timing
        self.costs = timing.machine.host.deepspeed
        self.builder = ScheduleBuilder(name=name, ranks=ranks, streams=streams)
        self.label = name
        self.ranks = ranks
        self._pending = 0
        self._awaited: list[tuple[int, int]] = []
        self._known: dict[tuple[object, ...], tuple[int, int]] = {}
        self._ways: Ways = {} if ways is None else ways

    def build(self) -> Schedule:
        """Close the schedule over the machine's resources."""
        self.flush()
        resources = self.timing.machine.resources
        return self.builder.build([(resource.name, resource.capacity) for resource in resources])

    def way(
        self, key: tuple[object, ...], path: Callable[[int], Path]
    ) -> tuple[Path, tuple[tuple[tuple[int, Fraction], ...], ...]]:
        """The first rank's path, and all ranks' hops; ``path`` gives each rank's, the same for a key."""
        if key not in self._ways:
            paths = [path(rank) for rank in range(self.ranks)]
            self._ways[key] = paths[0], shares(paths)
        return self._ways[key]

    def transfers(self, name: str, path: Callable[[int], Path], sizes: Sequence[int]) -> tuple[int, int]:
        """Route and latency [ps] of transfers one after the other, each at the rate of its own size.

        ``path`` gives each rank's; all that are called ``name`` have the same.
        """
        key = name, tuple(sizes)
        if key not in self._known:
            first, hops = self.way((name,), path)
            route = self.builder.route(name=name, hops=hops, cap=effective_rate(first, sizes))
            self._known[key] = route, picoseconds(first.latency * len(sizes))
        return self._known[key]

    def copies(self, sizes: Sequence[int], *, to_device: bool, pinned: bool) -> tuple[int, int]:
        """Route and latency [ps] of copies between the GPU and host memory, one after the other."""
        machine = self.timing.machine
        path = machine.host_to_device if to_device else machine.device_to_host
        name = copy_name(to_device=to_device, pinned=pinned)
        return self.transfers(name, partial(path, pinned=pinned), sizes)

    def received(self, name: str, size: int) -> tuple[int, int]:
        """Route and latency [ps] of ``size`` [B] that every rank receives from the others' GPUs."""
        return self.transfers(name, partial(self.timing.machine.gather, ranks=self.ranks), [size])

    def cpu_work(self, name: str, rate: int) -> int:
        """Route of work on host memory at ``rate`` [B/s]."""
        _, hops = self.way((name, rate), lambda rank: self.timing.machine.cpu_work(rank, rate))
        return self.builder.route(name=name, hops=hops, cap=rate)

    def spend(self, seconds: float) -> None:
        """The thread works for [s]."""
        self._pending += picoseconds(seconds)

    def cool(self, seconds: float) -> None:
        """What the thread does after a transfer of ``seconds`` that held it up takes longer."""
        self.spend(min(self.costs.cold_limit.value, self.costs.cold_share.value * seconds))

    def transfer_s(self, route: int, fixed: int, size: int) -> float:
        """[s] of a transfer alone."""
        return fixed * 1e-12 + size / self.builder.cap(route)

    def host_waits(self, stream: int, ordinal: int | None = None) -> None:
        """The host's next work starts only when an operation (the last one by default) is done."""
        if self._pending:
            self.flush()
        last = self.builder.written[stream] - 1 if ordinal is None else ordinal
        if last >= 0 and (stream, last) not in self._awaited:
            self._awaited.append((stream, last))

    def flush(self) -> None:
        """Write down what the thread has done so far, so that others can depend on it."""
        if self._pending or self._awaited:
            after = tuple(self.builder.after(stream, ordinal) for stream, ordinal in self._awaited)
            fixed, self._pending = self._pending, 0
            self._awaited = []
            self.add("hook", HOST, fixed=fixed, after=after)

    def add(
        self,
        kind: str,
        stream: int,
        *,
        fixed: int = 0,
        size: int = 0,
        route: int = -1,
        label: str | None = None,
        after: tuple[Dependency, ...] = (),
        collective: bool = False,
    ) -> int:
        """Append an operation; returns its ordinal on its stream."""
        return self.builder.add(Op(kind, label or self.label, stream, fixed, size, route, after, collective))

    def so_far(self, stream: int) -> tuple[Dependency, ...]:
        """The dependency on all that was written on a stream so far."""
        return (Dependency(stream),) if self.builder.written[stream] else ()

    def host_so_far(self) -> tuple[Dependency, ...]:
        """The dependency on what the thread has done so far."""
        return self.so_far(HOST)
