"""Errors on recorded runs by kind of work and place, for whoever asks how sure a prediction is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from simoffload.calibration.compare import ComparedRun, errors
from simoffload.planning.confidence import CalibrationError, Work, place_of
from simoffload.validation.measured import PARTS, MeasuredRun, counted

__all__ = ["error_rows"]


_GROUPS = ("zero", "fsdp")


def error_rows(runs: Sequence[MeasuredRun]) -> Iterator[CalibrationError]:
    """Errors by group, set, kind of pass and place; nothing where there are no runs."""
    for group in _GROUPS:
        for part in PARTS:
            yield from _rows(group, part, counted(runs, part=part, group=group))


def _rows(group: str, part: str, mine: Sequence[ComparedRun]) -> Iterator[CalibrationError]:
    places = {id(one): place_of((one.run.offload, one.run.optimizer)) for one in mine}
    for work in get_args(Work):
        for place in dict.fromkeys(places.values()):
            here = [one for one in mine if places[id(one)] == place and one.find(work)]
            found = errors(here, work)
            if found is not None:
                ranks = [one.run.ranks for one in here]
                numbers = found.runs, found.mean, found.worst, min(ranks), max(ranks)
                yield CalibrationError(group, part, work, place, *numbers)
