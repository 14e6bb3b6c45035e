"""A training plan: places, bytes on storage from start-up to the steady state, and what stops DeepSpeed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simoffload.errors import InputError
from simoffload.models import Repeated
from simoffload.scenario import read_scenario
from simoffload.strategies.base import memory_stages, optimizer_target, target, traffic
from simoffload.strategies.programs.zero_training import ZeroTrainingPlan
from simoffload.strategies.training.state import StorageStage, Transfer
from tests.examples import some
from tests.strategies.training.mode_cases import (
    BIG,
    BIG_LAYERS,
    BIG_MATRICES,
    BIG_NUMEL,
    CPU,
    NUMEL,
    operations,
    part,
    plan_of,
)


def storage(*, params: bool, **more: Any) -> dict[str, Any]:
    zero = {"stage": 3, "offload_optimizer": {"device": "nvme", "buffer_count": 12}, **more}
    if params:
        offload = {"device": "nvme", "buffer_size": 3_000_000, "buffer_count": 12, "max_in_cpu": 0}
        zero |= {"offload_param": offload, "stage3_max_reuse_distance": 0}
    return zero


def bytes_of(stages: tuple[StorageStage, ...], name: str) -> tuple[int, int]:
    """[B] read and written in the stage of that name."""
    (stage,) = (stage for stage in stages if stage.name == name)
    return tuple(sum(one.size for one in stage.transfers if one.written is way) for way in (False, True))


# -- start-up and steps --------------------------------------------------------------------------------


def test_bytes_per_parameter_of_the_optimizer_on_storage() -> None:
    """Start to end of the first step 12 B read and 24 B written, every later step 16 B each way; measured
    with DeepSpeed 0.18.3 and the reason for the request counts of Xinnor's table."""
    plan = plan_of(storage(params=False), model=BIG)
    states, gradients = 4 * BIG_NUMEL, 4 * BIG_MATRICES
    first, steady = plan.first_io, plan.steady_io
    assert bytes_of(first, "initialisation") == (states, 2 * states)
    assert bytes_of(first, "first forward and backward") == (0, gradients)
    assert bytes_of(first, "first optimizer step") == (states + gradients, 3 * states)
    assert bytes_of(steady, "forward and backward") == (0, gradients)
    assert bytes_of(steady, "optimizer step") == (3 * states + gradients, 3 * states)


@pytest.mark.parametrize("reentrant", [False, True])
def test_bytes_per_parameter_with_parameters_on_storage(reentrant: bool) -> None:
    """While the trace is recorded nothing is kept: 2 B in forward, backward, and again in recomputation, all
    but the last projection where that is not reentrant."""
    plan = plan_of(storage(params=True), model=BIG, gradient_checkpointing=True, use_reentrant=reentrant)
    states, params, gradients = 4 * BIG_NUMEL, 2 * BIG_MATRICES, 4 * BIG_MATRICES
    again = 2 * (BIG_LAYERS - (0 if reentrant else 3 * 1024 * 2048))
    first = plan.first_io
    assert bytes_of(first, "initialisation") == (2 * params + states, 2 * params + 2 * states)
    assert bytes_of(first, "first forward and backward") == (2 * params + again, gradients)
    assert bytes_of(first, "first optimizer step") == (states + gradients, 3 * states + params)
    assert bytes_of(plan.steady_io, "optimizer step") == (3 * states + gradients, 3 * states + params)


@pytest.mark.parametrize("micro_steps", [1, 2, 5])
def test_accumulation_reads_parameters_more_often_and_nothing_else(micro_steps: int) -> None:
    one, more = (
        plan_of(storage(params=True), model=BIG, gradient_accumulation_steps=count)
        for count in (1, micro_steps)
    )
    read, written = bytes_of(one.steady_io, "forward and backward")
    assert bytes_of(more.steady_io, "forward and backward") == (micro_steps * read, written)
    assert bytes_of(more.steady_io, "optimizer step") == bytes_of(one.steady_io, "optimizer step")


def test_later_micro_steps_of_the_first_step_read_too() -> None:
    """They read as in the steady state, the trace being known (test_cpu_training_io.py)."""
    one, three = (
        plan_of(storage(params=True), model=BIG, gradient_accumulation_steps=count) for count in (1, 3)
    )
    first, _ = bytes_of(one.first_io, "first forward and backward")
    later, _ = bytes_of(one.steady_io, "forward and backward")
    assert bytes_of(three.first_io, "first forward and backward")[0] == first + 2 * later


