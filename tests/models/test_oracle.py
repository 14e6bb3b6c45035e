"""Every tensor and every hook as in Hugging Face's own models (oracle-*.json, by make_oracle.py)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from simoffload.models import ModelShape, Module, list_models, load_model, module_cost

ORACLES = {
    major: json.loads(Path(__file__).with_name(f"oracle-{major}.json").read_text(encoding="utf-8"))
    for major in (4, 5)
}
CALLS = [(major, kind) for major, oracle in ORACLES.items() for kind in oracle["calls"]]
SIZES = [(major, name) for major, oracle in ORACLES.items() for name in oracle["sizes"]]
BEFORE_5 = ("bloom", "opt", "llama", "mixtral")
WEIGHING = ("deepseek_v32", "glm_moe_dsa")
"""Families whose indexer adds the scores of its heads by a product of matrices."""


def layout(major: int, family: str) -> dict[str, str]:
    return {"expert_layout": "separate"} if (major, family) == (4, "mixtral") else {}


def tensors(modules: Iterable[Module]) -> dict[str, int]:
    return {
        parameter.name: parameter.numel
        for module in modules
        for parameter in module.parameters
        if not parameter.tied
    }


def untied(tensors: dict[str, int], shape: ModelShape) -> dict[str, int]:
    """A head or embedding that uses another's tensor is listed under its own name, too, by Hugging Face."""
    outside = (*shape.modules_before, *shape.modules_after)
    used = [(module.name, one.name) for module in outside for one in module.parameters]
    shared = {f"{module}.weight" for module, tensor in used if module not in tensor}
    return {name: numel for name, numel in tensors.items() if name not in shared}


def hooked(modules: Iterable[Module]) -> list[str]:
    return [module.name for module in modules if module.hooked]


def test_the_oracles_know_every_size_under_both_versions() -> None:
    """Of families that came later, only the newer version's modules are listed."""
    elsewhere = ORACLES[5]["elsewhere"]
    assert list(ORACLES[5]["sizes"]) == [one for one in list_models() if one not in elsewhere]
    before = [name for name in list_models() if load_model(name).family in BEFORE_5]
    assert list(ORACLES[4]["sizes"]) == before
    assert [ORACLES[major]["versions"]["transformers"] for major in (4, 5)] == ["4.46.3", "5.23.0"]


@pytest.mark.parametrize(("major", "name"), SIZES)
def test_every_tensor_has_hugging_faces_size(major: int, name: str) -> None:
    expected = ORACLES[major]["sizes"][name]
    family = load_model(name).family
    shape = load_model({"name": name, **layout(major, family)})

    towers = [one for one in shape.modules_before if not one.share]  # test_towers.py knows them
    assert shape.num_parameters - sum(one.num_parameters for one in towers) == expected["total"]
    runs = expected.get("runs") or [(expected.get("layer"), shape.num_hidden_layers)]
    every = [names for names, count in runs for _ in range(count)]
    every = [expected["kinds"][kind] for kind in expected["order"]] if "order" in expected else every
    assert all(tensors(one) == every[at % len(every)] for at, one in enumerate(shape.layers))
    outside = tensors(one for one in (*shape.modules_before, *shape.modules_after) if one.share)
    assert outside == untied(expected["outside"], shape)


@pytest.mark.parametrize(("major", "kind"), CALLS)
def test_modules_stand_in_the_order_of_their_hooks(major: int, kind: str) -> None:
    call = ORACLES[major]["calls"][kind]
    shape = load_model({"family": call["family"], **call["config"], **layout(major, call["family"])})

    assert hooked(shape.modules_before) == call["before"]
    expected = call.get("layers") or [call["layer"]] * shape.num_hidden_layers
    assert [hooked(layer) for layer in shape.layers] == [without_repeats(layer) for layer in expected]
    assert hooked(shape.modules_after) == call["after"]


def without_repeats(names: list[str]) -> list[str]:
    """Step-3.7's code calls the activation for each expert that is chosen."""
    repeated = (one.endswith("experts.act_fn") and one == before for before, one in pairwise(names))
    return names[:1] + [one for one, again in zip(names[1:], repeated, strict=True) if not again]


def one_by_one(call: dict[str, Any]) -> bool:
    """Whether a model multiplies its experts one by one, so that torch counts their products."""
    return any(without_repeats(layer) != layer for layer in call.get("layers", ()))


def matrix_flops(shape: ModelShape, module: Module, *, context: int) -> float:
    """What torch counts: products of matrices, without biases and the softmax, and no grouped products."""
    flops = module_cost(shape, module, batch=1, new_tokens=1, context=context).flops
    if module.kind == "attention":
        heads = shape.heads_of(module)
        weighs = shape.family in WEIGHING and not heads.values
        weighed = 2 * heads.number * context if weighs else 0
        return flops * 2 * heads.widths / (2 * heads.widths + 5) + weighed
    if module.kind in ("linear", "router"):
        vectors = (one for one in module.parameters if not one.columns)  # biases, and scales
        return flops - sum(one.numel * (1 if one.name.endswith("bias") else 2) for one in vectors)
    # Without kernels, transformers' convolution computes two positions.
    weights = [p.numel for p in module.parameters if p.name.endswith(("conv1d.weight", "conv.conv.weight"))]
    weights += [p.numel // 2 for p in module.parameters if p.name.endswith("dt_proj.weight")]  # once
    products = OF_STATES.get(module.name.rpartition(".")[2], 0)
    return 2 * 2 * sum(weights) + (2 * products * module.keeps[0].fixed if module.keeps and products else 0.0)


OF_STATES = {"scan": 1 / 4, "lightning": 2 / 2}
"""Products of matrices of the size of a state, for each byte of it, in a step without kernels."""


def frequency_flops(call: dict[str, Any], shape: ModelShape) -> int:
    """Llama at 4.46.3 multiplies position and inverse frequencies as a product of matrices."""
    calls: list[str] = call["before"]
    return shape.head_dim * calls.count("model.rotary_emb")


def mixing_flops(call: dict[str, Any], shape: ModelShape) -> int:
    """Both halves of a layer mix the streams of the residual by a product of matrices, whose time is that of
    its elements."""
    streams = int(call["config"].get("hc_mult", 0))
    return shape.num_hidden_layers * 2 * 2 * streams**2 * shape.hidden_size


# Llama 4 multiplies every expert with every token.
COUNTED = [one for one in CALLS if ORACLES[one[0]]["calls"][one[1]]["family"] != "llama4_text"]


@pytest.mark.parametrize(("major", "kind"), COUNTED)
def test_flops_of_a_decode_step_are_those_that_torch_counts(major: int, kind: str) -> None:
    call = ORACLES[major]["calls"][kind]
    shape = load_model({"family": call["family"], **call["config"], **layout(major, call["family"])})
    every = (*shape.modules_before, *(one for layer in shape.layers for one in layer), *shape.modules_after)
    context = ORACLES[major]["prompt"] + 1
    counted = [one for one in every if one.parallel != "experts" or one_by_one(call)]
    flops = sum(matrix_flops(shape, one, context=context) for one in counted)
    if major == 4:
        flops += frequency_flops(call, shape)

    assert flops + mixing_flops(call, shape) == call["decode_matrix_flops"]
