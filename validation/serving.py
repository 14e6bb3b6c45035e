"""This module predicts recorded steps of vLLM with CUDA graphs, on one GPU and with dummy weights.

``serving/<platform>-<program>.csv`` has a row per kind of step: its median time, and the set of the run: fit
if it was in view while kernels were counted, routing was chosen or times of the host's thread worked out,
"seen" if it was predicted before and in view when something changed, "beside" if another engine ran on the
machine, else holdout. Errors are those of fit and holdout.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from simoffload.documents import parse_yaml
from simoffload.planning.confidence import confidence
from simoffload.planning.errors import Comparable, calibration_errors
from simoffload.scenario import resolve
from simoffload.simulation import simulate
from validation.measured import Observed

__all__ = ["ServedStep", "observed_steps", "serving_steps", "serving_table"]

_FOLDER = Path(__file__).parent / "serving"
_PLATFORMS = {"h100": "h100-1gpu-vm", "h200": "h200-1gpu-vm"}
"""Shipped machine with the GPU of a file."""
_SCENARIO = """\
name: {model} served
model: {{name: {model}, dtype: bfloat16{quantization}{routing}}}
platform: {platform}
workload: {{kind: inference, batch_size: {batch}, prompt_length: {prompt}, output_length: {output}}}
strategy: {strategy}
"""
_SERVED = "{{kind: vllm, max_cudagraph_capture_size: {graph}}}"
_OFFLOADED = "{{kind: vllm, cpu_offload_gb: {gb}, max_cudagraph_capture_size: {graph}}}"
"""Strategies without and with weights that kernels read in host memory."""


class ServedStep(NamedTuple):
    """A ServedStep is a kind of step of one run, with its prediction."""

    part: str
    file: str
    model: str
    quantization: str
    cpu_offload_gb: str
    """Size [GiB] of the weights that kernels read in host memory; empty for none."""
    work: Literal["decode", "prefill"]
    batch: int
    context: int
    """Tokens of each sequence: those of the prompt, or of the cache in a decode step."""
    measured_s: float
    predicted_s: float
    compared: Comparable

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def inside(self) -> bool:
        """Whether the measured time is within the 80 % interval, without the errors of its file."""
        low, high = calibration_errors().factors(self.compared, without=self.file)
        return low <= self.measured_s / self.predicted_s <= high


@cache
def serving_steps(folder: Path = _FOLDER) -> tuple[ServedStep, ...]:
    """Predict every recorded step with the shipped profiles."""
    paths = sorted(folder.glob("*.csv"))
    return tuple(
        _predicted(path.stem, row)
        for path in paths
        for row in csv.DictReader(path.read_text("utf-8").splitlines())
    )


def _predicted(file: str, row: dict[str, str]) -> ServedStep:
    decodes, context = row["work"] == "decode", int(row["context"])
    quantization = f", quantization: {row['quantization']}" if row["quantization"] else ""
    served = _OFFLOADED if row["cpu_offload_gb"] else _SERVED
    graph = row["max_cudagraph_capture_size"] or "null"
    text = _SCENARIO.format(
        model=row["model"],
        quantization=quantization,
        routing=_routing(row["routing"]),
        platform=_PLATFORMS[file.partition("-")[0]],
        strategy=served.format(gb=row["cpu_offload_gb"], graph=graph),
        batch=row["batch"],
        prompt=context - decodes,
        output=3 if decodes else 1,
    )
    result = simulate(resolve(parse_yaml(text, name="served.yaml")))
    metric = "tpot_s" if decodes else "ttft_s"
    predicted = result.metrics()[metric] or 0.0
    return ServedStep(
        row["part"],
        file,
        row["model"],
        row["quantization"],
        row["cpu_offload_gb"],
        "decode" if decodes else "prefill",
        int(row["batch"]),
        context,
        float(row["measured_ms"]) / 1e3,
        predicted,
        confidence(result).comparable(metric),
    )


def _routing(chosen: str) -> str:
    """Return the key of a model of whose experts the router of dummy weights chose the same, "4 of 32", or
    all alike, "uniform"."""
    if chosen in ("", "uniform"):
        return ", routing: uniform" if chosen else ""
    used, experts = map(int, chosen.split(" of "))
    return f", routing: {{frequencies: {[1] * used + [0] * (experts - used)}}}"


def observed_steps(steps: Iterable[ServedStep]) -> Iterator[Observed]:
    """Yield the times of steps that were in view or held out."""
    for one in steps:
        if one.part in ("fit", "holdout"):
            ratio = one.measured_s / one.predicted_s
            yield Observed(one.compared, one.file, one.part == "holdout", ratio)


_HEAD = """\
| set | run | model | step | sequences | tokens of each | measured [ms] | predicted | error | inside |
|---|---|---|---|---:|---:|---:|---:|---:|---|
"""


def serving_table(steps: Iterable[ServedStep]) -> str:
    """Write the steps as a Markdown table."""
    lines = []
    for one in steps:
        place = f"{one.cpu_offload_gb} GiB in place" if one.cpu_offload_gb else ""
        name = " ".join(filter(None, (one.model, one.quantization, place)))
        times = f"{one.measured_s * 1e3:,.2f} | {one.predicted_s * 1e3:,.2f} | {one.error:+.1%}"
        about = f"{one.part} | {one.file} | {name} | {one.work} | {one.batch} | {one.context:,}"
        lines.append(f"| {about} | {times} | {'yes' if one.inside else '**no**'} |")
    return _HEAD + "\n".join(lines) + "\n"
