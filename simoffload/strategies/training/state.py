"""State of a training run under ZeRO: its tensors, partitions and sub-groups, their tiers, and their files.

Schedules, storage traffic, memory stages and checkpoints are all computed from it. Partitioning by stage:
Rajbhandari et al., ZeRO, arXiv 1910.02054, section 5; padding, sub-groups and their tiers were read in
deepspeed/runtime/zero/stage3.py, stage_1_and_2.py and swap_tensor/ (0.19.6), storage traffic also at 0.18.3
(``_create_fp32_partitions``, ``create_reduce_and_remove_grad_hooks``, ``initialize_optimizer_states``,
``step``). Adam's moments do not exist before the first step, which reads only weights and gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, groupby
from typing import Literal, NamedTuple, TypeVar

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import SINGLE, Layer, ModelShape, Module, Parameter, Repeated
from simoffload.results import STATES_8BIT, Change
from simoffload.strategies.base import INITIALISATION, Held
from simoffload.strategies.ds_config import OffloadDevice, OffloadSettings, TrainingSettings
from simoffload.strategies.zero.coordinator import Tensor, check_buffer_size, cut_tensors
from simoffload.units import plural

T = TypeVar("T")

_FLAT_ALIGNMENT = 2
"""[elements] to which ZeRO-1 and 2 pad a rank's part (``nccl_start_alignment_factor``, stage_1_and_2.py)."""

_CHECKS_IN_STEP, _CHECKS_FLOAT16 = (0, 9, 4), (0, 11, 2)
"""Versions from which the step of stage 3 searches for overflow, and from which it does so in float16
alone (DeepSpeed's commits 0977106 and 244040c)."""


class Weight(NamedTuple):
    """A Weight is one tensor of the model; a tied one is listed once."""

    name: str
    numel: int
    """Number of elements of the tensor [elements]; of a quantized one, elements of the model's data type that
    its packed values take."""
    sums: int
    """Number of sums over rows and over columns [elements], which Adafactor keeps; ``numel`` for a vector."""
    trainable: bool
    place: Literal["before", "layer", "after"]
    """Position of its module relative to the layers; gradients come in the opposite order."""


def weights_of(model: ModelShape) -> Repeated[Weight]:
    """Return every distinct tensor in the order of the modules."""
    groups = (
        (chain.from_iterable(_weights(model, layer, "layer") for layer in layers), repeat)
        for layers, repeat in model.groups
    )
    before, after = (
        (_weights(model, model.modules_before, "before"), 1),
        (_weights(model, model.modules_after, "after"), 1),
    )
    return Repeated(before, *groups, after)


def _weights(
    model: ModelShape, modules: Sequence[Module], place: Literal["before", "layer", "after"]
) -> Iterator[Weight]:
    for module in modules:
        for parameter in module.parameters:
            if parameter.tied:
                continue
            yield Weight(
                name=parameter.name,
                numel=packed_numel(parameter, model),
                sums=_sums(model, module, parameter),
                trainable=parameter.trainable,
                place=place,
            )


