"""``simoffload advise``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simoffload.cli.console import Console, Progress
from simoffload.cli.exits import Exit
from simoffload.cli.folder import (
    MARKDOWN,
    RECOMMENDED,
    REPORT,
    RESULT,
    TABLE,
    OutputFolder,
    Writer,
    copier,
    json_writer,
    text_writer,
)
from simoffload.cli.sources import load
from simoffload.errors import InputError, Problem

if TYPE_CHECKING:
    from simoffload.planning.advise import Advice, Search
    from simoffload.report.chart import Figure
    from simoffload.report.story import Story
    from simoffload.scenario import LoadedScenario

__all__ = ["advise"]


def advise(arguments: Namespace, console: Console) -> Exit:
    """Say what would help, at what price; and what to buy within a budget and a service level."""
    folder = OutputFolder.of(arguments)
    scenario = load(arguments.scenario, overrides=arguments.overrides, targets=arguments.on, console=console)
    if arguments.on:
        scenario = _moved(scenario, arguments.on)
    from simoffload.planning.advise import advise, parse_service, search_catalogue
    from simoffload.planning.bandwidth import storage_curve
    from simoffload.planning.costs import load_costs
    from simoffload.simulation import fit

    prices = load_costs(arguments.costs)
    service = [parse_service(text, type(fit(scenario))) for text in arguments.slo]
    found = None
    with Progress(console) as progress:
        advice = advise(scenario, costs=prices, progress=progress)
        curve = storage_curve(scenario) if advice.result.fits else None
        if arguments.search or arguments.slo or arguments.platforms or arguments.budget is not None:
            found = search_catalogue(
                scenario,
                budget=arguments.budget,
                service=service,
                objective=arguments.objective,
                platforms=arguments.platforms or (),
                method=arguments.method,
                trials=arguments.trials,
                costs=prices,
                progress=progress,
            )
    from simoffload.report.advice_page import advice_figures, advice_story, advice_text
    from simoffload.report.sections.advice import advised, searched

    more = advised(advice, curve)
    if found is not None:
        more = (*searched(found, budget=arguments.budget, service=service), *more)
    story = advice_story(advice, more, command=arguments.line)
    data = advice.to_dict() | {
        "storage": curve.to_dict() if curve else None,
        "search": found.to_dict() if found else None,
    }
    written: tuple[Path, ...] = ()
    if folder:
        figures = advice_figures(advice, curve, found)
        written = folder.write(_files(advice, found, story, figures, data))
    console.answer(advice_text(story, color=console.color, width=console.width), data)
    if written:
        console.say("wrote " + ", ".join(map(str, _shown(written))))
    helps = advice.result.fits or bool(advice.helping)
    return Exit.OK if helps and (found is None or found.best is not None) else Exit.DOES_NOT_FIT


def _moved(scenario: LoadedScenario, targets: tuple[str, ...]) -> LoadedScenario:
    from simoffload.cli.sources import move

    if len(targets) > 1:
        text = f"one target at a time, not {len(targets)}; compare takes several"
        raise InputError((Problem("--on", None, None, ",".join(targets), text),))
    (only,) = move(scenario, targets).values()
    return only


def _files(
    advice: Advice, found: Search | None, story: Story, figures: Mapping[str, tuple[Figure, str]], data: Any
) -> dict[str, Writer]:
    from simoffload.planning.advise.files import recommended, user_files
    from simoffload.report.long_table import write_long_table
    from simoffload.report.markdown import write_markdown
    from simoffload.report.page import write_advice

    texts = {f"{RECOMMENDED}/{name}": text_writer(text) for name, text in recommended(advice, found).items()}
    copies = {f"{RECOMMENDED}/{name}": copier(path) for name, path in user_files(advice.scenario).items()}
    return {
        RESULT: json_writer(data),
        REPORT: partial(write_advice, story, advice.result, figures=figures),
        MARKDOWN: partial(write_markdown, story),
        TABLE: partial(write_long_table, story),
        **texts,
        **copies,
    }


def _shown(written: Sequence[Path]) -> list[str]:
    """Names of the files; the recommended ones as their folder."""
    inner = [path for path in written if path.parent.name == RECOMMENDED]
    plain = [str(path) for path in written if path not in inner]
    return [*plain, f"{inner[0].parent}/ ({len(inner)} files)"] if inner else plain
