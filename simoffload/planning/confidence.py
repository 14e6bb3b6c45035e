"""Expected error of a prediction, from the errors of predictions of similar real runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import hypot
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter

from simoffload.results import SimulationResult, by_name
from simoffload.strategies import strategy_of

_MEASURED = {"hbm", "dram", "nvme"}
"""Kinds of tiers that recorded real runs used."""
_MOST_RUNS = "zero"
"""Group of runs whose errors are used for strategies without recorded runs."""
_CALLED = {"decode": "decode steps", "prefill": "prefills", "step": "training steps"}
_REMOTE = {"nfs": "an NFS server", "pfs": "a parallel filesystem", "nvmeof": "drives over NVMe-oF"}
_WHERE = {"memory": "in memory", "nvme": "from drives in the host"}

_BEYOND = "; this prediction is beyond the calibrated range, where errors may be larger"
_ERRORS_FILE = "calibration_errors.csv"
"""File of errors on real runs, each predicted with the profile measured on its own machine, so
that they are errors of the model. ``python -m validation`` writes it."""
Work = Literal["decode", "prefill", "step"]
Place = Literal["memory", "nvme"]
"""Place of the weights, and in training of the optimizer: only memory of GPUs and hosts, or also drives."""


class CalibrationError(NamedTuple):
    """A CalibrationError holds the prediction errors of one kind of pass in one group of real runs."""

    group: str
    """Group of real runs, as a strategy names it under ``evidence``: zero."""
    part: str
    """holdout, or fit for runs that were in view while the mechanisms were worked out."""
    work: Work
    place: Place
    runs: int
    mean: float
    """Mean of the absolute relative errors."""
    worst: float
    """Relative error of the largest magnitude, with its sign: positive means predicted too slow."""
    fewest_gpus: int
    most_gpus: int


def place_of(devices: Iterable[str]) -> Place:
    """Return whether drives hold something, given DeepSpeed's devices (none, cpu, nvme) or kinds of tiers."""
    return "nvme" if "nvme" in devices else "memory"


@cache
def calibration_errors() -> tuple[CalibrationError, ...]:
    """Return the shipped table of errors."""
    text = (files("simoffload.planning") / _ERRORS_FILE).read_text("utf-8")
    rows = TypeAdapter(tuple[CalibrationError, ...])
    return rows.validate_python(tuple(csv.DictReader(io.StringIO(text))))


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """The error to expect of a prediction."""

    row: CalibrationError
    """Errors of the real runs that are most similar to the prediction."""
    unlike: str
    """What no real run did, as the end of a sentence: "used a parallel filesystem"; empty where some did. The
    error is then expected to be larger than that of ``row``."""
    extrapolates: bool
    """Whether the work is outside the range in which the machine was measured."""

    @property
    def relative_error(self) -> float:
        """Mean of the absolute relative errors of the compared runs."""
        return self.row.mean

    @property
    def runs(self) -> int:
        """Number of real runs behind the expected error."""
        return self.row.runs

    @property
    def source(self) -> str:
        """Description of the compared runs: "23 held-out runs of decode steps in memory on 1 to 4 GPUs"."""
        row = self.row
        held = "held-out " if row.part == "holdout" else ""
        gpus = "1 GPU" if row.most_gpus == 1 else f"{row.fewest_gpus} to {row.most_gpus} GPUs"
        seen = "" if held else ", all known when the model was developed"
        return f"{row.runs} {held}runs of {_CALLED[row.work]} {_WHERE[row.place]} on {gpus}{seen}"

    @property
    def sentence(self) -> str:
        """Sentence that states the expected error and its source."""
        row = self.row
        worst = f"{row.worst * 100:+.0f} %".replace("-", "−")
        text = f"±{row.mean * 100:.1f} %, the mean error of {self.source} (the worst {worst})"
        if self.unlike:
            text = f"unknown: no real run {self.unlike}; expect more than {text}"
        return text + _BEYOND * self.extrapolates

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **by_name(self, "relative_error"),
            "known": not self.unlike,
            **by_name(self, "runs"),
            **by_name(self.row, "worst"),
            **by_name(self, "source extrapolates sentence"),
        }


def confidence(result: SimulationResult) -> Confidence:
    """Return the error to expect of a result, from its kind of work and from where weights and optimizer are
    stored.

    Held-out runs count; where there are none of a kind, those that were in view. None is of checkpoints or
    of storage over a network, and most are of ZeRO: the errors of what is most like it (of the first two:
    from drives in the host) then stand for the least that is to be expected.
    """
    kinds = {use.tier: use.kind for use in result.capacity}
    held = [kinds.get(tier, "hbm") for tier in result.targets]
    kind = str((result.provenance.scenario.get("strategy") or {}).get("kind"))
    strategy = strategy_of(kind)
    group = strategy.evidence if strategy is not None else ""
    unlike = _unlike(result, held) or (f"used strategy.kind {kind}" if not group else "")
    far = result.kind == "checkpoint" or not _MEASURED.issuperset(held)
    row = _row(group or _MOST_RUNS, _work(result), "nvme" if far else place_of(held))
    return Confidence(row=row, unlike=unlike, extrapolates=bool(result.extrapolations))


def _unlike(result: SimulationResult, held: Sequence[str]) -> str:
    """Return why no real runs stand for a result, to follow the words "no real run"; empty if some do."""
    if result.kind == "checkpoint":
        return "saved a checkpoint"
    remote = [kind for kind in held if kind not in _MEASURED]
    return f"used {_REMOTE[remote[0]]}" if remote else ""


def _work(result: SimulationResult) -> Work:
    """Return the kind of pass whose errors stand for a result: decode steps where more than one token is
    made."""
    work: Work = "decode" if result.compared_by == "tpot_s" else "prefill"
    return work if result.kind == "inference" else "step"


def _row(group: str, work: Work, place: str) -> CalibrationError:
    """Return the errors of held-out runs, if there are any; else of another place, or of another group."""
    rows = sorted(calibration_errors(), key=lambda row: row.part != "holdout")
    mine = [row for row in rows if row.work == work]
    near = [row for row in mine if row.place == place]
    return next((row for rows in (near, mine) for row in rows if row.group == group), near[0])


def margin(first: SimulationResult, second: SimulationResult) -> float:
    """Return by how much two results must differ, relative to the faster one, to tell which is faster.

    The root of the sum of the squares of both mean errors, as of errors that know nothing of each other.
    Those of one model on one machine do, so that ratios between them are better than this.
    """
    return hypot(confidence(first).relative_error, confidence(second).relative_error)


def tie(first: SimulationResult, second: SimulationResult) -> bool:
    """Return whether two results are too close to tell which is faster: see ``margin``.

    Raises ValueError unless both have times.
    """
    if first.compared_s is None or second.compared_s is None:
        raise ValueError("only a scenario that fits has a time to compare")
    fast, slow = sorted((first.compared_s, second.compared_s))
    return slow / fast - 1 <= margin(first, second)
