"""Which tokens a replica computes next: the scheduler of vLLM V1, and static batches.

Source: wheel of vLLM 0.33.0, ``v1/core/sched/scheduler.py`` (``schedule``) and
``v1/core/kv_cache_manager.py`` (``allocate_slots``). There are no phases: every request catches up with its
tokens, those that run first, in the order of their admission, then those that wait.

All sequences that generate advance together, one token a step, so that ``ReplicaState`` keeps sums over them
and no number of each: the context of a sequence is the number of the step plus a constant of the sequence,
its base. Sequences whose bases leave the same remainder fill a block in the same step.
"""

from __future__ import annotations

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

    def match(self, request: int, runs: Runs, tokens: int) -> tuple[int, int]:
        """Return how many of the first ``tokens`` tokens of a request are found, in full blocks and without
        the last one, and how many of these blocks no request uses at present.

        What is beyond its prompt, it generated before it was preempted.
        """

    def pin(self, request: int, runs: Runs, tokens: int) -> None:
        """Let a request use the blocks of so many tokens that were found."""

    def insert(self, request: int, runs: Runs, tokens: int) -> None:
        """Let others find the full blocks of a request, of which so many tokens are computed."""

    def release(self, request: int, runs: Runs, tokens: int, *, ended: bool) -> int:
        """Return how many blocks of a request with so many tokens no other uses; it does not use its blocks
        any more, and unless it ``ended`` it is computed again."""

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


