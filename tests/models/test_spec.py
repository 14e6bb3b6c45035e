"""Naming a model: names, sizes, config.json, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from simoffload.errors import InputError
from simoffload.models import ModelShape, ModelSpec, Module, list_models, load_model

BLOOM_7B1 = {  # keys as on the hub
    "apply_residual_connection_post_layernorm": False,
    "architectures": ["BloomForCausalLM"],
    "hidden_dropout": 0.0,
    "model_type": "bloom",
    "n_embed": 4096,
    "n_layer": 30,
    "num_attention_heads": 32,
    "pretraining_tp": 4,
    "seq_length": 2048,
    "vocab_size": 250880,
}
LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}


def write(folder: Path, config: Any, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("bloom", "bloom-176b"),
        ("bigscience/bloom-7b1", "bloom-7b1"),
        ("facebook/OPT-30b", "opt-30b"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3-70B-Instruct", "llama-3-70b"),
        ("mistralai/Mixtral-8x22B-v0.1", "mixtral-8x22b"),
        (" Llama-2-7b-hf ", "llama-2-7b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("mistralai/Mistral-7B-v0.3", "mistral-7b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("tiiuae/falcon-180B", "falcon-180b"),
    ],
)
def test_names_and_aliases(written: str, name: str) -> None:
    assert load_model(written) == load_model({"name": name})


@pytest.mark.parametrize("name", list_models())
def test_every_listed_name_loads(name: str) -> None:
    assert load_model(ModelSpec(name=name)).name.partition(", ")[0] == name


def test_an_unknown_name_gets_suggestions() -> None:
    with pytest.raises(InputError, match=r'model: unknown model "blom-7b1"; did you mean "bloom-7b1"\?'):
        load_model("blom-7b1")
    with pytest.raises(InputError, match=r"known: bloom-560m, bloom-1b1"):
        load_model("qwerty")


def test_a_named_model_with_other_sizes() -> None:
    modified = load_model({"name": "bloom-560m", "num_hidden_layers": 960, "hidden_size": 10240})
    assert modified.num_parameters == load_model("bloom-mod-1").num_parameters
    assert modified.name == "bloom-560m (num_hidden_layers=960, hidden_size=10240)"
    spelled = load_model({"name": "bloom-560m", "n_layer": 960, "n_embed": 10240})
    assert spelled.groups == modified.groups


def test_a_family_with_sizes() -> None:
    shape = load_model({"family": "bloom", "n_layer": 30, "hidden_size": 4096, "n_head": 32})
    assert shape.num_parameters == load_model("bloom-7b1").num_parameters
    assert shape.name == "bloom 30x4096"


def test_the_type_of_the_weights() -> None:
    assert load_model("opt-1.3b").dtype == "float16"
    assert load_model({"name": "opt-1.3b", "dtype": "bfloat16"}).weight_bytes == 2 * 1_315_758_080
    assert load_model({"name": "opt-1.3b", "dtype": "float32"}).weight_bytes == 4 * 1_315_758_080


def test_a_spec_inside_a_scenario_reports_where() -> None:
    class Scenario(BaseModel):
        model: ModelSpec

    assert Scenario.model_validate({"model": "opt-13b"}).model.name == "opt-13b"
    with pytest.raises(ValidationError) as caught:
        Scenario.model_validate({"model": {"name": "opt-13b", "hiden_size": 3, "num_layers": 4}})
    assert [(error["loc"], error["msg"]) for error in caught.value.errors()] == [
        (("model", "hiden_size"), 'unknown key of the opt family; did you mean "hidden_size"?'),
        (("model", "num_layers"), 'unknown key of the opt family; did you mean "num_hidden_layers"?'),
    ]
    with pytest.raises(ValidationError) as caught:
        Scenario.model_validate({"model": {"name": "opt-13b", "hidden_size": "wide"}})
    assert caught.value.errors()[0]["loc"] == ("model", "hidden_size")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, 'give one of "name", "config" and "family", not none'),
        ({"name": "bloom", "family": "bloom"}, "not name and family"),
        ({"family": "gpt2"}, "not supported; supported: bloom, opt, llama, mixtral"),
        (
            {"family": "bloom", "hidden_size": 64, "num_attention_heads": 4},
            "num_hidden_layers: required key is missing",
        ),
        ({"name": "bloom", "hidden_size": 0}, "at least 1"),
        ({"name": "bloom", "hidden_size": -1}, "at least 1"),
        ({"name": "bloom", "hidden_size": 14336.0}, "a whole number"),
        ({"name": "bloom", "hidden_size": "14336"}, "a whole number"),
        ({"name": "bloom", "hidden_size": True}, "a whole number"),
        ({"name": "bloom", "hidden_size": float("nan")}, "model.hidden_size: must be a"),
        ({"name": "bloom", "hidden_size": 2_000_000}, "at most 1000000"),
        ({"name": "bloom", "num_hidden_layers": 100_001}, "at most 100000"),
        ({"name": "bloom", "vocab_size": 10_000_001}, "at most 10000000"),
        ({"name": "bloom", "num_attention_heads": 100}, "14336 is not a multiple of num_attention_heads 100"),
        ({"name": "bloom", "intermediate_size": 4}, "unknown key of the bloom family"),
        (
            {"name": "bloom", "n_embed": 64, "hidden_size": 128},
            "model.hidden_size: is 128, and n_embed, another name of it, 64; keep one",
        ),
        (
            {"name": "bloom", "dtpe": "float32"},
            'model.dtpe: unknown key of the bloom family; did you mean "dtype"?',
        ),
        ({"name": "bloom", "dtype": "int4"}, "bfloat16"),
        ({"name": "llama-3-8b", "num_key_value_heads": 5}, "32 is not a multiple of num_key_value_heads 5"),
        ({"name": "llama-3-8b", "head_dim": 127}, "even head_dim, not 127"),
        ({"name": "mixtral-8x7b", "num_experts_per_tok": 9}, "9 is more than num_local_experts 8"),
        ({"name": "mixtral-8x7b", "expert_layout": "both"}, "separate"),
        ({"name": 7}, "text"),
        (["bloom"], "a mapping"),
    ],
)
def test_invalid_specs_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(InputError, match=r"^model") as caught:
        load_model(spec)
    assert message in str(caught.value)


# ---- config.json ----


def test_blooms_config_json(tmp_path: Path) -> None:
    folder = tmp_path / "my-bloom"
    folder.mkdir()
    write(folder, BLOOM_7B1)
    shape = load_model({"config": "my-bloom/config.json"}, root=tmp_path)
    assert shape.num_parameters == 7_069_016_064
    assert shape.name == "my-bloom"
    assert load_model({"config": "my-bloom"}, root=tmp_path) == shape  # the folder will do
    both = {**BLOOM_7B1, "hidden_size": 4096, "num_hidden_layers": 30, "n_head": 32}
    write(tmp_path, both, "both.json")
    assert load_model({"config": "both.json"}, root=tmp_path).num_parameters == 7_069_016_064


def test_llamas_config_json_with_another_depth(tmp_path: Path) -> None:
    write(tmp_path, LLAMA_8B, "llama.json")
    assert load_model({"config": "llama.json"}, root=tmp_path).num_parameters == 8_030_261_248
    deeper = load_model({"config": "llama.json", "num_hidden_layers": 64, "vocab_size": 32000}, root=tmp_path)
    assert deeper.num_parameters == pytest.approx(14.22e9, rel=1e-3)
    assert deeper.name == "llama (num_hidden_layers=64, vocab_size=32000)"


@pytest.mark.parametrize("name", [name for name in list_models() if name.startswith(("opt", "mixtral"))])
def test_other_families_config_json(name: str, tmp_path: Path) -> None:
    shape = load_model(name)
    config = {
        "model_type": shape.family,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_embeddings,
        **(
            {"ffn_dim": shape.intermediate_size}
            if shape.family == "opt"
            else {
                "intermediate_size": shape.intermediate_size,
                "num_key_value_heads": shape.num_key_value_heads,
            }
        ),
        **({"word_embed_proj_dim": 512, "do_layer_norm_before": False} if name == "opt-350m" else {}),
        "head_dim": None,
        "sliding_window": None,
    }
    write(tmp_path, config)
    assert load_model({"config": "config.json"}, root=tmp_path).num_parameters == shape.num_parameters


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {**LLAMA_8B, "model_type": "gpt2", "mamba_d_state": 16},
            "not supported; supported: bloom, opt, llama, mixtral",
        ),
        ({**LLAMA_8B, "model_type": ["llama"]}, "not supported"),
        ({key: value for key, value in LLAMA_8B.items() if key != "model_type"}, "model_type: missing"),
        ({key: value for key, value in LLAMA_8B.items() if key != "hidden_size"}, "hidden_size"),
        ({key: value for key, value in LLAMA_8B.items() if key != "intermediate_size"}, "intermediate_size"),
        ({**LLAMA_8B, "hidden_size": "4096"}, "hidden_size"),
        ({**LLAMA_8B, "quantization_config": {"bits": 4}}, "quant_method: is missing; supported: gptq"),
        (
            {**BLOOM_7B1, "hidden_size": 4097},
            "hidden_size: is 4097, and n_embed, another name of it, 4096; keep one",
        ),
        ([1], "must have keys and values"),
        ("{", "config.json"),
        ("", "config.json"),
    ],
)
def test_invalid_config_json_is_refused(config: Any, message: str, tmp_path: Path) -> None:
    write(tmp_path, config)
    with pytest.raises(InputError, match=r"config\.json") as caught:
        load_model({"config": "config.json"}, root=tmp_path)
    assert message in str(caught.value)


def test_a_quantized_config_and_what_replaces_it(tmp_path: Path) -> None:
    write(tmp_path, {**LLAMA_8B, "quantization_config": {"quant_method": "gptq", "bits": 4}})
    found = load_model({"config": "config.json"}, root=tmp_path)
    assert found.quantization == "int4-g128"
    other = load_model({"config": "config.json", "quantization": "fp8"}, root=tmp_path)
    assert other.quantization == "fp8"
    plain = load_model({"config": "config.json", "quantization": "none"}, root=tmp_path)
    assert plain.quantization is None
    assert plain.weight_bytes == 2 * plain.num_parameters == 2 * found.num_parameters


def test_a_method_that_is_not_supported_may_be_replaced(tmp_path: Path) -> None:
    write(tmp_path, {**LLAMA_8B, "quantization_config": {"quant_method": "hqq"}})
    with pytest.raises(InputError, match='the method "hqq" is not supported'):
        load_model({"config": "config.json"}, root=tmp_path)
    replaced = load_model({"config": "config.json", "quantization": "int4-g64"}, root=tmp_path)
    assert replaced.quantization == "int4-g64"


WRITTEN = json.loads(Path(__file__).with_name("oracle-5.json").read_text(encoding="utf-8"))["configs"]
"""As transformers' own classes write it (make_oracle.py)."""


