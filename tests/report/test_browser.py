"""The pages in a real browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from simoffload.planning.advise import advise
from simoffload.planning.bandwidth import storage_curve
from simoffload.planning.compare import compare
from simoffload.report.from_result import advice_document
from simoffload.report.html import write_comparison, write_html, write_report
from simoffload.results.result import SimulationResult
from simoffload.results.timeline import Timeline
from simoffload.results.training import TrainingResult
from simoffload.scenario import read_scenario
from simoffload.simulation import simulate
from tests.planning.advise.conftest import STORAGE_BOUND, loaded
from tests.report.conftest import EVIL

PAPER = 688
"""[px] between the margins of A4: (210 - 2 x 14) mm at 96 px an inch."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
if not CHROMIUM:
    reason = "no Chromium to open the pages in; to get it: apt install chromium (Debian)"
    pytest.skip(reason, allow_module_level=True)

pytestmark = pytest.mark.browser


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
            f"--window-size={PAPER},1000",
            f"--user-data-dir={tmp_path / 'browser'}",
            "--dump-dom",
        ]
        done = subprocess.run(
            [CHROMIUM, *options, page.as_uri()], capture_output=True, text=True, check=True, timeout=120
        )
        reported = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
        return re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL), reported

    return run


def test_a_report_draws_its_charts_and_sorts_its_tables(
    recorded: SimulationResult, tmp_path: Path, browse: Callable[[Path], tuple[str, str]]
) -> None:
    path = tmp_path / "report.html"
    write_report(recorded, path)
    page, reported = browse(path)
    assert reported == ""
    assert page.count('role="img"') == 5
    assert "simulated 9.81 s" in page
    # Heads of columns are buttons for the keyboard.
    assert '<th scope="col" class="number" aria-sort="none"><button type="button">value</button></th>' in page


def test_a_report_on_training_draws_its_charts(
    make_training: Callable[..., TrainingResult],
    timeline: Timeline,
    tmp_path: Path,
    browse: Callable[[Path], tuple[str, str]],
) -> None:
    path = tmp_path / "report.html"
    write_report(make_training(timelines={"optimizer": timeline}), path)
    page, reported = browse(path)
    assert reported == ""
    assert page.count('role="img"') == 6
    assert "19 s (48 %)" in page


def test_both_kinds_beside_each_other_are_drawn(
    make_training: Callable[..., TrainingResult],
    make_result: Callable[..., SimulationResult],
    tmp_path: Path,
    browse: Callable[[Path], tuple[str, str]],
) -> None:
    path = tmp_path / "comparison.html"
    write_comparison([make_training(), make_result()], path)
    page, reported = browse(path)
    assert reported == ""
    assert page.count('role="img"') == 4 + 3 + 4 + 2


def test_a_comparison_draws_what_is_unfolded(
    make_result: Callable[..., SimulationResult],
    recorded: SimulationResult,
    tmp_path: Path,
    browse: Callable[[Path], tuple[str, str]],
) -> None:
    path = tmp_path / "comparison.html"
    write_comparison([make_result(target="dram"), recorded], path)
    page, reported = browse(path)
    assert reported == ""
    assert page.count('role="img"') == 3 + 3 + 5


def test_names_run_nothing(
    make_result: Callable[..., SimulationResult],
    tmp_path: Path,
    browse: Callable[[Path], tuple[str, str]],
) -> None:
    evil = "<img src=x onerror=\"document.title='run'\"></script><script>document.title='run'</script>"
    path = tmp_path / "report.html"
    write_report(make_result(model=evil, target=evil, platform=evil), path, command=evil)
    page, reported = browse(path)
    assert reported == ""
    assert "<title>run</title>" not in page
    assert "<img" not in page


def test_a_report_on_checkpoints_draws_its_charts(
    tmp_path: Path, browse: Callable[[Path], tuple[str, str]]
) -> None:
    path = tmp_path / "report.html"
    write_report(simulate(read_scenario("checkpoint/mlperf-8b"), keep_timelines=True), path)
    page, reported = browse(path)
    assert reported == ""
    assert page.count('role="img"') == 5
    assert "crc32" in page


def test_advice_draws_its_charts_and_runs_no_names(
    tmp_path: Path, browse: Callable[[Path], tuple[str, str]]
) -> None:
    scenario = loaded(STORAGE_BOUND)
    advice, curve = advise(scenario), storage_curve(scenario)
    tried = tuple(replace(one, change=one.change._replace(description=EVIL)) for one in advice.tried)
    advice = replace(advice, tried=tried)
    path = tmp_path / "report.html"
    write_html(advice_document(advice, curve, command=EVIL), path)
    page, reported = browse(path)
    assert reported == ""
    assert page.count('role="img"') == 6
    assert "<img" not in page
    assert f"<title>{advice.result.name}</title>" in page


