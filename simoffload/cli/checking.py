"""``simoffload check`` and ``simoffload profiles check``: validate files without simulating anything."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simoffload.cli.console import Console, ExitCode, Waiting
from simoffload.cli.option_types import given_limits
from simoffload.cli.sources import STDIN_NAME, find
from simoffload.errors import InputError, Problem, shortened
from simoffload.limits import keep, limited, now_doing
from simoffload.progress import steps

if TYPE_CHECKING:
    from simoffload.documents import Document

_SCHEMA = "simoffload/check/1"


class _Checked(NamedTuple):
    """A _Checked is what there is to say of a file without problems."""

    warnings: tuple[str, ...] = ()
    about: str = ""
    """What is in it, of a model."""


_Check = Callable[["Document"], _Checked]


def check(arguments: Namespace, console: Console) -> ExitCode:
    """Check files of any known kind, recognized by their keys, and shipped ones by name."""
    return _check(arguments, console, _CHECKS)


def check_profiles(arguments: Namespace, console: Console) -> ExitCode:
    """Check hardware profiles: files, and shipped ones by id."""
    return _check(arguments, console, {"profile": _check_profile})


def _check(arguments: Namespace, console: Console, checks: dict[str, _Check]) -> ExitCode:
    # Limits of the command line hold for all files together, those of a scenario for itself.
    with Waiting(console):
        found = (limited(_all) if arguments.overrides else _all)(arguments, checks)
    for one in found.passed:
        console.warn(
            warning if warning.startswith(f"{one.path}:") else f"{one.file}: {warning}"
            for warning in one.found.warnings
        )
    if found.problems:
        raise InputError(found.problems)
    parts = ((one.file, filter(None, (one.kind, one.found.about))) for one in found.passed)
    lines = [f"{file}: ok ({': '.join(each)})" for file, each in parts]
    files = [
        {"file": one.file, "kind": one.kind, "warnings": list(one.found.warnings)}
        | ({"about": one.found.about} if one.found.about else {})
        for one in found.passed
    ]
    console.answer("\n".join(lines), {"schema": _SCHEMA, "files": files})
    return ExitCode.OK


class _Passed(NamedTuple):
    """A _Passed is a file without problems."""

    file: str
    """The file as it was given."""
    path: str
    """The path of the file in messages."""
    kind: str
    found: _Checked


class _Found(NamedTuple):
    passed: list[_Passed]
    problems: list[Problem]


def _all(arguments: Namespace, checks: dict[str, _Check]) -> _Found:
    passed: list[_Passed] = []
    problems: dict[Problem, None] = {}
    for file in steps(arguments.files, shortened):
        try:
            passed.append(_passed(file, checks, arguments.overrides))
        except InputError as error:
            problems |= dict.fromkeys(error.problems)
    return _Found(passed, list(problems))


@limited
def _passed(file: str, checks: dict[str, _Check], overrides: Sequence[str]) -> _Passed:
    """Read and check a file; raises InputError with its problems."""
    from simoffload.documents import set_value

    keep(given_limits(overrides))
    now_doing(f"checking {shortened(file)}")
    document = find(file, profiles_only=len(checks) == 1)
    kind = _kind(document) if len(checks) > 1 else next(iter(checks))
    if document.path == STDIN_NAME and kind in _FILES_ONLY:
        raise InputError((document.problem((), f"a {kind} must be a file, not standard input"),))
    checked = document
    for assignment in overrides if kind == "scenario" else ():
        checked = set_value(checked, assignment)
    return _Passed(file, document.path, kind, checks[kind](checked))


def _kind(document: Document) -> str:
    """Return the kind of a file by its top-level keys. Raises InputError if it is unknown."""
    marks = {
        "profile": {"kind", "id"},
        "scenario": {"workload", "strategy", "platform"},
        "ds_config": {"zero_optimization", "aio", "train_batch_size", "train_micro_batch_size_per_gpu"},
        "model config": {"model_type", "architectures"},
        "GGUF file": {"general.architecture"},
    }
    for kind, keys in marks.items():
        if keys.intersection(document.data):
            return kind
    message = (
        "not recognized: a scenario has model, platform, workload and strategy; a profile has kind and id; "
        "a ds_config has zero_optimization; a config.json has model_type"
    )
    raise InputError.at("", message, path=document.path)


def _check_scenario(document: Document) -> _Checked:
    from simoffload.extending import at, sections
    from simoffload.planning.question import chosen
    from simoffload.scenario import Scenario, resolve
    from simoffload.simulation.capacity import memory_footprint

    problems: list[Problem] = []
    swept: tuple[str, ...] = ()
    try:
        scenario = chosen(resolve(document))
        plan = scenario.plan()
        scenario.check_positions()
    except InputError as error:
        problems += error.problems
    others = sections() if document.data.keys() - Scenario.model_fields else {}
    for key in others.keys() & document.data.keys():
        reported = {(problem.key, problem.message) for problem in problems}
        try:
            swept += at(others[key].read)(document).warnings
        except InputError as error:
            problems += (one for one in error.problems if (one.key, one.message) not in reported)
    if problems:
        raise InputError(problems)
    found, narrow = (*scenario.warnings, *swept), [use.narrow for use in memory_footprint(scenario)]
    more = (*scenario.link_warnings(plan), *plan.warnings, *filter(None, narrow), *scenario.context_warnings)
    return _Checked((*dict.fromkeys(found), *more))


def _check_profile(document: Document) -> _Checked:
    from simoffload.hardware import KINDS, Library, load_platform, memory_warnings, profile_warnings
    from simoffload.planning.costs import load_costs

    path = Path(document.path)
    library = Library(path.parent.parent if path.parent.name in KINDS else path.parent)
    entry = library.read(path, tuple(KINDS))
    if entry.use.kind == "costs":
        load_costs(path)
    if entry.use.kind != "platform":
        return _Checked(profile_warnings(library, entry))
    platform = load_platform(path)
    machine = platform.machine(nodes=2 if platform.profile.network else 1)
    return _Checked((*memory_warnings(platform.host, platform.inputs), *machine.overruns(machine.tiers)))


def _check_ds_config(document: Document) -> _Checked:
    from simoffload.documents import validate
    from simoffload.strategies.ds_config import DeepSpeedConfig, resolve_settings, resolve_training, trains

    config = validate(document, DeepSpeedConfig)
    try:
        if trains(config):
            return _Checked(resolve_training(config, hidden_size=1, dtype_bytes=2)[1])
        return _Checked(resolve_settings(config, hidden_size=1)[1])
    except InputError as error:
        raise InputError(
            document.problem(tuple(one.key.split(".")), one.message) for one in error.problems
        ) from None


def _check_model(document: Document) -> _Checked:
    """Return what a model has, and the smallest shipped GPU that has room for it."""
    from simoffload.hardware import Accelerator
    from simoffload.models import load_model
    from simoffload.planning.advise.options import shipped
    from simoffload.units import format_bytes

    model = load_model({"config": Path(document.path).name}, root=document.root)
    sizes = Counter[str]()
    for modules, count in model.outside_and_kinds():
        for part in (one for module in modules for one in module.parameters if not one.tied):
            name = "16 bits" if part.storage is None else part.storage.format.name
            sizes[name] += count * part.stored_bytes(model.dtype_bytes)
    stored = ", ".join(f"{name} {format_bytes(size, binary=True)}" for name, size in sizes.most_common())
    gpus = shipped("accelerator", Accelerator)
    rooms = [(one.hbm_capacity.value - _BESIDE, one.name) for one in gpus if one.hbm_capacity]
    where = "no shipped GPU has room for all of it"
    if larger := [one for one in rooms if one[0] >= model.weight_bytes]:
        where = f"all of it has room in {min(larger)[1]}, and in larger GPUs"
    size = format_bytes(model.weight_bytes, binary=True)
    has = f"{model.name}, {model.family} with {model.num_hidden_layers} layers"
    return _Checked(about=f"{has}: {size} ({stored}); {where}")


_BESIDE = 2 << 30
"""Memory of a GPU [B] that a cache, buffers and what ``--fit`` leaves free take at least: our choice."""
_CHECKS: dict[str, _Check] = {
    "profile": _check_profile,
    "scenario": _check_scenario,
    "ds_config": _check_ds_config,
    "model config": _check_model,
    "GGUF file": _check_model,
}
_FILES_ONLY = {"profile", "model config"}  # they refer to other files in their folder
