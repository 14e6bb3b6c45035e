"""Older names of keys in released files give the same model as those that transformers 5 writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simoffload.errors import InputError
from simoffload.models import ModelShape, load_model

SIZES = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "head_dim": 12,
    "sliding_window": 4,
}
KINDS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
STEP = {**SIZES, "model_type": "step3p7", "layer_types": KINDS, "share_expert_dim": 24}
MIMO = {**SIZES, "model_type": "mimo_v2_flash", "layer_types": KINDS, "v_head_dim": 8}


def read(tmp_path: Path, config: dict[str, Any]) -> ModelShape:
    (tmp_path / "c.json").write_text(json.dumps(config), encoding="utf-8")
    return load_model({"config": "c.json"}, root=tmp_path)


def test_step_as_it_is_released(tmp_path: Path) -> None:
    """Lists go on for the modules that predict further tokens; numbers of layers with experts are a text."""
    new = {
        **STEP,
        "num_nextn_predict_layers": 2,
        "num_sliding_attention_heads": 10,
        "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
    }
    renamed = {"n_routed_experts": "moe_num_experts", "num_experts_per_tok": "moe_top_k"}
    renamed |= {"num_key_value_heads": "num_attention_groups"}
    old = {renamed.get(key, key): value for key, value in STEP.items()} | {
        "model_type": "step3p5",
        "num_nextn_predict_layers": 2,
        "layer_types": [*KINDS, "sliding_attention", "sliding_attention"],
        "attention_other_setting": {"num_attention_heads": 10, "num_attention_groups": 2},
        "moe_layers_enum": "2, 3",
        "rope_theta": [10000.0, 5000.0, 5000.0, 10000.0, 5000.0, 5000.0],
    }
    found = read(tmp_path, new)
    assert read(tmp_path, old) == found
    assert found.predictors == (1, 1)
    written = {"1": {"num_attention_heads": 10}, "2": {"num_attention_heads": 10}}
    del new["num_sliding_attention_heads"]
    assert read(tmp_path, {**new, "per_layer_config": written}) == found
    heads = [found.heads_of(one).number for layer in found.layers for one in layer if one.attends]
    assert heads == [8, 10, 10, 8]


def test_mimo_as_it_is_released(tmp_path: Path) -> None:
    new = {**MIMO, "sliding_window": 5, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]}
    old = {key: value for key, value in MIMO.items() if key not in ("layer_types", "sliding_window")} | {
        "hybrid_layer_pattern": [0, 1, 1, 0],
        "moe_layer_freq": [0, 1, 1, 1],
        "sliding_window_size": 4,
        "swa_num_key_value_heads": 4,
        "partial_rotary_factor": 0.334,
    }
    found = read(tmp_path, new)
    assert read(tmp_path, old) == found
    assert found.sliding_window == 5
    rows = [part.width for layer in found.layers for part in found.growing(layer)]
    assert rows == [2 * 20, 4 * 20, 4 * 20, 2 * 20]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**STEP, "layer_types": [*KINDS, KINDS[0]]}, "layer_types lists 5 layers, num_hidden_layers is 4"),
        ({**MIMO, "hybrid_layer_pattern": [0, 1]}, "lists 2 layers, num_hidden_layers is 4"),
        ({**MIMO, "swa_num_key_value_heads": 3}, "is not a multiple of the 3 heads of keys of layers with"),
    ],
)
def test_lists_and_heads_that_do_not_fit(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, config)


GEMMA = {
    "model_type": "gemma4_text",
    **{key: value for key, value in SIZES.items() if "expert" not in key and "moe" not in key},
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 0,
}


def test_shared_caches_of_gemma_4_are_kept_once(tmp_path: Path) -> None:
    own = read(tmp_path, GEMMA)
    shared = read(tmp_path, {**GEMMA, "num_kv_shared_layers": 2})
    assert [len(own.growing(layer)) for layer in own.layers] == [1, 1, 1, 1]
    assert [len(shared.growing(layer)) for layer in shared.layers] == [1, 1, 0, 0]
    assert own.kv_cache_bytes(batch=1, tokens=3) == 2 * shared.kv_cache_bytes(batch=1, tokens=3)
    assert [part.width for layer in own.layers for part in own.growing(layer)] == [48, 64, 48, 64]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_shared_layers": 3}, "num_kv_shared_layers leaves no layer of the same kind"),
        ({"enable_moe_block": True}, "enable_moe_block needs num_experts, top_k_experts and moe_"),
        ({"num_experts": -1}, "num_experts: must be at least 0, got -1"),
    ],
)
def test_what_gemma_4_cannot_be(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, {**GEMMA, **changes})
