"""Loading: a scenario file, a shipped scenario or a model's name becomes a resolved scenario."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from simoffload.documents import (
    SUFFIXES,
    Document,
    Edit,
    candidates,
    edited,
    exists,
    named,
    read_document,
    rename_keys,
    split_assignment,
    validate,
    without,
)
from simoffload.errors import InputError, Problem, shortened
from simoffload.hardware import Machine, list_profiles
from simoffload.limits import keep, limited
from simoffload.models import (
    GGUF,
    ModelShape,
    ModelSpec,
    is_model,
    is_model_file,
    list_models,
    resembled_model,
)
from simoffload.scenario.cache import ScenarioCache
from simoffload.scenario.loaded import READ_TIER, LoadedScenario
from simoffload.scenario.overrides import overridden, usual_kind
from simoffload.scenario.schema import RENAMED, EngineOptions, Scenario
from simoffload.shipped import shipped_folder
from simoffload.strategies import strategy_of
from simoffload.strategies.tunables import TierChoice, tier_paths
from simoffload.workload import Training

ScenarioSource = LoadedScenario | str | Path
"""A scenario, or where it is: the path of its file, or the name of a shipped one."""
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

SWEEP = "sweep"
"""The section of a scenario file that lists what a sweep varies; a single simulation ignores it."""
_OF_TRAINING = ("checkpoint", "dataset")
_OF_MACHINE = ("platform", "equipment", "profiles", "nodes")
_OTHER_TIERS: dict[str, Mapping[str, TierChoice]] = {name: {"tier": "storage"} for name in _OF_TRAINING}
"""The tiers that a scenario names outside its strategy: which tiers are valid, by section and key."""


def list_scenarios() -> tuple[str, ...]:
    """Return the names of the shipped scenarios, as ``load_scenario`` accepts them."""
    folder = shipped_folder("scenarios")
    return tuple(
        sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))
    )


def find_scenario(name: str) -> Path | None:
    """Return the file of a shipped scenario; None if there is none of that name."""
    meant = named(name, list_scenarios())
    return shipped_folder("scenarios") / f"{meant[0]}.yaml" if len(meant) == 1 else None


def names_model(source: str) -> bool:
    """Return whether a text is the name of a model, and of neither a file nor a shipped scenario; in
    ddn/bloom-1b1 a folder of scenarios is no organisation of the hub."""
    if source.lower().endswith(GGUF):
        return True
    if not is_model(source) or Path(source).is_file() or find_scenario(source) is not None:
        return False
    return not any(name.startswith(f"{source.partition('/')[0]}/") for name in list_scenarios())


@limited
def load_scenario(
    source: str | Path, *, overrides: Sequence[str] = (), placed: bool = True
) -> LoadedScenario:
    """Read a scenario file (or a shipped scenario by name), apply ``a.b=value`` overrides, and resolve it;
    ``placed`` as in ``resolve``.

    Raises InputError with all problems, each with its file, line, key and what is valid.
    """
    return resolve(read_document(locate(source)), overrides=overrides, placed=placed)


def loaded(source: ScenarioSource) -> LoadedScenario:
    """Return a scenario, which is loaded first where ``source`` is a path or the name of a shipped one.

    Raises what ``load_scenario`` raises, and TypeError for anything else.
    """
    if isinstance(source, LoadedScenario):
        return source
    try:
        path = Path(source)
    except TypeError:
        text = "write what load_scenario() returns, the path of a file, or the name of a shipped scenario"
        raise TypeError(f"a scenario cannot be {type(source).__name__}; {text}") from None
    return load_scenario(path)


@limited
def resolve(
    document: Document,
    *,
    overrides: Sequence[str] = (),
    cache: ScenarioCache | None = None,
    placed: bool = True,
    similar: LoadedScenario | None = None,
) -> LoadedScenario:
    """Check a document and load everything that it refers to. Raises InputError.

    Scenarios that share a ``cache`` read common files once. A scenario that is not ``placed`` is only the
    origin of others on targets: it may name tiers that its own platform does not have. What the document has
    in common with that of a ``similar`` scenario is taken from there.
    """
    cache = ScenarioCache() if cache is None else cache
    document = overridden(document, overrides, cache)
    if similar is not None and similar.cache is cache and similar.document.root == document.root:
        with suppress(InputError):  # the complete check tells every problem, with its place
            return _checked(document, cache, placed=placed, similar=similar)
    return _checked(document, cache, placed=placed)


def _checked(
    document: Document, cache: ScenarioCache, *, placed: bool, similar: LoadedScenario | None = None
) -> LoadedScenario:
    problems: list[Problem] = []
    document = rename_keys(document, RENAMED, problems)
    _keep_limits(document)
    document = completed(document, cache, problems)
    common = _common(document, similar)
    try:
        scenario = validate(document, Scenario, checked=common)
    except InputError as error:
        problems = [*error.problems, *problems]
        _check_the_rest(document, cache, problems)
        raise _all_of(problems, document) from None
    model: ModelShape | None
    machine: Machine | None
    if similar is not None and "model" in common:
        model = similar.model
    else:
        model = _try(document, problems, "model", lambda: cache.model(scenario.model, root=document.root))
    if similar is not None and all(document.shares(key, similar.document) for key in _OF_MACHINE):
        machine = similar.machine
    else:
        machine = _machine(document, cache, problems, nodes=scenario.nodes)
    if machine is not None:
        scenario = _with_tiers(document, scenario, machine, problems if placed else [])
    else:
        _check_the_rest(document, cache, problems)
    problems += _out_of_place(document, scenario)
    if problems or model is None or machine is None:
        raise _all_of(problems, document)
    return LoadedScenario(scenario, document, model, machine, cache=cache)


def _common(document: Document, similar: LoadedScenario | None) -> dict[str, Any]:
    """Return the checked sections of a similar scenario that the document shares with it."""
    if similar is None:
        return {}
    shared = (name for name in Scenario.model_fields if document.shares(name, similar.document))
    return {name: getattr(similar.scenario, name) for name in shared if name in document.data}


def _keep_limits(document: Document) -> None:
    """Apply the limits of a document that is not yet checked; invalid ones are reported by the check."""
    with suppress(ValidationError):
        keep(EngineOptions.model_validate(document.data.get("engine", {})).limits)


def _all_of(problems: list[Problem], document: Document) -> InputError:
    """Join problems into one error: each once, those of the document first, each file in its own order."""

    def order(problem: Problem) -> tuple[bool, str, int, int]:
        return problem.path != document.path, problem.path, problem.line or 0, problem.column or 0

    return InputError(sorted(dict.fromkeys(problems), key=order))


def _machine(
    document: Document, cache: ScenarioCache, problems: list[Problem], *, nodes: int = 1, changed: bool = True
) -> Machine | None:
    platform = _try(document, problems, "platform", lambda: cache.platform(document, changed=changed))
    if platform is None:
        return None
    return _try(document, problems, "nodes", lambda: cache.machine(platform, nodes=nodes))


def _check_the_rest(document: Document, cache: ScenarioCache, problems: list[Problem]) -> None:
    """Add the problems with references in the valid sections of an invalid scenario."""
    data, own = document.data, [one.key for one in problems if one.path in ("--set", document.path)]
    broken = {re.split(r"[.\[]", key)[0] for key in own}
    if "model" in data and "model" not in broken:
        spec = validate(document, ModelSpec, at=("model",))
        _try(document, problems, "model", lambda: cache.model(spec, root=document.root))
    if "platform" not in data or broken.intersection({"platform", "equipment"}):
        return
    machine = _machine(document, cache, problems, changed="profiles" not in broken)
    if machine is None:
        return
    for section, names in _tier_keys(data).items():
        part = data.get(section)
        for key, choice in names.items() if isinstance(part, dict) else ():
            place, written = f"{section}.{key}", _value(part, key)
            if isinstance(written, str) and place not in own:
                _try(document, problems, place, partial(READ_TIER[choice], written, machine, place))


def _tier_keys(data: Mapping[str, Any]) -> dict[str, Mapping[str, TierChoice]]:
    """Return which tiers are valid wherever a scenario names one, by section and key."""
    strategy = data.get("strategy")
    known = strategy_of(strategy.get("kind")) if isinstance(strategy, dict) else None
    return _OTHER_TIERS | ({} if known is None else {"strategy": tier_paths(known)})


def _value(part: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key, in a section of ``part`` if the key has a dot; None if it is not there."""
    *outer, last = key.split(".")
    for name in outer:
        part = part.get(name) or {}
        if not isinstance(part, Mapping):
            return None
    return part.get(last)


