"""``simoffload fit``, ``advise`` and ``reach``: what is needed, what helps, and which values are enough."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

from simoffload.cli.answer import RECOMMENDED, Question, Reply, Writer, answering, content_writer, digest
from simoffload.cli.console import Console, ExitCode
from simoffload.cli.sources import CommandChanges, load, naming_others, refusal, scenario_set
from simoffload.documents import Edit, ds_config_text, edited, yaml_text
from simoffload.errors import InputError, WorkLimitError, shortened
from simoffload.hardware import is_path
from simoffload.limits import keep, limited, sharing, time_left
from simoffload.models import GGUF
from simoffload.progress import steps
from simoffload.scenario import LoadedScenario
from simoffload.strategies.ds_config import BATCH, FILE

if TYPE_CHECKING:
    from simoffload.planning.advise import Advice
    from simoffload.planning.answers import Answer
    from simoffload.planning.bandwidth import StorageCurve
    from simoffload.planning.compare import Comparison
    from simoffload.planning.costs import CostList
    from simoffload.planning.evaluator import Evaluation, Evaluator
    from simoffload.planning.reach import BestBatch, Reach
    from simoffload.planning.service_levels import ServiceLevel
    from simoffload.planning.sizing import Largest, MachinesNeeded
    from simoffload.report.document import ReportDocument
    from simoffload.results import SimulationResult

# -- ``simoffload fit`` ----------------------------------------------------------------------------
# What each tier must hold, machines needed, the largest work.


_SCHEMA = "simoffload/fit/1"


@answering
def fit(arguments: Namespace, console: Console) -> Question[Any]:
    """Say what each tier must hold, how many machines are needed, or how large the work can be."""
    if arguments.slo and not arguments.best_batch:
        raise refusal("fit", "--slo needs --best-batch; reach finds other numbers that keep service levels")
    targets = None if arguments.machines else arguments.on
    found = scenario_set(
        arguments.scenarios or [arguments.model],
        targets,
        CommandChanges.of(arguments, model=arguments.model),
        command="fit",
        console=console,
    )
    first = next(iter(found.values()))
    limits = first.scenario.engine.limits
    if arguments.machines:
        return Question(partial(_each, found, _machines(arguments.on)), _reply_machines, limits)
    if arguments.largest:
        return Question(partial(_each, found, _largest), _reply_largest, limits)
    if arguments.best_batch:
        return Question(partial(_each, found, partial(_best_batch, arguments.slo)), _reply_batches, limits)
    if len(found) > 1 or targets:
        from simoffload.planning.compare import compare_fit

        return Question(partial(compare_fit, found), partial(_compared, arguments.line), limits)
    tell = partial(_reply_one, arguments.line, console)
    return Question(partial(_one, first), tell, limits, limits.timeout, shared=True)


def _one(scenario: LoadedScenario) -> tuple[Answer, str]:
    """Return the answer with what is told beside the memory, and the limit that was reached instead."""
    from simoffload.planning.answers import fit

    answer = fit(scenario)
    try:
        _ = answer.caches, answer.remedies  # worked out here, and kept for the report
    except WorkLimitError as error:
        return replace(answer, scenario=None), str(error)
    return answer, ""


def _reply_one(command: str, console: Console, found: tuple[Answer, str]) -> Reply:
    from simoffload.report.from_result import result_document

    answer, missing = found
    if missing:
        console.note(f"other caches and changes that make it fit are left out: {missing}")
    return Reply(result_document(answer, command=command), answer.to_dict, ExitCode.of(answer.fits))


def _compared(command: str, comparison: Comparison) -> Reply:
    from simoffload.report.from_comparison import comparison_document

    document = comparison_document(tuple(comparison.results.values()), command=command)
    return Reply(document, comparison.to_dict, ExitCode.of(comparison.fits))


class _Each(NamedTuple):
    """Answers for several scenarios, and why others have none; the limits of each apply to it alone."""

    answers: list[Any]
    stopped: dict[str, str]

    @property
    def reasons(self) -> list[str]:
        """Reasons why scenarios have no answer."""
        return [f"{label}: {why}" for label, why in self.stopped.items()]

    def reply(self, name: str, document: ReportDocument, fits: object) -> Reply:
        """Return the answers under ``name``, with what was stopped."""
        rows = [one.to_dict() for one in self.answers]
        data = {"schema": _SCHEMA, name: rows, "stopped": self.stopped}
        return Reply(document, lambda: data, ExitCode.of(fits))


def _each(found: dict[str, LoadedScenario], question: Callable[[LoadedScenario], Any]) -> _Each:
    """Ask a question about each scenario. Raises InputError or WorkLimitError if none has an answer."""
    answers: list[Any] = []
    stopped: dict[str, str] = {}
    for label in steps(found, str):
        try:
            answers.append(question(found[label]))
        except (InputError, WorkLimitError) as error:
            if len(stopped) == len(found) - 1:
                raise
            stopped[label] = (
                "; ".join(one.message for one in error.problems)
                if isinstance(error, InputError)
                else str(error)
            )
    return _Each(answers, stopped)


def _machines(tiers: tuple[str, ...] | None) -> Callable[[LoadedScenario], MachinesNeeded]:
    """Return what counts the machines that a scenario needs; ``tiers`` are those to offload to."""
    from simoffload.planning.sizing import machines_needed

    @limited
    def needed(scenario: LoadedScenario) -> MachinesNeeded:
        keep(scenario.scenario.engine.limits)
        try:
            return machines_needed(scenario, tiers=tiers, timed=True)
        except InputError as error:
            named = (one if one.path else one._replace(path="--on", key="") for one in error.problems)
            raise InputError(named) from None

    return needed


def _reply_machines(each: _Each) -> Reply:
    from simoffload.report.from_fit import machines_document

    fits = any(count.machines for one in each.answers for count in one.counts)
    return each.reply("machines", machines_document(each.answers, stopped=each.reasons), fits)


@limited
def _largest(scenario: LoadedScenario) -> Largest:
    from simoffload.planning.sizing import largest

    keep(scenario.scenario.engine.limits)
    return largest(scenario)


def _reply_largest(each: _Each) -> Reply:
    from simoffload.report.from_fit import largest_document

    fits = any(limit.most for one in each.answers for limit in (one.batch, one.context, one.layers))
    return each.reply("largest", largest_document(each.answers, stopped=each.reasons), fits)


def _best_batch(slo: Sequence[str], scenario: LoadedScenario) -> BestBatch:
    from simoffload.planning.reach import best_batch

    # Its parts are limited one by one, so that what they found is kept.
    with sharing(scenario.scenario.engine.timeout):
        return best_batch(scenario, slo=slo)


def _reply_batches(each: _Each) -> Reply:
    from simoffload.report.from_fit import best_batch_document

    partly = [
        f"{one.name}, {one.target}: not every batch was tried: {one.stopped}"
        for one in each.answers
        if one.stopped
    ]
    document = best_batch_document(each.answers, stopped=[*each.reasons, *partly])
    return each.reply("best_batch", document, any(one.best is not None for one in each.answers))


# -- ``simoffload advise`` -------------------------------------------------------------------------
# Changes that help.

SIGNATURE = "# Written by simoffload advise."
"""First line of every scenario that is written."""
_SHIPPED = "hardware_profiles/"
_LONGEST_NAME = 200


class FoundBeside(NamedTuple):
    """What an extension looked for beside changes, as advice tells it."""

    document: ReportDocument
    """Its sentence and its sections, which come first."""
    data: dict[str, Any]
    scenarios: Mapping[str, tuple[Evaluation, str]]
    """Scenarios to write with a few words on each, by name."""
    answered: bool
    stopped: str
    """The limit that ended it, in a few words; "" if none did."""
    service: Sequence[ServiceLevel]
    """The limits that were asked for."""


SearchBeside = Callable[["Evaluator", "Advice"], FoundBeside]
"""A search beside changes, with the time that they leave."""
PrepareSearch = Callable[[LoadedScenario, "SimulationResult", "CostList"], SearchBeside]
"""Called before long work with the memory of the scenario; raises InputError for what cannot be asked of
it."""


def recommended(advice: Advice, looked: FoundBeside | None = None) -> dict[str, str]:
    """Return the files to write, by name: every change that helps, and what was found beside them.

    A scenario that refers to files of its own needs ``user_files`` next to it.
    """
    found: dict[str, str] = {}
    for rank, one in enumerate((*advice.helping, *advice.larger_batches), start=1):
        name = f"{rank:02d}-{one.change.key}".replace("+", "-and-")
        found[f"{name}.yaml"] = _scenario(advice.scenario, one, one.change.description)
        if one.change.sets_program:
            exports = one.result.provenance.exports
            found |= {f"{name}.{file}": ds_config_text(content) for file, content in exports.items()}
    for name, (point, description) in (looked.scenarios if looked else {}).items():
        found[f"{name}.yaml"] = _scenario(advice.scenario, point, description)
    return found


def _scenario(base: LoadedScenario, found: Evaluation, description: str) -> str:
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


class _Advised(NamedTuple):
    advice: Advice
    looked: FoundBeside | None
    curve: StorageCurve | None
    missing: str
    """The limit that kept the curve from being drawn."""


def ask_advice(
    arguments: Namespace, console: Console, beside: PrepareSearch | None = None
) -> Question[_Advised]:
    """Ask for changes that help with their costs, and for what is found ``beside`` them."""
    scenario = load(
        arguments.scenario,
        CommandChanges.of(arguments, model=arguments.model),
        targets=arguments.on,
        console=console,
    )
    if arguments.on:
        scenario = _retargeted(scenario, arguments.on, arguments.overrides)
    from simoffload.planning.advise import advise
    from simoffload.planning.costs import load_costs
    from simoffload.planning.evaluator import Evaluator
    from simoffload.simulation import fit

    evaluator = Evaluator(scenario)
    prices = load_costs(arguments.costs)
    with naming_others(scenario, ",".join(arguments.on or ())):
        capacity = fit(scenario)
    look = beside(scenario, capacity, prices) if beside else None

    def ask() -> _Advised:
        with sharing(time_left() / 2 if look else None):  # the other half is for what is looked for
            advice = advise(evaluator, objective=arguments.objective, costs=prices)
        looked = look(evaluator, advice) if look else None
        return _Advised(advice, looked, *(_curve(evaluator) if advice.result.fits else (None, "")))

    tell = partial(_reply_advice, arguments, console)
    limits = scenario.scenario.engine.limits
    return Question(ask, tell, limits, limits.timeout and _BEFORE_REPORT * limits.timeout)


advise = answering(ask_advice)
"""List changes that help with their costs."""


def _status(advice: Advice, looked: FoundBeside | None) -> ExitCode:
    """Return whether the answer names what fits; where a limit came before it did, there is no answer."""
    helps = advice.result.fits or bool(advice.helping)
    answered = looked is None or looked.answered
    if helps and answered:
        return ExitCode.OK
    unknown = (not helps and advice.stopped) or (looked is not None and not answered and looked.stopped)
    return ExitCode.FAILED if unknown else ExitCode.DOES_NOT_FIT


def _reply_advice(arguments: Namespace, console: Console, asked: _Advised) -> Reply:
    from simoffload.report.from_result import advice_document

    advice, looked, curve, missing = asked
    if looked is not None and looked.stopped:
        console.note(f"the search is not complete, {looked.stopped}")
    if advice.stopped:
        console.note(f"the advice is not complete, {advice.extent}")
    if missing:
        console.note(f"storage bandwidth is left out: {missing}")
    first, service = (looked.document, looked.service) if looked else (None, ())
    document = advice_document(advice, curve, beside=first, service=service, command=arguments.line)
    data = advice.to_dict() | {
        "storage": curve.to_dict() if curve else None,
        "search": looked.data if looked else None,
    }
    files: dict[str, Writer] = {}
    if arguments.output_dir:
        recommended = _recommended(advice, looked)
        data[RECOMMENDED] = {name: digest(content) for name, content in recommended.items()}
        files = {name: content_writer(content) for name, content in recommended.items()}
        if (model := model_file(advice.scenario)) is not None:
            where = arguments.output_dir / RECOMMENDED
            text = f"the scenarios in {where} need {model.name} in that folder, which is not copied"
            console.warn(
                [f"{text}; link it, or all of its parts: ln {quote(str(model))} {quote(str(where))}"]
            )
    return Reply(document, lambda: data, _status(advice, looked), files=files)


def _curve(evaluator: Evaluator) -> tuple[StorageCurve | None, str]:
    """Return what faster storage would gain, None where none is used, and the limit that was reached."""
    from simoffload.planning.bandwidth import storage_curve

    try:
        return storage_curve(evaluator), ""
    except WorkLimitError as error:
        return None, str(error)


def _retargeted(scenario: LoadedScenario, targets: Sequence[str], overrides: Sequence[str]) -> LoadedScenario:
    from simoffload.cli.sources import move_once

    if len(targets) > 1:
        text = f"only one target is possible, not {len(targets)}; compare takes several"
        raise InputError.at(shortened(",".join(targets)), text, path="--on")
    retargeted = move_once(scenario, targets[0], overrides=overrides)
    referred_platform(scenario, targets[0].rpartition(":")[0], "--on")
    return retargeted


def referred_platform(scenario: LoadedScenario, platform: str, option: str) -> str:
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


def _recommended(advice: Advice, looked: FoundBeside | None) -> dict[str, bytes]:
    """Return recommended scenarios and settings by file name, with the user's own files that they need."""
    texts = {name: text.encode() for name, text in recommended(advice, looked).items()}
    found = [point.scenario for point, _ in looked.scenarios.values()] if looked else []
    own = {name: path.read_bytes() for name, path in user_files((advice.scenario, *found)).items()}
    return {f"{RECOMMENDED}/{name}": content for name, content in (texts | own).items()}


