"""The parent of processes that succeed, fail, hang or are interrupted; a small script replaces the worker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from simoffload.errors import InputError
from simoffload.hardware import load_platform
from simoffload_calibrate.micro import bench, session
from simoffload_calibrate.micro.benchmarks import MeasurementRequest, sections
from simoffload_calibrate.micro.record import Record, read_record
from simoffload_calibrate.micro.session import describe, measure
from tests.calibration.micro.conftest import H200, play
from tests.calibration.micro.machine import record, storage


def request(*sections: str, storage: Path | None = None, gpus: int | None = None) -> MeasurementRequest:
    return MeasurementRequest(sections, gpus=gpus, storage=storage, storage_size=None, quick=True)


def ignore(_: str) -> None:
    """Ignore a line of progress."""


def seen(folder: Path) -> list[str]:
    return (folder / "seen.txt").read_text().splitlines()


def test_everything_goes_well(players: Path) -> None:
    play(players, gpu=H200)
    rendered: list[str] = []
    raw = measure(request("copies", "attention")._replace(quick=False), progress=rendered.append)
    assert raw["sections"] == {"copies": {"rank": "0"}, "attention": {"rank": "0"}}
    assert raw["skipped"] == {}
    assert raw["schema"] == "simoffload/micro/2"
    assert raw["machine"]["gpu"]["count"] == 1
    assert raw["machine"]["cores"] == os.cpu_count()
    assert {"virtual", "governor"} <= set(raw["machine"])
    assert yaml.safe_load(raw["detected"])["gpu"] == "h200-sxm"
    assumed = [one for one in rendered if one.startswith("assumed where nothing is measured: ")]
    assert any("times of the CPU's thread" in one for one in assumed)
    rendered = [one for one in rendered if one not in assumed]
    assert rendered[0] == "reading the facts of the machine"
    assert rendered[1] == "2 sections to measure: 38 s on the reference host"
    assert re.fullmatch(
        r"about \d+ s on this machine, with repetitions up to \d+ s .*: the host thread takes .*",
        rendered[2],
    )
    assert re.fullmatch(r"round 1: copies \(1 of 4\), about \d+ s left", rendered[3])
    assert seen(players) == ["1 copies", "1 attention", "1 copies", "1 copies"]
    assert [entry.name for entry in players.iterdir() if entry.is_dir() and entry.name != "__pycache__"] == []


def test_a_section_that_fails_does_not_lose_the_others(players: Path) -> None:
    play(players, gpu=H200)
    raw = measure(request("copies", "kernels", "matmul", "attention"), progress=ignore)
    assert list(raw["sections"]) == ["copies", "attention"]
    assert raw["skipped"]["kernels"].startswith("its process ended with status -6")
    assert raw["skipped"]["matmul"] == "ValueError: no good"


def test_a_section_that_hangs_is_stopped(players: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simoffload_calibrate.micro.session._LEAST", 0.3)
    monkeypatch.setattr("simoffload_calibrate.micro.session._PATIENCE", 0.0)
    monkeypatch.setattr(bench, "_SLACK", 0.2)
    raw = measure(request("dram", "cpu_adam", "attention"), progress=ignore)
    assert raw["skipped"]["cpu_adam"].startswith("stopped after")
    assert raw["skipped"]["attention"] == "there is no GPU"
    assert list(raw["sections"]) == ["dram"]
    assert not alive(int((players / "pid").read_text()))


def test_storage_files_are_removed(players: Path) -> None:
    folder = players / "place"
    folder.mkdir()
    raw = measure(request("storage", storage=folder), progress=ignore)
    scratch = Path(raw["sections"]["storage"]["scratch"])
    assert scratch.parent == folder
    assert raw["sections"]["storage"]["size"] % (128 << 20) == 0
    assert list(folder.iterdir()) == []


def test_what_is_asked_for_must_be_there(players: Path) -> None:
    with pytest.raises(InputError, match=r"--storage: .* is not a folder"):
        measure(request("storage", storage=players / "none"), progress=ignore)
    small = request("storage", storage=players)._replace(storage_size=1000)
    with pytest.raises(InputError, match="--storage-size: must be at least 128 MiB"):
        measure(small, progress=ignore)
    with pytest.raises(InputError, match=r"--storage-size: .* do not fit: .* free"):
        measure(small._replace(storage_size=1 << 60), progress=ignore)
    with pytest.raises(
        InputError, match=r"--gpus: must be at most \d+, not 4096: PyTorch sees \d+ cores? and no GPU"
    ):
        measure(request("attention", gpus=4096), progress=ignore)


def test_one_gpu_has_nothing_to_gather(players: Path) -> None:
    play(players, gpu=H200)
    raw = measure(request("collectives"), progress=ignore)
    assert raw["skipped"] == {"collectives": "needs 2 GPUs"}
    assert measure(request("storage"), progress=ignore)["skipped"] == {
        "storage": "no folder was named with --storage"
    }
    with pytest.raises(InputError, match=r"--gpus: must be at most 1, not 2: PyTorch sees 1 GPU$"):
        measure(request("collectives", gpus=2), progress=ignore)


@pytest.mark.parametrize(
    ("gpus", "quick", "most", "rounds"),
    [
        (1, False, 280.0, (12, 24)),
        (1, True, 115.0, (12, 12)),
        (2, False, 495.0, (18, 36)),
        (2, True, 205.0, (18, 18)),
        (3, False, 520.0, (19, 37)),
        (4, False, 520.0, (19, 37)),
        (4, True, 210.0, (18, 18)),
        (8, False, 520.0, (19, 37)),
        (8, True, 210.0, (18, 18)),
    ],
)
def test_one_gpu_takes_less_than_five_minutes_and_eight_less_than_nine(
    players: Path, gpus: int, quick: bool, most: float, rounds: tuple[int, int]
) -> None:
    """Ten of the seconds of one GPU are for the imports of the processes, and 25 of those of several."""
    play(players, gpu=f'{{"name": "NVIDIA H200", "count": {gpus}}}')
    asked = request(*(name for name in sections() if name != "storage"))._replace(quick=quick)
    with session.open_bench(asked, ignore) as machine:
        record = Record(session._initial_record(asked, machine), None)
        plan = session._MicroMeasurement(machine, record, quick=quick, progress=ignore).plan()
        counted = re.match(r"(\d+) sections to measure: (\d+) s on the reference host", plan)
        assert counted
        assert int(counted[1]) == rounds[0]
        assert most - 30 < int(counted[2]) <= most
        assert machine.preparation == (10.0 if gpus == 1 else 25.0)
        number = sum(1 if section.once else len(section.rounds) for section in machine.sections)
        assert (len(machine.sections), number) == rounds


def test_all_sections_of_several_gpus_run_in_one_group(
    players: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is not started here: its tasks are recorded."""
    play(players, gpu='{"name": "NVIDIA H200", "count": 8}')
    (players / "fast").touch()
    tasks: dict[str, tuple[int, Any]] = {}
    start, call = bench._WorkerGroups.start, bench._WorkerGroups.call

    def started(groups: Any, process: str, ranks: int) -> None:
        if ranks == 1:
            start(groups, process, ranks)

    def called(
        groups: Any, process: str, ranks: int, runs: str, task: Any, *, seconds: float
    ) -> dict[str, Any]:
        if ranks == 1:
            return call(groups, process, ranks, runs, task, seconds=seconds)
        tasks[runs.rpartition(":")[2].removeprefix("measure_")] = ranks, task.get("counts")
        return {}

    monkeypatch.setattr(bench._WorkerGroups, "start", started)
    monkeypatch.setattr(bench._WorkerGroups, "call", called)
    wanted = request("copies", "collectives", "cpu_adam", "hooks", "eager")
    measure(wanted._replace(quick=False), progress=ignore)
    assert tasks == {
        "gpu_facts": (8, None),
        "eager": (8, None),
        "decode": (8, None),
        "training": (8, None),
        "adam_together": (8, None),
        "copies_together": (8, [1, 2, 3, 4, 6, 8]),
        "copies_subsets": (8, None),
        "collectives": (8, [2, 4, 8]),
    }


