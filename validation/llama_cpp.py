"""This module predicts recorded runs of llama.cpp on one H100, and published rates of others.

``docs/measurements/llama-cpp.md`` describes the runs: generation and prompts by placement, threads and load
mode, the buffers that the program reports, and what ``--fit`` places. Numbers of the machine come from
microbenchmarks; the set ``fit`` was in view while mechanisms were added, ``holdout`` was read
once, at the end. A second machine of the kind ran most of them later, and others whose weights are pages of a
file in memory that is too small; a machine with two H200 ran models that both GPUs divide.
``llama_cpp/published.csv`` has a row per published rate; of shapes and trends only ratios are compared, as
their machines are known in part.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, groupby
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from simoffload.errors import InputError
from simoffload.planning.confidence import confidence
from simoffload.planning.errors import Comparable, calibration_errors
from simoffload.scenario import LoadedScenario, default_scenario
from simoffload.simulation import fit, simulate
from validation.measured import Observed

__all__ = [
    "Buffers",
    "Placed",
    "Rate",
    "divided_placements",
    "faulting_rates",
    "llama_cpp_tables",
    "observed_rates",
    "placements",
    "predicted_rate",
    "published_rates",
    "recorded_rates",
]

_RECORDS = Path(__file__).parents[1] / "docs/measurements"
_FIRST, _SECOND = "h100-2026-11-27/llama-cpp-*.json", "h100-2026-11-28/second/llama-cpp.json"
_FAULTS, _TWO = "h100-2026-11-28/llama-cpp-faults-cuda.json", "h200-2026-11-28/two-gpus.json"
_WITH_DRIVE, _OWN = _RECORDS / "h100-2026-11-28/drive.yaml", _RECORDS / "h100-2026-11-28/second/platform.yaml"
_OF_TWO = _RECORDS / "h200-2026-11-28"
_PUBLISHED = Path(__file__).parent / "llama_cpp" / "published.csv"
_MACHINE = "h100-1gpu-vm"
_PAGEABLE = (
    f"profiles.host/{_MACHINE}-host.pageable={{points: [[1 GiB, 7.57 GB/s]], origin: measured, "
    f"source: calibrate micro, date: 2026-11-23, spread: 0.2}}"
)
"""Copies of memory that is not pinned: median of ``calibrate micro`` on the eight machines with an H100 and
recorded runs that ``hardware_profiles/host/h100-1gpu-vm-host.yaml`` lists (5.6 to 9.6 GB/s; those with an
H200, also there, are faster). The first machine of the records had 5.9 for 64 and 256 MiB and 10 for 4 and
16."""
_FORMATS = {"mxfp4": "mxfp4_moe"}
_CUT = {"qwen3-24-layers": ("qwen3-30b-a3b", ("model.num_hidden_layers=24",))}
"""Models of the records with fewer layers."""
_OPTIONS = {"-ncmoe": "cpu_moe", "-t": "threads", "-lm": "load_mode"}
_SWITCHES = {"-nopo": "strategy.op_offload=false", "-nkvo": "strategy.kv_offload=false"}
_ALL = "99"
_MIB = 1 << 20
_HOSTS = ("hosts, input", "hosts, judging")
"""Groups of rates of generation on the CPU, or with experts there, on hosts of several classes. A row is
input if the CRC-32 of its source, a space and its id is even, which was decided before any was predicted, or
if a number of its class is from it; those that were set aside to judge before do so."""
_ABSOLUTE = (
    *("generation", "prompts", *_HOSTS),
    *("generation, two GPUs", "prompts, two GPUs", "page faults"),
)
"""Groups of published rates of which the rates are compared, and not ratios."""


class Rate(NamedTuple):
    """A Rate is a measured rate of prompts or generation with its prediction, in tokens/s."""

    part: str
    """Set of a recorded run, or group of a published rate."""
    name: str
    generation: bool
    measured: float
    predicted: float
    compared: Comparable
    machine: str = ""
    """The machine, or the publication, without whose errors the interval is."""

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.measured - 1

    @property
    def ends(self) -> tuple[float, float]:
        """P10 and P90, without the errors of its machine."""
        low, high = calibration_errors().factors(self.compared, without=self.machine)
        return self.predicted / high, self.predicted / low

    @property
    def inside(self) -> bool:
        """Whether the measured rate is within the 80 % interval."""
        low, high = self.ends
        return low <= self.measured <= high


class Buffers(NamedTuple):
    """Buffers are the sizes of weights, cache and graph [MiB] on one device."""

    model: float
    context: float
    compute: float


class Placed(NamedTuple):
    """A Placed is what ``--fit`` chose in a recorded run, and in the simulation."""

    part: str
    name: str
    chosen: tuple[int, ...]
    """Layers on the CPU, first layer whose experts are there, and tensors of it that are on the GPU; of two
    GPUs the layers of the first one, the layer whose experts the next one has and tensors that stay, and the
    last two numbers."""
    predicted: tuple[int, ...]
    reported: tuple[Buffers, Buffers]
    """Buffers on the GPU and in host memory, or on both GPUs."""
    found: tuple[Buffers, Buffers]


class _Runs(NamedTuple):
    """Runs of a machine, and the platform that predicts them."""

    files: str
    platform: str = _MACHINE
    given: Sequence[str] = (_PAGEABLE,)
    """Settings of the platform."""
    sets: tuple[str, ...] = ("fit", "holdout")
    host: str = f"{_MACHINE}-host"
    accelerator: str = "h100-sxm"
    free: int = 81079
    """Memory of a GPU that the driver leaves free [MiB]."""
    gpus: int = 1

    @property
    def machine(self) -> str:
        """Name of the machine: the folder of its records."""
        return self.files.rpartition("/")[0]


_OWN_OF_TWO = _Runs(
    _TWO,
    str(_OF_TWO / "platform.yaml"),
    (),
    host="h200-z-ggml-host",
    accelerator="h200-z-ggml-accelerator",
    free=143156,
    gpus=2,
)
_RUNS: dict[str, _Runs] = {
    "fit": _Runs(_FIRST, sets=("fit",)),
    "holdout": _Runs(_FIRST, sets=("holdout",)),
    "second machine": _Runs(_SECOND),
    "second machine, own profile": _Runs(_SECOND, str(_OWN), ()),
    "two H200, own profile, fit": _OWN_OF_TWO._replace(sets=("fit",)),
    "two H200, own profile, holdout": _OWN_OF_TWO._replace(sets=("holdout",)),
}
"""Recorded runs that are predicted, by part."""
_FAULTING = {
    "fit": _Runs(_FAULTS, str(_WITH_DRIVE), sets=("fit",)),
    "holdout": _Runs(_FAULTS, str(_WITH_DRIVE), sets=("holdout",)),
    "two H200, own profile": _OWN_OF_TWO._replace(
        files="h200-2026-11-28/faults.json", platform=str(_OF_TWO / "drive.yaml")
    ),
}
"""The same with little memory."""


# -- scenarios ------------------------------------------------------------------------------------


def _scenario(model: str, platform: str, *settings: str) -> LoadedScenario:
    work = "workload={kind: inference, batch_size: 1, prompt_length: 512, output_length: 32}"
    own = (work, "strategy.kind=llama_cpp", "model.dtype=float16", *settings)
    return default_scenario(model, platform, overrides=own)


def predicted_rate(
    model: str, platform: str, settings: Sequence[str], *, prompt: int, generated: int, depth: int
) -> tuple[float, Comparable]:
    """Return the rate of a prompt or of generation behind ``depth`` tokens, and what it is compared with."""

    def result(length: int, output: int) -> Any:
        lengths = (f"workload.prompt_length={length}", f"workload.output_length={output}")
        scenario = _scenario(model, platform, *settings, *lengths)
        if not fit(scenario).fits:
            raise InputError.at("", f"{model} does not fit")
        return simulate(scenario)

    if generated:
        found = result(max(depth, 1), generated + 1)
        return found.metrics()["decode_tokens_per_s"], confidence(found).comparable("tpot_s")
    found = result(depth + prompt, 1)
    before = result(depth, 1).ttft_s if depth else 0.0
    return prompt / (found.ttft_s - before), confidence(found).comparable("ttft_s")


# -- recorded runs --------------------------------------------------------------------------------


def _records(part: str, files: str = _FIRST) -> Iterator[dict[str, Any]]:
    for path in sorted(_RECORDS.glob(files)):
        yield from (one for one in json.loads(path.read_text("utf-8")) if part in ("", one.get("set")))


def _model(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the model of a record's file, and settings for it."""
    shape, _, form = name.rpartition("-")
    base, settings = _CUT.get(shape, (shape, ()))
    return base, (f"model.quantization={_FORMATS.get(form, form)}", *settings)


