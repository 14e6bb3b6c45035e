"""Models whose layers differ, and quantized ones, under strategies of inference that divide or offload."""

from __future__ import annotations

from typing import Any

import pytest

import simoffload as so
from simoffload.errors import InputError
from simoffload.models import ModelShape, load_model
from simoffload.models.shape import stored_bytes
from simoffload.scenario import LoadedScenario
from simoffload.strategies.base import memory_stages
from simoffload.strategies.divided import divide
from tests.strategies import scenarios

MODELS: dict[str, dict[str, Any]] = {
    "dense first": {"name": "deepseek-v2-lite"},
    "in turn": {"name": "llama-4-scout", "num_hidden_layers": 8},
    "quantized": {"name": "gpt-oss-20b", "quantization": "mxfp4_moe", "attention": "sdpa"},
    "more bits in some layers": {"name": "llama-2-7b", "quantization": "q4_k_m"},
    "in groups": {"name": "llama-2-7b", "quantization": "int4-g128"},
}
GGUF = ("quantized", "more bits in some layers")
every = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
under_transformers = pytest.mark.parametrize("name", [name for name in MODELS if name not in GGUF])


def scenario(model: dict[str, Any], **strategy: Any) -> LoadedScenario:
    work = {"batch_size": 2, "prompt_length": 32, "steps": 2}
    return scenarios.scenario(model=model, platform="dgx-a100-80g", **work, strategy=strategy)


def times(model: dict[str, Any], **strategy: Any) -> list[int]:
    return [one["time_ps"] for one in so.simulate(scenario(model, **strategy)).to_dict()["passes"]]


def layer_bytes(model: ModelShape) -> int:
    return sum(stored_bytes(layer, model) for layer in model.layers)


@every
def test_all_on_one_gpu_is_the_same(model: dict[str, Any]) -> None:
    expected = times(model, kind="transformers")
    assert times(model, kind="transformers", tensor_parallel_size=1) == expected


@under_transformers
def test_all_on_one_gpu_is_the_same_under_accelerate(name: str) -> None:
    expected = times(MODELS[name], kind="transformers")
    assert times(MODELS[name], kind="accelerate", device_map="cuda") == expected


@pytest.mark.parametrize("name", GGUF)
def test_transformers_writes_gguf_files_in_full(name: str) -> None:
    with pytest.raises(InputError, match="GGUF"):
        scenario(MODELS[name], kind="accelerate", device_map="cuda").plan()


@under_transformers
def test_accelerate_copies_every_stored_byte_once(name: str) -> None:
    plan: Any = scenario(MODELS[name], kind="accelerate", device_map="cpu").plan()
    assert sum(map(sum, plan.copied)) == plan.model.weight_bytes
    assert sum(one.size for one in plan.tree.units) == plan.model.weight_bytes


@every
def test_vllm_offloads_the_layers_as_they_are_stored(model: dict[str, Any]) -> None:
    plan = scenario(model, kind="vllm", cpu_offload_gb=100).plan()
    (stage,) = memory_stages(plan)
    sizes = {(one.tier, one.name): one.size for one in stage.terms}
    whole = load_model(model)
    kept = sum(  # without what vLLM drops of the tensors of GPTQ
        one.read_bytes(whole.dtype_bytes)
        for layer in whole.layers
        for module in layer
        for one in module.parameters
    )
    assert sizes["dram", "weights"] == kept
    assert sizes["hbm", "weights"] == whole.weight_bytes - layer_bytes(whole)


@every
@pytest.mark.parametrize("tensor", [1, 2])
def test_a_pipeline_divides_the_list_of_layers(model: dict[str, Any], tensor: int) -> None:
    whole = load_model(model)
    count = 2 if whole.num_hidden_layers % 2 == 0 else 3
    one = divide(whole, tensor=tensor, pipeline=1, fused=False).stages[0]
    stages = divide(whole, tensor=tensor, pipeline=count, fused=False).stages
    assert [layer for stage in stages for layer in stage.layers] == list(one.layers)
    assert {stage.num_hidden_layers for stage in stages} == {whole.num_hidden_layers // count}
    if tensor == 1:
        assert one.layers == whole.layers


def test_two_gpus_hold_half_of_the_quantized_weights() -> None:
    """Norms and what has no equal parts are on both."""
    model = load_model({"name": "llama-2-7b", "quantization": "int4-g128"})
    (part,) = divide(model, tensor=2, pipeline=1, fused=True).stages
    norms = (2 * 32 + 1) * 4096 * 2
    # The rows of down_proj have 5504 columns in each part, 43 groups of 128: as many as in the whole.
    dropped = 32 * 4 * (6 * 4096 + 11_008)  # g_idx, 4 B for each input
    assert part.weight_bytes == (model.weight_bytes - dropped - norms) // 2 + norms
