"""One training run as the accounting sees it: which tensors lie where, cut up among how many."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.models.shape import SINGLE
from simoffload.strategies.aio import aio_unit, round_up
from simoffload.strategies.coordinator import Tensor
from simoffload.strategies.ds_config.training import TrainingSettings
from simoffload.strategies.training.memory.activations import Activations, activations_of
from simoffload.strategies.training.memory.states import StateBytes, state_bytes
from simoffload.strategies.training.memory.weights import (
    Weight,
    partition_numel,
    stored_bytes,
    weights_of,
)
from simoffload.strategies.training.swap import SubGroup, sub_groups
from simoffload.workload import Training

__all__ = ["Case"]

_FLATTENS_ON_GPU = (0, 19, 0)
_ALL_REDUCE_BUCKET = 500_000_000
"""[elements] that stage 0 reduces at a time (``allreduce_bucket_size``, deepspeed/runtime/engine.py)."""


@dataclass(frozen=True)
class Case:
    """A model, its workload and where its states go."""

    model: ModelShape
    workload: Training
    settings: TrainingSettings
    machine: Machine
    ranks: int
    weights_tier: str
    optimizer_tier: str
    weight_bits: float | None = None
    """[bit] of a frozen matrix's element (QLoRA); None for those of the model's type."""

    @property
    def per_host(self) -> int:
        """Ranks on one host."""
        return self.machine.ranks_per_node(self.ranks)

    @property
    def stage(self) -> int:
        """ZeRO's."""
        return self.settings.stage

    @property
    def size(self) -> int:
        """[B] of a parameter's element."""
        return self.model.dtype_bytes

    @property
    def weights_kind(self) -> str:
        """hbm, dram or a kind of storage."""
        return self.machine.tiers[self.weights_tier].kind

    @property
    def optimizer_kind(self) -> str:
        """hbm, dram or a kind of storage."""
        return self.machine.tiers[self.optimizer_tier].kind

    @property
    def weights_on_storage(self) -> bool:
        """Parameters are swapped."""
        return self.weights_kind not in ("hbm", "dram")

    @property
    def optimizer_on_storage(self) -> bool:
        """Optimizer states are swapped."""
        return self.optimizer_kind not in ("hbm", "dram")

    @property
    def offloads_optimizer(self) -> bool:
        """The optimizer runs on the CPU."""
        return self.optimizer_kind != "hbm"

    @cached_property
    def activations(self) -> Activations:
        """Of one micro-step."""
        return activations_of(self.model, self.workload, cpu_checkpointing=self.settings.cpu_checkpointing)

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        """Every distinct tensor."""
        return weights_of(self.model)

    @cached_property
    def states(self) -> StateBytes:
        """Of one rank, wherever they lie."""
        return state_bytes(
            self.weights,
            kind=self.settings.optimizer,
            stage=self.stage,
            ranks=self.ranks,
            dtype_bytes=self.size,
            gradient_bytes=self.settings.gradient_bytes,
            weight_bits=self.weight_bits,
        )

    @cached_property
    def part(self) -> int:
        """[elements] of one rank's part of what is trained."""
        return partition_numel(self.weights, stage=self.stage, ranks=self.ranks)

    @cached_property
    def trained(self) -> tuple[Weight, ...]:
        """Tensors that have gradients."""
        return tuple(weight for weight in self.weights if weight.trainable)

    @cached_property
    def trained_numel(self) -> int:
        """[elements] of all of them."""
        return sum(weight.numel for weight in self.trained)

    @cached_property
    def largest(self) -> int:
        """[elements] of the largest tensor that has a gradient."""
        return max((weight.numel for weight in self.trained), default=0)

    def part_of(self, numel: int) -> int:
        """[elements] of a gradient of ``numel`` that a rank keeps; below stage 3 it may be whole."""
        return -(-numel // self.ranks) if self.stage == 3 else min(numel, self.part)

    @property
    def bucket(self) -> int:
        """[elements] of gradients that are reduced together."""
        return self.settings.reduce_bucket_size if self.stage else _ALL_REDUCE_BUCKET

    # -- sub-groups -----------------------------------------------------------------------------

    @cached_property
    def slices(self) -> tuple[Tensor, ...]:
        """One rank's partition of what is trained, tensor by tensor (stage 3)."""
        each = {weight: self._slice(weight) for weight in set(self.trained)}
        return tuple(each[weight] for weight in self.trained)

    def _slice(self, weight: Weight) -> Tensor:
        numel = -(-weight.numel // self.ranks)
        return Tensor(weight.name, weight.numel, numel, self.swapped(numel * self.size), False)

    def swapped(self, size: int) -> bool:
        """Whether a partition of ``size`` [B] goes to the storage that the parameters are on."""
        return self.weights_on_storage and size >= self.settings.params.min_swap_bytes

    @cached_property
    def groups(self) -> tuple[SubGroup, ...]:
        """What the optimizer updates at a time: sub-groups in stage 3, else everything."""
        if self.stage == 3:
            return sub_groups(self.slices, self.settings.sub_group_size)
        whole = Tensor("all", self.trained_numel, self.part, False, False)
        return (SubGroup((whole,)),)

    @cached_property
    def gpu_groups(self) -> tuple[SubGroup, ...]:
        """Those that are updated on the GPU (Twin-Flow: the first of them, unless they lie on storage)."""
        if not self.offloads_optimizer:
            return self.groups
        return tuple(group for group in self.groups[: self._first_on_cpu] if not self._swaps(group))

    @cached_property
    def swapped_groups(self) -> tuple[SubGroup, ...]:
        """Those whose states are on storage, whatever ``ratio`` says."""
        return tuple(group for group in self.groups if self.offloads_optimizer and self._swaps(group))

    @cached_property
    def cpu_groups(self) -> tuple[SubGroup, ...]:
        """Those whose states are in host memory."""
        elsewhere = self.groups[self._first_on_cpu :] if self.offloads_optimizer else ()
        return tuple(group for group in elsewhere if not self._swaps(group))

    @property
    def _first_on_cpu(self) -> int:
        return int((1 - self.settings.ratio) * len(self.groups))

    def _swaps(self, group: SubGroup) -> bool:
        smallest = self.settings.params.min_swap_bytes
        return self.optimizer_on_storage and group.numel * SINGLE >= smallest

    @cached_property
    def largest_group(self) -> int:
        """[elements] of the largest sub-group."""
        return max((group.numel for group in self.groups), default=0)

    @cached_property
    def largest_update(self) -> int:
        """[B] of the updated parameters of a sub-group, each padded to its file, at most."""
        return max((self._aligned(group) for group in self.groups), default=0)

    def _aligned(self, group: SubGroup) -> int:
        numels = Counter(tensor.slice_numel for tensor in group.tensors)
        return sum(count * self.aligned(numel * self.size) for numel, count in numels.items())

    @property
    def flattens_on_host(self) -> bool:
        """Whether stages 1 and 2 make their flat copy of the parameters in host memory: for want of room on
        the GPU, and always before DeepSpeed 0.19.0."""
        capacity = self.machine.tiers["hbm"].capacity - self.machine.accelerator.reserved_bytes
        room = capacity >= self.states.parameters + self.size * self.trained_numel
        return self.stage in (1, 2) and (not room or self.settings.params.version < _FLATTENS_ON_GPU)

    # -- files ----------------------------------------------------------------------------------

    def aligned(self, size: int) -> int:
        """[B] of a file or swap buffer, padded for every aio thread."""
        return round_up(size, aio_unit(self.settings.params.threads))

    def parameter_partitions(self) -> list[int]:
        """[B] of one rank's partition of every tensor (stage 3)."""
        each = {
            weight: stored_bytes(
                weight,
                -(-weight.numel // self.ranks),
                dtype_bytes=self.size,
                weight_bits=self.weight_bits,
            )
            for weight in set(self.weights)
        }
        return [each[weight] for weight in self.weights]
