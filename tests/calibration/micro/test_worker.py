"""Sections that run without a GPU really run; needs PyTorch, and for some DeepSpeed and transformers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simoffload.calibration.micro import hooks
from simoffload.calibration.micro.fit_host import fit_costs
from simoffload.calibration.micro.fit_links import fit_memory
from simoffload.calibration.micro.launch import MeasurementRequest, measure
from simoffload.calibration.small_models import small_training_cases
from simoffload.hardware import load_platform

pytest.importorskip("torch", reason="calibration runs PyTorch")
pytestmark = pytest.mark.deepspeed  # the only environment with PyTorch


def request(*sections: str, storage: Path | None = None) -> MeasurementRequest:
    return MeasurementRequest(sections, gpus=None, storage=storage, storage_size=None, quick=True)


def ignore(_: str) -> None:
    """Nobody watches."""


def test_every_section_has_its_work() -> None:
    from simoffload.calibration.micro.plan import SECTIONS
    from simoffload.calibration.micro.worker import SECTIONS as WORK

    named = {name for one in SECTIONS.values() for name in (*one.alone, one.together) if name}
    assert named == set(WORK)


@pytest.mark.slow
def test_host_memory() -> None:
    raw = measure(request("hbm", "dram"), progress=ignore)
    assert raw["machine"]["torch"]
    if raw["machine"]["gpu"] is None:
        assert raw["skipped"]["hbm"] == "there is no GPU"
    assert float(fit_memory(raw["sections"])["memory_rate"].value) > 1e9


@pytest.mark.slow
def test_hooks_of_real_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed", reason="calibration runs DeepSpeed")
    # One training of each family, with one and with several micro-steps: each takes a quarter of a minute.
    chosen = small_training_cases(1, deep=False)[::4]
    monkeypatch.setattr(hooks, "small_training_cases", lambda *_, **__: chosen)
    raw = measure(request("hooks"), progress=ignore)
    assert raw["skipped"] == {}
    runs = raw["sections"]["hooks"]["runs"]
    assert {run["ranks"] for run in runs} == {1}
    costs = fit_costs(raw["sections"], load_platform("dgx-h200").machine(nodes=1))
    assert {"module_call", "linear_call", "hook", "gathered_parameter", "pass_overhead"} <= set(costs)
    trained = raw["sections"]["hooks"]["training"]
    assert [run["name"] for run in trained] == [case.request.name for case in chosen]
    for run in trained:
        micro_steps = run["workload"]["gradient_accumulation_steps"]
        steps = run["workload"]["steps"] - 2
        assert len(run["passes"]) == 3 * micro_steps * steps
        assert {"forward", "backward parts", "optimizer parts"} <= set(run["traces"])
        groups = run["traces"]["optimizer parts"]["parts"]["optimizer_step"]["count"]
        assert (groups > 1) == (micro_steps > 1), "those with several micro-steps have several sub-groups"


@pytest.mark.slow
def test_the_parts_of_an_optimizer_step() -> None:
    pytest.importorskip("deepspeed", reason="calibration runs DeepSpeed")
    raw = measure(request("cpu_adam"), progress=ignore)
    found = raw["sections"]["cpu_adam"]
    cores = len(os.sched_getaffinity(0))
    assert [row["threads"] for row in found["steps"]] == sorted(
        {count for count in (1, 2, 4, 8, 16) if count <= cores} | {cores}
    )
    keys = {"threads", "parameters", "seconds", "busy_threads", "scale_seconds", "round_seconds"}
    keys |= {"round_fresh_seconds"}
    pinned = {"round_pinned_seconds", "to_gpu_seconds"} if raw["machine"]["gpu"] else set()
    assert all(set(row) == keys | pinned for row in found["steps"])
    assert found["torch_adamw"]["threads"] == cores


@pytest.mark.slow
def test_adam_in_two_processes_at_once() -> None:
    pytest.importorskip("deepspeed", reason="calibration runs DeepSpeed")
    raw = measure(request("cpu_adam")._replace(gpus=2), progress=ignore)
    (row,) = raw["sections"]["cpu_adam_together"]["2"]["together"]
    assert (row["processes"], row["threads"]) == (2, max(1, len(os.sched_getaffinity(0)) // 2))
    assert [len(row[name]) for name in ("seconds", "scale_seconds", "round_fresh_seconds")] == [2, 2, 2]
    assert all(seconds > 0 for seconds in row["seconds"])
