"""What the program does when it is interrupted, piped away, watched or wrong itself."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from simoffload import simulation
from simoffload.cli.console import Console, Waiting
from simoffload.errors import Problem
from simoffload.progress import steps, working_on
from tests.examples import one_in


def process(*argv: str, cwd: Path, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simoffload", *argv]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, **options)


def test_errors_are_json_too(program) -> None:
    answer = program("run", "small.yaml", "--json", "--set", "workload.batch_size=many")
    assert (answer.status, answer.err) == (2, "")
    problem = {
        "path": "--set",
        "line": None,
        "column": None,
        "key": "workload.batch_size",
        "message": 'must be a whole number, got "many"',
    }
    assert json.loads(answer.out) == {"schema": "simoffload/error/1", "problems": [problem]}


def test_usage_errors_are_json_too(program) -> None:
    answer = program("run", "--json")
    assert (answer.status, answer.err) == (2, "")
    assert json.loads(answer.out)["problems"][0]["path"] == "simoffload run"


def test_interruption(program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simoffload.simulation.simulate", interrupt)
    assert program("run", "small.yaml", "--output-dir", "out") == (130, "", "interrupted\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["small.yaml"]
    answer = program("run", "small.yaml", "--json")
    assert (answer.status, answer.err) == (130, "interrupted\n")
    assert json.loads(answer.out)["problems"][0]["message"] == "interrupted"


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("number", "status", "reported"),
    [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, "terminated\n")],
)
def test_a_signal_in_the_middle_leaves_nothing(
    repository: Path, tmp_path: Path, number: signal.Signals, status: int, reported: str
) -> None:
    slow = ["--set", "engine.rank_symmetry=off", "--set", "engine.steady_state=off"]
    argv = ["run", "ddn/bloom-mod-1", *slow, "--output-dir", str(tmp_path / "out")]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-m", "simoffload", *argv], cwd=repository, **options) as running:
        time.sleep(1.5)  # it takes longer than this even where there are no other users
        running.send_signal(number)
        out, err = running.communicate()
    assert (running.returncode, out, err) == (status, "", reported)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_a_library_wraps_is_one(program, monkeypatch: pytest.MonkeyPatch) -> None:
    """pydantic tells of a KeyboardInterrupt while it builds a validator as a SchemaError."""

    def fail(*_args: object, **_options: object) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        raise RuntimeError("built half")

    monkeypatch.setattr("simoffload.simulation.simulate", fail)
    answer = program("run", "ddn/bloom-7b1")
    assert (answer.status, answer.err) == (130, "interrupted\n")


def test_an_interrupt_that_the_caller_ignores_stays_ignored(program, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a command that a shell starts in the background: Ctrl-C is meant for what runs in front."""
    simulated = simulation.simulate

    def signalled(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return simulated(*arguments, **options)

    monkeypatch.setattr("simoffload.simulation.simulate", signalled)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert program("run", "small.yaml").status == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def _mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simoffload.simulation.Runner", None)


@pytest.mark.usefixtures("_mistake")
def test_a_mistake_of_ours_is_one_line(program) -> None:
    line = "error: internal error: TypeError: 'NoneType' object is not callable (please report)\n"
    assert program("run", "small.yaml") == (1, "", line)


def test_a_mistake_of_the_user_has_its_place(program, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr("simoffload.simulation.simulate", fail)
    status, _, error = program("run", "small.yaml")
    place = f"{__file__}:{fail.__code__.co_firstlineno + 1}"
    what = "ZeroDivisionError: division by zero; SIMOFFLOAD_DEBUG=1 shows the traceback"
    assert (status, error) == (1, f"error: {place}: error in this code: {what}\n")


@pytest.mark.usefixtures("_mistake")
def test_a_traceback_is_there_on_request(program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMOFFLOAD_DEBUG", "1")
    answer = program("run", "small.yaml")
    assert answer.status == 1
    assert answer.err.startswith("Traceback (most recent call last):\n")
    assert "(please report)" in answer.err.splitlines()[-1]


@pytest.mark.parametrize("argv", [("profiles", "list"), ("run", "none.yaml", "--json")])
def test_a_closed_pipe_is_silent(repository: Path, argv: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "simoffload", *argv]
    done = subprocess.run(command, cwd=repository, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


COMMANDS = (
    "--version",
    "models list",
    "check ddn/bloom-7b1",
    "run none.yaml",
    "run none.yaml --json",
    "run -",
)
"""Of each way to print: argparse's, an answer, a line, an error, an error as JSON; the last reads."""
UNWRITABLE = {">&-": "Bad file descriptor", ">/dev/full": "No space left on device"}


def shell(line: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A line of Bash in which "simoffload" is the program."""
    define = f'simoffload() {{ {shlex.quote(sys.executable)} -m simoffload "$@"; }}; {line}'
    return subprocess.run(["bash", "-c", define], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("command", "redirection"),
    one_in(2, [*((one, ">/dev/full") for one in COMMANDS), ("models list", ">&-"), ("run -", ">&-")]),
)
def test_output_that_cannot_be_written_is_one_line(repository: Path, command: str, redirection: str) -> None:
    done = shell(f"simoffload {command} {redirection} </dev/null", cwd=repository)
    reported = f"error: cannot write the output: {UNWRITABLE[redirection]}\n"
    if command.startswith("run"):  # a bad input stays one: there was nothing to print but that
        missing, empty = "none.yaml: no such file", "<stdin>: the document is empty"
        reported = f"error: {missing if 'none' in command else empty}\n"
    assert (done.returncode, done.stdout, done.stderr) == (
        2 if command.startswith("run") else 1,
        "",
        reported,
    )


@pytest.mark.parametrize(
    ("command", "status", "redirection"),
    [("run none.yaml", 2, "2>&-"), ("check ddn/bloom-7b1", 0, "2>/dev/full")],
)
def test_errors_that_nobody_hears_change_nothing(
    repository: Path, command: str, status: int, redirection: str
) -> None:
    done = shell(f"simoffload {command} {redirection}", cwd=repository)
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout == ("" if status else "ddn/bloom-7b1: ok (scenario)\n")


def test_no_file_takes_the_place_of_a_closed_stream(program, tmp_path: Path) -> None:
    """The first file that is opened gets the lowest number that is free, which may be that of the output."""
    assert program("run", "small.yaml", "--output-dir", "good").status == 0
    done = shell("simoffload run small.yaml --output-dir out >&- 2>&- <&-", cwd=tmp_path)
    assert done.returncode == 1
    good, out = tmp_path / "good", tmp_path / "out"
    assert json.loads((out / "result.json").read_text()) == json.loads((good / "result.json").read_text())
    closed = shell("simoffload run - <&-", cwd=tmp_path)
    assert (closed.returncode, closed.stderr) == (2, "error: <stdin>: cannot be read: Bad file descriptor\n")


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        (r"simoffload models show $'\xff'", r'error: model: unknown model "\udcff"; known: bloom-560m, '),
        (
            r"simoffload run $'\xff'",
            r"error: \udcff: no such file, and no shipped scenario or model of that name",
        ),
        (
            r"simoffload run ddn/bloom-7b1 --set $'\xff=1'",
            r'error: --set: "\udcff" is not the path of a key; ',
        ),
    ],
)
def test_arguments_need_not_be_utf_8(repository: Path, line: str, reported: str) -> None:
    done = shell(line, cwd=repository)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(reported)


def _is_guarded(running: subprocess.Popen[str]) -> bool:
    """Whether the program has set handlers of its own: the interpreter sets none for SIGTERM."""
    with contextlib.suppress(OSError):
        caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{running.pid}/status").read_text())
        return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


@pytest.mark.usefixtures("interruptible")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="tells of handlers on Linux only")
def test_an_interrupt_while_modules_are_imported(repository: Path) -> None:
    """At any moment from the first line of ours on; of what Python does before, nobody is the master."""
    command = [sys.executable, "-m", "simoffload", "run", "ddn/bloom-7b1"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": repository}
    for delay in (0, 0.01, 0.03, 0.06, 0.1, 0.2):
        with subprocess.Popen(command, **options) as running:
            while not _is_guarded(running) and running.poll() is None:
                time.sleep(0.001)
            time.sleep(delay)
            running.send_signal(signal.SIGINT)
            out, err = running.communicate()
        assert (running.returncode, out, err) == (130, "", "interrupted\n"), delay


def test_no_colours_in_a_pipe(repository: Path) -> None:
    done = process("fit", "ddn/bloom-7b1", cwd=repository)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout


def test_a_terminal_without_unicode(repository: Path) -> None:
    done = process("fit", "ddn/bloom-7b1", cwd=repository, env={"PYTHONIOENCODING": "ascii", "PATH": ""})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_only_for_people_who_want_them(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert Console(as_json=False).color
    monkeypatch.setenv(variable, value)
    assert not Console(as_json=False).color


def test_names_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(as_json=False)
    console.note("\x1b[31mred\x07")
    console.fail([Problem("a\nb", 1, 2, "k\x1b", "m\r")])
    assert capsys.readouterr().err == "\\x1b[31mred\\x07\nerror: a\\nb:1:2: k\\x1b: m\\r\n"


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress appears soon and is drawn often."""
    monkeypatch.setattr("simoffload.cli.console._PATIENCE", 0.05)
    monkeypatch.setattr("simoffload.cli.console._OFTEN", 0.01)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.usefixtures("_soon")
def test_progress_is_one_line_that_appears_after_a_while_and_goes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    console = Console(as_json=False)
    with Waiting(console):
        for name in steps(["first", "second"], str):
            working_on("prefill")
            assert (capsys.readouterr().err == "") == (name == "first")
            time.sleep(0.2)
        console.note("one")
    *drawn, last = capsys.readouterr().err.split("\r")
    lines = [line for line in drawn if line.strip()]
    half, empty = "#" * 12, "." * 12
    assert lines[0].startswith(f"[{half}{empty}] 1/2  0:00, 0:00 left  second: prefill")
    assert "\n" not in "".join(drawn)
    assert last == "one\n", "what is printed takes the place of the line"


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("columns", [20, 50])
def test_progress_is_cut_to_the_width_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("simoffload.cli.console._terminal_width", lambda: columns)
    with Waiting(Console(as_json=False)):
        working_on("simulating " * 30)
        time.sleep(0.2)
    assert max(map(len, capsys.readouterr().err.split("\r"))) == columns - 1


@pytest.mark.usefixtures("_soon")
def test_progress_on_a_terminal_that_cannot_overwrite_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Waiting(Console(as_json=False)):
        working_on("prefill")
        time.sleep(0.3)
    assert capsys.readouterr().err == "0:00  prefill\n"


@pytest.mark.usefixtures("_soon")
def test_progress_is_silent_without_a_watcher(capsys: pytest.CaptureFixture[str]) -> None:
    with Waiting(Console(as_json=False)):
        working_on("prefill")
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


# An interruption may come between a file's opening and its "with", as that of Ctrl-C may.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_limits_of_work_are_options(program) -> None:
    answer = program("run", "small.yaml", "--max-events", "10")
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.endswith("(--max-events) allows 10; raise the limit, or simulate less\n")
    assert program("run", "small.yaml", "--timeout", "1 ns").err.startswith(
        "error: stopped by engine.timeout"
    )
    assert program("fit", "small.yaml", "--timeout", "1 ns").status == 1
    assert program("run", "small.yaml", "--memory-limit", "1 GiB").status == 0
    assert program("run", "small.yaml", "--timeout", "10 min", "--max-events", "1000000").status == 0


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--timeout", "soon", '"soon" is not a time'),
        ("--timeout", "nan", 'must be a finite time, got "nan"'),
        ("--memory-limit", "-1", '"-1" has no unit'),
        ("--max-events", "0", "must be at least 1, got 0"),
    ],
)
def test_a_limit_that_cannot_be_names_its_option(program, option: str, value: str, reason: str) -> None:
    answer = program("run", "small.yaml", option, value)
    assert (answer.status, answer.err.count("\n")) == (2, 1)
    assert f"argument {option}: {reason}" in answer.err


def test_notices_are_said_once_after_an_answer_and_not_before_an_error(capsys) -> None:
    console = Console(as_json=False)
    console.notice("on a machine")
    console.notice("on a machine")
    console.answer("42", {})
    assert capsys.readouterr() == ("42\n", "on a machine\n")
    console = Console(as_json=False)
    console.notice("on a machine")
    console.fail([Problem("", None, None, "--slo", "has no limit")])
    assert capsys.readouterr() == ("", "error: --slo: has no limit\n")
