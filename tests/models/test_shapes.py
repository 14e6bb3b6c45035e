"""Sizes that are published elsewhere, tied weights, caches."""

from __future__ import annotations

import pytest

from simoffload.models import ModelShape, Module, Parameter, list_models, load_model, parameters_of


def module(shape: ModelShape, name: str) -> Module:
    everything = (*shape.modules_before, *shape.layers[0], *shape.modules_after)
    return next(module for module in everything if module.name == name)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("bloom-560m", 559_214_592),
        ("bloom-7b1", 7_069_016_064),
        ("bloom-176b", 176_247_271_424),
        ("bloom-mod-1", 1_210_656_399_360),
        ("bloom-mod-2", 24_165_607_096_320),
        ("opt-125m", 125_239_296),
        ("opt-350m", 331_196_416),
        ("opt-175b", 174_604_468_224),
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_620_634_112),
        ("llama-3.3-nemotron-super-49b", 49_867_145_216),
    ],
)
def test_totals_are_the_published_ones(name: str, parameters: int) -> None:
    shape = load_model(name)
    assert shape.num_parameters == parameters
    assert shape.weight_bytes == 2 * parameters


def test_kimi_k3_has_the_size_of_its_checkpoint() -> None:
    """Of 1,560,936,091,448 bytes (96 files) 0.9 GB are the tower's; the products around experts have 16 bits
    there, though its configuration says 4."""
    shape = load_model("kimi-k3")
    assert shape.num_parameters == 2_779_484_393_568
    around = 92 * 2 * 3584 * 7168
    assert shape.weight_bytes + around * (2 - 17 / 32) == pytest.approx(1_560_936_091_448, rel=0.001)


def test_the_white_papers_models_have_its_sizes() -> None:
    # "# Parameters 7.1B 176B 1.2T 24.1T"
    names = ["bloom-7b1", "bloom-176b", "bloom-mod-1", "bloom-mod-2"]
    billions = [load_model(name).num_parameters / 1e9 for name in names]
    assert billions == pytest.approx([7.1, 176, 1200, 24100], rel=0.01)


def test_a_bloom_layer_in_full() -> None:
    shape = load_model("bloom-7b1")
    assert [(module.name, module.kind, module.num_parameters) for module in shape.layers[0]] == [
        ("BloomBlock", "container", 0),
        ("input_layernorm", "norm", 8_192),
        ("self_attention", "container", 0),
        ("self_attention.query_key_value", "linear", 4096 * 12_288 + 12_288),
        ("self_attention.attention", "attention", 0),
        ("self_attention.attention_dropout", "dropout", 0),
        ("self_attention.dense", "linear", 4096 * 4096 + 4096),
        ("post_attention_layernorm", "norm", 8_192),
        ("mlp", "container", 0),
        ("mlp.dense_h_to_4h", "linear", 4096 * 16_384 + 16_384),
        ("mlp.gelu_impl", "activation", 0),
        ("mlp.dense_4h_to_h", "linear", 16_384 * 4096 + 4096),
    ]
    assert parameters_of(shape.layers[0]) == 201_379_840
    assert [module.name for module in shape.layers[0] if not module.hooked] == ["self_attention.attention"]


def test_a_tied_head_needs_the_embedding_again_but_counts_once() -> None:
    shape = load_model("bloom-560m")
    head = module(shape, "lm_head")
    assert head.parameters == (
        Parameter("transformer.word_embeddings.weight", 250_880 * 1024, tied=True, columns=1024),
    )
    assert head.num_parameters == module(shape, "transformer.word_embeddings").num_parameters

    untied = load_model({"name": "bloom-560m", "tie_word_embeddings": False})
    assert module(untied, "lm_head").parameters == (
        Parameter("lm_head.weight", 250_880 * 1024, columns=1024),
    )
    assert untied.num_parameters - shape.num_parameters == 250_880 * 1024


@pytest.mark.parametrize(
    ("name", "tied"), [("llama-3.2-3b", True), ("llama-3.1-8b", False), ("opt-30b", True)]
)
def test_which_models_tie(name: str, tied: bool) -> None:
    assert [parameter.tied for parameter in module(load_model(name), "lm_head").parameters] == [tied]


def test_opt_has_two_more_positions_than_its_config() -> None:
    shape = load_model("opt-125m")
    assert shape.max_position_embeddings == 2048
    assert module(shape, "model.decoder.embed_positions").num_parameters == 2050 * 768


def test_opt_350m_normalizes_late_and_embeds_in_fewer_dimensions() -> None:
    shape = load_model("opt-350m")
    assert module(shape, "model.decoder.embed_tokens").num_parameters == 50_272 * 512
    assert module(shape, "model.decoder.project_in").num_parameters == 512 * 1024
    assert [module.name for module in shape.modules_after] == ["model.decoder.project_out", "lm_head"]
    assert shape.layers[0][-1].name == "final_layer_norm"


def test_opt_without_its_final_norm() -> None:
    shape = load_model({"name": "opt-125m", "_remove_final_layer_norm": True})
    assert [module.name for module in shape.modules_after] == ["lm_head"]


