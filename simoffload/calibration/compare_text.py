"""A comparison of recorded runs with predictions as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simoffload.calibration.compare import ComparedFile, ComparedRun, Errors, errors
from simoffload.calibration.streams import StreamRow
from simoffload.errors import printable
from simoffload.report.formatting import columns
from simoffload.units import format_bytes

__all__ = ["comparison_text"]

_HEAD = ("run", "ranks", "offload", "pass", "measured", "predicted", "error", "naive", "error")
_RIGHT = {1, 4, 5, 6, 7, 8}
_LONGEST = 48
_LEGEND = "times in ms; decode: the median step; naive: bytes over bandwidth, everything else hidden"
_PER_STEP = "one decode step on rank 0, ms"
_PER_STEP_LEGEND = (
    "measured: the host thread is slowed by tracing and waits within fetches; gathers hold their wait for "
    "the other ranks, move holds appends to the cache (under compute in the simulation)"
)


def comparison_text(files: Sequence[ComparedFile], *, streams: bool = False) -> str:
    """A table for each file, the reasons of missing predictions, streams if asked for, and the summary."""
    lines: list[str] = []
    for file in files:
        lines += _file(file)
        if streams:
            lines += [line for run in file.runs for line in _streams(run)]
            lines.append(_PER_STEP_LEGEND)
        lines.append("")
    return "\n".join((*lines, *_summary(files)))


def _file(file: ComparedFile) -> Iterator[str]:
    yield printable(f"{file.path}, predicted with {file.platform}")
    yield from (printable(f"remark: {text}") for text in file.remarks)
    rows = [row for run in file.runs for row in _rows(run)]
    if rows:
        yield from (line.rstrip() for line in columns([_HEAD, *rows], right=_RIGHT))
        yield _LEGEND
    for run in file.runs:
        if run.reason:
            yield printable(f"{run.run.name}: no prediction: {run.reason}")
    by_message: dict[str, list[str]] = {}
    for run in file.runs:
        for text in run.remarks:
            by_message.setdefault(text, []).append(run.run.name)
    for text, names in by_message.items():
        about = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        yield printable(f"remark on {about}: {text}")


def _rows(compared: ComparedRun) -> Iterator[tuple[str, ...]]:
    run = compared.run
    name = run.name if len(run.name) <= _LONGEST else f"{run.name[: _LONGEST - 1]}…"
    about = (name, str(run.ranks), run.offload)
    for one in compared.passes:
        times = (_ms(one.measured), _ms(one.predicted), _percent(one.error))
        yield (*about, one.name, *times, _ms(one.naive), _percent(one.naive_error))
        about = ("", "", "")


def _streams(compared: ComparedRun) -> Iterator[str]:
    if not compared.streams:
        return
    yield ""
    yield printable(f"{compared.run.name}, {compared.run.ranks} rank(s): {_PER_STEP}")
    rows = [(row.name, _stream(row, row.measured), _stream(row, row.simulated)) for row in compared.streams]
    layers = compared.layers
    if layers is not None:
        last = len(layers.measured) - 1
        rows += [
            (f"layer {index} begins", _ms(layers.measured[index]), _ms(layers.simulated[index]))
            for index in dict.fromkeys((0, last // 2, last))
        ]
    yield from (
        f"  {line}".rstrip() for line in columns([("", "measured", "simulated"), *rows], right={1, 2})
    )
    if layers is not None:
        number = max(range(len(layers.deviations)), key=lambda index: abs(layers.deviations[index]))
        yield f"  layers begin up to {layers.largest:.1%} of the step apart (layer {number})"


def _stream(row: StreamRow, value: float | None) -> str:
    return _ms(value) if row.unit == "s" or value is None else format_bytes(value)


def _summary(files: Sequence[ComparedFile]) -> Iterator[str]:
    runs = [run for file in files for run in file.runs]
    parts = [f"{len(runs)} run(s)"]
    for name in ("decode", "prefill"):
        ours, naive = errors(runs, name), errors(runs, name, naive=True)
        if ours and naive:
            parts.append(f"{name} ({ours.runs}): error {_error_text(ours)}; naive {_error_text(naive)}")
    yield ". ".join(parts) + "."


def _error_text(found: Errors) -> str:
    return f"{found.mean:.1%} on average, {found.worst:+.1%} at worst"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.1f}"


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}"
