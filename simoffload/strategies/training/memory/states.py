"""Sizes of the states that training keeps for each parameter: parameter, gradient, master weight, moments.

The states of each optimizer were read in DeepSpeed 0.19.8 (``DeepSpeedCPUAdam``), PyTorch (SGD), bitsandbytes
and transformers (Adafactor).

The module also has published estimates for comparison: DeepSpeed's estimators of model states and a rule of
thumb, none of which counts activations, buckets, pinned memory or swap buffers. Source:
``estimate_zero2_model_states_mem_needs`` (deepspeed/runtime/zero/stage_1_and_2.py) and
``estimate_zero3_model_states_mem_needs`` (stage3.py), identical at 0.18.3 and 0.19.8. At 0.9.1 ZeRO-2 without
offload was 4P + 16P/G.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from simoffload.hardware import Machine
from simoffload.models import SINGLE, ModelShape
from simoffload.results import Estimate
from simoffload.strategies.ds_config.settings import BITSANDBYTES, OptimizerKind, TrainingSettings
from simoffload.strategies.memory import Activations, activations_of
from simoffload.strategies.training.bitsandbytes import moments, paged
from simoffload.strategies.training.state import Partitions, SubGroup, TrainingState, Weight
from simoffload.workload import Training

if TYPE_CHECKING:
    from simoffload.strategies.training.micro_step import ReplayPeaks

_FLATTENS_ON_GPU = (0, 19, 0)
_ALL_REDUCE_BUCKET = 500_000_000
"""[elements] that stage 0 reduces at a time (``allreduce_bucket_size``, deepspeed/runtime/engine.py)."""


class StateBytes(NamedTuple):
    """StateBytes are the sizes of one rank's states [B]."""

    parameters: int
    gradients: int
    master: int
    moments: int

    @property
    def total(self) -> int:
        """Total size of all four states [B]."""
        return sum(self)


def moment_bytes(kind: OptimizerKind, weights: Sequence[Weight], *, numel: int, flat: bool) -> int:
    """Return the size of the optimizer moments of ``numel`` elements [B].

    Adam keeps two values in single precision per element, SGD one (momentum), and 8-bit Adam two bytes, with
    two scales per block of 256. Adafactor keeps only sums over rows and columns of a matrix, but one value
    per element of the flat partitions (``flat``) that ZeRO gives the optimizer.
    """
    if kind == "adam":
        return 2 * SINGLE * numel
    if kind == "sgd":
        return SINGLE * numel
    if kind in BITSANDBYTES:
        tensors = [numel] if flat else [weight.numel for weight in weights if weight.trainable]
        return sum(moments(one, bits=BITSANDBYTES[kind]) for one in tensors)
    return SINGLE * (numel if flat else sum(weight.sums for weight in weights if weight.trainable))


def paged_bytes(kind: OptimizerKind, weights: Sequence[Weight], *, numel: int, flat: bool) -> int:
    """Return the part of ``moment_bytes`` that bitsandbytes pages [B]."""
    if not kind.startswith("paged"):
        return 0
    tensors = [numel] if flat else [weight.numel for weight in weights if weight.trainable]
    return sum(paged(one, bits=BITSANDBYTES[kind]) for one in tensors)


