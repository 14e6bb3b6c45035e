"""ZeRO-3's search for overflow in float16: when it runs, how long it takes, and what it allocates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simoffload.hardware import Machine
from simoffload.models import load_model
from simoffload.results.capacity import MemoryStage, peak_uses
from simoffload.strategies.programs.zero_training import ZeroTrainingPlan
from simoffload.strategies.training.memory import OVERFLOW_CHECK
from tests.strategies.training.memory_cases import account, sizes
from tests.strategies.training.mode_cases import (
    BIG,
    BIG_NUMEL,
    CPU,
    NUMEL,
    machine,
    moved,
    moved_in_cycle,
    operations,
    part,
    plan_of,
    timeline,
)

NVME = {"device": "nvme", "pin_memory": True, "buffer_count": 12}
ZENFLOW = {"topk_ratio": 0.1, "update_interval": 2}
CHECK = "CPU overflow check"
HALF = {"dtype": "float16"}
OPT_NUMEL = 1_418_715_136
"""Elements of OPT-1.3B with an output layer of its own."""


def stage_3(**zero: Any) -> dict[str, Any]:
    return {"stage": 3, "sub_group_size": 4_000_000, "stage3_param_persistence_threshold": 0, **zero}


MODES = {
    "cpu": stage_3(offload_optimizer=CPU),
    "parameters": stage_3(offload_optimizer=CPU, offload_param=CPU),
    "nvme": stage_3(offload_optimizer=NVME),
    "pipelined": stage_3(offload_optimizer={**NVME, "pipeline_read": True, "pipeline_write": True}),
    "ratio": stage_3(offload_optimizer={**CPU, "ratio": 0.5}),
    "super_offload": stage_3(offload_optimizer={**CPU, "super_offload": True}),
    "zenflow": stage_3(offload_optimizer=CPU, zenflow={**ZENFLOW, "overlap_step": False}),
    "overlapped zenflow": stage_3(offload_optimizer=CPU, zenflow={**ZENFLOW, "overlap_step": True}),
}


def seconds(plan: ZeroTrainingPlan) -> float:
    """Of the optimizer step, long after another process began the last update."""
    optimizer = next(one for one in plan.parts if one.title == "optimizer")
    return timeline(plan, optimizer._replace(elapsed_s=1.0)).makespan * 1e-12


def check_s(numel: int, *, ranks: int = 1, on: Machine | None = None, threads: int = 0) -> float:
    """Twelve bytes of memory traffic for each gradient, at the rate of the check, and the turns that its five
    parallel regions wait for."""
    cpu = (on or machine()).host.cpu_optimizer
    threads = threads or cpu.cores.value
    turns = 5 * cpu.turns_s(threads, processes=ranks)
    return turns + 12 * numel / ranks / cpu.overflow_check_rate(threads, processes=ranks)


# -- when it runs -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_float16_takes_longer_than_bfloat16_by_the_check(mode: str, ranks: int) -> None:
    half, brain = (
        plan_of(MODES[mode], ranks=ranks, model={**BIG, "dtype": dtype}) for dtype in ("float16", "bfloat16")
    )
    expected = check_s(BIG_NUMEL, ranks=ranks, threads=brain.places.threads)
    assert expected > 1e-3
    assert seconds(half) - seconds(brain) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_the_check_runs_once_per_update_whatever_the_accumulation(mode: str) -> None:
    plan = plan_of(MODES[mode], model=HALF, gradient_accumulation_steps=4)
    assert moved_in_cycle(plan)[CHECK] == 12 * NUMEL
    assert moved(plan, part(plan, "optimizer"))[CHECK] == 12 * NUMEL


def test_the_check_precedes_all_other_work_of_the_cpu() -> None:
    plan = plan_of(MODES["cpu"], model=HALF)
    on_cpu = [op.label for op, _ in operations(plan.schedule(part(plan, "optimizer"))) if op.kind == "cpu"]
    assert on_cpu[0] == CHECK
    assert on_cpu.count(CHECK) == 1


def test_gradients_in_single_precision_are_checked_too() -> None:
    """8 B for the magnitudes, twice 4 + 1 B for comparisons, and 2 B that ``any()`` reads; as fast."""
    config = {"data_types": {"grad_accum_dtype": "fp32"}}
    plan = plan_of(MODES["cpu"], model=HALF, config=config)
    assert moved(plan, part(plan, "optimizer"))[CHECK] == 20 * NUMEL
    half, brain = (
        plan_of(MODES["cpu"], model={**BIG, "dtype": dtype}, config=config)
        for dtype in ("float16", "bfloat16")
    )
    assert seconds(half) - seconds(brain) == pytest.approx(check_s(BIG_NUMEL), rel=1e-3)


@pytest.mark.parametrize(("stage", "dtype"), [(1, "float16"), (2, "float16"), (3, "bfloat16")])
def test_other_stages_and_types_have_no_such_check(stage: int, dtype: str) -> None:
    plan = plan_of({"stage": stage, "offload_optimizer": CPU}, model={"dtype": dtype})
    assert CHECK not in moved_in_cycle(plan)


@pytest.mark.parametrize(
    ("version", "dtypes"),
    [
        ("0.9.3", []),
        ("0.9.4", ["float16", "bfloat16"]),
        ("0.11.1", ["float16", "bfloat16"]),
        ("0.11.2", ["float16"]),
        ("0.19.8", ["float16"]),
    ],
)
def test_versions_of_deepspeed_that_check_in_the_step(version: str, dtypes: list[str]) -> None:
    """Pull requests 3622 and 4512."""
    plans = {
        dtype: plan_of(MODES["cpu"], version=version, model={"dtype": dtype})
        for dtype in ("float16", "bfloat16")
    }
    assert [dtype for dtype, plan in plans.items() if CHECK in moved_in_cycle(plan)] == dtypes


@pytest.mark.parametrize(("enabled", "checks"), [("fp16", True), ("bf16", False)])
def test_the_type_that_deepspeed_enables_decides(enabled: str, checks: bool) -> None:
    plans = [
        plan_of(MODES["cpu"], model={"dtype": dtype}, config={enabled: {"enabled": True}})
        for dtype in ("float16", "bfloat16")
    ]
    assert [CHECK in moved_in_cycle(plan) for plan in plans] == [checks, checks]


def test_without_offload_the_gpu_checks() -> None:
    half, brain = (plan_of(stage_3(), ranks=2, model={"dtype": dtype}) for dtype in ("float16", "bfloat16"))
    busy = [
        sum(op.fixed for op, _ in operations(plan.schedule(part(plan, "optimizer"))) if op.kind == "update")
        for plan in (half, brain)
    ]
    assert busy[0] - busy[1] == pytest.approx(12 * NUMEL / 2 / half.machine.accelerator.hbm_rate * 1e12)
    assert CHECK not in moved_in_cycle(half)


# -- how fast it is -----------------------------------------------------------------------------


def measured(thread: str, limit: str) -> Machine:
    """The machine with measured rates of the check."""
    host = machine().host
    optimizer = host.cpu_optimizer
    stated = {"origin": "measured", "source": "a test", "date": "2026-11-22"}
    rates = {"overflow_thread": {"value": thread, **stated}, "overflow_limit": {"value": limit, **stated}}
    found = type(optimizer).model_validate({**optimizer.model_dump(mode="json", exclude_none=True), **rates})
    return replace(machine(), host=host.model_copy(update={"cpu_optimizer": found}))


def test_threads_and_processes_share_measured_rates() -> None:
    """Cores are the limit, not the memory of a NUMA node: a process has all, and each of four a quarter."""
    optimizer = measured("2 GB/s", "40 GB/s").host.cpu_optimizer
    assert optimizer.numa_nodes.value == 8
    assert optimizer.overflow_check_rate(1) == pytest.approx((2e9**-2 + 40e9**-2) ** -0.5)
    assert optimizer.overflow_check_rate(10, processes=4) == pytest.approx((20e9**-2 + 10e9**-2) ** -0.5)
    assert optimizer.rate(1) == machine().host.cpu_optimizer.rate(1)


def test_measured_rates_decide_the_time() -> None:
    plan = plan_of(MODES["cpu"], model={**BIG, **HALF})
    slow = replace(plan, machine=measured("0.2 GB/s", "2 GB/s"))
    expected = check_s(BIG_NUMEL, on=slow.machine) - check_s(BIG_NUMEL)
    assert seconds(slow) - seconds(plan) == pytest.approx(expected, rel=1e-6)


def test_hosts_without_a_measurement_check_at_shares_of_the_rate_of_adam() -> None:
    """On a host of 16 cores as those on which the shares were measured, a gradient takes 0.62 ns of all of
    them (0.68 to 0.99 there), and 5.1 ns of one (4.9 to 8.7)."""
    optimizer = machine().host.cpu_optimizer
    assert optimizer.overflow_thread is None
    assert optimizer.overflow_limit is None
    known = {"thread": 28.28e9, "cores": 16}
    rates = {key: getattr(optimizer, key).model_copy(update={"value": one}) for key, one in known.items()}
    measured_on = optimizer.model_copy(update=rates)
    assert 12 / measured_on.overflow_check_rate(16) == pytest.approx(0.62e-9, rel=0.02)
    assert 12 / measured_on.overflow_check_rate(1) == pytest.approx(5.13e-9, rel=0.01)
    assert measured_on.overflow_check_rate(4, processes=4) == pytest.approx(
        measured_on.overflow_check_rate(16) / 4, rel=1e-6
    )


# -- what it allocates --------------------------------------------------------------------------


def run(zero: dict[str, Any], **more: Any) -> tuple[MemoryStage, ...]:
    name = more.pop("dtype", "float16")
    model = load_model({"name": "opt-1.3b", "dtype": name, "tie_word_embeddings": False})
    return account(model, zero, **more)[1]


def check_of(stages: tuple[MemoryStage, ...], tier: str) -> int:
    (index,) = (index for index, stage in enumerate(stages) if stage.name == OVERFLOW_CHECK)
    return sizes(stages, tier, index).get("temporary copies in the overflow check", 0)


@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("optimizer", ["dram", "raid"])
def test_three_bytes_per_gradient_of_all_ranks_in_host_memory(ranks: int, optimizer: str) -> None:
    stages = run(stage_3(offload_optimizer=CPU), ranks=ranks, optimizer=optimizer)
    assert check_of(stages, "dram") == pytest.approx(3 * OPT_NUMEL, rel=1e-4)
    assert check_of(stages, "hbm") == 0


def test_without_offload_three_bytes_per_gradient_of_the_rank_in_its_gpu() -> None:
    stages = run(stage_3(), ranks=8)
    assert check_of(stages, "hbm") == pytest.approx(3 * OPT_NUMEL / 8, rel=1e-4)
    assert check_of(stages, "dram") == 0


def test_the_check_and_the_work_on_a_sub_group_do_not_coexist() -> None:
    """The peak is the larger of both."""
    stages = run(stage_3(offload_optimizer=CPU), optimizer="dram")
    names = [stage.name for stage in stages]
    assert names == ["initialisation", "forward and backward", "overflow check", "optimizer step"]
    (dram,) = (use for use in peak_uses(stages[1:], machine().tiers) if use.tier == "dram")
    without = sum(sizes(stages, "dram", 1).values())
    assert dram.stage == OVERFLOW_CHECK
    assert dram.needed - without == 3 * OPT_NUMEL
    assert "temporary copies in the overflow check" not in sizes(stages, "dram", 3)


def test_bfloat16_has_no_such_stage() -> None:
    stages = run(stage_3(offload_optimizer=CPU), optimizer="dram", dtype="bfloat16")
    assert OVERFLOW_CHECK not in [stage.name for stage in stages]
