"""Which tokens a replica computes next: the scheduler of vLLM V1, and static batches.

Source: wheel of vLLM 0.33.0, ``v1/core/sched/scheduler.py`` (``schedule``) and
``v1/core/kv_cache_manager.py`` (``allocate_slots``). There are no phases: every request catches up with its
tokens, those that run first, in the order of their admission, then those that wait.

All sequences that generate advance together, one token a step, so that ``ReplicaState`` keeps sums over them
and no number of each: the context of a sequence is the number of the step plus a constant of the sequence,
its base. Sequences whose bases leave the same remainder fill a block in the same step.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from math import nan
from typing import NamedTuple, Protocol

from simoffload.errors import InputError
from simoffload.strategies import ONE_GROUP, CacheGroups

__all__ = [
    "AFTER_ANY",
    "NOTHING",
    "Outputs",
    "PrefixCache",
    "ReplicaState",
    "Runs",
    "ScheduledWork",
    "Scheduler",
    "StaticBatches",
    "VllmScheduler",
]

AFTER_ANY = -2
"""Stands for the row after which one arrives, where any will do that no other follows."""
Runs = tuple[tuple[int, int], ...] | None
"""Runs (key, tokens) of a prompt, of which equal keys at equal positions are equal tokens; None: a prompt
that shares nothing."""


class PrefixCache(Protocol):
    """A PrefixCache knows which KV blocks of earlier requests can be used again.

    It counts no blocks of its own: blocks that no request uses and whose content is known are the cache.
    """

    @property
    def unused(self) -> int:
        """Number of known blocks that no request uses."""

    def attend(self, full: int, sliding: int, window: int) -> None:
        """Have blocks of so many groups with full attention, and of those with a window of tokens."""

    def match(self, request: int, runs: Runs, tokens: int) -> tuple[int, int]:
        """Return how many of the first ``tokens`` tokens of a request are found, in full blocks and without
        the last one, and how many blocks with them, in all groups, no request uses at present.

        What is beyond its prompt, it generated before it was preempted.
        """

    def pin(self, request: int, runs: Runs, tokens: int) -> None:
        """Let a request use the blocks of so many tokens, which ``match`` has just found."""

    def insert(self, request: int, runs: Runs, tokens: int) -> None:
        """Let others find the full blocks of a request, of which so many tokens are computed."""

    def keep(self, request: int, runs: Runs, tokens: int, passed: int) -> None:
        """Let a request find its blocks of so many tokens again, if it is preempted; in groups with a window,
        it does not use the first ``passed`` ones."""

    def lose(self, blocks: int) -> None:
        """Have more known blocks that no request uses, and that nobody will find."""

    def drop(self, request: int, runs: Runs, begin: int, end: int) -> int:
        """Return how many blocks no other uses, of those of a request from ``begin`` to ``end`` in groups
        with a window, which has left them."""

    def release(self, request: int, runs: Runs, tokens: int, *, passed: int, ended: bool) -> int:
        """Return how many blocks of which ``tokens`` are known no other than a request uses, which does so no
        more; in groups with a window, it did not use the first ``passed`` ones. Unless it ``ended`` it is
        computed again."""

    def evict(self, free: int) -> None:
        """Forget blocks until no more than ``free`` are known that no request uses."""


class ScheduledWork(NamedTuple):
    """ScheduledWork is what a replica computes in the next step, or in several equal ones."""

    chunks: tuple[tuple[int, int], ...]
    """Request and new tokens of each part of a prompt."""
    tokens: int
    """Number of new tokens of all chunks."""
    attention: float
    """Sum over the chunks of new tokens times the mean number of tokens that these attend to."""
    sequences: int
    """Number of sequences that generate."""
    contexts: int
    """Sum of their contexts in the first step, the new token included."""
    steps: int
    """Most steps of the same sequences, before one finishes, blocks lack, or others may join."""


class Outputs(NamedTuple):
    """Outputs are the requests that change with the output of a step."""

    first: Sequence[int]
    """Requests that generate the first token after their prompt, or after they were computed again."""
    finished: Sequence[int]
    """Requests that generate their last token."""
    left: Sequence[int]
    """Requests that are computed no more."""


NOTHING = Outputs((), (), ())


class _Requests:
    """The _Requests of a replica are rows, in the order in which they were added."""

    def __init__(self) -> None:
        self.prompt, self.output = array("q"), array("q")
        self.runs: list[Runs] = []
        self.length = array("q")
        """Tokens that a request computes before it generates: its prompt, and what it had generated when it
        was preempted."""
        self.target = array("q")
        """Tokens of output after which a request is computed no more."""
        self.computed = array("q")
        """Computed tokens of a request that does not generate."""
        self.generated = array("q")
        """Generated tokens, those since ``since`` excepted."""
        self.since = array("q")
        """Step after which a request generates one token a step; -1 if it does not."""
        self.cached, self.preemptions = array("q"), array("q")
        self.order = array("q")
        """Number of admissions before that of a request."""
        self._passed = array("q")
        """Blocks of a request that its window has left in sliding groups, and that it holds no more."""
        self._done = array("q")
        """Computed tokens of a request before its last chunk, and the step of that one."""
        self._chunk = array("q")
        self._shared = array("q")
        """Blocks of a request that others may find before it ends, or that it found."""
        self.queued, self.scheduled = array("d"), array("d")

    def add(self, prompt: Sequence[int], output: Sequence[int], runs: Sequence[Runs] | None = None) -> int:
        """Add requests that have not arrived, and return the number of the first one."""
        first, count = len(self.prompt), len(prompt)
        self.prompt.extend(prompt)
        self.output.extend(output)
        self.length.extend(prompt)
        self.target.extend(output)
        self.runs.extend(runs or (None,) * count)
        for zero in (self.computed, self.generated, self.cached, self.preemptions, self.order):
            zero.extend([0] * count)
        for zero in (self._passed, self._done, self._chunk, self._shared):
            zero.extend([0] * count)
        self.since.extend([-1] * count)
        for unknown in (self.queued, self.scheduled):
            unknown.extend([nan] * count)
        return first


class ReplicaState(_Requests):
    """A ReplicaState has the requests of a replica, and its KV blocks.

    A request is the number of a row. What is scheduled counts as computed.
    """

    def __init__(
        self,
        *,
        blocks: int,
        block_size: int = 16,
        groups: CacheGroups = ONE_GROUP,
        cache: PrefixCache | None = None,
        null_blocks: int = 0,
    ) -> None:
        super().__init__()
        self.block_size, self.blocks, self.free = block_size, blocks, blocks - null_blocks
        self._null = null_blocks
        """Number of blocks that no request gets."""
        self.groups, self.cache = groups, cache
        self._number, self._sliding = groups.number, groups.sliding
        self._most = groups.most(block_size)
        """Blocks of a sequence in a group with a window for which there must be room when it is admitted."""
        self._uneven = bool(groups.sliding and (groups.window % block_size or not groups.full))
        """Whether a window may begin with a block that it has left, or nothing else is kept."""
        self._lag = 0
        """Number of steps that are not done when one is scheduled after them."""
        if cache is not None:
            cache.attend(groups.full, groups.sliding, groups.window)
        self._admissions = 0
        self._uses: dict[int, int] = {}
        """Number of runs with a key, of the first requests, and how many these are."""
        self._counted = 0
        self.waiting: deque[int] = deque()
        self.running: dict[int, None] = {}
        """Requests that hold blocks, in the order of their admission."""
        self.prefilling: dict[int, None] = {}
        self.leaving: set[int] = set()
        """Requests whose last token is scheduled, and not yet there."""
        self.step = 0
        self.decoding = 0
        """Number of sequences that generate."""
        self.base = 0
        """Sum of the bases of these sequences."""
        self._filling = [0] * block_size
        """Number of blocks that those sequences need in each step, by the remainder of its number."""
        self._taken = 0
        """Number of blocks that they need in ``block_size`` steps."""
        self._grown = False
        """Whether they have those of the next step."""
        self._ends: list[tuple[int, int, int]] = []
        """Step after which a request has its last token, the request, and its ``since``; some are void."""
        self._late: dict[int, None] = {}
        """Requests that generate, and hold blocks that their window had left before."""
        self._reaching: list[tuple[int, int, int]] = []
        """The step in which the window of a request leaves its next block, the request, and its ``since``."""
        self._leaving: list[dict[int, None]] = [{} for _ in range(block_size)]
        """Requests whose window leaves a block in each step, by the remainder of its number."""
        self._findable: set[int] = set()
        """Those whose window leaves blocks that others may find."""
        self.interrupted: list[int] = []
        """Requests that were preempted while they generated, since the list was emptied."""

    def look_ahead(self) -> None:
        """Let each step be scheduled while the one before it is computed."""
        self._lag, self._most = 1, self.groups.most(self.block_size, batches=2)

    def check(self, prompt: int, output: int) -> None:
        """Raise InputError if a request has no tokens, or more than all blocks hold."""
        if prompt < 1 or output < 1:
            raise InputError.at(
                "stream", f"a request of {prompt} + {output} tokens: prompt and output need a token each"
            )
        if (need := self.admitted(0, prompt + output - 1)) > self.blocks - self._null:
            empty = ", one of which vLLM leaves empty" if self._null else ""
            raise InputError.at(
                "stream",
                f"a request of {prompt} + {output} tokens needs {need} KV blocks, and there are "
                f"{self.blocks}{empty}; raise kv_blocks, or leave the request out",
            )

    def arrive(self, request: int, now: float) -> None:
        """Append a request to those that wait."""
        self.queued[request] = now
        self.waiting.append(request)

    # -- what the next step needs -------------------------------------------------------------------

    @property
    def contexts(self) -> int:
        """Sum of the contexts of the generating sequences in the next step, the new token included."""
        return self.base + self.decoding * (self.step + 1)

    @property
    def growth(self) -> int:
        """Blocks that the generating sequences need in the next step, and do not have yet."""
        return 0 if self._grown else self._filling[self.step % self.block_size]

    def generating(self) -> Iterator[int]:
        """Yield the context of each generating sequence in the next step."""
        for one in self.running:
            if self.since[one] >= 0 and one not in self.leaving:
                yield self.length[one] + self.step - self.since[one] + 1

    def match(self, request: int, tokens: int) -> tuple[int, int]:
        """Return what ``PrefixCache.match`` does; nothing is found without a cache, or of a request that
        shares nothing and was not computed before."""
        runs, cache = self.runs[request], self.cache
        if cache is None or (runs is None and not self.preemptions[request]):
            return 0, 0
        return cache.match(request, runs, tokens)

    def added(self, past: int, tokens: int) -> int:
        """Return the blocks that a request needs for the tokens after ``past`` ones."""
        size = self.block_size
        return self._number * (-(-tokens // size) - -(-past // size))

    def admitted(self, cached: int, tokens: int) -> int:
        """Return the blocks for which there must be room beside ``cached`` tokens that are found, to admit a
        request with so many."""
        size, hit = self.block_size, cached // self.block_size
        blocks = -(-tokens // size)
        return self.groups.full * (blocks - hit) + self._sliding * max(0, min(blocks, self._most) - hit)

    def steps_until_change(self, *, wanted: int = 0) -> int:
        """Return the number of steps that the generating sequences can do until one finishes or blocks may
        lack; they have those of the first one.

        If so many blocks are ``wanted`` for the first request that waits, also until windows have left them.
        """
        if self._late:
            return 1
        ends = self._ends
        while self.since[ends[0][1]] != ends[0][2]:
            heappop(ends)
        steps, free, size = ends[0][0] - self.step, self.free, self.block_size
        if wanted and self._sliding:
            steps = min(steps, self._steps_until_free(wanted))
        if self.decoding * self._number * (steps // size + 1) <= free:
            return steps
        full = free // max(1, self._taken)
        done, free = 1 + full * size, free - full * self._taken
        while done < steps and (need := self._filling[(self.step + done) % size]) <= free:
            free -= need
            done += 1
        return min(steps, done)

    def generate(self, steps: int | None = None, *, wanted: int = 0) -> ScheduledWork | None:
        """Return a token of each generating sequence, in so many steps, by default until something changes,
        for which blocks are ``wanted``; None if there is no sequence."""
        if not (count := self.decoding):
            return None
        if steps is None:
            steps = self.steps_until_change(wanted=wanted)
        row = (), 0, 0.0, count, self.base + count * (self.step + 1), steps
        return tuple.__new__(ScheduledWork, row)  # in half the time

    # -- changes ------------------------------------------------------------------------------------

    def grow(self) -> bool:
        """Give the generating sequences the blocks of the next step, in the order of their admission; return
        whether requests were preempted for them."""
        if self._grown:
            return False
        self._grown = True
        need = self._filling[self.step % self.block_size]
        if need > self.free:
            return self._grow_in_order()
        if self._sliding:
            self._slide_on(self.step, self.step + 1)
        self._take(need)
        return False

    def _grow_in_order(self) -> bool:
        size, number, step, waiting = self.block_size, self._number, self.step, len(self.waiting)
        length, sliding = self.length, self._sliding
        for request in tuple(self.running):
            since = self.since[request]
            if since < 0:
                continue
            need = 0 if (length[request] - since + step) % size else number
            if sliding or need > self.free:
                self._take(0)
                if not self.makes_room(request, need):
                    break
            self.free -= need
        self._take(0)
        if sliding:
            self._slide(step)
        return len(self.waiting) > waiting

    def makes_room(self, request: int, need: int) -> bool:
        """Let so many blocks be free for a running request, which gives back what its window has left, and
        for which others are preempted; return whether it was not preempted itself."""
        if self._sliding:
            done = self._processed(request, self.step)
            past, passed = self._passed[request], self._left_behind(done)
            last = need > self.free + (passed - past) * self._sliding and request == next(
                reversed(self.running)
            )
            if last and self.cache is not None:  # it may find again what it gives back now
                self.cache.keep(request, self.runs[request], passed * self.block_size, past)
            self._pass(request, done, kept=last)
        while need > self.free and request in self.running:
            self.preempt_last()
        return request in self.running

    def _take(self, blocks: int) -> None:
        self.free -= blocks
        if self.cache is not None and self.cache.unused > self.free:
            self.cache.evict(self.free)

    def preempt_last(self) -> int:
        """Take its blocks from the request that was admitted last, and let it wait as the first one.

        Its prompt and what it generated are computed again (recompute), unless its last token is only not
        there yet.
        """
        victim = next(reversed(self.running))
        if self.since[victim] >= 0:
            self.interrupted.append(victim)
            self._stop(victim)
        self.running.pop(victim)
        self.prefilling.pop(victim, None)
        self.leaving.discard(victim)
        self._release(victim, ended=False)
        self.computed[victim] = 0
        self.preemptions[victim] += 1
        self.waiting.appendleft(victim)
        return victim

    def admit(self, request: int, new: int, cached: int = 0, unused: int = 0) -> None:
        """Move the first of the waiting requests to the running ones: ``cached`` tokens are found, in blocks
        of which ``unused`` are free, and ``new`` ones are computed."""
        first = self.waiting.popleft()
        assert first == request
        self.running[request] = self.prefilling[request] = None
        self._admissions += 1
        self.order[request] = self._admissions
        if self._sliding:
            self._shared[request] = max(self._shares(request), cached // self.block_size)
        if cached and self.cache is not None:
            self.cache.pin(request, self.runs[request], cached)
            self.free -= unused
            self.computed[request] = cached
            if self._sliding:
                self._passed[request] = self._left_behind(cached)
            if not self.preemptions[request]:
                self.cached[request] = cached
        self.extend(request, cached + new)

    def extend(self, request: int, computed: int) -> None:
        """Let a running request have so many computed tokens, for which there are blocks.

        Others find its full blocks at once, as ``allocate_slots`` of vLLM makes them known.
        """
        past = self.computed[request]
        if self._sliding:
            self._done[request], self._chunk[request] = past, self.step
        self.computed[request] = computed
        self._take(self.added(past, computed))
        if self.cache is not None:
            runs = self.runs[request]
            if self._sliding:
                self.cache.insert(request, runs, min(computed, self._shared[request] * self.block_size))
            elif runs is not None or self.preemptions[request]:  # others, nobody finds before they end
                self.cache.insert(request, runs, computed)

    def advance(self, work: ScheduledWork, steps: int) -> Outputs:
        """Count ``steps`` steps as scheduled; return what changes with the output of the last one."""
        size, ends, filling = self.block_size, self._ends, self._filling
        if not self._grown:
            if self._sliding:
                self._slide_on(self.step, self.step + 1)
            self.free -= filling[self.step % size]
        self._grown = False
        if steps > 1:
            if self._sliding:
                self._slide_on(self.step + 1, self.step + steps)
            begin = (self.step + 1) % size
            full, rest = divmod(steps - 1, size)
            need = full * self._taken + sum(filling[begin : begin + rest])
            if begin + rest > size:
                need += sum(filling[: begin + rest - size])
            self._take(need)
        self.step += steps
        if not work.chunks and ends[0][0] > self.step:
            return NOTHING
        first: list[int] = []  # twice as fast as list[int](), and so below
        finished: list[int] = []
        left: list[int] = []
        while ends and ends[0][0] <= self.step:
            _, request, since = heappop(ends)
            if self.since[request] != since:
                continue
            done = self.generated[request] + self.step - since
            if done == self.output[request]:
                finished.append(request)
            if done == self.target[request]:
                left.append(request)
            else:
                heappush(ends, (self.step + self.target[request] - done, request, since))
        for request in left:
            self._stop(request)
        for request, _ in work.chunks:
            if self.computed[request] == self.length[request]:
                self._generate(request, first, finished, left)
        if left:
            if len(finished) > 1:
                finished.sort(key=self.order.__getitem__)
            if len(left) > 1:
                left.sort(key=self.order.__getitem__)
            self.leaving.update(left)
        return tuple.__new__(Outputs, (first, finished, left))

    def _generate(self, request: int, first: list[int], finished: list[int], left: list[int]) -> None:
        """Let a request generate, whose prompt is computed; it has its next token."""
        del self.prefilling[request]
        first.append(request)
        self.generated[request] += 1
        done = self.generated[request]
        if done == self.output[request]:
            finished.append(request)
        if done == self.target[request]:
            left.append(request)
            return
        self.since[request] = self.step
        base = self.length[request] - self.step
        self.decoding += 1
        self.base += base
        self._filling[-base % self.block_size] += self._number
        self._taken += self._number
        rest = (self.output[request] if done < self.output[request] else self.target[request]) - done
        heappush(self._ends, (self.step + rest, request, self.step))
        if self._sliding:
            if self._left_behind(self.length[request]) > self._passed[request]:
                self._late[request] = None
            else:
                self._reach(request)

    def _stop(self, request: int) -> None:
        """Let a request generate no more."""
        since = self.since[request]
        base = self.length[request] - since
        self.decoding -= 1
        self.base -= base
        self._filling[-base % self.block_size] -= self._number
        self._taken -= self._number
        self.generated[request] += self.step - since
        self.computed[request] = self.length[request] + self.step - since
        self.since[request] = -1
        if self._sliding:
            self._late.pop(request, None)
            self._findable.discard(request)
            self._leaving[(self._lag + self.groups.window - 1 - base) % self.block_size].pop(request, None)

    def leave(self, requests: Sequence[int]) -> None:
        """Free the blocks of requests that are computed no more."""
        for request in requests:
            if request not in self.leaving:  # it was preempted
                self.waiting.remove(request)
                continue
            self.leaving.discard(request)
            del self.running[request]
            self._release(request, ended=True)

    def _release(self, request: int, *, ended: bool) -> None:
        """Free the blocks of a request that no other uses.

        The token that is computed last is not known before its step is done, nor is the block that it fills.
        """
        tokens = known = self.computed[request]
        if not ended and tokens > self.length[request]:
            known -= self._lag
        passed, size, sliding = 0, self.block_size, self._sliding
        if sliding:
            passed, self._passed[request] = self._passed[request], 0
        if self.cache is None:
            self.free += self._number * -(-tokens // size) - sliding * passed
            return
        runs = self.runs[request]
        self.free += self._number * (-(-tokens // size) - known // size)
        self.free += self.cache.release(request, runs, known, passed=passed, ended=ended)

    # -- what windows leave -------------------------------------------------------------------------

    def _left_behind(self, done: int) -> int:
        """Return how many blocks the window of a request with so many computed tokens has left."""
        return max(0, done - self.groups.window + 1) // self.block_size

    def _processed(self, request: int, step: int) -> int:
        """Return the computed tokens of a running request whose steps are done when a step is scheduled."""
        since = self.since[request]
        if self._lag and self._chunk[request] == step - 1:
            return self._done[request]
        return (
            self.computed[request]
            if since < 0
            else self.length[request] + step - since - self._lag * (step > since)
        )

    def _pass(self, request: int, done: int, *, kept: bool = False) -> None:
        """Free the blocks that the window of a request with so many computed tokens has left.

        Those that nobody finds before it ends are of no use then, as blocks after them are found, too, or
        were forgotten later, unless they are ``kept`` for the request itself.
        """
        past, passed = self._passed[request], self._left_behind(done)
        if passed <= past:
            return
        self._passed[request] = passed
        if self.cache is not None:
            shared = passed if kept else self._shared[request]
            lost = passed - max(past, min(passed, shared))
            self.cache.lose(
                lost
            )  # of the first group the tail, then the rest; the order of others is the same
            if past < shared:
                self.free += self.cache.drop(request, self.runs[request], past, passed - lost)
                past = passed - lost
            self.cache.lose((self._sliding - 1) * lost)
            if passed >= shared:
                self._findable.discard(request)
        self.free += self._sliding * (passed - past)

    def _shares(self, request: int) -> int:
        """Return how many blocks of a request others may find before it ends."""
        if self._uneven:
            return sys.maxsize
        if (runs := self.runs[request]) is None:
            return 0
        while self._counted < len(self.runs):
            for key, _ in self.runs[self._counted] or ():
                self._uses[key] = self._uses.get(key, 0) + 1
            self._counted += 1
        key, tokens = runs[-1]
        tokens = self.prompt[request] - tokens * (self._uses[key] == 1)
        return -(-tokens // self.block_size)

    def _reach(self, request: int) -> None:
        """Note when the window of a request that generates leaves its next block."""
        since = self.since[request]
        tokens = (self._passed[request] + 1) * self.block_size + self.groups.window - 1
        heappush(self._reaching, (tokens + self._lag + since - self.length[request], request, since))

    def _steps_until_free(self, blocks: int) -> int:
        """Return the number of steps before one in which so many blocks may be free, the next one excepted,
        or some steps that are too few for that."""
        size, step, free = self.block_size, self.step, self.free
        most = min(4 * size, self._reaching[0][0] - step if self._reaching else sys.maxsize)
        for one in range(1, most):
            place = (step + one) % size
            free += self._sliding * len(self._leaving[place]) - self._filling[place]
            if free >= blocks:
                return one
        return most

    def _slide(self, step: int) -> None:
        """Free the blocks of generating sequences that their windows leave when a step is scheduled."""
        leaving = self._leaving[step % self.block_size]
        while self._reaching and self._reaching[0][0] <= step:
            _, request, since = heappop(self._reaching)
            if self.since[request] == since:
                self._leave_each(request, step)
        for request in sorted((*self._late, *leaving), key=self.order.__getitem__):
            self._pass(request, self._processed(request, step))
        for request in tuple(self._late):
            if step - self.since[request] >= self._lag:
                del self._late[request]
                self._reach(request)

    def _leave_each(self, request: int, step: int) -> None:
        """Note that the window of a request leaves a block in a step, and each time after as many steps as a
        block has tokens."""
        self._leaving[step % self.block_size][request] = None
        if self.cache is not None and self._passed[request] < self._shared[request]:
            self._findable.add(request)

    def _slide_on(self, begin: int, end: int) -> None:
        """Free what windows leave in the steps from ``begin`` to ``end``."""
        due, size = [], self.block_size
        while self._reaching and self._reaching[0][0] < end:
            due.append(heappop(self._reaching))
            _, request, since = due[-1]
            if self.since[request] != since:
                due.pop()
            elif self._passed[request] < self._shared[request]:
                self._findable.add(request)
        if self._late or self._findable:
            for one in due:
                heappush(self._reaching, one)
            for step in range(begin, end):
                self._slide(step)
            return
        # Nobody finds these blocks, so that their order does not matter.
        blocks = 0
        for step in range(begin, min(end, begin + size)):
            if leaving := self._leaving[step % size]:
                each = (end - 1 - step) // size + 1
                for request in leaving:
                    self._passed[request] += each
                blocks += each * len(leaving)
        for step, request, _ in due:
            self._leaving[step % size][request] = None
            each = (end - 1 - step) // size + 1
            self._passed[request] += each
            blocks += each
        if blocks:
            self.free += blocks * self._sliding
            if self.cache is not None:
                self.cache.lose(blocks * self._sliding)


class Scheduler(Protocol):
    """A Scheduler decides what a replica computes next."""

    def admit(self, state: ReplicaState, now: float) -> ScheduledWork | None:
        """Return the next work, for which requests were admitted and preempted; None if there is none."""

    def admits(self, state: ReplicaState) -> bool:
        """Return whether a request that arrives at an empty queue may be admitted before others finish."""


class VllmScheduler:
    """A VllmScheduler decides as vLLM V1 does.

    Running requests come first, in the order of their admission: a generating one computes a token, a prompt
    as much as the budget of tokens leaves. If blocks lack, the request that was admitted last is preempted.
    If none was, waiting requests are admitted in order until the budget or the places are used, or the blocks
    of a whole prompt are not free; nobody passes the first one. A request gives back what its window has left
    when it is scheduled again, of the steps that are done.
    """

    def __init__(
        self,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        reserve_full_isl: bool = True,
        each: int = 1,
    ) -> None:
        """``each``: tokens that a generating sequence computes in a step."""
        self._each = each
        if max_num_seqs > max_num_batched_tokens:
            raise InputError.at(
                "max_num_batched_tokens",
                f"max_num_batched_tokens {max_num_batched_tokens} is less than max_num_seqs {max_num_seqs}: "
                "every generating sequence needs a token; raise the first or lower the second",
            )
        self._budget, self._seqs, self._reserve = max_num_batched_tokens, max_num_seqs, reserve_full_isl

    def admits(self, state: ReplicaState) -> bool:
        """Return whether there is a place."""
        return len(state.running) < self._seqs

    def admit(self, state: ReplicaState, now: float) -> ScheduledWork | None:
        """Return the next work; None if there is none."""
        preempted = state.grow()
        idle = not state.waiting or len(state.running) >= self._seqs
        if idle and not preempted and not state.prefilling:
            return state.generate()  # what follows would change nothing
        room = left = max(0, self._budget - self._each * state.decoding)
        wanted, attention = 0, 0.0
        chunks: list[tuple[int, int]] = []
        for request in tuple(state.prefilling):
            if request not in state.prefilling:
                break  # it was preempted for one before it
            past = state.computed[request]
            new = min(state.length[request] - past, left)
            if new <= 0:
                break
            if not state.makes_room(request, state.added(past, past + new)):
                preempted = True
                break
            state.extend(request, past + new)
            chunks.append((request, new))
            attention += new * (past + new / 2)
            left -= new
        while not preempted and left > 0 and state.waiting and len(state.running) < self._seqs:
            request = state.waiting[0]
            length = state.prompt[request] + state.generated[request]
            cached, unused = state.match(request, length)
            new = min(length - cached, left)
            need = state.added(cached, cached + new)
            if self._reserve and cached + new < length:
                need = max(need, state.admitted(cached, length))
            if need + unused > state.free:
                wanted = need
                break
            state.length[request] = length
            if state.scheduled[request] != state.scheduled[request]:
                state.scheduled[request] = now
            state.admit(request, new, cached, unused)
            chunks.append((request, new))
            attention += new * (cached + new / 2)
            left -= new
        if not chunks:
            return state.generate(1 if preempted else None, wanted=wanted)
        row = tuple(chunks), room - left, attention, state.decoding, state.contexts, 1
        return tuple.__new__(ScheduledWork, row)


class StaticBatches:
    """StaticBatches computes one batch after the other, as ``generate`` of transformers does: prompts are
    padded to the longest, and the batch ends with its longest output."""

    def __init__(self, *, batch_size: int) -> None:
        self._size = batch_size

    def admits(self, state: ReplicaState) -> bool:
        """Return whether no batch is being computed."""
        return not state.running

    def admit(self, state: ReplicaState, now: float) -> ScheduledWork | None:
        """Return the next work; None if there is none."""
        if state.running or not state.waiting:
            return state.generate()
        batch = [state.waiting[place] for place in range(min(self._size, len(state.waiting)))]
        longest = max(state.prompt[one] for one in batch)
        last = max(state.output[one] for one in batch)
        for one in batch:
            state.length[one], state.target[one], state.scheduled[one] = longest, last, now
            state.admit(one, longest)
        chunks = tuple((one, longest) for one in batch)
        return ScheduledWork(chunks, len(batch) * longest, len(batch) * longest**2 / 2, 0, 0, 1)
