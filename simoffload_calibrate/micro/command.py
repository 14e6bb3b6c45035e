"""``simoffload calibrate micro``: measure this machine and write its profiles."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simoffload.cli.console import Console, ExitCode
from simoffload.cli.option_types import SubParsers, add_json, gpu_count, listed, seconds, size
from simoffload.errors import InputError, Problem, shortened
from simoffload_calibrate.micro.benchmarks import need_storage, sections

RECORD = "micro.json"
_HELP = "measure links, memories, kernels, storage and hooks of this machine and write its profiles"


def add_micro(actions: SubParsers) -> None:
    """Register the action that measures this machine."""
    parser: argparse.ArgumentParser = actions.add_parser(
        "micro",
        help=_HELP,
        description=f"{_HELP[0].upper()}{_HELP[1:]}. Sections: {', '.join(sections())}.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "-o",
        "--output-dir",
        type=Path,
        metavar="DIR",
        required=True,
        help="empty or new folder for the results; with --resume, the folder of the run to continue",
    )
    parser.add_argument("--gpus", type=gpu_count, metavar="N", help="use N GPUs (default: all)")
    parser.add_argument(
        "--storage", type=Path, metavar="FOLDER", help="folder in which to measure reads and writes"
    )
    parser.add_argument(
        "--storage-size",
        type=size,
        metavar="SIZE",
        help="size of the files written there (default: up to 2 GiB)",
    )
    for option, about in (("--only", "only these sections"), ("--skip", "all sections but these")):
        text = f"measure {about}"
        parser.add_argument(option, type=_sections, action="extend", metavar="SECTION,…", help=text)
    parser.add_argument(
        "--quick", action="store_true", help="measure one round and fewer points, for a first look"
    )
    parser.add_argument(
        "--time",
        type=seconds,
        metavar="SECONDS",
        help="start nothing that does not fit into this time (default: time for all rounds on this host)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue a run that ended early, with the same options"
    )
    parser.add_argument(
        "--from",
        dest="base",
        metavar="PLATFORM",
        help="platform that provides the numbers that are not measured (default: this machine as "
        "simoffload detect describes it)",
    )
    parser.add_argument("--id", metavar="ID", help="id of the new platform (default: derived from its GPUs)")
    parser.add_argument(
        "--from-json", type=Path, metavar="FILE", help="measure nothing; make profiles from this micro.json"
    )
    add_json(parser)
    parser.set_defaults(command=calibrate_micro)


def _sections(text: str) -> tuple[str, ...]:
    from simoffload.documents import suggest

    names, known_names = listed(text), sections()
    for name in names:
        if name not in known_names:
            hint = suggest(name, known_names)
            known = ", ".join(known_names)
            raise argparse.ArgumentTypeError(
                f'"{shortened(name)}" is not a section{hint}; valid are: {known}'
            )
    return names


def calibrate_micro(arguments: Namespace, console: Console) -> ExitCode:
    """Measure, or read an earlier record, and write ``micro.json`` and profiles into a folder."""
    from simoffload_calibrate.micro.profiles import check_names
    from simoffload_calibrate.micro.record import read_record

    _check_folder(arguments.output_dir, resumed=arguments.resume)
    check_names(arguments.base, arguments.id)
    if arguments.from_json is not None:
        _refuse_with_record(arguments)
        raw = read_record(arguments.from_json)
        files = _profiles(arguments, raw, console)
        _write(arguments.output_dir, files)
    else:
        with _new_folder(arguments.output_dir):
            try:
                raw = _measure(arguments, console)
                files = _write_all(arguments, raw, console)
            except KeyboardInterrupt:
                _write_stopped(arguments, console)
                raise
    _answer(arguments.output_dir, raw, files, console)
    return ExitCode.OK


@contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Create the folder before the measurement; remove it again if nothing was written."""
    try:
        folder.mkdir(exist_ok=True)
        (folder / ".probe").touch()
        (folder / ".probe").unlink()
    except OSError as error:
        text = f"cannot be written to: {error.strerror}; name another folder"
        raise InputError.at("", text, path=str(folder)) from None
    try:
        yield
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()


def _write_all(arguments: Namespace, raw: dict[str, Any], console: Console) -> dict[str, str]:
    """Write the record, from which profiles can be made again, then the profiles."""
    from simoffload_calibrate.micro.record import record_text

    record = {RECORD: record_text(raw)}
    _write(arguments.output_dir, record)
    if not raw["machine"].get("gpu") and arguments.base is None:
        detected = bool(raw.get("detected"))
        so = "the profiles have one of which nothing was measured" if detected else "no profiles are written"
        console.warn([f"no GPU was found, so {so}; --from PLATFORM uses the GPU of that platform"])
        if not detected:
            return record
    try:
        files = _profiles(arguments, raw, console)
    except InputError as error:
        kept = f"no profiles were written; {arguments.output_dir / RECORD} is kept for --from-json"
        raise InputError([*error.problems, Problem("", None, None, "", kept)]) from None
    _write(arguments.output_dir, files)
    return record | files


