"""``simoffload calibrate micro``: measure this machine's parts and make profiles of them."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simoffload.cli.console import Console
from simoffload.cli.exit_codes import ExitCode
from simoffload.cli.option_types import SubParsers, listed, seconds, size
from simoffload.errors import InputError, Problem, shortened

__all__ = ["add", "calibrate_micro"]

RECORD = "micro.json"
_SECTIONS = (
    "copies",
    "kernels",
    "dram",
    "hbm",
    "matmul",
    "hooks",
    "cpu_adam",
    "storage",
    "collectives",
    "attention",
)
_HELP = "measure links, memories, kernels, storage and hooks of this machine; write profiles of it"


def add(actions: SubParsers) -> argparse.ArgumentParser:
    """Register ``micro`` among the actions of ``calibrate``."""
    parser: argparse.ArgumentParser = actions.add_parser(
        "micro",
        help=_HELP,
        description=f"{_HELP[0].upper()}{_HELP[1:]}. Sections: {', '.join(_SECTIONS)}.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "-o",
        "--output-dir",
        type=Path,
        metavar="DIR",
        required=True,
        help="empty or new folder for the results; with --resume that of the run to go on with",
    )
    parser.add_argument("--gpus", type=_count, metavar="N", help="use N GPUs (default: all)")
    parser.add_argument("--storage", type=Path, metavar="FOLDER", help="measure reads and writes there")
    parser.add_argument(
        "--storage-size", type=size, metavar="SIZE", help="files to write there (default: up to 2 GiB)"
    )
    parser.add_argument("--only", type=_sections, metavar="SECTION,…", help="measure these sections")
    parser.add_argument("--skip", type=_sections, metavar="SECTION,…", help="leave these sections out")
    parser.add_argument("--quick", action="store_true", help="one round and fewer points, for a look")
    parser.add_argument(
        "--time",
        type=seconds,
        metavar="SECONDS",
        help="begin nothing that does not fit into this time (default: under 4 minutes on one GPU)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with a run that ended early, with the same options"
    )
    parser.add_argument(
        "--from", dest="base", metavar="PLATFORM", help="platform with the numbers that cannot be measured"
    )
    parser.add_argument("--id", metavar="ID", help="id of the new platform (default: from its GPUs)")
    parser.add_argument(
        "--from-json", type=Path, metavar="FILE", help="measure nothing; make profiles of this micro.json"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document, errors too")
    parser.set_defaults(command=calibrate_micro)
    return parser


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f'"{shortened(text)}" is no number of GPUs; write e.g. 4')
    return int(text)


def _sections(text: str) -> tuple[str, ...]:
    from simoffload.documents import suggest

    names = listed(text)
    for name in names:
        if name not in _SECTIONS:
            hint = suggest(name, _SECTIONS)
            known = ", ".join(_SECTIONS)
            raise argparse.ArgumentTypeError(f'"{shortened(name)}" is no section{hint}; known: {known}')
    return names


def calibrate_micro(arguments: Namespace, console: Console) -> ExitCode:
    """Measure, or read an earlier record, and write ``micro.json`` and profiles into a folder.

    Without a GPU there is nothing to make profiles of, unless ``--from`` names a platform to put the
    host's and the drive's numbers into.
    """
    from simoffload.calibration.micro.profiles import check_names
    from simoffload.calibration.micro.record import read_record

    _check_folder(arguments.output_dir, resumed=arguments.resume)
    check_names(arguments.base, arguments.id)
    if arguments.from_json is not None:
        _refuse_with_record(arguments)
        raw = read_record(arguments.from_json)
        files = _profiles(arguments, raw)
        _write(arguments.output_dir, files)
    else:
        with _new_folder(arguments.output_dir):
            raw = _measure(arguments, console)
            files = _write_all(arguments, raw, console)
    _answer(arguments.output_dir, raw, files, console)
    return ExitCode.OK


@contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Make the folder before minutes are spent on measuring; it goes again if nothing was written."""
    try:
        folder.mkdir(exist_ok=True)
        (folder / ".probe").touch()
        (folder / ".probe").unlink()
    except OSError as error:
        raise _refusal(str(folder), f"cannot be written to: {error.strerror}; name another") from None
    try:
        yield
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()


def _write_all(arguments: Namespace, raw: dict[str, Any], console: Console) -> dict[str, str]:
    """The record first: it took minutes, and profiles can be made of it again."""
    from simoffload.calibration.micro.record import record_text

    record = {RECORD: record_text(raw)}
    _write(arguments.output_dir, record)
    if not raw["machine"].get("gpu") and arguments.base is None:
        console.warn(["no GPU, so no profiles; --from PLATFORM makes them with that platform's GPU"])
        return record
    try:
        files = _profiles(arguments, raw)
    except InputError as error:
        kept = f"no profiles were made; {arguments.output_dir / RECORD} is kept for --from-json"
        raise InputError([*error.problems, Problem("", None, None, "", kept)]) from None
    _write(arguments.output_dir, files)
    return record | files


def _profiles(arguments: Namespace, raw: dict[str, Any]) -> dict[str, str]:
    from simoffload.calibration.micro.profiles import base_platform, profile_from_micro

    where = str(arguments.from_json or arguments.output_dir / RECORD)
    try:
        base = base_platform((raw["machine"].get("gpu") or {"name": ""})["name"], arguments.base)
        files = profile_from_micro(raw, base, identifier=arguments.id)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A record is thousands of numbers that only programs write: one that was changed is measured again.
        what = str(error).splitlines()[0][:120] if str(error) else ""
        text = f"is not what calibrate micro writes ({type(error).__name__}: {what}); measure again"
        raise InputError((Problem(where, None, None, "", text),)) from None
    _check_profiles(files, where)
    return files


