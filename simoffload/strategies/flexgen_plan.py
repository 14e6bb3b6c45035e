"""FlexGen as a plan: memory of each tier, GPU times of its kernels, and phases.

Reference: FMInference/FlexLLMGen@004ffef, ``flexllmgen/pytorch_backend.py`` (``mha``, ``mha_gen``, ``mlp``,
``opt_output_embed``, the copy threads) and ``compression.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from simoffload.hardware import Machine, Provenance
from simoffload.models import ModelShape, Module, ModuleCost, Sequences
from simoffload.results import Facts, MemoryStage, MemoryTerm
from simoffload.schedule import Schedule
from simoffload.strategies.base import Plan
from simoffload.strategies.extrapolation import arithmetic_beyond
from simoffload.strategies.flexgen_kernels import (
    EXPAND_CACHE,
    EXPAND_WEIGHT,
    PAD,
    SQUEEZE_KEYS,
    SQUEEZE_VALUES,
    kernels_s,
)
from simoffload.strategies.flexgen_layout import (
    GROUP,
    BlockSlot,
    BlockSlots,
    FlexGenOptions,
    Home,
    compressed_sizes,
    sequences_on_gpu,
    slots_of,
)
from simoffload.strategies.flexgen_traffic import disk_traffic
from simoffload.strategies.flexgen_writer import FlexGenWriter
from simoffload.strategies.memory import pinned_rounding, system_memory
from simoffload.strategies.passes.pass_writer import ForwardPass
from simoffload.strategies.plan import InferencePlan
from simoffload.strategies.resident import ResidentPlan
from simoffload.strategies.terms import Tunable
from simoffload.strategies.timing import PassTimings, Timing, picoseconds
from simoffload.units import format_bytes
from simoffload.workload import Inference

_RELAY = 4 * (2 << 30)
"""[B] of the pinned buffers of the four copy threads: each has 2^30 elements of 16 bit."""
_SCORE_BYTES = 12
"""[B] moved for each score: product written, masked and softmax (each read and written), times values
(read), all in 16 bit."""
_SCORES_HELD = 2
"""Copies of the scores that are held at once: before and after the mask, or the softmax."""
_FEWER = "lower weights_gpu_percent"
_SPLIT = "raise gpu_batches or lower batch_size"


class _FlexGenTiming(Timing):
    """A _FlexGenTiming has FlexGen's attention, whose speed was not measured, in place of transformers'."""

    _cached = False
    attended: Callable[[int], int] = int
    """Function from the number of sequences to that of those to which the GPU attends in a decode step."""

    def cost(self, module: Module) -> ModuleCost:
        """Return FLOP and HBM bytes of one call of ``module``; attention computes all scores and masks them,
        and does not copy the cache."""
        if module.kind != "attention":
            return super().cost(module)
        total = ModuleCost(0.0, 0.0)
        for one in self._batch:
            total = ModuleCost(*map(sum, zip(total, self._attention(one), strict=True)))
        return total

    def _attention(self, one: Sequences) -> ModuleCost:
        model, (number, new, context) = self._model, one
        hidden, size = model.hidden_size, model.dtype_bytes
        tokens = number * new
        # Queries are scaled; queries, keys, values and the result are copied to other layouts.
        copied = 10 * tokens * hidden * size
        number = number if new == context else self.attended(number)
        scores = number * model.num_attention_heads * new * context
        read = 2 * number * (new + context) * hidden * size
        return ModuleCost(4.0 * scores * model.head_dim, float(copied + read + _SCORE_BYTES * scores))

    def _attention_s(self, module: Module, cost: ModuleCost, *, backward: bool) -> float | None:  # noqa: ARG002
        return None


class _Timings(PassTimings):
    """_Timings are the durations of a model's modules in FlexGen's code."""

    attended: Callable[[int], int] = int

    def timing(self, batch: tuple[Sequences, ...]) -> Timing:
        """Return the timing of one GPU batch."""
        found = _FlexGenTiming(machine=self._machine, model=self._model, batch=batch, zero3=False)
        found.attended = self.attended
        return found


class CacheParts(NamedTuple):
    """CacheParts are the elements of keys, and of values, of one layer and GPU batch, by their home."""

    gpu: int
    cpu: int
    disk: int

    @property
    def offloaded(self) -> int:
        """Elements that are not on the GPU."""
        return self.cpu + self.disk


@dataclass(frozen=True)
class FlexGenPlan(InferencePlan):
    """A FlexGenPlan is the plan of FlexGen for one model on one machine."""

    model: ModelShape
    workload: Inference
    machine: Machine
    options: FlexGenOptions

    @cached_property
    def slots(self) -> BlockSlots:
        """Slots that a pass goes through."""
        return slots_of(self.model, self.options)

    @property
    def modules(self) -> tuple[Module, ...]:
        """Modules of all slots; those of a layer are listed once."""
        return tuple(module for slot, _ in self.slots.kinds for module in slot.modules)

    @cached_property
    def timings(self) -> PassTimings:
        """GPU times of the modules for one GPU batch."""
        found = _Timings(machine=self.machine, model=self.model, modules=self.modules, zero3=False)
        found.attended = self._attended_on_gpu
        return found

    def _attended_on_gpu(self, sequences: int) -> int:
        """Return to how many sequences of a GPU batch the GPU attends: without attention on the CPU to all,
        otherwise to those whose cache it has, if others have it elsewhere."""
        if not self.options.cpu_attention:
            return sequences
        gpu, cpu, disk = sequences_on_gpu(self.options.cache, sequences)
        return gpu if cpu + disk else 0

    # -- one GPU batch --------------------------------------------------------------------------

    @property
    def gpu_batch_size(self) -> int:
        """Number of sequences of a GPU batch."""
        return self.workload.batch_size // self.options.gpu_batches

    def of_gpu_batch(self, batch: Sequence[Sequences]) -> tuple[Sequences, ...]:
        """Return the sequences of one GPU batch of a block, rounded up."""
        return tuple(one._replace(number=-(-one.number // self.options.gpu_batches)) for one in batch)

    def cache_parts(self, batch: Sequence[Sequences], *, less: int = 0) -> CacheParts:
        """Return the elements of keys (or of values) that a GPU batch has in one layer, without the last
        ``less`` positions."""
        parts = [0, 0, 0]
        for one in batch:
            numbers = sequences_on_gpu(self.options.cache, one.number)
            each = (one.context - less) * self.model.hidden_size
            parts = [total + number * each for total, number in zip(parts, numbers, strict=True)]
        return CacheParts(*parts)

    def compute_ps(self, slot: BlockSlot, times: dict[Module, int], batch: Sequence[Sequences]) -> int:
        """Return the GPU time [ps] of a slot for one GPU batch, with weights and cache that are compressed or
        expanded."""
        gpu, options = self.machine.accelerator, self.options
        work = [(EXPAND_WEIGHT, one.numel) for one in slot.expanded]
        if slot.attends and options.compress_cache:
            new = sum(one.number * one.new_tokens for one in batch) * self.model.hidden_size
            prefill = self.is_prefill(batch)
            padded = self.padded(new)
            work += [(SQUEEZE_KEYS if prefill else SQUEEZE_VALUES, padded), (SQUEEZE_VALUES, padded)]
            work += [(PAD, new)] * 2 if padded > new else []
            if not prefill and not options.cpu_attention:
                # What is on the GPU is expanded with the room for all tokens.
                cached = sum(self.cache_parts(self._full(batch) if options.cache.home == "gpu" else batch))
                padded = self.padded(cached)
                work += [(EXPAND_CACHE, padded)] * 2
                work += [(PAD, cached)] * 2 if padded > cached else []
        seconds = sum(kernels_s(kernels, numel, gpu) for kernels, numel in work)
        return sum(times[one] for one in slot.modules) + picoseconds(seconds)

    def _full(self, batch: Sequence[Sequences]) -> tuple[Sequences, ...]:
        most = self.workload.max_context
        return tuple(one._replace(context=max(one.context, most)) for one in batch)

    @staticmethod
    def is_prefill(batch: Sequence[Sequences]) -> bool:
        """Return whether there is no cache yet."""
        return all(one.new_tokens == one.context for one in batch)

    def durations(self, forward: ForwardPass) -> tuple[int, ...]:
        """Return the GPU time of each module for a GPU batch [ps], and last the elements of its cache, in
        which decode steps differ wherever the CPU computes attention or copies it."""
        batch = self.of_gpu_batch(forward.batch)
        return (*self.timings.durations(batch), sum(self.cache_parts(batch)))

    def schedule(self, forward: ForwardPass) -> Schedule:
        """Return the schedule of one pass of the block."""
        return FlexGenWriter(self, forward).written()

    # -- places ---------------------------------------------------------------------------------

    @property
    def target(self) -> str:
        """Tier that holds weights, the slowest if there are several."""
        if self.slots.weight_bytes("disk"):
            return self.options.disk
        return "dram" if self.slots.weight_bytes("cpu") else "hbm"

    @property
    def tiers(self) -> frozenset[str]:
        """All tiers that hold weights, cache or hidden states."""
        names: dict[Home, str] = {"gpu": "hbm", "cpu": "dram", "disk": self.options.disk}
        homes = {one.home for one, _ in self.slots.tensors} | {self.options.activations}
        cache = sequences_on_gpu(self.options.cache, self.gpu_batch_size)
        order: tuple[Home, ...] = ("gpu", "cpu", "disk")
        homes |= {home for home, number in zip(order, cache, strict=True) if number}
        return frozenset(names[home] for home in homes)

    @property
    def whole_copies(self) -> Plan | None:
        """Return the plan with all weights on the GPU; None if they are."""
        if self.target == "hbm":
            return None
        return ResidentPlan(model=self.model, workload=self.workload, machine=self.machine, ranks=1)

    @property
    def movable(self) -> tuple[int, str]:
        """Size [B] and name of the weights, with the second copy of the embedding."""
        return sum(count * one.size for one, count in self.slots.tensors), "weights"

    @property
    def facts(self) -> Facts:
        """Facts of the plan: the traffic of the disk."""
        return Facts(traffic=disk_traffic(self))

    @property
    def host_costs(self) -> tuple[Provenance, ...]:
        """Costs of operations, and the rate at which the CPU copies."""
        return (self.machine.host.eager_costs.operation,)

    @cached_property
    def cached(self) -> bool:
        """Whether the files on disk are in the page cache after the first pass."""
        if self.options.page_cache is not None:
            return self.options.page_cache
        needed = sum(term.size for term in self.memory if term.tier in ("dram", self.options.disk))
        return needed <= self.machine.tiers["dram"].capacity

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """Warnings about what is assumed of the page cache."""
        files = sum(term.size for term in self.memory if term.tier == self.options.disk)
        if not files or self.options.page_cache is not None:
            return ()
        text = f"{format_bytes(files)} of files on {self.options.disk}"
        if self.cached:
            return (f"{text} are read from the page cache in host memory; the first pass is slower",)
        return (f"{text} do not stay in the page cache: every pass reads and writes the drive",)

    @property
    def extrapolations(self) -> tuple[str, ...]:
        """Warnings about numbers used outside the range in which they were measured."""
        batch = self.workload.model_copy(update={"batch_size": self.gpu_batch_size})
        return tuple(arithmetic_beyond(self.model, batch, self.machine))

    # -- memory ---------------------------------------------------------------------------------

    def tunables(self) -> Iterator[Tunable]:
        """Yield larger numbers of GPU batches, which divide the block."""
        block, now = self.workload.batch_size, self.options.gpu_batches
        divisors = [one for one in range(now + 1, block + 1) if block % one == 0]
        yield Tunable("gpu_batches", ("strategy", "gpu_batches"), now, (divisors,))

    @property
    def memory_stages(self) -> tuple[MemoryStage, ...]:
        """Memory that each tier must hold while tokens are generated."""
        return (MemoryStage("", self.memory),)

    @cached_property
    def memory(self) -> tuple[MemoryTerm, ...]:
        """Memory that each tier must hold at its peak."""
        return (*self._on_gpu(), *self._in_host(), *self._on_disk())

    def cache_bytes(self, home: int, context: int) -> int:
        """Return the size [B] of keys and values of ``context`` tokens in one home (0: GPU, 1: host memory,
        2: disk), of all layers and GPU batches."""
        batch = (Sequences(self.gpu_batch_size, 1, context),)
        parts = self.cache_parts(batch)[home]
        return 2 * sum(self.cache_sizes(parts)) * self.slots.layers * self.options.gpu_batches

    def padded(self, elements: int) -> int:
        """Return the number of ``elements`` of keys, or of values, with what fills each head up to whole
        groups in 4 bits (``TorchCompressedDevice.allocate``, ``group_dim`` 2)."""
        if not self.options.compress_cache:
            return elements
        head = self.model.head_dim
        return elements * (-(-head // GROUP) * GROUP) // head

    def cache_sizes(self, elements: int) -> tuple[int, ...]:
        """Return the sizes [B] of the tensors that hold ``elements`` of keys, or of values."""
        if not self.options.compress_cache:
            return (elements * self.model.dtype_bytes,)
        return compressed_sizes(self.padded(elements) // GROUP)

    @property
    def _hidden(self) -> int:
        """Size [B] of the hidden states of the prompts of one GPU batch."""
        work = self.workload
        return self.gpu_batch_size * work.prompt_length * self.model.hidden_size * self.model.dtype_bytes

    def _on_gpu(self) -> tuple[MemoryTerm, ...]:
        options, model, slots = self.options, self.model, self.slots
        most = self.workload.max_context
        order = (slots.first, *slots.layer, *slots.layer, slots.last)
        pairs = [one.loaded_bytes + two.loaded_bytes for one, two in pairwise(order)]
        expanded = max(model.dtype_bytes * sum(one.numel for one in slot.expanded) for slot in order)
        parts = self.cache_parts((Sequences(self.gpu_batch_size, 1, most),))
        loaded = 0 if options.cpu_attention else 2 * 2 * sum(self.cache_sizes(parts.offloaded))
        if options.compress_cache and not options.cpu_attention:
            cached, padded = sum(parts), self.padded(sum(parts))
            loaded += (2 * cached + (padded if padded > cached else 0)) * model.dtype_bytes
        # Keys and values of the prompt, of this GPU batch and of the one whose are being stored.
        prompt = self._hidden // model.dtype_bytes
        written = (2 if options.overlap else 1) * 2 * sum(self.cache_sizes(prompt))
        kept = options.gpu_batches if options.activations == "gpu" else 3
        terms = (
            ("weights", slots.weight_bytes("gpu"), _FEWER),
            ("weights in use and of the next slot", max(pairs), _FEWER),
            ("weights written in full", expanded, ""),
            (
                "key-value cache",
                self.cache_bytes(0, most),
                "lower cache_gpu_percent, batch_size or prompt_length",
            ),
            ("cache in use and new", max(loaded, written), _SPLIT),
            ("hidden states", kept * self._hidden, _SPLIT),
            ("activations", self._activations(), _SPLIT),
            ("CUDA context and workspace", self.machine.accelerator.reserved_bytes, ""),
        )
        return tuple(MemoryTerm("hbm", name, size, remedy=why) for name, size, why in terms if size)

    def _activations(self) -> int:
        """Return the peak of a slot of the prefill [B]: scores, intermediates of the MLP, or logits of all
        positions."""
        model, prompt, size = self.model, self.workload.prompt_length, self.model.dtype_bytes
        tokens = self.gpu_batch_size * prompt
        scores = _SCORES_HELD * tokens * prompt * model.num_attention_heads * size + 4 * self._hidden
        return max(scores, 2 * tokens * model.intermediate_size * size, tokens * model.vocab_size * size)

    def _in_host(self) -> tuple[MemoryTerm, ...]:
        options, slots = self.options, self.slots
        here = [(one, count) for one, count in slots.tensors if one.home == "cpu"]
        sizes = [size for one, count in here if one.pinned for size in one.sizes * count]
        sizes += [self._hidden] * (options.gpu_batches if options.activations == "cpu" else 0)
        pageable = sum(count * one.size for one, count in here if not one.pinned)
        workspace = 0
        if options.cpu_attention:  # keys and values of one GPU batch in single precision
            batch = (Sequences(self.gpu_batch_size, 1, self.workload.max_context),)
            workspace = 2 * 4 * self.padded(sum(self.cache_parts(batch)))
        held = self._hidden * options.gpu_batches if options.activations == "cpu" else 0
        terms = (
            ("weights", slots.weight_bytes("cpu") - pageable, True),
            ("pageable weights", pageable, False),
            ("key-value cache", self.cache_bytes(1, self.workload.max_context), False),
            ("hidden states", held, True),
            ("rounding of pinned allocations", pinned_rounding(sizes), True),
            ("buffers of the copy threads", _RELAY, True),
            ("workspace of attention on the CPU", workspace, False),
        )
        named = (MemoryTerm("dram", name, size, pinned=pin) for name, size, pin in terms if size)
        return (*named, system_memory(self.machine))

    def _on_disk(self) -> tuple[MemoryTerm, ...]:
        options = self.options
        held = self._hidden * options.gpu_batches if options.activations == "disk" else 0
        terms = (
            ("weights", self.slots.weight_bytes("disk")),
            ("key-value cache", self.cache_bytes(2, self.workload.max_context)),
            ("hidden states", held),
        )
        return tuple(MemoryTerm(options.disk, name, size) for name, size in terms if size)