@pytest.mark.parametrize(("scenario", "read", "written"), [
    ("optimizer", 325_488, 650_976),
    ("parameters", 595_728, 813_720),
])  # fmt: skip
def test_requests_of_xinnors_table(scenario: str, read: int, written: int) -> None:
    """Whole requests of 512 KiB from the start to the end of the first step. The table says 325,488 and
    595,728 read, 650,993 and 813,741 written: some twenty more are not DeepSpeed's."""
    plan = read_scenario(f"xinnor/llama-16b-{scenario}").plan()
    assert isinstance(plan, ZeroTrainingPlan)
    assert plan.model.num_parameters == 14_220_787_712 + 64 * 2 * 4096 + 4096
    found = Counter[bool]()
    for stage in plan.first_io:
        for one in stage.transfers:
            found[one.written] += one.full_requests(block=1 << 19, threads=plan.settings.params.threads)
    assert (found[False], found[True]) == (read, written)


def test_requests_of_slices() -> None:
    """Two threads have 2.5 blocks each, and make two whole requests."""

    def requests(*sizes: int, threads: int, times: int = 1) -> int:
        transfer = Transfer("nvme", "states", False, Repeated.once(sizes), times)
        return transfer.full_requests(block=512, threads=threads)

    assert requests(5 * 512, threads=2) == 4
    assert requests(5 * 512, 4 * 512, threads=1) == 9
    assert requests(5 * 512, 4 * 512, threads=1, times=3) == 27
    assert requests(threads=1) == 0


def test_many_micro_steps_are_counted_and_not_written_down() -> None:
    """A first step of 100,000 micro-steps reads what one reads first, and 99,999 times what later ones do."""
    one, many = (
        read_scenario(
            "xinnor/llama-16b-parameters", overrides=[f"workload.gradient_accumulation_steps={number}"]
        ).plan()
        for number in (1, 100_000)
    )
    assert isinstance(one, ZeroTrainingPlan)
    assert isinstance(many, ZeroTrainingPlan)
    first, _ = bytes_of(one.first_io, "first forward and backward")
    later, _ = bytes_of(one.steady_io, "forward and backward")
    assert bytes_of(many.first_io, "first forward and backward")[0] == first + 99_999 * later
    assert sum(len(transfer.sizes) for stage in many.first_io for transfer in stage.transfers) < 10_000


# -- traffic and schedules agree -----------------------------------------------------------------------


@settings(max_examples=some(10))
@given(
    params=st.booleans(),
    ranks=st.sampled_from([1, 2, 4]),
    micro_steps=st.sampled_from([1, 2, 3]),
    checkpointing=st.booleans(),
    more=st.fixed_dictionaries(
        {
            "sub_group_size": st.sampled_from([1_500_000, 4_000_000, 10**9]),
            "reduce_bucket_size": st.sampled_from([10**6, 5 * 10**8]),
            "stage3_prefetch_bucket_size": st.sampled_from([0, 10**5]),
        }
    ),
    pipeline=st.booleans(),
)
def test_a_step_moves_what_it_says(
    params: bool, ranks: int, micro_steps: int, checkpointing: bool, more: Mapping[str, Any], pipeline: bool
) -> None:
    """Reads and writes of the schedules are those of ``traffic`` and of ``steady_io``."""
    zero = storage(params=params, **more)
    zero["offload_optimizer"] |= {"pipeline_read": pipeline, "pipeline_write": pipeline}
    plan = plan_of(
        zero,
        model=BIG,
        ranks=ranks,
        gradient_accumulation_steps=micro_steps,
        gradient_checkpointing=checkpointing,
    )
    moved = Counter[str]()
    for one in plan.parts:
        for op, times in operations(plan.schedule(one)):
            if op.kind in ("read", "write"):
                moved[op.kind] += int(one.times * op.size * times)
    (stored,) = traffic(plan)
    assert stored.tier == "raid"
    assert (stored.read, stored.written) == (ranks * moved["read"], ranks * moved["write"])
    stages = [bytes_of(plan.steady_io, one.name) for one in plan.steady_io]
    assert [sum(sizes) for sizes in zip(*stages, strict=True)] == [moved["read"], moved["write"]]


def test_what_stays_in_memory_makes_no_traffic() -> None:
    assert traffic(plan_of({"stage": 3, "offload_optimizer": CPU})) == ()
    assert traffic(plan_of({"stage": 2})) == ()


