"""ZeRO-Inference: weights partitioned over the ranks and kept in HBM, host memory or on storage.

Reference: docs/_posts/2022-09-10-zero-inference.md of deepspeedai/DeepSpeed; the mechanism is the one of
ZeRO-3 parameter offload, replayed by ``zero.coordinator``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import Field

from simoffload.documents import Edit, quoted
from simoffload.errors import InputError
from simoffload.hardware import Curve, Machine, Path, Tier
from simoffload.limits import count_elements
from simoffload.models import GROWING, CacheForm, ModelShape, Module, Sequences
from simoffload.recent import Recent
from simoffload.results import Change, Facts
from simoffload.schedule import CauseKind, Op, Schedule
from simoffload.strategies.base import (
    ROUNDING,
    Drafting,
    Held,
    Plan,
    SizeEdits,
    Strategy,
    Tunable,
    Tunables,
    pinned_rounding,
)
from simoffload.strategies.cache.cache_updates import COMMAND, example_command
from simoffload.strategies.cache.kv_cache import (
    DEFAULT,
    ZERO_INFERENCE,
    CacheEngine,
    CachingStrategy,
    KvCache,
)
from simoffload.strategies.divided import Degrees
from simoffload.strategies.ds_config import (
    FILE,
    DeepSpeedConfig,
    OffloadSettings,
    Use,
    exported_config,
    larger_buffers,
    memory_settings,
    resolve_settings,
)
from simoffload.strategies.hooks.zero import Partitioning, Zero
from simoffload.strategies.passes.pass_writer import (
    Call,
    ForwardPass,
    Hook,
    Part,
    PassWriter,
    Recurrence,
    Routes,
    StagePass,
    StreamWriter,
)
from simoffload.strategies.passes.timing import (
    Timing,
    arithmetic_beyond,
    picoseconds,
    ranks_beyond,
    spread_bound,
)
from simoffload.strategies.plan import InferencePlan
from simoffload.strategies.programs.zero_strategy import (
    ZeroStrategy,
    device_of,
    gathered,
    inference_moves,
    within_config,
)
from simoffload.strategies.requirements import TRANSFORMERS, check_capability
from simoffload.strategies.zero.coordinator import CoordinatorSink, Tensor, check_buffer_size, cut_tensors
from simoffload.strategies.zero.replay import LayeredModel, hook
from simoffload.strategies.zero.trace import (
    Event,
    Trace,
    fetches_called,
    forward_pass,
    leaf_modules,
    leaf_warnings,
    only_called,
    order_lasts,
    refuse_ranks,
    tokens_of,
)
from simoffload.units import format_bytes
from simoffload.workload import Inference


class ZeroInference(ZeroStrategy, CachingStrategy):
    """ZeRO-Inference: weights partitioned over the ranks, in HBM, host memory or on storage."""

    serves: ClassVar = frozenset({"inference"})
    traits: ClassVar = ZeroStrategy.traits._replace(
        unseen=CachingStrategy.traits.unseen, drafting=Drafting(("draft_model", "ngram"), one_sequence=True)
    )
    cache_engine: ClassVar[CacheEngine] = ZERO_INFERENCE

    kind: Literal["deepspeed"] = "deepspeed"
    tensor_parallel_size: Annotated[int, Field(strict=True, ge=1, le=65_536)] = 1
    """Number of GPUs that share each layer, all ranks if it is more than 1: each keeps and fetches its own
    part. A what-if that DeepSpeed does not have."""

    @property
    def replicas(self) -> int:
        """Number of replicas, each with sequences of its own."""
        return self.ranks // self.tensor_parallel_size

    def sizes(self, batch_size: int = 1) -> SizeEdits:
        """Return the edits to other batches and numbers of GPUs, which share each layer if the present ones
        do."""
        plain = super().sizes(batch_size)
        if self.tensor_parallel_size == 1:
            return plain
        return plain._replace(
            gpus=lambda gpus: (*plain.gpus(gpus), Edit.at("strategy.tensor_parallel_size", gpus))
        )

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> ZeroInferencePlan:
        """Apply the strategy. Raises InputError for missing hardware and for settings that DeepSpeed
        refuses."""
        try:
            settings, warnings = resolve_settings(
                self.ds_config, version=self.deepspeed_version, hidden_size=model.hidden_size
            )
            model, ignored = _with_quantized_weights(model, self.ds_config, settings)
        except InputError as error:
            raise within_config(error.problems) from None
        check_capability(TRANSFORMERS, model, machine)
        if self.tensor_parallel_size not in (1, self.ranks):
            text = f"all of {self.ranks} ranks share each layer, or none; set it to {self.ranks} or 1"
            raise InputError.at("strategy.tensor_parallel_size", text)
        tier, more = self.tier("weights", machine)
        settings = settings._replace(device=device_of(tier, machine))
        plan = ZeroInferencePlan(
            model=model,
            workload=workload,
            machine=machine,
            placement=Partitioning(tier, self.replicas, model.dtype_bytes, settings),
            warnings=(*warnings, *leaf_warnings(settings), *ignored, *more),
            cache=self.cache_of(model, workload, machine),
            degrees=Degrees(self.tensor_parallel_size, 1, self.replicas),
        )
        if not plan.order_lasts:
            refuse_ranks(self.ranks)
        check_buffer_size([tensor for tensor, _ in plan.layered.counted], settings)
        direct = (*self.precision_warnings(model), *self.direct_warnings(settings, machine))
        return replace(plan, warnings=(*plan.warnings, *direct, *plan.remarks(machine.tiers[tier].kind)))

    def tunables(self, machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield the tiers of weights and cache, and DeepSpeed's settings."""
        yield self._placements(machine)._replace(caveat=gathered)
        if not isinstance(plan, ZeroInferencePlan):
            return
        settings = plan.placement.settings
        yield from self.cache_tunables(plan)
        yield from inference_moves(plan, ranks=self.ranks, buffer_size=settings.buffer_size)
        yield from memory_settings(self.ds_config, self._use(plan))
        yield self.faster(plan)

    @classmethod
    def instead(
        cls, _other: Strategy, model: ModelShape, _workload: Any, machine: Machine, gpus: int
    ) -> Iterator[tuple[Tunable, ...]]:
        """Yield all weights in host memory, then on storage; none of them stays on a GPU."""
        larger = larger_buffers(model, gpus)

        def change(tier: Tier) -> Change:
            section: dict[str, Any] = {"kind": "deepspeed", "ranks": gpus, "weights": tier.name}
            for one in larger if tier.row.is_storage else ():
                section["ds_config"] = {"zero_optimization": {"offload_param": {"buffer_size": one.value}}}
            text = f"weights on {tier.name} (DeepSpeed)"
            return Change("placement", text, (Edit(("strategy",), section),))

        tiers = (one for one in machine.tiers.values() if one.row.device not in (None, "none"))
        yield tuple(Tunable("division", [one], change) for one in tiers)

    def filled(self, model: ModelShape) -> tuple[Edit, ...]:
        """Return edits that put weights in host memory unless ds_config places them, with large enough swap
        buffers."""
        placed = super().filled(model)
        section = self.written("weights")
        given = section is not None and "buffer_size" in section.model_fields_set
        return placed if given else (*placed, *larger_buffers(model, self.ranks))

    def exports(self, plan: Plan) -> dict[str, Any]:
        """Return the configuration files with which DeepSpeed runs the plan: content by name."""
        assert isinstance(plan, ZeroInferencePlan)
        config = exported_config(self.ds_config, self._use(plan))
        program = {COMMAND: self._command(plan)} if plan.cache.attends_on_cpu else self.generation_config()
        return {FILE: config, **program}

    def _use(self, plan: ZeroInferencePlan) -> Use:
        use = self.use(plan.model, {"weights": plan.placement.tier}, plan.machine)
        return use._replace(batch=plan.workload.batch_size)

    def _command(self, plan: ZeroInferencePlan) -> str:
        """Return the command of DeepSpeed's example that runs the plan."""
        quantized = self.ds_config.quantized_initialization
        bits = () if quantized is None else (f"--quant_bits {quantized.num_bits}",)
        settings = plan.placement.settings
        offloaded = {
            "none": (),
            "cpu": ("--cpu-offload",),
            "nvme": ("--disk-offload", f"--offload-dir /mnt/{plan.placement.tier}"),
        }
        options = (f"--pin-memory {int(settings.pin_memory)}", *offloaded[settings.device or "none"], *bits)
        return example_command(plan.cache, plan.model, plan.workload, options, ranks=self.ranks)


