"""``simoffload advise``: changes that help, and what to buy."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from simoffload.cli.console import Console, ExitCode, Waiting
from simoffload.cli.output import (
    RECOMMENDED,
    Answer,
    OutputFolder,
    Writer,
    content_writer,
    digest,
    report_files,
)
from simoffload.cli.sources import CommandChanges, load, naming_others
from simoffload.documents import Edit, ds_config_text, edited, yaml_text
from simoffload.errors import InputError, WorkLimitError, shortened
from simoffload.hardware import is_path
from simoffload.limits import keep, limited, now_doing, sharing, time_left
from simoffload.models import GGUF
from simoffload.planning.advise.evaluate import Advice
from simoffload.planning.advise.purchases import Search
from simoffload.planning.evaluator import Evaluated
from simoffload.scenario import LoadedScenario
from simoffload.strategies.ds_config.export import BATCH, FILE

if TYPE_CHECKING:
    from simoffload.cli.option_types import Budget
    from simoffload.planning.bandwidth import StorageCurve
    from simoffload.planning.costs import CostList
    from simoffload.planning.evaluator import Evaluator
    from simoffload.planning.service_levels import ServiceLevel
    from simoffload.results import SimulationResult

# -- recommended scenarios -------------------------------------------------------------------------

SIGNATURE = "# Written by simoffload advise."
"""First line of every scenario that is written."""
_SHIPPED = "hardware_profiles/"
_LONGEST_NAME = 200


def recommended(advice: Advice, search: Search | None = None) -> dict[str, str]:
    """Return the files to write, by name: every change that helps, the best purchase, and the front of a
    search.

    A scenario that refers to files of its own needs ``user_files`` next to it.
    """
    found: dict[str, str] = {}
    for rank, one in enumerate((*advice.helping, *advice.larger_batches), start=1):
        name = f"{rank:02d}-{one.change.key}".replace("+", "-and-")
        found[f"{name}.yaml"] = _scenario(advice.scenario, one, one.change.description)
        if one.change.sets_program:
            exports = one.result.provenance.exports
            found |= {f"{name}.{file}": ds_config_text(content) for file, content in exports.items()}
    if search is not None and search.best is not None:
        description = f"best by {search.objective.name}: {', '.join(search.best.description)}"
        found["best.yaml"] = _scenario(advice.scenario, search.best, description)
    for rank, point in enumerate(search.front if search else (), start=1):
        found[f"front-{rank:02d}.yaml"] = _scenario(advice.scenario, point, ", ".join(point.description))
    return found


def _scenario(base: LoadedScenario, found: Evaluated, description: str) -> str:
    """Return a scenario file of what was simulated, with all settings of DeepSpeed but the batch, which the
    workload sets."""
    name = f"{base.name}: {description}"[:_LONGEST_NAME]
    edits = [Edit.at("name", name), Edit.at("description", f"{base.name} with {description}.")]
    exported = found.result.provenance.exports.get(FILE)
    if exported is not None:
        config = {key: value for key, value in exported.items() if key not in BATCH}
        written = found.scenario.document.data["strategy"].get("ds_config") or {}
        config |= {key: written[key] for key in ("optimizer",) if key in written}  # one that a program passes
        edits.append(Edit.at("strategy.ds_config", config))
    return f"{SIGNATURE}\n{yaml_text(edited(found.scenario.document, edits).data)}"


def model_file(scenario: LoadedScenario) -> Path | None:
    """Return the GGUF file of a scenario's model, which is too large to be copied; None without one."""
    model = scenario.document.data.get("model")
    config = model.get("config") if isinstance(model, Mapping) else model
    if not isinstance(config, str) or not config.lower().endswith(GGUF):
        return None
    return (scenario.document.root or Path()) / config


