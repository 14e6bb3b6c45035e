"""Steady state: what has happened before is counted instead of run again.

The engine's state consists of the next operation of every stream, the streams that wait for it, pending
calls, what remains of every flow, and times already known of operations that end later. States are compared
at the ends of iterations, relative to the time and to the iteration. As everything is an integer, the
comparison is exact: what happens between two states (a window) happens again wherever the first of them
recurs and the iterations that any stream reaches until the second have the same operations. So when a state
recurs, the run may jump along windows, as long as these lead back to the same state: over the further
iterations of a block, and over other blocks that once came in between.

Streams are described by how many iterations they are ahead. Two kinds of streams that wait for later blocks
are described otherwise, because the iterations in between are none of theirs. If all that a stream does in
any block begins with a wait for the same other stream in that block, and that one is at present iterations,
it is "idle": it goes on with the next block in which it works. Another one that waits for a count must not be
reached: a jump ends before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from simoffload.engine.clock import Clock
from simoffload.engine.network import AllocationMark, Network
from simoffload.engine.outcome import RunMark, Skip
from simoffload.engine.stream_state import NOTHING, StreamState
from simoffload.results import SkippedPeriods
from simoffload.schedule import CompiledSchedule, Op, Schedule

LEAST = 3
"""Iterations with the same operations below which there is nothing to skip."""
_PATIENCE = 256
"""Number of first iterations that are all searched for a cycle; later ones are searched in windows of
``_WINDOW``."""
_WINDOW = 64
"""Iterations of each search at 256, 512, 1024, …: the search hardly lengthens a run without a cycle."""
_LONGEST = 1000
"""Number of windows that may lie between a state and its recurrence."""

_State = tuple[object, ...]


class _Recorded(NamedTuple):
    """A state, and the progress of the run at its time."""

    state: int
    """Its number; equal states have the same."""
    position: int
    """Number of the iteration that begins, among those of all blocks."""
    lowest: int
    """Number of the first iteration that a stream has not completed."""
    highest: int
    """Number of the last iteration that a stream of these has reached."""
    done: tuple[int, ...]
    """For every stream, operations whose end is known, skipped ones included."""
    mark: RunMark
    allocation_mark: AllocationMark


class _Window(NamedTuple):
    """What was run between two states."""

    begin: _Recorded
    end: _Recorded
    iterations: int
    """Number of iterations by which the run has advanced."""
    low: int
    """First iteration that a stream had not completed, relative to the one that began."""
    size: int
    """Number of iterations from there on that streams have reached."""
    contents: tuple[tuple[int, int], ...]
    """Numbers of their operations, each with the number of such iterations."""
    progress: tuple[int, ...]
    """For every stream, number of operations whose end has become known."""


class _Loop(NamedTuple):
    """Windows that lead from a state back to it, ``times`` times."""

    windows: tuple[_Window, ...]
    position: int
    times: int

    @property
    def iterations(self) -> int:
        """The number of iterations of one time."""
        return sum([window.iterations for window in self.windows])

    @property
    def length(self) -> int:
        """The time [ps] of one time."""
        return sum([window.end.mark.time - window.begin.mark.time for window in self.windows])


class SteadyState:
    """Watches the streams of the first rank of each program and jumps when a state recurs."""

    def __init__(
        self,
        *,
        schedule: Schedule,
        compiled: CompiledSchedule,
        stream_states: Sequence[StreamState],
        gathered: Sequence[Sequence[StreamState]],
        clock: Clock,
        network: Network[StreamState],
    ) -> None:
        self._blocks, self._parts, self._starts = schedule.blocks, compiled.parts, compiled.starts
        self._totals = compiled.totals
        self._stream_states = stream_states
        self._watched = [stream_state for stream_state in stream_states if stream_state.watched]
        self._gathered = gathered
        self._clock = clock
        self._network = network
        self._idle = _idle_streams(schedule)
        self._numbers: dict[_State, int] = {}
        self._windows: dict[int, list[_Window]] = {}  # by the state in which they begin
        self._last: _Recorded | None = None
        self._block = -1
        self._iterations_seen = 0
        self._comparison_pending = False
        self.skipped: list[SkippedPeriods] = []
        self.skips: list[Skip] = []
        self._compared: dict[int, int] = {}  # states, by block

    def passed(self, stream_state: StreamState) -> None:
        """Note that a watched stream has begun another iteration or another block."""
        segment = stream_state.segment
        if segment is None or segment.total < LEAST or self._comparison_pending:
            return
        position = segment.start + stream_state.iteration
        for other in self._watched:
            if other.segment is not None and other.segment.start + other.iteration < position:
                return  # an iteration ends when its last stream has completed it
        if segment.block != self._block:
            self._block, self._iterations_seen = segment.block, 0
        self._iterations_seen += 1
        if (
            self._iterations_seen < _PATIENCE
            or self._iterations_seen - (1 << self._iterations_seen.bit_length() - 1) < _WINDOW
        ):
            self._comparison_pending = True
            self._clock.call_when_over(self._compare_states)

    def misses(self) -> tuple[str, ...]:
        """Return, for blocks that repeat, the reasons why no periods were skipped."""
        jumped = {self._parts[jump.block] for jump in self.skipped}
        return tuple(
            f"block {block.name!r}: {self._why(index)}"
            for index, block in enumerate(self._blocks)
            if block.repeat >= LEAST and self._parts[index] not in jumped
        )

    def _why(self, block: int) -> str:
        repeat, compared = self._blocks[block].repeat, self._compared.get(block, 0)
        if not compared:
            return f"other blocks were active whenever one of its {repeat} iterations ended"
        return f"no cycle in {repeat} iterations ({compared} states compared)"

    # -- states ---------------------------------------------------------------------------------

    def _compare_states(self) -> None:
        self._comparison_pending = False
        now = self._clock.now
        position = min([one.position for one in self._watched if one.segment is not None], default=-1)
        ended = tuple([bisect_right(stream_state.ends, now) for stream_state in self._stream_states])
        inside, idle = self._roles(position, ended) if position >= 0 else ([], set[int]())
        state = self._state(position, ended, {one.number for one in inside}, idle) if inside else None
        if state is None:
            self._last = None
            return
        self._compared[self._block] = self._compared.get(self._block, 0) + 1
        known = len(self._numbers)
        found = _Recorded(
            self._numbers.setdefault(state, known),
            position,
            min([one.position for one in inside]),
            max([one.position for one in inside]),
            tuple([stream_state.done for stream_state in self._stream_states]),
            RunMark(ended, now),
            self._network.mark(),
        )
        if self._last is not None:
            self._note_window(self._last, found)
        self._last = found
        if found.state < known:
            self._jump(found, {one.number for one in inside} | idle)

    def _roles(self, position: int, ended: Sequence[int]) -> tuple[list[StreamState], set[int]]:
        """Return the streams that work on the present iterations, or on those next to them, and the numbers
        of those that are idle."""
        here = bisect_right(self._starts, position) - 1
        working, waiting = [], []
        for stream_state, known in zip(self._stream_states, ended, strict=True):
            if stream_state.segment is None:
                continue
            if stream_state.index or stream_state.start >= 0 or len(stream_state.ends) > known:
                working.append(stream_state)
            else:
                waiting.append(stream_state)
        reached = max([position, *[one.position for one in working]])
        later = []
        for one in waiting:
            if one.position > reached and self._awaits(one) == self._idle.get(one.stream, -1):
                later.append(one)
            elif one.position <= reached + 1 or (one.segment and one.segment.block == here):
                working.append(one)
        numbers = {one.number for one in working}
        return working, {one.number for one in later if self._awaited(one).number in numbers}

    @staticmethod
    def _awaited(stream_state: StreamState) -> StreamState:
        """Return the stream for which a stream waits."""
        unmet = stream_state.unmet()
        assert unmet is not None
        return unmet[0]

    def _awaits(self, stream_state: StreamState) -> int:
        """Return for which stream of its own rank a stream waits; -2 if for one of another rank."""
        awaited = self._awaited(stream_state)
        return awaited.stream if awaited.rank == stream_state.rank else -2

    def _state(self, position: int, ended: Sequence[int], inside: Set[int], idle: Set[int]) -> _State | None:
        """Return everything that decides what happens next, relative to now; None if it cannot recur."""
        now = self._clock.now
        # How long a stream has been ready does not matter, because others become ready later.
        waiting = {
            stream_state.number
            for stream_states in self._gathered
            for stream_state in stream_states
            if stream_state.start < now
        }
        state: list[object] = []
        for stream_state, known in zip(self._stream_states, ended, strict=True):
            ahead = len(stream_state.ends) > known
            begun = stream_state.start >= 0 and stream_state.number not in waiting
            if stream_state.number in inside:
                state += (stream_state.position - position, stream_state.index)
            elif ahead or begun:
                return None
            elif stream_state.segment is None:
                state.append(None)
            elif stream_state.number in idle:
                state.append("idle")
            else:
                state.append((stream_state.position, "fixed"))
            if known and stream_state.ends[known - 1] == now:
                # An operation that begins now may have it as predecessor.
                state.append(known - bisect_left(stream_state.ends, now))
            if ahead:
                state.append(tuple(self._ahead(stream_state, known, now)))
            if begun:
                state += (stream_state.start - now, self._relative(stream_state.after))
            if stream_state.waiters:
                state.append(tuple([waiter.number for _, waiter in stream_state.waiters]))
        state += [
            tuple([stream_state.number for stream_state in stream_states])
            for stream_states in self._gathered
            if stream_states
        ]
        for time, calls in self._clock.pending():
            state.append(time - now)
            state += [one.number if isinstance(one, StreamState) else -1 for _, one in calls]
            state.append(None)
        state += [(stream_state.number, left) for stream_state, left in self._network.in_flight()]
        return tuple(state)

    def _ahead(self, stream_state: StreamState, known: int, now: int) -> Iterator[_State]:
        """Yield the operations of which the times are known and that end later."""
        for i in range(known, len(stream_state.ends)):
            after = self._relative(stream_state.predecessors[i])
            yield stream_state.starts[i] - now, stream_state.ends[i] - now, after

    def _relative(self, after: int) -> tuple[int, int] | None:
        """Return a stream, and how many operations it has completed since the one meant."""
        if after == NOTHING:
            return None
        ordinal, number = divmod(after, len(self._stream_states))
        return number, self._stream_states[number].done - ordinal

    # -- windows --------------------------------------------------------------------------------

    def _note_window(self, begin: _Recorded, end: _Recorded) -> None:
        progress = tuple([after - before for before, after in zip(begin.done, end.done, strict=True)])
        pairs = zip(self._stream_states, progress, strict=True)
        completed = [stream_state.latest for stream_state, more in pairs if more]
        size = max([end.highest, *completed]) + 1 - begin.lowest
        window = _Window(
            begin,
            end,
            end.position - begin.position,
            begin.lowest - begin.position,
            size,
            tuple(self._contents(begin.lowest, size)),
            progress,
        )
        self._windows.setdefault(begin.state, []).append(window)

    def _contents(self, first: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield the numbers of the operations of some iterations, each with the number of iterations in a
        row."""
        starts, parts = self._starts, self._parts
        block = bisect_right(starts, first) - 1
        part, count = -1, 0
        while size and block < len(parts):
            more = min(size, starts[block + 1] - first)
            if parts[block] != part:
                if count:
                    yield part, count
                part, count = parts[block], 0
            count, size, first, block = count + more, size - more, first + more, block + 1
        if count:
            yield part, count

    def _next(self, state: int, position: int) -> _Window | None:
        """Return the window that follows a state if an iteration begins; None if none such was run."""
        for window in self._windows.get(state, ()):
            if not self._network.counts_since(window.begin.allocation_mark):
                continue
            if (*self._contents(position + window.low, window.size),) == window.contents:
                return window
        return None

    def _loop(self, state: int, position: int) -> _Loop | None:
        """Return the shortest way back to a state when an iteration begins; None if there is none."""
        windows: list[_Window] = []
        present, at, first, last = state, position, position, position
        while len(windows) < _LONGEST:
            window = self._next(present, at)
            if window is None:
                return None
            windows.append(window)
            first, last = min(first, at + window.low), max(last, at + window.low + window.size)
            present, at = window.end.state, at + window.iterations
            if present == state:
                break
        if present != state or at == position:
            return None
        block = bisect_right(self._starts, first) - 1
        within = max(0, self._starts[block + 1] - last) // (at - position)
        return _Loop(tuple(windows), position, 1 + within)

    def _loops(self, found: _Recorded, moving: Set[int]) -> Iterator[_Loop]:
        """Yield the ways along which the run can jump, one after the other.

        ``moving`` are the numbers of the streams that do not wait for a count that must not be reached.
        """
        left = [
            (stream_state.number, needed - 1 - stream_state.done)
            for stream_state in self._stream_states
            for needed, waiter in stream_state.waiters
            if waiter.number not in moving
        ]
        position = found.position
        progress = [0] * len(self._stream_states)
        while (loop := self._loop(found.state, position)) is not None:
            each = [sum(more) for more in zip(*[window.progress for window in loop.windows], strict=True)]
            most = [(room - progress[number]) // each[number] for number, room in left if each[number]]
            times = min([loop.times, *most])
            if times < 1:
                return
            yield loop._replace(times=times)
            position += times * loop.iterations
            progress = [count + times * more for count, more in zip(progress, each, strict=True)]
            if times < loop.times:
                return

    # -- jumps ----------------------------------------------------------------------------------

    def _jump(self, found: _Recorded, moving: Set[int]) -> None:
        loops = list(self._loops(found, moving))
        if not loops:
            return
        ahead = dict.fromkeys(range(len(self._stream_states)), 0)
        position = found.position + sum([loop.times * loop.iterations for loop in loops])
        windows = {id(window): window for loop in loops for window in loop.windows}
        times = dict.fromkeys(windows, 0)
        for loop in loops:
            for window in loop.windows:
                times[id(window)] += loop.times
        for number, window in windows.items():
            self._network.repeat(window.begin.allocation_mark, window.end.allocation_mark, times[number])
            for stream, more in enumerate(window.progress):
                ahead[stream] += times[number] * more
        self._advance(ahead, found)
        self._clock.skip(sum([loop.times * loop.length for loop in loops]))
        self.skips.append(
            Skip(
                found.mark,
                tuple(
                    [
                        (tuple([(one.begin.mark, one.end.mark) for one in loop.windows]), loop.times)
                        for loop in loops
                    ]
                ),
            )
        )
        self._note_skipped(loops)
        more = position - found.position
        self._last = found._replace(
            position=position,
            lowest=found.lowest + more,
            highest=found.highest + more,
            done=tuple([stream_state.done for stream_state in self._stream_states]),
        )

    def _advance(self, ahead: Mapping[int, int], found: _Recorded) -> None:
        """Let every stream go on after the operations that are skipped."""
        for stream_state in self._stream_states:
            stream_state.skip(ahead[stream_state.number])
            # Operations with known times, and running ones, now represent their last copies.
            stream_state.after = self._later(stream_state.after, ahead)
            for i in range(found.mark.ended[stream_state.number], len(stream_state.predecessors)):
                stream_state.predecessors[i] = self._later(stream_state.predecessors[i], ahead)
            stream_state.latest = -1
        for stream_state in self._stream_states:
            waiters = []
            for _, waiter in stream_state.waiters:
                unmet = waiter.unmet() if waiter.actions else None
                if unmet is not None:
                    waiters.append((unmet[1], waiter))
            stream_state.waiters = waiters

    def _later(self, after: int, ahead: Mapping[int, int]) -> int:
        stream_states = len(self._stream_states)
        return after if after == NOTHING else after + ahead[after % stream_states] * stream_states

    def _note_skipped(self, loops: Sequence[_Loop]) -> None:
        times: dict[tuple[int, ...], int] = {}
        first: dict[tuple[int, ...], _Loop] = {}
        for loop in loops:
            key = tuple(map(id, loop.windows))
            times[key] = times.get(key, 0) + loop.times
            first.setdefault(key, loop)
        for key, loop in first.items():
            block = bisect_right(self._starts, loop.position) - 1
            self.skipped.append(
                SkippedPeriods(
                    block=block,
                    name=self._blocks[block].name,
                    iteration=loop.position - self._starts[block],
                    period=loop.iterations,
                    length=loop.length,
                    times=times[key],
                )
            )


def _idle_streams(schedule: Schedule) -> dict[int, int]:
    """Return the streams whose work in every block begins with a wait for one other stream in that block,
    with that stream."""
    awaited: dict[int, set[int]] = {}
    for ops, _ in schedule.contents:
        counts = [0] * len(schedule.streams)
        for op in ops:
            if not counts[op.stream]:
                awaited.setdefault(op.stream, set()).add(_first_need(op, counts))
            counts[op.stream] += 1
    return {
        stream: min(others) for stream, others in awaited.items() if len(others) == 1 and -1 not in others
    }


def _first_need(op: Op, counts: Sequence[int]) -> int:
    """Return the stream for which an operation waits first, if it waits for an operation of the same block
    and rank; otherwise -1. ``counts`` are the operations of each stream before it in the block."""
    needs = [one for one in op.after if one.peers < 0 and one.stream != op.stream]
    if not needs:
        return -1
    back = min([one.back for one in needs if one.stream == needs[0].stream])
    return needs[0].stream if back < counts[needs[0].stream] else -1
