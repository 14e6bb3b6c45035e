"""Mistakes in the section of a connector: one message with its place, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from simoffload.cli import main
from tests.strategies.scenarios import refused

SCENARIO = """\
name: connected
model: llama-3.1-8b
platform: dgx-h100
workload: {batch_size: 2, prompt_length: 1024, output_length: 8}
strategy:
  kind: vllm
  kv_cache:
    connector: {tier: dram, prefix: 512}
"""
SECTION = "{tier: dram, prefix: 512}"
HERE = "s.yaml:8:"
KEY = "strategy.kv_cache.connector"


@pytest.mark.parametrize(
    ("section", "key", "message"),
    [
        ("{tier: tape}", ".tier", 'no tier "tape" on platform "dgx-h100" (has: hbm (or gpu), dram'),
        ("{tier: peer}", ".tier", 'no tier "peer"'),
        ("{tier: hbm}", ".tier", "the cache itself is in hbm; use one of dram, raid, nfs, pfs, nvmeof"),
        ("{tier: gpu}", ".tier", "the cache itself is in hbm"),
        ('{tier: ""}', ".tier", 'dram or raid, got ""'),
        ("{tier: null}", ".tier", "dram or raid, got null"),
        ("{tier: 3}", ".tier", "dram or raid, got 3"),
        ("{tier: [dram, raid]}", ".tier", "dram or raid, got a list of 2"),
        ("{prefix: 16}", ".tier", "required key is missing"),
        ("{}", ".tier", "required key is missing"),
        ("{tier: dram, prefix: 1024}", ".prefix", "are all of a prompt of 1024; use at most 1023"),
        ("{tier: dram, prefix: 5000}", ".prefix", "more than all of a prompt of 1024; use at most 1023"),
        ("{tier: dram, prefix: -1}", ".prefix", "must be at least 0, got -1"),
        ("{tier: dram, prefix: 0.5}", ".prefix", "must be a whole number, got 0.5"),
        ("{tier: dram, prefix: 512.0}", ".prefix", "must be a whole number, got 512.0"),
        ("{tier: dram, prefix: 50%}", ".prefix", 'must be a whole number, got "50%"'),
        ("{tier: dram, prefix: half}", ".prefix", 'must be a whole number, got "half"'),
        ("{tier: dram, prefix: true}", ".prefix", "must be a whole number, got true"),
        ("{tier: dram, prefix: .inf}", ".prefix", "must be a finite number, got .inf"),
        ("{tier: dram, prefix: 100000000000}", ".prefix", "must be at most 10000000"),
        ("{tier: dram, block_tokens: 0}", ".block_tokens", "must be at least 1, got 0"),
        ("{tier: dram, block_tokens: -16}", ".block_tokens", "must be at least 1, got -16"),
        ("{tier: dram, block_tokens: 16.5}", ".block_tokens", "must be a whole number, got 16.5"),
        ("{tier: dram, block_tokens: 10000000}", ".block_tokens", "must be at most 1000000"),
        ("{tier: dram, layerwise: maybe}", ".layerwise", 'must be true or false, got "maybe"'),
        ("{tier: dram, layerwise: 1}", ".layerwise", "must be true or false, got 1"),
        ("{tier: raid, direct: 'yes'}", ".direct", 'must be true or false, got "yes"'),
        ("{tier: dram, store: null}", ".store", "must be true or false, got null"),
        ("{tier: dram, cross_layer_blocks: both}", ".cross_layer_blocks", "must be true or false"),
        ("{tier: dram, layerwise: true, cross_layer_blocks: true}", ".cross_layer_blocks", "on its own"),
        ("{tier: dram, direct: true}", ".direct", "host memory is always copied by the GPU itself"),
        ("{tier: nfs, direct: true}", ".direct", "cannot be read directly into a GPU (nfs-100gbe)"),
        ("{tier: dram, chunk_size: 256}", ".chunk_size", "unknown key (known here: tier, prefix"),
        ("{tier: dram, prefx: 256}", ".prefx", 'unknown key; did you mean "prefix"?'),
        ("[{tier: dram}, {tier: raid}]", "", "must be a mapping, got a list of 2"),
        ("dram", "", 'must be a mapping, got "dram"'),
        ("true", "", "must be a mapping, got true"),
    ],
)
def test_mistakes_in_the_section(
    section: str, key: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(SCENARIO.replace(SECTION, section), tmp_path, capsys)
    assert f"/{HERE}" in said
    assert f"{KEY}{key}: " in said
    assert message in said


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("vllm", "accelerate\n  num_gpus: 2", "a connector moves the blocks of one GPU"),
        ("vllm", "flexgen", "strategy.kv_cache: unknown key"),
        ("kv_cache:", "kv_cache:\n    tier: dram", "strategy.kv_cache.tier: "),
        ("kv_cache:", "kv_cache:\n    format: int4", "vLLM has no cache of this format; use fp8"),
        ("kv_cache:", "kv_cache:\n    implementation: static", "vLLM has one implementation; leave it out"),
        (SECTION, f"{SECTION}\n    connector: {{tier: raid}}", "key given twice (first on line 8)"),
        (SECTION, f"{SECTION}\n  kv_cache: {{tier: hbm}}", "key given twice (first on line 7)"),
        ("kind: vllm", "tensor_parallel_size: 3\n  kind: vllm", "3 GPUs cannot divide 32 attention heads"),
        ("kind: vllm", "offload_group_size: 99\n  kind: vllm", "only 0 of the 32 layers"),
    ],
)
def test_mistakes_around_it(
    old: str, new: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(SCENARIO.replace(old, new), tmp_path, capsys)


@pytest.mark.parametrize(
    ("section", "warnings"),
    [
        ("{tier: dram, prefix: 100, block_tokens: 256}", ["nothing is loaded: 100 tokens"]),
        ("{tier: dram, store: false}", ["has no effect"]),
        ("{tier: dram, prefix: 9, block_tokens: 4096}", ["nothing is loaded: 9 tokens", "has no effect"]),
        ("{tier: dram, prefix: 512, store: false}", []),
        ("{tier: dram}", []),
    ],
)
def test_what_moves_nothing_is_a_warning(
    section: str, warnings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(SCENARIO.replace(SECTION, section))
    assert main(["run", str(file)]) == 0
    out = capsys.readouterr().out
    lines = [one for one in out.splitlines() if one.startswith("  warning ")]
    assert len(lines) == len(warnings)
    assert all(one in line for one, line in zip(warnings, lines, strict=True))
