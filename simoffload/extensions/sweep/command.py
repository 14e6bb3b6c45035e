"""``simoffload sweep``: simulate a scenario at many points."""

from __future__ import annotations

import argparse
import shlex
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from simoffload.cli.answer import RESULT, TABLE, OutputFolder, content_writer, report_files
from simoffload.cli.console import Console, ExitCode, Waiting, bar
from simoffload.cli.option_types import (
    WRITTEN,
    add_json,
    add_model,
    add_output,
    add_overrides,
    add_parts,
    count,
)
from simoffload.cli.sources import STDIN, CommandChanges, load, read, refusal
from simoffload.errors import InputError
from simoffload.progress import clock, working_on

if TYPE_CHECKING:
    from simoffload.extensions.sweep.definition import Points, Sweep
    from simoffload.extensions.sweep.run import Counts, Summary
    from simoffload.report.document import ReportDocument

_SCHEMA = "simoffload/sweep/1"
_PAGE = ".html"
_LINES = 10  # number of lines of progress where there is no terminal


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog, parser.formatter_class = _EPILOG, argparse.RawDescriptionHelpFormatter
    option = parser.add_argument
    option(
        "scenario",
        metavar="SCENARIO",
        nargs="?",
        help="a scenario with a section sweep, unless --axis is given; or a model",
    )
    option("--axis", action="append", default=[], metavar="PATH=…", dest="axes", help=_AXIS)
    option("--constraint", action="append", default=[], metavar="EXPR", dest="constraints", help=_CONSTRAINT)
    option("--objective", metavar="METRIC", help=_OBJECTIVE)
    add_model(parser)
    add_parts(parser)
    add_overrides(parser)
    add_output(parser, f"{WRITTEN}, and table.csv instead of SCENARIO-sweep.csv", also="FILE and its journal")
    option("-o", "--output", action="append", type=Path, metavar="FILE", dest="outputs", help=_OUTPUT)
    option("--resume", action="store_true", help="continue an earlier run of the same sweep")
    option("--workers", type=count, metavar="N", help="number of processes (default: one per core)")
    option("--chunk", type=count, metavar="N", help="number of points that a worker gets at once")
    option("--cluster", metavar="tcp://…", help='address of a Dask scheduler, or "local" for a test')
    option(
        "--max-points", type=count, default=None, metavar="N", help="refuse more points (default: 1,000,000)"
    )
    option("--dry-run", action="store_true", help="only print the number of points and an example")
    option("--quiet", action="store_true", help="show no progress")
    add_json(parser)
    parser.set_defaults(command=sweep)


_AXIS = "key to vary: PATH=1,2,4 or PATH=range(min=1, max=64, n=7, scale=log); may be repeated"
_CONSTRAINT = 'condition for points, such as "batch_size * ranks <= 256"; may be repeated'
_OBJECTIVE = "what decides which point is best, such as ttft (default: tokens/s of the whole request)"
_OUTPUT = (
    "table to write: .csv, .json or .parquet, or a page: .html; may be repeated (default: SCENARIO-sweep.csv)"
)
_MOST_READ = 20_000
"""Largest number of points whose best one is looked for although nobody asked for a report."""
_EPILOG = """\
example:
  simoffload sweep ddn/bloom-7b1 --axis workload.batch_size=1,4,16 --axis strategy.weights=dram,raid,ai400x2

Every result is written to FILE.journal at once; after an interruption, --resume continues the sweep.
"""


