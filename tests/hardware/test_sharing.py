"""Each story: the links and flows, what fairness says in algebra, then the rates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simoffload.hardware.paths import Demand, fair_rates, loads
from tests.engine.generated import sharings
from tests.engine.reference import fair_by_filling, fair_by_trying

FAST = 10**12


def test_nothing_to_share() -> None:
    assert fair_rates([], [100]) == []


def test_a_flow_alone_gets_its_slowest_link() -> None:
    assert fair_rates([Demand(((0, 1), (1, 1)), FAST)], [100, 60]) == [60]


def test_a_flow_without_links_gets_its_cap() -> None:
    assert fair_rates([Demand((), 7)], []) == [7]


def test_a_coefficient_is_the_cost_of_a_byte_on_the_link() -> None:
    assert fair_rates([Demand(((0, 4),), FAST), Demand(((0, 1),), FAST)], [100]) == [20, 20]


def test_equal_flows_share_equally_and_round_down() -> None:
    assert fair_rates([Demand(((0, 1),), FAST)] * 3, [100]) == [33, 33, 33]


def test_weights_divide_a_full_link() -> None:
    assert fair_rates([Demand(((0, 1),), FAST, 8), Demand(((0, 1),), FAST, 2)], [100]) == [80, 20]


def test_what_a_capped_flow_leaves_goes_to_the_others() -> None:
    flows = [Demand(((0, 1),), 10), Demand(((0, 1),), FAST), Demand(((0, 1),), FAST)]
    assert fair_rates(flows, [100]) == [10, 45, 45]


def test_a_cap_above_the_fair_share_does_not_matter() -> None:
    assert fair_rates([Demand(((0, 1),), 50), Demand(((0, 1),), 51)], [100]) == [50, 50]


def test_parking_lot() -> None:
    """One flow over both links, one on each: the long one gets half of the narrow link."""
    flows = [Demand(((0, 1), (1, 1)), FAST), Demand(((0, 1),), FAST), Demand(((1, 1),), FAST)]
    assert fair_rates(flows, [100, 40]) == [20, 80, 20]


def test_bottlenecks_in_sequence() -> None:
    """10 = 2a on link 0; then 20 = a + 2b on link 1; then 40 = b + c on link 2."""
    flows = [
        Demand(((0, 1),), FAST),
        Demand(((0, 1), (1, 1)), FAST),
        Demand(((1, 2), (2, 1)), FAST),
        Demand(((2, 1),), FAST),
    ]
    assert fair_rates(flows, [10, 20, 40]) == [5, 5, 7, 32]


def test_intermediate_levels_are_not_rounded() -> None:
    """10 = 3a leaves 20 - 10/3 for b: 16 2/3. Rounding a to 3 first would give 17."""
    flows = [Demand(((0, 1),), FAST)] * 2 + [Demand(((0, 1), (1, 1)), FAST), Demand(((1, 1),), FAST)]
    assert fair_rates(flows, [10, 20]) == [3, 3, 3, 16]


def test_too_little_for_all_rounds_down_to_nothing() -> None:
    assert fair_rates([Demand(((0, 1),), FAST)] * 3, [2]) == [0, 0, 0]


def test_loads() -> None:
    assert loads([Demand(((0, 1), (1, 3)), FAST), Demand(((1, 1),), FAST)], [10, 5]) == {0: 10, 1: 35}


@given(sharings())
def test_no_link_is_over_capacity_and_every_flow_is_held(sharing: tuple[list[Demand], list[int]]) -> None:
    demands, capacities = sharing
    rates = fair_rates(demands, capacities)
    load = loads(demands, rates)
    spread = loads(demands, [1] * len(demands))
    assert all(load[link] <= capacities[link] for link in load)
    for demand, rate in zip(demands, rates, strict=True):
        full = [link for link, _ in demand.hops if load[link] + spread[link] > capacities[link]]
        assert rate == demand.cap or (0 <= rate < demand.cap and full)


@given(sharings())
def test_agrees_with_filling_in_fractions(sharing: tuple[list[Demand], list[int]]) -> None:
    demands, capacities = sharing
    assert fair_rates(demands, capacities) == [int(rate) for rate in fair_by_filling(demands, capacities)]


@given(sharings(flows=4, links=3))
def test_agrees_with_trying_everything(sharing: tuple[list[Demand], list[int]]) -> None:
    demands, capacities = sharing
    assert fair_rates(demands, capacities) == [int(rate) for rate in fair_by_trying(demands, capacities)]


@given(sharings(), st.randoms(use_true_random=False))
def test_the_order_of_flows_does_not_matter(sharing: tuple[list[Demand], list[int]], random: object) -> None:
    demands, capacities = sharing
    order = list(range(len(demands)))
    random.shuffle(order)  # type: ignore[attr-defined]
    rates = fair_rates(demands, capacities)
    assert fair_rates([demands[f] for f in order], capacities) == [rates[f] for f in order]


@pytest.mark.parametrize("ranks", [3, 8, 64])
def test_identical_ranks_get_equal_rates(ranks: int) -> None:
    """Private links, one shared link and two kinds of flow: sums of thirds must not break the symmetry."""
    capacities = [10**11 + 7] + [3 * 10**10 + 1] * ranks
    demands = [
        Demand(((0, 1), (1 + rank, 1)), cap, weight)
        for rank in range(ranks)
        for cap, weight in ((7 * 10**9, 3), (10**11, 5))
    ]
    rates = fair_rates(demands, capacities)
    assert len(set(rates[::2])) == 1
    assert len(set(rates[1::2])) == 1
