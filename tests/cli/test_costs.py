"""``--costs``: prices of the user's own, that replace or extend the shipped ones."""

from __future__ import annotations

import csv
import datetime
import json
import re
from pathlib import Path
from typing import Any

import pytest

from simoffload.planning import costs

pytestmark = pytest.mark.usefixtures("known")

DRIVES = Path(__file__).parents[2] / "hardware_profiles" / "drive"
FAST = ("--set", "workload.output_length=1")
OWN = """\
kind: costs
id: mine
name: what we pay
date: 2026-11-01
lifetime: 1
utilization: 1
electricity: 1.0
pue: 1
devices:
  platform/dgx-a100: {price: 87660}
"""


@pytest.fixture(autouse=True)
def _own(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWN)


def priced(answer) -> dict[str, Any]:
    rendered = json.loads(answer.out)["economics"]
    assert isinstance(rendered, dict)
    return rendered


def test_run_takes_the_users_prices(program) -> None:
    """87,660 over a year of 8,766 hours, all of them used, are 10 an hour."""
    shipped = priced(program("run", "small.yaml", "--json", *FAST))
    mine = priced(program("run", "small.yaml", "--json", "--costs", "own.yaml", *FAST))
    assert shipped["metrics"]["purchase"] == 200_000
    assert mine["metrics"]["purchase"] == 87_660
    assert mine["metrics"]["purchase_per_h"] == pytest.approx(10)
    watts = mine["metrics"]["power_w"]
    assert watts == shipped["metrics"]["power_w"], "powers are the shipped ones"
    assert mine["metrics"]["cost_per_h"] == pytest.approx(10 + watts / 1000)
    assert [Path(one["file"]).name for one in mine["lists"]] == ["reference.yaml", "own.yaml"]
    assert [one["source"] for one in mine["figures"] if one["what"] == "platform/dgx-a100"] == ["what we pay"]


def test_run_says_it_in_words(program) -> None:
    text = program("run", "small.yaml", "--explain", "--costs", "own.yaml", *FAST).out
    assert "machine and storage cost 87,660 USD, which is 10 USD per hour over 1 year" in text
    assert "older than a year" not in text
    assert "prices older than a year" in program("run", "small.yaml", "--explain", *FAST).out


@pytest.mark.parametrize(("day", "warned"), [("2027-05-31", False), ("2027-06-01", True)])
def test_first_screen_and_budget_say_which_prices_are_older_than_a_year(
    program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, day: str, warned: bool
) -> None:
    """Of 31 May 2026 is the price of an RTX 4090; a list of one's own with a newer one silences it."""
    monkeypatch.setattr(costs, "_today", lambda: datetime.date.fromisoformat(day))
    about = "prices older than a year: .*accelerator/rtx-4090 \\(2026-05-31\\).*newer ones with --costs FILE"
    newer = tmp_path / "newer.yaml"
    price = "devices: {accelerator/rtx-4090: {price: 1700}}"
    newer.write_text(f"{{kind: costs, id: newer, name: ours, date: 2027-05-01, {price}}}")
    asked = ("qwen3-8b", "--set=workload.output_length=2", "--set=workload.prompt_length=8")
    for command in (("run", "--gpu=rtx-4090", "--program=vllm"), ("compare", "--platforms=rtx-4090-desktop")):
        said = " ".join(program(command[0], *asked, *command[1:]).out.split())
        assert bool(re.search(about, said)) == warned, said
        said = " ".join(program(command[0], *asked, *command[1:], f"--costs={newer}").out.split())
        assert "accelerator/rtx-4090 (" not in said


