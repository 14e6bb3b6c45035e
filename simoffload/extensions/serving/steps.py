"""Times of steps of a stream, from few simulated ones.

A step of a plan depends on its tokens, the number of sequences that generate, the sum of their contexts, and
the attention of chunks, which is the sum over the chunks of new tokens times the tokens to which these attend
on average. How contexts are spread over sequences hardly matters: a plan counts the latency of a kernel, some
10 us, for each group of equal contexts, which is left out. ``StepTable`` divides the space of these numbers
into cells, simulates the corners of those that occur, and interpolates linearly within
the simplex of corners around a step (Kuhn's triangulation of a cell). The middle of each cell is simulated,
too: where it differs by more than the bound, the cell is split.

Few cells are, as what is interpolated is nearly linear. The work of the host and of the busiest other stream
changes with each number of tokens; that of as many tokens of prompts alone has lines of its own, and cells
have what the other numbers add to it. A step ends some time after the host has launched it, or some time
later than the work of the other stream takes, whichever is later: both times hardly vary within a cell, and
the rest, which is near 0, is interpolated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from simoffload.extensions.serving.replica import StepMix, StepTime, StepTimes
from simoffload.extensions.serving.scheduler import ReplicaState, ScheduledWork
from simoffload.models import Sequences
from simoffload.results import PassResult, Timeline
from simoffload.scenario import LoadedScenario
from simoffload.simulation import Runner
from simoffload.strategies import Phase
from simoffload.workload import Inference

__all__ = ["BOUND", "Point", "Scaled", "SimulatedSteps", "StepTable"]

BOUND = 0.005
"""Largest relative difference of the middle of a cell from the line between its ends (our choice)."""
_LEAST = 2
"""Context of a sequence that generates its second token; only what goes beyond is an axis."""


Evaluate = Callable[[tuple[Sequences, ...]], StepTime]
"""Function that simulates a step of a mixture of sequences."""


class SimulatedSteps:
    """SimulatedSteps simulates a step of the scenario's plan with any mixture of sequences."""

    def __init__(self, scenario: LoadedScenario) -> None:
        self._plan: Any = scenario.plan()  # of inference
        self._runner = Runner(scenario, keep=False)
        work = scenario.scenario.workload
        self.each = 1 + work.proposed if isinstance(work, Inference) else 1
        """Tokens that a generating sequence feeds in: its last one, and those that are proposed."""
        self._alone: dict[tuple[Sequences, ...], StepTime] = {}
        """Steps without chunks that verify proposed tokens."""

    def __call__(self, batch: tuple[Sequences, ...]) -> StepTime:
        """Return the times of a step in which each generating sequence has its next token.

        With speculative decoding a step has several of them: it counts as many steps, each with its part of
        the time; chunks of prompts are in one of these, and make it longer by as much as they do all of it.
        """
        if self.each == 1:
            return self._of_pass(self._plan.step(batch))
        verified, part = self._verified(batch), 1 / self._plan.workload.tokens_per_step
        alone = tuple(one for one in batch if one.decodes)
        if not alone:
            return verified
        if alone not in self._alone:
            self._alone[alone] = verified if len(alone) == len(batch) else self._verified(alone)
        pairs = zip(verified[:3], self._alone[alone][:3], strict=True)
        time, host, busy = (all_ - (1 - part) * without for all_, without in pairs)
        return StepTime(time, host, busy)

    def _of_pass(self, phase: Phase) -> StepTime:
        timeline = self._runner.timeline(phase)
        return StepTime(timeline.makespan * 1e-12, *_host_and_busy(timeline))

    def _verified(self, batch: tuple[Sequences, ...]) -> StepTime:
        """Return the times of a step with what is proposed for its generating sequences.

        An engine that prepares a step before the one before it is done launches the passes of a draft behind
        those of the model, so that only their work on the GPU makes the step longer.
        """
        time, host, busy, *_ = self._of_pass(self._plan.step(batch))
        for phase, times in self._plan.draft_passes(batch):
            one = self._of_pass(phase)
            time += times * (one.busy if self._plan.asynchronous else one.time)
            host, busy = host + times * one.host, busy + times * one.busy
        return StepTime(time, host, busy)

    def mean(self, mix: StepMix) -> PassResult:
        """Return the step with the mean numbers of many, with its causes."""
        tokens, sequences, beyond, attention = (
            round(one / mix.steps)
            for one in (
                mix.tokens + self.each * mix.sequences,
                mix.sequences,
                mix.contexts - _LEAST * mix.sequences,
                mix.attention,
            )
        )
        sequences = max(sequences, 0 if mix.tokens else 1)
        point = (max(tokens, self.each * sequences, 1), sequences, max(0, beyond), attention)
        return self._runner.phase(self._plan.step(_mixture(point, self.each)), {})