def test_torch_must_be_there(players: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (players / "fake_worker.py").write_text("raise ImportError('libtorch.so: cannot open')")
    with pytest.raises(InputError, match=r"torch: cannot be imported: .* ImportError: libtorch\.so"):
        measure(request("attention"), progress=ignore)
    monkeypatch.setattr(bench, "missing_packages", tuple)
    with pytest.raises(InputError, match="torch: not installed; install it next to simoffload"):
        measure(request("attention"), progress=ignore)


def test_what_lacks_a_package_takes_no_time(players: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name == "deepspeed")

    play(players, gpu=H200)
    monkeypatch.setattr(bench, "missing_packages", missing)
    rendered: list[str] = []
    raw = measure(request("copies", "cpu_adam", "hooks"), progress=rendered.append)
    assert list(raw["sections"]) == ["copies"]
    names = ("hooks_decode", "cpu_adam", "hooks_training")
    assert raw["skipped"] == dict.fromkeys(names, "deepspeed not installed")
    assert any(one.startswith("1 section to measure: ") for one in rendered), rendered


def test_what_will_be_done(players: Path) -> None:
    text = describe(request("hbm", "storage", storage=players), Path("out"))
    assert text.startswith("Measuring hbm, storage; results go to out.\n")
    assert "GiB of files are written, read and removed again." in text or "MiB of files" in text
    assert describe(request("hbm"), Path("out")).count("\n") == 0


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(condition: Path, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition.is_file() or not condition.read_text():
        assert time.monotonic() < end, f"{condition.name} did not appear"
        time.sleep(0.05)


COMMAND = """\
import sys
from simoffload_calibrate import jobs
from simoffload_calibrate.micro import bench
jobs.WORKER, bench.missing_packages = "fake_worker", lambda _: ()
from simoffload.cli import main
sys.exit(main())
"""


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("number", "status", "reported"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGKILL, -9, "")],
)
def test_what_was_measured_outlives_the_end_of_the_run(
    players: Path, number: signal.Signals, status: int, reported: str
) -> None:
    """The run ends in its second section, which would take a minute; a second run continues it."""
    place = players / "place"
    place.mkdir()
    (players / "memory.json").write_text(json.dumps(record()["sections"]["dram"]))
    (players / "storage.json").write_text(json.dumps(storage()))
    environment = {**os.environ, "PYTHONPATH": f"{players}:{Path.cwd()}"}
    message = ["calibrate", "micro", "-o", "out", "--only", "dram,cpu_adam,storage", "--storage", str(place)]
    command = [sys.executable, "-c", COMMAND, *message, "--quick"]
    with subprocess.Popen(command, env=environment, cwd=players, stderr=subprocess.PIPE, text=True) as parent:
        wait_for(players / "pid")
        wait_for(players / "out" / "micro.json")
        parent.send_signal(number)
        _, err = parent.communicate(timeout=30)
    assert parent.returncode == status
    kept = "out/micro.json contains what was measured so far: dram; --resume continues the run, "
    if number != signal.SIGKILL:
        lines = err.splitlines()
        assert f"{kept}--from-json makes profiles from it" in lines
        assert lines[-2:] == ["out: platform.yaml, host.yaml, accelerator.yaml, pcie.yaml", reported]
        rate = load_platform(players / "out" / "platform.yaml").host.memcpy_rate
        assert (rate.origin, rate.value) == ("measured", 12e9)
    raw = read_record(players / "out" / "micro.json")
    assert set(raw["sections"]) == {"dram"}
    assert raw["unfinished"] == ["cpu_adam", "storage"]
    if number != signal.SIGKILL:  # else the worker removes them
        assert not alive(int((players / "pid").read_text()))
        assert list(place.iterdir()) == []
    (players / "fast").touch()
    command.append("--resume")
    done = subprocess.run(command, env=environment, cwd=players, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    work = [line.split()[1] for line in seen(players)]
    assert work == ["memory", "adam", "adam", "storage"]
    raw = read_record(players / "out" / "micro.json")
    assert (set(raw["sections"]), raw["unfinished"]) == ({"dram", "cpu_adam", "storage"}, [])


def test_a_section_that_failed_is_final_until_the_run_goes_on(players: Path) -> None:
    asked = request("dram", "hooks")._replace(record=players / "micro.json")
    raw = measure(asked, progress=ignore)
    assert raw["unfinished"] == []
    assert read_record(players / "micro.json")["skipped"] == {"hooks_decode": "there is no compiler"}
