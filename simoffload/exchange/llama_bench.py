"""Output of ``llama-bench -o json``, jsonl, csv or md, and the model of each of its rows.

Fields: tools/llama-bench/llama-bench.cpp of llama.cpp@0c1e5709. ``n_cpu_moe``, ``n_depth`` and
``no_op_offload`` are missing in older builds, which had none, and in tables, which leave out what has its
default value.
"""

from __future__ import annotations

import csv
import datetime
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from simoffload.errors import InputError
from simoffload.exchange.benchmark_files import BenchmarkFile, finite
from simoffload.models import GGUF, ModelShape, list_models, load_model

_NEEDED = ("model_type", "model_size", "model_n_params", "n_prompt", "n_gen", "n_gpu_layers")
_INTEGERS = (
    "n_ubatch",
    "n_threads",
    "n_cpu_moe",
    "n_depth",
    "no_op_offload",
    "no_kv_offload",
    "n_prompt",
    "n_gen",
)
_USUAL = {
    "n_ubatch": 512,
    "n_threads": 0,
    "n_cpu_moe": 0,
    "n_depth": 0,
    "no_op_offload": 0,
    "no_kv_offload": 0,
}
_LARGEST = 10**15
_RESULTS = ("test_time", "avg_", "stddev_", "samples_")
_ALL_LAYERS = 99
"""Number of layers on the GPU in tables without the column ``ngl``, whose default it was."""
_AGREE = 0.02
"""Largest difference between the time of a row and its rate."""
_CONTRADICTION = 1.5
"""Ratio of two rates of one test from which on they are no repetitions of each other (our choice)."""
_TEST = re.compile(
    r"(?:pp(?P<prompt>[0-9]{1,9}))?\+?(?:tg(?P<gen>[0-9]{1,9}))?(?: @ d(?P<depth>[0-9]{1,9}))?"
)
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(MiB|GiB|TiB|M|B|T)")
_UNITS = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "M": 10**6, "B": 10**9, "T": 10**12}
_COLUMNS = {
    "model": "model_type",
    "ngl": "n_gpu_layers",
    "threads": "n_threads",
    "n_ubatch": "n_ubatch",
    "n_cpu_moe": "n_cpu_moe",
    "ncmoe": "n_cpu_moe",
    "nopo": "no_op_offload",
    "nkvo": "no_kv_offload",
}
"""Fields of a table by its columns."""
_SAME_PARAMETERS, _SAME_SIZE = 0.006, 0.012
"""Largest differences of numbers of parameters (tables round them) and sizes of the same model."""
_FORM = re.compile(r"\b((?:I?Q[1-8]|TQ[12])_[0-9A-Z]+|BF16|F16|all F32|MXFP4|NVFP4)\b(?: - (\w+)| (MoE))?")
_VARIANTS = {"Small": "_s", "Medium": "_m", "Large": "_l", "MoE": "_moe"}


class BenchRow(NamedTuple):
    """A BenchRow is one test of llama-bench."""

    model: str
    """Name of the model and its format, as the tool prints them."""
    size: float
    """Size of the weights [B]."""
    parameters: float
    filename: str
    """File of the model on the machine of the test; "" if it is not stated."""
    gpu_layers: int
    cpu_moe: int
    """Number of layers whose experts are on the CPU."""
    ubatch: int
    threads: int
    """Threads of the CPU; 0 if they are not stated."""
    prompt: int
    """Tokens of the prompt, 0 in a test of generation."""
    generated: int
    depth: int
    """Tokens in the cache before."""
    offloads: bool
    """Whether weights of the CPU are copied to the GPU for many tokens."""
    kv_offload: bool
    """Whether the cache is on the GPU with its layer."""
    loaded: str
    """How the file was loaded: "auto", "mmap", "none", …; "" if it is not stated."""
    rate: float
    """[tokens/s]"""
    setting: str
    """All fields but the results, which two runs of the same test have in common."""
    build: str
    place: str
    """The file and the row in it."""
    date: datetime.date

    @property
    def seconds(self) -> float:
        """The time of all tokens of the test [s]."""
        return (self.prompt + self.generated) / self.rate


