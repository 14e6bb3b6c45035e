"""Differences between reports about inference, training and checkpoints: one function for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from simoffload.errors import printable
from simoffload.planning.confidence import confidence
from simoffload.report.document import Entry, byte_rate, rate, seconds
from simoffload.report.formatting import at_most, per_second, percent, place, span, uncapitalized
from simoffload.results import CheckpointResult, InferenceResult, PassResult, SimulationResult, TrainingResult
from simoffload.units import format_bytes, format_number, format_rate, format_seconds, plural

Shown = Mapping[str, tuple[str, Callable[[float], str]]]
"""Descriptions of metrics by their keys, each with the function that formats its value."""


class Metric(NamedTuple):
    """A Metric is a value of a result, prepared for a reader."""

    key: str
    description: str
    value: str
    shown: Callable[[float], str]
    """Function that formats its value."""
    share: str = ""
    """Share of the step, for a metric that is a part of it."""


class Measure(NamedTuple):
    """A Measure is a metric by which results are compared."""

    metric: str
    name: str
    """For the beginning of a sentence."""
    each: str
    """Words after a value: "1.2 s per step"."""
    shown: Callable[[float], str] = format_seconds
    larger: bool = False
    """Whether the larger value is the better one."""


MEASURES = {
    one.metric: one
    for one in (
        Measure("tpot_s", "Time per output token (TPOT)", " per output token"),
        Measure("ttft_s", "Time to first token (TTFT)", " to the first token"),
        Measure("step_s", "Time per step", " per step"),
        Measure("save_s", "Time per checkpoint", " per checkpoint"),
        Measure("tokens_per_s", "Throughput", "", per_second, larger=True),
    )
}
"""By the names of metrics: of ``SimulationResult.step_by``, and throughput."""


class TierAssignment(NamedTuple):
    """A TierAssignment is a kind of data that can be offloaded, and the tier that holds it."""

    what: str
    tier: str


class Presentation(NamedTuple):
    """A Presentation has the names and texts with which a report describes one result."""

    kind: str
    """ "inference", "prefill" (inference of one token), "training", "checkpoint"."""
    verb: str
    """Verb for the work of the model on the platform: "runs", "trains", "is saved"."""
    work: tuple[str, ...]
    """The workload, in a few words each."""
    step: str
    """Name of ``SimulationResult.step_time_s``: "TPOT", "TTFT", "step", "checkpoint"."""
    compared: str
    """Name of ``SimulationResult.step_time_s``, for the beginning of a sentence."""
    ratio: str
    """Short name of that time, for the heading of a column of ratios: "TPOT", "step"."""
    places: tuple[TierAssignment, ...]
    """What is offloaded with its tiers, the weights first."""
    placed: str
    """Phrase for the tiers: "its weights in HBM and its optimizer on raid"."""
    labels: tuple[str, ...]
    """Names that may distinguish the result from others, the shortest first."""
    exact: str
    """The most specific name: "scenario@tier"."""
    metrics: tuple[Metric, ...]
    """All metrics that have a value, in the order of reading."""
    cells: Mapping[str, Entry]
    """Headings and cells of a row of a comparison, with the same headings for all results of a kind."""
    cell_metrics: tuple[str, ...]
    """Names of the metrics in these cells, in the same order."""
    legend: Mapping[str, str]
    """Explanations of other columns of a comparison, by what they are about: "ratio", "share of the bound";
    "" for what does not depend on a column."""
    formulas: tuple[str, ...]
    """Metrics that are explained under a comparison."""
    shown: PassResult | None
    """The pass whose operations are drawn."""
    unit_name: str
    """Kind of ``SimulationResult.step``: a "pass", or a "step" or "checkpoint", which consist of several
    passes."""
    parts: str = "layers"
    """Name of the blocks of that pass."""
    note: str = ""
    """Further explanation of the metrics."""
    how: str = ""
    """Further explanation of the tiers."""

    @property
    def timed(self) -> str:
        """Name of ``SimulationResult.step_time_s`` in a sentence: "time per step"."""
        return uncapitalized(self.compared) if self.unit_name == "pass" else f"time per {self.unit_name}"

    @property
    def called(self) -> str:
        """Name of ``SimulationResult.step`` in a sentence; "" if its own name is used."""
        return "" if self.unit_name == "pass" else f"the {self.unit_name}"


BRACKETS = "80 % intervals in brackets"


def ranged(result: SimulationResult, metric: str, shown: Callable[[float], str] = format_seconds) -> str:
    """Return a predicted time or rate with its interval: "1.2 s [1 to 1.5]"."""
    value = shown(result.metrics()[metric] or 0.0)
    return f"{value} [{span(*map(shown, confidence(result).interval(metric)), value=value)}]"


def presentation(result: SimulationResult) -> Presentation:
    """Return the presentation of a result. Raises TypeError for an unknown kind of result."""
    if isinstance(result, InferenceResult):
        return _inference(result)
    if isinstance(result, TrainingResult):
        return _training(result)
    if isinstance(result, CheckpointResult):
        return _checkpoint(result)
    raise TypeError(f"{type(result).__name__} is a kind of result that no report knows")


def headline(result: SimulationResult) -> tuple[str, ...]:
    """Model, data type, workload and platform, in a few words each."""
    return result.model, result.dtype, *presentation(result).work, result.platform


def _placed(places: tuple[TierAssignment, ...], phrase: str = "") -> str:
    """Return "its weights in HBM and its optimizer on raid", or ``phrase`` for all of them together."""
    together = f"its {' and '.join(each.what for each in places)}"
    if phrase:
        return phrase.format(together)
    if len(places) > 1 and len({each.tier for each in places}) == 1:
        return f"{together} {place(places[0].tier)}"
    return " and ".join(f"its {each.what} {place(each.tier)}" for each in places)


def _labels(name: str, tiers: str) -> tuple[str, ...]:
    return tuple(map(printable, (tiers, name, f"{name}, {tiers}")))


def _batch(result: InferenceResult | TrainingResult) -> str:
    """Return "batch 2 × 8 GPUs", or "batch 2 on 8 GPUs" if they share one batch."""
    gpus = plural(result.gpus, "GPU")
    if result.replicas == result.gpus:
        return f"batch {result.batch_size} × {gpus}"
    each = f" × {plural(result.replicas, 'replica')}" if result.replicas > 1 else ""
    return f"batch {result.batch_size}{each} on {gpus}"


def _metrics(
    result: SimulationResult, texts: Shown, *, parts: Collection[str] = (), total: float | None = None
) -> tuple[Metric, ...]:
    """Return all metrics that have a value; those in ``parts`` with their shares of ``total``, if that is
    known."""
    values = result.metrics()
    return tuple(
        Metric(key, description, text(value), text, percent(value / total) if total and key in parts else "")
        for key, (description, text) in texts.items()
        if (value := values.get(key)) is not None
    )


# -- inference -----------------------------------------------------------------------------------

BOUND = "share of the bound"
_BOUND_LEGEND = "time of the step if its busiest link, GPU or host thread never waited, over its time"
_GATHERED = "{}: every GPU gathers every layer for every token"
_INFERENCE: Shown = {
    "ttft_s": ("time to first token", format_seconds),
    "tpot_s": ("time per output token", format_seconds),
    "tokens_per_s": ("throughput", per_second),
    "decode_tokens_per_s": ("decode throughput", per_second),
    "spread_bound_tokens_per_s": ("upper bound of decode throughput without gathering", per_second),
    "e2e_s": ("end-to-end time", format_seconds),
    "kv_load_s": ("loads of cached blocks", format_seconds),
    "kv_store_s": ("stores of new blocks", format_seconds),
    "kv_allocation_s": ("waits for new pinned memory", format_seconds),
    "kv_backlog_s": ("stores after the last pass", format_seconds),
    "first_pass_s": ("first pass after loading", format_seconds),
    "per_token_s": ("time per token of all sequences", format_seconds),
}


def _inference(result: InferenceResult) -> Presentation:
    weights, several = result.placement_name or result.target, result.output_length > 1
    places = (TierAssignment("weights", weights),)
    ratio = "TPOT (time per output token of a sequence)" if several else "TTFT (time to first token)"
    decode_cells = {"TPOT": seconds(result.tpot_s or None)} if several else {}
    note = ""
    if result.decode_estimated:
        note = (
            f"{result.decode_estimated} of the decode steps are interpolated between simulated ones, "
            f"each with an error {at_most(result.decode_bound)}."
        )
    return Presentation(
        kind="inference" if several else "prefill",
        verb="runs",
        work=(
            _batch(result),
            f"{result.prompt_length} tokens in, {result.output_length} out",
            *([f"prefill in {result.prefill_chunks} chunks"] if result.prefill_chunks > 1 else []),
        ),
        step="TPOT" if several else "TTFT",
        compared=MEASURES["tpot_s" if several else "ttft_s"].name,
        ratio="TPOT" if several else "TTFT",
        places=places,
        placed=_placed(places, result.placement_words),
        labels=_labels(result.name, weights),
        exact=f"{result.name}@{weights}",
        metrics=_metrics(result, _INFERENCE),
        cells={"TTFT": seconds(result.ttft_s), **decode_cells, "tokens/s": rate(result.tokens_per_s)},
        cell_metrics=("ttft_s", *(("tpot_s",) if several else ()), "tokens_per_s"),
        legend={
            "": "" if several else "only one token is generated, so there is no time per output token",
            "ratio": f"ratio: {ratio} over that of the baseline",
            BOUND: f"{BOUND}: {_BOUND_LEGEND}",
        },
        formulas=("ttft_s", *(("tpot_s",) if several else ()), "tokens_per_s"),
        shown=result.step,
        unit_name="pass",
        note=note,
        how=_GATHERED.format(result.gathers or "the strategy") if result.spread_bound_tokens_per_s else "",
    )


# -- training ------------------------------------------------------------------------------------

_PARTS = ("forward_s", "backward_s", "optimizer_s")
_TRAINING: Shown = {
    "step_s": ("time per step", format_seconds),
    "forward_s": ("forward passes", format_seconds),
    "backward_s": ("backward passes", format_seconds),
    "optimizer_s": ("optimizer step", format_seconds),
    "tokens_per_s": ("throughput", per_second),
    "samples_per_s": ("throughput in sequences", lambda rate: per_second(rate, " samples/s")),
    "tflops_per_gpu": ("model FLOP/s per GPU", lambda rate: f"{format_number(rate)} TFLOP/s"),
    "hardware_tflops_per_gpu": (
        "FLOP/s per GPU, with recomputation",
        lambda rate: f"{format_number(rate)} TFLOP/s",
    ),
}


def _training(result: TrainingResult) -> Presentation:
    weights, states = result.placement_name or result.target, result.optimizer_target
    places = (TierAssignment("weights", weights), TierAssignment("optimizer", states))
    longest = max(result.phases, key=lambda phase: phase.time_s, default=None)
    accumulation = result.gradient_accumulation_steps
    batch = _batch(result) + (f" × accumulation {accumulation}" if accumulation > 1 else "")
    return Presentation(
        kind="training",
        verb="trains",
        work=(batch, f"{result.sequence_length:,} token{'' if result.sequence_length == 1 else 's'}"),
        step="step",
        compared=MEASURES["step_s"].name,
        ratio="step",
        places=places,
        placed=_placed(places, result.placement_words),
        labels=_labels(result.name, weights if result.placement_name else f"{weights}+{states}"),
        exact=f"{result.name}@{weights}+{states}",
        metrics=_metrics(result, _TRAINING, parts=_PARTS, total=result.step_s),
        cells={
            "step": seconds(result.step_s),
            "forward": seconds(result.forward_s),
            "backward": seconds(result.backward_s),
            "opt. step": seconds(result.optimizer_s),
            "tokens/s": rate(result.tokens_per_s),
        },
        cell_metrics=("step_s", *_PARTS, "tokens_per_s"),
        legend={"ratio": "ratio: time per step over that of the baseline"},
        formulas=("step_s", "optimizer_s", "tokens_per_s"),
        shown=longest.result if longest else None,
        unit_name="step",
        parts="parts" if longest and longest.name == "optimizer" else "layers",
    )


# -- checkpoints ---------------------------------------------------------------------------------

_CONTENTS = {
    "zero": "ZeRO checkpoint",
    "sharded": "sharded checkpoint",
    "model_only": "weights only, sharded",
    "consolidated": "weights in one file",
}
_WRITERS = {"torch_save": "torch.save", "python": "Python's file", "fast": "FastPersist"}


def _bytes_text(value: float) -> str:
    return format_bytes(round(value))


def _rate_text(value: float) -> str:
    return format_rate(round(value))


def _fraction_text(value: float) -> str:
    return f"{value * 100:.2f} %"


_CHECKPOINT: Shown = {
    "checkpoint_bytes": ("size", _bytes_text),
    "save_s": ("time to save", format_seconds),
    "blocking_s": ("time until the call returns", format_seconds),
    "stall_s": ("training stall", format_seconds),
    "restore_s": ("time to restore", format_seconds),
    "bytes_per_s": ("save rate", _rate_text),
    "restore_bytes_per_s": ("restore rate", _rate_text),
    "interval_s": ("checkpoint interval", format_seconds),
    "stall_share": ("share of time stalled", percent),
    "mtbf_s": ("time between failures", format_seconds),
    "young_s": ("best interval, Young", format_seconds),
    "daly_s": ("best interval, Daly", format_seconds),
    "efficiency": ("efficiency", _fraction_text),
    "best_efficiency": ("efficiency at the best interval", _fraction_text),
    "lost_work_s": ("work lost per failure", format_seconds),
}


def _checkpoint(result: CheckpointResult) -> Presentation:
    saved = result.checkpoint
    mode = "" if saved.mode == "blocking" else f", {saved.mode}"
    places = (TierAssignment("checkpoints", result.target),)
    longest = max(saved.saving, key=lambda phase: phase.result.time_s, default=None)
    metrics = result.metrics()
    speed = metrics["bytes_per_s"]
    return Presentation(
        kind="checkpoint",
        verb="is saved",
        work=(
            f"{_CONTENTS[saved.contents]} of {plural(result.gpus, 'GPU')}",
            f"{_WRITERS[saved.writer]}{mode}",
            format_bytes(saved.size),
        ),
        step="checkpoint",
        compared=MEASURES["save_s"].name,
        ratio="saved",
        places=places,
        placed=_placed(places),
        labels=_labels(result.name, result.target),
        exact=f"{result.name}@{result.target}",
        metrics=_metrics(result, _CHECKPOINT),
        cells={
            "saved": seconds(metrics["save_s"]),
            "rate": "" if speed is None else byte_rate(round(speed)),
            "stall": seconds(metrics["stall_s"]),
            "restored": seconds(metrics["restore_s"]),
        },
        cell_metrics=("save_s", "bytes_per_s", "stall_s", "restore_s"),
        legend={"ratio": "ratio: time to save over that of the baseline"},
        formulas=("save_s", "stall_s", "restore_s", "bytes_per_s"),
        shown=longest.result if longest else None,
        unit_name="checkpoint",
        parts="parts",
    )
