"""Quantization of ModelOpt and of configurations whose modules differ in format, by hand and in files."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from simoffload.documents import Document, hold_text, read_document
from simoffload.errors import InputError
from simoffload.models import ModelShape, load_model
from simoffload.models.modules import Parameter
from simoffload.models.quantization import Quantization
from simoffload.models.quantization_config import read_quantization

_DENSE = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 4096,
    "tie_word_embeddings": False,
}
_EXPERTS = {
    **_DENSE,
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_ATTENTION = 2 * 1024 * (8 * 128 + 2 * 128)
"""Weights of attention in a layer: queries and output, keys and values."""
_MLP = 3 * 1024 * 2048


def written(folder: Path, config: dict[str, Any], beside: object = None, **more: Any) -> ModelShape:
    """Write a config.json, and what is ``beside`` it, and read the model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, **more}))
    if beside is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(beside))
    return load_model({"config": str(folder / "config.json")})


def forms(model: ModelShape, layer: int) -> dict[str, str]:
    """Return the formats of a layer's matrices by the names of their modules."""
    return {
        module.name: one.storage.format.name if one.storage else "16 bits"
        for module in model.layers[layer]
        for one in module.parameters
        if one.columns
    }


def stored(model: ModelShape, bits: float) -> int:
    """Return how many bytes fewer than in 16 bits the weights have, in weights of so many bits."""
    saved = 2 * model.num_parameters - model.weight_bytes
    return round(saved / (16 - bits) * 8)


def test_both_layouts_of_modelopt_are_the_same(tmp_path: Path) -> None:
    """16 weights share a byte, and every matrix two scales of 4 B: those of its weights and of its input."""
    excluded = ["lm_head", "model.layers.1*", "*self_attn*"]
    groups = {
        "group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}, "targets": ["Linear"]}
    }
    inside = written(
        tmp_path / "inside",
        _DENSE,
        quantization_config={
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "config_groups": groups,
            "ignore": excluded,
        },
    )
    of_file = {
        "quant_algo": "NVFP4",
        "group_size": 16,
        "exclude_modules": excluded,
        "kv_cache_quant_algo": None,
    }
    beside = written(tmp_path / "beside", _DENSE, {"producer": {}, "quantization": of_file})
    given = written(
        tmp_path / "given",
        _DENSE,
        quantization_config={"quant_method": "modelopt", "quantization": of_file},
    )
    sizes = {one.weight_bytes for one in (inside, beside, given)}
    quantized = 3 * _MLP  # of four layers, one of which is excluded
    assert sizes == {2 * inside.num_parameters - quantized * 2 + quantized * 9 // 16 + 9 * 8}
    assert inside.quantization == beside.quantization == given.quantization == "nvfp4"
    assert set(forms(inside, 1).values()) == {"16 bits"}
    assert forms(inside, 0)["mlp.down_proj"] == "nvfp4"
    assert forms(inside, 0)["self_attn.o_proj"] == "16 bits"


def test_the_head_is_quantized_unless_it_is_excluded(tmp_path: Path) -> None:
    section = {"quant_method": "modelopt", "quant_algo": "FP8"}
    with_head = written(tmp_path / "a", _DENSE, quantization_config={**section, "ignore": []})
    without = written(tmp_path / "b", _DENSE, quantization_config={**section, "ignore": ["lm_head"]})
    assert without.weight_bytes - with_head.weight_bytes == 4096 * 1024 - 8


@pytest.mark.parametrize(
    ("algorithm", "name", "bits"),
    [
        ("FP8", "fp8", 8),
        ("fp8_pb_wo", "fp8-block128", 8 + 32 / 128**2),
        ("FP8_PER_CHANNEL_PER_TOKEN", "fp8-channel", None),
        ("MXFP8", "mxfp8", 8.25),
        ("NVFP4_AWQ", "nvfp4", 4.5),
        ("W4A16_NVFP4", "nvfp4-a16", 4.5),
        ("W4A8_MXFP4_FP8", "mxfp4", 4.25),
        ("W4A8_AWQ", "awq-int4-g128", 4 + 20 / 128),
    ],
)
def test_algorithms(algorithm: str, name: str, bits: float | None, tmp_path: Path) -> None:
    section = {"quant_algo": algorithm, "exclude_modules": ["lm_head"]}
    model = written(tmp_path, _DENSE, {"quantization": section})
    assert model.quantization == name
    if bits is not None:
        assert stored(model, bits) == pytest.approx(4 * (_ATTENTION + _MLP), rel=1e-4)


def test_every_module_may_have_a_format_of_its_own(tmp_path: Path) -> None:
    """Names have the prefix of a model that takes images, or those of single experts."""
    inner = "model.language_model.layers"
    layers: dict[str, dict[str, Any]] = {
        f"{inner}.{at}.self_attn.q_proj": {"quant_algo": "FP8"} for at in range(3)
    }
    layers |= {
        f"{inner}.{at}.mlp.experts.{one}.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16}
        for at in range(4)
        for one in range(16)
    }
    layers["lm_head"] = {"quant_algo": "NVFP4"}
    section = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    model = written(tmp_path, _EXPERTS, quantization_config={**section, "ignore": [f"{inner}.2*"]})
    assert model.quantization == "fp8+nvfp4-a16+nvfp4"
    assert forms(model, 0) | {"self_attn.q_proj": "fp8", "mlp.experts": "nvfp4-a16"} == forms(model, 0)
    assert forms(model, 0)["self_attn.k_proj"] == forms(model, 0)["mlp.gate"] == "16 bits"
    assert set(forms(model, 2).values()) == {"16 bits"}
    assert forms(model, 3)["self_attn.q_proj"] == "16 bits"
    (head,) = (one for module in model.modules_after for one in module.parameters if one.columns)
    assert head.storage is not None
    assert head.storage.format.name == "nvfp4"


def test_groups_of_compressed_tensors_may_differ_by_module(tmp_path: Path) -> None:
    """Names and regular expressions go before the class of all linear layers."""
    fp8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
    fp4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    groups: dict[str, Any] = {
        "group_0": {"targets": ["Linear"], "weights": fp8},
        "group_1": {
            "targets": [r"re:.*mlp\.experts.*"],
            "weights": fp4,
            "input_activations": {"num_bits": 4},
        },
        "group_2": {"targets": ["model.layers.3.self_attn.o_proj"], "weights": fp4},
    }
    section = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}
    model = written(tmp_path, _EXPERTS, quantization_config=section)
    assert forms(model, 0)["mlp.experts"] == "nvfp4"
    assert forms(model, 0)["self_attn.o_proj"] == "fp8-channel"
    assert forms(model, 3)["self_attn.o_proj"] == "nvfp4-a16"
    assert forms(model, 3)["self_attn.q_proj"] == "fp8-channel"


