"""``simoffload advise``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simoffload.cli.console import Console, Progress
from simoffload.cli.exit_codes import ExitCode
from simoffload.cli.output import (
    DOCUMENT,
    MARKDOWN,
    RECOMMENDED,
    REPORT,
    RESULT,
    TABLE,
    OutputFolder,
    Writer,
    content_writer,
    digest,
    json_writer,
)
from simoffload.cli.sources import load
from simoffload.errors import InputError, Problem, WorkLimitError, shortened
from simoffload.limits import keep, limited, now_doing

if TYPE_CHECKING:
    from simoffload.planning.advise import Advice, Search, ServiceLevel
    from simoffload.planning.bandwidth import StorageCurve
    from simoffload.report.document import ReportDocument
    from simoffload.scenario import LoadedScenario

__all__ = ["advise"]


def advise(arguments: Namespace, console: Console) -> ExitCode:
    """Say what would help, at what price; and what to buy within a budget and a service level."""
    folder = OutputFolder.of(arguments)
    scenario = load(arguments.scenario, overrides=arguments.overrides, targets=arguments.on, console=console)
    if arguments.on:
        scenario = _retargeted(scenario, arguments.on)
    from simoffload.planning.advise import advise, parse_service, search_catalogue
    from simoffload.planning.costs import load_costs
    from simoffload.simulation import fit

    prices = load_costs(arguments.costs)
    kind = type(fit(scenario))
    service = [parse_service(text, kind) for text in arguments.slo]
    found = None
    with Progress(console) as progress:
        # The search first: what is wrong with its options is then said before anything takes long.
        if arguments.search or arguments.slo or arguments.platforms or arguments.budget is not None:
            found = search_catalogue(
                scenario,
                budget=arguments.budget,
                service=service,
                objective=arguments.objective,
                platforms=[_referred(scenario, one, "--platforms") for one in arguments.platforms or ()],
                method=arguments.method,
                trials=arguments.trials,
                costs=prices,
                progress=progress,
            )
        advice = advise(scenario, costs=prices, progress=progress)
        curve = _curve(advice, console, progress)
    reported = _reported(_Found(advice, curve, found, service), folder, arguments, console)
    console.answer(reported.text, reported.data)
    if reported.written:
        console.print_lines("wrote " + ", ".join(_shown(reported.written)))
    helps = advice.result.fits or bool(advice.helping)
    return ExitCode.OK if helps and (found is None or found.best is not None) else ExitCode.DOES_NOT_FIT


class _Found(NamedTuple):
    """What was asked for, and what came of it."""

    advice: Advice
    curve: StorageCurve | None
    search: Search | None
    service: Sequence[ServiceLevel]


class _AdviceReport(NamedTuple):
    text: str
    data: Any
    written: tuple[Path, ...]


@limited
def _reported(
    answer: _Found, folder: OutputFolder | None, arguments: Namespace, console: Console
) -> _AdviceReport:
    from simoffload.report.from_advice import advice_document
    from simoffload.report.terminal import terminal_text

    advice, curve, found, service = answer
    keep(advice.scenario.scenario.engine.limits)
    now_doing("reporting")
    document = advice_document(
        advice, curve, found, budget=arguments.budget, service=service, command=arguments.line
    )
    data = advice.to_dict() | {
        "storage": curve.to_dict() if curve else None,
        "search": found.to_dict() if found else None,
    }
    written: tuple[Path, ...] = ()
    if folder:
        recommended = _recommended(advice, found)
        data[RECOMMENDED] = {name: digest(content) for name, content in recommended.items()}
        written = folder.write(_files(document, data, recommended))
    return _AdviceReport(terminal_text(document, color=console.color, width=console.width), data, written)


def _curve(advice: Advice, console: Console, progress: Progress) -> StorageCurve | None:
    """What faster storage would bring; None where nothing is stored, or a simulation reaches its limit."""
    from simoffload.planning.bandwidth import storage_curve

    if not advice.result.fits:
        return None
    try:
        return storage_curve(advice.scenario, progress=progress)
    except WorkLimitError as error:
        console.note(f"without the rates of storage: {error}")
        return None


def _retargeted(scenario: LoadedScenario, targets: tuple[str, ...]) -> LoadedScenario:
    from simoffload.cli.sources import move

    if len(targets) > 1:
        text = f"one target at a time, not {len(targets)}; compare takes several"
        raise InputError((Problem("--on", None, None, shortened(",".join(targets)), text),))
    (retargeted,) = move(scenario, targets).values()
    _referred(scenario, targets[0].rpartition(":")[0], "--on")
    return retargeted


def _referred(scenario: LoadedScenario, platform: str, option: str) -> str:
    """A platform as recommended scenarios refer to it: of a path, from the folder of the scenario's file."""
    from simoffload.documents import resolved
    from simoffload.hardware.library import is_path

    root, path = resolved(scenario.document.root or Path()), resolved(platform)
    if not is_path(platform):
        return platform
    if not path.is_relative_to(root):
        text = "lies outside of the folder of the scenario, whose files recommended scenarios refer to"
        raise InputError((Problem(option, None, None, shortened(platform), text),))
    return path.relative_to(root).as_posix()


def _recommended(advice: Advice, found: Search | None) -> dict[str, bytes]:
    """Scenarios and settings by the names of their files, with the user's own files that they need."""
    from simoffload.planning.advise.files import recommended, user_files

    texts = {name: text.encode() for name, text in recommended(advice, found).items()}
    bought = [point.scenario for point in (*found.front, found.best) if point] if found else []
    own = {name: path.read_bytes() for name, path in user_files((advice.scenario, *bought)).items()}
    return {f"{RECOMMENDED}/{name}": content for name, content in (texts | own).items()}


def _files(document: ReportDocument, data: Any, recommended: Mapping[str, bytes]) -> dict[str, Writer]:
    from simoffload.report.html import write_html
    from simoffload.report.long_table import write_long_table
    from simoffload.report.markdown import write_markdown

    return {
        RESULT: json_writer(data),
        REPORT: partial(write_html, document),
        MARKDOWN: partial(write_markdown, document),
        DOCUMENT: json_writer(document.to_dict()),
        TABLE: partial(write_long_table, document),
        **{name: content_writer(content) for name, content in recommended.items()},
    }


def _shown(written: Sequence[Path]) -> list[str]:
    """Names of the files; the recommended ones as their folder."""
    from simoffload.report.formatting import plural

    top = written[0].parent
    plain = [str(path) for path in written if path.parent == top]
    inner = len(written) - len(plain)
    return [*plain, f"{top / RECOMMENDED}/ ({plural(inner, 'file')})"] if inner else plain
