"""Real DeepSpeed on this machine's CPU does, tensor by tensor, what the simulator says it does.

Without a GPU everything is serial, so times mean nothing; which bytes are read in which order, where the
host waits for them and how many swap buffers are free do not depend on the clock and must be equal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from simoffload.errors import InputError
from simoffload.strategies.programs.zero_inference import ZeroInferencePlan
from tests.calibration.real_runs import Recorded, want
from tests.calibration.storage_plan import LAYER, module_names, plan_of, planned_rows, recorded_rows

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]

RUNS_FILE = Path(__file__).parent / "data" / "cpu_runs.yaml"
SEPARATE_EXPERTS = Path(__file__).parent / "separate_experts.py"
SEPARATE_RECORD = Path(__file__).parent / "data" / "separate_experts.json"
RUNS: dict[str, dict[str, Any]] = {run["name"]: run for run in yaml.safe_load(RUNS_FILE.read_text())["runs"]}
TOO_FEW = json.loads(json.dumps(RUNS["mixtral, two expert tensors at a time"]))
TOO_FEW["strategy"]["ds_config"]["zero_optimization"]["offload_param"]["buffer_count"] = 1
want(RUNS)
want({"mixtral, one buffer": TOO_FEW}, refused=True)
SMALLEST_SWAPPED = 1 << 20  # [B]


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest, recorded_runs: Recorded) -> dict[str, Any]:
    """Return the record of one run."""
    return recorded_runs.runs[request.param]


@pytest.fixture
def plan(run: dict[str, Any], recorded_runs: Recorded) -> ZeroInferencePlan:
    """Return the simulator's plan for a recorded run."""
    return plan_of(RUNS[run["name"]], version=recorded_runs.data["machine"]["deepspeed"])


@pytest.fixture
def tied(plan: ZeroInferencePlan) -> str:
    """Return the name of the tensor that ``lm_head`` shares; "" if it has its own."""
    weight = plan.layered.visits[-1][0].parameters[0]
    return weight.name if weight.tied else ""


def test_the_model_has_the_parameters_that_are_simulated(
    run: dict[str, Any], plan: ZeroInferencePlan
) -> None:
    assert run["parameters"] == plan.model.num_parameters


def test_modules_are_called_in_the_simulated_order(run: dict[str, Any], plan: ZeroInferencePlan) -> None:
    for name in ["prefill", "decode 1"]:
        assert [LAYER.sub("", module) for module in run["traces"][name]["modules"]["module"]] == module_names(
            plan
        )


def test_the_first_pass_reads_each_tensor_when_its_module_asks(
    run: dict[str, Any], plan: ZeroInferencePlan, tied: str
) -> None:
    first = run["passes"][0]
    assert (first["name"], first["repetition"]) == ("prefill", 0)
    assert recorded_rows(first["storage"], tied=tied) == planned_rows(plan, first=True)


def test_later_passes_read_ahead_in_the_simulated_order(
    run: dict[str, Any], plan: ZeroInferencePlan, tied: str
) -> None:
    later = [one for one in run["passes"] if one["repetition"] == 1]
    assert [one["name"] for one in later] == ["prefill", "decode 1", "decode 2"][: len(later)]
    for one in later:
        assert recorded_rows(one["storage"], tied=tied) == planned_rows(plan, first=False), one["name"]


def test_the_first_pass_moves_the_bytes_of_all_slices_that_are_swapped(
    run: dict[str, Any], plan: ZeroInferencePlan
) -> None:
    ranks, size = run["ranks"], plan.model.dtype_bytes
    modules = [module for visit in plan.layered.visits for module in visit]
    parameters = [parameter for module in modules for parameter in module.parameters]
    slices = [-(-parameter.numel // ranks) * size for parameter in parameters]
    expected = sum(one for one in slices if one >= SMALLEST_SWAPPED)
    assert sum(row[2] for row in run["passes"][0]["storage"]) == expected


def test_separate_experts_are_fetched_as_recorded(tmp_path: Path) -> None:
    """The record with which tests/strategies/test_called_experts.py compares the simulator."""
    command = [sys.executable, str(SEPARATE_EXPERTS), str(tmp_path / "out.json")]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run(command, env=environment, capture_output=True, timeout=500, check=True)
    runs = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert runs == json.loads(SEPARATE_RECORD.read_text())["runs"]


def test_deepspeed_and_the_simulator_refuse_the_same_lack_of_buffers(recorded_runs: Recorded) -> None:
    assert "Not enough buffers 1 for swapping 2" in recorded_runs.errors["mixtral, one buffer"]
    with pytest.raises(InputError, match="Not enough buffers"):
        planned_rows(plan_of(TOO_FEW, version=recorded_runs.data["machine"]["deepspeed"]), first=True)