@pytest.mark.parametrize(
    ("more", "experts"),
    [
        ({}, "mxfp4"),
        ({"quantized_layers": {"layers.1.ffn.experts": {"quant_algo": "NVFP4"}}}, "nvfp4"),
    ],
)
def test_experts_may_have_a_type_of_their_own(more: dict[str, Any], experts: str, tmp_path: Path) -> None:
    """``expert_dtype`` of a release in FP8, unless they were quantized again."""
    section = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0", **more}
    model = written(tmp_path, _EXPERTS, expert_dtype="fp4", quantization_config=section)
    assert forms(model, 1)["mlp.experts"] == experts
    assert forms(model, 1)["self_attn.o_proj"] == "fp8-block128"


@pytest.mark.parametrize(
    ("section", "formats"),
    [
        (
            {"quant_method": "mxfp8", "weight_block_size": [1, 32], "ignored_layers": ["lm_head", "q_proj"]},
            ("mxfp8", "16 bits", "mxfp8"),
        ),
        ({"quant_method": "mxfp8", "moe_quant_algo": "NVFP4"}, ("nvfp4", "mxfp8", "mxfp8")),
        (
            {
                "quant_method": "auto-round",
                "bits": 4,
                "extra_config": {"model.layers.0.mlp.experts.0": {"bits": 8}},
            },
            ("int8-g128", "int4-g128", "int4-g128"),
        ),
        (
            {
                "quant_method": "auto-round",
                "bits": 4,
                "packing_format": "auto_round:auto_awq",
                "extra_config": {"model.layers.0.self_attn.q_proj": {"bits": 16, "data_type": "float"}},
            },
            ("awq-int4-g128", "16 bits", "awq-int4-g128"),
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}},
                "layer_quant_config": {"*q_proj": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}}},
                "exclude": ["lm_head", "*o_proj"],
            },
            ("mxfp4", "fp8", "16 bits"),
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {
                    "weight": [
                        {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
                        {"dtype": "int4", "qscheme": "per_channel"},
                    ]
                },
            },
            ("int4-channel", "int4-channel", "int4-channel"),
        ),
    ],
)
def test_other_methods(section: dict[str, Any], formats: tuple[str, str, str], tmp_path: Path) -> None:
    """Of experts, queries and the output of attention."""
    found = forms(written(tmp_path, _EXPERTS, quantization_config=section), 0)
    assert (found["mlp.experts"], found["self_attn.q_proj"], found["self_attn.o_proj"]) == formats