class ReplicaState:
    """A ReplicaState has the requests of a replica, and its KV blocks.

    A request is the number of a row. What is scheduled counts as computed. Of what a prefix cache knows, each
    block counts as one of every group of layers; that those of sliding groups become free while a request
    runs, and may be forgotten before the others, is left out.
    """

    def __init__(
        self,
        *,
        blocks: int,
        block_size: int = 16,
        groups: CacheGroups = ONE_GROUP,
        cache: PrefixCache | None = None,
    ) -> None:
        self.block_size, self.blocks, self.free = block_size, blocks, blocks
        self.groups, self.cache = groups, cache
        self._full, self._number = groups.full, groups.number
        self._reach = groups.reach(block_size) * block_size
        """Tokens from which a request needs no more blocks for sliding groups."""
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
        self.queued, self.scheduled = array("d"), array("d")
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
        self._ends: list[tuple[int, int, int]] = []
        """Step after which a request has its last token, the request, and its ``since``; some are void."""
        self._reaching: list[tuple[int, int, int]] = []
        """The same of the step after which a request needs no more blocks for sliding groups."""
        self.interrupted: list[int] = []
        """Requests that were preempted while they generated, since the list was emptied."""

    def check(self, prompt: int, output: int) -> None:
        """Raise InputError if a request has no tokens, or more than all blocks hold."""
        if prompt < 1 or output < 1:
            raise InputError.at(
                "stream", f"a request of {prompt} + {output} tokens: prompt and output need a token each"
            )
        if (need := self.groups.peak(0, prompt + output - 1, self.block_size)) > self.blocks:
            raise InputError.at(
                "stream",
                f"a request of {prompt} + {output} tokens needs {need} KV blocks, and there are "
                f"{self.blocks}; raise kv_blocks, or leave the request out",
            )

    def add(self, prompt: Sequence[int], output: Sequence[int], runs: Sequence[Runs] | None = None) -> int:
        """Add requests that have not arrived, and return the number of the first one."""
        first, count = len(self.prompt), len(prompt)
        self.prompt.extend(prompt)
        self.output.extend(output)
        self.length.extend(prompt)
        self.target.extend(output)
        self.runs.extend(runs or (None,) * count)
        for zero in (self.computed, self.generated, self.cached, self.preemptions):
            zero.extend([0] * count)
        self.since.extend([-1] * count)
        for unknown in (self.queued, self.scheduled):
            unknown.extend([nan] * count)
        return first

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
        """Blocks that the generating sequences need in the next step."""
        return self._filling[self.step % self.block_size]

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

    def held(self, tokens: int) -> int:
        """Return the blocks of a request with so many computed tokens."""
        if self.groups.sliding:
            return self.groups.held(tokens, self.block_size)
        return self._full * -(-tokens // self.block_size)  # in a third of the time

    def beside(self, past: int, tokens: int) -> int:
        """Return the blocks that a request holds beside its window while the tokens after ``past`` ones are
        computed in one step."""
        return self.groups.peak(past, tokens, self.block_size) - self.held(tokens)

    def steps_until_change(self) -> int:
        """Return the number of steps that the generating sequences can do until one finishes, reaches the
        length of the window, or blocks lack."""
        ends = self._ends
        while self.since[ends[0][1]] != ends[0][2]:
            heappop(ends)
        steps, free, size = ends[0][0] - self.step, self.free, self.block_size
        if self._reaching:
            steps = min(steps, self._reaching[0][0] - self.step)
        if self.decoding * self._number * (steps // size + 1) <= free:
            return steps
        full = free // max(1, self._taken)
        done, free = full * size, free - full * self._taken
        while done < steps and (need := self._filling[(self.step + done) % size]) <= free:
            free -= need
            done += 1
        return max(1, min(steps, done))

    def generate(self, steps: int | None = None) -> ScheduledWork | None:
        """Return a token of each generating sequence, in so many steps, by default until something changes;
        None if there is no sequence."""
        if not (count := self.decoding):
            return None
        if steps is None:
            steps = self.steps_until_change()
        row = (), 0, 0.0, count, self.base + count * (self.step + 1), steps
        return tuple.__new__(ScheduledWork, row)  # in half the time

    # -- changes ------------------------------------------------------------------------------------

    def preempt_last(self) -> int:
        """Take its blocks from the request that was admitted last, and let it wait as the first one.

        Its prompt and what it generated are computed again (recompute).
        """
        victim = next(one for one in reversed(self.running) if one not in self.leaving)
        if self.since[victim] >= 0:
            self.interrupted.append(victim)
            self._stop(victim)
        self.running.pop(victim)
        self.prefilling.pop(victim, None)
        self._release(victim, ended=False)
        self.computed[victim] = 0
        self.preemptions[victim] += 1
        self.waiting.appendleft(victim)
        return victim

    def admit(self, request: int, new: int, cached: int, blocks: int) -> None:
        """Move the first of the waiting requests to the running ones: ``cached`` tokens are found, ``new``
        ones are computed, for both of which ``blocks`` are no longer free."""
        first = self.waiting.popleft()
        assert first == request
        self.running[request] = self.prefilling[request] = None
        if cached and self.cache is not None:
            self.cache.pin(request, self.runs[request], cached)
            if not self.preemptions[request]:
                self.cached[request] = cached
        self.extend(request, cached + new, blocks)

    def extend(self, request: int, computed: int, blocks: int) -> None:
        """Let a running request have so many computed tokens, for which ``blocks`` are no longer free.

        Others find its full blocks at once, as ``allocate_slots`` of vLLM makes them known.
        """
        self.computed[request] = computed
        self.free -= blocks
        if (cache := self.cache) is not None:
            if cache.unused * self._number > self.free:
                cache.evict(self.free // self._number)
            runs = self.runs[request]
            if runs is not None or self.preemptions[request]:  # others, nobody finds before they end
                cache.insert(request, runs, computed)

    def advance(self, work: ScheduledWork, steps: int) -> Outputs:
        """Count ``steps`` steps as scheduled; return what changes with the output of the last one."""
        size, ends, filling = self.block_size, self._ends, self._filling
        begin = self.step % size
        if steps == 1:
            self.free -= filling[begin]
        else:
            full, rest = divmod(steps, size)
            self.free -= full * self._taken + sum(filling[begin : begin + rest])
            if begin + rest > size:
                self.free -= sum(filling[: begin + rest - size])
        self.step += steps
        if self.cache is not None and self.cache.unused * self._number > self.free:
            self.cache.evict(self.free // self._number)
        while self._reaching and self._reaching[0][0] <= self.step:
            step, request, since = heappop(self._reaching)
            if self.since[request] == since:
                filling[step % size] -= self._number - self._full
                self._taken -= self._number - self._full
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
        growth = self._number
        if self.length[request] >= self._reach:
            growth = self._full
        elif growth > self._full:
            heappush(self._reaching, (self._reach - base, request, self.step))
        self._filling[-base % self.block_size] += growth
        self._taken += growth
        rest = (self.output[request] if done < self.output[request] else self.target[request]) - done
        heappush(self._ends, (self.step + rest, request, self.step))

    def _stop(self, request: int) -> None:
        """Let a request generate no more."""
        since = self.since[request]
        base = self.length[request] - since
        self.decoding -= 1
        self.base -= base
        growth = self._full if base + self.step >= self._reach else self._number
        self._filling[-base % self.block_size] -= growth
        self._taken -= growth
        self.generated[request] += self.step - since
        self.computed[request] = self.length[request] + self.step - since
        self.since[request] = -1

    def leave(self, requests: Sequence[int]) -> None:
        """Free the blocks of requests that are computed no more."""
        for request in requests:
            self.leaving.discard(request)
            del self.running[request]
            self._release(request, ended=True)

    def _release(self, request: int, *, ended: bool) -> None:
        """Free the blocks of a request that no other uses."""
        tokens = self.computed[request]
        self.free += self.held(tokens)
        if (cache := self.cache) is not None:
            alone = cache.release(request, self.runs[request], tokens, ended=ended)
            self.free -= self._full * (-(-tokens // self.block_size) - alone)
            if cache.unused * self._number > self.free:
                cache.evict(self.free // self._number)


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
    of a whole prompt are not free; nobody passes the first one. What a chunk holds beside its window in
    sliding groups is free again when the next step is scheduled.
    """

    def __init__(
        self, *, max_num_batched_tokens: int, max_num_seqs: int, reserve_full_isl: bool = True
    ) -> None:
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
        preempted, growth = False, state.growth
        while growth > state.free:
            state.preempt_last()
            preempted, growth = True, state.growth
        idle = not state.waiting or len(state.running) >= self._seqs
        if idle and not preempted and not state.prefilling:
            return state.generate()  # what follows would change nothing
        room = left = self._budget - state.decoding
        groups, size, passing = state.groups, state.block_size, 0
        attention = 0.0
        chunks: list[tuple[int, int]] = []
        for request in tuple(state.prefilling):
            if request not in state.prefilling:
                break  # it was preempted for one before it
            past = state.computed[request]
            new = min(state.length[request] - past, left)
            if new <= 0:
                break
            held = state.held(past + new)
            need, more = held - state.held(past), state.beside(past, past + new)
            while need + more > state.free - growth - passing and request in state.prefilling:
                state.preempt_last()
                preempted, growth = True, state.growth
            if request not in state.prefilling:
                break
            state.extend(request, past + new, need)
            passing += more
            chunks.append((request, new))
            attention += new * (past + new / 2)
            left -= new
        while not preempted and left > 0 and state.waiting and len(state.running) < self._seqs:
            request = state.waiting[0]
            length = state.prompt[request] + state.generated[request]
            cached, unused = state.match(request, length)
            new = min(length - cached, left)
            shared = groups.full * (cached // size - unused)  # blocks that others use as well
            held = state.held(cached + new)
            more = state.beside(cached, cached + new) if groups.sliding else 0
            need = held + more
            if self._reserve and cached + new < length:
                need = groups.peak(cached, length, size)
            if need - shared > state.free - growth - passing:
                break
            state.length[request] = length
            if state.scheduled[request] != state.scheduled[request]:
                state.scheduled[request] = now
            state.admit(request, new, cached, held - shared)
            passing += more
            chunks.append((request, new))
            attention += new * (cached + new / 2)
            left -= new
        if not chunks:
            return state.generate(1 if preempted else None)
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
        last, need = max(state.output[one] for one in batch), state.held(longest)
        for one in batch:
            state.length[one], state.target[one], state.scheduled[one] = longest, last, now
            state.admit(one, longest, 0, need)
        chunks = tuple((one, longest) for one in batch)
        return ScheduledWork(chunks, len(batch) * longest, len(batch) * longest**2 / 2, 0, 0, 1)
