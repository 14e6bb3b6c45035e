"""The request for a measurement, and the sections of it on one machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from simoffload.errors import InputError


class MeasurementRequest(NamedTuple):
    """A request for a measurement, as the user stated it."""

    sections: tuple[str, ...]
    """The names of the sections to measure: the ``section`` of microbenchmarks."""
    gpus: int | None
    """The number of GPUs to use; None for all."""
    storage: Path | None
    """The folder in which storage is measured."""
    storage_size: int | None
    """[B] Size of the files that are written; None for 2 GiB or a quarter of the free space."""
    quick: bool
    """Whether to measure one round with fewer points."""
    record: Path | None = None
    """The file that is rewritten after every section, so that a run that ends early loses nothing."""
    seconds: float | None = None
    """[s] Time limit of the measurement; None for the usual time."""
    resumed: Mapping[str, Any] | None = None
    """The record of an earlier run that this one continues."""


def refusal(option: str, message: str) -> InputError:
    """Return an InputError about an option of the command line."""
    return InputError.at("", message, path=option)


class SkippedError(Exception):
    """A section cannot be measured on this machine, or failed; the text of the exception is the reason."""


class Context(NamedTuple):
    """The circumstances of one measurement of a section."""

    round: int
    """The number of the round, counted from 1."""
    again: int
    """The number of earlier measurements of the section in this round."""
    seconds: float
    """[s] Time limit, after which the section returns the results that it has."""


class MeasurementSection(NamedTuple):
    """A section of the measurement on this machine, which is measured in several rounds."""

    name: str
    """The key of the section in the record."""
    run: Callable[[Context], Mapping[str, Any]]
    """The function that measures and returns the results. It raises SkippedError."""
    seconds: float
    """[s] Expected time of a round."""
    building: float = 0.0
    """[s] Additional time of the first round."""
    rounds: tuple[int, ...] = (1, 2, 3)
    """The rounds in which the section is measured."""
    host: bool = True
    """Whether a slow host thread changes the results; times that depend on the GPU alone do not change."""
    once: bool = False
    """Whether later rounds only measure what time did not allow in an earlier one."""
