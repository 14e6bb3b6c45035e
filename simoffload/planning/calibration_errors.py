"""Errors on real runs, as a table that is shipped: ``python -m simoffload.validation --errors`` writes it.

Each run was predicted with the profile that was measured on its own machine, so that these are errors of the
model, not of what stands in a profile.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple, get_args

__all__ = ["ERRORS_FILE", "CalibrationError", "Work", "calibration_errors", "csv_text", "place_of"]

ERRORS_FILE = "calibration_errors.csv"
"""Beside this module."""

Work = Literal["decode", "prefill", "step"]
Place = Literal["memory", "nvme"]
"""Where weights, and the optimizer of training, were: memory of GPUs and hosts alone, or also drives."""


class CalibrationError(NamedTuple):
    """Errors of the predictions of one kind of pass."""

    group: str
    """What was run, as a strategy names it under ``evidence``: zero."""
    part: str
    """holdout, or fit for runs that were in view while the mechanisms were worked out."""
    work: Work
    place: Place
    runs: int
    mean: float
    """Mean of the absolute relative errors."""
    worst: float
    """The largest in size, with its sign: above zero is predicted too slow."""
    fewest_gpus: int
    most_gpus: int


def place_of(devices: Iterable[str]) -> Place:
    """Of DeepSpeed's devices (none, cpu, nvme) or kinds of tiers (hbm, dram, nvme) that hold something."""
    return "nvme" if "nvme" in devices else "memory"


@cache
def calibration_errors() -> tuple[CalibrationError, ...]:
    """The shipped table."""
    text = (files("simoffload.planning") / ERRORS_FILE).read_text("utf-8")
    return tuple(_row(row) for row in csv.DictReader(io.StringIO(text)))


def _row(row: dict[str, str]) -> CalibrationError:
    (work,) = (name for name in get_args(Work) if name == row["work"])
    (place,) = (name for name in get_args(Place) if name == row["place"])
    gpus = int(row["fewest_gpus"]), int(row["most_gpus"])
    return CalibrationError(
        row["group"],
        row["part"],
        work,
        place,
        int(row["runs"]),
        float(row["mean"]),
        float(row["worst"]),
        *gpus,
    )


def csv_text(rows: Iterable[CalibrationError]) -> str:
    """The table as it is shipped: errors to a hundredth of a per cent."""
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow(CalibrationError._fields)
    for row in rows:
        table.writerow(row._replace(mean=round(row.mean, 4), worst=round(row.worst, 4)))
    return written.getvalue()
