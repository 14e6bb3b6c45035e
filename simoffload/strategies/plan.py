"""Phases of plans of inference and of training, and the computation of a training step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property, partial
from typing import ClassVar, Literal, NamedTuple

from simoffload.hardware import Provenance
from simoffload.models import (
    CacheForm,
    ModelShape,
    Module,
    Sequences,
    training_backward_flops,
    training_forward_flops,
)
from simoffload.results import Facts, MemoryTerm, StorageTraffic
from simoffload.schedule import Op, Schedule, ScheduleBuilder
from simoffload.strategies.base import Earlier, Phase, PhaseKind, PhaseSeries, Plan
from simoffload.strategies.cache_updates import cache_memory, layer_updates
from simoffload.strategies.kv_cache import DEFAULT, KvCache
from simoffload.strategies.pinned_pool import allocation_waits
from simoffload.strategies.streamed_cache import (
    CacheUpdate,
    Parts,
    streamed_memory,
    streamed_traffic,
    streamed_updates,
)
from simoffload.strategies.timing import PassTimings
from simoffload.workload import Inference, Training

_ALLOCATION = "new pinned memory"


class ForwardPass(NamedTuple):
    """A ForwardPass is one pass through the model."""

    name: str
    batch: tuple[Sequences, ...]
    """Sequences that each replica processes, with their new tokens and contexts."""
    first: bool = False
    """Whether it is the first pass after loading, in which DeepSpeed records its trace and does not prefetch.
    """
    loads: bool = False
    """Whether blocks of the prefixes are loaded for it."""
    stores: bool = False
    """Whether blocks are stored during it."""


PartKind = Literal["pass", "optimizer", "selected-columns", "column-selection"]
"""What a part of a training step does: a forward or backward pass, an update, or what ZenFlow adds."""


class StepPart(NamedTuple):
    """A StepPart is a part of a training step that begins and ends when the host waits for all streams."""

    phase: Literal["forward", "backward", "optimizer"]
    title: str
    """Name of the part in reports, unique within the step."""
    times: Fraction = Fraction(1)
    """How often the part occurs in one step."""
    micro_step: int = 0
    """Number of the micro-step: number 0 stores gradients, later ones add to them."""
    boundary: bool = False
    """Whether it is the last micro-step of a step, whose gradients go to the optimizer."""
    leaves_work: bool = False
    """Whether the part ends when its host thread ends, although an update on the CPU, or writes to storage,
    may continue."""
    awaits_work: bool = False
    """Whether the part waits for an update or for writes that an earlier part started."""
    kind: PartKind = "pass"
    elapsed_s: float = 0.0
    """Time of all other parts between two occurrences of this one [s], set when they have been simulated."""
    unfinished_s: float = 0.0
    """Time for which the work continues after the part that started it [s], set when that part has been
    simulated."""


class InferencePlan(Plan):
    """An InferencePlan is a plan whose phases are forward passes; subclasses list the modules and write
    passes."""

    workload: Inference
    cache: KvCache = DEFAULT
    """Where and how keys and values are kept."""
    traced: ClassVar[bool] = False
    """Whether the first pass after loading differs from later ones; ``facts.first_pass`` says why."""
    zero3: ClassVar[bool] = False
    """Whether DeepSpeed's ZeRO-3 runs the modules."""

    @property
    def host_costs(self) -> tuple[Provenance, ...]:
        """Costs of the host thread that make up most of its time; without DeepSpeed, those of operations."""
        return super().host_costs if self.zero3 else (self.machine.host.eager_costs.operation,)

    @property
    @abstractmethod
    def modules(self) -> Sequence[Module]:
        """Modules that occupy the GPU, in the order of their calls; equal layers are listed once."""

    @abstractmethod
    def schedule(self, forward: ForwardPass) -> Schedule:
        """Return the schedule of one pass."""

    def durations(self, forward: ForwardPass) -> tuple[int, ...]:
        """Return the GPU time of each module in a pass [ps]; passes of one kind differ only in these
        times."""
        return self.timings.durations(forward.batch)

    @cached_property
    def timings(self) -> PassTimings:
        """GPU times of the modules for any pass."""
        return PassTimings(
            machine=self.machine,
            model=self.model,
            modules=self.modules,
            zero3=self.zero3,
            cache=self.cache_form,
        )

    @property
    def paged_cache(self) -> bool:
        """Whether the cache is in pages, as in vLLM."""
        return False

    @property
    def cache_form(self) -> CacheForm:
        """What attention pays for the way in which keys and values are kept."""
        paged = self.paged_cache
        return self.cache.form(
            dtype_bytes=self.model.dtype_bytes,
            length=self.workload.max_context,
            paged=paged,
            expanded=self.model.latent_width is not None and not paged,
        )

    @property
    def cached_parts(self) -> Parts:
        """Parts of the model whose cache a GPU or a process keeps, each with the number of those that do."""
        return ((self.model, 1),)

    @property
    def tiers(self) -> frozenset[str]:
        """Tiers of the weights, and of a streamed cache."""
        return super().tiers | ({self.cache.tier} if self.cache.streamed else frozenset())

    @property
    def facts(self) -> Facts:
        """What a streamed cache reads and writes, and that no program has it."""
        if not self.cache.streamed:
            return Facts()
        return Facts(traffic=self._streamed_traffic, hypothetical=self.cache.hypothetical)

    @cached_property
    def _streamed_traffic(self) -> tuple[StorageTraffic, ...]:
        prompt, steps = self.workload.prompt_length, range(1, 1 + self.workload.decode_steps)
        passes = (self.forward("prefill", prompt, prompt), *map(self.decode_step, steps))
        batches = [batch for one in passes for batch in self.micro_batches(one)]
        return streamed_traffic(self.cache, self.cached_parts, batches, self.machine)

    def micro_batches(self, forward: ForwardPass) -> Sequence[tuple[Sequences, ...]]:
        """Return the parts in which a pass goes through the model, one after the other: all at once."""
        return (forward.batch,)

    def cache_memory(self, part: ModelShape, *, copies: int) -> tuple[MemoryTerm, ...]:
        """Return the memory of the cache of a GPU with ``part`` of the model, of which a host has ``copies``;
        () for a part without layers."""
        cache, work = self.cache, self.workload
        if not part.groups:
            return ()
        if cache.streamed:
            parts = self.cached_parts
            return streamed_memory(cache, part, work, self.machine, copies=copies, parts=parts)
        return cache_memory(cache, part, work, copies=copies, paged=self.paged_cache)

    def cache_updates(
        self, batch: Sequence[Sequences], part: ModelShape | None = None
    ) -> tuple[CacheUpdate | None, ...]:
        """Return what each layer moves when its cache is updated in a pass; None for a layer whose cache
        stays in HBM.

        ``part`` is the part of the model that one GPU has; by default all of it.
        """
        cache, part = self.cache, part or self.model
        if cache.streamed:
            return streamed_updates(cache, part, batch)
        return layer_updates(cache, part, batch, length=self.workload.max_context)

    def step(self, batch: Sequence[Sequences], *, name: str = "step") -> Phase:
        """Return the pass of any mixture of sequences, each with its own number of new tokens and context.

        In a prefill or a decode step all sequences have the same numbers; they differ if sequences join a
        batch while others are being generated.
        """
        return self._phase(ForwardPass(name, tuple(batch)), "decode")

    @property
    def phases(self) -> tuple[Phase | PhaseSeries, ...]:
        """Phases of the plan: a first pass if it differs from later ones, the prefill and the decode
        steps."""
        prompt, decode = self.workload.prompt_length, self.decode_step
        first = self.forward("first pass", prompt, prompt, first=True)
        waits = Phase(_ALLOCATION, "allocation", lambda _: self._allocations())
        return (
            *([self._phase(first, "first pass")] if self.traced else []),
            self._phase(self.forward("prefill", prompt, prompt), "prefill"),
            PhaseSeries(
                "decode",
                self.workload.decode_steps,
                lambda number: self._phase(decode(number), "decode"),
                lambda number: self.durations(decode(number)),
                lambda number: self._cache_transfers(decode(number)),
            ),
            *([waits] if self.allocation_waits else []),
        )

    def decode_step(self, number: int) -> ForwardPass:
        """Return a decode step, of which the first is number 1."""
        return self.forward(f"decode {number}", 1, self.workload.prompt_length + number)

    @cached_property
    def allocation_waits(self) -> Mapping[int, int]:
        """How long decode steps wait for new pinned memory of an offloaded cache [ps], by their number."""
        if not self.cache.offloaded:
            return {}

        def tensors(step: int) -> list[tuple[int, ...]]:
            ((part, _), *_) = self.cached_parts
            updates = self.cache_updates(self.decode_step(step).batch, part)
            return [one.stored for one in updates if one is not None]

        return allocation_waits(
            self.workload.decode_steps,
            tensors,
            lambda number: self.schedule(self.decode_step(number)),
            rate=self.machine.host.new_pinned_memory.value,
        )

    def _allocations(self) -> Schedule:
        """Return the waits of all decode steps for new pinned memory, as work of each host thread."""
        ranks = self.schedule(self.decode_step(1)).ranks
        builder = ScheduleBuilder(name=_ALLOCATION, ranks=ranks, streams=("host",))
        builder.add(Op("pin", _ALLOCATION, 0, sum(self.allocation_waits.values())))
        return builder.build([(one.name, one.capacity) for one in self.machine.resources])

    def _cache_transfers(self, forward: ForwardPass) -> tuple[int, ...]:
        """Return the bytes of the cache that a pass moves, in which passes of equal durations can differ."""
        if not self.cache.moves:
            return ()
        found = self.cache_updates(forward.batch)
        return tuple(one.size for one in dict.fromkeys(found) if one)

    def forward(self, name: str, new_tokens: int, context: int, *, first: bool = False) -> ForwardPass:
        """Return a pass of the workload's batch, with sequences of equal context."""
        return ForwardPass(name, (Sequences(self.workload.batch_size, new_tokens, context),), first)

    def _phase(self, one: ForwardPass, kind: PhaseKind) -> Phase:
        tokens, context = (max(values) for values in list(zip(*one.batch, strict=True))[1:])
        return Phase(one.name, kind, lambda _: self.schedule(one), tokens, context)


