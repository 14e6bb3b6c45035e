"""The same sweep on Dask."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.planning.conftest import Process, finished
from tests.planning.test_sweep_run import MANY, wait_for_rows


@pytest.fixture(autouse=True, scope="module")
def _dask() -> None:
    pytest.importorskip("distributed", reason="Dask distributed is not installed")


class Cluster(NamedTuple):
    address: str
    workers: list[subprocess.Popen[bytes]]


@pytest.fixture
def cluster(tmp_path: Path, repository: Path) -> Iterator[Cluster]:
    """A scheduler and two workers, all of them processes of this machine, in folders of their own."""
    contact = tmp_path / "scheduler.json"
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    started: list[subprocess.Popen[bytes]] = []

    def launch(module: str, *description: str) -> subprocess.Popen[bytes]:
        folder = tmp_path / f"process{len(started)}"
        folder.mkdir()
        process = subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{module}", *description],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    try:
        scheduler = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(contact))
        launch("dask_scheduler", *scheduler)
        deadline = time.monotonic() + 60
        while not contact.exists() or not contact.read_text().strip():
            assert time.monotonic() < deadline, "the scheduler does not start"
            time.sleep(0.05)
        worker = ("--scheduler-file", str(contact), "--nthreads", "1", "--no-nanny", "--no-dashboard")
        workers = [launch("dask_worker", *worker, "--local-directory", f"w{i}") for i in range(2)]

        yield Cluster(json.loads(contact.read_text())["address"], workers)
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def test_a_cluster_writes_the_same_bytes_even_if_it_loses_a_worker(
    cluster: Cluster, start: Process, tmp_path: Path, scenario_file: Path
) -> None:
    description = (scenario_file.name, *MANY, "--quiet", "--chunk", "2")
    finished(start(*description, "-o", "here.csv", "--workers", "1"))
    process = start(*description, "-o", "there.csv", "--cluster", cluster.address)
    wait_for_rows(process, tmp_path / "there.csv.journal", 4)
    os.kill(cluster.workers[0].pid, signal.SIGKILL)
    finished(process)
    assert (tmp_path / "there.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()


def test_workers_need_no_file_of_the_sweep(
    cluster: Cluster, start: Process, tmp_path: Path, scenario_file: Path
) -> None:
    """What the points refer to is sent: a ds_config, a model's config.json, a platform of the user."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"offload_param": {"buffer_size": 4e9}}}')
    (tmp_path / "model.json").write_text(
        '{"model_type": "opt", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,'
        ' "ffn_dim": 256, "vocab_size": 100}'
    )
    shipped = Path(__file__).parents[2] / "hardware_profiles" / "platform" / "xinnor-workstation.yaml"
    (tmp_path / "mine.yaml").write_text(shipped.read_text())
    axes = (
        "platform=mine.yaml",
        "strategy.ds_config=ds.json",
        "model=[{config: model.json}]",
        "strategy.ranks=1",
    )
    description = (scenario_file.name, "--quiet", *(word for axis in axes for word in ("--axis", axis)))
    description = (*description, "--axis", "strategy.weights=dram", "--axis", "workload.batch_size=1,2,3")
    finished(start(*description, "-o", "here.csv", "--workers", "1"))
    process = start(*description, "-o", "there.csv", "--cluster", cluster.address, "--chunk", "1")
    finished(process)
    here = (tmp_path / "here.csv").read_text()
    assert (tmp_path / "there.csv").read_text() == here
    assert here.count(",true,") >= 3


def test_a_cluster_within_the_process(start: Process, tmp_path: Path, scenario_file: Path) -> None:
    description = (scenario_file.name, "--axis", "workload.batch_size=1,2,0,3", "--quiet")
    finished(start(*description, "-o", "here.csv", "--workers", "1"))
    finished(start(*description, "-o", "there.csv", "--cluster", "local", "--workers", "2"))
    assert (tmp_path / "there.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()


def test_an_address_without_a_scheduler(start: Process, tmp_path: Path, scenario_file: Path) -> None:
    description = (scenario_file.name, "--axis", "nodes=1,1", "-o", "r.csv", "--cluster", "tcp://")
    process = start(*description)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert err.startswith("--cluster: no scheduler answers at tcp://")
    assert [path.name for path in tmp_path.glob("r.csv*")] == []