def _out_of_place(document: Document, scenario: Scenario) -> list[Problem]:
    """Return a problem for each section that is not valid for the kind of work."""
    work = scenario.workload
    if scenario.stream is not None and work.kind != "inference":
        text = f"is valid only for a workload of inference, not for {work.kind}; remove it"
        return [document.problem(("stream",), text, at_key=True)]
    if isinstance(work, Training):
        return []
    misplaced = [name for name in _OF_TRAINING if getattr(scenario, name) is not None]
    text = f"is valid only for a training workload, not for {work.kind}; remove it"
    return [document.problem((name,), text, at_key=True) for name in misplaced]


def _with_tiers(
    document: Document, scenario: Scenario, machine: Machine, problems: list[Problem]
) -> Scenario:
    """Return the scenario with the machine's names of tiers, and add a problem for each unknown one."""
    keys = {"strategy": tier_paths(type(scenario.strategy)), **_OTHER_TIERS}

    def resolved(part: M, section: str) -> M:
        for key, choice in keys[section].items():
            place = f"{section}.{key}"

            def named(value: str, place: str = place, choice: TierChoice = choice) -> str:
                read = partial(READ_TIER[choice], value, machine, place)
                return _try(document, problems, place, read) or value

            part = _with_value(part, key.split("."), named)
        return part

    parts = {section: getattr(scenario, section) for section in keys}
    changes = {section: resolved(part, section) for section, part in parts.items() if part is not None}
    return scenario.model_copy(update=changes)


