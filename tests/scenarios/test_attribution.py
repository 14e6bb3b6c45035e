"""Shipped scenarios run, and the causes of their time sum to the total to the picosecond."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import pytest

from simoffload.extensions.storage.result import CheckpointResult
from simoffload.results.passes import PassResult, aggregate
from simoffload.results.result import SimulationResult, attributed
from simoffload.results.training import TrainingResult
from simoffload.scenario import list_scenarios, read_scenario
from simoffload.simulation import simulate
from tests.examples import one_of_each

SHORT = {"training/bloom-mod-2": ["model.num_hidden_layers=2", "nodes=2", "strategy.ranks=16"]}
"""512 GPUs and 4800 layers would take seconds."""


@pytest.mark.parametrize("name", one_of_each(list_scenarios()))
def test_times_by_cause_sum_to_the_picosecond(name: str) -> None:
    result = simulate(read_scenario(name, overrides=SHORT.get(name, ())), keep_timelines=True)
    assert result.fits
    assert result.unit_s is not None
    assert math.isfinite(result.unit_s)
    assert result.step is not None
    for one in (result.step, *result.passes, *_of_checkpoints(result)):
        assert sum(share.exposed_ps for share in one.shares) == one.time_ps
        assert sum(group.exposed_ps for group in one.groups) == one.time_ps
        assert all(share.exposed_ps <= share.busy_ps for share in one.shares)
        _sums_up(attributed(one))
        timeline = result.timelines.get(one.name)
        if timeline is not None and not one.unfinished_s:  # else others go on when the pass has ended
            assert one.time_ps == timeline.makespan
    _step_is_its_parts(result)


def _of_checkpoints(result: SimulationResult) -> Iterator[PassResult]:
    if isinstance(result, TrainingResult) and result.checkpoint is not None:
        yield from (phase.result for phase in result.checkpoint.saving)
        yield from result.checkpoint.restoring


def _sums_up(rendered: dict) -> None:
    """Check the same sums in the JSON output."""
    for rows in (rendered["time_by_cause"], rendered["time_by_group"]):
        assert sum(row["exposed_ps"] for row in rows) == rendered["time_ps"]
        assert {type(row["exposed_ps"]) for row in rows} == {int}


def _step_is_its_parts(result: SimulationResult) -> None:
    assert result.step is not None
    if isinstance(result, TrainingResult):
        assert sum(phase.time_ps for phase in result.phases) == result.step.time_ps
        assert result.step_s == result.step.time_s
    elif isinstance(result, CheckpointResult):
        parts = [(phase.result, Fraction(1)) for phase in result.checkpoint.saving]
        assert aggregate("save", parts).time_ps == result.step.time_ps
