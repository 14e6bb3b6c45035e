"""Subsets of several ranks are measured within one group of processes; needs PyTorch, but no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simoffload_calibrate.jobs import JobProcesses
from simoffload_calibrate.micro.gpu_groups import found_groups
from simoffload_calibrate.micro.noise import pooled

pytest.importorskip("torch", reason="calibration runs PyTorch")
pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]  # the only environment with PyTorch


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What rank 0 of four returns; a rank that made another number of collectives would let all hang."""
    folder = tmp_path_factory.mktemp("ranks") / "job"
    environment = {"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    with JobProcesses(folder, {}, ranks=4, environment=environment) as job:
        answer = job.call("tests.calibration.micro.ranks:measure", {"seconds": 300.0}, limit=300.0)
    assert "found" in answer, answer
    measured: dict[str, Any] = answer["found"]
    return measured


def test_rows_name_the_gpus_that_copied_and_have_a_time_of_each(found: dict[str, Any]) -> None:
    first, second = found["rounds"]
    for measured in (first, second):
        rows = measured["together"]
        assert {tuple(row["gpus"]) for row in rows} == {(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)}
        assert {(row["direction"], row["pinned"]) for row in rows} == {
            (direction, pinned) for direction in ("h2d", "d2h") for pinned in (True, False)
        }
        for row in rows:
            assert [len(times) for times in row["seconds"]] == [len(row["gpus"])] * 2
            assert all(seconds > 0 for times in row["seconds"] for seconds in times)
        least = min(row["bytes"] for row in rows)
        assert {tuple(row["gpus"]) for row in rows if row["bytes"] == least} == {(0, 1, 2, 3)}
        pageable = {tuple(row["gpus"]) for row in rows if not row["pinned"]}
        assert len(pageable) == (4 if measured is first else 1), (
            "fewer copy pageable memory in the first round"
        )
    pooled_rows = pooled([first, second])["together"]
    assert len(pooled_rows) == len(first["together"]), "rows of both rounds belong together"


def test_ranks_that_wait_for_each_other_form_groups(found: dict[str, Any]) -> None:
    shared = found["shared"]
    assert len(shared["subsets"]) == 11 * 6 + 8 * 4, "pairs and subsets of three, several times"
    assert found_groups(pooled([shared["subsets"]])) == [(0, 2), (1, 3)]
    rated = {(tuple(row["gpus"]), row["direction"]) for row in shared["groups"]}
    assert rated == {(gpus, way) for gpus in ((0, 2), (1, 3)) for way in ("h2d", "d2h")}
    assert "unfinished" not in shared
    assert found["without time"] == {"subsets": [], "groups": [], "unfinished": "0 of 10"}


def test_collectives_of_the_first_ranks_and_of_all(found: dict[str, Any]) -> None:
    rows = found["collectives"]["calls"]
    assert {(row["operation"], row["ranks"]) for row in rows} == {
        (operation, ranks) for operation in ("all_gather", "reduce_scatter") for ranks in (2, 4)
    }
    assert all(row["bytes"] == 1 << 12 and len(row["seconds"]) == 3 for row in rows)
