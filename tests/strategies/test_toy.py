"""What registering a strategy from outside of the package checks, and what reports say of it.

That every command knows one is tested by ``tests/test_examples.py`` and ``test_toy_pipeline.py``.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

import simoffload as so
from simoffload.cli import main
from simoffload.errors import InputError
from simoffload.strategies import Strategy, register, registry, strategy_of, suited_to, usual_kind
from simoffload.strategies.authoring import (
    HBM,
    ForwardPass,
    Held,
    Home,
    Homes,
    Hook,
    HookedPlan,
    HookedStrategy,
    Machine,
    ModelShape,
    Part,
    PassWriter,
    Prefetched,
)

SCENARIO = """\
name: streamed
model: opt-6.7b
platform: dgx-a100
workload: {batch_size: 2, prompt_length: 8, output_length: 4}
strategy: {kind: streamed, ranks: 2}
"""


class Streamed(HookedStrategy):
    """Layers in host memory, copied to each GPU one layer ahead."""

    kind: Literal["streamed"] = "streamed"

    def homes(self, model: ModelShape, _machine: Machine) -> Homes:
        return Homes(model, lambda layer, _: Home("dram", pinned=True) if layer >= 0 else HBM)

    def hooks(self, plan: HookedPlan, _forward: ForwardPass) -> tuple[Prefetched]:
        return (Prefetched(plan.homes),)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(registry, "registered", dict(registry.registered))
    register(Streamed)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SCENARIO)
    return tmp_path


def test_its_first_pass_names_no_other_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a strategy says why a first pass is slower: ZeRO-Inference, because of DeepSpeed's trace."""
    monkeypatch.setattr(HookedPlan, "traced", True)
    result: Any = so.simulate(so.load_scenario("s.yaml"))
    formulas = result.to_dict()["formulas"]
    assert result.first_pass_s > 0.0
    assert formulas["first_pass_s"] == "time of the warm-up pass"
    assert not any("DeepSpeed" in text or "ZeRO" in text for text in formulas.values())


def test_a_cell_of_a_notebook_may_be_run_again() -> None:
    """It makes another class of the same name, whose keys then count; one from elsewhere is refused."""
    first, second = cell(), cell(depth=int)
    assert first is not second
    assert strategy_of("mine") is second
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
        kind: Literal["deepspeed"] = "deepspeed"  # type: ignore[assignment]

    class Unnamed(Streamed):
        kind: str = "unnamed"  # type: ignore[assignment]

    assert register(Streamed) is Streamed
    with pytest.raises(ValueError, match="deepspeed is known already"):
        register(Other)
    with pytest.raises(ValueError, match="write kind as kind: Literal"):
        register(Unnamed)


def test_best_chooses_a_program_only_where_it_says_what_it_suits() -> None:
    class Small(Streamed):
        kind: Literal["small"] = "small"  # type: ignore[assignment]
        window: int = 1
        traits: ClassVar = Streamed.traits._replace(suits=lambda model, _: len(model.layers) < 40)

    class Named(Streamed):
        kind: Literal["named"] = "named"  # type: ignore[assignment]
        depth: int = 1

    register(Small)
    register(Named)
    of_6_7b, of_30b = (
        so.load_scenario("s.yaml", overrides=[f"model={name}"]) for name in ("opt-6.7b", "opt-30b")
    )
    assert suited_to("inference", of_6_7b.model, of_6_7b.machine)[-1] == "small"
    assert not {"small", "named", "streamed"} & {*suited_to("inference", of_30b.model, of_30b.machine)}
    assert usual_kind("inference", ["window"]) == "small"
    assert usual_kind("inference", ["depth"]) == usual_kind("inference", ["unknown"])


