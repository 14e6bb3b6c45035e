"""Recorded runs that lie beside this module, of DeepSpeed and of FSDP, and how predictions turn out.

``measured/fit/<machine>/`` was in view while costs of the host thread and efficiencies were determined,
``measured/holdout/<machine>/`` was not. A machine's folder holds ``runs*.json`` (calibrate deepspeed, or
``simoffload.calibration.fsdp``) and the profile that calibrate micro made on the same machine, which its
folder in the other set may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from simoffload.calibration.compare import ComparedRun, Errors, compare_file, errors

__all__ = [
    "ERROR_LIMITS",
    "PARTS",
    "ErrorLimit",
    "MeasuredRun",
    "Verdict",
    "compare_measured",
    "counted",
    "verdicts",
]

PARTS = ("fit", "holdout")
PASSES = ("decode", "prefill", "step", "forward", "backward", "optimizer")
_HOST_THREAD = "tiny"
"""Models whose names begin so are too small to move anything: they are the microbenchmark of host costs."""


class ErrorLimit(NamedTuple):
    """What errors on held-out runs may be at most in size."""

    mean: float
    worst: float


ERROR_LIMITS = {
    "decode": ErrorLimit(0.05, 0.12),
    "prefill": ErrorLimit(0.08, 0.20),
    "step": ErrorLimit(0.08, 0.20),
}


class MeasuredRun(NamedTuple):
    """One recorded run and its prediction."""

    part: str
    """fit or holdout."""
    machine: str
    compared: ComparedRun
    own_profile: bool
    """Whether the platform's profile was measured on that machine."""

    @property
    def group(self) -> str:
        """What was run, as strategies name it under ``evidence``: zero or fsdp."""
        return self.compared.run.group

    @property
    def host_thread_only(self) -> bool:
        """Whether it is one of the small models that measure the host thread."""
        return self.compared.run.name.startswith(_HOST_THREAD)


class Verdict(NamedTuple):
    """Errors of one kind of pass on one set."""

    part: str
    name: str
    ours: Errors
    naive: Errors
    bar: ErrorLimit | None

    @property
    def holds(self) -> bool | None:
        """Whether the errors keep the bar; None without one."""
        if self.bar is None:
            return None
        return self.ours.mean <= self.bar.mean and abs(self.ours.worst) <= self.bar.worst


def compare_measured(
    folder: Path | None = None,
    *,
    own_profile: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[MeasuredRun, ...]:
    """Predict every recorded run, without the very first pass; () where none lie in the folder.

    ``own_profile`` = with the profile that was measured on the run's machine, not a shipped one. Raises
    InputError for a file that is wrong.
    """
    root = folder if folder is not None else Path(str(files("simoffload.validation"))) / "measured"
    found: list[MeasuredRun] = []
    for part in PARTS:
        for path in sorted((root / part).glob("*/runs*.json")):
            machine = path.parent.name
            platform = _elsewhere(root, machine) if own_profile else None
            file = compare_file(
                path, platform=platform, own_profile=own_profile, first=False, progress=progress
            )
            own = not file.remarks
            found += [MeasuredRun(part, machine, compared, own) for compared in file.runs]
    return tuple(found)


def _elsewhere(root: Path, machine: str) -> str | None:
    """The profile of a machine whose runs lie in both sets, where only one of them has it."""
    places = [root / part / machine / "platform.yaml" for part in PARTS]
    found = [place for place in places if place.is_file()]
    return str(found[0]) if len(found) == 1 else None


def counted(
    runs: Iterable[MeasuredRun], *, part: str | None = None, group: str = "zero"
) -> list[ComparedRun]:
    """The runs that errors are counted over: of one set or of all, without the host-thread models."""
    mine = (run for run in runs if part in (None, run.part) and run.group == group)
    return [run.compared for run in mine if not run.host_thread_only]


def verdicts(runs: Sequence[MeasuredRun]) -> tuple[Verdict, ...]:
    """Errors of ZeRO by set and kind of pass; bars are for the held-out set."""
    found = []
    for part in PARTS:
        for name in PASSES:
            mine = counted(runs, part=part)
            ours, naive = errors(mine, name), errors(mine, name, naive=True)
            if ours and naive:
                found.append(
                    Verdict(part, name, ours, naive, ERROR_LIMITS.get(name) if part == "holdout" else None)
                )
    return tuple(found)
