"""Published figures of training: those without simulation, and ratios to other settings."""

from __future__ import annotations

import pytest

from simoffload.scenario import LoadedScenario, read_scenario
from simoffload.simulation import simulate
from simoffload.strategies.training.state import DEEPSPEED_ADAM, TORCH_ADAM, TORCH_WEIGHT_DECAY
from validation.published import PLAN_METRICS, predict, published_tables
from validation.references import PublishedRow, Reference


def reference(**changes: str) -> Reference:
    fields = {**dict.fromkeys(Reference._fields, ""), "id": "x-1", "published": "2", "rule": "report"}
    return Reference(**{**fields, "role": "judged", **changes})


def xinnor(*overrides: str) -> LoadedScenario:
    return read_scenario("xinnor/llama-16b-optimizer", overrides=overrides)


# -- Adam on the CPU ----------------------------------------------------------------------------


def test_bytes_of_adam() -> None:
    """PyTorch: lerp 3, mul 2, addcmul 3, sqrt 2, div 2, add 2, addcdiv 4 tensors; AdamW one mul more."""
    assert DEEPSPEED_ADAM == 4 * (4 + 3)
    assert TORCH_ADAM == 4 * (3 + 2 + 3 + 2 + 2 + 2 + 4)
    assert TORCH_WEIGHT_DECAY == 4 * 2


def test_adam_takes_the_threads_and_neighbours_of_the_scenario() -> None:
    base = "zenflow/qwen2.5-3b"
    host = read_scenario(base).machine.host
    two = PLAN_METRICS["cpu_adam_s_per_billion"](read_scenario(base, overrides=["strategy.cpu_threads=5"]))
    assert two == pytest.approx(28e9 / host.cpu_optimizer.rate(5, processes=2))
    whole = read_scenario("xinnor/llama-2b")
    seconds = 28 * 2_007_044_096 / whole.machine.host.cpu_optimizer.rate(6)
    assert PLAN_METRICS["cpu_adam_ms"](whole) == pytest.approx(seconds * 1e3)


def test_it_is_about_training_under_zero() -> None:
    with pytest.raises(TypeError, match="training under ZeRO"):
        PLAN_METRICS["requests_read"](read_scenario("ddn/bloom-7b1"))


# -- bytes and requests -------------------------------------------------------------------------


def test_bytes_until_the_end_of_the_first_step() -> None:
    """12 bytes a parameter are read and 24 written, all but norms being swapped."""
    numel = 64 * 218_103_808 + 2 * 32_000 * 4096
    assert PLAN_METRICS["first_read_gib"](xinnor()) == pytest.approx(12 * numel / 2**30, rel=1e-4)
    assert PLAN_METRICS["first_written_gib"](xinnor()) == pytest.approx(24 * numel / 2**30, rel=1e-4)


def test_smaller_requests_are_more_requests() -> None:
    small = xinnor("strategy.ds_config.aio.block_size=65536")
    whole = 8 * PLAN_METRICS["requests_read"](xinnor())
    assert whole <= PLAN_METRICS["requests_read"](small) < 1.0001 * whole  # what is left over of 512 KiB


# -- ratios -------------------------------------------------------------------------------------


def test_a_ratio_may_refer_to_other_settings() -> None:
    short = "model.num_hidden_layers=1"
    about = reference(
        scenario="xinnor/llama-1b",
        metric="ratio",
        overrides=f"{short};strategy.optimizer=nvme",
        relative_to="strategy.optimizer=raid",
    )
    times = {
        tier: simulate(
            read_scenario("xinnor/llama-1b", overrides=[short, f"strategy.optimizer={tier}"])
        ).per_token_s
        for tier in ("nvme", "raid")
    }
    predicted = predict(about)
    assert predicted == pytest.approx(times["nvme"] / times["raid"])
    assert predicted > 1.5


def test_the_table_says_what_was_changed() -> None:
    about = reference(
        source="S",
        scenario="xinnor/llama-1b",
        overrides="a.b=1;c.d=2",
        relative_to="c.d=3",
        metric="ratio",
        rule="between",
        tolerance="1.5 to 2.5",
        unit="x",
    )
    text = published_tables([PublishedRow(about, 2.2)])
    assert "| xinnor/llama-1b: a.b=1; c.d=2 over c.d=3 | 2.2 | 2 x | +10.0% | 1.5 to 2.5 | yes |" in text
