"""Every family's config.json as transformers writes it is read; an edit that breaks one gives one message."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from simoffload.cli import main
from simoffload.errors import InputError
from simoffload.models import list_models, load_model
from simoffload.models.families import FAMILIES
from tests.broken.slips import SCENARIO

ORACLE = json.loads(Path(__file__).with_name("oracle-5.json").read_text(encoding="utf-8"))
WRITTEN: dict[str, dict[str, Any]] = ORACLE["configs"]
WITHIN: dict[str, dict[str, Any]] = ORACLE["within"]
EXAMPLES = {config["model_type"]: name for name, config in WRITTEN.items()}
"""One size of every family."""
DELETED = object()


def read(config: dict[str, Any], folder: Path) -> Any:
    (folder / "c.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return load_model({"config": "c.json"}, root=folder)


def test_every_family_has_a_written_config() -> None:
    """But those of which transformers has no code."""
    elsewhere = {load_model(name).family for name in ORACLE["elsewhere"]}
    assert EXAMPLES.keys() | elsewhere == {FAMILIES[one].family for one in FAMILIES}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_transformers_writes_has_hugging_faces_count(name: str, tmp_path: Path) -> None:
    assert read(WRITTEN[name], tmp_path).num_parameters == ORACLE["sizes"][name]["total"]


@pytest.mark.parametrize("name", WITHIN)
def test_a_config_within_that_of_a_model_that_takes_more_than_text(name: str, tmp_path: Path) -> None:
    outer = WITHIN[name]
    found = read(outer, tmp_path)
    towers = sum(one.num_parameters for one in found.modules_before if not one.share)
    assert found.num_parameters - towers == ORACLE["sizes"][name]["total"]
    inner = {key: value for key, value in outer["text_config"].items() if key != "model_type"}
    assert read({**outer, "text_config": inner}, tmp_path) == found
    section = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    above = read({**outer, "quantization_config": section}, tmp_path)
    inside = read({**outer, "text_config": {**inner, "quantization_config": section}}, tmp_path)
    assert above == inside
    assert above.quantization == "fp8-block128"


@pytest.mark.parametrize("family", EXAMPLES)
@pytest.mark.parametrize(
    "more",
    [
        {"dtype": "bfloat16"},
        {"torch_dtype": "float16"},
        {"dtype": "float32", "torch_dtype": None},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.5]}},
        {"rope_scaling": None},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            }
        },
    ],
)
def test_types_and_positions_have_no_influence_on_counts(
    family: str, more: dict[str, Any], tmp_path: Path
) -> None:
    name = EXAMPLES[family]
    assert read({**WRITTEN[name], **more}, tmp_path).num_parameters == ORACLE["sizes"][name]["total"]


def weights(**more: Any) -> dict[str, Any]:
    """A section as compressed-tensors writes it."""
    group = {"targets": ["Linear"], "input_activations": None, "weights": {"dynamic": False, **more}}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": group},
        "format": "pack-quantized",
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }


SECTIONS: dict[str, dict[str, Any]] = {
    "int4-g32": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True},
    "awq-int4-g32": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True},
    "int8": {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0},
    "nf4-dq": {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
    },
    "fp8-block128": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
    },
    "fp8-channel": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head", "model.embed_tokens"]},
    "nvfp4-a16": weights(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True),
    "int4-g64": weights(num_bits=4, type="int", strategy="group", group_size=64, symmetric=True),
}


@pytest.mark.parametrize("family", EXAMPLES)
@pytest.mark.parametrize("name", SECTIONS)
def test_quantized_checkpoints_of_every_family(family: str, name: str, tmp_path: Path) -> None:
    config = WRITTEN[EXAMPLES[family]]
    found = read({**config, "quantization_config": SECTIONS[name]}, tmp_path)
    plain = read(config, tmp_path)
    assert found.quantization == name
    assert found.num_parameters == plain.num_parameters
    fused = any(module.parallel == "experts" for module in found.distinct_modules)
    if not fused and name == "mxfp4":  # of the experts only
        assert found.weight_bytes == plain.weight_bytes
    elif fused and name in ("int8", "nf4-dq"):  # bitsandbytes leaves experts in one tensor as they are
        assert 0.8 * plain.weight_bytes < found.weight_bytes < plain.weight_bytes
    else:
        assert 0.25 * plain.weight_bytes < found.weight_bytes < 0.95 * plain.weight_bytes


@pytest.mark.parametrize("family", ["mixtral", "mistral", "phi3", "phimoe"])
def test_a_sliding_window_of_all_layers_bounds_the_cache(family: str, tmp_path: Path) -> None:
    config = {**WRITTEN[EXAMPLES[family]], "sliding_window": 100}
    found = read(config, tmp_path)
    assert found.kv_cache_bytes(batch=1, tokens=1000) == found.kv_cache_bytes(batch=1, tokens=100)


def test_chunks_of_llama_4_are_where_layer_types_says(tmp_path: Path) -> None:
    config = WRITTEN["llama-4-scout"]
    assert read(config, tmp_path).num_sliding_layers == 36
    every = {**config, "layer_types": ["chunked_attention"] * 48}
    assert read(every, tmp_path).num_sliding_layers == 48


# ---- broken edits ----


class Edit(NamedTuple):
    """A key of a config.json with another value, and what the only message says."""

    name: str
    key: str
    value: Any
    texts: tuple[str, ...]
    at: str | None = None
    """The key that the message names, where it is another one."""


def edit(name: str, key: str, value: Any, *texts: str, at: str | None = None) -> Edit:
    return Edit(name, key, value, texts, at)


GROUP = ".config_groups.group_0.weights"


def section(value: Any, at: str, *texts: str) -> Edit:
    """A quantization_config that cannot be read."""
    return edit("llama-3.2-1b", "quantization_config", value, *texts, at=f"quantization_config{at}")


_TWO_GROUPS = weights(num_bits=8, type="float", strategy="channel")
_GROUP_0 = _TWO_GROUPS["config_groups"]["group_0"]
_IN_BLOCKS = weights(num_bits=8, type="float", strategy="block", block_structure=[128, 128])["config_groups"][
    "group_0"
]
LLAMA, WINDOWS, DEEPSEEK, QWEN, LLAMA_4 = (
    *("llama-3.2-1b", "gemma-2-2b", "deepseek-v3"),
    *("qwen1.5-moe-a2.7b", "llama-4-maverick"),
)
EDITS = (
    edit(LLAMA, "num_hidden_layers", DELETED, "required key is missing"),
    edit(LLAMA, "intermediate_size", DELETED, "required key is missing"),
    edit("opt-350m", "ffn_dim", DELETED, "required key is missing"),
    edit("bloom-560m", "hidden_size", DELETED, "required key is missing"),
    edit("deepseek-v2-lite", "num_experts_per_tok", None, "must be a whole number, got null"),
    edit(LLAMA, "hidden_size", "2048", 'must be a whole number, got "2048"'),
    edit(LLAMA, "hidden_size", 2048.0, "must be a whole number, got 2048.0"),
    edit(LLAMA, "hidden_size", True, "must be a whole number, got true"),
    edit(LLAMA, "hidden_size", {"value": 2048}, "must be a whole number, got a mapping"),
    edit(LLAMA, "hidden_size", [2048], "must be a whole number, got a list of 1"),
    edit(LLAMA, "hidden_size", float("nan"), "must be a whole number", '"NaN"'),
    edit(LLAMA, "vocab_size", float("inf"), "must be a whole number", '"Infinity"'),
    edit(LLAMA, "hidden_size", -2048, "must be at least 1, got -2048"),
    edit(LLAMA, "vocab_size", 0, "must be at least 1, got 0"),
    edit(LLAMA, "hidden_size", 10**12, "must be at most 1000000, got 1000000000000"),
    edit(LLAMA, "num_hidden_layers", 10**9, "must be at most 100000"),
    edit(
        LLAMA, "num_key_value_heads", 7, "num_attention_heads 32 is not a multiple of num_key_value_heads 7"
    ),
    edit(LLAMA, "head_dim", 63, "need an even head_dim, not 63"),
    edit(LLAMA, "tie_word_embeddings", "false", 'must be true or false, got "false"'),
    edit(LLAMA, "max_position_embeddings", "long", 'must be a whole number, got "long"'),
    edit(
        "opt-350m", "num_attention_heads", 15, "hidden_size 1024 is not a multiple of num_attention_heads 15"
    ),
    edit("bloom-560m", "n_head", 7, "hidden_size 1024 is not a multiple of n_head 7"),
    edit("falcon-40b", "num_kv_heads", 7, "num_attention_heads 128 is not a multiple of num_kv_heads 7"),
    # families
    edit(LLAMA, "model_type", DELETED, "missing; supported: bloom, opt, llama"),
    edit(LLAMA, "model_type", ["llama"], "not supported; supported: bloom, opt, llama"),
    edit("llama-4-scout", "text_config", DELETED, "must be a mapping with the", "(llama4_text)"),
    edit("llama-4-scout", "text_config", [], "must be a mapping with the", "(llama4_text)"),
    edit("llama-4-scout", "text_config.model_type", "llama9", "its keys give no draft"),
    edit("llama-4-scout", "text_config.hidden_size", -1, "must be at least 1, got -1"),
    edit("gemma-3-4b", "text_config.hidden_size", "wide", 'must be a whole number, got "wide"'),
    # types and positions
    edit(LLAMA, "dtype", "int3", '"float16", "bfloat16"', 'got "int3"'),
    edit(LLAMA, "torch_dtype", 16, '"float16", "bfloat16"', "got 16"),
    edit(LLAMA, "rms_norm_eps", "small", 'must be a number, got "small"'),
    edit(LLAMA, "hidden_act", 3, "must be text, got 3"),
    edit(LLAMA, "hidden_act", "sillu", 'no activation function "sillu"; did you mean "silu"?'),
    edit(DEEPSEEK, "qk_head_dim", 0, "must be at least 1, got 0"),
    edit(DEEPSEEK, "norm_topk_prob", "yes", 'must be true or false, got "yes"'),
    edit(LLAMA, "pretraining_tp", "two", 'must be a whole number, got "two"'),
    edit(LLAMA, "rope_theta", 0, "must be above 0, got 0"),
    edit(LLAMA, "attention_dropout", 2, "must be at most 1, got 2"),
    edit("bloom-560m", "use_cache", "yes", 'must be true or false, got "yes"'),
    edit("gemma-3-1b", "rope_parameters.full_attention", "x", "a mapping for each", at="rope_parameters"),
    edit(LLAMA, "rope_parameters", {"rope_type": "spiral"}, 'rope_type "spiral" is unknown; known: default'),
    edit(LLAMA, "rope_scaling", {"type": "spiral", "factor": 2}, 'rope_type "spiral" is unknown; known:'),
    edit(LLAMA, "rope_scaling", {"type": "yarn"}, 'rope_type "yarn" needs the key factor'),
    edit(LLAMA, "rope_parameters", {"factor": -2}, 'factor must be a number above 0, got "-2"'),
    edit(LLAMA, "rope_parameters", "default", 'must be a mapping, got "default"'),
    edit("glm-4.5-air", "partial_rotary_factor", 0, "must be above 0, got 0"),
    edit("phi-4-mini", "partial_rotary_factor", 1.5, "must be at most 1, got 1.5"),
    edit(
        "gemma-3-4b",
        "text_config.rope_parameters.full_attention.rope_type",
        "spiral",
        'rope_type "spiral" is unknown',
        at="text_config.rope_parameters",
    ),
    # kinds of layers
    edit(WINDOWS, "layer_types", ["full_attention"] * 5, "lists 5 layers, num_hidden_layers is 26"),
    edit(WINDOWS, "layer_types", ["window"] * 26, 'lists "window"; each entry must be "full_attention" or'),
    edit(WINDOWS, "layer_types", "sliding_attention", "must be a list"),
    edit(WINDOWS, "sliding_window", -1, "must be at least 1, got -1"),
    edit("gpt-oss-20b", "layer_types", [1] * 24, 'lists 1; each entry must be "full_attention" or'),
    edit("mixtral-8x7b", "sliding_window", {}, "must be a whole number, got a mapping"),
    edit("qwen3-0.6b", "max_window_layers", -1, "must be at least 0, got -1"),
    edit(LLAMA_4, "layer_types", ["odd"] * 48, 'lists "odd"', '"full_attention" or "chunked_attention"'),
    edit(LLAMA_4, "no_rope_layers", [1, 0], "lists 2 layers, num_hidden_layers is 48"),
    edit(LLAMA_4, "no_rope_layers", [2] * 48, "lists 2; each entry must be 0 or 1"),
    edit(LLAMA_4, "moe_layers", [48], "lists layer 48; num_hidden_layers is 48, counted from 0"),
    edit(LLAMA_4, "interleave_moe_layer_step", 0, "must be at least 1, got 0"),
    # experts
    edit(DEEPSEEK, "num_experts_per_tok", 300, "300 is more than n_routed_experts 256"),
    edit(DEEPSEEK, "n_routed_experts", {"count": 256}, "must be a whole number, got a mapping"),
    edit(DEEPSEEK, "first_k_dense_replace", 62, "62 is more than num_hidden_layers 61"),
    edit(DEEPSEEK, "n_group", 7, "n_routed_experts 256 is not a multiple of n_group 7"),
    edit(DEEPSEEK, "topk_group", 9, "topk_group 9 is more than n_group 8"),
    edit(DEEPSEEK, "qk_rope_head_dim", 63, "need an even qk_rope_head_dim, not 63"),
    edit(DEEPSEEK, "kv_lora_rank", 0, "must be at least 1, got 0"),
    edit("kimi-k2", "n_group", 5, "n_routed_experts 384 is not a multiple of n_group 5"),
    edit("glm-4.5-air", "first_k_dense_replace", 47, "47 is more than num_hidden_layers 46"),
    edit(QWEN, "mlp_only_layers", [24], "lists layer 24; num_hidden_layers is 24"),
    edit(QWEN, "mlp_only_layers", 3, "must be a list, got 3"),
    edit(QWEN, "decoder_sparse_step", 0, "must be at least 1, got 0"),
    edit(
        "qwen3-30b-a3b",
        "num_local_experts",
        4,
        "8 is more than num_local_experts 4",
        at="num_experts_per_tok",
    ),
    edit(
        "qwen3-30b-a3b", "num_experts", 64, "is 64, and num_local_experts, another name of it, 128; keep one"
    ),
    edit("phi-3.5-moe", "lm_head_bias", "yes", 'must be true or false, got "yes"'),
    # quantization
    section("fp8", "", "must be a mapping with quant_method (gptq", "model.quantization replaces this"),
    section({"bits": 4}, ".quant_method", "is missing; supported: gptq, awq"),
    section({"quant_method": "hqq"}, ".quant_method", "not supported; supported: gptq", "model.quantization"),
    section({"quant_method": "gptq", "bits": 5}, ".bits", "must be 2, 3, 4 or 8, got 5"),
    section(
        {"quant_method": "gptq", "bits": 4, "group_size": 0}, ".group_size", "or -1 for a whole row, got 0"
    ),
    section(
        {"quant_method": "gptq", "bits": 4, "group_size": -7}, ".group_size", "must be at least -1, got -7"
    ),
    section(
        {"quant_method": "gptq", "bits": 4, "group_size": 100},
        ".group_size",
        "groups of 100 weights divide no row",
        "(2048, 8192 weights); correct group_size",
    ),
    section({"quant_method": "awq", "bits": 3}, ".bits", "must be 4, got 3"),
    section(
        {"quant_method": "bitsandbytes"}, "", "exactly one of load_in_4bit and load_in_8bit must be true"
    ),
    section({"load_in_4bit": "yes"}, ".load_in_4bit", 'must be true or false, got "yes"'),
    section(
        {"load_in_4bit": True, "bnb_4bit_quant_type": "nf5"},
        ".bnb_4bit_quant_type",
        '"nf4" or "fp4"',
        '"nf5"',
    ),
    section({"quant_method": "fp8", "weight_block_size": [128]}, ".weight_block_size", "list of two whole"),
    section(
        {"quant_method": "fp8", "weight_block_size": [0, 128]}, ".weight_block_size", "list of two whole"
    ),
    section(
        {"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, ".modules_to_not", "must be a list"
    ),
    section({"quant_method": "fp8", "modules_to_not_convert": ["re:("]}, ".modules", "missing ): ("),
    section({"quant_method": "compressed-tensors"}, ".config_groups", "required key is missing"),
    section({"quant_method": "compressed-tensors", "config_groups": {}}, ".config_groups", "got no group"),
    section(
        {**_TWO_GROUPS, "config_groups": {"group_0": _GROUP_0, "group_1": _IN_BLOCKS}},
        ".config_groups",
        "group_0, group_1 have all linear layers as targets, in different formats",
    ),
    section(weights(num_bits=5, strategy="group"), f"{GROUP}.num_bits", "must be 4 or 8"),
    section(weights(num_bits=4, strategy="rows"), f"{GROUP}.strategy", '"group"', '"rows"'),
    section(weights(num_bits=4, strategy="group"), GROUP, "needs group_size"),
    section(
        weights(num_bits=4, type="float", strategy="group", group_size=48),
        GROUP,
        "are not supported; supported: int of 4 or 8 bits",
    ),
)


def edited(one: Edit) -> dict[str, Any]:
    """Return the config with the edit, below ``text_config`` in that of a model that takes more than text."""
    config = deepcopy((WITHIN if one.key.startswith("text_config") else WRITTEN)[one.name])
    *path, key = one.key.split(".")
    place = config
    for part in path:
        place = place[part]
    place.pop(key, None)
    if one.value is not DELETED:
        place[key] = one.value
    return config


def test_there_are_many_edits_of_all_parts() -> None:
    assert len({repr(one) for one in EDITS}) == len(EDITS) >= 40


@pytest.mark.parametrize(
    "one",
    EDITS,
    ids=[
        f"{one.name}-{one.key}-{'deleted' if one.value is DELETED else repr(one.value)[:40]}" for one in EDITS
    ],
)
def test_a_broken_config_gives_one_message(
    one: Edit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.json").write_text(json.dumps(edited(one), indent=1), encoding="utf-8")
    Path("s.yaml").write_text(SCENARIO.replace("model: bloom-560m", "model: {config: c.json}"))
    with pytest.raises(InputError) as caught:
        load_model({"config": "c.json"}, root=Path())
    assert len(caught.value.problems) == 1
    for command in (["models", "show", "c.json"], ["run", "s.yaml"]):
        assert main(command) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1, err
        assert err.startswith("error: c.json:"), err
        assert f": {one.at or one.key}" in err
        assert [text for text in one.texts if text not in err] == [], err


def test_the_unedited_scenario_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.json").write_text(json.dumps(WRITTEN["opt-350m"]), encoding="utf-8")
    Path("s.yaml").write_text(SCENARIO.replace("model: bloom-560m", "model: {config: c.json}"))
    assert main(["check", "s.yaml"]) == 0


def test_every_named_model_is_of_a_known_family() -> None:
    assert {load_model(name).family for name in list_models()} == {FAMILIES[one].family for one in FAMILIES}
