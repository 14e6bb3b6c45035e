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
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from simpy import Environment

from simoffload.documents import parse_yaml
from simoffload.scenario import resolve
from simoffload.serving.replica import Replica, Served, StepTimes, serve
from simoffload.serving.scheduler import ReplicaState, Runs, VllmScheduler
from simoffload.serving.steps import StepTable, simulated_steps
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
        env = Environment()
        replica = Replica(
            env,
            scheduler=VllmScheduler(max_num_batched_tokens=self.tokens, max_num_seqs=self.sequences),
            state=ReplicaState(blocks=self.blocks, cache=BlockPool() if self.caches else None),
            times=times,
            async_scheduling=async_scheduling,
        )
        return serve(replica, self.requests, env)


class PredictedStream(NamedTuple):
    """A PredictedStream is a recorded stream with its prediction."""

    recorded: RecordedStream
    served: Served
    evaluations: int
    """Steps that were simulated, also for other streams of the engine."""


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
    table = StepTable(simulated_steps(resolve(parse_yaml(text, name="stream.yaml"))), sizes=first.graphs)
    for one in streams:
        yield PredictedStream(one, one.replay(table), table.evaluations)


_HEAD = """\
| set | engine | stream | TTFT [ms] | mean, p50, p90, p99 | TPOT [ms] | mean, p50, p90, p99 | preemptions |
|---|---|---|---:|---|---:|---|---:|
"""


def streams_table(streams: Iterable[PredictedStream]) -> str:
    """Write the errors of streams as a Markdown table."""
    lines = []
    for one, served, _ in streams:
        preempted = f"{served.preemptions.sum()}" + ("" if one.preempted is None else f" ({one.preempted})")
        errors = (
            f"{measured.mean() * 1e3:,.1f} | {_errors(predicted, measured)}"
            for predicted, measured in ((served.ttft, one.ttft), (served.tpot, one.tpot))
        )
        lines.append(f"| {one.part} | {one.engine} | {one.case} | {' | '.join(errors)} | {preempted} |")
    return _HEAD + "\n".join(lines) + "\n"


def _errors(predicted: Times, measured: Times) -> str:
    """Return the errors of the mean and of three percentiles."""
    pairs = [(predicted.mean(), measured.mean())]
    pairs += [(np.percentile(predicted, one), np.percentile(measured, one)) for one in (50, 90, 99)]
    return ", ".join(f"{a / b - 1:+.1%}" for a, b in pairs)
