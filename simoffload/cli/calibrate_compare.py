"""``simoffload calibrate compare``: recorded runs beside predictions."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from simoffload.cli.console import Console, Progress
from simoffload.cli.exit_codes import ExitCode
from simoffload.cli.option_types import SubParsers
from simoffload.errors import InputError, Problem

__all__ = ["add", "run"]

_TEXT = "predict recorded runs and set the predictions beside them"
_DESCRIPTION = """\
Predict every run of the files that "calibrate deepspeed" wrote and set the prediction beside what was
measured, with a naive one: bytes over bandwidth. The platform is platform.yaml beside a file or in profile/
beside it (what "calibrate micro" wrote), else the shipped platform with such a GPU.
"""


def add(actions: SubParsers) -> ArgumentParser:
    """Register the command."""
    parser: ArgumentParser = actions.add_parser(
        "compare", help=_TEXT, description=_DESCRIPTION, allow_abbrev=False
    )
    parser.add_argument("runs", metavar="RUNS", nargs="+", type=Path, help="runs.json of calibrate deepspeed")
    parser.add_argument("--platform", metavar="PATH|ID", help="predict all files with this platform")
    parser.add_argument(
        "--streams", action="store_true", help="also one decode step stream by stream and layer by layer"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    parser.set_defaults(command=run)
    return parser


def run(arguments: Namespace, console: Console) -> ExitCode:
    """Compare the files; what cannot be predicted is a row with its reason."""
    from simoffload.calibration.compare import compare_file, comparison_text, to_dict

    files = []
    problems: list[Problem] = []
    with Progress(console) as progress:
        for path in arguments.runs:
            try:
                files.append(compare_file(path, platform=arguments.platform, progress=progress))
            except InputError as error:
                problems += error.problems
    if problems:
        raise InputError(dict.fromkeys(problems))
    console.answer(comparison_text(files, streams=arguments.streams), to_dict(files))
    return ExitCode.OK
