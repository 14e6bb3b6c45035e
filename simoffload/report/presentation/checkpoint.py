"""How a result of checkpoints alone is told."""

from __future__ import annotations

from simoffload.errors import printable
from simoffload.report.document import Entry, byte_rate, seconds
from simoffload.report.formatting import percent, plural
from simoffload.report.presentation.base import Presentation, Shown, TierAssignment, metrics_of
from simoffload.results.checkpoint import CheckpointPhase, CheckpointResult
from simoffload.units import format_bytes, format_rate, format_seconds

__all__ = ["checkpoint"]

_LEGEND = "ratio: of times until saved"
_CONTENTS = {
    "zero": "ZeRO checkpoint",
    "sharded": "sharded checkpoint",
    "model_only": "weights alone, sharded",
    "consolidated": "weights in one file",
}
_WRITERS = {"torch_save": "torch.save", "python": "Python's file", "fast": "FastPersist"}


def checkpoint(result: CheckpointResult) -> Presentation:
    """Saving and restoring in words."""
    tier, name = printable(result.target), printable(result.name)
    longest = _longest(result)
    return Presentation(
        kind="checkpoint",
        verb="is saved",
        work=_work(result),
        took=_took(result),
        step="checkpoint",
        compared="Time per checkpoint",
        places=(TierAssignment("checkpoints", result.target),),
        labels=(tier, name, f"{name}, {tier}"),
        exact=f"{result.name}@{result.target}",
        metrics=metrics_of(result.metrics(), _SHOWN),
        cells=_cells(result),
        legend=_LEGEND,
        formulas=("save_s", "stall_s", "restore_s", "bytes_per_s"),
        shown=longest.result if longest else None,
        unit_name="checkpoint",
        parts="parts",
    )


def _work(result: CheckpointResult) -> tuple[str, ...]:
    one = result.checkpoint
    mode = {"blocking": ""}.get(one.mode, f", {one.mode}")
    return (
        f"{_CONTENTS[one.contents]} of {plural(result.gpus, 'GPU')}",
        f"{_WRITERS[one.writer]}{mode}",
        format_bytes(one.size),
    )


def _took(result: CheckpointResult) -> str:
    """ "112 GB are there after 2.31 s (48.6 GB/s); training stands still for 2.31 s"."""
    one = result.checkpoint
    if one.outlook is None:
        return ""
    saved, stall = format_seconds(one.outlook.commit_s), format_seconds(one.outlook.stall_s)
    rate = format_rate(one.size / one.outlook.commit_s)
    text = f"{format_bytes(one.size)} are there after {saved} ({rate}), training stands still for {stall}"
    if one.outlook.share is not None:
        text += f" ({percent(one.outlook.share)} of the time)"
    return text


def _longest(result: CheckpointResult) -> CheckpointPhase | None:
    """The phase that takes most of saving."""
    return max(result.checkpoint.saving, key=lambda phase: phase.result.time_s, default=None)


def _fraction(value: float) -> str:
    return f"{value * 100:.2f} %"


def _size(value: float) -> str:
    return format_bytes(round(value))


def _rate(value: float) -> str:
    return format_rate(round(value))


_SHOWN: Shown = {
    "checkpoint_bytes": ("size", _size),
    "save_s": ("until saved", format_seconds),
    "blocking_s": ("until the call returns", format_seconds),
    "stall_s": ("training stands still", format_seconds),
    "restore_s": ("restoring", format_seconds),
    "bytes_per_s": ("rate of saving", _rate),
    "restore_bytes_per_s": ("rate of restoring", _rate),
    "interval_s": ("interval", format_seconds),
    "stall_share": ("stalls, of the time", percent),
    "mtbf_s": ("between failures", format_seconds),
    "young_s": ("best interval, Young", format_seconds),
    "daly_s": ("best interval, Daly", format_seconds),
    "efficiency": ("efficiency", _fraction),
    "best_efficiency": ("efficiency at the best interval", _fraction),
    "lost_work_s": ("lost with a failure", format_seconds),
}


def _cells(result: CheckpointResult) -> dict[str, Entry]:
    metrics = result.metrics()
    speed = metrics["bytes_per_s"]
    return {
        "saved": seconds(metrics["save_s"]),
        "rate": "" if speed is None else byte_rate(round(speed)),
        "stall": seconds(metrics["stall_s"]),
        "restored": seconds(metrics["restore_s"]),
    }
