"""Mixtures of experts: published totals, active parameters and caches, and latent attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simoffload.errors import InputError
from simoffload.models import Layer, load_model, module_cost

# Published totals and active parameters [1e9] (the head and the embedding included), and bytes of cache for a
# token in 16 bit: config.json of each model and its model card; the totals of gpt-oss include the biases.
PUBLISHED = {
    "mixtral-8x7b": (46.70, 12.88, 131_072),
    "mixtral-8x22b": (140.63, 39.16, 229_376),
    "qwen3-30b-a3b": (30.53, 3.35, 98_304),
    "qwen3-235b-a22b": (235.09, 22.19, 192_512),
    "deepseek-v3": (671.03, 37.55, 70_272),
    "deepseek-r1": (671.03, 37.55, 70_272),
    "kimi-k2": (1026.4, 32.9, 70_272),
    "gpt-oss-120b": (116.83, 5.71, 73_728),
    "gpt-oss-20b": (20.91, 4.19, 49_152),
    "llama-4-scout": (107.77, 17.17, 196_608),
    "llama-4-maverick": (400.71, 17.18, 196_608),
    "glm-4.5": (352.8, 33.6, 376_832),
    "glm-4.5-air": (106.85, 13.4, 188_416),
}
CONFIGS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("oracle-5.json").read_text())[
    "configs"
]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name: str) -> None:
    total, active, cache = PUBLISHED[name]
    shape = load_model(name)
    assert shape.num_parameters / 1e9 == pytest.approx(total, rel=0.0005)
    assert shape.active_parameters / 1e9 == pytest.approx(active, rel=0.01)
    assert shape.kv_cache_bytes(batch=1, tokens=1) == cache


def test_layers_of_several_kinds() -> None:
    def kinds(name: str) -> list[int]:
        return [count for _, count in load_model(name).kinds]

    assert kinds("deepseek-v3") == [3, 58]
    assert kinds("kimi-k2") == [1, 60]
    assert kinds("glm-4.5") == [3, 89]
    assert kinds("llama-4-maverick") == [24, 12, 12]  # dense; with experts, rotated and not
    assert kinds("llama-4-scout") == [36, 12]


def test_values_by_layer_are_in_call_order_and_calculated_once() -> None:
    shape = load_model("deepseek-v3")
    asked: list[Layer] = []

    def modules(layer: Layer) -> int:
        asked.append(layer)
        return len(layer)

    assert shape.by_layer(modules) == tuple(map(len, shape.layers))
    assert len(asked) == 2


def test_half_of_the_layers_of_gpt_oss_keep_a_window() -> None:
    shape = load_model("gpt-oss-20b")
    assert shape.kv_cache_bytes(batch=3, tokens=1000) == 3 * 2048 * (12 * 1000 + 12 * 128)


def test_latent_attention_expands_the_whole_cache_in_every_pass() -> None:
    """DeepSeek-V3: 128 heads of 128 + 64 and of 128, from 512 elements for each position."""
    shape = load_model({"name": "deepseek-v3", "quantization": "none"})
    expand = next(one for one in shape.layers[0] if one.name == "self_attn.kv_b_proj")
    attend = next(one for one in shape.layers[0] if one.kind == "attention")
    weights = 512 * 128 * (128 + 128)
    cost = module_cost(shape, expand, batch=2, new_tokens=1, context=1000)
    assert cost.flops == 2 * 2000 * weights
    assert cost.bytes == 2 * (2000 * (512 + 128 * 256) + weights)
    kernels = module_cost(shape, attend, batch=2, new_tokens=1, context=1000)
    assert kernels.flops == 2 * 128 * 1000 * (2 * (192 + 128) + 5)
    longer = module_cost(shape, attend, batch=2, new_tokens=1, context=1001)
    # Of one more position: the latent is read and written, keys are joined, keys and values are read.
    assert longer.bytes - kernels.bytes == 2 * 2 * (2 * 576 + 2 * 128 * 192 + 128 * (192 + 128))


@pytest.mark.parametrize("name", ["llama-4-scout", "llama-4-maverick"])
def test_text_config_within_a_larger_config(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    whole = {"model_type": "llama4", "vision_config": {"hidden_size": 1408}, "text_config": CONFIGS[name]}
    path.write_text(json.dumps(whole))
    assert load_model({"config": str(path)}).num_parameters == load_model(name).num_parameters
    wrong = {**whole, "text_config": {**CONFIGS[name], "num_hidden_layers": "many"}}
    path.write_text(json.dumps(wrong))
    with pytest.raises(InputError, match=r"text_config\.num_hidden_layers"):
        load_model({"config": str(path)})


def test_more_experts_than_there_are() -> None:
    with pytest.raises(InputError, match="num_experts_per_tok 9 is more than num_experts 8"):
        load_model({"name": "qwen3-30b-a3b", "num_experts": 8, "num_experts_per_tok": 9})
