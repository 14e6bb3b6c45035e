"""Passes under Hugging Face Accelerate: offloaded modules are brought to the GPU one by one.

Reference: accelerate 1.15.0, ``hooks.py`` (``AlignDevicesHook``), ``utils/modeling.py``, ``offload.py``.

One process drives all GPUs. A module whose home is the CPU or the disk computes on the main GPU: before its
forward function a hook copies its tensors there, one after the other, with blocking copies on the compute
stream, and empties PyTorch's cache of GPU memory after each; after it the tensors are dropped. Nothing is
prefetched, so copies and kernels never overlap. A tensor that two modules share is copied for each of them,
unless one of them keeps it on the main GPU: ``post_forward`` removes it from ``tied_params_map`` again. A
tensor on disk is read through a memory map into a new tensor (``load_offloaded_weight``), and then copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from typing import NamedTuple

from simoffload.hardware import Curve, FsdpCosts, Machine, Path, Provenance
from simoffload.models import ModelShape, Module
from simoffload.models.shape import grouped
from simoffload.results import MemoryStage, MemoryTerm
from simoffload.schedule import Device, Schedule
from simoffload.strategies.base import Plan, Tunable
from simoffload.strategies.device_map import Call, Home, ModuleTree, home_of
from simoffload.strategies.extrapolation import arithmetic_beyond
from simoffload.strategies.kv_cache import DEFAULT, KvCache
from simoffload.strategies.memory import cache_bytes, pinned_rounding, working_memory
from simoffload.strategies.plan import ForwardPass, InferencePlan
from simoffload.strategies.resident import ResidentPlan
from simoffload.strategies.streams import HOST, StreamWriter
from simoffload.strategies.timing import Timing, picoseconds
from simoffload.units import format_bytes
from simoffload.workload import Inference

_FEWER = "lower device_map (layers on the GPU) or max_memory"
_READ_AHEAD = 128 << 10
"""[B] that Linux reads at a page fault in a mapped file, by default (VM_READAHEAD_PAGES, linux/mm.h)."""
_MAPPED = 0.65e-12
"""[s/B] of allocating and releasing memory of a GPU (H100: docs/measurements/hugging-face.md)."""
_NEVER_WRITTEN = 2.2
"""Rate of copies from pages that were never written, over that from others (measured in the same place)."""
_UNMEASURED = "host-thread costs of Accelerate: those of another host, scaled"


class AccelerateOptions(NamedTuple):
    """AccelerateOptions are the settings of Accelerate besides the device map."""

    num_gpus: int
    folder: str
    """Storage tier of the modules on disk; "" if there is none."""
    page_cache: bool | None
    """Whether files on disk are in the page cache; None: if they fit in the memory that is free."""
    pin_memory: bool
    initialized: bool
    fixed: bool
    """Whether the user gave the device map or the memory limits, which a number of layers would replace."""


class _Called(NamedTuple):
    """_Called is one call of a pass."""

    number: int
    """Number of its module in ``modules``."""
    gpu: int
    """Number of the GPU that computes it."""
    sizes: tuple[int, ...]
    """Sizes [B] of the tensors that its hook brings to that GPU."""
    on_disk: bool


@dataclass(frozen=True)
class AcceleratePlan(InferencePlan):
    """An AcceleratePlan is the plan of Accelerate for one model on one machine."""

    model: ModelShape
    workload: Inference
    machine: Machine
    options: AccelerateOptions
    tree: ModuleTree
    homes: Mapping[str, Home]
    """Device map: homes by name of module."""
    cache: KvCache = DEFAULT

    @property
    def modules(self) -> tuple[Module, ...]:
        """Modules of the model; those of equal layers are listed once."""
        return self.tree.modules

    # -- homes ----------------------------------------------------------------------------------

    @cached_property
    def main(self) -> int:
        """Number of the GPU that computes offloaded modules: the first one in the map."""
        return min((home for home in self.homes.values() if isinstance(home, int)), default=0)

    @cached_property
    def placed(self) -> tuple[tuple[Call, Home | None], ...]:
        """Calls of a pass with the homes of their modules; None for one whose parts have several."""
        return tuple((call, home_of(call.name, self.homes)) for call in self.tree.calls)

    @cached_property
    def stored(self) -> Mapping[Home, Mapping[str, int]]:
        """Tensors by home: size [B] by full name. A tensor of several modules counts where the first of them
        has its home, or on the main GPU if one of them is there."""
        found: dict[str, tuple[Home, int]] = {}
        for call, home in self.placed:
            for name, size in self.tree.tensors(call) if home is not None else ():
                if name not in found or home == self.main:
                    found[name] = home, size  # type: ignore[assignment]  # of a call with tensors it is known
        stored: dict[Home, dict[str, int]] = {}
        for name, (home, size) in found.items():
            stored.setdefault(home, {})[name] = size
        return stored

    def bytes_at(self, home: Home) -> int:
        """Return the size of the weights with a home [B]."""
        return sum(self.stored.get(home, {}).values())

    @cached_property
    def copied(self) -> tuple[tuple[int, ...], ...]:
        """Sizes [B] of the tensors that the hook of each call's module brings to the main GPU."""
        return tuple(self._copied(call, home) for call, home in self.placed)

    def _copied(self, call: Call, home: Home | None) -> tuple[int, ...]:
        if home not in ("cpu", "disk"):
            return ()
        kept = self.stored.get(self.main, {})
        return tuple(size for name, size in self.tree.tensors(call) if name not in kept)

    @cached_property
    def hooked(self) -> bool:
        """Whether modules have hooks: not if all are on one GPU (``dispatch_model``)."""
        return set(self.homes.values()) != {self.main}

    @property
    def dispatched(self) -> bool:
        """Whether ``dispatch_model`` put the hooks, also on modules without tensors of their own."""
        return len(set(self.homes.values())) > 1

    @property
    def target(self) -> str:
        """Tier that holds the offloaded weights, the slowest if there are several."""
        if self.bytes_at("disk"):
            return self.options.folder
        return "dram" if self.bytes_at("cpu") else "hbm"

    @property
    def tiers(self) -> frozenset[str]:
        """All tiers that hold weights."""
        dram = {"dram"} if self.bytes_at("cpu") else set()
        return frozenset({self.target} | dram | ({"hbm"} if self.bytes_at(self.main) else set()))

    @property
    def whole_copies(self) -> Plan | None:
        """Return the plan with all weights on the GPU; None if they are, or for several GPUs."""
        if self.options.num_gpus > 1 or not self.hooked:
            return None
        return ResidentPlan(model=self.model, workload=self.workload, machine=self.machine, ranks=1)

    @property
    def cached(self) -> bool:
        """Whether the files on disk are in the page cache after the first pass."""
        if self.options.page_cache is not None:
            return self.options.page_cache
        needed = sum(term.size for term in self.memory if term.tier == "dram")
        return needed + self.bytes_at("disk") <= self.machine.tiers["dram"].capacity

    @cached_property
    def element_wise(self) -> FsdpCosts:
        """Rates at which the host copies tensors into new ones."""
        return self.machine.host.fsdp_costs

    @property
    def host_costs(self) -> tuple[Provenance, ...]:
        """Costs of operations, and of tensors that are brought to the GPU."""
        costs = self.machine.host.eager_costs
        return (costs.operation, costs.tensor) if self.hooked else (costs.operation,)

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """Warnings about weights that were never written, and about what is assumed of the page cache."""
        if not self.options.initialized and self.bytes_at("cpu"):
            return ("weights that were never written are copied faster than those of a real model",)
        if self.options.page_cache is not None or not self.bytes_at("disk"):
            return ()
        files = f"{format_bytes(self.bytes_at('disk'))} of files on {self.target}"
        if self.cached:
            text = f"{files} are read from the page cache in host memory"
            return (f"{text}; the first pass, or other programs that use the memory, make it slower",)
        return (f"{files} do not stay in the page cache: every pass reads the drive",)

    @property
    def extrapolations(self) -> tuple[str, ...]:
        """Warnings about numbers used outside the range in which they were measured."""
        unmeasured = (_UNMEASURED,) if self.hooked and self.machine.host.eager is None else ()
        return (*unmeasured, *arithmetic_beyond(self.model, self.workload, self.machine))

    # -- memory ---------------------------------------------------------------------------------

    def tunables(self) -> Iterator[Tunable]:
        """Yield the number of layers on the GPUs."""
        if self.options.fixed:
            return
        inside = {call.layer for call, home in self.placed if call.layer >= 0 and isinstance(home, int)}
        word, path = "device_map (layers on the GPU)", ("strategy", "device_map")
        yield Tunable(word, path, len(inside), lambda now: iter(range(now - 1, -1, -1)))

    @property
    def memory_stages(self) -> tuple[MemoryStage, ...]:
        """Memory that each tier must hold while tokens are generated."""
        return (MemoryStage("", self.memory),)

    @cached_property
    def memory(self) -> tuple[MemoryTerm, ...]:
        """Memory that each tier must hold at its peak; on the GPUs that of the fullest one."""
        gpus = map(self._on_gpu, range(self.options.num_gpus))
        terms = [*max(gpus, key=lambda one: sum(term.size for term in one if term.tier == "hbm"))]
        if in_memory := self.stored.get("cpu", {}):
            pinned = self.options.pin_memory
            terms.append(MemoryTerm("dram", "weights", sum(in_memory.values()), pinned=pinned))
            if pinned:
                rounding = pinned_rounding(list(in_memory.values()))
                terms.append(MemoryTerm("dram", "rounding of pinned allocations", rounding, pinned=True))
        if on_disk := self.stored.get("disk", {}):
            terms.append(MemoryTerm("dram", "tensor read from disk", max(on_disk.values())))
            terms.append(MemoryTerm(self.target, "weights", sum(on_disk.values())))
        return tuple(terms)

    def _on_gpu(self, gpu: int) -> tuple[MemoryTerm, ...]:
        """Return the memory of one GPU: the cache of the layers that it computes, and all activations."""
        here = {call.layer for (call, _), at in zip(self.placed, self.executed, strict=True) if at == gpu}
        layers = [layer for number, layer in enumerate(self.model.layers) if number in here]
        encoder = sum(number < self.model.num_encoder_layers for number in here - {-1})
        part = replace(self.model, groups=grouped(layers), num_encoder_layers=encoder)
        cache = cache_bytes(part, self.workload)
        terms = [
            term._replace(size=cache) if term.name == "key-value cache" else term
            for term in working_memory(self.model, self.workload, self.machine)
        ]
        loaded = max(map(sum, self.copied), default=0) if gpu == self.main else 0
        if loaded:
            terms.insert(0, MemoryTerm("hbm", "offloaded module, largest", loaded))
        if kept := self.bytes_at(gpu):
            terms.insert(0, MemoryTerm("hbm", "weights", kept, remedy=_FEWER))
        return tuple(terms)

    # -- schedules ------------------------------------------------------------------------------

    @cached_property
    def executed(self) -> tuple[int, ...]:
        """Number of the GPU that computes each call: its home, the main one if it is offloaded, or that of
        the call before."""
        found: list[int] = []
        for _, home in self.placed:
            before = found[-1] if found else self.main
            found.append(home if isinstance(home, int) else before if home is None else self.main)
        return tuple(found)

    @cached_property
    def parts(self) -> tuple[tuple[str, tuple[_Called, ...]], ...]:
        """Parts of a pass, each layer being one, with the calls in them."""
        calls = zip(self.placed, self.executed, self.copied, strict=True)
        return tuple(
            (
                segment,
                tuple(_Called(call.number, gpu, sizes, home == "disk") for (call, home), gpu, sizes in of),
            )
            for (segment, _), of in groupby(calls, key=lambda one: (one[0][0].segment, one[0][0].layer))
        )

    def schedule(self, forward: ForwardPass) -> Schedule:
        """Return the schedule of one pass. The third and later ones of equal layers repeat the second, after
        which all streams and the GPU in use are as before it."""
        writer = _Writer(self, forward, self.timings.timing(forward.batch))
        durations = self.durations(forward)
        launches = [picoseconds(writer.timing.launch_s(module)) for module in self.modules]
        last = len(self.parts) - 1
        for number, part in enumerate(self.parts):
            if 1 < number < last and part == self.parts[number - 1] == self.parts[number - 2]:
                writer.again()
                continue
            writer.begin(part[0])
            for call in part[1]:
                module = self.modules[call.number]
                writer.hook(module, call.sizes, disk=call.on_disk)
                writer.kernels(module.name, durations[call.number], launches[call.number], gpu=call.gpu)
        return writer.end()


