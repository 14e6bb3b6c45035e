"""Rounds, probes between sections, repeated measurements, time limits and failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from simoffload.errors import InputError
from simoffload_calibrate.micro import session
from simoffload_calibrate.micro.benchmarks import (
    Context,
    MeasurementRequest,
    MeasurementSection,
    SkippedError,
)
from simoffload_calibrate.micro.record import read_record
from simoffload_calibrate.micro.session import measure
from tests.calibration.micro.bench import QUIET, Copies, FakeBench, opened

LONG = 1000.0
REFERENCE = session._REFERENCE_PROBE / QUIET
"""The level of a probe of the host on which sections take their expected time."""


def measured(
    monkeypatch: pytest.MonkeyPatch,
    bench: FakeBench,
    *,
    seconds: float | None = LONG,
    record: Path | None = None,
    resumed: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    monkeypatch.setattr(session, "open_bench", opened(bench))
    request = MeasurementRequest(
        ("dram",), None, None, None, False, record=record, seconds=seconds, resumed=resumed
    )
    return measure(request, progress=progress)


def order(raw: Mapping[str, Any]) -> list[tuple[str, int]]:
    return [(one["section"], one["round"]) for one in raw["rounds"]]


def test_sections_take_turns_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    dram, adam = Copies([0.3, 0.5], [0.2], [0.4, 0.6]), Copies([1.0])
    sections = [
        MeasurementSection("dram", dram, 0.1),
        MeasurementSection("cpu_adam", adam, 0.1, rounds=(1, 3)),
    ]
    raw = measured(monkeypatch, FakeBench(sections))
    assert order(raw) == [("dram", 1), ("cpu_adam", 1), ("dram", 2), ("dram", 3), ("cpu_adam", 3)]
    (row,) = raw["sections"]["dram"]["copies"]
    assert row["seconds"] == 0.3, "the lower quartile of five repetitions"
    low, high = row["seconds_spread"]
    assert low == pytest.approx(0.24)
    assert high == pytest.approx(0.56)
    assert raw["unfinished"] == []
    assert raw["noise"]["worst"] == 1.0
    assert raw["noise"]["sections"]["dram"] == {"measured": 3, "quiet": 3}


def test_there_is_a_probe_between_any_two_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    sections = [
        MeasurementSection("dram", Copies([0.3]), 0.1),
        MeasurementSection("cpu_adam", Copies([1.0]), 0.1),
    ]
    raw = measured(monkeypatch, FakeBench(sections))
    assert [one["probes"] for one in raw["rounds"]] == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6]]
    assert len(raw["probes"]) == 7
    assert all(probe["at"] > 1.7e9 for probe in raw["probes"])


def test_what_a_noisy_host_disturbed_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is slow from the second to the third probe, so its speed changed during both sections."""
    dram, adam, gpu = Copies([0.3]), Copies([1.0]), Copies([2.0])
    sections = [
        MeasurementSection("dram", dram, 0.1, rounds=(1,)),
        MeasurementSection("cpu_adam", adam, 0.1, rounds=(1,)),
        MeasurementSection("matmul", gpu, 0.1, rounds=(1,), host=False),
    ]
    raw = measured(monkeypatch, FakeBench(sections, [1.0, 1.5, 1.5, 1.0]))
    assert order(raw)[3:] == [("dram", 1), ("cpu_adam", 1)], "the GPU does not mind"
    assert [context.again for context in dram.calls] == [0, 1]
    assert raw["noise"]["repeated"] == 2
    assert raw["noise"]["stayed_noisy"] == []
    assert raw["noise"]["worst"] == 1.5


def test_a_host_that_stays_noisy_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    dram = Copies([0.3])
    sections = [MeasurementSection("dram", dram, 0.1, rounds=(1,))]
    raw = measured(monkeypatch, FakeBench(sections, [1.0, 2.0, 1.0, 2.0]))
    assert len(dram.calls) == 2
    assert raw["noise"]["stayed_noisy"] == ["dram"]
    assert raw["noise"]["sections"]["dram"] == {"measured": 2, "quiet": 0}


def test_a_slow_machine_is_not_a_noisy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """All probes are equally slow, so that nothing would be gained by another measurement."""
    raw = measured(monkeypatch, FakeBench([MeasurementSection("dram", Copies([0.3]), 0.1)], [3.0]))
    assert raw["noise"]["stayed_noisy"] == []
    assert len(raw["rounds"]) == 3


