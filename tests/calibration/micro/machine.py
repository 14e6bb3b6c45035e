"""A record of an imagined machine whose numbers are known exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simoffload.calibration.micro.fit_hooks import Chain, count_events
from simoffload.hardware.profiles import DeepSpeedCosts

MIB = 1 << 20
GIB = 1 << 30
PCIE, PAGEABLE = 50e9, 10e9
CALL, WAIT = 4e-6, 6e-6
HBM, HBM_SHARE = 4.8e12, 0.75
KERNEL = 2e-6
PEAK, GEMM_SHARE = 989e12, 0.5
NVLINK, GATHER_LATENCY = 360e9, 20e-6
MODULE, OPERATION = 16e-6, 8e-6
COSTS = {
    "linear_call": 60e-6,
    "hook": 100e-6,
    "hook_input": 20e-6,
    "fetch_call": 80e-6,
    "prefetch_call": 70e-6,
    "gathered_parameter": 40e-6,
    "copy_call": 10e-6,
    "blocking_copy_call": 25e-6,
    "collective_call": 150e-6,
    "collective_parameter": 50e-6,
    "fetch_wait": 30e-6,
    "released_parameter": 40e-6,
}
PLAIN = {
    "identity": 1e-6,
    "keyword": 1e-6,
    "pair": 1e-6,
    "linear1": MODULE,
    "linear2": 17e-6,
    "layernorm": 18e-6,
}


def known_costs() -> dict[str, float]:
    """Those costs that host profiles have a field for."""
    return {event: cost for event, cost in COSTS.items() if event in DeepSpeedCosts.model_fields}


def zero(device: str, *, bucket: int, threshold: int = 0) -> dict[str, Any]:
    """The part of a ds_config that the chains vary."""
    section: dict[str, Any] = {
        "stage": 3,
        "stage3_prefetch_bucket_size": bucket,
        "stage3_param_persistence_threshold": threshold,
    }
    if device != "none":
        section["offload_param"] = {"device": device, "pin_memory": True}
    return section


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
    """Pinned copies to all GPUs, each at a share of what one alone reaches."""
    seconds = [512 * MIB / (PCIE * share)] * ranks
    return {"together": [{"direction": "h2d", "pinned": True, "bytes": 512 * MIB, "seconds": seconds}]}


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


def hooks(ranks: int, costs: Mapping[str, float]) -> dict[str, Any]:
    """Chains whose passes take exactly what their events cost."""
    modules = 40
    resident = zero("cpu", bucket=10**9, threshold=10**9)
    under = [(kind, "persistent", resident) for kind in PLAIN]
    for kind in ("linear1", "linear2", "layernorm"):
        under += [(kind, f"cpu {bucket}", zero("cpu", bucket=bucket)) for bucket in (0, 1, 4097, 10**9)]
        under += [(kind, f"none {bucket}", zero("none", bucket=bucket)) for bucket in (0, 1)]
    cases = []
    for kind, name, section in under:
        chain = Chain(kind, name, ranks, modules, section, 0.0, anchors=1, containers=1)
        events = count_events(chain)
        seconds = sum(costs.get(event, 0.0) * number for event, number in events.items())
        seconds += 0.0 if kind.startswith("linear") else modules * PLAIN[kind]
        copied = events["waited_copy"] + events["blocking_copy_call"]
        seconds += copied * (WAIT + (4 << 10) / PCIE)
        cases.append({"kind": kind, "case": name, "modules": modules, "zero": section, "seconds": seconds})
    if ranks == 1:
        for kind, single in PLAIN.items():
            seconds = modules * single + MODULE
            cases.append(
                {"kind": kind, "case": "plain", "modules": modules, "zero": None, "seconds": seconds}
            )
    return {"cases": cases, "width": 64, "dtype_bytes": 2, "anchors": 1, "containers": 1}


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
        "kernels": {"kernel_seconds": KERNEL, "host_seconds": {"linear": MODULE, "add": OPERATION}},
        "dram": {"copies": [{"threads": n, "bytes": GIB, "seconds": GIB / (n * 12e9)} for n in (1, 4)]},
        "hooks": {str(ranks): hooks(ranks, known_costs()) for ranks in (1, *several)},
        "layers": {
            "passes": [
                {"family": family, "layers": layers, "seconds": 1e-3 + layers * 3e-4, "generate_seconds": 0.0}
                for family in ("opt", "bloom")
                for layers in (4, 24)
            ]
        },
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
