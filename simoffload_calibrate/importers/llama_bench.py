"""Output of ``llama-bench -o json``, jsonl, csv or md, and the model of each of its rows.

Fields: tools/llama-bench/llama-bench.cpp of llama.cpp@0c1e5709. ``n_cpu_moe``, ``n_depth`` and
``no_op_offload`` are missing in older builds, which had none, and in tables, which leave out what has its
default value.
"""

from __future__ import annotations

import csv
import datetime
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from simoffload.errors import InputError, printable
from simoffload.hardware import (
    Accelerator,
    GgmlKernels,
    Host,
    Pcie,
    ProductKernel,
    Profile,
    ggml_kernels,
    shipped_unmeasured,
)
from simoffload.models import GGUF, Layer, ModelShape, Module, list_models, load_model, parameters_of
from simoffload.strategies.hooks.on_cpu import kernel_of, meetings
from simoffload.strategies.passes.timing import decoding_s, kernels_of
from simoffload_calibrate.importers.benchmark_files import BenchmarkFile, finite

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
    architecture = printed.partition(" ")[0].lower()  # decides where it begins names
    found = [one for one in found if one.name.startswith(architecture)] or found
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


# -- profiles from its tests --------------------------------------------------------------------------
# Numbers of a GPU, a host or a slot that tests of llama-bench give, each by one equation of its own.
#
# Nothing is fitted: each equation is that with which ``llama_cpp`` is simulated, solved for one number, or
# two equations for two. What the tests do not give stays as it is in the base profile.
#
# * GPU, from the generation of two resident models: t = D + B x + K c. B are the bytes of weights that a
#   token reads, D the time of decoding them in the base profile (``ggml``), and K the kernels; x and c
#   follow from two models that differ in B / K, and ``hbm_efficiency`` is 1 / (x times the peak bandwidth).
# * Host, from the generation of a dense model without the GPU: t = B / rate + n o, with the time o of each
#   of n meetings of all threads in the base profile, and 1 / rate^2 = 1 / (T thread)^2 + 1 / (weights
#   peak)^2 on T threads. Two numbers of threads give ``weights`` and ``thread``, one the former with the
#   latter of the base.
# * Host, from two numbers of layers whose experts are on the CPU, for each further layer: dt = e / rate + 3
#   s + 6 o - g. e are the bytes of the experts of a token, and g is their part of the time with all on the
#   GPU, if that is measured; ``experts`` follows from the rate as above with the time s of a ``switch`` in
#   the base profile, and both from two models that differ in e.
# * Host, from prompts that the CPU computes, of r tokens at once: (t / n - m o)^2 = (B / rate)^2 + (2 P r /
#   (T speed))^2 for each of n parts, with P parameters of the products of each token and m meetings;
#   ``dot`` and ``blocked`` are the speed, ``tiled`` is (1 + ``tiled_rows`` / r) times it.
# * Slot, from two sizes of micro-batches of prompts with weights on the CPU: T = n W / rate + …, with n
#   micro-batches and the bytes W of the weights; the rest is equal, or that of the resident model, if
#   measured.


_DIFFERENT = 1.3
"""Least ratio of two models' bytes per layer from which their times tell two unknowns apart (our choice)."""
_FEWEST_TOKENS = 256
"""Tokens of a prompt from which on kernels for many tokens have their full rate."""
_SHOWN = 6
_PROFILE_UNITS = {
    **dict.fromkeys(("thread", "dot_thread", "page_faults"), (1e9, "GB/s")),
    **dict.fromkeys(("dot", "blocked", "tiled", "attention"), (1e12, "TFLOPS")),
    **dict.fromkeys(("operation", "switch"), (1e-6, "us")),
}
"""Units in which profiles have numbers of products."""

Statement = dict[str, Any]


class BenchNumbers(NamedTuple):
    """The numbers that tests give, and what they do not give."""

    numbers: dict[str, Statement]
    warnings: list[str]


