"""The pages to be read with a terminal open: their files are right, their commands print what is shown.

A block of YAML whose first line names a file is that file; a line of output that is only "…" stands for any
number of lines; a block of text is what the program before it prints.
"""

from __future__ import annotations

import datetime
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from simoffload.cli import main
from simoffload.cli.arguments import program
from tests.examples import EXPLORES

TOP = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(yaml|console|python|text)\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*)\n", re.MULTILINE)
FIO = TOP / "tests" / "exchange" / "data" / "fio_seqread.json"


class _Day(datetime.date):
    """The day on which the pages were written, as prices grow old."""

    @classmethod
    def today(cls) -> _Day:
        return cls(2026, 11, 21)


def _stories() -> Iterator[tuple[str, str]]:
    """What begins in an empty folder: a page, or a section of the how-tos."""
    for page in (
        "README.md",
        "docs/tutorial.md",
        "docs/costs.md",
        "docs/advise.md",
        "docs/kv-cache.md",
        "docs/reach.md",
    ):
        yield page, (TOP / page).read_text()
    for section in re.split(r"^## ", (TOP / "docs/how-to.md").read_text(), flags=re.MULTILINE)[1:]:
        yield f"how-to: {section.splitlines()[0]}", section


STORIES = dict(_stories())
READ_ALONE = (
    ()
    if EXPLORES
    else (
        "advise opt-175b --set platform=l40s-workstation --on gen4 --budget 36000total --slo tpot=60s",
        "advise ddn/bloom-176b --output-dir advice",
        "advise zero-inference-2023/opt-30b-kv",
        "run ddn/bloom-7b1 --set strategy.weights=raid --explain",
        "compare server.yaml --on dram,gen5,gen4 --costs prices.yaml --output-dir storage",
    )
)
"""Commands whose options are read and which are not run: other pages have the same with other numbers."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with what fio wrote."""
    monkeypatch.setattr("simoffload.planning.costs.datetime", SimpleNamespace(date=_Day))
    monkeypatch.chdir(tmp_path)
    shutil.copy(FIO, tmp_path / "read.json")
    return tmp_path


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_story_runs_as_it_is_told(story: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {}
    done = False
    for kind, text in BLOCK.findall(story):
        if kind == "yaml":
            name = re.match(r"# (\S+\.yaml)\n", text)
            if name is not None:
                (folder / name[1]).write_text(text)
        elif kind == "python":
            exec(compile(text, "program", "exec"), namespace)
            done = True
        elif kind == "text":
            _assert_shown(text, capsys.readouterr().out)
        else:
            _run(text, capsys)
            done = True
    assert done


def _run(session: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands of a console, each with what it prints below it; a status that is not 0 is asked for."""
    _, *parts = COMMAND.split(session)
    status = 0
    for command, shown in zip(parts[::2], parts[1::2], strict=True):
        if command == "echo $?":
            assert shown == f"{status}\n"
            status = 0
            continue
        assert status == 0, f"status {status} before: {command}"
        name, *arguments = shlex.split(command)
        assert name == "simoffload"
        if command.removeprefix("simoffload ") in READ_ALONE:
            program(arguments[0]).parse_args(arguments)
            assert shown
            continue
        capsys.readouterr()
        status = main(arguments)
        printed = capsys.readouterr()
        _assert_shown(shown, printed.out + printed.err)
    assert status == 0, f"status {status} of: {command}"


def _assert_shown(shown: str, printed: str) -> None:
    start = 0
    for part in re.split(r"^…\n", shown, flags=re.MULTILINE):
        found = printed.find(part, start)
        assert found >= 0, f"not printed:\n{part}\nbut:\n{printed}"
        start = found + len(part)


def test_every_page_has_a_way_to_it() -> None:
    linked = set(re.findall(r"\(docs/([\w-]+\.md)", STORIES["README.md"]))
    assert {page.name for page in (TOP / "docs").glob("*.md")} - linked == set()
