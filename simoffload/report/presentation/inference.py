"""How a result of inference is told."""

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
from simoffload.results.inference import InferenceResult
from simoffload.units import format_seconds

__all__ = ["inference"]

_BOUND = "share of the bound: fraction of the speed of light that a step reaches"
_LEGEND = f"ratio: of TPOT, the time per output token of a sequence; {_BOUND}"
_LEGEND_OF_ONE = (
    "one token is made, so that there is no time per output token; "
    f"ratio: of TTFT, the time to first token; {_BOUND}"
)

_GATHERED = "of which every GPU gathers every layer for every token (ZeRO-3)"


def inference(result: InferenceResult) -> Presentation:
    """Prefill and decode steps in words."""
    weights, several = weights_of(result), result.output_length > 1
    return Presentation(
        kind="inference" if several else "prefill",
        verb="runs",
        work=(
            batch_of(result),
            f"{result.prompt_length} tokens in, {result.output_length} out",
        ),
        took=_took(result),
        step="TPOT" if several else "TTFT",
        compared="Time per output token (TPOT)" if several else "Time to first token (TTFT)",
        places=(TierAssignment("weights", weights),),
        labels=tuple(map(printable, (weights, result.name, f"{result.name}, {weights}"))),
        exact=f"{result.name}@{weights}",
        metrics=metrics_of(result.metrics(), _SHOWN),
        cells=_cells(result),
        legend=_LEGEND if several else _LEGEND_OF_ONE,
        formulas=("ttft_s", *(("tpot_s",) if several else ()), "tokens_per_s"),
        shown=result.step,
        unit_name="pass",
        note=_note(result),
        how=_GATHERED if result.spread_bound_tokens_per_s else "",
    )


_SHOWN: Shown = {
    "ttft_s": ("time to first token", format_seconds),
    "tpot_s": ("time per output token", format_seconds),
    "tokens_per_s": ("throughput", per_second),
    "decode_tokens_per_s": ("throughput of decode", per_second),
    "spread_bound_tokens_per_s": ("bound of decode, weights spread and not gathered", per_second),
    "e2e_s": ("whole generation", format_seconds),
    "first_pass_s": ("first pass after loading", format_seconds),
    "per_token_s": ("time over tokens of all sequences", format_seconds),
}


def _took(result: InferenceResult) -> str:
    """ "TTFT 1.2 s, TPOT 800 ms, 320 tokens/s of 256 sequences at once"; without decode steps no TPOT."""
    if result.ttft_s is None or result.tokens_per_s is None:
        return ""
    sequences = plural(result.batch_size * result.replicas, "sequence")
    decode = f"TPOT {format_seconds(result.tpot_s)}, " if result.tpot_s else ""
    rate = per_second(result.tokens_per_s)
    return f"TTFT {format_seconds(result.ttft_s)}, {decode}{rate} of {sequences} at once"


def _cells(result: InferenceResult) -> dict[str, Entry]:
    later = {"TPOT": seconds(result.tpot_s or None)} if result.output_length > 1 else {}
    return {"TTFT": seconds(result.ttft_s), **later, "tokens/s": rate(result.tokens_per_s)}


def _note(result: InferenceResult) -> str:
    if not result.decode_estimated:
        return ""
    return (
        f"{result.decode_estimated} of the decode steps are interpolated between simulated ones; "
        f"each may be off by up to {round(result.decode_bound * 100, 3)} %."
    )
