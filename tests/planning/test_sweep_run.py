"""Running a sweep in this process and in others, and what becomes of it when they end."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simoffload.errors import SimulationError
from simoffload.extensions.sweep.definition import Grid, Sweep, find_points
from simoffload.extensions.sweep.run import Task, job_of, local_processes, run_sweep, run_tasks
from simoffload.planning.confidence import confidence
from simoffload.scenario import read_scenario
from simoffload.simulation import simulate
from tests.examples import one_in, some
from tests.planning.conftest import Define, Process, finished, simulated

try:
    import pyarrow.parquet as pq
except ModuleNotFoundError:
    pq = None

FORMATS = (".csv", ".json", ".parquet") if pq else (".csv", ".json")
AXES = ("strategy.ranks=1,2,99,1", "strategy.weights=dram,raid")
MANY = ("--axis", "workload.batch_size=range(min=1,max=8,step=1)", "--axis", "strategy.weights=dram,raid")


def run(sweep: Sweep, folder: Path, name: str, **options: Any) -> list[bytes]:
    outputs = [folder / f"{name}{suffix}" for suffix in FORMATS]
    run_sweep(sweep, find_points(sweep), outputs, **options)
    return [path.read_bytes() for path in outputs]


def test_a_limit_that_varies_fails_in_its_rows(define: Define, tmp_path: Path) -> None:
    """Even while a scenario is read, and the first one of all."""
    sweep = define(axes=["engine.timeout=1 us,1 min", "workload.batch_size=1,2"])
    run(sweep, tmp_path, "r", workers=1)
    with (tmp_path / "r.csv").open() as file:
        errors = [row["error"] for row in csv.DictReader(file)]
    assert [error[:53] for error in errors] == [
        "stopped by engine.timeout (--timeout) after 1e-06 s w",
        "stopped by engine.timeout (--timeout) after 1e-06 s w",
        "",
        "",
    ]


def test_a_row_is_what_a_single_run_says(define: Define, tmp_path: Path, scenario_file: Path) -> None:
    run(define(axes=AXES), tmp_path, "r", workers=1)
    with (tmp_path / "r.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["index"] for row in rows] == list("01234567")
    one = simulate(read_scenario(scenario_file, overrides=["strategy.ranks=1", "strategy.weights=raid"]))
    assert {name: float(rows[1][name]) for name in one.metrics()} == one.metrics()
    for name, ends in confidence(one).intervals().items():
        assert (float(rows[1][f"{name}_p10"]), float(rows[1][f"{name}_p90"])) == ends
    assert (rows[1]["fits"], rows[1]["bottleneck"], rows[1]["error"]) == ("true", one.bottleneck, "")
    assert rows[4]["error"] == (
        "strategy.ranks: 99 ranks, but the platform has 8 GPUs; lower it or raise nodes"
    )
    assert [rows[4][name] for name in (*one.metrics(), "fits", "bottleneck")] == [""] * (
        len(one.metrics()) + 2
    )
    assert rows[7] == {**rows[1], "index": "7"}


@pytest.mark.skipif(pq is None, reason="pyarrow is not installed")
def test_all_formats_say_the_same(define: Define, tmp_path: Path) -> None:
    run(define(axes=[*AXES, "profiles.hdr200.achieved=20 GB/s"]), tmp_path, "r", workers=1)
    written = json.loads((tmp_path / "r.json").read_text())
    table = pq.read_table(tmp_path / "r.parquet")
    assert table.to_pylist() == written["rows"]
    assert table.schema.field("strategy.ranks").type == "int64"
    with (tmp_path / "r.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == table.column_names == list(written["rows"][0])
    for text, row in zip(rows, written["rows"], strict=True):
        plain = ["" if value is None else value for value in row.values()]
        assert text == [str(one).lower() if isinstance(one, bool) else str(one) for one in plain]
    assert {"kind": "nic", "id": "hdr200"}.items() <= written["profiles"][-1].items() or any(
        {"kind": "nic", "id": "hdr200"}.items() <= one.items() for one in written["profiles"]
    )


def test_any_number_of_workers_writes_the_same_bytes(define: Define, tmp_path: Path) -> None:
    sweep = define(axes=[*AXES, "workload.prompt_length=8,9"])
    expected = run(sweep, tmp_path, "one", workers=1)
    for workers, chunk in one_in(2, [(2, 1), (3, 100)]):
        assert run(sweep, tmp_path, f"w{workers}c{chunk}", workers=workers, chunk=chunk) == expected


def test_memory_that_is_too_small_is_an_answer(define: Define, tmp_path: Path) -> None:
    sweep = define(axes=["model=bloom-560m,bloom-mod-1", "strategy.weights=gpu"])
    summary = run_sweep(sweep, find_points(sweep), [tmp_path / "r.json"], workers=1)
    small, large = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert (small["fits"], large["fits"], summary.too_large, summary.failed) == (True, False, 1, 0)
    assert large["e2e_s"] is None
    assert "has 40.0 GB" in large["advice"] or "hbm" in large["advice"]


# ---- ends of processes ----


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(
    start: Process, tmp_path: Path, scenario_file: Path, written_here: Callable[..., bytes]
) -> None:
    description = (scenario_file.name, *MANY, "--quiet", "--workers", "2", "--chunk", "1")
    dice, seen = random.Random(7), [0]
    journal = tmp_path / "killed.csv.journal"
    for _ in range(some(2)):
        process = start(*description, "-o", "killed.csv", "--resume")
        enough = seen[-1] + dice.randint(0, 3)  # rows, and a little later, so that anything is going on
        while len(simulated(journal)) < enough and process.poll() is None:
            time.sleep(0.01)
        time.sleep(dice.uniform(0, 0.05))
        process.kill()
        process.communicate()
        seen.append(len(simulated(journal)))
    assert seen == sorted(seen), "something was lost"
    assert any(0 < count < 16 for count in seen), "no kill came in the middle"
    finished(start(*description, "-o", "killed.csv", "--resume"))
    assert (tmp_path / "killed.csv").read_bytes() == written_here(*MANY)
    assert sorted(simulated(journal)) == list(range(16))


def wait_for_rows(process: subprocess.Popen[str], journal: Path, count: int) -> None:
    """Wait until a sweep has so many rows, but not all of them."""
    while len(simulated(journal)) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.03)


def children(pid: int) -> list[int]:
    of_threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for path in of_threads for word in path.read_text().split()]


def test_a_worker_that_is_killed_costs_only_its_chunk(
    start: Process, tmp_path: Path, scenario_file: Path, written_here: Callable[..., bytes]
) -> None:
    description = (scenario_file.name, *MANY, "--quiet", "--workers", "2", "--chunk", "2")
    process = start(*description, "-o", "hurt.csv")
    wait_for_rows(process, tmp_path / "hurt.csv.journal", 2)
    os.kill(children(process.pid)[0], signal.SIGKILL)
    finished(process)
    assert (tmp_path / "hurt.csv").read_bytes() == written_here(*MANY)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("number", "status", "reported"),
    one_in(2, [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]),
)
def test_a_signal_keeps_what_is_done_and_says_how_to_go_on(
    start: Process, tmp_path: Path, scenario_file: Path, number: signal.Signals, status: int, reported: str
) -> None:
    description = (scenario_file.name, *MANY, "--workers", "2", "--chunk", "1", "-o", "r.csv")
    process = start(*description, "--quiet")
    wait_for_rows(process, tmp_path / "r.csv.journal", 3)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (status, "")
    kept, command, last = err.splitlines()
    assert kept.endswith("of 16 simulations are kept; to continue:")
    assert command.strip().startswith("simoffload sweep small.yaml --axis 'workload.batch_size=range(")
    assert command.endswith("--resume")
    assert last == reported
    assert not (tmp_path / "r.csv").exists()
    # A signal may come between a chunk's way into the journal and its being counted.
    assert 2 <= int(kept.split()[0]) <= len(simulated(tmp_path / "r.csv.journal"))


def test_a_worker_leaves_when_its_parent_is_gone() -> None:
    code = "from simoffload.extensions.sweep.run import work; work()"
    worker = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, check=False, timeout=60)
    assert worker.returncode == 0


def test_a_call_runs_in_a_worker_and_what_it_fails_with_is_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with local_processes(1) as pool:
        first, second = (pool.submit(os.getpid).result() for _ in range(2))
        assert first == second != os.getpid()
        with pytest.raises(SimulationError, match=r"^a worker failed: ZeroDivisionError: "):
            pool.submit(divmod, 1, 0).result()
        assert pool.submit(os.getpid).result() == first
    monkeypatch.setattr(sys, "executable", "/bin/false")
    message = r"^worker processes cannot start \(exit status 1\)$"
    with local_processes(1) as pool, pytest.raises(SimulationError, match=message):
        pool.submit(os.getpid).result()
    assert capfd.readouterr() == ("", "")


POISON = """
import os, signal

class Poison(dict):
    def items(self):
        if os.getpid() != {parent}:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().items()
"""


def test_a_point_that_ends_every_worker_is_a_row(
    define: Define, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "poison.py").write_text(POISON.format(parent=os.getpid()))
    monkeypatch.syspath_prepend(tmp_path)
    from poison import Poison  # type: ignore[import-not-found]

    sweep = define(axes=["strategy.ds_config=[{}]"])
    good = sweep.grid.base.data["strategy"]["ds_config"]
    axis = sweep.grid.axes[0]._replace(values=(good, Poison(good), good))
    poisoned = Sweep(Grid(sweep.grid.base, (axis,)), (), (), sweep.cache)
    tasks = [Task(((0, 0), (1, 1), (2, 2)))]
    with local_processes(1) as pool:
        rows = [row for rows in run_tasks(pool, job_of(poisoned), tasks) for row in rows]
    by_point = {row.point: row for row in rows}
    assert sorted(row.point for row in rows) == [0, 1, 2]
    assert by_point[1].error is not None
    assert "3 workers ended while they simulated this point (signal 9, SIGKILL)" in by_point[1].error
    assert by_point[0].fits
    assert by_point[2].fits
