"""Which tensors a quantization covers, and how it is read from a config.json."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload.documents import Document
from simoffload.errors import InputError
from simoffload.models import ModelShape, load_model
from simoffload.models.gguf import GgufModel
from simoffload.models.quantization import (
    QUANTIZATIONS,
    Matrix,
    Quantization,
    deepspeed_quantization,
    quantized,
)
from simoffload.models.quantization_config import read_quantization

_MODEL = GgufModel(32, queries_per_key=4, experts=1, tied=False)
_Q_PROJ = Matrix("self_attn.q_proj.weight", "model.layers.3.self_attn.q_proj", "linear", 4096, layer=3)
_HEAD = Matrix("lm_head.weight", "lm_head", "linear", 4096)
_TABLE = Matrix("model.embed_tokens.weight", "model.embed_tokens", "embedding", 4096)
_POSITIONS = Matrix(
    "model.decoder.embed_positions.weight", "model.decoder.embed_positions", "embedding", 4096
)
_ROUTER = Matrix("mlp.gate.weight", "model.layers.3.mlp.gate", "router", 4096, layer=3)
_EXPERTS = Matrix(
    "mlp.experts.down_proj", "model.layers.3.mlp.experts", "linear", 4096, layer=3, stacked=True
)
_ALL = (_Q_PROJ, _EXPERTS, _HEAD, _TABLE, _POSITIONS, _ROUTER)


def covered(quantization: Quantization) -> list[Matrix]:
    """Return the matrices that are not stored in the model's data type."""
    return [one for one in _ALL if quantization.format_of(one, _MODEL) is not None]


def test_which_tensors_are_quantized() -> None:
    assert covered(QUANTIZATIONS["int4-g128"]) == [_Q_PROJ, _EXPERTS]
    assert covered(QUANTIZATIONS["nf4"]) == covered(QUANTIZATIONS["nf4-dq"]) == [_Q_PROJ]
    assert covered(QUANTIZATIONS["gpt-fast-int8"]) == [_Q_PROJ, _EXPERTS, _HEAD]
    zero_inference = deepspeed_quantization(4, 64, dtype_bytes=2, kernel=True)
    assert covered(zero_inference) == [_Q_PROJ, _HEAD, _TABLE, _ROUTER]


def test_gguf_stores_every_matrix_its_own_way() -> None:
    names = [QUANTIZATIONS["q4_k_m"].format_of(one, _MODEL) for one in _ALL]
    assert [one.name for one in names if one is not None] == ["q4_k", "q6_k", "q6_k", "q4_k", "q4_k", "f32"]
    assert QUANTIZATIONS["int4-g128"].vector_format is None


def read(**section: Any) -> Quantization:
    """Read a config.json with a ``quantization_config``."""
    found = read_quantization(Document("config.json", {"quantization_config": section}))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, "int4-g128"),
        ({"quant_method": "gptq", "bits": 3, "group_size": -1}, "int3-channel"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}, "awq-int4-g64"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            "nf4-dq",
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}, "fp8-block128"),
        ({"quant_method": "fp8", "weight_block_size": None}, "fp8"),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8-channel"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
    ],
)
def test_quantization_config(section: dict[str, Any], name: str) -> None:
    assert read(**section).name == name


@pytest.mark.parametrize(
    ("weights", "name", "bits"),
    [
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}, "int4-g128", 4.125),
        (
            {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": False},
            "int4-g128",
            4.15625,
        ),
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, "fp8-channel", 8.00390625),
        ({"num_bits": 8, "type": "float", "strategy": "tensor"}, "fp8", 8.0),
        ({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, "nvfp4-a16", 4.5),
    ],
)
def test_compressed_tensors(weights: dict[str, Any], name: str, bits: float) -> None:
    found = read(
        quant_method="compressed-tensors",
        format="pack-quantized",
        config_groups={"group_0": {"targets": ["Linear"], "weights": weights}},
        ignore=["lm_head", "re:.*self_attn.*"],
    )
    assert found.name == name
    assert found.format is not None
    stored = found.format.stored_bytes(4096, 4096)
    assert 8 * stored / 4096**2 == pytest.approx(bits, abs=1e-5)
    assert covered(found) == [_EXPERTS]


