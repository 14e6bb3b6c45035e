"""Phases of plans of inference and of training, and the computation of a training step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, partial
from itertools import chain
from typing import ClassVar, Literal, NamedTuple

from simoffload.models import (
    CacheForm,
    ModelShape,
    Module,
    Sequences,
    training_backward_flops,
    training_forward_flops,
)
from simoffload.results import Facts
from simoffload.schedule import Device, Op, Schedule, ScheduleBuilder
from simoffload.strategies.base import Earlier, EvidenceBasis, Held, Phase, PhaseKind, PhaseSeries, Plan
from simoffload.strategies.cache.cache_updates import (
    AttentionOnCpu,
    CacheUpdate,
    MovedCache,
    Parts,
    allocation_waits,
    cache_memory,
    cpu_attention,
    cpu_attention_memory,
    layer_updates,
    streamed_memory,
    streamed_traffic,
    streamed_updates,
)
from simoffload.strategies.cache.hot_rows import GatheredRows, hot_parts
from simoffload.strategies.cache.kv_cache import DEFAULT, BlockMoves, KvCache, PagedBlocks, block_phases
from simoffload.strategies.divided import Degrees, DividedModel, divide
from simoffload.strategies.hooks.parallel import Collectives, CompiledCode, Pipeline
from simoffload.strategies.memory import working_memory
from simoffload.strategies.passes.pass_writer import (
    ForwardPass,
    Hook,
    Part,
    PassWriter,
    Routes,
    StagePass,
    parts_of,
)
from simoffload.strategies.passes.timing import (
    CAPTURED,
    FusedPassTimings,
    GeneratedPassTimings,
    LaunchedPassTimings,
    PassTimings,
    TrainingTiming,
    arithmetic_beyond,
)
from simoffload.workload import Inference, Training

_ALLOCATION = "new pinned memory"


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


def _of_context(held: Held) -> Held:
    """Return memory with a remedy that names the room that a scenario asks for, if it can shrink."""
    begin = "lower batch_size"
    return held._replace(remedy=held.remedy.replace(begin, "lower context, batch_size", 1))


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
    generates: ClassVar[bool] = False
    """Whether experts are multiplied as transformers' ``generate`` does it."""
    degrees: Degrees = Degrees(1, 1, 1)
    """Numbers of GPUs that share a layer, of stages, and of replicas."""
    compiled: bool = False
    """Whether kernels are launched as CUDA graphs."""
    driven: int = 1
    """Number of GPUs that one process drives."""
    fewer: ClassVar[str] = ""
    """Remedy for too many weights on a GPU."""

    @property
    def drafter(self) -> ModelShape | None:
        """Model that proposes tokens, of which a method has one; None without speculative decoding."""
        speculation = self.workload.speculation
        if speculation is None or speculation.method == "ngram":
            return None
        return self.model.draft_model or self.model.mtp

    @cached_property
    def drafting(self) -> InferencePlan | None:
        """Plan of the model that proposes tokens, without speculation; None if there is none."""
        if self.drafter is None:
            return None
        return self.draft_plan(self.drafter, self.workload.model_copy(update={"speculation": None}))

    def draft_plan(self, drafter: ModelShape, workload: Inference) -> InferencePlan:
        """Return the plan of a model that proposes tokens: eager code, and all of it in HBM of each rank."""
        from simoffload.strategies.programs.transformers import ResidentPlan

        return ResidentPlan(drafter, workload, self.machine, self.degrees.ranks)

    @property
    def drafts_first(self) -> int:
        """Number of tokens that the first pass of a draft feeds in."""
        return 1

    def drafts(self, batch: Sequence[Sequences]) -> Iterator[tuple[tuple[Sequences, ...], int]]:
        """Yield the passes of the model that proposes tokens beside a step of some sequences, each with how
        often it occurs: it feeds in prompts, and then one proposed token of each sequence after the other.

        The passes after the first are represented by their mean context.
        """
        count, first = self.workload.proposed, self.drafts_first
        prompts = [one for one in batch if not one.decodes]
        steps = [
            one._replace(context=one.context - count, new_tokens=1, scored=1) for one in batch if one.decodes
        ]
        if prompts or first > 1:
            fed = [
                one._replace(new_tokens=first, scored=first, context=max(first, one.context)) for one in steps
            ]
            yield (*prompts, *fed), 1
            count -= 1
            steps = [one._replace(context=one.context + 1) for one in steps]
        if count and steps:
            yield tuple([one._replace(context=one.context + (count - 1) // 2) for one in steps]), count

    def draft_passes(self, batch: Sequence[Sequences]) -> Iterator[tuple[Phase, int]]:
        """Yield the passes of the model that proposes tokens beside a step of some sequences, each with how
        often it occurs; none without one."""
        if (draft := self.drafting) is not None:
            for fed, times in self.drafts(batch):
                yield draft.phase_of(ForwardPass("draft", fed, proposes=True), "draft"), times

    @property
    def _held_by_draft(self) -> Iterator[Held]:
        """What proposed tokens add: weights and cache of the model that proposes them, and the states after
        each of them, to go back to the last accepted one (``num_speculative_blocks`` of vLLM's
        ``MambaSpec``)."""
        draft, more = self.drafting, self.workload.batch_size * self.workload.proposed
        if size := more * self.fullest.state_bytes:
            yield Held("hbm", "states of proposed tokens", size, remedy="lower batch_size")
        for one in () if draft is None else draft.held:
            if one.kind == "weights":
                size = one.size * (len(self.model.predictors) if self.drafter is self.model.mtp else 1)
                yield one._replace(name=f"draft: {one.name}", size=size, kind="working")
            elif one.kind == "cache" and not self.shares_blocks:
                yield one._replace(name=f"draft: {one.name}", kind="working")

    @property
    def shares_blocks(self) -> bool:
        """Whether the cache of a draft is in blocks of the model's own."""
        return False

    @cached_property
    def basis(self) -> EvidenceBasis:
        """Numbers and runs on which its times rest: of the host thread, without DeepSpeed, operations."""
        costs = super().basis.host_costs if self.zero3 else (self.machine.host.eager_costs.operation,)
        more = tuple(self._extrapolations())
        return EvidenceBasis(host_costs=costs, extrapolations=more, uncompared=self.speculates)

    @property
    def speculates(self) -> tuple[str, ...]:
        """What no real run with which predictions were compared did, if tokens are proposed."""
        return () if self.workload.speculation is None else ("verified proposed tokens",)

    def _extrapolations(self) -> Iterable[str]:
        """Return warnings about numbers used outside the range in which they were measured."""
        return arithmetic_beyond(self.stages[-1], self.workload, self.machine)

    @property
    def modules(self) -> Sequence[Module]:
        """Modules of all stages that occupy the GPU, in the order of their calls; equal layers of a stage are
        listed once."""
        return tuple(module for stage in self.stages for module in stage.distinct_modules)

    @property
    def asynchronous(self) -> bool:
        """Whether a step is prepared and launched before the tokens of the one before are taken."""
        return False

    @property
    def fused(self) -> bool:
        """Whether kernels are fused, as those of vLLM and of compiled code are, whose cache is in pages."""
        return self.compiled

    @cached_property
    def divided(self) -> DividedModel:
        """Part of the model on one GPU of each stage. Raises InputError if there are no equal parts."""
        tensor, pipeline, _ = self.degrees
        return divide(self.model, tensor=tensor, pipeline=pipeline, fused=self.fused)

    @property
    def stages(self) -> tuple[ModelShape, ...]:
        """Part of the model on a GPU of each stage."""
        return self.divided.stages

    @property
    def captured(self) -> int:
        """Most tokens of a pass for which CUDA graphs are captured."""
        return CAPTURED

    @cached_property
    def stage_timings(self) -> tuple[PassTimings, ...]:
        """GPU times of the modules of each stage for any pass."""
        fused = FusedPassTimings if self.compiled else LaunchedPassTimings
        several = len(self.stages) > 1
        eager = GeneratedPassTimings if self.generates else PassTimings
        kind = partial(fused, captured=self.captured) if self.fused else eager
        return tuple(
            kind(
                machine=self.machine,
                model=stage,
                modules=stage.distinct_modules if several else self.modules,
                zero3=self.zero3,
                cache=self.cache_form,
            )
            for stage in self.stages
        )

    @property
    def layer_gpus(self) -> Sequence[int]:
        """Number of the GPU of each layer, if a process drives several; () if it has one."""
        return ()

    @property
    def main(self) -> int:
        """Number of the GPU of a process that has the streams of hooks."""
        return 0

    # -- schedules ------------------------------------------------------------------------------

    def weights_hooks(self, _forward: ForwardPass) -> Sequence[Hook]:
        """Return the hooks that bring weights to the GPUs in a pass; none if all are there."""
        return ()

    def hooks(self, forward: ForwardPass) -> tuple[Hook, ...]:
        """Return all hooks of a pass: also those of exchanges among GPUs, and of compiled code."""
        code = CompiledCode(self, forward) if self.compiled else None
        return (
            *([Collectives(self, code)] if self.degrees.tensor > 1 else ()),
            *([Pipeline(self, code)] if self.degrees.pipeline > 1 else ()),
            *self.weights_hooks(forward),
            *self.cache_hooks(forward),
            *([code] if code is not None else ()),
        )

    def cache_hooks(self, forward: ForwardPass) -> tuple[Hook, ...]:
        """Return the hooks that move the key-value cache in a pass."""

        def updates(one: StagePass) -> Sequence[CacheUpdate | None]:
            return self.cache_updates(one.batch, self.stages[one.stage])

        found, moves = list[Hook](), self.block_moves
        if moves is not None:
            begun = self.compiled or self.zero3  # the overhead of a pass is not at its end
            found.append(PagedBlocks(moves, forward, compiled=begun))
        if self.cache.moves:
            found.append(MovedCache(self.cache, updates, self.machine, gpus=self.layer_gpus, main=self.main))
        if self.cache.attends_on_cpu:
            found.append(AttentionOnCpu(self.cache, self.stages))
        if self.cache.hot_buffer is not None:
            found.append(GatheredRows(self.cache.hot_buffer, self.stages, self.element_bytes))
        return tuple(found)

    @property
    def element_bytes(self) -> float:
        """Size of an element of the cache [B]."""
        return self.cache.element_bytes(self.model.dtype_bytes)

    @cached_property
    def _parts(self) -> tuple[tuple[Part, ...], ...]:
        """Parts of a pass through each stage."""
        return tuple(map(parts_of, self.stages))

    @cached_property
    def _routes(self) -> Routes:
        """Routes of transfers that were asked for."""
        return {}

    def _writer(self, name: str, hooks: Sequence[Hook]) -> PassWriter:
        """Return the driver of a pass. A process that drives several GPUs has the streams of hooks on its
        main one."""
        (tensor, stages, replicas), main, count = self.degrees, self.main, self.driven
        ranks = range(tensor * replicas)
        gpus = [[main + self.degrees.gpu(stage, rank) for rank in ranks] for stage in range(stages)]
        own = (*range(count), *[main for hook in hooks for _ in hook.streams])
        return PassWriter(
            name=name,
            machine=self.machine,
            hooks=hooks,
            gpus=gpus,
            compute=count,
            routes=self._routes,
            devices=(Device("host thread"), *[Device("GPU", gpu) for gpu in own]) if count > 1 else (),
        )

    def schedule(self, forward: ForwardPass) -> Schedule:
        """Return the schedule of a pass: each micro-batch goes through one stage after the other."""
        return self._writer(forward.name, self.hooks(forward)).write(
            [
                StagePass(self._parts[stage], timings.timing(self.on_gpu(batch)), batch, stage)
                for batch in self.micro_batches(forward)
                for stage, timings in enumerate(self.stage_timings)
            ]
        )

    def _transfers(self, forward: ForwardPass) -> Schedule:
        """Return the schedule of the blocks that a pass moves, without the pass itself."""
        assert self.block_moves is not None
        blocks = PagedBlocks(self.block_moves, forward, compiled=self.compiled)
        out = self._writer(forward.name, (blocks,))
        blocks.alone(out)
        return out.build()

    @cached_property
    def block_moves(self) -> BlockMoves | None:
        """Blocks that the connector of the cache moves; None without one."""
        connector = self.cache.connector
        if connector is None:
            return None
        element = int(self.cache.element_bytes(self.model.dtype_bytes))
        return BlockMoves(connector, self.stages, self.degrees, self.workload, self.machine, element)

    def durations(self, forward: ForwardPass) -> tuple[int, ...]:
        """Return the GPU time of each module of each stage for each micro-batch of a pass [ps]; passes of one
        kind differ only in these times."""
        batches = map(self.on_gpu, self.micro_batches(forward))
        times = [one.durations(batch) for batch in batches for one in self.stage_timings]
        return tuple(chain.from_iterable(times))

    def on_gpu(self, batch: tuple[Sequences, ...]) -> tuple[Sequences, ...]:
        """Return the sequences as the GPU computes them: without earlier tokens, if the CPU attends to
        these."""
        if not self.cache.attends_on_cpu:
            return batch
        return tuple(one._replace(context=one.new_tokens) for one in batch)

    @property
    def timings(self) -> PassTimings:
        """GPU times of the modules of the first stage."""
        return self.stage_timings[0]

    @cached_property
    def cache_form(self) -> CacheForm:
        """What attention pays for the way in which keys and values are kept."""
        paged = self.fused
        return self.cache.form(
            dtype_bytes=self.model.dtype_bytes,
            length=self.workload.room,
            paged=paged,
            expanded=self.model.latent_width is not None and not paged,
        )

    @property
    def cached_parts(self) -> Parts:
        """Parts of the model whose cache a GPU keeps, each with the number of those that do."""
        tensor, _, replicas = self.degrees
        return tuple((stage, tensor * replicas) for stage in self.stages)

    @property
    def facts(self) -> Facts:
        """What the plan does with its cache that no program does."""
        return Facts(hypothetical=self.cache.hypothetical(paged=self.fused, attends=self.zero3))

    # -- what tiers hold ------------------------------------------------------------------------

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """Weights in their homes, what hooks hold beside them, and working memory with that of the cache."""
        return (*self.held_weights, *self.held_by_hooks, *self.working_memory(self.fullest))

    @property
    def fullest(self) -> ModelShape:
        """Part of the model on the GPUs that need most memory: those of the stage with most weights."""
        return max(self.stages, key=lambda one: one.weight_bytes)

    @property
    def held_weights(self) -> Iterable[Held]:
        """Weights in the homes of their tensors: all of those of the fullest GPUs, in HBM."""
        yield Held("hbm", "weights", self.fullest.weight_bytes, remedy=self.fewer, kind="weights")

    @property
    def held_by_hooks(self) -> Iterator[Held]:
        """What the hooks of a prefill hold beside the weights, in host memory for all processes of a host."""
        copies, prompt = self.machine.ranks_per_node(self.degrees.ranks), self.workload.prompt_length
        for hook in self.weights_hooks(self.forward("prefill", prompt, prompt)):
            for one in hook.holds():
                memory = self.machine.tiers[one.tier].row.is_host
                yield one._replace(size=copies * one.size) if memory else one

    def _streamed_traffic(self) -> tuple[int, int]:
        """Return what a generation reads from a streamed cache and writes to it [B]."""
        prompt, steps = self.workload.prompt_length, range(1, 1 + self.workload.decode_steps)
        passes = (self.forward("prefill", prompt, prompt), *map(self.decode_step, steps))
        batches = [batch for one in passes for batch in self.micro_batches(one)]
        return streamed_traffic(self.cache, self.cached_parts, batches, self.machine)

    def micro_batches(self, forward: ForwardPass) -> Sequence[tuple[Sequences, ...]]:
        """Return the parts in which a pass goes through the stages, one after the other: several only in a
        prefill."""
        count = min(self.degrees.pipeline, (first := forward.batch[0]).number)
        if len(forward.batch) > 1 or (first.new_tokens < first.context and not forward.loads):
            return [forward.batch]
        each, more = divmod(first.number, count)
        return [(first._replace(number=each + (part < more)),) for part in range(count)]

    def cache_memory(self, shard: ModelShape, *, copies: int) -> tuple[Held, ...]:
        """Return the memory of the cache of a GPU with a ``shard`` of the model, of which a host has
        ``copies``; () for one without layers."""
        cache, work = self.cache, self.workload.filled
        if not shard.groups:
            return ()
        if cache.streamed:
            parts, moving = self.cached_parts, self._streamed_traffic
            return streamed_memory(
                cache, shard, work, self.machine, copies=copies, parts=parts, traffic=moving
            )
        if cache.attends_on_cpu:
            return cpu_attention_memory(cache, shard, work, copies=copies)
        found = cache_memory(cache, shard, work, copies=copies, paged=self.fused)
        return found if work is self.workload else tuple(map(_of_context, found))

    def working_memory(self, shard: ModelShape, cache: tuple[Held, ...] | None = None) -> tuple[Held, ...]:
        """Return the memory that a GPU with a ``shard`` of the model needs beside weights, and its share of
        that of the host and of other tiers; with a given one of the ``cache``, or by default the shard's."""
        moves, work = self.block_moves, self.workload
        if moves is not None:  # activations are those of the tokens that are computed
            rest = work.prompt_length - moves.connector.loaded
            work = work.model_copy(update={"prompt_length": rest})
        if cache is None:
            cache = self.cache_memory(shard, copies=self.machine.ranks_per_node(self.degrees.ranks))
        more = moves.memory if moves is not None else ()
        return (*self._working_memory(shard, work, cache), *more, *self._held_by_draft)

    def _working_memory(
        self, shard: ModelShape, workload: Inference, cache: tuple[Held, ...]
    ) -> tuple[Held, ...]:
        """Return the memory of a workload beside weights and blocks, with a given one of the ``cache``."""
        copies = self.generates and workload.decode_steps > 0
        return working_memory(shard, workload, self.machine, cache=cache, fused=self.fused, copies=copies)

    def cache_updates(
        self, batch: Sequence[Sequences], shard: ModelShape | None = None
    ) -> tuple[CacheUpdate | None, ...]:
        """Return what each layer moves when its cache is updated in a pass; None for a layer whose cache
        stays in HBM.

        ``part`` is the part of the model that one GPU has; by default all of it.
        """
        cache, shard = self.cache, shard or self.model
        if cache.streamed:
            return streamed_updates(cache, shard, batch)
        return layer_updates(cache, shard, batch, length=self.workload.room)

    def step(self, batch: Sequence[Sequences], *, name: str = "step") -> Phase:
        """Return the pass of any mixture of sequences, each with its own number of new tokens and context.

        In a prefill or a decode step all sequences have the same numbers; they differ if sequences join a
        batch while others are being generated.
        """
        return self.phase_of(ForwardPass(name, tuple(batch)), "decode")

    @property
    def phases(self) -> tuple[Phase | PhaseSeries, ...]:
        """Phases of the plan: a first pass if it differs from later ones, the prefill and the decode steps;
        with a connector, also the loads and stores of blocks alone; with speculative decoding, the passes of
        the draft, too, which begin when the step before has its tokens."""
        prompt, decode = self.workload.prompt_length, self.decode_step
        first = self.forward("first pass", prompt, prompt, first=True)
        prefill, alone = self.forward("prefill", prompt, prompt), tuple[Phase, ...]()
        if (moves := self.block_moves) is not None:
            prefill, *others = block_phases(moves, self._transfers)
            alone = tuple(others)
        prefill = prefill._replace(followed=self.asynchronous and self.workload.decode_steps > 0)
        waits = Phase(_ALLOCATION, "allocation", lambda _: self._allocations())
        return (
            *([self.phase_of(first, "first pass")] if self.traced else []),
            self.phase_of(prefill, "prefill"),
            *alone,
            PhaseSeries(
                "decode",
                self.workload.decode_steps,
                lambda number: self.phase_of(decode(number), "decode"),
                lambda number: self.durations(decode(number)),
                lambda number: self._cache_transfers(decode(number)),
            ),
            *([waits] if self.allocation_waits else []),
            *self._draft_phases(),
        )

    def _draft_phases(self) -> Iterator[Phase | PhaseSeries]:
        """Yield the passes of the model that proposes tokens: its prefill, and those of each decode step."""
        draft, steps = self.drafting, self.workload.decode_steps
        if draft is None or not steps:
            return
        prompt = self.workload.prompt_length
        first = draft.forward("draft prefill", prompt, prompt)._replace(proposes=True)
        yield draft.phase_of(first, "draft prefill")
        for number, (_, times) in enumerate(self.drafts(self.decode_step(1).batch)):
            forward = partial(self._draft_pass, number)

            def phase(step: int, forward: Callable[[int], ForwardPass] = forward) -> Phase:
                return draft.phase_of(forward(step), "draft")

            def durations(step: int, forward: Callable[[int], ForwardPass] = forward) -> tuple[int, ...]:
                return draft.durations(forward(step))

            yield PhaseSeries("draft", steps, phase, durations, times=times)

    def _draft_pass(self, number: int, step: int) -> ForwardPass:
        """Return a pass of the model that proposes tokens, by its number in a decode step."""
        batch, _ = list(self.drafts(self.decode_step(step).batch))[number]
        return ForwardPass(f"draft {number + 1} of step {step}", batch, proposes=True)

    def decode_step(self, number: int) -> ForwardPass:
        """Return a decode step, of which the first is number 1; a part of the new blocks is stored during
        it."""
        moves, work = self.block_moves, self.workload
        forward = self.forward(f"decode {number}", 1 + work.proposed, work.context_at(number))
        if work.proposed:
            forward = forward._replace(
                batch=tuple(one._replace(scored=one.new_tokens) for one in forward.batch)
            )
        return forward if moves is None else forward._replace(stores=moves.parts > 0)

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
        if self.cache.attends_on_cpu:
            return tuple(
                cpu_attention(self.cache, one, forward.batch).attended.traffic for one in self.stages
            )
        if (buffer := self.cache.hot_buffer) is not None:
            parts = [part for one in self.model.distinct_modules for part in hot_parts(self.model, one)]
            return tuple([round(buffer.gathered(part, forward.batch)) for part in parts])
        if not self.cache.moves:
            return ()
        found = self.cache_updates(forward.batch)
        return tuple(one.size for one in dict.fromkeys(found) if one)

    def forward(self, name: str, new_tokens: int, context: int, *, first: bool = False) -> ForwardPass:
        """Return a pass of the workload's batch, with sequences of equal context."""
        return ForwardPass(name, (Sequences(self.workload.batch_size, new_tokens, context),), first)

    def phase_of(self, one: ForwardPass, kind: PhaseKind) -> Phase:
        """Return the phase of a pass."""
        tokens, context = (max(values) for values in list(zip(*one.batch, strict=True))[1:3])
        last = f"stage {self.degrees.pipeline - 1}: host" if self.degrees.pipeline > 1 else "host"
        ends = last if one.stores else None  # stores may continue after a pass
        return Phase(one.name, kind, lambda _: self.schedule(one), tokens, context, ends_with=ends)


class StepWork(Plan):
    """StepWork is the base of plans of training: it makes the phases from the parts of a step, and counts
    FLOP."""

    model: ModelShape
    workload: Training
    zero3: bool = False
    """Whether DeepSpeed's ZeRO-3 runs the modules."""

    @property
    def batch(self) -> tuple[Sequences]:
        """Sequences of a micro-step on one GPU."""
        work = self.workload
        return (Sequences(work.batch_size, work.sequence_length, work.sequence_length),)

    @cached_property
    def timing(self) -> TrainingTiming:
        """Durations of modules on this machine."""
        ((batch, length, *_),) = self.batch
        return TrainingTiming(
            machine=self.machine,
            model=self.model,
            batch=batch,
            length=length,
            zero3=self.zero3,
            launch_factor=self.launch_factor,
            casts=self.casts,
        )

    casts: int = 0
    """[B] of traffic per element with which weights of products are cast in each pass."""

    @property
    def launch_factor(self) -> float:
        """Host time of launches over that under DeepSpeed."""
        return 1.0

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
        """FLOP of one step on one GPU: forward, backward without recomputation, and recomputed."""
        work, times = self.workload, self.workload.gradient_accumulation_steps
        size = {"batch": work.batch_size, "length": work.sequence_length}
        layers, others = training_forward_flops(self.model, **size)
        return Facts(
            forward_flops=times * (layers + others),
            backward_flops=times * training_backward_flops(self.model, **size),
            recomputed_flops=times * layers if work.gradient_checkpointing else 0.0,
        )
