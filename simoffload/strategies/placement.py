"""Places where a strategy keeps offloaded states, and errors for impossible places."""

from __future__ import annotations

from typing import NamedTuple

from simoffload.errors import InputError, PlacementError
from simoffload.hardware import Machine

__all__ = ["Placement", "gds_warnings", "refused"]


class Placement(NamedTuple):
    """A Placement names the tiers of a machine that hold weights and optimizer."""

    weights: str
    """Tier of the weights, or of the checkpoints if only checkpoints are simulated."""
    optimizer: str | None = None
    """Tier of the optimizer states; None if not specified."""

    def __str__(self) -> str:
        return self.weights if self.optimizer is None else f"{self.weights}+{self.optimizer}"


def refused(placement: Placement | str, kind: str, why: str) -> PlacementError:
    """Return the error for a placement that a strategy does not support."""
    return PlacementError.at("strategy.kind", f'{kind} cannot be on "{placement}": {why}')


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
