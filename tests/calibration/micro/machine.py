"""A record of an imagined machine whose numbers are known exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simoffload.hardware import Machine, load_platform
from simoffload.strategies.programs.zero_inference import ZeroInferencePlan
from simoffload_calibrate import host_costs
from simoffload_calibrate.host_costs import module_events, simulated
from simoffload_calibrate.micro.fit_programs import scaled, small_plan
from simoffload_calibrate.reference import reference_costs
from simoffload_calibrate.small_models import small_cases

MIB = 1 << 20
GIB = 1 << 30
PCIE, PAGEABLE = 50e9, 10e9
CALL, WAIT = 4e-6, 6e-6
HBM, HBM_SHARE = 4.8e12, 0.75
KERNEL = 2e-6
PEAK, GEMM_SHARE = 989e12, 0.5
NVLINK, GATHER_LATENCY = 360e9, 20e-6
FACTOR = 1.5
"""Time of the imagined host thread as a multiple of the reference host's."""
COSTS = scaled({key: reference_costs()[key].value for key in host_costs.COSTS}, FACTOR)


def copies() -> dict[str, Any]:
    """Both kinds of memory, both directions, at a rate that does not depend on the size."""
    rows = []
    for pinned, rate in ((True, PCIE), (False, PAGEABLE)):
        for size in (4 << 10, 64 << 10, MIB, 256 * MIB, GIB):
            queued = size / rate
            times = {"seconds": queued, "call_seconds": CALL, "blocking_seconds": CALL + WAIT + queued}
            rows += [
                {"direction": direction, "pinned": pinned, "bytes": size, **times}
                for direction in ("h2d", "d2h")
            ]
    alone = 64 * MIB / PCIE
    both = {"h2d_seconds": alone / 0.8, "d2h_seconds": alone / 0.8}
    both |= {"h2d_alone_seconds": alone, "d2h_alone_seconds": alone}
    return {"alone": rows, "both_ways": [{"bytes": 64 * MIB, **both}], "synchronize_seconds": 5e-6}


def together(ranks: int, share: float) -> dict[str, Any]:
    """Pinned copies to all GPUs, each at a share of what one alone reaches; pinned copies back at half of the
    share, and pageable copies to all GPUs at all of it: those are slowed no more than others."""
    kinds = (("h2d", True, PCIE * share), ("d2h", True, PCIE * share / 2), ("h2d", False, PAGEABLE))
    return {
        "together": [
            {
                "direction": direction,
                "pinned": pinned,
                "bytes": 512 * MIB,
                "seconds": [512 * MIB / rate] * ranks,
            }
            for direction, pinned, rate in kinds
        ]
    }


def collectives(ranks: int) -> dict[str, Any]:
    """All-gathers on a line of latency and rate."""
    calls = []
    for size in (32 << 10, MIB, 64 * MIB, GIB):
        seconds = GATHER_LATENCY + size * (ranks - 1) / ranks / NVLINK
        calls.append({"operation": "all_gather", "bytes": size, "seconds": seconds, "call_seconds": 20e-6})
    return {"calls": calls}


def matmul() -> dict[str, Any]:
    """Multiplications on the roofline, some bound by memory."""
    points = []
    for tokens in (1, 64, 512, 4096):
        for width in (2048, 4096, 8192):
            flops, size = 2 * tokens * width**2, 2 * (width**2 + 2 * tokens * width)
            busy = max(flops / (PEAK * GEMM_SHARE), size / (HBM * HBM_SHARE))
            point = {"in": width, "out": width, "tokens": tokens, "flops": flops, "bytes": size}
            points.append({"dtype": "bfloat16", "form": "linear", **point, "seconds": busy + KERNEL})
    return {"points": points, "left_out": []}


def base() -> Machine:
    """A machine on which the small models fit."""
    return load_platform("dgx-h200").machine(nodes=1)


@cache
def hooks(most: int) -> dict[str, Any]:
    """Small models whose modules take exactly what their events cost."""
    cases = [case for ranks in (1, 2, 4) if ranks <= most for case in small_cases(ranks)]
    return {"runs": [timed(case) for case in cases], "failed": []}