def test_what_does_not_fit_into_the_time_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = Copies([0.3]), Copies([1.0])
    sections = [MeasurementSection("cpu_adam", long, 500.0), MeasurementSection("dram", short, 1.0)]
    raw = measured(monkeypatch, FakeBench(sections), seconds=60.0)
    assert (len(short.calls), len(long.calls)) == (3, 0)
    assert raw["unfinished"] == ["cpu_adam"]
    assert all(context.seconds <= 60 for context in short.calls)


def imagined_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    return clock


def lasting(clock: list[float], seconds: float) -> Callable[[Context], Mapping[str, Any]]:
    """A section that takes a time [s] on an imagined clock."""

    def section(_: Context) -> Mapping[str, Any]:
        clock[0] += seconds
        return {"found": 1}

    return section


def test_without_a_limit_the_first_round_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sections take ten times as long as the probe promises, so only the first round is measured."""
    clock = imagined_clock(monkeypatch)
    sections = [MeasurementSection(name, lasting(clock, 500.0), 50.0) for name in ("dram", "cpu_adam")]
    raw = measured(monkeypatch, FakeBench(sections, [REFERENCE]), seconds=None)
    assert order(raw) == [("dram", 1), ("cpu_adam", 1)]
    assert raw["unfinished"] == []


@pytest.mark.parametrize("pace", [1.0, 1.5, 2.5])
@pytest.mark.parametrize("error", [1.0, 1.2])
def test_a_slow_host_has_time_for_all_rounds_and_is_told_how_long(
    monkeypatch: pytest.MonkeyPatch, pace: float, error: float
) -> None:
    """The times of sections follow the first probe; they may be longer by ``error``."""
    clock, told = imagined_clock(monkeypatch), list[str]()
    names = ("dram", "copies", "kernels")
    sections = [MeasurementSection(name, lasting(clock, 50.0 * pace * error), 50.0) for name in names]
    raw = measured(monkeypatch, FakeBench(sections, [pace * REFERENCE]), seconds=None, progress=told.append)
    assert len(raw["rounds"]) == 9
    probes = 9 * 1.8 + 3
    assert told[0] == f"3 sections to measure: {450 + probes:.0f} s on the reference host"
    seconds = 450 * pace + probes
    assert told[1] == (
        f"about {seconds:.0f} s on this machine, with repetitions up to {1.25 * seconds:.0f} s where other "
        f"work disturbs it: the host thread takes {pace:.2f} x the reference's time"
    )
    assert clock[0] == pytest.approx(450 * pace * error)


def test_a_time_that_is_too_short_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = imagined_clock(monkeypatch), list[str]()
    sections = [MeasurementSection("dram", lasting(clock, 100.0), 50.0)]
    raw = measured(monkeypatch, FakeBench(sections, [2 * REFERENCE]), seconds=240.0, progress=told.append)
    assert told[1].startswith("about 308 s on this machine")
    assert told[2].startswith("only 240 s of --time are left: what does not fit is not measured")
    assert len(raw["rounds"]) == 2
    told.clear()
    measured(monkeypatch, FakeBench(sections, [2 * REFERENCE]), seconds=340.0, progress=told.append)
    assert not any("--time" in text for text in told)


class Subsets:
    """A section that completes what it measures only in some of its calls."""

    def __init__(self, *unfinished: bool) -> None:
        self.rounds: list[int] = []
        self._unfinished = unfinished

    def __call__(self, context: Context) -> Mapping[str, Any]:
        self.rounds.append(context.round)
        unfinished = self._unfinished[len(self.rounds) - 1]
        return {"subsets": [], **({"unfinished": "1 of 3"} if unfinished else {})}

    def section(self) -> MeasurementSection:
        return MeasurementSection("copies_subsets/3", self, 0.1, rounds=(1, 2), host=False, once=True)


def test_what_is_measured_once_is_tried_again_only_if_time_ran_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A noisy host does not lead to another measurement, either."""
    complete, partly, never = Subsets(False), Subsets(True, False), Subsets(True, True)
    for subsets, rounds, unfinished in (
        (complete, [1], []),
        (partly, [1, 2], []),
        (never, [1, 2], ["copies_subsets/3"]),
    ):
        bench = FakeBench([subsets.section()], [1.0, 2.0, 1.0, 2.0])
        raw = measured(monkeypatch, bench)
        assert subsets.rounds == rounds
        assert raw["unfinished"] == unfinished
        assert len(raw["probes"]) == 1 + len(rounds)


