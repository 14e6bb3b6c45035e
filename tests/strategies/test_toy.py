"""A strategy from outside of the package, in this file alone, works in every command."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

import simoffload as so
from simoffload.cli import main
from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape, Module
from simoffload.results.capacity import MemoryStage, MemoryTerm
from simoffload.schedule import Cause, Dependency, Op, Schedule
from simoffload.schedule.builder import ScheduleBuilder
from simoffload.strategies import Strategy, register, strategies
from simoffload.strategies.base import Placement, refused
from simoffload.strategies.memory import working_memory
from simoffload.strategies.passes.pass_writer import ForwardPass
from simoffload.strategies.plan import InferencePlan
from simoffload.workload import Inference

SCENARIO = """\
name: streamed
model: opt-6.7b
platform: dgx-a100
workload: {batch_size: 2, prompt_length: 8, output_length: 4}
strategy: {kind: streamed, ranks: 2}
"""
HOST, COMPUTE, COPY = range(3)


class Streamed(Strategy):
    """Whole weights in host memory, copied to each GPU layer by layer, as far ahead as it goes."""

    serves: ClassVar = frozenset({"inference"})
    uses_storage: ClassVar = False

    kind: Literal["streamed"] = "streamed"

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> StreamedPlan:
        return StreamedPlan(model=model, workload=workload, machine=machine, ranks=self.ranks)

    def places(self, _machine: Machine) -> Placement:
        return Placement("dram")

    def placements(self, machine: Machine) -> tuple[Placement, ...]:
        return (self.places(machine),)

    def retarget(self, placement: Placement, machine: Machine) -> tuple[Edit, ...]:
        if placement not in self.placements(machine):
            raise refused(placement, self.kind, "streamed weights are in host memory")
        return ()


@dataclass(frozen=True)
class StreamedPlan(InferencePlan):
    model: ModelShape
    workload: Inference
    machine: Machine
    ranks: int
    target: str = "dram"
    warnings: tuple[str, ...] = ()

    @property
    def memory_stages(self) -> tuple[MemoryStage, ...]:
        layer = self.model.weight_bytes // self.model.num_hidden_layers
        weights = MemoryTerm("dram", "weights", self.model.weight_bytes * self.ranks, pinned=True)
        working = working_memory(self.model, self.workload, self.machine)
        return (MemoryStage("", (weights, MemoryTerm("hbm", "a layer", layer), *working)),)

    @property
    def modules(self) -> tuple[Module, ...]:
        return self.model.layers[0]

    def schedule(self, forward: ForwardPass) -> Schedule:
        builder = ScheduleBuilder(name=forward.name, ranks=self.ranks, streams=("host", "compute", "copy"))
        paths = [self.machine.host_to_device(rank, pinned=True) for rank in range(self.ranks)]
        size = self.model.weight_bytes // self.model.num_hidden_layers
        route = builder.route(
            cause=Cause.own("weights"), hops=tuple(path.hops for path in paths), cap=paths[0].curve.rate(size)
        )
        busy = sum(self.durations(forward))
        builder.segment("layer")
        builder.add(Op("copy", "weights", COPY, 0, size=size, route=route))
        builder.add(Op("compute", "layer", COMPUTE, busy, after=(Dependency(COPY),)))
        builder.repeat(0, self.model.num_hidden_layers - 1)
        return builder.build([(one.name, one.capacity) for one in self.machine.resources])


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(Strategy, "registered", dict(Strategy.registered))
    register(Streamed)
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
    reported = capsys.readouterr().out
    if description[0] == "schema":
        assert "streamed" in reported
    if description[0] == "compare":
        assert "streamed weights are in host memory" in " ".join(reported.split())


def test_it_takes_the_time_of_its_copies() -> None:
    """13.3 GB for each of two GPUs, each behind a switch with 23.7 GB/s: no step is faster."""
    result: Any = so.simulate(so.load_scenario("s.yaml"))
    assert 13.3e9 / 25e9 < result.tpot_s < 13.3e9 / 10e9
    assert result.bottleneck == "weights"
    assert json.loads(json.dumps(result.to_dict()))["target"] == "dram"


def test_its_first_pass_names_no_other_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a strategy says why a first pass is slower: ZeRO-Inference, because of DeepSpeed's trace."""
    monkeypatch.setattr(StreamedPlan, "traced", True)
    result: Any = so.simulate(so.load_scenario("s.yaml"))
    formulas = result.to_dict()["formulas"]
    assert result.first_pass_s > 0.0
    assert formulas["first_pass_s"] == "time of the warm-up pass"
    assert not any("DeepSpeed" in text or "ZeRO" in text for text in formulas.values())


