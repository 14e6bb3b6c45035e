"""Sections that run without a GPU really run; needs PyTorch, and for some DeepSpeed and transformers."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from simoffload.hardware import load_platform
from simoffload_calibrate import small_models
from simoffload_calibrate.micro import bench
from simoffload_calibrate.micro.benchmarks import MeasurementRequest, microbenchmarks
from simoffload_calibrate.micro.fit_parts import fit_memory
from simoffload_calibrate.micro.fit_programs import FACTORS, fit_thread
from simoffload_calibrate.micro.session import measure
from simoffload_calibrate.small_models import small_training_cases

pytest.importorskip("torch", reason="calibration runs PyTorch")
pytestmark = pytest.mark.deepspeed  # the only environment with PyTorch


def request(*sections: str, storage: Path | None = None) -> MeasurementRequest:
    return MeasurementRequest(sections, gpus=None, storage=storage, storage_size=None, quick=True)


def ignore(_: str) -> None:
    """Ignore a line of progress."""


@pytest.fixture(scope="module")
def host() -> dict[str, Any]:
    """What is measured of a host for two GPUs, which need not be there."""
    pytest.importorskip("deepspeed", reason="calibration runs DeepSpeed")
    return measure(request("hbm", "dram", "cpu_adam")._replace(gpus=2), progress=ignore)


def test_every_benchmark_has_a_function() -> None:
    named = [one.runs for one in microbenchmarks() if one.runs]
    for module, _, function in (runs.partition(":") for runs in (*named, bench._FACTS, bench._PROBE)):
        assert callable(getattr(import_module(module), function))


def test_the_probe_runs_on_a_host_without_a_gpu() -> None:
    from simoffload_calibrate.micro.host import HostProbe

    found = HostProbe("cpu").measure(0.1)
    assert set(found["calls"]) == {"launch", "module", "hooks", "autograd"}
    for calls in found["calls"].values():
        assert calls["repetitions"] > 1
        assert 0 < calls["p10"] <= calls["p25"] <= calls["p50"] <= calls["p75"] <= calls["p90"] < 0.1
    assert found["calls"]["hooks"]["p50"] > found["calls"]["module"]["p50"]


@pytest.mark.slow
def test_host_memory(host: dict[str, Any]) -> None:
    assert host["machine"]["torch"]
    if host["machine"]["gpu"] is None:
        assert host["skipped"]["hbm"] == "there is no GPU"
    assert float(fit_memory(host["sections"])["memory_rate"].value) > 1e9


@pytest.mark.slow
def test_hooks_of_real_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed", reason="calibration runs DeepSpeed")
    # Two trainings, with one and with several micro-steps: each takes a quarter of a minute.
    chosen = small_training_cases(1, deep=False)[::8]
    monkeypatch.setattr(small_models, "small_training_cases", lambda *_, **__: chosen)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    raw = measure(request("hooks")._replace(seconds=500.0), progress=ignore)
    assert raw["skipped"] == {}
    runs = raw["sections"]["hooks"]["runs"]
    assert {run["ranks"] for run in runs} == {1}
    thread = fit_thread(raw, load_platform("dgx-h200").machine(nodes=1))
    assert thread is not None
    if thread.believed:
        measured = {key for table in thread.costs() for key, cost in table.items() if cost.measured}
        assert {"module_call", "linear_call", "hook", "gathered_parameter", "backward_call"} <= measured
    else:  # on a machine that other work slows down by more than this
        assert float(re.search(r"took ([\d.]+) times", thread.remarks[0])[1]) > FACTORS[1]  # type: ignore[index]
    trained = raw["sections"]["hooks"]["training"]
    assert [run["name"] for run in trained] == [case.request.name for case in chosen]
    for run in trained:
        micro_steps = run["workload"]["gradient_accumulation_steps"]
        assert len(run["times"]) == 3 * micro_steps
        # A section that was measured again, because the host was noisy, has more steps.
        assert len(run["passes"]) == sum((one["count"] + 1) // 2 for one in run["times"]), "the fast half"
        assert run["traces"] == {}, "calibrate deepspeed makes those"
    assert raw["sections"]["hooks"]["held_back"] == [], "a quick measurement has no time for them"


@pytest.mark.slow
def test_the_parts_of_an_optimizer_step(host: dict[str, Any]) -> None:
    found = host["sections"]["cpu_adam"]
    cores = len(os.sched_getaffinity(0))
    assert [row["threads"] for row in found["steps"]] == sorted(
        {count for count in (1, 2, 4, 8, 16) if count <= cores} | {cores}
    )
    assert all({"threads", "parameters", "seconds", "seconds_spread"} <= set(row) for row in found["steps"])
    around = {"scale_seconds", "round_seconds", "round_fresh_seconds", "overflow_check_seconds"}
    assert around <= set(found["steps"][-1])
    assert [row["threads"] for row in found["overflow_checks"]] == [
        count for count in (1, 4) if count <= cores
    ]
    for check in found["overflow_checks"]:
        assert check["parameters"] == found["steps"][-1]["parameters"] // 8
        assert 0 < check["seconds"] <= check["seconds_spread"][1]


@pytest.mark.slow
def test_adam_in_two_processes_at_once(host: dict[str, Any]) -> None:
    (row,) = host["sections"]["cpu_adam_together"]["2"]["together"]
    assert (row["processes"], row["threads"]) == (2, max(1, len(os.sched_getaffinity(0)) // 2))
    assert "crowded_threads" not in row, "a quick measurement has no time for it"
    names = ("seconds", "scale_seconds", "round_fresh_seconds", "overflow_check_seconds")
    assert [len(row[name]) for name in names] == [2, 2, 2, 2]
    assert all(seconds > 0 for seconds in row["seconds"])
