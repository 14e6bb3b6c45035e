"""Which results are set beside which."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simoffload.errors import InputError
from simoffload.report.comparison import Published, causes_compared, groups, warnings
from simoffload.results.result import SimulationResult
from tests.report.conftest import checked, compare_text

Make = Callable[..., SimulationResult]


def test_the_first_with_times_is_the_baseline(make_result: Make, make_refusal: Make) -> None:
    (group,) = groups(
        [make_refusal(target="hbm"), make_result(target="dram"), make_result(target="raid", time_s=3)]
    )
    assert group.baseline == "dram"
    assert [row.ratio for row in group.rows] == [None, 1.0, pytest.approx(1.5)]


@pytest.mark.parametrize("name", ["raid", "small@raid"])
def test_the_baseline_may_be_named(make_result: Make, name: str) -> None:
    (group,) = groups([make_result(target="dram"), make_result(target="raid", time_s=4)], baseline=name)
    assert group.baseline == "raid"
    assert [row.ratio for row in group.rows] == [0.5, 1.0]


def test_an_unknown_baseline_names_the_known_ones(make_result: Make) -> None:
    with pytest.raises(InputError, match=r"'nfs' \(there are: small, raid\)"):
        groups([make_result()], baseline="nfs")


def test_a_baseline_that_does_not_fit_gives_no_ratios(make_result: Make, make_refusal: Make) -> None:
    (group,) = groups([make_result(target="dram"), make_refusal(target="raid")], baseline="raid")
    assert group.baseline == ""
    assert [row.ratio for row in group.rows] == [None, None]


def test_ratios_stay_within_a_model(make_result: Make) -> None:
    found = groups(
        [make_result(model="a"), make_result(model="b", time_s=20), make_result(model="b", target="nfs")]
    )
    assert [group.model for group in found] == ["a", "b"]
    assert [row.ratio for row in found[1].rows] == [1.0, pytest.approx(0.1)]


def test_labels_are_as_short_as_they_can_be(make_result: Make) -> None:
    def labels(*pairs: tuple[str, str]) -> list[str]:
        (group,) = groups([make_result(name=name, target=target) for name, target in pairs])
        return [row.label for row in group.rows]

    assert labels(("x", "raid"), ("x", "nfs")) == ["raid", "nfs"]
    assert labels(("x", "raid"), ("y", "raid")) == ["x", "y"]
    assert labels(("x", "raid"), ("x", "nfs"), ("y", "nfs")) == ["x, raid", "x, nfs", "y, nfs"]
    assert labels(("x", "raid"), ("x", "raid")) == ["x, raid (1)", "x, raid (2)"]


def test_published_values_find_their_row(make_result: Make) -> None:
    results = [make_result(name="a", target="raid"), make_result(name="b", target="raid")]
    published = {"raid": Published(2.0), "b@raid": Published(3.0, "elsewhere")}
    (group,) = groups(results, published=published)
    assert [row.published for row in group.rows] == [Published(2.0), Published(3.0, "elsewhere")]


def test_a_warning_is_said_once(make_result: Make) -> None:
    found = groups([make_result(target=target, warnings=("careful",)) for target in ("dram", "raid")])
    assert warnings(found) == ["dram; raid: careful"]


def test_causes_are_told_by_more_than_a_colour(make_result: Make) -> None:
    figure = checked(causes_compared(groups([make_result(), make_result(target="dram")])))
    assert [(trace["name"], trace["text"]) for trace in figure["data"]] == [
        ("raid read", ["raid read"]),
        ("storage read", ["storage read"]),
        ("GPU compute", ["GPU compute"] * 2),
        ("host to GPU", ["host to GPU"] * 2),
    ]
    assert figure["layout"]["uniformtext"]["mode"] == "hide"


def test_only_columns_that_are_shown_are_explained(make_result: Make) -> None:
    alone = compare_text([make_result(target="dram"), make_result(target="raid")])
    several = compare_text([make_result(model="a"), make_result(model="b")])
    for text in ("ratio: ", "share of the bound"):
        assert text in alone
        assert text not in several
