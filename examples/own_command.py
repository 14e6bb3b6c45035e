"""A command of your own: the time for a number of tokens, such as ``overnight ddn/bloom-7b1 --tokens 1e6``.

``python own_command.py overnight ddn/bloom-7b1`` runs it. An entry point of the group ``simoffload`` that
names ``EXTENSION`` makes it a command of ``simoffload`` itself.
"""

import argparse

import simoffload as so
from simoffload.cli import main
from simoffload.cli.console import Console, ExitCode
from simoffload.cli.option_types import add_json, add_model, add_overrides, add_parts
from simoffload.cli.sources import CommandChanges, load
from simoffload.extending import Command, Extension, register


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("scenario", metavar="SCENARIO", nargs="?")
    parser.add_argument("--tokens", type=float, default=1e6, metavar="N", help="tokens to generate")
    add_model(parser)
    add_parts(parser)
    add_overrides(parser)
    add_json(parser)
    parser.set_defaults(command=overnight)


def overnight(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Print how long the tokens take."""
    changes = CommandChanges.of(arguments, model=arguments.model)
    result = so.simulate(load(arguments.scenario, changes, console=console))
    if not result.fits:
        console.answer("it does not fit; ask simoffload fit", {"fits": False})
        return ExitCode.DOES_NOT_FIT
    hours = arguments.tokens / result.tokens_per_s / 3600
    console.answer(f"{arguments.tokens:,.0f} tokens take {hours:.2f} h", {"fits": True, "hours": hours})
    return ExitCode.OK


EXTENSION = Extension(
    commands={
        "overnight": Command("tell how long a number of tokens takes", f"{__name__}:add", "How many users?")
    },
    examples={"overnight": "overnight qwen3-8b --gpu rtx-4090 --tokens 1e6"},
)

if __name__ == "__main__":
    register("overnight", EXTENSION)
    raise SystemExit(main())
