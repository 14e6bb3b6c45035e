"""Real DeepSpeed, given the settings that are told to be pasted, offloads where they say.

On the CPU the accelerator's memory is host memory; what lies in files, and which optimizer DeepSpeed chooses
for where it is told to keep its states, does not depend on that.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from simoffload.models import ModelSpec
from simoffload.scenario import LoadedScenario, read_scenario
from simoffload.strategies.base import memory_stages, optimizer_target
from simoffload.strategies.programs.zero_inference import ZeroInferencePlan
from simoffload.strategies.programs.zero_training import ZeroTrainingPlan

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]

SCRIPT = Path(__file__).parent / "offloaded.py"
BLOOM = "{family: bloom, n_layer: 3, hidden_size: 512, n_head: 8, vocab_size: 4096, dtype: bfloat16}"
LLAMA = (
    "{family: llama, num_hidden_layers: 2, hidden_size: 1024, intermediate_size: 2048, "
    "num_attention_heads: 8, vocab_size: 3000, dtype: bfloat16}"
)
OPT = (
    "{family: opt, num_hidden_layers: 2, hidden_size: 512, ffn_dim: 2048, num_attention_heads: 8, "
    "vocab_size: 2048, max_position_embeddings: 254, dtype: bfloat16}"
)
PARAM = "strategy.ds_config.zero_optimization.offload_param"
LATEST = "strategy.deepspeed_version=0.19.8"
SMALL = {
    "ddn/bloom-7b1": (BLOOM, "strategy.ranks=1", f"{PARAM}.buffer_size=4e6"),
    "xinnor/llama-16b-optimizer": (LLAMA,),
    "xinnor/llama-16b-parameters": (LLAMA, f"{PARAM}.buffer_size=4e6"),
    "zero-offload-2021/gpt2": (OPT, "platform=dgx-a100"),
    "micron/opt-30b-hbm": (OPT, "strategy.ranks=1"),
}
"""Shipped scenarios with a model of their family that fits on any machine, and buffers for it."""


class Run(NamedTuple):
    """The simulator's plan and the placement that DeepSpeed reported."""

    scenario: LoadedScenario
    config: dict[str, Any]
    places: dict[str, Any]
    files: dict[str, int]
    """[B] Size of the swap files."""


def placed(node: Any, folder: Path) -> Any:
    """Return a configuration whose folders are in the test's own folder."""
    if not isinstance(node, dict):
        return node
    return {key: str(folder) if key == "nvme_path" else placed(one, folder) for key, one in node.items()}


def prepared(name: str, folder: Path) -> LoadedScenario:
    """Write the case of a scenario to ``case.json`` in ``folder``, and return the scenario."""
    model, *overrides = SMALL[name]
    scenario = read_scenario(name, overrides=[f"model={model}", LATEST, *overrides])
    (folder / "swap").mkdir(parents=True)
    case = {
        "config": placed(scenario.exports()["ds_config.json"], folder / "swap"),
        "hf_config": ModelSpec.model_validate(scenario.document.data["model"]).hf_config(),
        "attention": "eager",
        "dtype": scenario.model.dtype,
        "workload": scenario.scenario.workload.model_dump(mode="json"),
    }
    (folder / "case.json").write_text(json.dumps(case))
    return scenario


def swap_files(folder: Path) -> dict[str, int]:
    """Return the size of all swap files by the kind of their content [B]."""
    files: dict[str, int] = {}
    for path in folder.rglob("*.swp"):
        (kind,) = (part for part in path.parts if part.endswith("params") or part == "optimizer")
        files[kind] = files.get(kind, 0) + path.stat().st_size
    return files


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """All scenarios under real DeepSpeed, one after the other in one process."""
    top = tmp_path_factory.mktemp("exports")
    folders = {name: top / name.replace("/", "-") for name in SMALL}
    scenarios = {name: prepared(name, folder) for name, folder in folders.items()}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    here = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *(str(folder / "case.json") for folder in folders.values())],
        env={**os.environ, **alone, **here, "MASTER_PORT": str(port)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return {
        name: Run(
            scenarios[name],
            scenarios[name].exports()["ds_config.json"],
            json.loads((folder / "case.answer").read_text()),
            swap_files(folder / "swap"),
        )
        for name, folder in folders.items()
    }


@pytest.fixture
def run(request: pytest.FixtureRequest, runs: dict[str, Run]) -> Run:
    """One scenario under real DeepSpeed."""
    return runs[request.param]


def section(run: Run, name: str) -> dict[str, Any]:
    found: dict[str, Any] = run.config["zero_optimization"][name]
    return found


@pytest.mark.parametrize("run", SMALL, indirect=True)
def test_deepspeed_offloads_where_the_exported_settings_say(run: Run) -> None:
    weights = section(run, "offload_param")
    assert run.places["stage"] == 3
    assert run.places["weights"] == weights["device"]
    assert run.places["pinned"] == weights.get("pin_memory", run.places["pinned"])
    plan = run.scenario.plan()
    assert isinstance(plan, ZeroInferencePlan | ZeroTrainingPlan)
    tensors = plan.state.tensors if isinstance(plan, ZeroTrainingPlan) else plan.tensors
    swapped = sum(tensor.numel for tensor in tensors if tensor.on_nvme)
    assert run.places["elements"].get("nvme", 0) == swapped
    assert sum(run.places["elements"].values()) == plan.model.num_parameters
    # A tied head has a file of its own from before it was tied.
    tied = [one.numel for module in plan.model.modules_after for one in module.parameters if one.tied]
    files = (swapped + sum(tied)) * plan.model.dtype_bytes if swapped else 0
    assert run.files.get("bfloat16params", 0) == files
    assert (swapped > 0) == (weights["device"] == "nvme")
    for handle in run.places["aio"].values():
        aio = run.config["aio"]
        assert handle == [aio["block_size"], aio["queue_depth"], aio["intra_op_parallelism"]]


@pytest.mark.parametrize(
    "run", [name for name in SMALL if name.startswith(("xinnor", "zero-off"))], indirect=True
)
def test_the_optimizer_lies_where_the_exported_settings_say(run: Run) -> None:
    device, plan = section(run, "offload_optimizer")["device"], run.scenario.plan()
    assert isinstance(plan, ZeroTrainingPlan)
    assert run.places["optimizer"]["device"] == device
    assert run.places["optimizer"]["class"] == "DeepSpeedCPUAdam"
    stored = {
        term.name: term.size for term in memory_stages(plan)[-1].terms if term.tier == optimizer_target(plan)
    }
    states = stored["master weights and moments"] + stored["gradients"] if device == "nvme" else 0
    assert run.files.get("optimizer", 0) == states
    assert run.places["optimizer"]["elements"] == (0 if device == "nvme" else plan.model.num_parameters)
