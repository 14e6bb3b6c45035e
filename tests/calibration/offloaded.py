"""Give each ds_config to real DeepSpeed and report where everything is stored: python offloaded.py CASE…"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import deepspeed
import torch

from simoffload_calibrate.deepspeed.worker import build, forget, initialize


def main(path: Path) -> None:
    """Run one step or forward pass with the exact configuration of the case, and write the report next to
    it."""
    case = json.loads(path.read_text())
    model = build(case, case["config"])
    engine = initialize(model, case["config"])
    training = case["workload"]["kind"] == "training"
    tokens = torch.randint(0, case["hf_config"]["vocab_size"], (engine.train_micro_batch_size_per_gpu(), 8))
    for _ in range(engine.gradient_accumulation_steps()):
        if training:
            engine.backward(engine(input_ids=tokens, labels=tokens).loss)
            engine.step()
        else:
            with torch.no_grad():
                engine.module(input_ids=tokens)
    path.with_suffix(".answer").write_text(json.dumps(_places(model, engine, training=training)))
    forget(engine)


def _places(model: torch.nn.Module, engine: Any, *, training: bool) -> dict[str, Any]:
    """Return the elements of parameters by their place in DeepSpeed, and its resulting settings."""
    numel: Counter[str] = Counter()
    for parameter in model.parameters():
        at = parameter.ds_tensor.final_location
        numel["nvme" if at == "nvme" else "memory"] += parameter.ds_numel
    swappers = {
        "parameters": getattr(next(model.parameters()), "nvme_swapper", None),
        "optimizer": getattr(engine.optimizer, "optimizer_swapper", None),
    }
    handles = {
        name: getattr(one, "aio_read_handle", None) or getattr(one, "aio_handle", None)
        for name, one in swappers.items()
    }
    params = engine.zero_offload_param()
    return {
        "stage": engine.zero_optimization_stage(),
        "elements": dict(numel),
        "weights": params.device if params else "none",
        "pinned": bool(params and params.pin_memory),
        "optimizer": _optimizer(engine.optimizer) if training else None,
        "aio": {
            name: [one.get_block_size(), one.get_queue_depth(), one.get_intra_op_parallelism()]
            for name, one in handles.items()
            if one is not None
        },
    }


def _optimizer(zero: Any) -> dict[str, Any]:
    """Return the optimizer's class, the place of its states, and the master weights in memory."""
    masters = zero.fp32_partitioned_groups_flat
    return {
        "class": type(zero.optimizer).__name__,
        "device": "nvme" if zero.swap_optimizer else "cpu" if zero.offload_optimizer else "none",
        "elements": sum(one.numel() for one in masters),
    }


if __name__ == "__main__":
    deepspeed.init_distributed()
    for argument in sys.argv[1:]:
        main(Path(argument))