def test_compare_has_them_in_text_json_and_columns(program, tmp_path: Path) -> None:
    argv = ("--on", "dram,raid", "--costs", "own.yaml", "--output-dir", "out", *FAST)
    answer = program("compare", "small.yaml", *argv)
    assert answer.out.count("87,660 USD") >= 2
    compared = json.loads((tmp_path / "out" / "result.json").read_text())["compared"]
    with (tmp_path / "out" / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, one in zip(rows, compared, strict=True):
        assert one["economics"]["metrics"]["purchase"] == float(row["purchase"]) == 87_660
        million = one["economics"]["metrics"]["cost_per_million_tokens"]
        assert float(row["cost_per_million_tokens"]) == million
    assert [row["tie_with_baseline"] for row in rows] == ["", "false", "false"]
    assert rows[0]["margin"] == ""
    for row, one in zip(rows, compared, strict=True):
        for name, ends in one["intervals"].items():
            assert float(row[f"{name}_p10"]) < float(row[name]) < float(row[f"{name}_p90"])
            assert [float(row[f"{name}_p10"]), float(row[f"{name}_p90"])] == ends
    assert float(rows[1]["margin"]) == compared[1]["margin"]


def test_a_page_shows_capacity_and_costs_side_by_side(program, tmp_path: Path) -> None:
    program("compare", "small.yaml", "--on", "dram,raid", "--costs", "own.yaml", "--output-dir", "out", *FAST)
    page, text = ((tmp_path / "out" / name).read_text() for name in ("report.html", "report.md"))
    for words in ("Capacity", "filled", "Cost and energy", "87,660 USD", "bottleneck"):
        assert words in page
    assert "87,660 USD" in text


def test_the_wear_of_drives_is_beside_the_costs(program, tmp_path: Path) -> None:
    argv = ("--on", "hbm+nvme,hbm+dram", "--output-dir", "out")
    lines = program("compare", "xinnor/llama-1b", *argv).out.splitlines()
    (head,) = (line for line in lines if "worn out " in line)
    drives = lines[lines.index(head) + 1]
    assert drives[head.index("worn out") :].startswith("nvme: 6.8 days")
    for name in ("report.html", "report.md"):
        assert "nvme: 6.8 days" in (tmp_path / "out" / name).read_text()


def test_advise_pays_the_users_prices(program, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWN + "  drive/samsung-pm1733-3.84tb: {price: 100}\n")
    rendered = json.loads(program("advise", "small.yaml", "--costs", "own.yaml", "--json", *FAST).out)
    extra = {one["key"]: one["extra_cost"] for one in rendered["options"]}
    assert extra["raid-5-drives"] == 100
    assert extra["raid-8-drives"] == 400


def test_another_currency_is_printed_and_not_converted(program, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWN + "currency: EUR\n")
    text = " ".join(program("run", "small.yaml", "--explain", "--costs", "own.yaml", *FAST).out.split())
    assert "87,660 EUR" in text
    assert "USD" not in text
    assert "prices in EUR come from own.yaml alone: nothing is converted" in text


def test_a_device_that_nobody_knows_is_said(program, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWN + "  drive/samsung-pm1734: {price: 1}\n")
    text = " ".join(program("run", "small.yaml", "--explain", "--costs", "own.yaml", *FAST).out.split())
    assert 'names "drive/samsung-pm1734", which is neither a shipped profile nor part of this machine' in text
    assert 'did you mean "drive/samsung-pm1733-3.84tb"?' in text


def test_the_users_own_drive_has_a_price_wherever_the_weights_lie(program, tmp_path: Path) -> None:
    shipped = (DRIVES / "samsung-pm1733-3.84tb.yaml").read_text()
    (tmp_path / "my-drive.yaml").write_text(shipped.replace("id: samsung-pm1733-3.84tb", "id: my-drive"))
    (tmp_path / "own.yaml").write_text(OWN + "  drive/my-drive: {price: 300}\n")
    mine = "equipment={tiers: {mine: {profile: my-drive.yaml, at: [cpu]}}}"
    answer = program(
        "compare", "small.yaml", "--on", "dram,mine", "--set", mine, "--costs", "own.yaml", *FAST
    )
    assert answer.status == 0, answer.err
    assert "no shipped profile" not in answer.out