def _settings(words: Sequence[str], runs: _Runs) -> tuple[str, ...] | None:
    """Return the settings of a recorded command; None for options that are not simulated."""
    found = [f"strategy.num_gpus={1 if '-dev' in words else runs.gpus}"]
    for option, value in zip(words[::2], words[1::2], strict=True):
        if option == "-ngl":
            found.append(f"strategy.gpu_layers={'all' if value == _ALL else value}")
        elif option in _OPTIONS:
            found.append(f"strategy.{_OPTIONS[option]}={'all' if value == _ALL else value}")
        elif option in _SWITCHES:
            found.append(_SWITCHES[option])
        elif option == "-ts":
            found.append(f"strategy.tensor_split=[{value.replace('/', ', ')}]")
        elif option == "-fitt":
            room = runs.free - int(value)
            found.append(f"profiles.accelerator/{runs.accelerator}.hbm_capacity={room + 1024} MiB")
        elif option != "-dev":
            return None
    return tuple(found)


@cache
def recorded_rates(part: str) -> tuple[Rate, ...]:
    """Predict the rates of a part of the recorded runs."""
    runs = _RUNS[part]
    chosen = (one for one in _records("", runs.files) if one.get("set") in runs.sets)
    return tuple(chain.from_iterable(_rates(part, one, runs) for one in chosen))


