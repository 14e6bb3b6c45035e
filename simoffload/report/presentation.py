"""Differences between reports about kinds of work: one function for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from simoffload.errors import printable
from simoffload.extending import at, works
from simoffload.planning.confidence import confidence
from simoffload.report.document import Datum, Entry, number
from simoffload.report.formatting import at_most, place, span
from simoffload.results import InferenceResult, Metric, PassResult, SimulationResult, TierUse, TrainingResult
from simoffload.units import format_seconds, plural


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
    places: tuple[TierAssignment, ...]
    """What is offloaded with its tiers, the weights first."""
    placed: str
    """Phrase for the tiers: "its weights in HBM and its optimizer on raid"."""
    labels: tuple[str, ...]
    """Names that may distinguish the result from others, the shortest first."""
    exact: str
    """The most specific name: "scenario@tier"."""
    legend: Mapping[str, str]
    """Explanations of other columns of a comparison, by what they are about: "ratio", "share of the bound";
    "" for what does not depend on a column."""
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
    def called(self) -> str:
        """Name of ``SimulationResult.step`` in a sentence; "" if its own name is used."""
        return "" if self.unit_name == "pass" else f"the {self.unit_name}"


BRACKETS = "80 % intervals in brackets"


def ranged(result: SimulationResult, name: str, *, short: bool = False) -> str:
    """Return a number with its interval, if it has one: "1.2 s [1 to 1.5]"; ``short`` beside its name."""
    if name not in result.declared:
        return result.written(result.compared_metric)
    metric = result.declared[name]
    shown = metric.short if short else metric.text
    value = shown(result.metrics()[name] or 0.0)
    ends = confidence(result).interval(name) if name in result.composed else ()
    return f"{value} [{span(*map(shown, ends), value=value)}]" if ends else value


def in_words(result: SimulationResult, name: str, *, short: bool = False) -> str:
    """Return a number with its interval as sentences have it: "1.2 s (1 to 1.5)"."""
    return ranged(result, name, short=short).replace(" [", " (").replace("]", ")")


def speed_text(result: SimulationResult, *, alone: bool = True) -> str:
    """Return how fast a result with times is, with its interval: "40 tokens/s (25 to 65)".

    Tokens of several sequences are said to be those of all; where each sequence gets less than one in a
    second, the time per token is in the brackets of a result that is ``alone``, too: "0.047 tokens/s (0.035
    to 0.063; 21.3 s per token)".
    """
    metric = result.compared_metric
    value = result.value_of(metric.name) or 0.0
    if metric.name not in result.declared:
        return result.written(metric)
    if not isinstance(result, InferenceResult) or metric.name != "tokens_per_s":
        return f"{metric.text(value)}{metric.each}{_brackets(_ends(result, metric))}"
    several = result.sequences > 1
    of_all = f" of all {result.sequences:,} sequences" if several else ""
    each = ""
    if alone and value < result.sequences and result.e2e_s:
        time = f"{format_seconds(result.e2e_s / result.output_length)} per token"
        each = f"{time} of each" if several else time
    return f"{metric.text(value)}{of_all}{_brackets(_ends(result, metric), each)}"


def _ends(result: SimulationResult, metric: Metric) -> str:
    """Return both ends of the interval of a metric: "25 to 65"; "" if it has none."""
    if metric.name not in result.composed:
        return ""
    ends = map(metric.text, confidence(result).interval(metric.name))
    return span(*ends, value=metric.text(result.metrics()[metric.name] or 0.0))


def _brackets(*facts: str) -> str:
    found = "; ".join(filter(None, facts))
    return f" ({found})" if found else ""


def presentation(result: SimulationResult) -> Presentation:
    """Return the presentation of a result. Raises TypeError for an unknown kind of result."""
    if isinstance(result, InferenceResult):
        return _inference(result)
    if isinstance(result, TrainingResult):
        return _training(result)
    if found := works().get(result.kind):
        made: Presentation = at(found.presentation)(result)
        return made
    raise TypeError(f"{type(result).__name__} is a kind of result that no report knows")


def headline(result: SimulationResult) -> tuple[str, ...]:
    """Model, data type, workload and platform, in a few words each."""
    return result.model, result.dtype, *presentation(result).work, result.platform


def placed_text(places: Sequence[TierAssignment], phrase: str = "", uses: Sequence[TierUse] = ()) -> str:
    """Return "its weights in HBM and its optimizer on raid", or ``phrase`` for all of them together."""
    together = f"its {' and '.join(each.what for each in places)}"
    if phrase:
        return phrase.format(together)
    if len(places) > 1 and len({each.tier for each in places}) == 1:
        return f"{together} {place(places[0].tier, uses)}"
    return " and ".join(f"its {each.what} {place(each.tier, uses)}" for each in places)


def labels(name: str, tiers: str) -> tuple[str, ...]:
    """Return names that may distinguish a result of a scenario on some tiers, the shortest first."""
    return tuple(map(printable, (tiers, name, f"{name}, {tiers}")))


def _batch(result: InferenceResult | TrainingResult) -> str:
    """Return "batch 2 × 8 GPUs", "batch 2 on 8 GPUs" if they share one batch, or "batch 2" if no memory is
    theirs alone."""
    if not any(use.row.is_gpu for use in result.capacity):
        return f"batch {result.batch_size}"
    gpus = plural(result.gpus, "GPU")
    if result.replicas == result.gpus:
        return f"batch {result.batch_size} × {gpus}"
    each = f" × {plural(result.replicas, 'replica')}" if result.replicas > 1 else ""
    return f"batch {result.batch_size}{each} on {gpus}"


def ratio_legend(result: SimulationResult, usual: str) -> str:
    """Return what ratios are of: the usual time, or the metric that is asked for."""
    if not result.asked:
        return f"ratio: {usual} over that of the baseline"
    metric = result.compared_metric
    sides = f"that of the baseline over {metric.label}" if metric.larger else f"{metric.label} over that"
    return f"ratio: {sides}" if metric.larger else f"ratio: {sides} of the baseline"


def cells(result: SimulationResult) -> dict[str, Entry]:
    """Return the headings and cells of a row of a comparison, with the same headings for all of a kind."""
    values, declared = result.metrics(), result.declared.values()
    found = {one.column: number(one, values.get(one.name)) for one in declared if one.column}
    asked = result.compared_metric
    value = result.value_of(asked.name)
    if asked.column or not result.asked:
        return found
    cell = "" if value is None else Datum(result.written(asked), value, asked.unit.name)
    return found | {asked.label: cell}


# -- inference -----------------------------------------------------------------------------------

BOUND = "share of the bound"
_BOUND_LEGEND = "time of the step if its busiest link, GPU or host thread never waited, over its time"
_GATHERED = "{}: every GPU gathers every layer for every token"


def _room(result: InferenceResult) -> str:
    """Return the longest sequence for which the cache has room: one that is paged has it for one of them."""
    if result.context is None:
        return ""
    return f", {'up to' if result.cache_blocks is not None else 'room for'} {result.context:,}"


def _speculation(result: InferenceResult) -> Iterator[str]:
    """Yield what a step of speculative decoding yields, and how long both of its parts take."""
    if result.mean_tokens is None:
        return
    text = f"{result.mean_tokens:.3g} tokens per step"
    if result.verify_s is not None and result.draft_s is not None:
        times = f"draft {format_seconds(result.draft_s)} and verification {format_seconds(result.verify_s)}"
        text += f" of {times}"
    yield text


def _inference(result: InferenceResult) -> Presentation:
    weights, several = result.placement_name or result.target, result.output_length > 1
    places = (TierAssignment("weights", weights),)
    ratio = "time per token of all sequences" if several else "TTFT (time to first token)"
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
            f"{result.prompt_length:,} tokens in, {result.output_length:,} out{_room(result)}",
            *([f"prefill in {result.prefill_chunks} chunks"] if result.prefill_chunks > 1 else []),
            *_speculation(result),
        ),
        step="TPOT" if several else "TTFT",
        places=places,
        placed=placed_text(places, result.placement_words, result.capacity),
        labels=labels(result.name, weights),
        exact=f"{result.name}@{weights}",
        legend={
            "": "" if several else "only one token is generated, so there is no time per output token",
            "ratio": ratio_legend(result, ratio),
            BOUND: f"{BOUND}: {_BOUND_LEGEND}",
        },
        shown=result.step,
        unit_name="pass",
        note=note,
        how=_GATHERED.format(result.gathers or "the strategy") if result.spread_bound_tokens_per_s else "",
    )


# -- training ------------------------------------------------------------------------------------


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
        places=places,
        placed=placed_text(places, result.placement_words, result.capacity),
        labels=labels(result.name, weights if result.placement_name else f"{weights}+{states}"),
        exact=f"{result.name}@{weights}+{states}",
        legend={"ratio": ratio_legend(result, "time per step")},
        shown=longest.result if longest else None,
        unit_name="step",
        parts="parts" if longest and longest.name == "optimizer" else "layers",
    )
