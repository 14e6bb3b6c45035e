"""Recorded runs: their files are read, and their decode steps are compared with a simulated timeline.

``calibrate deepspeed`` and ``calibrate vllm`` write the files, but for those of FSDP
(docs/measurements/fsdp.md).
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean, median, median_low
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from simoffload.documents import Document, read_text, validate
from simoffload.errors import InputError, Problem
from simoffload.extensions.serving.requests import Requests
from simoffload.models import ModelShape
from simoffload.results.timeline import Interval, Timeline
from simoffload.strategies import in_new_form
from simoffload_calibrate.runs import offload_device, offload_home, optimizer_device

# -- records as JSON files, read after a check of size and syntax ----------------------------------


_LARGEST = 256_000_000
"""[B] Size of the largest file: a run with traces takes about 0.1 MB, a measurement of one GPU 1.1 MB."""


def read_json(path: Path, *, remedy: str) -> Any:
    """Return the content of a JSON file without positions, which large files would make slow.

    Raises InputError for a file that cannot be read or is not valid JSON; errors about other files end with
    ``remedy``.
    """
    text = read_text(path, most=_LARGEST, remedy=remedy)
    try:
        return json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        rest = text[error.pos :].strip()  # of a file that was cut off it is empty or the beginning of a value
        ended = any(word.startswith(rest) for word in ("true", "false", "null", "-"))
        ended = ended or error.msg.startswith("Unterminated string")
        hint = "was the file cut off?" if ended else remedy
        reason = f"not valid JSON: {error.msg[0].lower()}{error.msg[1:]}; {hint}"
        raise InputError([Problem(str(path), error.lineno, error.colno, "", reason)]) from None
    except (ValueError, RecursionError) as error:
        raise InputError([Problem(str(path), None, None, "", f"not valid JSON: {error}; {remedy}")]) from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a number")


# -- recorded runs ---------------------------------------------------------------------------------


_STEADY, _STEADY_TRAINING = 1, 2
"""The first repetition whose times count; earlier ones allocate memory and record traces."""

Seconds = Annotated[float, Field(ge=1e-9, le=1e9)]
Times = tuple[float, ...]
StorageRow = tuple[str, str, int, float, float, int]
"""Operation, tensor, size [B], begin [us], duration of the call [us], and swap buffers free afterwards."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Pass(_Part):
    """One timed pass of one repetition."""

    name: str
    repetition: Annotated[int, Field(ge=0)]
    seconds: Seconds


class ModuleTimes(_Part):
    """The host times [us] of every module call of a pass, in the order in which the calls begin.

    A module is fetched from ``fetch`` to ``fetched``, runs with its children until ``launched``, and is
    released until ``released``.
    """

    module: tuple[str, ...]
    fetch: Times
    fetched: Times
    launched: Times
    released: Times

    @model_validator(mode="after")
    def _equal(self) -> ModuleTimes:
        columns = (self.module, self.fetch, self.fetched, self.launched, self.released)
        lengths = [len(column) for column in columns]
        if len(set(lengths)) > 1:
            shown = ", ".join(map(str, lengths))
            raise ValueError(
                f"all columns of a trace must have the same length, not {shown}; record it again"
            )
        return self


class StepTrace(_Part):
    """One traced pass with its time."""

    seconds: Seconds
    modules: ModuleTimes
    storage: tuple[StorageRow, ...] | None = None


class Activity(_Part):
    """The activity of the GPU in one pass, by kind."""

    busy_us: dict[str, float]
    """[us] The sum of durations, by kind of activity."""


class Traces(_Part):
    """The traces of a run that are used; a record may contain more."""

    decode: StepTrace | None = Field(default=None, alias="decode 1")
    gpu_decode: Activity | None = Field(default=None, alias="gpu decode")


class Threads(_Part):
    """The number of threads for each rank's work on the CPU."""

    omp: Annotated[int, Field(ge=1)] = Field(alias="OMP_NUM_THREADS")


