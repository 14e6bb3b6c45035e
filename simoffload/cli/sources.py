"""Scenarios and profiles from files, from standard input, or shipped with the package."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simoffload.cli.option_types import given_limits
from simoffload.errors import InputError, PlacementError, Problem, shortened
from simoffload.limits import keep, limited

if TYPE_CHECKING:
    from simoffload.cli.console import Console
    from simoffload.documents import Document
    from simoffload.hardware import Entry
    from simoffload.scenario import LoadedScenario, MachineParts

STDIN = "-"
STDIN_NAME = "<stdin>"
_LONGEST_NAME = 200  # [characters] of the name of a scenario
_STDIN_LIMIT = 1 << 21  # [B] above the limit for documents, which then says what is wrong


def read(source: str) -> Document:
    """Read a document from a file or from standard input."""
    from simoffload.documents import parse_yaml, read_document

    if source != STDIN:
        return read_document(Path(source))
    return parse_yaml(_stdin_text(), name=STDIN_NAME, root=Path())


def _stdin_text() -> str:
    from simoffload.documents import file_errors

    with file_errors(STDIN_NAME):  # it may be closed, or open for writing only
        data = sys.stdin.buffer.read(_STDIN_LIMIT)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError.at("", "is not text in UTF-8", path=STDIN_NAME) from None


def find(source: str, *, profiles_only: bool = False) -> Document:
    """Read a document from a file, from standard input, or by the name of a shipped scenario or profile; of a
    GGUF file its metadata, of a folder its config.json.

    Raises InputError with near names if there is no such file and nothing shipped of that name.
    """
    from simoffload.documents import SUFFIXES, candidates, exists, named
    from simoffload.hardware import list_profiles
    from simoffload.models import is_model, model_file, read_config
    from simoffload.scenario import find_scenario, gguf_document, list_scenarios

    if (of_model := gguf_document(source)) is not None:
        return of_model
    if source == STDIN or Path(source).suffix in SUFFIXES or exists(source):
        if profiles_only or not exists(source):
            return read(source)
        if Path(source).is_dir():
            return read_config(Path(source, "config.json"))
        return read(source) if model_file(source) is None else read_config(Path(source))
    shipped = None if profiles_only else find_scenario(source)
    if shipped is not None:
        return read(str(shipped))
    profiles = list_profiles()
    ids = [name for one in profiles for name in (one.id, f"{one.kind}/{one.id}")]
    if named(source, ids):
        return find_profile(source).document
    what, names = ("profile", ids) if profiles_only else ("scenario or profile", [*list_scenarios(), *ids])
    list_ = "simoffload profiles list" if profiles_only else "simoffload scenarios list"
    hint = candidates(source, names)
    message = f"no such file, and no shipped {what} of that name{hint or f'; list: {list_}'}"
    if not profiles_only and is_model(source):
        message = f"is a model with a name, which needs no check: simoffload models show {source}"
    raise InputError.at("", message, path=shortened(source))


def find_profile(reference: str) -> Entry:
    """Find a profile by id, kind/id or path. Raises InputError if there is none or several share the id."""
    from simoffload.documents import candidates, exists, named, quoted
    from simoffload.hardware import KINDS, Library, is_path

    kind, slash, name = reference.partition("/")
    if slash and kind in KINDS and not exists(reference):
        return Library().find(name, (kind,))
    if is_path(reference):
        return Library().read(Path(reference), tuple(KINDS))
    known = [(one.kind, one.id) for one in Library().summaries()]
    names = named(reference, (name for _, name in known))
    meant = [(kind, name) for kind, name in known if name in names]
    if len(meant) == 1:
        return Library().find(meant[0][1], (meant[0][0],))
    hint = candidates(reference, (name for _, name in known))
    message = f"there is no profile {quoted(reference)}{hint or '; list: simoffload profiles list'}"
    if meant:
        listed = ", ".join(f"{kind}/{name}" for kind, name in meant)
        message = f"several profiles are called {quoted(reference)}: {listed}"
    raise InputError.at("", message)


class CommandChanges(NamedTuple):
    """Changes that a command line makes to every scenario it names."""

    overrides: Sequence[str] = ()
    """Assignments ``a.b=value`` of ``--set`` and of its short forms."""
    parts: MachineParts | None = None
    model: str | None = None
    program: str | None = None
    """Kind of the program in place of the scenario's, or "best"."""

    @classmethod
    def of(cls, arguments: Namespace, *, model: str | None = None) -> CommandChanges:
        """Return the changes of a command that has the options ``--set``, those for parts of a machine, and
        ``--context``."""
        from simoffload.scenario import MachineParts, behind_network

        offers = getattr(arguments, "offers", None) or ()
        networked = bool(getattr(arguments, "machines", False)) or any(map(behind_network, offers))
        parts = MachineParts(arguments.gpu, arguments.gpus, arguments.memory, arguments.drive, networked)
        room = [] if arguments.context is None else [f"workload.context={arguments.context}"]
        return cls([*arguments.overrides, *room], parts, model, arguments.program)

    @property
    def options(self) -> tuple[str, ...]:
        """The options that state the changes on a command line."""
        named = {} if self.parts is None else self.parts._asdict()
        named = {key: one for key, one in named.items() if key not in ("networked", "alone")}
        given = {"model": self.model, "program": self.program, **named}
        return (
            *(word for key, one in given.items() if one is not None for word in (f"--{key}", str(one))),
            *(word for one in self.overrides for word in ("--set", one)),
        )