def test_what_is_not_whole_is_refused_when_it_is_registered() -> None:
    class Half(Strategy):
        kind: Literal["half"] = "half"

    class Strange(Streamed):
        serves: ClassVar = frozenset({"cooking"})
        kind: Literal["strange"] = "strange"  # type: ignore[assignment]

    with pytest.raises(ValueError, match="Half lacks plan, tunables, serves"):
        register(Half)
    with pytest.raises(ValueError, match="kinds of workload are inference, training, checkpoint"):
        register(Strange)
    with pytest.raises(ValueError, match="tier_keys: it has no field disk"):

        class Keyless(Streamed):
            tier_keys: ClassVar = {"disk": "storage"}
            kind: Literal["keyless"] = "keyless"  # type: ignore[assignment]

    with pytest.raises(ValueError, match=r"tier_keys\.disks: its field is no text"):

        class Listed(Streamed):
            disks: tuple[str, ...] = ("raid",)
            tier_keys: ClassVar = {"disks": "storage"}
            kind: Literal["listed"] = "listed"  # type: ignore[assignment]

    with pytest.raises(
        ValueError, match=r"""tier_keys\.disk: .* "any", "storage" or "files", got 'drives'"""
    ):

        class Driven(Streamed):
            disk: str = "raid"
            tier_keys: ClassVar = {"disk": "drives"}
            kind: Literal["driven"] = "driven"  # type: ignore[assignment]


@pytest.mark.parametrize("command", ["run", "fit", "compare", "advise"])
def test_a_program_that_says_nothing_of_its_placement_is_in_hbm(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Streamed, "tunables", lambda *_: iter(()))
    assert main([command, "s.yaml", *(["--on", "hbm,raid"] if command == "compare" else [])]) == 0
    refusal = 'streamed cannot be on "raid": it has no other placement'
    assert (refusal in capsys.readouterr().out) == (command == "compare")


@pytest.mark.parametrize(
    ("home", "text"),
    [
        (Home("dram", in_place=True), "kernels read pinned host memory only"),
        (Home("dram", pinned=True, in_place=True), "embedding or head in place, but only layers are"),
        (Home("hbm", gpu=1), "one GPU in each process"),
        ("dram", "a home must be of type Home, got 'dram'"),
        (Home("attic"), '"attic" is no tier of'),
        (Home("dram"), r"has no hook that brings them: add Prefetched\(plan.homes\)"),
    ],
    ids=lambda one: str(getattr(one, "tier", "")),
)
def test_homes_that_a_program_cannot_have_are_refused(
    home: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Streamed, "homes", lambda _, model, __: Homes(model, lambda *_: home))
    monkeypatch.setattr(Streamed, "hooks", lambda *_: ())
    with pytest.raises(so.InputError, match=text):
        so.simulate(so.load_scenario("s.yaml"))


@pytest.mark.parametrize(
    ("method", "value", "text"),
    [
        ("homes", None, r"homes\(\) of streamed must be of type Homes, got NoneType"),
        ("hooks", Hook(), r"hooks\(\) of streamed must be of type Sequence, got Hook"),
        ("hooks", (Hook,), r"each of hooks\(\) of streamed must be of type Hook, got type"),
    ],
)
def test_what_a_method_must_return_is_told(
    method: str, value: object, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Streamed, method, lambda *_: value)
    with pytest.raises(so.InputError, match=text):
        so.simulate(so.load_scenario("s.yaml"))


def test_fixed_homes_are_not_moved(capsys: pytest.CaptureFixture[str]) -> None:
    """Planning says so, and does not take the program as one in host memory."""
    assert main(["fit", "s.yaml", "--machines"]) == 3
    shown = capsys.readouterr().out
    for tier in ("hbm", "dram", "raid"):
        assert f'streamed cannot be on "{tier}": the homes of its tensors are fixed' in shown


def test_every_host_with_drives_of_its_own_has_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Streamed, "homes", lambda _, model, __: Homes(model, lambda *_: Home("raid")))
    needed = []
    for nodes in (1, 2):
        over = [f"nodes={nodes}", f"strategy.ranks={8 * nodes}"]
        uses = so.simulate(so.load_scenario("s.yaml", overrides=over)).capacity
        needed.append(next(one.needed for one in uses if one.tier == "raid"))
    assert needed[1] == 2 * needed[0] > 0