class ServedRequests(_Part):
    """The requests of a stream, a column each: arrival, first and last token [s], numbers of tokens, and runs
    of equal tokens of prompts."""

    arrival: Times
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    first: Times
    last: Times
    arrived: Times
    """[s] The arrivals, of requests that follow another one since the begin, too."""
    runs: tuple[tuple[tuple[int, int], ...] | None, ...] = ()
    after: tuple[int, ...] = ()
    """Row of the request after whose end each arrives; -1: none, -2: the next that no other follows."""

    @property
    def rows(self) -> Requests:
        """The requests as they are simulated."""
        number = len(self.arrival)
        lengths = np.array(self.prompt), np.array(self.output)
        after = np.array(self.after or [-1] * number)
        return Requests(np.array(self.arrival), *lengths, list(self.runs or (None,) * number), after)

    @property
    def ttft(self) -> npt.NDArray[np.float64]:
        """Time from the arrival of each request to its first token [s]."""
        return np.asarray(np.array(self.first) - np.array(self.arrived))

    @property
    def tpot(self) -> npt.NDArray[np.float64]:
        """Time per output token after the first one [s] of the requests with several."""
        output = np.array(self.output)
        gaps = np.array(self.last) - np.array(self.first)
        return np.asarray(gaps[output > 1] / (output[output > 1] - 1))

    def figures(self) -> dict[str, float]:
        """Return the mean and percentiles of TTFT and TPOT [s]."""
        found: dict[str, float] = {}
        for name, values in (("ttft", self.ttft), ("tpot", self.tpot)):
            if len(values):
                found[f"{name} mean"] = float(values.mean())
                found |= {f"{name} p{part}": float(np.percentile(values, part)) for part in (50, 90, 99)}
        return found


class EngineFacts(_Part):
    """What an engine of vLLM chose when it started."""

    kv_blocks: Annotated[int, Field(ge=1)]
    block_size: Annotated[int, Field(ge=1)]
    max_num_batched_tokens: Annotated[int, Field(ge=1)]
    max_num_seqs: Annotated[int, Field(ge=1)]
    async_scheduling: bool
    enable_prefix_caching: bool
    cudagraph_capture_sizes: tuple[int, ...]


class RecordedRun(_Part):
    """One recorded run: its settings, times and traces."""

    name: Annotated[str, Field(min_length=1)]
    model: dict[str, Any]
    workload: dict[str, Any]
    ranks: Annotated[int, Field(ge=1)]
    ds_config: dict[str, Any] | None = None
    strategy: dict[str, Any] | None = None
    """The section ``strategy`` of a scenario, for a run without DeepSpeed."""
    kv_cache: dict[str, Any] | None = None
    """The section ``kv_cache`` of the strategy; None for the default."""
    attention: str | None = None
    """The implementation of attention that ran, by its name in transformers."""
    threads: Threads | None = None
    passes: tuple[Pass, ...] = ()
    traces: Traces = Traces()
    stream: dict[str, Any] | None = None
    """The section ``stream`` of a scenario, whose requests arrived one after the other."""
    requests: ServedRequests | None = None
    engine: EngineFacts | None = None
    """The engine that served them, or computed the passes; None for a run without vLLM."""
    compilations: int | None = None
    """Number of kernels that were compiled during the run, which stops the engine for about a second each;
    None where they were not counted."""

    @model_validator(mode="after")
    def _complete(self) -> RecordedRun:
        if not self.passes and self.requests is None:
            raise ValueError("a run must have passes or requests, but this one has neither; record it again")
        if (self.ds_config is None) is (self.strategy is None):
            have = "neither" if self.strategy is None else "both"
            raise ValueError(f"a run must have either ds_config or strategy, but this one has {have}")
        return self

    @property
    def training(self) -> bool:
        """Whether the run was training, not inference."""
        return bool(self.workload.get("kind") == "training")

    @property
    def group(self) -> str:
        """The group of the run, as a strategy names it under ``evidence``."""
        if self.strategy is None:
            return "zero"
        kind = str(in_new_form(self.strategy)[0].get("kind", "fsdp"))
        return "tensor_parallel" if kind == "transformers" else kind

    @property
    def offload(self) -> str:
        """The device of offloaded parameters: none, cpu or nvme."""
        if self.strategy is not None:
            return offload_home(self.strategy)
        return offload_device(self.ds_config or {})

    @property
    def optimizer(self) -> str:
        """The device of offloaded optimizer states: none, cpu or nvme."""
        if self.strategy is not None:
            return self.offload
        return optimizer_device(self.ds_config or {})

    @property
    def offloads_cache(self) -> bool:
        """Whether the key-value cache is outside HBM."""
        return self.kv_cache is not None and str(self.kv_cache.get("tier", "hbm")) != "hbm"

    def measured(self) -> dict[str, float]:
        """Return the measured times [s] by pass.

        Inference has "first pass" (of the first repetition), and "prefill" and "decode" (the median step) of
        all later ones. With a cache outside HBM, "decode" is the mean step of the second repetition, which is
        predicted with its waits for pinned memory. Training has the median over later repetitions of the sums
        per repetition, of an even number the lower one of the two in the middle: Python collects its garbage
        in one of several steps, which takes 0.2 to 0.4 s (docs/measurements/training.md). Separately timed
        steps take precedence over the sum of their parts. A stream has the figures of TTFT and TPOT.
        """
        if self.requests is not None:
            return self.requests.figures()
        if self.training:
            return self._training()
        steady = [one for one in self.passes if one.repetition >= _STEADY]
        decode = [one for one in steady if one.name.startswith("decode")]
        if self.offloads_cache:  # steps differ, as some wait for pinned memory
            second = [one.seconds for one in decode if one.repetition == _STEADY]
            decode_s = [fmean(second)] if second else []
        else:
            decode_s = [one.seconds for one in decode]
        times = {
            "first pass": [p.seconds for p in self.passes if p.repetition == 0 and p.name == "prefill"],
            "prefill": [p.seconds for p in steady if p.name == "prefill"],
            "decode": decode_s,
        }
        return {name: median(found) for name, found in times.items() if found}

    def _training(self) -> dict[str, float]:
        has_step = any(one.name == "step" for one in self.passes)
        steady = 0 if has_step else _STEADY_TRAINING
        sums: dict[str, dict[int, float]] = {}
        for one in self.passes:
            if one.repetition >= steady:
                for name in (one.name,) if has_step else (one.name, "step"):
                    row = sums.setdefault(name, {})
                    row[one.repetition] = row.get(one.repetition, 0.0) + one.seconds
        order = sorted(sums, key=lambda name: name == "step")
        return {name: median_low(sums[name].values()) for name in order}


