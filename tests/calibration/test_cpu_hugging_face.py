"""Accelerate, the tensor parallelism of transformers and FSDP run on this machine's CPU and are recorded.

Times without a GPU mean nothing; that the programs accept the calls, and that records can be predicted, does
not depend on them.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from simoffload_calibrate.compare import compare_file
from simoffload_calibrate.jobs import missing_packages
from tests.calibration.real_runs import Recorded, want

pytestmark = [
    pytest.mark.deepspeed,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_packages(["accelerate"])), reason="accelerate is not installed"),
]

MODEL = {
    "family": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "dtype": "bfloat16",
}
EXPERTS = MODEL | {
    "family": "qwen2_moe",
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 256,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
WORK = {"kind": "inference", "batch_size": 2, "prompt_length": 8, "output_length": 3}
INT4 = {"num_bits": 4, "group_size": 64, "group_dim": 1, "symmetric": False}
STATIC = {"implementation": "static"}
"""Caches in host memory need CUDA: streams, and pinned memory."""
ZERO = {"stage": 3, "offload_param": {"device": "cpu"}}
STRATEGIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "offloaded to memory": (MODEL, {"kind": "accelerate", "device_map": "cpu"}),
    "offloaded to files": (MODEL, {"kind": "accelerate", "device_map": "disk", "offload_folder": "nvme"}),
    "divided": (MODEL, {"kind": "transformers", "tensor_parallel_size": 2}),
    "int4": (
        MODEL,
        {"ds_config": {"zero_optimization": ZERO, "weight_quantization": {"quantized_initialization": INT4}}},
    ),
    "experts": (EXPERTS, {"ds_config": {"zero_optimization": ZERO}}),
    "static cache": (MODEL, {"kind": "accelerate", "device_map": "cuda", "kv_cache": STATIC}),
    "static cache under ZeRO-3": (MODEL, {"ds_config": {"zero_optimization": ZERO}, "kv_cache": STATIC}),
    "8-bit cache": (MODEL, {"kind": "accelerate", "device_map": "cuda", "kv_cache": {"format": "fp8"}}),
}

TRAINED: dict[str, dict[str, Any]] = {
    "fsdp": {"kind": "fsdp"},
    "fsdp on two ranks": {
        "kind": "fsdp",
        "ranks": 2,
        "reshard_after_forward": False,
        "backward_prefetch": "post",
    },
}
"""CPUOffload needs CUDA: pinned memory."""
STEPS = {
    "kind": "training",
    "batch_size": 1,
    "sequence_length": 16,
    "steps": 2,
    "gradient_accumulation_steps": 2,
}


if not missing_packages(["accelerate"]):
    want(
        {
            name: {"model": model, "workload": WORK, "strategy": strategy}
            for name, (model, strategy) in STRATEGIES.items()
        }
        | {name: {"model": MODEL, "workload": STEPS, "strategy": one} for name, one in TRAINED.items()}
    )


def test_runs_are_recorded_and_predicted(recorded_runs: Recorded, tmp_path: Path) -> None:
    mine = {**recorded_runs.data, "failed": [], "runs": [recorded_runs.runs[name] for name in STRATEGIES]}
    (tmp_path / "runs.json").write_text(json.dumps(mine))
    compared = {one.run.name: one for one in compare_file(tmp_path / "runs.json", platform="dgx-h200").runs}
    assert set(compared) == set(STRATEGIES)
    for name, one in compared.items():
        names = [(each.name, each.repetition) for each in one.run.passes]
        passes = ["prefill", "decode 1", "decode 2"]
        generations = 2 if one.run.group == "zero" else 3
        assert names == [(each, number) for number in range(generations) for each in passes], name
        assert not one.reason, name
        decode = one.find("decode")
        assert decode is not None
        assert decode.predicted is not None
    groups = {name: one.run.group for name, one in compared.items()}
    assert (groups["divided"], groups["offloaded to files"]) == ("tensor_parallel", "accelerate")
    assert (groups["int4"], groups["experts"]) == ("zero", "zero")


def test_steps_of_fsdp_are_recorded_whole_and_in_parts(recorded_runs: Recorded, tmp_path: Path) -> None:
    mine = {**recorded_runs.data, "failed": [], "runs": [recorded_runs.runs[name] for name in TRAINED]}
    (tmp_path / "runs.json").write_text(json.dumps(mine))
    for one in compare_file(tmp_path / "runs.json", platform="dgx-h200").runs:
        assert not one.reason, one.run.name
        assert one.run.group == "fsdp"
        counts = Counter(each.name for each in one.run.passes)
        assert counts == {"step": 2, "forward": 6, "backward": 6, "optimizer": 3}
        step = one.find("step")
        assert step is not None
        assert step.predicted is not None