def user_files(scenarios: Iterable[LoadedScenario]) -> dict[str, Path]:
    """Return the user's own files that scenarios of one folder need, by their path in it, GGUF files
    excepted."""
    found: dict[str, Path] = {}
    for scenario in scenarios:
        root = scenario.document.root
        if root is not None:
            own = (path for path in _own(scenario, root) if path.is_relative_to(root))
            found |= {path.relative_to(root).as_posix(): path for path in own}
    return found


def _own(scenario: LoadedScenario, root: Path) -> Iterator[Path]:
    for use in scenario.machine.profiles:
        if not use.path.startswith(_SHIPPED):
            yield Path(use.path)
    model = scenario.document.data.get("model")
    if isinstance(model, Mapping) and isinstance(model.get("config"), str):
        config = root / model["config"]
        if model_file(scenario) is None:
            yield config / "config.json" if config.is_dir() else config
    if is_path(scenario.scenario.platform):
        yield root / scenario.scenario.platform


# -- the command -----------------------------------------------------------------------------------

_BEFORE_REPORT = 0.9
"""Part of the time limit that simulations share; the report has the rest: our choice."""


def advise(arguments: Namespace, console: Console) -> ExitCode:
    """List changes that help with their costs, and what to buy within a budget and a service level."""
    folder = OutputFolder.of(arguments)
    scenario = load(
        arguments.scenario,
        CommandChanges.of(arguments, model=arguments.model),
        targets=arguments.on,
        console=console,
    )
    if arguments.on:
        scenario = _retargeted(scenario, arguments.on, arguments.overrides)
    from simoffload.planning.advise import advise, search_catalogue
    from simoffload.planning.costs import load_costs
    from simoffload.planning.evaluator import Evaluator
    from simoffload.planning.service_levels import parse_services
    from simoffload.simulation import fit

    evaluator = Evaluator(scenario)
    prices = load_costs(arguments.costs)
    with naming_others(scenario, ",".join(arguments.on or ())):
        capacity = fit(scenario)
    kind, (budget, extra) = type(capacity), _budgets(arguments.budget, scenario, capacity, prices)
    service = parse_services(arguments.slo, kind)
    platforms = [_referred(scenario, one, "--platforms") for one in arguments.platforms or ()]
    for name in platforms:  # an unknown one is refused before long work starts
        scenario.platform(Edit.at("platform", name))
    searches = arguments.search or arguments.slo or platforms or arguments.budget
    found = None
    timeout = scenario.scenario.engine.timeout
    with sharing(timeout and _BEFORE_REPORT * timeout), Waiting(console, partial=True):
        with sharing(time_left() / 2 if searches else None):  # the other half is for the search
            advice = advise(evaluator, objective=arguments.objective, costs=prices)
        if searches:
            found = search_catalogue(
                evaluator,
                budget=budget,
                extra=extra,
                service=service,
                objective=arguments.objective,
                platforms=platforms,
                costs=prices,
                advice=advice,
            )
        curve, missing = _curve(evaluator) if advice.result.fits else (None, "")
    if found is not None and found.stopped:
        looked = found.combinations - found.outcomes.get("were not looked at", 0)
        tried = f"{looked:,} of {found.combinations:,} combinations were looked at"
        console.note(f"the search is not complete, {tried}: {found.stopped}")
    if advice.stopped:
        console.note(f"the advice is not complete, {advice.extent}")
    if missing:
        console.note(f"storage bandwidth is left out: {missing}")
    with Waiting(console):
        answer = _answer(
            advice, curve, found, service, budget, folder=folder, arguments=arguments, console=console
        )
    answer.show(console)
    answer.list_files(console)
    return _status(advice, found)


def _budgets(
    given: Budget | None, scenario: LoadedScenario, capacity: SimulationResult, prices: CostList
) -> tuple[float | None, float | None]:
    """Return the budgets for a whole machine and for what is bought beyond the present one, of which at most
    one is given. Raises InputError for the second one where a price of the machine is unknown."""
    from simoffload.planning.costs import economics

    if given is None or not given.is_beyond:
        return given and given.amount, None
    now = economics(scenario, capacity, prices)
    if now.purchase is None:
        lacks = f"no price is known of {', '.join(now.bill.missing)}"
        text = f"{lacks}, so that nothing is known to be beyond the machine; write the amount for all of it, "
        raise InputError.at(f"+{given.amount:g}", f"{text}or give a price list (--costs)", path="--budget")
    return None, given.amount


