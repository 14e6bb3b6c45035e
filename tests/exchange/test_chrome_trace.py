"""Timelines as Chrome Trace Event JSON."""

from __future__ import annotations

import json
from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simoffload.engine import execute
from simoffload.exchange.chrome_trace import write_trace
from simoffload.results.timeline import Timeline, Track
from simoffload.schedule import Block, Cause, Dependency, Device, Link, Op, Program, Route, Schedule
from simoffload.schedule.ir import CompiledSchedule

MS = 10**9  # [ps]
LAYERS = 5


@pytest.fixture
def timeline() -> Timeline:
    layer = (
        Op("hook", "mlp", 0),
        Op("read", "mlp.weight", 1, fixed=MS, size=3 * 10**9, route=0, after=(Dependency(0),)),
        Op("compute", "mlp", 0, fixed=2 * MS, after=(Dependency(1),)),
    )
    return execute(
        Schedule(
            name="decode 1",
            ranks=2,
            streams=("host", "io"),
            links=(Link("drive", 7 * 10**9),),
            routes=(Route(Cause("read", "raid"), (((0, 1),), ((0, 1),)), cap=5 * 10**9),),
            blocks=(Block("layer", layer, LAYERS),),
        )
    )


def written(timeline: Timeline, folder: Path, **options: int) -> dict[str, Any]:
    write_trace(timeline, folder / "trace.json", **options)
    return json.loads((folder / "trace.json").read_text())


def operations(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_every_operation_with_a_duration_is_there(timeline: Timeline, tmp_path: Path) -> None:
    found = operations(written(timeline, tmp_path))
    assert len(found) == 2 * LAYERS * 2
    reads = [event for event in found if event["cat"] == "read" and event["pid"] == 1]
    assert [event["args"] for event in reads] == [
        {"kind": "read", "bytes": 3 * 10**9, "route": "raid read", "block": "layer", "iteration": iteration}
        for iteration in range(LAYERS)
    ]
    assert {(event["name"], event["tid"]) for event in reads} == {("mlp.weight", 1)}


def test_times_are_microseconds(timeline: Timeline, tmp_path: Path) -> None:
    """Two ranks share 7 GB/s: 3 GB take 857142.857143 us, after 1 ms."""
    first = min(operations(written(timeline, tmp_path)), key=lambda event: event["ts"])
    assert first["ts"] == pytest.approx(0, abs=1e-3)
    assert first["dur"] == pytest.approx(858_142.857, abs=1e-2)


def names(trace: dict[str, Any]) -> dict[tuple[int, int, str], str]:
    return {
        (event["pid"], event["tid"], event["name"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["ph"] == "M" and "name" in event["args"]
    }


def test_tracks_have_names(timeline: Timeline, tmp_path: Path) -> None:
    found = names(written(timeline, tmp_path))
    assert found[1, 0, "process_name"] == "rank 1"
    assert [found[0, tid, "thread_name"] for tid in (0, 1)] == ["host", "io"]


def test_processes_are_named_with_their_programs_and_streams_with_their_devices(tmp_path: Path) -> None:
    ops = Op("compute", "x", 0, fixed=MS), Op("cpu", "y", 1, fixed=MS, after=(Dependency(0, 0, 0),))
    schedule = Schedule(
        "offloaded",
        2,
        ("compute", "attention"),
        (),
        (),
        (Block("layer", ops),),
        devices=(Device("GPU", 1), Device("CPU")),
        programs=(Program("worker", range(1), range(1)), Program("helper", range(1, 2), range(1, 2))),
        peers=(((), (0,)),),
    )
    trace = written(execute(schedule), tmp_path)
    assert names(trace) == {
        (0, 0, "process_name"): "rank 0 (worker)",
        (0, 0, "thread_name"): "worker: GPU 1 compute",
        (1, 0, "process_name"): "rank 1 (helper)",
        (1, 1, "thread_name"): "helper: CPU 0 attention",
    }
    assert [(event["pid"], event["tid"], event["name"]) for event in operations(trace)] == [
        (0, 0, "x"),
        (1, 1, "y"),
    ]


def overlaps(events: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Return neighbours on a track that overlap in nanoseconds, as Perfetto reads them."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        start, duration = int(event["ts"] * 1000), int(event["dur"] * 1000)
        tracks.setdefault((event["pid"], event["tid"]), []).append((start, start + duration))
    return [
        (one[1], two[0])
        for track in tracks.values()
        for one, two in pairwise(sorted(track))
        if one[1] > two[0]
    ]


def test_operations_of_a_stream_do_not_overlap(timeline: Timeline, tmp_path: Path) -> None:
    assert overlaps(operations(written(timeline, tmp_path))) == []


@given(times=st.lists(st.integers(1, 10**16), min_size=3, max_size=30, unique=True))
def test_no_rounding_makes_neighbours_overlap(
    tmp_path_factory: pytest.TempPathFactory, times: list[int]
) -> None:
    ends = sorted(times)
    count = len(ends)
    schedule = Schedule("p", 1, ("s",), (), (), (Block("b", (Op("compute", "x", 0, fixed=1),), count),))
    (step,) = CompiledSchedule(schedule).steps(0)
    start, end = array("q", [0, *ends[:-1]]), array("q", ends)
    track = Track(0, 0, [step] * count, start, end, array("q", [-1] * count))
    timeline = Timeline(schedule, (track,), makespan=ends[-1])
    assert overlaps(operations(written(timeline, tmp_path_factory.mktemp("trace")))) == []


def test_a_long_run_keeps_its_beginning_and_says_so(timeline: Timeline, tmp_path: Path) -> None:
    trace = written(timeline, tmp_path, max_events=12)
    found = operations(trace)
    assert {event["args"]["iteration"] for event in found} == {0, 1}
    assert {event["pid"] for event in found} == {0, 1}
    about = trace["otherData"]
    assert about["truncated"] is True
    assert about["shown_until_s"] < about["simulated_s"] == pytest.approx(timeline.makespan * 1e-12)
    assert written(timeline, tmp_path)["otherData"]["truncated"] is False


def test_names_are_escaped(tmp_path: Path) -> None:
    schedule = Schedule(
        '"p"', 1, ("s\x1b",), (), (), (Block('b"', (Op("compute", 'x"\n\u202e', 0, fixed=MS),)),)
    )
    trace = written(execute(schedule), tmp_path)
    assert operations(trace)[0]["name"] == r'x"\n\u202e'
    assert trace["otherData"]["pass"] == '"p"'