def sweep(arguments: Namespace, console: Console) -> ExitCode:
    """Simulate all points of a sweep and write them as a table."""
    from simoffload.extensions.sweep.definition import MOST_POINTS, define_sweep, find_points
    from simoffload.extensions.sweep.run import check_files, objective_name, run_sweep

    folder = OutputFolder.of(arguments)
    pages = [path for path in arguments.outputs or () if path.suffix == _PAGE]
    tables = [path for path in arguments.outputs or () if path.suffix != _PAGE]
    if not (tables or folder):
        tables = [_default_output(arguments.scenario or arguments.model)]
    journal = None if tables else arguments.output_dir.with_name(f"{arguments.output_dir.name}.journal")
    document = _document(arguments, console)
    objective = objective_name(arguments.objective, document)
    again = {"resume": arguments.resume, "overwrite": arguments.overwrite}
    with Waiting(console):
        working_on("reading the sweep")
        defined = define_sweep(
            document,
            axes=arguments.axes,
            constraints=arguments.constraints,
            most=arguments.max_points or MOST_POINTS,
        )
        if not arguments.dry_run:  # errors in the sweep itself come first
            check_files(tables, journal=journal, **again)
            _check_pages(pages, again=arguments.resume or arguments.overwrite)
        console.warn(defined.warnings)
        working_on("looking for equal points")
        points = find_points(defined)
    if arguments.dry_run:
        return _dry_run(defined, points, console)
    shown = ProgressBar(console, quiet=arguments.quiet)
    with TemporaryDirectory() as temporary:
        rows, table = Path(temporary, "rows.json"), Path(temporary, TABLE)
        as_rows = [rows] if pages or folder or objective or len(points) <= _MOST_READ else []
        try:
            summary = run_sweep(
                defined,
                points,
                [*tables, *as_rows, *([table] if folder else [])],
                journal=journal,
                workers=arguments.workers,
                chunk=arguments.chunk,
                cluster=arguments.cluster,
                progress=shown,
                **again,
            )
        except BaseException as error:
            console.erase()
            if shown.counts is not None and not isinstance(error, InputError):
                _print_resume_command(arguments, shown.counts, console)
            raise
        console.erase()
        report = _report(rows, arguments.line, objective) if as_rows else None
        written = _written(report, folder, pages, rows, table)
    if journal is not None:
        journal.unlink()
    answers = report.summary if report else ()
    console.warn(report.warnings if report else ())
    return _answer(summary._replace(outputs=(*tables, *written)), answers, console)


def _check_pages(pages: Sequence[Path], *, again: bool) -> None:
    """Raise InputError unless the pages can be written."""
    from simoffload.exchange.files import check_target

    for path in pages:
        check_target(path)
        if path.exists() and not again:
            raise refusal("sweep", f"{path} exists; name another file or give --overwrite")


def _report(rows: Path, command: str, objective: str) -> ReportDocument:
    from simoffload.extensions.sweep.report import sweep_document
    from simoffload.extensions.sweep.run import SweepResult

    return sweep_document(replace(SweepResult.read(rows), objective=objective), command=command)


def _written(
    report: ReportDocument | None, folder: OutputFolder | None, pages: Sequence[Path], rows: Path, table: Path
) -> tuple[Path, ...]:
    """Write the report of a sweep into the folder, with its rows and its table, and as pages."""
    if report is None:
        return ()
    from simoffload.report.html import write_html

    for path in pages:
        write_html(report, path)
    if folder is None:
        return tuple(pages)
    read = {name: content_writer(path.read_bytes()) for name, path in ((RESULT, rows), (TABLE, table))}
    return (*pages, *folder.write(report_files(report, None) | read))


def _document(arguments: Namespace, console: Console) -> Any:
    """Return the document that is varied: a file as it is, with the values of ``--set``, or the scenario of a
    model or of a machine by its parts."""

    from simoffload.scenario import ScenarioCache, located, names_model, overridden

    source = arguments.scenario
    changes = CommandChanges.of(arguments, model=arguments.model)
    if changes.model or any(changes.parts or ()) or names_model(source):
        return load(source, changes, console=console).document
    document = read(source) if source == STDIN else located(source)
    return overridden(document, changes.overrides, ScenarioCache())


def _default_output(source: str) -> Path:
    return Path("sweep.csv" if source == STDIN else f"{Path(source).stem}-sweep.csv")


