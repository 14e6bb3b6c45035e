"""Memory of the key-value cache of every family, in every format, against closed forms."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from simoffload.errors import InputError
from simoffload.models import FAMILIES
from tests.strategies import scenarios

BATCH, PROMPT, STEPS = 3, 9000, 40
LONGEST = PROMPT + STEPS


class Shape(NamedTuple):
    """What the released config.json of a model says of its cache."""

    name: str
    layers: int
    token: int
    """Elements of a token in one layer."""
    window: int = 0
    sliding: int = 0
    """Layers with the window."""
    served: int = 0
    """Elements of a token in vLLM, if others."""
    state: int = 0
    """Bytes that layers with linear attention keep of a sequence; ``layers`` are the others."""


SHAPES = {
    "bloom": Shape("bloom-560m", 24, 2 * 16 * 64),
    "opt": Shape("opt-125m", 12, 2 * 12 * 64),
    "llama": Shape("llama-3.1-8b", 32, 2 * 8 * 128),
    "mixtral": Shape("mixtral-8x7b", 32, 2 * 8 * 128),
    "qwen2": Shape("qwen2.5-0.5b", 24, 2 * 2 * 64),
    "qwen3": Shape("qwen3-0.6b", 28, 2 * 8 * 128),
    "mistral": Shape("mistral-7b-v0.1", 32, 2 * 8 * 128, 4096, 32),
    "gemma2": Shape("gemma-2-2b", 26, 2 * 4 * 256, 4096, 13),
    "gemma3_text": Shape("gemma-3-1b", 26, 2 * 1 * 256, 512, 22),
    "phi3": Shape("phi-3-mini", 32, 2 * 32 * 96, 2047, 32),
    "gpt_neox": Shape("pythia-70m", 6, 2 * 8 * 64),
    "falcon": Shape("falcon-40b", 60, 2 * 128 * 64, served=2 * 8 * 64),
    "qwen2_moe": Shape("qwen1.5-moe-a2.7b", 24, 2 * 16 * 128),
    "qwen3_moe": Shape("qwen3-30b-a3b", 48, 2 * 4 * 128),
    "deepseek_v2": Shape("deepseek-v2-lite", 27, 512 + 64),
    "deepseek_v3": Shape("deepseek-v3", 61, 512 + 64),
    "kimi_k2": Shape("kimi-k2", 61, 512 + 64),
    "gpt_oss": Shape("gpt-oss-20b", 24, 2 * 8 * 64, 128, 12),
    "llama4_text": Shape("llama-4-scout", 48, 2 * 8 * 128, 8192, 36),
    "glm4_moe": Shape("glm-4.5", 92, 2 * 8 * 128),
    "phimoe": Shape("phi-3.5-moe", 32, 2 * 8 * 128, 131_072, 32),
    "olmo2": Shape("olmo-2-7b", 32, 2 * 32 * 128),
    "minimax_m2": Shape("minimax-m2", 62, 2 * 8 * 128),
    "qwen3_next": Shape("qwen3-next-80b-a3b", 12, 2 * 2 * 256, state=36 * (32 * 128**2 * 4 + 8192 * 4 * 2)),
    "qwen3_5_text": Shape("qwen3.5-27b", 16, 2 * 4 * 256, state=48 * (48 * 128**2 * 4 + 10240 * 4 * 2)),
    "qwen3_5_moe_text": Shape(
        "qwen3.5-35b-a3b", 10, 2 * 2 * 256, state=30 * (32 * 128**2 * 4 + 8192 * 4 * 2)
    ),
    "nemotron_h": Shape(
        "nemotron-3-nano-30b-a3b", 6, 2 * 2 * 128, state=23 * (64 * 64 * 128 * 4 + 6144 * 4 * 2)
    ),
    "granitemoehybrid": Shape(
        "granite-4.0-h-small", 4, 2 * 8 * 128, state=36 * (128 * 64 * 128 * 4 + 8448 * 4 * 2)
    ),
    "falcon_h1": Shape("falcon-h1-7b", 44, 2 * 2 * 128, state=44 * (24 * 128 * 256 * 4 + 3584 * 4 * 2)),
    "bamba": Shape("bamba-9b", 3, 2 * 8 * 128, state=29 * (128 * 64 * 128 * 4 + 8448 * 4 * 2)),
    "jamba": Shape("jamba-1.5-mini", 4, 2 * 8 * 128, state=28 * (8192 * 16 * 4 + 8192 * 4 * 2)),
    "bailing_hybrid": Shape("ling-3.0-flash", 7, 512 + 64, state=35 * (32 * 128**2 * 4 + 12288 * 4 * 2)),
    "minimax": Shape("minimax-text-01", 10, 2 * 8 * 128, state=70 * 64 * 128**2 * 2),
    "lfm2": Shape("lfm2-1.2b", 6, 2 * 8 * 64, state=10 * 2048 * 3 * 2),
    "lfm2_moe": Shape("lfm2-8b-a1b", 6, 2 * 8 * 64, state=18 * 2048 * 3 * 2),
    "nemotron_nas": Shape("llama-3.3-nemotron-super-49b", 49, 2 * 8 * 128),
    "kimi_linear": Shape("kimi-linear-48b-a3b", 7, 512 + 64, state=20 * (32 * 128**2 * 4 + 12288 * 4 * 2)),
}
"""Models by family."""
WITHOUT_STATE = [family for family, shape in SHAPES.items() if not shape.state]


def terms(shape: Shape, *, steps: int = STEPS, **strategy: Any) -> dict[tuple[str, str], int]:
    model = {"name": shape.name, "dtype": "bfloat16"}
    return scenarios.terms(
        model=model, batch_size=BATCH, prompt_length=PROMPT, steps=steps, strategy=strategy
    )


def positions(shape: Shape, *, full: int, sliding: int) -> int:
    """Return the positions of all layers, of which those with a window have at most ``sliding``."""
    return (shape.layers - shape.sliding) * full + shape.sliding * min(full, sliding)


def test_every_family_has_a_closed_form() -> None:
    others = set(FAMILIES) - set(SHAPES)
    assert all(FAMILIES[one].__module__.endswith(f".{one}") for one in others)  # with tests of their own


@pytest.mark.parametrize("family", SHAPES)
def test_a_cache_in_hbm(family: str) -> None:
    """Sliding layers keep a view of the whole prompt until the first decode step."""
    shape = SHAPES[family]
    held = max(positions(shape, full=LONGEST, sliding=shape.window), shape.layers * PROMPT)
    size = BATCH * (held * shape.token * 2 + shape.state)
    assert terms(shape, kind="transformers")["hbm", "key-value cache"] == size


@pytest.mark.parametrize("family", SHAPES)
@pytest.mark.parametrize(("form", "element"), [(None, 2), ("bf16", 2), ("fp8", 1)])
def test_a_paged_cache(family: str, form: str | None, element: int) -> None:
    """Whole blocks of 16 tokens in groups of as many layers as the kind with fewer has; a window touches one
    more if it begins within a block, and one prompt those of a step of 8,192 tokens."""
    shape = SHAPES[family]
    full, sliding = shape.layers - shape.sliding, shape.sliding
    size = min(full or sliding, sliding or full)
    groups, whole = (-(-full // size), -(-sliding // size)), -(-LONGEST // 16)
    reach, chunk = (-(-(shape.window - 1 + more) // 16) + 1 for more in (0, 8192))
    each, first = (groups[0] * whole + groups[1] * min(whole, most) for most in (reach, chunk))
    held = 16 * size * max(BATCH * each, first)
    if shape.state:
        served_with_states(family, form, element)
        return
    found = terms(shape, kind="vllm", kv_cache={"format": form})
    assert found["hbm", "key-value cache"] == held * (shape.served or shape.token) * element


SERVED_STATES = {
    "qwen3_next": (36, 32 * 128**2 * 2 + 8192 * 3 * 2),
    "qwen3_5_text": (48, 48 * 128**2 * 4 + 10240 * 3 * 2),
    "qwen3_5_moe_text": (30, 32 * 128**2 * 4 + 8192 * 3 * 2),
    "nemotron_h": (23, 64 * 64 * 128 * 4 + 6144 * 3 * 2),
    "kimi_linear": (20, 32 * 128**2 * 4 + 12288 * 3 * 2),
    "granitemoehybrid": (36, 128 * 64 * 128 * 2 + 8448 * 3 * 2),
    "falcon_h1": (44, 24 * 128 * 256 * 2 + 3584 * 3 * 2),
    "bamba": (29, 128 * 64 * 128 * 2 + 8448 * 3 * 2),
    "minimax": (70, 64 * 128**2 * 2),
    "jamba": (28, 8192 * 16 * 2 + 8192 * 3 * 2),
    "bailing_hybrid": (35, 32 * 128**2 * 4 + 12288 * 3 * 2),
    "lfm2": (10, 2048 * 2 * 2),
    "lfm2_moe": (18, 2048 * 2 * 2),
}
"""Recurrent layers, and the bytes that vLLM keeps of a sequence in one: states in single precision or in the
model's type, and the inputs of a convolution of four tokens, or of three (LFM2)."""


