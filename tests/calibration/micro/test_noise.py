"""Probes show noise, and many repetitions become one number."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload_calibrate.micro.noise import (
    is_noisy,
    lower_quartile,
    machine_noise,
    pooled,
    pooled_steps,
    pooled_trace,
    probe_level,
    spread,
)
from tests.calibration.micro.bench import QUIET, probe


def test_the_lower_quartile_survives_a_host_that_is_disturbed_half_of_the_time() -> None:
    assert lower_quartile([2.0, 1.0, 2.0, 1.0, 2.0, 1.0]) == 1.0
    assert lower_quartile([5.0, 1.0, 3.0]) == 2.0
    assert lower_quartile([3.0]) == 3.0
    assert spread([float(number) for number in range(11)]) == [1.0, 9.0]
    assert spread([2.0, 1.0]) == [1.0, 2.0]


def test_rows_of_all_rounds_come_together() -> None:
    rounds: list[dict[str, Any]] = [
        {"alone": [{"bytes": 4, "pinned": True, "seconds": [1.0, 3.0]}], "left_out": [[1, 2]]},
        {
            "alone": [
                {"bytes": 8, "pinned": True, "seconds": [7.0]},
                {"bytes": 4, "pinned": True, "seconds": [2.0, 4.0]},
            ],
            "left_out": [],
        },
    ]
    found = pooled(rounds)
    assert [(row["bytes"], row["seconds"]) for row in found["alone"]] == [(4, 1.5), (8, 7.0)]
    assert found["alone"][0]["seconds_spread"] == pytest.approx([1.3, 3.7])
    assert found["left_out"] == [[1, 2]]


def test_times_by_rank_and_by_name() -> None:
    by_rank = [{"together": [{"bytes": 4, "seconds": [[1.0, 10.0], [2.0, 20.0]]}]}]
    (row,) = pooled(by_rank)["together"]
    assert row["seconds"] == [1.0, 10.0]
    assert row["seconds_spread"] == [[1.0, 2.0], [10.0, 20.0]]
    named = pooled([{"host_seconds": {"linear": [2.0], "add": [1.0]}}, {"host_seconds": {"linear": [4.0]}}])
    assert named["host_seconds"] == {"linear": 2.0, "add": 1.0}
    assert named["host_seconds_spread"] == {"linear": [2.0, 4.0], "add": [1.0, 1.0]}
    assert pooled([{"compile_seconds": 3.0}, {"compile_seconds": 1.0}]) == {"compile_seconds": 3.0}


def run(name: str, number: int, *seconds: float) -> dict[str, Any]:
    passes = [
        {"name": f"decode {index}", "repetition": number, "seconds": taken}
        for index, taken in enumerate(seconds, start=1)
    ]
    columns = {"module": ["m"], "fetch": [0.0], "fetched": [10.0 * number], "launched": [50.0]}
    trace = {"seconds": 0.1 * number, "modules": {**columns, "released": [60.0 + number]}}
    return {"name": name, "ranks": 1, "passes": passes, "traces": {"decode 1": [trace]}}


def test_small_models_keep_their_names_and_their_quiet_passes() -> None:
    rounds = [
        {"runs": [run("a", 1, 0.2, 0.4)], "held_back": [run("b", 1, 1.0)], "failed": []},
        {"runs": [run("a", 2, 0.3, 0.5)], "failed": [{"name": "c", "error": "none"}]},
        {"training": [], "failed": []},
    ]
    found = pooled_steps(rounds)
    (one,) = found["runs"]
    assert one["times"] == [
        {"name": "decode", "count": 4, "seconds": 0.25, "spread": pytest.approx([0.23, 0.47])}
    ]
    assert [kept["seconds"] for kept in one["passes"]] == [0.2, 0.3]
    assert one["traces"]["decode 1"]["seconds"] == 0.1
    assert [kept["name"] for kept in found["held_back"]] == ["b"]
    assert found["failed"] == [{"name": "c", "error": "none"}]


def test_a_pooled_trace_consists_of_the_lower_quartiles_of_its_intervals() -> None:
    """One of two modules contains the other; an interrupt of 100 us lengthens one interval of each trace."""
    quiet_times = {"fetch": [0, 10], "fetched": [5, 12], "launched": [30, 20], "released": [34, 26]}
    traces = []
    for late in (4, 11, 25):
        columns = {
            key: [time + (100 if time > late else 0) for time in times] for key, times in quiet_times.items()
        }
        traces.append({"seconds": 1e-4, "modules": {"module": ["m", "m.child"], **columns}})
    found = pooled_trace(traces)["modules"]
    assert {key: found[key] for key in quiet_times} == quiet_times
    parts = {"seconds": 1.0, "parts": {"step": {"count": 1, "seconds": 0.5}}}
    assert pooled_trace([parts]) == parts


def test_probes_tell_a_change_from_a_slow_machine() -> None:
    assert probe_level(probe(2.0)) == pytest.approx(2 * QUIET)
    probes = [probe(level) for level in (1.0, 1.05, 1.3, 1.3, 1.5)]
    noisy = [is_noisy({"probes": pair}, probes) for pair in ([0, 1], [1, 2], [2, 3], [3, 4])]
    assert noisy == [False, True, True, True]
    same = [probe(3.0), probe(3.1)]
    assert not is_noisy({"probes": [0, 1]}, same)
    assert machine_noise([], []) == {}
    rounds = [{"section": "dram", "round": 1, "again": 0, "probes": [0, 1]}]
    found = machine_noise(rounds, probes)
    assert (found["probes"], found["median"], found["worst"]) == (5, 1.3, 1.5)
