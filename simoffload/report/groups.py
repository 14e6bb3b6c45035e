"""Exposed and hidden time of the GPU, the host, transfers and storage, for terminal and page."""

from __future__ import annotations

from simoffload.report.phrases import percent
from simoffload.report.sections import Table
from simoffload.results.passes import PassResult
from simoffload.units import format_seconds

__all__ = ["groups"]


def groups(step: PassResult) -> Table:
    """The causes of a step put together by what works."""
    rows = (
        (
            one.group,
            format_seconds(one.exposed_s),
            percent(one.exposed_s / step.time_s),
            format_seconds(one.hidden_s),
        )
        for one in step.groups
    )
    return Table("By what works", ("in all", "exposed", "share", "hidden"), tuple(rows), (1, 2, 3))
