"""The driver of passes alone: order of hooks, waits, streams, and parts that repeat."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise

import pytest

from simoffload.engine import execute
from simoffload.hardware import load_platform
from simoffload.models import Sequences, load_model
from simoffload.schedule import Schedule
from simoffload.strategies.base import Home, Homes
from simoffload.strategies.hooks.staging import Prefetched
from simoffload.strategies.passes.pass_writer import (
    COMPUTE,
    STAGING,
    Call,
    Hook,
    Part,
    PassWriter,
    StagePass,
    parts_of,
)
from simoffload.strategies.passes.timing import PassTimings

MACHINE = load_platform("dgx-h200").machine(nodes=1)
MODEL = load_model("llama-2-7b")
BATCH = (Sequences(1, 1, 17),)
TIMINGS = PassTimings(machine=MACHINE, model=MODEL, modules=MODEL.distinct_modules, zero3=False)
MB = 1 << 20


def written(*hooks: Hook) -> Schedule:
    """Return a pass of a model with 32 layers."""
    out = PassWriter(name="pass", machine=MACHINE, hooks=hooks)
    return out.write([StagePass(parts_of(MODEL), TIMINGS.timing(BATCH), BATCH)])


class Noted(Hook):
    """It notes when it is called."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls

    def enter(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        if part.layer == 0:
            self.calls.append(f"{self.name} enters")

    def leave(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        if part.layer == 0:
            self.calls.append(f"{self.name} leaves")


class Ahead(Hook):
    """It brings a piece for the layer that is some layers ahead."""

    streams = STAGING

    def __init__(self, ahead: int, *, forgets: bool = False, home: Home = Home("dram", pinned=True)) -> None:  # noqa: B008
        self.ahead, self.forgets, self.home = ahead, forgets, home

    def state(self, part: Part) -> Hashable:
        return self.forgets or part.layer % 2

    def enter(self, part: Part, out: PassWriter) -> None:
        if part.layer >= 0:
            size = (1 + part.layer % 2) * MB
            out.stage(self, [size], self.home, layer=part.layer + self.ahead, after=out.on_gpu())


class Late(Ahead):
    """Its third layer brings 1 GiB."""

    state = Hook.state

    def enter(self, part: Part, out: PassWriter) -> None:
        if part.layer == 3:
            out.stage(self, [1 << 30], self.home, layer=part.layer + self.ahead)


class Turns(Hook):
    """It works on the host in every third layer, and carries the number of the turn."""

    carry: int = 0

    state = Hook.of_modules

    def enter(self, part: Part, out: PassWriter) -> None:
        if part.layer >= 0:
            self.carry = (self.carry + 1) % 3
            out.spend(1e-6 if not self.carry else 0.0)


def test_what_begins_first_ends_last() -> None:
    calls: list[str] = []
    written(Noted("one", calls), Noted("other", calls))
    assert calls == ["one enters", "other enters", "other leaves", "one leaves"]


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
@pytest.mark.parametrize("home", [Home("dram", pinned=True), Home("dram"), Home("raid")])
def test_a_repeated_part_is_that_which_would_be_written(
    ahead: int, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With promises to later layers, what the host awaits, and a hook with a state of its own."""
    short = written(Ahead(ahead, home=home), Turns())
    monkeypatch.setattr(PassWriter, "verify", True)
    assert execute(written(Ahead(ahead, home=home), Turns())).makespan == execute(short).makespan
    monkeypatch.setattr(Ahead, "state", Hook.state)
    monkeypatch.setattr(Turns, "state", Hook.state)
    assert execute(written(Ahead(ahead, home=home), Turns())).makespan == execute(short).makespan


def test_a_state_that_forgets_something_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PassWriter, "verify", True)
    with pytest.raises(AssertionError, match=r"layer \d+: a state is incomplete"):
        written(Ahead(1, forgets=True))


def test_a_layer_waits_for_what_was_promised_to_it() -> None:
    """One of 1 GiB takes 20 ms over the link: the layer after it begins no earlier, the others go on."""

    alone, (near, far) = execute(written()).makespan, (execute(written(Late(n))).makespan for n in (1, 25))
    copy = (1 << 30) / MACHINE.host_to_device(0, pinned=True).curve.rate(1 << 30)
    assert near > copy * 1e12 > alone
    assert near > far > copy * 1e12


def test_a_copy_from_pageable_memory_holds_up_the_host() -> None:
    """What only layer 28 needs delays all layers from 3 on, nine of ten, by its copy."""
    alone, held = execute(written()).makespan, execute(written(Late(25, home=Home("dram")))).makespan
    copy = (1 << 30) / MACHINE.host_to_device(0, pinned=False).curve.rate(1 << 30)
    assert held > copy * 1e12 + 0.8 * alone


def test_streams_of_several_hooks_with_one_name_are_apart() -> None:
    hooks = [Ahead(number) for number in (1, 2, 3)]
    schedule = written(*hooks)
    names = ("copy", "read", "ahead copy", "ahead read", "ahead 2 copy", "ahead 2 read")
    assert schedule.streams == ("host", "compute", *names)
    moved = {op.stream for block in schedule.blocks for op in block.ops if op.kind == "copy"}
    assert moved == {one.stream("copy") for one in hooks}


def test_calls_come_in_the_order_of_the_model() -> None:
    schedule = written()
    labels = [op.label for block in schedule.blocks for op in block.ops if op.stream == COMPUTE]
    calls = [one.module.name for part in parts_of(MODEL)[:2] for one in part.calls if isinstance(one, Call)]
    shown = [name for name in calls if name in labels]
    places = [labels.index(name) for name in dict.fromkeys(shown)]
    assert all(one < other for one, other in pairwise(places))
    assert sum(block.repeat for block in schedule.blocks if block.name == "layer") == 32


def test_what_is_outside_of_the_layers_is_brought_too() -> None:
    """All bytes of the model cross the link once in a pass, embedding and head included."""
    homes = Homes(MODEL, lambda _layer, _module: Home("dram", pinned=True))
    schedule = written(Prefetched(homes, ahead=2))
    ops = [(op, block.repeat) for block in schedule.blocks for op in block.ops]
    assert sum(op.size * times for op, times in ops if op.kind == "copy") == MODEL.weight_bytes
