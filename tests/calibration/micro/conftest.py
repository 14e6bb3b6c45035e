"""A script in place of the worker, which speaks its protocol without PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from simoffload_calibrate import jobs
from simoffload_calibrate.micro import bench

WORKER = """\
import importlib, json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
job = json.loads((folder / "job.json").read_text())
answers = (folder / "answers-0.jsonl").open("a")
def say(**answer):
    answers.write(json.dumps(answer) + "\\n")
    answers.flush()
say(ready=True)
seen = folder.parent.parent / "seen.txt"
tasks = (folder / "tasks.jsonl").open()
for number in range(1000):
    line = ""
    while not line.endswith("\\n"):
        os.kill(job["parent"], 0)
        time.sleep(0.01)
        line += tasks.readline()
    module, _, work = json.loads(line)["runs"].partition(":")
    work = work.removeprefix("measure_")
    probe = {"seconds": 1, "calls": {"launch": dict.fromkeys(("p10", "p25", "p50", "p75", "p90"), 1e-6)}}
    found = {"gpu_facts": {"torch": "2.0", "gpu": DEVICE}, "probe_host": probe, "compile_operations": {}}
    answer = {"found": found.get(work, {"rank": os.environ["RANK"]})}
    if module.startswith("tests."):
        answer = {"found": getattr(importlib.import_module(module), work)(None)}
    if work not in found:
        with seen.open("a") as file:
            file.write(f"{os.environ['WORLD_SIZE']} {work}\\n")
    if work == "kernels":
        os.abort()
    if work == "adam" and not (seen.parent / "fast").is_file():
        (seen.parent / "pid").write_text(str(os.getpid()))
        time.sleep(60)
    if work == "decode":
        answer = {"skipped": "there is no compiler"}
    if work == "storage":
        answer = {"found": {"scratch": job["storage"]["scratch"], "size": job["storage"]["size"]}}
        pathlib.Path(job["storage"]["scratch"], "tensor0").write_bytes(bytes(10))
    if work == "matmul":
        answer = {"failed": "ValueError: no good"}
    known = seen.parent / f"{work}.json"
    if known.is_file():
        answer["found"] = json.loads(known.read_text())
    say(task=number, **answer)
    if "failed" in answer:
        sys.exit(3)
"""
H200 = '{"name": "NVIDIA H200", "count": 1}'


@pytest.fixture
def players(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the worker by a script, and put temporary files into ``tmp_path``."""
    play(tmp_path, gpu="None")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(jobs, "WORKER", "fake_worker")
    monkeypatch.setattr(bench, "missing_packages", lambda _: ())
    return tmp_path


def play(folder: Path, *, gpu: str) -> None:
    (folder / "fake_worker.py").write_text(WORKER.replace("DEVICE", gpu))