def _dry_run(sweep: Sweep, points: Points, console: Console) -> ExitCode:
    example = sweep.described(points.combination[0])
    grid = sweep.grid
    names = [axis.name for axis in grid.axes]
    sizes = " x ".join(f"{len(axis.values):,} {axis.name}" for axis in grid.axes)
    simulations = _counted(len(points.unique), "simulation")
    equal = "is equal" if points.duplicates == 1 else "are equal"
    lines = [
        f"{_counted(len(points), 'point')} of {_counted(grid.size, 'combination')} ({sizes})",
        f"{points.duplicates:,} of them {equal} to another point; {simulations}",
        f"first point: {example}",
    ]
    data = {
        "schema": "simoffload/sweep-plan/1",
        "combinations": grid.size,
        "points": len(points),
        "duplicates": points.duplicates,
        "example": dict(zip(names, grid.values(points.combination[0]), strict=True)),
        "sweep": points.sweep_hash,
    }
    console.answer("\n".join(lines), data)
    return ExitCode.OK


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _answer(summary: Summary, answers: Sequence[str], console: Console) -> ExitCode:
    texts = [_counted(summary.points, "point")]
    texts += [f"{number:,} {what}" for number, what in _summary_rows(summary) if number]
    data = {
        "schema": _SCHEMA,
        "points": summary.points,
        "duplicates": summary.duplicates,
        "resumed": summary.resumed,
        "failed": summary.failed,
        "does_not_fit": summary.too_large,
        "outputs": [str(path) for path in summary.outputs],
        "journal": str(summary.journal),
    }
    lines = [f"Verdict: {text}" for text in answers]
    console.answer("\n".join([*lines, ", ".join(texts)]), data)
    console.print_lines("wrote " + ", ".join(map(str, summary.outputs)))
    if summary.failed == summary.points:
        console.note("no point has a result; the column error gives the reasons")
        return ExitCode.FAILED
    return ExitCode.DOES_NOT_FIT if summary.failed + summary.too_large == summary.points else ExitCode.OK


def _summary_rows(summary: Summary) -> tuple[tuple[int, str], ...]:
    return (
        (summary.duplicates, "equal to another point"),
        (summary.resumed, "simulations taken from the journal"),
        (summary.too_large, "do not fit"),
        (summary.failed, "failed (see the column error)"),
    )


def _print_resume_command(arguments: Namespace, counts: Counts, console: Console) -> None:
    argv = [word for word in shlex.split(arguments.line) if word not in ("--resume", "--overwrite")]
    console.note(f"{counts.done:,} of {counts.total:,} simulations are kept; to continue:")
    console.note("  " + shlex.join([*argv, "--resume"]))


class ProgressBar:
    """Shows the progress of a sweep: a bar on a terminal, until it is erased, and a few lines elsewhere."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self.counts: Counts | None = None
        self._console, self._quiet = console, quiet
        self._began, self._drawn = time.monotonic(), 0.0
        self._printed_steps = 0

    def __call__(self, counts: Counts) -> None:
        """Show the progress that the counts give."""
        if self.counts is None:
            self._began = time.monotonic()
            self._printed_steps = counts.done * _LINES // max(1, counts.total)
        self.counts = counts
        if self._quiet:
            return
        if self._console.overwrites:
            self._draw(counts)
        else:
            self._print_progress(counts)

    def _print_progress(self, counts: Counts) -> None:
        tenths = counts.done * _LINES // max(1, counts.total)
        if tenths > self._printed_steps:
            self._printed_steps = tenths
            self._console.note(progress_line(counts, time.monotonic() - self._began))

    def _draw(self, counts: Counts) -> None:
        now = time.monotonic()
        if now - self._drawn < 0.1 and counts.done < counts.total:
            return
        self._drawn = now
        line = progress_line(counts, now - self._began)
        self._console.overwrite(f"{bar(counts.done / max(1, counts.total))} {line}")


def progress_line(counts: Counts, elapsed: float) -> str:
    """Return the points done and in total, the rate [1/s] and the remaining time."""
    from simoffload.units import format_number

    line = f"{counts.done:,}/{counts.total:,}"
    rate = (counts.done - counts.resumed) / elapsed if elapsed > 0 else 0.0
    if rate:
        left = (counts.total - counts.done) / rate
        line += f"  {format_number(rate)}/s" + (f"  {clock(left)} left" if left > 0.5 else "")
    return line + (f"  {counts.failed:,} failed" if counts.failed else "")
