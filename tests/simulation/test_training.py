"""What holds for any training run: bounds, accounting, scaling, and which of two runs is the faster."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simoffload.documents import Document
from simoffload.engine import execute
from simoffload.errors import InputError
from simoffload.results.attribution import attribute
from simoffload.results.training import TrainingResult
from simoffload.scenario import LoadedScenario, resolve
from simoffload.simulation import simulate
from simoffload.strategies.plan import StepWork
from tests.engine.bounds import lower_bound, serial_time
from tests.engine.generated import slowed
from tests.examples import some

LLAMA = {
    "family": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 8000,
    "dtype": "bfloat16",
}
PLATFORMS = {"dgx-a100": ("raid", 8), "h100-2nvme": ("nvme", 1), "l40s-workstation": ("gen5", 1)}


def scenario(zero: Any = None, *, platform: str = "dgx-a100", ranks: int = 1, **more: Any) -> LoadedScenario:
    strategy = {"kind": "deepspeed", "ranks": ranks}
    if zero is not None:
        strategy["ds_config"] = {"zero_optimization": zero, **more.pop("config", {})}
    strategy |= more.pop("strategy", {})
    model = {**LLAMA, **more.pop("model", {})}
    work = {"kind": "training", "batch_size": 1, "sequence_length": 128, **more}
    tree = {"name": "any", "model": model, "platform": platform, "workload": work, "strategy": strategy}
    return resolve(Document("", tree))


def step(zero: Any = None, **more: Any) -> TrainingResult:
    result = simulate(scenario(zero, **more))
    assert isinstance(result, TrainingResult)
    assert result.fits, result.advice
    return result


CPU = {"device": "cpu", "pin_memory": True}


# -- any run -------------------------------------------------------------------------------------------


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    family = draw(st.sampled_from(["llama", "opt", "bloom", "mixtral"]))
    hidden = draw(st.sampled_from([128, 1024]))
    wide = {"opt": "ffn_dim", "llama": "intermediate_size", "mixtral": "intermediate_size"}
    shape = {
        "family": family,
        "hidden_size": hidden,
        "num_hidden_layers": draw(st.integers(1, 4)),
        "num_attention_heads": 8,
        "vocab_size": draw(st.sampled_from([1000, 20_000])),
        "dtype": draw(st.sampled_from(["bfloat16", "float32"])),
        "attention": None if family == "bloom" else draw(st.sampled_from(["eager", "sdpa"])),
    }
    return shape | ({wide[family]: 3 * hidden} if family in wide else {})


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Any]:
    platform = draw(st.sampled_from(list(PLATFORMS)))
    storage, gpus = PLATFORMS[platform]
    stage = draw(st.sampled_from([0, 1, 2, 3, 3, 3]))
    optimizer = draw(st.sampled_from({0: ["hbm"], 3: ["hbm", "dram", storage]}.get(stage, ["hbm", "dram"])))
    weights = draw(st.sampled_from(["hbm", "dram", storage] if stage == 3 else ["hbm"]))
    if weights == storage and optimizer == "hbm":
        weights = "dram"
    zero = {
        "stage": stage,
        "sub_group_size": draw(st.sampled_from([10**5, 10**7, 10**9])),
        "reduce_bucket_size": draw(st.sampled_from([10**5, 10**7, 5 * 10**8])),
        "stage3_prefetch_bucket_size": draw(st.sampled_from([0, 10**6, 5 * 10**7])),
        "stage3_param_persistence_threshold": draw(st.sampled_from([0, 10**5])),
        "stage3_max_reuse_distance": draw(st.sampled_from([0, 10**7, 10**9])),
        "overlap_comm": draw(st.booleans()),
        "offload_param": {
            "buffer_count": draw(st.sampled_from([8, 60])),
            "buffer_size": 10**8,
            "max_in_cpu": draw(st.sampled_from([0, 10**9])),
            "pin_memory": draw(st.booleans()),
        },
        "offload_optimizer": {
            "buffer_count": 12,
            "pin_memory": draw(st.booleans()),
            "pipeline_read": draw(st.booleans()),
            "pipeline_write": draw(st.booleans()),
            "ratio": draw(st.sampled_from([0.4, 1.0])) if stage == 3 else 1.0,
        },
    }
    return {
        "platform": platform,
        "model": draw(shapes()),
        "workload": {
            "kind": "training",
            "batch_size": draw(st.integers(1, 3)),
            "sequence_length": draw(st.sampled_from([1, 64, 1000])),
            "gradient_accumulation_steps": draw(st.sampled_from([1, 2, 4])),
            "gradient_checkpointing": draw(st.booleans()),
            "use_reentrant": draw(st.booleans()),
        },
        "strategy": {
            "kind": "deepspeed",
            "ranks": draw(st.integers(1, gpus)),
            "weights": weights,
            "optimizer": optimizer,
            "deepspeed_version": draw(st.sampled_from(["0.16.4", "0.18.3", "0.19.8"])),
            "ds_config": {
                "zero_optimization": zero,
                "data_types": {"grad_accum_dtype": draw(st.sampled_from([None, "fp32"]))},
                "aio": {"intra_op_parallelism": draw(st.sampled_from([1, 4]))},
            },
        },
    }


def planned(run: dict[str, Any]) -> StepWork:
    try:
        return resolve(Document("", {"name": "any", **run})).plan()
    except InputError as error:  # as DeepSpeed would
        assume(not any("Not enough buffers" in problem.message for problem in error.problems))
        raise


@settings(max_examples=some(20))
@given(run=runs())
def test_every_part_is_bounded_accounted_for_and_repeatable(run: dict[str, Any]) -> None:
    plan = planned(run)
    for part in plan.parts:
        schedule = plan.schedule(part)
        timeline = execute(schedule)
        # Sharing rounds rates down to whole B/s, which serial times do not.
        assert lower_bound(schedule) <= timeline.makespan <= serial_time(schedule) * 1.001
        assert sum(attribute(timeline).exposed.values()) == timeline.makespan
        assert execute(plan.schedule(part)).all_operations.end == timeline.all_operations.end


@settings(max_examples=some(10))
@given(run=runs())
def test_half_the_rates_and_double_the_waits_take_twice_as_long(run: dict[str, Any]) -> None:
    plan = planned(run)
    for part in plan.parts:
        schedule = plan.schedule(part)
        twice = 2 * execute(schedule).makespan
        assert execute(slowed(schedule, 2)).makespan == pytest.approx(twice, rel=1e-6)


@settings(max_examples=some(10))
@given(run=runs())
def test_ranks_do_the_same_and_links_carry_what_they_move(run: dict[str, Any]) -> None:
    """Every byte of an operation crosses every hop of its route, in proportion to the hop's share."""
    plan = planned(run)
    for part in plan.parts:
        schedule = plan.schedule(part)
        timeline = execute(schedule)
        carried = [0.0] * len(schedule.links)
        for block in schedule.blocks:
            for op in block.ops:
                if op.route >= 0:
                    for hops in schedule.routes[op.route].hops:
                        for link, share in hops:
                            scale = schedule.links[link].scale
                            carried[link] += block.repeat * op.size * float(share) / scale
        assert list(timeline.link_bytes) == pytest.approx(carried, rel=1e-6, abs=len(schedule.links))


