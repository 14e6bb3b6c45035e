"""A measurement of a machine in rounds, with a probe of the host between any two sections."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simoffload.errors import shortened
from simoffload.shipped import __version__
from simoffload.units import format_bytes, plural
from simoffload_calibrate.micro.bench import Bench, open_bench, probe_seconds, storage_bytes
from simoffload_calibrate.micro.benchmarks import (
    Context,
    MeasurementRequest,
    MeasurementSection,
    SkippedError,
    need_storage,
    refusal,
)
from simoffload_calibrate.micro.noise import is_noisy, probe_level
from simoffload_calibrate.micro.record import SCHEMA, Record

_SPARE = 3.0
"""[s] Total time between sections."""
_FRESH = 1.5
"""[s] The age up to which a probe after one section also counts as the probe before the next."""
_PATIENCE = 4.0
"""The limit on a section's time, as a multiple of the expected time."""
_LEAST = 10.0
"""[s] The least time limit of a section."""
_PROBE = 1.8
"""[s] Time of a probe and its overhead."""
_PACES = (0.3, 4.0)
"""Bounds on the measured time of sections as a multiple of the expected time."""
_REFERENCE_PROBE = 6.0e-6
"""[s] The level of a probe of a host on which the sections take their expected time: the first probe of 15
measured machines with one or two GPUs, over the time of their sections as a multiple of the expected time
(median 6.0, range 4.8 to 6.9 us; validation/measured)."""
_MARGIN = 1.25
"""The time limit without ``--time``, as a multiple of the time that the first probe promises: it was up to
1.24 times too short on these machines. What is left of it is for repeated measurements."""


def describe(request: MeasurementRequest, folder: Path) -> str:
    """Return a text for the user about what will be measured and written."""
    lines = [f"Measuring {', '.join(request.sections)}; results go to {folder}."]
    if request.storage is not None and need_storage(request.sections):
        size = format_bytes(storage_bytes(request), binary=True)
        lines.append(f"{request.storage}: {size} of files are written, read and removed again.")
    return "\n".join(lines)


