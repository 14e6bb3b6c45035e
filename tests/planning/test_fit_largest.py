"""The largest batch, context and model that a platform holds."""

from __future__ import annotations

import pytest

import simoffload
from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.planning.sizing import LargestValue
from simoffload.scenario import read_scenario
from simoffload.simulation import fit


def fits(name: str, *overrides: str) -> bool:
    return fit(read_scenario(name, overrides=overrides)).fits


def test_bloom_176b_on_a_dgx() -> None:
    held = simoffload.largest(read_scenario("ddn/bloom-176b"))
    assert held.target == "ai400x2"
    assert held.batch == LargestValue(16, 57, 1_000_000, (Edit.at("workload.batch_size", 57),))
    assert held.context == LargestValue(108, 363, 10_000_100, (Edit.at("workload.prompt_length", 263),))
    assert held.layers.most == 251
    assert [one.assignment for one in held.layers.edits] == [
        'model={"name": "bloom-176b", "num_hidden_layers": 251}'
    ]
    # 251 layers of 12 h^2 + 13 h with 250,880 embeddings and two norms, h = 14,336
    h = 14_336
    assert held.parameters == 251 * (12 * h * h + 13 * h) + 250_880 * h + 4 * h


@pytest.mark.parametrize(
    ("name", "limit", "more"),
    [
        ("ddn/bloom-176b", "batch", "workload.batch_size=58"),
        ("ddn/bloom-176b", "context", "workload.prompt_length=264"),
        ("ddn/bloom-176b", "layers", "model={name: bloom-176b, num_hidden_layers: 252}"),
        ("xinnor/llama-1b", "batch", "workload.batch_size=54"),
        ("xinnor/llama-1b", "layers", "model.num_hidden_layers=20"),
    ],
)
def test_that_much_fits_and_one_more_does_not(name: str, limit: str, more: str) -> None:
    held = simoffload.largest(read_scenario(name))
    assert fits(name, *(one.assignment for one in getattr(held, limit).edits))
    assert not fits(name, more)


def test_what_does_not_fit_can_still_be_a_smaller_model() -> None:
    held = simoffload.largest(read_scenario("ddn/bloom-176b").on("gpu"))
    assert (held.batch.most, held.context.most, held.layers.most) == (None, None, 33)
    assert held.to_dict()["batch_size"] == {"now": 16, "most": None, "set": []}


def test_a_context_beyond_what_the_model_was_made_for_is_told_apart() -> None:
    held = simoffload.largest(read_scenario("training/gpt-1t"))
    assert (held.context.most, held.made_for) == (4308, 2048)


def test_checkpoints_have_none_of_it() -> None:
    with pytest.raises(InputError, match="checkpoints have neither batch nor context"):
        simoffload.largest(read_scenario("checkpoint/mlperf-1t"))