# -- whole results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_steps", [1, 2, 5])
def test_a_step_is_the_sum_of_its_phases(micro_steps: int) -> None:
    result = step({"stage": 3, "offload_optimizer": CPU}, gradient_accumulation_steps=micro_steps, ranks=2)
    assert result.step is not None
    assert result.step_s == pytest.approx(result.forward_s + result.backward_s + result.optimizer_s)
    assert result.step.time_s == pytest.approx(result.step_s)
    assert sum(share.exposed_s for share in result.step.shares) == pytest.approx(result.step_s)
    assert result.samples_per_s * result.step_s == pytest.approx(2 * micro_steps)
    assert result.tokens_per_s * result.per_token_s == pytest.approx(1)
    assert result.step.bound_s <= result.step_s


def test_utilization_counts_forward_and_backward_and_hardware_counts_what_is_done_again() -> None:
    plain = step({"stage": 3}, gradient_checkpointing=False)
    again = step({"stage": 3}, gradient_checkpointing=True)
    assert plain.hardware_tflops_per_gpu == plain.tflops_per_gpu
    assert plain.tflops_per_gpu * plain.step_s == pytest.approx(again.tflops_per_gpu * again.step_s)
    ratio = again.hardware_tflops_per_gpu / again.tflops_per_gpu
    once = again.forward_flops + again.backward_flops
    assert ratio == pytest.approx((once + again.recomputed_flops) / once)
    assert 2 <= again.backward_flops / again.forward_flops < 2.5
    assert again.step_s > plain.step_s


def test_bytes_between_host_and_gpu_of_a_whole_step() -> None:
    """Per rank down 2 n + 4 B, up 2 n B, and 2 B of updated parameters, over its own PCIe link."""
    micro_steps, ranks = 3, 2
    result = step(
        {"stage": 3, "offload_optimizer": CPU}, gradient_accumulation_steps=micro_steps, ranks=ranks
    )
    sizes = {share.cause_text: share.size for share in result.step.shares}
    numel = result.parameters
    assert sizes["GPU to host"] == (2 * micro_steps + 4) * numel
    assert sizes["host to GPU"] == 2 * micro_steps * numel
    assert sizes["host to GPU, pageable"] == 2 * numel
    assert sizes["CPU Adam"] == 28 * numel
    assert sizes["CPU casts and scaling"] == 16 * numel
    links = {use.link: use.size for use in result.step.links}
    assert links["plx0 -> gpu0"] == (2 * micro_steps + 2) * numel // ranks
    assert links["gpu0 -> plx0"] == (2 * micro_steps + 4) * numel // ranks


