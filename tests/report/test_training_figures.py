"""Charts of training: what they draw, and that plotly knows every key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from simoffload.report.charts import memory, phases
from simoffload.report.comparison import causes_compared, groups, phases_compared
from simoffload.report.plotting import BLUE, cause_colour
from simoffload.results.training import TrainingResult
from simoffload.schedule import Cause
from tests.report.conftest import checked

Make = Callable[..., TrainingResult]


def stacked(figure: dict[str, Any]) -> list[float]:
    """Lengths of the bars of each row together."""
    rows: dict[int, float] = {}
    for trace in figure["data"]:
        for y, x in zip(trace["y"], trace["x"], strict=True):
            rows[y] = rows.get(y, 0.0) + x
    return [rows[y] for y in sorted(rows)]


def test_memory_has_a_row_for_each_tier_and_moment(make_training: Make) -> None:
    figure = checked(memory(make_training()))
    assert figure["layout"]["yaxis"]["ticktext"] == [
        f"{tier}, {moment}"
        for tier in ("hbm", "dram", "raid")
        for moment in ("initialisation", "forward and backward", "optimizer step")
    ]
    rows = {y: x for trace in figure["data"] for y, x in zip(trace["y"], trace["x"], strict=True)}
    assert rows == pytest.approx(
        {
            0: 2 / 40,
            1: 30 / 40,
            2: 8 / 40,
            3: 64 / 1024,
            4: 16 / 1024,
            5: 48 / 1024,
            7: 80 / 15e3,
            8: 100 / 15e3,
        }
    )
    assert figure["layout"]["annotations"][6]["text"] == " 0 B of 15 TB (0 %)"


def test_phases_are_stacked_by_cause(make_training: Make) -> None:
    figure = checked(phases(make_training()))
    assert stacked(figure) == pytest.approx([8.0, 9.0, 4.0, 19.0])
    assert figure["layout"]["yaxis"]["ticktext"] == [
        "4 × forward",
        "3 × backward",
        "last backward",
        "optimizer",
    ]
    (compute,) = (trace for trace in figure["data"] if trace["name"] == "GPU compute")
    assert compute["y"] == [0, 1, 2]
    assert compute["x"] == pytest.approx([2.0, 5.4, 2.0])
    assert [note["text"] for note in figure["layout"]["annotations"]] == [
        " 8 s (20 %)",
        " 9 s (22 %)",
        " 4 s (10 %)",
        " 19 s (48 %)",
    ]


def test_causes_of_training_have_colours_of_their_own() -> None:
    causes = (
        Cause("host-to-gpu"),
        Cause("gpu-to-host"),
        Cause("gpu-to-host", memory="pageable"),
        Cause("host-to-gpu", memory="pageable"),
        Cause("gpu-compute"),
        Cause("host-thread"),
        Cause("cpu-adam"),
        Cause("cpu-casts"),
        Cause("gpu-optimizer"),
        Cause("gpu-gradients"),
        Cause("gradient-reduction"),
        Cause("all-gather"),
        Cause("read", "raid"),
        Cause("write", "raid"),
    )
    assert len({cause_colour(cause) for cause in causes}) == len(causes)
    assert cause_colour(Cause.own("something else")) == BLUE


def test_phases_of_several_results(make_training: Make, make_training_refusal: Make) -> None:
    fast = make_training(optimizer_target="dram", phases=make_training().phases[:3])
    found = groups([make_training(), make_training_refusal(target="dram"), fast])
    figure = checked(phases_compared(found))
    assert [(trace["name"], trace["x"]) for trace in figure["data"]] == [
        ("forward", pytest.approx([8.0, 8.0])),
        ("backward", pytest.approx([13.0, 13.0])),
        ("optimizer", pytest.approx([19.0, 0.0])),
    ]
    assert figure["layout"]["yaxis"]["ticktext"] == ["hbm+raid", "hbm+dram"]


def test_storage_of_the_optimizer_has_one_name(make_training: Make) -> None:
    """The states lie on raid in one result, on nfs in the other."""
    moved = tuple(
        phase._replace(
            result=phase.result._replace(
                shares=tuple(
                    share._replace(cause=share.cause._replace(tier="nfs" if share.cause.tier else ""))
                    for share in phase.result.shares
                )
            )
        )
        for phase in make_training().phases
    )
    figure = checked(
        causes_compared(groups([make_training(), make_training(optimizer_target="nfs", phases=moved)]))
    )
    assert stacked(figure) == pytest.approx([1.0, 1.0])
    reads = {trace["name"]: trace["x"] for trace in figure["data"] if trace["name"].endswith("read")}
    assert reads == {"storage read": pytest.approx([8.5 / 40, 8.5 / 40])}
