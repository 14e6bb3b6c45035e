"""Measured or published values beside predicted ones: the table that gives them, and how they compare."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from simoffload.documents import quoted, read_text, suggest
from simoffload.errors import InputError, Problem, shortened
from simoffload.planning.answers import Answer
from simoffload.planning.service_levels import short_name
from simoffload.results import Metric

if TYPE_CHECKING:
    import pandas as pd

LABEL, SOURCE = "label", "source"
"""Columns of the table that are no metrics."""
MeasuredSource: TypeAlias = "str | Path | Mapping[str, Mapping[str, Any]] | pd.DataFrame"
"""The path of a CSV file, a mapping of labels to metrics and values, or a data frame, in which labels are the
column "label" or the index."""


class MeasuredValue(NamedTuple):
    """A MeasuredValue is a number of a real run, beside what was predicted for it."""

    label: str
    """Label of the result in the comparison."""
    metric: Metric
    value: float
    """The measured number in the unit of the metric."""
    source: str
    result: Answer

    @property
    def predicted(self) -> float | None:
        """The predicted number; None without one."""
        return self.result.metrics().get(self.metric.name)

    @property
    def ends(self) -> tuple[float, float] | None:
        """P10 and P90 of the prediction; None without an interval."""
        return self.result.intervals().get(self.metric.name)

    @property
    def ratio(self) -> float | None:
        """Predicted over measured; None without a prediction."""
        return None if self.predicted is None else self.predicted / self.value

    @property
    def inside(self) -> bool | None:
        """Whether the measured number is within the 80 % interval of the prediction; None without one."""
        return None if self.ends is None else self.ends[0] <= self.value <= self.ends[1]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        found = {
            "label": self.label,
            "metric": self.metric.name,
            "measured": self.value,
            "predicted": self.predicted,
        }
        ends = None if self.ends is None else list(self.ends)
        return {**found, "ratio": self.ratio, "interval": ends, "inside": self.inside, "source": self.source}


class MeasuredTable:
    """A MeasuredTable has the cells of a table of measured values, each with its place for messages."""

    def __init__(self, source: MeasuredSource) -> None:
        """Read a table. Raises InputError for a file that is none."""
        self._path = str(source) if isinstance(source, str | Path) else "measured"
        self._rows = list(_read_csv(Path(source)) if isinstance(source, str | Path) else _rows_of(source))
        if not self._rows:
            raise InputError.at("", f"has no rows; {_FORM}", path=self._path)

    def values(self, results: Mapping[str, Answer]) -> tuple[MeasuredValue, ...]:
        """Return all values. Raises InputError for a label, a metric or a number that is wrong."""
        problems: list[Problem] = []
        found: list[MeasuredValue] = []
        for line, row in self._rows:
            try:
                found += self._values_of(line, row, results)
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(dict.fromkeys(problems))
        if not found:
            raise InputError.at("", f"has no value; {_FORM}", path=self._path)
        count = Counter((one.label, one.metric.name) for one in found)
        twice = [one for one in found if count[one.label, one.metric.name] > 1]
        if twice:
            name = f"{twice[0].label}: {twice[0].metric.name}"
            raise InputError.at(name, "is given twice; leave out one of the rows", path=self._path)
        return tuple(found)

    def _values_of(
        self, line: int | None, row: Mapping[str, Any], results: Mapping[str, Answer]
    ) -> Iterator[MeasuredValue]:
        stated = row.get(SOURCE)
        label, source = str(row.get(LABEL, "")), "" if _is_empty(stated) else str(stated)
        if label not in results:
            text = f"is not one of what is compared{suggest(label, results)}; it is {', '.join(results)}"
            raise self._error(line, LABEL, f"{quoted(label)} {text}")
        result = results[label]
        known = {name: one for one in result.declared.values() for name in (one.name, short_name(one))}
        for name, cell in row.items():
            if name in (LABEL, SOURCE) or _is_empty(cell):
                continue
            if name not in known:
                usual = [one.name for one in result.declared.values() if one.column]
                text = f"is no metric of {result.kind}{suggest(name, known)}; usual are {', '.join(usual)}"
                raise self._error(line, shortened(name), text)
            yield MeasuredValue(label, known[name], self._number(line, known[name], cell), source, result)

    def _number(self, line: int | None, metric: Metric, cell: Any) -> float:
        try:
            value = _parsed(metric, cell)
        except (TypeError, ValueError):
            unit = f" [{metric.unit.name}]" if metric.unit.name else ""
            also = f'; write 17 or "17 {metric.written_unit}"' if metric.written_unit else ""
            text = f"{quoted(str(cell))} is no number{unit}{also}"
            raise self._error(line, metric.name, text) from None
        if not 0 < value < math.inf:
            raise self._error(line, metric.name, f"must be above zero and finite, not {quoted(str(cell))}")
        return value

    def _error(self, line: int | None, key: str, message: str) -> InputError:
        return InputError([Problem(self._path, line, None, key, message)])


_MOST = 1_000_000
"""Largest file [B]."""
_FORM = "write a first line such as label,tokens_per_s,ttft_s,source, and a line for each result"


def _read_csv(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(read_text(path, most=_MOST).splitlines(), restkey="", skipinitialspace=True)
    columns = list(reader.fieldnames or ())
    if LABEL not in columns or len(set(columns) - {LABEL, SOURCE}) == 0:
        given = f"{LABEL!r} is missing" if LABEL not in columns else "there is no column of a metric"
        raise InputError([Problem(str(path), 1, None, "", f"{given}; {_FORM}")])
    twice = [one for one, number in Counter(columns).items() if number > 1]
    if twice:
        text = "is the name of two columns; leave one out"
        raise InputError([Problem(str(path), 1, None, shortened(twice[0]), text)])
    rows = iter(reader)
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise InputError([Problem(str(path), reader.line_num, None, "", f"is no CSV: {error}")]) from None
        if row is None:
            return
        if "" in row:
            text = f"has more cells than the first line, which has {len(columns)}"
            raise InputError([Problem(str(path), reader.line_num, None, "", text)])
        yield reader.line_num, row


def _rows_of(source: Any) -> Iterator[tuple[None, Mapping[str, Any]]]:
    """Yield the rows of a mapping or of a data frame."""
    if hasattr(source, "to_dict") and hasattr(source, "index"):
        labelled = source if LABEL in source.columns else source.rename_axis(LABEL).reset_index()
        source = dict(enumerate(labelled.to_dict("records")))
    for label, row in source.items():
        yield None, {LABEL: label, **row}


def _is_empty(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip()) or cell != cell


def _parsed(metric: Metric, cell: Any) -> float:
    """Return a number in the unit of a metric: a number, or a text with a unit, "200 ms"."""
    if not isinstance(cell, str):
        return float(cell)
    try:
        return float(cell)
    except ValueError:
        return metric.parse(cell.strip())


def agreement(values: Collection[MeasuredValue]) -> str:
    """Return how predictions agree with measured values, as a sentence."""
    ratios = sorted(one.ratio for one in values if one.ratio is not None)
    if not ratios:
        return "no measured value has a prediction beside it"
    known = [one.inside for one in values if one.inside is not None]
    inside = f"{sum(known)} of {len(known)} measured values are within their 80 % intervals" if known else ""
    ends = f" ({ratios[0]:.2f} to {ratios[-1]:.2f})" if len(ratios) > 1 else ""
    middle = f"predicted over measured is {median(ratios):.2f}{' in the median' if ends else ''}{ends}"
    return "; ".join(filter(None, (inside, middle)))