def test_modules_to_not_convert() -> None:
    gpt_oss = read(
        quant_method="mxfp4",
        modules_to_not_convert=[
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    )
    assert covered(gpt_oss) == [_EXPERTS]
    assert covered(read(quant_method="awq", modules_to_not_convert=["q_proj"])) == [_EXPERTS]
    one_layer = read(quant_method="fp8", modules_to_not_convert=["model.layers.4.self_attn"])
    assert covered(one_layer) == [_Q_PROJ, _EXPERTS]


def test_mxfp4_is_the_format_of_experts_alone() -> None:
    assert covered(read(quant_method="mxfp4")) == [_EXPERTS]


def test_names_of_layers_are_those_of_the_family() -> None:
    """BLOOM's layers are ``transformer.h``; a model that takes images has its layers one level deeper."""
    bloom, llama = load_model("bloom-560m"), load_model("llama-2-7b")

    def stored(model: ModelShape, *ignored: str) -> tuple[int, ...]:
        section = read(quant_method="fp8", modules_to_not_convert=list(ignored))
        return tuple(count for _, count in quantized(model, section).kinds)

    assert stored(bloom, "transformer.h.3.mlp") == (23, 1)
    assert stored(llama, "language_model.model.layers.3.mlp") == (31, 1)
    assert stored(llama, "model.language_model.layers.3.mlp") == (31, 1)
    assert stored(llama, "re:.*layers.(3|4).mlp.*") == (30, 2)
    assert stored(llama, "transformer.h.3.mlp") == (32,)


def test_gptq_skips_modules() -> None:
    found = read(quant_method="gptq", bits=4, dynamic={r"-:.*\.self_attn\..*": {}})
    assert covered(found) == [_EXPERTS]
    inside = [["self_attn.k_proj", "self_attn.q_proj"], ["self_attn.o_proj"]]
    assert covered(read(quant_method="gptq", bits=4, modules_in_block_to_quantize=inside)) == [_Q_PROJ]


def test_targets_of_compressed_tensors() -> None:
    def section(*targets: str) -> Quantization:
        weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
        groups = {"group_0": {"targets": targets, "weights": weights}}
        return read(quant_method="compressed-tensors", config_groups=groups, ignore=["lm_head"])

    assert covered(section("Linear")) == [_Q_PROJ, _EXPERTS]
    assert covered(section("re:.*experts.*")) == [_EXPERTS]
    assert covered(section("model.layers.3.self_attn.q_proj")) == [_Q_PROJ]


def test_layers_that_vllms_checkpoints_in_fp8_leave_out() -> None:
    """As AutoFP8 writes it; vLLM reads ``modules_to_not_convert`` where this list is empty."""
    section = {"quant_method": "fp8", "activation_scheme": "static"}
    assert covered(read(**section)) == [_Q_PROJ, _EXPERTS]
    assert covered(read(**section, ignored_layers=["re:.*q_proj"])) == [_EXPERTS]
    assert covered(read(**section, ignored_layers=[], modules_to_not_convert=["experts"])) == [_Q_PROJ]


def test_a_list_of_skipped_modules_replaces_the_head() -> None:
    assert covered(read(load_in_4bit=True)) == [_Q_PROJ]
    assert covered(read(load_in_4bit=True, llm_int8_skip_modules=["experts"])) == [_Q_PROJ, _HEAD]


def _scheme(targets: Any = ("Linear",), **weights: Any) -> dict[str, Any]:
    """Return a section of compressed-tensors with one scheme."""
    scheme = {"targets": list(targets), "weights": {"num_bits": 4, **weights}}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": scheme}}


_INT4 = {"num_bits": 4, "type": "int", "strategy": "channel"}
_FP8_CHANNEL = _scheme(strategy="channel", num_bits=8, type="float")["config_groups"]["group_0"]


@pytest.mark.parametrize(
    ("section", "key", "message"),
    [
        ({}, "quant_method", "is missing; supported: gptq, awq, bitsandbytes"),
        ({"quant_method": "hqq"}, "quant_method", 'the method "hqq" is not supported'),
        ({"quant_method": "gptqq"}, "quant_method", 'did you mean "gptq"?'),
        ({"quant_method": 4}, "quant_method", 'the method "4" is not supported'),
        ({"quant_method": "gptq"}, "bits", "required key is missing"),
        ({"quant_method": "gptq", "bits": 5}, "bits", "must be"),
        ({"quant_method": "gptq", "bits": 4, "group_size": "128"}, "group_size", "whole number"),
        ({"quant_method": "bitsandbytes"}, "", "exactly one of load_in_4bit and load_in_8bit"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size", "two whole numbers"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "modules_to_not_convert", "a list"),
        ({"quant_method": "compressed-tensors"}, "config_groups", "required key is missing"),
        (
            {"quant_method": "mxfp4", "modules_to_not_convert": ["re:["]},
            "modules_to_not_convert",
            'the pattern "re:[" is not understood: missing ]: [; valid is the syntax of RE2',
        ),
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["re:(?x)([\\w.]+) *Z"]},
            "modules_to_not_convert",
            'the pattern "re:(?x)([\\w.]+) *Z" is not understood: invalid perl operator: (?x',
        ),
        (
            {"quant_method": "fp8", "weight_block_size": [-1, 128]},
            "weight_block_size",
            "must be a list of two whole numbers above 0",
        ),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 0]},
            "weight_block_size",
            "must be a list of two whole numbers above 0",
        ),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size", "-1 for a whole row"),
        (
            {"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*mlp": {"bits": 8}}},
            "dynamic",
            'other settings for ".*mlp" are not supported',
        ),
        (
            {"quant_method": "gptq", "bits": 4, "dynamic": {"-:(?x)mlp": {}}},
            "dynamic",
            'the pattern "re:(?x)mlp" is not understood',
        ),
        (_scheme(strategy="group"), "config_groups.group_0.weights", "group needs group_size"),
        (_scheme(strategy="block", type="float", num_bits=8), "config_groups.group_0.weights", "needs block"),
        (_scheme(["Embedding"], strategy="channel"), "config_groups.group_0.targets", "only Linear"),
        (_scheme([], strategy="channel"), "config_groups.group_0.targets", "at least 1"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "config_groups", "got no group"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": _FP8_CHANNEL, "b": {**_FP8_CHANNEL, "weights": _INT4}},
            },
            "config_groups",
            "a, b have all linear layers as targets, in different formats",
        ),
    ],
)
def test_broken_sections(section: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(**section)
    (problem,) = caught.value.problems
    assert problem.key is not None
    assert problem.key.startswith(f"quantization_config{'.' if key else ''}{key}")
    assert message in problem.message


def test_an_unquantized_config() -> None:
    assert read_quantization(Document("config.json", {"quantization_config": None})) is None
    with pytest.raises(InputError, match="must be a mapping"):
        read_quantization(Document("config.json", {"quantization_config": "fp8"}))
