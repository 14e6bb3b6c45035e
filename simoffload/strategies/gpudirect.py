"""GPUDirect Storage: whether a GPU reads and writes storage without host memory."""

from __future__ import annotations

from simoffload.errors import InputError
from simoffload.hardware import Machine


def gds_warnings(machine: Machine, key: str) -> tuple[str, ...]:
    """Return warnings if ``key`` requests GPUDirect Storage.

    Raises InputError for a GPU that does not support it: cuFile would at best copy through host memory (its
    compatibility mode, docs.nvidia.com/gpudirect-storage), and a prediction of direct reads would be wrong.
    """
    gpu = machine.accelerator
    stated = gpu.gpudirect_storage
    if stated is None:
        message = "does not say whether it has GPUDirect Storage (gpudirect_storage); it is taken to have it"
        return (f"{key}: the profile of {gpu.id} {message}",)
    if not stated.value:
        raise InputError.at(key, f"{gpu.id} has no GPUDirect Storage ({stated.source}); set it to false")
    return ()
