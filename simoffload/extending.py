"""What an extension brings, and which ones there are.

An extension is named by an entry point of the group ``simoffload``, whether it is of this distribution or of
another one. Its table is imported when something is asked that the core does not have; what the table names
is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

GROUP = "simoffload"
"""Group of the entry points that name extensions."""


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


class Extension(NamedTuple):
    """What an entry point names: everything that an extension adds, by name, with nothing imported."""

    programs: tuple[Offer, ...] = ()
    sections: Mapping[str, OwnSection] = {}
    commands: Mapping[str, Command] = {}
    examples: Mapping[str, str] = {}
    """An example of each command and of each of its actions, without "simoffload"."""


class Found(NamedTuple):
    """Extensions by name, and why others, which are named, too, could not be imported."""

    extensions: dict[str, Extension]
    missing: Mapping[str, str]


@cache
def found() -> Found:
    """Return the extensions that entry points name, in the order of their names."""
    from importlib.metadata import entry_points

    extensions: dict[str, Extension] = {}
    missing: dict[str, str] = {}
    for one in sorted(entry_points(group=GROUP)):
        try:
            extensions[one.name] = one.load()
        except Exception as error:  # another's code
            missing[one.name] = f"{error}"
    return Found(extensions, missing)


def register(name: str, extension: Extension) -> None:
    """Add an extension that no entry point names, for a script that runs the program itself."""
    found().extensions[name] = extension


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


def examples() -> dict[str, str]:
    """Return the examples of the commands of all extensions."""
    return {name: text for one in found().extensions.values() for name, text in one.examples.items()}


def at(place: str) -> Any:
    """Return what stands at a place, "module:name"."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def missing_note() -> str:
    """Return a sentence on the extensions that are installed and cannot be imported; "" for none.

    It is added where a name is unknown, which may be of one of these. An installation from before there were
    extensions has none.
    """
    if not any(found()):
        return "no extension is installed; install simoffload again (pip install -e .)"
    text = ", ".join(f"{name} ({why})" for name, why in found().missing.items())
    return f"extensions that cannot be imported here: {text}" if text else ""