class _Test(NamedTuple):
    row: BenchRow
    model: ModelShape

    @property
    def layers_on_cpu(self) -> int:
        """Number of whole layers on the CPU."""
        return max(0, self.model.num_hidden_layers + 1 - self.row.gpu_layers)

    @property
    def resident(self) -> bool:
        """Whether all layers are on the GPU."""
        return self.layers_on_cpu == 0 and self.row.cpu_moe == 0

    @property
    def decodes(self) -> bool:
        """Whether it generates tokens with an empty cache, which is on the GPU with its layer."""
        row = self.row
        return row.prompt == 0 and row.depth == 0 and row.kv_offload and row.gpu_layers >= 0

    @property
    def token_s(self) -> float:
        """Time of a token [s]."""
        return 1 / self.row.rate


def bench_numbers(rows: Sequence[BenchRow], base: Profile) -> BenchNumbers:
    """Return the numbers of a profile of the kind of ``base`` that tests give. Raises InputError if they give
    none, or one that cannot be."""
    tests = [_Test(row, model_of(row)) for row in rows]
    if isinstance(base, Accelerator):
        found = _of_gpu(tests, base)
    elif isinstance(base, Host):
        found = _of_host(tests, base)
    else:
        assert isinstance(base, Pcie)
        found = _copies(tests, "host_to_device", mapped=False)
    if not found.numbers:
        raise InputError.at("", f"no number can be derived: {'; '.join(found.warnings)}", path=_files(rows))
    return found


def _files(rows: Sequence[BenchRow]) -> str:
    return ", ".join(sorted({one.place.partition(" ")[0] for one in rows}))


def _stated(value: Any, tests: Sequence[_Test], how: str, *, key: str = "value") -> Statement:
    places = list(dict.fromkeys(f"{one.row.place} ({one.model.name})" for one in tests))
    shown = ", ".join(places[:_SHOWN]) + (f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else "")
    builds = ", ".join(sorted({one.row.build for one in tests}))
    source = printable(f"llama-bench {builds}; {shown}; {how}")
    date = max(one.row.date for one in tests).isoformat()
    return {key: value, "origin": "measured", "source": source[:1900], "date": date}


def _written(key: str, value: float) -> Any:
    """Return a number as profiles have it."""
    scale, unit = _PROFILE_UNITS.get(key, (0.0, ""))
    return f"{value / scale:.5g} {unit}" if unit else value


def _share(value: float, name: str, tests: Sequence[_Test]) -> float:
    if not 0 < value <= 1:
        text = f"would be {value:.3g}; is it the profile of the machine that was measured?"
        raise InputError.at(name, text, path=tests[0].row.place)
    return round(value, 4)


# -- GPU ---------------------------------------------------------------------------------------------


def _of_gpu(tests: Sequence[_Test], base: Accelerator) -> BenchNumbers:
    by_model: dict[str, list[_Test]] = {}
    for one in tests:
        if one.resident and one.decodes:
            by_model.setdefault(one.model.name, []).append(one)
    pairs = list(combinations(by_model.values(), 2))
    best = max(
        pairs, key=lambda pair: _ratio(_bytes_per_kernel(pair[0]), _bytes_per_kernel(pair[1])), default=None
    )
    if best is None or _ratio(*map(_bytes_per_kernel, best)) < _DIFFERENT:
        text = (
            "hbm_efficiency is not identified: it needs the generation of two models with all layers on the "
        )
        return BenchNumbers(
            {}, [f"{text}GPU that differ in bytes per layer, such as a dense one and a mixture"]
        )
    code = base.ggml or ggml_kernels(base, shipped_unmeasured().accelerator.ggml)
    (first, second) = (_Resident.of(one, code) for one in best)
    determinant = first.read * second.kernels - second.read * first.kernels
    per_byte = (first.seconds * second.kernels - second.seconds * first.kernels) / determinant
    per_kernel = (first.read * second.seconds - second.read * first.seconds) / determinant
    if per_kernel < 0 or per_byte <= 0:
        text = "their times give a negative cost of a kernel or of a byte; run the tests again"
        raise InputError.at("hbm_efficiency", text, path=best[0][0].row.place)
    used = [*best[0], *best[1]]
    rate, latency = 1 / per_byte / 1e9, per_kernel * 1e6
    how = f"generation of two resident models: {rate:.0f} GB/s, {latency:.2f} us a kernel"
    share = _share(1 / per_byte / base.hbm_bandwidth.value, "hbm_efficiency", used)
    text = f"they give {latency:.2f} us for ggml.kernel_latency, with what the host does between kernels"
    warnings = [f"ggml.kernel_latency is kept: {text}"]
    if base.compiled.read_efficiency is not None:
        text = f"{f'set it to {share}' if base.ggml else 'leave it out'} for llama_cpp, too"
        warnings.append(f"compiled.read_efficiency of {base.id} goes before hbm_efficiency; {text}")
    return BenchNumbers({"hbm_efficiency": _stated(share, used, how)}, warnings)


