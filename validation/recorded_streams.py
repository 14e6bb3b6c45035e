"""This module predicts recorded streams of requests of vLLM, with the shipped profiles and the recorded
number of KV blocks.

``streams/vllm-0.19.csv`` has requests with lengths of ShareGPT on an RTX 4090 and on an RTX PRO 6000, of
which no profile is shipped (``streams/LICENSE``). The others were recorded for this project
(``docs/measurements/vllm.md``). No time of a stream is an input.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import nan
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simoffload.bisection import least_factor
from simoffload.documents import parse_yaml
from simoffload.planning.streams import error_interval, step_errors, stream_passes
from simoffload.scenario import resolve
from simoffload.serving.replica import Replica, Served, StepTimes, serve
from simoffload.serving.scheduler import ReplicaState, Runs, VllmScheduler
from simoffload.serving.steps import Scaled, SimulatedSteps, StepTable
from validation.block_pool import BlockPool

_ROOT = Path(__file__).parents[1]
_SHAREGPT = _ROOT / "validation" / "streams" / "vllm-0.19.csv"
_OWN = _ROOT / "docs" / "measurements" / "h100-2026-11-28"
_COMMON = 2048
"""Tokens of the common texts of a stream of our own."""
_SCENARIO = """\
name: a stream
model: {model}
platform: {platform}
workload: {{kind: inference, batch_size: 1, prompt_length: 512, output_length: 64}}
strategy: {{kind: tensor_parallel, compiled: true}}
"""
_MODELS = {
    "llama-8b": "llama-3.1-8b",
    "llama-8b-more": "llama-3.1-8b",
    "llama-8b-scarce": "llama-3.1-8b",
    "qwen3-14b": "qwen3-14b",
    "qwen3-30b": "qwen3-30b-a3b",
}
_GRAPHS = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""Batch sizes of the CUDA graphs of vLLM for 256 sequences (``config/vllm.py``)."""

_GAPS = 0.25, 4.0
"""Factors of the time between requests among which that of the knee is sought."""

Times = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


class Requests(NamedTuple):
    """Requests are a stream by arrival."""

    arrival: Times
    prompt: Counts
    output: Counts
    runs: Sequence[Runs]


class RecordedStream(NamedTuple):
    """A RecordedStream is a stream that vLLM served, with its times."""

    part: str
    """Set of the stream: fit, holdout, or published."""
    engine: str
    case: str
    model: str
    platform: str
    blocks: int
    tokens: int
    """Most tokens of a step."""
    sequences: int
    """Most sequences of a step."""
    graphs: tuple[int, ...]
    """Batch sizes of which CUDA graphs were captured."""
    caches: bool
    """Whether prefixes were cached."""
    requests: Requests
    ttft: Times
    tpot: Times
    preempted: int | None

    def replay(self, times: StepTimes, *, async_scheduling: bool = True) -> Served:
        """Serve the stream by the rules of vLLM, with given times of steps."""
        replica = Replica(
            scheduler=VllmScheduler(max_num_batched_tokens=self.tokens, max_num_seqs=self.sequences),
            state=ReplicaState(blocks=self.blocks, cache=BlockPool() if self.caches else None),
            times=times,
            async_scheduling=async_scheduling,
        )
        return serve(replica, self.requests)


class PredictedStream(NamedTuple):
    """A PredictedStream is a recorded stream with its prediction."""

    recorded: RecordedStream
    served: Served
    evaluations: int
    """Steps that were simulated, also for other streams of the engine."""
    ends: tuple[Served, Served]
    """The stream with steps as short, and as long, as in one of ten real runs."""
    knee: float
    """Rate at which nine of ten requests keep the recorded 90th percentile of the time per output token, over
    the recorded rate, at which they do in reality."""

    @property
    def inside(self) -> tuple[bool, ...]:
        """Whether each recorded figure is within its interval."""
        found = []
        for name in ("ttft", "tpot"):
            values = [_figures(getattr(one, name)) for one in (self.served, *self.ends)]
            for measured, as_is, *others in zip(_figures(getattr(self.recorded, name)), *values, strict=True):
                low, high = error_interval(as_is, as_is, others, 0.0)
                found.append(low <= measured <= high)
        return tuple(found)


def sharegpt(run: str, *, blocks: int, sequences: int) -> RecordedStream:
    """Return a run of vLLM 0.19 with requests of ShareGPT, by its name in the file."""
    rows = [row for row in csv.DictReader(_SHAREGPT.read_text("utf-8").splitlines()) if row["run"] == run]
    arrival, prompt, output, first, last = (
        np.array([float(row[key]) for row in rows])
        for key in (
            "arrival_s",
            "input_tokens",
            "output_tokens",
            "first_token_after_queued_s",
            "last_token_after_queued_s",
        )
    )
    gpu, _, model = run.partition("_")
    return RecordedStream(
        part="published",
        engine=f"vllm-0.19 {gpu}",
        case="ShareGPT",
        model=model.lower(),
        platform="rtx-4090-desktop",
        blocks=blocks,
        tokens=2048,
        sequences=sequences,
        graphs=_GRAPHS,
        caches=False,
        requests=Requests(arrival, prompt.astype(int), output.astype(int), [None] * len(rows)),
        ttft=first,
        tpot=(last - first) / (output - 1),
        preempted=None,
    )


