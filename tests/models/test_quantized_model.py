"""A model with quantized weights: stored bytes, bytes of a pass, and the time that they take."""

from __future__ import annotations

import pytest

from simoffload.errors import InputError
from simoffload.models import ModelShape, forward_cost, load_model, module_cost, weight_cost
from simoffload.models.quantization import deepspeed_quantization, quantized
from simoffload.models.shape import stored_bytes

_LINEAR = 32 * (4 * 4096**2 + 3 * 4096 * 11_008)
"""Weights of the linear layers of Llama-2-7B."""
_OUTSIDE = 2 * 32_000 * 4096 + (2 * 32 + 1) * 4096
"""Embeddings, head and norms."""
_GROUPS = 4 * 32 * (6 * 4096 + 11_008)
"""[B] of ``g_idx``: 4 B for each input of the seven linear layers."""


def llama(quantization: str | None) -> ModelShape:
    """Return Llama-2-7B."""
    return load_model({"name": "llama-2-7b", "quantization": quantization})


@pytest.mark.parametrize(
    ("name", "size"),
    [
        (None, 2 * (_LINEAR + _OUTSIDE)),
        ("none", 2 * (_LINEAR + _OUTSIDE)),
        ("int8", _LINEAR + 4 * 32 * (4 * 4096 + 2 * 11_008 + 4096) + 2 * _OUTSIDE),
        ("int4-g128", _LINEAR // 2 + _LINEAR // 128 * 5 // 2 + _GROUPS + 2 * _OUTSIDE),
        ("mxfp4", _LINEAR * 17 // 32 + 2 * _OUTSIDE),
        # The file of Llama-2-7B on the Hub is 4,081,004,224 B, of which 0.7 MB are the vocabulary.
        ("q4_k_m", 4_080_263_168),
    ],
)
def test_stored_bytes(name: str | None, size: int) -> None:
    model = llama(name)
    assert model.weight_bytes == size
    assert model.num_parameters == _LINEAR + _OUTSIDE


def test_every_pass_reads_what_is_stored() -> None:
    plain, four_bit = llama(None), llama("int4-g128")
    head = 2 * 32_000 * 4096
    norms = 2 * (2 * 32 + 1) * 4096
    stored = _LINEAR // 2 + _LINEAR // 128 * 5 // 2
    assert four_bit.least_read_bytes == stored + head + norms
    passes = [forward_cost(one, batch=1, new_tokens=1, context=100) for one in (plain, four_bit)]
    assert passes[0].bytes - passes[1].bytes == 2 * _LINEAR - stored
    assert passes[0].flops == passes[1].flops


def test_layers_of_a_mixture_differ() -> None:
    model = llama("q4_k_m")
    kinds = model.kinds
    assert sorted(count for _, count in kinds) == [16, 16]
    assert not model.uniform
    assert llama("q6_k").uniform


def test_tied_embeddings_are_stored_once() -> None:
    model = load_model({"name": "llama-3.2-1b", "quantization": "q4_k_m"})
    head, table = (
        model.modules_after[-1].parameters[0],
        next(module.parameters[0] for module in model.modules_before if module.parameters),
    )
    assert head.tied
    assert head.storage == table.storage
    assert head.storage is not None
    assert head.storage.format.name == "q6_k"


def test_weights_without_a_fused_kernel_are_written_and_read() -> None:
    model = quantized(llama(None), deepspeed_quantization(4, 64, dtype_bytes=2, kernel=True))
    assert model.weight_bytes == (_LINEAR + 2 * 32_000 * 4096) * 9 // 16 + 2 * (2 * 32 + 1) * 4096
    one = next(module for module in model.layers[0] if module.name == "self_attn.q_proj")
    cost, weights = weight_cost(model, one, tokens=1), 4096 * 4096
    assert cost.unfused_bytes == weights * 9 // 16 + 2 * weights
    assert cost.bytes == cost.unfused_bytes + 2 * weights
    assert (cost.kernels, cost.fused_flops, cost.operations) == (1, 0, 10)
    moved = module_cost(model, one, batch=1, new_tokens=1, context=1).bytes
    assert moved == cost.bytes + 2 * (4096 + 4096)
    table = next(module for module in model.modules_before if module.kind == "embedding")
    rows = weight_cost(model, table, tokens=1)
    assert rows.bytes == rows.unfused_bytes == 32_000 * 4096 * (9 / 16 + 2)


def test_fused_kernels_read_more_slowly() -> None:
    model = llama("int4-g128")
    one = next(module for module in model.layers[0] if module.name == "self_attn.q_proj")
    cost = weight_cost(model, one, tokens=1)
    stored = 4096 * 4096 // 2 + 4096 * 32 * 5 // 2
    assert cost.bytes == stored
    assert cost.fused_flops == pytest.approx(stored * (1 / 0.62 - 1) * 19.5e12 / 1631e9)
    assert cost.kernels == 0


def test_parts_of_a_tensor_have_their_own_scales() -> None:
    (layer,) = {layer for layer, _ in llama("int4-g128").kinds}
    weight = next(one.parameters[0] for one in layer if one.name == "mlp.down_proj")
    whole = 4096 * 11_008
    groups = 4 * 11_008  # g_idx, which every part by rows has
    assert (weight.part(whole // 4).stored_bytes(2) - groups) * 4 == weight.stored_bytes(2) - groups
    # A row of 2752 weights has 22 groups, the last of 64 weights.
    part = weight.part(whole // 4, columns=2752)
    assert part.stored_bytes(2) == whole // 8 + 4096 * 22 * 5 // 2 + groups // 4
    plain = next(
        one.parameters[0] for one in load_model("llama-2-7b").layers[0] if one.name == "mlp.down_proj"
    )
    assert plain.part(1000).stored_bytes(2) == 2000


def test_an_unknown_quantization() -> None:
    with pytest.raises(InputError, match=r'unknown quantization; did you mean "int4-g128"'):
        llama("int4-g129")


@pytest.mark.parametrize(
    ("name", "released", "size"),
    [
        # Bytes of all tensors of the checkpoints on the Hub (safetensors metadata).
        ("gpt-oss-120b", "mxfp4", 65_248_815_744),
        ("gpt-oss-20b", "mxfp4", 13_761_264_768),
        ("qwen3-30b-a3b", None, 2 * 30_532_122_624),
    ],
)
def test_a_named_model_has_the_form_in_which_it_was_released(
    name: str, released: str | None, size: int
) -> None:
    shape = load_model(name)
    assert shape.quantization == released
    assert shape.weight_bytes == size
    plain = load_model({"name": name, "quantization": "none"})
    assert plain.quantization is None
    assert plain.weight_bytes == 2 * plain.num_parameters
    if released is not None:
        assert load_model({"name": name, "quantization": released}) == shape


def test_deepseek_v3_has_the_bytes_of_its_checkpoint() -> None:
    """The Hub lists 680,571,043,840 elements in FP8, 3,918,786,560 in bfloat16 and 41,555,600 in single
    precision, among them a further layer that transformers leaves out, with copies of embedding and head."""
    shape = load_model("deepseek-v3")
    assert shape.quantization == "fp8-block128"
    (with_experts,) = (layer for layer, count in shape.kinds if count == 58)
    further = stored_bytes(with_experts, shape)
    further += 2 * (2 * 129_280 * 7168 + 2 * 7168 * 7168 + 3 * 7168)  # eh_proj and three norms
    corrections = 4 * 59 * 256  # buffers of the routers
    published = 680_571_043_840 + 2 * 3_918_786_560 + 4 * 41_555_600
    assert shape.weight_bytes + further + corrections == published


def test_kimi_k2_has_the_bytes_of_its_checkpoint() -> None:
    """The Hub lists 1,029,173,256,720 B, of which 92,160 B are buffers of the routers."""
    shape = load_model("kimi-k2")
    assert shape.quantization == "fp8-block128"
    assert shape.weight_bytes + 4 * 60 * 384 == pytest.approx(1_029_173_256_720, abs=7000)


def test_experts_in_mxfp4_need_bfloat16() -> None:
    assert load_model("gpt-oss-20b").dtype == "bfloat16"
    assert load_model({"name": "gpt-oss-20b", "dtype": "float16"}).dtype == "float16"
    assert load_model({"name": "gpt-oss-20b", "quantization": "none"}).dtype == "float16"


def test_bitsandbytes_leaves_experts_in_one_tensor() -> None:
    """Of Mixtral's 46.7e9 weights only 1.34e9 are stored in 4 bits."""
    fused = load_model({"name": "mixtral-8x7b", "quantization": "nf4-dq"})
    assert fused.weight_bytes > 90e9
    separate = load_model({"name": "mixtral-8x7b", "expert_layout": "separate", "quantization": "nf4-dq"})
    assert separate.weight_bytes < 25e9
