"""FLOPs and bytes: exact numbers for small cases, rules of thumb for large ones."""

from __future__ import annotations

import pytest

from simoffload.models import (
    ModelShape,
    ModuleCost,
    Sequences,
    batch_cost,
    forward_cost,
    load_model,
    module_cost,
)
from tests.models.small import LLAMA


def cost(shape: ModelShape, name: str, *, batch: int, new_tokens: int, context: int) -> ModuleCost:
    everything = (*shape.modules_before, *shape.layers[0], *shape.modules_after)
    module = next(module for module in everything if module.name == name)
    return module_cost(shape, module, batch=batch, new_tokens=new_tokens, context=context)


def test_a_linear_layer() -> None:
    shape = load_model(LLAMA)
    # 6 tokens, 8 x 20 weights
    assert cost(shape, "mlp.up_proj", batch=2, new_tokens=3, context=3) == (
        2 * 8 * 20 * 6,
        2 * (8 * 20 + 6 * 8 + 6 * 20),
    )


def test_a_bias_is_one_addition_and_its_own_bytes() -> None:
    shape = load_model({**LLAMA, "mlp_bias": True})
    assert cost(shape, "mlp.up_proj", batch=1, new_tokens=1, context=1) == (
        2 * 8 * 20 + 20,
        2 * (8 * 20 + 20 + 8 + 20),
    )


def test_an_embedding_reads_only_its_rows() -> None:
    shape = load_model(LLAMA)
    assert cost(shape, "model.embed_tokens", batch=2, new_tokens=3, context=3) == (0, 6 * (8 + 8) * 2)


def test_the_head_works_on_the_last_position_only() -> None:
    shape = load_model(LLAMA)
    assert cost(shape, "lm_head", batch=2, new_tokens=50, context=50) == (
        2 * 2 * 8 * 100,
        2 * (8 * 100 + 2 * 8 + 2 * 100),
    )


def test_attention_of_a_decode_step() -> None:
    shape = load_model({**LLAMA, "attention": "eager"})
    flops, moved = cost(shape, "self_attn.attention", batch=3, new_tokens=1, context=10)
    scores = 3 * 4 * 10
    cache = 3 * 2 * 2 * 2 * 3 * 10  # keys and values of two heads of two; read and written anew, read
    # queries of 8 and keys of 4 are rotated; the result is written and, by eager code, copied
    vectors = 3 * (2 * 8 + 2 * 8 + 10 * (8 + 4))
    assert flops == scores * (4 * 2 + 5)
    assert moved == 2 * (cache + vectors) + 24 * scores
    fused = cost(load_model(LLAMA), "self_attn.attention", batch=3, new_tokens=1, context=10)
    assert fused == (flops, 2 * (cache + vectors - 3 * 2 * 8))


@pytest.mark.parametrize(
    ("new_tokens", "context", "keys"),
    [(1, 1, 1), (1, 7, 7), (4, 4, 1 + 2 + 3 + 4), (3, 10, 8 + 9 + 10)],
)
def test_each_token_attends_to_those_before_it(new_tokens: int, context: int, keys: int) -> None:
    shape = load_model(LLAMA)
    flops = cost(shape, "self_attn.attention", batch=1, new_tokens=new_tokens, context=context).flops
    assert flops == 4 * keys * (4 * 2 + 5)


WINDOW = {**LLAMA, "family": "mistral", "sliding_window": 4}


@pytest.mark.parametrize(
    ("new_tokens", "context", "keys"),
    [(1, 3, 3), (1, 4, 4), (1, 100, 4), (3, 3, 6), (7, 7, 1 + 2 + 3 + 4 * 4), (3, 5, 3 + 4 + 4), (2, 9, 8)],
)
def test_a_window_limits_attention(new_tokens: int, context: int, keys: int) -> None:
    flops = cost(load_model(WINDOW), "self_attn.attention", batch=1, new_tokens=new_tokens, context=context)
    assert flops.flops == 4 * keys * (4 * 2 + 5)


def test_a_window_limits_the_cache() -> None:
    """Three positions between passes and the new one; a prompt is put together whole."""
    shape, whole = load_model(WINDOW), load_model({**WINDOW, "sliding_window": None})

    def moved(shape: ModelShape, new_tokens: int, context: int) -> float:
        return cost(shape, "self_attn.attention", batch=1, new_tokens=new_tokens, context=context).bytes

    assert moved(shape, 1, 50) == moved(whole, 1, 4)
    assert moved(shape, 1, 3) == moved(whole, 1, 3)
    assert moved(shape, 50, 50) == moved(whole, 50, 50)