def timed(case: Any, costs: Mapping[str, float] = COSTS) -> dict[str, Any]:
    """A decode step of a small model on a host with these costs, and its trace."""
    plan = small_plan(_written(case, {}, 1.0), base())
    assert isinstance(plan, ZeroInferencePlan)
    columns: dict[str, list[float]] = {key: [] for key in ("fetch", "fetched", "launched", "released")}
    now, copy = 0.0, (WAIT + (128 << 10) / PCIE) * 1e6
    for index, events in enumerate(module_events(plan)):
        spent = {key: costs[key] * number * 1e6 for key, number in events.items()}
        launch = sum(spent.get(key, 0.0) for key in ("module_call", "operation", "linear_call"))
        after = spent["hook"] / 2 + spent.get("released_parameter", 0.0)
        copies = copy * events.get("fetch_call", 0.0) if events.get("copy_call") else 0.0
        before = sum(spent.values()) - launch - after + copies
        own = launch + (costs["pass_overhead"] * 1e6 if not index else 0.0)
        for key, step in (("fetch", 0.0), ("fetched", before), ("launched", own), ("released", after)):
            now += step
            columns[key].append(now)
    modules = {"module": ["m"] * len(columns["fetch"]), **columns}
    return _written(case, modules, simulated(plan, None, costs))


def _written(case: Any, modules: dict[str, Any], seconds: float) -> dict[str, Any]:
    request = case.request
    return {
        "name": request.name,
        "model": request.model.model_dump(exclude_none=True),
        "workload": request.workload.model_dump(),
        "ranks": case.ranks,
        "ds_config": dict(case.ds_config),
        "attention": None,
        "passes": [{"name": "decode 1", "repetition": 1, "seconds": seconds}],
        "traces": {"decode 1": {"seconds": seconds, "modules": modules}},
    }


def storage() -> dict[str, Any]:
    """A drive that needs much in flight."""
    sweep = []
    for depth, rate in ((1, 1e9), (8, 3e9), (32, 5e9)):
        row = {"block": MIB, "queue_depth": depth, "threads": 1, "bytes": GIB}
        sweep += [
            {**row, "operation": "read", "seconds": GIB / rate},
            {**row, "operation": "write", "seconds": 2 * GIB / rate},
        ]
    return {
        "filesystem": "ext4",
        "filesystem_bytes": 1000 * GIB,
        "requests": {"bytes": 4096, "count": 200, "read_seconds": 80e-6, "write_seconds": 20e-6},
        "sweep": sweep,
    }


def record(*, gpus: int = 4, slowed: float = 0.8) -> dict[str, Any]:
    """The whole record; ``slowed`` is what each of four GPUs gets of the rate of one alone."""
    several = [ranks for ranks in (2, 4) if ranks <= gpus]
    sections: dict[str, Any] = {
        "copies": copies(),
        "hbm": {"within": [{"bytes": GIB, "copy_seconds": 2 * GIB / (HBM * HBM_SHARE), "add_seconds": 1.0}]},
        "matmul": matmul(),
        "kernels": {"kernel_seconds": KERNEL, "host_seconds": {"linear": 16e-6, "add": 8e-6}},
        "dram": {"copies": [{"threads": n, "bytes": GIB, "seconds": GIB / (n * 12e9)} for n in (1, 4)]},
        "hooks": hooks(gpus),
        "storage": storage(),
    }
    if several:
        sections["copies_together"] = {str(n): together(n, slowed if n == 4 else 1.0) for n in several}
        sections["collectives"] = {str(n): collectives(n) for n in several}
    gpu = {"name": "NVIDIA H200", "count": gpus, "memory": 150_754_820_096}
    machine = {"cpu": "Some Xeon", "cores": 64, "memory": 512 * GIB, "torch": "2.11.0", "gpu": gpu}
    return {
        "schema": "simoffload/micro/1",
        "date": "2026-11-21",
        "simoffload": "0.1.0",
        "quick": False,
        "machine": machine,
        "sections": sections,
        "skipped": {},
        "seconds": {"copies": 12.5},
    }


def counted(numbers: Sequence[int], keys: Sequence[str]) -> NDArray[np.float64]:
    """Numbers of events of a step; a share lengthens the launches of ten microseconds each."""
    return np.array([1e-5 * n if key == "graph" else n for n, key in zip(numbers, keys, strict=True)])
