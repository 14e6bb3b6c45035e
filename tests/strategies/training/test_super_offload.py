"""SuperOffload: which sub-groups are updated when, by whom, and what the step still waits for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from simoffload.errors import InputError
from simoffload.strategies.programs.zero_training import ZeroTrainingPlan
from simoffload.strategies.training.step import update_threads
from tests.strategies.training.mode_cases import (
    CPU,
    FIRST,
    LARGE,
    LARGE_NUMEL,
    LAST,
    MIDDLE,
    NUMEL,
    host_and_gpu,
    machine,
    moved,
    moved_in_cycle,
    operations,
    part,
    plan_of,
    simulated,
    timeline,
    waited,
)

GROUPS = 300_000
"""[elements] of a sub-group; some are larger by a tensor."""
CLIPPED = {"gradient_clipping": 1.0}


def zero(*, super_offload: bool = True, groups: int = GROUPS, **offload: Any) -> dict[str, Any]:
    section = {**CPU, "super_offload": super_offload, **offload}
    return {
        "stage": 3,
        "sub_group_size": groups,
        "reduce_bucket_size": 200_000,
        "stage3_param_persistence_threshold": 0,
        "offload_optimizer": section,
    }


def updated(plan: ZeroTrainingPlan, title: str) -> list[int]:
    """Traffic [B] of every Adam on the process of its own."""
    schedule = plan.schedule(part(plan, title))
    update = schedule.streams.index("update")
    return [
        op.size
        for op, times in operations(schedule)
        for _ in range(times)
        if op.stream == update and op.label == "CPU Adam"
    ]


# -- what is updated when -----------------------------------------------------------------------


def test_every_sub_group_is_updated_once_during_backward() -> None:
    plan = plan_of(zero())
    sizes = [28 * update.numel for update in plan.state.updates]
    assert len(sizes) > 4
    assert sum(sizes) == 28 * NUMEL
    found = updated(plan, "backward")
    assert Counter(found) == Counter(sizes)
    assert found[0] == sizes[-1]  # the output layer's gradients come first
    assert found[-1] == sizes[0]
    assert updated(plan, "optimizer") == []


def test_with_clipping_they_are_updated_after_backward_in_order() -> None:
    plan = plan_of(zero(), config=CLIPPED)
    assert updated(plan, "backward") == []
    assert updated(plan, "optimizer") == [28 * update.numel for update in plan.state.updates]
    assert not any(one.leaves_work or one.awaits_work for one in plan.parts)


def test_only_the_last_micro_step_updates() -> None:
    plan = plan_of(zero(), gradient_accumulation_steps=3)
    for title in (FIRST, MIDDLE):
        assert updated(plan, title) == []
    assert len(updated(plan, LAST)) == len(plan.state.updates)
    assert [one.title for one in plan.parts if one.leaves_work] == [LAST]
    assert [one.title for one in plan.parts if one.awaits_work] == ["optimizer"]


def test_sub_groups_on_the_gpu_are_not_queued() -> None:
    plan = plan_of(zero(ratio=0.6))
    here = [update for update in plan.state.updates if not update.on_gpu]
    assert 0 < len(here) < len(plan.state.updates)
    assert Counter(updated(plan, "backward")) == Counter(28 * update.numel for update in here)


@pytest.mark.parametrize("ranks", [1, 2])
def test_bytes_of_a_step(ranks: int) -> None:
    """As with plain offload, but for 12 B of a gradient copied within host memory: 4 B are read, and 4 B
    written into lines that are read before."""
    plan = plan_of(zero(), ranks=ranks)
    plain = plan_of(zero(super_offload=False), ranks=ranks)
    mine, theirs = moved_in_cycle(plan), moved_in_cycle(plain)
    own = sum(tensor.slice_numel for tensor in plan.parameters.tensors)
    assert host_and_gpu(mine) == host_and_gpu(theirs)
    assert mine["CPU Adam"] == theirs["CPU Adam"] == 28 * own
    assert theirs["CPU casts and scaling"] == (8 + 8) * own
    assert mine["CPU casts and scaling"] == (8 + 12 + 8) * own
    assert mine["GPU to host, pageable"] == 4 * own  # in shared memory
    assert "GPU to host, pageable" not in theirs


def test_threads_of_the_process() -> None:
    for threads, share, left in ((72, 0.8, 58), (72, 0.9, 65), (6, 1.0, 6), (1, 0.8, 1)):
        plan = plan_of(zero(cpuadam_cores_perc=share), places={"cpu_threads": threads})
        assert update_threads(plan) == left


# -- waiting ------------------------------------------------------------------------------------


def test_one_sub_group_is_waited_for_from_the_end_of_backward() -> None:
    """Its last gradient is the last of all: copying it over and Adam are left, and nothing else."""
    result = simulated(zero(groups=10**9), model=LARGE, places={"cpu_threads": 10})
    plan = plan_of(zero(groups=10**9), model=LARGE, places={"cpu_threads": 10})
    cpu = machine().host.cpu_optimizer
    threads = update_threads(plan)
    assert threads == 9  # (1 - 0.8) x 10 is a little less than 2
    left = 12 * LARGE_NUMEL / cpu.loops_rate(threads) + 28 * LARGE_NUMEL / cpu.rate(threads)
    backward, optimizer = result.phases[-2].result, result.phases[-1].result
    assert backward.unfinished_s == pytest.approx(left, rel=1e-6)
    assert waited(optimizer) == pytest.approx(left, rel=1e-6)
    assert optimizer.time_s > left


def test_backward_ends_with_its_host_thread_and_is_told_without_the_rest() -> None:
    config = zero(groups=20_000_000)
    result = simulated(config, model=LARGE, places={"cpu_threads": 2})
    plan = plan_of(config, model=LARGE, places={"cpu_threads": 2})
    backward = result.phases[-2].result
    run = timeline(plan, part(plan, "backward"))
    host = run.schedule.streams.index("host")
    end = max(interval.end for interval in run if interval.op.stream == host)
    assert backward.unfinished_s > 0
    assert backward.time_s == pytest.approx(end * 1e-12)
    assert backward.time_s + backward.unfinished_s == pytest.approx(run.makespan * 1e-12)
    assert sum(share.exposed_s for share in backward.shares) == pytest.approx(backward.time_s)
    assert backward.bound_s <= backward.time_s


# -- what DeepSpeed refuses, and what is told ---------------------------------------------------


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({**zero(), "stage": 2}, "needs stage 3"),
        ({"stage": 3, "offload_optimizer": {"device": "none", "super_offload": True}}, "in host memory"),
    ],
)
def test_refused(config: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        plan_of(config)


def test_clipping_is_told() -> None:
    assert plan_of(zero()).warnings == ()
    (text,) = plan_of(zero(), config=CLIPPED).warnings
    assert "afterwards" in text
    assert sum(moved(plan_of(zero()), part(plan_of(zero()), "backward")).values()) > 0
