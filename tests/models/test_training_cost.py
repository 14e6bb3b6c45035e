"""FLOPs and bytes of training: exact numbers for small cases, the rule of six for large ones."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload.models import ModelShape, ModuleCost, load_model
from simoffload.models.cost import (
    backward_cost,
    loss_module,
    training_cost,
    training_forward_flops,
)
from simoffload.models.lora import with_lora
from tests.models.small import LLAMA


def modules(shape: ModelShape) -> list[Any]:
    return [*shape.modules_before, *shape.layers[0], *shape.modules_after]


def costs(shape: ModelShape, name: str, *, batch: int, length: int) -> tuple[ModuleCost, ModuleCost]:
    module = next(module for module in modules(shape) if module.name == name)
    size = {"batch": batch, "length": length}
    return training_cost(shape, module, **size), backward_cost(shape, module, **size)


def test_a_linear_layer_multiplies_once_forward_and_twice_backward() -> None:
    forward, backward = costs(load_model(LLAMA), "mlp.up_proj", batch=2, length=3)
    assert forward == (2 * 8 * 20 * 6, 2 * (8 * 20 + 6 * 8 + 6 * 20))
    # Gradients of 20 a token times weights give those of 8; times the 8 of the input, those of the weights.
    assert backward == (2 * 2 * 8 * 20 * 6, 2 * (2 * 8 * 20 + 2 * 6 * 8 + 2 * 6 * 20))


def test_the_head_works_on_all_positions() -> None:
    forward, _ = costs(load_model(LLAMA), "lm_head", batch=2, length=50)
    assert forward.flops == 2 * 8 * 100 * 100


def test_an_embedding_reads_its_rows_and_clears_the_table_for_its_gradient() -> None:
    forward, backward = costs(load_model(LLAMA), "model.embed_tokens", batch=2, length=3)
    assert forward == (0, 2 * 6 * (8 + 8))
    assert backward == (0, 2 * (2 * 6 * (8 + 8)) + 2 * 100 * 8)


def test_a_norm_and_its_gradient() -> None:
    forward, backward = costs(load_model(LLAMA), "input_layernorm", batch=1, length=5)
    assert forward.bytes == 2 * (8 + 5 * 8 * (10 + 8))
    # Twice the forward pass, 6 more, and 4 for the gradient of the weight, which is written once.
    assert backward.bytes == 2 * forward.bytes + 2 * 8 + 2 * 5 * 8 * (6 + 4)
    frozen = with_lora(load_model(LLAMA), r=2)
    assert costs(frozen, "input_layernorm", batch=1, length=5)[1].bytes == 2 * forward.bytes + 2 * 5 * 8 * 6


def test_attention_looks_back_and_keeps_no_cache() -> None:
    shape = load_model(LLAMA)
    forward, backward = costs(shape, "self_attn.attention", batch=3, length=4)
    keys = 1 + 2 + 3 + 4
    kept = 3 * 2 * 2 * 2 * 4  # keys and values of two heads of two
    vectors, rotation = 3 * 4 * (8 + 8), 3 * 4 * 10 * (8 + 4)
    assert forward == (3 * 4 * keys * (4 * 2 + 5), 2 * (kept + vectors + rotation))
    assert backward == (2.5 * forward.flops, 2 * (4.25 * (kept + vectors) + rotation * 17 / 10))


def test_a_window_ends_attention_in_training_too() -> None:
    window = {**LLAMA, "family": "mistral", "sliding_window": 2}
    forward, backward = costs(load_model(window), "self_attn.attention", batch=3, length=4)
    full, _ = costs(load_model({**window, "sliding_window": None}), "self_attn.attention", batch=3, length=4)
    assert forward.flops == 3 * 4 * (1 + 2 + 2 + 2) * (4 * 2 + 5)
    assert forward.bytes == full.bytes
    assert backward.flops == 2.5 * forward.flops


def test_eager_attention_writes_its_scores() -> None:
    eager = load_model({**LLAMA, "attention": "eager"})
    forward, backward = costs(eager, "self_attn.attention", batch=3, length=4)
    fused, _ = costs(load_model(LLAMA), "self_attn.attention", batch=3, length=4)
    merged = 2 * 2 * 3 * 4 * 8  # the result is read and written again
    assert forward.bytes - fused.bytes == 24 * 3 * 4 * 4 * 4 + merged
    rotation = 3 * 4 * 10 * (8 + 4)  # 17 instead of 20 passes
    assert backward == (2 * forward.flops, 2 * forward.bytes - 2 * rotation * 3 / 10)


def test_the_loss_is_in_single_precision() -> None:
    """Per logit, in elements of two bytes: 1 read and 2 written by the cast, 3 times 2 and 2 by log-softmax;
    backward 2 cleared, 6 read, 2 written, and 2 and 1 by the cast."""
    shape = load_model(LLAMA)
    forward = training_cost(shape, loss_module(shape), batch=2, length=5)
    assert forward.bytes == 2 * 10 * 100 * (3 + 8)
    assert backward_cost(shape, loss_module(shape), batch=2, length=5).bytes == 2 * 10 * 100 * 13
    assert not loss_module(shape).hooked


@pytest.mark.parametrize("name", ["bloom-176b", "opt-175b", "llama-3-70b", "llama-2-7b"])
def test_a_step_takes_six_flops_a_parameter_and_token(name: str) -> None:
    """Forward 2, backward 4 (Kaplan et al., arXiv 2001.08361), apart from attention over short sequences."""
    shape = load_model(name)
    tokens = {"batch": 4, "length": 16}
    everything = [
        *shape.modules_before,
        *(module for _ in range(shape.num_hidden_layers) for module in shape.layers[0]),
        *shape.modules_after,
    ]
    forward = sum(training_cost(shape, module, **tokens).flops for module in everything)
    backward = sum(backward_cost(shape, module, **tokens).flops for module in everything)
    table = next(module for module in shape.modules_before if module.kind == "embedding")
    tied = shape.modules_after[-1].parameters[0].tied
    worked = shape.num_parameters - (0 if tied else table.num_parameters)
    assert forward == pytest.approx(2 * 64 * worked, rel=0.02)
    assert backward == pytest.approx(2 * forward, rel=0.01)
    layers, outside = training_forward_flops(shape, **tokens)
    assert layers + outside == pytest.approx(forward)


def test_experts_work_for_their_share_of_the_tokens_in_both_directions() -> None:
    shape = load_model("mixtral-8x7b")
    forward, backward = costs(shape, "mlp.experts", batch=1, length=64)
    assert forward.flops == pytest.approx(2 * 3 * 4096 * 14_336 * 64 * 2)
    assert backward.flops == 2 * forward.flops


def test_a_frozen_matrix_gets_no_gradient() -> None:
    frozen = with_lora(load_model(LLAMA), r=2, target_modules=("q_proj",))
    forward, backward = costs(frozen, "mlp.up_proj", batch=2, length=3)
    assert backward.flops == forward.flops
    adapter = next(module.name for module in frozen.layers[0] if module.name.endswith("lora_A"))
    forward, backward = costs(frozen, adapter, batch=2, length=3)
    assert forward.flops == 2 * 8 * 2 * 6
    assert backward.flops == 2 * forward.flops


def test_costs_grow_with_tokens_and_attention_with_their_square() -> None:
    shape = load_model(LLAMA)
    (short, _), (long, _) = (
        costs(shape, "self_attn.attention", batch=1, length=length) for length in (1000, 2000)
    )
    assert long.flops / short.flops == pytest.approx(4, rel=0.01)
    (one, _), (two, _) = (costs(shape, "mlp.up_proj", batch=batch, length=7) for batch in (1, 2))
    assert two.flops == 2 * one.flops
