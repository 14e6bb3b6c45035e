"""Record which parameters DeepSpeed's ZeRO-3 fetches in which order for experts that are modules of their
own: python separate_experts.py OUT.json. It runs on the CPU.

The model is transformers' Mixtral with the block of experts of transformers 4.57, whose experts are chosen by
``CHOSEN`` instead of a router's scores: one list of sets for each pass, one set for each layer.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

MODEL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "num_local_experts": 4,
}
BUCKET = 5000
"""Prefetch bucket [elements]: about two matrices of an expert."""
EVERY = [[0, 1, 2, 3]] * 3
CHOSEN: dict[str, list[list[list[int]]]] = {
    "every expert in every pass": [EVERY] * 3,
    "the same two in every pass": [[[0, 1]] * 3] * 3,
    "other experts in every pass": [
        [[0, 2], [1, 3], [0, 1]],
        [[1, 3], [0, 2], [2, 3]],
        [[0, 1], [1, 2], [0, 3]],
        [[2, 3], [0, 1], [1, 3]],
    ],
}


def record() -> list[dict[str, Any]]:
    """Run every case with and without leaf modules."""
    return [
        {"name": name, "leaf": leaf, "passes": _passes(chosen, leaf=leaf)}
        for name, chosen in CHOSEN.items()
        for leaf in (False, True)
    ]


def _passes(chosen: list[list[list[int]]], *, leaf: bool) -> list[dict[str, Any]]:
    import deepspeed
    import torch
    import transformers
    from deepspeed.runtime.zero import partitioned_param_coordinator as coordinators
    from torch import nn

    class Expert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            hidden, wide = MODEL["hidden_size"], MODEL["intermediate_size"]
            # In the order of their use, which is the simulator's.
            self.w1 = nn.Linear(hidden, wide, bias=False)
            self.w3 = nn.Linear(hidden, wide, bias=False)
            self.w2 = nn.Linear(wide, hidden, bias=False)
            self.act_fn = nn.SiLU()

        def forward(self, states: Any) -> Any:
            return self.w2(self.act_fn(self.w1(states)) * self.w3(states))

    class SeparateExperts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            count = MODEL["num_local_experts"]
            self.gate = nn.Linear(MODEL["hidden_size"], count, bias=False)
            self.experts = nn.ModuleList([Expert() for _ in range(count)])
            self.hit: list[int] = []

        def forward(self, states: Any) -> Any:
            self.gate(states)
            return sum(self.experts[one](states) for one in self.hit)

    config = transformers.MixtralConfig(**MODEL)
    model = transformers.MixtralForCausalLM(config)
    for layer in model.model.layers:
        layer.mlp = SeparateExperts()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    zero = {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "stage3_prefetch_bucket_size": BUCKET,
        "stage3_max_reuse_distance": 0,
        "offload_param": {"device": "cpu", "pin_memory": False},
        "leaf_module": {"classes": ["SeparateExperts"] if leaf else []},
    }
    settings = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero}
    engine = deepspeed.initialize(model=model, config=settings)[0]
    engine.module.eval()
    coordinator = engine.optimizer.get_param_coordinator()
    gathers: list[list[str]] = []
    secret = "_PartitionedParameterCoordinator__all_gather_params_"
    original = getattr(coordinators.PartitionedParameterCoordinator, secret)

    def gather(self: Any, params: Any, forward: bool, quantize: bool = False) -> None:
        missing = [one for one in params if one.ds_status.name == "NOT_AVAILABLE"]
        if missing:
            gathers.append(sorted(names[id(one)].removesuffix(".weight") for one in missing))
        original(self, params, forward, quantize)

    setattr(coordinators.PartitionedParameterCoordinator, secret, gather)
    passes = []
    for sets in chosen:
        gathers.clear()
        for layer, hit in zip(engine.module.model.layers, sets, strict=True):
            layer.mlp.hit = hit
        with torch.no_grad():
            engine.module(torch.zeros(1, 4, dtype=torch.long), use_cache=False)
        mode = coordinator._PartitionedParameterCoordinator__trace_mode.name
        passes.append({"chosen": sets, "mode": mode, "gathers": list(gathers)})
    setattr(coordinators.PartitionedParameterCoordinator, secret, original)
    return passes


if __name__ == "__main__":
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    for key, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        os.environ.setdefault(key, value)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29731")
    import deepspeed

    runs = record()
    found = {"deepspeed": deepspeed.__version__, "runs": runs}
    Path(sys.argv[1]).write_text(json.dumps(found) + "\n")
