"""Sections about storage traffic of training: in a step, for checkpoints and data; and drive endurance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simoffload.errors import printable
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
from simoffload.results import (
    CheckpointResult,
    Checkpoints,
    DataLoading,
    Epoch,
    InferenceResult,
    Outlook,
    SimulationResult,
    StateDevice,
    TierLifetime,
    TrainingResult,
    data_loading_sentences,
    duration,
)
from simoffload.units import format_bytes, format_number, format_rate, format_seconds, percent, plural
from simoffload.workload import Dataset

_FROM: Mapping[StateDevice, str] = {"hbm": "GPU", "dram": "host memory", "nvme": "swap files"}


def training_overheads(result: SimulationResult) -> tuple[ReportSection, ...]:
    """Return the sections about storage traffic, checkpoints, data loading and drive endurance of
    training."""
    found: list[ReportSection] = []
    if isinstance(result, TrainingResult | CheckpointResult) and result.checkpoint is not None:
        found.append(_checkpoint(result.checkpoint))
    if isinstance(result, TrainingResult) and result.dataset is not None and result.data_loading is not None:
        found.append(_data(result.dataset, result.data_loading))
    if isinstance(result, TrainingResult | CheckpointResult | InferenceResult) and result.drive_lifetime:
        found.append(_lifetimes(result.drive_lifetime))
    return tuple(found)


# -- steps ---------------------------------------------------------------------------------------


def storage(result: TrainingResult) -> ReportSection:
    """List the bytes of one step, on all ranks and per parameter of the model; write caches and requests."""
    rows: list[tuple[Entry, ...]] = []
    for one in result.traffic:
        each = (size / result.parameters for size in (one.read, one.written))
        per_parameter = (Datum(f"{format_number(size)} B", size, "B") for size in each)
        rows.append((one.tier, byte_count(one.read), byte_count(one.written), *per_parameter))
    if not rows:
        return ReportSection("Storage", ("a step reads and writes nothing on storage",), page_only=True)
    head = ("tier", "read", "written", "read per parameter", "written per parameter")
    table = ReportTable("One step, all ranks", head, tuple(rows), (1, 2, 3, 4))
    # Writes that exceed a cache are among the warnings.
    caches = [NameFirst(one.sentence) for one in result.write_caches if not one.exceeded]
    requests = [
        f"by the end of the first step each rank reads {one.read:,} and writes {one.written:,} full requests "
        f"of {format_bytes(one.block, binary=True)} on {one.tier}"
        for one in result.requests
    ]
    return ReportSection("Storage", (*caches, *requests), (table,))


# -- checkpoints ---------------------------------------------------------------------------------


def _checkpoint(one: Checkpoints) -> ReportSection:
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


def _data(dataset: Dataset, data_loading: DataLoading) -> ReportSection:
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


def _lifetimes(found: Sequence[TierLifetime]) -> ReportSection:
    rows: list[tuple[Entry, ...]] = []
    for tier, unit, one in found:
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
                Datum(duration(one.years), one.years, "years") if one.years is not None else "",
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