def read_llama_bench(path: str | Path) -> tuple[BenchRow, ...]:
    """Read the tests of a file. Raises InputError for another format, for tests without a field that is
    needed, or in which time and rate contradict each other, and for two runs of the same test of which one is
    half as fast again."""
    file = BenchmarkFile.read(path)
    rows = [_row(file, place, fields) for place, fields in _fields(file)]
    if not rows:
        file.refuse("has no tests; is it the output of llama-bench -o json, jsonl, csv or md?")
    first: dict[str, BenchRow] = {}
    for one in rows:
        other = first.setdefault(one.setting, one)
        if max(one.rate, other.rate) > _CONTRADICTION * min(one.rate, other.rate):
            text = (
                f"is the same test as {other.place} with {other.rate:.4g} instead of {one.rate:.4g} tokens/s"
            )
            file.refuse(f"{text}; run it again on an idle machine", key=one.place.partition(" ")[2])
    return tuple(rows)


def _fields(file: BenchmarkFile) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the place of every test in the file, and its fields."""
    text = file.text.lstrip()
    if text.startswith("["):
        for number, one in enumerate(_parsed(file, text, None)):
            yield f"[{number}]", one
        return
    lines = list(enumerate(file.text.splitlines(), start=1))
    if any(line.startswith("{") for _, line in lines):
        for number, line in lines:
            if line.startswith("{"):
                yield f"line {number}", _parsed(file, line, number)
        return
    for at, (_, line) in enumerate(lines):
        if line.replace('"', "").startswith("build_commit,"):
            yield from _csv(file, lines[at:])
            return
        if line.replace(" ", "").startswith("|model|"):
            yield from _table(file, lines[at:])
            return


def _parsed(file: BenchmarkFile, text: str, line: int | None) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not a finite number")

    try:
        found = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        file.refuse(f"not valid JSON ({reason}); was llama-bench interrupted? Run it again", line=line)
    objects = found if line is None else [found]
    if not isinstance(objects, list) or not all(isinstance(one, dict) for one in objects):
        file.refuse("must be a list of objects; is it the output of llama-bench -o json?", line=line)
    return found


def _csv(file: BenchmarkFile, lines: list[tuple[int, str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    names, *rows = csv.reader(line for _, line in lines)
    for (number, _), values in zip(lines[1:], rows, strict=True):
        if len(values) != len(names):
            file.refuse(f"has {len(values)} values in {len(names)} columns", line=number)
        yield f"line {number}", dict(zip(names, values, strict=True))


def _table(file: BenchmarkFile, lines: list[tuple[int, str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a Markdown table, whose columns depend on what differs from the defaults."""
    names = _cells(lines[0][1])
    if lacking := {"model", "size", "params", "test", "t/s"} - set(names):
        file.refuse(f"the table has no column {min(lacking)}", line=lines[0][0])
    for number, line in lines[1:]:
        if not line.startswith("|"):
            break
        values = _cells(line)
        if set(line) <= set("|-: "):
            continue
        if len(values) != len(names):
            file.refuse(f"has {len(values)} values in {len(names)} columns", line=number)
        cells = dict(zip(names, values, strict=True))
        test = _TEST.fullmatch(cells["test"])
        if test is None or not cells["test"]:
            file.refuse(
                f"the test {cells['test'][:40]!r} is neither pp512, tg128 nor pp512+tg128", line=number
            )
        found: dict[str, Any] = {
            "n_gpu_layers": _ALL_LAYERS,
            "avg_ts": cells["t/s"].partition("±")[0].strip(),
        }
        found |= {field: cells[column] for column, field in _COLUMNS.items() if column in cells}
        found |= {f"n_{key}": value or 0 for key, value in test.groupdict().items()}
        for column, field in (("size", "model_size"), ("params", "model_n_params")):
            amount = _AMOUNT.fullmatch(cells[column])
            found[field] = float(amount[1]) * _UNITS[amount[2]] if amount else cells[column]
        yield f"line {number}", found


def _cells(line: str) -> list[str]:
    return [one.strip() for one in line.strip().strip("|").split("|")]


