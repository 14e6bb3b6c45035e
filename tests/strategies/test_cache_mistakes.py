"""Mistakes in the section ``kv_cache``: one line with file, line, key and value, and with what is valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simoffload as so
from simoffload_calibrate.launch import case_data
from simoffload_calibrate.runs import request
from tests.strategies.scenarios import OFFLOADED, ON_CPU, STATIC, VLLM, refused, streamed, text

FLOAT32 = {"name": "llama-3.1-8b", "dtype": "float32"}
OF_VLLM = {"strategy": VLLM}
ZERO = {"strategy": {"kind": "deepspeed", "weights": "dram"}, "model": "opt-6.7b"}


def zero(model: str) -> dict[str, Any]:
    return ZERO | {"model": model}


INT4 = {"format": "int4"}


@pytest.mark.parametrize(
    ("cache", "keys", "key", "message"),
    [
        ({"tier": "attic"}, {}, "tier", 'no tier "attic" on platform "dgx-h200"'),
        ({"tier": "raid"}, {}, "tier", "transformers keeps no cache there; use hbm or dram"),
        ({"tier": "raid"}, {}, "tier", "use hbm or dram, or leave it out; or try a what-if"),
        ({"tier": 5}, {}, "tier", "must be the name of a tier of the platform, such as hbm, dram or"),
        (OFFLOADED, OF_VLLM, "tier", "vLLM keeps no cache there; use hbm"),
        (STATIC, OF_VLLM, "tier", "vLLM"),
        (
            {"implementation": "static"},
            OF_VLLM,
            "implementation",
            "vLLM has one implementation; leave it out",
        ),
        ({"implementation": "cpu_attention"}, OF_VLLM, "implementation", "vLLM has one implementation"),
        ({"implementation": 7}, {}, "implementation", 'must be "dynamic", "static", "cpu_attention" or'),
        ({"implementation": "ring"}, {}, "implementation", "must be"),
        (STATIC, {"model": "mistral-7b-v0.1"}, "implementation", "set it to dynamic"),
        ({"format": "int8"}, {}, "format", "no cache of this format; use fp8, int4 or int2, or leave"),
        ({"format": "int8"}, {}, "format", "implementation: streamed"),
        ({"format": "int3"}, {}, "format", '"bf16", "fp8", "int8", "int4", "int2" or "nvfp4"'),
        ({"format": "bf16"}, {}, "format", "is in float16, and its cache too"),
        ({"format": "bf16"}, {}, "format", "use fp16, fp8, int4 or int2, or leave it out"),
        ({"format": "fp16"}, {"model": FLOAT32}, "format", "use fp8, int4 or int2, or leave it out"),
        (INT4, {"model": "gemma-2-9b"}, "format", "sliding layers"),
        (INT4 | {"tier": "dram"}, {}, "tier", "stays on the GPU; set it to hbm"),
        (INT4 | {"tier": "dram"}, {}, "tier", "implementation: streamed"),
        (INT4 | {"implementation": "static"}, {}, "implementation", "set it to dynamic"),
        ({"size": 4}, {}, "size", "unknown key"),
        (streamed("attic"), {}, "tier", 'no tier "attic" on platform'),
        (streamed("hbm"), {}, "implementation", "set tier to dram, raid, nfs, pfs or nvmeof, or"),
        ({"implementation": "streamed"}, {}, "implementation", "is not on the GPU, and tier is hbm"),
        (streamed("raid", "int2"), {}, "format", "use fp8, int8 or int4, or leave it out"),
        (streamed() | {"pin_memory": True}, {}, "pin_memory", "remove it"),
        (
            streamed() | {"connector": {"tier": "dram"}},
            OF_VLLM,
            "implementation",
            "a connector stores blocks",
        ),
        (ON_CPU, zero("mistral-7b"), "implementation", "for OPT, BLOOM and Llama only, not for mistral"),
        (
            ON_CPU,
            zero("llama-3.1-8b"),
            "implementation",
            "does not load llama-3.1-8b: rope_scaling of type llama3",
        ),
        (
            ON_CPU,
            zero("llama-3.3-70b"),
            "implementation",
            "use dynamic or static, or a model such as llama-3",
        ),
        ({"implementation": "cpu_attention"}, ZERO, "tier", "needs the cache in host memory; use dram"),
        (ON_CPU | {"tier": "raid"}, ZERO, "tier", "keeps no cache there; use hbm or dram"),
        (ON_CPU | INT4, ZERO, "format", "has no format with fewer bits; remove it"),
        ({"tier": "dram", "pin_memory": True}, ZERO, "pin_memory", "implementation: cpu_attention"),
        ({"asynchronous": True}, ZERO, "asynchronous", "implementation: cpu_attention"),
    ],
)
def test_mistakes_are_one_line(
    cache: dict[str, Any],
    keys: dict[str, Any],
    key: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written = text(**keys, cache=cache)
    line = refused(written, tmp_path, capsys)
    lines = enumerate(written.splitlines(), 1)
    number = max((at for at, one in lines if one.strip().startswith(f"{key}:")), default=0)
    assert f"s.yaml:{number}:" in line or not number or "connector" in cache
    assert f"strategy.kv_cache.{key}:" in line
    assert message in line


def test_flexgen_places_its_cache_with_other_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = text(model="opt-6.7b", strategy={"kind": "flexgen"}, cache=OFFLOADED)
    line = refused(written, tmp_path, capsys)
    assert "strategy.kv_cache: unknown key: FlexGen" in line
    for key in ("s.yaml:", "cache_gpu_percent", "cache_cpu_percent", "compress_cache", "cpu_attention"):
        assert key in line
    assert "did you mean" not in line


def test_training_has_no_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = text(cache=OFFLOADED).partition("workload:")[0]
    work = "workload: {kind: training, batch_size: 1, sequence_length: 128}\n"
    strategy = "strategy: {kind: transformers, kv_cache: {tier: dram}}\n"
    assert "training keeps no cache" in refused(written + work + strategy, tmp_path, capsys)


@pytest.mark.parametrize("kind", ["accelerate", "deepspeed"])
def test_real_runs_get_the_cache(kind: str) -> None:
    """As the process with PyTorch reads it; what transformers does not have is refused."""
    work = {"kind": "inference", "batch_size": 1, "prompt_length": 8, "output_length": 2}
    run = {"name": "r", "model": "opt-125m", "workload": work, "strategy": {"kind": kind, "kv_cache": STATIC}}
    written = {"tier": "dram", "format": None, "implementation": "static"}
    others = {"pin_memory": False, "asynchronous": False, "connector": None, "hot_buffer": None}
    assert case_data(0, request(run), trace=False)["kv_cache"] == written | others
    what = "transformers has no such implementation; use dynamic or static"
    refusals = [({"tier": "nvme"}, "keeps no cache there; use hbm or dram"), (streamed("dram"), what)]
    for cache, message in refusals + [(ON_CPU, what)] * (kind == "deepspeed"):
        with pytest.raises(so.InputError, match=message):
            request({**run, "strategy": {"kind": kind, "kv_cache": cache}})
