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
        ("model.layers.3*", True),
        ("layers.3.mlp.ga*", True),
        ("ayers.3*", False),
        ("model.layers.30*", False),
        ("language_model.model.layers.3*", True),
        ("language_model.layers.3*", True),
        ("layers.3.ffn", True),
        ("model.layers.3.block_sparse_moe.gate", True),
        ("re:mlp", False),
        ("gat", False),
        ("model.layers.30", False),
        ("model.layers.*.gate_proj", False),
        ("mlp.gate.weight", False),
    ],
)
def test_patterns(pattern: str, matches: bool) -> None:
    assert ModuleNames([pattern]).match(_NAME) is matches


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("model.layers.3.mlp.experts.0.up_proj", True),
        ("model.layers.3.mlp.experts.0", True),
        ("model.layers.3.mlp.experts.1.up_proj", False),
        ("model.layers.3.mlp.experts*", True),
    ],
)
def test_the_first_expert_stands_for_all(pattern: str, matches: bool) -> None:
    assert ModuleNames([pattern]).match("model.layers.3.mlp.experts") is matches


def test_only_some_names_depend_on_the_layer() -> None:
    assert not ModuleNames(["mlp.gate", "lm_head"]).by_layer
    assert ModuleNames(["lm_head", "model.layers.4.mlp"]).by_layer
    assert ModuleNames(["re:.*layers.4.*"]).by_layer


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        (r"re:(\w+\.?)+!", False),
        (r"re:([\w.]+)*Z", False),
        ("re:" + ".?" * 60 + "!", False),
        ("re:" + "(.|.)*" * 9 + "!", False),
        ("re:" + ".*" * 30 + "gate", True),
        ("*a*b*c*d*e*f*g", False),
        (r"re:(?:.*?\.)??model\.layers\.[0-3]\.[^.]+\.(?:up|gate)$", True),
        (r"re:^(?!model\.layers\.\d\.self_attn).*", True),
        (r"re:(?!.*\)|[)]a)(?=(model|visual)\.)(?:lm|model)", True),
        (r"re:^(?!.*layers\.[3-9]\.).*model", False),
        (r"re:(?=.*\.mlp\.)(?!.*experts)model", True),
        ("re:.{4}l.+?$", True),
        ("re:(?i)MODEL", True),
        ("re:gate|model$", False),
    ],
)
def test_every_form_of_expression_is_matched_in_linear_time(pattern: str, matches: bool) -> None:
    """In ``re`` the first six take years for a name of this length."""
    name = f"{_NAME}{'_proj' * 200 if not matches else ''}"
    began = perf_counter()
    assert ModuleNames([pattern]).match(name) is matches
    assert perf_counter() - began < 1


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (r"(?x)([\w.]+) *Z", "invalid perl operator: (?x"),
        (r"(a)\1", r"invalid escape sequence: \1"),
        (".*(?!a)b", "invalid perl operator: (?!"),
        ("^a(?=b)", "invalid perl operator: (?="),
        ("(?!a", "invalid perl operator: (?!"),
        ("(?!a(?!b))c", "invalid perl operator: (?!"),
        ("(?!a)b|c", "after what it looks ahead at, | is in no group"),
        ("(?<!a)b", "invalid perl operator: (?<!"),
        ("a**", "bad repetition operator: **"),
        ("a)|(b", "unexpected ): a)|(b"),
        ("(((a{100}){100}){100})", "invalid repetition size: {100}"),
        ("(.?){1000}" * 99, "pattern too large"),
        ("a\\", "trailing \\"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_other_forms_are_refused(expression: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"the pattern .* is not understood: .*; valid is ") as caught:
        ModuleNames([f"re:{expression}"])
    assert reason in str(caught.value)


def test_patterns_are_limited_in_length_and_number() -> None:
    with pytest.raises(ValueError, match="1,000"):
        ModuleNames(["x" * 1001])
    with pytest.raises(ValueError, match="together more than 100,000 characters"):
        ModuleNames(f"re:{'x' * 900}{number}" for number in range(120))


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
