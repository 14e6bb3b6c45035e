"""Limits hold wherever a limited function is, whatever it catches, and nowhere else."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import simoffload as so
from simoffload.errors import InputError, WorkLimitError
from simoffload.limits import (
    Limits,
    check_time,
    count_operations,
    interrupt,
    interruptible,
    keep,
    limited,
    now_doing,
    sharing,
    time_left,
)


@limited
def endless(limits: Limits, *, doing: str = "planning") -> None:
    keep(limits)
    now_doing(doing)
    while True:
        pass


def test_a_loop_that_never_asks_is_stopped_and_the_message_says_where() -> None:
    with pytest.raises(WorkLimitError) as caught:
        endless(Limits(timeout=0.05), doing="reporting")
    assert str(caught.value) == (
        "stopped by engine.timeout (--timeout) after 0.05 s while reporting; raise the limit, or simulate "
        "less"
    )


def test_a_list_that_grows_without_end_is_stopped() -> None:
    @limited
    def fill() -> None:
        keep(Limits(memory=64 << 20))
        lists: list[list[int]] = []
        while True:
            lists.append([0] * 10_000)

    with pytest.raises(WorkLimitError, match=r"engine\.memory \(--memory-limit\) at 0\.0625 GiB"):
        fill()


@pytest.mark.parametrize(
    "call",
    [lambda: re.match("(a+)+b", "a" * 28), lambda: pow(7, 10**7), lambda: time.sleep(2)],
    ids=["expression", "huge integer", "system call"],
)
def test_one_call_of_c_code_is_stopped_in_the_main_thread(call: Callable[[], object]) -> None:
    @limited
    def calling() -> None:
        keep(Limits(timeout=0.05))
        call()

    began = time.monotonic()
    with pytest.raises(WorkLimitError, match="timeout"):
        calling()
    assert time.monotonic() - began < 0.5
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_the_timer_of_a_program_stays_its_own() -> None:
    rang: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: rang.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(WorkLimitError):
            endless(Limits(timeout=0.1))
        assert rang == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_more_than_any_machine_has_is_a_limit_too() -> None:
    with pytest.raises(WorkLimitError, match="stopped by the memory of this machine while reading"):
        limited(lambda: "x" * 10**17)()


def test_an_interruption_in_a_destructor_is_not_told_and_another_follows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        def __del__(self) -> None:
            for _ in range(10**7):
                pass

    @limited
    def destroy() -> None:
        keep(Limits(timeout=0.05))
        Slow()
        while True:
            pass

    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    with pytest.raises(WorkLimitError, match="timeout"):
        destroy()
    assert capsys.readouterr().err == ""


def test_a_limited_function_can_be_profiled() -> None:
    code = (
        "import cProfile; from simoffload.limits import limited; "
        "print(cProfile.Profile().runcall(limited(lambda: 'done')))"
    )
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "done\n"


def test_a_library_that_swallows_the_interruption_is_interrupted_again() -> None:
    @limited
    def stubborn() -> None:
        keep(Limits(timeout=0.01))
        for _ in range(2):
            try:
                while True:
                    pass
            except BaseException:
                pass
        while True:
            pass

    with pytest.raises(WorkLimitError):
        stubborn()


def test_an_error_that_a_library_makes_of_the_interruption_is_told_as_the_limit() -> None:
    @limited
    def translating() -> None:
        keep(Limits(timeout=0.01))
        try:
            while True:
                pass
        except BaseException as error:
            raise ValueError("something broke") from error

    with pytest.raises(WorkLimitError, match="timeout"):
        translating()


def test_an_answer_that_comes_after_the_limit_is_none() -> None:
    @limited
    def slow() -> int:
        keep(Limits(timeout=1e-9))
        return 1

    with pytest.raises(WorkLimitError):
        slow()


def test_other_errors_stay_what_they_are() -> None:
    @limited
    def wrong() -> None:
        keep(Limits(timeout=60))
        raise InputError.at("model", "there is none")

    with pytest.raises(InputError, match="there is none"):
        wrong()


def test_the_outermost_function_has_the_limit_of_all_inside() -> None:
    """Each of the inner ones is quick; together they are not."""

    @limited
    def inner() -> None:
        keep(Limits(timeout=0.1))
        time.sleep(0.03)

    @limited
    def outer() -> None:
        for _ in range(100):
            inner()

    inner()
    with pytest.raises(WorkLimitError):
        outer()


def test_nothing_is_interrupted_after_its_end() -> None:
    """Ends fall before, at and after the limit; never does an interruption come up outside."""

    @limited
    def brief(until: float) -> None:
        keep(Limits(timeout=0.01))
        while time.monotonic() < until:
            pass

    reached = 0
    for number in range(60):
        try:
            brief(time.monotonic() + 0.005 + number * 2e-4)
        except WorkLimitError:
            reached += 1
    time.sleep(0.05)
    assert 0 < reached < 60


def test_threads_have_limits_of_their_own() -> None:
    found: list[str] = []

    def work() -> None:
        try:
            endless(Limits(timeout=0.02))
        except WorkLimitError:
            found.append("stopped")

    thread = threading.Thread(target=work)
    thread.start()
    keep(Limits(timeout=1e-9))  # of nothing: this thread answers no question
    thread.join(timeout=30)
    assert found == ["stopped"]


def test_operations_are_counted_where_a_limit_holds() -> None:
    count_operations("prefill", 10**9)

    @limited
    def write() -> None:
        keep(Limits(max_events=10))
        count_operations("prefill", 10)
        count_operations("prefill", 11)

    with pytest.raises(WorkLimitError, match=r'"prefill" has at least 11 operations; .* allows 10'):
        write()


ENDLESS = """
name: very many operations
model: opt-125m
platform: dgx-a100
workload: {kind: training, batch_size: 1, sequence_length: 512}
strategy:
  kind: deepspeed
  ranks: 2
  weights: hbm
  optimizer: hbm
  ds_config: {zero_optimization: {stage: %d, allgather_bucket_size: 1}}
