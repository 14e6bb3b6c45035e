"""Laws that hold for every listed model, whatever its layers keep of a sequence."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from math import lcm

import pytest

from simoffload.cli import main
from simoffload.models import ModelShape, Module, Sequences, list_models, load_model, module_cost
from simoffload.models.cost import batch_cost
from simoffload.strategies.divided import divide
from simoffload.strategies.programs.vllm_engine import block_bytes, cache_groups, unpaged_bytes

MODELS = list_models()
LENGTHS = 1, 2, 3, 100, 127, 128, 129, 1000, 4096, 100_000


@cache
def shape_of(name: str) -> ModelShape:
    return load_model(name)


@cache
def served(name: str) -> ModelShape:
    return shape_of(name).as_served()


def grows(shape: ModelShape, tokens: int, *, windows: bool = True) -> int:
    return shape.kv_cache_bytes(batch=1, tokens=tokens, windows=windows)


def attention_of(shape: ModelShape) -> list[Module]:
    return [one for layer, _ in shape.kinds for one in layer if one.kind == "attention"]


@pytest.mark.parametrize("name", MODELS)
def test_more_tokens_keep_more(name: str) -> None:
    """Twice as many at most twice as much, but for rows of several tokens that were not yet full."""
    for shape in (shape_of(name), served(name)):
        held = [grows(shape, tokens) for tokens in LENGTHS]
        assert held == sorted(held)
        parts = [(one, count) for layer, count in shape.kinds for one in shape.growing(layer)]
        begun = sum(count * shape.row_bytes(one) for one, count in parts if one.every > 1)
        for tokens in LENGTHS:
            assert grows(shape, 2 * tokens) <= 2 * grows(shape, tokens) + begun
        each = sum(count * shape.token_bytes(layer) for layer, count in shape.kinds)
        tokens = 1_000 * lcm(*(one.every for one, _ in parts), 1)
        more = grows(shape, 3 * tokens, windows=False) - grows(shape, tokens, windows=False)
        assert more == pytest.approx(2 * tokens * each, rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_kept_has_one_size(name: str) -> None:
    """A part has rows or a fixed size; one module of a layer attends, and names are unique in a layer."""
    for layer, _ in shape_of(name).kinds:
        assert sum(one.attends for one in layer) <= 1
        parts = [part for one in layer for part in served(name).parts_of(one)]
        for part in parts:
            assert bool(part.width) != bool(part.fixed), part
            assert part.every >= 1
            assert part.window is None or part.window > 0
            assert not (part.fixed and (part.chosen or part.borrowed or part.window)), part
            assert part.width % part.heads == 0, part


@pytest.mark.parametrize("tokens", [16, 1_000, 10_000])
@pytest.mark.parametrize("name", MODELS)
def test_blocks_hold_what_is_kept(name: str, tokens: int) -> None:
    """Those of vLLM and what is in no block, at the end of a step."""
    shape = served(name)
    for element in (shape.dtype_bytes, 1):
        groups = cache_groups(shape, step=1, element=element)
        held = groups.held(tokens, groups.size) * block_bytes(shape, groups, element=element)
        kept = float(shape.state_bytes)
        for layer, count in shape.kinds:
            for one in shape.growing(layer):
                rows = min(tokens, one.window or tokens) // one.every
                kept += count * rows * shape.row_bytes(one, element)
        assert kept <= held + unpaged_bytes(shape, groups)


@pytest.mark.parametrize("name", MODELS)
def test_parts_of_two_gpus_make_the_whole(name: str) -> None:
    """Keys and values of several heads are divided; rows that all heads share are on both."""
    shape = served(name)
    if shape.num_attention_heads % 2:
        pytest.skip(f"{shape.num_attention_heads} heads")
    (part,) = divide(shape, tensor=2, pipeline=1, fused=False).stages
    for (whole, count), (divided, same) in zip(shape.kinds, part.kinds, strict=True):
        assert count == same
        assert 2 * sum(one.state for one in divided) >= sum(one.state for one in whole)
        for one, half in zip(whole, divided, strict=True):
            heads = shape.heads_of(one).shared
            for kept, left in zip(shape.parts_of(one), part.parts_of(half), strict=True):
                if kept.name == "keys and values":
                    assert left.width * (2 if heads > 1 else 1) == kept.width
                elif not kept.fixed:
                    assert left.width == kept.width


@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_in_two_chunks_has_the_attention_of_one(name: str) -> None:
    """Every token attends to the same rows; other modules work on each token once."""
    for shape in (shape_of(name), served(name)):
        for module in attention_of(shape):
            costs = [
                module_cost(shape, module, batch=3, new_tokens=new, context=context)
                for new, context in ((700, 700), (500, 1_200), (1_200, 1_200))
            ]
            first, second, both = (one.flops for one in costs)
            assert first + second == pytest.approx(both, rel=1e-12)
            assert both > 0
        for layer, _ in shape.kinds:
            step = [batch_cost(shape, one, [Sequences(4, 1, 2_000)]) for one in layer]
            prompt = [batch_cost(shape, one, [Sequences(4, 2_000, 2_000)]) for one in layer]
            for one, few, many in zip(layer, step, prompt, strict=True):
                assert 0 <= few.flops <= many.flops, one.name
                assert 0 <= few.bytes <= many.bytes, one.name
            assert not any(one.kind == "linear" for one in layer) or sum(one.flops for one in step) > 0


@pytest.mark.parametrize("name", MODELS)
def test_longer_contexts_cost_no_less(name: str) -> None:
    for shape in (shape_of(name), served(name)):
        for module in attention_of(shape):
            steps = [
                module_cost(shape, module, batch=1, new_tokens=1, context=context)
                for context in (1, 100, 1_000, 5_000, 50_000)
            ]
            for one, other in pairwise(steps):
                assert one.flops <= other.flops
                assert one.bytes <= other.bytes


def test_a_model_is_shown_as_it_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["models", "list", "--json"])
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)["models"]}
    assert listed.keys() == set(MODELS)
    families = {shape_of(name).family: name for name in MODELS}
    for name in families.values():
        main(["models", "show", name, "--json"])
        shown = json.loads(capsys.readouterr().out)
        both = listed[name].keys() & shown.keys() - {"name"}
        assert {"num_parameters", "weight_bytes", "cache_bytes_per_token"} <= both
        assert {key: listed[name][key] for key in both} == {key: shown[key] for key in both}
        tensors = sum(one["parameters"] * one["repeat"] for one in shown["modules"])
        assert tensors >= shown["num_parameters"]
        fixed = [one for one in shown["keeps"] if "bytes_per_sequence" in one]
        assert bool(fixed) == ("state_bytes_per_sequence" in shown)
