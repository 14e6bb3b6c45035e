"""What a model has beside its language model takes memory in every program, and no time of a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from simoffload.scenario import read_scenario
from simoffload.simulation import simulate
from tests.models.test_towers import TEXT, WHOLE

INFERENCE = {"batch_size": 2, "prompt_length": 8, "output_length": 3}
ZERO = {"stage": 3, "offload_param": {"device": "cpu"}}
DISK = {"device": "nvme", "buffer_size": 4_000_000}
PROGRAMS: dict[str, dict[str, Any]] = {
    "zero": {"ranks": 2, "weights": "dram", "ds_config": {"zero_optimization": ZERO}},
    "zero-nvme": {"weights": "raid", "ds_config": {"zero_optimization": {"stage": 3, "offload_param": DISK}}},
    "accelerate": {"kind": "accelerate", "device_map": "cpu"},
    "accelerate-disk": {"kind": "accelerate", "device_map": "disk", "offload_folder": "raid"},
    "tensors": {"kind": "transformers", "tensor_parallel_size": 2},
    "vllm": {"kind": "vllm"},
    "vllm-tensors": {"kind": "vllm", "tensor_parallel_size": 2},
    "vllm-stages": {"kind": "vllm", "pipeline_parallel_size": 2},
    "llama.cpp": {"kind": "llama_cpp"},
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_tower_takes_memory_and_no_time(program: str, tmp_path: Path) -> None:
    found = []
    for config in (WHOLE, TEXT):
        (tmp_path / "c.json").write_text(json.dumps(config))
        scenario = {
            "name": "tower",
            "model": {"config": "c.json", "dtype": "bfloat16"},
            "platform": "dgx-a100",
            "workload": INFERENCE,
            "strategy": PROGRAMS[program],
        }
        (tmp_path / "s.yaml").write_text(yaml.safe_dump(scenario))
        found.append(simulate(read_scenario(tmp_path / "s.yaml")).to_dict())
    whole, text = found
    assert whole["metrics"] == text["metrics"]
    used = [sum(one["needed_bytes"] for one in each["capacity"]) for each in found]
    assert used[0] > used[1]


def test_a_step_of_training_updates_it(tmp_path: Path) -> None:
    """Its gradients are never there, and the optimizer has its states all the same."""
    steps = []
    for config in (WHOLE, TEXT):
        (tmp_path / "c.json").write_text(json.dumps(config))
        scenario = {
            "name": "tower",
            "model": {"config": "c.json"},
            "platform": "dgx-a100",
            "workload": {
                "kind": "training",
                "batch_size": 1,
                "sequence_length": 64,
                "gradient_checkpointing": True,
            },
            "strategy": {"kind": "deepspeed", "ranks": 2, "ds_config": {"zero_optimization": ZERO}},
        }
        (tmp_path / "s.yaml").write_text(yaml.safe_dump(scenario))
        steps.append(simulate(read_scenario(tmp_path / "s.yaml")).to_dict()["metrics"])
    assert steps[0]["forward_s"] == steps[1]["forward_s"]
    assert steps[0]["backward_s"] == steps[1]["backward_s"]
