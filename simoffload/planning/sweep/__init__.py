"""Sweeps: one scenario at many points, in many processes, with a journal that survives."""

from __future__ import annotations

from simoffload.planning.sweep.answer import SweepResult, sweep
from simoffload.planning.sweep.axes import Axis
from simoffload.planning.sweep.definition import MOST_POINTS, Grid, Points, Sweep, define_sweep, find_points
from simoffload.planning.sweep.run import (
    Counts,
    Progress,
    Summary,
    check_files,
    journal_of,
    run_sweep,
    usable_cores,
)

__all__ = [
    "MOST_POINTS",
    "Axis",
    "Counts",
    "Grid",
    "Points",
    "Progress",
    "Summary",
    "Sweep",
    "SweepResult",
    "check_files",
    "define_sweep",
    "find_points",
    "journal_of",
    "run_sweep",
    "sweep",
    "usable_cores",
]
