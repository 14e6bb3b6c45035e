"""FSDP: its runtime's order as in real runs of PyTorch, bytes in closed form, and memory by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simoffload.documents import Document
from simoffload.engine import execute
from simoffload.errors import InputError
from simoffload.extensions.programs.fsdp import ROOT, Fsdp, FsdpPlan, FsdpRuntime, FsdpSink, FsdpUnits
from simoffload.hardware import Machine, Provenance, TimeInput, input_sources, load_platform
from simoffload.models import load_model
from simoffload.scenario import read_scenario, resolve
from simoffload.schedule import Schedule
from simoffload.simulation import simulate
from simoffload.strategies.base import memory_stages
from simoffload.workload import Training
from tests.engine.bounds import lower_bound, serial_time
from tests.examples import some
from tests.strategies.training.make_fsdp_traces import CASES, LAYERS, TARGETS, Case
from tests.strategies.training.mode_cases import carried

DATA = Path(__file__).parent / "data"
SMALL = {
    "family": "llama",
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "vocab_size": 1001,
}
# Four square matrices, three of the feed-forward network, two norms; embedding, output layer, last norm.
LAYER = 4 * 64**2 + 3 * 64 * 176 + 2 * 64
REST = 2 * 1001 * 64 + 64


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_platform("dgx-a100").machine()


def plan_of(machine: Machine, *, model: Any = None, **reported: Any) -> FsdpPlan:
    work = {name: reported.pop(name) for name in list(reported) if name in Training.model_fields}
    workload = Training(kind="training", **{"batch_size": 1, "sequence_length": 32, **work})
    return Fsdp(**{"ranks": 4, **reported}).plan(load_model(model or SMALL), workload, machine)


# -- the runtime against PyTorch -------------------------------------------------------------------


class Log(FsdpSink):
    """The runtime's calls in the words of the recorded runs."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def _say(self, what: str, unit: int) -> None:
        name = "root" if unit == ROOT else str(unit)
        if unit >= LAYERS:
            layer, number = divmod(unit - LAYERS, 4)
            name = f"{layer}.{TARGETS[number // 2]}.lora_{'AB'[number % 2]}"
        self.lines.append(f"{what} {name}")

    def unshard(self, unit: int) -> None:
        self._say("unshard", unit)

    def limit(self, event: int) -> None:  # noqa: ARG002
        self.lines.append("limit")

    def gather(self, unit: int) -> None:
        self._say("gather", unit)

    def need(self, unit: int) -> None: ...

    def free(self, unit: int) -> int:
        self._say("free", unit)
        return len(self.lines)

    def reduce(self, unit: int) -> None:
        self._say("reduce", unit)


def replayed(case: Case, *, offload: bool) -> list[str]:
    """The third step; waits for memory of earlier steps count, too, as the recorder sees them."""
    log = Log()
    settings = Fsdp(
        ranks=case.ranks,
        cpu_offload=offload,
        backward_prefetch=case.prefetch,  # type: ignore[arg-type]
        limit_all_gathers=case.limit,
        reshard_after_forward=case.reshard,
    )
    inside = [[LAYERS + 4 * layer + one for one in range(4)] for layer in range(LAYERS)]
    runtime = FsdpRuntime(
        layers=LAYERS,
        settings=settings,
        inside=inside if case.adapters else (),
        ended=[3] * LAYERS if case.adapters else (),
    )
    runtime.begin(log)
    for _ in range(3):
        log.lines.clear()
        for index in range(case.micro_steps):
            runtime.micro_step(boundary=index == case.micro_steps - 1)
    return log.lines


@pytest.mark.parametrize("name", CASES)
def test_the_runtime_does_what_pytorchs_did(name: str) -> None:
    lines = (DATA / f"{name}.txt").read_text().splitlines()
    recorded = [line for line in lines if line.partition(" ")[0] not in ("compute", "backward", "end")]
    # PyTorch calls the hook of a unit that is whole, too, which then copies only if shards are offloaded.
    assert replayed(CASES[name], offload=True) == recorded


def test_without_offloading_what_is_whole_is_not_cast_again() -> None:
    case = CASES["fsdp-grad-op"]
    copied = Counter(replayed(case, offload=True)) - Counter(replayed(case, offload=False))
    assert copied == Counter(f"unshard {unit}" for unit in ["root", *range(LAYERS)])


# -- bytes -----------------------------------------------------------------------------------------


