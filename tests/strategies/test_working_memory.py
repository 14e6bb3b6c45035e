"""Memory of a forward pass beside the weights: the cache of sliding layers, and activations of experts."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload.models import load_model
from simoffload.strategies.memory import activation_bytes, cache_bytes
from simoffload.workload import Inference
from tests.strategies import scenarios


@pytest.mark.parametrize(
    ("prompt", "output", "paged"), [(32_768, 8, 4112), (4_000, 8_000, 4112), (100, 50, 160)]
)
def test_transformers_keeps_the_whole_prompt_until_the_first_decode_step(
    prompt: int, output: int, paged: int
) -> None:
    """Every layer of Mistral 7B 0.1 has a window of 4,096 tokens, which in a paged cache can begin within a
    block of 16 and end in the 257th."""
    model = load_model("mistral-7b-v0.1")
    workload = Inference(batch_size=8, prompt_length=prompt, output_length=output)
    each = 8 * 32 * 2 * 8 * 128 * 2
    window = min(4096, workload.max_context)
    assert cache_bytes(model, workload, block=16) == each * paged
    assert cache_bytes(model, workload) == each * max(prompt, window)


@pytest.mark.parametrize("kind", [{"kind": "vllm"}, {"kind": "vllm", "cpu_offload_gb": 1}])
@pytest.mark.parametrize(("form", "element"), [(None, 2), ("fp8", 1)])
def test_a_paged_cache_has_whole_blocks(kind: dict[str, Any], form: str | None, element: int) -> None:
    """400 sequences of 17 tokens have two blocks of 16 each."""
    work = {"batch_size": 400, "prompt_length": 10, "output_length": 8}
    cache = scenarios.terms(**work, strategy=kind, cache={"format": form})["hbm", "key-value cache"]
    assert cache == 400 * 2 * 16 * 32 * 2 * 8 * 128 * element


def test_experts_gather_their_tokens() -> None:
    """Qwen3-235B: 8 experts for each token, as wide as 1,536. In transformers the results, weighed and in
    order, are beside the input; vLLM has room for two results, of at most 16,384 tokens at once."""
    model, tokens = load_model("qwen3-235b-a22b"), 32_768
    rest = (4 * tokens * 4096) * 2 + model.vocab_size * 6
    assert activation_bytes(model, batch=1, tokens=tokens) == rest + 8 * 4 * 4096 * tokens * 2
    assert activation_bytes(model, batch=1, tokens=tokens, fused=True) == rest + 8 * 2 * 4096 * 16_384 * 2


def test_the_experts_of_older_transformers_follow_each_other() -> None:
    """One after the other gathers its tokens, which is less than what is counted for a dense layer."""
    separate = load_model({"name": "mixtral-8x7b", "expert_layout": "separate"})
    expected = (4 * 4096 + 2 * 14336) * 100 * 2 + separate.vocab_size * 6
    assert activation_bytes(separate, batch=1, tokens=100) == expected


def test_latent_attention_expands_queries_keys_and_values() -> None:
    """DeepSeek-V3 has 128 heads, of 192 elements for queries and keys, 128 for values and results."""
    model = load_model("deepseek-v3")
    expanded = 2 * 128 * (192 + 128)
    routed = 8 * 4 * 7168
    expected = (4 * 7168 + max(expanded, routed)) * 1000 * 2 + model.vocab_size * 6
    assert activation_bytes(model, batch=1, tokens=1000) == expected
    few = load_model({"name": "deepseek-v3", "num_experts_per_tok": 1})
    expected = (4 * 7168 + expanded) * 1000 * 2 + model.vocab_size * 6
    assert activation_bytes(few, batch=1, tokens=1000) == expected
