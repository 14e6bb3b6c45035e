"""Pages about training: complete, in order, and safe to open."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from simoffload.report.html import write_comparison, write_report
from simoffload.results.result import SimulationResult
from simoffload.results.timeline import Timeline
from simoffload.results.training import StorageTraffic, TrainingResult
from tests.report.conftest import EVIL

Make = Callable[..., TrainingResult]


def text_of(page: str) -> str:
    """What a reader sees, roughly."""
    body = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def charts_of(page: str) -> list[str]:
    """The charts, each as its text."""
    return [text_of(chart) for chart in re.findall('<svg role="img".*?</svg></div>', page, re.DOTALL)]


@pytest.fixture
def single(make_training: Make, timeline: Timeline, tmp_path: Path) -> str:
    path = tmp_path / "report.html"
    write_report(make_training(timelines={"forward": timeline, "optimizer": timeline}), path)
    return path.read_text()


def test_the_page_reads_without_scripts(single: str) -> None:
    for description in (
        "llama-2-7b trains with its weights in HBM and its optimizer on raid: 40 s per step (28.3 to 47 s)",
        "hbm total 30 GiB 40 GiB 10 GiB per GPU fits forward and backward",
        "stage hbm per GPU dram per host raid in all",
        "initialisation 2 GiB 64 GiB 0 B forward and backward 30 GiB 16 GiB 80 GB",
        "backward passes 13 s [11.6 to 15.7] 32 % backward_s = backward passes of all micro-steps",
        "backward 3 × 3 s 9 s 22 % GPU compute 60 %",
        "Bottleneck: raid write, 24 % of the step, limited by raid.",
        "cause exposed share in forward in backward in optimizer busy limited by",
        "host to GPU 9.5 s 24 % 6 s 3.5 s 19 s gpu.pcie",
        "last backward: 4 s each, 1 × in a step",
        "50 %: the step takes 40 s; it would take 20 s if the busiest link (raid) never waited",
        "First parts (optimizer, rank 0)",
        "raid 84 GB 168 GB 12 B 24 B",
    ):
        assert description in text_of(single)
    assert "new token" not in text_of(single)
    assert "layers" not in text_of(single), "an optimizer has none"


def test_the_sections_come_in_order(single: str) -> None:
    assert re.findall("<h2>(.*?)</h2>", single)[:9] == [
        "Speed",
        "Capacity",
        "Phases of a step",
        "Where the time goes",
        "Share of the bound",
        "Links",
        "Storage",
        "Confidence",
        "Timeline",
    ]


def test_the_charts_are_there(single: str) -> None:
    """Memory by moment, phases, causes, bounds, two windows of the longest phase."""
    drawn = charts_of(single)
    assert len(drawn) == 6
    assert drawn[0].count("iB of ") + drawn[0].count("B of 15 TB") == 9
    assert "optimizer 19 s (48 %)" in drawn[1]


def test_the_longest_phase_is_drawn(make_training: Make, timeline: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    forward = make_training().phases[:1]
    write_report(make_training(phases=forward, timelines={"other": timeline, "forward": timeline}), path)
    assert "First layers (forward, rank 0)" in text_of(path.read_text())


def test_what_does_not_fit_has_no_speed(make_training_refusal: Make, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(make_training_refusal(traffic=()), path)
    page = path.read_text()
    assert re.findall("<h2>(.*?)</h2>", page)[:3] == ["Capacity", "Storage", "Inputs and their origin"]
    assert "100 GB (does not fit)" in text_of(page)
    assert "A step reads and writes nothing on storage." in text_of(page)
    assert len(charts_of(page)) == 1


def test_a_comparison_of_training(make_training: Make, make_training_refusal: Make, tmp_path: Path) -> None:
    path = tmp_path / "comparison.html"
    fast = make_training(optimizer_target="dram", phases=make_training().phases[:3])
    write_comparison([make_training(), fast, make_training_refusal(target="raid")], path)
    page = text_of(path.read_text())
    for description in (
        "hbm+dram is fastest: 21 s per step (20.3 to 24.8 s), hbm+raid takes 1.9× as long (1.51 to 2.4); ",
        "weights optimizer step forward backward opt. step tokens/s step vs hbm+raid bottleneck",
        "hbm raid 40 s [28.3 to 47] 8 s [",
        "hbm dram 21 s [20.3 to 24.8] 8 s [",
        "raid+raid does not fit: raid needs 100 GB",
        "optimizer_s = from the end of the last backward pass",
        "result tier needed capacity filled scope hbm+raid hbm 30 GiB 40 GiB 75 % per GPU fits",
    ):
        assert description in page
    assert "ttft" not in page.lower()
    assert len(charts_of(path.read_text())) == 4 + 4 + 4 + 1


def test_inference_and_training_share_no_table_or_chart(
    make_training: Make, make_result: Callable[..., SimulationResult], tmp_path: Path
) -> None:
    path = tmp_path / "comparison.html"
    write_comparison([make_training(), make_result(model="llama-2-7b"), make_training(target="dram")], path)
    page = path.read_text()
    assert re.findall("<h2>(.*?)</h2>", page)[:6] == [
        "Comparison: training",
        "Comparison: inference",
        "Phases of a step: training",
        "Where the time goes: training",
        "Where the time goes: inference",
        "Capacity",
    ]
    first, second, *_ = charts_of(page)
    assert "time per step [s]" in first
    assert "throughput [tokens/s]" in second
    tables = re.findall("<table>.*?</table>", page, re.DOTALL)[:4]
    assert ["TTFT" in table for table in tables] == [False, True, False, False]
    assert ["backward" in table for table in tables[:2]] == [True, False]


def test_names_stay_text(make_training: Make, timeline: Timeline, tmp_path: Path) -> None:
    result = make_training()
    phases = tuple(
        phase._replace(name=EVIL, result=phase.result._replace(name=EVIL)) for phase in result.phases
    )
    stages = tuple(
        (EVIL, tuple(use._replace(tier=EVIL + use.tier) for use in uses)) for _, uses in result.memory_stages
    )
    bad = make_training(
        phases=phases,
        memory_stages=stages,
        capacity=tuple(use._replace(stage=EVIL) for use in result.capacity),
        optimizer_target=EVIL,
        traffic=(StorageTraffic(EVIL, 1, 2),),
        timelines={EVIL: timeline},
    )
    paths = tmp_path / "report.html", tmp_path / "comparison.html"
    write_report(bad, paths[0])
    write_comparison([bad, make_training(optimizer_target=EVIL, name=EVIL)], paths[1])
    for path in paths:
        page = path.read_text()
        assert "<img" not in page
        assert page.count("<script") == 1
        assert "\u202e" not in page, "shown as an escape"
