"""``simoffload profiles import``: a profile from the output of a benchmark tool."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from simoffload.cli.console import Console
from simoffload.cli.exit_codes import ExitCode
from simoffload.errors import InputError, Problem

if TYPE_CHECKING:
    from simoffload.exchange.measured_profiles import MeasuredProfile

__all__ = ["import_profile"]


def import_profile(arguments: Namespace, console: Console) -> ExitCode:
    """Print the profile, or write it to the file of ``-o``."""
    from simoffload.exchange.files import replacing
    from simoffload.exchange.measured_profiles import import_profile as imported

    output: Path | None = arguments.output
    if output is not None:
        _check(output, overwrite=arguments.overwrite)
    elif arguments.overwrite:
        raise _refusal("--overwrite", "nothing to overwrite; name a file with -o")
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
    _answer(profile, output, console)
    return ExitCode.OK


def _answer(profile: MeasuredProfile, output: Path | None, console: Console) -> None:
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


def _check(output: Path, *, overwrite: bool) -> None:
    from simoffload.documents import exists

    if output.suffix not in {".yaml", ".yml"}:
        raise _refusal(str(output), "the name of a profile must end in .yaml or .yml")
    there = exists(output)
    if output.is_symlink() or (there and not output.is_file()):
        raise _refusal(str(output), "is not a plain file; name another")
    if there and not overwrite:
        raise _refusal(str(output), "exists; name another file or give --overwrite")
    if not output.parent.is_dir():
        raise _refusal(str(output), "its folder does not exist; make it first")


def _refusal(path: str, message: str) -> InputError:
    return InputError((Problem(path, None, None, "", message),))