def test_layers_ahead_need_no_more_room_than_there_are_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = []
    for ahead in (31, 100):
        monkeypatch.setattr(
            Streamed, "hooks", lambda _, plan, __, ahead=ahead: [Prefetched(plan.homes, ahead=ahead)]
        )
        uses = so.simulate(so.load_scenario("s.yaml")).capacity
        needed.append(next(one.needed for one in uses if one.tier == "hbm"))
    assert needed[0] == needed[1]
    with pytest.raises(ValueError, match="from 0; got -1"):
        Prefetched(Homes(so.load_model("opt-6.7b"), lambda *_: HBM), ahead=-1)


class Nothing(Prefetched):
    """Brings a tensor without a byte before each layer, and asks for a file and a copy of none."""

    def enter(self, part: Part, out: PassWriter) -> None:
        super().enter(part, out)
        out.stage(self, [0], Home(self.place))
        out.stage(self, [], Home(self.place))
        out.file("raid", 0, block=0, in_flight=0)
        out.copies([0], to_device=True, pinned=True)

    place = "dram"


@pytest.mark.parametrize("place", ["hbm", "dram", "raid", "nfs"])
def test_a_tensor_without_a_byte_is_not_brought(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without = so.simulate(so.load_scenario("s.yaml")).tokens_per_s
    monkeypatch.setattr(Nothing, "place", place)
    monkeypatch.setattr(Streamed, "hooks", lambda _, plan, __: (Nothing(plan.homes),))
    assert so.simulate(so.load_scenario("s.yaml")).tokens_per_s == without


def test_what_is_not_read_in_place_needs_a_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside layers that are read in place."""
    inside, away = Home("dram", pinned=True, in_place=True), Home("dram", pinned=True)
    monkeypatch.setattr(
        Streamed,
        "homes",
        lambda _, model, __: Homes(model, lambda at, _: HBM if at < 0 else away if at else inside),
    )
    monkeypatch.setattr(Streamed, "hooks", lambda *_: ())
    with pytest.raises(so.InputError, match="has no hook that brings them"):
        so.simulate(so.load_scenario("s.yaml"))


def test_weights_that_are_read_in_place_cross_the_link_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those that are copied ahead: neither is shorter than the link needs for all layers."""
    home = Home("dram", pinned=True, in_place=True)
    scenario = so.load_scenario("s.yaml", overrides=["strategy.ranks=1"])
    monkeypatch.setattr(
        Streamed, "homes", lambda _, model, __: Homes(model, lambda layer, _: home if layer >= 0 else HBM)
    )
    monkeypatch.setattr(Streamed, "hooks", lambda *_: ())
    result: Any = so.simulate(scenario)
    reads, path = scenario.machine.accelerator.reads, scenario.machine.host_to_device(0, pinned=True)
    plan: Any = scenario.plan()
    weights = sum(sum(sizes) for layer in plan.homes.layers for sizes in layer.values())
    rate = path.curve.points[-1][1] * reads.rate_share.value
    assert result.tpot_s == pytest.approx(weights / rate, rel=0.1)
    assert next(one for one in result.capacity if one.tier == "dram").needed > weights


def test_its_cache_may_be_elsewhere() -> None:
    """Planning finds the cache of a program that says nothing of it."""
    larger = ["workload.batch_size=300", "workload.prompt_length=512"]
    found = so.fit(so.load_scenario("s.yaml", overrides=larger))
    assert found.remedies is not None
    assert "key-value cache on dram" in [one.description for one in found.remedies.changes]


def test_memory_on_a_tier_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not be counted, and everything would fit."""
    held = (Held("disk", "weights", 1 << 50),)
    monkeypatch.setattr(HookedPlan, "held", property(lambda _: held))
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
    monkeypatch.delitem(registry.registered, "streamed")
    with pytest.raises(so.InputError, match=r"strategy\.kind"):
        so.load_scenario("s.yaml")
