"""The table of prediction errors on real runs, from which the expected error of an answer follows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

from pydantic import TypeAdapter

from simoffload.hardware import TierKind

_ERRORS_FILE = "calibration_errors.csv"
"""File of errors on real runs. ``python -m validation`` writes it."""
ErrorProfile = Literal["own", "shipped"]
"""Profile that predicted a run: that of its own machine, so that errors are those of the model, or a shipped
one."""
Work = Literal["decode", "prefill", "step"]
Place = Literal["memory", "nvme"]
"""Place of the weights, and in training of the optimizer: only memory of GPUs and hosts, or also drives."""
UNSEEN_TIERS: Mapping[TierKind, str] = {
    "hbm": "",
    "dram": "",
    "nvme": "",
    "nfs": "an NFS server",
    "pfs": "a parallel filesystem",
    "nvmeof": "drives over NVMe-oF",
    "remote": "the memory of another host",
}
"""Tiers that no recorded real run used, by their kind; "" for kinds that some used."""


class CalibrationError(NamedTuple):
    """A CalibrationError holds the prediction errors of one kind of pass in one group of real runs."""

    profile: ErrorProfile
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