def _ratio(one: float, other: float) -> float:
    return max(one, other) / min(one, other)


def _bytes_per_kernel(tests: Sequence[_Test]) -> float:
    return tests[0].model.least_read_bytes / _kernels(tests[0].model)


def _kernels(model: ModelShape) -> int:
    parts = model.outside_and_kinds()
    return sum(count * kernels_of(module, decodes=True) for part, count in parts for module in part)


class _Resident(NamedTuple):
    """The equation of a model whose layers are all on the GPU."""

    seconds: float
    """Time of a token without decoding weights [s]."""
    read: int
    """Bytes of weights that a token reads [B]."""
    kernels: int

    @classmethod
    def of(cls, tests: Sequence[_Test], code: GgmlKernels) -> _Resident:
        model = tests[0].model
        decoded_s = sum(
            count * decoding_s(module, module.share * _stored_bytes(module), code)
            for modules, count in model.outside_and_kinds()
            for module in modules
            if module.kind != "embedding"
        )
        seconds = median(one.token_s for one in tests) - decoded_s
        return cls(seconds, model.least_read_bytes, _kernels(model))


def _stored_bytes(module: Module) -> int:
    """Return the bytes of quantized weights of a module [B]."""
    return sum(one.storage.read for one in module.parameters if one.storage is not None)


# -- host --------------------------------------------------------------------------------------------


def _of_host(tests: Sequence[_Test], base: Host) -> BenchNumbers:
    found: dict[str, Statement] = {}
    warnings: list[str] = []
    for part in (_dense_reads, _expert_reads, _products):
        numbers, missing = part(tests, base)
        found |= numbers
        warnings += missing
    slot = _copies(tests, "pageable", mapped=True)
    if not found:
        return slot._replace(warnings=[*warnings, *slot.warnings])
    others = {
        key: {"value": _written(key, one.value), "origin": "estimate"}
        | {"source": f"not measured here: {one.source}"[:1900]}
        | {"date": one.date.isoformat()}
        for key in type(base.products).model_fields
        if (one := getattr(base.products, key)) is not None and key not in found
    }
    if others:
        warnings.append(f"not measured, kept: {', '.join(f'cpu_products.{key}' for key in others)}")
    return BenchNumbers({"cpu_products": others | found, **slot.numbers}, [*warnings, *slot.warnings])


