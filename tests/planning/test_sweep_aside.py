"""Points that differ in storage which they do not use are one simulation, and rightly so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simoffload.documents import Document, read_document
from simoffload.extensions.sweep import definition
from simoffload.extensions.sweep.definition import Points, define_sweep, find_points
from simoffload.extensions.sweep.run import job_of, run_task, tasks_of
from simoffload.scenario import find_scenario
from simoffload.shipped import shipped_folder

READ, CAPACITY = "profiles.ddn-ai400x2.read", "profiles.ddn-ai400x2.capacity"


@pytest.fixture(scope="module")
def document() -> Document:
    path = find_scenario("ddn/bloom-7b1")
    assert path is not None
    return read_document(path)


def firsts(document: Document, *axes: str) -> list[int]:
    return list(find_points(define_sweep(document, axes=axes)).first)


def test_rates_of_storage_that_is_left_aside_decide_nothing(document: Document) -> None:
    rates = f"{READ}=20 GB/s,40 GB/s,60 GB/s"
    assert firsts(document, "strategy.weights=dram,ai400x2", rates) == [0, 0, 0, 3, 4, 5]


def test_its_capacity_does_because_advice_names_tiers_that_would_do(document: Document) -> None:
    assert firsts(document, "strategy.weights=dram", f"{CAPACITY}=1 TB,500 TB") == [0, 1]


def test_so_does_how_many_drives_an_array_has(document: Document) -> None:
    arrays = "profiles=[{raid0-4x-pm1733-3.84tb: {count: 4}}, {raid0-4x-pm1733-3.84tb: {count: 8}}]"
    assert firsts(document, "strategy.weights=dram", arrays) == [0, 1]


def test_a_drive_of_which_the_array_in_use_is_made_decides(document: Document) -> None:
    drives = "profiles=[{samsung-pm1733-3.84tb: {read: 5 GB/s}}, {samsung-pm1733-3.84tb: {read: 6 GB/s}}]"
    assert firsts(document, "strategy.weights=raid", drives) == [0, 1]


@pytest.mark.parametrize(
    "strategy",
    ["strategy={kind: deepspeed, ranks: 1}", "strategy={kind: transformers, ranks: 1}"],
)
def test_of_a_strategy_that_does_not_name_its_tier_all_count(document: Document, strategy: str) -> None:
    assert firsts(document, strategy.replace("=", "=[", 1) + "]", f"{READ}=20 GB/s,40 GB/s") == [0, 1]


@pytest.fixture
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an invalid value pass, as one of an axis with more than a thousand values may."""
    monkeypatch.setattr(definition, "_check_values", lambda *_: None)


@pytest.mark.usefixtures("_unchecked")
def test_a_change_that_cannot_be_is_not_hidden_behind_one_that_can(document: Document) -> None:
    assert firsts(document, "strategy.weights=dram", f"{READ}=20 GB/s,-1") == [0, 1]


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.parametrize("rate", ["-1", "0 GB/s"])
def test_nor_one_that_makes_no_machine(document: Document, rate: str) -> None:
    axis = f"profiles.ddn-ai400x2.read=20 GB/s,{rate}"
    assert firsts(document, "strategy.weights=dram", axis) == [0, 1]


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.parametrize(
    "axis",
    [
        "profiles=[{ddn-ai400x2: {read: 20 GB/s}}, ddn-ai400x2]",
        "profiles=[{ddn-ai400x2: {read: 20 GB/s}}, [ddn-ai400x2]]",
        "profiles=[{ddn-ai400x2: {read: 20 GB/s}}, 7]",
        "strategy=[{kind: deepspeed, weights: dram, ranks: 8}, {kind: [x], weights: dram}]",
    ],
)
def test_what_is_no_section_at_all_is_a_point_of_its_own(document: Document, axis: str) -> None:
    sweep = define_sweep(document, axes=[axis, f"{READ}=20 GB/s"] if "strategy" in axis else [axis])
    points = find_points(sweep)
    assert list(points.first) == [0, 1]
    (task,) = tasks_of(points, [1], size=1)
    assert run_task(job_of(sweep), task)[0].error is not None


def test_a_profile_under_two_tiers_is_used_by_either(document: Document, tmp_path: Path) -> None:
    text = (shipped_folder("hardware_profiles") / "platform" / "dgx-a100.yaml").read_text()
    line = next(line for line in text.splitlines() if "profile: ddn-ai400x2" in line)
    text = text.replace(line, f"{line}\n  again: {{profile: ddn-ai400x2, through: [ib0]}}")
    (tmp_path / "twice.yaml").write_text(text.replace("id: dgx-a100\n", "id: twice\n"))
    here = replace(document, data={**document.data, "platform": "twice.yaml"}, root=tmp_path)
    rates = f"{READ}=20 GB/s,40 GB/s"
    assert firsts(here, "strategy.weights=again", rates) == [0, 1]
    assert firsts(here, "strategy.weights=dram", rates) == [0, 0]


def test_each_simulated_by_itself_has_the_row_of_the_first(document: Document) -> None:
    axes = ["strategy.weights=dram,raid,nfs,ai400x2", f"{READ}=20 GB/s,60 GB/s", "workload.batch_size=1,64"]
    sweep = define_sweep(document, axes=axes)
    points = find_points(sweep)
    assert points.duplicates == 3 * 2
    numbers = range(len(points))
    alone: Points = replace(points, first=points.combination)
    rows = [run_task(job_of(sweep), task)[0] for task in tasks_of(alone, numbers, size=1)]
    for number, first in enumerate(points.first):
        assert rows[number].model_copy(update={"point": first}) == rows[first]


def test_neighbours_differ_in_their_workload_only(document: Document) -> None:
    axes = ["workload.batch_size=1,2", "strategy.weights=dram,raid", "workload.prompt_length=8,16"]
    grid = define_sweep(document, axes=axes).grid
    order = sorted(range(grid.size), key=grid.neighbourhood)
    assert [grid.values(index)[1] for index in order] == ["dram"] * 4 + ["raid"] * 4