def _rates(part: str, one: dict[str, Any], runs: _Runs) -> Iterator[Rate]:
    """Yield the rates of a record, none if it has none or options that are not simulated."""
    name, *words = one.get("name", "").split() or [""]
    if not one.get("tests") or (settings := _settings(words, runs)) is None:
        return
    model, own = _model(name)
    for test in one["tests"]:
        lengths = {"prompt": test["n_prompt"], "generated": test["n_gen"], "depth": test["n_depth"]}
        size = f"strategy.ubatch_size={test['n_ubatch']}"
        predicted = predicted_rate(model, runs.platform, (*own, *settings, *runs.given, size), **lengths)
        tokens = test["n_prompt"] + test["n_gen"]
        measured = median(tokens * 1e9 / time for time in test["samples_ns"])
        yield Rate(part, one["name"], bool(test["n_gen"]), measured, *predicted, runs.machine)


@cache
def faulting_rates(part: str) -> tuple[Rate, ...]:
    """Predict the rates of a part of the runs with little memory: a control group had it, a machine has as
    much beside what its system takes, less what the group had for other than pages of files, as recorded. The
    set is that of the placement with the memory."""
    runs, found, run = _FAULTING[part], [], {}
    for one in _records("", runs.files):
        if "tests" in one:
            run = one
        if one.get("set") in runs.sets and "counters" in one:
            memory = (int(one["name"].rpartition(" ")[2]) + _RESERVED << 30) - one["memory"]["anon"]
            given = [*runs.given, f"profiles.host/{runs.host}.memory_capacity={memory} B"]
            if ahead := one.get("read_ahead_kb"):
                stated = f"{{value: {ahead} KiB, origin: measured, source: the run, date: 2026-11-28}}"
                given.append(f"profiles.host/{runs.host}.read_ahead={stated}")
            rates = _rates(part, run, runs._replace(given=given))
            around = f", {ahead} KiB" if ahead else ""
            found += [each._replace(name=f"{one['name']}{around}") for each in rates]
    return tuple(found)


_RESERVED = 16
"""Memory [GiB] that the system takes in the profile of the host."""