@pytest.mark.parametrize(
    ("section", "key", "message"),
    [
        ({"quant_method": "quark", "global_quant_config": {"weight": None}}, "", "have a format of weights"),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp6", "qscheme": "per_group"}},
            },
            ".global_quant_config.weight.dtype",
            'got "fp6"',
        ),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp"}, ".data_type", 'must be "int"'),
        (
            {"quant_method": "auto-round", "bits": 4, "extra_config": {"re:(": {"bits": 8}}},
            ".extra_config",
            "re:(",
        ),
        (
            {"quant_method": "fp8", "quantized_layers": {"re:(": {"quant_algo": "FP8"}}},
            ".quantized_layers",
            'the pattern "re:(" is not understood',
        ),
    ],
)
def test_what_other_methods_may_not_have(
    section: dict[str, Any], key: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        written(tmp_path, _EXPERTS, quantization_config=section)
    (problem,) = caught.value.problems
    assert problem.key == f"quantization_config{key}"
    assert message in problem.message


def test_what_the_cache_has_is_read_with_the_weights() -> None:
    def cache(**section: Any) -> str:
        given = {"quant_method": "modelopt", "quant_algo": "NVFP4", **section}
        found = read_quantization(Document("config.json", {"quantization_config": given}))
        assert isinstance(found, Quantization)
        return found.cache

    assert cache() == ""
    assert cache(kv_cache_scheme={"num_bits": 8, "type": "float", "dynamic": False}) == "fp8"
    assert cache(kv_cache_quant_algo="NVFP4") == "nvfp4"


@pytest.mark.parametrize(
    ("section", "key", "message"),
    [
        ({}, "", "quant_algo is missing; valid: FP8, "),
        ({"quant_algo": "NVFP5"}, ".quant_algo", 'algorithm "NVFP5" is not supported; did you mean "NVFP4"?'),
        ({"quant_algo": "MIXED_PRECISION"}, "", "MIXED_PRECISION needs quantized_layers"),
        (
            {
                "quant_algo": "mixed_precision",
                "quantized_layers": {"lm_head": {"quant_algo": "MIXED_PRECISION"}},
            },
            ".quantized_layers.lm_head.quant_algo",
            "a module has one format; supported: FP8, ",
        ),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "INT8"}, ".kv_cache_quant_algo", 'got "INT8"'),
        (
            {"quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8, "type": "int"}},
            ".kv_cache_scheme.type",
            'must be "float"',
        ),
        ({"quant_algo": "FP8", "ignore": "lm_head"}, ".ignore", "must be a list"),
        ({"quant_algo": "NVFP4", "group_size": 0}, ".group_size", "at least 1"),
    ],
)
def test_broken_sections(section: dict[str, Any], key: str, message: str, tmp_path: Path) -> None:
    """Of the file beside, which the message names."""
    with pytest.raises(InputError) as caught:
        written(tmp_path, _DENSE, {"quantization": section})
    (problem,) = caught.value.problems
    assert problem.path.endswith("hf_quant_config.json")
    assert problem.line == 1
    assert problem.key == f"quantization{key}"
    assert message in problem.message


def test_an_unknown_type_of_experts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'expert_dtype: must be fp4 \(MXFP4\) or fp8, got "int3"'):
        written(tmp_path, _EXPERTS, expert_dtype="int3")


