"""The search for the best division of the weights between GPUs and offload."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from simoffload.documents import Edit, parse_yaml, yaml_text
from simoffload.planning.advise import Advice, advise
from simoffload.planning.alternatives import divisions, possible
from simoffload.planning.compare import compare
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.remedies import smallest_changes
from simoffload.report.from_comparison import comparison_document
from simoffload.report.terminal import terminal_text
from simoffload.results import Change
from simoffload.scenario import LoadedScenario, read_scenario, resolve
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


def splits(evaluator: Evaluator) -> Iterator[Change]:
    return possible(evaluator, divisions(evaluator))


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
        ("split-vllm-1-int4-g128", "cpu_offload_gb", -1),
        ("split-vllm-1-fp8", "cpu_offload_gb", -1),
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
    """131 GiB of 16-bit weights do not fit into 128 GiB together with the system, but less eleven layers they
    do, unless they are pinned: then their tensors are rounded up. Into 112 GiB they do not."""
    base, found = accelerate_on_one_gpu()
    layers = "11 of 80 layers on 1 GPU, the others"
    assert found["split-accelerate-1"].description == f"{layers} in pageable memory (accelerate)"
    assert found["split-deepspeed-1"].description == "weights on nvme (DeepSpeed)"
    assert "split-vllm-1" not in found
    less = base.edited(Edit(("profiles",), {f"host/{base.machine.host.id}": {"memory_capacity": "112 GiB"}}))
    (stored,) = (one for one in splits(Evaluator(less)) if one.key == "split-accelerate-1")
    assert stored.description == f"{layers} on nvme (accelerate)"


def test_format_and_split_are_combined_across_strategies_within_five_seconds() -> None:
    base, _ = accelerate_on_one_gpu()
    begin = time.process_time()
    advice = advise(base)
    assert time.process_time() - begin < 5
    fewer = [one for one in advice.helping if not one.change.same_work]
    formats = ("q8_0", "q6_k", "q4_k_m")
    own = [one for one in fewer if one.change.key.startswith("split-llama_cpp-1-")]
    assert {one.change.key.removeprefix("split-llama_cpp-1-") for one in own} == {
        *formats,
        *(f"loaded-{name}" for name in formats),
    }
    assert fewer[: len(own) - 1] == own[:-1]
    others = [one for one in fewer if one not in own][:3]
    assert {one.change.key for one in others} == {
        "split-vllm-1-prefetch-int4-g128",
        "split-vllm-1-int4-g128",
        "split-accelerate-1-int4-g128",
    }
    assert all((one.result.unit_s or 9) < 1 for one in others)


@cache
def offloaded_by_vllm() -> Advice:
    return advise(scenario("h100-2nvme", kind="vllm", cpu_offload_gb=120))


def test_less_is_offloaded_where_hbm_is_free() -> None:
    advice = offloaded_by_vllm()
    same = next(one for one in advice.helping if one.change.key == "split-vllm-1")
    assert same.scenario.document.data["strategy"]["cpu_offload_gb"] < 50
    assert same.gain is not None
    assert same.gain > 2.3


def test_the_same_change_in_other_words_is_listed_once() -> None:
    """In 4 bit nothing is offloaded: tensor parallelism on one GPU is vLLM without offloading."""
    keys = [one.change.key for one in offloaded_by_vllm().helping]
    assert "vllm-int4-g128" in keys
    assert "split-vllm-1-int4-g128" not in keys


def test_sequences_of_all_replicas_stay() -> None:
    """One process of Accelerate with 4 sequences is two ranks of ZeRO with 2 each; not eight."""
    one = scenario("dgx-h100", "llama-3.1-8b", batch=4, kind="accelerate", num_gpus=2)
    made = {change.key: change for change in splits(Evaluator(one))}
    (batch,) = (edit.value for edit in made["split-deepspeed-2"].edits if edit.path[-1] == "batch_size")
    assert batch == 2
    assert "split-deepspeed-8" not in made
    assert not any(edit.path[-1] == "batch_size" for edit in made["split-accelerate-2"].edits)
    two = scenario("dgx-h100", "llama-3.1-8b", batch=3, kind="deepspeed", ranks=2, weights="dram")
    made = {change.key: change for change in splits(Evaluator(two))}
    assert Edit.at("workload.batch_size", 6) in made["split-accelerate-2"].edits
    assert "split-deepspeed-2" not in made, "its other tiers are placements"


def test_fit_and_compare_name_strategies_that_fit() -> None:
    base = scenario("rtx-4090-desktop", kind="deepspeed", weights="dram")
    made = [one for one in smallest_changes(base) if one.kind == "strategy"]
    assert [one.key for one in made] == [
        "split-accelerate-1",
        "split-llama_cpp-1",
        "split-vllm-1-fp8",
    ]
    for one in made:
        assert fit(base.edited(*one.edits)).fits
    compared = compare(base, ["dram"])
    text = terminal_text(comparison_document(tuple(compared.results.values())), width=300)
    assert "dram would fit with weights on nvme; " in text
    assert "; 11 of 80 layers on 1 GPU, the others in pageable memory (accelerate); " in text


def smallest_offload(base: LoadedScenario, most: int, *edits: Edit, filled: float) -> int:
    """Return the smallest ``cpu_offload_gb`` that fits, by trying every one; HBM is too small below, and host
    memory far above."""

    def too_small(size: int) -> set[str]:
        section = {"kind": "vllm", "tensor_parallel_size": 2, "cpu_offload_gb": size}
        section |= {"gpu_memory_utilization": filled}
        uses = Evaluator(base).needs(*edits, Edit(("strategy",), section))
        return {use.kind for use in uses or () if not use.fits}

    assert too_small(most) == {"dram"}, "with everything offloaded it does not fit"
    return next(size for size in range(most + 1) if not too_small(size))


@pytest.mark.parametrize(
    ("name", "most", "stored", "filled"),
    [("serving/qwen3-235b-a22b", 219, "", 0.97), ("serving/llama-3.1-70b", 33, "fp8", 0.92)],
)
def test_a_split_is_found_between_too_little_hbm_and_too_little_host_memory(
    name: str, most: int, stored: str, filled: float
) -> None:
    """More of the GPUs' memory than vLLM fills by default where nothing fits otherwise."""
    base = read_scenario(name)
    edits = (Edit.at("model.quantization", stored),) if stored else ()
    size = smallest_offload(base, most, *edits, filled=filled)
    key = "-".join(filter(None, ("split-vllm-2", stored)))
    advice = advise(base)
    (found,) = (one for one in advice.helping if one.change.key == key)
    strategy = found.scenario.document.data["strategy"]
    assert strategy["cpu_offload_gb"] == size
    assert strategy.get("gpu_memory_utilization", 0.92) == filled
    assert (found.gain or 0) > 10


