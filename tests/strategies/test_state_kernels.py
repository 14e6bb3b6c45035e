"""Kernels of recurrent layers, of sparse attention, and of gathers of rows, against those that were measured.

The files of measurements have one kernel each; a module of a model has others beside it, so that differences
between sizes are compared, which the start of kernels leaves alone.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from simoffload.documents import parse_yaml
from simoffload.models import GROWING, TIME_IS_A_BOUND, Module, Sequences
from simoffload.scenario import LoadedScenario, resolve
from simoffload.strategies.passes.timing import FusedTiming

MEASURED = Path("docs/measurements/h200-2026-11-29f")
DELTA, MAMBA, SPARSE = "qwen3.5-35b-a3b", "nemotron-3-nano-30b-a3b", "deepseek-v3.2"
_SCENARIO = """\
name: served
model: {{name: {model}, dtype: bfloat16}}
platform: {platform}
workload: {{kind: inference, batch_size: 1, prompt_length: 64, output_length: 2}}
strategy: {{kind: {kind}}}
"""


def loaded(model: str, kind: str = "vllm", platform: str = "h200-1gpu-vm") -> LoadedScenario:
    text = _SCENARIO.format(model=model, kind=kind, platform=platform)
    return resolve(parse_yaml(text, name="served.yaml"))


@cache
def timing(model: str, *batch: Sequences) -> FusedTiming:
    """With rows of sparse attention in FP8 in decode steps, as they were measured."""
    found, decodes = loaded(model), bool(batch) and batch[0].decodes
    cache = GROWING._replace(paged=1.0) if model == SPARSE and decodes else GROWING
    served = found.model.as_served()
    return FusedTiming(machine=found.machine, model=served, batch=batch, zero3=False, cache=cache)


def one_of(model: str, name: str) -> Module:
    modules = timing(model)._model.distinct_modules
    return next(one for one in modules if one.name.endswith(name))


def us(model: str, name: str, *batch: Sequences) -> float:
    """Time of a module in a pass [us]."""
    return timing(model, *batch).compute(one_of(model, name)) / 1e6


def measured(file: str, kind: str, **where: Any) -> list[dict[str, Any]]:
    records = json.loads(gzip.decompress((MEASURED / f"{file}.json.gz").read_bytes()))["records"]
    rows = [row for one in records for row in one["results"] if row["kind"] == kind]
    return [row for row in rows if all(row.get(key) == value for key, value in where.items())]


def time_of(file: str, kind: str, **where: Any) -> float:
    return float(median(row["us"] for row in measured(file, kind, **where)))


# -- recurrent layers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "name", "kind", "where"),
    [
        (DELTA, "delta_rule", "delta decode", {"value_heads": 32, "state": "float32"}),
        (MAMBA, "scan", "mamba decode", {"heads": 64, "state": "float32"}),
    ],
)
def test_a_decode_step_moves_states_at_the_measured_rate(
    model: str, name: str, kind: str, where: dict[str, Any]
) -> None:
    """With a convolution of about as many channels in both."""
    times = [
        time_of("recurrent-kernels", kind, batch=batch, **where)
        + time_of("recurrent-kernels", "convolution decode", batch=batch)
        for batch in (64, 256)
    ]
    found = [us(model, name, Sequences(batch, 1, 600)) for batch in (64, 256)]
    assert found == pytest.approx(times, rel=0.1)


def test_a_state_is_written_for_each_token_that_is_checked() -> None:
    times = [time_of("recurrent-kernels", "delta verify", batch=64, tokens=tokens) for tokens in (2, 4)]
    found = [us(DELTA, "delta_rule", Sequences(64, new, 600, new)) for new in (2, 4)]
    assert found == pytest.approx(times, rel=0.15)


@pytest.mark.parametrize(
    ("model", "name", "kind", "where"),
    [
        (DELTA, "delta_rule", "delta prompt", {"value_heads": 32}),
        (MAMBA, "scan", "mamba prompt", {"heads": 64}),
    ],
)
def test_chunks_of_a_prompt_have_the_measured_rate(
    model: str, name: str, kind: str, where: dict[str, Any]
) -> None:
    """Beside what a convolution and preparation read and write of each token."""
    first, second = 8192, 16384
    times = [
        time_of("recurrent-kernels", kind, batch=1, tokens=tokens, **where) for tokens in (first, second)
    ]
    found = [us(model, name, Sequences(1, tokens, tokens)) for tokens in (first, second)]
    module, gpu = one_of(model, name), timing(model).machine.accelerator
    beside = 1e6 * 2 * first * (module.in_features + module.out_features) / gpu.hbm_rate
    assert found[1] - found[0] == pytest.approx(times[1] - times[0] + beside, rel=0.1)


def test_kernels_of_states_are_launched_between_pieces_of_compiled_code() -> None:
    """As in a trace of vLLM 0.25.1: 14 of a DeltaNet in a prompt, in no graph; 2 in a decode step."""
    module, costs = one_of(DELTA, "delta_rule"), loaded(DELTA).machine.host.compiled_costs
    prompt, short, step = (timing(DELTA, Sequences(1, new, 4096)) for new in (2048, 100, 1))
    assert [one.graphs for one in (prompt, short, step)] == ["none", "pieces", "whole"]
    assert [one.kernels(module) for one in (prompt, short, step)] == [14, 14, 2]
    launched = 14 * costs.kernel.value + costs.attention.value
    assert prompt.launch_s(module) == pytest.approx(launched + costs.piece.value)
    assert short.launch_s(module) == pytest.approx(launched)
    assert step.launch_s(module) == 0


def test_only_where_kernels_were_not_measured_their_time_is_said_to_be_a_bound() -> None:
    assert TIME_IS_A_BOUND not in loaded(DELTA).warnings
    assert TIME_IS_A_BOUND in loaded(DELTA, "deepspeed").warnings
    assert TIME_IS_A_BOUND in loaded(DELTA, "llama_cpp").warnings


# -- sparse attention -----------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "context"), [(64, 131072), (32, 131072), (1, 8192)])
def test_an_indexer_reads_its_keys_and_chooses(batch: int, context: int) -> None:
    """In a decode step, beside two kernels and what is rotated and kept of new tokens."""
    where = {"batch": batch, "context": context}
    times = time_of("sparse-kernels", "scores decode", **where)
    choices = [
        row["us"]
        for kind in ("cooperative", "persistent")
        for row in measured("sparse-kernels", f"choice decode, {kind}", **where)
    ]
    found = us(SPARSE, "indexer.scores", Sequences(batch, 1, context))
    assert found == pytest.approx(times + min(choices), rel=0.2, abs=8)


def test_scores_of_a_prompt_run_at_the_share_of_the_peak_in_fp8() -> None:
    scores = time_of("sparse-kernels", "scores prompt", tokens=2048, context=131072)
    choice = time_of("sparse-kernels", "choice prompt", tokens=2048, context=131072)
    found = us(SPARSE, "indexer.scores", Sequences(1, 2048, 131072))
    assert found == pytest.approx(scores + choice, rel=0.15)


@pytest.mark.parametrize(("heads", "batch"), [(128, 1), (128, 32), (128, 64)])
def test_attention_over_chosen_rows_adds_products_and_rows(heads: int, batch: int) -> None:
    """In a decode step; beside it the rotation, the writes of rows and queries, and two batched products."""
    where = {"heads": heads, "batch": batch, "context": 131072}
    time = time_of("sparse-kernels", "attention of chosen rows, decode", **where)
    found = us(SPARSE, "self_attn.attention", Sequences(batch, 1, 131072))
    assert 0 < found - time < 20
    longer = us(SPARSE, "self_attn.attention", Sequences(batch, 1, 8192))
    assert longer == found  # of any number of rows as many are chosen


def test_attention_of_a_prompt_over_chosen_rows_has_a_share_of_the_peak() -> None:
    where = {"heads": 128, "tokens": 2048, "context": 131072}
    time = time_of("sparse-kernels", "attention of chosen rows, prompt", **where)
    found = us(SPARSE, "self_attn.attention", Sequences(1, 2048, 131072))
    assert found == pytest.approx(time, rel=0.15)
