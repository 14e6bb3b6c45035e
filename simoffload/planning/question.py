"""The scenario of a question: a model, a machine and work, under the best of the programs that people use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from simoffload.documents import (
    Edit,
    edited,
    either,
    parse_path,
    plain_document,
    resolved,
    split_assignment,
    suggest,
)
from simoffload.errors import InputError, shortened
from simoffload.extending import missing_note
from simoffload.hardware import Platform, ProfileSummary
from simoffload.models import model_file, model_label, named_in_text, states_form
from simoffload.scenario import (
    LoadedScenario,
    MachineParts,
    ScenarioSource,
    names_model,
    read_source,
    resolve,
)
from simoffload.scenario import default_scenario as of_model
from simoffload.strategies import BEST, canonical_kind, kinds, strategy_for
from simoffload.workload import Checkpointing, Inference

# -- the scenario of a question --------------------------------------------------------------------


Hardware = str | Path | Platform | ProfileSummary
"""A device or a machine: its id, the path of its file, or what was loaded or listed."""
Overrides = str | Sequence[str] | Mapping[str, Any]
"""Values that replace others: ``{"workload.batch_size": 8}``, or ``["workload.batch_size=8"]``."""


class MachineOptions(TypedDict, total=False):
    """MachineOptions are what a question names beside a model and a platform, as commands take it."""

    gpu: Hardware
    """Another GPU; of a model that is named alone, the machine is the smallest shipped one with it."""
    gpus: int
    """Number of GPUs to use; 0: the CPU alone."""
    memory: str
    """Host memory as its modules are sold, such as "64GB"."""
    drive: Hardware
    """A drive, an array or a server as storage."""
    program: str
    """The program, such as "vllm"; "best": the fastest of those that people use."""
    on: str
    """The tier that holds the weights, or "part=tier"."""
    context: int
    """Tokens of a sequence for which memory must have room."""
    overrides: Overrides
    """Values that replace any of these."""


class QuestionOptions(MachineOptions, total=False):
    """QuestionOptions are what a function takes beside a scenario or the name of a model."""

    platform: Hardware | None
    """The machine, by the platform that describes it."""


def opened(source: ScenarioSource, **options: Unpack[QuestionOptions]) -> LoadedScenario:
    """Return a scenario, or that of a question about a model, with what is named beside it, before a program
    is chosen. Raises InputError."""
    if isinstance(source, str | Path) and names_model(str(source)):
        return _about(str(source), **options)
    platform, parts, overrides = _named(options)
    machine = [] if platform is None else [Edit(("platform",), platform).assignment]
    found, program = read_source(source, overrides=[*machine, *overrides]), options.get("program")
    found = with_parts(found if program is None else with_program(found, program), parts)
    check_context(found, overrides)
    return _on(found, options.get("on"))


def _about(model: str, **options: Unpack[QuestionOptions]) -> LoadedScenario:
    platform, parts, overrides = _named(options)
    if platform is None and parts.gpu is None:
        platform = (options.get("on") or "").rpartition(":")[0] or None
    found = asked(model, platform, parts=parts, program=options.get("program"), overrides=overrides)
    check_context(found, overrides)
    return _on(found, options.get("on"))


def _on(scenario: LoadedScenario, place: str | None) -> LoadedScenario:
    """Return a scenario with its weights, or a part, on a tier, also of another platform."""
    if place is None:
        return scenario
    from simoffload.planning.targets import on_targets, one_target

    targets = one_target(place)
    return next(iter(on_targets(scenario, targets).values())) if ":" in place else scenario.on(place)


def _named(options: QuestionOptions) -> tuple[str | None, MachineParts, list[str]]:
    """Return the platform, the parts and the overrides among options."""
    gpu, drive = _id(options.get("gpu")), _id(options.get("drive"))
    overrides = assignments(options.get("overrides") or ())
    context, gpus = options.get("context"), options.get("gpus")
    overrides += [] if context is None else [f"workload.context={context}"]
    return (
        _id(options.get("platform")),
        MachineParts(gpu, None if gpus is None else int(gpus), options.get("memory"), drive),
        overrides,
    )


def _id(named: Hardware | None) -> str | None:
    """Return the id or the path that names a device or a machine."""
    if isinstance(named, Platform):
        (use,) = (one for one in named.profiles if one.kind == "platform")
        return use.id if use.path.startswith("hardware_profiles/") else use.path
    return named.id if isinstance(named, ProfileSummary) else None if named is None else str(named)


def assignments(overrides: Overrides) -> list[str]:
    """Return overrides as ``--set`` takes them. Raises InputError for a value that no file can hold."""
    if not isinstance(overrides, Mapping):
        return [overrides] if isinstance(overrides, str) else list(overrides)
    plain = plain_document(overrides, name="overrides").data
    return [Edit(parse_path(path), value).assignment for path, value in plain.items()]


def check_context(scenario: LoadedScenario, overrides: Sequence[str]) -> None:
    """Raise InputError for a room that ``overrides`` ask for and that prompt and output exceed."""
    work = scenario.scenario.workload
    stated = any(split_assignment(one)[0] == "workload.context" for one in overrides)
    if stated and isinstance(work, Inference) and work.no_room:
        raise InputError.at("", work.no_room, path="--context")


def question(
    model: str | Path, platform: Hardware | None = None, **options: Unpack[MachineOptions]
) -> LoadedScenario:
    """Return the scenario of a question: a model, by name or file, on a machine, under the best program.

    The machine is a ``platform``, or the first shipped one with ``gpus`` of a ``gpu``, with another size of
    its host ``memory`` and a ``drive``. ``program`` names the program, such as "vllm"; by default it is the
    fastest of those that people use for the model, the machine and the work. ``on`` names the tier that
    holds the weights. ``overrides`` (``a.b=value``) replace any of these. Raises InputError for an unknown
    name, for a machine that is not named, and for what the program that was named refuses.
    """
    return chosen(_about(str(model), platform=platform, **options))


def asked(
    model: str,
    platform: str | None,
    *,
    parts: MachineParts,
    program: str | None = None,
    overrides: Sequence[str] = (),
    placed: bool = True,
) -> LoadedScenario:
    """Return the scenario of a question before a program is chosen; the states use a drive that is named.

    Without a platform the GPU chooses the machine, which has only one if that is enough (``of_card``).
    A program that is named, also by ``strategy.kind`` among the overrides, is the only one to choose from.
    """
    stated = dict(map(split_assignment, overrides))
    if program is not None and (both := {"strategy", "strategy.kind"} & stated.keys()):
        text = f"contradicts --set {both.pop()}, which names a program, too; leave out one of them"
        raise InputError.at(program, text, path="--program")
    if program is not None:
        program = checked_program(program, str(stated.get("workload.kind", "inference")))
        overrides = [one for one in overrides if split_assignment(one)[0] != "strategy"]
    named = program or canonical_kind(str(stated.get("strategy.kind", BEST)))
    if program is not None or ("strategy" not in stated and named in kinds()):
        kept = [one for one in overrides if split_assignment(one)[0] != "strategy.kind"]
        among = [] if named == BEST else [f'strategy.among=["{named}"]']
        overrides = [f"strategy.kind={BEST}", *among, *kept]
    of_card = platform is None and "platform" not in stated and parts.gpu is not None
    if of_card:
        platform = parts.platforms()[0]
    gpus = None if parts.is_composed(platform) else parts.gpus
    scenario = of_model(model, platform, overrides=overrides, gpus=gpus, placed=placed)
    return with_parts(scenario, parts.of_card(scenario) if of_card else parts)


def checked_program(program: str, work: str) -> str:
    """Return the kind that the name of a program means. Raises InputError for a name that is none, or none of
    a program for a kind of work."""
    kind = canonical_kind(program)
    if kind not in kinds():
        near = suggest(program, [one for one in kinds() if one[:2] == program[:2].lower()])
        text = f"is no program that is modelled{near}; it is one of {', '.join(strategy_for(work))}"
        text += f"; {missing}" if (missing := missing_note()) else ""
        raise InputError.at(shortened(program), text, path="--program")
    if kind not in strategy_for(work):
        text = f"is not for a workload of {work}; use {either(strategy_for(work))}"
        raise InputError.at(program, text, path="--program")
    return kind


def with_program(scenario: LoadedScenario, program: str) -> LoadedScenario:
    """Return the same work on as many GPUs under another program, or "best": with its key-value cache and
    none of the other settings of its strategy. Raises InputError."""
    now, work = scenario.scenario.strategy, scenario.scenario.workload
    program = checked_program(program, work.kind)
    among = [] if program == BEST else [program]
    if is_choice(scenario):
        return scenario.edited(Edit.at("strategy.among", among))
    if isinstance(work, Checkpointing):
        return scenario
    section: dict[str, Any] = {"kind": BEST, "among": among, "ranks": now.gpus}
    section |= {"sequences": work.batch_size * now.replicas}
    cache = scenario.document.data["strategy"].get("kv_cache")
    section |= {} if cache is None else {"kv_cache": cache}
    return scenario.edited(Edit(("strategy",), section))


def with_parts(scenario: LoadedScenario, parts: MachineParts) -> LoadedScenario:
    """Return a scenario on a machine with other parts, of which a program that is yet to be chosen uses the
    drive. Raises InputError."""
    edits = parts.edits(scenario)
    if not edits:
        return scenario
    if (tier := tier_of_drive(edits)) is not None and is_choice(scenario):
        edits = (*edits, Edit.at("strategy.uses", tier))
    found = scenario.edited(*edits)
    return replace(found, remarks=(*found.remarks, *parts.assumed(scenario)))


_LONGEST_NAME = 200  # [characters] of the name of a scenario
_OF_ANY_MODEL = ("dtype", "attention", "quantization")
"""Keys of the section ``model`` that hold for any model."""


def with_model(
    scenario: LoadedScenario, model: str, *, placed: bool = True, option: str = "--models"
) -> LoadedScenario:
    """Return the scenario with another model, by name or file. Raises InputError for one that does not
    exist."""
    section = scenario.document.data["model"]
    kept = {key: section[key] for key in _OF_ANY_MODEL if key in section} if isinstance(section, dict) else {}
    model = model_file(model) or model
    if states_form(model):
        kept.pop("quantization", None)
    name = f"{scenario.name}, {model_label(model)}"[:_LONGEST_NAME]
    keys = named_in_text(model)
    if file := keys.get("config"):  # a path on the command line begins in the working directory
        keys["config"] = _from_folder(file, scenario.document.root)
        scenario.cache.allow_model(keys["config"])
    written = keys | kept if len(keys) + len(kept) > 1 else keys.popitem()[1]  # a name or a file
    edits = (Edit(("name",), name), Edit(("model",), written))
    try:
        found = resolve(edited(scenario.document, edits), cache=scenario.cache, placed=placed)
    except InputError as error:
        raise InputError(
            one._replace(path=option, line=None, column=None) for one in error.problems
        ) from None
    return replace(found, remarks=scenario.remarks)


def _from_folder(path: str, folder: Path | None) -> str:
    """Return a path of the working directory as one of the folder of a scenario, if it is in there."""
    absolute, root = resolved(path), resolved(folder or Path())
    return str(absolute.relative_to(root) if absolute.is_relative_to(root) else absolute)


def tier_of_drive(edits: Sequence[Edit]) -> str | None:
    """Return the tier that edits make of a drive that was named; None where they make none."""
    return next((str(path[2]) for path, _ in edits if path[:2] == ("equipment", "tiers")), None)


def load_scenario(source: ScenarioSource, *, overrides: Overrides = ()) -> LoadedScenario:
    """Read a scenario file, a shipped scenario by name, or a mapping with what a file has; apply overrides,
    resolve it, and choose its program if it states none.

    Raises InputError with all problems, each with its file, line, key and what is valid.
    """
    return chosen(read_source(source, overrides=assignments(overrides)))


def loaded(source: ScenarioSource, **options: Unpack[QuestionOptions]) -> LoadedScenario:
    """Return a scenario, which is loaded first unless it was, with what is named beside it, under a program
    that is chosen where it states none.

    Raises InputError for what is wrong.
    """
    return chosen(opened(source, **options))


# -- the choice of a program -----------------------------------------------------------------------


def is_choice(scenario: LoadedScenario) -> bool:
    """Return whether the program of a scenario is yet to be chosen."""
    return scenario.scenario.strategy.kind == BEST


def chosen(scenario: LoadedScenario) -> LoadedScenario:
    """Return a scenario under the fastest of the programs from which it chooses, each in its best form;
    itself if it states its program.

    Programs are compared by the time per token of the whole request, of as many sequences in all:
    ``batch_size`` on each GPU. Where none of them fits, the first one is left, whose memory then says what
    is lacking. Raises InputError for settings that no program has together.
    """
    if not is_choice(scenario) or isinstance(scenario.scenario.workload, Checkpointing):
        return scenario  # planning says that checkpoints have a strategy of their own
    from simoffload.planning.program_choice import choose

    return choose(scenario)


def chosen_once(scenarios: Mapping[str, LoadedScenario]) -> dict[str, LoadedScenario]:
    """Return scenarios that differ in where their states are, all under the program that is chosen for the
    first of them on storage, or else the first; one that does not fit under it has its own."""
    open_ones = [one for one in scenarios.values() if is_choice(one)]
    if len(open_ones) < 2:
        return {label: chosen(one) for label, one in scenarios.items()}
    stored = (one for one in open_ones if _on_storage(one))
    kind = chosen(next(stored, open_ones[0])).scenario.strategy.kind
    only = Edit.at("strategy.among", [kind])

    def under_it(one: LoadedScenario) -> LoadedScenario:
        with suppress(InputError):  # what that program refuses there
            found = chosen(one.edited(only))
            if found.choice is not None:
                return found
        return chosen(one)

    return {label: under_it(one) if is_choice(one) else one for label, one in scenarios.items()}


def _on_storage(scenario: LoadedScenario) -> bool:
    strategy, tiers = scenario.scenario.strategy, scenario.machine.tiers
    named = (getattr(strategy, key) for key in ("weights", "optimizer", "uses"))
    return any(tiers[one].row.is_storage for one in named if one is not None)
