"""Sections that run without a GPU really run; needs PyTorch, and for some DeepSpeed and transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from simoffload.calibration.micro.fit_host import fit_costs
from simoffload.calibration.micro.fit_links import fit_memory
from simoffload.calibration.micro.launch import Request, measure
from simoffload.hardware import load_platform

pytest.importorskip("torch", reason="calibration runs PyTorch")
pytestmark = pytest.mark.deepspeed  # the only environment with PyTorch


def request(*sections: str, storage: Path | None = None) -> Request:
    return Request(sections, gpus=None, storage=storage, storage_size=None, quick=True)


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
def test_hooks_of_real_deepspeed() -> None:
    pytest.importorskip("deepspeed", reason="calibration runs DeepSpeed")
    raw = measure(request("hooks"), progress=ignore)
    assert raw["skipped"] == {}
    runs = raw["sections"]["hooks"]["runs"]
    assert {run["ranks"] for run in runs} == {1}
    costs = fit_costs(raw["sections"], load_platform("dgx-h200").machine(nodes=1))
    assert {"module_call", "linear_call", "hook", "gathered_parameter", "pass_overhead"} <= set(costs)
