"""Facts about this machine: GPUs, CPU, memory and versions, but nothing that identifies its owner."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from simoffload.hardware.detect import SeenMachine, System

_PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "numpy")


def machine_facts(system: System | None = None) -> dict[str, Any]:
    """Return GPU names, count and driver, CPU model and cores, memory [B], kernel and package versions.

    ``virtual`` says whether the machine is virtual (None if Linux does not report it), ``governor`` is the
    policy of the CPU clock (None where it is not visible, as in most virtual machines). ``system`` is a
    recorded machine in place of this one; cores, memory and versions are always those of this one.
    """
    system = system or System()
    seen = SeenMachine(system)
    facts: dict[str, Any] = {
        "cpu": seen.cpu or platform.processor() or platform.machine(),
        "virtual": None if seen.virtual is None else bool(seen.virtual),
        "governor": system.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
        "cores": os.cpu_count(),
        "numa_nodes": seen.numa_nodes or 1,
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            facts[package] = version(package)
    return facts | _gpus(seen)


def _gpus(seen: SeenMachine) -> dict[str, Any]:
    """Return the GPUs that the driver lists."""
    gpus = seen.gpus if seen.system.output("nvidia-smi") else []
    if not gpus:
        return {"gpus": 0}
    facts: dict[str, Any] = {"gpus": len(gpus), "gpu": gpus[0].name}
    if driver := seen.system.text("/sys/module/nvidia/version"):
        facts["driver"] = driver
    if gpus[0].memory is not None:  # None where memory is the host's
        facts["hbm"] = int(gpus[0].memory) * 1024**2
    return facts
