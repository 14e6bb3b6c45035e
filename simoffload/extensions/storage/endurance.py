"""Lifetime of the drives to which a run writes.

All bytes are those that hosts write; additional writes within a drive are included in its rating.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from simoffload.hardware import Drive, Machine, Raid
from simoffload.units import format_bytes, format_number

DAY = 86_400
"""Length of a day [s]."""
YEAR = 365
"""Length of a year [d], as in drive writes per day: ratings of JEDEC and vendors ignore leap days."""

Verdict = Literal["unrated", "ok", "before_warranty_ends", "within_a_year"]
"""Whether the drives outlast their warranty at this rate; without a warranty, ``ok`` means at least a
year."""


class DriveLifetime(NamedTuple):
    """A DriveLifetime states what a job writes, and how long the drives last."""

    drives: int
    """Number of drives on all hosts."""
    per_step: float
    """[B] that the job writes in a step."""
    per_day: float
    """[B] that the job writes in a day."""
    per_drive_day: float
    """[B] that are written to each drive in a day, parity and mirrors included."""
    drive_writes_per_day: float
    """Bytes written to a drive in a day over its capacity."""
    rated_bytes: int | None
    """[B] that each drive is rated for; None if its profile has no rating."""
    rated_drive_writes_per_day: float | None
    """Rated drive writes per day; None without a rating over a warranty."""
    warranty_years: float | None
    years: float | None
    """Years until the rating is used up; None without a rating or without writes."""
    verdict: Verdict

    @property
    def days(self) -> float | None:
        """Time until the rating is used up [d]."""
        return None if self.years is None else self.years * YEAR


class TierLifetime(NamedTuple):
    """A TierLifetime is the lifetime of the drives of one tier."""

    tier: str
    unit: str
    """Unit of work in ``DriveLifetime.per_step``: "step" or "checkpoint"."""
    drive_lifetime: DriveLifetime

    @property
    def lasts(self) -> str:
        """Time until the rating is used up, as text; "" if it is not known."""
        return "" if self.drive_lifetime.years is None else duration(self.drive_lifetime.years)

    @property
    def sentence(self) -> str:
        """Sentence about the bytes written to the tier, and the time until the rating is reached."""
        return f"{self.tier}: {phrase(self.drive_lifetime, unit=self.unit)}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "tier": self.tier,
            "unit": self.unit,
            **self.drive_lifetime._asdict(),
            "days": self.drive_lifetime.days,
        }


def drive_share(array: Raid | None) -> float:
    """Return the bytes [B] written to each drive of an array per byte that its host writes in whole stripes.

    It is 1 / (number of drives' worth of data), as parity rotates over all drives: RAID0 1/n, RAID5 1/(n-1),
    RAID6 1/(n-2), RAID10 2/n.
    """
    return 1.0 if array is None else 1 / array.data_drives


def drive_lifetime(
    per_step: float,
    step_time: float,
    drive: Drive,
    *,
    array: Raid | None = None,
    hosts: int = 1,
    uneven: float = 1.0,
) -> DriveLifetime:
    """Return how long new drives last if each step of ``step_time`` [s] writes ``per_step`` [B], all day.

    ``array`` is the array of such drives on each of ``hosts`` hosts, or None for a single drive. The result
    is for the drives of the host that writes the most, which is ``uneven`` times the mean of all hosts.

        per drive and day = per_step x 86400 / step_time / hosts x uneven x drive_share
        years = rated bytes / (per drive and day x 365)

    Raises ValueError for times that are not positive and for negative counts.
    """
    if step_time <= 0 or hosts < 1 or per_step < 0:
        raise ValueError(f"no wear of {per_step} B per step of {step_time} s on {hosts} host(s)")
    capacity, rating = drive.capacity.value, drive.endurance
    per_day = per_step * DAY / step_time
    per_drive = per_day / hosts * uneven * drive_share(array)
    rated = rating.rated_bytes(capacity) if rating else None
    warranty = rating.warranty_years.value if rating and rating.warranty_years else None
    years = None
    if rated is not None and per_drive > 0:
        years = rated / (per_drive * YEAR)
    return DriveLifetime(
        drives=hosts * (array.count if array else 1),
        per_step=per_step,
        per_day=per_day,
        per_drive_day=per_drive,
        drive_writes_per_day=per_drive / capacity,
        rated_bytes=rated,
        rated_drive_writes_per_day=rating.rated_dwpd(capacity) if rating else None,
        warranty_years=warranty,
        years=years,
        verdict=_verdict(rated, years, warranty),
    )


def tier_lifetime(
    machine: Machine, tier: str, by_host: Sequence[float], *, time_s: float, unit: str
) -> TierLifetime | None:
    """Return the lifetime of the drives of a tier to which each host writes ``by_host`` [B] every ``time_s``
    [s].

    None if the drives are not known (a file server, a parallel filesystem) or nothing is written.
    """
    target, written = machine.targets[tier], sum(by_host)
    if target.drive is None or not written:
        return None
    hosts, uneven = 1, 1.0
    if target.drives:  # every host has its own
        hosts = len(by_host)
        uneven = max(by_host) * hosts / written
    worn = drive_lifetime(written, time_s, target.drive, array=target.array, hosts=hosts, uneven=uneven)
    return TierLifetime(tier, unit, worn)


def lifetime_warnings(found: Sequence[TierLifetime]) -> tuple[str, ...]:
    """Return a warning for drives that do not last as long as their warranty, or a year without one."""
    short = ("within_a_year", "before_warranty_ends")
    return tuple(f"drives wear out: {one.sentence}" for one in found if one.drive_lifetime.verdict in short)


def _verdict(rated: int | None, years: float | None, warranty: float | None) -> Verdict:
    if rated is None:
        return "unrated"
    if years is None:
        return "ok"
    if years < 1:
        return "within_a_year"
    return "ok" if warranty is None or years >= warranty else "before_warranty_ends"


def phrase(worn: DriveLifetime, *, unit: str = "step") -> str:
    """Return a sentence: the bytes written per day, and the time until the rating is reached."""
    if not worn.per_step:
        return "nothing is written to the drives"
    each = "the drive takes" if worn.drives == 1 else f"each of {worn.drives} drives takes"
    writes = _writes(worn.drive_writes_per_day)
    text = f"{format_bytes(worn.per_step)} a {unit}, {format_bytes(worn.per_day)} a day: {each} "
    text += f"{format_bytes(worn.per_drive_day)} a day ({writes}"
    if worn.years is None or worn.rated_bytes is None:
        return f"{text}); no endurance rating of this drive is known"
    if worn.rated_drive_writes_per_day is not None:
        text += f"; rated for {format_number(worn.rated_drive_writes_per_day, digits=2)} a day"
    text += f"); its {format_bytes(worn.rated_bytes)} are used up in {duration(worn.years)}"
    if worn.warranty_years is not None and worn.years < worn.warranty_years:
        text += f", before the warranty of {worn.warranty_years:g} years ends"
    return text


def _writes(count: float) -> str:
    shown = f"{count:.0f}" if count >= 9.95 else f"{format_number(count, digits=2)}"
    return f"{shown} drive write" if shown == "1" else f"{shown} drive writes"


def duration(years: float) -> str:
    """Return a duration as text, such as "9.1 days" or, from two years on, "3.2 years"."""
    if years >= 100:
        return "more than 100 years"
    if years >= 2:
        return f"{format_number(years, digits=2)} years"
    days = years * YEAR
    return f"{days:.0f} days" if days >= 9.95 else f"{format_number(days, digits=2)} days"