def test_a_cell_of_a_notebook_may_be_run_again() -> None:
    """It makes another class of the same name, whose keys then count; one from elsewhere is refused."""
    first, second = cell(), cell(depth=int)
    assert first is not second
    assert strategies()["mine"] is second
    Path("s.yaml").write_text(SCENARIO.replace("kind: streamed", "kind: mine"))
    with pytest.raises(InputError, match="depth"):
        so.load_scenario("s.yaml")
    deep: Any = so.load_scenario("s.yaml", overrides=["strategy.depth=2"]).scenario.strategy
    assert deep.depth == 2
    with pytest.raises(ValueError, match="mine is known already, as Mine"):
        register(type("Mine", (second,), {"__module__": "another", "__qualname__": "Mine"}))


def cell(**keys: type) -> type[Strategy]:
    """Define and register a strategy, with further keys."""
    annotations = {"kind": Literal["mine"], **keys}
    body = {"__module__": "__main__", "__qualname__": "Mine", "__annotations__": annotations, "kind": "mine"}
    return register(type("Mine", (Streamed,), body))


def test_a_kind_has_one_strategy() -> None:
    class Other(Streamed):
        kind: Literal["zero_inference"] = "zero_inference"  # type: ignore[assignment]

    class Unnamed(Streamed):
        kind: str = "unnamed"  # type: ignore[assignment]

    assert register(Streamed) is Streamed
    with pytest.raises(ValueError, match="zero_inference is known already"):
        register(Other)
    with pytest.raises(ValueError, match="write kind as kind: Literal"):
        register(Unnamed)


def test_what_is_not_whole_is_refused_when_it_is_registered() -> None:
    class Half(Strategy):
        kind: Literal["half"] = "half"

    class Strange(Streamed):
        serves: ClassVar = frozenset({"cooking"})
        kind: Literal["strange"] = "strange"  # type: ignore[assignment]

    class Keyless(Streamed):
        tier_keys: ClassVar = {"disk": "storage"}
        kind: Literal["keyless"] = "keyless"  # type: ignore[assignment]

    with pytest.raises(ValueError, match="Half lacks placements, places, plan, retarget, serves"):
        register(Half)
    with pytest.raises(ValueError, match="kinds of workload are inference, training, checkpoint"):
        register(Strange)
    with pytest.raises(ValueError, match="it has no field disk"):
        register(Keyless)


def test_memory_on_a_tier_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not be counted, and everything would fit."""
    terms = (MemoryTerm("disk", "weights", 1 << 50),)
    monkeypatch.setattr(StreamedPlan, "memory_stages", property(lambda _: (MemoryStage("", terms),)))
    with pytest.raises(so.SimulationError, match=r'streamed: .* "weights" is on a tier "disk"'):
        so.simulate(so.load_scenario("s.yaml"))


def test_a_program_that_defines_it_itself_is_told_that_workers_cannot_import_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Streamed, "__module__", "__main__")
    description = ("sweep", "s.yaml", "--axis", "workload.batch_size=1,2", "-o", "s.csv", "--workers", "2")
    assert main(description) == 2
    assert "workers cannot import Streamed; define it in a module of its own" in capsys.readouterr().err


def test_a_result_can_be_sent_elsewhere() -> None:
    result = so.simulate(so.load_scenario("s.yaml"))
    sent = pickle.loads(pickle.dumps(result))
    assert sent == result
    assert (sent.metrics(), sent.costs) == (result.metrics(), None)


def test_without_registration_it_is_no_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(Strategy.registered, "streamed")
    with pytest.raises(so.InputError, match=r"strategy\.kind"):
        so.load_scenario("s.yaml")
