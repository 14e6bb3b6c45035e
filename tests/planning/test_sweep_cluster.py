"""The same sweep on Dask."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.planning.conftest import Process, finished
from tests.planning.test_sweep_run import MANY, wait_for_rows

if find_spec("distributed") is None:
    pytest.skip("Dask distributed is not installed", allow_module_level=True)

Written = Callable[..., bytes]


class Cluster(NamedTuple):
    address: str
    workers: list[subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[Cluster]:
    """A scheduler and two workers, all of them processes of this machine, in folders of their own."""
    top = tmp_path_factory.mktemp("cluster")
    contact = top / "scheduler.json"
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    started: list[subprocess.Popen[bytes]] = []

    def launch(module: str, *description: str) -> subprocess.Popen[bytes]:
        folder = top / f"process{len(started)}"
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


def test_workers_need_no_file_of_the_sweep(
    cluster: Cluster, start: Process, tmp_path: Path, scenario_file: Path, written_here: Written
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
    description = (*axes, "strategy.weights=dram", "workload.batch_size=1,2,3")
    description = tuple(word for axis in description for word in ("--axis", axis))
    process = start(
        scenario_file.name,
        *description,
        "--quiet",
        "--chunk",
        "1",
        "-o",
        "there.csv",
        "--cluster",
        cluster.address,
    )
    finished(process)
    here = written_here(*description)
    assert (tmp_path / "there.csv").read_bytes() == here
    assert here.count(b",true,") >= 3


def test_a_cluster_within_the_process(
    start: Process, tmp_path: Path, scenario_file: Path, written_here: Written
) -> None:
    description = ("--axis", "strategy.ranks=1,2,99,3")
    local = ("--quiet", "--cluster", "local", "--workers", "2")
    finished(start(scenario_file.name, *description, *local, "-o", "there.csv"))
    assert (tmp_path / "there.csv").read_bytes() == written_here(*description)


def test_an_address_without_a_scheduler(start: Process, tmp_path: Path, scenario_file: Path) -> None:
    description = (scenario_file.name, "--axis", "nodes=1,1", "-o", "r.csv", "--cluster", "tcp://")
    process = start(*description)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert err.startswith("error: --cluster: no scheduler answers at tcp://")
    assert [path.name for path in tmp_path.glob("r.csv*")] == []


# The last one: the cluster of the tests above has one worker less from here on.


def test_a_cluster_writes_the_same_bytes_even_if_it_loses_a_worker(
    cluster: Cluster, start: Process, tmp_path: Path, scenario_file: Path, written_here: Written
) -> None:
    description = (scenario_file.name, *MANY, "--quiet", "--chunk", "2")
    process = start(*description, "-o", "there.csv", "--cluster", cluster.address)
    wait_for_rows(process, tmp_path / "there.csv.journal", 2)
    os.kill(cluster.workers[0].pid, signal.SIGKILL)
    finished(process)
    assert (tmp_path / "there.csv").read_bytes() == written_here(*MANY)