def _check_profiles(files: dict[str, str], record: str) -> None:
    """Load the profiles as a scenario would; InputError, before anything is written, if one is wrong."""
    from simoffload.hardware import load_platform

    with TemporaryDirectory(prefix="simoffload-profiles-") as name:
        for file, text in files.items():
            (Path(name) / file).write_text(text, encoding="utf-8")
        try:
            load_platform(Path(name) / "platform.yaml")
        except InputError as error:
            renamed = (one._replace(path=Path(one.path).name) for one in error.problems)
            text = "its numbers make no profile; measure again"
            raise InputError([Problem(record, None, None, "", text), *renamed]) from None


def _measure(arguments: Namespace, console: Console) -> dict[str, Any]:
    from simoffload.calibration.micro.launch import MeasurementRequest, describe, measure
    from simoffload.calibration.micro.record import read_record

    record = arguments.output_dir / RECORD
    resumed = read_record(record) if arguments.resume else None
    request = MeasurementRequest(
        sections=_chosen(arguments),
        gpus=arguments.gpus,
        storage=arguments.storage,
        storage_size=arguments.storage_size,
        quick=arguments.quick,
        record=record,
        seconds=arguments.time,
        resumed=resumed,
    )
    console.note(describe(request, arguments.output_dir))
    try:
        return measure(request, progress=console.note)
    except BaseException:
        if record.is_file():
            kept = ", ".join(read_record(record)["sections"])
            renamed = "--resume goes on with it, --from-json makes profiles of it"
            console.note(f"{record} keeps what was measured: {kept}; {renamed}")
        raise


def _chosen(arguments: Namespace) -> tuple[str, ...]:
    wanted = arguments.only or _SECTIONS
    chosen = tuple(name for name in _SECTIONS if name in wanted and name not in (arguments.skip or ()))
    if not chosen:
        raise _refusal("--skip", "leaves no section; leave some out of it")
    if arguments.only and arguments.storage is None and "storage" in chosen:
        raise _refusal("--storage", "missing: name the folder to measure")
    return chosen


def _refuse_with_record(arguments: Namespace) -> None:
    """Options that measure make no sense beside ``--from-json``."""
    for option in ("gpus", "storage", "storage_size", "only", "skip", "quick", "time", "resume"):
        if getattr(arguments, option):
            raise _refusal(
                f"--{option.replace('_', '-')}", "has no use with --from-json, which measures nothing"
            )


def _answer(folder: Path, raw: dict[str, Any], files: dict[str, str], console: Console) -> None:
    from simoffload.calibration.micro.plan import lacking

    data = {
        "schema": "simoffload/calibrate-micro/1",
        "folder": str(folder),
        "files": list(files),
        "measured": list(raw["sections"]),
        "skipped": raw["skipped"],
        "unfinished": raw.get("unfinished", []),
        "noise": raw.get("noise", {}),
    }
    console.warn(f"{name} skipped: {reason}" for name, reason in raw["skipped"].items())
    console.warn(lacking(raw))
    console.warn(_noisy(raw.get("noise", {})))
    if console.as_json:
        console.answer("", data)
        return
    console.print_lines(f"measured: {', '.join(raw['sections']) or 'nothing'}")
    if noise := raw.get("noise"):
        console.print_lines(_how_noisy(noise))
    console.print_lines(f"{folder}: {', '.join(files)}")
    if "platform.yaml" in files:
        console.print_lines(f"use it as platform: {folder / 'platform.yaml'}")


def _how_noisy(noise: dict[str, Any]) -> str:
    """The summary of the probes, in a line."""
    text = (
        f"host: the median of {noise['probes']} probes took {noise['median']:.2f} x, the slowest "
        f"{noise['worst']:.2f} x the time of the quietest"
    )
    return text + (f"; {noise['repeated']} measured again" if noise["repeated"] else "")


def _noisy(noise: dict[str, Any]) -> Iterator[str]:
    """A sentence about the sections that a noisy host disturbed."""
    if names := noise.get("stayed_noisy"):
        yield (
            f"the speed of the host changed while {', '.join(names)} were measured: their spread is in "
            f"{RECORD}; at a quieter time --resume measures them again"
        )


def _check_folder(folder: Path, *, resumed: bool) -> None:
    from simoffload.documents import exists

    there = exists(folder)
    if folder.is_symlink() or (there and not folder.is_dir()):
        raise _refusal(str(folder), "is not a plain folder; name another")
    if resumed:
        if not there or not (folder / RECORD).is_file():
            raise _refusal("--resume", f"{folder} has no {RECORD} to go on with; leave it out to begin anew")
        return
    if there and _holds_anything(folder):
        raise _refusal(str(folder), "is not empty; name a new folder")
    if not folder.absolute().parent.is_dir():
        raise _refusal(str(folder), "the folder above it does not exist; make it first")


def _holds_anything(folder: Path) -> bool:
    from simoffload.documents import file_errors

    with file_errors(folder, what="cannot be used"):
        return any(folder.iterdir())


def _write(folder: Path, files: dict[str, str]) -> None:
    from simoffload.exchange.files import replacing

    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        with replacing(folder / name) as file:
            file.write(text)


def _refusal(path: str, message: str) -> InputError:
    return InputError((Problem(path, None, None, "", message),))