def state_bytes(
    partitions: Partitions,
    *,
    kind: OptimizerKind,
    dtype_bytes: int,
    gradient_bytes: int,
    weight_bits: float | None = None,
) -> StateBytes:
    """Return the size of the states of one rank [B] on all tiers.

    Stage 1 divides master weights and moments among the ranks, stage 2 also gradients, stage 3 also
    parameters. A model in single precision has no master weights in stages 0 and 3
    (``_create_fp32_partitions`` aliases them).
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
    """Return the size that one rank keeps of every tensor [B]; frozen matrices have ``weight_bits`` [bit] if
    given."""

    def size(weight: Weight) -> int:
        numel = partitions.slice_numel(weight.numel) if partitions.stage == 3 else weight.numel
        if weight_bits is not None and weight.quantizable and not weight.trainable:
            return -(-int(numel * weight_bits) // 8)
        return numel * dtype_bytes

    each = {weight: size(weight) for weight in set(partitions.weights)}
    return [each[weight] for weight in partitions.weights]


@dataclass(frozen=True)
class TrainingMemory:
    """TrainingMemory combines the state of a run, its workload and the machine, to compute the memory
    needed."""

    state: TrainingState
    workload: Training
    machine: Machine
    peak: ReplayPeaks | None = None
    """Peaks of a replayed micro-step of stage 3; by default upper bounds are used."""

    @property
    def settings(self) -> TrainingSettings:
        """DeepSpeed's settings of the run."""
        return self.state.settings

    @property
    def partitions(self) -> Partitions:
        """Partitions of the model's tensors among the ranks."""
        return self.state.partitions

    @property
    def stage(self) -> int:
        """Stage of ZeRO, 0 to 3."""
        return self.settings.stage

    @property
    def ranks(self) -> int:
        """Number of ranks that share the states."""
        return self.state.places.ranks

    @property
    def per_host(self) -> int:
        """Number of ranks on one host."""
        return self.machine.ranks_per_node(self.ranks)

    @property
    def size(self) -> int:
        """Size of a parameter's element [B]."""
        return self.state.model.dtype_bytes

    @cached_property
    def activations(self) -> Activations:
        """Memory of the activations of one micro-step."""
        return activations_of(
            self.state.model, self.workload, cpu_checkpointing=self.settings.cpu_checkpointing
        )

    @cached_property
    def states(self) -> StateBytes:
        """Sizes of the parameters, gradients, master weights and moments of one rank, on any tier."""
        return state_bytes(
            self.partitions,
            kind=self.settings.optimizer,
            dtype_bytes=self.size,
            gradient_bytes=self.settings.gradient_bytes,
            weight_bits=self.state.weight_bits,
        )

    @cached_property
    def paged(self) -> int:
        """[B] of one rank's moments that may be paged out of its GPU; none unless the optimizer is there."""
        cut, kind = self.partitions, self.settings.optimizer
        if self.state.offloads_optimizer:
            return 0
        return paged_bytes(kind, cut.weights, numel=cut.part, flat=self.stage > 0)

    @cached_property
    def parameter_sizes(self) -> list[int]:
        """Size that one rank keeps of every tensor [B]."""
        return _parameters(self.partitions, self.size, self.state.weight_bits)

    # -- gradients ------------------------------------------------------------------------------

    @cached_property
    def largest(self) -> int:
        """Size of the largest tensor with a gradient [elements]."""
        return max((weight.numel for weight in self.partitions.trained), default=0)

    def part_of(self, numel: int) -> int:
        """Return the elements that a rank keeps of a gradient of ``numel`` elements; below stage 3 it may be
        all."""
        cut = self.partitions
        return cut.slice_numel(numel) if self.stage == 3 else min(numel, cut.part)

    @property
    def overflow_check(self) -> int:
        """[B] of one rank's new memory in ``has_overflow``, at its peak: the magnitudes of all accumulated
        gradients, and 1 B for each."""
        return (self.settings.gradient_bytes + 1) * self.partitions.part

    @property
    def bucket(self) -> int:
        """Size of a bucket of gradients that are reduced together [elements]."""
        return self.settings.reduce_bucket_size if self.stage else _ALL_REDUCE_BUCKET

    # -- copies and buffers ---------------------------------------------------------------------

    @property
    def flattens_on_host(self) -> bool:
        """Whether stages 1 and 2 make their flat copy of the parameters in host memory: if the GPU has no
        room for it, and always before DeepSpeed 0.19.0."""
        capacity = self.machine.tiers["hbm"].capacity - self.machine.accelerator.reserved_bytes
        room = capacity >= self.states.parameters + self.size * self.partitions.trained_numel
        return self.stage in (1, 2) and (not room or self.settings.params.version < _FLATTENS_ON_GPU)

    def aligned(self, size: int) -> int:
        """Size of a file or swap buffer, padded for every aio thread [B]."""
        return self.settings.params.aligned(size)

    @property
    def parameter_buffers(self) -> int:
        """Size of the swap buffers of parameters [B]."""
        params = self.settings.params
        return params.buffer_count * self.aligned(params.buffer_size * self.size)

    @cached_property
    def largest_update(self) -> int:
        """[B] of the updated parameters of the largest sub-group, each padded to the size of its file."""
        return max((self._padded(update.group) for update in self.state.updates), default=0)

    def _padded(self, group: SubGroup) -> int:
        numels = Counter(tensor.slice_numel for tensor in group.tensors)
        return sum(count * self.aligned(numel * self.size) for numel, count in numels.items())


