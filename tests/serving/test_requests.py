"""Requests of streams: arrivals, lengths, what they share, and that each has random numbers of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from simoffload.errors import InputError
from simoffload.extensions.serving.answers import StreamMeasures
from simoffload.extensions.serving.prefixes import RadixCache
from simoffload.extensions.serving.requests import Requests, drawn
from simoffload.extensions.serving.scheduler import AFTER_ANY
from simoffload.scenario.streams import StreamOptions
from tests.serving.streams import Linear, Stream, replay

POISSON = {"kind": "poisson", "request_rate": 4.0}
USUAL: dict[str, Any] = {
    "num_prompts": 20_000,
    "arrivals": POISSON,
    "prompt": {"kind": "lognormal", "median": 800, "sigma": 1.0, "max": 20_000},
    "output": {"kind": "exponential", "mean": 200},
}


def stream(replication: int = 0, **changes: Any) -> Requests:
    return drawn(StreamOptions.model_validate({**USUAL, **changes}), replication=replication)


@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [
        (POISSON, 1.0),
        ({**POISSON, "burstiness": 0.25}, 2.0),
        ({"kind": "constant", "request_rate": 4}, 0.0),
        ({"kind": "clients", "clients": [{"request_rate": 3, "cv": 1}, {"request_rate": 1, "cv": 4}]}, None),
    ],
)
def test_arrivals_have_their_rate_and_their_bursts(arrivals: dict[str, Any], cv: float | None) -> None:
    gaps = np.diff(stream(arrivals=arrivals).arrival)
    assert gaps.mean() == pytest.approx(0.25, rel=0.05)
    found = gaps.std() / gaps.mean()
    assert found > 1.1 if cv is None else found == pytest.approx(cv, abs=0.05)
    assert (gaps >= 0).all()


def test_a_ramp_has_the_rates_of_its_ends() -> None:
    arrival = stream(arrivals={"kind": "ramp", "ramp_up_start_rps": 1, "ramp_up_end_rps": 9}).arrival
    assert arrival[-1] == pytest.approx(20_000 / 5, rel=0.03)
    first, last = (np.histogram(arrival, [0, 400, 3600, 4000])[0][one] / 400 for one in (0, 2))
    assert first == pytest.approx(1.4, rel=0.12)
    assert last == pytest.approx(8.6, rel=0.06)


def test_rescaled_arrivals_end_at_their_mean_time() -> None:
    assert stream(arrivals={**POISSON, "rescaled": True}).arrival[-1] == pytest.approx(20_000 / 4)


def test_lengths_have_their_distribution() -> None:
    requests = stream()
    assert np.median(requests.prompt) == pytest.approx(800, rel=0.03)
    assert np.log(requests.prompt[requests.prompt < 20_000]).std() == pytest.approx(1.0, rel=0.03)
    assert requests.output.mean() == pytest.approx(200, rel=0.03)
    assert requests.output.min() == 1
    uniform = stream(prompt={"kind": "uniform", "min": 3, "max": 5}).prompt
    assert set(uniform.tolist()) == {3, 4, 5}
    tail = {"kind": "pareto", "median": 100, "sigma": 0, "tail": 0.1, "scale": 1000, "alpha": 2}
    found = stream(prompt=tail).prompt
    assert (found == 100).mean() == pytest.approx(0.9, abs=0.01)
    assert np.median(found[found > 100]) == pytest.approx(1000 * 2**0.5, rel=0.03)


def test_the_same_seed_has_the_same_bytes_and_each_part_its_own() -> None:
    texts = [{"tokens": {"kind": "uniform", "min": 10, "max": 900}, "number": 50, "zipf": 1.0}]
    one, again = stream(prefixes=texts), stream(prefixes=texts)
    for a, b in zip(one, again, strict=True):
        assert (a.tobytes() == b.tobytes()) if isinstance(a, np.ndarray) else a == b
    bursts = stream(prefixes=texts, arrivals={**POISSON, "burstiness": 0.3})
    assert bursts.runs == one.runs
    assert bursts.arrival.tobytes() != one.arrival.tobytes()
    fixed = stream(prefixes=texts, output={"kind": "fixed", "tokens": 9})
    assert fixed.arrival.tobytes() == one.arrival.tobytes()
    assert [run and run[0] for run in fixed.runs] == [run and run[0] for run in one.runs]
    assert stream().output.tobytes() == one.output.tobytes()
    faster = stream(arrivals={**POISSON, "request_rate": 8.0})
    np.testing.assert_allclose(faster.arrival * 2, one.arrival, rtol=1e-12)
    for other in (stream(seed=1), stream(1)):
        assert other.arrival.tobytes() != stream().arrival.tobytes()
        assert other.output.tobytes() != stream().output.tobytes()


def test_documents_are_as_popular_as_zipf_says() -> None:
    texts = [
        {"tokens": {"kind": "fixed", "tokens": 64}},
        {"tokens": {"kind": "fixed", "tokens": 500}, "number": 100, "zipf": 1.0},
    ]
    requests = stream(prefixes=texts)
    system = {run[0] for run in requests.runs if run}
    assert system == {(1, 64)}
    counts = np.bincount([run[1][0] - 2 for run in requests.runs if run], minlength=100)
    assert counts[0] / 20_000 == pytest.approx(1 / (1 / np.arange(1, 101)).sum(), rel=0.05)
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.2)
    assert len({run[2][0] for run in requests.runs if run}) == 20_000
    assert all(
        sum(t for _, t in run or ()) == n for run, n in zip(requests.runs, requests.prompt, strict=True)
    )


CONVERSATIONS = {
    "num_prompts": 1000,
    "prefixes": [{"tokens": {"kind": "fixed", "tokens": 100}}],
    "conversations": {"turns": {"kind": "uniform", "min": 1, "max": 5}, "think_time": "10 s"},
}


def test_a_turn_contains_what_was_written_before() -> None:
    requests = stream(**CONVERSATIONS)
    first = requests.after < 0
    assert (np.diff(requests.arrival[first]) >= 0).all()
    assert 250 < first.sum() < 450
    for row in np.flatnonzero(~first):
        before = requests.after[row]
        assert before == row - 1
        earlier, runs = requests.runs[before], requests.runs[row]
        assert earlier
        assert runs
        assert runs[: len(earlier)] == earlier
        assert runs[len(earlier)] == (-1 - before, requests.output[before])
        assert requests.prompt[row] == sum(tokens for _, tokens in runs)
    assert requests.arrival[~first].mean() == pytest.approx(10, rel=0.15)


def test_a_conversation_ends_before_a_turn_that_is_too_long() -> None:
    limited = {**CONVERSATIONS, "conversations": {**CONVERSATIONS["conversations"], "max_model_len": 1500}}  # type: ignore[dict-item]
    requests = stream(**limited)
    assert (requests.prompt + requests.output).max() <= 1500
    assert 100 < len(requests.prompt) < 1000
    for row in np.flatnonzero(requests.after >= 0):
        runs = requests.runs[row]
        assert runs
        assert runs[-2] == (-1 - requests.after[row], requests.output[requests.after[row]])
    with pytest.raises(InputError, match="no first turn has at most 101 tokens"):
        stream(**{**limited, "conversations": {**limited["conversations"], "max_model_len": 101}})


def test_users_send_the_next_request_after_the_last_answer() -> None:
    closed = {"kind": "closed", "users": 7, "think_time": "3 s"}
    requests = stream(arrivals=closed, num_prompts=100)
    assert (requests.after[:7] == -1).all()
    assert (requests.after[7:] == AFTER_ANY).all()
    both = stream(arrivals=closed, **CONVERSATIONS)
    assert (both.after == -1).sum() == 7
    assert (both.after == AFTER_ANY).sum() > 100
    followed = both.after[both.after >= 0]
    assert len(set(followed.tolist())) == len(followed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrivals": {"kind": "poisson", "request_rate": -1}}, "greater than 0"),
        ({"arrivals": {"kind": "poisson", "request_rate": float("nan")}}, "finite"),
        ({"arrivals": {"kind": "clients", "clients": []}}, "at least 1"),
        ({"prompt": None}, "write arrivals, prompt and output, or a trace"),
        ({"prompt": {"kind": "uniform", "min": 9, "max": 3}}, "min 9 is above max 3"),
        ({"trace": {"file": "x"}}, "a trace has its own lengths"),
        ({"max_num_seqs": 99, "max_num_batched_tokens": 10}, "max_num_seqs 99 is above"),
        ({"num_prompts": 0}, "greater than or equal to 1"),
    ],
)
def test_bad_streams_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        StreamOptions.model_validate({**USUAL, **changes})


@pytest.mark.parametrize("ahead", [False, True])
def test_a_request_that_follows_arrives_after_the_answer(ahead: bool) -> None:
    requests = stream(
        arrivals={"kind": "closed", "users": 5, "think_time": "2 s"},
        **{**CONVERSATIONS, "num_prompts": 150, "output": {"kind": "uniform", "min": 1, "max": 90}},
    )
    served = [
        replay(Stream(*requests[:4]), after=requests.after, async_scheduling=ahead, jump=jump)
        for jump in (True, False)
    ]
    first = served[0]
    follows = requests.after >= 0
    before = first.finished[requests.after[follows]]
    np.testing.assert_allclose(first.queued[follows] - before, requests.arrival[follows], atol=1e-9)
    times = np.concatenate([first.queued, first.finished])
    change = np.repeat([1, -1], 150)[np.lexsort((np.repeat([1, 0], 150), times))]
    assert change.cumsum().max() <= 5
    begins = requests.after == AFTER_ANY  # whoever is free first begins the next conversation
    free = np.setdiff1d(np.arange(150), requests.after[follows])
    ends = np.sort(first.finished[free])[: begins.sum()]
    np.testing.assert_allclose(first.queued[begins] - ends, requests.arrival[begins], atol=1e-9)
    assert first.events < served[1].events
    np.testing.assert_allclose(first.finished, served[1].finished, rtol=1e-12)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("caching", [False, True])
def test_jumps_equal_steps_where_turns_wait_for_blocks(ahead: bool, caching: bool) -> None:
    preempted = 0
    for seed in range(5):
        requests = stream(
            seed=seed,
            num_prompts=150,
            output={"kind": "uniform", "min": 1, "max": 200},
            conversations={"turns": {"kind": "fixed", "tokens": 5}, "think_time": "0.5 s"},
            prompt={"kind": "uniform", "min": 1, "max": 300},
        )
        jumped, stepped = (
            replay(
                Stream(*requests[:4]),
                times=Linear(host=0.5, gpu=0.8),
                after=requests.after,
                async_scheduling=ahead,
                cache=RadixCache(16) if caching else None,
                jump=jump,
                blocks=260,
                budget=512,
                max_seqs=24,
            )
            for jump in (True, False)
        )
        for name in ("queued", "scheduled", "first", "finished"):
            np.testing.assert_allclose(getattr(jumped, name), getattr(stepped, name), rtol=1e-12)
        assert jumped.events < 0.3 * stepped.events
        follows = requests.after >= 0
        answered = jumped.finished[requests.after[follows]]
        np.testing.assert_array_equal(jumped.queued[follows], answered + requests.arrival[follows])
        assert (np.diff(jumped.scheduled[np.argsort(jumped.queued)]) >= 0).all()  # nobody passes another
        preempted += jumped.preemptions.sum()
    assert preempted > 50


@pytest.mark.parametrize("jump", [False, True])
def test_a_follower_has_its_place_by_its_arrival(jump: bool) -> None:
    # Steps of 1 s and one place: the first answer ends at 3, its follower comes at 3.5. Then the second
    # request is served up to 7, the third, which came at 3.25, to 8, and only then the follower.
    times = Linear(fixed=1.0, token=0.0, context=0.0, attention=0.0)
    rows = Stream(np.array([0, 2.5, 3.25, 0.5]), np.full(4, 10), np.array([3, 4, 1, 1]), [None] * 4)
    after = np.array([-1, -1, -1, 0])
    served = replay(rows, times=times, after=after, max_seqs=1, jump=jump)
    assert list(served.queued) == [0, 2.5, 3.25, 3.5]
    assert list(served.finished) == [3, 7, 8, 9]


@pytest.mark.parametrize(("ahead", "first"), [(False, 7), (True, 8)])
@pytest.mark.parametrize("jump", [False, True])
def test_a_follower_ends_a_jump(ahead: bool, first: int, jump: bool) -> None:
    # The first answer ends at 3 and its follower comes at 5.5, while the other request generates up to 20. It
    # is in the step after that one, or in the next if that is scheduled already.
    times = Linear(fixed=1.0, token=0.0, context=0.0, attention=0.0)
    rows = Stream(np.array([0, 0, 2.5]), np.full(3, 10), np.array([3, 20, 1]), [None] * 3)
    served = replay(rows, times=times, after=np.array([-1, -1, 0]), async_scheduling=ahead, jump=jump)
    assert list(served.queued) == [0, 0, 5.5]
    assert list(served.finished) == [3, 20, first]


def test_users_without_think_time_are_always_there() -> None:
    # N = X (R + Z) of a closed system, with Z = 0.
    requests = stream(arrivals={"kind": "closed", "users": 8}, num_prompts=400)
    served = replay(Stream(*requests[:4]), after=requests.after)
    found = StreamMeasures(served)
    values = found.metrics()
    assert values["running"] + values["waiting"] == pytest.approx(8, rel=1e-9)
    assert found.window[1] == served.scheduled[-1]  # then the first user is done
