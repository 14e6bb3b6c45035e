"""Comparison of results: one group for each model and kind of work, with ratios within the group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from simoffload.errors import InputError, printable
from simoffload.planning.answers import Answer
from simoffload.planning.confidence import margin, tie
from simoffload.planning.measured import MeasuredValue
from simoffload.report import plotting as draw
from simoffload.report.charts import capacity
from simoffload.report.formatting import uncapitalized
from simoffload.report.presentation import headline, presentation, ranged
from simoffload.results import ADDED, Metric, Share, SimulationResult, TrainingResult
from simoffload.units import format_number, format_seconds, percent

R = TypeVar("R", bound=SimulationResult)

_SHORT, _LONG = 8, 16
"""Longest name of a baseline [characters] in the heading of a narrow and of any other table."""


_APART = 0.05
"""Relative difference between the ratios of time and of throughput above which both are shown (our
choice)."""


_LIKE = 1.005
"""Ratio of times up to which both are as long."""


class Published(NamedTuple):
    """A Published is a published value that is printed next to a simulated one."""

    ratio: float
    """Published time over that of the baseline."""
    source: str = ""
    """Place of publication, and accuracy of the value."""


class ComparisonRow(NamedTuple):
    """A ComparisonRow is one result in a comparison."""

    label: str
    """Name that is unique within the group: that of the result's ``label``; without one the target if that is
    sufficient, else the scenario."""
    result: Answer
    ratio: float | None
    """``SimulationResult.compared_s`` over that of the baseline (training: time of a step); None if either
    has none."""
    throughput: float | None
    """Tokens (checkpoints) per second over those of the baseline."""
    published: Published | None
    margin: float | None = None
    """Relative margin within which the row is a tie with the baseline; None if it is not a tie."""
    measured: Mapping[str, float] = MappingProxyType({})
    """Values of real runs by metric."""

    @property
    def added(self) -> bool:
        """Whether nobody asked for the row: it shows what the same work takes without offloading, or on
        memory that the machine has."""
        return any(text.startswith(ADDED) for text in self.result.warnings)

    @property
    def ratio_text(self) -> str:
        """Ratio as text, such as "3.72×" or "1.04× tie"; "" without a ratio."""
        if self.ratio is None:
            return ""
        return f"{format_number(self.ratio)}×" + (" tie" if self.margin is not None else "")

    @property
    def throughput_text(self) -> str:
        """Ratio of throughput as text, such as "11.5×"; "" without a ratio."""
        return f"{format_number(self.throughput)}×" if self.throughput is not None else ""


class Group(NamedTuple):
    """A Group is the results of one model and one kind of work."""

    kind: str
    model: str
    title: str
    """Name of the model, with the kind of work if there are several kinds."""
    rows: tuple[ComparisonRow, ...]
    baseline: str
    """Label of the row to which ratios refer; "" if no row has a time."""

    @property
    def named(self) -> bool:
        """Whether who compares has given the rows their names, which then need no model beside them."""
        return all(row.result.label for row in self.rows)

    @property
    def throughput_apart(self) -> bool:
        """Whether the ratios of throughput and of time differ, as they do if batches differ."""
        return any(
            abs(row.ratio * row.throughput - 1) > _APART for row in self.rows if row.ratio and row.throughput
        )

    @property
    def measure(self) -> Metric:
        """Metric by which the rows are compared; throughput, where steps of training differ in their work."""
        first, apart = self.rows[0].result, self.kind == "training" and self.throughput_apart
        return first.declared["tokens_per_s"] if apart and not first.asked else first.compared_metric

    @property
    def ratio_name(self) -> str:
        """Name of what ratios are of, for the heading of a column: "time", "TTFT", "step"."""
        first = self.rows[0].result
        metric = first.compared_metric
        if first.asked:
            return metric.column or metric.label
        return "time" if metric.larger else first.step_metric.column

    def value(self, row: ComparisonRow) -> float | None:
        """Return the value of ``measure`` of a row; None if it has no times."""
        return row.result.value_of(self.measure.name) if row.result.step is not None else None

    def otherwise(self) -> tuple[Metric, ComparisonRow, ComparisonRow] | None:
        """Return the metric that orders the rows most unlike ``measure``, with the row that is best by it and
        the one of the ``leading`` rows that is worst; None if no metric clearly tells them apart."""
        timed = [row for row in self.judged if self.value(row) is not None]
        found: list[tuple[float, Metric, ComparisonRow, ComparisonRow]] = []
        for metric in self._others if len(timed) > 1 else ():
            valued = [(value, row) for row in timed if (value := row.result.value_of(metric.name))]
            leading = [(value, row) for value, row in valued if row.label in self.leading]
            if not leading:
                continue
            least, best = min(valued, key=lambda pair: pair[0])
            most, worst = max(leading, key=lambda pair: pair[0])
            if most / least - 1 > margin(best.result, worst.result, by=metric.name):
                found.append((most / least, metric, best, worst))
        return max(found, key=lambda one: one[0])[1:] if found else None

    @property
    def _others(self) -> Iterator[Metric]:
        """The further times that a verdict may name."""
        first, measure = self.rows[0].result, self.measure
        yield from (first.declared[name] for name in first.others if name != measure.name)

    @property
    def ordered(self) -> tuple[ComparisonRow, ...]:
        """The rows, the fastest first, and those without times last."""
        sign = -1 if self.measure.larger else 1
        values = {row.label: self.value(row) for row in self.rows}
        return tuple(
            sorted(self.rows, key=lambda row: (values[row.label] is None, sign * (values[row.label] or 0.0)))
        )

    @property
    def judged(self) -> tuple[ComparisonRow, ...]:
        """The rows among which a verdict decides, the fastest first: of an offer that is faster with other
        settings that cost nothing, the row with these."""
        return tuple(row for row in self.ordered if not row.result.superseded)

    @property
    def leading(self) -> tuple[str, ...]:
        """Labels of the fastest row, and of those that are as fast within the uncertainty; of offers with
        better settings only these."""
        timed = [row for row in self.judged if self.value(row) is not None]
        best = timed[:1]
        return tuple(row.label for row in timed if row in best or tie(row.result, best[0].result))

    @property
    def is_speed(self) -> bool:
        """Whether the rows are compared by a time or a rate, and not by money or energy."""
        return self.measure.unit.name in ("s", "1/s")

    @property
    def best(self) -> str:
        """What the first of the ``ordered`` rows is: "is fastest", "has the lowest energy per token"."""
        least = "highest" if self.measure.larger else "lowest"
        return "is fastest" if self.is_speed else f"has the {least} {self.measure.label}"

    def behind(self, row: ComparisonRow) -> str:
        """Return how much slower a row is than the fastest: "4.87× as long"; "" without times."""
        best, value = self.value(self.judged[0]), self.value(row)
        if not best or not value:
            return ""
        ratio = best / value if self.measure.larger else value / best
        how = "as long" if self.is_speed else "less" if self.measure.larger else "as much"
        return f"{format_number(ratio)}× {how}" if ratio > _LIKE else how if how != "less" else "as much"

    @property
    def narrow(self) -> bool:
        """Whether a table has little room, because several tiers are listed per row."""
        return len(presentation(self.rows[0].result).places) > 1

    @property
    def against(self) -> str:
        """The baseline for the heading of a column; "" if there is none or its name is too long."""
        return "" if len(self.baseline) > (_SHORT if self.narrow else _LONG) else self.baseline


def groups(
    results: Sequence[Answer],
    *,
    published: Mapping[str, Published] | None = None,
    baseline: str | None = None,
    measured: Sequence[MeasuredValue] = (),
) -> tuple[Group, ...]:
    """Group results by kind of work and model, in the order given.

    ``published`` and ``baseline`` identify rows by target, scenario name or ``exact_name``; values that were
    ``measured`` know their result. The baseline of a
    group is the row that is named, or else its first row with a time. Raises InputError if ``baseline`` names
    no row.
    """
    comparable = _comparable(results)
    if baseline is not None and not any(baseline in _names(result) for result in results):
        known = ", ".join(dict.fromkeys(name for result in results for name in _names(result)[1:]))
        raise InputError.at("baseline", f"no result is called {baseline!r} (there are: {known})")
    mixed = len({kind for kind, _ in comparable}) > 1
    found = []
    for (kind, model), mine in comparable.items():
        rows, chosen = _rows(mine, published or {}, baseline)
        rows = tuple(row._replace(measured=_measured_of(row.result, measured)) for row in rows)
        title = printable(f"{model}, {kind}" if mixed else model)
        found.append(Group(kind, printable(model), title, rows, chosen))
    return tuple(found)


def _comparable(results: Iterable[R]) -> dict[tuple[str, str], list[R]]:
    """Return results by kind of work and model."""
    found: dict[tuple[str, str], list[R]] = {}
    for result in results:
        found.setdefault((presentation(result).kind, result.model), []).append(result)
    return found


def need_labels(results: Iterable[SimulationResult]) -> bool:
    """Return whether results have names that do not tell them apart."""
    return any(_distinct(mine) is None for mine in _comparable(results).values())


def _measured_of(result: Answer, measured: Sequence[MeasuredValue]) -> dict[str, float]:
    return {one.metric.name: one.value for one in measured if one.result is result}


def exact_name(result: Answer) -> str:
    """Return "scenario@target", the most specific name of a result in ``groups``."""
    return presentation(result).exact


def _names(result: Answer) -> tuple[str, str, str]:
    """Return the names of a result, the most specific first."""
    return exact_name(result), result.name, result.target


def _rows(
    results: Sequence[Answer], published: Mapping[str, Published], baseline: str | None
) -> tuple[tuple[ComparisonRow, ...], str]:
    """Return the rows of a group, and the label of its baseline."""
    timed = [result for result in results if result.compared_s is not None]
    named = [result for result in timed if baseline is not None and baseline in _names(result)]
    reference = next(iter(named or (timed if baseline is None else [])), None)
    rows = []
    for label, result in zip(_labels(results), results, strict=True):
        reported = next((published[name] for name in _names(result) if name in published), None)
        ratio, throughput = _ratio(result, reference), _throughput(result, reference)
        rows.append(ComparisonRow(label, result, ratio, throughput, reported, _tie_within(result, reference)))
    return tuple(rows), next((row.label for row in rows if row.result is reference), "")


def _ratio(result: Answer, reference: Answer | None) -> float | None:
    mine, its = (None if one is None else _ranked(one) for one in (result, reference))
    return mine / its if mine and its else None


def _ranked(result: Answer) -> float | None:
    """Return what ratios are of: of training that is the time of a step, unless another metric is asked
    for."""
    training = isinstance(result, TrainingResult) and not result.asked
    return result.step_time_s if training else result.compared_s


def _throughput(result: Answer, reference: Answer | None) -> float | None:
    if reference is None or reference.unit_s is None or result.unit_s is None:
        return None
    return reference.unit_s / result.unit_s


def _tie_within(result: Answer, reference: Answer | None) -> float | None:
    if reference is None or result is reference or result.compared_s is None or not tie(result, reference):
        return None
    return margin(result, reference)


def _labels(results: Sequence[Answer]) -> list[str]:
    """Return the shortest names that distinguish the results."""
    labels = [printable(result.label) for result in results]
    if all(labels):
        return labels
    last = [presentation(result).labels[-1] for result in results]
    return _distinct(results) or [f"{label} ({number})" for number, label in enumerate(last, start=1)]


def _distinct(results: Sequence[SimulationResult]) -> list[str] | None:
    for names in zip(*(presentation(result).labels for result in results), strict=True):
        if len(set(names)) == len(names):
            return list(apart(names)[1])
    return None


def apart(names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return what several names begin with, up to the first comma, and what is left of each; "" and the names
    where they begin differently."""
    first = f"{names[0].partition(', ')[0]}, "
    if len(names) < 2 or not all(name.startswith(first) for name in names):
        return "", tuple(names)
    return first.removesuffix(", "), tuple(name.removeprefix(first) for name in names)


