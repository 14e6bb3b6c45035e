"""``python -m simoffload.calibration.fsdp FOLDER`` makes all measurements of FSDP on one machine.

It writes ``micro.json`` and ``micro-after.json`` (calibrate micro, before and after), ``costs.json`` (tiny
models and AdamW), ``fit.json`` and ``holdout.json`` (complete models) and ``log.txt``, and rewrites them
after each measurement.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from simoffload.calibration.fsdp.runs import fsdp_runs, tiny_runs
from simoffload.calibration.json_records import write_json
from simoffload.calibration.machine_facts import machine_facts
from simoffload.calibration.processes import run_ranks, thread_environment

_WORKER = "simoffload.calibration.fsdp.worker"
_SCHEMA = "simoffload/fsdp-runs/1"
_BEFORE = "copies,collectives,hbm,matmul,kernels,dram"
_AFTER = "copies,collectives,dram"
_AFTER_S = 45.0
"""[s] Time that is reserved for the measurement afterwards."""
_COSTS_S = 200.0
"""[s] Time limit of the tiny models and AdamW."""
_RESTARTS = 10


class _FsdpMeasurement:
    """The measurements on one machine."""

    def __init__(self, folder: Path, *, ranks: int, deadline: float, quick: bool) -> None:
        self._folder, self._ranks, self._deadline, self._quick = folder, ranks, deadline, quick
        self._facts = {**machine_facts(), "ranks": ranks}
        self._begin = time.time()
        self._log = folder / "log.txt"
        self._scratch = Path(tempfile.mkdtemp(prefix="simoffload-fsdp-"))
        self._cases = [case.job(ranks) for case in fsdp_runs(ranks)]
        self._tiny = [case.job(ranks) for case in tiny_runs(ranks)]
        if quick:
            self._cases, self._tiny = [], [_shallow(job) for job in self._tiny if job["strategy"]]

    def carry_out(self) -> None:
        """Run all measurements for which there is time."""
        self._micro("micro", _BEFORE)
        end = self._deadline - (0 if self._quick else _AFTER_S)
        self._work("costs", self._tiny, adamw=True, until=min(end, time.time() + _COSTS_S))
        self._work("cases", self._cases, adamw=False, until=end)
        self._micro("micro-after", _AFTER)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _report_progress(self, text: str) -> None:
        line = f"{time.time() - self._begin:6.1f} s  {text}"
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        with self._log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _micro(self, name: str, sections: str) -> None:
        remaining = self._deadline - time.time()
        if self._quick or remaining < 20:
            self._report_progress(f"{name} skipped: no time left")
            return
        self._report_progress(name)
        made = self._scratch / name
        # One GPU has no collectives; the section is then skipped with a message.
        command = [sys.executable, "-m", "simoffload", "calibrate", "micro", "-o", str(made)]
        command += ["--only", sections, "--gpus", str(self._ranks), "--time", f"{remaining:.0f}"]
        try:
            with self._log.open("ab") as log:
                subprocess.run(command, stdout=log, stderr=log, timeout=remaining, check=False)
        except subprocess.TimeoutExpired:
            self._report_progress(f"{name} was stopped")
        if (made / "micro.json").is_file():
            shutil.copy(made / "micro.json", self._folder / f"{name}.json")

    def _work(self, name: str, jobs: list[dict[str, Any]], *, adamw: bool, until: float) -> None:
        """Run jobs in child processes, and in new ones after a failure."""
        folder = self._scratch / name
        folder.mkdir()
        job = {"folder": str(folder), "cases": jobs, "adamw": adamw, "quick": self._quick, "deadline": until}
        path = folder / "job"
        path.write_text(json.dumps(job), encoding="utf-8")
        environment = thread_environment(self._ranks)
        seen = {path.name}

        def watch() -> bool:
            for file in sorted(folder.iterdir()):
                if file.name not in seen and file.suffix != ".partial":
                    seen.add(file.name)
                    self._report_progress(f"{name}: {file.name}")
                    self._write(name, jobs, folder)
            # A running job may end some seconds late.
            return time.time() < until + _AFTER_S / 2

        for _ in range(_RESTARTS):
            if time.time() > until:
                break
            status = run_ranks(
                _WORKER, [str(path)], ranks=self._ranks, log=self._log, environment=environment, watch=watch
            )
            self._write(name, jobs, folder)
            self._report_progress(f"{name}: status {status}")
            if status in (0, None):
                break

    def _write(self, name: str, jobs: list[dict[str, Any]], folder: Path) -> None:
        done = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
        failed = {
            path.name: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.failed-*")
        }
        named = {f"case-{index:03d}": job["name"] for index, job in enumerate(jobs)}
        head = {
            "schema": _SCHEMA,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": self._facts,
            "failed": {named.get(key.partition(".")[0], key): value for key, value in failed.items()},
            "left_out": [named[path.stem] for path in folder.glob("case*.left-out")],
        }
        runs = [done[key] for key in sorted(done) if key.startswith("case-")]
        if name == "costs":
            more = {key: value for key, value in done.items() if not key.startswith("case-")}
            write_json(self._folder / "costs.json", {**head, **more, "runs": runs})
        else:
            for part in ("fit", "holdout"):
                selected = [run for run in runs if run["part"] == part]
                write_json(self._folder / f"{part}.json", {**head, "runs": selected})


def _shallow(job: dict[str, Any]) -> dict[str, Any]:
    return {**job, "model": {**job["model"], "num_hidden_layers": 2}}


def main() -> int:
    """Read the command line and run the measurements."""
    parser = argparse.ArgumentParser(prog="python -m simoffload.calibration.fsdp")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, help="GPUs, one process each (default: all, at most two)")
    parser.add_argument("--seconds", type=float, default=560.0, help="time limit")
    parser.add_argument("--quick", action="store_true", help="only some tiny models, to test without a GPU")
    arguments = parser.parse_args()
    deadline = time.time() + arguments.seconds
    arguments.folder.mkdir(exist_ok=True)
    ranks = arguments.ranks or max(1, min(2, int(machine_facts()["gpus"])))
    _FsdpMeasurement(arguments.folder, ranks=ranks, deadline=deadline, quick=arguments.quick).carry_out()
    return 0


if __name__ == "__main__":
    sys.exit(main())
