"""The pages to be read with a terminal open: their files are right, their commands print what is shown.

A block of YAML whose first line names a file is that file, and so is a block of JSON behind a line that ends
in its name; a line of output that is only "…" stands for any number of lines; a block of text is what the
program before it prints.
"""

from __future__ import annotations

import datetime
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from simoffload.cli import main
from simoffload.cli.arguments import program
from simoffload.planning import evaluator
from tests.examples import EXPLORES

TOP = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(yaml|console|python|text)\n(.*?)^```", re.DOTALL | re.MULTILINE)
JSON = re.compile(r"`([\w./-]+\.json)`:\n\n```json\n(.*?)^```", re.DOTALL | re.MULTILINE)
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
        "docs/llama-cpp.md",
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
    """An empty folder with what fio wrote; commands of a page share what they simulate."""
    monkeypatch.setattr(evaluator, "_SharedWork", partial(evaluator._SharedWork, records={}))
    monkeypatch.setattr("simoffload.planning.costs.datetime", SimpleNamespace(date=_Day))
    monkeypatch.chdir(tmp_path)
    shutil.copy(FIO, tmp_path / "read.json")
    return tmp_path


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_story_runs_as_it_is_told(story: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {}
    done = False
    for name, text in JSON.findall(story):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
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
        status = _serve(arguments) if arguments[0] == "serve" else main(arguments)
        printed = capsys.readouterr()
        _assert_shown(shown, printed.out + printed.err)
    assert status == 0, f"status {status} of: {command}"


def _serve(arguments: list[str]) -> int:
    """Serve the page at any port, print the first line as if the port were the usual one, and end it."""
    pytest.importorskip("waitress", reason="waitress is not installed")
    command = [sys.executable, "-m", "simoffload", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as page:
        assert page.stdout is not None
        print(re.sub(r"(?<=127.0.0.1:)\d+", "8050", page.stdout.readline()), end="")
        page.terminate()
    return 0 if page.returncode in (130, 143) else page.returncode


def _assert_shown(shown: str, printed: str) -> None:
    start = 0
    for part in re.split(r"^…\n", shown, flags=re.MULTILINE):
        found = printed.find(part, start)
        assert found >= 0, f"not printed:\n{part}\nbut:\n{printed}"
        start = found + len(part)


def test_sixty_commands_print_what_is_shown() -> None:
    """Those of the stories that are run here, and of the page on fit, which has tests of its own."""
    pages = [*STORIES.values(), (TOP / "docs/fit.md").read_text()]
    sessions = [text for page in pages for kind, text in BLOCK.findall(page) if kind == "console"]
    commands = [one for session in sessions for one in COMMAND.findall(session)]
    run = [one for one in commands if one.removeprefix("simoffload ") not in READ_ALONE]
    assert len([one for one in run if one.startswith("simoffload ")]) >= 60


def test_every_page_has_a_way_to_it() -> None:
    linked = set(re.findall(r"\(docs/([\w-]+\.md)", STORIES["README.md"]))
    assert {page.name for page in (TOP / "docs").glob("*.md")} - linked == set()
