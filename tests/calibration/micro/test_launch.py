"""The parent's side: processes that work, fail, hang or are interrupted, played by a small script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simoffload.calibration.micro import launch
from simoffload.calibration.micro.launch import MeasurementRequest, describe, measure
from simoffload.calibration.micro.record import read_record
from simoffload.errors import InputError

PROBE = """\
import json, sys
json.dump({"torch": "2.0", "cuda": None, "nccl": None, "gpu": GPU}, open(sys.argv[1], "w"))
"""
WORKER = """\
import json, os, pathlib, sys, time
job = json.loads(pathlib.Path(sys.argv[1]).read_text())
folder = pathlib.Path(job["folder"])
with open(folder.parent.parent / "seen.txt", "a") as seen:
    seen.write(f"{os.environ['RANK']}/{os.environ['WORLD_SIZE']} {' '.join(job['sections'])}\\n")
for name in job["sections"]:
    (folder / f"{name}.begun").touch()
    if name == "hbm":
        sys.exit(3) if (folder / "hbm.failed-0").write_text('{"skipped": "no good"}') else None
    if name == "kernels":
        os.abort()
    if name == "dram":
        (folder.parent.parent / "pid").write_text(str(os.getpid()))
        time.sleep(60)
    result = {"found": {"rank": os.environ["RANK"]}}
    if name == "storage":
        result = {"found": {"scratch": job["storage"]["scratch"], "size": job["storage"]["size"]}}
        pathlib.Path(job["storage"]["scratch"], "tensor0").write_bytes(bytes(10))
    (folder / f"{name}.json").write_text(json.dumps({**result, "seconds": 0.5}))
