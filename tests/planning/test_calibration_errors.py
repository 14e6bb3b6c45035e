"""The shipped table of errors on real runs."""

from __future__ import annotations

from simoffload.planning.confidence import calibration_errors, place_of


def test_every_kind_of_work_has_errors_from_memory_and_from_drives() -> None:
    rows = {(row.work, row.place): row for row in calibration_errors()}
    assert rows.keys() == {
        (work, place) for work in ("decode", "prefill", "step") for place in ("memory", "nvme")
    }
    for row in calibration_errors():
        assert row.runs > 0
        assert 0 < row.mean <= abs(row.worst) < 2
        assert 1 <= row.fewest_gpus <= row.most_gpus


def test_one_thing_on_drives_makes_it_a_run_from_drives() -> None:
    assert place_of(("none", "cpu")) == place_of(("hbm", "dram")) == "memory"
    assert place_of(("cpu", "nvme")) == "nvme"
