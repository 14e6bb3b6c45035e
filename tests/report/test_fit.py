"""Changes, machines and limits as a terminal shows them."""

from __future__ import annotations

import pytest

from simoffload.documents import Edit
from simoffload.planning.sizing import Largest, LargestValue, MachineCount, MachinesNeeded
from simoffload.report.document import ReportDocument
from simoffload.report.from_fit import largest_document, machines_document
from simoffload.report.sections.capacity import remedies_section
from simoffload.report.terminal import terminal_text
from simoffload.results.capacity import Change, Remedies, TierUse

GIB = 2**30
FULL = TierUse("hbm", "hbm", "per GPU", 39 * GIB, 40 * GIB, ())


def needed(*counts: MachineCount, platform: str = "dgx-a100") -> MachinesNeeded:
    return MachinesNeeded("tuning", "bloom-7b1", "training", platform, 8, 320 * GIB, 10**12, counts)


def rendered(remedies: Remedies, *, width: int = 80) -> list[str]:
    """What a terminal shows of changes, without the title of the document."""
    document = ReportDocument((), None, (), (), (remedies_section(remedies),))
    return terminal_text(document, width=width).splitlines()[2:]


def test_a_change_says_what_is_left_and_how_to_make_it() -> None:
    one = Change("batch", "batch 16 → 11 on each GPU", (Edit.at("workload.batch_size", 11),), (FULL,))
    assert rendered(Remedies((one,), ())) == [
        "  each of these changes makes it fit",
        "  batch 16 → 11 on each GPU: 1 GiB of hbm free per GPU",
        "    --set workload.batch_size=11",
    ]


def test_options_to_copy_are_never_broken() -> None:
    host = f"host/{'x' * 50}"
    edits = (Edit(("profiles", host, "memory_capacity"), "64 GiB"), Edit.at("nodes", 2))
    one = Change("capacity", "more", edits, (FULL,))
    assert rendered(Remedies((one,), ()))[2:] == [
        f"    --set 'profiles.{host}.memory_capacity=\"64 GiB\"' --set nodes=2",
    ]


def test_that_nothing_helps_is_said() -> None:
    assert rendered(Remedies((), ("ZeRO stage 3", "weights on dram"))) == [
        "  no change that was tried makes it fit, neither alone nor in combinations of",
        "    two or three; tried: ZeRO stage 3; weights on dram",
    ]


def machines_lines(*found: MachinesNeeded, width: int = 100) -> list[str]:
    return terminal_text(machines_document(found), width=width).splitlines()


def test_more_tiers_than_fit_on_a_line_make_a_second_table() -> None:
    tiers = [MachineCount(f"storage-number-{number}", number, "") for number in range(1, 10)]
    lines = machines_lines(needed(*tiers), width=80)
    assert len([line for line in lines if line.startswith("  model")]) > 1
    assert all(len(line) <= 80 for line in lines)
    rows = [line.split() for line in lines if line.startswith("  bloom-7b1")]
    assert [name for row in rows for name in row[2:]] == ["3", *map(str, range(1, 10))], "none is lost"


def test_each_platform_has_its_table_and_each_failure_its_reason() -> None:
    lines = machines_lines(needed(MachineCount("hbm", None, "hbm is small")), needed(platform="dgx-h100"))
    assert [line for line in lines if line.endswith(" of HBM in total")] == [
        "dgx-a100, 8 GPUs with 320 GiB of HBM in total",
        "dgx-h100, 8 GPUs with 320 GiB of HBM in total",
    ]
    assert "  bloom-7b1  training        3    –" in lines
    assert "  tuning, hbm: hbm is small" in lines


def largest_lines(*found: Largest) -> list[str]:
    return terminal_text(largest_document(found)).splitlines()


def test_a_limit_that_is_not_the_memorys_is_marked() -> None:
    batch, context = LargestValue(1, 10**6, 10**6, ()), LargestValue(100, None, 10**7, ())
    one = Largest("x", "m", "p", "dram", 1, batch, context, None, LargestValue(2, 3, 10**5, ()), 350_000_000)
    assert largest_lines(one)[3:5] == [
        "  model  weights   batch per GPU  context  layers  parameters",
        "  m      dram     1 → ≥1,000,000  100 → –   2 → 3        350M",
    ]


def test_names_cannot_steer_the_terminal() -> None:
    evil = "\x1b[2J"
    lines = machines_lines(needed()._replace(model=evil, name=evil, platform=evil))
    one = Change("batch", evil, (Edit((evil,), evil),), (FULL._replace(tier=evil),))
    assert "\x1b" not in "".join((*lines, *rendered(Remedies((one,), ()))))


@pytest.mark.parametrize(
    ("count", "shown"),
    [(999_400_000, "999M"), (999_600_000, "1B"), (999_600_000_000, "1T"), (36_900_000_000_000, "36.9T")],
)
def test_parameters_go_over_to_the_next_unit(count: int, shown: str) -> None:
    one = LargestValue(1, 1, 9, ())
    held = Largest("tuning", "m", "dgx-a100", "raid", 8, one, one, None, one, count)
    assert largest_lines(held)[4].endswith(f"  {shown}")
