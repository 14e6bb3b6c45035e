"""Rows of sparse attention in host memory: what is gathered, what is where, and what is refused."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import pytest

import simoffload as so
from simoffload.models import Sequences
from simoffload.strategies.base import memory_stages
from tests.strategies import scenarios

GPUS, LAYERS, CHOSEN, ROWS = 8, 78, 2048, 4096
ROW, KEY = 656, 132
"""Bytes of a latent row in FP8, and of a key of an indexer."""
BUFFER = {"hit_rate": 0.9, "rows": ROWS}
KEYS: dict[str, Any] = {
    "model": {"name": "glm-5", "quantization": "fp8-block128"},
    "strategy": {"kind": "vllm", "tensor_parallel_size": GPUS},
    "batch_size": 4,
    "prompt_length": 32768,
}


def scenario(buffer: dict[str, Any] | None, **keys: Any) -> Any:
    cache = {"format": "fp8"} if buffer is None else {"format": "fp8", "hot_buffer": buffer}
    return scenarios.scenario(**{**KEYS, "cache": cache, **keys})


def moved(buffer: dict[str, Any], *batch: Sequences, **keys: Any) -> dict[str, int]:
    """Bytes on the streams of a pass of the first rank."""
    found: dict[str, int] = {}
    for one in scenarios.operations(scenario(buffer, **keys), *batch):
        if one.label == "rows":
            found[one.stream] = found.get(one.stream, 0) + one.size
    return found


def held(buffer: dict[str, Any] | None, **keys: Any) -> dict[tuple[str, str], int]:
    (stage,) = memory_stages(scenario(buffer, **keys).plan())
    return {(one.tier, one.name): one.size for one in stage.terms}


def test_missing_rows_are_gathered_and_new_ones_written_back() -> None:
    found = moved(BUFFER, Sequences(4, 1, 32769))
    missing = LAYERS * round(4 * CHOSEN * 0.1 * ROW)
    assert found["rows"] == pytest.approx(missing, rel=1e-6)
    assert found["rows back"] == LAYERS * 4 * ROW


@pytest.mark.parametrize(
    ("buffer", "batch"),
    [
        (BUFFER, Sequences(4, 1, ROWS)),  # the buffer has all rows
        ({**BUFFER, "hit_rate": 1}, Sequences(4, 1, 32769)),
        (BUFFER, Sequences(1, 8192, 32768, 1)),  # a prompt, of which the rows are still there
    ],
)
def test_nothing_is_gathered_that_is_in_hbm(buffer: dict[str, Any], batch: Sequences) -> None:
    assert "rows" not in moved(buffer, batch)


@pytest.mark.parametrize(("batch", "prompt", "apart"), [(4, 32768, True), (1, 5000, False)])
def test_a_step_waits_for_what_it_gathers(batch: int, prompt: int, apart: bool) -> None:
    """Over PCIe 5, at the share of the rate of copies at which kernels read host memory, or a little longer,
    as four GPUs share a socket; beyond 512 MiB of rows in all layers no more than so many pages are found."""
    keys = {"batch_size": batch, "prompt_length": prompt}
    machine = scenario(BUFFER).machine
    gpu, rate = machine.accelerator, machine.host_to_device(0, pinned=True).curve.points[-1][1]
    rate *= gpu.reads.rate_share.value
    assert (batch * prompt * LAYERS * ROW > gpu.rows.reach.value) == apart
    if apart:
        rate = min(rate, gpu.rows.pages.value / 4096 / (1 + ROW / 4096) * ROW)
    times = [so.simulate(scenario({**BUFFER, "hit_rate": hits}, **keys)).tpot_s for hits in (1, 0.9)]
    gathered = LAYERS * batch * CHOSEN * 0.1 * ROW
    started = LAYERS * gpu.kernels.kernel_latency.value
    assert 0.999 <= (times[1] - times[0] - started) * rate / gathered < 1.1
    assert times[0] == pytest.approx(so.simulate(scenario(None, **keys)).tpot_s, rel=0.002)


@pytest.mark.parametrize(
    ("bytes_", "span", "rows"), [(576, 1 << 33, 33), (1152, 1 << 33, 30), (128, 1 << 33, 37)]
)
def test_rows_that_lie_apart_are_limited_by_their_pages(bytes_: int, span: int, rows: float) -> None:
    """Rows per microsecond of 786,000 in rotation out of 8 GiB, measured on one H200."""
    limit = scenario(BUFFER).machine.accelerator.rows
    assert limit.rate(bytes_, span) / bytes_ == pytest.approx(rows * 1e6, rel=0.07)
    assert limit.rate(bytes_, limit.reach.value) == inf


def test_where_the_rows_are() -> None:
    plain, buffered = held(None), held(BUFFER)
    tokens = 32768 + 3  # the last one is not cached
    rows = 4 * (tokens + 1) * LAYERS * ROW
    assert buffered["dram", "latent rows"] == pytest.approx(rows, rel=1e-3)
    blocks, cached = 4 * -(-tokens // 16) * 16 * LAYERS, ("hbm", "key-value cache")
    assert plain[cached] == blocks * (ROW + KEY)
    assert buffered[cached] == blocks * KEY + 4 * ROWS * LAYERS * ROW


def test_more_sequences_fit() -> None:
    fits = {
        (rows, batch): so.simulate(scenario(BUFFER if rows else None, batch_size=batch)).fits
        for rows in (False, True)
        for batch in (16, 32)
    }
    assert fits == {(False, 16): True, (False, 32): False, (True, 16): True, (True, 32): True}


def test_compressed_rows_of_one_kind_are_chosen() -> None:
    """Of DeepSeek-V4 those of 4 tokens, in FP8 with scales and rotated elements in 16 bits."""
    model, buffer = {"name": "deepseek-v4-flash", "quantization": "none"}, {"hit_rate": 0.5}
    found = moved(buffer, Sequences(2, 1, 65536), model=model, batch_size=2)
    assert found["rows"] == 21 * 2 * 512 * 584 // 2
    assert found["rows back"] == pytest.approx(21 * 2 * 584 / 4)


def test_the_command_has_the_buffer_and_the_pool() -> None:
    loaded = scenario(BUFFER)
    command = loaded.scenario.strategy.exports(loaded.plan())["vllm-serve.sh"]
    assert """--attention-config '{"hisparse_config": {"device_buffer_size": 4096}}'""" in command
    assert '"kv_connector": "HiSparseConnector"' in command
    assert '"host_pool_gib": 7' in command


SCENARIO = """\
name: rows
model: glm-5.2
platform: hgx-b200
workload: {batch_size: 2, prompt_length: 8192, output_length: 8}
strategy:
  kind: vllm
  tensor_parallel_size: 8
  kv_cache:
    hot_buffer: {hit_rate: 0.9}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hit_rate: 0.9", "rows: 4096", ".hit_rate: required key is missing"),
        ("hit_rate: 0.9", "hit_rate: 1.5", ".hit_rate: must be at most 1, got 1.5"),
        ("hit_rate: 0.9", "hit_rate: most", '.hit_rate: must be a number, got "most"'),
        ("0.9}", "0.9, rows: 1000}", ".rows: 1,000 are fewer than the 2,048 rows that an indexer of glm-5.2"),
        ("0.9}", "0.9, rows: 40000}", ".rows: must be at most 32768, got 40000"),
        ("0.9}", "0.9, rows: 4096.5}", ".rows: must be a whole number, got 4096.5"),
        ("0.9}", "0.9, size: 4096}", ".size: unknown key"),
        (
            "glm-5.2",
            "llama-3.1-8b",
            "hot_buffer: llama-3.1-8b has no latent rows of which an indexer chooses",
        ),
        ("glm-5.2", "deepseek-v3", "hot_buffer: deepseek-v3 has no latent rows"),
        ("glm-5.2", "minimax-m3", "hot_buffer: minimax-m3 has no latent rows"),
        ("0.9}", "0.9}\n    connector: {tier: dram}", "remove it, or kv_cache.connector"),
        (
            "vllm\n  tensor_parallel_size: 8",
            "transformers",
            "hot_buffer: transformers keeps all rows of a cache in one place",
        ),
    ],
)
def test_mistakes(
    old: str, new: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in scenarios.refused(SCENARIO.replace(old, new), tmp_path, capsys)
