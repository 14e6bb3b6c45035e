"""Checkpoints, data and wear of drives in sentences and tables, for terminal and page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simoffload.errors import printable
from simoffload.report.phrases import percent, plural
from simoffload.results.checkpoint import CheckpointResult, Checkpoints, Outlook
from simoffload.results.passes import PassResult
from simoffload.results.reading import Epoch, Reading
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult
from simoffload.results.wear import TierWear, duration
from simoffload.simulation.data_loading import sentences
from simoffload.units import format_bytes, format_rate, format_seconds
from simoffload.workload import Dataset

__all__ = ["Section", "Table", "efficiency", "sections"]

_FROM = {"hbm": "GPU", "dram": "host memory", "nvme": "swap files"}


class Table(NamedTuple):
    """Rows of text under a head."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...]
    """Columns that are aligned at the right."""


class Section(NamedTuple):
    """What is told about one subject."""

    title: str
    """On a page."""
    short: str
    """At the left of a terminal."""
    sentences: tuple[str, ...]
    tables: tuple[Table, ...]


def sections(result: SimulationResult) -> tuple[Section, ...]:
    """What a result has beside its steps; nothing for inference."""
    found: list[Section] = []
    if isinstance(result, TrainingResult | CheckpointResult) and result.checkpoint is not None:
        found.append(_checkpoint(result.checkpoint))
    if isinstance(result, TrainingResult) and result.dataset is not None and result.reading is not None:
        found.append(_data(result.dataset, result.reading))
    if isinstance(result, TrainingResult | CheckpointResult) and result.wear:
        found.append(_wear(result.wear))
    return tuple(found)


# -- checkpoints ---------------------------------------------------------------------------------


def _checkpoint(one: Checkpoints) -> Section:
    told = [f"{format_bytes(one.size)} in {plural(one.files, 'file')} on {printable(one.tier)}"]
    if one.keep > 1:
        told[0] += f", {one.keep} kept"
    if one.written > one.size:
        told[0] += f"; {format_bytes(one.written)} are written for it"
    if one.outlook is not None:
        told += [*_cost(one, one.outlook), *_failures(one.outlook)]
    parts = Table(
        "Parts of a checkpoint",
        ("part", "each", "writers", "files", "from"),
        tuple(
            (part.name, format_bytes(part.size), str(part.writers), str(part.files), _FROM[part.device])
            for part in one.parts
        ),
        (1, 2, 3),
    )
    return Section("Checkpoint", "Saving", tuple(told), (parts, *_phases(one)))


def _cost(one: Checkpoints, outlook: Outlook) -> list[str]:
    rate = format_rate(one.size / outlook.commit_s)
    saving = f"saving takes {format_seconds(outlook.commit_s)} ({rate})"
    if outlook.background_s:
        saving += f", {format_seconds(outlook.background_s)} of it behind the training"
    saving += f"; training stands still for {format_seconds(outlook.stall_s)}"
    if outlook.share is not None and outlook.interval_s is not None:
        every = format_seconds(outlook.interval_s)
        saving += f", {percent(outlook.share)} of the time with {every} of training in between"
    return [saving, f"restoring takes {format_seconds(outlook.restore_s)}"]


def _failures(outlook: Outlook) -> list[str]:
    if outlook.mtbf_s is None or outlook.young_s is None or outlook.daly_s is None:
        return []
    told = (
        f"with a failure every {format_seconds(outlook.mtbf_s)} the best interval is "
        f"{format_seconds(outlook.young_s)} (Young), {format_seconds(outlook.daly_s)} (Daly)"
    )
    if outlook.best_efficiency is not None:
        told += f"; {efficiency(outlook.best_efficiency)} of the time then goes into training"
    if outlook.efficiency is not None and outlook.interval_s is not None:
        told += f", {efficiency(outlook.efficiency)} at {format_seconds(outlook.interval_s)}"
    if outlook.lost_work_s is None:
        return [told]
    lost, restart = format_seconds(outlook.lost_work_s), format_seconds(outlook.restart_s)
    return [told, f"a failure throws away {lost} of training on average, and {restart} pass until it goes on"]


def efficiency(fraction: float) -> str:
    """ "99.87 %": the digits in which such fractions differ."""
    return f"{fraction * 100:.2f} %"


def _phases(one: Checkpoints) -> tuple[Table, ...]:
    if not one.saving:
        return ()
    rows = [
        (phase.result.name, "behind the training" if phase.background else "save", phase.result)
        for phase in one.saving
    ]
    rows += [(restored.name, "restore", restored) for restored in one.restoring]
    table = Table(
        "Phases of saving and restoring",
        ("phase", "", "time", "largest part"),
        tuple((name, when, format_seconds(each.time_s), _largest(each)) for name, when, each in rows),
        (2,),
    )
    return (table,)


def _largest(one: PassResult) -> str:
    return f"{one.bottleneck.cause} {percent(one.bottleneck.exposed_s / one.time_s)}"


# -- data ----------------------------------------------------------------------------------------


def _data(dataset: Dataset, reading: Reading) -> Section:
    size = f"{dataset.samples:,} samples of {format_bytes(dataset.sample_size)}"
    steps, lasting = f"{reading.steps_per_epoch:,}", format_seconds(reading.cold.duration_s)
    where = f"{printable(dataset.tier)}, {format_bytes(reading.stored)} there"
    told = (
        f"{size} on {where}; an epoch has {steps} steps and takes {lasting}",
        *(printable(text) for text in sentences(dataset, reading)),
    )
    table = Table(
        "Epochs",
        ("epoch", "in page cache", "needed", "reachable", "a batch every", "waiting"),
        tuple(_epoch(epoch) for epoch in reading.epochs),
        (1, 2, 3, 4, 5),
    )
    return Section("Data", "Data", told, (table,))


def _epoch(epoch: Epoch) -> tuple[str, ...]:
    last = epoch.first + epoch.repeats - 1
    return (
        str(epoch.first) if last == epoch.first else f"{epoch.first} to {last}",
        percent(epoch.hit_ratio),
        format_rate(epoch.needed) if epoch.needed else "nothing",
        format_rate(epoch.reachable),
        format_seconds(epoch.batch_s),
        percent(epoch.starvation),
    )


# -- wear ----------------------------------------------------------------------------------------


def _wear(found: Sequence[TierWear]) -> Section:
    rows = []
    for tier, unit, one in found:
        rated = one.rated_drive_writes_per_day
        rows.append(
            (
                tier,
                str(one.drives),
                f"{format_bytes(one.per_step)} a {unit}",
                format_bytes(one.per_day),
                f"{format_bytes(one.per_drive_day)} ({one.drive_writes_per_day:.2g})",
                "no rating" if rated is None else f"{rated:.2g}",
                duration(one.years) if one.years is not None else "",
            )
        )
    head = ("tier", "drives", "written", "a day", "each a day (drive writes)", "rated", "used up in")
    return Section("Wear of drives", "Wear", (), (Table("", head, tuple(rows), (1, 2, 3, 4, 5, 6)),))