def _host_and_busy(timeline: Timeline) -> tuple[float, float]:
    """Return the end of the work of the host thread, and the most work of another stream [s]."""
    host = busy = 0
    for track in timeline.tracks:
        if not len(track):
            continue
        if track.stream == 0:
            host = max(host, track.end_of(len(track) - 1))
            continue
        work = sum(
            count * (sum(track.end[first:last]) - sum(track.start[first:last]))
            for first, last, count in track.totals()
        )
        busy = max(busy, work)
    return host * 1e-12, busy * 1e-12


Point = tuple[int, int, int, int]
"""Tokens of a step, generating sequences, sum of their contexts beyond ``_LEAST``, attention of chunks."""


_AXES = range(4)
_DOUBLINGS = (1, 2, 4, 4)
"""Doublings from the begin to the end of an unsplit cell on each axis (our choice, for few simulated steps).
"""
_RANGES = tuple(tuple(-(-bits // doublings) for bits in range(128)) for doublings in _DOUBLINGS)
"""Number of the range of a value on each axis, by the bits of the value less 1; that of 0 is -1."""
_CHUNK = 512
"""Most tokens of a chunk of prompts alone (our choice): their attention then grows evenly with the tokens."""
_OF_LINES = 0.25
"""Share of the bound that is left to lines of prompts alone (our choice)."""


_Times = tuple[float, float, float]
"""Time of a step, of the host, and of the busiest stream, or what they are beyond others [s]."""
_DecodeLine = tuple[int, int, float, float]
"""Times of decode steps between two sums of contexts: begin, end, time at the begin, slope."""
_Line = tuple[int, int, _Times, _Times]
"""Line between the times of two numbers of tokens."""


class _Cell:
    """A _Cell is a box of points; one with parts is split at ``at`` of ``axis``."""

    __slots__ = ("at", "axis", "beyond", "corners", "high", "low", "parts", "scale")

    def __init__(self, low: Point, high: Point) -> None:
        self.low, self.high = low, high
        self.scale = [1 / (b - a) if b > a else 0.0 for a, b in zip(low, high, strict=True)]
        self.beyond: tuple[float, float] | None = None
        """Time after the launch of a step, and beyond the work of its busiest stream, that is the least at
        both ends of the cell [s]."""
        self.corners: list[_Times | None] = [None] * (1 << len(_AXES))
        """At the corners in use what their times are beyond those of the host and the busiest stream, and
        what these are beyond those of prompts alone, by the sum of 2^axis of the axes on which they are
        high."""
        self.axis, self.at = 0, 0
        self.parts: tuple[_Cell, _Cell] | None = None


class StepTable:
    """A StepTable has the times of the steps of one replica, for ``Replica``.

    ``sizes`` are the batch sizes of which CUDA graphs were captured: a step of fewer tokens than the largest
    takes as long as the next one. A generating sequence has ``each`` of these tokens. With ``exact`` every
    step is simulated as it is. ``saved`` are steps that were simulated before.
    """

    def __init__(
        self,
        evaluate: Evaluate,
        *,
        sizes: Sequence[int] = (),
        bound: float = BOUND,
        exact: bool = False,
        each: int = 1,
        saved: Mapping[Point, tuple[float, float, float]] = MappingProxyType({}),
    ) -> None:
        self._evaluate, self._sizes, self._bound, self._exact = evaluate, tuple(sizes), bound, exact
        self._saved, self._each = saved, each
        self.known: dict[Point, StepTime] = {}
        """Steps that were needed, by their numbers."""
        self._cells: dict[Point, _Cell] = {}
        self._alone: dict[int, list[_Line]] = {}
        self._known_alone: dict[int, tuple[float, float]] = {}
        self._decode: dict[int, dict[int, list[_DecodeLine]]] = {}
        self._latest: dict[int, _DecodeLine] = {}
        """Line that was used last, by the number of sequences."""
        self.as_they_are = 0
        """Number of steps that were simulated as they are."""
        self.worst = 0.0
        """Largest relative difference met in the middle of a cell in use."""

    @property
    def evaluations(self) -> int:
        """Number of steps that were needed; the others are interpolated."""
        return self.as_they_are + len(self.known)

    def of(self, work: ScheduledWork, state: ReplicaState) -> StepTime:
        """Return the time of the first step of some work, and how it grows."""
        if self._exact:
            return self._as_it_is(work, state)
        sequences = work.sequences
        beyond = work.contexts - _LEAST * sequences
        if work.chunks:
            tokens = self._padded(work.tokens + self._each * sequences)
            return self._interpolated((tokens, sequences, beyond, round(work.attention)))
        line = self._latest.get(sequences)
        if line is None or not line[0] <= beyond < line[1]:
            line = self._latest[sequences] = self._line(sequences, beyond)
        low, high, time, slope = line
        first = time + slope * (beyond - low)
        row = first, 0.0, first, slope * sequences, (high - beyond) // sequences + 1
        return tuple.__new__(StepTime, row)  # in half the time

    def _padded(self, tokens: int) -> int:
        place = bisect_left(self._sizes, tokens)
        return self._sizes[place] if place < len(self._sizes) else tokens

    def _as_it_is(self, work: ScheduledWork, state: ReplicaState) -> StepTime:
        """Return the time of a step with the sequences as they are, without padding."""
        decoding = Counter(state.generating()) if work.sequences else Counter[int]()
        chunks = Counter((new, state.computed[one]) for one, new in work.chunks)
        each, more = self._each, self._each - 1
        batch = [Sequences(count, each, context + more, each) for context, count in decoding.items()]
        batch += [Sequences(count, *one) for one, count in chunks.items()]
        self.as_they_are += 1
        time = self._evaluate(tuple(batch))
        return time if work.chunks else StepTime(time.time)

    # -- steps of generating sequences alone --------------------------------------------------------

    def _line(self, sequences: int, beyond: int) -> _DecodeLine:
        """Return the line with the time of a decode step."""
        size = -(-self._padded(self._each * sequences) // self._each)
        octave = (beyond // size).bit_length()
        octaves = self._decode.setdefault(size, {})
        if octave not in octaves:
            low, high = (0, size) if octave == 0 else (size << (octave - 1), size << octave)
            octaves[octave] = list(self._lines(size, low, high))
        return next(one for one in octaves[octave] if beyond < one[1])

    def _lines(self, size: int, low: int, high: int) -> list[_DecodeLine]:
        """Return the lines between two sums of contexts."""
        tokens, middle = self._each * size, (low + high) // 2
        ends = [self._at((tokens, size, one, 0)).time for one in (low, high)]
        between = self._at((tokens, size, middle, 0)).time
        line = ends[0] + (ends[1] - ends[0]) * (middle - low) / (high - low)
        error = abs(line / between - 1)
        if error > self._bound and middle - low >= size:
            return self._lines(size, low, middle) + self._lines(size, middle, high)
        self.worst = max(self.worst, error)
        return [(low, high, ends[0], (ends[1] - ends[0]) / (high - low))]

    # -- steps with chunks --------------------------------------------------------------------------

    def _interpolated(self, point: Point) -> StepTime:
        """Return the times at a point, from corners of its cell."""
        a, b, c, d = point
        key = (
            _RANGES[0][(a - 1).bit_length()] if a else -1,
            _RANGES[1][(b - 1).bit_length()] if b else -1,
            _RANGES[2][(c - 1).bit_length()] if c else -1,
            _RANGES[3][(d - 1).bit_length()] if d else -1,
        )
        cell = self._cells.get(key)
        if cell is None:
            lows, highs = zip(*map(_bracket, key, _DOUBLINGS, _AXES), strict=True)
            cell = self._cells[key] = self._checked(_Cell(lows, highs))
        while cell.parts is not None:
            cell = cell.parts[point[cell.axis] > cell.at]
            if cell.axis < 0:
                self._checked(cell)
        return self._within(cell, point)

    def _within(self, cell: _Cell, point: Point) -> StepTime:
        """Interpolate in the simplex of a cell around a point: along the axes, from the largest part on."""
        (a, b, c, d), (e, f, g, h), (i, j, k, m) = point, cell.low, cell.scale  # faster than loops
        parts = [((a - e) * i, 1), ((b - f) * j, 2), ((c - g) * k, 4), ((d - h) * m, 8)]
        parts.sort(reverse=True)
        corners = cell.corners
        corner, last = 0, corners[0] or self._corner(cell, 0)
        time, host, busy = last
        for part, axis in parts:
            if part <= 0:
                break
            corner += axis
            then = corners[corner] or self._corner(cell, corner)
            time += part * (then[0] - last[0])
            host += part * (then[1] - last[1])
            busy += part * (then[2] - last[2])
            last = then
        launching, working = self._known_alone.get(a) or self._prompts_alone(a)
        host, busy = host + launching, busy + working
        after_host, after_busy = cell.beyond or self._beyond(cell)
        row = time + max(host + after_host, busy + after_busy), host, busy, 0.0, 1
        return tuple.__new__(StepTime, row)

    def _corner(self, cell: _Cell, corner: int) -> _Times:
        """Return what a cell has of a corner, by its number."""
        point = self._place(cell, corner)
        time, host, busy, *_ = self._at(point)
        launching, working = self._prompts_alone(point[0])
        after_host, after_busy = self._beyond(cell)
        ends = max(host + after_host, busy + after_busy)
        found = cell.corners[corner] = (time - ends, host - launching, busy - working)
        return found

    def _beyond(self, cell: _Cell) -> tuple[float, float]:
        """Return how much later than the host, and than the busiest stream, steps of a cell end [s]."""
        if cell.beyond is None:
            ends = self._at(self._place(cell, 0)), self._at(self._place(cell, (1 << len(_AXES)) - 1))
            cell.beyond = min(one[0] - one[1] for one in ends), min(one[0] - one[2] for one in ends)
        return cell.beyond

    def _prompts_alone(self, tokens: int) -> tuple[float, float]:
        """Return the work of the host and of the busiest stream in a step of so many tokens of prompts."""
        known = self._known_alone.get(tokens)
        if known is None:
            number = (tokens - 1).bit_length()
            if number not in self._alone:
                self._alone[number] = list(self._lines_alone(*_bracket(number, 1, 0)))
            low, high, begin, end = next(one for one in self._alone[number] if tokens <= one[1])
            _, host, busy = _between(begin, end, (tokens - low) / (high - low or 1))
            known = self._known_alone[tokens] = host, busy
        return known

    def _lines_alone(self, low: int, high: int) -> Iterator[_Line]:
        """Yield the lines between two numbers of tokens of prompts alone."""
        middle = (low + high) // 2
        begin, end, right = (
            self._at((one, 0, 0, -(-one * min(one, _CHUNK) // 2)))[:3] for one in (low, high, middle)
        )
        found = _between(begin, end, (middle - low) / (high - low or 1))
        error = max(abs(a - b) for a, b in zip(found[1:], right[1:], strict=True)) / right[0]
        if error > _OF_LINES * self._bound and high - low > 1:
            yield from self._lines_alone(low, middle)
            yield from self._lines_alone(middle + 1, high)
        else:
            self.worst = max(self.worst, error)
            yield low, high, begin, end

    def _checked(self, cell: _Cell) -> _Cell:
        """Split a cell whose middle is not on the line between its ends; its parts are checked when they are
        used."""
        cell.axis = 0
        middle = _middle(cell.low, cell.high)
        error = self._error(cell, middle)
        if error <= self._bound or max(high - low for low, high in zip(cell.low, cell.high, strict=True)) < 2:
            self.worst = max(self.worst, error)
            return cell
        errors = []
        for axis in range(4):
            low, high, at = cell.low[axis], cell.high[axis], middle[axis]
            if high - low >= 2:
                edge = self._error(cell, _with_axis(cell.low, axis, at))
                errors.append((edge, (high - low) / high, axis))
        _, _, cell.axis = max(errors)
        axis, cell.at = cell.axis, middle[cell.axis]
        begin = cell.at + (axis == 0)
        below = _Cell(cell.low, _with_axis(cell.high, axis, cell.at))
        above = _Cell(_with_axis(cell.low, axis, begin), cell.high)
        below.axis = above.axis = -1
        cell.parts = below, above
        return cell

    def _error(self, cell: _Cell, point: Point) -> float:
        """Return how much the times interpolated at a point differ from those simulated, over its time."""
        point = self._possible(point)
        found, right = self._within(cell, point), self._at(point)
        return max(abs(a - b) for a, b in zip(found[:3], right[:3], strict=True)) / right.time

    def _place(self, cell: _Cell, corner: int) -> Point:
        """Return the point of a corner of a cell, by its number."""
        a, b, c, d = ((cell.low, cell.high)[corner >> axis & 1][axis] for axis in _AXES)
        return self._possible((a, b, c, d))

    def _possible(self, point: Point) -> Point:
        """Return a point with the tokens of each sequence, and one of a prompt."""
        return max(point[0], self._each * point[1] + 1), *point[1:]

    def _at(self, point: Point) -> StepTime:
        """Return the times at a point, of a mixture with these numbers."""
        found = self.known.get(point)
        if found is None:
            saved = self._saved.get(point)
            found = self._evaluate(_mixture(point, self._each)) if saved is None else StepTime(*saved)
            self.known[point] = found
        return found


class Scaled:
    """Scaled times of steps are longer by a factor, one for steps with chunks and one for others."""

    def __init__(self, times: StepTimes, chunks: float, decoding: float) -> None:
        self._times, self._factors = times, (decoding, chunks)

    def of(self, work: ScheduledWork, state: ReplicaState) -> StepTime:
        """Return the time of the first step of some work, and how it grows."""
        time, host, busy, growth, steps = self._times.of(work, state)
        factor = self._factors[bool(work.chunks)]
        return StepTime(time * factor, host * factor, busy * factor, growth * factor, steps)


def _bracket(number: int, doublings: int, axis: int) -> tuple[int, int]:
    """Return the first and the last value of a range, of ``_RANGES``.

    Only ranges of tokens, above some of which steps are longer at once, have no value in common, so that
    other cells have corners in common.
    """
    if number < 0:
        return 0, 0
    return (1 << (number - 1) * doublings) + (axis == 0) if number else 1, 1 << number * doublings


def _between(begin: _Times, end: _Times, part: float) -> _Times:
    """Return the times at a part of the way between two."""
    a, b, c = (one + part * (other - one) for one, other in zip(begin, end, strict=True))
    return a, b, c


def _middle(low: Point, high: Point) -> Point:
    a, b, c, d = ((one + other) // 2 for one, other in zip(low, high, strict=True))
    return a, b, c, d


def _with_axis(point: Point, axis: int, to: int) -> Point:
    a, b, c, d = (to if one == axis else value for one, value in enumerate(point))
    return a, b, c, d


def _mixture(point: Point, tokens_each: int = 1) -> tuple[Sequences, ...]:
    """Return sequences with the numbers of a point, of which those that generate have ``tokens_each``.

    Chunks are alike, and as few as their attention allows, each to no fewer tokens than its own.
    """
    tokens, sequences, beyond, attention = point
    new = 0 if attention == 0 else max(1, tokens - tokens_each * sequences)
    sequences = (tokens - new) // tokens_each
    batch: list[Sequences] = []
    if sequences:
        each, more = divmod(beyond, sequences)
        context = _LEAST + each + tokens_each - 1
        batch.append(Sequences(sequences - more, tokens_each, context, tokens_each))
        if more:
            batch.append(Sequences(more, tokens_each, context + 1, tokens_each))
    if new:
        chunks = min(new, max(1, -(-new * new // (2 * attention))))
        each, more = divmod(new, chunks)
        context = max(each, round(attention / new + new / chunks / 2))
        if more:
            batch.append(Sequences(more, each + 1, context + 1))
        batch.append(Sequences(chunks - more, each, context))
    return tuple(batch)