def keys(group: Group) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the headings and cells that identify the rows.

    If only the weights are offloaded, or the rows have names of their own, this is the label. Otherwise each
    offloaded part has a column, and the scenario has one if it is needed.
    """
    if group.named:
        return ("variant",), tuple((row.label,) for row in group.rows)
    shown_as = [presentation(row.result) for row in group.rows]
    heads = tuple(place.what for place in shown_as[0].places)
    if len(heads) == 1:
        return heads, tuple((row.label,) for row in group.rows)
    cells = [tuple(printable(place.tier) for place in each.places) for each in shown_as]
    if len(set(cells)) == len(cells):
        return heads, tuple(cells)
    named = [(printable(row.result.name), *tiers) for row, tiers in zip(group.rows, cells, strict=True)]
    if len(set(named)) < len(named):
        named = [(row.label, *tiers) for row, tiers in zip(group.rows, cells, strict=True)]
    return ("scenario", *heads), tuple(named)


def by_kind(found: Sequence[Group]) -> dict[str, tuple[Group, ...]]:
    """Return the groups of each kind of work, in order."""
    kinds = dict.fromkeys(group.kind for group in found)
    return {kind: tuple(group for group in found if group.kind == kind) for kind in kinds}


def tie_rule(found: Sequence[Group]) -> str:
    """Return the explanation of "tie" for tables of several results; "" if there is no tie."""
    margins = sorted(row.margin for group in found for row in group.rows if row.margin is not None)
    if not margins:
        return ""
    least, most = percent(margins[0]), percent(margins[-1])
    within = f"±{most}" if least == most else f"±{least} to ±{most}"
    return (
        f"tie: within {within} of the baseline, so that the 80 % interval of the ratio contains 1 and "
        "either may be faster"
    )


def in_common(results: Sequence[Answer]) -> tuple[str, ...]:
    """Return the parts of the headline that all results have in common."""
    known = [result for result in results if not result.refused] or results
    first, *others = (headline(result) for result in known)
    return tuple(description for description in first if all(description in other for other in others))


def warnings(found: Sequence[Group]) -> list[str]:
    """Return each warning once, with the rows to which it applies."""
    about: dict[str, list[str]] = {}
    for group in found:
        for row in group.rows:
            label = f"{group.title}, {row.label}" if len(found) > 1 else row.label
            for text in dict.fromkeys(row.result.warnings):
                about.setdefault(text, []).append(label)
    return [f"{'; '.join(labels)}: {printable(text)}" for text, labels in about.items()]


# -- charts that compare several results -----------------------------------------------------------


def times_compared(groups: Sequence[Group], *, log: bool = False) -> draw.Properties:
    """Draw the time by which results are compared, the fastest of each model on top, with 80 % intervals.

    What may be the fastest has one tint, published ratios are diamonds, and what has no time has a row
    without a bar. The axis begins at zero unless a logarithmic one is asked for.
    """
    rows = [_TimeRow(group, row) for group in groups for row in group.ordered]
    timed = [(y, one) for y, one in enumerate(rows) if one.value is not None]
    data = [
        _times([(y, one) for y, one in timed if one.leads is leads], name, color)
        for leads, name, color in ((True, "fastest or a tie", draw.BLUE), (False, "slower", draw.GREY))
    ]
    marks = [*_published(groups, rows), *_measured(rows)]
    ends = [end for _, one in timed for end in one.ends or [one.value or 0.0]]
    ends += [x for trace in marks for x in trace["x"]]
    measure = groups[0].measure
    title = uncapitalized(measure.title)
    unit = measure.column if measure.larger and measure.column else measure.unit.name
    if log:
        across = draw.axis(f"{title} [{unit}]", type="log")
    elif measure.unit.name != "s":
        across = draw.axis(f"{title} [{unit}]", rangemode="tozero")
    else:
        across = draw.seconds_axis(title, max(ends, default=1.0))
    return draw.figure(
        [*data, *marks],
        draw.height(len(rows)),
        barmode="overlay",
        showlegend=False,
        xaxis=across,
        yaxis=_rows_axis(groups, [(one.group, one.row) for one in rows]),
        annotations=[draw.beside(y, max(one.ends, default=0.0), one.text) for y, one in enumerate(rows)],
    )


class _TimeRow(NamedTuple):
    """A _TimeRow is a row of the chart of times."""

    group: Group
    row: ComparisonRow

    @property
    def value(self) -> float | None:
        return self.group.value(self.row)

    @property
    def ends(self) -> tuple[float, ...]:
        """P10 and P90; nothing without a time."""
        result, name = self.row.result, self.group.measure.name
        known = self.value is not None and name in result.composed
        return result.confidence.interval(name) if known else ()

    @property
    def leads(self) -> bool:
        """Whether it is the fastest, or as fast within the uncertainty."""
        return self.row.label in self.group.leading

    @property
    def text(self) -> str:
        """Value, interval and relation to the fastest; or the reason why there is none."""
        result, measure = self.row.result, self.group.measure
        if self.value is None:
            return "refused" if result.refused else "fits" if result.fits else "does not fit"
        best = self.group.ordered[0]
        relation = "tie" if self.leads else self.group.behind(self.row)
        if self.row is best:
            relation = ("fastest" if self.group.is_speed else "best") if len(self.group.rows) > 1 else ""
        return ", ".join(filter(None, (ranged(result, measure.name), relation)))


def _times(rows: Sequence[tuple[int, _TimeRow]], name: str, color: str) -> draw.Properties:
    values = [one.value or 0.0 for _, one in rows]
    ends = (one.ends or (value, value) for value, (_, one) in zip(values, rows, strict=True))
    pairs = list(zip(values, ends, strict=True))
    return draw.bars(
        name,
        y=[y for y, _ in rows],
        x=values,
        hover=[f"{draw.plain(one.row.label)}: {one.text}" for _, one in rows],
        color=color,
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [ends[1] - value for value, ends in pairs],
            "arrayminus": [value - ends[0] for value, ends in pairs],
        },
    )


def _published(groups: Sequence[Group], rows: Sequence[_TimeRow]) -> list[draw.Properties]:
    """Draw published ratios of times beside the simulated baseline, if there are any and times are
    compared."""
    bases = {
        group.title: next((group.value(row) for row in group.rows if row.label == group.baseline), None)
        for group in groups
    }
    found = [
        (y, one.row.published.ratio, base, one.group.baseline)
        for y, one in enumerate(rows)
        if one.row.published is not None and (base := bases[one.group.title]) is not None
    ]
    if not found or groups[0].rows[0].result.asked:
        return []
    measure = groups[0].measure
    hover = [f"published: {format_number(ratio)} × {draw.plain(name)}" for _, ratio, _, name in found]
    marker = {"symbol": "diamond-open", "size": 11, "color": draw.BLACK, "line": {"width": 2}}
    name = f"published ratio {'of the' if measure.larger else '×'} simulated baseline"
    x = [base / ratio if measure.larger else ratio * base for _, ratio, base, _ in found]
    y = [y for y, *_ in found]
    return [draw.points(name, x=x, y=y, hover=hover, marker=marker)]


def _measured(rows: Sequence[_TimeRow]) -> list[draw.Properties]:
    """Draw values of real runs, if there are any of the metric that is compared."""
    found = [
        (y, value, one.group.measure)
        for y, one in enumerate(rows)
        if (value := one.row.measured.get(one.group.measure.name)) is not None
    ]
    if not found:
        return []
    marker = {"symbol": "diamond", "size": 11, "color": draw.BLACK}
    hover = [f"measured: {measure.text(value)}" for _, value, measure in found]
    x, y = [value for _, value, _ in found], [at for at, *_ in found]
    return [draw.points("measured", x=x, y=y, hover=hover, marker=marker)]


class CurvePoint(NamedTuple):
    """A CurvePoint is the result for one value of an input."""

    at: int
    """Place of the value on the axis."""
    name: str
    """Text of the value, which stands at the axis."""
    y: float
    text: str
    """Text of ``y``, with its interval if it has one."""
    ends: tuple[float, float] | None = None
    """P10 and P90 of ``y``; None if it has no interval."""


def curve_of(
    points: Sequence[CurvePoint], now: int, *, across: str, up: str, seconds: bool
) -> draw.Properties:
    """Draw results over the values of an input (``across``), each value at its own place; ``now`` is the
    present one. ``up`` is what is drawn, in seconds if so said."""
    ends = [one.ends or (one.y, one.y) for one in points]
    error = {
        "type": "data",
        "symmetric": False,
        "array": [high - one.y for one, (_, high) in zip(points, ends, strict=True)],
        "arrayminus": [one.y - low for one, (low, _) in zip(points, ends, strict=True)],
    }
    present = [one for one in points if one.at == now]
    data = [
        _curve("simulated", points, mode="lines+markers", error_y=error, line={"color": draw.BLUE}),
        _curve("now", present, marker={"color": draw.VERMILION, "size": 13, "symbol": "diamond"}),
    ]
    most = max(high for _, high in ends)
    return draw.figure(
        data,
        draw.height(8),
        showlegend=False,
        xaxis=draw.axis(
            draw.plain(across),
            tickvals=[one.at for one in points],
            ticktext=[draw.plain(one.name) for one in points],
        ),
        yaxis=draw.seconds_axis(up, most) if seconds else draw.axis(up, rangemode="tozero"),
    )


def _curve(name: str, points: Sequence[CurvePoint], **more: Any) -> draw.Properties:
    hover = [f"{draw.plain(one.name)}: {one.text}" for one in points]
    return draw.points(name, x=[one.at for one in points], y=[one.y for one in points], hover=hover, **more)


def capacity_compared(groups: Sequence[Group]) -> draw.Properties:
    """Draw the fullest tier of each result."""
    rows = [(group, row) for group in groups for row in group.rows if row.result.capacity]
    fullest = [max(row.result.capacity, key=lambda use: use.needed / use.capacity) for _, row in rows]
    names = [
        f"{_named(groups, group, row)}: {use.tier}" for (group, row), use in zip(rows, fullest, strict=True)
    ]
    return capacity(fullest, names=names)


def causes_compared(groups: Sequence[Group]) -> draw.Properties:
    """Draw the share of each cause in the step; reading from any target counts as one cause."""
    rows = [(group, row, row.result.step) for group in groups for row in group.rows if row.result.step]
    data = draw.by_cause(
        [
            draw.CauseBar(
                y,
                _general(share, row.result),
                draw.cause_colour(share.cause),
                share.exposed_s / step.time_s,
                f"{draw.plain(share.cause_text)}: {format_seconds(share.exposed_s)}",
            )
            for y, (_, row, step) in enumerate(rows)
            for share in step.shares
            if share.exposed_s
        ]
    )
    return draw.figure(
        data,
        draw.height(len(rows)),
        barmode="stack",
        showlegend=True,
        uniformtext=draw.ROOM_FOR_NAMES,
        xaxis=draw.axis("exposed time, as a fraction of the step", tickformat=".0%", range=[0, 1]),
        yaxis=_rows_axis(groups, [(group, row) for group, row, _ in rows]),
        annotations=[
            draw.beside(y, 0.0, f"100 % = {format_seconds(step.time_s)}")
            for y, (_, _, step) in enumerate(rows)
        ],
    )


def phases_compared(groups: Sequence[Group]) -> draw.Properties:
    """Draw the times of the phases of a training step, one row for each result."""
    rows = [
        (group, row, row.result)
        for group in groups
        for row in group.rows
        if isinstance(row.result, TrainingResult) and row.result.phases
    ]
    names = dict.fromkeys(phase.name for _, _, result in rows for phase in result.phases)
    data = []
    for name in names:
        times = [result.metrics().get(f"{name}_s") or 0.0 for _, _, result in rows]
        data.append(
            draw.bars(
                name,
                y=range(len(rows)),
                x=times,
                hover=[f"{draw.plain(name)}: {format_seconds(time)}" for time in times],
                color=draw.phase_colour(name),
                **draw.labelled(name, len(rows)),
            )
        )
    return draw.figure(
        data,
        draw.height(len(rows)),
        barmode="stack",
        showlegend=True,
        uniformtext=draw.ROOM_FOR_NAMES,
        xaxis=draw.seconds_axis("time of one step", max(result.step_s or 0.0 for _, _, result in rows)),
        yaxis=_rows_axis(groups, [(group, row) for group, row, _ in rows]),
    )


def _rows_axis(groups: Sequence[Group], rows: Sequence[tuple[Group, ComparisonRow]]) -> draw.Properties:
    """Return the axis with the names of results, with their models where there are several."""
    return draw.names_axis([_named(groups, group, row) for group, row in rows])


def _named(groups: Sequence[Group], group: Group, row: ComparisonRow) -> str:
    """Return the name of a result, with its model where there are several and nobody has named it."""
    return row.label if group.named or len(groups) == 1 else f"{group.model}, {row.label}"


def _general(share: Share, result: Answer) -> str:
    """Return the general name of a cause, such as "storage read" for "raid read", if raid holds weights or
    optimizer."""
    tiers = [place.tier for place in presentation(result).places]
    general = share.cause.kind in ("read", "write") and share.cause.tier in tiers
    return f"storage{share.cause_text.removeprefix(share.cause.tier)}" if general else share.cause_text
