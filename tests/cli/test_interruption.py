"""Ctrl-C ends a question with what was found so far; a second one, and SIGTERM, end it at once."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from simoffload.planning import compare
from simoffload.progress import Stage
from simoffload.simulation import Runner
from tests.cli.conftest import Program

FAST = ("--set", "workload.output_length=1")
TOO_LARGE = ("--set", "strategy.weights=hbm", "--set", "workload.batch_size=40000")
SLOWLY = """
import sys, time
from simoffload.cli import main
from simoffload.progress import Stage
begin = Stage.step
def step(stage, name=""):
    begin(stage, name)
    time.sleep(0.2)
Stage.step = step
sys.exit(main())
"""
"""The program, with steps that take long enough to be seen."""

Interrupt = Callable[..., None]


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch, interruptible: None) -> Interrupt:  # noqa: ARG001
    """Send signals when the step of a number begins in a stage of so many steps or more, or under a name."""

    def prepare(*numbers: signal.Signals, step: int, of: int = 2, name: str = "") -> None:
        left = list(numbers or (signal.SIGINT,))
        begin = Stage.step

        def begun(stage: Stage, label: str = "") -> None:
            begin(stage, label)
            fits = stage.begun >= step and (stage.total or 0) >= of and name in label
            while left and fits:
                os.kill(os.getpid(), left.pop(0))

        monkeypatch.setattr(Stage, "step", begun)

    return prepare


def test_advice_has_the_changes_that_were_tried(
    program: Program, interrupt: Interrupt, tmp_path: Path
) -> None:
    interrupt(step=6, of=10)
    answer = program("advise", "small.yaml", *FAST, "--output-dir", "out")
    assert answer.status == 130
    first, second, third = answer.err.splitlines()[:3]
    assert re.fullmatch(r"not complete: stopped by Ctrl-C at 6 of \d+: \S+", first)
    assert re.fullmatch(r"the advice is not complete, 5 of \d+ changes were tried: stopped by Ctrl-C", second)
    assert third == "storage bandwidth is left out: stopped by Ctrl-C"
    verdict = " ".join(answer.out.split())
    assert re.search(r"(?i)not complete: 5 of \d+ changes were tried: stopped by Ctrl-C", verdict)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["stopped"], result["number_tried"], result["storage"]) == ("stopped by Ctrl-C", 5, None)
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"report.html", "report.md"}


def test_an_answer_for_programs_is_one_document(program: Program, interrupt: Interrupt) -> None:
    interrupt(step=3, of=10)
    answer = program("advise", "small.yaml", *FAST, "--json")
    assert answer.status == 130
    assert json.loads(answer.out)["stopped"] == "stopped by Ctrl-C"


def test_a_search_has_the_best_of_what_was_simulated(program: Program, interrupt: Interrupt) -> None:
    interrupt(step=12, of=20, name="hbm")
    answer = program("advise", "small.yaml", "--search", *FAST, "--json")
    assert answer.status == 130
    found = json.loads(answer.out)
    assert found["search"]["stopped"].startswith("stopped by Ctrl-C")
    assert found["search"]["best"] is not None
    assert found["stopped"] == "stopped by Ctrl-C"
    first, second = answer.err.splitlines()[:2]
    assert first.startswith("not complete: stopped by Ctrl-C at ")
    assert re.match(r"the search is not complete, [\d,]+ of [\d,]+ combinations were ", second)


@pytest.mark.parametrize(
    ("second", "status", "reported"),
    [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, "terminated\n")],
)
def test_a_second_signal_ends_it_at_once(
    program: Program,
    interrupt: Interrupt,
    tmp_path: Path,
    second: signal.Signals,
    status: int,
    reported: str,
) -> None:
    interrupt(signal.SIGINT, second, step=6, of=10)
    answer = program("advise", "small.yaml", *FAST, "--output-dir", "out")
    assert answer == (status, "", reported)
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


def test_sigterm_ends_it_at_once(program: Program, interrupt: Interrupt) -> None:
    interrupt(signal.SIGTERM, step=6, of=10)
    assert program("advise", "small.yaml", *FAST) == (143, "", "terminated\n")


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    "command", ["advise", "advise --search", "run --explain", "run", "compare --on raid,nfs"]
)
def test_where_nothing_is_found_yet_there_is_no_answer(
    program: Program, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def interrupted(*_: object, **__: object) -> NoReturn:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
        raise AssertionError("nothing ended it")

    monkeypatch.setattr(Runner, "execute", interrupted)
    name, *options = command.split()
    assert program(name, "small.yaml", *options, *FAST) == (130, "", "interrupted\n")


def test_an_explanation_has_the_inputs_that_were_tried(program: Program, interrupt: Interrupt) -> None:
    interrupt(step=20, of=30)
    answer = program("run", "small.yaml", "--explain", *FAST)
    assert answer.status == 130
    assert answer.err.startswith("not complete: stopped by Ctrl-C at 20 of ")
    text = " ".join(answer.out.split())
    assert "Where the time goes" in text
    assert re.search(r"not complete, \d+ were not tried: stopped by Ctrl-C", text)
    assert "Storage bandwidth and throughput left out: stopped by Ctrl-C" in text
    assert "not complete: no change was tried: stopped by Ctrl-C" in text


@pytest.mark.usefixtures("interruptible")
def test_a_comparison_has_what_was_simulated(program: Program) -> None:
    argv = ("compare", "small.yaml", "--on", "dram,raid,nfs", *FAST)
    expected = json.loads(program(*argv, "--json").out)["compared"][0]["result"]["metrics"]
    simulated = compare.simulate

    def interrupted(*arguments: Any, **options: Any) -> Any:
        result = simulated(*arguments, **options)
        os.kill(os.getpid(), signal.SIGINT)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "simulate", interrupted)
        answer = program(*argv, "--json")
    assert answer.status == 130
    assert answer.err.startswith("not complete: stopped by Ctrl-C at 1 of ")
    found = [one["result"] for one in json.loads(answer.out)["compared"]]
    assert found[0]["metrics"] == expected
    assert [one["refused"] for one in found[1:3]] == [["stopped by Ctrl-C"]] * 2


def test_fit_says_what_is_needed_and_what_would_help_so_far(program: Program, interrupt: Interrupt) -> None:
    argv = ("fit", "small.yaml", *TOO_LARGE, "--json")
    complete = json.loads(program(*argv).out)
    interrupt(step=8, of=9)
    answer = program(*argv)
    assert answer.status == 130
    assert answer.err.startswith("not complete: stopped by Ctrl-C at 8 of ")
    found = json.loads(answer.out)
    assert found["capacity"] == complete["capacity"]
    assert found["changes_stopped"].startswith("stopped by Ctrl-C while planning")
    assert 0 < len(found["changes"]) <= len(complete["changes"])


def test_machines_are_counted_for_the_scenarios_that_were_looked_at(
    program: Program, interrupt: Interrupt, tmp_path: Path
) -> None:
    text = (tmp_path / "small.yaml").read_text()
    (tmp_path / "second.yaml").write_text(text.replace("name: small", "name: second"))
    interrupt(step=2, name="second")
    answer = program("fit", "small.yaml", "second.yaml", "--machines", "--json")
    found = json.loads(answer.out)
    assert (answer.status, len(found["machines"])) == (130, 1)
    assert found["stopped"] == {"second": "stopped by Ctrl-C"}


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("fit", ("--best-batch",)),
        ("reach", ("--slo", "tpot=1ms", "--by", "workload.batch_size")),
    ],
)
def test_a_search_over_one_number_has_the_best_value_so_far(
    program: Program, interrupt: Interrupt, command: str, options: tuple[str, ...]
) -> None:
    interrupt(step=4)
    answer = program(command, "small.yaml", *options, "--json")
    assert answer.status == 130
    assert re.match(r"not complete: stopped by Ctrl-C at 4 of \d+: workload.batch_size = \d+", answer.err)
    found = json.loads(answer.out)
    found = found["best_batch"][0] if command == "fit" else found
    assert found["best"]["metrics"]["tokens_per_s"] > 0
    assert found["stopped"] == "stopped by Ctrl-C"


@pytest.mark.usefixtures("interruptible")
def test_on_a_terminal_the_line_of_progress_gives_way_to_the_answer(
    program: Program, tmp_path: Path, repository: Path
) -> None:
    del program  # which writes the scenario
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SLOWLY, "advise", "small.yaml", *FAST]
    environment = {**os.environ, "PYTHONPATH": str(repository), "TERM": "xterm"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=theirs, text=True
    ) as running:
        os.close(theirs)
        shown = ""
        while not re.search(r"\] \d+/\d+  \d:\d\d, \d", shown):
            shown += os.read(ours, 4096).decode()
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate()
    while True:
        try:
            shown += os.read(ours, 4096).decode()
        except OSError:  # nobody writes any more
            break
    os.close(ours)
    assert running.returncode == 130
    assert re.search(r"\[#*\.*\] \d+/\d+  \d:\d\d, \d:\d\d left  \S", shown)
    assert re.search(r"\r +\rnot complete: stopped by Ctrl-C at \d+ of \d+: ", shown)
    assert "Verdict: " in out
