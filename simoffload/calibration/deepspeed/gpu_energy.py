"""The energy counters of NVIDIA's GPUs, read through the driver's own library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

__all__ = ["energy_counter"]

_NVML = "libnvidia-ml.so.1"
_MILLI = 1e-3


def energy_counter(gpu: int) -> Callable[[], float] | None:
    """A function that says how much a GPU has drawn since its driver was loaded [J]; None without a counter.

    The driver updates it some ten times a second (nvmlDeviceGetTotalEnergyConsumption counts [mJ], from
    Volta on).
    """
    try:
        library = ctypes.CDLL(_NVML)
    except OSError:
        return None
    handle = ctypes.c_void_p()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(gpu, ctypes.byref(handle)):
        return None
    counted = ctypes.c_ulonglong()

    def read() -> float:
        library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(counted))
        return counted.value * _MILLI

    return None if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(counted)) else read
