"""The search for the best division of the weights between GPUs and offload."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import pytest

from simoffload.documents import Edit, parse_yaml, yaml_text
from simoffload.planning.advise import Advice, advise
from simoffload.planning.compare import compare
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.remedies import smallest_changes
from simoffload.planning.splits import splits
from simoffload.report.from_comparison import comparison_document
from simoffload.report.terminal import terminal_text
from simoffload.results import Change
from simoffload.scenario import LoadedScenario, resolve
from simoffload.simulation import fit, simulate


def scenario(platform: str, model: str = "llama-3.1-70b", batch: int = 1, **strategy: Any) -> LoadedScenario:
    text = {
        "name": "split",
        "model": {"name": model, "dtype": "bfloat16"},
        "platform": platform,
        "workload": {"batch_size": batch, "prompt_length": 512, "output_length": 32},
        "strategy": strategy,
    }
    return resolve(parse_yaml(yaml_text(text), name="s.yaml"))


@cache
def accelerate_on_one_gpu() -> tuple[LoadedScenario, dict[str, Change]]:
    base = scenario("rtx-4090-desktop", kind="accelerate", device_map="cpu")
    return base, {one.key: one for one in splits(Evaluator(base))}


def changed(change: Change, key: str, by: int) -> tuple[Edit, ...]:
    """Return the edits of a split with another number."""
    return tuple(
        one._replace(value={**one.value, key: one.value[key] + by}) if one.path == ("strategy",) else one
        for one in change.edits
    )


@pytest.mark.parametrize(
    ("name", "key", "more"),
    [
        ("split-accelerate-1-int4-g128", "device_map", 1),
        ("split-vllm_cpu_offload-1-int4-g128", "cpu_offload_gb", -1),
        ("split-vllm_cpu_offload-1-fp8", "cpu_offload_gb", -1),
    ],
)
def test_as_much_is_on_the_gpu_as_fits(name: str, key: str, more: int) -> None:
    base, found = accelerate_on_one_gpu()
    assert fit(base.edited(*found[name].edits)).fits
    assert not fit(base.edited(*changed(found[name], key, more))).fits
    faster, slower = (
        simulate(base.edited(*edits)).unit_s or 0.0
        for edits in (found[name].edits, changed(found[name], key, -4 * more))
    )
    assert faster < slower


def test_storage_takes_what_host_memory_does_not() -> None:
    """131 GiB of 16-bit weights less ten layers do not fit into 128 GiB together with the system."""
    _, found = accelerate_on_one_gpu()
    assert (
        found["split-accelerate-1"].description == "10 of 80 layers on 1 GPU, the others on nvme (accelerate)"
    )
    assert found["split-zero_inference-1"].description == "weights on nvme (zero_inference)"
    assert "split-vllm_cpu_offload-1" not in found


def test_format_and_split_are_combined_across_strategies_within_five_seconds() -> None:
    base, _ = accelerate_on_one_gpu()
    begin = time.process_time()
    advice = advise(base)
    assert time.process_time() - begin < 5
    assert {one.change.key for one in advice.helping[:3]} == {
        "split-vllm_cpu_offload-1-prefetch-int4-g128",
        "split-vllm_cpu_offload-1-int4-g128",
        "split-accelerate-1-int4-g128",
    }
    assert (advice.helping[2].result.unit_s or 9) < 1


@cache
def offloaded_by_vllm() -> Advice:
    return advise(scenario("h100-2nvme", kind="vllm_cpu_offload", cpu_offload_gb=120))


def test_less_is_offloaded_where_hbm_is_free() -> None:
    advice = offloaded_by_vllm()
    same = next(one for one in advice.helping if one.change.key == "split-vllm_cpu_offload-1")
    assert same.scenario.document.data["strategy"]["cpu_offload_gb"] < 48
    assert same.gain is not None
    assert same.gain > 2.4


def test_the_same_change_in_other_words_is_listed_once() -> None:
    """In 4 bit nothing is offloaded: tensor parallelism on one GPU is vLLM without offloading."""
    keys = [one.change.key for one in offloaded_by_vllm().helping]
    assert "tensor_parallel-int4-g128" in keys
    assert "split-vllm_cpu_offload-1-int4-g128" not in keys


def test_sequences_of_all_replicas_stay() -> None:
    """One process of Accelerate with 4 sequences is two ranks of ZeRO with 2 each; not eight."""
    one = scenario("dgx-h100", "llama-3.1-8b", batch=4, kind="accelerate", num_gpus=2)
    made = {change.key: change for change in splits(Evaluator(one))}
    (batch,) = (edit.value for edit in made["split-zero_inference-2"].edits if edit.path[-1] == "batch_size")
    assert batch == 2
    assert "split-zero_inference-8" not in made
    assert not any(edit.path[-1] == "batch_size" for edit in made["split-accelerate-2"].edits)
    two = scenario("dgx-h100", "llama-3.1-8b", batch=3, kind="zero_inference", ranks=2, weights="dram")
    made = {change.key: change for change in splits(Evaluator(two))}
    assert Edit.at("workload.batch_size", 6) in made["split-accelerate-2"].edits
    assert "split-zero_inference-2" not in made, "its other tiers are placements"


def test_fit_and_compare_name_strategies_that_fit() -> None:
    base = scenario("rtx-4090-desktop", kind="zero_inference", weights="dram")
    made = [one for one in smallest_changes(base) if one.kind == "strategy"]
    assert [one.key for one in made] == ["split-accelerate-1", "split-vllm_cpu_offload-1-fp8"]
    for one in made:
        assert fit(base.edited(*one.edits)).fits
    compared = compare(base, ["dram"])
    text = terminal_text(comparison_document(tuple(compared.results.values())), width=300)
    assert "dram would fit with weights on nvme; " in text
    assert "; 10 of 80 layers on 1 GPU, the others on nvme (accelerate); " in text
