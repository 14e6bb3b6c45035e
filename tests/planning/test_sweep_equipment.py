"""Sweeps over what a scenario adds to its platform."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from simoffload.errors import InputError
from simoffload.extensions.sweep.definition import Points, find_points
from simoffload.extensions.sweep.journal import JournalRow
from simoffload.extensions.sweep.run import SweepJob, job_of, run_task, tasks_of
from simoffload.shipped import shipped_folder
from tests.planning.conftest import Define

ARRAY = """\
equipment: {accelerator: h100-sxm, tiers: {array: {profile: raid0-4x-pm1733-3.84tb, at: [cpu]}}}
"""
PROFILE = "equipment.tiers.array.profile"


def run(job: SweepJob, points: Points) -> list[JournalRow]:
    return [run_task(job, task)[0] for task in tasks_of(points, range(len(points)), size=1)]


def tpot_s(row: JournalRow) -> float:
    assert row.metrics is not None
    time = row.metrics["tpot_s"]
    assert time is not None
    return time


def test_points_with_other_equipment_are_other_simulations(define: Define) -> None:
    arrays = f"{PROFILE}=raid0-4x-pm1733-3.84tb,raid0-8x-pm1733-3.84tb,raid0-4x-pm1733-3.84tb"
    sweep = define(ARRAY, axes=["strategy.weights=array", arrays, "equipment.pcie.gen4=gen4,gen5"])
    points = find_points(sweep)
    assert list(points.first) == [0, 1, 2, 3, 0, 1]
    times = [tpot_s(row) for row in run(job_of(sweep), points)]
    four, four_gen5, eight, eight_gen5, again, again_gen5 = times
    assert four > eight  # which waits for its drives
    assert len({four, four_gen5, eight, eight_gen5}) == 4
    assert (again, again_gen5) == (four, four_gen5)


def test_workers_need_no_file_of_any_point(define: Define, tmp_path: Path) -> None:
    text = (shipped_folder("hardware_profiles") / "raid" / "raid0-4x-pm1733-3.84tb.yaml").read_text()
    for count in (2, 3):
        own = text.replace("count: 4", f"count: {count}").replace("id: raid0-4x", f"id: raid0-{count}x")
        folder = tmp_path / "own"
        folder.mkdir(exist_ok=True)
        (folder / f"{count}.yaml").write_text(own)
    sweep = define(ARRAY, axes=["strategy.weights=array", f"{PROFILE}=own/2.yaml,own/3.yaml"])
    points = find_points(sweep)
    job = job_of(sweep)
    shutil.rmtree(tmp_path / "own")
    two, three = run(job, points)
    assert tpot_s(two) > tpot_s(three)


def test_a_file_that_changes_makes_another_sweep(define: Define, tmp_path: Path) -> None:
    text = (shipped_folder("hardware_profiles") / "raid" / "raid0-4x-pm1733-3.84tb.yaml").read_text()
    hashes = []
    for count in (4, 5):
        (tmp_path / "own.yaml").write_text(text.replace("count: 4", f"count: {count}"))
        sweep = define(ARRAY.replace("raid0-4x-pm1733-3.84tb", "own.yaml"), axes=["strategy.weights=array"])
        hashes.append(find_points(sweep).sweep_hash)
    assert hashes[0] != hashes[1]


def test_numbers_of_an_added_tier_that_is_left_aside_decide_nothing(define: Define) -> None:
    change = "profiles.lustre-generic.read=20 GB/s,40 GB/s"
    added = "equipment: {tiers: {lustre: {profile: lustre-generic, through: [ib0]}}}\n"
    points = find_points(define(added, axes=["strategy.weights=dram,lustre", change]))
    assert list(points.first) == [0, 0, 2, 3]


def test_a_point_whose_equipment_cannot_be_says_why(define: Define) -> None:
    sweep = define(ARRAY, axes=["equipment.tiers.array.at=[[cpu], [plx9]]"])
    first, second = run(job_of(sweep), find_points(sweep))
    assert first.fits
    assert second.error is not None
    assert second.error.startswith('equipment.tiers.array.at[0]: no vertex "plx9" (has: cpu, plx0, plx1')


def test_an_axis_that_leads_nowhere_is_refused_before_anything_runs(define: Define) -> None:
    with pytest.raises(InputError, match=r"equipment\.tiers\.array\.speed: unknown key"):
        define(ARRAY, axes=["equipment.tiers.array.speed=1,2"])
