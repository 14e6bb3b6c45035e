"""Bytes of what training keeps for every parameter: the parameter, its gradient, master weight, moments.

What each optimizer keeps is read in DeepSpeed 0.19.8 (``DeepSpeedCPUAdam``), PyTorch (SGD), bitsandbytes and
transformers (Adafactor).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from simoffload.hardware import Machine
from simoffload.models.shape import SINGLE
from simoffload.strategies.ds_config.training import OptimizerKind, TrainingSettings
from simoffload.strategies.training.memory.activations import Activations, activations_of
from simoffload.strategies.training.state import Partitions, SubGroup, TrainingState, Weight
from simoffload.workload import Training

if TYPE_CHECKING:
    from simoffload.strategies.training.layers import Peak

__all__ = ["StateBytes", "TrainingMemory", "moment_bytes", "state_bytes"]

_FLATTENS_ON_GPU = (0, 19, 0)
_ALL_REDUCE_BUCKET = 500_000_000
"""[elements] that stage 0 reduces at a time (``allreduce_bucket_size``, deepspeed/runtime/engine.py)."""
_BLOCK = 256
"""Elements that share a scale in bitsandbytes' 8-bit states (2048 before 0.45; from memory, unverified)."""
_SMALLEST_8BIT = 4096
"""Elements below which bitsandbytes keeps states in single precision (``min_8bit_size``)."""


class StateBytes(NamedTuple):
    """[B] of one rank."""

    parameters: int
    gradients: int
    master: int
    moments: int

    @property
    def total(self) -> int:
        """[B] of all four."""
        return sum(self)


def moment_bytes(kind: OptimizerKind, weights: Sequence[Weight], *, numel: int, flat: bool) -> int:
    """What the optimizer remembers of ``numel`` elements [B].

    Adam keeps two elements in single precision, SGD one (momentum), 8-bit Adam two bytes and two scales a
    block of 256. Adafactor keeps sums over rows and columns only while tensors are matrices: ZeRO hands the
    optimizer flat partitions (``flat``), for which it keeps an element each.
    """
    if kind == "adam":
        return 2 * SINGLE * numel
    if kind == "sgd":
        return SINGLE * numel
    if kind == "adam8bit":
        tensors = [numel] if flat else [weight.numel for weight in weights if weight.trainable]
        return sum(_moments_8bit(one) for one in tensors)
    return SINGLE * (numel if flat else sum(weight.sums for weight in weights if weight.trainable))