def _dense_reads(tests: Sequence[_Test], base: Host) -> tuple[dict[str, Statement], list[str]]:
    """Return ``weights``, and ``thread`` from tests with fewer threads."""
    alone = [
        one
        for one in tests
        if one.decodes
        and one.row.gpu_layers == 0
        and not one.model.num_experts
        and _main_kernel(one.model) != "dot"
    ]
    if not alone:
        return {}, ["weights is not identified: it needs the generation of a dense model with -ngl 0"]
    by_threads: dict[int, list[_Test]] = {}
    for one in alone:
        by_threads.setdefault(_threads(one, base), []).append(one)
    rates = {count: median(_read_rate(one, base) for one in found) for count, found in by_threads.items()}
    fewest, most = min(rates), max(rates)
    each, few, full = base.products.thread.value, rates[fewest], rates[most]
    found, missing = {}, ["thread is not identified: it needs the same test with few threads"]
    if fewest < most:
        # 1 / rate^2 = (1 / thread^2) / T^2 + 1 / limit^2 for both numbers T of threads
        slope = (few**-2 - full**-2) / (fewest**-2 - most**-2)
        if 0 < slope < full**-2 * most**2:
            each, missing = round(slope**-0.5), []
            how = f"generation on {fewest} and {most} threads: {few / 1e9:.1f} and {full / 1e9:.1f} GB/s"
            found["thread"] = _stated(_written("thread", each), [*by_threads[fewest], *by_threads[most]], how)
        else:
            missing = [
                "thread is not identified: its tests on few threads are as fast, or faster in proportion"
            ]
    limit, name = _limit(full, most * each), "cpu_products.weights"
    share = _share(limit / base.memory_bandwidth.value, name, by_threads[most])
    how = f"generation of dense models on {most} threads: {full / 1e9:.1f} GB/s"
    return {"weights": _stated(share, by_threads[most], how), **found}, missing


def _threads(one: _Test, base: Host) -> int:
    """Return the threads of a test; the program's default is one for each core."""
    return one.row.threads or base.cpu_optimizer.cores.value


def _limit(rate: float, threads: float) -> float:
    """Return the limit [B/s] beneath which ``threads`` that alone reach a rate [B/s] have another ``rate``;
    infinite if they are not faster than that."""
    return (rate**-2 - threads**-2) ** -0.5 if rate < threads else math.inf


def _read_rate(one: _Test, base: Host) -> float:
    model = one.model
    seconds = one.token_s - _meetings(model) * base.products.operation.value
    if seconds <= 0:
        text = f"{one.row.rate:.4g} tokens/s are more than the operations of {base.id} allow"
        raise InputError.at("avg_ts", text, path=one.row.place)
    return model.least_read_bytes / seconds


def _meetings(model: ModelShape) -> int:
    return sum(count * meetings(module) for part, count in model.outside_and_kinds() for module in part)


class _Layer(NamedTuple):
    """The equation of one more layer whose experts are on the CPU: read / rate + 3 switches = seconds."""

    read: float
    alone: float
    """Rate of the arithmetic of all threads [B/s]."""
    seconds: float
    tests: tuple[_Test, ...]


def _expert_reads(tests: Sequence[_Test], base: Host) -> tuple[dict[str, Statement], list[str]]:
    """Return ``experts``, and ``switch`` from two models."""
    equations = [_expert_layer(one, base) for one in _mixtures(tests)]
    known = [one for one in equations if one is not None and one.seconds > 0]
    if not known:
        text = (
            "experts is not identified: it needs the generation of a mixture of experts with -ngl 99 and two "
        )
        return {}, [f"{text}values of -ncmoe, of which one may be 0"]
    first, last = min(known, key=lambda one: one.read), max(known, key=lambda one: one.read)
    switch, used = base.products.switch.value, [*first.tests, *last.tests]
    found, warnings = {}, []
    lacking = "it needs two mixtures of experts that differ in bytes per layer"
    if _ratio(first.read, last.read) >= _DIFFERENT:
        rate = (
            (last.read - first.read) / (last.seconds - first.seconds) if last.seconds > first.seconds else 0.0
        )
        solved = (first.seconds - first.read / rate) / 3 if rate else 0.0
        lacking = "two mixtures of experts give it a negative time"
        if solved > 0:
            switch = solved
            how = "two models with experts on the CPU, for each layer"
            found["switch"] = _stated(_written("switch", switch), used, how)
    if not found:
        warnings.append(f"switch is not identified: {lacking}; experts follows with that of {base.id}")
    rates = [one.read / max(one.seconds - 3 * switch, 1e-12) for one in known]
    limit = median(_limit(rate, one.alone) for rate, one in zip(rates, known, strict=True))
    share = _share(limit / base.memory_bandwidth.value, "cpu_products.experts", used)
    extent = f", {min(rates) / 1e9:.1f} to {max(rates) / 1e9:.1f} by model" if len(rates) > 1 else ""
    how = f"one more layer with experts on the CPU: {median(rates) / 1e9:.1f} GB/s{extent}"
    found["experts"] = _stated(share, [test for one in known for test in one.tests], how)
    return found, warnings


