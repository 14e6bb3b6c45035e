"""Checkpoints in host memory: which layers' inputs are copied, and what waits for what."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload.strategies.programs.zero_training import ZeroTrainingPlan
from tests.strategies.training.mode_cases import host_and_gpu, moved, part, plan_of, timeline

INPUT = 2 * 512 * 256 * 2
"""[B] of a layer's input: sequences, tokens, hidden size, bytes."""
SIDE_STREAM, BLOCKING = "0.19.6", "0.19.5"


def plan(layers: int, *, offload: bool = True, version: str = SIDE_STREAM, **work: Any) -> ZeroTrainingPlan:
    return plan_of(
        {"stage": 2},
        version=version,
        model={"num_hidden_layers": layers},
        config={"activation_checkpointing": {"cpu_checkpointing": offload}},
        **{"batch_size": 2, "sequence_length": 512, "gradient_checkpointing": True, **work},
    )


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3, 7])
def test_all_but_the_last_inputs_leave_and_all_but_the_last_two_come_back(
    layers: int, reentrant: bool
) -> None:
    run = plan(layers, use_reentrant=reentrant)
    forward, backward = moved(run, part(run, "forward")), moved(run, part(run, "backward"))
    assert forward["GPU to host"] == (layers - 1) * INPUT
    assert backward["host to GPU"] == max(0, layers - 2) * INPUT
    assert host_and_gpu(forward)["down"] == host_and_gpu(backward)["up"] == 0


@pytest.mark.parametrize("layers", [1, 2, 7])
def test_older_versions_copy_every_input_through_pageable_memory(layers: int) -> None:
    run = plan(layers, version=BLOCKING)
    forward, backward = moved(run, part(run, "forward")), moved(run, part(run, "backward"))
    assert forward["GPU to host, pageable"] == layers * INPUT
    assert backward["host to GPU, pageable"] == layers * INPUT


def test_without_checkpointing_nothing_is_copied() -> None:
    run = plan(4, gradient_checkpointing=False)
    for title in ("forward", "backward"):
        assert host_and_gpu(moved(run, part(run, title))) == {"down": 0, "up": 0}


def copies(run: ZeroTrainingPlan, title: str) -> tuple[list[int], list[int]]:
    """[ps] at which copies of checkpoints start, and at which layers' last matrices end."""
    found = timeline(run, part(run, title))
    side = found.schedule.streams.index("activations")
    starts = [one.start for one in found if one.op.stream == side]
    layers = [
        one.end
        for one in found
        if one.op.label.endswith("down_proj") and found.schedule.streams[one.op.stream] == "compute"
    ]
    return sorted(starts), sorted(layers)


def test_an_input_leaves_behind_the_next_layer() -> None:
    starts, layers = copies(plan(6), "forward")
    assert len(starts) == 5
    assert len(layers) == 6
    assert all(start >= layers[index + 1] for index, start in enumerate(starts))


def test_a_layer_is_computed_again_once_its_input_is_back() -> None:
    found = timeline(plan(6), part(plan(6), "backward"))
    side, compute = (found.schedule.streams.index(name) for name in ("activations", "compute"))
    back = sorted(one.end for one in found if one.op.stream == side)
    again = sorted(
        one.start for one in found if one.op.stream == compute and one.op.label == "input_layernorm"
    )
    # Of each layer first the recomputation, then the backward pass; the first two layers had their inputs.
    recomputed = again[::2]
    assert len(back) == 4
    assert len(recomputed) == 6
    assert all(start >= end for start, end in zip(recomputed[2:], back, strict=True))


def test_copies_cost_no_more_than_their_time_and_blocking_ones_more() -> None:
    times = {}
    for name, run in {
        "none": plan(8, offload=False),
        "side stream": plan(8),
        "blocking": plan(8, version=BLOCKING),
    }.items():
        times[name] = sum(timeline(run, part(run, title)).makespan for title in ("forward", "backward"))
    run = plan(8)
    serial = sum(
        one.end - one.start
        for title in ("forward", "backward")
        for one in timeline(run, part(run, title))
        if one.op.stream == one_side(run, title)
    )
    calls = 2 * 8 * run.machine.host.deepspeed.copy_call.value * 1e12
    assert times["none"] <= times["side stream"] <= times["none"] + serial + calls
    assert times["side stream"] < times["blocking"]


def one_side(run: ZeroTrainingPlan, title: str) -> int:
    return run.schedule(part(run, title)).streams.index("activations")


def test_it_is_told_whose_checkpoints_these_are() -> None:
    (text,) = plan(2).warnings
    assert "DeepSpeed's own checkpoint function" in text
    (text,) = plan(2, gradient_checkpointing=False).warnings
    assert "no checkpoints to offload" in text
    assert plan(2, offload=False).warnings == ()
