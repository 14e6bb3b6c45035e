"""Of a scenario that does not fit, advice is what would make it fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from simoffload.errors import InputError
from simoffload.planning.advise import advise
from simoffload.scenario import load_scenario
from tests.planning.advise.conftest import STORAGE_BOUND, loaded, run


def test_of_what_does_not_fit_it_says_what_would() -> None:
    found = advise(load_scenario("ddn/bloom-176b", overrides=["workload.output_length=2"]).on("gpu"))
    assert not found.result.fits
    assert {one.change.description for one in found.helping} >= {
        "weights on dram",
        "1 → 2 machines, 8 → 16 GPUs",
    }
    assert all(one.gain is None and one.result.fits for one in found.tried)
    times = [(one.change.rank, one.result.unit_s or 0) for one in found.tried]
    assert times == sorted(times), "the same answers first, of them the fastest"
    assert not [one for one in (*found.tried, *found.impossible) if "faster single thread" in str(one)]


def test_remedies_run_from_their_files(tmp_path: Path) -> None:
    found = advise(loaded(STORAGE_BOUND, "workload.batch_size=20000"))
    remedy = next(one for one in found.helping if one.change.key.startswith("fit-"))
    assert remedy.change.kind == "workload"
    for one, result in zip(found.helping, run(found, tmp_path), strict=True):
        assert result.metrics() == one.result.metrics()


def test_a_server_that_is_called_larger_has_no_known_price() -> None:
    small = load_scenario("checkpoint/mlperf-8b", overrides=["profiles.ddn-ai400x2.capacity=1 GB"])
    extra = {one.change.description: one.extra for one in advise(small).tried}
    assert extra["capacity of pfs 1 GB → 1 TB (it needs 112 GB)"] is None


def test_nothing_helps_a_refused_scenario() -> None:
    with pytest.raises(InputError, match="buffer_size"):
        advise(loaded(STORAGE_BOUND, "strategy.ds_config.zero_optimization.offload_param.buffer_size=10"))