engine: {%s}
"""
"""Each parameter is gathered by itself: hundreds of millions of operations."""


@pytest.mark.parametrize("stage", [1, 2])
def test_operations_are_refused_while_they_are_written(stage: int, tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(ENDLESS % (stage, "max_events: 100000"))
    scenario = so.load_scenario(path)
    with pytest.raises(WorkLimitError, match=r'"optimizer" has at least .* operations; .* allows 100,000'):
        so.simulate(scenario)


MANY_LAYERS = """
name: many layers
model: {name: opt-125m, num_hidden_layers: 100000}
platform: dgx-a100
workload: {kind: training, batch_size: 1, sequence_length: 512}
strategy:
  kind: deepspeed
  ranks: 3
  weights: dram
  optimizer: raid
engine: {timeout: 1 s}
"""


def test_planning_ends_with_the_timeout(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(MANY_LAYERS)
    with pytest.raises(WorkLimitError, match=r"engine\.timeout.* after 1 s while planning"):
        so.simulate(so.load_scenario(path))


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--timeout", "2 s"),
        ("fit", "--set", "engine.timeout=1 s"),
    ],
    ids=["time", "fit"],
)
def test_on_the_command_line_a_limit_is_one_line_and_status_1(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    name, *options = command
    text = MANY_LAYERS if name == "fit" else ENDLESS % (1, "")
    (tmp_path / "scenario.yaml").write_text(text)
    line = [sys.executable, "-m", "simoffload", name, "scenario.yaml", *options, "--output-dir", "out"]
    done = subprocess.run(
        line[: None if name == "run" else -2],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("error: stopped by engine.")
    assert not (tmp_path / "out").exists()


def test_a_limit_that_holds_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(ENDLESS % (1, "memory: 100 MiB"))
    with pytest.raises(InputError, match=r'engine\.memory: must be at least 256 MiB, got "100 MiB"'):
        so.load_scenario(path)


MANY_EXPERTS = """
name: hundreds of millions of tensors
model: {name: mixtral-8x7b, num_local_experts: 1024, expert_layout: separate, num_hidden_layers: 100000}
platform: dgx-a100
workload: {kind: %s}
strategy: {%s}
engine: {memory: 512 MiB}
"""


@pytest.mark.parametrize(
    ("workload", "strategy"),
    [
        ("training, batch_size: 1, sequence_length: 16", "ranks: 3, optimizer: dram"),
        ("checkpoint", "kind: checkpoint, ranks: 8, tier: raid"),
        ("inference, batch_size: 1, prompt_length: 8, output_length: 2", "ranks: 8, weights: raid"),
    ],
    ids=["training", "checkpoint", "inference"],
)
def test_a_sequence_that_one_call_would_build_is_asked_for_first(
    workload: str, strategy: str, tmp_path: Path
) -> None:
    """Nothing can interrupt the call, which would take gigabytes before the limit is seen."""
    path = tmp_path / "scenario.yaml"
    path.write_text(MANY_EXPERTS % (workload, strategy))
    with suppress(WorkLimitError):
        so.load_scenario(path, overrides=["engine.timeout=1 s"]).plan()
    # The most that this process has ever held: a call that went on would have shown.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 3 << 20  # [KiB]


def test_parts_of_an_answer_share_one_time() -> None:
    """Two functions of 0.2 s each in 0.3 s, without a limit of their own."""
    ended: list[float] = []

    @limited
    def part() -> None:
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            pass
        ended.append(time_left())

    with sharing(0.3):
        part()
        with pytest.raises(WorkLimitError, match="which all parts of the answer share"):
            part()
    assert len(ended) == 1
    assert time_left() > 1e9
    part()


def test_an_interruption_ends_what_is_limited_as_a_limit_does() -> None:
    heard: list[str] = []
    with interruptible(lambda: heard.append("interrupted")):
        threading.Timer(0.05, interrupt).start()
        with pytest.raises(WorkLimitError, match=r"^stopped by Ctrl-C while reporting$"):
            endless(Limits(), doing="reporting")
        with pytest.raises(WorkLimitError, match=r"^stopped by Ctrl-C$"):
            limited(list)()
        with pytest.raises(WorkLimitError, match=r"^stopped by Ctrl-C$"):
            check_time()
        assert not interrupt(), "only once"
    assert heard == ["interrupted"]
    check_time()
    assert limited(list)() == []
    assert not interrupt(), "nothing is interruptible"


def test_what_begins_after_the_shared_time_does_not_begin() -> None:
    with sharing(0.0), pytest.raises(WorkLimitError, match="which all parts of the answer share; raise"):
        limited(list)()