@pytest.mark.parametrize("whole", [0, 1, 2, 17])
def test_whole_sub_groups_stay_in_memory_while_there_is_room(whole: int) -> None:
    """``max_in_cpu`` counts what went before, whether it stayed or not."""
    zero = storage(params=True, sub_group_size=2_000_000)
    groups = [update.numel for update in plan_of(zero, model=BIG).state.updates]
    assert len(groups) == 17
    for room, kept in ((sum(groups[:whole]), whole), (sum(groups[:whole]) - 1, max(0, whole - 1))):
        zero["offload_param"]["max_in_cpu"] = max(0, room)
        updates = plan_of(zero, model=BIG).state.updates
        assert [update.params for update in updates] == ["cpu"] * kept + ["nvme"] * (17 - kept)


# -- parts, floating point and places ------------------------------------------------------------------


@pytest.mark.parametrize("micro_steps", [1, 2, 3, 8])
def test_parts_of_a_step_are_its_passes(micro_steps: int) -> None:
    plan = plan_of({"stage": 3}, gradient_accumulation_steps=micro_steps)
    times = {
        phase: sum((one.times for one in plan.parts if one.phase == phase), Fraction(0))
        for phase in ("forward", "backward", "optimizer")
    }
    assert times == {"forward": micro_steps, "backward": micro_steps, "optimizer": 1}
    assert sum(one.boundary for one in plan.parts) == 1
    assert len({one.title for one in plan.parts}) == len(plan.parts)


