"""Recorded requests: traces of Mooncake, Qwen-Bailian, Azure and BurstGPT, files of ``vllm bench`` and
AIPerf, own CSV.

A format is known by its first line. Files of lines are read row by row, and only as far as needed.
Formats: kvcache-ai/Mooncake@3b5a594 (FAST25-release/traces), Azure/AzurePublicDataset@b469a11 (2023, 2024),
alibaba-edu/qwen-bailian-usagetraces-anon@03a51e3, HPMLL/BurstGPT@e92f533, ``vllm/benchmarks/serve.py`` of
vLLM 0.33.0 (``--save-detailed``), records of AIPerf 0.13.0 (``profile_export.jsonl``).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from hashlib import sha256
from itertools import chain, islice
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from simoffload.documents import candidates, either, exists, file_errors, quoted
from simoffload.errors import InputError, Problem, shortened
from simoffload.extensions.serving.requests import Requests, arranged, open_requests
from simoffload.extensions.serving.scheduler import Runs
from simoffload.scenario.streams import StreamOptions
from simoffload.shipped import shipped_folder

__all__ = ["RecordedTrace", "read_trace", "shipped_traces"]

_LONGEST = 10_000_000
"""Longest line [characters]; a prompt of 10,000,000 tokens has 20,000 hashes."""
_LARGEST = 500_000_000
"""Largest file that is read at once [B]: a result of ``vllm bench``."""
_MOST_TOKENS = 10_000_000
_MOONCAKE_BLOCK, _BAILIAN_BLOCK = 512, 16
"""Tokens of a hash of Mooncake, and of Qwen-Bailian."""


class Row(NamedTuple):
    """A Row is a recorded request."""

    arrival: float
    """Time [s], from any begin."""
    prompt: int
    output: int
    runs: Runs = None


class RecordedTrace(NamedTuple):
    """A RecordedTrace is recorded requests, and what was left out of them."""

    requests: Requests
    format: str
    """Name of the format, for people."""
    failed: int
    """Number of recorded failures, which were left out."""


def shipped_traces() -> tuple[str, ...]:
    """Return the names of the shipped traces."""
    folder = shipped_folder("traces")
    return tuple(sorted(one.name for one in folder.iterdir() if one.suffix in (".csv", ".jsonl")))


def read_trace(
    options: StreamOptions, *, root: Path | None = None, draw: np.random.Generator | None = None
) -> RecordedTrace:
    """Read the requests of a stream with a trace; ``root`` is the folder of the scenario.

    ``draw`` gives the arrivals where the stream has its own. Raises InputError for a file that is missing,
    empty or of no known format, with the line of a row that is broken.
    """
    trace = options.trace
    assert trace is not None
    path = _located(trace.file, root)
    with file_errors(path), path.open(encoding="utf-8-sig", errors="strict", newline="") as file:
        reader = _Reader(str(path), file)
        kind, rows = reader.open()
        kept = list(
            islice(
                rows, trace.skip, None if options.num_prompts is None else trace.skip + options.num_prompts
            )
        )
    if not kept:
        what = f"has no requests after the first {trace.skip}" if trace.skip else "has no requests"
        advice = "lower skip" if trace.skip else "name a file with recorded requests"
        raise reader.error(f"{what}{f' but {reader.failed} that failed' if reader.failed else ''}; {advice}")
    kept.sort(key=lambda one: one.arrival)
    arrival = np.array([one.arrival for one in kept]) - kept[0].arrival
    lengths = np.array([(one.prompt, one.output) for one in kept], dtype=np.int64)
    if trace.spread:
        arrival = _spread(arrival)
    arrival /= trace.rate_factor
    runs, repeat = [one.runs for one in kept], trace.repeat
    period = arrival[-1] * len(kept) / max(1, len(kept) - 1)
    arrival = (np.arange(repeat)[:, None] * period + arrival).ravel()
    prompt, output = np.tile(lengths, (repeat, 1)).T
    requests = open_requests(arrival, prompt.copy(), output.copy(), runs * repeat)
    if options.arrivals is not None:
        assert draw is not None
        arrival, after = arranged(options.arrivals, draw, np.ones(len(arrival), dtype=np.int64))
        requests = requests._replace(arrival=arrival, after=after)
    return RecordedTrace(requests, kind, reader.failed)


def _located(name: str, root: Path | None) -> Path:
    path = (root or Path()) / name
    if exists(path):
        return path
    if name in shipped_traces():
        return shipped_folder("traces") / name
    hint = candidates(name, shipped_traces()) or f"; shipped are {either(shipped_traces())}"
    text = f"no file {quoted(name)}, and no shipped trace of that name{hint}"
    raise InputError.at("stream.trace.file", text)


def _spread(arrival: np.ndarray) -> np.ndarray:
    """Spread equal times evenly up to the next one; the last ones over the median of these gaps."""
    stamps, first, count = np.unique(arrival, return_index=True, return_counts=True)
    gaps = np.diff(stamps)
    gaps = np.append(gaps, np.median(gaps) if len(gaps) else 0.0)
    place = np.arange(len(arrival)) - np.repeat(first, count)
    return np.asarray(arrival + place * np.repeat(gaps / count, count))


# -- formats -------------------------------------------------------------------------------------


class _BrokenRowError(Exception):
    """A row cannot be used; the text says why."""


class _Reader:
    """A _Reader reads the rows of a file of any known format."""

    def __init__(self, path: str, file: TextIO) -> None:
        self._path, self._file, self._line = path, file, 0
        self._first = ""
        self.failed = 0

    def error(self, message: str, *, line: int | None = None) -> InputError:
        """Return an error about this file."""
        return InputError((Problem(self._path, line, None, "", message),))

    def open(self) -> tuple[str, Iterator[Row]]:
        """Return the name of the format and its rows. Raises InputError for an unknown one."""
        lines = self._lines()
        first = next((one for one in lines if one.strip()), "")
        if not first:
            raise self.error("is empty; name a file with recorded requests")
        self._first = first.strip()
        if first.lstrip().startswith("{"):
            return self._json(first, lines)
        names = [one.strip().casefold() for one in next(csv.reader([first]))]
        for kind, columns, read in _TABLES:
            if set(columns) <= set(names):
                places = [names.index(one) for one in columns]
                return kind, self._rows(csv.reader(lines), partial(_read_table, read, places))
        raise self._unknown()

    def _unknown(self) -> InputError:
        others = ["Mooncake", "Qwen-Bailian", "vllm bench --save-detailed", "AIPerf"]
        known = either([one.kind for one in _TABLES] + others)
        text = f"its format is not known by its first line, {quoted(self._first)}; it can be {known}"
        if self._first.startswith("["):
            text += "; of a list of texts, such as ShareGPT, write a CSV with the tokens of your tokenizer"
        return self.error(text, line=self._line)

    def _lines(self) -> Iterator[str]:
        while True:
            try:
                line = self._file.readline(_LONGEST)
            except UnicodeDecodeError:
                raise self.error("is not text in UTF-8", line=self._line + 1) from None
            if not line:
                return
            self._line += 1
            if len(line) == _LONGEST and not (self._line == 1 and line.lstrip().startswith("{")):
                raise self.error(f"a line has more than {_LONGEST} characters", line=self._line)
            yield line

    def _rows(self, values: Iterator[Any], read: Callable[[Any], Row | None]) -> Iterator[Row]:
        """Yield what ``read`` makes of rows; None is a failed request."""
        while True:
            try:
                value = next(values, None)
                if value is None:
                    return
                if not value:
                    continue
                row = read(value)
            except (
                _BrokenRowError,
                csv.Error,
                ValueError,
                TypeError,
                KeyError,
                IndexError,
                AttributeError,
                OverflowError,
            ) as error:
                why = str(error) if isinstance(error, _BrokenRowError) else _reason(error)
                raise self.error(f"a broken row: {why}; correct or remove it", line=self._line) from None
            if row is None:
                self.failed += 1
            else:
                yield self._checked(row)

    def _checked(self, row: Row) -> Row:
        """Refuse a row without tokens, or with more than any model has."""
        for name, tokens in (("prompt", row.prompt), ("output", row.output)):
            if not 1 <= tokens <= _MOST_TOKENS:
                text = f"a broken row: its {name} has {tokens} tokens; correct or remove it"
                raise self.error(text, line=self._line)
        return row

    def _json(self, first: str, lines: Iterator[str]) -> tuple[str, Iterator[Row]]:
        head = first[:_LONGEST]
        try:
            row = json.loads(head)
        except (ValueError, RecursionError):
            row = {}
        for kind, key, read in _LINES:
            if isinstance(row, dict) and key in row:
                rows = (one.strip() for one in chain([first], lines))
                return kind, self._rows(rows, partial(_read_line, read))
        if not isinstance(row, dict) or (row and "input_lens" not in row):
            raise self._unknown()
        if not row:
            row = self._one_object(first)
        return "vllm bench", self._bench(row)

    def _one_object(self, first: str) -> dict[str, Any]:
        """Return a file that is one object of JSON."""
        rest = self._file.read(_LARGEST)
        if self._file.read(1):
            raise self.error(f"an object of more than {_LARGEST // 10**6} MB; write a CSV of it instead")
        try:
            found = json.loads(first + rest)
        except (ValueError, RecursionError):
            raise self.error("a broken row: it is no object of JSON; correct or remove it", line=1) from None
        if not isinstance(found, dict) or "input_lens" not in found:
            raise self._unknown()
        return found

    def _bench(self, result: Mapping[str, Any]) -> Iterator[Row]:
        columns = [result.get(name) for name in ("start_times", "input_lens", "output_lens", "errors")]
        if columns[3] is None:
            columns[3] = [""] * len(columns[1] or ())
        if not all(isinstance(one, list) for one in columns) or len({len(one or ()) for one in columns}) != 1:
            raise self.error(
                "lacks start_times, input_lens or output_lens of each request; run vllm bench serve with "
                "--save-detailed"
            )

        def read(row: tuple[Any, ...]) -> Row | None:
            start, prompt, output, error = row
            return None if error or output == 0 else Row(_number(start), _tokens(prompt), _tokens(output))

        return self._rows(zip(*(one or [] for one in columns), strict=True), read)


def _reason(error: Exception) -> str:
    match error:
        case KeyError():
            return f"no {error.args[0]}"
        case IndexError():
            return "too few columns"
        case _:
            return shortened(str(error), 100)


def _read_table(
    read: Callable[[str, str, str], Row | None], places: Sequence[int], row: Sequence[str]
) -> Row | None:
    return read(*(row[one] for one in places))


def _read_line(read: Callable[[Mapping[str, Any]], Row | None], text: str) -> Row | None:
    found = None
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
    if not isinstance(found, dict):
        raise _BrokenRowError("it is no object of JSON")
    return read(found)


def _number(value: Any) -> float:
    with suppress(ValueError, TypeError, OverflowError):
        if not isinstance(value, bool) and isfinite(number := float(value)):
            return number
    raise _BrokenRowError(f"{quoted(str(value))} is no finite number")


def _tokens(value: Any) -> int:
    number = _number(value)
    if not number.is_integer():
        raise _BrokenRowError(f"{quoted(str(value))} is no whole number of tokens")
    return int(number)


def _azure(stamp: str, prompt: str, output: str) -> Row | None:
    """Return a request of Azure; its stamps have up to seven decimals, and in 2024 an offset."""
    second, _, part = stamp.strip().partition(".")
    digits = part[: len(part) - len(part.lstrip("0123456789"))]
    try:
        day = datetime.fromisoformat(second.removesuffix("Z").partition("+")[0])
    except ValueError:
        text = f"{quoted(stamp)} is no date and time, such as 2023-11-16 18:15:46.68"
        raise _BrokenRowError(text) from None
    seconds = (day - datetime(2020, 1, 1)).total_seconds()  # noqa: DTZ001
    if _tokens(output) == 0:
        return None
    return Row(seconds + float(f"0.{digits or 0}"), _tokens(prompt), _tokens(output))


def _plain(stamp: str, prompt: str, output: str) -> Row:
    return Row(_number(stamp), _tokens(prompt), _tokens(output))


def _burst(stamp: str, prompt: str, output: str) -> Row | None:
    """Return a request of BurstGPT; a failed one has no response tokens."""
    return None if _tokens(output) == 0 else _plain(stamp, prompt, output)


def _mooncake(row: Mapping[str, Any], *, block: int = _MOONCAKE_BLOCK, unit: float = 1e-3) -> Row:
    """Return a request with the hashes of its blocks, of which consecutive ones become runs; its stamp is in
    a unit [s]. The last block need not be full, and then may have no hash: it is never found again."""
    prompt, hashes = _tokens(row["input_length"]), row.get("hash_ids")
    runs: list[tuple[int, int]] = []
    if hashes is not None:
        if not all(type(one) is int and one >= 0 for one in hashes):
            raise _BrokenRowError("hash_ids are no whole numbers")
        if len(hashes) not in (prompt // block, -(-prompt // block)):
            raise _BrokenRowError(f"{len(hashes)} hash_ids for {prompt} tokens, of which each has {block}")
        begin = 0
        for place in range(1, len(hashes) + 1):
            if place == len(hashes) or hashes[place] != hashes[place - 1] + 1:
                end = prompt if place == len(hashes) else place * block
                runs.append((hashes[begin], end - begin * block))
                begin = place
    return Row(_number(row["timestamp"]) * unit, prompt, _tokens(row["output_length"]), tuple(runs) or None)


def _aiperf(record: Mapping[str, Any]) -> Row | None:
    """Return a record of AIPerf; None for one that failed, was cancelled, or is of the warm-up.

    Equal conversations of its dataset have the same first prompt; what later turns have in common is not in
    the file.
    """
    about, found = record["metadata"], record.get("metrics") or {}
    if record.get("error") or about.get("was_cancelled") or about.get("benchmark_phase") == "warmup":
        return None
    start = about["request_start_ns"] if "request_start_ns" in about else about["timestamp_ns"]
    prompt, output = (_tokens(found[f"{one}_sequence_length"]["value"]) for one in ("input", "output"))
    text, turn = about.get("conversation_id"), about.get("turn_index")
    key = int.from_bytes(sha256(str(text).encode()).digest()[:7])
    return Row(_number(start) * 1e-9, prompt, output, ((key, prompt),) if text and not turn else None)


class _Table(NamedTuple):
    kind: str
    columns: tuple[str, str, str]
    read: Callable[[str, str, str], Row | None]


_TABLES = (
    _Table("Azure", ("timestamp", "contexttokens", "generatedtokens"), _azure),
    _Table("BurstGPT", ("timestamp", "request tokens", "response tokens"), _burst),
    _Table("CSV with arrival, prompt and output", ("arrival", "prompt", "output"), _plain),
)
_LINES: tuple[tuple[str, str, Callable[[Mapping[str, Any]], Row | None]], ...] = (
    ("Qwen-Bailian", "chat_id", partial(_mooncake, block=_BAILIAN_BLOCK, unit=1.0)),
    ("Mooncake", "hash_ids", _mooncake),
    ("Mooncake", "input_length", _mooncake),
    ("AIPerf", "metadata", _aiperf),
)
