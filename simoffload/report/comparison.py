"""Several results side by side: one group for each model, ratios within the group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from simoffload.errors import printable
from simoffload.report.phrases import headline
from simoffload.results.result import SimulationResult
from simoffload.units import format_seconds

__all__ = ["Group", "Published", "Row", "group_verdict", "groups", "in_common", "warnings"]


class Published(NamedTuple):
    """A published value to print beside a simulated one."""

    ratio: float
    """Time per token over that of the baseline."""
    source: str = ""
    """Where it was published, and how exact it is."""


class Row(NamedTuple):
    """One result among others."""

    label: str
    """Unique within its group: the target where that says enough, else the scenario."""
    result: SimulationResult
    ratio: float | None
    """Time per token over that of the baseline; None where either has none."""
    published: Published | None


class Group(NamedTuple):
    """Results of one model."""

    model: str
    rows: tuple[Row, ...]
    baseline: str
    """Label of the row that ratios refer to; empty where none has a time."""


def groups(
    results: Sequence[SimulationResult],
    *,
    published: Mapping[str, Published] | None = None,
    baseline: str | None = None,
) -> tuple[Group, ...]:
    """Arrange results by model, in the order given.

    ``published`` and ``baseline`` name rows by target, scenario name or "scenario@target". The baseline is
    the first row of each model that has times, or the row named.

    Raises ValueError if ``baseline`` names none.
    """
    by_model: dict[str, list[SimulationResult]] = {}
    for result in results:
        by_model.setdefault(result.model, []).append(result)
    if baseline is not None and not any(baseline in _names(result) for result in results):
        known = ", ".join(dict.fromkeys(name for result in results for name in _names(result)[1:]))
        raise ValueError(f"no result is called {baseline!r} (there are: {known})")
    return tuple(_group(model, alike, published or {}, baseline) for model, alike in by_model.items())


def _names(result: SimulationResult) -> tuple[str, str, str]:
    """What a result may be called, most exact first."""
    return f"{result.name}@{result.target}", result.name, result.target


def _group(
    model: str, results: Sequence[SimulationResult], published: Mapping[str, Published], baseline: str | None
) -> Group:
    timed = [result for result in results if result.per_token_s is not None]
    named = [result for result in timed if baseline is not None and baseline in _names(result)]
    reference = next(iter(named or (timed if baseline is None else [])), None)
    labels = _labels(results)
    rows = []
    for label, result in zip(labels, results, strict=True):
        reported = next((published[name] for name in _names(result) if name in published), None)
        rows.append(Row(label, result, _ratio(result, reference), reported))
    chosen = next((row.label for row in rows if row.result is reference), "")
    return Group(printable(model), tuple(rows), chosen)


def _ratio(result: SimulationResult, reference: SimulationResult | None) -> float | None:
    if reference is None or reference.per_token_s is None or result.per_token_s is None:
        return None
    return result.per_token_s / reference.per_token_s


def _labels(results: Sequence[SimulationResult]) -> list[str]:
    """The shortest names that tell the results apart."""
    for form in ("{target}", "{name}", "{name}, {target}"):
        labels = [printable(form.format(target=result.target, name=result.name)) for result in results]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{label} ({number})" for number, label in enumerate(labels, start=1)]


def group_verdict(group: Group) -> str:
    """ "bloom-176b, time per token: dram 50 ms, raid 90 ms (1.8×); does not fit: hbm."."""
    timed = [row for row in group.rows if row.result.per_token_s is not None]
    timed.sort(key=lambda row: row.result.per_token_s or 0.0)
    told = []
    for row in timed:
        ratio = f" ({row.ratio:.3g}×)" if row.ratio is not None and row.label != group.baseline else ""
        told.append(f"{row.label} {format_seconds(row.result.per_token_s or 0.0)}{ratio}")
    times = f"time per token: {', '.join(told)}" if told else ""
    missing = [row.label for row in group.rows if not row.result.fits]
    refused = f"does not fit: {', '.join(missing)}" if missing else ""
    return f"{group.model}, {'; '.join(part for part in (times, refused) if part) or 'fits everywhere'}."


def in_common(results: Sequence[SimulationResult]) -> tuple[str, ...]:
    """The words of the headline that hold for all results."""
    first, *others = (headline(result) for result in results)
    return tuple(words for words in first if all(words in other for other in others))


def warnings(found: Sequence[Group]) -> list[str]:
    """Each warning once, after the rows that it is about."""
    about: dict[str, list[str]] = {}
    for group in found:
        for row in group.rows:
            label = f"{group.model}, {row.label}" if len(found) > 1 else row.label
            for text in dict.fromkeys(row.result.warnings):
                about.setdefault(text, []).append(label)
    return [f"{'; '.join(labels)}: {printable(text)}" for text, labels in about.items()]