class Records(_Part):
    """A file of recorded runs of one machine."""

    layout: Literal["simoffload/deepspeed-runs/1", "simoffload/fsdp-runs/1", "simoffload/vllm-runs/1"] = (
        Field(alias="schema")
    )
    machine: dict[str, Any]
    date: str = ""
    """The day on which the runs were recorded."""
    runs: tuple[RecordedRun, ...]

    @property
    def deepspeed(self) -> str | None:
        """The version of DeepSpeed without the suffix of its build."""
        version = self.machine.get("deepspeed")
        return version.partition("+")[0] if isinstance(version, str) else None

    @property
    def gpu(self) -> str:
        """The name of the GPU; empty without a GPU."""
        return str(self.machine.get("gpu") or "")

    @property
    def gpus(self) -> int:
        """The number of GPUs of the machine."""
        return int(self.machine.get("gpus") or 1)


def read_records(path: Path) -> Records:
    """Read a file of recorded runs. Raises InputError for anything else."""
    data = read_json(path, remedy="name the runs.json of a calibration")
    if not isinstance(data, dict) or "runs" not in data or "schema" not in data:
        message = 'not a record of "calibrate deepspeed" or "vllm", with the keys schema, machine and runs'
        raise InputError([Problem(str(path), None, None, "", message)])
    return validate(Document(str(path), data), Records)


_MICRO, _PICO = 1e-6, 1e-12
_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)")
"""Names of layers: ``model.decoder.layers.3``, ``transformer.h.3``, ``model.layers.3`` and the like."""


class StreamRow(NamedTuple):
    """The measured and simulated amount of a part of a decode step; None where a side has no such number."""

    name: str
    measured: float | None
    """[s] or, for bytes, [B] on rank 0."""
    simulated: float | None
    """[s] or, for bytes, [B] on rank 0."""
    unit: str = "s"


class LayerStarts(NamedTuple):
    """The times at which the host thread begins each layer of a decode step."""

    step_s: float
    """[s] Time of the step, measured without tracing."""
    simulated_step_s: float
    """[s] Time of the simulated step."""
    measured: tuple[float, ...]
    """[s] since the beginning of the step, scaled by untraced over traced time, as tracing slows the host."""
    simulated: tuple[float, ...]
    """[s] since the beginning of the step."""

    @property
    def deviations(self) -> tuple[float, ...]:
        """The deviation of each layer: (simulated - measured) / time of the step."""
        pairs = zip(self.measured, self.simulated, strict=True)
        return tuple((simulated - measured) / self.step_s for measured, simulated in pairs)

    @property
    def largest(self) -> float:
        """The largest deviation without its sign, as a share of the step's time."""
        return max(map(abs, self.deviations))


