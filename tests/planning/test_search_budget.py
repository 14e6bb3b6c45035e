"""A search within a budget, by a list that has a price of the machine and none of what could be added."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import simoffload

QUOTES = """
kind: costs
id: quotes
name: quotes
currency: EUR
date: 2026-11-21
electricity: 0.2
devices:
  platform/l40s-workstation: {price: 20000}
"""


@pytest.mark.parametrize(
    ("budget", "prices", "unpriced"), [(None, {20_000.0, math.inf}, 0), (1e9, {20_000.0}, 10)]
)
def test_what_has_no_price_is_within_no_budget(
    tmp_path: Path, budget: float | None, prices: set[float], unpriced: int
) -> None:
    """Of three sizes of memory times five batches; more memory than the machine has would be extra."""
    (tmp_path / "quotes.yaml").write_text(QUOTES)
    work = ["strategy={kind: resident}", "workload.output_length=2", "workload.batch_size=1"]
    search = simoffload.search_catalogue(
        simoffload.default_scenario("opt-1.3b", "l40s-workstation", overrides=work),
        budget=budget,
        costs=simoffload.load_costs(tmp_path / "quotes.yaml"),
    )
    assert {point.purchase for point in search.points} == prices
    assert (search.combinations, search.over_budget, search.unpriced) == (15, 0, unpriced)
