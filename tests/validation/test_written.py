"""The files of ``python -m validation`` in the repository are up to date, as far as a part of them shows it:
``make validation`` predicts everything."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from simoffload.planning.compare import shipped_ratios
from simoffload.planning.errors import RealTimes, calibration_errors
from validation.measured import Profile, compare_measured, error_rows
from validation.published import compare_published, ratio_rows
from validation.references import load_references

MEASURED = Path(__file__).parents[2] / "validation" / "measured"

MISSED = {
    "dn24-h100-llama-3-70b-aio",
    "zo-pr7474-bind",
    "zi22-t4-opt-30b-cpu-4g",
    # +18 %: 5 GB/s is approximate, and so is the time that a copy of the machine takes to begin
    "vkv-33398-32k",
    # experts in vLLM 0.4.2
    "srv-a100-q57moe-tp2",
    # 4 bits on one GPU, slower than a third of two
    "srv-a100-q72-int4-tp1",
    *(f"xin-zen-raid0-ratio-{size}" for size in ("1b", "3b")),
    *(f"zinf-1776-before-{what}" for what in ("forward", "backward")),
    *(f"zo20-10b-{what}" for what in ("step_time", "forward", "backward")),
}
"""The limits that predictions miss, each explained under "Known errors" in docs/validation/published.md."""


@pytest.fixture(scope="module")
def program() -> ModuleType:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    return import_module("validation.__main__")


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the measured runs with every fifteenth of them."""
    folder = tmp_path_factory.mktemp("measured") / "measured"
    shutil.copytree(MEASURED, folder)
    count = 0
    for path in sorted(folder.glob("*/*/runs*.json")):
        record = json.loads(path.read_text("utf-8"))
        first = -count % 15
        count += len(record["runs"])
        record["runs"] = record["runs"][first::15]
        if record["runs"]:
            path.write_text(json.dumps(record), encoding="utf-8")
        else:
            path.unlink()
    return folder


def lines(text: str, heads: str = "") -> set[str]:
    """The rows of the tables whose first line matches."""
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    return {row for first, _, *rows in tables if re.match(heads, first) for row in rows}


def ratios(rows: Iterable[RealTimes]) -> Counter[tuple[Any, ...]]:
    """Each time of a table with its class, as often as it has it."""
    return Counter((*row[:-1], ratio) for row in rows for ratio in row.ratios)


@pytest.mark.slow
def test_the_page_has_what_is_predicted(program: ModuleType, sampled: Path, repository: Path) -> None:
    """Every fifteenth measured run and every sixth published figure, written by the program itself."""
    runs = {profile: compare_measured(sampled, profile) for profile in get_args(Profile)}
    assert len(runs["own"]) > 12
    references = [one.id for one in load_references()][::6]
    figures = [row for row in compare_published(references) if row.reference.id in references]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "measured", lambda profile: runs[profile])
        patch.setattr(program, "compare_published", lambda: figures)
        for name in ("observed_rates", "observed_logs", "predicted_streams"):
            patch.setattr(program, name, lambda: ())
        patch.setattr(program, "summary", lambda _: "")
        patch.setattr(program, "llama_cpp_tables", lambda: "")  # in tests/validation/test_llama_cpp.py
        written = program.files()
        table = ratios(error_rows(program.observed()))
    assert table - ratios(calibration_errors().rows) == Counter(), "run python -m validation"
    pages = [path for path in written if path.startswith("docs/validation/")]
    shipped = lines("\n\n".join((repository / path).read_text("utf-8") for path in pages))
    for heads in (
        r"\| set \| machine \| run \| decode",
        r".*simulated \| error",
        r"\| id ",
        r"\| set \| run \| model",
    ):
        rows = lines("\n\n".join(written[path] for path in pages), heads)
        assert len(rows) > 4, heads
        assert rows - shipped == set(), "run python -m validation"
    for path in written:
        assert (repository / path).is_file()


def test_which_bars_are_missed(repository: Path) -> None:
    page = (repository / "docs/validation/published.md").read_text("utf-8")
    assert {
        row.split(" | ")[0].removeprefix("| ") for row in lines(page, r"\| id ") if "| **no** |" in row
    } == MISSED


def test_the_package_carries_the_published_ratios() -> None:
    assert list(shipped_ratios()) == ratio_rows()


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
