"""What depends on a missing price, power or rent has no number, and says why."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import pytest

import simoffload as so
from simoffload.hardware import list_profiles, load_platform
from simoffload.planning.costs import CostList, load_costs
from simoffload.planning.economics import Economics, economics
from simoffload.report.sections.costs import costs
from simoffload.results import SimulationResult
from tests.planning.costs.conftest import TODAY

SHORT = "workload.output_length=2"
OF_PRICES = {"purchase", "purchase_per_h", "return_per_purchase"}
OF_POWERS = {
    "power_w",
    "electricity_per_h",
    "energy_per_token_j",
    "kwh_per_million_tokens",
    "energy_per_run_j",
}
OF_BOTH = {"cost_per_h", "cost_per_million_tokens", "cost_per_run"}


def _listed(tmp_path: Path, text: str, today: datetime.date = TODAY) -> CostList:
    path = tmp_path / "own.yaml"
    path.write_text(f"kind: costs\nid: own\nname: own\n{text}", encoding="utf-8")
    return load_costs(path, today=today)


def _priced(name: str, known: CostList, *overrides: str) -> tuple[SimulationResult, Economics]:
    scenario = so.load_scenario(name, overrides=[SHORT, *overrides])
    result = so.simulate(scenario)
    return result, economics(scenario, result, known)


def test_a_server_without_a_price_has_no_cost_instead_of_the_lowest(tmp_path: Path) -> None:
    """Prices in EUR for the machine and its drives, none for the filesystem: it does not win."""
    text = """currency: EUR
date: 2026-11-01
electricity: 0.2
flash_per_tb: 300
devices: {platform/dgx-a100: {price: 180000}}
"""
    known = _listed(tmp_path, text)
    compared = so.compare(
        so.load_scenario("ddn/bloom-7b1", overrides=[SHORT]), ["raid", "ai400x2"], costs=known
    )
    frame = compared.to_frame().loc[["raid", "ai400x2"]]
    assert frame["missing_prices"].dropna().to_dict() == {"ai400x2": "pfs/ddn-ai400x2"}
    for name in OF_PRICES | OF_BOTH:
        assert frame[name].notna().to_dict() == {"raid": True, "ai400x2": False}, name
    columns, rows = compared.table()
    (row,) = (dict(zip(columns, one, strict=True)) for one in rows if one[0] == "ai400x2")
    assert (row["purchase"], row["missing_prices"]) == (None, "pfs/ddn-ai400x2")
    one = compared.results["ai400x2"].costs
    assert one is not None
    assert (one.purchase, one.bill.total, one.bill.known) == (None, None, 180_000.0)
    data = one.to_dict()
    assert (data["metrics"]["purchase"], data["at_least"]["purchase"]) == (None, 180_000.0)
    assert data["missing"] == ["pfs/ddn-ai400x2"]
    assert "ai400x2" not in {name for one in compared.cost_verdicts for name in (one.cheapest, one.next)}


def test_without_the_price_of_a_part_every_cost_is_unknown_and_energy_is_not(tmp_path: Path) -> None:
    known = _listed(tmp_path, "date: 2026-11-01\nelectricity: 0.2\ncurrency: EUR\n")
    _, one = _priced("micron/opt-30b-nvme", known)
    found = one.metrics()
    assert {name for name in OF_PRICES | OF_BOTH if found[name] is not None} == set()
    assert {name for name in OF_POWERS if found[name] is None} == set()


def test_without_the_power_of_a_part_energy_and_costs_are_unknown() -> None:
    result, known = _priced("micron/opt-30b-nvme", load_costs(today=TODAY))
    assert known.energy is not None
    one = replace(known, energy=known.energy._replace(missing=("drive/mine",)))
    found, least = one.metrics(), one.at_least()
    assert one.missing == ("drive/mine (power)",)
    assert {name for name in OF_POWERS | OF_BOTH if found[name] is not None} == set()
    assert found["purchase"] == least["purchase"]
    assert least["power_w"] == known.energy.watts
    text = " ".join(costs(result, one)[0].sentences)
    assert "mean power during this work is ≥ " in text
    assert "a million output tokens cost ≥ " in text


def test_a_spot_price_is_no_cost_and_says_so(tmp_path: Path) -> None:
    spot = "date: 2026-11-01\ndevices: {accelerator/l40s: {rent: {value: 0.26, kind: spot}}}\n"
    result, one = _priced("micron/opt-30b-hbm", _listed(tmp_path, spot))
    assert (one.rent, one.metrics()["rent_per_million_tokens"]) == (None, None)
    (said,) = (text for text in costs(result, one)[0].sentences if "rented" in text)
    assert said == (
        "no cost on rented hardware: only a spot price of accelerator/l40s (0.26 USD an hour) is known, and "
        "spot machines may be taken away at any time"
    )
    asked = spot.replace(", kind: spot", ", kind: on-demand")
    _, one = _priced("micron/opt-30b-hbm", _listed(tmp_path, asked))
    assert one.metrics()["rent_per_h"] == pytest.approx(6 * 0.26)


def test_no_shipped_rent_is_a_spot_price_of_the_column() -> None:
    known = load_costs(today=TODAY)
    rents = {key: one.rent for key, one in known.costs.devices.items() if one.rent}
    assert {
        key for key, rent in rents.items() if rent.kind != "spot" and rent.source.endswith("spot")
    } == set()
    assert [known.rent(f"accelerator/{gpu}") for gpu in ("l40s", "rtx-5090")] != [None, None]


def test_the_rent_of_a_machine_includes_its_own_drives_and_no_server(tmp_path: Path) -> None:
    known = _listed(tmp_path, "date: 2026-11-01\ndevices: {platform/dgx-a100: {rent: 30}}\n")
    own, served = (
        _priced("ddn/bloom-7b1", known, f"strategy.weights={one}")[1] for one in ("raid", "ai400x2")
    )
    assert (own.metrics()["rent_per_h"], own.no_rent) == (30.0, "")
    assert served.metrics()["rent_per_h"] is None
    assert served.no_rent == "the rent of platform/dgx-a100 (30 USD an hour) does not include ai400x2"


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("date: 2026-11-01\ndevices: {accelerator/l40s: {price: 7000}}", "quote"),
        ("date: 2026-11-01\nsource: offer 4711\ndevices: {accelerator/l40s: {price: 7000}}", "quote"),
        (
            "date: 2026-11-01\ndevices: {accelerator/l40s: {price: {value: 7000, source: offer 4711}}}",
            "quote",
        ),
        (
            "devices: {accelerator/l40s: {price: {value: 7000, source: offer, date: 2026-11-01}}}",
            "quote",
        ),
        (
            "date: 2026-11-01\norigin: estimate\ndevices: {accelerator/l40s: {price: 7000}}",
            "estimate",
        ),
    ],
)
def test_a_price_with_a_source_and_a_date_is_a_quote(tmp_path: Path, text: str, origin: str) -> None:
    price = _listed(tmp_path, text).costs.devices["accelerator/l40s"].price
    assert price is not None
    assert price.origin == origin


def test_a_quote_is_not_counted_as_an_estimate(tmp_path: Path) -> None:
    text = """date: 2026-11-01
