"""``simoffload compare``."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from simoffload.cli.cases import cases, refusal
from simoffload.cli.console import Console, Progress
from simoffload.cli.exits import Exit
from simoffload.cli.folder import REPORT, RESULT, OutputFolder, json_writer

if TYPE_CHECKING:
    from simoffload.planning import Comparison
    from simoffload.report.comparison import Published
    from simoffload.results.result import SimulationResult
    from simoffload.scenario import LoadedScenario

__all__ = ["compare"]


def compare(arguments: Namespace, console: Console) -> Exit:
    """Simulate several scenarios, or one on several targets; print one table and write one page."""
    folder = OutputFolder.of(arguments)
    compared = _cases(arguments)
    from simoffload.planning import compare_scenarios
    from simoffload.report.comparison_text import compare_text

    with Progress(console) as progress:
        comparison = compare_scenarios(
            compared, baseline=arguments.baseline, keep_timelines=folder is not None, progress=progress
        )
    results, baseline, published = _for_report(comparison, compared)
    written: tuple[Path, ...] = ()
    if folder:
        from simoffload.report.page import write_comparison

        page = partial(
            write_comparison, results, published=published, baseline=baseline, command=arguments.line
        )
        written = folder.write({RESULT: json_writer(comparison.to_dict()), REPORT: page})
    text = compare_text(
        results, published=published, baseline=baseline, color=console.color, width=console.width
    )
    console.answer(text, comparison.to_dict())
    if console.as_json:
        for label, result in comparison.results.items():
            console.warn(f"{label}: {warning}" for warning in result.warnings)
    if written:
        console.say("wrote " + ", ".join(map(str, written)))
    return Exit.OK if comparison.fits else Exit.DOES_NOT_FIT


def _for_report(
    comparison: Comparison, cases: dict[str, LoadedScenario]
) -> tuple[tuple[SimulationResult, ...], str | None, dict[str, Published]]:
    """Results, the baseline's name and published ratios by name, where names are what reports know."""
    from simoffload.report.comparison import Published, exact_name
    from simoffload.validation import published_ratios

    names = {label: exact_name(result) for label, result in comparison.results.items()}
    published: dict[str, Published] = {}
    for label, case in cases.items():
        result, base = comparison.results[label], comparison.baseline_of(label)
        ratios = published_ratios(case, comparison.results[base].target) if base is not None else {}
        if result.target in ratios:
            published[names[label]] = Published(*ratios[result.target])
    baseline = names[comparison.baseline] if comparison.baseline is not None else None
    return tuple(comparison.results.values()), baseline, published


def _cases(arguments: Namespace) -> dict[str, LoadedScenario]:
    """What is compared, by label."""
    if len(arguments.scenarios) == 1 and not arguments.on:
        text = "one scenario is no comparison; give several, or --on TARGET,… for one on several targets"
        raise refusal("compare", text)
    return cases(arguments.scenarios, arguments.on, overrides=arguments.overrides, command="compare")