# -- ``simoffload reach`` --------------------------------------------------------------------------
# Which values of a number keep the service levels.


@answering
def find_values(arguments: Namespace, console: Console) -> Question[Reach]:
    """Find the values of one number with which a scenario keeps service levels."""
    _refuse_both(arguments)
    scenario = load(arguments.scenario, CommandChanges.of(arguments, model=arguments.model), console=console)
    from simoffload.planning.reach import reach

    ask = partial(reach, scenario, slo=arguments.slo, by=arguments.by, within=arguments.within)
    limits = scenario.scenario.engine.limits
    return Question(ask, partial(_reply_values, arguments), limits, limits.timeout)


def _refuse_both(arguments: Namespace) -> None:
    """Raise InputError where ``--set`` sets the number that ``--by`` varies, or something within it."""
    from simoffload.documents import parse_path, split_assignment

    def keys(path: str) -> str:
        section, *inner = parse_path(path)
        if section == "profiles" and inner:  # by kind/id or id, whose dots need no quotes in --by
            inner[0] = str(inner[0]).rpartition("/")[2]
        return ".".join(map(str, (section, *inner, "")))

    try:
        varied = keys(arguments.by)
    except InputError:
        return  # which is told with what can be varied
    for assignment in arguments.overrides:
        path = split_assignment(assignment)[0]
        if keys(path).startswith(varied):
            raise InputError.at(arguments.by, f"is also set by --set {path}; give one of them", path="--by")


def _reply_values(arguments: Namespace, found: Reach) -> Reply:
    from simoffload.report.from_reach import reach_document

    document = reach_document(found, run=_run_line(found, arguments), command=arguments.line)
    code = ExitCode.FAILED if found.stopped and not found.reached else ExitCode.of(found.reached)
    note = f"not every value was tried: {found.stopped}" if found.stopped else ""
    return Reply(document, found.to_dict, code, note=note)


def _run_line(found: Reach, arguments: Namespace) -> str:
    """Return the command that simulates the scenario with the value that was found."""
    changes = CommandChanges.of(arguments, model=arguments.model)
    value = (word for one in (found.value.options if found.value else ()) for word in ("--set", one))
    scenario = [arguments.scenario] if arguments.scenario else []
    return shlex.join(["simoffload", "run", *scenario, *changes.options, *value])
