"""Leaving layers out of a training step gives the same operations, memory and traffic as all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import simoffload as so
from simoffload.errors import InputError
from simoffload.models import load_model
from simoffload.schedule import Schedule
from simoffload.strategies.base import memory_stages, traffic
from simoffload.strategies.ds_config import DeepSpeedConfig
from simoffload.strategies.passes.pass_writer import PassWriter
from simoffload.strategies.programs.zero_training import ZeroTraining, ZeroTrainingPlan
from simoffload.strategies.training.state import TrainingState
from simoffload.workload import Training
from tests.examples import some
from tests.strategies.test_short_walk import operations
from tests.strategies.training.mode_cases import machine

SHIPPED = ["bloom-176b", "bloom-7b1", "bloom-mod-1", "bloom-mod-2", "gpt-1t"]
FAMILIES = ["llama", "opt", "bloom"]


@contextmanager
def in_full() -> Iterator[None]:
    """Every layer is walked through."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingState, "homogeneous", False)
        yield


def same(plan: ZeroTrainingPlan) -> Counter[str]:
    """Compare everything with and without all layers; what was compared."""
    with in_full():
        whole = replace(plan)
        expected = outcome(lambda: whole.peak)
        schedules = [outcome(lambda part=part: whole.schedule(part)) for part in whole.parts]  # type: ignore[misc]
        rest = outcome(lambda: kept(whole))
        first = outcome(lambda: (whole.first_io, whole.requests))
    short = replace(plan)
    assert outcome(lambda: short.peak) == expected
    assert outcome(lambda: kept(short)) == rest
    assert outcome(lambda: (short.first_io, short.requests)) == first
    found: Counter[str] = Counter()
    for part, one in zip(short.parts, schedules, strict=True):
        other = outcome(lambda part=part: short.schedule(part))  # type: ignore[misc]
        if isinstance(one, Schedule) and isinstance(other, Schedule):
            assert operations(other) == operations(one), part.title
            assert other._replace(blocks=()) == one._replace(blocks=())
            found[part.phase] += len(list(short._stacks(part))) == 2
        else:
            assert other == one
    return found


def kept(plan: ZeroTrainingPlan) -> tuple[Any, ...]:
    """All that a run keeps, and what it moves to storage."""
    state = plan.state
    return state.tensors, state.trained, state.updates, memory_stages(plan), traffic(plan)


def outcome(planned: Callable[[], Any]) -> Any:
    """What is planned, or where DeepSpeed would stop."""
    try:
        return planned()
    except InputError as error:
        return str(error)


@st.composite
def runs(draw: st.DrawFn) -> tuple[ZeroTraining, dict[str, Any], Training]:
    """A small model under any knobs."""
    pick = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    width = pick(64, 256, 1024)
    model = {
        "family": pick(*FAMILIES),
        "hidden_size": width,
        "num_hidden_layers": draw(st.integers(6, 40)),
        "vocab_size": pick(500, 4000),
        "num_attention_heads": 4,
        "dtype": "bfloat16",
    }
    if model["family"] == "llama":
        model["intermediate_size"] = 2 * width
    if model["family"] == "opt":
        model |= {"ffn_dim": 4 * width, "word_embed_proj_dim": width, "max_position_embeddings": 64}
    model["tie_word_embeddings"] = pick(True, False)
    layer = 12 * width**2
    stage = pick(0, 1, 2, 3, 3, 3, 3)
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": draw(st.booleans()),
        "reduce_bucket_size": int(layer * pick(0.01, 0.3, 1, 2.5, 7)),
        "sub_group_size": int(layer * pick(0.3, 1, 3.7, 100)),
    }
    if stage == 3:
        zero |= {
            "stage3_max_reuse_distance": int(layer * pick(0, 0, 0.5, 2, 1000)),
            "stage3_max_live_parameters": int(layer * pick(0.5, 3, 1000)),
            "stage3_prefetch_bucket_size": int(layer * pick(0, 0.1, 0.7, 1, 2.5)),
            "stage3_param_persistence_threshold": pick(0, 2 * width, width**2),
            "offload_param": {
                "device": pick("none", "cpu", "nvme"),
                "pin_memory": draw(st.booleans()),
                "buffer_count": pick(6, 12, 200),
                "max_in_cpu": pick(0, 0, 3 * layer),
            },
        }
    if stage:
        device = pick("none", "cpu", "nvme") if stage == 3 else pick("none", "cpu")
        zero["offload_optimizer"] = {
            "device": device,
            "pin_memory": draw(st.booleans()),
            "buffer_count": pick(4, 8, 12),
            "pipeline_read": draw(st.booleans()),
            "ratio": pick(1.0, 1.0, 1.0, 0.5) if stage == 3 else 1.0,
        }
        if device == "cpu" and not draw(st.integers(0, 3)):
            zero["zenflow"] = {"topk_ratio": 0.1, "update_interval": 2, "overlap_step": draw(st.booleans())}
    config = {"activation_checkpointing": {"cpu_checkpointing": draw(st.booleans())}}
    strategy = ZeroTraining(
        ranks=pick(1, 2, 8),
        ds_config=DeepSpeedConfig.model_validate({"zero_optimization": zero, **config}),
        deepspeed_version=pick("0.19.8", "0.19.4", "0.18.3"),
    )
    work = Training(
        kind="training",
        batch_size=1,
        sequence_length=64,
        gradient_accumulation_steps=pick(1, 2, 3),
        gradient_checkpointing=draw(st.booleans()),
        use_reentrant=draw(st.booleans()),
    )
    return strategy, model, work


@settings(max_examples=some(8))
@given(run=runs())
def test_as_walking_through_every_layer(run: tuple[ZeroTraining, dict[str, Any], Training]) -> None:
    strategy, model, work = run
    try:
        plan = strategy.plan(load_model(model), work, machine())
    except InputError:
        assume(False)
    same(plan)


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("layers", [6, 23])
def test_shipped_scenarios_as_walking_through_every_layer(name: str, layers: int) -> None:
    same(shipped(name, layers))


def test_gradients_of_many_layers_fill_a_swap_buffer() -> None:
    """BLOOM-mod-2: 124 layers of gradients come round in the swap buffers, which are foreseen; two layers in
    forward, one in backward."""
    plan = shipped("bloom-mod-2", 280)
    short, _ = plan._stacks(plan.parts[1])
    assert short.forward is not None
    assert short.backward is not None
    assert short.layers is not None
    assert (short.forward.layers, short.backward.layers, short.layers.walked) == (2, 1, 12)
    assert same(plan) == {"forward": 1, "backward": 1, "optimizer": 1}


def test_layers_that_repeat_would_be_written_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written again, each layer has the operations of the one that it repeats, and leaves the same state."""
    plan = shipped("bloom-mod-2", 150)
    schedules = [plan.schedule(part) for part in plan.parts]
    monkeypatch.setattr(PassWriter, "verify", True)
    assert [plan.schedule(part) for part in plan.parts] == schedules


def shipped(name: str, layers: int) -> ZeroTrainingPlan:
    scenario = so.load_scenario(f"training/{name}")
    plan = replace(scenario, model=scenario.model.of_layers(layers)).plan()
    assert isinstance(plan, ZeroTrainingPlan)
    return plan