def test_arithmetic_of_a_step() -> None:
    """Two per weight and token in forward, all layers once more if they are computed again."""
    plan = plan_of({"stage": 3}, gradient_accumulation_steps=3, gradient_checkpointing=True, batch_size=2)
    tokens, layers = 2 * 64, 3 * (4 * 256**2 + 3 * 256 * 512)
    attention = 3 * 2 * 4 * (64 * 65 // 2) * 4 * 64
    expected = 3 * (2 * tokens * (layers + 256 * 1000) + attention)
    assert plan.facts.forward_flops == pytest.approx(expected, rel=0.02), "and norms, activations, softmax"
    assert plan.facts.recomputed_flops == pytest.approx(3 * (2 * tokens * layers + attention), rel=0.02)
    assert plan_of({"stage": 3}).facts.recomputed_flops == 0


@pytest.mark.parametrize(
    ("zero", "places", "expected"),
    [
        ({"stage": 3}, {}, ("hbm", "hbm")),
        ({"stage": 2, "offload_optimizer": CPU}, {}, ("hbm", "dram")),
        ({"stage": 3, "offload_param": CPU, "offload_optimizer": {"device": "nvme"}}, {}, ("dram", "raid")),
        ({"stage": 3}, {"weights": "dram", "optimizer": "dram"}, ("dram", "dram")),
        ({"stage": 3, "offload_optimizer": CPU}, {"optimizer": "raid"}, ("hbm", "raid")),
    ],
)
def test_places_follow_the_configuration_and_the_scenarios_word_above_it(
    zero: Mapping[str, Any], places: Mapping[str, Any], expected: tuple[str, str]
) -> None:
    plan = plan_of(zero, places=places)
    assert (target(plan), optimizer_target(plan)) == expected
    contradicts = expected[1] == "raid" and zero.get("offload_optimizer") == CPU
    assert any("contradicts optimizer: raid; raid is used" in one for one in plan.warnings) is contradicts


@pytest.mark.parametrize(
    ("zero", "more", "key", "message"),
    [
        ({"stage": 2}, {"places": {"weights": "dram"}}, "strategy.weights", "only in stage 3, not 2"),
        ({"stage": 1}, {"places": {"optimizer": "raid"}}, "strategy.optimizer", "only in stage 3, not 1"),
        ({"stage": 0}, {"places": {"optimizer": "dram"}}, "strategy.optimizer", "stage 0 offloads nothing"),
        ({"stage": 3}, {"places": {"weights": "raid"}}, "strategy.optimizer", "with the optimizer on"),
        (
            {"stage": 3, "offload_optimizer": {"device": "nvme"}},
            {"platform": "dgx-h200", "places": {"optimizer": "dram"}, "version": "0.19.8"},
            None,
            "",
        ),
        (
            {"stage": 3, "offload_param": {"device": "nvme", "buffer_size": 10**5, "max_in_cpu": 0},
             "offload_optimizer": CPU},
            {"model": BIG},
            "strategy.ds_config.zero_optimization.offload_param.buffer_size",
            "More elements 2097152 than buffer size 100000",
        ),
        (
            {"stage": 3, "offload_optimizer": {"device": "nvme", "buffer_count": 3}},
            {},
            "strategy.ds_config.zero_optimization.offload_optimizer.buffer_count",
            "3 buffers; DeepSpeed needs 4",
        ),
        (
            {"stage": 3, "sub_group_size": 10**6,
             "offload_optimizer": {"device": "nvme", "buffer_count": 7, "pipeline_read": True}},
            {"model": BIG},
            "strategy.ds_config.zero_optimization.offload_optimizer.buffer_count",
            "7 buffers; DeepSpeed needs 8",
        ),
        (
            {"stage": 3, "offload_param": {"device": "nvme", "buffer_size": 3 * 10**6, "buffer_count": 1,
             "max_in_cpu": 0}, "offload_optimizer": CPU},
            {"model": BIG},
            "strategy.ds_config.zero_optimization.offload_param.buffer_count",
            "Not enough buffers",
        ),
    ],
)  # fmt: skip
def test_what_deepspeed_would_stop_at(
    zero: Mapping[str, Any], more: Mapping[str, Any], key: str | None, message: str
) -> None:
    if key is None:
        assert optimizer_target(plan_of(zero, **more)) == "dram"
        return
    with pytest.raises(InputError) as caught:
        _ = memory_stages(plan_of(zero, **more))
    (problem,) = caught.value.problems
    assert problem.key == key
    assert message in problem.message


@pytest.mark.parametrize(
    ("groups", "read", "write", "needed"),
    [
        (1, False, False, 4),
        (3, False, False, 4),
        (3, True, False, 8),
        (3, False, True, 8),
        (2, True, True, 8),
        (1, True, True, 4),
        (3, True, True, 12),
    ],
)
def test_swap_buffers_of_the_optimizer(groups: int, read: bool, write: bool, needed: int) -> None:
    """Four each for the sub-group at work, one being read and one being written, as far as there are any.

    DeepSpeed 0.19.8 with this very model runs with so many, and stops with one less.
    """
    offload = {"device": "nvme", "pipeline_read": read, "pipeline_write": write}
    zero = {"stage": 3, "sub_group_size": -(-NUMEL // groups)}
    plan = plan_of({**zero, "offload_optimizer": {**offload, "buffer_count": needed}})
    assert len(plan.state.updates) == groups
    with pytest.raises(InputError, match=f"DeepSpeed needs {needed}"):
        plan_of({**zero, "offload_optimizer": {**offload, "buffer_count": needed - 1}})


def test_tensors_are_cut_up_in_stage_3_and_padded() -> None:
    plan = plan_of({"stage": 3}, ranks=3)
    cut = {tensor.numel: tensor.slice_numel for tensor in plan.parameters.tensors}
    assert cut == {256_000: 85_334, 256: 86, 65_536: 21_846, 131_072: 43_691}
    assert {tensor.slice_numel for tensor in plan_of({"stage": 0}, ranks=3).parameters.tensors} == set(cut)


def test_tied_weights_are_one_tensor_that_two_modules_need() -> None:
    plan = plan_of({"stage": 3}, model={"tie_word_embeddings": True})
    assert sum(tensor.numel for tensor in plan.parameters.tensors) == NUMEL - 256_000
    needed = [one.module.name for one, owned in plan.parameters.owned.items() if 0 in owned]
    assert needed == ["model.embed_tokens", "lm_head"]
    trained = [one.module.name for one, own in plan.parameters.trained.items() if 0 in own]
    assert trained == ["model.embed_tokens"]


def test_the_memory_of_a_plan_counts_what_its_walk_gathers() -> None:
    assert plan_of({"stage": 2}).peak is None
    plan = plan_of({"stage": 3}, ranks=2)
    assert plan.peak is not None
    assert plan.peak.gathered == NUMEL, "with DeepSpeed's reuse distance a small model is kept whole"
    small = plan_of({"stage": 3, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}, ranks=2)
    assert small.peak is not None
    assert small.peak.gathered < NUMEL // 2


def test_the_schedule_of_a_part_is_named_after_it() -> None:
    plan = plan_of({"stage": 3}, gradient_accumulation_steps=3)
    assert [plan.schedule(one).name for one in plan.parts] == [one.title for one in plan.parts]
    assert part(plan, "forward").times == 3