def _mixtures(tests: Sequence[_Test]) -> Iterator[list[_Test]]:
    """Yield the tests of each mixture of experts that generate with all else on the GPU, on most threads."""
    by_model: dict[str, list[_Test]] = {}
    for one in tests:
        if one.decodes and one.layers_on_cpu == 0 and one.model.num_experts:
            by_model.setdefault(one.model.name, []).append(one)
    for found in by_model.values():
        most = max(one.row.threads for one in found)
        yield [one for one in found if one.row.threads == most or one.resident]


def _expert_layer(found: Sequence[_Test], base: Host) -> _Layer | None:
    """Return the equation of one more layer; None for tests with one number of layers on the CPU."""
    model = found[0].model
    times: dict[int, list[float]] = {}
    for one in found:
        layers = min(one.row.cpu_moe, model.num_hidden_layers)
        times.setdefault(layers, []).append(one.token_s)
    fewest, most = min(times), max(times)
    experts = [_expert_bytes(model, layer) for layer in model.layers]
    if fewest == most or not all(experts):
        return None
    read = sum(experts[fewest:most]) / (most - fewest)
    on_gpu = median(times[0]) * read / model.least_read_bytes if fewest == 0 else 0.0
    more = (median(times[most]) - median(times[fewest])) / (most - fewest)
    module = next(one for one in model.layers[-1] if one.share < 1 and one.parameters)
    seconds = more + on_gpu - meetings(module) * base.products.operation.value
    each = base.products.thread_rate(kernel_of(module)).value
    alone = max(_threads(one, base) for one in found) * each
    return _Layer(read, alone, seconds, tuple(found))


def _expert_bytes(model: ModelShape, layer: Layer) -> float:
    """Return the bytes of the experts that a token needs in a layer [B]."""
    owned = ((module.share, one) for module in layer if module.share < 1 for one in module.parameters)
    return sum(share * one.stored_bytes(model.dtype_bytes) for share, one in owned)


def _products(tests: Sequence[_Test], base: Host) -> tuple[dict[str, Statement], list[str]]:
    """Return the rates of a core for many tokens, of each kind of kernel."""
    by_kernel: dict[ProductKernel, list[_Test]] = {}
    for one in tests:
        row = one.row
        long = row.generated == 0 and row.depth == 0 and row.prompt >= _FEWEST_TOKENS
        if long and row.gpu_layers == 0 and not row.offloads and not one.model.num_experts:
            by_kernel.setdefault(_main_kernel(one.model), []).append(one)
    found = {}
    for kernel, used in by_kernel.items():
        how = "prompts that the CPU computes, for each thread"
        rate = median(_product_rate(one, kernel, base) for one in used)
        found[str(kernel)] = _stated(_written(kernel, rate), used, how)
    missing = [one for one in ("dot", "blocked", "tiled") if one not in found]
    text = "not identified; each needs prompts of a dense model in such a format with -ngl 0 -nopo 1"
    return found, [f"{', '.join(missing)}: {text}"] if missing else []


def _product_rate(one: _Test, kernel: ProductKernel, base: Host) -> float:
    """Return the rate of a core for very many tokens [FLOP/s]; products in the layers alone have them."""
    model, row, products = one.model, one.row, base.products
    threads, passes = _threads(one, base), _passes(row)
    tokens = row.prompt / passes
    peak = base.memory_bandwidth.value
    read_s = model.least_read_bytes / products.read_rate(kernel, peak, threads=threads, experts=False)
    part_s = row.seconds / passes - _meetings(model) * products.operation.value
    if part_s <= read_s:
        text = f"{row.rate:.4g} tokens/s are more than reading the weights in {base.id} allows"
        raise InputError.at("avg_ts", text, path=row.place)
    parameters = sum(count * parameters_of(modules) for modules, count in model.kinds)
    rate = 2 * parameters * tokens / (threads * math.sqrt(part_s**2 - read_s**2))
    return rate * (1 + products.tiled_rows.value / tokens) if kernel == "tiled" else rate