@dataclass(frozen=True)
class ZeroInferencePlan(InferencePlan):
    """A ZeroInferencePlan is the plan of ZeRO-Inference for one model on one machine."""

    model: ModelShape
    workload: Inference
    machine: Machine
    placement: Partitioning
    warnings: tuple[str, ...]
    cache: KvCache = DEFAULT
    degrees: Degrees = InferencePlan.degrees
    traced: ClassVar = True
    zero3: ClassVar = True

    @property
    def facts(self) -> Facts:
        """Also why the first pass is slower, and the bound of the throughput of weights divided in HBM."""
        why = "DeepSpeed does not know the order of modules yet and cannot prefetch"
        place, found = self.placement, replace(super().facts, first_pass=why)
        if self.degrees.tensor > 1:
            found = found.what_if("ZeRO-Inference does not divide layers among GPUs")
        if place.settings.device != "none" or place.ranks == 1:
            return found
        bound = spread_bound(self.model, self.workload, self.machine, ranks=place.ranks)
        return replace(found, spread_bound=bound)

    @cached_property
    def templates(self) -> ScheduleTemplates:
        """Templates of the passes, in which the durations of kernels are filled in later."""
        return schedule_templates_of(
            self.fullest, self.machine, self.placement, self.cache_form, tensor=self.degrees.tensor
        )

    @property
    def modules(self) -> Sequence[Module]:
        """Modules that launch kernels, each once."""
        return self.templates.modules

    @property
    def layered(self) -> InferenceLayers:
        """Model that the coordinator replays with any number of layers."""
        return self.templates.layered

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every parameter tensor with its partition."""
        return self.layered.tensors

    def _extrapolations(self) -> Iterable[str]:
        return (
            *ranks_beyond(self.degrees.ranks, self.machine, costs=self.machine.host.deepspeed),
            *_transfers_beyond(self),
            *arithmetic_beyond(self.model, self.workload, self.machine),
        )

    def remarks(self, kind: str) -> list[str]:
        """Return warnings about misreadings, such as weights on other tiers, or GDS's requirements."""
        settings, tier = self.placement.settings, self.placement.tier
        remarks = []
        if not self.order_lasts:
            remarks.append(
                "experts are separate modules and not leaf modules: only those to which a token is routed "
                "are fetched, but others in every pass, so that DeepSpeed prefetches nothing of use"
            )
        if settings.device == "nvme":
            sizes = [(count * tensor.slice_numel, tensor.on_nvme) for tensor, count in self.layered.counted]
            there = sum(size for size, swapped in sizes if swapped) / sum(size for size, _ in sizes)
            if there < _MOSTLY:
                remarks.append(
                    f"{there:.0%} of the weights are stored on {tier}: slices below the larger of "
                    f"1 MiB and aio.block_size ({settings.min_swap_bytes} B) stay in host memory; "
                    "more ranks make slices smaller"
                )
        if settings.use_gds and settings.device != "nvme":
            remarks.append(f"ds_config aio.use_gds has no effect with weights: {tier}")
        elif settings.use_gds and kind in {"nfs", "pfs"}:
            remarks.append(f"aio.use_gds on {tier} needs a client for GPUDirect Storage (NFS: over RDMA)")
        return remarks

    @cached_property
    def fetches_called(self) -> bool:
        """Whether experts are modules of their own of which only those are fetched that are called."""
        return fetches_called(self.fullest, self.placement.settings)

    @cached_property
    def order_lasts(self) -> bool:
        """Whether the recorded order of modules lasts; if not, nothing is prefetched."""
        work = self.workload
        tokens = work.batch_size * (1 if work.decode_steps else work.prompt_length)
        return not self.fetches_called or order_lasts(self.model, tokens)

    @cached_property
    def _known(self) -> dict[int, ZeroInferencePlan]:
        """Plans with the experts that are called, by the number of tokens of a pass."""
        return {}

    def called(self, forward: ForwardPass) -> ZeroInferencePlan:
        """Return the plan with the experts that a pass calls; the plan itself if all are fetched."""
        if not self.fetches_called:
            return self
        tokens = tokens_of(forward.batch)
        if tokens not in self._known:
            model = only_called(self.model, tokens)
            self._known[tokens] = self if model is self.model else replace(self, model=model)
        return self._known[tokens]

    def durations(self, forward: ForwardPass) -> tuple[int, ...]:
        """Return the GPU time of each module in a pass [ps]."""
        return self.called(forward).timings.durations(self.on_gpu(forward.batch))

    def schedule(self, forward: ForwardPass) -> Schedule:
        """Return the schedule of one pass."""
        plan, warm = self.called(forward), self.order_lasts and not forward.first
        durations, alone = self.durations(forward), not (forward.loads or forward.stores)
        if alone and not (self.cache.moves or self.cache.attends_on_cpu or self.degrees.tensor > 1):
            return plan.templates.schedule(durations, name=forward.name, warm=warm)
        hooks = partial(self.hooks, forward)
        return plan.templates.write(durations, forward.batch, hooks, name=forward.name, warm=warm)

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """What each tier holds while tokens are generated, with pinned buffers listed separately."""
        place, size = self.placement, self.placement.dtype_bytes
        direct, peak = place.settings.copies_directly(place.ranks), self.layered.peak
        gathered = []
        if not (direct and place.settings.device == "none"):  # else the parameter is the partition itself
            gathered.append(("gathered parameters, peak", peak.on_gpu * size))
        if not direct:
            gathered.append(("all-gather buffer", peak.gather * size))
        staged = (Held("hbm", *one, remedy=_PREFETCH, kind="staging") for one in gathered)
        return (*staged, *self.working_memory(self.fullest), *self.held_weights)

    @property
    def held_weights(self) -> Iterator[Held]:
        """Partitions of the weights, and buffers into which those on storage are read."""
        place, settings, size = self.placement, self.placement.settings, self.placement.dtype_bytes
        per_host = self.machine.ranks_per_node(self.degrees.ranks)
        parts = [(tensor.slice_numel * size, count, tensor.on_nvme) for tensor, count in self.layered.counted]
        stack = sum(part * count for part, count, swapped in parts if not swapped)
        if settings.device == "none":
            yield Held("hbm", "weight partition", stack, kind="weights")
            return
        pinned = settings.pin_memory
        yield Held("dram", "weights", stack * per_host, pinned=pinned, kind="weights")
        if pinned:
            rounding = sum(count * pinned_rounding([part]) for part, count, swapped in parts if not swapped)
            yield Held("dram", ROUNDING, rounding * per_host, pinned=True)
        if settings.device == "nvme":
            pool = settings.buffer_count * settings.buffer_size * size
            tier, copies = ("hbm", 1) if settings.use_gds else ("dram", per_host)
            pinned = not settings.use_gds
            yield Held(tier, "swap buffers", pool * copies, pinned, remedy=_BUFFERS, kind="staging")
            there = sum(part * count for part, count, swapped in parts if swapped)
            yield Held(place.tier, "weights", there * self.degrees.ranks, kind="weights")


