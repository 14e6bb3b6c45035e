"""Lists of prices and powers: what a user's own list changes, and what it refuses."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from simoffload.errors import InputError
from simoffload.hardware.machine import DeviceGroup
from simoffload.planning.costs import Bill, CostList, Figure, Item, dates_of, load_costs
from tests.planning.costs.conftest import TODAY

L40S = DeviceGroup("accelerator/l40s", 1)


def test_an_own_list_replaces_what_it_names_and_no_more(costs: CostList) -> None:
    price = costs.price(L40S)
    assert price is not None
    assert (price[0].value, price[0].origin, price[0].source) == (10000.0, "quote", "round numbers")
    assert price[0].date == datetime.date(2026, 11, 1)
    other = costs.price(DeviceGroup("accelerator/h100-sxm", 1))
    assert other == load_costs(today=TODAY).price(DeviceGroup("accelerator/h100-sxm", 1))


def test_a_power_alone_leaves_the_price_below_it(tmp_path: Path) -> None:
    path = tmp_path / "powers.yaml"
    path.write_text(
        "kind: costs\nid: p\nname: p\ndate: 2026-11-01\n"
        "devices: {accelerator/l40s: {power: {idle: 1 W, active: 2 W}}}\n",
        encoding="utf-8",
    )
    own, shipped = load_costs(path, today=TODAY), load_costs(today=TODAY)
    assert own.price(L40S) == shipped.price(L40S)
    assert own.power(L40S) != shipped.power(L40S)


def test_memory_is_paid_by_the_gigabyte_and_drives_without_a_price_by_the_terabyte(costs: CostList) -> None:
    memory = costs.price(DeviceGroup("memory", 1, size=64 * 2**30))
    drive = costs.price(DeviceGroup("drive/samsung-pm1733-3.84tb", 1, size=3_840 * 10**9))
    assert memory is not None
    assert drive is not None
    assert (memory[0].what, memory[0].value, memory[1]) == ("memory per GB", 10.0, 64.0)
    assert (drive[0].what, drive[0].value, drive[1]) == ("flash per TB", 100.0, 3.84)


def test_prices_in_another_currency_stand_alone(tmp_path: Path) -> None:
    path = tmp_path / "euro.yaml"
    text = "kind: costs\nid: e\nname: e\ncurrency: EUR\ndate: 2026-11-01\n"
    path.write_text(text + "devices: {accelerator/l40s: {price: 7000}}\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_costs(path, today=TODAY)
    assert "electricity is missing" in str(caught.value)
    path.write_text(text + "electricity: 0.2\ndevices: {accelerator/l40s: {price: 7000}}\n", encoding="utf-8")
    own = load_costs(path, today=TODAY)
    assert own.currency == "EUR"
    assert own.price(DeviceGroup("accelerator/h100-sxm", 1)) is None
    assert own.power(DeviceGroup("accelerator/h100-sxm", 1)) is not None
    assert "nothing is converted" in own.remarks[0]


@pytest.mark.parametrize("currency", ["USD", "EUR"])
def test_what_is_only_rented_stays_so_under_an_own_list(tmp_path: Path, currency: str) -> None:
    drive = "drive/azure-nd-h200-v5-3.5tb"
    path = tmp_path / "own.yaml"
    path.write_text(
        f"kind: costs\nid: o\nname: o\ncurrency: {currency}\ndate: 2026-11-01\nelectricity: 0.2\n"
        f"devices: {{{drive}: {{power: {{idle: 1 W, active: 2 W}}}}}}\n",
        encoding="utf-8",
    )
    assert not load_costs(today=TODAY).sold(drive)
    assert not load_costs(path, today=TODAY).sold(drive)


def test_prices_older_than_a_year_are_told(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(
        "kind: costs\nid: o\nname: o\ndate: 2025-11-20\ndevices: {accelerator/l40s: {price: 1}}\n",
        encoding="utf-8",
    )
    on_the_day, after = (load_costs(path, today=datetime.date(2026, 11, day)) for day in (20, 21))
    price = after.price(L40S)
    assert price is not None
    assert on_the_day.old([price[0]]) == ()
    rendered = "prices older than a year: accelerator/l40s (2025-11-20)"
    assert after.old([price[0]]) == (f"{rendered}; give newer ones with --costs FILE",)


OVER_TIME = """kind: costs
id: o
name: o
memory:
  price_per_gb:
    value: 12
    source: a shop
    date: 2026-06-04
    earlier:
      - {value: 7, source: a shop, date: 2025-12-31}
      - {value: 4, source: another, date: 2025-09-30, origin: estimate}
