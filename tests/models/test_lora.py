"""LoRA: which matrices are added, and how many elements are trained."""

from __future__ import annotations

import pytest

from simoffload.errors import InputError
from simoffload.models import FORMATS, ModelShape, load_model
from simoffload.models.lora import with_lora


def num_trainable(shape: ModelShape) -> int:
    """[elements] of the tensors that are trained."""
    modules = (*shape.modules_before, *shape.layers[0] * shape.num_hidden_layers, *shape.modules_after)
    parameters = (parameter for module in modules for parameter in module.parameters)
    return sum(one.numel for one in parameters if one.trainable and not one.tied)


_EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize(
    ("name", "r", "targets", "trainable"),
    [
        # As PEFT prints them ("trainable params: ...").
        ("llama-2-7b", 8, ["q_proj", "v_proj"], 4_194_304),
        ("llama-2-7b", 16, ["q_proj", "v_proj"], 8_388_608),
        ("llama-2-7b", 64, _EVERY, 159_907_840),
        ("llama-2-13b", 8, ["q_proj", "v_proj"], 6_553_600),
        ("llama-3.1-8b", 16, _EVERY, 41_943_040),
        ("bloom-7b1", 8, ["query_key_value"], 3_932_160),
        ("opt-6.7b", 16, ["q_proj", "v_proj"], 8_388_608),
    ],
)
def test_trainable_parameters(name: str, r: int, targets: list[str], trainable: int) -> None:
    model = load_model(name)
    adapted = with_lora(model, r=r, target_modules=targets)
    assert num_trainable(model) == model.num_parameters
    assert num_trainable(adapted) == trainable
    assert adapted.num_parameters == model.num_parameters + trainable


def test_adapters_follow_their_target() -> None:
    adapted = with_lora(load_model("llama-2-7b"), r=8, target_modules=["v_proj"])
    names = [module.name for module in adapted.layers[0]]
    at = names.index("self_attn.v_proj")
    parts = [f"self_attn.v_proj.{one}" for one in ("lora_A", "lora_B", "lora")]
    assert names[at + 1 : at + 4] == parts
    down, up, _ = adapted.layers[0][at + 1 : at + 4]
    assert (down.in_features, down.out_features) == (4096, 8)
    assert (up.in_features, up.out_features) == (8, 4096)


def test_the_base_is_frozen() -> None:
    adapted = with_lora(load_model("llama-2-7b"), r=8, target_modules=["v_proj"])
    for module in (*adapted.modules_before, *adapted.layers[0], *adapted.modules_after):
        for parameter in module.parameters:
            assert parameter.trainable is ("lora_" in parameter.name)


def test_a_whole_path_matches_too() -> None:
    model = load_model("llama-2-7b")
    by_path = with_lora(model, r=8, target_modules=["self_attn.v_proj"])
    assert by_path == with_lora(model, r=8, target_modules=["v_proj"])


@pytest.mark.parametrize(
    ("r", "targets", "says"),
    [
        (0, ["q_proj"], "0 is not a valid rank"),
        (8, [], "is empty"),
        (8, ["query"], '"query" matches no module; linear layers: down_proj'),
        (8, ["mlp"], '"mlp" is not a linear layer'),
    ],
)
def test_invalid_adapters_are_refused(r: int, targets: list[str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        with_lora(load_model("llama-2-7b"), r=r, target_modules=targets)


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("llama-3.1-8b", _EVERY),
        ("bloom-7b1", ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]),
        ("opt-6.7b", ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]),
        # Experts and routers are parameters of their own, not linear layers (transformers 5).
        ("qwen3-30b-a3b", ["q_proj", "k_proj", "v_proj", "o_proj"]),
    ],
)
def test_by_default_all_linear_layers_but_the_head_have_adapters(name: str, targets: list[str]) -> None:
    model = load_model(name)
    assert with_lora(model, r=16) == with_lora(model, r=16, target_modules=targets)


def test_experts_in_one_tensor_are_refused() -> None:
    with pytest.raises(InputError, match="is not a linear layer"):
        with_lora(load_model("mixtral-8x7b"), r=8, target_modules=["experts"])


def test_four_bits_and_their_scales() -> None:
    """arXiv 2305.14314, section 3: 0.127 bit of scales after double quantization."""
    assert FORMATS["nf4-dq"].bits_per_weight == pytest.approx(4.127, abs=0.0005)
