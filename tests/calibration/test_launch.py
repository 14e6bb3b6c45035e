"""Runs in child processes that succeed, fail and hang; a small script replaces the worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simoffload_calibrate import jobs, launch
from simoffload_calibrate.launch import LaunchSettings, run_cases
from simoffload_calibrate.runs import CalibrationRun, request

WORKER = """\
import json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
job = json.loads((folder / "job.json").read_text())
answers, tasks = (folder / "answers-0.jsonl").open("a"), (folder / "tasks.jsonl").open()
def say(**answer):
    answers.write(json.dumps(answer) + "\\n")
    answers.flush()
say(ready=True)
for number in range(1000):
    line = ""
    while not line.endswith("\\n"):
        os.kill(job["parent"], 0)
        time.sleep(0.01)
        line += tasks.readline()
    task = json.loads(line)
    name = task["case"]["name"]
    if name == "hangs":
        time.sleep(60)
    if name == "fails":
        say(task=number, failed="RuntimeError: no memory")
        sys.exit(3)
    pathlib.Path(job["swap_folder"], "zero_stage_3").mkdir(exist_ok=True)
    passes = [{"name": "prefill", "repetition": 0, "seconds": 1.0}]
    say(task=number, found={"name": name, "runs": task["runs"], "pid": os.getpid(), "passes": passes})
"""


@pytest.fixture(autouse=True)
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fake_runs.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(jobs, "WORKER", "fake_runs")
    monkeypatch.setattr(launch, "missing_packages", lambda _: ())


def case(name: str, **strategy: Any) -> CalibrationRun:
    work = {"kind": "inference", "batch_size": 1, "prompt_length": 4, "output_length": 2}
    return request({"name": name, "model": "bloom-560m", "workload": work, "strategy": strategy})


def settings(folder: Path) -> LaunchSettings:
    return LaunchSettings(
        folder / "out", folder / "swap", largest=1 << 40, seconds_per_case=1.0, seconds=60.0, trace=False
    )


def test_what_fails_or_hangs_ends_its_processes_and_loses_no_other_run(tmp_path: Path) -> None:
    told: list[str] = []
    hugging_face = case("on the GPU", kind="accelerate", device_map="cuda")
    cases = [case("first"), case("fails"), case("second"), case("hangs"), case("third"), hugging_face]
    outcome = run_cases(cases, settings(tmp_path), progress=told.append)
    assert outcome.done == 4
    assert outcome.failed == (("fails", "RuntimeError: no memory"), ("hangs", "stopped after 1 s"))
    data = json.loads(outcome.file.read_text())
    runs = {run["name"]: run for run in data["runs"]}
    assert list(runs) == ["first", "second", "third", "on the GPU"]
    assert len({run["pid"] for run in runs.values()}) == 4, "new processes after a failure"
    assert runs["first"]["runs"] == "simoffload_calibrate.deepspeed.worker:carry_out"
    assert runs["on the GPU"]["runs"] == "simoffload_calibrate.hugging_face:carry_out"
    assert [one["name"] for one in data["failed"]] == ["fails", "hangs"]
    assert told[0] == "1 rank: first, fails, second, hangs, third"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["log.txt", "runs.json"]
    assert not (tmp_path / "swap").exists()


def test_every_run_is_in_the_file_when_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a program that is killed loses only the run that it was making."""
    kept: list[list[str]] = []
    call = jobs.JobProcesses.call

    def looked(job: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        file = tmp_path / "out" / "runs.json"
        kept.append([run["name"] for run in json.loads(file.read_text())["runs"]] if file.exists() else [])
        if len(kept) == 3:
            raise KeyboardInterrupt
        return call(job, *arguments, **options)

    monkeypatch.setattr(jobs.JobProcesses, "call", looked)
    with pytest.raises(KeyboardInterrupt):
        run_cases([case("first"), case("second"), case("third")], settings(tmp_path))
    assert kept == [[], ["first"], ["first", "second"]]
    data = json.loads((tmp_path / "out" / "runs.json").read_text())
    assert [run["name"] for run in data["runs"]] == ["first", "second"]
    assert data["failed"] == [{"name": "third", "error": "was interrupted"}]
