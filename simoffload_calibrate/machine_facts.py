"""Facts about this machine: GPUs, CPU, memory and versions, but nothing that identifies its owner."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["machine_facts"]

_PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "numpy")


def machine_facts() -> dict[str, Any]:
    """Return GPU names, count and driver, CPU model and cores, memory [B], kernel and package versions.

    ``virtual`` says whether the machine is virtual (None if Linux does not report it), ``governor`` is the
    policy of the CPU clock (None where it is not visible, as in most virtual machines).
    """
    facts: dict[str, Any] = {
        "cpu": _cpu(),
        "virtual": _virtual(),
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
        "cores": os.cpu_count(),
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1,
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            facts[package] = version(package)
    facts |= _gpus()
    return facts


def _cpu() -> str:
    found = re.search(r"model name\s*:\s*(.+)", _text("/proc/cpuinfo"))
    return found[1].strip() if found else platform.processor() or platform.machine()


def _virtual() -> bool | None:
    """Return whether the CPU reports a hypervisor (x86 has a flag for it); None where this is unknown."""
    flags = re.search(r"^flags\s*:(.*)$", _text("/proc/cpuinfo"), re.MULTILINE)
    if flags is None:
        return True if _text("/sys/hypervisor/type") else None
    return "hypervisor" in flags[1].split()


def _text(path: str) -> str:
    """Return the content of a file of the kernel; empty if there is no such file."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _gpus() -> dict[str, Any]:
    query = "--query-gpu=name,memory.total,driver_version"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {"gpus": 0}
    rows = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines()]
    rows = [row for row in rows if len(row) == 3]
    if not rows:
        return {"gpus": 0}
    name, memory, driver = rows[0]
    facts: dict[str, Any] = {"gpus": len(rows), "gpu": name, "driver": driver}
    if memory.isdigit():  # "[N/A]" where memory is the host's
        facts["hbm"] = int(memory) * 1024**2
    return facts
