"""How a result of training is told."""

from __future__ import annotations

from simoffload.errors import printable
from simoffload.report.document import Entry, rate, seconds
from simoffload.report.formatting import per_second, plural
from simoffload.report.presentation.base import (
    Presentation,
    Shown,
    TierAssignment,
    batch_of,
    metrics_of,
    weights_of,
)
from simoffload.results.training import TimedPhase, TrainingResult
from simoffload.units import format_number, format_seconds

__all__ = ["training"]

_LEGEND = "ratio: of times per token"
_PARTS = ("forward_s", "backward_s", "optimizer_s")


def training(result: TrainingResult) -> Presentation:
    """One optimizer step in words."""
    weights, states = printable(weights_of(result)), printable(result.optimizer_target)
    name = printable(result.name)
    both = weights if weights == "resident" else f"{weights}+{states}"
    longest = _longest(result)
    return Presentation(
        kind="training",
        verb="trains",
        work=_work(result),
        took=_took(result),
        step="step",
        compared="Time per token",
        places=(
            TierAssignment("weights", weights_of(result)),
            TierAssignment("optimizer", result.optimizer_target),
        ),
        labels=(both, name, f"{name}, {both}"),
        exact=f"{result.name}@{weights_of(result)}+{result.optimizer_target}",
        metrics=metrics_of(result.metrics(), _SHOWN, parts=_PARTS, total=result.step_s),
        cells=_cells(result),
        legend=_LEGEND,
        formulas=("step_s", "optimizer_s", "tokens_per_s", "per_token_s"),
        shown=longest.result if longest else None,
        unit_name="step",
        parts="parts" if longest and longest.name == "optimizer" else "layers",
    )


def _work(result: TrainingResult) -> tuple[str, ...]:
    batch = batch_of(result)
    if result.gradient_accumulation_steps > 1:
        batch += f" × accumulation {result.gradient_accumulation_steps}"
    return batch, f"{result.sequence_length:,} token{'' if result.sequence_length == 1 else 's'}"


def _took(result: TrainingResult) -> str:
    """ "a step of 64 sequences takes 1.2 s, 1,204 tokens/s in all"."""
    if result.step_s is None or result.tokens_per_s is None:
        return ""
    sequences = result.batch_size * result.gradient_accumulation_steps * result.replicas
    time, rate = format_seconds(result.step_s), per_second(result.tokens_per_s)
    return f"a step of {plural(sequences, 'sequence')} takes {time}, {rate} in all"


def _longest(result: TrainingResult) -> TimedPhase | None:
    """The phase that takes most of a step."""
    return max(result.phases, key=lambda phase: phase.time_s, default=None)


def _tflops(rate: float) -> str:
    return f"{format_number(rate)} TFLOP/s"


def _samples(rate: float) -> str:
    return per_second(rate, " samples/s")


_SHOWN: Shown = {
    "step_s": ("one step", format_seconds),
    "forward_s": ("forward passes", format_seconds),
    "backward_s": ("backward passes", format_seconds),
    "optimizer_s": ("optimizer step", format_seconds),
    "tokens_per_s": ("throughput", per_second),
    "samples_per_s": ("throughput in sequences", _samples),
    "tflops_per_gpu": ("model FLOP/s of each GPU", _tflops),
    "hardware_tflops_per_gpu": ("FLOP/s of each GPU, with recomputation", _tflops),
}


def _cells(result: TrainingResult) -> dict[str, Entry]:
    return {
        "step": seconds(result.step_s),
        "forward": seconds(result.forward_s),
        "backward": seconds(result.backward_s),
        "opt. step": seconds(result.optimizer_s),
        "tokens/s": rate(result.tokens_per_s),
    }
