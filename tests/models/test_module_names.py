"""Patterns of module names: what they match, and that matching them takes a bounded time."""

from __future__ import annotations

from time import perf_counter

import pytest

from simoffload.models import load_model
from simoffload.models.formats import FORMATS
from simoffload.models.module_names import ModuleNames
from simoffload.models.quantization import QUANTIZATIONS, Quantization, quantized

_NAME = "model.layers.3.mlp.gate"


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("model.layers.3.mlp.gate", True),
        ("mlp.gate", True),
        ("mlp", True),
        ("model.layers.3.", True),
        ("model.layers.3.*", True),
        ("model.layers.*.mlp", True),
        ("*.gate", True),
        ("re:.*mlp.gate$", True),
        (r"re:model\.layers\.(1|2|3)\..*", True),
        ("re:mlp", False),
        ("gat", False),
        ("model.layers.30", False),
        ("model.layers.*.gate_proj", False),
        ("mlp.gate.weight", False),
    ],
)
def test_patterns(pattern: str, matches: bool) -> None:
    assert ModuleNames([pattern]).match(_NAME) is matches


def test_only_some_names_depend_on_the_layer() -> None:
    assert not ModuleNames(["mlp.gate", "lm_head"]).by_layer
    assert ModuleNames(["lm_head", "model.layers.4.mlp"]).by_layer
    assert ModuleNames(["re:.*layers.4.*"]).by_layer


@pytest.mark.parametrize(
    "pattern",
    [
        r"re:(\w+\.?)+!",
        "re:" + "a?" * 40,
        "re:" + "(a|a)" * 40,
        "re:" + ".*" * 9 + "!",
        "*a*b*c*d*e",
        "re:((a)",
    ],
)
def test_slow_or_broken_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"take too long|not a regular expression"):
        ModuleNames([pattern])
    with pytest.raises(ValueError, match="1,000"):
        ModuleNames(["x" * 1001])


def test_long_lists_of_names_are_fast() -> None:
    model = load_model("llama-3.1-70b")
    names = [f"model.layers.{layer}.{part}" for layer in range(80) for part in ("mlp", "self_attn.q_proj")]
    listed = ModuleNames([*names, *(f"vision.blocks.*.fc{one}" for one in range(600)), "re:.*mlp.gate$"])
    began = perf_counter()
    found = quantized(model, Quantization("fp8", FORMATS["fp8"], ignored=listed))
    assert perf_counter() - began < 10
    assert found.uniform
    assert found.weight_bytes > quantized(model, QUANTIZATIONS["fp8"]).weight_bytes


@pytest.mark.parametrize(("name", "seconds"), [("fp8", 0.5), ("q4_k_m", 5.0)])
def test_models_of_many_layers_are_fast(name: str, seconds: float) -> None:
    model = load_model("llama-2-7b").of_layers(20_000)
    began = perf_counter()
    found = quantized(model, QUANTIZATIONS[name])
    assert perf_counter() - began < seconds
    assert found.num_hidden_layers == 20_000