class StepWork(Plan):
    """StepWork is the base of plans of training: it makes the phases from the parts of a step, and counts
    FLOP."""

    model: ModelShape
    workload: Training

    @property
    @abstractmethod
    def parts(self) -> tuple[StepPart, ...]:
        """Parts of one step of a long run, in order."""

    @abstractmethod
    def schedule(self, part: StepPart, /) -> Schedule:
        """Return the schedule of one part."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Phases of one step of a long run."""
        length = self.workload.sequence_length
        others = tuple(part.title for part in self.parts if not part.awaits_work)
        return tuple(
            Phase(
                part.title,
                part.phase,
                partial(self._after, part),
                new_tokens=length,
                context=length,
                repeat=part.times,
                depends_on=others if part.awaits_work else (),
                ends_with="host" if part.leaves_work else None,
            )
            for part in self.parts
        )

    def _after(self, part: StepPart, earlier: Mapping[str, Earlier]) -> Schedule:
        """Return a part that waits for work of others, with their time and that of the unfinished work."""
        elapsed = sum(float(one.repeat / part.times) * one.time_s for one in earlier.values())
        unfinished = sum(one.unfinished_s for one in earlier.values())
        return self.schedule(part._replace(elapsed_s=elapsed, unfinished_s=unfinished))

    @property
    def facts(self) -> Facts:
        """FLOP of one step: forward, backward and recomputed."""
        return Facts(
            forward_flops=self.forward_flops,
            backward_flops=self.backward_flops,
            recomputed_flops=self.recomputed_flops,
        )

    @property
    def forward_flops(self) -> float:
        """[FLOP] of the forward passes of one step on one GPU."""
        return self.workload.gradient_accumulation_steps * sum(self._flops)

    @property
    def backward_flops(self) -> float:
        """[FLOP] of the backward passes of one step on one GPU, without recomputation."""
        work = self.workload
        once = training_backward_flops(self.model, batch=work.batch_size, length=work.sequence_length)
        return work.gradient_accumulation_steps * once

    @property
    def recomputed_flops(self) -> float:
        """[FLOP] that checkpointing computes again in one step on one GPU."""
        again = self._flops[0] if self.workload.gradient_checkpointing else 0.0
        return self.workload.gradient_accumulation_steps * again

    @property
    def _flops(self) -> tuple[float, float]:
        work = self.workload
        return training_forward_flops(self.model, batch=work.batch_size, length=work.sequence_length)
