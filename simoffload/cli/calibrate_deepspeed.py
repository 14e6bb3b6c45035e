"""``simoffload calibrate deepspeed``: real runs on this machine."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from simoffload.cli.console import Console
from simoffload.cli.exit_codes import ExitCode
from simoffload.cli.option_types import SubParsers, seconds, size

__all__ = ["add", "run"]

_TEXT = "run real ZeRO-3 offload of models with random weights and record it"
_DESCRIPTION = """\
Run real ZeRO-3 offload of models with random weights on this machine and record times, module by module,
and every storage operation. RUNS are files written like scenarios (what they say of a platform is
ignored), or lists of such under "runs:". Needs torch, transformers and deepspeed (extra "calibrate").
"""


def add(actions: SubParsers) -> ArgumentParser:
    """Register the command."""
    parser: ArgumentParser = actions.add_parser(
        "deepspeed", help=_TEXT, description=_DESCRIPTION, allow_abbrev=False
    )
    parser.add_argument("runs", metavar="RUNS", nargs="+", type=Path, help="what to run")
    parser.add_argument("-o", "--output-dir", required=True, type=Path, metavar="DIR", help="an empty folder")
    parser.add_argument(
        "--swap-dir", type=Path, metavar="DIR", help="empty folder for swap files (default: DIR/swap)"
    )
    parser.add_argument(
        "--max-size", type=size, default=64 * 1024**3, metavar="SIZE", help="of swap files (default: 64 GiB)"
    )
    parser.add_argument("--case-time", type=seconds, default=600.0, metavar="S", help="limit of one run [s]")
    parser.add_argument("--time", type=seconds, default=86_400.0, metavar="S", help="limit of all runs [s]")
    parser.add_argument("--no-trace", action="store_true", help="times of passes only, not of modules")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run and written, and stop")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    parser.set_defaults(command=run)
    return parser


def run(arguments: Namespace, console: Console) -> ExitCode:
    """Run the cases; status 1 if one of them failed."""
    from simoffload.calibration.deepspeed.launch import LaunchSettings, check, describe, run_cases
    from simoffload.calibration.runs import read_requests

    cases = read_requests(arguments.runs)
    settings = LaunchSettings(
        folder=arguments.output_dir,
        swap_folder=arguments.swap_dir or arguments.output_dir / "swap",
        largest=arguments.max_size,
        seconds_per_case=arguments.case_time,
        seconds=arguments.time,
        trace=not arguments.no_trace,
    )
    plan = describe(cases, settings)
    if arguments.dry_run:
        missing = check(cases, settings)
        console.warn([missing] if missing else [])
        console.answer(plan, {"schema": "simoffload/calibrate-deepspeed/1", "plan": plan.splitlines()})
        return ExitCode.OK
    console.note(plan)
    outcome = run_cases(cases, settings, progress=console.note)
    for name, why in outcome.failed:
        console.note(f"failed: {name}: {why}")
    data = {
        "schema": "simoffload/calibrate-deepspeed/1",
        "file": str(outcome.file),
        "done": outcome.done,
        "failed": [{"name": name, "error": why} for name, why in outcome.failed],
    }
    console.answer(f"{outcome.done} of {len(cases)} run(s) recorded in {outcome.file}", data)
    return ExitCode.FAILED if outcome.failed else ExitCode.OK
