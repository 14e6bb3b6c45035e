"""Records as ``calibrate deepspeed`` writes them, of invented runs with exactly known times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MODEL = {"family": "opt", "hidden_size": 256, "ffn_dim": 1024, "num_hidden_layers": 2,
         "num_attention_heads": 4, "vocab_size": 1024, "max_position_embeddings": 512,
         "tie_word_embeddings": False}  # fmt: skip
WORK = {"kind": "inference", "batch_size": 2, "prompt_length": 8, "output_length": 4}
TRAINING = {"kind": "training", "batch_size": 1, "sequence_length": 16, "steps": 4}
TIMES = {"first": 0.9, "prefill": 0.030, "decode": (0.020, 0.024, 0.021)}


def ds_config(device: str = "cpu", aio: dict[str, Any] | None = None, **zero: Any) -> dict[str, Any]:
    """ZeRO-3 with the parameters on a device."""
    offload = zero.pop("offload_param", {})
    section: dict[str, Any] = {"stage": 3, **zero}
    if device != "none":
        section["offload_param"] = {"device": device, "pin_memory": True, **offload}
    return {"zero_optimization": section} | ({"aio": aio} if aio else {})


def trace() -> dict[str, Any]:
    """Of a step of 20 ms [us]: two layers, of which each holds one module.

    Fetches take 100 + 50 + 2 x (300 + 1000), releases 10 + 10 + 2 x (50 + 200), and what is left of the
    20 000 us is spent in modules themselves.
    """
    columns: dict[str, list[Any]] = {
        "module": ["OPTForCausalLM", "model", *(name for n in (0, 1) for name in _layer(n))],
        "fetch": [0.0, 200.0, 1000.0, 1500.0, 9000.0, 9500.0],
        "fetched": [100.0, 250.0, 1300.0, 2500.0, 9300.0, 10500.0],
        "launched": [19990.0, 19000.0, 8000.0, 7000.0, 16000.0, 15000.0],
        "released": [20000.0, 19010.0, 8050.0, 7200.0, 16050.0, 15200.0],
    }
    return {"seconds": 0.020, "modules": columns}


def _layer(number: int) -> tuple[str, str]:
    name = f"model.decoder.layers.{number}"
    return name, f"{name}.fc1"


def inference(name: str = "small", *, times: dict[str, Any] = TIMES, **changes: Any) -> dict[str, Any]:
    """Return a run of inference; ``changes`` replace its keys."""
    passes = [{"name": "prefill", "repetition": 0, "seconds": times["first"]}]
    passes += [{"name": f"decode {n}", "repetition": 0, "seconds": 9.0} for n in (1, 2, 3)]
    passes.append({"name": "prefill", "repetition": 1, "seconds": times["prefill"]})
    passes += [
        {"name": f"decode {n}", "repetition": 1, "seconds": seconds}
        for n, seconds in enumerate(times["decode"], start=1)
    ]
    run = {"name": name, "model": MODEL, "workload": WORK, "ranks": 1, "ds_config": ds_config(),
           "attention": "sdpa", "parameters": 1, "memory": {}, "passes": passes, "traces": {}}  # fmt: skip
    return run | changes


def training(name: str = "trained") -> dict[str, Any]:
    """Return a run of training with 2 and 3 s per pass in the counted steps of two micro-steps."""
    passes = [
        {"name": part, "repetition": step, "seconds": seconds}
        for step, seconds in enumerate((50.0, 40.0, 2.0, 3.0))
        for part in ("forward", "backward", "forward", "backward", "optimizer")
    ]
    return inference(name, workload=TRAINING, passes=passes)


def fsdp(name: str = "sharded", **settings: Any) -> dict[str, Any]:
    """Return a run of FSDP with complete steps of 1.0 and 1.2 s, and one in parts."""
    passes = [{"name": "step", "repetition": index, "seconds": 1.0 + 0.1 * index} for index in range(3)]
    parts = {"forward": 0.2, "backward": 0.5, "optimizer": 0.3}
    passes += [{"name": part, "repetition": 0, "seconds": seconds} for part, seconds in parts.items()]
    strategy = {"kind": "fsdp", "ranks": 1, **settings}
    work = {key: value for key, value in TRAINING.items() if key != "steps"}
    run = inference(name, workload=work, passes=passes, strategy=strategy)
    del run["ds_config"]
    return run


def record(*runs: dict[str, Any], gpu: str = "NVIDIA H200", gpus: int = 1) -> dict[str, Any]:
    """Return the content of a complete file of runs."""
    machine = {"cpu": "some", "gpu": gpu, "gpus": gpus, "deepspeed": "0.19.8"}
    return {"schema": "simoffload/deepspeed-runs/1", "date": "2026-11-21", "machine": machine,
            "runs": list(runs), "failed": []}  # fmt: skip


def write(folder: Path, *runs: dict[str, Any], name: str = "runs.json", **more: Any) -> Path:
    """Write a file of runs."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(record(*runs, **more)))
    return path