def measure(request: MeasurementRequest, *, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure the sections and return all results in the layout of ``micro.json``.

    Raises InputError if PyTorch is missing, or a GPU or folder of the request, and if the record to continue
    has another machine or other options. On any exception, including Ctrl-C, no process and no storage file
    remains.
    """
    begin = time.monotonic()
    with open_bench(request, progress) as bench:
        record = Record(_initial_record(request, bench), request.record)
        measurement = _MicroMeasurement(bench, record, quick=request.quick, progress=progress)
        progress(measurement.plan())
        bench.prepare()
        record.raw["preparation_seconds"] = round(time.monotonic() - begin, 1)
        measurement.carry_out(None if request.seconds is None else begin + request.seconds)
        return record.raw


def _initial_record(request: MeasurementRequest, bench: Bench) -> dict[str, Any]:
    """Return a record without measurements, or the record to continue."""
    options = {
        "sections": list(request.sections),
        "gpus": request.gpus,
        "quick": request.quick,
        "storage": request.storage is not None,
        "storage_size": request.storage_size,
    }
    names = [section.name for section in bench.sections]
    if request.resumed is not None:
        _check_resumable(request.resumed, dict(bench.facts), options, names)
        raw = dict(request.resumed)
        raw["skipped"] = dict(bench.skipped)
        measured = {one["section"] for one in raw["rounds"]} - set(raw["unfinished"])
        raw["unfinished"] = [name for name in names if name not in measured]
        return raw
    return {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "simoffload": __version__,
        "quick": request.quick,
        "options": options,
        "machine": dict(bench.facts),
        "detected": bench.detect(),
        "sections": {},
        "skipped": dict(bench.skipped),
        "seconds": {},
        "unfinished": names,
        "noise": {},
        "probes": [],
        "rounds": [],
    }


def _check_resumable(
    record: Mapping[str, Any], machine: Mapping[str, Any], options: Mapping[str, Any], names: Sequence[str]
) -> None:
    """Refuse to continue the record of another machine, with other options, or of another release that
    measured other sections than those named."""
    older = "the record is of an older release"
    if record["schema"] != SCHEMA:
        raise refusal("--resume", f"{older}; measure into a new folder")
    pairs = [
        ("the record is of another machine", record["machine"], machine),
        ("the record has other options", record["options"], options),
    ]
    for difference, then, now in pairs:
        keys = [key for key in {**then, **now} if key != "memory" and then.get(key) != now.get(key)]
        if keys:
            values = "; ".join(
                f"{key} was {shortened(str(then.get(key)))} and is {shortened(str(now.get(key)))}"
                for key in keys[:3]
            )
            raise refusal("--resume", f"{difference} ({values}); measure into a new folder")
    others = {one["section"]: None for one in record["rounds"] if one["section"] not in names}
    if others:
        text = f"{older}, which measured {', '.join(list(others)[:3])} apart"
        raise refusal("--resume", f"{text}; measure into a new folder, or use --from-json")


class _Step(NamedTuple):
    section: MeasurementSection
    round: int
    again: int


class _MicroMeasurement:
    """The measurement of sections in rounds, which records every result at once."""

    def __init__(self, bench: Bench, record: Record, *, quick: bool, progress: Callable[[str], None]) -> None:
        self._bench, self._record, self._progress = bench, record, progress
        self._probe_time = probe_seconds(quick=quick) + 0.2
        self._end, self._complete = 0.0, False
        self._latest: tuple[int, float] | None = None
        """The number of the latest probe, and the time at which it ended [s]."""
        self._expected = self._measured = 0.0
        """[s] Expected and measured time of all sections so far."""
        self._first_pace = 1.0
        """The time of sections that the first probe promises, as a multiple of the expected time."""
        self._built: set[str] = set()

    def plan(self) -> str:
        """Return how many sections will be measured, and the time that this takes on the reference host."""
        steps = self._missing()
        sections = plural(len({step.section.name for step in steps}), "section")
        seconds = self._seconds(steps, 1.0) + self._bench.preparation
        text = f"{sections} to measure: {seconds:.0f} s on the reference host"
        first = self._bench.compilation
        return f"{text}, and before them about {first:.0f} s of compilation, once" if first else text

    def _seconds(self, steps: Sequence[_Step], pace: float) -> float:
        """Return the time of measurements and their probes on a host of a pace [s]."""
        first = {step.section.name: step for step in reversed(steps)}
        once = [step for step in steps if not step.section.once or step is first[step.section.name]]
        seconds: float = sum(step.section.seconds for step in once)
        seconds += sum(one.section.building for name, one in first.items() if name not in self._built)
        return seconds * pace + len(once) * self._probe_time + _SPARE

    def carry_out(self, end: float | None) -> None:
        """Measure all rounds, and then again what a noisy host disturbed.

        ``end`` [s] is a limit on ``time.monotonic``: a section that does not fit into the remaining time is
        not started. Without it, the limit is ``_MARGIN`` times what the first probe promises, and the first
        round is measured without regard to it, so that no section is missing.
        """
        steps = self._missing()
        level = probe_level(self._record.raw["probes"][self._probe()])
        self._first_pace = min(max(level / _REFERENCE_PROBE, _PACES[0]), _PACES[1])
        self._complete = end is None
        # A run that continues has the whole time, for what the host disturbed in the earlier one.
        usual = time.monotonic() + _MARGIN * self._seconds(self._planned(), self._first_pace)
        self._end = usual if end is None else end
        self._tell(self._seconds(steps, self._first_pace))
        for index, step in enumerate(steps):
            self._carry_out(step, label=f"{index + 1} of {len(steps)}", later=steps[index + 1 :])
        while (again := self._next_disturbed()) is not None:
            self._carry_out(again, label="again because the host was noisy", later=[])
        noisy = [section.name for section in self._too_rarely_quiet()]
        self._record.raw["noise"]["stayed_noisy"] = noisy
        self._record.write()

    def _tell(self, seconds: float) -> None:
        """Say how long the missing measurements take here [s], and what a shorter time leaves out."""
        pace = f"the host thread takes {self._first_pace:.2f} x the reference's time"
        most = self._remaining()
        more = f", with repetitions up to {most:.0f} s where other work disturbs it" if most > seconds else ""
        self._progress(f"about {seconds:.0f} s on this machine{more}: {pace}")
        if seconds > self._remaining():
            left = f"only {max(0.0, self._remaining()):.0f} s of --time are left"
            self._progress(f"{left}: what does not fit is not measured, most of all later rounds")

    def _planned(self) -> list[_Step]:
        """Return all measurements, round by round."""
        numbers = sorted({number for section in self._bench.sections for number in section.rounds})
        return [
            _Step(section, number, 0)
            for number in numbers
            for section in self._bench.sections
            if number in section.rounds
        ]

    def _missing(self) -> list[_Step]:
        """Return the measurements that the record lacks."""
        done = {(one["section"], one["round"]) for one in self._record.raw["rounds"]}
        return [step for step in self._planned() if (step.section.name, step.round) not in done]

    def _remaining(self) -> float:
        return self._end - time.monotonic()

    def _pace(self) -> float:
        """Return the measured time of sections as a multiple of the expected time."""
        pace = self._measured / self._expected if self._expected else self._first_pace
        return min(max(pace, _PACES[0]), _PACES[1])

    def _needed(self, step: _Step) -> float:
        """Return the expected time of a section on this machine, including a probe [s]."""
        building = 0.0 if step.section.name in self._built else step.section.building
        return (step.section.seconds + building) * self._pace() + _PROBE

    def _carry_out(self, step: _Step, *, label: str, later: Sequence[_Step]) -> None:
        name = step.section.name
        required = self._complete and step.round == 1 and not step.again
        needed = self._needed(step)
        if not self._is_due(step) or (not required and needed > self._remaining()):
            return
        rest = self._seconds([step, *(one for one in later if self._is_due(one))], self._pace())
        remaining = max(needed, min(rest, self._remaining()))
        left = f"up to {self._remaining():.0f} s" if step.again else f"about {remaining:.0f} s"
        self._progress(f"round {step.round}: {name} ({label}), {left} left")
        before = self._probe_before()
        begin = time.monotonic()
        limit = _PATIENCE * needed if required else min(_PATIENCE * needed, self._remaining())
        expected = (needed - _PROBE) / self._pace()
        at = round(time.time(), 1)
        try:
            result = step.section.run(Context(step.round, step.again, max(_LEAST, limit)))
        except SkippedError as reason:
            self._record.skip(name, f"round {step.round}: {reason}" if step.round > 1 else str(reason))
            return
        seconds = time.monotonic() - begin
        self._measured, self._expected = self._measured + seconds, self._expected + expected
        self._built.add(name)
        measurement = {"section": name, "round": step.round, "again": step.again, "begin": at}
        measurement |= {"seconds": round(seconds, 3), "probes": [before, self._probe()], "found": result}
        self._record.add(measurement)

    def _is_due(self, step: _Step) -> bool:
        """Return whether there is anything to measure: not in sections that failed, nor in those that are
        measured once and are complete."""
        section, raw = step.section, self._record.raw
        complete = section.once and section.name not in raw["unfinished"]
        return section.name not in raw["skipped"] and not complete

    def _probe_before(self) -> int:
        """Return the number of the latest probe if it is fresh, else of a new one."""
        if self._latest is None or time.monotonic() - self._latest[1] > _FRESH:
            return self._probe()
        return self._latest[0]

    def _probe(self) -> int:
        """Probe the host and return the number of the probe."""
        number = self._record.add_probe({"at": round(time.time(), 1), **self._bench.probe()})
        self._latest = number, time.monotonic()
        return number

    # -- repeated measurements ------------------------------------------------------------------

    def _quiet_measurements(self, section: MeasurementSection) -> int:
        """Return the number of measurements of a section on a quiet host."""
        probes = self._record.raw["probes"]
        return sum(not is_noisy(one, probes) for one in self._record.measurements(section.name))

    def _too_rarely_quiet(self) -> list[MeasurementSection]:
        """Return sections that the host disturbed and that have fewer quiet measurements than rounds."""
        return [
            section
            for section in self._bench.sections
            if section.host
            and self._quiet_measurements(section)
            < min(len(section.rounds), len(self._record.measurements(section.name)))
        ]

    def _next_disturbed(self) -> _Step | None:
        """Return the next measurement to repeat: of the section with the fewest quiet measurements."""
        raw = self._record.raw
        possible = []
        for section in self._too_rarely_quiet():
            measurements = self._record.measurements(section.name)
            noisy = [one for one in measurements if is_noisy(one, raw["probes"])]
            if not noisy or len(measurements) >= 2 * len(section.rounds):
                continue
            again = 1 + max(one["again"] for one in measurements)
            step = _Step(section, noisy[0]["round"], again)
            if section.name not in raw["skipped"] and self._needed(step) <= self._remaining():
                possible.append(step)
        if not possible:
            return None
        return min(possible, key=lambda step: (self._quiet_measurements(step.section), step.section.seconds))
