"""Types of option values, and options that several commands share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from simoffload.errors import InputError, shortened
from simoffload.limits import Limits


class SubParsers(Protocol):
    """The return type of argparse's ``add_subparsers``, which has no public name."""

    def add_parser(self, name: str, **options: Any) -> Any:
        """Make the parser of a command."""


class Options(Protocol):
    """Anything that options can be added to."""

    def add_argument(self, *names: str, **options: Any) -> Any:
        """Add an option with its names and properties."""


def add_json(parser: Options) -> None:
    """Add the option ``--json``, which every command has."""
    text = "print one JSON document on standard output, also for errors"
    parser.add_argument("--json", action="store_true", help=text)


def add_overrides(parser: Options) -> None:
    """Add the option ``--set``, and those that are short for ``--set engine.…``."""
    text = "replace or add a value of the scenario, such as workload.batch_size=8; may be repeated"
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help=text
    )
    _add_limits(parser, "max_events", *LIMITS)


def add_model(parser: Options) -> None:
    """Add the option for another model than that of the scenario."""
    text = "another model; it may take the place of SCENARIO"
    parser.add_argument("--model", metavar="NAME", help=text)
    add_program(parser)


def add_program(parser: Options) -> None:
    """Add the option for another program than that of the scenario."""
    text = "the program: vllm, llama_cpp, transformers, accelerate, deepspeed, fsdp, flexgen, gpt_fast, or "
    text += "best, the fastest of those that people use (the default where a model is named)"
    parser.add_argument("--program", action=Once, metavar="NAME", help=text)


