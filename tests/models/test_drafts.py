"""Drafts of unknown families: what decides is read under its synonyms, the rest is named key by key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simoffload.cli import main
from simoffload.errors import InputError
from simoffload.models import ModelShape, load_model
from simoffload.models.drafts import similar_families

ORACLE = json.loads(Path(__file__).with_name("oracle-5.json").read_text(encoding="utf-8"))
WRITTEN: dict[str, dict[str, Any]] = ORACLE["configs"]
FP8 = {
    "activation_scheme": "dynamic",
    "fmt": "float8_e4m3fn",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
}
# As released (MiniMaxAI/MiniMax-M2, Qwen/Qwen3-Next-80B-A3B-Instruct), with the keys that have no default.
MINIMAX_M2: dict[str, Any] = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "attn_type_list": [1] * 62,
    "eos_token_id": None,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "layernorm_full_attention_beta": 1.0,
    "max_position_embeddings": 196608,
    "mlp_intermediate_size": 8192,
    "model_type": "minimax_m2",
    "mtp_transformer_layers": 1,
    "num_attention_heads": 48,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 62,
    "num_key_value_heads": 8,
    "num_local_experts": 256,
    "num_mtp_modules": 3,
    "qk_norm_type": "per_layer",
    "rope_theta": 5000000,
    "rotary_dim": 64,
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "tie_word_embeddings": False,
    "use_mtp": True,
    "use_qk_norm": True,
    "use_routing_bias": True,
    "vocab_size": 200064,
    "torch_dtype": "bfloat16",
    "quantization_config": FP8,
}
QWEN3_NEXT: dict[str, Any] = {
    "decoder_sparse_step": 1,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "model_type": "qwen3_next",
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
DENSE: dict[str, Any] = {
    "model_type": "strange",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}


def read(folder: Path, config: dict[str, Any], **more: Any) -> ModelShape:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return load_model({"config": "config.json", **more}, root=folder)


def draft(folder: Path, config: dict[str, Any], **more: Any) -> ModelShape:
    return read(folder, config, **more)


def token(shape: ModelShape) -> int:
    return shape.kv_cache_bytes(batch=1, tokens=1)


def test_the_released_files_have_the_counts_of_the_hub(tmp_path: Path) -> None:
    """In FP8 a scale of 4 B per 128 x 128 weights; the Hub's total of Qwen3-Next has the MTP module, too."""
    minimax = read(tmp_path, MINIMAX_M2)
    assert minimax.num_parameters == 228_689_748_992
    outside = 2 * 200_064 * 3072 + 62 * (256 * 3072 + 6144 + 1024 + 2 * 3072) + 3072
    blocks = (228_689_748_992 - outside) // 128**2
    # Totals of the Hub, in a public list: with the routers' biases (M2.1, M2.7), and with the scales (M2.5).
    assert 228_689_748_992 + 62 * 256 == 228_689_764_864
    assert 228_689_748_992 + blocks + 62 * 256 == 228_703_644_928
    assert minimax.weight_bytes == 228_689_748_992 - outside + 4 * blocks + 2 * outside
    following = read(tmp_path, QWEN3_NEXT)
    assert following.num_parameters == 79_674_391_296 == 81_324_862_720 - 1_650_471_424
    assert following.mtp is not None
    assert following.mtp.num_parameters == 1_650_471_424
    assert token(following) == 12 * 2 * 2 * 256 * 2 == 24_576


def test_a_draft_of_minimax_m2_has_all_experts_in_fp8(tmp_path: Path) -> None:
    shape = draft(tmp_path, {**MINIMAX_M2, "model_type": "minimax_m9", "architectures": None})
    assert shape.num_parameters == 228_689_748_992
    assert shape.weight_bytes == read(tmp_path, MINIMAX_M2).weight_bytes
    assert shape.name.endswith(" (draft), fp8-block128")
    assert shape.dtype == "bfloat16"
    assert any("num_mtp_modules: 3" in one for one in shape.notes)


def test_a_draft_of_qwen3_next_caches_12_of_48_layers(tmp_path: Path) -> None:
    """Only the gates of attention and of shared experts and the norms of heads have no key."""
    shape = draft(tmp_path, {**QWEN3_NEXT, "model_type": "qwen9_next"})
    assert token(shape) == 24_576
    assert shape.state_bytes == 36 * (32 * 128 * 128 * 4 + 8192 * 4 * 2)
    assert shape.num_parameters == 79_674_391_296 - 12 * (4096 * 2048 + 2 * 256) - 48 * 2048
    assert any("lower bound" in one for one in shape.notes)


