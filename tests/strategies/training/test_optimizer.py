"""The optimizer's step: memory traffic on the CPU, sub-groups, and states on storage one after the other."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simoffload.results.passes import PassResult
from simoffload.results.timeline import Timeline
from simoffload.strategies.base import traffic
from simoffload.strategies.programs.zero_training import ZeroTrainingPlan
from tests.examples import some
from tests.strategies.training.mode_cases import (
    BIG,
    BIG_NUMEL,
    CPU,
    NUMEL,
    machine,
    moved,
    operations,
    part,
    plan_of,
    simulated,
    timeline,
)

NVME = {"device": "nvme", "pin_memory": True}


def optimizer(plan: ZeroTrainingPlan) -> Counter[str]:
    return moved(plan, part(plan, "optimizer"))


def seconds(plan: ZeroTrainingPlan) -> float:
    return timeline(plan, part(plan, "optimizer")).makespan * 1e-12


# -- on the CPU ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_bytes_of_an_update_in_host_memory(stage: int, ranks: int) -> None:
    """Adam 28 B a parameter: four tensors in single precision read, three written. Scaling gradients in
    place 8 B, the cast to 16 bit 4 B read and 2 B written, into lines that are read before."""
    plan = plan_of({"stage": stage, "offload_optimizer": CPU}, ranks=ranks)
    found = optimizer(plan)
    assert found["CPU Adam"] == 28 * NUMEL // ranks
    assert found["CPU casts and scaling"] == (8 + 8) * NUMEL // ranks


def test_host_memory_carries_what_the_cpu_reads_and_writes_and_what_is_copied() -> None:
    """Per parameter 28 + 8 + 8 B of the CPU, and 3 x 2 B of a pageable copy: staged by the CPU, then read."""
    plan = plan_of({"stage": 3, "offload_optimizer": CPU, "stage3_param_persistence_threshold": 0})
    line = timeline(plan, part(plan, "optimizer"))
    sizes = dict(zip((link.name for link in line.schedule.links), line.link_bytes, strict=True))
    assert sizes["dram"] == (28 + 8 + 8 + 3 * 2) * NUMEL


@pytest.mark.parametrize("threads", [1, 8])
def test_an_update_takes_bytes_over_the_rate_of_its_threads(threads: int) -> None:
    zero = {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU}
    large = {"hidden_size": 8192, "intermediate_size": 16384}
    plan = plan_of(zero, model=large, places={"cpu_threads": threads})
    cpu = machine().host.cpu_optimizer
    rates = cpu.rate(threads), cpu.loops_rate(threads)
    expected = plan.model.num_parameters * ((28 + 8) / rates[0] + 8 / rates[1])
    assert seconds(plan) == pytest.approx(expected, rel=0.01), "and calls of Python"


def test_ranks_share_the_memory_of_their_host() -> None:
    """Eight ranks have an eighth of the elements each, and together no more than all memory's rate."""
    zero = {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU}
    big = {"hidden_size": 4096, "intermediate_size": 8192}
    cores = machine().host.cpu_optimizer.cores.value
    plans = [
        plan_of(zero, ranks=ranks, model=big, places={"cpu_threads": cores // ranks}) for ranks in (1, 8)
    ]
    one, eight = map(seconds, plans)
    assert one / 8 < eight < one


def test_threads_beyond_cores_take_turns() -> None:
    """``deepspeed`` leaves each rank as many threads as the host has cores. They are no faster than cores,
    and each of three parallel regions loses a turn for each further thread on a core, however many elements
    it has."""
    zero = {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU}
    cpu = machine().host.cpu_optimizer
    for hidden in (1024, 4096):
        model = {"hidden_size": hidden, "intermediate_size": 2 * hidden}
        bound = {"cpu_threads": cpu.cores.value // 4}
        plain, shared = (plan_of(zero, ranks=4, model=model, places=one) for one in ({}, bound))
        assert plain.places.threads == cpu.cores.value
        assert seconds(plain) - seconds(shared) == pytest.approx(3 * 3 * 6.5e-3, rel=1e-6)


def test_adam_has_a_region_for_each_of_its_tiles() -> None:
    zero = {"stage": 3, "sub_group_size": 10**10, "offload_optimizer": CPU, "offload_param": CPU}
    model = {"hidden_size": 8192, "intermediate_size": 16384}
    plain, shared = (
        plan_of(zero, ranks=2, model=model, places=one)
        for one in ({}, {"cpu_threads": machine().cores_per_rank(2)})
    )
    (update,) = plain.state.updates
    tiles = -(-update.numel // (128 << 20))
    assert tiles > 1
    assert seconds(plain) - seconds(shared) == pytest.approx((tiles + 2) * 6.5e-3, rel=1e-6)


@pytest.mark.parametrize(
    ("mode", "threads"),
    [({}, 128), ({"super_offload": True}, 64), ({"ratio": 0.5}, 128)],
)
def test_launchers_decide_how_many_threads_a_rank_has(mode: dict[str, Any], threads: int) -> None:
    """SuperOffload is started with ``--bind_cores_to_rank``."""
    plan = plan_of({"stage": 3, "offload_optimizer": {**CPU, **mode}}, ranks=2)
    assert machine().host.cpu_optimizer.cores.value == 128
    assert plan.places.threads == threads
    one = plan_of({"stage": 3, "offload_optimizer": {**CPU, **mode}})
    assert one.places.threads == 128


def test_a_host_may_state_how_long_a_turn_is() -> None:
    cpu = machine().host.cpu_optimizer
    stated = {"value": "2 ms", "origin": "measured", "source": "a test", "date": "2026-11-29"}
    own = type(cpu).model_validate({**cpu.model_dump(mode="json", exclude_none=True), "turn": stated})
    assert own.turns_s(128, processes=8) == pytest.approx(7 * 2e-3)
    assert own.turns_s(16, processes=8) == own.turns_s(1, processes=200) == 0
    assert own.rate(128, processes=8) == own.rate(16, processes=8)


@settings(max_examples=some(15))
@given(size=st.integers(1, 3 * NUMEL), ranks=st.sampled_from([1, 2, 4]), stage=st.sampled_from([2, 3]))
def test_sub_groups_never_change_bytes(size: int, ranks: int, stage: int) -> None:
    zero = {"stage": stage, "offload_optimizer": CPU}
    whole, cut = (optimizer(plan_of({**zero, "sub_group_size": one}, ranks=ranks)) for one in (10**9, size))
    assert cut == whole


def test_more_sub_groups_are_more_calls_and_nothing_else() -> None:
    zero = {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU}
    few, many = (plan_of({**zero, "sub_group_size": size}) for size in (10**9, 1))
    assert (len(few.state.updates), len(many.state.updates)) == (1, 30)
    call = machine().host.training.sub_group_call.value
    assert seconds(many) - seconds(few) == pytest.approx(29 * call, rel=0.01)


def test_on_the_gpu_no_byte_leaves_it() -> None:
    plan = plan_of({"stage": 3, "stage3_param_persistence_threshold": 0}, ranks=2)
    assert optimizer(plan) == {}
    updates = [op for op, _ in operations(plan.schedule(part(plan, "optimizer"))) if op.kind == "update"]
    # Adam 28 B; gradients to single precision 2 + 4, scaled 8, cast back 4 + 2.
    rate = plan.machine.accelerator.hbm_rate
    assert sum(op.fixed for op in updates) == pytest.approx(48 * NUMEL / 2 / rate * 1e12, rel=1e-6)


@pytest.mark.parametrize(("ratio", "on_gpu"), [(0.0, 4), (0.3, 2), (0.5, 2), (0.75, 1), (0.8, 0), (1.0, 0)])
def test_twin_flow_updates_the_first_sub_groups_on_the_gpu(ratio: float, on_gpu: int) -> None:
    """``int((1 - ratio) * n)`` of the 4 (0.2 x 4 = 0.8 is none)."""
    zero = {"stage": 3, "sub_group_size": NUMEL // 4, "offload_optimizer": {**CPU, "ratio": ratio}}
    updates = plan_of(zero).state.updates
    assert [update.on_gpu for update in updates] == [index < on_gpu for index in range(len(updates))]
    assert len(updates) == 4


def test_twin_flow_moves_the_cpus_part_only() -> None:
    zero = {"stage": 3, "sub_group_size": NUMEL // 4, "offload_optimizer": {**CPU, "ratio": 0.5}}
    plan = plan_of(zero)
    rest = sum(update.numel for update in plan.state.updates[2:])
    assert optimizer(plan)["CPU Adam"] == 28 * rest
    assert optimizer(plan)["host to GPU, pageable"] == 2 * rest


# -- on storage ------------------------------------------------------------------------------------------


def storage(**offload: Any) -> dict[str, Any]:
    return {
        "stage": 3,
        "sub_group_size": 4_000_000,
        "offload_optimizer": {**NVME, "buffer_count": 12, **offload},
        "stage3_param_persistence_threshold": 0,
    }


PIPELINES = [
    {},
    {"pipeline_read": True},
    {"pipeline_write": True},
    {"pipeline_read": True, "pipeline_write": True},
]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_states_are_read_and_written_once(pipeline: dict[str, Any]) -> None:
    """Master and moments 12 B each way; gradients 4 B are read and, what did not fill a buffer, written."""
    plan = plan_of(storage(**pipeline), model=BIG)
    states, found = 12 * BIG_NUMEL, Counter[str]()
    for op, times in operations(plan.schedule(part(plan, "optimizer"))):
        if op.kind in ("read", "write"):
            found[f"{op.kind} {op.label}"] += op.size * times
    large = 4 * (BIG_NUMEL - 7 * 1024)
    assert found["read optimizer states"] == found["write optimizer states"] == states
    assert found["read gradients"] == large
    backward = moved(plan, part(plan, "backward"))["raid write"]
    assert found["write gradients"] + backward == large


@pytest.mark.parametrize("platform", ["dgx-a100", "dgx-h200"])
@pytest.mark.parametrize("params", [{"device": "none"}, CPU])
def test_a_pipeline_is_never_slower(platform: str, params: dict[str, Any]) -> None:
    plain, read, write, both = (
        seconds(plan_of({**storage(**one), "offload_param": params}, model=BIG, platform=platform))
        for one in PIPELINES
    )
    assert both <= min(read, write) <= max(read, write) <= plain
    assert both < plain


def spans(line: Timeline, kind: str, label: str = "") -> list[tuple[int, int]]:
    """Begin and end of operations [ps]."""
    blocks = line.schedule.blocks
    operations = line.all_operations
    rows = zip(operations.block, operations.position, operations.start, operations.end, strict=True)
    found = [(blocks[block].ops[place], begin, end) for block, place, begin, end in rows]
    return [(begin, end) for op, begin, end in found if op.kind == kind and label in op.label]


def test_without_a_pipeline_everything_is_one_after_the_other() -> None:
    plan = plan_of(storage(), model=BIG)
    line = timeline(plan, part(plan, "optimizer"))
    work = sorted(
        [*spans(line, "cpu"), *spans(line, "read", "gradients"), *spans(line, "write", "optimizer states")]
    )
    assert len(work) == len(plan.state.updates) * (1 + 1 + 1 + 1 + 3)
    assert all(begin >= end for (_, end), (begin, _) in pairwise(work))


def test_a_pipeline_reads_one_sub_group_ahead_and_no_more() -> None:
    """What the second sub-group needs is read while the first is updated; the third is not yet asked for."""
    plan = plan_of(storage(pipeline_read=True), model=BIG)
    line = timeline(plan, part(plan, "optimizer"))
    adam, reads = spans(line, "cpu", "CPU Adam"), spans(line, "read", "optimizer states")
    assert len(adam) == len(plan.state.updates) >= 3
    assert reads[3][0] < adam[0][1], "three states of each"
    assert reads[6][0] >= adam[0][1]


def test_a_pipeline_writes_one_sub_group_behind() -> None:
    plan = plan_of(storage(pipeline_write=True), model=BIG)
    line = timeline(plan, part(plan, "optimizer"))
    adam, writes = spans(line, "cpu", "CPU Adam"), spans(line, "write", "optimizer states")
    assert writes[2][1] > adam[0][1]
    slow = timeline(plan_of(storage(), model=BIG), part(plan, "optimizer"))
    assert line.makespan < slow.makespan


def test_parameters_are_written_by_a_handle_of_their_own() -> None:
    """``AsyncPartitionedParameterSwapper`` waits for its own ``aio_write_handle``: states of the sub-group
    before may still be on their way while parameters are written."""
    params = {"device": "nvme", "buffer_size": 4_000_000, "buffer_count": 30, "max_in_cpu": 0}
    zero = {**storage(pipeline_write=True), "offload_param": params, "stage3_max_reuse_distance": 0}
    schedule = plan_of(zero, model=BIG).schedule(part(plan_of(zero, model=BIG), "optimizer"))
    streams: dict[bool, set[int]] = {True: set(), False: set()}
    for op, _ in operations(schedule):
        if op.kind == "write":
            streams[op.label in ("optimizer states", "gradients")].add(op.stream)
    assert len(streams[True]) == len(streams[False]) == 1
    assert streams[True] != streams[False]


def test_twin_flow_on_storage_swaps_every_sub_group() -> None:
    """``_swappable_optimizer_subgroup`` knows nothing of ``ratio``: DeepSpeed 0.19.8 moves all states and
    gradients with ratio 0.5 as with 1 (test_cpu_training_io.py)."""
    half, whole = (plan_of(storage(ratio=ratio), model=BIG) for ratio in (0.5, 1.0))
    assert traffic(half) == traffic(whole)


def parts_on_a_drive(layers: int) -> tuple[PassResult, PassResult, float]:
    """Backward, the optimizer and the step on a desktop's drive; the gradients of each layer, of 42 MB, fill
    one of four swap buffers, and those outside the layers a part of one."""
    zero = {"stage": 3, "offload_optimizer": {**NVME, "buffer_count": 4}, "sub_group_size": 10_000_000}
    result = simulated(zero, model={**BIG, "num_hidden_layers": layers}, platform="rtx-4090-desktop")
    return result.phases[-2].result, result.phases[-1].result, result.step_s or 0.0


def writing(one: PassResult) -> float:
    """[s] for which a part waits for writes."""
    return sum(share.exposed_s for share in one.shares if share.cause_text == "nvme write")


def test_backward_waits_for_writes_of_gradients_only_where_no_buffer_is_free() -> None:
    """``AsyncTensorSwapper``: a full buffer is submitted, and the next one filled; if none is free, the host
    waits for all. The first sub-group of the step waits for those that are left."""
    three, four, seven, eight = (parts_on_a_drive(layers)[0] for layers in (3, 4, 7, 8))
    assert writing(three) == 0 < three.unfinished_s
    assert four.unfinished_s == eight.unfinished_s == 0, "the fourth buffer was waited for"
    assert writing(seven) == pytest.approx(writing(four), rel=0.05)
    assert seven.unfinished_s == pytest.approx(three.unfinished_s, rel=0.01)
    assert writing(eight) == pytest.approx(2 * writing(four), rel=0.05)
    assert seven.time_s == pytest.approx(four.time_s + three.time_s, rel=0.1)


def test_what_backward_leaves_to_write_is_time_of_the_step() -> None:
    """Its first reads begin when all gradients are on the drive, as after eight buffers."""
    backward, optimizer, step = parts_on_a_drive(7)
    (_, four, _), (_, eight, longer) = parts_on_a_drive(4), parts_on_a_drive(8)
    each = (eight.time_s - four.time_s) / 4
    assert optimizer.time_s == pytest.approx(eight.time_s - each + backward.unfinished_s, rel=0.01)
    assert step < longer
