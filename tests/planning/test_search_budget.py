"""A search within a budget, by a list that has a price of the machine and none of what could be added."""

from __future__ import annotations

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


@pytest.mark.parametrize("budget", [None, 1e9])
def test_what_has_no_price_is_within_no_budget(tmp_path: Path, budget: float | None) -> None:
    """More memory than the machine has would be extra."""
    (tmp_path / "quotes.yaml").write_text(QUOTES)
    work = ["workload.output_length=2", "workload.batch_size=1"]
    search = simoffload.search_catalogue(
        simoffload.question("opt-1.3b", "l40s-workstation", program="transformers", overrides=work),
        budget=budget,
        costs=simoffload.load_costs(tmp_path / "quotes.yaml"),
    )
    assert {point.purchase for point in search.points} == {20_000.0}
    assert sum(search.outcomes.values()) == search.combinations
    unpriced = search.outcomes.get("have a part without a price, which no budget allows", 0)
    assert (unpriced > 0) == (budget is not None)
