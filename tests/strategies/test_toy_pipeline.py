"""A strategy of two programs on two GPUs and a CPU, in this file alone, works in every command."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

import simoffload as so
from simoffload.cli import main
from simoffload.hardware import Machine
from simoffload.models import ModelShape, Module, Sequences
from simoffload.schedule import Cause, Dependency, Device, Op, Program, Schedule
from simoffload.schedule.builder import ScheduleBuilder, cpu_work
from simoffload.strategies import Strategy, register, registry
from simoffload.strategies.base import Held, Placements
from simoffload.strategies.passes.pass_writer import ForwardPass
from simoffload.strategies.plan import InferencePlan
from simoffload.workload import Inference

SCENARIO = """\
name: piped
model: opt-6.7b
platform: dgx-a100
workload: {batch_size: 2, prompt_length: 8, output_length: 4}
strategy: {kind: piped, cpu_layers: 4}
"""
FIRST, SEND, CPU, SECOND = range(4)
RATE = 100e9
"""[B/s] at which the CPU of the story multiplies with weights, on half of its cores."""


class Piped(Strategy):
    """Two stages, each a process with a GPU and half of the layers in its HBM.

    The first computes its first ``cpu_layers`` on the CPU, whose weights are in host memory. Both stages do
    one batch together.
    """

    serves: ClassVar = frozenset({"inference"})

    kind: Literal["piped"] = "piped"
    ranks: Literal[2] = 2
    cpu_layers: int = 0

    @property
    def replicas(self) -> int:
        return 1

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> PipedPlan:
        return PipedPlan(model=model, workload=workload, machine=machine, cpu_layers=self.cpu_layers)

    def tunables(self, _machine: Machine, _plan: Any = None) -> Iterator[Placements]:
        yield Placements(refusal="the stages keep their layers in HBM")


@dataclass(frozen=True)
class PipedPlan(InferencePlan):
    model: ModelShape
    workload: Inference
    machine: Machine
    cpu_layers: int
    warnings: tuple[str, ...] = ()

    @property
    def layer_bytes(self) -> int:
        return self.model.weight_bytes // self.model.num_hidden_layers

    @property
    def held_weights(self) -> Iterator[Held]:
        half = self.layer_bytes * (self.model.num_hidden_layers // 2)
        yield Held("hbm", "the layers of a stage", half, kind="weights")
        if self.cpu_layers:
            size = self.cpu_layers * self.layer_bytes
            yield Held("dram", "the layers of the CPU", size, kind="weights")

    @property
    def modules(self) -> tuple[Module, ...]:
        return self.model.layers[0]

    def schedule(self, forward: ForwardPass) -> Schedule:
        model, machine = self.model, self.machine
        busy, half = sum(self.durations(forward)), model.num_hidden_layers // 2
        builder = ScheduleBuilder(
            name=forward.name,
            ranks=2,
            streams=("compute", "send", "work", "compute"),
            devices=(Device("GPU"), Device("GPU"), Device("CPU"), Device("GPU")),
            programs=(Program("stage 0", range(1), range(3)), Program("stage 1", range(1, 2), range(3, 4))),
        )
        cores = machine.host.cpu_optimizer.cores.value
        time = round(self.layer_bytes / RATE * 1e12)
        cap, share = cpu_work(size=self.layer_bytes, time=time, cores=cores // 2)
        memory = machine.cpu_work(0, cap).hops
        resources = [(one.name, one.capacity) for one in machine.resources]
        work = builder.route(
            cause=Cause.own("layers"), hops=((*memory, (len(resources), share)), ()), cap=cap
        )
        path = machine.gather(1, 2)
        sent = builder.route(cause=Cause.own("hidden states"), hops=(path.hops, ()), cap=path.curve.rate(1))
        received = builder.peers(((), (0,)))
        for _ in range(self.cpu_layers):
            builder.segment("layer on the CPU")
            builder.add(Op("cpu", "layer", CPU, size=self.layer_bytes, route=work))
        for _ in range(self.cpu_layers, half):
            builder.segment("layer of stage 0")
            builder.add(Op("compute", "layer", FIRST, busy, after=(Dependency(CPU),)))
        builder.segment("send")
        tokens = sum(one.number * one.new_tokens for one in forward.batch)
        size = tokens * model.hidden_size * model.dtype_bytes
        builder.add(Op("copy", "hidden states", SEND, size=size, route=sent, after=(Dependency(FIRST),)))
        for _ in range(half):
            builder.segment("layer of stage 1")
            builder.add(Op("compute", "layer", SECOND, busy, after=(Dependency(SEND, 0, received),)))
        return builder.build(resources, cores=[("cores", cores)])


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(registry, "registered", dict(registry.registered))
    register(Piped)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SCENARIO)
    return tmp_path


COMMANDS: Sequence[tuple[tuple[str, ...], int]] = (
    (("check", "s.yaml"), 0),
    (("run", "s.yaml", "--output-dir", "out"), 0),
    (("run", "s.yaml", "--explain"), 0),
    (("fit", "s.yaml"), 0),
    (("fit", "s.yaml", "--largest"), 0),
    (("fit", "s.yaml", "--machines"), 0),
    (("fit", "s.yaml", "--set", "profiles.dgx-a100-1tib.memory_capacity=16 GiB"), 3),
    (("compare", "s.yaml", "--on", "dram,hbm"), 0),
    (("advise", "s.yaml"), 0),
    (("sweep", "s.yaml", "--axis", "workload.batch_size=1,2", "-o", "s.csv", "--workers", "2"), 0),
    (("schema", "scenario"), 0),
)
"""Words and status, of a scenario on which a strategy of a test runs."""


@pytest.mark.parametrize(
    ("description", "status"), COMMANDS, ids=[" ".join(description[:4:2]) for description, _ in COMMANDS]
)
def test_every_command_knows_it(
    description: tuple[str, ...], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(description) == status, capsys.readouterr().err
    reported = " ".join(capsys.readouterr().out.split())
    if description[0] == "compare":
        assert "the stages keep their layers in HBM" in reported
    if description[0] == "run":
        assert "batch 2 on 2 GPUs" in reported
    if description[0] == "schema":
        assert "Two stages, each a process with a GPU" in reported


def test_the_cpu_and_both_stages_take_their_time() -> None:
    """Four layers of 0.416 GB at 100 GB/s on the CPU, then 12 layers of stage 0 and 16 of stage 1."""
    scenario = so.load_scenario("s.yaml")
    result: Any = so.simulate(scenario)
    plan: Any = scenario.plan()
    decode = ForwardPass("decode 3", (Sequences(2, 1, 8 + 3),))
    layer, gpu = plan.layer_bytes / RATE, sum(plan.durations(decode)) * 1e-12
    assert result.decode[-1].time_s == pytest.approx(4 * layer + (12 + 16) * gpu, rel=1e-2)
    assert result.bottleneck == "layers"
    assert (result.ranks, result.gpus, result.replicas) == (2, 2, 1)
    assert result.decode_tokens_per_s == pytest.approx(2 / result.tpot_s)
    step = json.loads(json.dumps(result.to_dict()))["passes"][-1]
    cores = scenario.machine.host.cpu_optimizer.cores.value
    (used,) = (one for one in step["links"] if one["link"] == "cores")
    assert used["core_ns"] == pytest.approx(4 * layer * (cores // 2) * 1e9, rel=1e-6)
    streams = {one["stream"] for one in step["streams"]}
    assert {"stage 0: CPU 0 work", "stage 1: GPU 0 compute"} <= streams


def test_more_layers_on_the_cpu_take_longer_and_less_of_the_gpu() -> None:
    times = [
        so.simulate(so.load_scenario("s.yaml", overrides=[f"strategy.cpu_layers={count}"])).compared_s
        for count in (0, 4, 8)
    ]
    assert times == sorted(times)
    assert times[1] - times[0] == pytest.approx(times[2] - times[1], rel=0.05)


def test_a_pipeline_of_another_length_is_refused() -> None:
    with pytest.raises(so.InputError, match=r"strategy\.piped\.ranks|strategy\.ranks"):
        so.load_scenario("s.yaml", overrides=["strategy.ranks=3"])


def test_another_strategy_says_what_is_other_work() -> None:
    piped = so.load_scenario("s.yaml")
    rendered = (
        "2 GPUs work on 2 batches side by side here, on one batch before, so the amount of work differs"
    )
    assert rendered in piped.on("resident").warnings
