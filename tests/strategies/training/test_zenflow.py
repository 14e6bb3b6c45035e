"""ZenFlow: how often what happens, how much moves, and how long an update is waited for."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simoffload.errors import InputError
from simoffload.strategies.base import traffic
from simoffload.strategies.training.step import SelectedColumns, update_s, update_threads
from tests.examples import some
from tests.strategies.training.mode_cases import (
    CPU,
    FIRST,
    LARGE,
    LAST,
    LAYER,
    MATRICES,
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
    waited,
)


def zero(stage: int = 2, interval: int | str = 4, **zenflow: Any) -> dict[str, Any]:
    section = {"topk_ratio": 0.1, "update_interval": interval, **zenflow}
    return {"stage": stage, "offload_optimizer": CPU, "zenflow": section}


def picked(rows_and_columns: Mapping[tuple[int, int], int]) -> int:
    """Elements of a tenth of the columns of so many matrices."""
    return sum(times * rows * (columns // 10) for (rows, columns), times in rows_and_columns.items())


SELECTED = picked({(256, 256): 4 * 3 + 0, (512, 256): 2 * 3, (256, 512): 3, (1000, 256): 2}) + 7 * 256


# -- how often ----------------------------------------------------------------------------------


@settings(max_examples=some(15))
@given(interval=st.integers(1, 9), accumulation=st.integers(1, 9), overlap=st.booleans())
def test_every_micro_step_happens_once(interval: int, accumulation: int, overlap: bool) -> None:
    plan = plan_of(zero(interval=interval, overlap_step=overlap), gradient_accumulation_steps=accumulation)
    often = {"forward": Fraction(0), "backward": Fraction(0)}
    for one in plan.parts:
        if one.phase != "optimizer":
            often[one.phase] += one.times
    assert often == {"forward": accumulation, "backward": accumulation}
    updates = [one.times for one in plan.parts if one.phase == "optimizer"]
    assert updates == [Fraction(accumulation, interval)] * 2
    boundary = [one.times for one in plan.parts if one.boundary]
    assert boundary == [Fraction(accumulation, interval)]


def test_parts_of_one_two_and_four_micro_steps() -> None:
    titles = {n: [one.title for one in plan_of(zero(interval=n)).parts] for n in (1, 2, 4)}
    rest = ["optimizer", "selected columns"]
    assert titles == {
        1: ["forward", "backward", *rest],
        2: ["forward", FIRST, LAST, *rest],
        4: ["forward", FIRST, MIDDLE, LAST, *rest],
    }


def test_columns_are_selected_now_and_then() -> None:
    step = {"select_strategy": "step", "select_interval": 8}
    plan = plan_of(zero(interval=4, **step), gradient_accumulation_steps=2)
    assert part(plan, "selection of columns").times == Fraction(2, 8)
    assert part(plan, "selection of columns").phase == "backward"
    epoch = plan_of(zero(interval=4, select_strategy="epoch", select_interval=8))
    assert "selection of columns" not in [one.title for one in epoch.parts]


def test_times_of_a_result_add_up() -> None:
    result = simulated(zero(interval=3), gradient_accumulation_steps=2)
    assert result.step_s == pytest.approx(
        sum(float(phase.times) * phase.result.time_s for phase in result.phases)
    )
    assert result.forward_s == pytest.approx(2 * result.phases[0].result.time_s)


# -- what is selected ---------------------------------------------------------------------------


def test_a_tenth_of_the_columns_and_all_of_the_norms() -> None:
    plan = plan_of(zero())
    columns = SelectedColumns(plan, ratio=0.1)
    by_name = {tensor.name: columns.selected(tensor) for tensor in plan.parameters.tensors}
    assert by_name["self_attn.q_proj.weight"] == 25 * 256
    assert by_name["mlp.down_proj.weight"] == 51 * 256
    assert by_name["mlp.up_proj.weight"] == 25 * 512
    assert by_name["lm_head.weight"] == 25 * 1000
    assert by_name["input_layernorm.weight"] == 256
    assert sum(columns.selected(tensor) for tensor in plan.parameters.tensors) == SELECTED
    assert sum(tensor.numel for tensor in columns.matrices) == MATRICES


def test_stage_3_updates_its_own_part_only_and_at_least_one_column() -> None:
    plan = plan_of(zero(3), ranks=2)
    query = next(one for one in plan.parameters.tensors if one.name.endswith("q_proj.weight"))
    assert SelectedColumns(plan, ratio=0.1).selected(query) == 25 * 256 // 2
    assert SelectedColumns(plan, ratio=0.0).picked(query) == 1
    assert SelectedColumns(plan_of(zero(2)), ratio=0.0).picked(query) == 0


def test_owners_broadcast_selected_gradients() -> None:
    """Half of them come from the other rank, in 16 bit; of one rank nothing is sent."""
    name = "broadcast of selected columns"
    for title in (FIRST, MIDDLE, LAST):
        plan = plan_of(zero(), ranks=2)
        assert moved(plan, part(plan, title))[name] == SELECTED * 2 // 2
        alone = plan_of(zero())
        assert name not in moved(alone, part(alone, title))


def gpu_ps(plan: Any, title: str, kind: str) -> int:
    found = operations(plan.schedule(part(plan, title)))
    return sum(op.fixed * times for op, times in found if op.kind == kind)


def test_passes_of_the_selective_update() -> None:
    """24 passes over the selected elements in 16 bit; in the last micro-step 4, and 26 in the step."""
    plan = plan_of(zero())
    rate = machine().accelerator.hbm_rate
    for title, passes in ((FIRST, 24), (MIDDLE, 24), (LAST, 4), ("selected columns", 26)):
        assert gpu_ps(plan, title, "update") == pytest.approx(
            passes * 2 * SELECTED / rate * 1e12, rel=1e-6, abs=10
        )


def test_offloaded_moments_travel_both_ways() -> None:
    there = {**zero(offload=True), "overlap_comm": True}
    more = {
        title: host_and_gpu(moved(plan_of(there), part(plan_of(there), title)))
        for title in (FIRST, LAST, "selected columns")
    }
    less = {
        title: host_and_gpu(moved(plan_of(zero()), part(plan_of(zero()), title)))
        for title in (FIRST, LAST, "selected columns")
    }
    size = 2 * SELECTED  # [B] of one of them in 16 bit
    assert more[FIRST]["down"] - less[FIRST]["down"] == 2 * size
    assert more[FIRST]["up"] - less[FIRST]["up"] == 2 * size
    assert more[LAST]["up"] - less[LAST]["up"] == size  # the columns as they are
    assert more["selected columns"] == {"down": 3 * size, "up": 2 * size}
    assert less["selected columns"] == {"down": 0, "up": 0}


def test_columns_in_host_memory_travel_too() -> None:
    there = {**zero(3), "offload_param": {"device": "cpu", "pin_memory": True}}
    plan = plan_of(there)
    # Rounded down tensor by tensor; one rank owns all columns.
    sizes = moved(plan, part(plan, FIRST))
    assert sizes["host to GPU, pageable"] == 2 * SELECTED
    assert sizes["GPU to host, pageable"] == 2 * SELECTED
    assert sizes["CPU casts and scaling"] == 2 * 3 * 2 * SELECTED, "lines are read before they are written"
    step = moved(plan, part(plan, "selected columns"))
    assert step["host to GPU, pageable"] == 2 * 2 * SELECTED


def test_stage_1_reduces_in_every_micro_step() -> None:
    plain = plan_of({"stage": 1, "offload_optimizer": CPU}, gradient_accumulation_steps=4)
    assert host_and_gpu(moved(plain, part(plain, FIRST))) == {"down": 0, "up": 0}
    plan = plan_of(zero(1))
    assert host_and_gpu(moved(plan, part(plan, FIRST))) == {"down": 0, "up": 2 * NUMEL}


# -- what moves ---------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_bytes_between_host_and_gpu_from_update_to_update(ranks: int, overlap: bool) -> None:
    """Stage 2: four gradients up and three down again in 16 bit, one up in 32 bit, weights down in 16 bit."""
    plan = plan_of(zero(overlap_step=overlap), ranks=ranks)
    own = sum(tensor.slice_numel for tensor in plan.parameters.tensors)
    assert own == NUMEL // ranks
    total = host_and_gpu(moved_in_cycle(plan))
    assert total == {"up": (4 * 2 + 4) * own, "down": (3 * 2 + 2) * own}


@pytest.mark.parametrize("stage", [2, 3])
def test_an_interval_of_one_moves_what_plain_offload_moves(stage: int) -> None:
    plain = plan_of({"stage": stage, "offload_optimizer": CPU}, ranks=2)
    plan = plan_of(zero(stage, 1), ranks=2)
    assert host_and_gpu(moved_in_cycle(plan)) == host_and_gpu(moved_in_cycle(plain))
    names = ("CPU Adam", "CPU casts and scaling", "reduction of gradients")
    mine, theirs = moved_in_cycle(plan), moved_in_cycle(plain)
    assert [mine[name] for name in names] == [theirs[name] for name in names]


def test_what_is_shared_with_the_other_process_is_pageable() -> None:
    for overlap, pageable in ((False, 0), (True, 4 * NUMEL)):
        plan = plan_of(zero(overlap_step=overlap))
        assert moved(plan, part(plan, LAST))["GPU to host, pageable"] == pageable


def test_parameters_are_taken_over_in_16_bit_and_before_0_19_3_in_32() -> None:
    for version, size, cpu in (("0.19.8", 2, 8 + 8), ("0.17.7", 4, 8)):
        plan = plan_of(zero(overlap_step=True), version=version)
        sizes = moved(plan, part(plan, "optimizer"))
        assert sizes["host to GPU, pageable"] == size * NUMEL
        assert sizes["CPU casts and scaling"] == cpu * NUMEL
        assert "CPU Adam" not in sizes


@pytest.mark.parametrize(("interval", "accumulation"), [(1, 1), (4, 1), (4, 6)])
def test_storage_moves_what_the_result_says(interval: int, accumulation: int) -> None:
    settings_ = {**zero(3, interval), "offload_optimizer": {"device": "nvme"}, "sub_group_size": 700_000}
    plan = plan_of(
        settings_,
        platform="xinnor-workstation",
        places={"optimizer": "raid"},
        gradient_accumulation_steps=accumulation,
        model={"hidden_size": 1024, "intermediate_size": 2048},
    )
    assert any(update.swapped for update in plan.state.updates)
    sizes = moved_in_cycle(plan)
    cycles = Fraction(accumulation, interval)
    (stored,) = traffic(plan)
    assert stored.read == round(sizes["raid read"] * cycles)
    assert stored.written == round(sizes["raid write"] * cycles)


# -- waiting for an update ----------------------------------------------------------------------


def test_an_update_takes_bytes_over_the_rate_of_its_own_threads() -> None:
    """Adam 28 B, and 4 B of the weights copied; half of 64 cores and of both nodes for each of two ranks."""
    plan = plan_of(zero(overlap_step=True), ranks=2)
    optimizer = machine().host.cpu_optimizer
    assert update_threads(plan) == plan.places.threads - ceil(plan.places.threads / 2)
    threads = update_threads(plan) * optimizer.thread.value
    rate = int((threads**-2 + (optimizer.limit.value / 2) ** -2) ** -0.5)
    numel = sum(tensor.slice_numel for tensor in plan.parameters.tensors)
    assert update_s(plan) == pytest.approx((28 + 8) * numel / rate)
    old = plan_of(zero(overlap_step=True), ranks=2, version="0.17.7")
    assert update_s(old) == pytest.approx((28 + 16) * numel / rate)


@pytest.mark.parametrize(
    ("threads", "share", "left"),
    [(64, 0.5, 32), (7, 0.5, 3), (6, 0.1, 5), (6, 0.0, 6), (6, 1.0, 6), (1, 0.5, 1)],
)
def test_cores_are_reserved_rounded_up(threads: int, share: float, left: int) -> None:
    plan = plan_of(zero(overlap_step=True, pt_reserved_cores_perc=share), places={"cpu_threads": threads})
    assert update_threads(plan) == left


def waits(plan: Any, elapsed_s: float) -> int:
    one = part(plan, "optimizer")._replace(elapsed_s=elapsed_s)
    (op,) = [op for op, _ in operations(plan.schedule(one)) if op.kind == "wait"]
    return op.fixed


def test_what_is_left_of_an_update_is_waited_for() -> None:
    plan = plan_of(zero(overlap_step=True))
    whole = update_s(plan)
    assert waits(plan, 0.0) == round(whole * 1e12)
    assert waits(plan, 0.25 * whole) == round(0.75 * whole * 1e12)
    assert waits(plan, whole) == 0
    assert waits(plan, 2 * whole) == 0


def test_the_simulation_says_how_long_the_other_parts_took() -> None:
    """No thread is left but one, so that every step waits: the other parts and the wait are the update."""
    slow = {"cpu_threads": 32}
    config = zero(interval=1, overlap_step=True, pt_reserved_cores_perc=0.95)
    result = simulated(config, places=slow, model=LARGE, gradient_accumulation_steps=2)
    plan = plan_of(config, places=slow, model=LARGE, gradient_accumulation_steps=2)
    (update,) = [phase for phase in result.phases if phase.result.name == "optimizer"]
    others = sum(
        float(phase.times / update.times) * phase.result.time_s
        for phase in result.phases
        if phase is not update
    )
    waiting = waited(update.result)
    assert waiting == pytest.approx(update_s(plan) - others, rel=1e-9)
    assert waiting > 0
    assert [phase.result.name for phase in result.phases][-2:] == ["optimizer", "selected columns"]


def test_selection_by_hand() -> None:
    """Weights are cast on the GPU and go to the host in single precision; magnitudes take three passes."""
    plan = plan_of(zero(select_strategy="step", select_interval=8))
    one = part(plan, "selection of columns")
    sizes = moved(plan, one)
    assert sizes["GPU to host, pageable"] == 4 * NUMEL
    assert sizes["CPU casts and scaling"] == 12 * NUMEL
    traffic = (2 + 4) * NUMEL + 3 * 2 * MATRICES
    assert gpu_ps(plan, one.title, "reduce") == pytest.approx(
        traffic / machine().accelerator.hbm_rate * 1e12, rel=1e-6
    )
    assert MATRICES == 3 * LAYER + 512_000


# -- what DeepSpeed stops at, and what is told --------------------------------------------------

STORAGE = {"offload_optimizer": {"device": "nvme"}, "sub_group_size": 700_000}
RAID = {"platform": "xinnor-workstation", "places": {"optimizer": "raid"}}
WIDE = {"hidden_size": 1024, "intermediate_size": 2048}


@pytest.mark.parametrize(
    ("config", "more", "text"),
    [
        ({**zero(3, overlap_step=True), **STORAGE}, {**RAID, "model": WIDE}, "no overlap_grad"),
        ({**zero(3, full_warm_up_rounds=2), **STORAGE}, {**RAID, "model": WIDE}, "later selection"),
        ({**zero(offload=True)}, {}, "overlap_comm"),
        (
            {**zero(3), "offload_optimizer": {**CPU, "ratio": 0.5}, "sub_group_size": 400_000},
            {},
            "never updates the sub-groups",
        ),
        ({**zero(3), "offload_param": {"device": "cpu"}}, {"version": "0.19.1"}, "before 0.19.2"),
        ({**zero(select_interval=8)}, {}, 'select_strategy "auto" stops'),
        ({**zero(select_strategy="step")}, {}, "needs a number"),
        ({**zero(select_strategy="step", select_interval=3)}, {}, "less than update_interval 4"),
        ({**zero(), "offload_optimizer": {"device": "none"}}, {}, "ZenFlow needs the optimizer"),
    ],
)
def test_refused(config: Mapping[str, Any], more: Mapping[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        plan_of(config, **more)


def test_what_is_told() -> None:
    assert plan_of(zero(), gradient_accumulation_steps=4).warnings == ()
    (interval,) = plan_of(zero(), gradient_accumulation_steps=1).warnings
    assert "every 4 micro-steps" in interval
    (auto,) = plan_of(zero(interval="auto"), gradient_accumulation_steps=4).warnings
    assert "4 micro-steps are assumed" in auto
    (warm,) = plan_of(zero(full_warm_up_rounds=3), gradient_accumulation_steps=4).warnings
    assert "first 3 micro-steps" in warm
    odd = zero(select_strategy="step", select_interval=6)
    (selections,) = plan_of(odd, gradient_accumulation_steps=4).warnings
    assert "not a multiple of update_interval 4" in selections