def _moments_8bit(numel: int) -> int:
    if numel < _SMALLEST_8BIT:
        return 2 * SINGLE * numel
    return 2 * (numel + SINGLE * -(-numel // _BLOCK))


def state_bytes(
    partitions: Partitions,
    *,
    kind: OptimizerKind,
    dtype_bytes: int,
    gradient_bytes: int,
    weight_bits: float | None = None,
) -> StateBytes:
    """What one rank keeps of all tensors [B], wherever it is.

    Stage 1 cuts master weights and moments, stage 2 also gradients, stage 3 also parameters. A model in
    single precision has no master weights in stages 0 and 3 (``_create_fp32_partitions`` aliases them).
    """
    stage, part = partitions.stage, partitions.part
    aliased = dtype_bytes == SINGLE and stage in (0, 3)
    return StateBytes(
        parameters=sum(_parameters(partitions, dtype_bytes, weight_bits)),
        gradients=gradient_bytes * (part if stage >= 2 else partitions.trained_numel),
        master=0 if aliased else SINGLE * part,
        moments=moment_bytes(kind, partitions.weights, numel=part, flat=stage > 0),
    )


def _parameters(partitions: Partitions, dtype_bytes: int, weight_bits: float | None) -> list[int]:
    """[B] that one rank keeps of every tensor; frozen matrices in ``weight_bits`` [bit] where given."""

    def size(weight: Weight) -> int:
        numel = partitions.slice_numel(weight.numel) if partitions.stage == 3 else weight.numel
        if weight_bits is not None and weight.quantizable and not weight.trainable:
            return -(-int(numel * weight_bits) // 8)
        return numel * dtype_bytes

    each = {weight: size(weight) for weight in set(partitions.weights)}
    return [each[weight] for weight in partitions.weights]


@dataclass(frozen=True)
class TrainingMemory:
    """A run's state, the work that adds to it, and the machine that holds both."""

    state: TrainingState
    workload: Training
    machine: Machine
    peak: Peak | None = None
    """What a walk through a micro-step of stage 3 gathers at most; by default bounds of it count."""

    @property
    def settings(self) -> TrainingSettings:
        """DeepSpeed's."""
        return self.state.settings

    @property
    def partitions(self) -> Partitions:
        """The model's tensors, cut up."""
        return self.state.partitions

    @property
    def stage(self) -> int:
        """ZeRO's."""
        return self.settings.stage

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.state.places.ranks

    @property
    def per_host(self) -> int:
        """Ranks on one host."""
        return self.machine.ranks_per_node(self.ranks)

    @property
    def size(self) -> int:
        """[B] of a parameter's element."""
        return self.state.model.dtype_bytes

    @cached_property
    def activations(self) -> Activations:
        """Of one micro-step."""
        return activations_of(
            self.state.model, self.workload, cpu_checkpointing=self.settings.cpu_checkpointing
        )

    @cached_property
    def states(self) -> StateBytes:
        """Of one rank, wherever they are."""
        return state_bytes(
            self.partitions,
            kind=self.settings.optimizer,
            dtype_bytes=self.size,
            gradient_bytes=self.settings.gradient_bytes,
            weight_bits=self.state.weight_bits,
        )

    @cached_property
    def parameter_sizes(self) -> list[int]:
        """[B] that one rank keeps of every tensor."""
        return _parameters(self.partitions, self.size, self.state.weight_bits)

    # -- gradients ------------------------------------------------------------------------------

    @cached_property
    def largest(self) -> int:
        """[elements] of the largest tensor that has a gradient."""
        return max((weight.numel for weight in self.partitions.trained), default=0)

    def part_of(self, numel: int) -> int:
        """[elements] of a gradient of ``numel`` that a rank keeps; below stage 3 it may be whole."""
        cut = self.partitions
        return cut.slice_numel(numel) if self.stage == 3 else min(numel, cut.part)

    @property
    def bucket(self) -> int:
        """[elements] of gradients that are reduced together."""
        return self.settings.reduce_bucket_size if self.stage else _ALL_REDUCE_BUCKET

    # -- copies and buffers ---------------------------------------------------------------------

    @property
    def flattens_on_host(self) -> bool:
        """Whether stages 1 and 2 make their flat copy of the parameters in host memory: for want of room on
        the GPU, and always before DeepSpeed 0.19.0."""
        capacity = self.machine.tiers["hbm"].capacity - self.machine.accelerator.reserved_bytes
        room = capacity >= self.states.parameters + self.size * self.partitions.trained_numel
        return self.stage in (1, 2) and (not room or self.settings.params.version < _FLATTENS_ON_GPU)

    def aligned(self, size: int) -> int:
        """[B] of a file or swap buffer, padded for every aio thread."""
        return self.settings.params.aligned(size)

    @property
    def parameter_buffers(self) -> int:
        """[B] of the swap buffers of parameters."""
        params = self.settings.params
        return params.buffer_count * self.aligned(params.buffer_size * self.size)

    @cached_property
    def largest_update(self) -> int:
        """[B] of the updated parameters of a sub-group, each padded to its file, at most."""
        return max((self._padded(update.group) for update in self.state.updates), default=0)

    def _padded(self, group: SubGroup) -> int:
        numels = Counter(tensor.slice_numel for tensor in group.tensors)
        return sum(count * self.aligned(numel * self.size) for numel, count in numels.items())
