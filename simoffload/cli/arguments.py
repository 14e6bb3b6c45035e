"""The commands and options that the program understands."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, Protocol

import simoffload
from simoffload.cli import (
    advising,
    calibrate_compare,
    calibrate_deepspeed,
    calibrate_micro,
    catalogue,
    checking,
    comparing,
    fitting,
    importing,
    running,
    schemas,
    sweeping,
)
from simoffload.cli.option_types import add_limits, amount, count, listed, size
from simoffload.errors import InputError, Problem, shortened

__all__ = ["parse", "program"]

_DESCRIPTION = "Simulate offloading large language models to CPU memory, drives and file servers."
_EPILOG = """\
example:
  simoffload compare ddn/bloom-7b1 --on gpu,dram,raid,nfs,ai400x2

A SCENARIO is a YAML or JSON file, the name of a shipped scenario (simoffload scenarios list), "-" for
standard input or, for run, fit and compare, the name of a model (simoffload models list). Exit status:
0 done, 1 the simulation could not finish, 2 bad input, 3 does not fit, 130 interrupted.
"""
_SET = "replace or add a value of the scenario, as workload.batch_size=8; may be repeated"
_JSON = "print one JSON document on standard output, errors too"
_WRITTEN = "result.json, report.html, report.md, report.json and table.csv"
_FORMATS = ("fio", "nvbandwidth", "ds-io", "elbencho")
_TARGETS = "where the weights go: tiers of the platform; platform:tier for it and those after it on another"


class _Parser(argparse.ArgumentParser):
    """Raises InputError with one line instead of printing a usage page and leaving."""

    def error(self, message: str) -> NoReturn:
        text = f"{_one_line(message)}; see {self.prog} --help"
        raise InputError((Problem(self.prog, None, None, "", text),))

    def _print_message(self, message: str, file: Any = None) -> None:
        """Argparse's own would be silent where the output cannot be written."""
        (file or sys.stdout).write(message)