def _row(file: BenchmarkFile, place: str, fields: Mapping[str, Any]) -> BenchRow:
    def refuse(name: str, message: str) -> None:
        file.refuse(message, key=f"{place}.{name}")

    for name in _NEEDED:
        if name not in fields:
            refuse(name, "missing; is this the output of llama-bench, of 2024 or later?")
    found = {name: _integer(fields.get(name, _USUAL.get(name))) for name in _INTEGERS}
    found["n_gpu_layers"] = _integer(fields["n_gpu_layers"], least=-2)
    amounts = {name: finite(str(fields[name])) for name in ("model_size", "model_n_params")}
    for name, value in (found | amounts).items():
        if value is None or (name in amounts and value == 0):
            refuse(name, f"must be a number of at least 0, not {str(fields.get(name))[:40]!r}")
    rate = finite(str(fields.get("avg_ts", "")))
    if not rate:
        refuse("avg_ts", f"must be a rate above 0, not {str(fields.get('avg_ts', 'missing'))[:40]!r}")
    tokens = (found["n_prompt"] or 0) + (found["n_gen"] or 0)
    if not tokens:
        refuse("n_prompt", "the test has neither a prompt nor generated tokens")
    taken = finite(str(fields.get("avg_ns", "")))
    if taken and rate and abs(tokens * 1e9 / taken / rate - 1) > _AGREE:
        refuse("avg_ns", f"{tokens} tokens in {taken:.4g} ns are not {rate:.4g} tokens/s; was it edited?")
    layers = found["n_gpu_layers"] or 0
    return BenchRow(
        model=str(fields["model_type"]),
        size=amounts["model_size"] or 0,
        parameters=amounts["model_n_params"] or 0,
        filename=str(fields.get("model_filename", "")),
        gpu_layers=layers if layers >= 0 else _ALL_LAYERS * (layers == -2) - (layers == -1),
        cpu_moe=found["n_cpu_moe"] or 0,
        ubatch=found["n_ubatch"] or 0,
        threads=found["n_threads"] or 0,
        prompt=found["n_prompt"] or 0,
        generated=found["n_gen"] or 0,
        depth=found["n_depth"] or 0,
        offloads=not found["no_op_offload"],
        kv_offload=not found["no_kv_offload"],
        loaded=str(fields.get("load_mode", "")),
        rate=rate or 0,
        setting=json.dumps({key: str(one) for key, one in fields.items() if not key.startswith(_RESULTS)}),
        build=f"{fields.get('build_number', '')} {fields.get('build_commit', '')}".strip(),
        place=f"{file.name} {place}",
        date=_date(fields.get("test_time")) or file.date,
    )


def _integer(value: object, *, least: int = 0) -> int | None:
    """Return a whole number, which CSV has as text; None for anything else."""
    if isinstance(value, bool):
        return int(value)
    text = {"true": "1", "false": "0"}.get(str(value).lower(), str(value))
    number = int(text) if re.fullmatch("-?[0-9]{1,15}", text) else None
    return number if number is not None and least <= number <= _LARGEST else None


def _date(text: object) -> datetime.date | None:
    try:
        return datetime.datetime.fromisoformat(str(text)).date()
    except ValueError:
        return None


# -- models ------------------------------------------------------------------------------------------


def model_of(row: BenchRow) -> ModelShape:
    """Return the model of a test: that of its file if it is there, otherwise the listed one with as many
    parameters and bytes. Raises InputError if there is none, or if there are several."""
    return _model(row.model, row.size, row.parameters, row.filename)


@cache
def _model(printed: str, size: float, parameters: float, filename: str) -> ModelShape:
    if filename.lower().endswith(GGUF) and Path(filename).is_file():
        return load_model(filename)
    form = _FORM.search(printed)
    if form is None:
        raise _unknown(printed, "its format is not known")
    name = form[1].removeprefix("all ").lower() + _VARIANTS.get(form[2] or form[3] or "", "")
    dtype = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}.get(name)
    found = [
        shape
        for listed in _with_parameters(parameters)
        if (shape := _in_form(listed, name, dtype)) and abs(shape.weight_bytes / size - 1) <= _SAME_SIZE
    ]
    equals = {(one.least_read_bytes, one.num_hidden_layers) for one in found}
    if len(equals) != 1:
        several = ", ".join(one.name for one in found)
        raise _unknown(printed, f"it may be {several}" if found else "no listed model has its size")
    return found[0]


def _in_form(listed: str, name: str, dtype: str | None) -> ModelShape | None:
    try:
        return load_model({"name": listed, "quantization": "none" if dtype else name, "dtype": dtype})
    except InputError:
        return None


@cache
def _with_parameters(parameters: float) -> tuple[str, ...]:
    return tuple(one for one, count in _counts() if abs(count / parameters - 1) <= _SAME_PARAMETERS)


@cache
def _counts() -> tuple[tuple[str, int], ...]:
    shapes = ((name, load_model({"name": name, "quantization": "none"})) for name in list_models())
    return tuple((name, shape.num_parameters) for name, shape in shapes)


def _unknown(printed: str, why: str) -> InputError:
    text = f"{why}; put its GGUF file where model_filename says"
    return InputError.at("", f"the model {printed[:60]!r} is not known: {text}", path="llama-bench")