"""


@pytest.fixture
def players(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Scripts in the place of probe and worker; temporary files go to ``tmp_path``."""
    (tmp_path / "fake_probe.py").write_text(PROBE.replace("GPU", "None"))
    (tmp_path / "fake_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(launch, "PROBE", "fake_probe")
    monkeypatch.setattr(launch, "WORKER", "fake_worker")
    monkeypatch.setattr(launch, "missing_packages", lambda _: ())
    return tmp_path


def request(*sections: str, storage: Path | None = None, gpus: int | None = None) -> MeasurementRequest:
    return MeasurementRequest(sections, gpus=gpus, storage=storage, storage_size=None, quick=True)


def ignore(_: str) -> None:
    """Nobody watches."""


def test_everything_goes_well(players: Path) -> None:
    rendered: list[str] = []
    raw = measure(request("attention", "cpu_adam"), progress=rendered.append)
    assert raw["sections"] == {"attention": {"rank": "0"}, "cpu_adam": {"rank": "0"}}
    assert raw["skipped"] == {}
    assert raw["seconds"] == {"attention": 0.5, "cpu_adam": 0.5}
    assert raw["schema"] == "simoffload/micro/1"
    assert raw["machine"]["gpu"] is None
    assert raw["machine"]["cores"] == os.cpu_count()
    assert rendered[0] == "looking at the machine"
    assert sorted(entry.name for entry in players.iterdir()) == [
        "fake_probe.py",
        "fake_worker.py",
        "seen.txt",
    ]


def test_a_section_that_fails_does_not_lose_the_others(players: Path) -> None:
    raw = measure(request("attention", "hbm", "kernels", "cpu_adam"), progress=ignore)
    assert list(raw["sections"]) == ["attention", "cpu_adam"]
    assert raw["skipped"]["hbm"] == "no good"
    assert raw["skipped"]["kernels"].startswith("its process ended with status -6")
    assert (players / "seen.txt").read_text().splitlines() == [
        "0/1 hbm attention kernels cpu_adam",
        "0/1 attention kernels cpu_adam",
        "0/1 cpu_adam",
    ]


def test_a_section_that_hangs_is_stopped(players: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_limit", lambda _: 0.2)
    monkeypatch.setattr(launch, "_SLACK", 0.3)
    raw = measure(request("dram", "cpu_adam"), progress=ignore)
    assert raw["skipped"] == {"dram": "stopped after 0 s"}
    assert list(raw["sections"]) == ["cpu_adam"]
    assert not alive(int((players / "pid").read_text()))


def test_processes_that_never_begin(players: Path) -> None:
    (players / "fake_worker.py").write_text("raise RuntimeError('no library')")
    raw = measure(request("attention", "cpu_adam"), progress=ignore)
    reason = "the processes could not be started: RuntimeError: no library"
    assert raw["skipped"] == {"attention": reason, "cpu_adam": reason}


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
    with pytest.raises(InputError, match=r"--storage-size: .* ask for less"):
        measure(small._replace(storage_size=1 << 60), progress=ignore)
    with pytest.raises(InputError, match=r"--gpus: 4096 asked for; PyTorch sees \d+ core"):
        measure(request("attention", gpus=4096), progress=ignore)


def test_one_gpu_has_nothing_to_gather(players: Path) -> None:
    (players / "fake_probe.py").write_text(PROBE.replace("GPU", '{"name": "NVIDIA H200", "count": 1}'))
    raw = measure(request("collectives"), progress=ignore)
    assert raw["skipped"] == {"collectives": "needs two GPUs"}
    assert measure(request("storage"), progress=ignore)["skipped"] == {
        "storage": "no folder was named with --storage"
    }
    with pytest.raises(InputError, match=r"--gpus: 2 asked for; PyTorch sees 1 GPU\(s\)"):
        measure(request("collectives", gpus=2), progress=ignore)


def test_torch_must_be_there(players: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (players / "fake_probe.py").write_text("raise ImportError('libtorch.so: cannot open')")
    with pytest.raises(InputError, match=r"torch: cannot be imported: ImportError: libtorch\.so"):
        measure(request("attention"), progress=ignore)
    monkeypatch.setattr(launch, "missing_packages", tuple)
    with pytest.raises(InputError, match="torch: not installed; install it beside simoffload"):
        measure(request("attention"), progress=ignore)


def test_what_will_be_done(players: Path) -> None:
    text = describe(request("hbm", "storage", storage=players), Path("out"))
    assert text.startswith("Measuring hbm, storage; results go to out.\n")
    assert "GiB of files are written, read and removed again." in text or "MiB of files" in text
    assert describe(request("hbm"), Path("out")).count("\n") == 0


PARENT = """\
import pathlib, sys
from simoffload.calibration.micro import launch
launch.PROBE, launch.WORKER, launch.missing_packages = "fake_probe", "fake_worker", lambda _: ()
place = pathlib.Path(sys.argv[1])
asked = launch.MeasurementRequest(
    ("storage", "dram"), gpus=None, storage=place, storage_size=128 << 20, quick=True
)
try:
    launch.measure(asked, progress=lambda _: None)
except KeyboardInterrupt:
    sys.exit(130)
"""


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


def test_an_interrupt_leaves_nothing_behind(players: Path) -> None:
    place = players / "place"
    place.mkdir()
    environment = {**os.environ, "PYTHONPATH": f"{players}:{Path.cwd()}"}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(place)], env=environment)
    try:
        wait_for(players / "pid")
        # "dram" runs before "storage": the folder for its files is there already.
        assert len(list(place.iterdir())) == 1
        parent.send_signal(signal.SIGINT)
        assert parent.wait(30) == 130
    finally:
        parent.kill()
        parent.wait()
    assert not alive(int((players / "pid").read_text()))
    assert list(place.iterdir()) == []
    assert [entry.name for entry in players.iterdir() if entry.name.startswith("simoffload-micro-")] == []


COMMAND = """\
import sys
from simoffload.calibration.micro import launch
launch.PROBE, launch.WORKER, launch.missing_packages = "fake_probe", "fake_worker", lambda _: ()
from simoffload.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("number", "status", "reported"),
    [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted"), (signal.SIGKILL, -9, "")],
)
def test_what_was_measured_outlives_the_end_of_the_run(
    players: Path, number: signal.Signals, status: int, reported: str
) -> None:
    """The first section is done, the second one takes a minute when the run is ended."""
    environment = {**os.environ, "PYTHONPATH": f"{players}:{Path.cwd()}"}
    message = ["calibrate", "micro", "-o", "out", "--only", "attention,dram,cpu_adam", "--gpus", "1"]
    command = [sys.executable, "-c", COMMAND, *message]
    with subprocess.Popen(command, env=environment, cwd=players, stderr=subprocess.PIPE, text=True) as parent:
        wait_for(players / "pid")
        wait_for(players / "out" / "micro.json")
        parent.send_signal(number)
        _, err = parent.communicate(timeout=30)
    assert parent.returncode == status
    kept = "out/micro.json contains what was measured so far: attention; --from-json makes profiles from it"
    assert err.splitlines()[-2:] == [kept, reported] or number == signal.SIGKILL
    raw = read_record(players / "out" / "micro.json")
    assert raw["sections"] == {"attention": {"rank": "0"}}
    assert raw["unfinished"] == ["dram", "cpu_adam"]
    assert [entry.name for entry in (players / "out").iterdir()] == ["micro.json"]


def test_a_record_of_everything_has_nothing_unfinished(players: Path) -> None:
    asked = request("attention", "hbm")._replace(record=players / "micro.json")
    raw = measure(asked, progress=ignore)
    assert "unfinished" not in raw
    assert read_record(players / "micro.json")["unfinished"] == []  # hbm failed, and that is final
