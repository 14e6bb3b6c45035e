"""Changes, machines and limits as a terminal shows them."""

from __future__ import annotations

import pytest

from simoffload.documents import Edit
from simoffload.planning.fit import Largest, Limit, MachineCount, MachinesNeeded
from simoffload.report.fit_text import changes, largest_text, machines_text
from simoffload.report.paper import Paper
from simoffload.results.capacity import Change, Remedies, TierUse

GIB = 2**30
FULL = TierUse("hbm", "hbm", "per GPU", 39 * GIB, 40 * GIB, ())


def needed(*counts: MachineCount, platform: str = "dgx-a100") -> MachinesNeeded:
    return MachinesNeeded("tuning", "bloom-7b1", "training", platform, 8, 320 * GIB, 10**12, counts)


def test_a_change_says_what_is_left_and_how_to_make_it() -> None:
    one = Change("batch", "batch 16 → 11 on each GPU", (Edit.at("workload.batch_size", 11),), (FULL,))
    assert changes(Paper(color=False, width=80), Remedies((one,), ())) == [
        "each makes it fit",
        "batch 16 → 11 on each GPU: 1 GiB of hbm left per GPU",
        "  --set workload.batch_size=11",
    ]


def test_options_that_are_too_long_for_a_line_stand_below_each_other_unbroken() -> None:
    host = f"host/{'x' * 30}"
    edits = (Edit(("profiles", host, "memory_capacity"), "64 GiB"), Edit.at("nodes", 2))
    one = Change("capacity", "more", edits, (FULL,))
    assert changes(Paper(color=False, width=80), Remedies((one,), ()))[2:] == [
        f"  --set 'profiles.{host}.memory_capacity=\"64 GiB\"'",
        "  --set nodes=2",
    ]


def test_that_nothing_helps_is_said() -> None:
    assert changes(Paper(color=False, width=80), Remedies((), ("ZeRO stage 3", "weights on dram"))) == [
        "nothing that was tried makes it fit, alone, in pairs or in threes;",
        "  tried: ZeRO stage 3; weights on dram",
    ]


def test_more_tiers_than_fit_on_a_line_make_a_second_table() -> None:
    tiers = [MachineCount(f"storage-number-{number}", number, "") for number in range(1, 7)]
    lines = machines_text([needed(*tiers)], width=80).splitlines()
    assert lines[1:5] == [
        "model      work      rule  storage-number-1  storage-number-2  storage-number-3",
        "bloom-7b1  training     3                 1                 2                 3",
        "model      work      storage-number-4  storage-number-5  storage-number-6",
        "bloom-7b1  training                 4                 5                 6",
    ]
    assert all(len(line) <= 80 for line in lines)


def test_each_platform_has_its_table_and_each_failure_its_reason() -> None:
    text = machines_text([needed(MachineCount("hbm", None, "hbm is small")), needed(platform="dgx-h100")])
    assert text.count("Machines needed: ") == 2
    assert "bloom-7b1  training     3    –\n" in text
    assert "Why not   tuning, hbm: hbm is small\n" in text


def test_a_limit_that_is_not_the_memorys_is_marked() -> None:
    batch, context = Limit(1, 10**6, 10**6, ()), Limit(100, None, 10**7, ())
    one = Largest("x", "m", "p", "dram", 1, batch, context, None, Limit(2, 3, 10**5, ()), 350_000_000)
    assert largest_text([one]).splitlines()[:2] == [
        "model  weights   batch per GPU  context  layers  parameters",
        "m      dram     1 → ≥1,000,000  100 → –   2 → 3        350M",
    ]


def test_names_cannot_steer_the_terminal() -> None:
    evil = "\x1b[2J"
    text = machines_text([needed()._replace(model=evil, name=evil, platform=evil)])
    one = Change("batch", evil, (Edit((evil,), evil),), (FULL._replace(tier=evil),))
    text += "\n".join(changes(Paper(color=False, width=80), Remedies((one,), ())))
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("count", "shown"),
    [(999_400_000, "999M"), (999_600_000, "1B"), (999_600_000_000, "1T"), (36_900_000_000_000, "36.9T")],
)
def test_parameters_go_over_to_the_next_unit(count: int, shown: str) -> None:
    one = Limit(1, 1, 9, ())
    held = Largest("tuning", "m", "dgx-a100", "raid", 8, one, one, None, one, count)
    assert largest_text([held]).splitlines()[1].endswith(f"  {shown}")