@limited
def load(
    source: str | None,
    changes: CommandChanges,
    *,
    targets: Sequence[str] | None = None,
    choosing: bool = True,
    uses: Sequence[str] = ("workload",),
    console: Console,
) -> LoadedScenario:
    """Load a scenario from a file, by the name of a shipped one, or from standard input; or make one for the
    name of a model, on the platform that the first of ``targets`` or the GPU of the changes names.

    Its program is chosen, unless it states one, the caller has it on other places first (not ``choosing``),
    or there are targets. For these it lacks the overrides of the platform, which :func:`move` applies on each
    of them. A note names the keys of the work that the command does not use: it ``uses`` the section workload
    or stream."""
    from simoffload.planning.question import check_context, chosen, with_model, with_parts, with_program
    from simoffload.scenario import names_model, of_platform, read_scenario, resolve

    keep(given_limits(changes.overrides))
    source = source or changes.model or ""
    if targets:
        changes = changes._replace(overrides=[one for one in changes.overrides if not of_platform(one)])
    overrides, parts, model, program = changes
    if names_model(source):
        found = _of_model(model or source, changes, targets or (), console)
        _note_unused(source, found, uses, overrides, console)
    else:
        if source == STDIN:
            found = resolve(read(source), overrides=overrides, placed=not targets)
        else:
            found = read_scenario(source, overrides=overrides, placed=not targets)
        if program is not None:
            found = with_program(found, program)
        _note_unused(source, found, uses, None, console)
        found = with_parts(found, parts) if parts else found
        if model:
            found = with_model(found, model, placed=not targets, option="--model")
    check_context(found, overrides)
    return chosen(found) if choosing and not targets else found


def _note_unused(
    source: str,
    scenario: LoadedScenario,
    uses: Sequence[str],
    overrides: Sequence[str] | None,
    console: Console,
) -> None:
    """Name the keys of work that a command does not use: those of the document, or of a model only those of
    the ``overrides``."""
    from simoffload.documents import split_assignment
    from simoffload.planning.question import is_choice

    name, work = shortened(source), scenario.document.data.get("workload")
    if scenario.scenario.stream is not None and "stream" not in uses:
        console.notice(
            f"{name} has requests that arrive one after the other, which simoffload stream simulates; this "
            "is one batch of its workload"
        )
    keys = [f"workload.{key}" for key in work if key != "kind"] if isinstance(work, Mapping) else []
    if overrides is not None:
        stated = {split_assignment(one)[0] for one in overrides}
        keys = [key for key in keys if stated & {"workload", key}]
    if is_choice(scenario):
        keys = []  # the program is chosen for one batch of it
    if keys and scenario.scenario.stream is not None and "workload" not in uses:
        text = f"{name}: simoffload stream does not use {', '.join(keys)}"
        console.notice(f"{text}; simoffload run simulates one batch of that work")


def _of_model(
    model: str, changes: CommandChanges, targets: Sequence[str], console: Console
) -> LoadedScenario:
    from simoffload.documents import split_assignment
    from simoffload.hardware import load_platform
    from simoffload.planning.question import asked
    from simoffload.scenario import MachineParts

    overrides, parts, _, program = changes
    platforms = [name for target in targets if (name := target.rpartition(":")[0])]
    named = platforms or any(split_assignment(one)[0] == "platform" for one in overrides)
    of_card = parts.platforms() if parts and not named else []
    found = asked(
        model,
        platforms[0] if platforms else None,
        parts=parts or MachineParts(),
        program=program,
        overrides=overrides,
        placed=not targets,
    )
    if of_card and not targets:
        shipped, here = len(load_platform(of_card[0]).profile.gpus), found.machine.gpus_per_node
        few = f" with one of its {shipped} GPUs (--gpus N: more)" if here < shipped else ""
        also = f"; also with this GPU: {', '.join(of_card[1:])} (--set platform=ID)" if of_card[1:] else ""
        if few or also:
            console.notice(f"on {of_card[0]}{few}{also}")
    return found


def move(
    scenario: LoadedScenario, targets: Sequence[str], *, overrides: Sequence[str] = ()
) -> dict[str, LoadedScenario]:
    """Return the scenario on every target of ``--on``, with the overrides of the platform."""
    from simoffload.planning.targets import on_targets
    from simoffload.scenario import of_platform

    try:
        return on_targets(scenario, targets, overrides=[one for one in overrides if of_platform(one)])
    except InputError as error:
        named = (one if one.path else one._replace(path="--on") for one in error.problems)
        raise InputError(named) from None


def move_once(scenario: LoadedScenario, target: str, *, overrides: Sequence[str] = ()) -> LoadedScenario:
    """Return the scenario on the only target of a question that has one. Raises InputError for "all"."""
    from simoffload.planning.targets import one_target

    return next(iter(move(scenario, one_target(target), overrides=overrides).values()))


