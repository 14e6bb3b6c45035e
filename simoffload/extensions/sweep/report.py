"""The report document of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from simoffload.errors import printable, shortened
from simoffload.report import plotting as draw
from simoffload.report.document import (
    Chart,
    Datum,
    Entry,
    Listing,
    ReportDocument,
    ReportSection,
    ReportTable,
    Verdict,
    VerdictPart,
)
from simoffload.report.formatting import span, uncapitalized
from simoffload.results import Metric, declared_metrics
from simoffload.units import format_number, percent, plural

if TYPE_CHECKING:
    from simoffload.extensions.sweep.run import SweepResult

# -- charts of a sweep -----------------------------------------------------------------------------
# A heat map of two axes, the best of each value of an axis, and the Pareto front.


Row = Mapping[str, Any]
_MOST_MARKS = 2_000
"""Number of points that a chart of the front shows beside it."""
_LIKE = 1.01
"""Ratio of times from which they are two different times: our choice."""
_MOST_CELLS = 400
"""Number of cells of the largest heat map that can be read."""


def measure_of(found: SweepResult) -> Metric:
    """Return the metric by which points are compared: the one that is asked for, throughput, or else the
    time of a step or a checkpoint."""
    if found.objective:
        return declared_metrics()[found.objective]
    names = [name for name in ("tokens_per_s", "save_s", "step_s", "ttft_s") if name in found.rows[0]]
    return declared_metrics()[names[0] if names else "tokens_per_s"]


def best_first(found: SweepResult) -> list[Row]:
    """Return the points that have a value, the best one first."""
    measure = measure_of(found)
    known = [row for row in found.rows if row.get(measure.name)]
    return sorted(known, key=lambda row: row[measure.name], reverse=measure.larger)


def called(found: SweepResult, row: Row, axes: Sequence[str] | None = None) -> str:
    """Return the values of a point: "batch_size=16, weights=raid"; by default of all ``axes`` that vary."""
    return printable(", ".join(_called(axis, row) for axis in (varied(found) if axes is None else axes)))


def _called(axis: str, row: Row) -> str:
    *_, section, key = ("", *axis.split("."))
    value = _text(row[axis])
    if section == "pcie":
        return f"PCIe {value}" if value == key else f"PCIe {value} in place of {key}"
    return f"{section}.{key}={value}" if key == "tier" else f"{key}={value}"


def _text(value: Any) -> str:
    return "–" if value is None else str(value)


def varied(found: SweepResult) -> list[str]:
    """Return the axes that have more than one value."""
    return [axis for axis in found.axes if len(_taken(found, axis)) > 1] or list(found.axes[:1])


def _taken(found: SweepResult, axis: str) -> list[str]:
    """Return the values of an axis as text, in order."""
    return list(dict.fromkeys(_text(row[axis]) for row in found.rows))


def ranged(row: Row, measure: Metric) -> str:
    """Return a value with its interval, as far as it is known."""
    value = measure.text(row[measure.name])
    low, high = row.get(f"{measure.name}_p10"), row.get(f"{measure.name}_p90")
    if not low or not high:
        return value
    return f"{value} [{span(measure.text(low), measure.text(high), value=value)}]"


def overview(found: SweepResult) -> draw.Properties:
    """Draw a heat map of two axes, or else the first axis."""
    return heat_map(found) if has_heat_map(found) else along(found, varied(found)[0])


def has_heat_map(found: SweepResult) -> bool:
    """Return whether two axes are varied, with no more values than a heat map can show."""
    axes = varied(found)
    return len(axes) == 2 and len(_taken(found, axes[0])) * len(_taken(found, axes[1])) <= _MOST_CELLS


def heat_map(found: SweepResult) -> draw.Properties:
    """Draw the value of each pair of values of the two axes; what has none says why."""
    measure, (across, down) = measure_of(found), sorted(varied(found), key=lambda a: -len(_taken(found, a)))
    columns, rows = _taken(found, across), _taken(found, down)
    by_place = {(_text(row[down]), _text(row[across])): row for row in found.rows}
    cells = [[by_place.get((row, column)) for column in columns] for row in rows]
    return draw.figure(
        [
            {
                "type": "heatmap",
                "x": [draw.plain(one) for one in columns],
                "y": [draw.plain(one) for one in rows],
                "z": [[cell.get(measure.name) if cell else None for cell in line] for line in cells],
                "text": [[_cell(cell, measure) for cell in line] for line in cells],
                "texttemplate": "%{text}",
                "hovertext": [[called(found, cell) if cell else "" for cell in line] for line in cells],
                "hoverinfo": "text",
                "colorscale": [[0, "#e3eff7"], [1, draw.BLUE]],
                "showscale": False,
            }
        ],
        draw.height(len(rows)),
        xaxis=draw.axis(draw.plain(across), type="category", showgrid=False),
        yaxis=draw.axis(draw.plain(down), type="category", autorange="reversed", showgrid=False),
    )


def _cell(row: Row | None, measure: Metric) -> str:
    if row is None:
        return ""
    if row.get(measure.name):
        return format_number(row[measure.name])
    return _NONE


_NONE = "✕"
"""Text of a cell without a value, as narrow as cells on a telephone."""


def along(found: SweepResult, axis: str) -> draw.Properties:
    """Draw the best value for each value of an axis over all other axes, with its interval.

    Numbers, also with a unit, are joined by a line in a band of 80 % intervals, and names are bars.
    """
    measure, names = measure_of(found), _taken(found, axis)
    best: dict[str, Row] = {}
    for row in best_first(found):
        best.setdefault(_text(row[axis]), row)
    places = [(number, best[name]) for number, name in enumerate(names) if name in best]
    values = [row[measure.name] for _, row in places]
    hover = [f"{draw.plain(called(found, row))}: {ranged(row, measure)}" for _, row in places]
    title = "throughput [tokens/s]" if measure.larger else f"{measure.title} [s]"
    error = _error([row for _, row in places], measure)
    numbers = draw.number_axis(draw.plain(axis), names)
    if numbers is not None:
        across, at = numbers
        drawn = {"x": [at[number] for number, _ in places], "y": values, "hover": hover}
        ends = _ends([row for _, row in places], measure)
        band = [draw.band("80 % interval", x=drawn["x"], ends=ends, color=draw.BLUE)] if len(ends) > 1 else []
        line = draw.points("best", **drawn, mode="lines+markers", line={"color": draw.BLUE})
        upright = draw.axis(title, rangemode="tozero")
        return draw.figure([*band, line], 300, showlegend=False, xaxis=across, yaxis=upright)
    most = max([*values, *(row.get(f"{measure.name}_p90") or 0.0 for _, row in places)], default=1.0)
    across = (
        draw.axis(title, rangemode="tozero") if measure.larger else draw.seconds_axis(measure.title, most)
    )
    bar = draw.bars(
        "best", y=[number for number, _ in places], x=values, hover=hover, color=draw.BLUE, error_x=error
    )
    missing = [(number, "does not fit or refused") for number, name in enumerate(names) if name not in best]
    texts = [*((number, ranged(row, measure)) for number, row in places), *missing]
    return draw.figure(
        [bar],
        draw.height(len(names)),
        showlegend=False,
        xaxis=across,
        yaxis=draw.names_axis(names),
        annotations=[draw.beside(number, 0, text) for number, text in texts],
    )


def _ends(rows: Sequence[Row], measure: Metric) -> list[tuple[float, float]]:
    """Return the intervals of points; none if a point has none."""
    ends = [(row.get(f"{measure.name}_p10"), row.get(f"{measure.name}_p90")) for row in rows]
    return [(low, high) for low, high in ends if low and high] if all(low for low, _ in ends) else []


def _error(rows: Sequence[Row], measure: Metric) -> draw.Properties | None:
    """Return the intervals of points as error bars; None if a point has none."""
    name = measure.name
    if not all(row.get(f"{name}_p10") for row in rows):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": [row[f"{name}_p90"] - row[name] for row in rows],
        "arrayminus": [row[name] - row[f"{name}_p10"] for row in rows],
    }


class Front(NamedTuple):
    """A Front is the points that no other beats in both throughput and the time of a step.

    Times that differ by less than a hundredth count as equal.
    """

    time: Metric
    points: tuple[Row, ...]
    """Rows of the sweep, the shortest time first."""


def front(found: SweepResult) -> Front | None:
    """Return the Pareto front of throughput and time; None if these are not two different things."""
    names = [name for name in ("tpot_s", "step_s", "ttft_s") if any(row.get(name) for row in found.rows)]
    if not names or not measure_of(found).larger:
        return None
    time, points = declared_metrics()[names[0]], list[Row]()
    known = [row for row in best_first(found) if row.get(time.name)]
    for row in sorted(known, key=lambda row: row[time.name]):
        if points and row["tokens_per_s"] <= points[-1]["tokens_per_s"]:
            continue
        if points and row[time.name] < _LIKE * points[-1][time.name]:
            points.pop()
        points.append(row)
    return Front(time, tuple(points))


def pareto(found: SweepResult, best: Front) -> draw.Properties:
    """Draw throughput over time of all points, the front as a line with its best throughput named."""
    on_front = {id(row) for row in best.points}
    others = [row for row in best_first(found) if id(row) not in on_front and row.get(best.time.name)]

    def marks(name: str, rows: Sequence[Row], color: str, **more: Any) -> Any:
        return draw.points(
            name,
            x=[row[best.time.name] for row in rows],
            y=[row["tokens_per_s"] for row in rows],
            hover=[draw.plain(called(found, row)) for row in rows],
            marker={"color": color, "size": 8},
            **more,
        )

    named = ["", draw.plain(called(found, best.points[-1]))]
    texts = [named[row is best.points[-1]] for row in best.points]
    most = max(row[best.time.name] for row in (*best.points, *others))
    return draw.figure(
        [
            marks("other points", others[:_MOST_MARKS], draw.GREY),
            marks(
                "none is both faster and higher",
                best.points,
                draw.BLUE,
                mode="lines+markers+text",
                line={"color": draw.BLUE},
                text=texts,
                textposition="bottom left",
            ),
        ],
        370,
        showlegend=False,
        xaxis=draw.seconds_axis(best.time.title, most),
        yaxis=draw.axis("throughput [tokens/s]", rangemode="tozero"),
    )


# -- the report document of a sweep ----------------------------------------------------------------


_MOST_ROWS = 200
"""Number of points in the table of a page; all are in the tables that a sweep writes."""
_MOST_WARNINGS = 5
_LONGEST_WARNING = 400
_EQUAL = 1e-3
"""Relative difference below which points are as good: three digits are shown."""


def sweep_document(found: SweepResult, *, command: str = "") -> ReportDocument:
    """Return the document of a sweep: the best point, heat map, axes, Pareto front, and the points."""
    counts = f"{plural(len(found.rows), 'point')} of {', '.join(varied(found))}"
    background = (ReportSection("Command", listings=(Listing("", command),)),) if command else ()
    return ReportDocument(
        (counts,),
        None,
        (),
        tuple(_warnings(found)),
        (*_charts(found), _points(found)),
        background,
        name=found.name or "sweep",
        summary=(_answer(found),),
        facts=(*_settings(found), "in brackets: 80 % interval"),
    )


def _settings(found: SweepResult) -> Iterator[str]:
    """Yield model, machine, program and work of the points, as far as they are not varied."""
    given = found.scenario
    sections = {key: one if isinstance(one, Mapping) else {"name": one} for key, one in given.items()}
    for key, name in (("model", "name"), ("platform", "name"), ("strategy", "kind")):
        if key not in found.axes and (text := sections.get(key, {}).get(name)):
            yield printable(str(text))
    work = sections.get("workload", {})
    parts = [
        f"{key} {one}" for key, one in work.items() if key != "kind" and f"workload.{key}" not in found.axes
    ]
    if parts:
        yield printable(", ".join(parts))


def _answer(found: SweepResult) -> Verdict:
    """Return the best point, its value, by how much it is better than the next one that differs, which axes
    make no difference, and how many points have no result."""
    known, measure = best_first(found), measure_of(found)
    if not known:
        return Verdict.of(f"None of {plural(len(found.rows), 'point')} has a result")
    best, axes = known[0], varied(found)
    idle = [axis for axis in axes if len(axes) > 1 and _makes_no_difference(found, axis)]
    named = [axis for axis in axes if axis not in idle] or axes
    name = partial(called, found, axes=named)
    all_of_them = " of all sequences" if measure.name == "tokens_per_s" and _batched(found) else ""
    value, _, ends = ranged(best, measure).removesuffix("]").partition(" [")
    text = f"{name(best)} is best: {value}{measure.each}{all_of_them}{f' ({ends})' if ends else ''}"
    parts = []
    equal = {name(row) for row in known if _as_good(row, best, measure)} - {name(best)}
    if equal:
        as_good = f"{min(equal)} is" if len(equal) == 1 else f"{len(equal)} others are"
        parts.append(VerdictPart(f"; {as_good} as good"))
    worse = next((row for row in known if not _as_good(row, best, measure)), None)
    if worse is not None:
        ratio = best[measure.name] / worse[measure.name]
        times = format_number(ratio if measure.larger else 1 / ratio)
        overlap = " (80 % intervals overlap)" if _overlap(best, worse, measure) else ""
        parts.append(VerdictPart(f"; {times} times as good as the next, {name(worse)}{overlap}", 0))
    if idle and len(idle) < len(axes):
        parts.append(VerdictPart(f"; {' and '.join(idle)} makes no difference", 1))
    if len(known) < len(found.rows):
        parts.append(VerdictPart(f"; {len(known)} of {plural(len(found.rows), 'point')} have a result", 2))
    return Verdict.of(text, *parts)


def _as_good(row: Row, best: Row, measure: Metric) -> bool:
    """Return whether two points are as good with the digits that are shown."""
    return bool(abs(row[measure.name] / best[measure.name] - 1) < _EQUAL)


def _overlap(one: Row, other: Row, measure: Metric) -> bool:
    """Return whether the intervals of two points overlap."""
    ends = _ends((one, other), measure)
    return bool(ends) and ends[0][0] <= ends[1][1] and ends[1][0] <= ends[0][1]


def _makes_no_difference(found: SweepResult, axis: str) -> bool:
    """Return whether points that differ in this axis alone are all as good, where they have values."""
    measure, others = measure_of(found), [one for one in varied(found) if one != axis]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in best_first(found):
        groups.setdefault(tuple(_text(row[one]) for one in others), []).append(row)
    return all(_as_good(row, rows[0], measure) for rows in groups.values() for row in rows)


def _batched(found: SweepResult) -> bool:
    """Return whether points of inference may have several sequences."""
    work = found.scenario.get("workload")
    batch = work.get("batch_size", 1) if isinstance(work, Mapping) else 1
    kind = work.get("kind") if isinstance(work, Mapping) else ""
    return kind == "inference" and ("workload.batch_size" in found.axes or batch != 1)


def _warnings(found: SweepResult) -> Iterator[str]:
    """Yield how many points have no result, and why; then what is said of the others."""
    lacking = [row for row in found.rows if row.get("fits") is False]
    failed = [row for row in found.rows if row.get("error")]
    fit = "does not fit" if len(lacking) == 1 else "do not fit"
    for rows, what, why in ((lacking, fit, "advice"), (failed, "failed", "error")):
        if rows:
            share = percent(len(rows) / len(found.rows))
            yield f"{plural(len(rows), 'point')} ({share}) {what}; {called(found, rows[0])}: {rows[0][why]}"
    beyond = [row for row in found.rows if row.get("extrapolates")]
    if beyond:
        yield f"beyond the calibrated range (error unknown): {plural(len(beyond), 'point')}"
    repeated = Counter(str(row["warnings"]) for row in found.rows if row.get("warnings"))
    for text, number in repeated.most_common(_MOST_WARNINGS):
        yield f"{plural(number, 'point')}: {shortened(text, _LONGEST_WARNING)}"


def _charts(found: SweepResult) -> Iterator[ReportSection]:
    if not best_first(found):
        return
    measure = measure_of(found)
    name = f"{measure.title} [{measure.column if measure.larger and measure.column else measure.unit.name}]"
    if has_heat_map(found):
        label = f"{name} of each pair of values"
        without = any(not row.get(measure.name) for row in found.rows)
        notes = (f"{_NONE}: does not fit, or is refused",) if without else ()
        yield ReportSection(name, notes=notes, charts=(Chart(label, partial(heat_map, found)),))
    charts = [Chart(f"best value over {axis}", partial(along, found, axis), axis) for axis in varied(found)]
    title = "Best of each value" if len(charts) > 1 else name
    notes = ("Lines and bands: 80 % intervals; all other axes have their best values.",)
    yield ReportSection(title, charts=tuple(charts), notes=notes if len(charts) > 1 else ())
    best = front(found)
    if best is not None and len(best.points) > 1:  # else one point is best in both, which the verdict says
        time = uncapitalized(best.time.title)
        text = f"the line joins the points of which none has both a higher throughput and a shorter {time}"
        yield ReportSection(
            "Throughput against time",
            (text,),
            (_table(found, best.points, caption="Pareto front"),),
            charts=(Chart("throughput over time", partial(pareto, found, best)),),
        )


def _points(found: SweepResult) -> ReportSection:
    """Return the points, the best first."""
    known = best_first(found)
    ids = {id(row) for row in known}
    rows = (*known, *(row for row in found.rows if id(row) not in ids))
    first = f"The first {_MOST_ROWS} of " if len(rows) > _MOST_ROWS else "All "
    folded = f"{first}{plural(len(rows), 'point')}, the best first"
    return ReportSection("Points", tables=(_table(found, rows[:_MOST_ROWS], folded=folded),))


def _table(found: SweepResult, rows: tuple[Row, ...], *, caption: str = "", folded: str = "") -> ReportTable:
    axes = varied(found)
    known = declared_metrics().values()
    metrics = [one for one in known if one.column and any(row.get(one.name) for row in rows)]
    head = (*axes, *(one.column for one in metrics), "bottleneck")
    cells = tuple((*(str(row[axis]) for axis in axes), *_values(row, metrics), _last(row)) for row in rows)
    numbers = tuple(range(len(axes), len(head) - 1))
    refused = tuple(at for at, row in enumerate(rows) if not row.get("fits"))
    return ReportTable(caption, head, cells, numbers, len(axes), refused=refused, folded=folded)


def _values(row: Row, metrics: list[Metric]) -> Iterator[Entry]:
    for one in metrics:
        value = row.get(one.name)
        yield Datum(ranged(row, one), value, one.unit.name) if value else ""


def _last(row: Row) -> str:
    return row.get("bottleneck") or ("does not fit" if row.get("fits") is False else row.get("error") or "")
