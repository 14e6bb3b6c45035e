"""The rules of the schedulers and the process of a replica, with step times by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simoffload.errors import InputError
from simoffload.extensions.serving.replica import Served
from simoffload.extensions.serving.scheduler import ReplicaState, StaticBatches
from simoffload.strategies import ONE_GROUP, CacheGroups
from tests.serving.streams import Linear, poisson, replay, stream
from validation.block_pool import BlockPool

SCARCE = {"blocks": 260, "budget": 512, "max_seqs": 24}
"""A replica on which requests are preempted."""
SLIDING = {**SCARCE, "blocks": 360, "groups": CacheGroups(full=2, sliding=1, window=300)}
"""Another one, with windows that requests reach while they generate."""


def test_a_request_alone_has_its_steps() -> None:
    # 5,000 tokens in chunks of 2,048, then two decode steps.
    times = Linear(fixed=1.0, token=1e-3, context=1e-6, attention=0.0)
    served = replay(stream([(2.0, 5000, 3)]), times=times)
    assert served.scheduled[0] == 2.0
    assert served.ttft[0] == pytest.approx(3 + 5.0)
    later = 2 * (1 + 1e-3) + 1e-6 * (5001 + 5002)
    assert served.finished[0] - served.first[0] == pytest.approx(later)
    assert served.events == 4


@pytest.mark.parametrize("ahead", [False, True])
def test_jumps_equal_single_steps(ahead: bool) -> None:
    requests = poisson(150, 3.0)
    for options in ({}, SCARCE, SLIDING, {"max_seqs": 5}):
        both = [
            replay(
                requests,
                times=Linear(host=0.5, gpu=0.8),
                async_scheduling=ahead,
                jump=jump,
                **options,
            )
            for jump in (True, False)
        ]
        jumped, stepped = both
        assert jumped.events < 0.7 * stepped.events
        for name in ("scheduled", "first", "finished"):
            np.testing.assert_allclose(getattr(jumped, name), getattr(stepped, name), rtol=1e-13)
        np.testing.assert_array_equal(jumped.preemptions, stepped.preemptions)
        assert (stepped.preemptions.sum() > 20) == ("blocks" in options)
        tokens = [_gaps(one) for one in both]
        np.testing.assert_allclose(np.sort(tokens[0]), np.sort(tokens[1]), rtol=1e-9)


def _gaps(served: Served) -> np.ndarray:
    """Return the time between tokens, one for each token that follows another of its request."""
    log = served.log
    ranges = [np.arange(steps) for steps in log.steps]
    steps = [time + growth * one for time, growth, one in zip(log.time, log.growth, ranges, strict=True)]
    return np.concatenate([np.repeat(one, n) for one, n in zip(steps, log.sequences, strict=True)])


@pytest.mark.parametrize("ahead", [False, True])
def test_a_known_stream_equals_one_that_interrupts(ahead: bool) -> None:
    requests = poisson(150, 3.0)
    known, submitted = (
        replay(requests, async_scheduling=ahead, known=known, **SCARCE)  # type: ignore[arg-type]
        for known in (True, False)
    )
    for name in ("queued", "scheduled", "first", "finished"):
        np.testing.assert_allclose(getattr(known, name), getattr(submitted, name), rtol=1e-13)
    assert known.events == submitted.events


@pytest.mark.parametrize("ahead", [False, True])
def test_every_token_has_one_gap(ahead: bool) -> None:
    requests = poisson(150, 3.0, output=(2, 300))
    served = replay(requests, async_scheduling=ahead, **SCARCE)  # type: ignore[arg-type]
    gaps = _gaps(served)
    assert len(gaps) == (requests.output - 1).sum()
    assert gaps.sum() == pytest.approx((served.finished - served.first).sum(), rel=1e-9)


def test_one_place_is_a_queue_of_lindley() -> None:
    requests = poisson(400, 1.0, prompt=(10, 2000), output=(1, 60))
    alone = np.array([replay(stream([(0.0, p, o)])).finished[0] for p, o in zip(*requests[1:3], strict=True)])
    wait = 0.0
    served = replay(requests, max_seqs=1)
    for number, service in enumerate(alone):
        assert served.scheduled[number] - served.queued[number] == pytest.approx(wait, abs=1e-9)
        gap = requests.arrival[number + 1] - requests.arrival[number] if number < 399 else 0.0
        wait = max(0.0, wait + service - gap)
    assert 0.5 < alone.sum() / requests.arrival[-1] < 2


@pytest.mark.parametrize(
    "options",
    [
        SCARCE,
        SLIDING,
        {**SLIDING, "groups": CacheGroups(0, 1, 200)},
        {**SLIDING, "groups": CacheGroups(1, 3, 1, recurrent=True)},
        {**SLIDING, "groups": CacheGroups(1, 3, 1, recurrent=True).caching()},
    ],
)
@pytest.mark.parametrize("ahead", [False, True])
def test_littles_law_and_conservation(ahead: bool, options: dict[str, Any]) -> None:
    full, sliding, window = options.get("groups", ONE_GROUP)[:3]
    kept = []
    requests = poisson(150, 3.0)
    seen = []

    def watch(state: ReplicaState) -> None:
        blocks = {one: -(-_tokens(state, one) // 16) for one in state.running}
        passed = sum(state._passed[one] for one in state.running) if sliding else 0
        assert (full + sliding) * sum(blocks.values()) - sliding * passed + state.free == state.blocks
        for one in state.running if sliding else ():
            # beside the window: what a chunk passes, and, with a step ahead, the block of that step
            late = state.since[one] < 0 or state.step - state.since[one] < 2
            kept.append((late, blocks[one] - state._passed[one] - (-(-(window - 1) // 16) + 1)))
        assert state.free >= 0
        others = set(state.waiting) | set(state.running)
        assert len(others) == len(state.waiting) + len(state.running)
        assert state.decoding + len(state.prefilling) + len(state.leaving) == len(state.running)
        assert state.contexts == sum(state.generating())
        seen.append(len(others))

    served = replay(requests, async_scheduling=ahead, watch=watch, **options)
    assert max(seen) > 30 * (full > 0)
    if sliding:
        assert max(one for late, one in kept if not late) <= ahead
        assert max(one for late, one in kept if late) > 0
    assert not np.isnan(served.finished).any()
    times = np.concatenate([served.queued, served.finished])
    change = np.repeat([1, -1], 150)
    order = np.argsort(times, kind="stable")
    present = change[order].cumsum()
    area = (present[:-1] * np.diff(times[order])).sum()
    assert area == pytest.approx((served.finished - served.queued).sum(), rel=1e-12)
    assert present[-1] == 0


def _tokens(state: ReplicaState, one: int) -> int:
    """Return the tokens of a running request for which it has blocks."""
    since = state.since[one]
    return state.computed[one] if since < 0 else state.length[one] + state.step - since + state._grown


def test_the_last_one_admitted_is_preempted_and_is_the_first_to_return() -> None:
    # Two requests of a block each and a place for one more block, which the first one takes.
    served = replay(stream([(0.0, 16, 17), (0.0, 16, 17), (1e-3, 30, 2)]), blocks=3)
    assert list(served.preemptions) == [0, 1, 0]
    assert served.first[0] == served.first[1]
    assert served.finished[0] < served.finished[1] == served.scheduled[2]


@pytest.mark.parametrize("ahead", [False, True])
def test_what_a_window_has_left_is_free_when_a_request_is_scheduled_again(ahead: bool) -> None:
    """A window of 33 tokens needs 2 blocks before its own one. The second chunk of a prompt of 100 tokens has
    7 blocks in each group, of which the first chunk of 64 has left 2 if it is done, and none else."""
    groups = CacheGroups(full=2, sliding=3, window=33)
    seen: list[int] = []
    rows, small = stream([(0.0, 100, 31)]), {"groups": groups, "budget": 64, "max_seqs": 2}

    def watch(state: ReplicaState) -> None:
        seen.append(state.blocks - state.free)

    replay(rows, blocks=50, watch=watch, jump=False, async_scheduling=ahead, **small)  # type: ignore[arg-type]
    behind = [(4, 4), (7, 5), (7, 3), (8, 3), (9, 3)]
    late = [(4, 4), (7, 7), (7, 5), (7, 3), (8, 4), (8, 3), (9, 4), (9, 3)]
    assert [*dict.fromkeys(seen)] == [0, *(2 * full + 3 * part for full, part in (late if ahead else behind))]


def test_a_prompt_is_admitted_if_its_windows_have_room() -> None:
    """A step of 64 tokens and the 32 before it touch 7 blocks, and two steps 11 of the 9 of the request."""
    groups = CacheGroups(full=2, sliding=3, window=33)
    rows, small = stream([(0.0, 100, 31)]), {"groups": groups, "budget": 64, "max_seqs": 2}
    assert groups._replace(step=64).peak(0, 130, 16) == 2 * 9 + 3 * 7
    for ahead, need in ((False, 39), (True, 45)):
        with pytest.raises(InputError, match=f"needs {need} KV blocks, and there are {need - 1}"):
            replay(rows, blocks=need - 1, async_scheduling=ahead, **small)  # type: ignore[arg-type]
    # The second prompt is admitted when the first step, whose chunk holds 4 blocks a group, is over.
    both = stream([(0.0, 64, 3), (0.0, 64, 3)])
    later = replay(both, blocks=39, **{**small, "budget": 128})  # type: ignore[arg-type]
    assert later.scheduled[1] > later.scheduled[0]
    assert not replay(both, blocks=40, **{**small, "budget": 128}).scheduled.any()  # type: ignore[arg-type]


def test_nobody_passes_a_prompt_that_does_not_fit() -> None:
    served = replay(stream([(0.0, 160, 50), (0.1, 800, 2), (0.2, 16, 2)]), blocks=55)
    assert served.scheduled[1] == served.finished[0]
    assert served.scheduled[2] >= served.scheduled[1]


def test_a_step_ahead_has_whom_it_could_see() -> None:
    # The second request arrives in the step of the first, when its decode step is already scheduled.
    times = Linear(fixed=1.0, token=0.0, context=0.0, attention=0.0)
    rows = [(0.0, 10, 5), (0.5, 10, 1)]
    behind, ahead = (replay(stream(rows), times=times, async_scheduling=on) for on in (False, True))
    assert list(behind.first) == [1, 2]
    assert list(ahead.first) == [1, 3]
    assert behind.finished[0] == ahead.finished[0] == 5


def test_an_output_is_seen_when_the_next_step_is_launched() -> None:
    times = Linear(fixed=1.0, token=0.0, context=0.0, attention=0.0, host=0.75)
    rows = [(0.0, 10, 1), (0.5, 10, 1)]
    served = replay(stream(rows), times=times, async_scheduling=True)
    assert list(served.first) == [1.5, 2]  # launched from 0.75 to 1.5


def test_a_static_batch_ends_with_its_longest_output() -> None:
    times = Linear(fixed=1.0, token=0.0, context=0.0, attention=0.0)
    rows = [(0.0, 10, 5), (0.0, 30, 2), (0.5, 10, 1)]
    served = replay(stream(rows), times=times, scheduler=StaticBatches(batch_size=8))
    assert list(served.first) == [1, 1, 6]
    assert list(served.finished) == [5, 2, 6]


def test_a_common_text_is_computed_once() -> None:
    # 64 common tokens are 4 blocks, which the second request finds in the same step; the third one comes when
    # the others have gone, and finds the full blocks of all but the last token of its prompt.
    rows = stream([(0.0, 100, 3), (0.0, 100, 3), (9.0, 64, 3)])
    runs = [((1, 64), (-1, 36)), ((1, 64), (-2, 36)), ((1, 64),)]
    cache = BlockPool()
    seen = []
    served = replay(
        rows._replace(runs=runs), cache=cache, blocks=14, watch=lambda state: seen.append(state.free)
    )
    assert list(served.cached) == [0, 64, 48]
    assert min(seen) == 14 - 7 - 3
    assert seen[-1] == 14


def test_a_preempted_request_finds_what_nobody_overwrote() -> None:
    requests = poisson(150, 3.0)
    without = replay(requests, **SCARCE)  # type: ignore[arg-type]  # numbers

    def watch(state: ReplicaState) -> None:
        assert 0 <= state.free <= state.blocks

    cached = replay(requests, cache=BlockPool(), watch=watch, **SCARCE)  # type: ignore[arg-type]
    assert not cached.cached.any()  # of a first computation
    assert cached.finished.max() < without.finished.max()


def test_the_same_stream_has_the_same_bytes() -> None:
    one, other = (replay(poisson(100, 3.0), **SCARCE) for _ in range(2))  # type: ignore[arg-type]
    for mine, others in zip(one[:8], other[:8], strict=True):
        assert np.array(mine).tobytes() == np.array(others).tobytes()
    assert one.log.time.tobytes() == other.log.time.tobytes()


def test_streams_at_their_edges() -> None:
    assert len(replay(stream([])).first) == 0
    flood = replay(stream([(0.0, 500, 100)] * 500), blocks=1000)
    assert not np.isnan(flood.finished).any()
    with pytest.raises(InputError, match=r"40 \+ 10 tokens needs 4 KV blocks, and there are 3; raise"):
        replay(stream([(0.0, 40, 10)]), blocks=3)
    with pytest.raises(InputError, match="need a token each"):
        replay(stream([(0.0, 0, 10)]))
