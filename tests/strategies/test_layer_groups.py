"""Layers in several groups: without shortcuts, with the same result where the layers are alike after all."""

from __future__ import annotations

from dataclasses import replace

import pytest

import simoffload as so
from simoffload.models import LayerGroup, ModelShape, load_model
from simoffload.models.modules import linear
from simoffload.models.shape import grouped
from simoffload.strategies.base import memory_stages

MANY = [
    "xinnor/llama-1b",
    "ddn/bloom-7b1",
    "training/bloom-7b1",
    "fsdp/llama-3.1-8b",
    "checkpoint/phi-3-mini",
]


def parted(model: ModelShape) -> ModelShape:
    """The same layers, said to be of two groups, the second of two layers at a time."""
    ((layer,), count), *_ = model.groups
    return replace(model, groups=(LayerGroup((layer,), 3), LayerGroup((layer,), count - 3)))


@pytest.mark.parametrize("name", MANY)
def test_two_groups_of_equal_layers_give_what_one_gives(name: str) -> None:
    one = so.load_scenario(name)
    one = replace(one, model=one.model.of_layers(min(6, one.model.num_hidden_layers)))
    other = replace(one, model=parted(one.model))
    assert not other.model.uniform
    first, second = so.simulate(one), so.simulate(other)
    assert second.metrics() == first.metrics()
    assert memory_stages(other.plan()) == memory_stages(one.plan())


def test_two_groups_in_hbm() -> None:
    one = so.load_scenario("micron/opt-30b-hbm")
    other = replace(one, model=parted(one.model))
    assert so.simulate(other).metrics() == so.simulate(one).metrics()


def test_groups_of_layers_in_runs_and_in_turn() -> None:
    thin, wide = ((linear("w", 1, width),) for width in (1, 2))
    assert grouped([thin] * 4) == (LayerGroup((thin,), 4),)
    assert grouped([thin]) == (LayerGroup((thin,), 1),)
    assert grouped([thin, wide] * 3) == (LayerGroup((thin, wide), 3),)
    assert grouped([thin, wide, wide]) == (LayerGroup((thin,), 1), LayerGroup((wide,), 2))


def test_counts_of_layers_that_differ() -> None:
    whole = load_model("llama-3-8b")
    ((layer,), _), *_ = whole.groups
    thick = (*layer, linear("more", 10, 20))
    mixed = replace(whole, groups=grouped([layer] * 2 + [thick] * 30))
    assert mixed.num_parameters == whole.num_parameters + 30 * 200
    assert mixed.num_hidden_layers == len(mixed.layers) == 32
    assert mixed.of_layers(3).layers == (layer, layer, thick)
    assert mixed.kinds == ((layer, 2), (thick, 30))