def placements(part: str) -> Iterator[Placed]:
    """Yield what ``--fit`` chose in the records, and what the simulation does with as much memory."""
    for one in _records(part):
        if one["part"] != "placed":
            continue
        name, _, room, *_ = one["name"].split()
        model, own = _model(name)
        (context,) = re.findall(r"-c (\d+)", one["chosen"])
        lengths = (f"workload.prompt_length={int(context) - 1}", "workload.output_length=1")
        memory = f"profiles.accelerator/h100-sxm.hbm_capacity={int(room) + 1} GiB"
        plan: Any = _scenario(model, _MACHINE, *own, *lengths, memory).plan()
        layers, placed = plan.model.num_hidden_layers, plan.on_cpu
        (on_gpu,) = map(int, re.findall(r"-ngl (-?\d+)", one["chosen"]))
        outside = re.findall(r"blk\\\.(\d+)\\\.ffn_(down|\(gate\|gate_up\||)", one["chosen"])
        first, kept = outside[0] if outside else (layers, "")
        chosen = (
            0 if on_gpu < 0 else max(0, layers + 1 - on_gpu),
            int(first),
            {"down": 2, "": 0}.get(kept, 1),
        )
        predicted = placed.before, placed.experts.start if placed.experts else layers, placed.kept
        reported = [Buffers(*map(float, line.split()[1:])) for line in one["memory"][:2]]
        found = [_buffers(plan, tier) for tier in ("hbm", "dram")]
        yield Placed(part, one["name"], chosen, predicted, (reported[0], reported[1]), (found[0], found[1]))


def divided_placements(part: str) -> Iterator[Placed]:
    """Yield the same of models that two GPUs divide, of which both have as much memory.

    Left out are recorded contexts that ``--fit`` chose for a dense model that has room with them: it would
    not divide the layers anew.
    """
    for one in _records(part, _TWO):
        rooms = re.findall(r"fit ([\d.]+) and ([\d.]+) GiB", one.get("name", ""))
        dense = "-ot" not in one.get("chosen", "") and one["name"].endswith("context 0")
        if one["part"] != "placed" or rooms[0][0] != rooms[0][1] or (dense and "ngl 81" in one["chosen"]):
            continue
        model, own = _model(one["name"].split()[0])
        (context,) = re.findall(r"-c (\d+)", one["chosen"])
        room = f"profiles.accelerator/{_OWN_OF_TWO.accelerator}.hbm_capacity={float(rooms[0][0]) + 1:g} GiB"
        lengths = (f"workload.prompt_length={int(context) - 1}", "workload.output_length=1", room)
        plan: Any = _scenario(model, _OWN_OF_TWO.platform, *own, *lengths, "strategy.num_gpus=2").plan()
        layers, placed = plan.model.num_hidden_layers, plan.on_cpu
        units = re.findall(r"-ts (\d+),", one["chosen"])
        outside = {
            device: [
                (int(layer), _KEPT.get(what, 0))
                for layer, what in re.findall(_OUTSIDE + device, one["chosen"])
            ]
            for device in ("CUDA1", "CPU")
        }
        first, kept = (outside["CPU"] or [(layers, 0)])[0]
        next_gpu, stays = (outside["CUDA1"] or [(-1, 0)])[0]
        chosen = (int(units[0]) if units else placed.units[0], next_gpu, stays, first, kept)
        over = (placed.overflowing or ((-1, 0),))[0]
        start = placed.experts.start if placed.experts else layers
        predicted = (placed.units[0], *over, start, placed.kept)
        reported = [Buffers(*map(float, line.split()[1:])) for line in one["memory"][:2]]
        found = [Buffers(*(part.size / _MIB for part in gpu[:3])) for gpu in plan.memory.on_gpus]
        pairs = (reported[0], reported[1]), (found[0], found[1])
        yield Placed(part, one["name"], chosen, predicted, *pairs)


_KEPT = {"down": 2, "(gate|gate_up|down)": 1}
"""Tensors of a layer that stay where these leave."""
_OUTSIDE = r"blk\\\.(\d+)\\\.ffn_(down|\([a-z_|]+\))[^=]*="


def _buffers(plan: Any, tier: str) -> Buffers:
    names = ("weights", "key-value cache", "buffers of the graph")
    sizes = [sum(one.size for one in plan.held if (one.tier, one.name) == (tier, name)) for name in names]
    return Buffers(*(size / _MIB for size in sizes))


def observed_rates() -> Iterator[Observed]:
    """Yield the times of all recorded runs."""
    of_memory = (faulting_rates(part) for part in _FAULTING)
    for rates in (*map(recorded_rates, _RUNS), *of_memory):
        for one in rates:
            yield Observed(
                one.compared, one.machine, not one.part.endswith("fit"), one.predicted / one.measured
            )


# -- published rates ------------------------------------------------------------------------------