def without(named: ModelShape, language: tuple[Module, ...], other: ModelShape) -> ModelShape:
    """The language model alone, of which a file has the notes."""
    return replace(named, modules_before=language, notes=other.notes)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_transformers_writes_is_the_named_model(name: str, tmp_path: Path) -> None:
    write(tmp_path, WRITTEN[name], f"{name}.json")
    found = load_model({"config": f"{name}.json"}, root=tmp_path)
    named = load_model({"name": name, "quantization": "none"})
    language = tuple(one for one in named.modules_before if one.share)
    assert found == (named if len(language) == len(named.modules_before) else without(named, language, found))
    again = ModelSpec(config=f"{name}.json").hf_config(root=tmp_path)
    write(tmp_path, again, f"{name}.json")
    assert load_model({"config": f"{name}.json"}, root=tmp_path) == found


def test_another_depth_follows_the_familys_pattern(tmp_path: Path) -> None:
    """The list of layers in the file is of another depth."""
    write(tmp_path, WRITTEN["gemma-3-1b"])
    found = load_model({"config": "config.json", "num_hidden_layers": 12}, root=tmp_path)
    assert found.num_sliding_layers == 10


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "gemma-2-2b",
            {"num_hidden_layers": 4},
            "layer_types lists 26 layers, num_hidden_layers is 4",
        ),
        ("gemma-2-2b", {"layer_types": ["chunked_attention"] * 26}, "full_attention"),
        ("qwen2.5-0.5b", {"num_key_value_heads": 3}, "14 is not a multiple of num_key_value_heads 3"),
        ("qwen3-0.6b", {"max_window_layers": -1}, "at least 0"),
        ("mistral-7b-v0.1", {"sliding_window": 0}, "at least 1"),
        ("phi-4-mini", {"rope_parameters": {"partial_rotary_factor": 2}}, "above 0, at most 1"),
        (
            "pythia-70m",
            {"rope_parameters": {"partial_rotary_factor": 0.01}},
            "even number of rotated elements",
        ),
        ("falcon-7b", {"alibi": True}, "is not modelled for Falcon"),
        ("falcon-7b", {"num_ln_in_parallel_attn": 2}, "2 needs new_decoder_architecture"),
        ("falcon-40b", {"parallel_attn": False}, "new_decoder_architecture needs parallel_attn"),
        ("falcon-40b", {"num_kv_heads": 7}, "128 is not a multiple of num_kv_heads 7"),
    ],
)
def test_a_damaged_config_of_transformers(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write(tmp_path, {**WRITTEN[name], **changes})
    with pytest.raises(InputError, match=r"config\.json") as caught:
        load_model({"config": "config.json"}, root=tmp_path)
    assert message in str(caught.value)


def test_wrong_overrides_of_a_config_json(tmp_path: Path) -> None:
    write(tmp_path, LLAMA_8B)
    with pytest.raises(InputError, match=r"model\.n_layers: unknown key of the llama family"):
        load_model({"config": "config.json", "n_layers": 3}, root=tmp_path)
    with pytest.raises(InputError, match=r"model\.num_hidden_layers: .*at least 1"):
        load_model({"config": "config.json", "num_hidden_layers": 0}, root=tmp_path)


def test_a_config_stays_inside_its_folder(tmp_path: Path) -> None:
    inside = tmp_path / "scenario"
    inside.mkdir()
    outside = write(tmp_path, LLAMA_8B, "llama.json")
    (inside / "link.json").symlink_to(outside)
    for path in ("../llama.json", str(outside), "link.json"):
        with pytest.raises(InputError, match=r"is outside the scenario's folder"):
            load_model({"config": path}, root=inside)
        assert load_model({"config": path}, root=inside, allow_path=True).num_parameters == 8_030_261_248
    assert load_model({"config": str(outside)}).num_parameters == 8_030_261_248


@pytest.mark.parametrize("path", ["nowhere.json", "a\0b", "x" * 5000, "."])
def test_a_missing_path_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        load_model({"config": path}, root=tmp_path)


def test_names_of_quantizations_may_be_in_capitals_as_files_are_called() -> None:
    capitals = load_model({"name": "llama-3.2-1b", "quantization": "Q4_K_M"})
    assert capitals == load_model({"name": "llama-3.2-1b", "quantization": "q4_k_m"})
