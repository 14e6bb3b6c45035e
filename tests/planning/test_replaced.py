"""Changes that replace the whole strategy keep the key-value cache, or state what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from simoffload.documents import Edit
from simoffload.planning.alternatives import replaced, without_offloading
from simoffload.planning.evaluator import Evaluator
from simoffload.results import Change
from simoffload.scenario import read_scenario
from simoffload.simulation import simulate


@pytest.fixture
def evaluator(tmp_path: Path, request: pytest.FixtureRequest) -> Evaluator:
    file = tmp_path / "scenario.yaml"
    file.write_text(
        "name: t\nmodel: llama-3.1-8b\nplatform: dgx-h200\n"
        "workload: {batch_size: 16, prompt_length: 2000, output_length: 8}\n"
        f"strategy: {{kind: transformers, kv_cache: {request.param}}}\n"
    )
    return Evaluator(read_scenario(file))


def change(kind: str, **keys: object) -> Change:
    return Change("placement", f"with {kind}", (Edit(("strategy",), {"kind": kind, **keys}),))


@pytest.mark.parametrize("evaluator", ["{tier: dram}", "{format: int4}"], indirect=True)
def test_a_program_with_such_a_cache_keeps_it(evaluator: Evaluator) -> None:
    other = replaced(evaluator, change("deepspeed", weights="dram"))
    there = evaluator.edited(*other.edits).scenario.strategy
    now, then = evaluator.strategy.description, there.description
    assert (then.cache, then.cache_format) == (now.cache, now.cache_format)
    assert other.same_work
    assert other.description == "with deepspeed"


@pytest.mark.parametrize("evaluator", ["{tier: dram}"], indirect=True)
def test_another_place_is_stated(evaluator: Evaluator) -> None:
    """vLLM has no cache in host memory."""
    other = replaced(evaluator, change("vllm", cpu_offload_gb=0))
    assert other.description == "with vllm, key-value cache on hbm instead of dram"
    assert other.same_work


@pytest.mark.parametrize("evaluator", ["{format: fp16}"], indirect=True)
def test_a_format_that_only_states_the_data_type_is_none(evaluator: Evaluator) -> None:
    """FlexGen has no section for its cache, which is in HBM in 16 bits by default."""
    one = change("flexgen")
    assert replaced(evaluator, one) == one
    assert replaced(evaluator, change("vllm")).description == "with vllm"


@pytest.mark.parametrize("evaluator", ["{format: int4}"], indirect=True)
def test_another_format_changes_the_answers(evaluator: Evaluator) -> None:
    other = replaced(evaluator, change("vllm", cpu_offload_gb=0, tensor_parallel_size=2))
    assert other.description == (
        "with vllm, 2 GPUs instead of 1, key-value cache on hbm instead of hbm, int4 (answers change)"
    )
    assert not other.same_work


@pytest.mark.parametrize("evaluator", ["{}"], indirect=True)
def test_fewer_sequences_are_stated(evaluator: Evaluator) -> None:
    one = change("deepspeed", ranks=8)
    same = one._replace(edits=(*one.edits, Edit.at("workload.batch_size", 2)))
    assert replaced(evaluator, same).description == "with deepspeed, 8 GPUs instead of 1"
    fewer = one._replace(edits=(*one.edits, Edit.at("workload.batch_size", 1)))
    assert replaced(evaluator, fewer).description == (
        "with deepspeed, 8 GPUs instead of 1, 8 sequences at once instead of 16"
    )


@pytest.mark.parametrize("evaluator", ["{tier: dram}"], indirect=True)
def test_other_changes_and_refused_ones_are_as_they_were(evaluator: Evaluator) -> None:
    for one in (
        Change("workload", "batch 8", (Edit.at("workload.batch_size", 8),)),
        change("deepspeed", ranks=2, unknown=1),
    ):
        assert replaced(evaluator, one) == one


def test_a_baseline_of_compare_states_its_cache(tmp_path: Path) -> None:
    """vLLM has no cache in 4 bits."""
    file = tmp_path / "scenario.yaml"
    file.write_text(
        "name: t\nmodel: llama-3.1-8b\nplatform: dgx-h200\n"
        "workload: {batch_size: 16, prompt_length: 2000, output_length: 8}\n"
        "strategy: {kind: deepspeed, weights: dram, kv_cache: {format: int4}}\n"
    )
    scenario = read_scenario(file)
    ((_, twin),) = without_offloading({"dram": scenario}, {"dram": simulate(scenario)})
    (remark,) = twin.remarks
    assert remark.startswith("added for comparison: one GPU holds the weights, without offloading")
    assert remark.endswith("key-value cache on hbm instead of hbm, int4 (answers change)")