@contextmanager
def naming_others(scenario: LoadedScenario, target: str | None) -> Iterator[None]:
    """Let the refusal of the one target of ``--on`` say which to type instead."""
    try:
        yield
    except PlacementError:
        raise  # which names them
    except InputError as error:
        from simoffload.planning.targets import placements_instead

        others = placements_instead(scenario, target) if target else []
        if not others:
            raise
        first, *rest = error.problems
        hint = (
            f"{first.message}; instead of --on {shortened(str(target))} it can be --on {' or '.join(others)}"
        )
        raise InputError((first._replace(message=hint), *rest)) from None


def _with_each_drive(scenario: LoadedScenario, drives: Sequence[str]) -> Iterator[LoadedScenario]:
    """Yield the scenario with each of several offers of storage in turn, which holds the offloaded data: of
    training the optimizer's. Raises InputError."""
    from simoffload.documents import Edit
    from simoffload.planning.question import is_choice, tier_of_drive, with_parts
    from simoffload.scenario import MachineParts

    now = scenario.placements.now()
    for drive in drives:
        name = Edit(("name",), f"{scenario.name}, {drive}"[:_LONGEST_NAME])
        if is_choice(scenario):  # of whose program the states are on it, whichever these are
            yield with_parts(scenario.edited(name), MachineParts(drive=drive))
            continue
        edits = MachineParts(drive=drive).edits(scenario)
        tier = tier_of_drive(edits)
        assert tier is not None  # as a drive is named
        target = tier if now.optimizer is None else f"{now.weights}+{tier}"
        yield scenario.edited(name, *edits).on(target)


# -- several scenarios ---------------------------------------------------------------------------


def scenario_set(
    sources: Sequence[str],
    targets: Sequence[str] | None,
    changes: CommandChanges,
    *,
    models: Sequence[str] = (),
    drives: Sequence[str] = (),
    command: str,
    console: Console,
) -> dict[str, LoadedScenario]:
    """Return every scenario by its label, unchanged and with each of the ``models``, on every target or with
    each of the ``drives``. Raises InputError with all problems."""
    from simoffload.planning.question import chosen_once, with_model

    scenario_of = partial(load, changes=changes, targets=targets, choosing=not drives, console=console)
    if len(sources) == 1 and not models and targets:
        return _once(move(scenario_of(sources[0]), targets, overrides=changes.overrides), console)
    named: dict[str, LoadedScenario] = {}
    for name, scenario in _by_name(sources, scenario_of, command).items():
        named[name] = scenario
        for model in models:
            other = with_model(scenario, model, placed=not targets)
            if other.name in named:
                raise refusal(command, f"the model {model} is given twice")
            named[other.name] = other
    if len(set(drives)) < len(drives):
        raise refusal(command, "a drive is given twice")
    if drives:
        alone = len(named) == 1
        named = {
            drive if alone else offer.name: offer
            for one in named.values()
            for drive, offer in chosen_once(
                dict(zip(drives, _with_each_drive(one, drives), strict=True))
            ).items()
        }
    if not targets:
        return named
    found: dict[str, LoadedScenario] = {}
    for name, scenario in named.items():
        on_them = move(scenario, targets, overrides=changes.overrides)
        found |= _once(on_them, console, before=f"{name} ")
    return found


def _once(
    found: dict[str, LoadedScenario], console: Console, *, before: str = ""
) -> dict[str, LoadedScenario]:
    """Return the scenarios by label: ``before`` and the target.

    Targets that are equal to an earlier one are dropped: with ``dram`` the optimizer may be in ``dram``, too.
    """
    kept: dict[str, LoadedScenario] = {}
    for label, case in found.items():
        twin = next((other for other, known in kept.items() if _same(case, known)), None)
        if twin is None:
            kept[label] = case
        else:
            console.notice(f"{before}{label} is the same as {before}{twin}; it is listed once")
    return {f"{before}{target}": case for target, case in kept.items()}


def _same(one: LoadedScenario, other: LoadedScenario) -> bool:
    return one.places == other.places and one.document.data == other.document.data


def _by_name(
    sources: Sequence[str], scenario_of: Callable[[str], LoadedScenario], command: str
) -> dict[str, LoadedScenario]:
    """Load every scenario and label it with its name; where names are equal, also with its file."""
    problems: list[Problem] = []
    loaded: list[tuple[str, LoadedScenario]] = []
    for source in sources:
        try:
            loaded.append((source, scenario_of(source)))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(dict.fromkeys(problems))
    names = [scenario.name for _, scenario in loaded]
    found = {
        scenario.name if names.count(scenario.name) == 1 else f"{scenario.name} ({source})": scenario
        for source, scenario in loaded
    }
    if len(found) < len(loaded):
        raise refusal(command, "a scenario is given twice")
    return found


def refusal(command: str, message: str) -> InputError:
    """Return the error for a contradictory command line: "simoffload compare: …"."""
    return InputError.at("", message, path=f"simoffload {command}")
