"""Of a scenario that does not fit, advice is what would make it fit."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from simoffload.cli.console import ExitCode
from simoffload.cli.planning import _status
from simoffload.errors import InputError, WorkLimitError
from simoffload.planning.advise import advise
from simoffload.planning.evaluator import Evaluator
from simoffload.report.sections.advice import advice_verdict
from simoffload.scenario import read_scenario
from tests.planning.advise.conftest import STORAGE_BOUND, loaded, run


def test_of_what_does_not_fit_it_says_what_would() -> None:
    found = advise(read_scenario("ddn/bloom-176b", overrides=["workload.output_length=2"]).on("gpu"))
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
    small = read_scenario("checkpoint/mlperf-8b", overrides=["profiles.ddn-ai400x2.capacity=1 GB"])
    extra = {one.change.description: one.extra for one in advise(small).tried}
    assert extra["capacity of pfs 1 GB → 1 TB (it needs 112 GB)"] is None


def test_nothing_helps_a_refused_scenario() -> None:
    with pytest.raises(InputError, match="buffer_size"):
        advise(loaded(STORAGE_BOUND, "strategy.ds_config.zero_optimization.offload_param.buffer_size=10"))


@pytest.mark.parametrize("listed", [True, False])
def test_nothing_tried_is_not_said_to_be_all_changes(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that comes before the first change, or while the changes are listed."""
    too_large = loaded(STORAGE_BOUND, "workload.batch_size=20000")

    def stopped(*_args: object, **_options: object) -> NoReturn:
        raise WorkLimitError("stopped by a limit")

    evaluator = Evaluator(too_large)
    evaluator.answer()
    if listed:
        monkeypatch.setattr("simoffload.planning.evaluator.simulate", stopped)
    found = advise(evaluator) if listed else advise(evaluator, options=stopped)
    assert not found.tried
    assert found.stopped == "stopped by a limit"
    assert bool(found.untried) == listed
    verdict = advice_verdict(found).in_full
    assert "all changes" not in verdict
    part = f"{found.number_tried} of {found.number_tried + len(found.untried)} changes were tried"
    assert verdict.endswith(
        f" Not complete: {part if listed else 'no change was tried'}: stopped by a limit."
    )
    assert _status(found, None) is ExitCode.FAILED