_BUFFER_FACTOR = 1.5
"""Default of ``additional_buffer_factor`` of both estimators."""


def zero2_estimate(
    total_params: int, *, num_gpus_per_node: int = 1, num_nodes: int = 1, cpu_offload: bool = True
) -> Estimate:
    """Return what ``estimate_zero2_model_states_mem_needs`` returns, to the byte."""
    total_gpus, factor = num_nodes * num_gpus_per_node, _BUFFER_FACTOR
    if cpu_offload:
        host = total_params * max(4 * total_gpus, 16) * factor
        gpu = 2 * total_params
        formula = f"GPU 2P; host P x max(4G, 16) x {factor}"
    else:
        host = total_params * 4 * num_gpus_per_node * factor
        gpu = 2 * total_params + int(18 * total_params / total_gpus)
        formula = f"GPU 2P + 18P/G; host 4P x g x {factor}"
    return Estimate("DeepSpeed's estimate for ZeRO-2", int(host), int(gpu), None, formula)


def zero3_estimate(
    total_params: int,
    largest_layer_params: int,
    *,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    cpu_offload_params: bool = True,
) -> Estimate:
    """Return what ``estimate_zero3_model_states_mem_needs`` returns under ``zero.Init``, to the byte.

    ``largest_layer_params`` is the size of the largest module without its children, as ``model_to_params``
    finds it (:func:`largest_module_numel`).
    """
    total_gpus, factor, largest = num_nodes * num_gpus_per_node, _BUFFER_FACTOR, 4 * largest_layer_params
    if not cpu_offload:
        gpu = largest + int(18 * total_params / total_gpus)
        host = largest * num_gpus_per_node * factor
        return Estimate(_ZERO_3, int(host), int(gpu), None, f"GPU 4L + 18P/G; host 4L x g x {factor}")
    states = 18 if cpu_offload_params else 16
    gpu = largest if cpu_offload_params else largest + int(2 * total_params / total_gpus)
    host = total_params * states * (1 / num_nodes) * factor
    on_gpu = "4L" if cpu_offload_params else "4L + 2P/G"
    return Estimate(_ZERO_3, int(host), int(gpu), None, f"GPU {on_gpu}; host {states}P/n x {factor}")


_ZERO_3 = "DeepSpeed's estimate for ZeRO-3"


def white_paper_rule(model: ModelShape) -> Estimate:
    """Return 240 x layers x hidden^2 [B]: 12 h^2 parameters per layer, 20 B for each.

    Source: Rajbhandari et al., ZeRO-Infinity, arXiv 2104.07857, equations 1 and 2, repeated in DDN's white
    paper "Large Language Models". The rule ignores embeddings and activations; layers with a gated
    feed-forward network or grouped queries do not have 12 h^2 parameters.
    """
    total = 240 * model.num_hidden_layers * model.hidden_size**2
    return Estimate("white paper's rule", None, None, total, "240 x layers x hidden^2 over all tiers")


def estimates_for(
    model: ModelShape, *, stage: int, ranks: int, nodes: int, offload_optimizer: bool, offload_params: bool
) -> tuple[Estimate, ...]:
    """Return published estimates for a run: DeepSpeed's estimator for its stage (from 1), and the rule of
    thumb.

    DeepSpeed's estimators do not know storage; states there count as in host memory. None of them knows
    frozen weights; with adapters they are labelled as estimates for full training.
    """
    per_node, total = -(-ranks // nodes), model.num_parameters
    found = [white_paper_rule(model)]
    if stage in (1, 2):
        rule = zero2_estimate(
            total, num_gpus_per_node=per_node, num_nodes=nodes, cpu_offload=offload_optimizer
        )
        found.insert(0, rule)
    elif stage == 3:
        rule = zero3_estimate(
            total,
            largest_module_numel(model),
            num_gpus_per_node=per_node,
            num_nodes=nodes,
            cpu_offload=offload_optimizer,
            cpu_offload_params=offload_params,
        )
        found.insert(0, rule)
    if model.all_trainable:
        return tuple(found)
    return tuple(one._replace(name=f"{one.name}, if all weights were trained") for one in found)


def largest_module_numel(model: ModelShape) -> int:
    """Return the number of elements of the module that owns the most, without its children."""
    return max(module.num_parameters for module in model.distinct_modules)
