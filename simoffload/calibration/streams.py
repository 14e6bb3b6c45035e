"""One decode step stream by stream and layer by layer: as it was traced, and as it is simulated."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from simoffload.calibration.records import ModuleTimes, RecordedRun, StepTrace
from simoffload.models import ModelShape
from simoffload.results.timeline import Interval, Timeline

__all__ = ["LayerStarts", "StreamRow", "layer_starts", "stream_rows"]

_MICRO, _PICO = 1e-6, 1e-12
_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)")
"""A layer's own name in every family: ``model.decoder.layers.3``, ``transformer.h.3``, ``model.layers.3``."""


class StreamRow(NamedTuple):
    """A part of the step; None where one side has no such number."""

    name: str
    measured: float | None
    """[s] on rank 0, or [B] for bytes."""
    simulated: float | None
    """[s] on rank 0, or [B] for bytes."""
    unit: str = "s"


class LayerStarts(NamedTuple):
    """When the host thread begins each layer of a decode step."""

    step_s: float
    """[s] of the step, measured without tracing."""
    simulated_step_s: float
    """[s] of the simulated step."""
    measured: tuple[float, ...]
    """[s] since the beginning of the step; scaled by untraced over traced time, as tracing slows the host."""
    simulated: tuple[float, ...]
    """[s] since the beginning of the step."""

    @property
    def deviations(self) -> tuple[float, ...]:
        """(simulated - measured) / time of the step, layer by layer."""
        pairs = zip(self.measured, self.simulated, strict=True)
        return tuple((simulated - measured) / self.step_s for measured, simulated in pairs)

    @property
    def largest(self) -> float:
        """The largest deviation in size, as a share of the step's time."""
        return max(map(abs, self.deviations))


def stream_rows(run: RecordedRun, timeline: Timeline) -> tuple[StreamRow, ...]:
    """Busy times of a decode step by stream; without a trace only the simulated ones.

    The host thread is never idle in a trace: what it waits for is part of a module's fetch. So both sides
    are told by what they can be split into, and their sums compare. Tracing slows the measured one.
    """
    simulated = _simulated(timeline)
    trace, activity = run.traces.decode, run.traces.gpu_decode
    host = _host(trace.modules) if trace else {}
    busy, waits = simulated["hook"], simulated["wait"] + simulated["wait read"]
    rows = [StreamRow("host thread", sum(host.values()) if host else None, busy + waits)]
    rows += [StreamRow(f"  {part}", seconds, None) for part, seconds in host.items()]
    rows += [StreamRow("  busy", None, busy), StreamRow("  waits", None, waits)]
    kinds = {"copy": "copy", "gather": "gather", "concat": "move", "compute": "compute"}
    for kind, name in kinds.items():
        measured = activity.busy_us.get(name, 0.0) * _MICRO if activity else None
        if measured or simulated[kind]:
            rows.append(StreamRow(name, measured, simulated[kind]))
    return (*rows, *_storage(trace, simulated))


def _storage(trace: StepTrace | None, simulated: Mapping[str, float]) -> Iterator[StreamRow]:
    rows = trace.storage if trace else None
    if not rows and not simulated["bytes"]:
        return
    size = float(sum(row[2] for row in rows if row[0] == "read")) if rows else None
    waited = sum(row[4] for row in rows if row[0] == "wait read") * _MICRO if rows else None
    yield StreamRow("read", None, simulated["read"])
    yield StreamRow("  wait for reads", waited, simulated["wait read"])
    yield StreamRow("  bytes", size, simulated["bytes"], "B")


def _host(modules: ModuleTimes) -> dict[str, float]:
    """[s] of fetches, of modules without their children, and of releases."""
    fetch = launch = release = 0.0
    open_until: list[float] = []
    for begin, fetched, launched, released in zip(
        modules.fetch, modules.fetched, modules.launched, modules.released, strict=True
    ):
        while open_until and begin >= open_until[-1]:
            open_until.pop()
        if open_until:  # a child's whole call lies in its parent's
            launch -= released - begin
        fetch, launch, release = (
            fetch + fetched - begin,
            launch + launched - fetched,
            release + released - launched,
        )
        open_until.append(released)
    return {"fetch": fetch * _MICRO, "launch": launch * _MICRO, "release": release * _MICRO}


def _on_rank_0(timeline: Timeline) -> Iterator[Interval]:
    return (interval for interval in timeline if interval.rank == 0)


def _simulated(timeline: Timeline) -> defaultdict[str, float]:
    """[s] by kind of operation, waits of the host thread, and [B] read."""
    streams = timeline.schedule.streams
    host, io = streams.index("host"), streams.index("io")
    times: Counter[str] = Counter()
    size = free = 0
    for interval in _on_rank_0(timeline):
        op = interval.op
        times[op.kind] += interval.end - interval.start
        size += op.size if op.kind == "read" else 0
        if op.stream == host:
            reads = any(dependency.stream == io for dependency in op.after)
            times["wait read" if reads else "wait"] += interval.start - free
            free = interval.end
    seconds = {name: time * _PICO for name, time in times.items()}
    return defaultdict(float, seconds, bytes=float(size))


def layer_starts(run: RecordedRun, model: ModelShape, timeline: Timeline) -> LayerStarts | None:
    """Begin of every layer on both sides; None without a trace, or where layers cannot be told apart."""
    trace, step = run.traces.decode, run.measured().get("decode")
    if trace is None or step is None:
        return None
    scale = step / trace.seconds * _MICRO
    measured = tuple(begin * scale for begin in _measured_layers(trace.modules))
    simulated = tuple(_simulated_layers(timeline, model))
    if not len(measured) == len(simulated) == model.num_hidden_layers:
        return None
    return LayerStarts(step, timeline.makespan * _PICO, measured, simulated)


def _measured_layers(modules: ModuleTimes) -> Iterator[float]:
    seen = -1
    for name, begin in zip(modules.module, modules.fetch, strict=True):
        match = _LAYER.search(name)
        if match and int(match[1]) > seen:
            seen = int(match[1])
            yield begin


def _simulated_layers(timeline: Timeline, model: ModelShape) -> Iterator[float]:
    """A layer begins where the host's modules start again from the first ones of a layer: several layers
    may be one block of the schedule."""
    order = {module.name: number for number, module in enumerate(model.layer) if module.hooked}
    host = timeline.schedule.streams.index("host")
    last = len(order) + len(model.layer)
    for interval in _on_rank_0(timeline):
        if interval.op.stream != host:
            continue
        number = order.get(interval.op.label)
        if number is None:
            continue
        if number < last:
            yield interval.start * _PICO
        last = number
