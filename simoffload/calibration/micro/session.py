"""Measuring in rounds: every section a little in each, a probe of the host between any two, within a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from simoffload.calibration.micro.noise import is_noisy
from simoffload.calibration.micro.plan import Context, MeasurementSection, SkippedError
from simoffload.calibration.micro.record import Record

__all__ = ["Session"]

_FRESH = 1.5
"""[s] A probe that ended no longer ago is the one before the next section as well."""
_PATIENCE = 4.0
"""A section may take so many times as long as it is expected to, before it is asked to end."""
_LEAST = 10.0
"""[s] that every section may take."""
_PROBE = 1.8
"""[s] that a probe takes, with what is around it."""
_PACES = (0.3, 4.0)
"""Bounds of how long sections take, as a multiple of what they are expected to."""


class _Step(NamedTuple):
    section: MeasurementSection
    round: int
    again: int


class Session:
    """Carries out sections in rounds and keeps everything in the record as soon as it is there.

    ``probe`` measures the host. ``seconds`` [s] is what all may take: a section that does not fit into what
    is left is not begun. ``complete`` = but the first round is carried out whatever it takes, so that nothing
    is missing.
    """

    def __init__(
        self,
        sections: Sequence[MeasurementSection],
        record: Record,
        *,
        probe: Callable[[], Mapping[str, Any]],
        seconds: float,
        complete: bool,
        progress: Callable[[str], None],
    ) -> None:
        self._sections, self._record, self._probe = sections, record, probe
        self._begin, self._seconds, self._progress = time.monotonic(), seconds, progress
        self._complete = complete
        self._latest: tuple[int, float] | None = None
        self._expected = self._taken = 0.0
        self._built: set[str] = set()

    def carry_out(self) -> None:
        """All rounds, and then again what a noisy host disturbed."""
        steps = self._planned()
        for index, step in enumerate(steps):
            self._carry_out(step, about=f"{index + 1} of {len(steps)}", after=steps[index + 1 :])
        while (again := self._disturbed()) is not None:
            self._carry_out(again, about="again, for the host was noisy", after=[])
        self._record.raw["noise"]["stayed_noisy"] = self._noisy()
        self._record.write()

    def _planned(self) -> list[_Step]:
        """What is missing in the record, round by round."""
        done = {(one["section"], one["round"]) for one in self._record.raw["rounds"]}
        rounds = sorted({number for section in self._sections for number in section.rounds})
        return [
            _Step(section, number, 0)
            for number in rounds
            for section in self._sections
            if number in section.rounds and (section.name, number) not in done
        ]

    def _left(self) -> float:
        return self._seconds - (time.monotonic() - self._begin)

    def _pace(self) -> float:
        """How much longer sections take here than expected."""
        pace = self._taken / self._expected if self._expected else 1.0
        return min(max(pace, _PACES[0]), _PACES[1])

    def _needed(self, step: _Step) -> float:
        """[s] that a section takes, probe included."""
        building = 0.0 if step.section.name in self._built else step.section.building
        return (step.section.seconds + building) * self._pace() + _PROBE

    def _carry_out(self, step: _Step, *, about: str, after: Sequence[_Step]) -> None:
        name = step.section.name
        needed = self._complete and step.round == 1 and not step.again
        if name in self._record.raw["skipped"] or (not needed and self._needed(step) > self._left()):
            return
        left = min(self._needed(step) + sum(map(self._needed, after)), self._left())
        shown = max(self._needed(step), left)
        text = f"round {step.round}: {name} ({about}), about {shown:.0f} s left"
        self._progress(text)
        before = self._before()
        begin = time.monotonic()
        patience = _PATIENCE * self._needed(step)
        seconds = max(_LEAST, patience if needed else min(patience, self._left()))
        expected = (self._needed(step) - _PROBE) / self._pace()
        at = round(time.time(), 1)
        try:
            found = step.section.run(Context(step.round, step.again, seconds))
        except SkippedError as reason:
            self._record.skip(name, f"round {step.round}: {reason}" if step.round > 1 else str(reason))
            return
        taken = time.monotonic() - begin
        self._taken, self._expected = self._taken + taken, self._expected + expected
        self._built.add(name)
        measured = {"section": name, "round": step.round, "again": step.again, "begin": at}
        measured |= {"seconds": round(taken, 3), "probes": [before, self._after()], "found": found}
        self._record.add(measured)

    def _before(self) -> int:
        """The number of the latest probe if it is of this moment, else of a new one."""
        if self._latest is None or time.monotonic() - self._latest[1] > _FRESH:
            return self._after()
        return self._latest[0]

    def _after(self) -> int:
        """The number of a new probe."""
        number = self._record.probed({"at": round(time.time(), 1), **self._probe()})
        self._latest = number, time.monotonic()
        return number

    # -- what is measured again ---------------------------------------------------------------------

    def _quiet(self, section: MeasurementSection) -> int:
        """How often the host was quiet while a section was measured."""
        raw = self._record.raw
        return sum(not is_noisy(one, raw["probes"]) for one in self._record.measured(section.name))

    def _wanting(self) -> list[MeasurementSection]:
        """Sections that a noisy host disturbed, and that were measured on a quiet one in too few rounds."""
        return [
            section
            for section in self._sections
            if section.host
            and self._quiet(section) < min(len(section.rounds), len(self._record.measured(section.name)))
        ]

    def _disturbed(self) -> _Step | None:
        """What is measured again next: of the section that was least often measured on a quiet host."""
        raw = self._record.raw
        possible = []
        for section in self._wanting():
            measured = self._record.measured(section.name)
            noisy = [one for one in measured if is_noisy(one, raw["probes"])]
            if not noisy or len(measured) >= 2 * len(section.rounds):
                continue
            again = 1 + max(one["again"] for one in measured)
            step = _Step(section, noisy[0]["round"], again)
            if section.name not in raw["skipped"] and self._needed(step) <= self._left():
                possible.append(step)
        if not possible:
            return None
        return min(possible, key=lambda step: (self._quiet(step.section), step.section.seconds))

    def _noisy(self) -> list[str]:
        return [section.name for section in self._wanting()]
