"""Sweeps: one scenario at many points, in many processes, with a journal that survives."""

from __future__ import annotations

from simoffload.planning.sweep.definition import (
    MOST_POINTS,
    Axis,
    Grid,
    Points,
    Sweep,
    define_sweep,
    find_points,
)
from simoffload.planning.sweep.run import (
    Counts,
    Progress,
    Summary,
    SweepResult,
    check_files,
    journal_of,
    objective_name,
    run_sweep,
    sweep,
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
    "objective_name",
    "run_sweep",
    "sweep",
    "usable_cores",
]
