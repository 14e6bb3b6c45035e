"""This module predicts recorded streams of requests of vLLM, with the shipped profiles and the recorded
number of KV blocks.

``streams/vllm-0.19.csv`` has requests with lengths of ShareGPT on an RTX 4090 and on one and two RTX PRO 6000
(``streams/LICENSE``), whose kernels the same authors profiled one by one. The others were recorded for this
project (``docs/measurements/vllm.md``). No time of a stream is an input.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simoffload.bisection import least_factor
from simoffload.extensions.serving.prefixes import RadixCache
from simoffload.extensions.serving.replica import Replica, Served, StepTimes, serve
from simoffload.extensions.serving.scheduler import ReplicaState, VllmScheduler
from simoffload.extensions.serving.streams import StreamResult, simulated_stream
from simoffload_calibrate.compare import recorded_scenario, setting, stream_simulation
from simoffload_calibrate.records import EngineFacts, RecordedRun, ServedRequests, read_records

_ROOT = Path(__file__).parents[1]
_SHAREGPT = _ROOT / "validation" / "streams" / "vllm-0.19.csv"
_OWN = _ROOT / "docs" / "measurements"
_ENGINES = {
    "h100-1gpu-vm": (
        *("h100-2026-11-28/vllm-llama-8b", "h100-2026-11-28/vllm-llama-8b-more"),
        *("h100-2026-11-28/vllm-llama-8b-scarce", "h100-2026-11-28/vllm-qwen3-14b"),
        *("h100-2026-11-28/vllm-qwen3-30b", "h100-2026-11-28/vllm-third-machine"),
    ),
    "h200-1gpu-vm": ("h200-2026-11-28/vllm-first-gpu", "h200-2026-11-28/vllm-second-gpu"),
}
"""Records of our engines, by the shipped machine with their GPU."""
_GRAPHS = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""Batch sizes of the CUDA graphs of vLLM for 256 sequences (``config/vllm.py``)."""

_NEVER_FULL = 100_000
"""Blocks of a cache that holds all requests of a stream (our choice; the runs did not fill theirs)."""
_GAPS = 0.25, 4.0
"""Factors of the time between requests among which that of the knee is sought."""

Times = npt.NDArray[np.float64]


class RecordedStream(NamedTuple):
    """A RecordedStream is a stream that vLLM served, with its times."""

    part: str
    """Set of the stream: fit, holdout, published, "seen" if it was predicted before and in view when
    something changed, "beside" if another engine ran on the machine, or "compiling" if kernels were compiled
    meanwhile."""
    engine: str
    platform: str
    run: RecordedRun
    preempted: int | None

    @property
    def requests(self) -> ServedRequests:
        """The requests with their times."""
        assert self.run.requests is not None
        return self.run.requests

    def replay(self, times: StepTimes, *, gap: float = 1.0) -> Served:
        """Serve the stream by the rules of vLLM, with given times of steps, and the times between requests
        longer by a factor."""
        facts, requests = self.run.engine, self.requests.rows
        assert facts is not None
        cache = RadixCache(facts.block_size) if facts.enable_prefix_caching else None
        replica = Replica(
            scheduler=VllmScheduler(
                max_num_batched_tokens=facts.max_num_batched_tokens, max_num_seqs=facts.max_num_seqs
            ),
            state=ReplicaState(blocks=facts.kv_blocks, block_size=facts.block_size, cache=cache),
            times=times,
            async_scheduling=facts.async_scheduling,
        )
        return serve(replica, requests._replace(arrival=requests.arrival * gap))


class PredictedStream(NamedTuple):
    """A PredictedStream is a recorded stream with its prediction."""

    recorded: RecordedStream
    result: StreamResult
    knee: float
    """Rate at which nine of ten requests keep the recorded 90th percentile of the time per output token, over
    the recorded rate, at which they do in reality."""

    @property
    def figures(self) -> dict[str, tuple[float, float, bool]]:
        """The mean and percentiles [s] of the recorded and of the simulated requests, and whether the first
        is within its interval."""
        found = {}
        for name, measured in self.recorded.requests.figures().items():
            metric = f"{name.replace(' ', '_')}_s"
            low, high = self.result.intervals[metric]
            found[name] = measured, self.result.estimates[metric].value, low <= measured <= high
        return found