def test_layers_with_and_without_a_window_add_up() -> None:
    """Gemma 2 of three layers: two look at four keys, one at ten; a pass is the sum, to the last FLOP."""
    gemma = {**LLAMA, "family": "gemma2", "head_dim": 2, "sliding_window": 4}
    mixed = forward_cost(load_model(gemma), batch=2, new_tokens=1, context=10)
    sliding, full = (
        forward_cost(
            load_model({**gemma, "layer_types": [f"{kind}_attention"] * 3}), batch=2, new_tokens=1, context=10
        )
        for kind in ("sliding", "full")
    )
    assert full.flops - sliding.flops == 3 * 2 * 4 * 6 * (4 * 2 + 5)
    assert mixed.flops == pytest.approx((2 * sliding.flops + full.flops) / 3, rel=1e-12)
    assert mixed.bytes == pytest.approx((2 * sliding.bytes + full.bytes) / 3, rel=1e-12)


def test_scores_that_are_capped_go_through_three_more_kernels() -> None:
    gemma = {**LLAMA, "family": "gemma2", "head_dim": 2}
    capped, plain = (
        cost(
            load_model({**gemma, "attn_logit_softcapping": cap}),
            "self_attn.attention",
            batch=1,
            new_tokens=1,
            context=10,
        )
        for cap in (50.0, None)
    )
    assert capped.bytes - plain.bytes == 6 * 2 * 4 * 10


def test_scores_in_single_precision_are_not_cast_back() -> None:
    eager = {**LLAMA, "attention": "eager"}
    half, single = load_model(eager), load_model({**eager, "dtype": "float32"})
    at_10, at_20 = (
        [
            cost(s, "self_attn.attention", batch=1, new_tokens=10, context=context).bytes
            for s in (half, single)
        ]
        for context in (10, 20)
    )
    growth = [later - earlier for earlier, later in zip(at_10, at_20, strict=True)]
    scores, cache = 4 * 10 * 10, 3 * 2 * 2 * 2 * 10
    assert growth == [24 * scores + 2 * cache, 32 * scores + 4 * cache]


def test_dropout_costs_nothing() -> None:
    shape = load_model("bloom-560m")
    assert cost(shape, "self_attention.attention_dropout", batch=8, new_tokens=9, context=9) == (0, 0)


def test_norms_and_activations_move_what_their_kernels_move() -> None:
    shape = load_model(LLAMA)
    assert cost(shape, "input_layernorm", batch=1, new_tokens=5, context=5) == (
        5 * 8 * 8,
        2 * (8 + 5 * 8 * (10 + 8)),
    )
    assert cost(shape, "mlp.act_fn", batch=1, new_tokens=5, context=5).bytes == 2 * 5 * 20 * (3 + 2)
    assert cost(shape, "LlamaDecoderLayer", batch=1, new_tokens=5, context=5).bytes == 2 * 5 * 8 * 6


@pytest.mark.parametrize("name", ["bloom-176b", "opt-175b", "llama-3-70b", "llama-3.1-405b"])
def test_a_decode_step_takes_two_flops_a_parameter(name: str) -> None:
    shape = load_model(name)
    flops = forward_cost(shape, batch=4, new_tokens=1, context=100).flops
    assert flops == pytest.approx(2 * shape.num_parameters * 4, rel=0.02)


def test_a_decode_step_of_one_sequence_reads_little_but_the_weights() -> None:
    shape = load_model("llama-3-70b")
    moved = forward_cost(shape, batch=1, new_tokens=1, context=100).bytes
    embedding = 128_256 * 8192 * 2
    assert moved == pytest.approx(shape.weight_bytes - embedding, rel=0.005)


def test_a_prefill_is_as_many_decode_steps_but_for_the_logits() -> None:
    shape = load_model("bloom-7b1")
    whole = forward_cost(shape, batch=2, new_tokens=5, context=5).flops
    steps = sum(forward_cost(shape, batch=2, new_tokens=1, context=past).flops for past in range(1, 6))
    assert steps - whole == 4 * cost(shape, "lm_head", batch=2, new_tokens=1, context=1).flops


