"""What training reads from and writes to storage: at start-up, in the first step, and in every later one.

Source: the code path of DeepSpeed 0.18.3 and 0.19.6 (stage3.py ``_create_fp32_partitions``,
``create_reduce_and_remove_grad_hooks``, ``initialize_optimizer_states``, ``step``; swap_tensor/). Adam's
moments do not exist before the first step, so that it reads only weight and gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from simoffload.strategies.coordinator import Tensor
from simoffload.strategies.training.facts import Update
from simoffload.strategies.training.swap import GradientSwapper

__all__ = ["StorageStage", "Transfer", "full_requests", "stages_until_first_step", "steady_stages"]

_SINGLE = 4


class Transfer(NamedTuple):
    """Files of one kind that one rank reads or writes."""

    tier: str
    what: str
    written: bool
    sizes: tuple[int, ...]
    """[B] of each."""

    @property
    def size(self) -> int:
        """[B] in all."""
        return sum(self.sizes)


class StorageStage(NamedTuple):
    """A stage of the run and what it moves."""

    name: str
    transfers: tuple[Transfer, ...]


def full_requests(sizes: Iterable[int], *, block: int, threads: int) -> int:
    """Requests of a whole ``block`` [B] that the files of ``sizes`` make on ``threads`` aio threads.

    Each thread takes an equal slice; what a slice leaves over is a smaller request.
    """
    return sum(threads * ((size // threads) // block) for size in sizes)


class _Files(NamedTuple):
    """Sizes of the files of one rank."""

    states: tuple[int, ...]
    """One of single precision for each swapped sub-group."""
    gradients: tuple[int, ...]
    params: tuple[int, ...]
    optimizer_tier: str
    weights_tier: str

    def read_states(self, times: int, what: str) -> Transfer:
        return Transfer(self.optimizer_tier, what, False, self.states * times)

    def write_states(self, times: int, what: str) -> Transfer:
        return Transfer(self.optimizer_tier, what, True, self.states * times)

    def params_of(self, *, written: bool, sizes: tuple[int, ...] | None = None) -> Transfer:
        return Transfer(
            self.weights_tier, "16-bit parameters", written, self.params if sizes is None else sizes
        )


def _files(
    updates: Sequence[Update],
    swapper: GradientSwapper | None,
    *,
    dtype_bytes: int,
    alignment: int,
    tiers: tuple[str, str],
) -> _Files:
    def aligned(size: int) -> int:
        return -(-size // alignment) * alignment

    swapped = [update for update in updates if update.swapped]
    tensors = [tensor for update in swapped for tensor in update.group.tensors]
    return _Files(
        states=tuple(aligned(update.group.numel * _SINGLE) for update in swapped),
        gradients=tuple(size for tensor in tensors if swapper is not None and (size := swapper.size(tensor))),
        params=tuple(
            aligned(tensor.slice_numel * dtype_bytes)
            for update in updates
            for tensor in update.group.tensors
            if tensor.on_nvme
        ),
        optimizer_tier=tiers[1],
        weights_tier=tiers[0],
    )


def stages_until_first_step(
    updates: Sequence[Update],
    swapper: GradientSwapper | None,
    *,
    read_in_pass: Sequence[Tensor],
    dtype_bytes: int,
    alignment: int,
    tiers: tuple[str, str],
) -> tuple[StorageStage, ...]:
    """Start-up and the first step of one rank; ``read_in_pass`` = partitions read by forward and backward
    while the trace is recorded, ``tiers`` = of weights and optimizer."""
    files = _files(updates, swapper, dtype_bytes=dtype_bytes, alignment=alignment, tiers=tiers)
    passed = tuple(-(-tensor.slice_numel * dtype_bytes // alignment) * alignment for tensor in read_in_pass)
    gradients = Transfer(files.optimizer_tier, "gradients", True, files.gradients)
    return _without_empty(
        StorageStage(
            "initialisation",
            (
                files.params_of(written=True),
                files.params_of(written=False),  # as the source of the master weights
                files.write_states(1, "master weights"),
                files.params_of(written=False),  # gathered once while gradient hooks are made
                files.read_states(1, "master weights"),
                files.write_states(1, "master weights"),
                files.params_of(written=True),
            ),
        ),
        StorageStage("first forward and backward", (files.params_of(written=False, sizes=passed), gradients)),
        StorageStage(
            "first optimizer step",
            (
                files.read_states(1, "master weights"),
                gradients._replace(written=False),
                files.write_states(3, "master weights and moments"),
                files.params_of(written=True),
            ),
        ),
    )


def steady_stages(
    updates: Sequence[Update],
    swapper: GradientSwapper | None,
    *,
    read_in_pass: Sequence[Tensor],
    accumulation: int,
    dtype_bytes: int,
    alignment: int,
    tiers: tuple[str, str],
) -> tuple[StorageStage, ...]:
    """One later step of one rank; ``read_in_pass`` = partitions read by one forward and backward."""
    files = _files(updates, swapper, dtype_bytes=dtype_bytes, alignment=alignment, tiers=tiers)
    passed = tuple(-(-tensor.slice_numel * dtype_bytes // alignment) * alignment for tensor in read_in_pass)
    gradients = Transfer(files.optimizer_tier, "gradients", True, files.gradients)
    return _without_empty(
        StorageStage(
            "forward and backward",
            (files.params_of(written=False, sizes=passed * accumulation), gradients),
        ),
        StorageStage(
            "optimizer step",
            (
                files.read_states(3, "master weights and moments"),
                gradients._replace(written=False),
                files.write_states(3, "master weights and moments"),
                files.params_of(written=True),
            ),
        ),
    )


def _without_empty(*stages: StorageStage) -> tuple[StorageStage, ...]:
    return tuple(
        stage._replace(transfers=tuple(one for one in stage.transfers if one.sizes)) for stage in stages
    )