def test_experts_separately_are_as_large_as_fused() -> None:
    fused, separate = (
        load_model({"name": "mixtral-8x22b", "expert_layout": layout}) for layout in ("fused", "separate")
    )
    assert fused.num_parameters == separate.num_parameters
    assert fused.least_read_bytes == separate.least_read_bytes < fused.weight_bytes / 3
    assert max(p.numel for m in fused.layers[0] for p in m.parameters) == 8 * 2 * 6144 * 16_384
    experts = [module for module in separate.layers[0] if ".experts." in module.name]
    assert len(experts) == 8 * 5
    assert {module.share for module in experts if module.kind == "linear"} == {0.25}
    assert max(p.numel for m in experts for p in m.parameters) == 6144 * 16_384


def test_a_cache_of_grouped_heads_is_smaller() -> None:
    # 2 (keys, values) × 80 layers × 8 heads × 128 × 2 B a token
    assert load_model("llama-3-70b").kv_cache_bytes(batch=1, tokens=1) == 327_680
    assert load_model("llama-3-70b").kv_cache_bytes(batch=96, tokens=544) == 96 * 544 * 327_680
    assert load_model("bloom-176b").kv_cache_bytes(batch=1, tokens=1) == 2 * 70 * 14_336 * 2
    assert (
        load_model({"name": "llama-3-70b", "dtype": "float32"}).kv_cache_bytes(batch=1, tokens=1) == 655_360
    )


@pytest.mark.parametrize(
    ("name", "window", "sliding", "full"),
    [
        ("mistral-7b-v0.1", 4096, 32, 0),
        ("mistral-7b", None, 0, 32),
        ("gemma-2-2b", 4096, 13, 13),
        ("gemma-3-1b", 512, 22, 4),
        ("gemma-3-27b", 1024, 52, 10),
        ("phi-3-mini", 2047, 32, 0),
        ("qwen2.5-7b", None, 0, 28),
    ],
)
def test_the_cache_of_a_sliding_layer_ends_at_its_window(
    name: str, window: int | None, sliding: int, full: int
) -> None:
    shape = load_model(name)
    assert (shape.sliding_window, shape.num_sliding_layers) == (window, sliding)
    each = 2 * shape.num_key_value_heads * shape.head_dim * 2
    for tokens in (100, 8192):
        kept = min(tokens, window or tokens)
        assert shape.kv_cache_bytes(batch=3, tokens=tokens) == 3 * each * (sliding * kept + full * tokens)


def test_falcon_caches_what_it_repeats() -> None:
    """One head where there is one; all heads of the new architecture, whose projection has eight."""
    assert load_model("falcon-7b").kv_cache_bytes(batch=1, tokens=1) == 2 * 32 * 64 * 2
    large = load_model("falcon-40b")
    assert large.kv_cache_bytes(batch=1, tokens=1) == 2 * 60 * 8192 * 2
    projection = module(large, "self_attention.query_key_value")
    assert projection.num_parameters == 8192 * (128 + 2 * 8) * 64
    assert large.as_served().kv_cache_bytes(batch=1, tokens=1) == 2 * 60 * 8 * 64 * 2
    for name in ("falcon-7b", "llama-3.1-8b"):
        assert load_model(name).as_served() == load_model(name)


@pytest.mark.parametrize(
    ("name", "attention"),
    [("bloom-7b1", "eager"), ("gemma-2-2b", "eager"), ("falcon-7b", "eager"), ("falcon-40b", "sdpa")],
)
def test_default_attention_is_that_of_transformers(name: str, attention: str) -> None:
    assert load_model(name).attention == attention


@pytest.mark.parametrize("name", list_models())
def test_every_size_is_consistent(name: str) -> None:
    shape = load_model({"name": name, "quantization": "none"})
    everything = (*shape.modules_before, *shape.layers[0], *shape.modules_after)
    # Called twice: the rotation of Gemma 3, for each kind of layer; Llama 4's norm of queries and keys.
    names = [one.name for one in everything if one.kind != "rotary" and not one.name.endswith("qk_norm")]
    assert len(set(names)) == len(names)
    assert shape.name == name
    assert shape.num_attention_heads % shape.num_key_value_heads == 0
    own = ["attention"] if any(one.attends for one in everything) else []
    own += ["activation"] * (shape.family in ("gpt_oss", "minimax_m3", "lfm2", "lfm2_moe"))
    own += [one.kind for one in everything if one.state and not one.hooked]  # of a recurrent layer
    scores = [one for one in everything if one.kind == "attention" and one.heads and not one.heads.values]
    own += ["attention"] * len(scores)  # an indexer's
    assert sorted(module.kind for module in everything if not module.hooked and module.share) == sorted(own)
    for linear in (
        module for module in everything if module.kind == "linear" and not module.name.endswith("experts")
    ):
        assert linear.parameters[0].numel == linear.in_features * linear.out_features


def test_shapes_are_values() -> None:
    assert load_model("opt-1.3b") == load_model("opt-1.3b")
    with pytest.raises(AttributeError):
        load_model("opt-1.3b").hidden_size = 1  # type: ignore[misc]