@pytest.mark.parametrize("layout", ["fused", "separate"])
def test_experts_work_for_their_share_of_the_tokens(layout: str) -> None:
    shape = load_model({"name": "mixtral-8x7b", "expert_layout": layout})
    linears = [module for module in shape.layers[0] if "experts" in module.name and module.kind == "linear"]

    def total(batch: int) -> tuple[float, float]:
        costs = [module_cost(shape, m, batch=batch, new_tokens=1, context=1) for m in linears]
        return sum(c.flops for c in costs), sum(c.bytes for c in costs)

    weights = 8 * 3 * 4096 * 14_336
    flops, moved = total(1)  # one token goes to two of eight experts
    assert flops == 2 * weights * 2 / 8
    assert moved == pytest.approx(2 * weights * 2 / 8, rel=0.01)
    flops, moved = total(96)  # every expert has work
    assert flops == pytest.approx(96 * 2 * weights * 2 / 8)
    assert moved == pytest.approx(2 * weights, rel=0.03)


@pytest.mark.parametrize(("batch", "new_tokens", "context"), [(0, 1, 1), (1, 0, 1), (1, 2, 1)])
def test_invalid_counts_are_refused(batch: int, new_tokens: int, context: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        forward_cost(load_model(LLAMA), batch=batch, new_tokens=new_tokens, context=context)


DELTA = {
    "family": "qwen3_5_text",
    "num_hidden_layers": 4,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
}
MAMBA = {
    "family": "nemotron_h",
    "layers_block_type": "M*",
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "mamba_num_heads": 6,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 16,
    "chunk_size": 32,
}


def test_a_step_of_a_recurrent_layer_reads_and_writes_its_states() -> None:
    """Beside them, a convolution reads and writes its input; that, a gate and the result are moved."""
    mixed, values, state = 2 * 2 * 16 + 4 * 32, 4 * 32, 4 * 16 * 32
    moved = 2 * (2 * mixed + values + mixed + values) + 2 * (4 * state + 2 * 4 * mixed)
    shape = load_model(DELTA)
    assert cost(shape, "linear_attn.delta_rule", batch=3, new_tokens=1, context=9).bytes == 3 * moved
    convolved, inner = 6 * 8 + 2 * 2 * 16, 6 * 8
    moved = 2 * (2 * convolved + inner + convolved + inner) + 2 * (4 * inner * 16 + 2 * 4 * convolved)
    assert cost(load_model(MAMBA), "mixer.scan", batch=3, new_tokens=1, context=9).bytes == 3 * moved


def test_a_prompt_of_a_recurrent_layer_is_computed_in_chunks() -> None:
    """Per head and token of a chunk of 64: keys with keys and queries, the inverse with keys and values,
    scores with values, and three products with the state; Mamba-2 has scores of a group, half of them."""
    shape, name = load_model(DELTA), "linear_attn.delta_rule"
    products = 4 * (2 * 64 * (3 * 16 + 2 * 32) + 6 * 16 * 32)
    written = 2 * 2 * 16 + 4 * 32 + 4 * 32
    found = cost(shape, name, batch=2, new_tokens=100, context=100)
    assert found.flops == 200 * (products + written)
    steps = cost(shape, name, batch=200, new_tokens=1, context=1).bytes
    states = 2 * (4 * 4 * 16 * 32 + 2 * 4 * 192)
    between = 200 * 2 * 4 * 2 * (16 + 2 * 32 + 16 * 32 // 64)
    assert found.bytes == steps - 198 * states + between
    products = 2 * 32 * 16 + 6 * (32 * 8 + 4 * 8 * 16)
    found = cost(load_model(MAMBA), "mixer.scan", batch=1, new_tokens=10, context=10)
    assert found.flops == 10 * (products + 6 * 8 + 2 * 2 * 16 + 6 * 8)


def test_sequences_of_other_lengths_have_states_of_their_own() -> None:
    shape = load_model(DELTA)
    net = next(one for one in shape.layers[0] if one.name == "linear_attn.delta_rule")
    both = batch_cost(shape, net, (Sequences(3, 1, 50), Sequences(1, 80, 80)))
    apart = [batch_cost(shape, net, (one,)) for one in (Sequences(3, 1, 50), Sequences(1, 80, 80))]
    assert both == ModuleCost(sum(one.flops for one in apart), sum(one.bytes for one in apart))
