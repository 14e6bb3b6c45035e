"""The pages in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from simoffload.report.page import write_comparison, write_report
from simoffload.results.result import SimulationResult
from simoffload.results.timeline import Timeline
from simoffload.results.training import TrainingResult
from simoffload.scenario import load_scenario
from simoffload.simulation import simulate

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here to open the pages in"),
]


@pytest.fixture
def browse(tmp_path: Path) -> Callable[[Path], tuple[str, str]]:
    """Open a page; returns what the document became and what the console said."""

    def run(page: Path) -> tuple[str, str]:
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--enable-logging=stderr",
            "--virtual-time-budget=10000",
            f"--user-data-dir={tmp_path / 'browser'}",
            "--dump-dom",
        ]
        assert CHROMIUM is not None
        done = subprocess.run(
            [CHROMIUM, *options, page.as_uri()], capture_output=True, text=True, check=True, timeout=120
        )
        said = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
        return re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL), said

    return run


def test_a_report_draws_its_charts(
    recorded: SimulationResult, tmp_path: Path, browse: Callable[[Path], tuple[str, str]]
) -> None:
    path = tmp_path / "report.html"
    write_report(recorded, path)
    page, said = browse(path)
    assert said == ""
    assert page.count('data-drawn="yes"') == page.count("data-figure=") == 5
    assert "simulated 9.81 s" in page


def test_a_report_on_training_draws_its_charts(
    make_training: Callable[..., TrainingResult],
    timeline: Timeline,
    tmp_path: Path,
    browse: Callable[[Path], tuple[str, str]],
) -> None:
    path = tmp_path / "report.html"
    write_report(make_training(timelines={"optimizer": timeline}), path)
    page, said = browse(path)
    assert said == ""
    assert page.count('data-drawn="yes"') == page.count("data-figure=") == 6
    assert "19 s (48 %)" in page


def test_both_kinds_beside_each_other_are_drawn(
    make_training: Callable[..., TrainingResult],
    make_result: Callable[..., SimulationResult],
    tmp_path: Path,
    browse: Callable[[Path], tuple[str, str]],
) -> None:
    path = tmp_path / "comparison.html"
    write_comparison([make_training(), make_result()], path)
    page, said = browse(path)
    assert said == ""
    assert page.count('data-drawn="yes"') == 3 + 2


def test_a_comparison_draws_what_is_unfolded(
    make_result: Callable[..., SimulationResult],
    recorded: SimulationResult,
    tmp_path: Path,
    browse: Callable[[Path], tuple[str, str]],
) -> None:
    path = tmp_path / "comparison.html"
    write_comparison([make_result(target="dram"), recorded], path)
    page, said = browse(path)
    assert said == ""
    assert page.count('data-drawn="yes"') == 2
    assert page.count("data-figure=") == 2 + 3 + 5


def test_names_run_nothing(
    make_result: Callable[..., SimulationResult],
    tmp_path: Path,
    browse: Callable[[Path], tuple[str, str]],
) -> None:
    evil = "<img src=x onerror=\"document.title='run'\"></script><script>document.title='run'</script>"
    path = tmp_path / "report.html"
    write_report(make_result(model=evil, target=evil, platform=evil), path, command=evil)
    page, said = browse(path)
    assert said == ""
    assert "<title>run</title>" not in page
    assert "<img" not in page


def test_a_report_on_checkpoints_draws_its_charts(
    tmp_path: Path, browse: Callable[[Path], tuple[str, str]]
) -> None:
    path = tmp_path / "report.html"
    write_report(simulate(load_scenario("checkpoint/mlperf-8b"), keep_timelines=True), path)
    page, said = browse(path)
    assert said == ""
    assert page.count('data-drawn="yes"') == page.count("data-figure=") == 5
    assert "crc32" in page