def _one_line(message: str) -> str:
    """Argparse's complaint; for an unknown command the nearest ones instead of a list of Python reprs."""
    unknown, found, choices = message.partition(" (choose from ")
    if not found:
        return re.sub(r"\S+", lambda word: shortened(word[0]), message)
    word = unknown.rpartition(": ")[2].strip("'")
    names = [choice.strip(" ')") for choice in choices.split(",")]
    near = get_close_matches(word[:40], names, n=1)
    return f'"{shortened(word)}" is not one of {", ".join(names)}' + (
        f'; did you mean "{near[0]}"?' if near else ""
    )


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; ``command`` is the function that does the work, ``line`` what was typed.

    Raises InputError for what it does not understand and SystemExit after ``--help`` and ``--version``.
    """
    arguments = program().parse_args(argv)
    line = shlex.join(["simoffload", *argv])
    arguments.line = line.encode(errors="backslashreplace").decode()  # names need not be UTF-8, pages are
    return arguments


def program() -> argparse.ArgumentParser:
    """All commands and options."""
    parser = _Parser(
        prog="simoffload",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"simoffload {simoffload.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_run(commands)
    _add_compare(commands)
    _add_fit(commands)
    _add_advise(commands)
    _add_check(commands)
    _add_profiles(commands)
    _add_scenarios(commands)
    _add_models(commands)
    _add_schema(commands)
    sweeping.add(commands, set_help=_SET, json_help=_JSON)
    _add_calibrate(commands)
    return parser


class _Commands(Protocol):
    """What ``add_subparsers`` returns: argparse gives its type no public name."""

    def add_parser(self, name: str, *, help: str, description: str, allow_abbrev: bool) -> _Parser: ...  # noqa: A002


def _command(commands: _Commands, name: str, text: str) -> _Parser:
    description = f"{text[0].upper()}{text[1:]}."
    return commands.add_parser(name, help=text, description=description, allow_abbrev=False)


def _add_overrides(parser: _Parser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help=_SET
    )
    parser.add_argument("--json", action="store_true", help=_JSON)


def _add_output(parser: _Parser, holds: str) -> None:
    parser.add_argument("--output-dir", type=Path, metavar="DIR", help=f"write {holds} into this folder")
    parser.add_argument(
        "--overwrite", action="store_true", help="use DIR even if it holds other files; they stay"
    )


def _add_costs(parser: _Parser) -> None:
    text = "prices and powers of your own, laid over the shipped ones (docs/costs.md)"
    parser.add_argument("--costs", type=Path, metavar="FILE", help=text)


def _add_run(commands: _Commands) -> None:
    parser = _command(commands, "run", "simulate a scenario: does it fit, how fast, and why not faster")
    parser.add_argument("scenario", metavar="SCENARIO")
    _add_overrides(parser)
    add_limits(parser)
    _add_costs(parser)
    _add_output(parser, _WRITTEN)
    parser.add_argument(
        "--explain", action="store_true", help="also what the result hangs on, its range, and faster storage"
    )
    parser.add_argument("--trace", action="store_true", help="also write trace.json, for ui.perfetto.dev")
    parser.set_defaults(command=running.run)


def _add_compare(commands: _Commands) -> None:
    parser = _command(commands, "compare", "simulate several scenarios, or one on several targets")
    parser.add_argument("scenarios", metavar="SCENARIO", nargs="+")
    parser.add_argument("--on", type=listed, metavar="TARGET,…", help=_TARGETS)
    parser.add_argument(
        "--strategy",
        action="append",
        default=[],
        metavar="FILE",
        help="also with what this file holds in place of the section strategy; without ranks: the "
        "scenario's; may be repeated",
    )
    parser.add_argument("--baseline", metavar="NAME", help="what ratios refer to (default: the first)")
    _add_overrides(parser)
    add_limits(parser)
    _add_costs(parser)
    _add_output(parser, _WRITTEN)
    parser.set_defaults(command=comparing.compare)


def _add_advise(commands: _Commands) -> None:
    text = "say what would help, at what price: drives, memory, cables, batch, settings"
    parser = _command(commands, "advise", text)
    parser.add_argument("scenario", metavar="SCENARIO")
    parser.add_argument("--on", type=listed, metavar="TARGET", help=_TARGETS)
    parser.add_argument("--search", action="store_true", help="also look through the catalogue of storage")
    parser.add_argument("--budget", type=amount, metavar="AMOUNT", help="most that a purchase may cost")
    parser.add_argument(
        "--slo",
        action="append",
        default=[],
        metavar="METRIC=LIMIT",
        help="a service level that purchases must keep, as tpot=200ms; may be repeated",
    )
    parser.add_argument(
        "--objective",
        choices=("throughput", "cost"),
        default="throughput",
        help="what the best purchase is: the fastest (default), or the cheapest for its work",
    )
    parser.add_argument("--platforms", type=listed, metavar="ID,…", help="look at these machines, too")
    parser.add_argument(
        "--method",
        choices=("grid", "optuna"),
        help="try all, or what NSGA-II chooses (default: by their number)",
    )
    parser.add_argument("--trials", type=count, default=200, metavar="N", help="of optuna (default: 200)")
    _add_overrides(parser)
    add_limits(parser)
    _add_costs(parser)
    _add_output(parser, f"{_WRITTEN} and the recommended scenarios")
    parser.set_defaults(command=advising.advise)


def _add_fit(commands: _Commands) -> None:
    parser = _command(commands, "fit", "say what each tier must hold and whether it can, without simulating")
    parser.add_argument("scenarios", metavar="SCENARIO", nargs="+")
    parser.add_argument("--on", type=listed, metavar="TARGET,…", help=_TARGETS)
    questions = parser.add_mutually_exclusive_group()
    questions.add_argument(
        "--machines", action="store_true", help="how many machines it takes, without offload and with it"
    )
    questions.add_argument(
        "--largest", action="store_true", help="the largest batch, context and model that fit"
    )
    _add_overrides(parser)
    add_limits(parser)
    parser.set_defaults(command=fitting.fit)


def _add_check(commands: _Commands) -> None:
    parser = _command(commands, "check", "check files: scenarios, profiles, ds_config.json, config.json")
    parser.add_argument("files", metavar="FILE", nargs="+", help="or the name of something shipped, or -")
    parser.add_argument("--json", action="store_true", help=_JSON)
    parser.set_defaults(command=checking.check)


def _add_profiles(commands: _Commands) -> None:
    parser = _command(commands, "profiles", "list, show, check or import hardware profiles")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = _command(actions, "list", "list the shipped profiles")
    listing.add_argument("kind", metavar="KIND", nargs="?", help="accelerator, host, drive, platform …")
    showing = _command(actions, "show", "print every number of a profile with its origin, source and date")
    showing.add_argument("profile", metavar="ID", help="an id, kind/id where several share it, or a file")
    checked = _command(actions, "check", "check profile files and what they refer to")
    checked.add_argument("files", metavar="FILE", nargs="+", help="or the id of a shipped profile")
    _finish(
        (listing, catalogue.list_profiles),
        (showing, catalogue.show_profile),
        (checked, checking.check_profiles),
        (_add_import(actions), importing.import_profile),
    )


def _add_import(actions: _Commands) -> _Parser:
    parser = _command(actions, "import", "make a profile from what fio and other tools measured")
    parser.add_argument("format", metavar="FORMAT", choices=_FORMATS, help=", ".join(_FORMATS))
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="what the tool wrote")
    parser.add_argument("--id", required=True, metavar="ID", help="id of the new profile")
    parser.add_argument(
        "--from", dest="base", metavar="PROFILE_ID", help="the drive or pcie profile with all other numbers"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it there, not to the screen")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    parser.add_argument(
        "--buffer-size", type=size, metavar="SIZE", help='nvbandwidth\'s --bufferSize, e.g. "512 MiB"'
    )
    return parser


def _add_scenarios(commands: _Commands) -> None:
    parser = _command(commands, "scenarios", "list the shipped scenarios")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = _command(actions, "list", "list the shipped scenarios")
    _finish((listing, catalogue.list_scenarios))


def _add_models(commands: _Commands) -> None:
    parser = _command(commands, "models", "list models or show one module by module")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = _command(actions, "list", "list the models that are known by name")
    showing = _command(actions, "show", "print the modules of a model with their parameters")
    showing.add_argument("model", metavar="NAME", help="a name, or the path of a Hugging Face config.json")
    _finish((listing, catalogue.list_models), (showing, catalogue.show_model))


def _add_schema(commands: _Commands) -> None:
    parser = _command(commands, "schema", "print a JSON schema, with which editors complete and check files")
    kinds = "; ".join(f"{kind}: {what}" for kind, what in schemas.SCHEMAS.items())
    parser.add_argument("kind", metavar="KIND", choices=schemas.SCHEMAS, help=kinds)
    _finish((parser, schemas.print_schema))


def _add_calibrate(commands: _Commands) -> None:
    parser = _command(
        commands, "calibrate", "measure this machine, run real DeepSpeed, compare with predictions"
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    calibrate_micro.add(actions)
    calibrate_deepspeed.add(actions)
    calibrate_compare.add(actions)


def _finish(*actions: tuple[_Parser, catalogue.Command]) -> None:
    for parser, command in actions:
        parser.add_argument("--json", action="store_true", help=_JSON)
        parser.set_defaults(command=command)