source: offer 4711
electricity: 0.2
memory: {price_per_gb: 10}
devices:
  accelerator/l40s: {price: 7000}
  host/smc-521ge-256gb: {price: 9000}
"""
    result, one = _priced("micron/opt-30b-nvme", _listed(tmp_path, text))
    (said,) = (text for text in costs(result, one)[0].sentences if "estimate" in text)
    assert said == "1 of 5 prices, of 2026-03-31 to 2026-11-01, is an estimate; replace it with --costs"


def test_a_machine_on_a_desk_has_a_pue_of_one(tmp_path: Path) -> None:
    """Unless a list of the user's own states another; the place is an attribute of the platform."""
    shipped = load_costs(today=TODAY)
    assert [shipped.pue(setting).value for setting in ("desk", "rack", None)] == [1.0, 1.58, 1.58]
    mine = _listed(tmp_path, "date: 2026-11-01\npue: 1.2\n")
    assert mine.pue("desk").value == 1.2
    overrides = ("platform=rtx-4090-desktop", "strategy.weights=dram", "workload.batch_size=1")
    result, one = _priced("micron/opt-30b-nvme", shipped, *overrides)
    found = one.metrics()
    watts = found["power_w"]
    assert watts is not None
    assert found["electricity_per_h"] == pytest.approx(watts / 1000 * 0.12)
    assert any("with a PUE of 1 (on a desk), " in text for text in costs(result, one)[0].sentences)
    assumed = "with a PUE of 1.58 (a rack is assumed, as the platform states no setting), "
    assert any(assumed in text for text in costs(result, replace(one, setting=None))[0].sentences)


def test_every_shipped_platform_states_where_it_stands() -> None:
    profiles = [load_platform(one.id).profile for one in list_profiles("platform")]
    assert {one.setting for one in profiles} == {"desk", "rack"}
