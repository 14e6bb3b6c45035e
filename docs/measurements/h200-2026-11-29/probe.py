# ruff: noqa: PLW1510
"""A short look at the machine: pinned copies, copies in host memory, a product, a launch: probe.py FILE"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch


def main(file):
    cuda = torch.cuda.is_available()
    found = {"at": time.time(), "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()}
    size = (1 << 28) if cuda else (1 << 20)
    pinned = torch.ones(size, dtype=torch.uint8, pin_memory=cuda)
    target = torch.empty(size, dtype=torch.uint8, device="cuda" if cuda else "cpu")

    def rate(work, count=5, bytes_each=size):
        work()
        times = []
        for _ in range(count):
            if cuda:
                torch.cuda.synchronize()
            begin = time.perf_counter()
            work()
            if cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        return round(bytes_each / sorted(times)[count // 2] / 1e9, 3)

    found["to_gpu_GBps"] = rate(lambda: target.copy_(pinned, non_blocking=True))
    found["from_gpu_GBps"] = rate(lambda: pinned.copy_(target, non_blocking=True))
    other = torch.empty_like(target, device="cpu")
    source = torch.ones_like(other)
    found["host_copy_GBps"] = rate(lambda: other.copy_(source))
    width = 8192 if cuda else 128
    a, b = (torch.randn(width, width, device=target.device).bfloat16() for _ in range(2))
    found["product_TFLOPps"] = round(rate(lambda: a @ b, 10, 2 * width**3) / 1e3, 2)
    small = torch.ones(64, device=target.device)
    begin = time.perf_counter()
    for _ in range(20000):
        small.mul_(1.0)
    found["launch_us"] = round((time.perf_counter() - begin) / 20000 * 1e6, 3)
    command = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw",
        "--format=csv,noheader",
    ]
    found["smi"] = subprocess.run(command, capture_output=True, text=True).stdout.strip() if cuda else ""
    path = Path(file)
    rows = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*rows, found]))
    print(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
