"""The metrics of training that published figures use."""

from __future__ import annotations

from fractions import Fraction

import pytest

from simoffload.results.passes import PassResult, Share
from simoffload.results.result import ResultProvenance
from simoffload.results.training import StorageTraffic, TimedPhase, TrainingResult
from simoffload.schedule import Cause
from validation.published import RESULT_METRICS

NUMEL = 14_220_000_000


def phase(name: str, time_s: int, times: int = 1) -> TimedPhase:
    time = time_s * 10**12
    one = PassResult(
        name, 1, 1, time, (Share(Cause("gpu-compute"), "GPU", time, time, ""),), (), {"GPU": time_s}
    )
    return TimedPhase(name, Fraction(times), one)


def result() -> TrainingResult:
    """A step of 2 x 10 s + 2 x 20 s + 40 s that reads 12 and writes 24 bytes of each parameter."""
    return TrainingResult(
        name="x",
        model="x",
        parameters=NUMEL,
        dtype="bfloat16",
        platform="x",
        target="hbm",
        optimizer_target="raid",
        ranks=2,
        gpus=2,
        replicas=2,
        batch_size=5,
        sequence_length=1000,
        gradient_accumulation_steps=2,
        forward_flops=4e15,
        backward_flops=8e15,
        recomputed_flops=3e15,
        capacity=(),
        advice=(),
        warnings=(),
        provenance=ResultProvenance({}, (), (), {}),
        phases=(phase("forward", 10, 2), phase("backward", 20, 2), phase("optimizer", 40)),
        traffic=(StorageTraffic("raid", 10 * NUMEL, 24 * NUMEL), StorageTraffic("nfs", 2 * NUMEL, 0)),
    )


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("step_s", 100),
        ("forward_s", 20),
        ("backward_s", 40),
        ("optimizer_s", 40),
        ("samples_per_s", 0.2),
        ("tokens_per_s", 200),
        ("per_token_ms", 5),
        ("tflops_per_gpu", 120),
        ("hardware_tflops_per_gpu", 150),
        ("read_b_per_parameter", 12),
        ("written_b_per_parameter", 24),
    ],
)
def test_a_metric_of_training(metric: str, value: float) -> None:
    assert RESULT_METRICS[metric](result()) == pytest.approx(value)


def test_a_metric_of_inference_is_not_made_up() -> None:
    with pytest.raises(KeyError, match="ttft_s"):
        RESULT_METRICS["ttft_s"](result())