def stream_rows(run: RecordedRun, timeline: Timeline) -> tuple[StreamRow, ...]:
    """Return the busy times of a decode step by stream; without a trace only the simulated ones.

    In a trace the host thread is never idle, because waits are part of a module's fetch. So each side is
    split into its own parts, and only the sums compare. Tracing slows the measured one.
    """
    simulated = _simulated(timeline)
    trace, activity = run.traces.decode, run.traces.gpu_decode
    host = _host(trace.modules) if trace else {}
    busy, waits = simulated["hook"], simulated["wait"] + simulated["wait read"]
    rows = [StreamRow("host thread", sum(host.values()) if host else None, busy + waits)]
    rows += [StreamRow(f"  {part}", seconds, None) for part, seconds in host.items()]
    rows += [StreamRow("  busy", None, busy), StreamRow("  waits", None, waits)]
    kinds = {"copy": "copy", "gather": "gather", "concat": "move", "compute": "compute"}
    for kind, name in kinds.items():
        measured = activity.busy_us.get(name, 0.0) * _MICRO if activity else None
        if measured or simulated[kind]:
            rows.append(StreamRow(name, measured, simulated[kind]))
    return (*rows, *_storage(trace, simulated))


def _storage(trace: StepTrace | None, simulated: Mapping[str, float]) -> Iterator[StreamRow]:
    rows = trace.storage if trace else None
    if not rows and not simulated["bytes"]:
        return
    size = float(sum(row[2] for row in rows if row[0] == "read")) if rows else None
    waited = sum(row[4] for row in rows if row[0] == "wait read") * _MICRO if rows else None
    yield StreamRow("read", None, simulated["read"])
    yield StreamRow("  wait for reads", waited, simulated["wait read"])
    yield StreamRow("  bytes", size, simulated["bytes"], "B")


def _host(modules: ModuleTimes) -> dict[str, float]:
    """Return the time [s] of fetches, of modules without their children, and of releases."""
    fetch = launch = release = 0.0
    open_until: list[float] = []
    for begin, fetched, launched, released in zip(
        modules.fetch, modules.fetched, modules.launched, modules.released, strict=True
    ):
        while open_until and begin >= open_until[-1]:
            open_until.pop()
        if open_until:  # the complete call of a child is inside its parent's
            launch -= released - begin
        fetch, launch, release = (
            fetch + fetched - begin,
            launch + launched - fetched,
            release + released - launched,
        )
        open_until.append(released)
    return {"fetch": fetch * _MICRO, "launch": launch * _MICRO, "release": release * _MICRO}


def _on_rank_0(timeline: Timeline) -> Iterator[Interval]:
    return (interval for interval in timeline if interval.rank == 0)


def _simulated(timeline: Timeline) -> defaultdict[str, float]:
    """Return the time [s] by kind of operation, the waits of the host thread, and the bytes read [B]."""
    streams = timeline.schedule.streams
    host, io = streams.index("host"), streams.index("io")
    times: Counter[str] = Counter()
    size = free = 0
    for interval in _on_rank_0(timeline):
        op = interval.op
        times[op.kind] += interval.end - interval.start
        size += op.size if op.kind == "read" else 0
        if op.stream == host:
            reads = any(dependency.stream == io for dependency in op.after)
            times["wait read" if reads else "wait"] += interval.start - free
            free = interval.end
    seconds = {name: time * _PICO for name, time in times.items()}
    return defaultdict(float, seconds, bytes=float(size))


def layer_starts(run: RecordedRun, model: ModelShape, timeline: Timeline) -> LayerStarts | None:
    """Return when every layer begins on both sides; None without a trace or with unrecognized layers."""
    trace, step = run.traces.decode, run.measured().get("decode")
    if trace is None or step is None:
        return None
    scale = step / trace.seconds * _MICRO
    measured = tuple(begin * scale for begin in _measured_layers(trace.modules))
    simulated = tuple(_simulated_layers(timeline, model))
    if not len(measured) == len(simulated) == model.num_hidden_layers:
        return None
    return LayerStarts(step, timeline.makespan * _PICO, measured, simulated)


def _measured_layers(modules: ModuleTimes) -> Iterator[float]:
    seen = -1
    for name, begin in zip(modules.module, modules.fetch, strict=True):
        match = _LAYER.search(name)
        if match and int(match[1]) > seen:
            seen = int(match[1])
            yield begin


def _simulated_layers(timeline: Timeline, model: ModelShape) -> Iterator[float]:
    """Return the begin [s] of every layer, where the host's modules start again from the first of a layer.

    Several layers may be one block of the schedule, so blocks do not tell.
    """
    order: dict[str, int] = {}
    for layer, _ in model.kinds:
        order |= {module.name: number for number, module in enumerate(layer) if module.hooked}
    host = timeline.schedule.streams.index("host")
    last = 1 + max(order.values())
    for interval in _on_rank_0(timeline):
        if interval.op.stream != host:
            continue
        number = order.get(interval.op.label)
        if number is None:
            continue
        if number < last:
            yield interval.start * _PICO
        last = number