SORT = """<script>
const table = document.querySelector("table");
const head = table.tHead.rows[0].cells[COLUMN];
const shown = () => Array.from(table.tBodies[0].rows, (row) => row.cells[0].textContent);
const orders = [shown()];
for (let i = 0; i < 3; i++) {
  head.querySelector("button").click();
  orders.push([head.getAttribute("aria-sort"), ...shown()]);
}
document.body.dataset.orders = JSON.stringify(orders);
</script>"""


def orders(dom: str) -> list[list[str]]:
    (found,) = re.findall('data-orders="([^"]*)"', dom)
    return json.loads(html.unescape(found))


POLICY = re.compile("<meta http-equiv=[^>]*>")
"""The policy of a page, which allows no script of a test."""


def sorting(page: Path, *, column: int) -> None:
    """Let the page click three times on the head of a column of its first table."""
    script = SORT.replace("COLUMN", str(column))
    page.write_text(POLICY.sub("", page.read_text()).replace("</body>", f"{script}</body>"))


def test_tables_are_sorted_by_value_and_back(
    make_result: Callable[..., SimulationResult],
    make_refusal: Callable[..., SimulationResult],
    tmp_path: Path,
    browse: Callable[[Path], tuple[str, str]],
) -> None:
    """ "50 ms" is less than "2.01 s", and what has no time stays at the end."""
    path = tmp_path / "comparison.html"
    results = [make_refusal(target="hbm"), make_result(target="nfs"), make_result(target="dram", time_s=0.05)]
    write_comparison(results, path)
    sorting(path, column=2)
    page, reported = browse(path)
    assert reported == ""
    assert orders(page) == [
        ["hbm", "nfs", "dram"],
        ["ascending", "dram", "nfs", "hbm"],
        ["descending", "nfs", "dram", "hbm"],
        ["none", "hbm", "nfs", "dram"],
    ]


def test_sorting_does_not_wake_names_up(
    make_result: Callable[..., SimulationResult], tmp_path: Path, browse: Callable[[Path], tuple[str, str]]
) -> None:
    path = tmp_path / "comparison.html"
    write_comparison([make_result(target=EVIL), make_result(target="a")], path)
    sorting(path, column=1)
    page, reported = browse(path)
    assert reported == ""
    assert "<img" not in page
    assert len(orders(page)) == 4


PRINT = """<script>
for (const fold of document.querySelectorAll("details")) fold.open = true;
const wide = Array.from(document.querySelectorAll("main *"), (one) => one.getBoundingClientRect().right);
document.body.dataset.width = Math.ceil(Math.max(...wide));
</script>"""


@pytest.mark.parametrize("scenario", ["xinnor/llama-16b-optimizer", "ddn/bloom-7b1"])
def test_nothing_is_wider_than_paper(
    scenario: str, tmp_path: Path, browse: Callable[[Path], tuple[str, str]]
) -> None:
    path = tmp_path / "report.html"
    write_report(
        simulate(read_scenario(scenario), keep_timelines=True), path, command="simoffload run " + "x" * 200
    )
    page = POLICY.sub("", path.read_text()).replace("@media print", "@media all")
    page = page.replace("</body>", f"{PRINT}</body>")
    path.write_text(page)
    dom, reported = browse(path)
    assert reported == ""
    (width,) = re.findall('data-width="([0-9]+)"', dom)
    assert int(width) <= PAPER


def sheets(page: Path, folder: Path) -> int:
    """Print a page; return the number of sheets of A4."""
    printed = folder / "page.pdf"
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'browser'}"]
    command = [CHROMIUM, *options, "--no-pdf-header-footer", f"--print-to-pdf={printed}", page.as_uri()]
    subprocess.run(command, capture_output=True, check=True, timeout=120)
    return len(re.findall(rb"/Type\s*/Page[^s]", printed.read_bytes()))


def test_six_variants_print_on_six_sheets(tmp_path: Path) -> None:
    found = compare("ddn/bloom-7b1", ["dram", "raid", "nfs", "ai400x2", "hbm"])
    path = tmp_path / "comparison.html"
    results = tuple(found.results.values())
    assert len(results) == 6
    write_comparison(results, path, notes=found.notes)
    assert path.stat().st_size < 1_500_000
    assert 1 <= sheets(path, tmp_path) <= 6


NARROW = """<script>
document.body.style.width = "420px";
const wide = Array.from(document.querySelectorAll("main > *, td, svg"), (one) => one.getBoundingClientRect());
document.body.dataset.width = Math.ceil(Math.max(...wide.map((one) => one.right)));
</script>"""


def test_a_phone_shows_tables_without_scrolling(
    make_result: Callable[..., SimulationResult],
    recorded: SimulationResult,
    tmp_path: Path,
    browse: Callable[[Path], tuple[str, str]],
) -> None:
    path = tmp_path / "comparison.html"
    write_comparison([make_result(target="dram"), recorded], path)
    page = POLICY.sub("", path.read_text()).replace("(max-width: 600px)", "(min-width: 1px)")
    path.write_text(page.replace("</body>", f"{NARROW}</body>"))
    dom, reported = browse(path)
    assert reported == ""
    (width,) = re.findall('data-width="([0-9]+)"', dom)
    assert int(width) <= 420