def sharegpt(
    run: str,
    *,
    blocks: int,
    sequences: int,
    async_scheduling: bool = True,
    platform: str = "rtx-4090-desktop",
    ranks: int = 1,
) -> RecordedStream:
    """Return a run of vLLM 0.19 with requests of ShareGPT, by its name in the file."""
    rows = [row for row in csv.DictReader(_SHAREGPT.read_text("utf-8").splitlines()) if row["run"] == run]
    columns = {key: [float(row[key]) for row in rows] for key in rows[0] if key not in ("run", "request")}
    arrival = columns["arrival_s"]
    first, last = (
        [begin + after for begin, after in zip(arrival, columns[f"{one}_token_after_queued_s"], strict=True)]
        for one in ("first", "last")
    )
    gpu, _, model = run.partition("_")
    facts = EngineFacts(
        kv_blocks=blocks,
        block_size=16,
        max_num_batched_tokens=2048,
        max_num_seqs=sequences,
        async_scheduling=async_scheduling,
        enable_prefix_caching=False,
        cudagraph_capture_sizes=_GRAPHS,
    )
    requests = {"arrival": arrival, "arrived": arrival, "first": first, "last": last}
    requests |= {key: columns[f"{name}_tokens"] for key, name in (("prompt", "input"), ("output", "output"))}
    data: dict[str, Any] = {
        "name": "ShareGPT",
        "model": {"name": model.lower(), "dtype": "bfloat16"},
        "strategy": {"kind": "vllm"},
        "workload": {"kind": "inference", "batch_size": 1, "prompt_length": 1, "output_length": 1},
        "ranks": ranks,
        "requests": requests,
        "engine": facts,
    }
    found = RecordedRun.model_validate(data)
    return RecordedStream("published", f"vllm-0.19 {gpu} {model}", platform, found, None)


def own_streams() -> Iterator[RecordedStream]:
    """Yield the streams of our engines."""
    for platform, files in _ENGINES.items():
        for file in files:
            path = _OWN / f"{file}.json"
            written = json.loads(path.read_text("utf-8"))["runs"]
            for run, raw in zip(read_records(path).runs, written, strict=True):
                if run.requests is not None:
                    preempted = sum(raw["steps"]["preempted"])
                    engine = path.stem.replace("vllm-", "vllm-0.25 ")
                    yield RecordedStream(raw["set"], engine, platform, run, preempted)


@cache
def predicted_streams() -> tuple[PredictedStream, ...]:
    """Predict every recorded stream with the shipped profiles."""
    on_server: Any = {"blocks": _NEVER_FULL, "sequences": 128, "platform": "rtx-pro-6000-2gpu"}
    published = (
        sharegpt("RTX4090_Llama-3.1-8B", blocks=2588, sequences=256),
        sharegpt("RTXPRO6000_Llama-3.1-8B", **on_server),
        sharegpt("RTXPRO6000_Qwen3-32B", ranks=2, **on_server),
    )
    return tuple(predicted((*own_streams(), *published)))


def predicted(streams: Sequence[RecordedStream]) -> Iterator[PredictedStream]:
    """Predict streams with the shipped profiles."""
    for one in streams:
        scenario = recorded_scenario(one.run, setting(one.platform, deepspeed=None))
        simulation = stream_simulation(one.run, scenario)
        yield PredictedStream(one, simulated_stream(simulation), _knee(one, simulation.table))


def _knee(stream: RecordedStream, times: StepTimes) -> float:
    limit = float(np.percentile(stream.requests.tpot, 90))

    def margin(gap: float) -> float:
        return float((stream.replay(times, gap=gap).tpot <= limit).mean()) - 0.9

    low, high = _GAPS
    return 1 / least_factor(low, high, margin) if margin(low) < 0 <= margin(high) else nan


_HEAD = """\
| set | engine | stream | TTFT [ms] | mean, p50, p90, p99 | TPOT [ms] | the same | preempted | inside | knee |
|---|---|---|---:|---|---:|---|---:|---:|---:|
"""


def streams_table(streams: Iterable[PredictedStream]) -> str:
    """Write the errors of streams as a Markdown table."""
    lines = []
    for found in streams:
        one, figures = found.recorded, found.figures
        simulated = found.result.measures[0].served.preemptions.sum()
        preempted = f"{simulated}" + ("" if one.preempted is None else f" ({one.preempted})")
        errors = (
            f"{figures[f'{name} mean'][0] * 1e3:,.1f} | {_errors(figures, name)}" for name in ("ttft", "tpot")
        )
        inside = [within for _, _, within in figures.values()]
        lines.append(
            f"| {one.part} | {one.engine} | {one.run.name} | {' | '.join(errors)} | {preempted} "
            f"| {sum(inside)} of {len(inside)} | {_knee_text(found.knee)} |"
        )
    return _HEAD + "\n".join(lines) + "\n"


def _knee_text(knee: float) -> str:
    return "" if knee != knee else f"{knee - 1:+.1%}"


def _errors(figures: dict[str, tuple[float, float, bool]], metric: str) -> str:
    """Return the errors of the mean and of three percentiles."""
    pairs = (pair for name, pair in figures.items() if name.startswith(metric))
    return ", ".join(f"{simulated / measured - 1:+.1%}" for measured, simulated, _ in pairs)