def _status(advice: Advice, found: Search | None) -> ExitCode:
    """Return whether the answer names what fits; where a limit came before it did, there is no answer."""
    helps = advice.result.fits or bool(advice.helping)
    bought = found is None or found.best is not None
    if helps and bought:
        return ExitCode.OK
    unknown = (not helps and advice.stopped) or (not bought and found is not None and found.stopped)
    return ExitCode.FAILED if unknown else ExitCode.DOES_NOT_FIT


@limited
def _answer(
    advice: Advice,
    curve: StorageCurve | None,
    found: Search | None,
    service: Sequence[ServiceLevel],
    budget: float | None,
    *,
    folder: OutputFolder | None,
    arguments: Namespace,
    console: Console,
) -> Answer:
    from simoffload.report.from_result import advice_document

    keep(advice.scenario.scenario.engine.limits)
    now_doing("reporting")
    document = advice_document(advice, curve, found, budget=budget, service=service, command=arguments.line)
    data = advice.to_dict() | {
        "storage": curve.to_dict() if curve else None,
        "search": found.to_dict() if found else None,
    }
    files: dict[str, Writer] = {}
    if folder:
        recommended = _recommended(advice, found)
        data[RECOMMENDED] = {name: digest(content) for name, content in recommended.items()}
        files = report_files(document, data)
        files |= {name: content_writer(content) for name, content in recommended.items()}
        if (model := model_file(advice.scenario)) is not None:
            where = arguments.output_dir / RECOMMENDED
            text = f"the scenarios in {where} need {model.name} in that folder, which is not copied"
            console.warn(
                [f"{text}; link it, or all of its parts: ln {quote(str(model))} {quote(str(where))}"]
            )
    return Answer.of(document, data, folder, files, console)


def _curve(evaluator: Evaluator) -> tuple[StorageCurve | None, str]:
    """Return what faster storage would gain, None where none is used, and the limit that was reached."""
    from simoffload.planning.bandwidth import storage_curve

    try:
        return storage_curve(evaluator), ""
    except WorkLimitError as error:
        return None, str(error)


def _retargeted(scenario: LoadedScenario, targets: Sequence[str], overrides: Sequence[str]) -> LoadedScenario:
    from simoffload.cli.sources import move

    if len(targets) > 1:
        text = f"only one target is possible, not {len(targets)}; compare takes several"
        raise InputError.at(shortened(",".join(targets)), text, path="--on")
    (retargeted,) = move(scenario, targets, overrides=overrides).values()
    _referred(scenario, targets[0].rpartition(":")[0], "--on")
    return retargeted


def _referred(scenario: LoadedScenario, platform: str, option: str) -> str:
    """Return a platform as recommended scenarios refer to it; a path is relative to the scenario's folder."""
    from simoffload.documents import resolved
    from simoffload.hardware import is_path

    root, path = resolved(scenario.document.root or Path()), resolved(platform)
    if not is_path(platform):
        return platform
    if not path.is_relative_to(root):
        text = (
            "must be inside the folder of the scenario, because recommended scenarios refer to it from there"
        )
        raise InputError.at(shortened(platform), text, path=option)
    return path.relative_to(root).as_posix()


def _recommended(advice: Advice, found: Search | None) -> dict[str, bytes]:
    """Return recommended scenarios and settings by file name, with the user's own files that they need."""
    texts = {name: text.encode() for name, text in recommended(advice, found).items()}
    bought = [point.scenario for point in (*found.front, found.best) if point] if found else []
    own = {name: path.read_bytes() for name, path in user_files((advice.scenario, *bought)).items()}
    return {f"{RECOMMENDED}/{name}": content for name, content in (texts | own).items()}