def own_streams(engine: str) -> Iterator[RecordedStream]:
    """Yield the streams of one of our engines."""
    record = json.loads((_OWN / f"vllm-{engine}.json").read_text("utf-8"))
    facts, options = record["facts"], record["options"]
    for result in record["results"]:
        if "rows" not in result:
            continue
        rows = np.array([row[:7] for row in result["rows"]], dtype=float).T
        arrival, prompt, output, common, _, first, last = rows
        yield RecordedStream(
            part=result["set"],
            engine=f"vllm-0.25 {engine}",
            case=result["case"],
            model=_MODELS[engine],
            platform="h100-1gpu-vm",
            blocks=facts["blocks"],
            tokens=options["max_num_batched_tokens"],
            sequences=options["max_num_seqs"],
            graphs=tuple(facts["capture"]),
            caches=True,
            requests=Requests(
                arrival,
                prompt.astype(int),
                output.astype(int),
                [((int(one), _COMMON),) if one else None for one in common],
            ),
            ttft=first - arrival,
            tpot=(last - first) / (output - 1),
            preempted=result["preempted"],
        )


@cache
def predicted_streams() -> tuple[PredictedStream, ...]:
    """Predict every recorded stream with the shipped profiles."""
    groups = [list(own_streams(engine)) for engine in _MODELS]
    groups.append([sharegpt("RTX4090_Llama-3.1-8B", blocks=2588, sequences=256)])
    return tuple(one for streams in groups for one in predicted(streams))


def predicted(streams: Sequence[RecordedStream]) -> Iterator[PredictedStream]:
    """Predict streams of one engine, which share a table of steps."""
    first = streams[0]
    text = _SCENARIO.format(model=first.model, platform=first.platform)
    scenario = resolve(parse_yaml(text, name="stream.yaml"))
    simulated = SimulatedSteps(scenario)
    table = StepTable(simulated, sizes=first.graphs)
    for one in streams:
        served = one.replay(table)
        passes = stream_passes(scenario, simulated, served)
        assert passes is not None
        chunks, decoding = step_errors(passes)
        ends = (
            one.replay(Scaled(table, 1 / chunks, 1 / decoding)),
            one.replay(Scaled(table, chunks, decoding)),
        )
        yield PredictedStream(one, served, table.evaluations, ends, _knee(one, table))


def _knee(stream: RecordedStream, times: StepTimes) -> float:
    limit = float(np.percentile(stream.tpot, 90))

    def margin(gap: float) -> float:
        requests = stream.requests._replace(arrival=stream.requests.arrival * gap)
        tpot = stream._replace(requests=requests).replay(times).tpot
        return float((tpot <= limit).mean()) - 0.9

    low, high = _GAPS
    return 1 / least_factor(low, high, margin) if margin(low) < 0 <= margin(high) else nan


def _figures(times: Times) -> list[float]:
    """Return the mean and three percentiles."""
    return [float(times.mean()), *(float(np.percentile(times, one)) for one in (50, 90, 99))]


_HEAD = """\
| set | engine | stream | TTFT [ms] | mean, p50, p90, p99 | TPOT [ms] | the same | preempted | inside | knee |
|---|---|---|---:|---|---:|---|---:|---:|---:|
"""


def streams_table(streams: Iterable[PredictedStream]) -> str:
    """Write the errors of streams as a Markdown table."""
    lines = []
    for found in streams:
        one, served = found.recorded, found.served
        preempted = f"{served.preemptions.sum()}" + ("" if one.preempted is None else f" ({one.preempted})")
        errors = (
            f"{measured.mean() * 1e3:,.1f} | {_errors(predicted, measured)}"
            for predicted, measured in ((served.ttft, one.ttft), (served.tpot, one.tpot))
        )
        lines.append(
            f"| {one.part} | {one.engine} | {one.case} | {' | '.join(errors)} | {preempted} "
            f"| {sum(found.inside)} of {len(found.inside)} | {_knee_text(found.knee)} |"
        )
    return _HEAD + "\n".join(lines) + "\n"


def _knee_text(knee: float) -> str:
    return "" if knee != knee else f"{knee - 1:+.1%}"


def _errors(predicted: Times, measured: Times) -> str:
    """Return the errors of the mean and of three percentiles."""
    pairs = zip(_figures(predicted), _figures(measured), strict=True)
    return ", ".join(f"{a / b - 1:+.1%}" for a, b in pairs)