def packed_numel(parameter: Parameter, model: ModelShape) -> int:
    """Return the elements of the model's data type that a tensor takes; quantized values are packed into them
    (``bnb_4bit_quant_storage``), and their scales are no parameters."""
    if parameter.storage is None:
        return parameter.numel
    return -(-parameter.storage.tensors[0] // model.dtype_bytes)


def packed_numels(modules: Iterable[Module], model: ModelShape) -> int:
    """Return the elements that all tensors of modules take, a tied one left out."""
    owned = (one for module in modules for one in module.parameters if not one.tied)
    return sum(packed_numel(one, model) for one in owned)


def _sums(model: ModelShape, module: Module, parameter: Parameter) -> int:
    """Return the rows plus columns of a matrix, or of all that are stacked in a tensor of experts."""
    if module.kind not in ("linear", "router", "embedding") or parameter.name.endswith("bias"):
        return parameter.numel
    if module.kind == "embedding":
        return parameter.numel // module.width + module.width
    if module.in_features * module.out_features == parameter.numel:
        return module.in_features + module.out_features
    stacked = module.in_features // (model.hidden_size + model.intermediate_size)
    one = parameter.numel // stacked
    narrow = model.hidden_size
    return stacked * (narrow + one // narrow)


def sub_groups(tensors: Repeated[T], numel: Callable[[T], int], size: int) -> Repeated[Repeated[T]]:
    """Split partitions of ``numel`` [elements], in the model's order, into groups that end once they hold
    ``size`` elements (``sub_group_size``, ``_create_fp16_sub_groups``).

    If a layer begins with as many tensors in the open group as an equal layer before it, the groups repeat.
    """
    pieces: list[tuple[list[Repeated[T]], int]] = []
    begun: list[tuple[Sequence[T], int]] = []  # pieces of the group that is open
    held = 0
    for items, times in tensors.pieces:
        numels = [numel(one) for one in items]
        each, done = sum(numels), 0
        ended: list[Repeated[T]] = []
        met: dict[int, tuple[int, int]] = {}
        while done < times:
            opened = sum(len(some) * count for some, count in begun)
            if opened in met:
                before, first = met[opened]
                cycles = (times - done) // (done - before)
                pieces += (ended[:first], 1), (ended[first:], 1 + cycles)
                ended, met, done = [], {}, done + cycles * (done - before)
                continue
            if opened <= done * len(items):  # all of them are of these layers
                met[opened] = done, len(ended)
            if repeats := min(times - done, max(0, size - 1 - held) // each):
                begun.append((items, repeats))
                held, done = held + repeats * each, done + repeats
                continue
            begin = 0
            for end, one in enumerate(numels, 1):
                held += one
                if held >= size:
                    ended.append(Repeated(*begun, (items[begin:end], 1)))
                    begun, begin, held = [], end, 0
            begun.append((items[begin:], 1))
            done += 1
        pieces.append((ended, 1))
    return Repeated(*pieces, ([Repeated(*begun)] if held else [], 1))


@dataclass(frozen=True)
class Partitions:
    """Partitions are a model's tensors, divided among ``ranks`` as a stage of ZeRO does."""

    weights: Repeated[Weight]
    """All tensors of the model, including frozen ones."""
    stage: int
    ranks: int
    sub_group_size: int = 1_000_000_000
    """Size of a sub-group of stage 3 [elements]."""

    @cached_property
    def trained(self) -> Repeated[Weight]:
        """Tensors of the model that have gradients."""
        return self.weights.where(lambda weight: weight.trainable)

    @cached_property
    def trained_numel(self) -> int:
        """Total size of the trained tensors [elements]."""
        return self.trained.total(lambda weight: weight.numel)

    def slice_numel(self, numel: int) -> int:
        """Return the size of one rank's slice of a tensor [elements]; stage 0 does not divide tensors."""
        return -(-numel // self.ranks) if self.stage else numel

    @cached_property
    def slices(self) -> Repeated[int]:
        """[elements] of one rank's slice of every trained tensor."""
        return self.trained.map(lambda weight: self.slice_numel(weight.numel))

    @cached_property
    def part(self) -> int:
        """[elements] of one rank's part; stage 3 pads every tensor, stages 1 and 2 the sequence of all."""
        if self.stage in (0, 3):
            return self.slices.total(int)
        return -(-self.trained_numel // (_FLAT_ALIGNMENT * self.ranks)) * _FLAT_ALIGNMENT

    def grouped(self, trained: Repeated[T], numel: Callable[[T], int]) -> Repeated[Repeated[T]]:
        """Return trained tensors that are updated together: sub-groups in stage 3, otherwise all tensors."""
        if self.stage < 3:
            return Repeated.once([trained])
        return sub_groups(trained, numel, self.sub_group_size)

    @cached_property
    def groups(self) -> Repeated[Repeated[int]]:
        """[elements] of one rank's slices of the tensors in every group."""
        return self.grouped(self.slices, int)

    @cached_property
    def group_numels(self) -> Repeated[int]:
        """[elements] of one rank's part of every group."""
        return (
            self.groups.map(lambda group: group.total(int)) if self.stage == 3 else Repeated.once([self.part])
        )


class Places(NamedTuple):
    """Places name the tiers of the states, and the CPU threads that update them."""

    ranks: int
    weights: str
    """Tier of the 16-bit parameters."""
    optimizer: str
    """Tier of the optimizer's states."""
    threads: int = 1
    """Number of threads of one rank's optimizer on the CPU."""


class Update(NamedTuple):
    """An Update is that of a sub-group of tensors: where their states are, and where parameters go."""

    tensors: Repeated[Tensor]
    numel: int
    """Size of one rank's part [elements]."""
    on_gpu: bool
    """Whether the optimizer runs on the GPU."""
    swapped: bool
    """Whether states and gradients are on storage, which ``on_gpu`` does not affect."""
    params: OffloadDevice
    """Tier of the sub-group's 16-bit parameters."""


@dataclass(frozen=True)
class TrainingState:
    """A TrainingState lists all tensors that ZeRO keeps for a run, and their tiers."""

    model: ModelShape
    settings: TrainingSettings
    places: Places

    @cached_property
    def partitions(self) -> Partitions:
        """Partitions of the model's tensors among the ranks."""
        settings = self.settings
        weights = weights_of(self.model)
        return Partitions(weights, settings.stage, self.places.ranks, settings.sub_group_size)

    @property
    def fetching(self) -> OffloadSettings | None:
        """Settings of fetching parameters; None below stage 3, where every rank has all parameters."""
        return self.settings.params if self.settings.stage == 3 else None

    @property
    def weights_on(self) -> OffloadDevice:
        """Device of the parameters; those below ``min_swap_bytes`` stay in host memory."""
        return self.settings.params.device or "none"

    @property
    def offloads_optimizer(self) -> bool:
        """Whether optimizer states are offloaded, at least those that ``ratio`` does not keep on the GPU."""
        return self.settings.optimizer_device != "none"

    @property
    def checks_overflow(self) -> bool:
        """Whether each optimizer step begins with a search of all gradients for infinite values and for those
        that are not numbers, as at stage 3 in float16 (``_overflow_check_and_loss_scale_update``).

        Until DeepSpeed 0.9.3 the GPU searched each gradient in backward.
        """
        version, precision = self.settings.params.version, self.settings.precision
        half = precision == "fp16" or (precision is None and self.model.dtype == "float16")
        searched = half or version < _CHECKS_FLOAT16
        return self.settings.stage == 3 and version >= _CHECKS_IN_STEP and searched

    def swapped(self, size: int) -> bool:
        """Return whether a partition of ``size`` [B] is kept on the storage tier of the parameters."""
        return self.weights_on == "nvme" and size >= self.settings.params.min_swap_bytes

    # -- tensors --------------------------------------------------------------------------------

    @cached_property
    def homogeneous(self) -> bool:
        """Whether the tensors of all layers are on the same tiers, so that the layers are interchangeable."""
        settings, params = self.settings, self.settings.params
        weights = self.partitions.weights
        in_layers = any(weight.place == "layer" for weight in weights.distinct)
        uneven = settings.super_offload or settings.ratio != 1.0
        if uneven or not self.model.uniform or not in_layers:
            return False
        small = weights.where(lambda one: one.numel <= params.stage3_param_persistence_threshold)
        if (
            settings.stage == 3
            and small.total(lambda one: one.numel) > params.stage3_model_persistence_threshold
        ):
            return False
        if not any(tensor.on_nvme for tensor in self.of_layers(1).distinct):
            return True
        # If the first sub-group does not fit, none does.
        return all(first > params.max_in_cpu for first in self.partitions.group_numels.distinct[:1])

    def of_layers(self, count: int) -> Repeated[Tensor]:
        """Return all tensors of a model of ``count`` homogeneous layers."""

        def placed(modules: Layer) -> Iterator[Tensor]:
            owned = (one for module in modules for one in module.parameters if not one.tied)
            return self._placed((one.name, packed_numel(one, self.model)) for one in owned)

        pieces = self.model.of_layers(count).outside_and_kinds()
        return Repeated(*((placed(modules), times) for modules, times in pieces))

    def _placed(self, tensors: Iterable[tuple[str, int]]) -> Iterator[Tensor]:
        """Return the partitioned tensors, with their tiers, for names and sizes [elements]."""
        settings = self.settings
        ranks = self.places.ranks if settings.stage else 1
        cut = cut_tensors(tensors, settings.params, ranks=ranks, dtype_bytes=self.model.dtype_bytes)
        return cut if settings.stage == 3 else (tensor._replace(persistent=False) for tensor in cut)

    @cached_property
    def tensors(self) -> Repeated[Tensor]:
        """All partitioned tensors with their tiers; separate objects unless layers are interchangeable."""
        if self.homogeneous:
            return self.of_layers(self.model.num_hidden_layers)
        weights = self.partitions.weights
        found = list(self._placed((weight.name, weight.numel) for weight in weights))
        trained = [index for index, weight in enumerate(weights) if weight.trainable]
        for index in trained[: self._kept]:
            found[index] = found[index]._replace(on_nvme=False)
        return Repeated.once(found)

    @property
    def _kept(self) -> int:
        """Number of trained tensors in the sub-groups that ``max_in_cpu`` keeps in host memory."""
        cut, room = self.partitions, self.settings.params.max_in_cpu
        ends = accumulate(cut.group_numels)
        return sum(len(group) for group, end in zip(cut.groups, ends, strict=True) if end <= room)

    @cached_property
    def trained(self) -> Repeated[Tensor]:
        """Tensors that the optimizer updates; all of them except with LoRA."""
        weights = self.partitions.weights
        if all(weight.trainable for weight in weights.distinct):
            return self.tensors
        pairs = zip(self.tensors, weights, strict=True)
        return Repeated.once(tensor for tensor, weight in pairs if weight.trainable)

    # -- sub-groups -----------------------------------------------------------------------------

    @cached_property
    def updates(self) -> Repeated[Update]:
        """Update of every sub-group by the optimizer, in order."""
        groups = self.partitions.grouped(self.trained, lambda tensor: tensor.slice_numel)
        if not self.offloads_optimizer or self.settings.ratio == 1.0:
            return groups.map(lambda group: self._update(group, on_gpu=not self.offloads_optimizer))
        on_cpu_from = int((1 - self.settings.ratio) * len(groups))
        return Repeated.once(
            self._update(group, on_gpu=index < on_cpu_from) for index, group in enumerate(groups)
        )

    def _update(self, tensors: Repeated[Tensor], *, on_gpu: bool) -> Update:
        settings, cut = self.settings, self.partitions
        numel = cut.part if cut.stage < 3 else tensors.total(lambda tensor: tensor.slice_numel)
        swapped = (
            settings.optimizer_device == "nvme"  # regardless of ``ratio`` (_swappable_optimizer_subgroup)
            and numel * SINGLE >= settings.params.min_swap_bytes
        )
        params = self.weights_on
        if params == "nvme" and not any(tensor.on_nvme for tensor in tensors.distinct):
            params = "cpu"
        return Update(tensors, numel, on_gpu, swapped, params)

    @cached_property
    def on_gpu(self) -> Repeated[Update]:
        """Sub-groups with their states in HBM (Twin-Flow: the first ones, unless they are on storage)."""
        return self.updates.where(lambda one: one.on_gpu and not one.swapped)

    @cached_property
    def in_memory(self) -> Repeated[Update]:
        """Sub-groups with their states in host memory."""
        return self.updates.where(lambda one: not one.on_gpu and not one.swapped)

    @cached_property
    def on_storage(self) -> Repeated[Update]:
        """Sub-groups with their states on storage."""
        return self.updates.where(lambda one: one.swapped)

    @cached_property
    def stored(self) -> Repeated[Tensor]:
        """Tensors of the sub-groups with their states on storage."""
        groups = self.on_storage.map(lambda update: update.tensors)
        return Repeated(*((chain.from_iterable(some), times) for some, times in groups.pieces))

    @property
    def cpu_numel(self) -> int:
        """Number of elements of one rank that are updated on the CPU."""
        return self.updates.total(lambda update: 0 if update.on_gpu else update.numel)

    @property
    def largest_group(self) -> int:
        """Size of one rank's part of the largest sub-group [elements]."""
        return max(self.partitions.group_numels.distinct, default=0)


_PARAMS = "parameters"


class Transfer(NamedTuple):
    """A Transfer is a set of files of one kind that one rank reads or writes."""

    tier: str
    what: str
    written: bool
    sizes: Repeated[int]
    """Size of each file [B]."""
    times: int = 1
    """Number of times that all files are transferred."""

    @property
    def size(self) -> int:
        """Total size of the transfer [B]."""
        return self.times * self.sizes.total(int)

    def full_requests(self, *, block: int, threads: int) -> int:
        """Return the number of requests of a whole ``block`` [B] for the files, with ``threads`` aio threads.

        Each thread takes an equal slice of a file; the remainder of a slice is a smaller request.
        """
        return self.times * self.sizes.total(lambda size: threads * (size // threads // block))


class StorageStage(NamedTuple):
    """A StorageStage is a stage of the run with its transfers."""

    name: str
    transfers: tuple[Transfer, ...]


Passed = Sequence[tuple[Repeated[Tensor], int]]
"""Partitions that passes read, and the number of passes that read them."""


class RankFiles:
    """RankFiles are the files of one rank: states of sub-groups on storage, gradients, and parameters."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._aligned = state.settings.params.aligned
        self._states = state.on_storage.map(lambda group: self._aligned(group.numel * SINGLE))
        swapper = GradientSwapper.of(state)
        gradients = state.stored.map(swapper.size) if swapper is not None else Repeated[int]()
        self._gradients = gradients.where(bool)
        self._params = self._sizes(state.trained.where(lambda tensor: tensor.on_nvme))

    def until_first_step(self, passed: Passed) -> tuple[StorageStage, ...]:
        """Return the stages of start-up and the first step, in which the trace is recorded."""
        start = (
            self._move_params(written=True),
            self._move_params(written=False),  # as the source of the master weights
            self._move_states(1, written=True),
            self._move_params(written=False),  # gathered once while gradient hooks are made
            self._move_states(1, written=False),
            self._move_states(1, written=True),
            self._move_params(written=True),
        )
        return (
            _stage("initialisation", start),
            _stage("first forward and backward", self._pass_through(passed)),
            _stage("first optimizer step", self._update(1)),
        )

    def steady(self, passed: Passed) -> tuple[StorageStage, ...]:
        """Return the storage transfers of any step after the first, stage by stage."""
        passing = _stage("forward and backward", self._pass_through(passed))
        return passing, _stage("optimizer step", self._update(3))

    def _update(self, read: int) -> Iterator[Transfer]:
        """Yield the transfers of an update, which reads master weights and, if there are any, moments."""
        yield self._move_states(read, written=False)
        yield self._move_gradients(written=False)
        yield self._move_states(3, written=True)
        yield self._move_params(written=True)

    def _pass_through(self, passed: Passed) -> tuple[Transfer, ...]:
        tier = self._state.places.weights
        reads = (Transfer(tier, _PARAMS, False, self._sizes(tensors), times) for tensors, times in passed)
        return *reads, self._move_gradients(written=True)

    def _move_states(self, times: int, *, written: bool) -> Transfer:
        """Return the transfers of a number of states of every sub-group on storage."""
        return Transfer(
            self._state.places.optimizer, "master weights and moments", written, self._states, times
        )

    def _move_gradients(self, *, written: bool) -> Transfer:
        return Transfer(self._state.places.optimizer, "gradients", written, self._gradients)

    def _move_params(self, *, written: bool) -> Transfer:
        return Transfer(self._state.places.weights, _PARAMS, written, self._params)

    def _sizes(self, tensors: Repeated[Tensor]) -> Repeated[int]:
        element = self._state.model.dtype_bytes
        return tensors.map(lambda tensor: self._aligned(tensor.slice_numel * element))


def _stage(name: str, transfers: Iterable[Transfer]) -> StorageStage:
    return StorageStage(name, tuple(one for one in transfers if one.sizes and one.times))


def sums_of(
    stages: Sequence[StorageStage],
    measure: Callable[[Transfer], int],
    by: Callable[[Transfer], str] = lambda one: one.tier,
) -> dict[str, tuple[int, int]]:
    """Sum the bytes read and the bytes written, by default for each tier."""
    sums: dict[str, tuple[int, int]] = {}
    for transfer in (one for stage in stages for one in stage.transfers):
        read, written = sums.get(by(transfer), (0, 0))
        size = measure(transfer)
        sums[by(transfer)] = (read, written + size) if transfer.written else (read + size, written)
    return sums


class GradientSink:
    """A GradientSink receives the operations of the gradient swapper; this base ignores them."""

    def to_swap_buffer(self, sizes: Sequence[int], /) -> None:
        """Copy gradients from the GPU into a buffer."""

    def write_file(self, size: int, /, *, label: str) -> None:
        """Begin to write a buffer."""

    def wait_writes(self) -> None:
        """Wait until everything is written."""


class GradientSwapper:
    """GradientSwapper collects gradients in single precision in swap buffers, and writes the buffers to
    storage.

    Each buffer is as large as the largest sub-group. A buffer is written when the next gradient does not fit
    into it; if no buffer is free, the host waits for all writes. Partitions smaller than ``smallest`` [B]
    stay in host memory, and of others the remainder after whole units of ``alignment``
    (``_adjust_for_misaligned_lengths``).
    """

    @classmethod
    def of(cls, state: TrainingState) -> GradientSwapper | None:
        """Return the gradient swapper for the settings of a run; None if its gradients stay in memory."""
        if not state.on_storage:
            return None
        params = state.settings.params
        return cls(
            buffers=state.settings.buffer_count,
            buffer_numel=state.largest_group,
            alignment=params.alignment,
            smallest=params.min_swap_bytes,
        )

    def __init__(self, *, buffers: int, buffer_numel: int, alignment: int, smallest: int) -> None:
        self._buffers = buffers
        self._capacity = -(-buffer_numel * SINGLE // alignment) * alignment
        self._alignment = alignment
        self._smallest = smallest
        self._free = buffers
        self._filled: int | None = None

    @property
    def state(self) -> tuple[int | None, int]:
        """State that determines how the next gradients are handled."""
        return self._filled, self._free

    def go_to(self, state: tuple[int | None, int]) -> None:
        """Set the state that determines how the next gradients are handled."""
        self._filled, self._free = state

    def twin(self) -> GradientSwapper:
        """Return another swapper with the same buffers."""
        return copy(self)

    def size(self, tensor: Tensor) -> int:
        """Return the size of the tensor's gradient that goes to storage [B]."""
        aligned = tensor.slice_numel * SINGLE // self._alignment * self._alignment
        return aligned if aligned >= self._smallest else 0

    def insert(self, sink: GradientSink, tensors: Sequence[Tensor]) -> None:
        """Add the partitions of a reduced bucket to the swap buffers."""
        pending: list[int] = []
        for tensor in tensors:
            size = self.size(tensor)
            if not size:
                continue
            if self._filled is not None and self._filled + size > self._capacity:
                if pending:
                    sink.to_swap_buffer(pending)
                    pending = []
                self._submit(sink)
                if not self._free:
                    sink.wait_writes()
                    self._free = self._buffers
            if self._filled is None:
                self._free -= 1
                self._filled = 0
            self._filled += size
            pending.append(size)
        if pending:
            sink.to_swap_buffer(pending)

    def flush(self, sink: GradientSink) -> None:
        """Write the remaining gradients and wait for them, before the first sub-group is updated."""
        self._submit(sink)
        sink.wait_writes()
        self._free = self._buffers

    def _submit(self, sink: GradientSink) -> None:
        if self._filled:
            sink.write_file(self._filled, label="gradients")
        self._filled = None


def check_buffers(state: TrainingState) -> None:
    """Raise InputError for swap buffers that DeepSpeed finds too small or too few at start-up."""
    settings, params, zero = state.settings, state.settings.params, "strategy.ds_config.zero_optimization"
    check_buffer_size(state.tensors.distinct, params)
    at_once = min(len(state.on_storage), 1 + settings.pipeline_read + settings.pipeline_write)
    if settings.buffer_count < 4 * at_once:
        text = (
            f"{settings.buffer_count} buffers; DeepSpeed needs {4 * at_once}, for master, moments "
            f"and gradient of {plural(at_once, 'sub-group')} at work, read ahead, "
            "written behind; it would stop"
        )
        raise InputError.at(f"{zero}.offload_optimizer.buffer_count", text)


# --------------------------------------------------------------------------------------------------
# Optimizers: their memory traffic per element, and bitsandbytes' 8-bit states and paged states.
#
# Adam's memory traffic is counted in csrc/adam/cpu_adam_impl.cpp of DeepSpeed (one loop over the elements of
# a parameter) and torch/optim/adam.py of PyTorch (``_single_tensor_adam``: a sequence of operations over the
# whole tensor; the default on the CPU if neither ``foreach`` nor ``fused`` is chosen).
#
# bitsandbytes was read at 95f9af30 (2026-08): optim/optimizer.py (``init_state``, ``get_state_buffer``,
# ``prefetch_state``, ``step``), optim/adamw.py, csrc/kernels.cu (``kOptimizerStatic8bit2StateBlockwise``). A
# paged state is unified memory (``cudaMallocManaged``): the driver moves to host memory what the GPU has no
# room for, and each step brings it back, tensor by tensor, before its update. References: Dettmers et al.,
# 8-bit optimizers, arXiv 2110.02861; QLoRA, arXiv 2305.14314, section 3.


class _Operation(NamedTuple):
    """An _Operation is an element-by-element operation over tensors in single precision."""

    read: int
    """Number of tensors that are read; a tensor read twice counts once, as its element is cached."""
    written: int = 1

    @property
    def traffic(self) -> int:
        """Memory traffic per element [B]."""
        return (self.read + self.written) * SINGLE


DEEPSPEED_ADAM = _Operation(read=4, written=3).traffic
"""[B] of traffic per parameter: weight, gradient and two moments are read; all but the gradient written."""

_TORCH = (
    _Operation(2),  # exp_avg.lerp_(grad)
    _Operation(1),  # exp_avg_sq.mul_
    _Operation(2),  # exp_avg_sq.addcmul_(grad, grad)
    _Operation(1),  # exp_avg_sq.sqrt()
    _Operation(1),  # / bias_correction2_sqrt
    _Operation(1),  # .add_(eps)
    _Operation(3),  # param.addcdiv_(exp_avg, denom)
)

TORCH_ADAM = sum(operation.traffic for operation in _TORCH)
"""[B] of memory traffic per parameter of ``torch.optim.Adam`` without weight decay, its default."""
TORCH_ADAM_NEW = 2
"""Number of temporary tensors of a parameter's size in a step: results of ``sqrt()`` and the division."""
TORCH_FOREACH = TORCH_ADAM + SINGLE
"""[B] of memory traffic per parameter on the GPU, where PyTorch works on all tensors at once
(``_multi_tensor_adam``): ``_foreach_addcmul_`` reads the gradient as both of its factors."""
TORCH_WEIGHT_DECAY = _Operation(1).traffic
"""[B] of additional memory traffic per parameter in ``torch.optim.AdamW`` (``param.mul_``)."""


class TorchTraining(NamedTuple):
    """A TorchTraining is how PyTorch alone trains whole copies."""

    element: int
    """[B] of an element of trained weights, their gradients and moments."""
    casts: bool
    """Whether ``torch.autocast`` casts weights to the model's type for each pass, and gradients back."""
    fused: bool
    """Whether AdamW is one kernel for many tensors (``fused``), not a sequence of them (``foreach``)."""

    @property
    def temporaries(self) -> int:
        """[B] per trained element that an update needs beside the states: ``_foreach_sqrt``."""
        return 0 if self.fused else self.element

    @property
    def traffic(self) -> float:
        """Traffic per trained element of an update [B], as if it moved at the rate of copies."""
        count = DEEPSPEED_ADAM if self.fused else TORCH_FOREACH + TORCH_WEIGHT_DECAY
        return count * self.element / SINGLE / _ADAMW_SHARE[self.fused, self.element]


_ADAMW_SHARE = {(True, 4): 0.71, (True, 2): 0.465, (False, 4): 0.876, (False, 2): 0.68}
"""Rates of PyTorch's AdamW over the rate of copies, by whether it is fused and [B] of an element: 1.07 to
2.02 billion elements on an H200 (docs/measurements/training.md); assumed for other GPUs, too."""


def overflow_check_traffic(element: int = 2) -> int:
    """Return the memory traffic per gradient of ``element`` [B] in ZeRO-3's search for overflow [B].

    ``torch.isinf`` writes the magnitudes and compares them, ``torch.isnan`` compares gradients with
    themselves; each result is a truth value of 1 B, which ``any()`` reads (``has_overflow``, stage3.py).
    """
    return (2 * element) + 2 * (element + 1) + 2


# -- bitsandbytes --------------------------------------------------------------------------------------

BLOCK = 256
"""Number of elements that share a scale (``blocksize``; 2048 before 0.45)."""
_SMALLEST_8BIT = 4096
"""Number of elements below which states stay in single precision (``min_8bit_size``)."""
_SMALLEST_PAGED = 100_000
"""Number of elements from which a state is paged (``get_state_buffer``)."""
PAGED = "paged optimizer moments"
"""Name of the memory term of states that may be paged out."""
PAGED_OUT = "optimizer moments paged out"
"""Name of the memory term of those that are."""
PAGING_RATE = (
    "paged optimizer: the rate of page-locked copies is assumed for moments that are paged out and back; "
    "page faults, which were not measured, make it slower"
)
"""Warning about what is paged out."""


def optimizer_changes(path: tuple[str, ...], *, now: str | None) -> Iterator[Change]:
    """Yield the optimizers of bitsandbytes in place of an Adam, which is ``now``, by the edit of a key:
    paged, with 8-bit moments, and both."""
    if now is not None and now not in ("Adam", "AdamW"):
        return
    for name, how, quality in (
        ("PagedAdamW", "moments that do not fit are paged out to host memory", ""),
        ("AdamW8bit", "moments in 8 bit", STATES_8BIT),
        ("PagedAdamW8bit", "moments in 8 bit, and paged out where they do not fit", STATES_8BIT),
    ):
        kind = "precision" if quality else "setting"
        description = f"optimizer {name} of bitsandbytes ({how})"
        yield Change(kind, description, (Edit(path, name),), quality=quality)


def optimizer_script(name: str) -> str:
    """Return how a program makes an optimizer of bitsandbytes."""
    hugging_face = {"AdamW8bit": "adamw_8bit", "PagedAdamW": "paged_adamw_32bit"}.get(
        name, "paged_adamw_8bit"
    )
    return (
        f'# With Hugging Face\'s Trainer instead: TrainingArguments(optim="{hugging_face}", ...)\n'
        "import bitsandbytes as bnb\n\n"
        f"optimizer = bnb.optim.{name}(model.parameters(), lr=learning_rate)\n"
    )


def moments(numel: int, *, bits: int) -> int:
    """Return the size [B] of a tensor's moments with 8 or 32 ``bits`` for an element, and scales."""
    if bits == 8 and numel >= _SMALLEST_8BIT:
        return 2 * (numel + SINGLE * -(-numel // BLOCK))
    return 2 * SINGLE * numel


def paged(numel: int, *, bits: int) -> int:
    """Return the part of ``moments`` that is paged [B]: neither scales nor small tensors."""
    return 2 * numel * bits // 8 if numel >= _SMALLEST_PAGED else 0


def update_traffic(numel: int, *, bits: int) -> int:
    """Return the memory traffic of the one kernel that updates ``numel`` elements in single precision [B]:
    weight and moments, with their scales, are read and written, the gradient is read."""
    return 3 * SINGLE * numel + 2 * moments(numel, bits=bits)


def with_paging(held: Iterable[Held], machine: Machine, *, per_host: int) -> Iterator[Held]:
    """Yield what tiers hold at each stage, with those moments in host memory for which a GPU has no room."""
    room = machine.tiers["hbm"].capacity
    for stage, group in groupby(held, key=lambda one: one.stage):
        found = list(group)
        needed = sum(one.size for one in found if machine.row(one.tier).is_gpu)
        out = min(sum(one.size for one in found if one.name == PAGED), max(0, needed - room))
        for one in found:
            # What stays makes room for other allocations as well, so that it counts as free.
            yield one._replace(size=one.size - out, spare=True) if one.name == PAGED else one
        if out:
            yield Held("dram", PAGED_OUT, out * per_host, stage=stage)


def paged_out(held: Iterable[Held], *, per_host: int) -> int:
    """Return what one GPU pages out in a step, and back, at the stage with the largest need [B]."""
    found = (one.size for one in held if one.name == PAGED_OUT and one.stage != INITIALISATION)
    return max(found, default=0) // per_host