def _write_stopped(arguments: Namespace, console: Console) -> None:
    """Write profiles of what was measured before a stop."""
    from simoffload_calibrate.micro.record import read_record

    record = arguments.output_dir / RECORD
    if not record.is_file():
        return
    console.note("making profiles of what was measured; another stop leaves them out")
    try:
        made = [name for name in _write_all(arguments, read_record(record), console) if name != RECORD]
        console.note(f"{arguments.output_dir}: {', '.join(made) or RECORD}")
    except InputError as error:
        console.warn(map(str, error.problems))


def _profiles(arguments: Namespace, raw: dict[str, Any], console: Console) -> dict[str, str]:
    from simoffload_calibrate.micro.profiles import checked_profiles

    return checked_profiles(
        raw,
        arguments.from_json or arguments.output_dir / RECORD,
        base=arguments.base,
        identifier=arguments.id,
        report=lambda thread: console.print_lines(thread.summary()),
        refused=lambda text: console.warn([text]),
    )


def _measure(arguments: Namespace, console: Console) -> dict[str, Any]:
    from simoffload_calibrate.micro.benchmarks import MeasurementRequest
    from simoffload_calibrate.micro.record import read_record
    from simoffload_calibrate.micro.session import describe, measure

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
            console.note(
                f"{record} contains what was measured so far: {kept}; --resume continues the run, "
                "--from-json makes profiles from it"
            )
        raise


def _chosen(arguments: Namespace) -> tuple[str, ...]:
    wanted = arguments.only or sections()
    chosen = tuple(name for name in sections() if name in wanted and name not in (arguments.skip or ()))
    if not chosen:
        raise InputError.at("", "skips all sections; name fewer", path="--skip")
    if arguments.only and arguments.storage is None and need_storage(chosen):
        raise InputError.at("", "is missing: name the folder to measure", path="--storage")
    return chosen


def _refuse_with_record(arguments: Namespace) -> None:
    """Refuse options of the measurement together with ``--from-json``."""
    for option in ("gpus", "storage", "storage_size", "only", "skip", "quick", "time", "resume"):
        if getattr(arguments, option):
            text = "cannot be combined with --from-json, which measures nothing"
            raise InputError.at("", text, path=f"--{option.replace('_', '-')}")


def _answer(folder: Path, raw: dict[str, Any], files: dict[str, str], console: Console) -> None:
    from simoffload_calibrate.micro.benchmarks import missing_sections
    from simoffload_calibrate.micro.noise import noise_summary, noise_warning

    noise = raw.get("noise", {})
    data = {
        "schema": "simoffload/calibrate-micro/1",
        "folder": str(folder),
        "files": list(files),
        "measured": list(raw["sections"]),
        "skipped": raw["skipped"],
        "unfinished": raw.get("unfinished", []),
        "noise": noise,
    }
    console.warn(f"{name} skipped: {reason}" for name, reason in raw["skipped"].items())
    console.warn(missing_sections(raw))
    console.warn(noise_warning(noise, file=RECORD))
    if console.as_json:
        console.answer("", data)
        return
    console.print_lines(f"measured: {', '.join(raw['sections']) or 'nothing'}")
    if noise.get("probes"):
        console.print_lines(noise_summary(noise))
    console.print_lines(f"{folder}: {', '.join(files)}")
    if "platform.yaml" in files:
        console.print_lines(f"use it as platform: {folder / 'platform.yaml'}")


def _check_folder(folder: Path, *, resumed: bool) -> None:
    from simoffload.documents import exists, file_errors

    there = exists(folder)
    if folder.is_symlink() or (there and not folder.is_dir()):
        raise InputError.at("", "is not a plain folder; name another folder", path=str(folder))
    if resumed:
        if not there or not (folder / RECORD).is_file():
            text = f"{folder} has no {RECORD} to continue; start without --resume"
            raise InputError.at("", text, path="--resume")
        return
    with file_errors(folder, what="cannot be used"):
        occupied = there and any(folder.iterdir())
    if occupied:
        raise InputError.at("", "is not empty; name a new folder", path=str(folder))
    if not folder.absolute().parent.is_dir():
        raise InputError.at("", "its parent folder does not exist; create it first", path=str(folder))


def _write(folder: Path, files: dict[str, str]) -> None:
    from simoffload.exchange.files import replacing

    folder.mkdir(exist_ok=True)
    for name in sorted(files, key=lambda name: name == "platform.yaml"):  # it names the others
        with replacing(folder / name) as file:
            file.write(files[name])