def test_every_strategy_finds_its_middle() -> None:
    """Accelerate: on 256 GiB of host memory 94 layers are too many for two GPUs, and 0 for the host."""
    base = read_scenario("serving/qwen3-235b-a22b")
    layers = [
        count
        for count in range(95)
        if Evaluator(base).fits(
            Edit(
                ("strategy",),
                {"kind": "accelerate", "num_gpus": 2, "device_map": count, "pin_memory": True},
            )
        )
    ]
    assert 0 < layers[0] < layers[-1] < 94
    made = {one.key: one for one in splits(Evaluator(base))}
    assert made["split-accelerate-2"].description.startswith(f"{layers[-1]} of 94 layers on 2 GPUs, ")


@pytest.mark.parametrize(("now", "fitting"), [(0, min), (200, max)])
def test_fit_offers_the_nearest_offload_that_fits(now: int, fitting: Callable[[list[int]], int]) -> None:
    """More where HBM is too small, less where host memory is."""

    def offloading(size: int) -> Edit:
        return Edit(
            ("strategy",),
            {
                "kind": "vllm",
                "tensor_parallel_size": 2,
                "cpu_offload_gb": size,
                "gpu_memory_utilization": 0.97,
            },
        )

    base = read_scenario("serving/qwen3-235b-a22b")
    sizes = [size for size in range(220) if Evaluator(base).fits(offloading(size))]
    made = {one.kind: one for one in smallest_changes(base.edited(offloading(now)))}
    assert made["setting"].description == f"cpu_offload_gb {now} → {fitting(sizes)}"
    assert made["strategy"].description.endswith("the others in pinned memory (accelerate)")
    other = base.edited(Edit(("strategy",), {"kind": "deepspeed", "weights": "dram", "ranks": 2}))
    kinds = {one.description for one in smallest_changes(other) if one.kind == "strategy"}
    assert f"vLLM on 2 GPUs with cpu_offload_gb {min(sizes)}, which fills 0.97 of their memory" in kinds