def slices(ranks: int) -> list[int]:
    return [-(-numel // ranks) for numel in (*[LAYER] * 6, REST)]


def moved_in_step(plan: FsdpPlan) -> Counter[str]:
    total: Counter[str] = Counter()
    for part in plan.parts:
        for name, size in carried(plan.schedule(part)).items():
            total[name] += int(part.times * size)
    return total


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("micro_steps", [1, 2, 5])
def test_bytes_of_a_step_with_offloading(machine: Machine, ranks: int, micro_steps: int) -> None:
    """Shards in single precision go to the GPU in forward and again in backward of every micro-step; their
    gradients go back once. Layers are gathered twice, the root once, and reduced once, in 16 bit."""
    plan = plan_of(machine, ranks=ranks, cpu_offload=True, gradient_accumulation_steps=micro_steps)
    all_slices = slices(ranks)
    expected = {
        "host to GPU": 2 * micro_steps * 4 * sum(all_slices),
        "GPU to host": 4 * sum(all_slices),
        "CPU AdamW of PyTorch": 80 * sum(all_slices),
    }
    if ranks > 1:
        gathered = 2 * sum(all_slices) - all_slices[-1]
        expected["all-gather"] = 2 * (ranks - 1) * micro_steps * gathered
        expected["reduction of gradients"] = 2 * (ranks - 1) * sum(all_slices)
    assert moved_in_step(plan) == expected


def test_bytes_without_offloading(machine: Machine) -> None:
    plan, all_slices = plan_of(machine), slices(4)
    assert moved_in_step(plan) == {
        "all-gather": 2 * 3 * (2 * sum(all_slices) - all_slices[-1]),
        "reduction of gradients": 2 * 3 * sum(all_slices),
    }


def test_the_models_own_type_halves_copies_and_adam(machine: Machine) -> None:
    plan = plan_of(machine, cpu_offload=True, mixed_precision=False)
    found, total = moved_in_step(plan), sum(slices(4))
    assert found["host to GPU"] == 2 * 2 * total
    assert found["GPU to host"] == 2 * total
    assert found["CPU AdamW of PyTorch"] == 40 * total


def test_kept_parameters_are_gathered_once_in_a_step(machine: Machine) -> None:
    plan = plan_of(machine, cpu_offload=True, reshard_after_forward=False, gradient_accumulation_steps=4)
    found, total = moved_in_step(plan), sum(slices(4))
    assert found["all-gather"] == 2 * 3 * total
    assert found["host to GPU"] == 2 * 4 * 4 * total, "copied all the same"
    assert [part.title for part in plan.parts][:2] == [
        "forward, first micro-step",
        "forward, later micro-steps",
    ]


# -- time ------------------------------------------------------------------------------------------


def streams(schedule: Schedule, name: str) -> Iterator[str]:
    stream = schedule.streams.index(name)
    for block in schedule.blocks:
        for _ in range(block.repeat):
            yield from (op.kind for op in block.ops if op.stream == stream)


@pytest.mark.parametrize(
    ("prefetch", "order"),
    [
        ("pre", "gather gather reduce gather reduce"),
        ("post", "gather gather reduce gather reduce"),
        ("none", "gather reduce gather reduce gather"),
    ],
)
def test_collectives_of_backward_queue_up_in_the_order_of_calls(
    machine: Machine, prefetch: str, order: str
) -> None:
    plan = plan_of(machine, backward_prefetch=prefetch)
    backward = plan.schedule(plan.parts[1])
    assert list(streams(backward, "comm"))[:5] == order.split()


def test_the_limiter_holds_back_what_is_more_than_two_gathers_ahead(machine: Machine) -> None:
    """Where computation takes longest, gathers run ahead without the limiter, and end early."""
    reported: dict[str, Any] = {"model": "opt-1.3b", "sequence_length": 2048, "batch_size": 16}

    def gathered(*, limit: bool) -> list[int]:
        plan = plan_of(machine, limit_all_gathers=limit, **reported)
        timeline = execute(plan.schedule(plan.parts[0]))
        blocks = timeline.schedule.blocks
        rows = zip(*timeline.all_operations, strict=True)
        return [
            end
            for rank, block, _, place, _, end in rows
            if blocks[block].ops[place].kind == "gather" and not rank
        ]

    limited, free = gathered(limit=True), gathered(limit=False)
    assert limited[:4] == free[:4]
    assert limited[4] > 1.5 * free[4]
    assert limited[-1] > 2 * free[-1]


@settings(max_examples=some(10))
@given(
    reported=st.fixed_dictionaries(
        {
            "ranks": st.sampled_from([1, 2, 4, 8]),
            "cpu_offload": st.booleans(),
            "backward_prefetch": st.sampled_from(["pre", "post", "none"]),
            "limit_all_gathers": st.booleans(),
            "reshard_after_forward": st.booleans(),
            "mixed_precision": st.booleans(),
            "gradient_accumulation_steps": st.sampled_from([1, 2, 3]),
            "gradient_checkpointing": st.booleans(),
            "sequence_length": st.sampled_from([1, 512]),
        }
    )
)
def test_time_lies_between_the_bounds(reported: dict[str, Any]) -> None:
    plan = plan_of(load_platform("dgx-a100").machine(), **reported)
    for part in plan.parts:
        schedule = plan.schedule(part)
        assert lower_bound(schedule) <= execute(schedule).makespan <= serial_time(schedule) * 1.001


def test_the_optimizers_time_is_its_bytes_over_rates_of_loops_and_of_new_pages(machine: Machine) -> None:
    plan = plan_of(machine, model="opt-1.3b", cpu_offload=True, cpu_threads=8)
    assert machine.host.fsdp is None, "loops run as elsewhere, pages come as where they were measured"
    loops = 80 / machine.host.cpu_optimizer.shared(8 * 2 * machine.host.memcpy_rate.value, 4)
    pages = 8 * ((8 * 1.808e9) ** -2 + 8.504e9**-2) ** 0.5
    makespan = execute(plan.schedule(plan.parts[-1])).makespan
    seconds = sum(plan.units.slices) * (loops + pages)
    assert makespan * 1e-12 == pytest.approx(seconds, rel=0.02), "and the calls of 25 flat parameters"


def test_a_host_without_costs_of_fsdp_is_said_to_have_anothers(machine: Machine, repository: Path) -> None:
    scaled, ranks = plan_of(machine, ranks=4).basis.extrapolations
    assert scaled == "host-thread costs of FSDP and its AdamW: scaled from another host's"
    assert ranks == "4 ranks on a host; costs of the host thread were measured with up to 2"
    folder = repository / "validation/measured/fit/h200-2x-l"
    own = load_platform(str(folder / "platform.yaml")).machine()
    assert plan_of(own, ranks=2).basis.extrapolations == ()
    assert own.host.fsdp_costs is own.host.fsdp
    operation = machine.host.deepspeed.operation.value
    assert machine.host.fsdp_costs.reduce.value == pytest.approx(12.27 * operation, rel=1e-3)


def test_the_host_thread_is_measured_where_costs_of_fsdp_are(repository: Path) -> None:
    """A machine on which only FSDP was measured knows its costs, and not those of DeepSpeed; on one where
    only DeepSpeed was, they are scaled."""

    def evidence(machine: Machine, costs: tuple[Provenance, ...]) -> str:
        return input_sources(machine, ranks=1, host_costs=costs)[TimeInput.HOST].evidence

    measured = repository / "validation/measured"
    fsdp = load_platform(str(measured / "fit/h200-2x-l/platform.yaml")).machine()
    deepspeed = load_platform(str(measured / "holdout/h200-o/platform.yaml")).machine()
    zero: Any = read_scenario("ddn/bloom-7b1").on("dram").plan()
    assert evidence(fsdp, plan_of(fsdp).basis.host_costs) == "own"
    assert evidence(fsdp, replace(zero, machine=fsdp).basis.host_costs) == "estimated"
    assert evidence(deepspeed, plan_of(deepspeed).basis.host_costs) == "estimated"
    assert evidence(deepspeed, replace(zero, machine=deepspeed).basis.host_costs) == "own"


# -- memory ----------------------------------------------------------------------------------------


def test_memory_of_a_run_with_offloading(machine: Machine) -> None:
    plan = plan_of(machine, cpu_offload=True)
    micro_step, step = ({term.name: term for term in moment.terms} for moment in memory_stages(plan))
    total = sum(slices(4))
    assert micro_step["parameters"].size == micro_step["gradients"].size == 4 * 4 * total
    assert micro_step["moments"].size == 4 * 8 * total
    assert micro_step["parameters"].pinned
    # Each flat parameter and gradient: LAYER / 4 elements of 4 B under 64 KiB, and the root's under 256 KiB.
    assert (LAYER, REST) == (50_304, 128_192)
    rounded = 6 * (65_536 - LAYER) + (131_072 - REST)
    assert micro_step["rounding of pinned allocations"].size == 2 * 4 * rounded
    assert micro_step["gathered parameters"].size == 2 * (REST + 3 * LAYER)
    assert micro_step["whole gradients"].size == 2 * (2 * REST + 3 * LAYER)
    assert step["temporaries of AdamW"].size == 4 * 2 * REST
    assert step["temporaries of AdamW"].tier == "dram"
    assert "whole gradients" not in step


def test_memory_of_a_run_on_the_gpu(machine: Machine) -> None:
    plan = plan_of(machine, ranks=8, gradient_accumulation_steps=2, limit_all_gathers=False)
    terms = {term.name: term for term in memory_stages(plan)[0].terms}
    total = sum(slices(8))
    assert [terms[name].size for name in ("parameters", "gradients", "moments")] == [
        4 * total,
        4 * total,
        8 * total,
    ]
    assert {terms[name].tier for name in ("parameters", "gradients", "moments")} == {"hbm"}
    assert terms["gathered parameters"].size == 2 * (REST + 6 * LAYER)
    assert terms["whole gradients"].size == 2 * (2 * REST + 3 * LAYER + REST + 6 * LAYER)


# -- as a scenario ---------------------------------------------------------------------------------


def scenario(**strategy: Any) -> dict[str, Any]:
    return {
        "name": "fsdp",
        "model": {**SMALL, "dtype": "bfloat16"},
        "platform": "dgx-a100",
        "workload": {"kind": "training", "batch_size": 1, "sequence_length": 32},
        "strategy": {"kind": "fsdp", "ranks": 2, **strategy},
    }


def test_a_scenario_is_simulated() -> None:
    result = simulate(resolve(Document("", scenario(cpu_offload=True))))
    assert (result.target, result.optimizer_target, result.ranks) == ("dram", "dram", 2)
    assert [phase.name for phase in result.phases] == ["forward", "backward", "optimizer"]
    assert result.traffic == ()
    assert sum(share.exposed_s for share in result.step.shares) == pytest.approx(result.step_s)


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        (
            {"workload": {"batch_size": 1, "prompt_length": 8, "output_length": 1}},
            "strategy.kind",
            "is not for",
        ),
        ({"checkpoint": {"tier": "raid", "interval_steps": 10}}, "checkpoint", "are not modelled"),
    ],
)
def test_what_it_is_not_for_is_refused(change: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate(resolve(Document("", {**scenario(), **change})))
    (problem,) = caught.value.problems
    assert (problem.key, message in problem.message) == (key, True)


# -- adapters --------------------------------------------------------------------------------------

QLORA = {"r": 4, "target_modules": ("q_proj",)}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_layers_are_gathered_and_gradients_of_adapters_reduced(
    machine: Machine, checkpointing: bool
) -> None:
    """Frozen layers of 4 bits in elements of 16 bits, without their scales, twice a step; each matrix of an
    adapter in forward, in recomputation and in backward; the root once."""
    model = {**SMALL, "dtype": "bfloat16", "quantization": "nf4-dq"}
    plan = plan_of(machine, model=model, ranks=2, lora=QLORA, gradient_checkpointing=checkpointing)
    layer = (LAYER - 2 * 64) // 4 + 2 * 64
    adapter = 4 * 64
    passes = 3 if checkpointing else 2
    gathered = 6 * (2 * layer + 2 * passes * adapter) // 2 + -(-REST // 2)
    assert moved_in_step(plan) == {
        "all-gather": 2 * gathered,
        "reduction of gradients": 2 * 6 * 2 * adapter // 2,
    }


@pytest.mark.parametrize("targets", [("q_proj",), ("q_proj", "down_proj")])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_schedule_gathers_in_the_order_of_the_runtime(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, targets: tuple[str, ...], checkpointing: bool
) -> None:
    plan = plan_of(machine, lora={"r": 4, "target_modules": targets}, gradient_checkpointing=checkpointing)
    written: list[int] = []
    gather = FsdpUnits.gather

    def noted(self: FsdpUnits, unit: int) -> None:
        written.append(unit)
        gather(self, unit)

    monkeypatch.setattr(FsdpUnits, "gather", noted)
    for part in plan.parts[:2]:
        plan.schedule(part)

    class Gathers(FsdpSink):
        def gather(self, unit: int) -> None:
            replayed.append(unit)

    replayed: list[int] = []
    runtime = plan.runtime(plan.parts[0])
    runtime.begin(Gathers())
    runtime.micro_step(boundary=True)
    assert written == replayed
    assert len(replayed) > 2 * 6 * len(targets) * 2


def test_memory_of_adapters_by_hand(machine: Machine) -> None:
    """Only shards of adapters are in single precision, and have gradients and moments."""
    model = {**SMALL, "dtype": "bfloat16", "quantization": "nf4-dq"}
    held = {one.name: one.size for one in plan_of(machine, model=model, ranks=2, lora=QLORA).held}
    matrices = LAYER - 2 * 64
    layer, adapters = matrices // 4 + 2 * 64, 6 * 2 * 4 * 64 // 2
    assert held["parameters"] == 2 * 6 * layer // 2 + 2 * -(-REST // 2) + 4 * adapters
    assert held["gradients"] == 4 * adapters
    assert held["moments"] == 8 * adapters
    assert held["a matrix in 16 bit, made for its use"] == 2 * 64 * 176
    # A byte for 64 weights, 4 for 256 of these, and tables of 64, 1024 and 4 bytes for each of 7 matrices.
    scales = matrices // 64 + 4 * (4 * 1 + 3 * 1) + 7 * (64 + 1024 + 4)
    assert held["scales of quantized weights"] == 6 * scales


def test_adapters_outside_of_the_layers_are_refused(machine: Machine) -> None:
    with pytest.raises(InputError, match=r"outside of the layers .*lm_head"):
        plan_of(machine, lora={"r": 4, "target_modules": ("lm_head",)})