# -- which of two is faster ----------------------------------------------------------------------------


BIG = {"hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 4, "vocab_size": 32_000}


def test_the_farther_the_states_the_longer_the_step() -> None:
    """Parameters in host memory may even help: what the CPU updated there need not be sent at once."""
    swapped = {"max_in_cpu": 0, "buffer_size": 2e8, "buffer_count": 20}
    on_gpu, in_memory, both, optimizer, everything = (
        step({"stage": 3, **zero}, model=BIG, strategy=places).step_s
        for zero, places in (
            ({}, {}),
            ({"offload_optimizer": CPU}, {}),
            ({"offload_optimizer": CPU, "offload_param": CPU}, {}),
            ({"offload_param": CPU}, {"optimizer": "raid"}),
            (
                {"stage3_max_reuse_distance": 0, "offload_param": {**CPU, **swapped}},
                {"weights": "raid", "optimizer": "raid"},
            ),
        )
    )
    assert 5 * on_gpu < min(in_memory, both)
    assert max(in_memory, both) < optimizer < everything


@pytest.mark.parametrize("micro_steps", [1, 4])
def test_stage_2_offloads_with_less_copying_than_stage_3(micro_steps: int) -> None:
    """Stage 3 sends every gradient down and up once more, and hooks every module."""
    second, third = (
        step({"stage": stage, "offload_optimizer": CPU}, model=BIG, gradient_accumulation_steps=micro_steps)
        for stage in (2, 3)
    )
    assert second.step_s < third.step_s
    moved = [
        sum(
            share.size
            for share in one.step.shares
            if "host" in share.cause_text and "GPU" in share.cause_text
        )
        for one in (second, third)
    ]
    assert moved[0] < moved[1]


def test_a_faster_link_a_larger_batch_and_more_threads_help() -> None:
    zero = {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU}
    one = step(zero, model=BIG)
    assert step(zero, model=BIG, batch_size=8).tokens_per_s > 4 * one.tokens_per_s
    few, many = (step(zero, model=BIG, strategy={"cpu_threads": threads}) for threads in (1, 32))
    assert few.optimizer_s > 1.5 * many.optimizer_s
    assert few.forward_s == many.forward_s
    newer = step(zero, model=BIG, platform="dgx-h200")
    assert newer.forward_s < one.forward_s


def test_accumulation_spares_updates() -> None:
    zero = {"stage": 3, "offload_optimizer": CPU}
    one, four = (step(zero, model=BIG, gradient_accumulation_steps=count) for count in (1, 4))
    assert four.optimizer_s == pytest.approx(one.optimizer_s)
    assert four.forward_s == pytest.approx(4 * one.forward_s)
    assert four.tokens_per_s > one.tokens_per_s


def test_transformers_moves_what_stage_0_does_and_is_launched_without_deepspeed() -> None:
    """Kernels and the update are PyTorch's own; copies and collectives are the same."""
    copies, stage_0 = step(strategy={"kind": "transformers"}, ranks=2), step({"stage": 0}, ranks=2)
    of_copies, of_stage_0 = (
        {
            (phase.name, cause.cause_text): cause.busy_ps
            for phase in one.phases
            for cause in phase.result.shares
        }
        for one in (copies, stage_0)
    )
    launched = {("forward", "host thread"), ("backward", "host thread")}
    changed = {key for key in of_stage_0 if of_copies[key] != of_stage_0[key]}
    own = ("host thread", "GPU compute", "gradients on the GPU", "optimizer on the GPU")
    assert launched < changed
    assert {key for key in changed if key[1] not in own} == set()
    assert {key for key in of_stage_0 if key[1] not in own}, "something is the same"
    host = scenario().machine.host
    least = host.eager_costs.operation.value / host.deepspeed.operation.value  # were all of it launches
    assert all(least < of_copies[key] / of_stage_0[key] < 0.7 for key in launched)


def test_what_does_not_fit_has_no_times() -> None:
    result = simulate(scenario({"stage": 3}, model={"num_hidden_layers": 400, "hidden_size": 8192}))
    assert isinstance(result, TrainingResult)
    assert not result.fits
    assert result.phases == ()
    assert (result.step_s, result.step, result.tokens_per_s, result.tflops_per_gpu) == (None,) * 4
    assert result.forward_flops > 0
