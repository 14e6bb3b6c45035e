"""Charts over a load or a size: real axes, the limit as a line, the interval as a band."""

from __future__ import annotations

import pytest

import simoffload as so
from simoffload.extensions.serving import charts as stream_charts
from simoffload.report import charts
from tests.report.conftest import checked

WORK = "accelerate/opt-30b"


def test_values_that_were_tried_are_at_their_places_below_their_limit() -> None:
    found = so.reach(WORK, slo="tpot=30s", by="workload.batch_size", within="1..8")
    figure = checked(charts.reached(found))
    band, line, limit = figure["data"]
    timed = [one for one in found.trials if one.result is not None]
    assert line["x"] == [float(one.value) for one in timed]
    assert line["y"] == [found.service[0].of(one.result) for one in timed if one.result]
    assert limit["y"] == [30, 30]
    assert (limit["line"]["dash"], limit["text"][1]) == ("dot", "limit: tpot ≤ 30 s")
    assert len(band["x"]) == 2 * len(timed)
    low, high = so.confidence(timed[0].result).interval("tpot_s")  # type: ignore[arg-type]
    assert (band["y"][0], band["y"][-1]) == (low, high)
    assert low <= line["y"][0] < high


def test_several_limits_are_one_line() -> None:
    found = so.reach(WORK, slo=["tpot=30s", "ttft=60s"], by="workload.batch_size", within="1..4")
    data = checked(charts.reached(found))["data"]
    assert data[-1]["y"] == [1, 1]
    first = found.trials[0].result
    assert first is not None
    tpot = next(one for one in data if one["name"] == "tpot ≤ 30 s")
    assert tpot["y"][0] == pytest.approx((first.metrics()["tpot_s"] or 0.0) / 30)


def test_loads_have_the_share_that_is_needed_and_the_interval_of_replications() -> None:
    found = so.stream("serving/llama-3.1-8b-chat", slo="ttft=2s", overrides={"stream.num_prompts": 50})
    band, line, limit = checked(stream_charts.within_limits(found))["data"]
    assert line["x"] == [one.load for one in found.trials]
    assert line["y"] == [one.attained.value for one in found.trials]
    assert limit["y"] == [found.options.slo.attain] * 2
    assert max(band["y"]) <= 1
    assert min(band["y"]) >= 0
    assert all(low <= value for low, value in zip(band["y"], line["y"], strict=False))