@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        ("llama-3.2-1b", 0),
        ("qwen3-0.6b", 28 * 2 * 128),  # norms of heads, which no key names
        ("mistral-nemo", 0),
        ("mixtral-8x7b", 0),
        ("qwen3-30b-a3b", 48 * 2 * 128),
        ("deepseek-v2-lite", 0),
        ("deepseek-v3", 0),
        ("kimi-k2", 0),
        ("glm-4.5-air", -46 * 4096),  # attention_bias: not of the last projection
        ("phi-3-mini", 0),
        ("minimax-m2", 62 * (6144 + 1024)),  # transformers' class writes no use_qk_norm
    ],
)
def test_families_that_are_known_come_out_as_drafts(name: str, lacking: int, tmp_path: Path) -> None:
    shape = draft(tmp_path, {**WRITTEN[name], "model_type": "another"})
    assert shape.num_parameters == ORACLE["sizes"][name]["total"] - lacking
    assert token(shape) == token(load_model(name))


@pytest.mark.parametrize(
    ("changes", "cached", "windowed"),
    [
        ({}, 4, 0),
        ({"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}, 4, 2),
        ({"layer_types": ["local", "global"] * 2, "window_size": 8}, 4, 2),
        ({"sliding_window": 8, "sliding_window_pattern": 4}, 4, 3),
        ({"sliding_window": 8, "use_sliding_window": False}, 4, 0),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}, 4, 1),
        ({"num_key_value_heads": None, "multi_query": True}, 2, 0),  # one head instead of two
        ({"sliding_window": 8}, 4, 0),  # no key states which layers: an upper bound
    ],
)
def test_kinds_of_layers(changes: dict[str, Any], cached: int, windowed: int, tmp_path: Path) -> None:
    shape = draft(tmp_path, {**DENSE, **changes})
    assert token(shape) == cached * 2 * 2 * 16 * 2
    assert shape.num_sliding_layers == windowed


def test_a_bound_is_called_one(tmp_path: Path) -> None:
    window = draft(tmp_path, {**DENSE, "sliding_window": 8}).notes
    assert any("the cache is an upper bound" in one for one in window)
    act = draft(tmp_path, {**DENSE, "hidden_act": "gelu"}).notes
    assert any("weights are an upper bound" in one for one in act)


@pytest.mark.parametrize(
    "names",
    [
        {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 10},
        {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 10},
        {"num_experts": 8, "moe_topk": [2] * 4, "moe_intermediate_size": [10] * 4},
        {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 10, "moe_layer_end_index": 3},
        {"n_experts": 8, "num_experts_per_token": 2, "expert_ffn_hidden_size": 10},
    ],
)
def test_experts_under_their_synonyms(names: dict[str, Any], tmp_path: Path) -> None:
    more = {"num_shared_experts": 1, "first_k_dense_replace": 1}
    found = draft(tmp_path, {**DENSE, **names, **more}).num_parameters
    dense = draft(tmp_path, DENSE).num_parameters
    assert found - dense == 3 * (9 * 3 * 10 * 64 + 8 * 64 - 3 * 96 * 64)


