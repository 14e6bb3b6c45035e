"""The engine's shortcuts change no shipped scenario by a picosecond."""

from __future__ import annotations

import pytest

from simoffload.scenario import list_scenarios, read_scenario
from simoffload.simulation import simulate
from tests.examples import one_in

VERIFIED = [
    f"engine.{shortcut}=verify" for shortcut in ("rank_symmetry", "steady_state", "decode_extrapolation")
]
WHOLE = {"ddn/bloom-7b1", "deepnvme/mixtral-8x22b", "zero-inference-2022/opt-30b"}
"""Those that are run whole; of the others a few layers are run."""
INFERENCE = [name for name in list_scenarios() if name.split("/")[0] in {"ddn", "deepnvme", "storage"}]
PUBLISHED = [name for name in list_scenarios() if name.startswith("zero-inference-2022/")]


def few_layers(name: str, number: int = 12) -> str:
    """The override with which a shipped scenario has twelve layers, enough for every shortcut."""
    return f"model={{name: {name.split('/')[1]}, num_hidden_layers: {number}}}"


@pytest.mark.parametrize("name", one_in(2, [*INFERENCE, *PUBLISHED]))
def test_inference(name: str) -> None:
    overrides = ["workload.output_length=6", *([few_layers(name)] if name not in WHOLE else ())]
    result = simulate(read_scenario(name, overrides=[*overrides, *VERIFIED]))
    assert len(result.decode) == 5, "verifying runs every step"
    quick = simulate(read_scenario(name, overrides=overrides))
    assert len(quick.decode) < 3, "what is certain is not simulated"
    assert quick.decode_total_s == pytest.approx(result.decode_total_s, rel=max(quick.decode_bound, 1e-15))


@pytest.mark.parametrize("target", ["dram", "nfs", "ai400x2"])
def test_many_tokens(target: str) -> None:
    """A batch whose cache grows to decide: what bounds a step changes on the way."""
    overrides = [f"strategy.weights={target}", "workload.batch_size=16", "workload.output_length=40"]
    result = simulate(
        read_scenario("ddn/bloom-7b1", overrides=[*overrides, few_layers("ddn/bloom-7b1", 3), *VERIFIED])
    )
    assert len(result.decode) == 39


TRAINED = [
    *("xinnor/llama-1b", "zenflow/qwen2.5-1.5b", "zero-offload-2021/gpt2"),
    *("superoffload/qwen3-14b", "fsdp/llama-3.1-8b"),
]


@pytest.mark.parametrize("name", TRAINED)
def test_training(name: str) -> None:
    assert simulate(read_scenario(name, overrides=VERIFIED)).step_time_s


def test_steps_of_one_course_need_one_run() -> None:
    result = simulate(read_scenario("ddn/bloom-176b", overrides=["workload.output_length=101"]))
    assert [one.name for one in result.decode] == ["decode 1"]
    assert (result.decode_estimated, result.decode_bound) == (0, 0.0)


@pytest.mark.parametrize("batch", [1, 64])
def test_steps_of_a_model_on_the_gpu_are_certain_too(batch: int) -> None:
    overrides = ["strategy={kind: transformers, ranks: 8}", f"workload.batch_size={batch}"]
    result = simulate(read_scenario("ddn/bloom-7b1", overrides=[*overrides, "workload.output_length=101"]))
    assert len(result.decode) < 8
    assert (result.decode_estimated, result.decode_bound) == (0, 0.0)


def test_without_shortcuts_every_step_is_simulated() -> None:
    off = [f"engine.{shortcut}=off" for shortcut in ("rank_symmetry", "steady_state", "decode_extrapolation")]
    overrides = ["workload.output_length=5"]
    full = simulate(read_scenario("ddn/bloom-7b1", overrides=[*overrides, *off]))
    quick = simulate(read_scenario("ddn/bloom-7b1", overrides=overrides))
    assert [len(full.decode), len(quick.decode)] == [4, 1]
    assert full.metrics() == quick.metrics()
    assert full.prefill == quick.prefill
