"""``simoffload calibrate``: measure this machine, run real programs on it, compare with predictions."""

from __future__ import annotations

import argparse
from argparse import Namespace
from pathlib import Path

from simoffload.cli.console import Console, ExitCode, Waiting
from simoffload.cli.option_types import SubParsers, add_json, gpu_count, seconds, size
from simoffload.errors import InputError, Problem
from simoffload.progress import steps
from simoffload.units import plural
from simoffload_calibrate.micro.command import add_micro


def add(parser: argparse.ArgumentParser) -> None:
    """Register the actions of ``calibrate``."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    add_micro(actions)
    _add_deepspeed(actions)
    _add_vllm(actions)
    _add_compare(actions)


_DEEPSPEED = "run real ZeRO-3, FSDP or Accelerate with random weights and record the times"
_DEEPSPEED_DESCRIPTION = """\
Run models with random weights on this machine and record their times: under ZeRO-3 of all modules and
storage operations, under FSDP (strategy.kind fsdp) of training steps and their parts, under Accelerate
(accelerate) and transformers' tensor parallelism (transformers) of passes. RUNS are files written like
scenarios (their platform is ignored), or lists of them under "runs:". Needs torch, transformers and, but for
FSDP, deepspeed or accelerate (extra "calibrate").
"""


def _add_deepspeed(actions: SubParsers) -> None:
    parser = _add_runs(actions, "deepspeed", _DEEPSPEED, _DEEPSPEED_DESCRIPTION)
    parser.add_argument(
        "--swap-dir", type=Path, metavar="DIR", help="empty folder for swap files (default: DIR/swap)"
    )
    largest = "largest size of swap files (default: 64 GiB)"
    parser.add_argument("--max-size", type=size, default=64 * 1024**3, metavar="SIZE", help=largest)
    ranks = "use N processes, each with one GPU, instead of strategy.ranks of every run"
    parser.add_argument("--ranks", type=gpu_count, metavar="N", help=ranks)
    parser.add_argument("--no-trace", action="store_true", help="record times of passes only, not of modules")


_VLLM = "run real vLLM with random weights and record the times of steps and of streams of requests"
_VLLM_DESCRIPTION = """\
Run engines of vLLM with random weights on this machine and record the times of their steps, with the section
"stream" those of every request. RUNS are files written like scenarios (their platform is ignored), or lists
of them under "runs:", whose strategy.kind is vllm. Runs with equal models, strategies and limits share an
engine. Needs vllm in the same Python.
"""


def _add_vllm(actions: SubParsers) -> None:
    parser = _add_runs(actions, "vllm", _VLLM, _VLLM_DESCRIPTION)
    quick = "time each batch once, with fewer CUDA graphs, for a first look"
    parser.add_argument("--quick", action="store_true", help=quick)


def _add_runs(actions: SubParsers, name: str, about: str, description: str) -> argparse.ArgumentParser:
    """Register an action that makes runs, with the options that all of these have."""
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=about, description=description, allow_abbrev=False
    )
    parser.add_argument("runs", metavar="RUNS", nargs="+", type=Path, help="files that say what to run")
    folder = "an empty folder; with --resume, that of the runs to continue"
    parser.add_argument("-o", "--output-dir", required=True, type=Path, metavar="DIR", help=folder)
    parser.add_argument(
        "--case-time", type=seconds, default=600.0, metavar="S", help="time limit of one run [s]"
    )
    parser.add_argument(
        "--time", type=seconds, default=86_400.0, metavar="S", help="time limit of all runs [s]"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the runs that were recorded, and make the others"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be run and written, and stop"
    )
    add_json(parser)
    usual = {"swap_dir": None, "max_size": 0, "ranks": None, "no_trace": False, "quick": False}
    parser.set_defaults(command=calibrate_runs, program=name, **usual)
    return parser


def calibrate_runs(arguments: Namespace, console: Console) -> ExitCode:
    """Make the runs; the status is 1 if one of them failed."""
    from simoffload_calibrate.launch import LaunchSettings, check, describe, run_cases
    from simoffload_calibrate.runs import read_requests

    program = arguments.program
    cases = read_requests(arguments.runs, ranks=arguments.ranks, served=program == "vllm")
    settings = LaunchSettings(
        folder=arguments.output_dir,
        swap_folder=arguments.swap_dir or arguments.output_dir / "swap",
        largest=arguments.max_size,
        seconds_per_case=arguments.case_time,
        seconds=arguments.time,
        trace=not arguments.no_trace,
        quick=arguments.quick,
        resume=arguments.resume,
    )
    plan, schema = describe(cases, settings), f"simoffload/calibrate-{program}/1"
    if arguments.dry_run:
        missing = check(cases, settings)
        console.warn([missing] if missing else [])
        console.answer(plan, {"schema": schema, "plan": plan.splitlines()})
        return ExitCode.OK
    console.note(plan)
    outcome = run_cases(cases, settings, progress=console.note)
    for name, why in outcome.failed:
        console.note(f"failed: {name}: {why}")
    data = {
        "schema": schema,
        "file": str(outcome.file),
        "done": outcome.done,
        "failed": [{"name": name, "error": why} for name, why in outcome.failed],
    }
    console.answer(f"{outcome.done} of {plural(len(cases), 'run')} recorded in {outcome.file}", data)
    return ExitCode.FAILED if outcome.failed else ExitCode.OK


_COMPARE = "predict recorded runs and compare predictions with measurements"
_COMPARE_DESCRIPTION = """\
Predict every run in files of "calibrate deepspeed" and "calibrate vllm" and compare the prediction and its
80 % interval with the measurement, and that of DeepSpeed with a naive one: bytes over bandwidth. The platform
is platform.yaml in the folder of a file or in profile/ there (written by "calibrate micro"), else the shipped
platform with the same GPU.
"""


def _add_compare(actions: SubParsers) -> None:
    parser: argparse.ArgumentParser = actions.add_parser(
        "compare", help=_COMPARE, description=_COMPARE_DESCRIPTION, allow_abbrev=False
    )
    parser.add_argument(
        "runs", metavar="RUNS", nargs="+", type=Path, help="runs.json of calibrate deepspeed or vllm"
    )
    parser.add_argument("--platform", metavar="PATH|ID", help="predict all files with this platform")
    parser.add_argument(
        "--streams", action="store_true", help="also show one decode step by stream and by layer"
    )
    add_json(parser)
    parser.set_defaults(command=calibrate_compare)


def calibrate_compare(arguments: Namespace, console: Console) -> ExitCode:
    """Compare the files; a run that cannot be predicted is a row with the reason."""
    from simoffload_calibrate.compare import compare_file, comparison_text, to_dict

    files = []
    problems: list[Problem] = []
    with Waiting(console):
        for path in steps(arguments.runs, str):
            try:
                files.append(compare_file(path, platform=arguments.platform))
            except InputError as error:
                problems += error.problems
    if problems:
        raise InputError(dict.fromkeys(problems))
    console.answer(comparison_text(files, streams=arguments.streams), to_dict(files))
    return ExitCode.OK
