"""Exposed and hidden time of the GPU, the host, transfers and storage, for terminal and page."""

from __future__ import annotations

from simoffload.report.sections.structure import Entry, Table, fraction, seconds
from simoffload.results.passes import PassResult

__all__ = ["groups"]


def groups(step: PassResult) -> Table:
    """The causes of a step put together by what works."""
    rows: tuple[tuple[Entry, ...], ...] = tuple(
        (one.group, seconds(one.exposed_s), fraction(one.exposed_s / step.time_s), seconds(one.hidden_s))
        for one in step.groups
    )
    return Table("By what works", ("in all", "exposed", "share", "hidden"), rows, (1, 2, 3))
