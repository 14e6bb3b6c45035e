"""Walking through few layers in the place of many gives the same operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import Sequences, load_model
from simoffload.schedule import Op, Route, Schedule
from simoffload.strategies.passes.pass_writer import ForwardPass
from simoffload.strategies.programs.zero_inference import (
    InferenceLayers,
    ScheduleTemplates,
    ZeroInference,
    ZeroInferencePlan,
    schedule_templates_of,
)
from tests.examples import some
from tests.simulation.test_properties import WORK, plans, shapes

ONE = Sequences(WORK.batch_size, 8, 8)
PASSES = [
    ForwardPass("first", (ONE,), first=True),
    ForwardPass("prefill", (ONE,)),
    ForwardPass("decode", (Sequences(WORK.batch_size, 1, 9),)),
]


def operations(schedule: Schedule) -> list[tuple[Op, Route | None]]:
    """All operations in order, with their routes and not the numbers of these."""
    ops = [op for block in schedule.blocks for _ in range(block.repeat) for op in block.ops]
    return [(op._replace(route=-1), schedule.routes[op.route] if op.route >= 0 else None) for op in ops]


def in_full(plan: ZeroInferencePlan, forward: ForwardPass) -> Schedule:
    return walking_all(plan).schedule(forward)


def walking_all(plan: ZeroInferencePlan) -> ZeroInferencePlan:
    """The plan with programs of its own, that leave no layer out."""
    layered = InferenceLayers(plan.model, plan.placement)
    vars(layered)["homogeneous"] = False
    other = replace(plan)
    other.__dict__["templates"] = ScheduleTemplates(layered, plan.machine)
    return other


def outcome(planned: Callable[[], Schedule]) -> Schedule | str:
    """A schedule, or where DeepSpeed would stop ("Not enough buffers")."""
    try:
        return planned()
    except InputError as error:
        return str(error)


@settings(max_examples=some(25))
@given(shape=shapes(), planned=plans(), layers=st.integers(10, 60), forward=st.sampled_from(PASSES))
def test_as_walking_through_every_layer(
    shape: dict[str, object], planned: tuple[ZeroInference, Machine], layers: int, forward: ForwardPass
) -> None:
    strategy, there = planned
    model = load_model(shape | {"num_hidden_layers": layers})
    plan = strategy.plan(model, WORK, there)
    expected = outcome(lambda: in_full(plan, forward))
    found = outcome(lambda: plan.schedule(forward))
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
        return
    assert operations(found) == operations(expected)
    assert found._replace(blocks=()) == expected._replace(blocks=())


@settings(max_examples=some(15))
@given(shape=shapes(), planned=plans(), layers=st.integers(10, 40))
def test_memory_as_walking_through_every_layer(
    shape: dict[str, object], planned: tuple[ZeroInference, Machine], layers: int
) -> None:
    strategy, there = planned
    plan = strategy.plan(load_model(shape | {"num_hidden_layers": layers}), WORK, there)
    try:
        expected = walking_all(plan).held
    except InputError:
        assume(False)
    assert plan.held == expected


def test_thousands_of_layers_are_a_few(shipped_plan: ZeroInferencePlan) -> None:
    """BLOOM-mod-2: a period of two layers, of which one is read while the other is at work."""
    stack = shipped_plan.layered.shortest()
    assert stack is not None
    assert stack.forward is not None
    assert stack.forward.layers == 2
    assert stack.trace.layers < 16
    blocks = shipped_plan.schedule(PASSES[2]).blocks
    assert [(block.name, block.repeat) for block in blocks if block.repeat > 1] == [("layer", 2399)]


@pytest.fixture
def shipped_plan() -> ZeroInferencePlan:
    import simoffload as so

    plan = so.load_scenario("ddn/bloom-mod-2").plan()
    assert isinstance(plan, ZeroInferencePlan)
    return plan


# ---- programs that plans share ----


def test_plans_that_differ_in_the_batch_share_their_programs() -> None:
    import simoffload as so

    scenario = so.load_scenario("ddn/bloom-7b1")
    strategy, model, machine = scenario.scenario.strategy, scenario.model, scenario.machine
    assert isinstance(strategy, ZeroInference)
    one, other = (
        strategy.plan(model, WORK.model_copy(update={"batch_size": size}), machine) for size in (1, 64)
    )
    assert other.templates is one.templates
    fresh = replace(other)
    fresh.__dict__["templates"] = ScheduleTemplates(InferenceLayers(model, other.placement), machine)
    for forward in PASSES:
        one.schedule(forward)
        (homogeneous,) = forward.batch
        larger = forward._replace(batch=(homogeneous._replace(number=64),))
        assert other.schedule(larger) == fresh.schedule(larger)
        assert other.schedule(larger) != one.schedule(forward), "a larger batch computes for longer"


def test_programs_are_not_those_of_an_equal_machine(shipped_plan: ZeroInferencePlan) -> None:
    """What tells them apart is identity: a cheap question, and never wrong."""
    plan = shipped_plan
    assert schedule_templates_of(plan.model, plan.machine, plan.placement) is plan.templates
    elsewhere = schedule_templates_of(plan.model, replace(plan.machine), plan.placement)
    assert elsewhere is not plan.templates
    assert elsewhere.layered is plan.templates.layered, "what is called does not depend on the machine"


@pytest.mark.parametrize(
    "rate",
    ["ddn-ai400x2.read=20 GB/s", "gen4.latency=20 us", "gen4.both_ways=0.5", "ddn-ai400x2.latency=9 ms"],
)
def test_what_was_written_for_another_rate_is_what_would_be_written(rate: str) -> None:
    import simoffload as so

    tier = "strategy.weights=ai400x2"
    before = so.load_scenario("ddn/bloom-7b1", overrides=(tier,))
    after = so.load_scenario("ddn/bloom-7b1", overrides=(tier, f"profiles.{rate}"))
    plans = [one.scenario.strategy.plan(before.model, WORK, one.machine) for one in (before, after)]
    written = []
    for plan, forward in ((plan, forward) for plan in plans for forward in PASSES):
        assert isinstance(plan, ZeroInferencePlan)
        called, durations = plan.called(forward), plan.durations(forward)
        warm = plan.order_lasts and not forward.first
        found = called.templates.schedule(durations, name=forward.name, warm=warm)
        assert found == called.templates.write(durations, forward.batch, tuple, name=forward.name, warm=warm)
        written.append(found._replace(name=""))
    assert written[: len(PASSES)] != written[len(PASSES) :]