@cache
def published_rates(every: int = 1) -> tuple[Rate, ...]:
    """Predict all published rates, or one of so many; those that do not fit are left out."""
    found: list[Rate] = []
    for row in list(csv.DictReader(_PUBLISHED.read_text("utf-8").splitlines()))[::every]:
        settings = row["overrides"].split(";")
        lengths = {key: int(row[key] or 0) for key in ("prompt", "generated", "depth")}
        try:
            predicted = predicted_rate(row["model"], row["platform"], settings, **lengths)
        except InputError:
            continue
        name = row["id"]
        found.append(Rate(row["group"], name, bool(row["generated"]), float(row["rate"]), *predicted))
    return tuple(found)


# -- tables ---------------------------------------------------------------------------------------


def _line(about: str, rates: Sequence[Rate]) -> str:
    errors = [abs(one.error) for one in rates]
    worst = max(rates, key=lambda one: abs(one.error))
    inside = sum(one.inside for one in rates)
    middle = median(one.error for one in rates)
    cells = (
        about,
        f"{len(rates)}",
        f"{median(errors):.1%}",
        f"{middle:+.1%}",
        f"{worst.error:+.0%}, {worst.name}",
    )
    return f"| {' | '.join(cells)} | {inside} of {len(rates)} |"


_HEAD = """\
| rates | number | median of the errors' sizes | median error | worst | in the 80 % interval |
|---|---:|---:|---:|---|---:|"""


def llama_cpp_tables() -> str:
    """Write the comparisons as Markdown."""
    kinds = {True: "generation", False: "prompts"}
    own = [
        _line(f"{kind}, {part}", [one for one in recorded_rates(part) if one.generation == generation])
        for part in _RUNS
        for generation, kind in kinds.items()
    ]
    own += [_line(f"generation, little memory, {part}", faulting_rates(part)) for part in _FAULTING]
    published = published_rates()
    judged = [
        _line(f"published {kind}", [one for one in published if one.part == kind]) for kind in _ABSOLUTE
    ]
    placed = [one for part in ("fit", "holdout") for one in placements(part)]
    divided = [one for part in ("fit", "holdout") for one in divided_placements(part)]
    parts = ["\n".join((_HEAD, *own, *judged)), _placed(placed)]
    parts += [_placed(divided, "two GPUs, set", host="second GPU")]
    parts += [_shapes(published), _single(published)]
    return "\n\n".join(parts) + "\n"


def _placed(placed: Sequence[Placed], about: str = "set", *, host: str = "host") -> str:
    head = (
        f"| {about} | equal placements by `--fit` | model within 3 % | cache | graph, GPU | graph, {host} |"
    )
    lines = [head, "|---|---:|---:|---:|---:|---:|"]
    for part in ("fit", "holdout"):
        own = [one for one in placed if one.part == part]
        equal = [one for one in own if one.chosen == one.predicted]

        def near(device: int, key: str, of: Sequence[Placed] = equal) -> str:
            pairs = [(getattr(one.found[device], key), getattr(one.reported[device], key)) for one in of]
            return f"{sum(abs(found - told) <= max(1, 0.03 * told) for found, told in pairs)} of {len(pairs)}"

        sizes = (near(0, "model"), near(0, "context"), near(0, "compute"), near(1, "compute"))
        lines.append(f"| {part} | {len(equal)} of {len(own)} | {' | '.join(sizes)} |")
    return "\n".join(lines)


def _shapes(published: Sequence[Rate]) -> str:
    """Rates of shapes and trends over that of the middle row."""
    lines = ["| shape, over its middle row | measured | predicted |", "|---|---|---|"]
    shaped = (one for one in published if one.part not in _ABSOLUTE)
    for part, group in groupby(shaped, key=lambda one: one.part):
        rates = list(group)
        middle = rates[len(rates) // 2]
        measured = ", ".join(f"{one.measured / middle.measured:.2f}" for one in rates)
        predicted = ", ".join(f"{one.predicted / middle.predicted:.2f}" for one in rates)
        lines.append(f"| {part} | {measured} | {predicted} |")
    return "\n".join(lines)


def _single(published: Sequence[Rate]) -> str:
    lines = ["| published rate | measured | predicted | error | inside |", "|---|---:|---:|---:|---|"]
    lines += [
        f"| {one.name} | {one.measured:g} | {one.predicted:.1f} | {one.error:+.1%} "
        f"| {'yes' if one.inside else 'no'} |"
        for one in published
        if one.part in _ABSOLUTE
    ]
    return "\n".join(lines)
