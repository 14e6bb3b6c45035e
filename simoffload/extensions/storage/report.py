"""Reports about checkpoints, data loading and the lifetime of drives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from simoffload.errors import printable
from simoffload.extensions.storage.data_loading import Epoch, data_loading_sentences
from simoffload.extensions.storage.result import CheckpointResult, Checkpoints, Outlook, StateDevice
from simoffload.report.document import (
    Datum,
    Entry,
    ReportSection,
    ReportTable,
    byte_count,
    byte_rate,
    count,
    fraction,
    seconds,
)
from simoffload.report.formatting import NameFirst, largest
from simoffload.report.presentation import Presentation, TierAssignment, labels, placed_text, ratio_legend
from simoffload.results import SimulationResult, TrainingResult
from simoffload.units import format_bytes, format_number, format_rate, format_seconds, percent, plural

_FROM: Mapping[StateDevice, str] = dict(
    zip(get_args(StateDevice), ("GPU", "host memory", "swap files"), strict=True)
)


def checkpoint(result: TrainingResult | CheckpointResult) -> ReportSection:
    """Describe the checkpoints of a run: their size, times, and effect on the run."""
    one: Checkpoints = result.checkpoint
    kept = f", {one.keep} kept" if one.keep > 1 else ""
    more = f"; {format_bytes(one.written)} are written for it" if one.written > one.size else ""
    lines = [f"{format_bytes(one.size)} in {plural(one.files, 'file')} on {printable(one.tier)}{kept}{more}"]
    if one.outlook is not None:
        lines += [*_stall(one, one.outlook), *_failures(one.outlook)]
    lines += [NameFirst(printable(cache.sentence)) for cache in one.write_caches]
    parts = ReportTable(
        "Parts of a checkpoint",
        ("part", "each", "writers", "files", "from"),
        tuple(
            (part.name, byte_count(part.size), count(part.writers), count(part.files), _FROM[part.device])
            for part in one.parts
        ),
        (1, 2, 3),
    )
    return ReportSection("Checkpoint", tuple(lines), (parts, *_phases(one)))


def _stall(one: Checkpoints, outlook: Outlook) -> list[str]:
    rate = format_rate(one.size / outlook.commit_s)
    saving = f"saving takes {format_seconds(outlook.commit_s)} ({rate})"
    if outlook.background_s:
        saving += f", {format_seconds(outlook.background_s)} of it in the background"
    saving += f"; training stalls for {format_seconds(outlook.stall_s)}"
    if outlook.share is not None and outlook.interval_s is not None:
        every = format_seconds(outlook.interval_s)
        saving += f", {percent(outlook.share)} of the time at a checkpoint interval of {every}"
    return [saving, f"restoring takes {format_seconds(outlook.restore_s)}"]


def _failures(outlook: Outlook) -> list[str]:
    if outlook.mtbf_s is None or outlook.young_s is None or outlook.daly_s is None:
        return []
    line = (
        f"with a failure every {format_seconds(outlook.mtbf_s)} the best interval is "
        f"{format_seconds(outlook.young_s)} (Young), {format_seconds(outlook.daly_s)} (Daly)"
    )
    if outlook.best_efficiency is not None:
        line += f"; the efficiency is then {_efficiency(outlook.best_efficiency)}"
    if outlook.efficiency is not None and outlook.interval_s is not None:
        line += f", and {_efficiency(outlook.efficiency)} at {format_seconds(outlook.interval_s)}"
    if outlook.lost_work_s is None:
        return [line]
    lost, restart = format_seconds(outlook.lost_work_s), format_seconds(outlook.restart_s)
    return [line, f"a failure loses {lost} of training on average, and the restart takes {restart}"]


def _efficiency(share: float) -> str:
    """Return an efficiency as text with enough digits to distinguish it from 100 %, such as "99.87 %"."""
    return f"{share * 100:.2f} %"


def _phases(one: Checkpoints) -> tuple[ReportTable, ...]:
    if not one.saving:
        return ()
    rows = [
        (phase.result.name, "background" if phase.background else "save", phase.result)
        for phase in one.saving
    ]
    rows += [(restored.name, "restore", restored) for restored in one.restoring]
    cells = tuple((name, when, seconds(each.time_s), largest(each)) for name, when, each in rows)
    return (ReportTable("Phases of saving and restoring", ("phase", "", "time", "bottleneck"), cells, (2,)),)


# -- data ----------------------------------------------------------------------------------------


def data(result: TrainingResult) -> ReportSection:
    """Describe how a run reads its data, and whether its GPUs wait for them."""
    dataset, data_loading = result.dataset, result.data_loading
    assert dataset is not None
    size = f"{dataset.samples:,} samples of {format_bytes(dataset.sample_size)}"
    steps, lasting = f"{data_loading.steps_per_epoch:,}", format_seconds(data_loading.cold.duration_s)
    where = f"{printable(dataset.tier)} ({format_bytes(data_loading.stored)} stored)"
    names = tuple(filter(None, (dataset.tier, data_loading.cold.link)))
    texts = (printable(text) for text in data_loading_sentences(dataset, data_loading))
    lines = (
        f"{size} on {where}; an epoch has {steps} steps and takes {lasting}",
        *(NameFirst(text) if text.startswith(names) else text for text in texts),
    )
    table = ReportTable(
        "Epochs",
        ("epoch", "in page cache", "needed", "reachable", "time per batch", "GPUs waiting"),
        tuple(_epoch(epoch) for epoch in data_loading.epochs),
        (1, 2, 3, 4, 5),
    )
    return ReportSection("Data", lines, (table,))


def _epoch(epoch: Epoch) -> tuple[Entry, ...]:
    last = epoch.first + epoch.repeats - 1
    return (
        count(epoch.first) if last == epoch.first else f"{epoch.first} to {last}",
        fraction(epoch.hit_ratio),
        byte_rate(epoch.needed) if epoch.needed else Datum("nothing", 0.0, "B/s"),
        byte_rate(epoch.reachable),
        seconds(epoch.batch_s),
        fraction(epoch.starvation),
    )


# -- endurance -----------------------------------------------------------------------------------


def drive_endurance(result: SimulationResult) -> ReportSection:
    """List what is written to drives, and how long they last."""
    rows: list[tuple[Entry, ...]] = []
    for worn in result.drive_lifetime:
        tier, unit, one = worn
        rated = one.rated_drive_writes_per_day
        each_day = f"{format_bytes(one.per_drive_day)} ({format_number(one.drive_writes_per_day, digits=2)})"
        rows.append(
            (
                tier,
                count(one.drives),
                Datum(f"{format_bytes(one.per_step)} per {unit}", one.per_step, "B"),
                byte_count(one.per_day),
                Datum(each_day, one.per_drive_day, "B"),
                "no rating" if rated is None else Datum(f"{format_number(rated, digits=2)}", rated),
                Datum(worn.lasts, one.years, "years") if worn.lasts else "",
            )
        )
    head = (
        "tier",
        "drives",
        "written",
        "per day",
        "per drive (DWPD)",
        "rated DWPD",
        "worn out after",
    )
    return ReportSection("Drive endurance", tables=(ReportTable("", head, tuple(rows), (1, 2, 3, 4, 5, 6)),))


# -- words ---------------------------------------------------------------------------------

_CONTENTS = {
    "zero": "ZeRO checkpoint",
    "sharded": "sharded checkpoint",
    "model_only": "weights only, sharded",
    "consolidated": "weights in one file",
}
_WRITERS = {"torch_save": "torch.save", "python": "Python's file", "fast": "FastPersist"}


def presentation_of(result: CheckpointResult) -> Presentation:
    """Return the words of a report about a checkpoint."""
    saved = result.checkpoint
    mode = "" if saved.mode == "blocking" else f", {saved.mode}"
    places = (TierAssignment("checkpoints", result.target),)
    longest = max(saved.saving, key=lambda phase: phase.result.time_s, default=None)
    return Presentation(
        kind="checkpoint",
        verb="is saved",
        work=(
            f"{_CONTENTS[saved.contents]} of {plural(result.gpus, 'GPU')}",
            f"{_WRITERS[saved.writer]}{mode}",
            format_bytes(saved.size),
        ),
        step="checkpoint",
        places=places,
        placed=placed_text(places),
        labels=labels(result.name, result.target),
        exact=f"{result.name}@{result.target}",
        legend={"ratio": ratio_legend(result, "time to save")},
        shown=longest.result if longest else None,
        unit_name="checkpoint",
        parts="parts",
    )