def test_a_text_in_memory_has_no_file_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page has it, whose server may run in a folder with such a file."""
    monkeypatch.chdir(tmp_path)
    Path("hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    hold_text("held.json", json.dumps(_DENSE), most=10_000)
    assert load_model({"config": "held.json"}).quantization is None
    Path("on-disk.json").write_text(json.dumps(_DENSE))
    assert load_model({"config": "on-disk.json"}).quantization == "fp8"


# -- files as programs write them ------------------------------------------------------------------


def test_thousands_of_excluded_modules_are_read_quickly(tmp_path: Path) -> None:
    """A file of 3 MB, with a name for each matrix of each expert and a pattern for each layer."""
    config = {**_EXPERTS, "num_hidden_layers": 60, "num_experts": 128}
    ignored = [
        f"model.layers.{layer}.mlp.experts.{expert}.{one}_proj"
        for layer in range(0, 60, 2)
        for expert in range(128)
        for one in ("gate", "up", "down")
    ]
    ignored += [f"model.layers.{layer}.self_attn.{one}*" for layer in range(6000) for one in "abcdefghijklmo"]
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", *ignored]}
    begun = perf_counter()
    model = written(tmp_path, config, quantization_config=section)
    assert (tmp_path / "config.json").stat().st_size > 3_000_000
    assert perf_counter() - begun < 5
    assert forms(model, 0) | {"mlp.experts": "16 bits", "self_attn.o_proj": "16 bits"} == forms(model, 0)
    assert forms(model, 1) | {"mlp.experts": "nvfp4", "self_attn.q_proj": "nvfp4"} == forms(model, 1)


def test_a_config_may_have_8_mb(tmp_path: Path) -> None:
    assert written(tmp_path, _DENSE, note="x" * 7_000_000).num_parameters > 0
    with pytest.raises(InputError, match=r"config.json: larger than 8 MB \(8000\d\d\d bytes\)"):
        written(tmp_path, _DENSE, note="x" * 8_000_000)


def test_numbers_of_pythons_json(tmp_path: Path) -> None:
    """They are read in a config.json alone, where a key that counts may not be one."""
    infinite = {"time_step_limit": [0.0, float("inf"), float("-inf"), float("nan")]}
    assert written(tmp_path, _DENSE, **infinite).num_parameters > 0
    with pytest.raises(
        InputError, match=r"time_step_limit\[1\]: Infinity is not a number; write a finite one"
    ):
        read_document(tmp_path / "config.json")
    with pytest.raises(InputError, match=r'vocab_size: must be a whole number, got "-Infinity"'):
        written(tmp_path, _DENSE, vocab_size=float("-inf"))


# -- released checkpoints --------------------------------------------------------------------------

_COLLECTED = Path(__file__).parents[2].parent / "shared" / "data" / "model-configs"
_HERE = pytest.mark.skipif(not _COLLECTED.is_dir(), reason="the collection of config.json files is not here")


def _matrices(model: ModelShape) -> dict[str, list[Parameter]]:
    """Return the matrices of linear layers by the full names of their modules."""
    named = [("", module) for module in (*model.modules_before, *model.modules_after)]
    for prefix, layer in zip(model.layer_names, model.layers, strict=True):
        named += [(f"{prefix}.", module) for module in layer]
    linear = ((prefix + one.name, one) for prefix, one in named if one.kind == "linear")
    return {name: [one for one in module.parameters if one.columns] for name, module in linear}


@_HERE
@pytest.mark.parametrize(
    "name",
    [
        *("Kimi-K2.6-NVFP4", "Kimi-K2.7-Code-NVFP4", "MiniMax-M2.5-NVFP4"),
        *("GLM-5.1-NVFP4", "GLM-5.2-NVFP4", "Qwen3.5-397B-A17B-NVFP4"),
    ],
)
def test_excluded_modules_are_those_of_fnmatch(name: str) -> None:
    """As vLLM reads the list: patterns of the shell, of names with and without prefixes."""
    file = _COLLECTED / f"nvidia--{name}_config.json"
    patterns = json.loads(file.read_text())["quantization_config"]["ignore"]
    model = load_model(str(file))
    assert model.quantization == "nvfp4"
    for module, matrices in _matrices(model).items():
        bare = module.removeprefix("model.")
        mixtral = module.replace(".mlp.", ".block_sparse_moe.")
        spellings = (module, mixtral, f"language_model.{module}", f"model.language_model.{bare}")
        inside = [f"{one}{end}" for one in spellings for end in ("", ".", ".x")]
        excluded = any(fnmatch(one, pattern) for one in inside for pattern in patterns)
        assert [one.storage is None for one in matrices] == [excluded] * len(matrices), module


_GLM = {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*self_attn*", "model.layers.78*"]}


@_HERE
@pytest.mark.parametrize(
    ("name", "beside", "packed", "scales"),
    [
        ("MiniMax-M2.5-NVFP4", None, 112_340_238_336, 14_042_529_792),
        ("Gemma-4-31B-IT-NVFP4", None, 10_404_495_360, 1_300_561_920),
        ("GLM-5-NVFP4", _GLM, 364_143_181_824, 45_517_897_728),
    ],
)
def test_packed_values_and_scales_are_those_of_the_released_files(
    name: str, beside: Any, packed: int, scales: int, tmp_path: Path
) -> None:
    """Numbers of bytes by type, U8 and F8_E4M3, in the headers of nvidia's safetensors: revisions b6220d65,
    e5ef03af and dc54ff55 on the Hub."""
    config = json.loads((_COLLECTED / f"nvidia--{name}_config.json").read_text())
    model = written(tmp_path, config, beside and {"quantization": beside})
    stored = [one.storage for each in _matrices(model).values() for one in each if one.storage]
    assert sum(one.tensors[0] for one in stored) == packed
    assert sum(one.tensors[1] for one in stored) == scales


@_HERE
@pytest.mark.parametrize(
    ("name", "plain"),
    [
        *(("GLM-5.2-NVFP4", True), ("Qwen3.6-27B-NVFP4", True), ("Qwen3.5-397B-A17B-NVFP4", True)),
        ("DeepSeek-V4-Pro-NVFP4", False),
    ],
)
def test_lists_may_leave_out_what_predicts_further_tokens(name: str, *, plain: bool) -> None:
    model = load_model(str(_COLLECTED / f"nvidia--{name}_config.json"))
    assert model.mtp is not None
    (layer,) = model.mtp.layers
    assert all(one.storage is None for module in layer for one in module.parameters) is plain


@_HERE
def test_glm_5_has_the_size_of_its_checkpoint(tmp_path: Path) -> None:
    """With its layer for further tokens: 25,577,755,904 elements in BF16 and 19,456 in F32 beside the packed
    ones (revision dc54ff55)."""
    config = json.loads((_COLLECTED / "nvidia--GLM-5-NVFP4_config.json").read_text())
    model = written(tmp_path, config, {"quantization": _GLM})
    assert model.mtp is not None
    published = 364_143_181_824 + 45_517_897_728 + 2 * 25_577_755_904 + 4 * 19_456
    assert model.weight_bytes + model.mtp.weight_bytes == pytest.approx(published, rel=1e-4)


@_HERE
@pytest.mark.parametrize("name", ["Qwen3.6-27B-NVFP4", "Qwen3.6-35B-A3B-NVFP4", "DeepSeek-V4-Pro-NVFP4"])
def test_every_named_module_has_its_format(name: str) -> None:
    section = json.loads((_COLLECTED / f"nvidia--{name}_config.json").read_text())["quantization_config"]
    algorithms = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4-a16"}
    found = {
        name: {one.storage.format.name for one in matrices if one.storage}
        for name, matrices in _matrices(load_model(str(_COLLECTED / f"nvidia--{name}_config.json"))).items()
    }
    for module, one in section["quantized_layers"].items():
        plain = module.replace("model.language_model.", "model.").replace(".ffn.", ".mlp.")
        plain = f"model.{plain}" if plain.startswith("layers.") else plain
        assert found.pop(plain) == {algorithms[one["quant_algo"]]}, module
    assert set().union(*found.values()) <= ({"fp8-block128"} if section["quant_method"] == "fp8" else set())


def test_deepseek_v4_flash_has_the_size_of_its_checkpoint() -> None:
    """148.66 GiB by vLLM's log (vllm-project/vllm issue 40802), with one more layer that predicts tokens."""
    model = load_model("deepseek-v4-flash")
    layer = sum(one.stored_bytes(2) for module in model.layers[-1] for one in module.parameters)
    assert (model.weight_bytes + layer) / 2**30 == pytest.approx(148.66, rel=0.005)