def test_a_resumed_run_measures_what_time_did_not_allow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, first, second = tmp_path / "micro.json", Subsets(True), Subsets(False)
    dram = MeasurementSection("dram", Copies([0.3]), 500.0)
    bench = FakeBench([first.section()._replace(rounds=(1,)), dram])
    kept = measured(monkeypatch, bench, seconds=60.0, record=file)
    assert kept["unfinished"] == ["copies_subsets/3", "dram"]
    raw = measured(monkeypatch, FakeBench([second.section(), dram]), resumed=kept)
    assert second.rounds == [2]
    assert raw["unfinished"] == []


def test_compilers_leave_the_usual_time_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = imagined_clock(monkeypatch)
    bench = FakeBench([MeasurementSection("dram", lasting(clock, 50.0), 50.0, rounds=(1, 2))], [REFERENCE])
    monkeypatch.setattr(bench, "prepare", lambda: clock.__setitem__(0, 900.0))
    raw = measured(monkeypatch, bench, seconds=None)
    assert raw["preparation_seconds"] == 900.0
    assert order(raw) == [("dram", 1), ("dram", 2)]


def test_a_section_that_fails_is_named_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(context: Context) -> Mapping[str, Any]:
        if context.round == 2:
            raise SkippedError("no good")
        return {"found": 1}

    sections = [MeasurementSection("kernels", fails, 0.1), MeasurementSection("dram", Copies([0.3]), 0.1)]
    raw = measured(monkeypatch, FakeBench(sections))
    assert raw["skipped"] == {"kernels": "round 2: no good"}
    assert raw["sections"]["kernels"] == {"found": 1}
    assert len(raw["rounds"]) == 4


def test_a_run_continues_where_it_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "micro.json"

    def interrupted(context: Context) -> Mapping[str, Any]:
        if context.round == 2:
            raise KeyboardInterrupt
        return {"found": 1}

    dram = Copies([0.5], [0.3])
    sections = [
        MeasurementSection("dram", dram, 0.1, rounds=(1, 2)),
        MeasurementSection("kernels", interrupted, 0.1, rounds=(1, 2)),
    ]
    with pytest.raises(KeyboardInterrupt):
        measured(monkeypatch, FakeBench(sections), record=file)
    kept = read_record(file)
    assert order(kept) == [("dram", 1), ("kernels", 1), ("dram", 2)]
    sections[1] = MeasurementSection("kernels", Copies([1.0]), 0.1, rounds=(1, 2))
    raw = measured(monkeypatch, FakeBench(sections), record=file, resumed=kept)
    assert order(raw) == [("dram", 1), ("kernels", 1), ("dram", 2), ("kernels", 2)]
    assert raw["sections"]["dram"]["copies"][0]["seconds_spread"] == [0.3, 0.5]
    assert read_record(file) == raw


def test_another_machine_or_other_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = FakeBench([MeasurementSection("dram", Copies([0.3]), 0.1)])
    raw = measured(monkeypatch, bench)
    other = {**raw, "machine": {**raw["machine"], "cpu": "Another", "memory": 5}}
    with pytest.raises(
        InputError,
        match=r"--resume: the record is of another machine \(cpu was Another and is Some Xeon\); measure",
    ):
        measured(monkeypatch, bench, resumed=other)
    quick = {**raw, "options": {**raw["options"], "quick": True}}
    with pytest.raises(
        InputError, match=r"--resume: the record has other options \(quick was True and is False\); measure"
    ):
        measured(monkeypatch, bench, resumed=quick)
    rounds = [
        {**raw["rounds"][0], "section": name} for name in ("dram", "copies_together/2", "copies_together/4")
    ]
    with pytest.raises(
        InputError,
        match=r"--resume: the record is of an older release, which measured copies_together/2, "
        r"copies_together/4 apart; measure into a new folder, or use --from-json",
    ):
        measured(monkeypatch, bench, resumed={**raw, "rounds": rounds})
    old = {**raw, "schema": "simoffload/micro/1"}
    with pytest.raises(InputError, match="--resume: the record is of an older release"):
        measured(monkeypatch, bench, resumed=old)
