"""A device that is one file outside the package is known to every command that takes a scenario or parts."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from simoffload.cli import main

EXAMPLE = Path(__file__).parents[1] / "examples" / "device"
SCENARIO, DRIVE, TIER, KEY = "scenario.yaml", "drive.yaml", "drive", 'profiles."drive/my-drive".read'
WEIGHTS = 13.3e9
"""Size of the weights of opt-6.7b in 16 bits [B], of which every pass reads all."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in EXAMPLE.iterdir():
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def values(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ran(capsys, *words, "--json"))
    return found


def test_it_is_checked_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(capsys, "check", DRIVE, "machine.yaml", SCENARIO).count(": ok") == 3
    assert "my-drive: A PCIe 4 drive" in ran(capsys, "profiles", "show", DRIVE)


def test_run_reads_from_it_and_twice_its_rate_is_faster(capsys: pytest.CaptureFixture[str]) -> None:
    slow = values(capsys, "run", SCENARIO)["metrics"]["tpot_s"]
    fast = values(capsys, "run", SCENARIO, "--set", f'{KEY}="14 GB/s"')["metrics"]["tpot_s"]
    assert slow > WEIGHTS / 7e9
    assert fast < slow
    assert f"limited by    {TIER} read, " in ran(capsys, "run", SCENARIO)
    assert "drive/my-drive" in ran(capsys, "run", SCENARIO, "--explain", "--json")


def test_fit_and_compare_have_its_tier(capsys: pytest.CaptureFixture[str]) -> None:
    assert f"weights on {TIER}" in ran(capsys, "fit", SCENARIO)
    ran(capsys, "compare", SCENARIO, "--on", f"dram,{TIER}", "--output-dir", "out")
    head, *rows = csv.reader(Path("out/table.csv").read_text().splitlines())
    rates = {row[0]: float(row[head.index("tpot_s")]) for row in rows}
    assert rates[TIER] > rates["dram"]


def test_it_is_a_part_of_a_machine_by_parts(capsys: pytest.CaptureFixture[str]) -> None:
    offers = f"{DRIVE},samsung-980-pro-2tb"
    parts = ("--gpu", "rtx-4090", "--memory", "64GB", "--drive")
    assert DRIVE in ran(capsys, "compare", "opt-6.7b", *parts, offers)
    assert "weights on nvme" in ran(capsys, "run", "opt-6.7b", *parts, DRIVE, "--on", "nvme")


def test_reach_sweep_and_advise_vary_it(capsys: pytest.CaptureFixture[str]) -> None:
    now = values(capsys, "run", SCENARIO)["metrics"]["tpot_s"]
    found = ran(
        capsys, "reach", SCENARIO, "--by", KEY, "--slo", f"tpot={1.05 * now} s", "--within", "1 GB/s..7 GB/s"
    )
    assert "GB/s" in found
    ran(capsys, "sweep", SCENARIO, "--axis", f"{KEY}=3.5 GB/s,7 GB/s", "-o", "s.csv")
    slow, fast = (float(row["tpot_s"]) for row in csv.DictReader(Path("s.csv").read_text().splitlines()))
    assert (slow - fast) == pytest.approx(WEIGHTS * (1 / 3.5e9 - 1 / 7e9), rel=0.15)
    assert TIER in ran(capsys, "advise", SCENARIO)
