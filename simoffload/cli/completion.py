"""Completion in a shell: commands, options, names of what is shipped, and paths of keys.

``argcomplete`` runs the program when Tab is pressed, with the line typed so far in the environment.
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import argcomplete
from argcomplete import shell_integration
from argcomplete.completers import FilesCompleter

from simoffload.cli.console import Console, ExitCode

_ASSIGNED = ("--set", "--axis")
"""Options whose value is a key, "=" and a value."""
_DEEPEST = 5  # [keys] of a path


def print_script(arguments: Namespace, console: Console) -> ExitCode:
    """Print the lines that a shell reads in its start file."""
    script = shell_integration.shellcode(["simoffload"], shell=arguments.shell)
    console.answer(script, {"shell": arguments.shell, "script": script})
    return ExitCode.OK


def complete() -> None:
    """Answer the shell that asks for the words that may follow, and end the process."""
    from simoffload.cli.arguments import program

    parser = program()
    for one in _parsers(parser):
        for action in one._actions:  # noqa: SLF001 - argparse has no public list
            completer = _completer(action)
            if completer is not None:
                action.completer = completer  # type: ignore[attr-defined]  # argcomplete reads it
    argcomplete.autocomplete(parser, always_complete_options="long")


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for one in action.choices.values():
                yield from _parsers(one)


def _completer(action: argparse.Action) -> Callable[..., Iterable[str]] | None:
    """Return what proposes the values of an option or argument; None for files and for choices."""
    option = next(iter(action.option_strings), "")
    names = {
        "SCENARIO": lambda: [*_scenarios(), *_models(), *FilesCompleter()("")],
        "--model": _models,
        "--models": _models,
        "NAME": _models,
        "--gpu": lambda: _profiles("accelerator"),
        "--drive": lambda: _profiles("drive", "raid", "nfs", "pfs", "nvmeof", "remote"),
        "--platforms": lambda: _profiles("platform"),
        "ID": _profiles,
        "KIND": _kinds,
        "--by": _paths,
    }
    if option in _ASSIGNED:
        return lambda **_: [f"{path}=" for path in _paths()]
    find = names.get(option) or names.get(str(action.metavar))
    if find is None or action.choices is not None:
        return None
    return lambda **_: find()


def _scenarios() -> Iterable[str]:
    from simoffload.scenario import list_scenarios

    return list_scenarios()


def _models() -> Iterable[str]:
    from simoffload.models import list_models

    return list_models()


def _profiles(*kinds: str) -> list[str]:
    from simoffload.hardware import Library

    pairs = (one.split("/", 1) for one in Library().names())
    return sorted(name for kind, name in pairs if not kinds or kind in kinds)


def _kinds() -> Iterable[str]:
    from simoffload.hardware import KINDS

    return KINDS


def _paths() -> list[str]:
    """Return the paths of the keys of a scenario, those of every program included."""
    from simoffload.cli.schemas import schema_of

    schema = schema_of("scenario")
    return sorted(set(_within(schema, schema["$defs"], "", _DEEPEST)))


def _within(node: Mapping[str, Any], definitions: Mapping[str, Any], at: str, deep: int) -> Iterator[str]:
    """Yield the paths of the values within a node of a JSON schema."""
    if "$ref" in node:
        node = definitions[node["$ref"].rpartition("/")[2]]
    choices = [one for key in ("anyOf", "oneOf") for one in node.get(key, ())]
    for one in choices:
        yield from _within(one, definitions, at, deep)
    keys = node.get("properties", {})
    if at and not keys and not choices:
        yield at
    if deep:
        for key, inner in keys.items():
            yield from _within(inner, definitions, f"{at}.{key}" if at else key, deep - 1)