# -- templates of forward passes of inference under ZeRO-3, written once for all passes ------------
# The calls that DeepSpeed makes depend on the model and on the tier of its weights (``InferenceLayers``).
# The host's time for each call also depends on host and GPU, and the routes of transfers on the whole machine
# (``ScheduleTemplates``). None of these depends on the batch or the number of tokens, which only determine
# how long kernels take. A template therefore has placeholders for the durations of kernels, which are
# filled in for each pass. It is written with placeholders for what depends on transfers, too
# (``_Unrouted``), which are filled in for each machine. Plans for the same model, machine and placement, such
# as the points of a sweep over batch sizes, share their templates; those for machines with the same host and
# GPU, such as the points of a sweep over rates, what was written; plans for other machines the replay of
# calls.


W = TypeVar("W", bound=PassWriter)


class GatheredPeak(NamedTuple):
    """GatheredPeak is the maximum size of gathered parameters [elements]."""

    on_gpu: int
    """Largest size of all parameters that are gathered at the same time [elements]."""
    gather: int
    """Largest size of parameters that are gathered in one call [elements]."""


@dataclass(frozen=True)
class InferenceLayers(LayeredModel):
    """InferenceLayers are the hooks of a model's forward pass and its tensors as partitioned by ZeRO-3."""

    model: ModelShape
    placement: Partitioning

    @property
    def fetching(self) -> OffloadSettings:
        """DeepSpeed's settings of fetching parameters."""
        return self.placement.settings

    @property
    def ranks(self) -> int:
        """Number of GPUs among which the weights are partitioned."""
        return self.placement.ranks

    @cached_property
    def homogeneous(self) -> bool:
        """Whether the tensors of all layers are on the same tiers."""
        settings, model = self.fetching, self.model
        inside = (module for layer, _ in model.kinds for module in layer)
        if not model.uniform or any(parameter.tied for module in inside for parameter in module.parameters):
            return False
        small = sum(
            times * numel
            for modules, times in model.outside_and_kinds()
            for _, numel in _owned(modules, model.dtype_bytes)
            if numel <= settings.stage3_param_persistence_threshold
        )
        return small <= settings.stage3_model_persistence_threshold

    def trace_of(self, count: int) -> Trace:
        """Return the order of hooks in a forward pass through ``count`` layers."""
        return forward_pass(self.model, count, leaf_modules(self.fetching))

    def of_layers(self, count: int) -> tuple[Tensor, ...]:
        """Return the partitioned tensors of a model with ``count`` layers, each as a separate object."""
        model, place = self.model, self.placement
        size = model.dtype_bytes
        owned = list(_owned(model.modules_before, size))
        for layers, repeat in model.of_layers(count).groups:
            owned += [one for layer in layers for one in _owned(layer, size)] * repeat
        owned += _owned(model.modules_after, size)
        return tuple(cut_tensors(owned, place.settings, ranks=place.ranks, dtype_bytes=place.dtype_bytes))

    @property
    def visits(self) -> tuple[tuple[Module, ...], ...]:
        """Hooked modules in the order of their hooks, each with the modules without hooks that follow it."""
        visits: list[tuple[Module, ...]] = []
        for event in self.trace_of(self.count).forward:
            if event.kind == "fetch":
                visits.append(())
            if event.kind == "launch":
                visits[-1] += (event.instance.kernels,)
        return tuple(visits)

    @cached_property
    def counted(self) -> tuple[tuple[Tensor, int], ...]:
        """Tensors in the model's order, each with the number of times that it occurs; identical layers are
        listed once."""
        if not self.homogeneous:
            return tuple((tensor, 1) for tensor in self.of_layers(self.count))
        first, last = self.layers.first_tensor, self.layers.tail_tensor
        return tuple(
            (tensor, self.count if first <= index < last else 1)
            for index, tensor in enumerate(self.of_layers(1))
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every parameter tensor with its partition."""
        if self.homogeneous:
            count_elements(len(self.layers.tensors) * self.count)
        return self.of_layers(self.count)

    @cached_property
    def peak(self) -> GatheredPeak:
        """Return the peak of gathered parameters in a pass after the first; raises InputError where DeepSpeed
        stops."""
        replayed = ((stack, self.decisions(stack)) for stack in self.stacks())
        decisions = next(one for stack, one in replayed if one.recur(stack.forward))
        return GatheredPeak(*decisions.peak)

    def replay(self, sink: CoordinatorSink) -> Iterator[Event]:
        """Replay a pass through all layers: yield each event, then make its calls to ``sink``."""
        coordinator = self.full.coordinator(self.fetching, self.ranks, sink, warm=True)
        for event in self.full.trace.forward:
            yield event
            hook(event, coordinator, self.full.parameters)


def _owned(modules: Sequence[Module], dtype_bytes: int) -> tuple[tuple[str, int], ...]:
    """Return name and size [elements] of the tensors of modules; a tied tensor is listed once.

    Those of a quantized weight count as the elements that their bytes fill, as which DeepSpeed holds them.
    """
    owned = (one for module in modules for one in module.parameters if not one.tied)
    return tuple(
        (name, -(-size // dtype_bytes)) for one in owned for name, size in one.stored_tensors(dtype_bytes)
    )


_DIGITS = 64
"""Bits of a count of placeholders, and of the time [ps] beside them."""


class _Unrouted(PassWriter):
    """An _Unrouted writes a pass without the rates and latencies of a machine: it numbers the transfers that
    are asked for, and adds placeholders, powers of two, to the times of operations."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.asked: dict[tuple[str, tuple[Any, ...], tuple[Any, ...]], int] = {}
        """Methods of ``StreamWriter`` that return route and latency, with their arguments, by number."""
        self.places: dict[tuple[str, int, int], int] = {}
        """What each placeholder stands for, by number."""

    def _transfer(self, method: str, *given: Any, **named: Any) -> tuple[int, int]:
        key = method, given, tuple(named.items())
        number = self.asked.setdefault(key, len(self.asked))
        return number, self._place("latency", number)

    def _place(self, what: str, number: int, size: int = 0) -> int:
        return 1 << _DIGITS * (1 + self.places.setdefault((what, number, size), len(self.places)))

    def copies(self, sizes: Sequence[int], **named: Any) -> tuple[int, int]:
        """Return number and placeholder of copies."""
        return self._transfer("copies", tuple(sizes), **named)

    def file(self, tier: str, size: int, **named: Any) -> tuple[int, int]:
        """Return number and placeholder of a transfer of a file."""
        return self._transfer("file", tier, size, **named)

    def received(self, kind: CauseKind, size: int) -> tuple[int, int]:
        """Return number and placeholder of what every rank receives."""
        return self._transfer("received", kind, size)

    def transfer_s(self, route: int, fixed: int, size: int) -> int:  # noqa: ARG002
        """Return the placeholder of the time of a transfer alone."""
        return self._place("transfer", route, size)

    def cool(self, seconds: float) -> None:
        """Add the placeholder of what is lost after waiting for some transfers."""
        self._pending += self._place("cool", int(seconds))

    def routed(self, schedule: Schedule, out: StreamWriter) -> Schedule:
        """Return what was written on the machine of another writer, which has written nothing.

        Raises AssertionError if a method that has no placeholder was asked for a route.
        """
        if schedule.routes:
            raise AssertionError("a route without a placeholder")
        found = [getattr(out, method)(*given, **dict(named)) for method, given, named in self.asked]
        values = list[float]()

        def valued(number: int) -> float:
            """Return the sum of what placeholders stand for."""
            total, place = float(0), 0
            while number := number >> _DIGITS:
                total += (number & _MASK) * values[place]
                place += 1
            return total

        for what, number, size in self.places:
            if what == "cool":
                values.append(picoseconds(out.cold_s(valued(number))))
                continue
            route, latency = found[number]
            values.append(latency if what == "latency" else out.transfer_s(route, latency, size))
        times = dict[int, int]()

        def on_machine(op: Op) -> Op:
            kind, label, stream, fixed, size, route, after, collective = op
            if fixed > _MASK:
                if fixed not in times:
                    times[fixed] = (fixed & _MASK) + int(valued(fixed))
                fixed = times[fixed]
            elif route < 0:
                return op
            number = found[route][0] if route >= 0 else route
            return Op(kind, label, stream, fixed, size, number, after, collective)

        made = out.build()
        blocks = schedule.with_operations(on_machine)
        return schedule._replace(links=made.links, routes=made.routes, blocks=blocks)


_MASK = (1 << _DIGITS) - 1
_Written = dict[tuple[bool, tuple[bool, ...]], tuple[_Unrouted, Schedule] | None]


class ScheduleTemplates:
    """ScheduleTemplates are the templates for one model on one machine with one placement of its weights and
    one form of its cache."""

    def __init__(
        self, layered: InferenceLayers, machine: Machine, cache: CacheForm = GROWING, *, tensor: int = 1
    ) -> None:
        """``tensor``: number of GPUs that share each layer."""
        self.layered, self.machine, self._cache, self._tensor = layered, machine, cache, tensor
        self._made: dict[tuple[bool, tuple[bool, ...]], Schedule] = {}
        self._routes: Routes = {}
        kept = layered, machine.host, machine.accelerator
        key = *map(id, kept), cache, tensor
        self._written = _UNROUTED.get(key, lambda: (kept, {}))[1]

    @cached_property
    def modules(self) -> tuple[Module, ...]:
        """Every module that may launch kernels, once."""
        return tuple(dict.fromkeys(self.layered.model.distinct_modules))

    @property
    def _gpus(self) -> range:
        return range(self.layered.ranks * self._tensor)

    def schedule(self, durations: Sequence[int], *, name: str, warm: bool) -> Schedule:
        """Return the schedule of a pass in which the modules occupy the GPU for ``durations`` [ps]."""
        key = warm, tuple(map(bool, durations))
        if key not in self._made:
            slots = [-1 - number if takes else 0 for number, takes in enumerate(key[1])]
            write = partial(self._pass, slots, (Sequences(1, 1, 1),), tuple, name="", warm=warm)
            if key not in self._written:  # perhaps there is no other such machine
                self._written[key], self._made[key] = None, write(PassWriter)[1]
            else:
                writer, program = self._written[key] = self._written[key] or write(_Unrouted)
                out = StreamWriter(
                    name="", gpus=self._gpus, streams=(), machine=self.machine, routes=self._routes
                )
                self._made[key] = writer.routed(program, out)
        program = self._made[key]

        def timed(op: Op) -> Op:
            return op if op.fixed >= 0 else op._replace(fixed=durations[-1 - op.fixed])

        return program._replace(name=name, blocks=program.with_operations(timed))

    def write(
        self,
        durations: Sequence[int],
        batch: tuple[Sequences, ...],
        hooks: Callable[[], tuple[Hook, ...]],
        *,
        name: str,
        warm: bool,
    ) -> Schedule:
        """Return a pass in which the kernels of the modules take ``durations`` [ps], with further ``hooks``,
        such as of a cache."""
        return self._pass(durations, batch, hooks, PassWriter, name=name, warm=warm)[1]

    def _pass(
        self,
        slots: Sequence[int],
        batch: tuple[Sequences, ...],
        hooks: Callable[[], tuple[Hook, ...]],
        writer: type[W],
        *,
        name: str,
        warm: bool,
    ) -> tuple[W, Schedule]:
        """Return a pass and who wrote it; the kernels of a module take the time in its slot: a duration, or
        in a template a placeholder -1 - n for module n."""
        layered, place = self.layered, self.layered.placement
        known = dict(zip(self.modules, slots, strict=True))
        known |= {module._replace(hooked=False): slot for module, slot in known.items()}  # in a leaf module
        timing = Timing(
            machine=self.machine,
            model=layered.model,
            batch=batch,
            zero3=True,
            cache=self._cache,
            known=known,
        )
        for stack in layered.stacks(warm=warm):
            recurrence = Recurrence(stack.forward)
            out = writer(
                name=name,
                machine=self.machine,
                hooks=(Zero(layered.decisions(stack, warm=warm).of(backward=False), place), *hooks()),
                gpus=(self._gpus,),
                routes=self._routes,
            )
            written = out.write([StagePass(parts(stack.trace), timing, batch, recurrence=recurrence)])
            if recurrence.found:
                break
        return out, written


def parts(trace: Trace) -> tuple[Part, ...]:
    """Return the parts of a forward pass, in which layers of the same modules share their calls."""
    known: dict[tuple[int, ...], tuple[Call, ...]] = {}
    found = []
    for number, events in trace.pieces(backward=False):
        modules = [event.instance.kernels for event in events if event.kind == "launch"]
        calls = known.setdefault(tuple(map(id, modules)), tuple(map(Call, modules)))
        if 0 <= number < trace.layers:
            found.append(Part("layer", calls, number))
        else:
            found.append(Part("head" if number < 0 else "tail", calls))
    return tuple(found)


_LAYERED = Recent[tuple[int, Partitioning], InferenceLayers]()
_TEMPLATES = Recent[tuple[int, int, CacheForm, int], ScheduleTemplates]()
_UNROUTED = Recent[tuple[Any, ...], tuple[object, _Written]]()
"""What was written for machines with the same host and GPU, which are kept with it."""


def schedule_templates_of(
    model: ModelShape,
    machine: Machine,
    placement: Partitioning,
    cache: CacheForm = GROWING,
    *,
    tensor: int = 1,
) -> ScheduleTemplates:
    """Return the templates for a model and a machine (the same objects, not equal ones), a placement and a
    form of the cache."""
    layered = _LAYERED.get((id(model), placement), lambda: InferenceLayers(model, placement))
    key = id(layered), id(machine), cache, tensor
    return _TEMPLATES.get(key, lambda: ScheduleTemplates(layered, machine, cache, tensor=tensor))


# -- checks and texts -------------------------------------------------------------------------------


_PREFETCH = (
    "lower stage3_prefetch_bucket_size, stage3_max_live_parameters or stage3_param_persistence_threshold"
)
_MOSTLY = 0.9  # fraction of the weights on the target below which a warning is given (our choice)
_BUFFERS = "lower offload_param.buffer_count or buffer_size"
_QUANTIZES = (0, 10, 3)
"""Version from which weights can be quantized at loading (DeepSpeed's commit aa4a740)."""
_QUANTIZED = "weight_quantization.quantized_initialization"
_KERNEL_GROUPS = 8
"""Groups must be a multiple of this for the kernel of DeepSpeed (``DeQuantizer.dequantize``)."""


def _with_quantized_weights(
    model: ModelShape, config: DeepSpeedConfig, settings: OffloadSettings
) -> tuple[ModelShape, tuple[str, ...]]:
    """Return the model as DeepSpeed loads it, and warnings.

    Raises InputError, with DeepSpeed's key, for tensors that cannot be cut into groups and for quantizations
    that cannot be combined.
    """
    section = config.quantized_initialization
    if section is None:
        return model, ()
    if settings.version < _QUANTIZES:
        version = ".".join(map(str, settings.version))
        return model, (f"ds_config {_QUANTIZED} is ignored by DeepSpeed {version}; it came with 0.10.3",)
    if model.quantization is not None:
        text = f"the weights are quantized already ({model.quantization}); write model.quantization: none"
        raise InputError.at(_QUANTIZED, text)
    if settings.quantized_gather:
        text = "true corrupts weights that are stored in 4 or 8 bits; leave it out"
        raise InputError.at("zero_optimization.zero_quantized_weights", text)
    by_columns = section.group_dim == 1
    found = _quantized(model, section.num_bits, section.group_size, by_columns=by_columns)
    for module in found.distinct_modules:
        for one in module.parameters:
            size = one.columns if by_columns else one.numel // max(1, one.columns)
            if one.storage is not None and size % section.group_size:
                text = (
                    f"DeepSpeed would stop here: dimension {section.group_dim} of {quoted(one.name)} is "
                    f"{size}, not a multiple of group_size {section.group_size}"
                )
                raise InputError.at(f"{_QUANTIZED}.group_size", text)
    return found, ()


@lru_cache(maxsize=16)
def _quantized(model: ModelShape, bits: int, group: int, *, by_columns: bool) -> ModelShape:
    """Return the quantized model, the same object for the same arguments."""
    from simoffload.models import deepspeed_quantization, quantized

    kernel = model.dtype == "float16" and by_columns and group % _KERNEL_GROUPS == 0
    return quantized(model, deepspeed_quantization(bits, group, dtype_bytes=model.dtype_bytes, kernel=kernel))


def _transfers_beyond(plan: ZeroInferencePlan) -> Iterator[str]:
    """Yield warnings about sizes of copies, and bytes in flight to storage, outside the measured curves."""
    place, settings, machine = plan.placement, plan.placement.settings, plan.machine
    fetched = [tensor for tensor, _ in plan.layered.counted if not tensor.persistent]
    if settings.device == "none" or not fetched:
        return
    for pinned in (True, False):
        copied = [
            tensor.slice_numel * place.dtype_bytes
            for tensor in fetched
            if settings.source(tensor.on_nvme) is pinned
        ]
        path = machine.host_to_device(0, pinned=pinned)
        yield from _sizes("copies", copied, path.curve, path)
    read_sizes = [tensor.slice_numel * place.dtype_bytes for tensor in fetched if tensor.on_nvme]
    if read_sizes:
        read = machine.storage_read(place.tier, 0, gds=settings.use_gds)
        if read.by_outstanding is not None:
            in_flight = [min(settings.outstanding_bytes, size) for size in read_sizes]
            yield from _sizes("bytes in flight", in_flight, read.by_outstanding, read)


def _sizes(what: str, sizes: Iterable[int], curve: Curve, path: Path) -> Iterator[str]:
    outside = sorted({size for size in sizes if size and not curve.covers(size)})
    if outside:
        low, high = format_bytes(outside[0]), format_bytes(outside[-1])
        span = low if low == high else f"{low} to {high}"
        first, last = (format_bytes(int(size)) for size in (curve.points[0][0], curve.points[-1][0]))
        yield f"{what} of {span} on {path.name}; measured from {first} to {last}"
