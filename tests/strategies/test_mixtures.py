"""A pass of sequences that are not equally far, as continuous batching makes them."""

from __future__ import annotations

import pytest

from simoffload.engine import execute
from simoffload.models import Sequences, batch_cost, load_model, module_cost
from simoffload.scenario import read_scenario
from simoffload.strategies.plan import InferencePlan

OLD, NEW = Sequences(3, 1, 500), Sequences(1, 200, 200)


def plan(*overrides: str) -> InferencePlan:
    found = read_scenario("ddn/bloom-7b1", overrides=overrides).plan()
    assert isinstance(found, InferencePlan)
    return found


def test_a_mixture_reads_weights_once_and_attends_each_to_its_own() -> None:
    """3 + 200 tokens pass a linear layer in one call; attention is that of the two parts together."""
    shape = load_model("llama-2-7b")
    linear = next(one for one in shape.layers[0] if one.kind == "linear")
    both = batch_cost(shape, linear, (OLD, NEW))
    assert both == module_cost(shape, linear, batch=203, new_tokens=1, context=1)
    attention = next(one for one in shape.layers[0] if one.kind == "attention")
    parts = [batch_cost(shape, attention, (one,)) for one in (OLD, NEW)]
    together = batch_cost(shape, attention, (OLD, NEW))
    assert together.flops == sum(one.flops for one in parts)
    assert together.bytes == sum(one.bytes for one in parts)
    head = next(one for one in shape.modules_after if one.name == "lm_head")
    assert (
        batch_cost(shape, head, (OLD, NEW)).flops
        == module_cost(shape, head, batch=4, new_tokens=1, context=500).flops
    ), "logits of the last position of each sequence"


@pytest.mark.parametrize("kind", ["deepspeed", "resident"])
def test_prefill_and_decode_are_steps_of_equal_sequences(kind: str) -> None:
    found = plan("workload.batch_size=2", "workload.prompt_length=32", f"strategy={{kind: {kind}, ranks: 2}}")
    prefill, decode = (
        found.step([Sequences(2, tokens, context)], name=name)
        for name, tokens, context in (("prefill", 32, 32), ("decode 1", 1, 33))
    )
    known = {one.kind: one for one in found.phases}
    assert known["prefill"].schedule({}) == prefill.schedule({})  # type: ignore[union-attr]
    assert known["decode"].step(1).schedule({}) == decode.schedule({})  # type: ignore[union-attr]
    assert (prefill.new_tokens, prefill.context) == (32, 32)


def test_a_prompt_beside_decode_steps_costs_less_than_after_them() -> None:
    """Offloaded weights come once for both; together they take no less than the longer of the two."""
    found = plan("strategy.ranks=1", "strategy.weights=dram")
    old, new, both = (
        execute(found.step(batch).schedule({})).makespan for batch in ((OLD,), (NEW,), (OLD, NEW))
    )
    assert max(old, new) <= both < old + new
