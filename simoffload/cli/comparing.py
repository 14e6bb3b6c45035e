"""``simoffload compare``."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simoffload.cli.console import Console, Progress
from simoffload.cli.exit_codes import ExitCode
from simoffload.cli.output import DOCUMENT, MARKDOWN, REPORT, RESULT, TABLE, OutputFolder, Writer, json_writer
from simoffload.cli.scenario_set import refusal, scenario_set
from simoffload.limits import keep, limited, now_doing

if TYPE_CHECKING:
    from simoffload.planning.compare import Comparison
    from simoffload.report.comparison import Published
    from simoffload.report.document import ReportDocument
    from simoffload.results.result import SimulationResult
    from simoffload.scenario import LoadedScenario

__all__ = ["compare"]


def compare(arguments: Namespace, console: Console) -> ExitCode:
    """Simulate several scenarios, or one on several targets; print one table and write one page."""
    folder = OutputFolder.of(arguments)
    compared = _cases(arguments, console)
    from simoffload.planning.compare import compare_scenarios
    from simoffload.planning.costs import load_costs

    prices = load_costs(arguments.costs)
    with Progress(console) as progress:
        comparison = compare_scenarios(
            compared,
            baseline=arguments.baseline,
            costs=prices,
            keep_timelines=folder is not None,
            progress=progress,
        )
    reported = _reported(comparison, compared, folder, arguments, console)
    console.answer(reported.text, reported.data)
    if console.as_json:
        for label, result in comparison.results.items():
            console.warn(f"{label}: {warning}" for warning in result.warnings)
    if reported.written:
        console.print_lines("wrote " + ", ".join(map(str, reported.written)))
    return ExitCode.OK if comparison.fits else ExitCode.DOES_NOT_FIT


class _ComparisonReport(NamedTuple):
    text: str
    data: dict[str, Any]
    written: tuple[Path, ...]


@limited
def _reported(
    comparison: Comparison,
    compared: dict[str, LoadedScenario],
    folder: OutputFolder | None,
    arguments: Namespace,
    console: Console,
) -> _ComparisonReport:
    from simoffload.report.from_comparison import comparison_document
    from simoffload.report.terminal import terminal_text

    keep(next(iter(compared.values())).scenario.engine.limits)
    now_doing("reporting")
    rendered = _rendered(comparison, compared)
    document = comparison_document(
        rendered.results, published=rendered.published, baseline=rendered.baseline, command=arguments.line
    )
    written = folder.write(_files(comparison, document)) if folder else ()
    text = terminal_text(document, color=console.color, width=console.width)
    return _ComparisonReport(text, comparison.to_dict(), written)


class _RenderedComparison(NamedTuple):
    """What reports are made of: names there are those that reports know."""

    results: tuple[SimulationResult, ...]
    baseline: str | None
    published: dict[str, Published]


def _rendered(comparison: Comparison, scenario_set: dict[str, LoadedScenario]) -> _RenderedComparison:
    from simoffload.planning.published_ratios import published_ratios
    from simoffload.report.comparison import Published, exact_name

    names = {label: exact_name(result) for label, result in comparison.results.items()}
    published: dict[str, Published] = {}
    for label, case in scenario_set.items():
        result, base = comparison.results[label], comparison.baseline_of(label)
        ratios = published_ratios(case, comparison.results[base].target) if base is not None else {}
        if result.target in ratios:
            published[names[label]] = Published(*ratios[result.target])
    baseline = names[comparison.baseline] if comparison.baseline is not None else None
    return _RenderedComparison(tuple(comparison.results.values()), baseline, published)


def _files(comparison: Comparison, document: ReportDocument) -> dict[str, Writer]:
    from simoffload.exchange.files import write_csv
    from simoffload.report.html import write_html
    from simoffload.report.markdown import write_markdown

    columns, rows = comparison.table()
    return {
        RESULT: json_writer(comparison.to_dict()),
        REPORT: partial(write_html, document),
        MARKDOWN: partial(write_markdown, document),
        DOCUMENT: json_writer(document.to_dict()),
        TABLE: partial(write_csv, columns=columns, rows=rows),
    }


def _cases(arguments: Namespace, console: Console) -> dict[str, LoadedScenario]:
    """What is compared, by label."""
    if len(arguments.scenarios) == 1 and not arguments.on and not arguments.strategy:
        text = "one scenario is not a comparison; give several, --on TARGET,… for one on several targets, or "
        raise refusal("compare", f"{text}--strategy FILE for another strategy")
    return scenario_set(
        arguments.scenarios,
        arguments.on,
        overrides=arguments.overrides,
        strategies=arguments.strategy,
        command="compare",
        console=console,
    )
