"""Answers of a stream: definitions by hand, percentiles, warm-up and intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simoffload.extensions.serving.answers import (
    ReplicatedMean,
    StreamMeasures,
    mser,
    quantiles,
    replicated_mean,
    student_quantile,
)
from simoffload.extensions.serving.replica import Served, Steps
from simoffload.extensions.serving.requests import drawn
from simoffload.extensions.serving.scheduler import AFTER_ANY
from simoffload.scenario.streams import StreamLimits, StreamOptions
from tests.serving.streams import Linear, Stream, poisson, replay, stream

EVEN = Linear(fixed=1.0, token=0.0, context=0.0, attention=0.0)


def test_metrics_of_a_stream_by_hand() -> None:
    # Steps of 1 s: the first request has its tokens at 1, 2, 3, 4 s, the second one at 3 and 4 s.
    served = replay(stream([(0.0, 10, 4), (1.5, 30, 2)]), times=EVEN)
    found = StreamMeasures(served, limits=StreamLimits.model_validate({"ttft": "1.2 s", "tpot": "1 s"}))
    assert found.latency("ttft", "mean") == pytest.approx(1.25)
    assert found.latency("ttft", "p90") == pytest.approx(1.45)
    assert found.latency("tpot", "p99") == found.latency("itl", "p50") == 1
    assert found.latency("e2el", "mean") == pytest.approx(3.25)
    assert found.duration == 4
    assert found.metrics()["requests_per_s"] == 0.5
    assert found.metrics()["output_tokens_per_s"] == 1.5
    assert found.metrics()["total_tokens_per_s"] == 11.5
    assert found.metrics()["goodput_per_s"] == 0.25
    assert found.metrics()["attained"] == 0.5
    assert found.share_within(StreamLimits()) == 1
    assert found.metrics()["running"] == pytest.approx((4 + 2) / 4)
    assert found.metrics()["waiting"] == pytest.approx(0.5 / 4)
    line = found.timeline(9)
    assert line.time[3] == 1.5
    assert line.running == [1, 1, 1, 1, 2, 2, 2, 2, 0]
    assert line.waiting == [0, 0, 0, 1, 0, 0, 0, 0, 0]


def test_rates_are_those_of_a_window_without_the_warm_up_and_the_drain() -> None:
    # One place and steps of 1 s: requests of 4 tokens end at 4, 8, 12 and 16 s. The window ends with the
    # last admission, and begins within the tokens of the second request.
    served = replay(stream([(0.0, 10, 4), (0.5, 10, 4), (5.5, 10, 4), (6.0, 10, 4)]), times=EVEN, max_seqs=1)
    found = StreamMeasures(served, skip=2, limits=StreamLimits.model_validate({"e2el": "7 s"}))
    assert found.window == (5.5, 12)
    assert found.completed == 2
    assert found.tokens == pytest.approx(6.5)
    assert found.metrics()["goodput_per_s"] == pytest.approx(1 / 6.5)
    # As vllm bench serve prints them: four requests and 16 tokens in 16 s.
    assert found.metrics()["whole_requests_per_s"] == 0.25
    assert found.metrics()["whole_output_tokens_per_s"] == 1
    assert found.metrics()["running"] == 1


@pytest.mark.parametrize("number", [1, 2, 100, 1000])
def test_more_requests_than_are_served_have_the_rate_of_the_replica(number: int) -> None:
    # Steps of 1 s for four sequences, which have ten tokens each: 0.4 requests/s, also of few requests.
    served = replay(stream([(0.0, 10, 10)] * number), times=EVEN, max_seqs=4)
    values = StreamMeasures(served, skip=number // 2 if number > 10 else 0).metrics()
    rate = min(number, 4) / 10
    assert values["requests_per_s"] == pytest.approx(rate)
    assert values["output_tokens_per_s"] == pytest.approx(10 * rate)


def test_a_stable_stream_serves_what_arrives() -> None:
    # Little's law: mean number in the system = throughput x mean time in it.
    requests = poisson(4000, 3.0)
    found = StreamMeasures(replay(requests), skip=200)
    values = found.metrics()
    assert values["requests_per_s"] == pytest.approx(4000 / requests.arrival[-1], rel=0.03)
    assert values["output_tokens_per_s"] == pytest.approx(3 * requests.output.mean(), rel=0.04)
    present = values["running"] + values["waiting"]
    assert present == pytest.approx(values["requests_per_s"] * values["e2el_mean_s"], rel=0.02)


@pytest.mark.parametrize("turns", [None, 3])
def test_users_over_the_time_of_a_cycle_are_the_throughput(turns: int | None) -> None:
    users, think = 20, 5.0
    options: dict[str, Any] = {
        "num_prompts": 3000,
        "arrivals": {"kind": "closed", "users": users, "think_time": f"{think} s"},
        "prompt": {"kind": "uniform", "min": 1, "max": 900},
        "output": {"kind": "exponential", "mean": 150},
    }
    if turns:
        kind = {"kind": "fixed", "tokens": turns}
        options["conversations"] = {"turns": kind, "think_time": f"{think} s", "max_model_len": 10**6}
    requests = drawn(StreamOptions.model_validate(options))
    served = replay(Stream(*requests[:4]), after=requests.after)
    until = (served.queued - requests.arrival)[requests.after == AFTER_ANY].max()
    values = StreamMeasures(served, skip=200, until=until).metrics()
    cycle = values["e2el_mean_s"] + think
    assert values["requests_per_s"] == pytest.approx(users / cycle, rel=0.03)


def test_gaps_between_tokens_are_those_of_all_requests() -> None:
    requests = poisson(150, 3.0, output=(2, 200))
    options = {"blocks": 260, "budget": 512, "max_seqs": 24}
    jumped, stepped = (StreamMeasures(replay(requests, jump=one, **options)) for one in (True, False))  # type: ignore[arg-type]
    assert jumped.served.preemptions.sum() > 10
    for part in ("mean", "p50", "p95", "p99"):
        assert jumped.latency("itl", part) == pytest.approx(stepped.latency("itl", part), rel=1e-9)
    generation = (jumped.served.finished - jumped.served.first).sum()
    assert jumped.latency("itl", "mean") == pytest.approx(generation / (requests.output - 1).sum())


def test_weighted_quantiles_equal_those_of_numpy() -> None:
    draw = np.random.default_rng(0)
    values, weights = draw.exponential(size=500), draw.integers(0, 9, 500)
    parts = [0.0, 0.01, 0.5, 0.9, 0.999, 1.0]
    expected = np.quantile(np.repeat(values, weights), parts)
    np.testing.assert_allclose(quantiles(values, weights, parts), expected, rtol=1e-12)
    assert np.isnan(quantiles(values[:0], weights[:0], [0.5])[0])


def test_a_stream_of_nothing_has_no_latencies() -> None:
    found = StreamMeasures(replay(stream([])))
    assert found.number == 0
    assert np.isnan(found.metrics()["ttft_mean_s"])
    assert found.timeline() == ([], [], [])
    one = StreamMeasures(replay(stream([(1.0, 5, 1)]), times=EVEN))
    assert one.metrics()["ttft_p99_s"] == 1
    assert np.isnan(one.metrics()["tpot_mean_s"])
    assert one.metrics()["attained"] == 1


def test_every_metric_is_declared_once() -> None:
    assert len(StreamMeasures.declared) == 4 * 5 + 11
    assert StreamMeasures.declared["ttft_p99_s"].label == "TTFT p99"
    assert StreamMeasures.declared["itl_p50_s"].text(0.0123) == "12.3 ms"


def test_the_warm_up_is_cut_where_the_state_is_steady() -> None:
    draw = np.random.default_rng(1)
    steady = draw.normal(10, 1, 2000)
    assert mser(steady) < 500
    rising = np.concatenate([np.linspace(0, 10, 300), steady])
    assert 200 <= mser(rising) <= 500
    assert mser(np.linspace(0, 1, 1000)) == 500
    assert mser(steady[:7]) == 0


def test_quantiles_of_student() -> None:
    # R. A. Fisher's table.
    table = {1: 6.314, 2: 2.920, 4: 2.132, 9: 1.833, 30: 1.697}
    for freedom, value in table.items():
        assert student_quantile(0.95, freedom) == pytest.approx(value, abs=5e-4)
    assert replicated_mean([1.0, 2.0, 3.0]) == pytest.approx(
        ReplicatedMean(2, 2 - 2.920 / 3**0.5, 2 + 2.920 / 3**0.5), rel=1e-3
    )
    assert np.isnan(replicated_mean([1.0]).low)
    assert np.isnan(replicated_mean([]).value)


def _queue(arrival: np.ndarray, service: float) -> Served:
    """Serve one request at a time (Lindley's recursion, all at once)."""
    number = len(arrival)
    walk = np.arange(number) * service - arrival
    begin = arrival + walk - np.minimum.accumulate(walk)
    ones, none = np.ones(number, dtype=np.int64), np.zeros(0)
    count = none.astype(np.int64)
    log = Steps(none, none, none, count, count, count, count, none)
    end = begin + service
    return Served(arrival, begin, end, end, ones, ones, 0 * ones, 0 * ones, log, number)


def test_lindley_equals_a_replica_with_one_place() -> None:
    requests = poisson(300, 0.7, prompt=(5, 5), output=(1, 1))
    served = replay(requests, times=EVEN, max_seqs=1)
    np.testing.assert_allclose(served.first, _queue(requests.arrival, 1.0).first, atol=1e-9)


def test_intervals_cover_the_mean_of_a_queue() -> None:
    # M/D/1 at load 0.7 waits rho S / (2 (1 - rho)); intervals of 90 % hold in 85 to 95 % of 200 seeds.
    load, expected = 0.7, 0.7 / (2 * 0.3) + 1
    covered = 0
    for seed in range(200):
        options = StreamOptions.model_validate(
            {
                "num_prompts": 3000,
                "seed": seed,
                "arrivals": {"kind": "poisson", "request_rate": load},
                "prompt": {"kind": "fixed", "tokens": 5},
                "output": {"kind": "fixed", "tokens": 1},
            }
        )
        found = []
        for replication in range(options.replications):
            served = _queue(drawn(options, replication=replication).arrival, 1.0)
            found.append(StreamMeasures(served, skip=mser(served.ttft)).latency("ttft", "mean"))
        _, low, high = replicated_mean(found)
        covered += low <= expected <= high
    assert 170 <= covered <= 190
