"""The driver of passes: it walks the modules in the order of their calls, with hooks around them.

Real programs offload with hooks: Accelerate's ``ModelHook``, DeepSpeed's module hooks, vLLM's offloader. So
a program is a list of hooks here, too, each with one concern, around one driver. The driver launches kernels,
lets the GPU wait for what hooks have moved, and repeats parts: a part that begins in the state of an earlier
one is that part once more (``Hook.state``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from itertools import chain, count
from typing import Any, ClassVar, Literal, NamedTuple

from simoffload.hardware import Machine
from simoffload.models import ModelShape, Module, Sequences
from simoffload.schedule import Cause, Dependency, Device, Hops, Program, Schedule
from simoffload.strategies.held import Held, Home
from simoffload.strategies.passes.streams import DEPTH, HOST, REQUEST, Routes, StreamWriter, mapped_read
from simoffload.strategies.passes.timing import Timing, picoseconds

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
        """What is written of it."""

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
                self.spend(self.costs.pass_overhead.value)
            self.flush()
        return self.build()

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
            incomplete = f"{name} {self._layer}: a state is incomplete"
            assert numbers(known.segments) == numbers(written.segments), incomplete
            assert known[1:] == written[1:], incomplete
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
        its time. Files are read into pinned buffers in requests of ``block`` [B], of which ``depth`` are in
        flight; mapped ones are copied by the host thread. Tensors in the GPU's memory, or read in place, are
        not brought at all. The hook ``holds`` the room on the GPU and two pinned buffers for files.
        """
        if not sizes or home.in_place or self.machine.tiers[home.tier].kind == "hbm":
            return
        size, copies = sum(sizes), hook.stream("copy")
        stored = self.machine.tiers[home.tier].kind != "dram"
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
        route, fixed = self.copies(sizes, to_device=True, pinned=pinned)
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