def test_every_key_that_was_not_understood_is_named(tmp_path: Path) -> None:
    config = {**DENSE, "strange_width": 7, "odd": {"a": [1]}, "eos_token_id": 2, "no": False, "nil": None}
    (first, *_) = draft(tmp_path, config).notes
    assert 'not understood: strange_width: 7; odd: {"a": [1]}; no: false. Tensors' in first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mamba_d_state": 16}, "a draft would lack: mamba_d_state: 16 (a draft without them would cache at"),
        ({"conv_kernel": 4}, "conv_kernel: 4"),
        ({"conv_kernel_size": 4}, "conv_kernel_size: 4"),
        ({"mamba_scale": 2}, "mamba_scale: 2"),
        ({"router_hidden_size": 512}, "router_hidden_size: 512"),
        ({"_num_experts": 64}, "_num_experts: 64"),
        ({"shared_expert_act": 64}, "shared_expert_act: 64"),
        ({"expert_kernel_dim": 4}, "expert_kernel_dim: 4"),
        ({"add_cross_attention": True}, "add_cross_attention: true"),
        ({"kv_lora_rank": 8}, "qk_nope_head_dim is missing beside kv_lora_rank 8"),
        ({"num_key_value_heads": [2, 2]}, "num_key_value_heads lists 2 layers, num_hidden_layers is 4"),
        ({"intermediate_size": [96, 96, 64, 64]}, "layers differ, and a draft knows one value for all"),
        ({"kv_lora_rank": 8, "index_n_heads": 64}, "index_n_heads: 64"),
        ({"expert_width_table": [1, 2]}, "expert_width_table"),
        ({"is_encoder_decoder": True}, "a draft would lack: is_encoder_decoder: true"),
        ({"layer_types": ["mamba", "attention"] * 2}, "2 of 4 layers are of the kind mamba"),
        ({"attn_type_list": [0, 1, 1, 1]}, "3 others cache 384 bytes per token in 16 bits, a lower bound"),
        ({"num_experts": 8}, "num_experts_per_tok is missing"),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_what_decides_and_is_not_understood_gives_no_number(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"config\.json") as caught:
        draft(tmp_path, {**DENSE, **changes})
    assert message in str(caught.value)


def test_no_key_is_dropped_without_a_word(tmp_path: Path) -> None:
    """Words within a key, such as "length", told that it has no influence, and nothing was said."""
    open_ = {"ffn_dim_multiplier": 1.3, "num_memory_tokens": 10, "memory_length": 300, "head_scale": 2}
    lightly = {"layernorm_full_beta": 1.0, "moe_z_loss_coef": 1, "sink_token_id": 5}
    silent = {"rms_norm_eps": 1e-6, "rope_theta": 1e4, "add_cross_attention": False, "pruned_heads": {}}
    (first, *_) = draft(tmp_path, {**DENSE, **open_, **lightly, **silent}).notes
    assert "not understood: " + "; ".join(f"{key}: {value}" for key, value in open_.items()) in first
    assert f"taken by their names to have no influence on sizes: {', '.join(lightly)}. Tensors" in first
    (first, *_) = draft(tmp_path, {**DENSE, **silent}).notes
    assert "every other key was used or has no influence on sizes. Tensors" in first


def test_sizes_that_no_key_states_are_named(tmp_path: Path) -> None:
    notes = draft(tmp_path, {**DENSE, "num_key_value_heads": None, "head_dim": 16}).notes
    text = "draft: no key states num_key_value_heads, tie_word_embeddings; taken: num_key_value_heads 4, "
    assert f"{text}tie_word_embeddings false" in notes
    assert not any(
        "taken:" in one
        for one in draft(tmp_path, {**DENSE, "head_dim": 16, "tie_word_embeddings": True}).notes
    )


def test_hidden_dim_beside_dim_is_the_width_of_the_network(tmp_path: Path) -> None:
    """As in params.json of Mistral and Llama."""
    others = {key: value for key, value in DENSE.items() if key not in ("hidden_size", "intermediate_size")}
    found = draft(tmp_path, {**others, "dim": 64, "hidden_dim": 96})
    assert found.num_parameters == draft(tmp_path, DENSE).num_parameters
    assert found.hidden_size == 64
    assert draft(tmp_path, {**others, "hidden_dim": 64, "ffn_dim": 96}).num_parameters == found.num_parameters


def test_a_family_without_a_draft_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not supported; supported: bloom") as caught:
        read(tmp_path, {**DENSE, "model_type": "lama", "mamba_d_state": 16})
    assert "its keys give no draft: mamba_d_state: no draft, as this describes" in str(caught.value)
    (first, *_) = read(tmp_path, {**DENSE, "model_type": "lama"}).notes
    assert 'the family "lama" is not known, and its keys are those of llama' in first
    outer = {"model_type": "mistral3", "text_config": {**DENSE, "model_type": "ministral9"}}
    assert draft(tmp_path, outer).num_parameters == draft(tmp_path, DENSE).num_parameters


def test_families_are_told_by_keys_and_not_by_letters() -> None:
    """Most: some have the keys of others, and some many keys without influence."""
    told = []
    for written in WRITTEN.values():
        keys = {key: value for key, value in written.items() if key != "model_type"}
        told.append(f" {written['model_type']}" in similar_families(keys, "strange").replace(":", ","))
    assert sum(told) > 0.75 * len(told)
    assert similar_families({}, "lama") == '; did you mean "llama"?'
    assert similar_families({"strange_size": 3}, "lama") == ""


def test_a_key_is_left_out_by_null(tmp_path: Path) -> None:
    shape = draft(tmp_path, {**DENSE, "mamba_d_state": 16}, mamba_d_state=None)
    assert shape.num_parameters == draft(tmp_path, DENSE).num_parameters


def test_the_language_model_within_another(tmp_path: Path) -> None:
    inner = WRITTEN["llama-3.2-1b"]
    outer = {"model_type": "llava_9", "vision_config": {"depth": 3}, "text_config": inner}
    shape = draft(tmp_path, outer)
    assert shape.family == "llama"
    assert shape.num_parameters == ORACLE["sizes"]["llama-3.2-1b"]["total"]
    assert "not counted, beside the language model: vision and its projector" in shape.notes[0]
    unknown = {**inner, "model_type": "llava_9_text"}
    assert draft(tmp_path, {**outer, "text_config": unknown}).num_parameters == shape.num_parameters


def test_keys_in_the_scenario() -> None:
    keys = {key: value for key, value in DENSE.items() if key != "model_type"}
    shape = load_model({"family": "strange", **keys, "odd": 3})
    assert shape.name == "strange 4x64 (draft)"
    assert "odd: 3" in shape.notes[0]
    with pytest.raises(InputError, match=r"not supported; supported: .* num_hidden_layers: "):
        load_model({"family": "strange"})


@pytest.mark.parametrize(
    ("saved", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float32"}, "float32"),
        ({"torch_dtype": "torch.float16"}, "float16"),
        ({"torch_dtype": "float8_e4m3fn"}, "float16"),
        ({}, "float16"),
    ],
)
def test_the_type_of_a_file_counts_where_the_scenario_states_none(
    saved: dict[str, Any], dtype: str, tmp_path: Path
) -> None:
    config = {**DENSE, "model_type": "llama", **saved}
    assert read(tmp_path, config).dtype == dtype
    assert read(tmp_path, config, dtype="float16").dtype == "float16"


@pytest.mark.parametrize("family", ["llama", "strange"])
def test_a_type_of_8_bits_is_a_format_and_others_are_refused(family: str, tmp_path: Path) -> None:
    """The types were dropped without a word, and weights had twice or half their bytes."""
    config = {**DENSE, "model_type": family, "tie_word_embeddings": False}
    for name in ("float8_e4m3fn", "torch.float8_e5m2"):
        found = draft(tmp_path, {**config, "torch_dtype": name})
        assert found.weight_bytes == draft(tmp_path, config, quantization="fp8").weight_bytes
        assert any("without a quantization_config" in one for one in found.notes)
        stated = draft(tmp_path, {**config, "torch_dtype": name}, dtype="float32")
        assert stated.weight_bytes == 4 * stated.num_parameters
    quantized = draft(tmp_path, {**config, "torch_dtype": "float8_e4m3fn", "quantization_config": FP8})
    assert not any("without a quantization_config" in one for one in quantized.notes)
    with pytest.raises(InputError, match=r"torch_dtype: weights in float64 are not modelled"):
        draft(tmp_path, {**config, "torch_dtype": "float64"})
    assert draft(tmp_path, {**config, "torch_dtype": "float64"}, dtype="float32").dtype == "float32"


def test_every_number_of_a_draft_stands_beside_that_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**DENSE, "odd": 3}))
    scenario = {
        "name": "s",
        "model": {"config": "config.json"},
        "platform": "dgx-a100",
        "workload": {"batch_size": 1, "prompt_length": 8, "output_length": 2},
        "strategy": {"kind": "transformers"},
    }
    (tmp_path / "s.json").write_text(json.dumps(scenario))
    for command in (["models", "show", "config.json"], ["run", "s.json"], ["fit", "s.json"]):
        assert main(command) == 0
        text = capsys.readouterr().out
        assert "(draft)" in text
        assert "not understood: odd: 3" in " ".join(text.split())
        assert main([*command, "--json"]) == 0
        data = capsys.readouterr().out
        assert "(draft)" in data
        assert "not understood: odd: 3" in data