def served_with_states(family: str, form: str | None, element: int) -> None:
    """A block has as many tokens as a state needs room, in a group of as many layers as have attention."""
    shape, (recurrent, state) = SHAPES[family], SERVED_STATES[family]
    token = shape.token * element
    size = 16 * -(-state // (16 * token))
    blocks = BATCH * (-(-LONGEST // size) + -(-recurrent // shape.layers))
    found = terms(shape, kind="vllm", kv_cache={"format": form})["hbm", "key-value cache"]
    assert found == blocks * size * shape.layers * token


@pytest.mark.parametrize("family", WITHOUT_STATE)
@pytest.mark.parametrize(("form", "element"), [("fp8", 1), ("int4", 0.5625), ("int2", 0.3125)])
def test_a_quantized_cache(family: str, form: str, element: float) -> None:
    """Of the last 40 tokens, only fp8 keeps none in the model's type."""
    shape = SHAPES[family]
    if shape.sliding:
        return  # transformers refuses it
    found = terms(shape, kind="transformers", kv_cache={"format": form})
    token = BATCH * shape.layers * shape.token
    stored = LONGEST if form == "fp8" else PROMPT
    assert found["hbm", "key-value cache"] == token * stored * element
    recent = found.get(("hbm", "tokens that are not quantized yet"), 0)
    assert recent == token * (LONGEST - stored) * 2


@pytest.mark.parametrize("family", WITHOUT_STATE)
@pytest.mark.parametrize("way", ["dynamic", "static"])
def test_an_offloaded_cache(family: str, way: str) -> None:
    """A dynamic one has a token less than the window; a static one leaves sliding layers on the GPU."""
    shape = SHAPES[family]
    if way == "static" and shape.sliding == shape.layers:
        return  # nothing would be offloaded
    found = terms(shape, kind="transformers", kv_cache={"tier": "dram", "implementation": way})
    token = BATCH * shape.token * 2
    sliding = 0 if way == "static" else shape.window - 1
    assert found["dram", "key-value cache"] == token * positions(shape, full=LONGEST, sliding=sliding)
    if way == "static":
        kept = shape.sliding * min(shape.window, LONGEST)
        assert found.get(("hbm", "key-value cache of sliding layers"), 0) == token * kept
    else:
        last = LONGEST if shape.sliding < shape.layers else min(shape.window, LONGEST)
        assert found["hbm", "joined keys and values of a layer"] == token * max(PROMPT, last)


@pytest.mark.parametrize("family", WITHOUT_STATE)
@pytest.mark.parametrize(("form", "element"), [(None, 2.0), ("fp8", 1.0), ("int8", 1.0625), ("int4", 0.5625)])
def test_a_streamed_cache(family: str, form: str | None, element: float) -> None:
    """All that is kept is in host memory, of a layer with a window one token less."""
    shape = SHAPES[family]
    cache = {"tier": "dram", "implementation": "streamed", "format": form}
    found = terms(shape, kind="transformers", kv_cache=cache)
    held = positions(shape, full=LONGEST, sliding=shape.window - 1)
    assert found["dram", "key-value cache"] == BATCH * held * shape.token * element


@pytest.mark.parametrize("way", ["dynamic", "static"])
def test_states_stay_on_the_gpu(way: str) -> None:
    shape = SHAPES["qwen3_next"]
    found = terms(shape, kind="transformers", kv_cache={"tier": "dram", "implementation": way})
    assert found["hbm", "states of recurrent layers"] == BATCH * shape.state
    assert found["dram", "key-value cache"] == BATCH * LONGEST * shape.layers * shape.token * 2


@pytest.mark.parametrize(
    ("cache", "why"),
    [
        ({"format": "fp8"}, "no cache of a model with recurrent layers"),
        ({"tier": "dram", "implementation": "streamed"}, "recurrent layers, whose states"),
    ],
)
def test_caches_that_hold_no_states(cache: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        terms(SHAPES["qwen3_next"], kind="transformers", kv_cache=cache)
