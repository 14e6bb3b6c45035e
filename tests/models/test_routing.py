"""How many experts the tokens of a pass need together: by drawing them, and at the limits."""

from __future__ import annotations

import random
from itertools import accumulate
from statistics import mean, stdev
from typing import Any

import pytest

from simoffload.errors import InputError
from simoffload.models import ModelShape, Module, load_model, module_cost
from simoffload.models.shape import DEFAULT, EVEN, Routing, _inclusion, touched_share

ROUTINGS = [EVEN, DEFAULT, Routing(zipf=2.0), Routing(frequencies=tuple(range(16)))]


def drawn(chances: tuple[float, ...], rng: random.Random) -> set[int]:
    """The experts of a token: points at distance 1 on a line divided by the chances, in random order."""
    order = rng.sample(range(len(chances)), len(chances))
    ends = list(accumulate(chances[one] for one in order))
    begin, chosen = rng.random(), set[int]()
    for one, end in zip(order, ends, strict=True):
        if begin < end:
            chosen.add(one)
            begin += 1
    return chosen


@pytest.mark.parametrize("routing", ROUTINGS, ids=["even", "default", "steep", "given"])
@pytest.mark.parametrize("tokens", [1, 5, 30])
def test_touched_experts_are_those_of_a_random_draw(routing: Routing, tokens: int) -> None:
    chances = routing.probabilities(16, 3)
    assert sum(chances) == pytest.approx(3)
    assert max(chances) <= 1 + 1e-12
    rng = random.Random(tokens)
    counts = [len(set().union(*(drawn(chances, rng) for _ in range(tokens)))) for _ in range(1000)]
    error = stdev(counts) / len(counts) ** 0.5
    assert 16 * touched_share(chances, tokens) == pytest.approx(mean(counts), abs=4 * error + 1e-9)


def experts(shape: ModelShape) -> Module:
    return next(one for one in shape.layers[-1] if one.kind == "linear" and one.share < 1.0)


@pytest.mark.parametrize(
    ("name", "steepness", "needed"), [("gpt-oss-120b", 0.80, 24), ("qwen3-30b-a3b", 0.72, 42.6)]
)
def test_the_default_is_between_the_exponents_of_two_measured_steps(
    name: str, steepness: float, needed: float
) -> None:
    def distinct(routing: Any) -> float:
        shape = load_model({"name": name, "routing": routing})
        return 128 * shape.touched_share(experts(shape), 8)

    assert distinct({"zipf": steepness}) == pytest.approx(needed, rel=0.005)
    assert distinct(None) == pytest.approx(needed, rel=0.03)
    assert distinct("uniform") > 1.15 * needed
    assert load_model(name).routing.zipf == (0.80 + 0.72) / 2


def test_the_few_experts_of_mixtral_are_even() -> None:
    shape = load_model("mixtral-8x7b")
    assert shape.routing == EVEN
    assert shape.touched_share(experts(shape), 3) == 1 - 0.75**3


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "deepseek-v3", "gpt-oss-20b", "llama-4-scout"])
def test_with_all_experts_touched_all_weights_are_read(name: str) -> None:
    """Enough tokens read every weight once, as of a dense layer of that size."""
    shape = load_model({"name": name, "routing": "uniform"})
    routed, tokens = experts(shape), 100_000
    cost = module_cost(shape, routed, batch=tokens, new_tokens=1, context=1)
    whole = routed._replace(share=1.0)
    dense = module_cost(shape, whole, batch=1, new_tokens=1, context=1)
    vectors = 2 * (routed.in_features + routed.out_features)
    assert cost.bytes - tokens * routed.share * vectors == pytest.approx(dense.bytes - vectors, rel=1e-6)


def test_every_expert_chosen_costs_what_a_dense_layer_costs() -> None:
    sizes = {"name": "qwen3-30b-a3b", "num_experts": 8, "num_experts_per_tok": 8}
    shape = load_model(sizes)
    block = next(one for one in shape.layers[0] if one.name == "mlp.experts")
    heads = {"num_hidden_layers": 1, "num_attention_heads": 32, "vocab_size": 151936}
    dense = load_model({"family": "qwen3", **heads, "hidden_size": 2048, "intermediate_size": 8 * 768})
    names = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    parts = [one for one in dense.layers[0] if one.name in names]
    for batch in (1, 7):
        cost = module_cost(shape, block, batch=batch, new_tokens=1, context=1)
        others = [module_cost(dense, one, batch=batch, new_tokens=1, context=1) for one in parts]
        assert cost.flops == sum(one.flops for one in others)
        weights = 2 * sum(one.num_parameters for one in parts)
        assert cost.bytes - 2 * batch * (block.in_features + block.out_features) == weights


@pytest.mark.parametrize(
    ("name", "routing", "message"),
    [
        ("opt-1.3b", "uniform", "model.routing: the model has no experts"),
        ("mixtral-8x7b", {"frequencies": [1, 2]}, "2 frequencies for 8 experts; give one for each expert"),
        ("mixtral-8x7b", {"frequencies": [1, *[0] * 7]}, "fewer experts than the 2 of each token"),
        ("mixtral-8x7b", {"zipf": -1}, "model.routing.zipf: must be at least 0"),
        ("mixtral-8x7b", {"zipf": 1, "frequencies": [1]}, 'give one of "zipf" and "frequencies"'),
        ("mixtral-8x7b", "even", 'must be "uniform" or a mapping'),
    ],
)
def test_a_routing_that_cannot_be(name: str, routing: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_model({"name": name, "routing": routing})


def test_many_experts_with_frequencies_take_no_time() -> None:
    """The weights are summed a few times, not once for each expert that every token chooses."""

    class Counted(tuple[float, ...]):
        __slots__ = ()
        sums = 0

        def __getitem__(self, index: Any) -> Any:
            Counted.sums += isinstance(index, slice)
            return super().__getitem__(index)

    weights = Counted(2.0 ** -min(rank, 1000) for rank in range(4000))
    chances = _inclusion.__wrapped__(weights, 2000)
    assert Counted.sums < 20
    assert sum(chances) == pytest.approx(2000)
    assert chances[:900] == (1.0,) * 900