class Once(argparse.Action):
    """An option that is refused the second time, instead of replacing what was given before; ``const`` says
    why."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> None:
        """Keep the value, or refuse it if there is one already."""
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option} is given twice" + (f"; {self.const}" if self.const else ""))
        setattr(namespace, self.dest, values)


WRITTEN = "result.json, report.html, report.md and report.json"
"""The files of an answer."""


def add_costs(parser: Options) -> None:
    """Add the option for a file of prices and powers."""
    text = "your own prices and powers, which replace or extend the shipped ones (docs/costs.md)"
    parser.add_argument("--costs", type=Path, metavar="FILE", help=text)


def add_output(parser: Options, holds: str = WRITTEN, *, also: str = "") -> None:
    """Add the option for a folder that an answer is written into, which ``holds`` these files, and the one
    that replaces ``also`` other files."""
    parser.add_argument("--output-dir", type=Path, metavar="DIR", help=f"write {holds} into this folder")
    about = "write into DIR even if it contains other files, which are kept"
    about += f"; replace {also}" if also else ""
    parser.add_argument("--overwrite", action="store_true", help=about)


_DRIVE = "a drive, several (4xID), an array or a server as storage (profiles list)"


def add_parts(parser: Options, *, offers: bool = False) -> None:
    """Add the options that replace parts of the machine, and the one for the room for tokens; with ``offers``
    several drives may be named, each of which is compared with the others."""
    for option, metavar, about in (
        ("--gpu", "ID", "another GPU; a model that is named alone gets the smallest shipped machine with it"),
        ("--memory", "SIZE", "host memory as its modules are sold: 64GB, which have 64 GiB"),
    ):
        why = "compare MODEL --platforms ID,ID compares machines" if offers and option == "--gpu" else None
        parser.add_argument(option, action=Once, const=why, metavar=metavar, help=about)
    if offers:
        about = f"{_DRIVE}; several, separated by commas, are offers: each gets a row"
        parser.add_argument("--drive", type=listed, action="extend", metavar="ID,…", help=about)
    else:
        parser.add_argument("--drive", action=Once, metavar="ID", help=_DRIVE)
    parser.add_argument(
        "--gpus", type=count_or_none, action=Once, metavar="N", help="number of GPUs to use; 0: the CPU alone"
    )
    about = "tokens of a sequence, prompt and output included, for which memory must have room"
    parser.add_argument("--context", type=count, action=Once, metavar="N", help=about)


LIMITS = ("timeout", "memory")
"""Keys of ``engine`` that limit any command that reads files."""


def add_limits(parser: Options) -> None:
    """Add the options that limit time and memory of a command without ``--set``."""
    _add_limits(parser, *LIMITS)


def _add_limits(parser: Options, *keys: str) -> None:
    for option, key, metavar, about in (
        (
            "--max-events",
            "max_events",
            "N",
            "refuse a pass with more operations, including those that need not be simulated",
        ),
        (
            "--timeout",
            "timeout",
            "TIME",
            'stop a scenario that takes longer than this, such as "10 min", including planning',
        ),
        (
            "--memory-limit",
            "memory",
            "SIZE",
            "stop a scenario that needs more memory (at least 256 MiB, default 4 GiB)",
        ),
    ):
        if key not in keys:
            continue
        parser.add_argument(
            option,
            action="append",
            default=[],
            dest="overrides",
            metavar=metavar,
            type=partial(_limit, key),
            help=about,
        )


def _limit(key: str, text: str) -> str:
    from simoffload.documents import Document, set_value, validate
    from simoffload.scenario import EngineOptions

    assignment = f"engine.{key}={text}"
    try:
        validate(set_value(Document("", {}), assignment), EngineOptions, at=("engine",))
    except InputError as error:
        raise argparse.ArgumentTypeError(error.problems[0].message) from None
    return assignment


def given_limits(overrides: Sequence[str]) -> Limits:
    """Return the limits among assignments, which hold even before the scenario is read; what is wrong in them
    is told where they are applied."""
    from pydantic import ValidationError

    from simoffload.documents import Document, set_value
    from simoffload.scenario import EngineOptions

    document = Document("", {})
    for assignment in overrides:
        if assignment.lstrip().startswith("engine"):  # a key, or the whole section
            with suppress(InputError):
                document = set_value(document, assignment)
    try:
        return EngineOptions.model_validate(document.data.get("engine", {})).limits
    except ValidationError:
        return Limits()


def listed(text: str) -> tuple[str, ...]:
    """Split ``a,b,c``. Raises ArgumentTypeError for an empty entry."""
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise argparse.ArgumentTypeError(
            f'"{shortened(text)}" has an empty entry; separate names by single commas'
        )
    return parts


def size(text: str) -> int:
    """Read a size [B], as "512 MiB"."""
    from simoffload.units import parse_bytes

    try:
        number = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not number:
        raise argparse.ArgumentTypeError("must be above 0")
    return number


def count_or_none(text: str) -> int:
    """Read a whole number, or zero."""
    try:
        return 0 if text == "0" else count(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(str(error).replace("above 0", "from 0")) from None


_DIGITS = 9
"""Most digits of a count."""


def count(text: str) -> int:
    """Read a whole number above zero."""
    if not text.isascii() or not text.isdigit() or not text.strip("0"):
        from simoffload.units import written_out

        hint = written_out(text)
        raise argparse.ArgumentTypeError(f'"{shortened(text)}" is not a whole number above 0{hint}')
    if len(text) > _DIGITS:
        raise argparse.ArgumentTypeError(f'"{shortened(text)}" has more than {_DIGITS} digits')
    return int(text)


def seconds(text: str) -> float:
    """Read a time [s] above zero."""
    return positive(text, text, "a time in seconds above 0")


def positive(text: str, digits: str, what: str) -> float:
    """Read the ``digits`` of an argument as a number above zero; ``what`` says what was expected."""
    try:
        number = float(digits)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f'"{shortened(text)}" is not {what}')
    return number


def gpu_count(text: str) -> int:
    """Return a number of GPUs."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f'"{shortened(text)}" is not a number of GPUs from 1 to 64')
    return int(text)


def port(text: str) -> int:
    """Return the number of a port."""
    if not text.isascii() or not text.isdigit() or int(text[:6]) > 65_535:
        raise argparse.ArgumentTypeError(f'"{shortened(text)}" is not a port from 0 to 65535')
    return int(text)
