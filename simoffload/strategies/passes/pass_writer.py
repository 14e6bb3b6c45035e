"""The driver of passes: it walks the modules in the order of their calls, with hooks around them, and writes
streams of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from itertools import chain, count
from math import inf
from typing import Any, ClassVar, Literal, NamedTuple

from simoffload.hardware import Host, Machine, Path, Resource
from simoffload.models import ModelShape, Module, Sequences
from simoffload.schedule import (
    Cause,
    CauseKind,
    Dependency,
    Device,
    Hops,
    Op,
    OpKind,
    Program,
    Purpose,
    Schedule,
    ScheduleBuilder,
)
from simoffload.strategies.base import Held, Home
from simoffload.strategies.passes.timing import (
    EAGER_PASS,
    Timing,
    copy_cause,
    effective_rate,
    picoseconds,
)
from simoffload.workload import READ_AHEAD

# -- streams of operations of one rank, written as its host thread issues them ---------------------
# The base of the driver and of checkpoints.


HOST = 0
_LUSTRE_READ_AHEAD = 64 * 2**20

REQUEST = 1 << 20
"""Size [B] of the largest request to a file by what no program has: our choice."""
DEPTH = 64
"""Number of such requests in flight of each GPU, in each direction: our choice; enough for the full rate of
the shipped drives and filesystems."""

RankRoute = tuple[Path, tuple[Hops, ...]]
"""Path of the first rank, which determines the rate of a single transfer, and the hops of all ranks."""
Routes = dict[tuple[object, ...], RankRoute]
"""Cache of routes. Writers for the same ranks of a machine may share it, because finding the routes of a
thousand ranks again would take most of the time."""


class StreamWriter:
    """A StreamWriter writes the streams of a rank; the first is the host thread, whose work is added up until
    another operation depends on it."""

    def __init__(
        self,
        *,
        name: str,
        gpus: Sequence[int],
        streams: Sequence[str],
        machine: Machine,
        routes: Routes | None = None,
        devices: Sequence[Device] = (),
        programs: Sequence[Program] = (),
    ) -> None:
        self.machine = machine
        self.costs = machine.host.deepspeed
        self.builder = ScheduleBuilder(
            name=name, ranks=len(gpus), streams=streams, devices=devices, programs=programs
        )
        self.label = name
        self.gpus = gpus
        self.first = 0
        """Number of the first stream of the program that is written; methods count streams from it."""
        self.ranks = len(gpus)
        self._pending = 0
        self._awaited: list[tuple[int, int]] = []
        self._latest = [Dependency(stream) for stream in range(len(streams))]
        self.known: dict[tuple[object, ...], tuple[int, int]] = {}
        """Route and latency [ps] of transfers that were asked for, by what they are."""
        self._routes: Routes = {} if routes is None else routes

    def build(self) -> Schedule:
        """Return the finished schedule over the machine's resources."""
        self.flush()
        return self.builder.build([(one.name, self.capacity(one)) for one in self.machine.resources])

    def capacity(self, resource: Resource) -> int:
        """Return the capacity of a resource that the ranks may use [B/s]."""
        return resource.capacity

    def way(
        self, key: tuple[object, ...], path: Callable[[int], Path], *, of_host: bool = False
    ) -> RankRoute:
        """Return the routes of all ranks, cached by ``key``; ``path`` returns the path of one rank's GPU,
        which is that of all GPUs of its host if it is the path ``of_host`` memory."""
        key = (self.first, *key)
        if key not in self._routes:
            each = self.machine.gpus_per_node if of_host else 1
            paths = {number: path(number * each) for number in {gpu // each for gpu in self.gpus}}
            own = [paths[gpu // each] for gpu in self.gpus]
            self._routes[key] = own[0], self.of_all([path.hops for path in own])
        return self._routes[key]

    def of_all(self, hops: Sequence[Hops]) -> tuple[Hops, ...]:
        """Return the hops of all ranks from those of the ranks of the program that is written."""
        return tuple(hops)

    def transfers(self, cause: Cause, path: Callable[[int], Path], sizes: Sequence[int]) -> tuple[int, int]:
        """Return route and latency [ps] of several transfers in sequence, each at the rate for its own size.

        ``path`` returns the path of each rank; all routes with the same ``cause`` must be equal.
        """
        key = self.first, cause, tuple(sizes)
        if key not in self.known:
            first, hops = self.way((cause,), path)
            route = self.builder.route(cause=cause, hops=hops, cap=effective_rate(first, sizes))
            self.known[key] = route, picoseconds(first.latency * len(sizes))
        return self.known[key]

    def copies(
        self,
        sizes: Sequence[int],
        *,
        to_device: bool,
        pinned: bool,
        cache: str = "",
        gpu: int | None = None,
        tier: str = "dram",
    ) -> tuple[int, int]:
        """Return route and latency [ps] of copies between the GPU and host memory, by default its DRAM, one
        after the other.

        ``cache`` is the tier of the key-value cache if they are of keys and values; ``gpu`` is the GPU of a
        process that drives several, whose links may differ: by default its main one.
        """
        machine = self.machine
        tier = cache if cache and machine.tiers[cache].row.is_host else tier
        copy = machine.host_to_device if to_device else machine.device_to_host
        reach = partial(copy, pinned=pinned, tier=tier)
        cause = copy_cause(to_device=to_device, pinned=pinned, tier=tier)
        if gpu is None or (path := reach(gpu)).hops == reach(self.gpus[0]).hops:
            return self.transfers(cause.of_cache(cache), reach, sizes)
        return self.transfers(cause._replace(gpus=(gpu,)).of_cache(cache), lambda _: path, sizes)

    def copy(
        self,
        sizes: Sequence[int],
        stream: int,
        *,
        to_device: bool,
        pinned: bool,
        behind: tuple[int, ...] = (),
    ) -> int:
        """Write copies between the GPU and host memory, one after the other; return their number on the
        stream.

        They begin when all work written so far on the host and on the streams ``behind`` is done.
        """
        self.flush()
        route, latency = self.copies(sizes, to_device=to_device, pinned=pinned)
        after = self.so_far(HOST, *behind)
        return self.add("copy", stream, fixed=latency, size=sum(sizes), route=route, after=after)

    def file(
        self,
        tier: str,
        size: int,
        *,
        block: int,
        in_flight: int | None,
        written: bool = False,
        gds: bool = False,
        most: int | None = None,
        cache: str = "",
        purpose: Purpose = "",
    ) -> tuple[int, int]:
        """Return route and latency [ps] of reading, or writing, ``size`` [B] on a tier, in requests of
        ``block`` [B] of which ``in_flight`` [B] are under way at a time, by default as many as the device can
        use; at most at ``most`` [B/s].

        The rate on storage is that measured for a transfer of this size, at most what Little's law leaves:
        the bytes in flight over the latency of a request. ``gds``: directly to, or from, the GPU's memory.
        ``cache`` is the tier of the key-value cache if it is keys and values that move; ``purpose`` says
        what else it is, such as page faults.
        """
        key = "file", self.first, tier, size, block, in_flight, written, gds, most, cache, purpose
        if key not in self.known:
            reach = self.machine.storage_write if written else self.machine.storage_read
            path, hops = self.way((tier, written, gds), partial(reach, tier, gds=gds), of_host=not gds)
            rate = path.curve.rate(size)
            if in_flight is not None and self.machine.tiers[tier].row.has_files:
                rate = path.file_rate(size, outstanding=in_flight, block=block)
            cause = Cause("write" if written else "read", tier).of_cache(cache)
            cause = cause._replace(purpose=purpose) if purpose else cause
            route = self.builder.route(cause=cause, hops=hops, cap=rate if most is None else min(rate, most))
            self.known[key] = route, picoseconds(path.latency)
        return self.known[key]

    def received(self, kind: CauseKind, size: int) -> tuple[int, int]:
        """Return route and latency [ps] of ``size`` [B] that every rank receives from the others' GPUs."""
        return self.transfers(Cause(kind), partial(self.machine.gather, ranks=self.ranks), [size])

    def cpu_work(self, cause: Cause, rate: int) -> int:
        """Return the route of work on host memory at ``rate`` [B/s]."""
        _, hops = self.way((cause, rate), lambda rank: self.machine.cpu_work(rank, rate))
        return self.builder.route(cause=cause, hops=hops, cap=rate)

    def read_ahead(self, tier: str, path: Path) -> int:
        """Return the size [B] that Linux reads ahead of one reader of a file through the page cache.

        It is two stripes on an array (``disk_update_readahead``), 64 MiB of a file for a Lustre client (llite
        max_read_ahead_per_file_mb; from memory, unverified), and ``read_ahead_kb`` otherwise.
        """
        if self.machine.tiers[tier].kind == "pfs":
            return _LUSTRE_READ_AHEAD
        known = self.machine.host.read_ahead
        return max(known.value if known else READ_AHEAD, 2 * path.chunk * path.width)

    def spend(self, seconds: float) -> None:
        """Add ``seconds`` [s] of work to the host thread."""
        self._pending += picoseconds(seconds)

    def cool(self, seconds: float) -> None:
        """Add the time that the host thread loses to cold CPU caches after waiting for a transfer of
        ``seconds`` [s]."""
        self.spend(self.cold_s(seconds))

    def cold_s(self, seconds: float) -> float:
        """Return that time [s]."""
        return min(self.costs.cold_limit.value, self.costs.cold_share.value * seconds)

    def transfer_s(self, route: int, fixed: int, size: int) -> float:
        """Return the time [s] of a transfer alone."""
        return fixed * 1e-12 + size / self.builder.cap(route)

    def host_waits(self, stream: int, ordinal: int | None = None) -> None:
        """Let the next work of the host start only after an operation of a stream; by default its last one so
        far."""
        if self._pending:
            self.flush()
        last = self.count(stream) - 1 if ordinal is None else ordinal
        if last >= 0 and (stream, last) not in self._awaited:
            self._awaited.append((stream, last))

    def flush(self) -> None:
        """Write the work of the host thread that was added up so far as one operation, so that others can
        depend on it."""
        if self._pending or self._awaited:
            fixed, self._pending, after = self._pending, 0, tuple[Dependency, ...]()
            if self._awaited:
                after = tuple([self.after(stream, ordinal) for stream, ordinal in self._awaited])
                self._awaited = []
            self.add("hook", HOST, fixed=fixed, after=after)

    def add(
        self,
        kind: OpKind,
        stream: int,
        *,
        fixed: int = 0,
        size: int = 0,
        route: int = -1,
        label: str | None = None,
        after: tuple[Dependency, ...] = (),
        collective: bool = False,
    ) -> int:
        """Append an operation; return its number on its stream."""
        at = self.first + stream
        return self.builder.add(Op(kind, label or self.label, at, fixed, size, route, after, collective))

    def count(self, stream: int) -> int:
        """Return the number of operations that were written on a stream so far."""
        return self.builder.written[self.first + stream]

    def after(self, stream: int, ordinal: int) -> Dependency:
        """Return the dependency on the operation of a stream with the number that ``add`` returned."""
        return self.builder.after(self.first + stream, ordinal)

    def exchange(
        self,
        kind: OpKind,
        cause: CauseKind,
        stream: int,
        size: int,
        *,
        behind: tuple[int, ...],
        calls: int = 1,
    ) -> int:
        """Let every rank receive ``size`` [B] from the other ranks' GPUs in ``calls`` calls; return the
        number of the operation.

        It begins when all work written so far on the host and on the streams ``behind`` is done.
        """
        route, latency = self.received(cause, size)
        self.flush()
        fixed, after = latency * calls, self.so_far(HOST, *behind)
        return self.add(kind, stream, fixed=fixed, size=size, route=route, after=after, collective=True)

    def so_far(self, *streams: int) -> tuple[Dependency, ...]:
        """Return dependencies on all work written so far on some streams."""
        first, written, latest = self.first, self.builder.written, self._latest
        return tuple([latest[first + one] for one in streams if written[first + one]])


# --------------------------------------------------------------------------------------------------
# Copies of tensors in mapped files.
#
# Accelerate and FlexGen both map a file anew (``np.memmap``) whenever they need it, and let PyTorch copy it
# with all its threads: ``load_offloaded_weight`` in accelerate/utils/offload.py, ``copy_worker_func`` in
# flexllmgen/pytorch_backend.py. The kernel reads pages that the cache does not hold at page faults, and reads
# ahead while the threads copy. The slowest of three determines the time: the drive with the read-aheads that
# are in flight, the threads that copy, and what one file was measured to give on the host (``mapped_read``).
# Measurements: docs/measurements/mapped-files.md.


_FAULTING = 8
"""Number of threads up to which page faults of one process become faster in total (Papagiannis et al.,
Optimizing Memory-mapped I/O for Fast Storage Devices, USENIX ATC 2020: Linux does not scale beyond)."""


def loops_rate(host: Host, *, traffic: int, new: int = 0, share: float = 1.0) -> int:
    """Return the rate [B/s] of PyTorch's loops over ``traffic`` [B] on all cores, of which ``new`` [B] are in
    pages that were never touched; a core has ``share`` of the rate of element-by-element loops."""
    cpu = host.cpu_optimizer
    memory = cpu.limit.value / cpu.numa_nodes.value
    return host.fsdp_costs.adamw_rate(share * cpu.cores.value, traffic=traffic, new=new, share=memory)


def mapped_read(
    out: StreamWriter,
    tier: str,
    size: int,
    *,
    traffic: int,
    cache: str = "",
    most: float | None = None,
    purpose: Purpose = "",
) -> tuple[int, int]:
    """Return route and latency [ps] of copying ``size`` [B] of a mapped file that is not in the page cache to
    memory that is in use, by loops that move ``traffic`` [B]; at most at ``most`` [B/s].

    ``cache`` is the tier of the key-value cache if it is keys and values; ``purpose`` says what else it is.
    """
    host, resources = out.machine.host, out.machine.resources
    path, _ = out.way((tier, False, False), partial(out.machine.storage_read, tier))
    block = out.read_ahead(tier, path)
    ahead = min(_FAULTING, host.cpu_optimizer.cores.value) * block
    # A drive that is faster than its slot hides no less of the copying.
    limits = [out.capacity(resources[link]) * each.denominator // each.numerator for link, each in path.hops]
    limits.append(loops_rate(host, traffic=traffic) * size // traffic)
    if host.mapped_read is not None:
        limits.append(host.mapped_read.value)
    in_flight, limit = min(size, ahead), int(min(*limits, inf if most is None else most))
    return out.file(tier, size, block=block, in_flight=in_flight, most=limit, cache=cache, purpose=purpose)


# -- the driver of passes --------------------------------------------------------------------------
# It walks the modules in the order of their calls, with hooks around them.
#
# Real programs offload with hooks: Accelerate's ``ModelHook``, DeepSpeed's module hooks, vLLM's offloader.
# So a program is a list of hooks here, too, each with one concern, around one driver. The driver launches
# kernels, lets the GPU wait for what hooks have moved, and repeats parts: a part that begins in the state
# of an earlier one is that part once more (``Hook.state``).


# --------------------------------------------------------------------------------------------------
# Layers that a pass leaves out, because they repeat a period of layers before them.
#
# If a layer begins in the state in which an earlier one began, relative to each, and nothing has depended on
# what follows the layers, all between the two repeats until something depends on it. A pass through a stack
# with fewer layers, shorter by whole periods, then stands for one through all layers.


class Period(NamedTuple):
    """A Period states in which layer a recurring state occurs first, and after how many layers it recurs."""

    first: int
    layers: int


def period_of(states: Iterable[Hashable]) -> Period | None:
    """Return the period of the first state that recurs; None if none does before a state is None."""
    met: dict[Hashable, int] = {}
    for layer, state in enumerate(states):
        if state is None:
            return None
        if state in met:
            return Period(met[state], layer - met[state])
        met[state] = layer
    return None


class SkippedLayers(NamedTuple):
    """SkippedLayers are the layers that a pass leaves out: ``times`` periods of ``layers`` layers, each
    identical to a period between the layers ``after`` and ``before``."""

    layers: int
    after: int
    before: int
    times: int


class Recurrence:
    """A Recurrence finds the period that the skipped layers of one pass repeat."""

    def __init__(self, skipped: SkippedLayers | None = None) -> None:
        self._skipped = skipped
        self._met: dict[int, tuple[Hashable, int]] = {}
        self.found = skipped is None
        """Whether all layers are there: a period recurs, as it must, or none is left out."""

    def begins(self, layer: int, state: Callable[[], Hashable], position: int) -> tuple[int, int] | None:
        """Return where the repeated period began and how often it is repeated, once, when ``layer`` begins
        in the state of the layer one period before it.

        ``position`` is the number of what was written so far. A state of None never recurs.
        """
        skipped = self._skipped
        if self.found or skipped is None or not skipped.after <= layer < skipped.before:
            return None
        now = state()
        if now is None:
            return None
        self._met[layer] = now, position
        before = self._met.get(layer - skipped.layers)
        if before is None or before[0] != now:
            return None
        self.found = True
        return before[1], skipped.times


# -- the driver ------------------------------------------------------------------------------------

COMPUTE = 1
"""Number of the compute stream of the first GPU of a process."""


STAGING = ("copy", "read")
"""Names of the streams of a hook that brings tensors to the GPU with ``PassWriter.stage``."""


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
    followed: bool = False
    """Whether the host prepares and launches the next pass before it takes the tokens of this one."""
    proposes: bool = False
    """Whether it proposes tokens, as a part of a step of another model."""


class Call(NamedTuple):
    """A Call is the call of a module on one GPU of a process."""

    module: Module
    gpu: int = 0
    """Number of the GPU among those of its process."""
    facts: Hashable = None
    """What hooks need to know of it beside the module, such as the sizes of its offloaded tensors."""
    kernels: Literal["forward", "backward", "none"] = "forward"
    """Kernels that are launched: none if the call is only an event for hooks."""


class Part(NamedTuple):
    """A Part is a layer, or what is before or after the layers; the calls of equal parts are one object."""

    name: str
    calls: Sequence[Call]
    layer: int = -1
    """Number of the layer in its stage, in the order of the pass; -1 outside of the layers."""


def parts_of(model: ModelShape, gpu: Callable[[int, Module], int] = lambda *_: 0) -> tuple[Part, ...]:
    """Return the parts of a model, or of a stage of it; ``gpu`` returns the number of the GPU that computes a
    module from the number of its layer, -1 outside of the layers, by default the first."""
    known: dict[tuple[int, tuple[int, ...]], tuple[Call, ...]] = {}

    def calls(modules: Sequence[Module], layer: int = -1) -> tuple[Call, ...]:
        key = layer if layer < 0 else id(modules), tuple([gpu(layer, one) for one in modules])
        found = tuple(map(Call, modules, key[1]))
        return known.setdefault(key, found) if layer >= 0 else found

    return (
        Part("head", calls(model.modules_before)),
        *(Part("layer", calls(layer, number), number) for number, layer in enumerate(model.layers)),
        Part("tail", calls(model.modules_after)),
    )


class StagePass(NamedTuple):
    """A StagePass is what one micro-batch does in one stage of a pipeline, or in the whole model."""

    parts: Sequence[Part]
    timing: Timing
    batch: tuple[Sequences, ...]
    stage: int = 0
    recurrence: Recurrence | None = None
    """Layers that ``parts`` leave out; None if all are there."""

    @property
    def tokens(self) -> int:
        """Number of tokens that it feeds in."""
        return sum(one.number * one.new_tokens for one in self.batch)


class Awaited(NamedTuple):
    """An Awaited is an operation for which the next kernels wait."""

    stream: int
    """Number of its stream among those of all programs."""
    ordinal: int
    """Number of the operation on its stream, as ``StreamWriter.add`` returns it."""
    peers: int = -1
    """Ranks whose operation it is, as in ``Dependency``."""


class Hook:
    """A Hook is one concern of a program: it adds operations before, beside and after modules.

    Hooks are called in the order of a program's list where something begins, and in the opposite order where
    it ends. A hook is made for one pass.
    """

    streams: tuple[str, ...] = ()
    """Names of its own streams; where another hook has the same name, that of the hook is set before it."""
    in_order: tuple[str, ...] = ()
    """Those of its streams for which all later kernels wait, as for the compute stream itself."""
    listed_first: tuple[str, ...] = ()
    """Those of its streams that results list before the compute streams."""
    joined: tuple[str, ...] = ()
    """Those of its streams for which the end of a pass waits, where the pass ends before all streams do."""
    carry: Hashable = ()
    """All that it remembers from part to part, apart from what it lets later parts wait for; the driver sets
    it where a part is repeated. It must not contain numbers of operations."""
    carried: ClassVar[bool] = True
    """Whether ``carry`` is all that it remembers. If not, no part is repeated alone; periods of layers may be
    (``StagePass.recurrence``)."""
    first: int = 0
    """Number of its first stream, set by the driver."""

    def stream(self, name: str) -> int:
        """Return the number of one of its streams."""
        return self.first + self.streams.index(name)

    def state(self, part: Part) -> Hashable:
        """Return all on which its operations in a part depend, beside the modules and ``carry``; by default
        the number of the layer, so that no layer repeats another one."""
        return part.layer

    def of_modules(self, part: Part) -> Hashable:  # noqa: ARG002
        """Return nothing: the ``state`` of hooks whose operations depend on modules and ``carry`` only."""
        return None

    def start(self, out: PassWriter) -> None:
        """Begin a pass, before its first stage."""

    def begin(self, stage: StagePass, out: PassWriter) -> None:
        """Begin a micro-batch in a stage."""

    def enter(self, part: Part, out: PassWriter) -> None:
        """Begin a part, before its first module."""

    def before(self, call: Call, out: PassWriter) -> None:
        """Act before a module is launched."""

    def launch(self, call: Call, out: PassWriter) -> bool:  # noqa: ARG002
        """Launch a module in place of the driver; return whether it has."""
        return False

    def launched(self, call: Call, out: PassWriter) -> None:
        """Act between the launch of a module and its kernels."""

    def kernels(self, call: Call, duration: int, after: tuple[Dependency, ...], out: PassWriter) -> bool:  # noqa: ARG002
        """Write the kernels of a module, which take ``duration`` [ps] and wait for ``after``, in place of the
        driver; return whether it has."""
        return False

    def after(self, call: Call, out: PassWriter) -> None:
        """Act after the kernels of a module."""

    def leave(self, part: Part, out: PassWriter) -> None:
        """End a part, after its last module."""

    def end(self, stage: StagePass, out: PassWriter) -> None:
        """End a micro-batch in a stage."""

    def holds(self) -> Iterable[Held]:
        """Yield what it holds beside the weights in their homes, such as buffers on the GPU."""
        return ()

    def finish(self, out: PassWriter) -> bool:  # noqa: ARG002
        """End the pass of a stage in place of the driver; return whether it has."""
        return False


class _Written(NamedTuple):
    """A _Written is a part that was written, and the state that it left, relative to its end."""

    segments: range
    pending: int
    host_waits: tuple[tuple[int, int], ...]
    waits: tuple[Awaited, ...]
    promised: tuple[tuple[int, Awaited], ...]
    """What later layers wait for, by their distance in layers."""
    carried: tuple[Hashable, ...]


def _unused(name: str, hook: str, names: Sequence[str]) -> str:
    """Return the name of a stream that no hook before has, with that of its own hook."""
    numbered = (f"{hook} {number} {name}" for number in count(2))
    return next(one for one in chain((name, f"{hook} {name}"), numbered) if one not in names)


class PassWriter(StreamWriter):
    """A PassWriter writes a pass of a program: the host thread, the compute streams of each process, and the
    streams of the hooks; each stage of a pipeline is a program of its own."""

    verify: ClassVar[bool] = False
    """Whether parts that repeat are also written and compared; tests set it."""

    def __init__(
        self,
        *,
        name: str,
        machine: Machine,
        hooks: Sequence[Hook],
        gpus: Sequence[Sequence[int]] = ((0,),),
        compute: int = 1,
        routes: Routes | None = None,
        devices: Sequence[Device] = (),
    ) -> None:
        """Begin a pass of processes that have the ``gpus`` of each stage, and ``compute`` GPUs each."""
        self.hooks, self.compute = tuple(hooks), compute
        names = ["host", *["compute"] * compute]
        for hook in self.hooks:
            hook.first = len(names)
            names += [_unused(one, type(hook).__name__.lower(), names) for one in hook.streams]
        self.in_order = tuple(hook.stream(one) for hook in self.hooks for one in hook.in_order)
        self.joined = tuple(hook.stream(one) for hook in self.hooks for one in hook.joined)
        self.width, self._each = len(names), len(gpus[0])
        self._repeats = all(hook.carried for hook in self.hooks)
        self._before, self._launch, self._launched, self._run, self._after = map(
            self._acting, ("before", "launch", "launched", "kernels", "after")
        )
        self._own_states = [one.state for one in self.hooks if type(one).state is not Hook.of_modules]
        ahead = [hook.stream(one) for hook in self.hooks for one in hook.listed_first]
        self._listed = [HOST, *ahead, *[one for one in range(1, len(names)) if one not in ahead]]
        programs = [
            Program(
                f"stage {at}",
                range(at * self._each, (at + 1) * self._each),
                range(at * self.width, (at + 1) * self.width),
            )
            for at in range(len(gpus))
        ]
        super().__init__(
            name=name,
            gpus=[gpu for stage in gpus for gpu in stage],
            streams=names * len(gpus),
            machine=machine,
            routes=routes,
            devices=devices,
            programs=programs if len(gpus) > 1 else (),
        )
        self._gpus_of = gpus
        self._seen: dict[Hashable, _Written] = {}
        self._layer = -1
        self._promised: dict[tuple[int, int], list[Awaited]] = {}
        self._new: list[tuple[int, Awaited]] = []
        self._states_met: dict[Hashable, int] = {}
        self._batch = -1  # number of the batch of the present stage
        self._lefts: dict[Hashable, int] = {}  # the state that a part leaves that was repeated
        self._begun: int | None = None  # the present state, if it is known from such a part
        self.waits: list[Awaited] = []
        """What the next kernels wait for."""
        self.stage_number = 0
        """Number of the stage that is written."""
        self.now: StagePass
        """What is written of it, with its ``tokens``."""

    def _acting(self, name: str) -> list[Any]:
        """Return a method of those hooks that have one of their own: most do nothing at most modules."""
        return [
            getattr(one, name) for one in self.hooks if getattr(type(one), name) is not getattr(Hook, name)
        ]

    @property
    def stage_before(self) -> int:
        """Index of the ranks of the stage before the present one, for dependencies of its ranks on them."""
        ranks = range(self._each, len(self._gpus_of) * self._each)
        return self.builder.peers((*[()] * self._each, *[(rank - self._each,) for rank in ranks]))

    # -- what hooks ask for -----------------------------------------------------------------------

    def await_(self, stream: int, ordinal: int) -> None:
        """Let the next kernels wait for an operation of a stream."""
        self.waits.append(Awaited(self.first + stream, ordinal))

    def promise(self, layer: int, stream: int, ordinal: int) -> None:
        """Let a layer of this stage wait for an operation of a stream, in this or the next micro-batch."""
        one = Awaited(self.first + stream, ordinal)
        self._promised.setdefault((self.stage_number, layer), []).append(one)
        self._new.append((layer - self._layer, one))

    def on_gpu(self, gpu: int = 0) -> tuple[Dependency, ...]:
        """Return dependencies on all that a GPU was given so far."""
        return tuple([Dependency(self.first + one) for one in (COMPUTE + gpu, *self.in_order)])

    def of_all(self, hops: Sequence[Hops]) -> tuple[Hops, ...]:
        """Return the hops of all ranks, of which only those of the present stage have any."""
        before, stages = self.stage_number * self._each, len(self._gpus_of)
        return (*[()] * before, *hops, *[()] * (stages * self._each - before - len(hops)))

    def build(self) -> Schedule:
        """Return the finished schedule, with the streams in the order in which results list them."""
        programs = range(0, len(self._gpus_of) * self.width, self.width)
        return super().build().reordered([first + one for first in programs for one in self._listed])

    # -- the walk ---------------------------------------------------------------------------------

    def write(self, stages: Sequence[StagePass]) -> Schedule:
        """Return the schedule of a pass, in which each micro-batch goes through one stage after the other."""
        for hook in self.hooks:
            hook.start(self)
        for one in stages:
            self.go_to(one.stage)
            self.now, self._begun = one, None
            self._batch = self._states_met.setdefault(one.batch, len(self._states_met))
            for hook in self.hooks:
                hook.begin(one, self)
            for part in one.parts:
                self._part(part)
            for hook in reversed(self.hooks):
                hook.end(one, self)
            self.flush()
        for number in range(len(self._gpus_of)):
            self.go_to(number)
            self.label = "pass"
            if True not in [hook.finish(self) for hook in reversed(self.hooks)]:
                for stream in (*range(COMPUTE, COMPUTE + self.compute), *self.in_order):
                    self.host_waits(stream)
                self.spend(self.eager_pass_s)
            self.flush()
        return self.build()

    @property
    def eager_pass_s(self) -> float:
        """Time of the host thread in a pass without DeepSpeed beside the modules [s]."""
        return EAGER_PASS * self.machine.host.eager_costs.operation.value

    def go_to(self, stage: int) -> None:
        """Write the streams of a stage from now on."""
        self.stage_number, self.first, self.gpus = stage, stage * self.width, self._gpus_of[stage]

    def _part(self, part: Part) -> None:
        """Write a part, or repeat an earlier one that began in the same state."""
        self._layer = part.layer
        promised = self._promised.pop((self.stage_number, part.layer), None)
        if promised:
            self.waits += promised
            self._begun = None
        if self.now.recurrence is not None:
            state, position = partial(self._state_of, part), self.builder.segments
            if (period := self.now.recurrence.begins(part.layer, state, position)) is not None:
                self.builder.repeat(*period)
        if not self._repeats:
            self._write_part(part)
            return
        key = self._state() if self._begun is None else self._begun, *self._own(part)
        self._begun = None
        known = None if self.verify else self._seen.get(key)
        if known is None:
            self._write_section(part.name, key, partial(self._write_part, part))
            return
        self._repeat(part.name, known)
        if key not in self._lefts:
            self._lefts[key] = self._state()
        self._begun = self._lefts[key]

    def section(self, name: str, own: Hashable, write: Callable[[], None]) -> None:
        """Write a section of a pass without parts, or repeat an earlier one that began in the same state.

        ``own`` is all on which its operations depend, beside the ``carry`` of hooks.
        """
        key = self._state(), name, own
        known = None if self.verify else self._seen.get(key)
        if known is None:
            self._write_section(name, key, write)
        else:
            self._repeat(name, known)

    def _write_section(self, name: str, key: Hashable, write: Callable[[], None]) -> None:
        """Write a section that begins in a state; compare it with an earlier one that did, if any."""
        known, begin, self._new = self._seen.get(key), self.builder.segments, []
        write()
        written = self._left(begin)
        if known is not None:
            numbers = self.builder.numbers
            if numbers(known.segments) != numbers(written.segments) or known[1:] != written[1:]:
                raise AssertionError(f"{name} {self._layer}: a state is incomplete")
        self._seen[key] = written

    def _write_part(self, part: Part) -> None:
        self.builder.segment(part.name)
        for hook in self.hooks:
            hook.enter(part, self)
        for call in part.calls:
            self._call(call)
        for hook in reversed(self.hooks):
            hook.leave(part, self)

    def _own(self, part: Part) -> tuple[Hashable, ...]:
        """Return what the part and the states of the hooks say."""
        return (part.name, self._batch, id(part.calls), *[state(part) for state in self._own_states])

    def _state_of(self, part: Part) -> Hashable:
        return self._state(), self._own(part)

    def _state(self) -> int:
        """Return the number of the state in which a part begins, relative to what was written."""
        written = self.builder.written
        state = (
            self.stage_number,
            self._pending,
            *self._distances(),
            tuple(map(bool, written[self.first : self.first + self.width])),
            tuple([hook.carry for hook in self.hooks]),
        )
        return self._states_met.setdefault(state, len(self._states_met))

    def _distances(self) -> tuple[tuple[tuple[int, int], ...], tuple[Awaited, ...]]:
        """Return what the host and the GPU wait for, as distances to what was written."""
        written = self.builder.written
        host = tuple([(stream, self.count(stream) - ordinal) for stream, ordinal in self._awaited])
        return host, tuple([one._replace(ordinal=written[one.stream] - one.ordinal) for one in self.waits])

    def _left(self, begin: int) -> _Written:
        written = self.builder.written
        promised = [(at, one._replace(ordinal=written[one.stream] - one.ordinal)) for at, one in self._new]
        segments = range(begin, self.builder.segments)
        carried = tuple([hook.carry for hook in self.hooks])
        return _Written(segments, self._pending, *self._distances(), tuple(promised), carried)

    def _repeat(self, name: str, known: _Written) -> None:
        """Write a part once more, and leave the state that it left."""
        self.builder.segment(name)  # also of what follows it
        for segment in known.segments:
            self.builder.again(segment)
        written = self.builder.written
        self._pending, self._awaited, self.waits = known.pending, [], []
        if known.host_waits:
            self._awaited = [(stream, self.count(stream) - back) for stream, back in known.host_waits]
        if known.waits:
            self.waits = [one._replace(ordinal=written[one.stream] - one.ordinal) for one in known.waits]
        for ahead, one in known.promised:
            self.promise(self._layer + ahead, one.stream - self.first, written[one.stream] - one.ordinal)
        for hook, carried in zip(self.hooks, known.carried, strict=True):
            hook.carry = carried

    def _call(self, call: Call) -> None:
        self.label = call.module.name
        for before in self._before:
            before(call, self)
        if call.kernels != "none":
            timing = self.now.timing
            duration = (timing.backward if call.kernels == "backward" else timing.compute)(call.module)
            if duration:
                self._kernels(call, duration)
        for after in reversed(self._after):
            after(call, self)

    def _kernels(self, call: Call, duration: int) -> None:
        """Launch a module, and let the GPU run its kernels when all is there for which they wait."""
        for launch in self._launch:
            if launch(call, self):
                break
        else:
            self.launch(call.module.name, self.now.timing.launch_s(call.module))
        waits, self.waits = self.waits, []
        for launched in self._launched:
            launched(call, self)
        after = self.so_far(HOST, *self.in_order)
        if waits:
            after += tuple([self.builder.after(*one) for one in waits])
        for run in self._run:
            if run(call, duration, after, self):
                break
        else:
            self.add("compute", COMPUTE + call.gpu, fixed=duration, after=after)

    def stage(
        self,
        hook: Hook,
        sizes: Sequence[int],
        home: Home,
        *,
        layer: int | None = None,
        after: tuple[Dependency, ...] = (),
        block: int = REQUEST,
        depth: int = DEPTH,
        call_s: float | None = None,
        label: str = "weights",
    ) -> None:
        """Bring tensors of ``sizes`` [B] from their home to the GPUs on the streams of a hook (``STAGING``).

        The next kernels wait for them, or those of ``layer``. The copy waits for ``after``. It takes the host
        thread ``call_s`` [s] for each tensor, by default a PyTorch operation, and from pageable memory all of
        its time. The tier's way of access decides the rest: the GPU copies memory of the host itself; what is
        elsewhere is read into pinned buffers, blocks and files in requests of ``block`` [B], of which
        ``depth`` are in flight, objects in those of their client; mapped files are copied by the host thread.
        Tensors in the GPU's memory, read in place or without a byte are not brought at all. The hook
        ``holds`` the room on the GPU and two pinned buffers for what is not in memory.
        """
        tier = self.machine.tiers[home.tier].row
        if not any(sizes) or home.in_place or tier.is_gpu:
            return
        size, copies, stored = sum(sizes), hook.stream("copy"), not tier.is_host
        each = self.machine.host.eager_costs.operation.value if call_s is None else call_s
        self.spend(each * len(sizes))
        self.flush()
        if stored and home.mapped:
            route, fixed = mapped_read(self, home.tier, size, traffic=2 * size)
            self.add("read", HOST, fixed=fixed, size=size, route=route, label=label)
        elif stored:
            # One of two pinned buffers is free again when the copy before the last one has left it.
            reads, free = hook.stream("read"), Dependency(self.first + copies, 1)
            request = min(block, size)
            in_flight = min(size, depth * request)
            route, fixed = self.file(home.tier, size, block=request, in_flight=in_flight)
            behind = (*self.so_far(HOST), free)
            self.add("read", reads, fixed=fixed, size=size, route=route, label=label, after=behind)
            after = (*after, Dependency(self.first + reads))
        pinned = home.pinned or (stored and not home.mapped)
        memory = "dram" if stored else home.tier
        route, fixed = self.copies(sizes, to_device=True, pinned=pinned, tier=memory)
        after = (*self.so_far(HOST), *after)
        number = self.add("copy", copies, fixed=fixed, size=size, route=route, label=label, after=after)
        if not pinned:
            self.host_waits(copies)
            self.cool(self.transfer_s(route, fixed, size))
        if layer is None:
            self.await_(copies, number)
        else:
            self.promise(layer, copies, number)

    def send(self, before: int, gpu: int, size: int) -> None:
        """Copy hidden states of ``size`` [B] to another GPU of the process, whose next kernels wait."""
        path = self.machine.send(before, gpu)
        route, latency = self.transfers(Cause("gpu-to-gpu", gpus=(before, gpu)), lambda _: path, [size])
        after, to = self.so_far(HOST, COMPUTE + before), COMPUTE + gpu
        self.add("copy", to, fixed=latency, size=size, route=route, label="hidden states", after=after)

    def launch(self, label: str, seconds: float) -> None:
        """Let the host thread launch kernels."""
        self.flush()
        self.add("launch", HOST, fixed=picoseconds(seconds), label=label)
