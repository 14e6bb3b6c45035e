"""Charts of training alone."""

from __future__ import annotations

from simoffload.report.chart import (
    FRAME,
    LEGEND,
    ROOM_FOR_NAMES,
    ROW,
    Figure,
    Part,
    axis,
    by_cause,
    layout,
    names_axis,
    plain,
)
from simoffload.report.figures import capacity
from simoffload.report.phrases import percent
from simoffload.report.training_tables import moments, times
from simoffload.results.training import TrainingResult
from simoffload.units import format_seconds

__all__ = ["memory", "phases"]

_LEGEND_COLUMNS = 3


def memory(result: TrainingResult) -> Figure:
    """What every tier holds at each moment, the moments of a tier below each other."""
    found = moments(result)
    pairs = sorted(
        ((row, each.name, use) for each in found for row, use in enumerate(each.uses)),
        key=lambda pair: pair[0],
    )
    return capacity([use for _, _, use in pairs], names=[f"{use.tier}, {name}" for _, name, use in pairs])


def phases(result: TrainingResult) -> Figure:
    """The time of each phase in one step, stacked by cause."""
    parts = []
    for y, phase in enumerate(result.phases):
        for share in phase.result.shares:
            exposed = float(phase.times) * share.exposed_s
            if exposed:
                told = f"{plain(share.cause)}: {format_seconds(exposed)}, {percent(exposed / phase.time_s)}"
                parts.append(Part(y, share.cause, exposed, told))
    data = by_cause(parts)
    ends = [
        {
            "x": phase.time_s,
            "y": y,
            "text": f" {format_seconds(phase.time_s)} ({percent(phase.time_s / (result.step_s or 1.0))})",
            "showarrow": False,
            "xanchor": "left",
        }
        for y, phase in enumerate(result.phases)
    ]
    longest = max(phase.time_s for phase in result.phases)
    return {
        "data": data,
        "layout": layout(
            FRAME + LEGEND * -(-len(data) // _LEGEND_COLUMNS) + ROW * max(2, len(result.phases)),
            barmode="stack",
            showlegend=True,
            uniformtext=ROOM_FOR_NAMES,
            xaxis=axis("exposed time in one step [s]", range=[0, 1.25 * longest]),
            yaxis=names_axis(
                [
                    phase.result.name if phase.times == 1 else f"{times(phase)} {phase.result.name}"
                    for phase in result.phases
                ]
            ),
            annotations=ends,
        ),
    }
