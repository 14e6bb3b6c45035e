"""The order of hooks and gradients in a micro-step, as recorded from real runs (``make_traces.py``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from simoffload.models import ModelShape, load_model
from simoffload.models.lora import with_lora
from simoffload.strategies.zero.trace import Event, Instance, Trace, micro_step
from tests.strategies.training.make_traces import CHECKPOINTING, MODELS

DATA = Path(__file__).parent / "data"
LAYERS = {
    "llama": "model.layers",
    "mixtral": "model.layers",
    "opt": "model.decoder.layers",
    "bloom": "transformer.h",
}
TWICE = "BLOOM's attention has two results, and the hook before its backward pass fires for both"
KNOWN = {"bloom-reentrant": TWICE}
CASES = [
    pytest.param(
        name,
        how,
        id=f"{name}-{how}",
        marks=[pytest.mark.xfail(strict=True, reason=KNOWN[f"{name}-{how}"])]
        if f"{name}-{how}" in KNOWN
        else [],
    )
    for name in MODELS
    for how in CHECKPOINTING
]


def full_name(model: ModelShape, one: Instance) -> str:
    if one.layer < 0:
        return one.module.name
    layer = f"{LAYERS[model.family]}.{one.layer}"
    return layer if one.module is model.layers[0][0] else f"{layer}.{one.module.name}"


def lines(model: ModelShape, events: Sequence[Event]) -> Iterator[str]:
    """Events in the words of the record."""
    for event in events:
        name = full_name(model, event.instance)
        if event.kind in ("fetch", "release"):
            yield f"{event.kind}{'-' if event.backward else ''} {name}"
        elif event.kind == "gradients":
            at = "" if event.instance.layer < 0 else f"{LAYERS[model.family]}.{event.instance.layer}."
            own = [one for one in event.instance.module.parameters if one.trainable and not one.tied]
            yield from (f"grad {at}{one.name}" for one in own)


def recorded(name: str, how: str) -> tuple[list[str], list[str]]:
    """Lines of forward and of backward, buckets left out."""
    text = (DATA / f"{name}-{how}.txt").read_text().splitlines()
    middle = text.index("backward")
    passes = (text[:middle], text[middle + 1 :])
    forward, backward = ([line for line in one if not line.startswith("bucket ")] for one in passes)
    return forward, backward


def without_containers(model: ModelShape, written: Sequence[str], trace: Trace) -> list[str]:
    """Leave out that forward leaves modules that own nothing but others: nothing is released."""
    containers = {
        full_name(model, event.instance)
        for event in trace.forward
        if event.instance.module.kind == "container"
    }
    return [line for line in written if not (line[:8] == "release " and line[8:] in containers)]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_hooks_and_gradients_come_in_the_recorded_order(name: str, how: str) -> None:
    model = load_model(MODELS[name])
    trace = micro_step(model, checkpointing=how != "whole", reentrant=how == "reentrant")
    for real, events in zip(recorded(name, how), (trace.forward, trace.backward), strict=True):
        expected = without_containers(model, real, trace)
        assert without_containers(model, list(lines(model, events)), trace) == expected


# -- what no record says ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama() -> ModelShape:
    return load_model(MODELS["llama"])


def kinds(events: Sequence[Event], kind: str) -> list[Event]:
    return [event for event in events if event.kind == kind]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_every_kernel_runs_backward_once_and_once_more_forward_if_checkpointed(
    name: str, reentrant: bool
) -> None:
    model = load_model(MODELS[name])
    whole = micro_step(model, checkpointing=False)
    again = micro_step(model, checkpointing=True, reentrant=reentrant)
    working = [one for one in model.layers[0] if one.kind != "container"]
    for trace in (whole, again):
        done = [event.instance for event in kinds(trace.backward, "back")]
        assert len(done) == len(set(done))
    assert kinds(whole.backward, "launch") == []
    repeated = [event.instance for event in kinds(again.backward, "launch")]
    assert len(repeated) == len(set(repeated)) == 2 * len([*working, *containers_inside(model)])
    assert [event.instance.layer for event in kinds(again.forward, "checkpoint")] == [0, 1]
    assert [event.instance.layer for event in kinds(again.backward, "checkpoint")] == [1, 0]


def containers_inside(model: ModelShape) -> list[Any]:
    return [one for one in model.layers[0][1:] if one.kind == "container"]


def test_forward_ends_and_backward_begins_with_the_loss(llama: ModelShape) -> None:
    trace = micro_step(llama, checkpointing=True)
    assert trace.forward[-1].instance.module.name == trace.backward[0].instance.module.name == "loss"
    assert trace.backward[0].kind == "back"


def test_a_layer_is_a_segment_of_its_own(llama: ModelShape) -> None:
    trace = micro_step(llama, checkpointing=True)
    assert [event.segment for event in trace.forward if event.segment] == ["head", "layer", "layer", "tail"]
    assert [event.segment for event in trace.backward if event.segment] == [
        "loss backward",
        "layer backward",
        "layer backward",
        "head backward",
    ]


def test_hooks_of_frozen_modules_fire_all_the_same(llama: ModelShape) -> None:
    """With LoRA gradients are those of the adapters, but forward needs every module."""
    adapted = with_lora(llama, r=4, target_modules=("q_proj",))
    trace = micro_step(adapted, checkpointing=False)
    plain = micro_step(llama, checkpointing=False)
    fetched = {event.instance.module.name for event in kinds(trace.forward, "fetch")}
    assert fetched >= {event.instance.module.name for event in kinds(plain.forward, "fetch")}
    grads = [line for line in lines(adapted, trace.backward) if line.startswith("grad ")]
    assert len(grads) == 2 * 2
    assert all(".lora_" in line for line in grads)