def _with_value(part: M, path: list[str], changed: Callable[[str], str]) -> M:
    """Return a part of a scenario with the value at a path changed, if it was given."""
    first, *inner = path
    value = getattr(part, first, None)
    if value is None or (inner and first not in part.model_fields_set):
        return part
    found = _with_value(value, inner, changed) if inner else changed(value)
    return part.model_copy(update={first: found})


def locate(source: str | Path) -> Path:
    """Return the file of a scenario given by path or shipped name. Raises InputError if there is none."""
    path = Path(source)
    if path.suffix in SUFFIXES or exists(path):
        return path
    shipped = find_scenario(str(source))
    if shipped is not None:
        return shipped
    raise InputError.at("", _no_scenario(str(source)), path=shortened(str(source)))


def _no_scenario(name: str) -> str:
    """Return what is wrong with a name that is neither a file nor a shipped scenario."""
    if names_model(name):
        return "is a model, not a scenario; default_scenario (run, fit and compare) makes a scenario from it"
    text = "no such file, and no shipped scenario or model of that name"
    if looks := resembled_model(name):
        return f"{text}: {looks}"
    hint = candidates(name, [*list_scenarios(), *list_models()])
    return f"{text}{hint or '; list: simoffload scenarios list, simoffload models list'}"


def completed(document: Document, cache: ScenarioCache, problems: list[Problem]) -> Document:
    """Return the document with default kinds of workload and strategy, renamed keys under their new names,
    and the content of a ds_config instead of its path.

    Errors are added to ``problems``.
    """
    if SWEEP in document.data:
        document = without(document, SWEEP)
    document = rename_keys(document, RENAMED, problems)
    if isinstance(named := document.data.get("model"), str) and is_model_file(named):
        document = edited(document, [Edit(("model",), {"config": named})], in_place=True)
    if "stream" in document.data and "workload" not in document.data:
        document = edited(document, [Edit(("workload",), USUAL_WORK["inference"])], in_place=True)
    document = _with_kind(document, "workload", "inference")
    workload = document.data.get("workload")
    strategy = document.data.get("strategy")
    if not isinstance(strategy, dict):
        return document
    for key in ("weights", "optimizer"):
        if key in strategy and strategy[key] is None:
            text = "is empty; name a tier of the platform, e.g. dram, or remove the key"
            problems.append(document.problem(("strategy", key), text))
    document = _with_kind(document, "strategy", usual_kind(workload))
    known = strategy_of(document.data["strategy"]["kind"])
    for key, content in known.traits.files.items() if known is not None else ():
        place = f"strategy.{key}"
        read = _try(document, problems, place, partial(cache.opened, document, key, content))
        document = read or edited(document, [Edit(("strategy", key), {})], in_place=True)
    return _in_precision(document)


