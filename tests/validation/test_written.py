"""The files of ``python -m validation`` in the repository are up to date."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from simoffload.planning.compare import shipped_ratios
from simoffload.planning.confidence import calibration_errors
from validation.published import compare_published, ratio_rows

MISSED = {
    "dn24-h100-llama-3-70b-aio",
    "zo-pr7474-bind",
    "zi22-t4-opt-30b-cpu-4g",
    # +18 %: 5 GB/s is approximate, and so is the time that a copy of the machine takes to begin
    "vkv-33398-32k",
    # 4 bits of 72B on one GPU, which the table itself has 2.8 times as slow as on two; experts in vLLM 0.4.2
    "srv-a100-q72-int4-tp1",
    "srv-a100-q57moe-tp2",
    *(f"xin-zen-raid0-ratio-{size}" for size in ("1b", "3b")),
    *(f"zinf-1776-before-{what}" for what in ("forward", "backward")),
    *(f"zo20-10b-{what}" for what in ("step_time", "forward", "backward")),
}
"""The limits that predictions miss, each explained under "Known errors" in docs/VALIDATION.md."""


@pytest.fixture(scope="module")
def program() -> ModuleType:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    return import_module("validation.__main__")


@pytest.mark.slow
def test_the_page_and_the_shipped_tables_are_what_is_predicted(program: ModuleType, repository: Path) -> None:
    """Compare everything except the bytes of the drawings, which depend on matplotlib's version."""
    for path, text in program.files().items():
        shipped = (repository / path).read_text("utf-8")
        assert path.endswith(".svg") or text == shipped, f"{path}: run python -m validation"


@pytest.mark.slow
def test_which_bars_are_missed() -> None:
    assert {row.reference.id for row in compare_published() if row.holds is False} == MISSED


def test_the_package_carries_the_published_ratios() -> None:
    assert list(shipped_ratios()) == ratio_rows()


def test_errors_of_fsdp_are_those_of_the_documentation() -> None:
    (row,) = (
        one
        for one in calibration_errors()
        if (one.profile, one.group, one.part) == ("own", "fsdp", "holdout")
    )
    assert row.runs == 14
    assert (f"{row.mean:.0%}", f"{row.worst:.0%}") == ("17%", "39%"), "docs/limits.md"


def test_a_text_goes_between_the_marks(program: ModuleType) -> None:
    begin, end = "<!-- a: written by python -m validation -->", "<!-- end of a -->"
    page = f"before\n{begin}\nstale\n{end}\nafter\n"
    assert program.inserted(page, "a", "new") == f"before\n{begin}\n\nnew\n{end}\nafter\n"
    with pytest.raises(ValueError, match="lacks the marks"):
        program.inserted(page, "b", "new")


def test_named_figures_are_printed(program: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    program.main(["ddn-memory-176b"])
    out = capsys.readouterr().out
    assert out.startswith("### DDN")
    assert "| ddn-memory-176b |" in out
