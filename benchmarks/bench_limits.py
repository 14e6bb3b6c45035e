"""Measure by how much random scenarios with extreme values exceed their limits of time and memory.

python benchmarks/bench_limits.py [SCENARIOS] [SEED]

Each scenario is read and simulated in its own process.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import simoffload as so
from simoffload.errors import InputError, SimoffloadError, WorkLimitError
from simoffload.hardware import load_platform
from simoffload.limits import limited
from simoffload.scenario import EngineOptions

TIMEOUTS = (0.5, 2.0, 4.0)
"""[s]"""
MEMORIES = (256 << 20, 512 << 20)
"""[B]"""
WHOLE = (1, 2, 3, 7, 1000, 4096, 10**6, 10**9, 2**40)
PLATFORMS = {
    name: load_platform(name)
    for name in ("dgx-a100", "dgx-h200", "l40s-server", "rtx-4090-desktop", "h100-storage-choices", "dgx-2")
}


WIDE = (0, 1, 1000, 10**6, 10**9)
"""[elements] Thresholds and similar sizes, which may be 0."""
LENGTHS = (1, 16, 4096, 10**6, 10**7)
"""[tokens]"""
YES_NO = (True, False)
EDGES: dict[str, dict[str, tuple[Any, ...]]] = {
    "engine": dict.fromkeys(
        ("rank_symmetry", "steady_state", "decode_extrapolation"), ("on", "on", "off", "verify")
    ),
    "model": {"num_hidden_layers": (1, 2, 3, 97, 1000, 9973, 100_000)},
    "mixtral": {
        "num_local_experts": (2, 8, 128, 1024),
        "num_experts_per_tok": (1, 2),
        "expert_layout": ("fused", "separate", "separate"),
    },
    "zero_optimization": {
        "stage3_prefetch_bucket_size": WIDE,
        "stage3_max_live_parameters": WIDE,
        "stage3_max_reuse_distance": WIDE,
        "stage3_param_persistence_threshold": WIDE,
        "sub_group_size": WHOLE,
        "reduce_bucket_size": WHOLE,
        "allgather_bucket_size": WHOLE,
        "overlap_comm": YES_NO,
    },
    "offload_optimizer": {
        "buffer_count": (2, 4, 1000, 2**40),
        "pipeline_read": YES_NO,
        "pipeline_write": YES_NO,
        "ratio": (0.0, 0.3, 1.0),
        "super_offload": (False, False, True),
    },
    "zenflow": {
        "topk_ratio": (0.0, 0.01, 1.0),
        "update_interval": (1, 4, 2**40),
        "select_interval": (1, 2**40),
        "full_warm_up_rounds": (0, 2**40),
        "overlap_step": YES_NO,
        "offload": YES_NO,
    },
    "aio": {"block_size": (512, 4096, 2**20, 2**40), "queue_depth": (1, 2**40), "use_gds": YES_NO},
    "inference": {
        "batch_size": (8, 4096, 10**6),
        "prompt_length": LENGTHS,
        "output_length": LENGTHS,
    },
    "training": {
        "batch_size": (8, 10**6),
        "sequence_length": LENGTHS,
        "gradient_accumulation_steps": (8, 100_000),
        "gradient_checkpointing": YES_NO,
        "steps": (1000,),
    },
    "checkpoint": {
        "contents": ("zero", "sharded", "model_only", "consolidated"),
        "mode": ("blocking", "decoupled", "snapshot"),
        "jobs": (100, 10_000),
        "keep": (3, 10**9),
        "interval": ("1 s", "1 h"),
        "node_mtbf": ("1 h", "1000000 h"),
        "fsync": YES_NO,
    },
    "writer": {
        "type": ("torch_save", "python", "fast", "fast"),
        "io_buffer_size": ("1 B", "4 KiB", "1 TiB"),
        "io_buffer_double": YES_NO,
        "patched_torch": YES_NO,
        "data_parallel": ("none", "replica", "socket", "machine"),
        "queue_depth": (1, 10**9),
        "intra_op_parallelism": (1, 10**9),
    },
    "dataset": {
        "samples_per_file": (1, 1000, 10**15),
        "shuffle": ("none", "shard", "full"),
        "epochs": (1, 10**6),
        "workers": (0, 1, 4096),
        "prefetch_factor": (1, 100_000),
        "page_cache": YES_NO,
        "request_size": ("1 B", "1 TiB"),
        "requests_in_flight": (1, 10**6),
        "decode_time": ("1 us", "1 h"),
    },
    "lora": {"r": (1, 16, 65_536), "quantize": ("nf4",)},
    "fsdp": {
        "cpu_offload": YES_NO,
        "backward_prefetch": ("pre", "post", "none"),
        "limit_all_gathers": YES_NO,
        "reshard_after_forward": YES_NO,
        "mixed_precision": YES_NO,
    },
}
"""The values of the keys of each section: small, usual, or the smallest and largest documented ones."""


def random_scenario(random: Random) -> dict[str, Any]:
    """Return a document in which some keys have extreme values."""
    pick = random.choice

    def some(section: str, **given: Any) -> dict[str, Any]:
        keys = {key: pick(values) for key, values in EDGES[section].items() if random.random() < 0.35}
        return given | keys

    kind = pick(("inference", "training", "training", "checkpoint"))
    family = pick(("opt-125m", "opt-6.7b", "bloom-560m", "llama-3.1-8b", "mixtral-8x7b", "mixtral-8x7b"))
    model = some("model", name=family) | (some("mixtral") if family.startswith("mixtral") else {})
    platform = pick(tuple(PLATFORMS))
    profile = PLATFORMS[platform].profile
    nodes = pick((1, 1, 1, 2, 64, 8192)) if profile.network else 1
    limits = {"timeout": f"{pick(TIMEOUTS)} s", "memory": f"{pick(MEMORIES) >> 20} MiB"}
    document: dict[str, Any] = {
        "name": "edge",
        "model": model,
        "platform": platform,
        "nodes": nodes,
        "engine": some("engine", **limits),
    }
    storage = tuple(profile.tiers)
    tiers = ("hbm", "dram", *storage)
    gpus = nodes * len(profile.gpus)
    ranks = min(gpus, 65_536, pick((1, 2, 3, nodes, gpus, gpus)))
    zero = some("zero_optimization")
    config: dict[str, Any] = {"zero_optimization": zero, "aio": some("aio")}
    strategy: dict[str, Any] = {"ranks": ranks, "ds_config": config}
    if kind == "inference":
        zero["stage"] = 3
        workload = some(kind, batch_size=1, prompt_length=16, output_length=8)
        whole = {"kind": "transformers", "ranks": ranks}
        strategy = pick((strategy | {"weights": pick(tiers)},) * 4 + (whole,))
    elif kind == "training":
        zero["stage"] = pick((0, 1, 2, 3, 3))
        strategy["optimizer"] = pick(tiers)
        if zero["stage"] == 3:
            strategy["weights"] = pick(tiers)
        workload = some(kind, kind=kind, batch_size=1, sequence_length=16)
        what = random.random()
        if what < 0.2:
            strategy = some("fsdp", kind="fsdp", ranks=ranks)
        elif what < 0.4:
            adapted = ["query_key_value"] if family.startswith("bloom") else ["q_proj", "v_proj"]
            strategy["lora"] = some("lora", r=16, target_modules=adapted)
        elif what < 0.6:
            zero["zenflow"] = some("zenflow")
            strategy["optimizer"] = "dram"
        elif strategy["optimizer"] != "hbm":
            zero["offload_optimizer"] = some("offload_optimizer")
        if random.random() < 0.3:
            document["checkpoint"] = some("checkpoint", tier=pick(storage), writer=some("writer"))
        if random.random() < 0.3:
            samples = {
                "tier": pick(storage),
                "sample_size": pick(("1 B", "8 KiB", "1 TiB")),
                "samples": 10**9,
            }
            document["dataset"] = some("dataset", **samples)
    else:
        strategy = {"kind": "checkpoint", "ranks": ranks, "tier": pick(storage)}
        workload = some(kind, kind=kind, writer=some("writer"))
    return {**document, "workload": workload, "strategy": strategy}


def outcome(path: Path) -> str:
    """Return the outcome of a scenario in a few words; one limit covers reading and simulating it."""
    try:
        return "simulated" if limited(lambda: so.simulate(so.load_scenario(path)).fits)() else "does not fit"
    except WorkLimitError as error:
        return "stopped by memory" if "memory" in str(error) else "stopped by time"
    except InputError:
        return "refused"
    except SimoffloadError as error:
        return f"{type(error).__name__}: {error}"


def measured(path: Path) -> dict[str, Any]:
    """Return outcome, time [s] and memory [B] of a scenario, measured in a child process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        began = time.monotonic()
        try:
            found = outcome(path)
        except BaseException as error:
            found = f"CRASHED: {type(error).__name__}: {error}"
        taken = time.monotonic() - began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        os.write(writing, json.dumps({"outcome": found, "time": taken, "memory": memory}).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer) if answer else {"outcome": "DIED", "time": 0.0, "memory": 0}


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    random = Random(seed)
    outcomes: Counter[str] = Counter()
    latest = largest = -math.inf
    so.simulate(so.load_scenario("ddn/bloom-7b1"))  # imports everything
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "edge.yaml"
        for _ in range(number):
            document = random_scenario(random)
            path.write_text(json.dumps(document))
            found = measured(path)
            outcomes[found["outcome"]] += 1
            limits = EngineOptions.model_validate(document["engine"]).limits
            late = found["time"] - (limits.timeout or 0.0)
            large = found["memory"] / limits.memory
            odd = found["outcome"].startswith(("CRASHED", "DIED", "SimulationError"))
            if odd or late > 1 or large > 1.1:
                print(json.dumps({**found, "scenario": document}), flush=True)
            latest, largest = max(latest, late), max(largest, large)
    print(f"{number} scenarios, seed {seed}")
    for what, times in outcomes.most_common():
        print(f"{times:8} {what}")
    print(f"latest end {latest:.2f} s after the timeout, most memory {largest:.2f} of the limit")


if __name__ == "__main__":
    main()