def _in_precision(document: Document) -> Document:
    """Return the document with the data type that its ds_config enables, if the model states none: DeepSpeed
    casts the model to it (0.19.8, runtime/engine.py: ``_configure_distributed_model``)."""
    config, model = document.data["strategy"].get("ds_config"), document.data.get("model")
    model = {"name": model} if isinstance(model, str) else model
    if not isinstance(config, dict) or not isinstance(model, dict) or model.get("dtype") is not None:
        return document
    from simoffload.strategies.ds_config import PRECISIONS

    sections = ((config.get(key), dtype) for dtype, key in PRECISIONS.items())
    enabled = [dtype for one, dtype in sections if isinstance(one, dict) and one.get("enabled") is True]
    if len(enabled) != 1:
        return document
    return edited(document, [Edit(("model",), {**model, "dtype": enabled[0]})], in_place=True)


def _with_kind(document: Document, section: str, kind: str) -> Document:
    """Return the document with the kind of a section as its first key, by default ``kind``."""
    given = document.data.get(section)
    if not isinstance(given, dict) or next(iter(given), None) == "kind":
        return document
    return edited(document, [Edit((section,), {"kind": kind, **given})], in_place=True)


def _try(document: Document, problems: list[Problem], key: str, action: Callable[[], T]) -> T | None:
    """Run ``action`` and record its problems, placed at ``key`` unless they name a position themselves."""
    try:
        return action()
    except InputError as error:
        for problem in error.problems:
            within = problem.key if not problem.path and problem.key.startswith(f"{key}.") else key
            location = tuple(within.split("."))
            if problem.line is not None or problem.path in ("--set", document.path):
                problems.append(problem)
            else:  # a problem with a complete file, or with none, belongs where the document refers to it
                text = f"{problem.path}: {problem.message}" if problem.path else problem.message
                problems.append(document.problem(location, text))
        return None


USUAL_WORK: Mapping[str, dict[str, Any]] = {
    "inference": {"kind": "inference", "batch_size": 1, "prompt_length": 512, "output_length": 32},
    "training": {
        "kind": "training",
        "batch_size": 1,
        "sequence_length": 2048,
        "gradient_checkpointing": True,
    },
}
"""The workload of a default scenario by its kind: one short conversation, or one sequence that is trained, on
each GPU (our choice)."""


@limited
def default_scenario(
    model: str,
    platform: str | None = None,
    *,
    overrides: Sequence[str] = (),
    gpus: int | None = None,
    placed: bool = True,
) -> LoadedScenario:
    """Return a scenario of a model, by name or file, under ZeRO-Inference on ``gpus`` GPUs of a platform, by
    default on all.

    It has one sequence on each GPU, 512 tokens in and 32 out, weights in host memory unless ds_config names
    another place, and DeepSpeed's defaults except that swap buffers hold the largest parameter. With
    ``workload.kind=training`` among the overrides it trains 2048 tokens with gradient checkpointing.
    ``overrides`` (``a.b=value``) replace any of these, including the platform. ``placed`` as in ``resolve``.
    Raises InputError for an unknown model or platform, or if there is no platform.
    """
    kinds = [value for key, value in map(split_assignment, overrides) if key == "workload.kind"]
    work = USUAL_WORK.get(str(kinds[-1]) if kinds else "", USUAL_WORK["inference"])
    data: dict[str, Any] = {"name": Path(model).name, "model": model, "workload": work}
    if platform is not None:
        data["platform"] = platform
    document = Document(model, {**data, "strategy": {}}, Path())
    cache = ScenarioCache()
    cache.allow_model(model)
    document = overridden(document, overrides, cache)
    if "platform" not in document.data:
        known = ", ".join(one.id for one in list_profiles("platform"))
        text = "a model needs a platform: --set platform=PLATFORM, or --on PLATFORM:TIER,… of advise, compare"
        raise InputError([document.problem((), f"{text} and fit; it is one of {known}")])
    filled = _filled(resolve(document, cache=cache, placed=placed), gpus)
    return resolve(filled, cache=cache, placed=placed)


def _filled(scenario: LoadedScenario, gpus: int | None) -> Document:
    """Return the document with the values that follow from model and platform, unless it has them."""
    document, strategy = scenario.document, scenario.scenario.strategy
    spread = strategy.sizes().gpus(gpus or scenario.machine.gpus)[:1]
    for edit in spread:
        if edit.path[1] not in document.data["strategy"]:
            strategy = strategy.model_copy(update={str(edit.path[1]): edit.value})
            document = edited(document, spread)
    return edited(document, strategy.filled(scenario.model))