def _main_kernel(model: ModelShape) -> ProductKernel:
    """Return the kind of kernel that multiplies most weights."""
    sizes: dict[ProductKernel, int] = {}
    for modules, count in model.kinds:
        for module in modules:
            kind = kernel_of(module)
            sizes[kind] = sizes.get(kind, 0) + count * module.num_parameters
    return max(sizes, key=lambda kind: sizes[kind])


# -- copies ------------------------------------------------------------------------------------------


def _copies(tests: Sequence[_Test], key: str, *, mapped: bool) -> BenchNumbers:
    """Return the rate of copies of weights to the GPU: of a host's pages of the file if ``mapped``."""
    prompts = [one for one in tests if one.row.generated == 0 and one.row.depth == 0 and one.row.prompt]
    pairs = [
        pair
        for pair in combinations(prompts, 2)
        if _moves(pair[0], mapped=mapped) and _same_but_ubatch(*pair)
    ]
    rates = [rate for one, other in pairs if (rate := _copy_rate(one, other, prompts)) is not None]
    if not rates:
        how = "mapped" if mapped else "loaded with --load-mode none"
        text = f"{key} is not identified: it needs prompts with weights on the CPU, {how}, at two -ub"
        return BenchNumbers({}, [text])
    used = [one for pair in pairs for one in pair]
    size = max(
        one.stored_bytes(used[0].model.dtype_bytes)
        for module in used[0].model.layers[0]
        for one in module.parameters
    )
    point = [f"{size} B", f"{median(rates) / 1e6:.6g} MB/s"]
    return BenchNumbers(
        {key: _stated([point], used, "prompts at two sizes of micro-batches", key="points")}, []
    )


def _moves(one: _Test, *, mapped: bool) -> bool:
    """Return whether weights are copied to the GPU, from pages of the file if ``mapped``."""
    row = one.row
    pinned = row.loaded in ("none", "dio")
    return row.offloads and row.gpu_layers >= 0 and not one.resident and pinned != mapped


def _same_but_ubatch(one: _Test, other: _Test) -> bool:
    left, right = one.row, other.row
    placed = left.gpu_layers == right.gpu_layers and left.cpu_moe == right.cpu_moe
    same = left.prompt == right.prompt and left.loaded == right.loaded and one.model.name == other.model.name
    return same and placed and _passes(left) != _passes(right)


def _passes(row: BenchRow) -> int:
    return math.ceil(row.prompt / row.ubatch)


def _copy_rate(one: _Test, other: _Test, prompts: Sequence[_Test]) -> float | None:
    """Return the rate of copies by which two tests differ [B/s]; None if they do not differ so."""
    size, seconds = _copied(one) - _copied(other), one.row.seconds - other.row.seconds
    resident = [
        [
            each.row.seconds
            for each in prompts
            if each.resident
            and each.model.name == test.model.name
            and (each.row.prompt, each.row.ubatch) == (test.row.prompt, test.row.ubatch)
        ]
        for test in (one, other)
    ]
    if all(resident):
        seconds -= median(resident[0]) - median(resident[1])
    return size / seconds if size * seconds > 0 else None


def _copied(one: _Test) -> float:
    """Return the bytes that all micro-batches of a prompt copy to the GPU [B]."""
    model, row = one.model, one.row
    tokens = min(row.ubatch, row.prompt)
    size = 0.0
    for number, layer in enumerate(model.layers):
        for module in layer:
            if number < one.layers_on_cpu or (module.share < 1 and number < row.cpu_moe):
                stored = sum(each.stored_bytes(model.dtype_bytes) for each in module.parameters)
                size += stored * model.touched_share(module, tokens)
    return size * _passes(row)
