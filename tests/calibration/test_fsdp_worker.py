"""The process that measures FSDP really runs on this machine's CPU; needs PyTorch and transformers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from simoffload.calibration.fsdp.runs import tiny_runs
from simoffload.calibration.processes import run_ranks, thread_environment

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]


def tiny_jobs() -> list[dict[str, Any]]:
    """A model without FSDP, one that cannot be built, one under FSDP, and one without time left."""
    plain = next(run for run in tiny_runs(1) if not run.fsdp).job(1)
    sharded = next(run for run in tiny_runs(1) if run.fsdp and not run.settings).job(1)
    jobs = [plain, {**plain, "model": {"name": "nothing"}}, sharded, {**plain, "seconds": 1e6}]
    for job in (plain, sharded):
        job["model"]["num_hidden_layers"] = 2
    return jobs


def test_a_failure_costs_one_measurement_and_the_next_process_continues(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    deadline = time.time() + 300
    job = {"folder": str(folder), "cases": tiny_jobs(), "adamw": True, "quick": True, "deadline": deadline}
    (tmp_path / "job.json").write_text(json.dumps(job))
    log = tmp_path / "log.txt"
    environment = {**thread_environment(1), "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    module = "simoffload.calibration.fsdp.worker"
    statuses = [
        run_ranks(module, [str(tmp_path / "job.json")], ranks=1, log=log, environment=environment)
        for _ in range(2)
    ]
    assert statuses == [1, 0], log.read_text()[-4000:]
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".begun") == [
        "adamw.json",
        "case-000.json",
        "case-001.failed-0",
        "case-002.json",
        "case-003.left-out",
    ]
    assert "nothing" in json.loads((folder / "case-001.failed-0").read_text())["error"]
    adamw = json.loads((folder / "adamw.json").read_text())
    assert adamw["threads"][0]["seconds"] > 0
    passes = json.loads((folder / "case-002.json").read_text())["passes"]
    assert {one["name"] for one in passes} == {"step", "forward", "backward", "optimizer"}
