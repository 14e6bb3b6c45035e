"""The schedule of a pass over the GPUs that share a model: stages, all-reduces and sends."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from simoffload.hardware import Path
from simoffload.models import Layer, Module, Sequences
from simoffload.results import cause_text
from simoffload.schedule import (
    Cause,
    CauseKind,
    Dependency,
    Hops,
    Op,
    OpKind,
    Program,
    Schedule,
    ScheduleBuilder,
)
from simoffload.strategies.blocks import LOAD, BlockWriter, PassBlocks, stream_names
from simoffload.strategies.cache_routes import CacheRoutes, TransferRoute
from simoffload.strategies.cache_updates import CacheStreams
from simoffload.strategies.fused_timing import Graphs, graphs_of
from simoffload.strategies.streamed_cache import CacheUpdate
from simoffload.strategies.timing import Timing, picoseconds

if TYPE_CHECKING:
    from simoffload.strategies.plan import ForwardPass
    from simoffload.strategies.staged_plan import StagedPlan

_STREAMS = ("host", "compute", "all-reduce", "send")
HOST, COMPUTE, REDUCE, SEND = range(len(_STREAMS))


class PassWriter:
    """A PassWriter writes the streams of the ranks of each stage, which are a program.

    Replicas are ranks of the same programs, so a collective operation waits for all of them, which do the
    same work at the same time.
    """

    more: ClassVar[tuple[str, ...]] = ()
    """Names of further streams of each rank."""

    def __init__(self, plan: StagedPlan, name: str) -> None:
        self._plan, self._machine, self._degrees = plan, plan.machine, plan.degrees
        self._costs = plan.machine.host.deepspeed
        tensor, stages, replicas = self._degrees
        self._each = tensor * replicas
        own = _STREAMS[: len(_STREAMS) if self._degrees.ranks > replicas else 2]
        blocks, cache = stream_names(plan.cache.connector, plan.machine), plan.cache.streams
        self._names = (*own, *blocks, *self.more, *cache)
        self._first_of_cache, self._first_of_blocks = len(self._names) - len(cache), len(own)
        self._blocks = PassBlocks(plan.block_moves, self._block_writer)
        width = len(self._names)
        programs = [
            Program(
                f"stage {one}",
                range(one * self._each, (one + 1) * self._each),
                range(one * width, (one + 1) * width),
            )
            for one in range(stages)
        ]
        self._builder = ScheduleBuilder(
            name=name,
            ranks=self._degrees.ranks,
            streams=self._names * stages,
            programs=programs if stages > 1 else (),
        )
        before = [(rank - self._each,) for rank in range(self._each, self._degrees.ranks)]
        self._before = self._builder.peers((*[()] * self._each, *before)) if stages > 1 else -1
        self._graphs: dict[int, Graphs] = {}
        self._update: CacheUpdate | None = None
        self._awaited: list[tuple[int, int, int]] = []  # by the GPU's next operation: stream, number, peers

    def build(self) -> Schedule:
        """Return the schedule; each host ends its pass when its GPU and all stores by layer have ended."""
        for number in range(self._degrees.pipeline):
            self._number = number
            compiled = self._plan.compiled
            if self._graphs.get(number) == "whole":  # beside its kernels
                step = picoseconds(self._machine.host.compiled_costs.step.value)
                self._builder.add(Op("hook", "next step", self._stream(HOST), step))
            if self._blocks.stores or not compiled:
                overhead = 0 if compiled else picoseconds(self._costs.pass_overhead.value)
                after = (*self._dependencies(COMPUTE, *self._reduced), *self._blocks.end(number))
                self._builder.add(Op("hook", "pass", self._stream(HOST), overhead, after=after))
            if self._blocks.stores:  # which may continue after the pass: its end is that of the last host
                before = [Dependency(HOST + (number - 1) * len(self._names), 0, self._before)]
                after = (*self._dependencies(*self._joined), *(before if number else ()))
                self._builder.add(Op("hook", "pass", self._stream(HOST), after=after))
        return self._built()

    def _built(self) -> Schedule:
        return self._builder.build([(one.name, one.capacity) for one in self._machine.resources])

    def _block_writer(self, stage: int) -> BlockWriter:
        connector = self._plan.cache.connector
        assert connector is not None
        return BlockWriter(
            self._builder,
            self._machine,
            connector,
            [self._degrees.gpu(stage, rank) for rank in range(self._each)],
            partial(self._hops, stage=stage),
            stage * len(self._names) + self._first_of_blocks,
        )

    def transfers(self, forward: ForwardPass) -> Schedule:
        """Return the schedule of the blocks that a pass moves, without the pass itself."""
        self._blocks.alone(forward)
        return self._built()

    def begin(self, forward: ForwardPass) -> None:
        """Begin a pass with its loads of blocks, and the stores of the generation before."""
        self._blocks.begin(forward)

    def _await_blocks(self, layer: int) -> None:
        """Let the next operation of the GPU wait for the blocks of a layer, or the host for those of all."""
        after = self._dependencies(COMPUTE) if self._blocks.layerwise else ()
        loaded = self._blocks.awaited(self._number, layer, after)
        load = self._stream(self._first_of_blocks + LOAD)
        if loaded is not None and self._blocks.layerwise:
            self._awaited.append((load, loaded, -1))
        elif loaded is not None:  # the request is scheduled when all of its prefix is there
            after = (self._builder.after(load, loaded),)
            self._builder.add(Op("hook", "blocks", self._stream(HOST), after=after))

    def stage(self, number: int, timing: Timing, batch: tuple[Sequences, ...], *, repeats: bool) -> None:
        """Write one micro-batch in one stage; with ``repeats`` the longest group of layers only once."""
        stage, layer = self._plan.divided.stages[number], 0
        self._number, self._timing, self._sequences = number, timing, sum(one.number for one in batch)
        updates, written = self._plan.cache_updates(batch, stage), dict[Hashable, int]()
        self._tokens = sum(one.number * one.new_tokens for one in batch)
        prompt = self._plan.workload.prompt_length
        self._finished = sum(one.number for one in batch if one.context >= prompt)  # not those of a chunk
        if number > 0:
            previous = (number - 1) * len(self._names) + SEND
            self._awaited = [(previous, self._builder.written[previous] - 1, self._before)]
        longest = max(stage.groups, key=lambda group: group.repeat)
        if not self._blocks.layerwise:
            self._await_blocks(0)
        self._begin_step(number, batch)
        self._write("head", stage.modules_before)
        for group in stage.groups:
            first, short = self._builder.segments, repeats and group is longest and group.repeat > 1
            for modules in group.layers * (1 if short else group.repeat):
                self._update = updates[layer]
                state = self._state(layer, modules)
                if state in written:
                    self._builder.again(written[state])
                else:
                    written[state] = self._builder.segments
                    self._layer(layer, modules)
                layer += 1
            if short:  # a schedule can repeat one of its parts
                self._builder.repeat(first, group.repeat - 1)
        self._write("tail", stage.modules_after)
        if number < self._degrees.pipeline - 1:
            self._builder.segment("send")
            self._transfer("send", "stage-to-stage", SEND, self._tokens * stage.hidden_size)

    def _layer(self, number: int, modules: Layer) -> None:
        """Write a layer of the stage with its loads and stores of blocks."""
        if self._blocks.layerwise:
            self._await_blocks(number)
        self._write("layer", modules)
        self._blocks.leave(self._number, number, self._finished, self._dependencies(COMPUTE, *self._reduced))

    def again(self, first: int) -> int:
        """Write a micro-batch once more that begins with segment ``first`` and is the last one; return where
        the new one begins."""
        begin = self._builder.segments
        for segment in range(first, begin):
            self._builder.again(segment)
        return begin

    @property
    def segments(self) -> int:
        """Number of segments that were written so far."""
        return self._builder.segments

    def _state(self, number: int, modules: Layer) -> Hashable:
        """Return what determines the operations of the layer that begins: they are those of an earlier layer
        of the stage with the same value, and never if it has the ``number`` of the layer."""
        if self._blocks.layerwise or self._awaited:
            return number
        return id(modules), self._update, tuple(map(bool, self._builder.written))

    def _write(self, segment: str, modules: Layer) -> None:
        """Write a layer, or the part before or after the layers."""
        self._builder.segment(segment)
        for module in modules:
            self._module(module)
            self._exchange(module)

    def _module(self, module: Module) -> None:
        """Launch a module and let the GPU run its kernels."""
        duration = self._timing.compute(module)
        if not duration:
            return
        self._launch(module.name, self._timing.launch_s(module))
        awaited, self._awaited = self._awaited, []
        self._before_kernels(module)
        after = (*self._dependencies(HOST, *self._reduced), *(self._builder.after(*one) for one in awaited))
        if self._update is None or module.kind != "attention":
            self._builder.add(Op("compute", module.name, self._stream(COMPUTE), duration, after=after))
            return
        compute, prefetch = self._stream(COMPUTE), self._stream(self._first_of_cache)
        self._update.write(
            self._builder,
            CacheStreams(self._stream(HOST), compute, prefetch, prefetch),
            CacheRoutes(self._builder, self._machine, self._update.tier, self._cache_route),
            label=module.name,
            joining=self._timing.joining(self._update.joined, duration),
            duration=duration,
            after=after,
        )

    def _cache_route(self, cause: Cause, path_of: Callable[[int], Path], _following: bool) -> TransferRoute:
        """Return the route of the cache of the stage's GPUs."""
        return TransferRoute(cause, *self._paths(cause, lambda _, gpu: path_of(gpu)))

    @property
    def _joined(self) -> Sequence[int]:
        """Further streams for which the end of a pass waits."""
        return ()

    def _before_kernels(self, module: Module) -> None:
        """Write what begins with the kernels of a module."""

    def _begin_step(self, number: int, batch: tuple[Sequences, ...]) -> None:
        """Prepare the input of a step of compiled code; that of a decode step was prepared beside the one
        before, and its kernels are launched as one CUDA graph."""
        if not self._plan.compiled:
            return
        self._graphs[number] = graphs_of(self._plan.divided.stages[number], batch)
        costs = self._machine.host.compiled_costs
        name, seconds = "step", costs.step.value
        if self._graphs[number] == "whole":
            name, seconds = "graph", costs.kernel.value
        self._builder.segment("step")
        self._builder.add(Op("launch", name, self._stream(HOST), picoseconds(seconds)))

    def _launch(self, name: str, seconds: float) -> None:
        """Add work of the host, none of which is left where a CUDA graph of the whole pass was launched."""
        if self._plan.compiled and (not seconds or self._graphs[self._number] == "whole"):
            return
        self._builder.add(Op("launch", name, self._stream(HOST), picoseconds(seconds)))

    def _exchange_s(self, *, within_graphs: bool) -> float:
        """Return the host time of an exchange among GPUs [s]: in transformers' code that of its wrappers, in
        an engine's the launch of a kernel, unless it is one ``within_graphs``."""
        host = self._machine.host
        if not self._plan.fused:
            return host.eager_costs.all_reduce.value
        captured = within_graphs and self._graphs.get(self._number, "none") != "none"
        return 0.0 if captured else host.compiled_costs.kernel.value

    def _exchange(self, module: Module) -> None:
        """Combine the results of the GPUs of a stage, if ``module`` leaves them in parts."""
        divided, tensor = self._plan.divided, self._degrees.tensor
        ring = (tensor - 1) / tensor
        if module.name in divided.reduced:
            width = module.width if module.kind == "embedding" else self._plan.model.hidden_size
            self._transfer("all-reduce", "all-reduce", REDUCE, self._tokens * width * 2 * ring)
        elif module.name in divided.gathered:
            size = self._sequences * module.out_features * tensor * ring
            self._transfer("gather", "all-gather", REDUCE, size)

    def _transfer(self, kind: OpKind, cause: CauseKind, stream: int, elements: float) -> None:
        """Let every rank receive ``elements`` from its predecessor in the ring of its stage, or send them to
        the next stage."""
        machine, degrees, ring = self._machine, self._degrees, stream == REDUCE
        name = cause_text(Cause(cause))
        self._launch(name, self._exchange_s(within_graphs=ring))
        size = max(1, round(elements * self._plan.model.dtype_bytes))

        def path_of(rank: int, gpu: int) -> Path:
            if ring:
                return machine.gather(gpu, degrees.tensor, first=gpu - rank % degrees.tensor)
            return machine.send(gpu, degrees.gpu(self._number + 1, rank))

        path, hops = self._paths(Cause(cause), path_of)
        route = self._builder.route(cause=Cause(cause), hops=hops, cap=path.curve.rate(size))
        after = self._dependencies(HOST, COMPUTE, *(() if ring else self._reduced))
        after = (*after, *(self._builder.after(*one) for one in self._awaited))
        self._awaited = []
        fixed = picoseconds(path.latency)
        self._builder.add(Op(kind, name, self._stream(stream), fixed, size, route, after, ring))

    @property
    def _reduced(self) -> Sequence[int]:
        """Streams other than its own for which the compute stream waits."""
        return (REDUCE,) if self._degrees.tensor > 1 else ()

    def _paths(self, cause: Cause, path_of: Callable[[int, int], Path]) -> tuple[Path, tuple[Hops, ...]]:
        """Return the path of the first rank of the stage, and the hops of all ranks, none in other stages;
        ``path_of`` gives that of a rank of the stage and its GPU, and is asked once for each ``cause``."""
        if (self._number, cause) not in self._plan.known_paths:
            paths = [path_of(rank, self._degrees.gpu(self._number, rank)) for rank in range(self._each)]
            self._plan.known_paths[self._number, cause] = paths[0], self._hops(paths)
        return self._plan.known_paths[self._number, cause]

    def _hops(self, paths: Sequence[Path], *, stage: int | None = None) -> tuple[Hops, ...]:
        """Return the hops of all ranks, of which only those of a stage (default: the present) have paths."""
        hops: list[Hops] = [()] * self._degrees.ranks
        begin = (self._number if stage is None else stage) * self._each
        hops[begin : begin + len(paths)] = (path.hops for path in paths)
        return tuple(hops)

    def _stream(self, stream: int) -> int:
        return self._number * len(self._names) + stream

    def _dependencies(self, *streams: int) -> tuple[Dependency, ...]:
        return tuple(Dependency(self._stream(one)) for one in streams)
