"""docs/costs.md tells every key of a list and every formula, as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simoffload.hardware.costs import DEVICES, Costs, DeviceCosts, MemoryCosts, Power
from simoffload.planning.economics import COST_METRICS

PAGE = (Path(__file__).parents[1] / "docs" / "costs.md").read_text()


@pytest.mark.parametrize("model", [Costs, DeviceCosts, MemoryCosts, Power])
def test_every_key_is_told(model: type[Costs]) -> None:
    description = set(re.findall(r"\w+", PAGE))
    assert [name for name in model.model_fields if name not in description] == []


def test_every_kind_of_device_is_told() -> None:
    assert ", ".join(f"`{kind}`" for kind in DEVICES) in PAGE


def test_every_formula_is_told_as_it_is() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE.partition("## Formulas")[2], re.MULTILINE))
    assert rows == {name: one.formula for name, one in COST_METRICS.items()}
