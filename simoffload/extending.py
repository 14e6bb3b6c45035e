"""What an extension brings, and which ones there are.

An extension is named by an entry point of the group ``simoffload``, whether it is of this distribution or of
another one. Its table is imported when something is asked that the core does not have; what the table names
is imported when it is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, reduce
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

GROUP = "simoffload"
"""Group of the entry points that name extensions."""
_OURS = ("simoffload.extensions.", "simoffload_calibrate")


class Offer(NamedTuple):
    """A program as it is known before it is imported: its kind, the kinds of work that it serves, its use."""

    kind: str
    place: str
    """Where the strategy is, as "module:Class"."""
    serves: frozenset[str]
    suits: Callable[[Any, Any], bool] | None = None
    """Whether people use it for a model on a machine; None: only where it is named."""


class Command(NamedTuple):
    """A command, or with the name of one that exists, more options for it.

    A name of two words is an action of a command, as in "profiles import".
    """

    text: str
    add: str
    """The function that adds its options to a parser, as "module:function"."""
    answers: str = ""
    """The question beside which the program's overview lists it."""


class OwnSection(NamedTuple):
    """A section of a scenario that one command reads and all others leave out."""

    model: str
    """The pydantic model of its keys, as "module:Class"."""
    read: str
    """The function that reads a document with the section, as "module:function"; what it returns has
    ``warnings``."""


class Work(NamedTuple):
    """A kind of work beside inference and training."""

    result: str
    """The class of its results, as "module:Class"."""
    measures: str
    """The class that computes them from a plan, as "module:Class"."""
    presentation: str
    """The function that is called with a result and returns the words of its report, as
    "module:function"."""


class Addition(NamedTuple):
    """What is added to a run, and to its result under a name.

    Its functions, each as "module:function", are called in this order; "" for what it does not change.
    """

    section: str = ""
    """The section of a scenario that asks for it; "" if it is added to all runs with such a section of any
    extension, or that write to storage."""
    planned: str = ""
    """Called with the scenario and the plan of its steps, returns the plan with what it adds."""
    stages: str = ""
    """Called with the scenario, its plan and the stages of memory, returns these with what it holds."""
    sized: str = ""
    """Called with the scenario, its plan and a result without times, returns this with its sizes."""
    timed: str = ""
    """Called with the scenario, its plan, the result with the times of its steps and the runner of phases,
    returns the result with its times."""
    shown: str = ""
    """Called with a result that it was added to, returns the section of its report."""


class Extension(NamedTuple):
    """What an entry point names: everything that an extension adds, by name, with nothing imported."""

    programs: tuple[Offer, ...] = ()
    works: Mapping[str, Work] = {}
    """Kinds of work that it computes, each looked up where a scenario has it."""
    additions: Mapping[str, Addition] = {}
    """What it adds to runs, each asked for where a scenario has its section or a run writes to storage."""
    sections: Mapping[str, OwnSection] = {}
    commands: Mapping[str, Command] = {}
    examples: Mapping[str, str] = {}
    """An example of each command and of each of its actions, without "simoffload"."""


class Found(NamedTuple):
    """Extensions by name, and why others, which are named, too, could not be imported."""

    extensions: dict[str, Extension]
    missing: Mapping[str, str]


def _named() -> dict[str, str]:
    """Return the entry points of the group by place, "module:name"; in a checkout, which need not be
    installed, or was so before an extension came, those of this distribution are what its pyproject.toml has.

    The lines are read here, because importing ``importlib.metadata`` takes as long as all else of a short
    command; distributions in zip files are not seen.
    """
    found = _section(Path(__file__).parents[1] / "pyproject.toml", f"project.entry-points.{GROUP}")
    seen = set[str]()
    for folder in sys.path:
        with suppress(OSError):
            for name in sorted(os.listdir(folder or ".")):  # noqa: PTH208 - faster
                distribution, _, _ = name.partition("-")
                if name.endswith((".dist-info", ".egg-info")) and distribution not in seen:
                    seen.add(distribution)
                    found = _section(Path(folder, name, "entry_points.txt"), GROUP) | found
    return found


def _section(file: Path, name: str) -> dict[str, str]:
    """Return the lines "name = place" of a section of a file in the form of entry_points.txt, by place."""
    with suppress(OSError, ValueError):
        lines = file.read_text("utf-8").partition(f"[{name}]\n")[2].partition("\n[")[0].splitlines()
        pairs = [line.partition("=") for line in lines if "=" in line and line.lstrip()[0] not in "#;"]
        return {place.partition("[")[0].strip().strip("\"'"): name.strip() for name, _, place in pairs}
    return {}


@cache
def found() -> Found:
    """Return the extensions that entry points name, those of this distribution first, by name."""
    extensions: dict[str, Extension] = {}
    missing: dict[str, str] = {}
    for place, name in sorted(_named().items(), key=lambda one: (not one[0].startswith(_OURS), one[1])):
        try:
            loaded = at(place)
        except (Exception, SystemExit) as error:  # another's code
            missing[name] = f"{error}"
            continue
        if name in extensions:
            missing[f"{name} of {place}"] = "the name is taken"
        elif not isinstance(loaded, Extension):
            missing[name] = f"{place} is no Extension"
        else:
            extensions[name] = loaded
    return Found(extensions, missing)


def register(name: str, extension: Extension) -> None:
    """Add an extension that no entry point names, for a script that runs the program itself.

    Worker processes, of a sweep or of the page, know only those that entry points name.
    """
    found().extensions[name] = extension


@cache
def _own() -> frozenset[str]:
    return frozenset(name for place, name in _named().items() if place.startswith(_OURS))


def from_outside() -> tuple[str, ...]:
    """Return the names of extensions that are not of this distribution."""
    return tuple(name for name in found().extensions if name not in _own())


def offers() -> Iterator[Offer]:
    """Yield the programs of all extensions."""
    for one in found().extensions.values():
        yield from one.programs


def commands() -> Iterator[tuple[str, Command]]:
    """Yield the commands of all extensions by name."""
    for one in found().extensions.values():
        yield from one.commands.items()


def sections() -> dict[str, OwnSection]:
    """Return the sections of scenarios that extensions own."""
    return {key: section for one in found().extensions.values() for key, section in one.sections.items()}


def works() -> dict[str, Work]:
    """Return the kinds of work of all extensions by name."""
    return {kind: work for one in found().extensions.values() for kind, work in one.works.items()}


def additions() -> dict[str, Addition]:
    """Return what extensions add to runs by name."""
    return {name: one for each in found().extensions.values() for name, one in each.additions.items()}


def examples() -> dict[str, str]:
    """Return the examples of the commands of all extensions."""
    return {name: text for one in found().extensions.values() for name, text in one.examples.items()}


def at(place: str) -> Any:
    """Return what stands at a place, "module:name"."""
    module, _, name = place.partition(":")
    return reduce(getattr, name.split("."), import_module(module))


def missing_note() -> str:
    """Return a sentence on the extensions that are installed and cannot be imported; "" for none.

    It is added where a name is unknown, which may be of one of these.
    """
    text = ", ".join(f"{name} ({why})" for name, why in found().missing.items())
    return f"extensions that cannot be imported here: {text}" if text else ""
