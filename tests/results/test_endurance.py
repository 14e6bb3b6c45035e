"""Wear of drives, worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from simoffload.extensions.storage.endurance import TierLifetime, drive_lifetime, drive_share, phrase
from simoffload.hardware import list_profiles, load_profile
from simoffload.hardware.storage import Drive, Endurance, Raid

GB, TB = 10**9, 10**12
ORIGIN = {"origin": "spec", "source": "made up", "date": "2026-11-21"}
PARAMETERS = 14_220_000_000
STEP = 49.66
"""[s] of a step of 14.22e9 parameters with the optimizer on RAID0 of three drives (xinnor.io)."""


def number(value: object) -> dict[str, object]:
    return {"value": value, **ORIGIN}


def drive(capacity: str = "2 TB", **endurance: object) -> Drive:
    shipped = load_profile("drive", "generic-dramless-gen4-2tb")
    data = shipped.model_dump(mode="json") | {"capacity": number(capacity), "endurance": endurance or None}
    return Drive.model_validate(data)


def rated(tbw: int = 1200, years: int = 5) -> Drive:
    return drive(tbw=number(f"{tbw} TB"), warranty_years=number(years))


def array(level: int, count: int) -> Raid:
    shipped = load_profile("raid", "raid0-3x-dramless-gen4-2tb")
    return Raid.model_validate(shipped.model_dump(mode="json") | {"level": level, "count": count})


def test_optimizer_on_three_consumer_drives() -> None:
    """16 B x 14.22e9 = 227.52 GB; 86400 / 49.66 = 1739.83 steps a day; 1200 TB last 9.1 days."""
    worn = drive_lifetime(16 * PARAMETERS, STEP, rated(), array=array(0, 3))
    assert worn.per_day == pytest.approx(395.846 * TB, rel=1e-5)
    assert worn.per_drive_day == pytest.approx(131.949 * TB, rel=1e-5)
    assert worn.drive_writes_per_day == pytest.approx(65.974, rel=1e-4)
    assert worn.rated_drive_writes_per_day == pytest.approx(1200 / (2 * 365 * 5))
    assert worn.days == pytest.approx(9.0944, rel=1e-4)
    assert worn.years == pytest.approx(0.024916, rel=1e-4)
    assert (worn.drives, worn.verdict) == (3, "within_a_year")
    assert phrase(worn) == (
        "228 GB a step, 396 TB a day: each of 3 drives takes 132 TB a day (66 drive writes; rated for 0.33 a "
        "day); its 1.2 PB are used up in 9.1 days, before the warranty of 5 years ends"
    )


def test_what_that_run_wrote_by_its_own_table() -> None:
    """The table says 317.87 GiB written per step, 24 B per parameter: 1.5 times the wear of 16 B."""
    per_step = 24 * PARAMETERS
    assert per_step == pytest.approx(317.87 * 2**30, rel=1e-3)
    worn = drive_lifetime(per_step, STEP, rated(), array=array(0, 3))
    assert worn.days == pytest.approx(9.0944 / 1.5, rel=1e-4)


@pytest.mark.parametrize(
    ("level", "count", "share"),
    [(0, 4, 1 / 4), (5, 4, 1 / 3), (6, 8, 1 / 6), (10, 8, 1 / 4), (5, 9, 1 / 8)],
)
def test_share_of_each_drive_of_an_array(level: int, count: int, share: float) -> None:
    assert drive_share(array(level, count)) == pytest.approx(share)


def test_a_drive_alone_takes_everything() -> None:
    assert drive_share(None) == 1


@given(
    st.sampled_from([0, 5, 6, 10]),
    st.integers(2, 12).map(lambda half: 2 * half),
    st.floats(1e6, 1e12),
    st.floats(1e-3, 1e4),
    st.integers(1, 8),
)
def test_bytes_of_all_drives_are_the_jobs_and_their_parity(
    level: int, count: int, per_step: float, step: float, hosts: int
) -> None:
    raid = array(level, count)
    worn = drive_lifetime(per_step, step, rated(), array=raid, hosts=hosts)
    amplification = {0: 1, 5: count / (count - 1), 6: count / (count - 2), 10: 2}[level]
    assert worn.per_drive_day * worn.drives == pytest.approx(worn.per_day * amplification)
    assert worn.per_day == pytest.approx(per_step * 86_400 / step)
    assert worn.days is not None
    assert worn.days * worn.per_drive_day == pytest.approx(1200 * TB)


def test_drive_writes_per_day_become_bytes() -> None:
    """The published table of the Micron 9550 MAX: 3 drive writes a day, 5 years, 3.2 TB: 17 520 TB."""
    for capacity, tbw in (("3.2 TB", 17_520), ("6.4 TB", 35_040), ("12.8 TB", 70_080), ("25.6 TB", 140_160)):
        mixed = drive(capacity, dwpd=number(3), warranty_years=number(5))
        assert mixed.endurance is not None
        assert mixed.endurance.rated_bytes(mixed.capacity.value) == tbw * TB
        assert mixed.endurance.rated_dwpd(mixed.capacity.value) == 3


def test_one_write_a_day_lasts_the_warranty() -> None:
    """7.68 TB a day on a drive that is rated for one drive write a day over five years."""
    daily = drive("7.68 TB", dwpd=number(1), warranty_years=number(5))
    worn = drive_lifetime(7.68 * TB / 24, 3600, daily)
    assert worn.years == pytest.approx(5)
    assert worn.drive_writes_per_day == pytest.approx(1)


@pytest.mark.parametrize(
    ("per_day", "verdict"),
    [
        (0.1, "ok"),  # 12 000 days
        (0.66, "before_warranty_ends"),  # 1818 days, 4.98 years
        (0.65, "ok"),  # 1846 days, 5.06 years
        (3.28, "before_warranty_ends"),  # 366 days
        (3.29, "within_a_year"),  # 365 days less a little
    ],
)
def test_verdict(per_day: float, verdict: str) -> None:
    """A drive of 1200 TBW and five years takes so many TB a day."""
    assert drive_lifetime(per_day * TB, 86_400, rated()).verdict == verdict


def test_a_drive_without_a_warranty_in_years() -> None:
    worn = drive_lifetime(1 * TB, 86_400, drive(tbw=number("1200 TB")))
    assert (worn.verdict, worn.warranty_years, worn.rated_drive_writes_per_day) == ("ok", None, None)
    assert phrase(worn).endswith("(0.5 drive writes); its 1.2 PB are used up in 3.3 years")


def test_no_rating_and_nothing_written() -> None:
    unrated = drive_lifetime(1 * GB, 1, drive())
    assert (unrated.verdict, unrated.years, unrated.rated_bytes) == ("unrated", None, None)
    assert phrase(unrated).endswith("no endurance rating of this drive is known")
    idle = drive_lifetime(0, 1, rated())
    assert (idle.verdict, idle.years, phrase(idle)) == ("ok", None, "nothing is written to the drives")


@pytest.mark.parametrize("wrong", [{"step_time": 0}, {"per_step": -1}, {"hosts": 0}])
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    arguments = {"per_step": 1e9, "step_time": 1.0, "drive": rated()} | wrong
    with pytest.raises(ValueError, match="no wear"):
        drive_lifetime(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rating",
    [
        {"warranty_years": number(5)},
        {"dwpd": number(1)},
        {"dwpd": number(0), "warranty_years": number(5)},
        {"tbw": number("1200")},
        {"tbw": number("1200 TB"), "cycles": number(3000)},
    ],
)
def test_incomplete_ratings_are_refused(rating: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Endurance.model_validate(rating)


def test_shipped_drives_have_plausible_ratings_or_none() -> None:
    """Consumer drives about a third of a drive write a day, server drives of this kind one."""
    expected = {
        "generic-dramless-gen4-2tb": (1200, 0.33),
        "samsung-980-pro-2tb": (1200, 0.33),
        "samsung-990-pro-2tb": (1200, 0.33),
        "micron-7450-pro-7.68tb": (14_016, 1),
        "micron-9550-pro-7.68tb": (14_016, 1),
        "samsung-pm1733-3.84tb": (7_008, 1),
        "samsung-pm1733-7.68tb": (14_016, 1),
    }
    found = {}
    for summary in list_profiles("drive"):
        profile = load_profile("drive", summary.id)
        assert isinstance(profile, Drive)
        if profile.endurance is not None:
            capacity = profile.capacity.value
            writes = profile.endurance.rated_dwpd(capacity)
            found[summary.id] = (profile.endurance.rated_bytes(capacity) // TB, writes and round(writes, 2))
    assert found == expected


def test_the_busiest_host_counts() -> None:
    """Two hosts of three drives, one of which writes all: its drives wear as those of a single host."""
    alone = drive_lifetime(100 * GB, STEP, rated(), array=array(0, 3))
    pair = drive_lifetime(100 * GB, STEP, rated(), array=array(0, 3), hosts=2, uneven=2.0)
    assert pair.per_drive_day == alone.per_drive_day
    assert pair.years == alone.years
    assert (alone.drives, pair.drives) == (3, 6)


def test_wear_of_a_tier_as_plain_values() -> None:
    worn = TierLifetime("raid", "checkpoint", drive_lifetime(100 * GB, 1800.0, rated(), array=array(0, 3)))
    assert worn.sentence.startswith(
        "raid: 100 GB a checkpoint, 4.8 TB a day: each of 3 drives takes 1.6 TB a day"
    )
    data = worn.to_dict()
    assert (data["tier"], data["unit"], data["drives"]) == ("raid", "checkpoint", 3)
    assert data["days"] == pytest.approx(1200 / 1.6)