class _Writer(StreamWriter):
    """A _Writer writes one pass: the host thread, and the compute stream of each GPU."""

    def __init__(self, plan: AcceleratePlan, forward: ForwardPass, timing: Timing) -> None:
        gpus = plan.options.num_gpus
        several = (Device("host thread"), *(Device("GPU", gpu) for gpu in range(gpus)))
        super().__init__(
            name=forward.name,
            gpus=(plan.main,),
            streams=("host", *["compute"] * gpus),
            machine=plan.machine,
            devices=several if gpus > 1 else (),
        )
        self.timing = timing
        self._plan, self._at = plan, plan.executed[0]
        self._own = plan.machine.host.eager_costs
        tokens = sum(one.number * one.new_tokens for one in forward.batch)
        self._hidden = tokens * plan.model.hidden_size * plan.model.dtype_bytes
        self._threads = plan.machine.host.cpu_optimizer.cores.value

    def begin(self, segment: str) -> None:
        """Begin a layer, or the part before or after the layers."""
        self.flush()
        self.builder.segment(segment)

    def again(self) -> None:
        """Write the operations of the last layer once more."""
        self.flush()
        self.builder.again()

    def hook(self, module: Module, sizes: tuple[int, ...], *, disk: bool) -> None:
        """Run the hook before a module: it brings tensors of ``sizes`` [B] to the main GPU, one by one."""
        self.label = module.name
        if self._plan.hooked and (
            module.parameters or (module.kind == "container" and self._plan.dispatched)
        ):
            self.spend(self._own.hook.value)
        for size in sizes:
            if disk:
                self._read(size)
            self.spend(self._own.tensor.value + _MAPPED * size)
            self.flush()
            compute = 1 + self._plan.main
            route, latency = self._to_gpu(size, disk=disk)
            self.add("copy", compute, fixed=latency, size=size, route=route, after=self.so_far(HOST))
            self.host_waits(compute)

    def _to_gpu(self, size: int, *, disk: bool) -> tuple[int, int]:
        """Return route and latency [ps] of the copy of a tensor to the main GPU."""
        pinned = self._plan.options.pin_memory and not disk
        if pinned or disk or self._plan.options.initialized:
            return self.copies([size], to_device=True, pinned=pinned)

        def path(gpu: int) -> Path:
            written, most = (self.machine.host_to_device(gpu, pinned=one) for one in (False, True))
            points = tuple((at, int(_NEVER_WRITTEN * rate)) for at, rate in written.curve.points)
            return replace(written, curve=Curve(points).lower(most.curve))

        return self.transfers("host to GPU, pageable, never written", path, [size])

    def _read(self, size: int) -> None:
        """Let the host thread copy a mapped file into a new tensor; pages that are not in the page cache are
        read first.

        PyTorch copies with all cores, each of which reads ahead in its part of the file. The pages of the new
        tensor come from the operating system, at the rate that FSDP's new tensors were measured to get.
        """
        self.flush()
        machine = self.machine
        if not self._plan.cached:
            tier = self._plan.target
            path, hops = self.way((tier,), partial(machine.storage_read, tier))
            in_flight = path.outstanding_rate(min(size, self._threads * _READ_AHEAD), block=_READ_AHEAD)
            rate = min(path.curve.rate(size), in_flight)
            route = self.builder.route(name=f"{tier} read", hops=hops, cap=rate)
            self.add("read", HOST, fixed=picoseconds(path.latency), size=size, route=route)
        cpu = machine.host.cpu_optimizer
        share = cpu.limit.value / cpu.numa_nodes.value
        rate = self._plan.element_wise.adamw_rate(self._threads, traffic=2 * size, new=size, share=share)
        self.add("cpu", HOST, size=2 * size, route=self.cpu_work("copying mapped files", rate))

    def kernels(self, label: str, duration: int, launch: int, *, gpu: int) -> None:
        """Launch the kernels of a module on a GPU, and move the hidden states there if it is another one."""
        if not duration:
            return
        self.flush()
        self.add("launch", HOST, fixed=launch, label=label)
        if gpu != self._at:
            before, path = self._at, self.machine.send(self._at, gpu)
            route, latency = self.transfers(f"GPU {before} to GPU {gpu}", lambda _: path, [self._hidden])
            after = self.so_far(HOST, 1 + before)
            self.add(
                "copy",
                1 + gpu,
                fixed=latency,
                size=self._hidden,
                route=route,
                label="hidden states",
                after=after,
            )
            self._at = gpu
        self.add("compute", 1 + gpu, fixed=duration, label=label, after=self.so_far(HOST))

    def end(self) -> Schedule:
        """Return the pass, at the end of which the host thread waits for the GPUs and chooses tokens."""
        self.label = "pass"
        for stream in range(1, len(self.builder.written)):
            self.host_waits(stream)
        self.spend(self.costs.pass_overhead.value)
        return self.build()
