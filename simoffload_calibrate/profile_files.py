"""``simoffload detect`` and ``profiles import``: profiles from what a machine or a tool says."""

from __future__ import annotations

import argparse
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from simoffload.cli.console import Console, ExitCode
from simoffload.cli.option_types import add_json, size
from simoffload.errors import InputError

if TYPE_CHECKING:
    from simoffload_calibrate.importers.measured_profiles import MeasuredProfile

_FORMATS = ("fio", "nvbandwidth", "ds-io", "elbencho", "llama-bench", "aiconfigurator")


# -- ``simoffload profiles import`` ----------------------------------------------------------------
# A profile from the output of a benchmark tool.


def add_import(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``profiles import``."""
    parser.add_argument("format", metavar="FORMAT", choices=_FORMATS, help=", ".join(_FORMATS))
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        type=Path,
        help="output files of the tool; for aiconfigurator the folder of a system, and of others that lend "
        "the tables that it lacks",
    )
    parser.add_argument("--id", required=True, metavar="ID", help="id of the new profile")
    parser.add_argument(
        "--from",
        dest="base",
        metavar="PROFILE_ID",
        help="profile of the kind to make that provides all other numbers",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the profile to FILE instead of standard output",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    parser.add_argument(
        "--buffer-size", type=size, metavar="SIZE", help='the --bufferSize of nvbandwidth, such as "512 MiB"'
    )
    add_json(parser)
    parser.set_defaults(command=import_profile)


def import_profile(arguments: Namespace, console: Console) -> ExitCode:
    """Make a profile from the output of a benchmark tool; print it, or write it to the file of ``-o``."""
    from simoffload.exchange.files import replacing
    from simoffload_calibrate.importers.measured_profiles import import_profile as imported

    output: Path | None = arguments.output
    if output is not None:
        check_target(output, overwrite=arguments.overwrite)
    elif arguments.overwrite:
        raise InputError.at("", "there is nothing to overwrite; name a file with -o", path="--overwrite")
    profile = imported(
        arguments.format,
        arguments.files,
        identifier=arguments.id,
        base=arguments.base,
        size=arguments.buffer_size,
    )
    console.warn(profile.warnings)
    if output is not None:
        with replacing(output) as file:
            file.write(profile.text)
    _print_import(profile, output, console)
    return ExitCode.OK


def _print_import(profile: MeasuredProfile, output: Path | None, console: Console) -> None:
    data = {
        "schema": "simoffload/profile-import/1",
        "kind": profile.kind,
        "file": None if output is None else str(output),
        "measured": list(profile.measured),
        "kept": list(profile.kept),
        "estimated": list(profile.estimated),
        "left_out": list(profile.left_out),
        "warnings": list(profile.warnings),
        "text": profile.text,
    }
    if output is None:
        console.answer(profile.text, data)
    elif console.as_json:
        console.answer("", data)
    else:
        console.print_lines(f"{output}: {profile.kind}, measured: {', '.join(profile.measured)}")


def check_target(output: Path, *, overwrite: bool) -> None:
    """Raise InputError unless a profile can be written to a file, which exists only with ``overwrite``."""
    from simoffload.exchange.files import check_target as check_place

    if output.suffix not in {".yaml", ".yml"}:
        raise InputError.at("", "the name of a profile must end in .yaml or .yml", path=str(output))
    check_place(output)
    if output.exists() and not overwrite:
        raise InputError.at("", "exists; name another file or give --overwrite", path=str(output))


# -- ``simoffload detect`` -------------------------------------------------------------------------
# A platform file for this machine from what it says of itself.


def add_detect(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``detect``."""
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the platform to FILE instead of standard output",
    )
    parser.add_argument("--overwrite", "--force", action="store_true", help="replace FILE if it exists")
    parser.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help="describe a recorded machine: DIR has its /proc and /sys, and commands/lspci.txt and so on",
    )
    add_json(parser)
    parser.set_defaults(command=detect)


def detect(arguments: Namespace, console: Console) -> ExitCode:
    """Print the platform file, or write it to the file of ``-o``, and say what was assumed and not seen."""
    from simoffload.exchange.files import replacing
    from simoffload.hardware import id_fault
    from simoffload_calibrate.detect import detect_machine

    output: Path | None = arguments.output
    if output is not None:
        output = output if output.suffix else output.with_name(f"{output.name}.yaml")
        check_target(output, overwrite=arguments.overwrite)
    elif arguments.overwrite:
        raise InputError.at("", "there is nothing to overwrite; name a file with -o", path="--overwrite")
    root: Path | None = arguments.root
    if root is not None and not root.is_dir():
        raise InputError.at("", "is not a folder with the files of a recorded machine", path=str(root))
    name = output.stem.lower() if output is not None else "machine"
    found = detect_machine(root, identifier="machine" if id_fault(name) else name)
    if output is not None:
        with replacing(output) as file:
            file.write(found.text)
    lines = [
        *(f"seen: {one}" for one in found.seen),
        *(f"assumed: {one}" for one in found.assumed),
        *(f"not seen: {one}" for one in found.not_seen),
    ]
    data = {
        "schema": "simoffload/detect/1",
        "file": None if output is None else str(output),
        "seen": list(found.seen),
        "assumed": list(found.assumed),
        "not_seen": list(found.not_seen),
        "text": found.text,
    }
    if output is not None:
        lines += [f"{output}: platform; check it, then use it with --set platform={output}"]
        console.answer("\n".join(lines), data)
    else:
        for line in lines:
            console.note(line)
        console.answer(found.text, data)
    return ExitCode.OK