"""


OLD = "{value: 2, date: 2026-%s-01}"


@pytest.mark.parametrize(
    ("day", "price"),
    [
        ("2026-11-21", (12.0, "quote", "a shop", "2026-06-04")),
        ("2026-06-04", (12.0, "quote", "a shop", "2026-06-04")),
        ("2026-06-03", (7.0, "quote", "a shop", "2025-12-31")),
        ("2025-10-01", (4.0, "estimate", "another", "2025-09-30")),
        ("2024-01-01", (4.0, "estimate", "another", "2025-09-30")),
    ],
)
def test_of_values_over_time_the_newest_of_the_day_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, day: str, price: tuple[object, ...]
) -> None:
    (tmp_path / "over-time.yaml").write_text(OVER_TIME, encoding="utf-8")
    monkeypatch.setattr(
        "simoffload.planning.costs._check_dates", lambda *_: None
    )  # of lists that are shipped
    known = load_costs(tmp_path / "over-time.yaml", today=datetime.date.fromisoformat(day))
    found = known.price(DeviceGroup("memory", 1, size=2**30))
    assert found is not None
    figure, units = found
    assert (figure.value, figure.origin, figure.source, str(figure.date)) == price
    assert units == 1.0


def test_a_list_of_the_users_own_comes_before_newer_shipped_prices(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    price = "price: {value: 1234, source: s, date: 2024-01-01}"
    path.write_text(f"kind: costs\nid: m\nname: m\ndevices: {{accelerator/rtx-5090: {{{price}}}}}\n")
    found = load_costs(path, today=TODAY).price(DeviceGroup("accelerator/rtx-5090", 1))
    assert found is not None
    assert (found[0].value, str(found[0].date)) == (1234.0, "2024-01-01")


def test_nobody_knows_a_price_of_tomorrow(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(OVER_TIME, encoding="utf-8")
    day = datetime.date(2026, 6, 4)
    assert load_costs(path, today=day).costs.memory.price_per_gb is not None
    with pytest.raises(InputError) as caught:
        load_costs(path, today=day - datetime.timedelta(days=1))
    (problem,) = caught.value.problems
    assert (problem.line, problem.key) == (6, "memory.price_per_gb")
    expected = "the date 2026-06-04 is in the future: today is 2026-06-03; give the day of the price"
    assert problem.message == expected


def test_a_bill_dates_what_has_to_be_bought() -> None:
    day = datetime.date
    old, new = Figure(5.0, "a", "spec", "s", day(2025, 1, 1)), Figure(7.0, "b", "spec", "s", day(2026, 1, 1))
    now = Bill((Item("host/a", "a", 1, old), Item("accelerator/b", "b", 1, new)))
    then = Bill((Item("host/a", "a", 1, old), Item("accelerator/b", "b", 2, new)))
    assert (then.added(now), then.beyond(now)) == ((new,), 7.0)
    assert dates_of(then.added(now)) == "2026-01-01"
    assert dates_of(then.prices) == "2025-01-01 to 2026-01-01"
    assert dates_of(now.added(now)) == ""


@pytest.mark.parametrize(
    ("text", "line", "rendered"),
    [
        ("devices: {accelerator/l40s: {price: 7000}}", 4, 'a bare value needs the list\'s "date"'),
        ("date: 2026-11-01\ndevices: {l40s: {price: 7000}}", 5, '"l40s" must be kind/id'),
        ("date: 2026-11-01\ndevices: {accelerator/l40s: {price: -1}}", 5, "must be at least 0"),
        ("date: 2026-11-01\nelectricity: 0.1 EUR", 5, "must be a number"),
        ("date: 2026-11-01\npue: 0.5", 5, "must be at least 1"),
        (
            "date: 2026-11-01\ndevices: {accelerator/l40s: {power: {idle: 5 W, active: 3 W}}}",
            5,
            "active is below idle",
        ),
        ("date: 2026-11-01\ndevices: {accelerator/l40s: {prize: 1}}", 5, 'did you mean "price"'),
        (
            "date: 2026-11-01\nflash_per_tb: {value: 1, earlier: [{value: 2, date: 2026-11-01}]}",
            5,
            '"earlier" has 2026-11-01 after 2026-11-01: give the newest date first',
        ),
        (
            f"date: 2026-11-01\nflash_per_tb: {{value: 1, earlier: [{OLD % '01'}, {OLD % '02'}]}}",
            5,
            '"earlier" has 2026-02-01 after 2026-01-01',
        ),
        ("date: 2026-11-01\nflash_per_tb: {value: 1, earlier: [{value: 2}]}", 5, "key is missing"),
        ("date: 2026-11-01\nflash_per_tb: {value: 1, earlier: [2]}", 5, "must be a mapping, got 2"),
        ("date: 2026-11-01\nflash_per_tb: {value: 1, earlier: 2}", 5, "must be a list, got 2"),
        (
            "date: 2026-11-01\nflash_per_tb: {value: 1, earlier: [{value: -2, date: 2026-01-01}]}",
            5,
            "must be at least 0, got -2",
        ),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path: Path, text: str, line: int, rendered: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"kind: costs\nid: mine\nname: mine\n{text}\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_costs(path, today=TODAY)
    (problem,) = caught.value.problems
    assert (problem.line, rendered in problem.message) == (line, True), problem


def test_a_name_that_no_profile_has_is_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "kind: costs\nid: mine\nname: mine\ndate: 2026-11-01\ndevices: {accelerator/l40: {price: 1}}\n",
        encoding="utf-8",
    )
    (remark,) = load_costs(path, today=TODAY).unknown.values()
    assert '"accelerator/l40"' in remark
    assert '"accelerator/l40s"' in remark


def test_a_power_of_your_own_does_not_put_a_rented_drive_on_sale(tmp_path: Path) -> None:
    path = tmp_path / "powers.yaml"
    drive = "drive/azure-nd-h200-v5-3.5tb"
    path.write_text(
        "kind: costs\nid: p\nname: p\ndate: 2026-11-01\n"
        f"devices: {{{drive}: {{power: {{idle: 1 W, active: 2 W}}}}}}\n",
        encoding="utf-8",
    )
    assert not load_costs(path, today=TODAY).sold(drive)
    assert load_costs(path, today=TODAY).sold("drive/micron-9550-pro-7.68tb")
