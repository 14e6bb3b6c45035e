"""Published figures: when a limit is met, and how the table reports it."""

from __future__ import annotations

from typing import Any

import pytest

from validation.published import limits_met, published_tables
from validation.references import PublishedRow, Reference


def reference(**changes: Any) -> Reference:
    fields: dict[str, Any] = dict.fromkeys(Reference._fields, "")
    known = {"id": "x-1", "metric": "per_token_ms", "published": "50", "role": "judged"}
    return Reference(**{**fields, **known, **changes})


@pytest.mark.parametrize(
    ("changes", "predicted", "holds"),
    [
        ({"rule": "within", "tolerance": "0.1"}, 54.9, True),
        ({"rule": "within", "tolerance": "0.1"}, 44.9, False),
        ({"rule": "within", "tolerance": "0.1"}, None, False),
        ({"rule": "factor", "tolerance": "3"}, 149.0, True),
        ({"rule": "factor", "tolerance": "3"}, 16.0, False),
        ({"rule": "between", "tolerance": "45 to 52"}, 45.0, True),
        ({"rule": "between", "tolerance": "45 to 52"}, 52.1, False),
        ({"rule": "between", "tolerance": "45 to 52"}, None, False),
        ({"rule": "at_most"}, 50.0, True),
        ({"rule": "at_least"}, 49.9, False),
        ({"rule": "report"}, 7.0, None),
        ({"rule": "equal", "metric": "fits", "published": "1"}, 1.0, True),
        ({"rule": "equal", "metric": "order", "published": "a < b"}, "b < a", False),
    ],
)
def test_rules(changes: dict[str, str], predicted: float | str | None, holds: bool | None) -> None:
    assert PublishedRow(reference(**changes), predicted).holds is holds


def test_error_is_relative_to_what_was_published() -> None:
    assert PublishedRow(reference(), 55.0).error == pytest.approx(0.1)
    assert PublishedRow(reference(), None).error is None
    assert PublishedRow(reference(metric="fits"), 1.0).error is None


def test_a_line_of_the_table() -> None:
    about = {"scenario": "s", "target": "raid", "source": "S", "note": "a | b"}
    text = published_tables([PublishedRow(reference(rule="at_most", unit="ms", **about), 40.0)])
    assert text.startswith("### S\n\n1 of 1 limits are met; 0 figures have no limit")
    assert "| x-1 | s on raid | 40 | 50 ms | -20.0% | at most | yes | a \\| b |" in text


@pytest.mark.parametrize("role", ["input", "in view"])
def test_a_figure_that_set_a_number_is_shown_and_not_counted(role: str) -> None:
    """Its limit would be met, and is neither shown nor counted."""
    about = {"scenario": "s", "source": "S", "rule": "within", "tolerance": "0.25", "unit": "ms", "note": "n"}
    rows = [
        PublishedRow(reference(**about), 70.0),
        PublishedRow(reference(**about, role=role, number="a rate (a.py)"), 51.0),
    ]
    assert [row.holds for row in rows] == [False, None]
    text = published_tables(rows)
    inputs, in_view = (1, 0) if role == "input" else (0, 1)
    assert (
        f"0 of 1 limits are met; 0 figures have no limit. Not judged: {inputs} inputs and {in_view} " in text
    )
    assert limits_met([*rows, PublishedRow(reference(**about), 51.0)]).startswith("1 of 2 limits")
    assert f"| x-1 | s | 51 | 50 ms | +2.0% |  | {role} | a rate (a.py); n |" in text
