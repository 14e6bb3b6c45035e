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

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from simoffload.hardware import Machine, Provenance
from simoffload.models import ModelShape, Module, Sequences
from simoffload.models.cost import tokens_of
from simoffload.models.formats import FORMATS
from simoffload.models.shape import grouped
from simoffload.results import MemoryStage, MemoryTerm
from simoffload.schedule import Device
from simoffload.strategies.base import Plan
from simoffload.strategies.device_map import Home, ModuleTree, NamedCall, homes_of
from simoffload.strategies.extrapolation import arithmetic_beyond
from simoffload.strategies.hooks.align_devices import AlignDevices, HiddenStates, NewTensors, Offloaded
from simoffload.strategies.kv_cache import DEFAULT, KvCache
from simoffload.strategies.memory import pinned_rounding, working_memory
from simoffload.strategies.passes.pass_writer import Call, ForwardPass, Hook, Part, PassWriter
from simoffload.strategies.plan import InferencePlan
from simoffload.strategies.resident import ResidentPlan
from simoffload.strategies.terms import Tunable
from simoffload.units import format_bytes
from simoffload.workload import Inference

_FEWER = "lower device_map (layers on the GPU) or max_memory"
_MORE = "raise device_map (layers on the GPU)"
_ON_GPU = (
    "transformers 5.23 keeps experts in MXFP4 on the GPU, so that offloading them is a what-if; "
    "vLLM offloads them (vllm_cpu_offload)"
)
"""Its kernels take tensors of Triton, which hooks do not see (``swizzle_mxfp4_convertops``)."""
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

    # -- homes ----------------------------------------------------------------------------------

    @cached_property
    def main(self) -> int:
        """Number of the GPU that computes offloaded modules: the first one in the map."""
        return min((home for home in self.homes.values() if isinstance(home, int)), default=0)

    @cached_property
    def placed(self) -> tuple[tuple[NamedCall, Home | None], ...]:
        """Calls of a pass with the homes of their modules; None for one whose parts have several."""
        calls = self.tree.calls
        return tuple(zip(calls, homes_of((call.name for call in calls), self.homes), strict=True))

    @cached_property
    def stored(self) -> Mapping[Home, Mapping[str, int]]:
        """Tensors by home: size [B] by full name. A tensor of several modules counts where the first of them
        has its home, or on the main GPU if one of them is there."""
        found: dict[str, tuple[Home, int]] = {}
        for (_, home), tensors in zip(self.placed, self.tree.tensors, strict=True):
            for name, size in tensors if home is not None else ():
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
        kept = self.stored.get(self.main, {})
        return tuple(
            tuple([size for name, size in tensors if name not in kept]) if home in ("cpu", "disk") else ()
            for (_, home), tensors in zip(self.placed, self.tree.tensors, strict=True)
        )

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
        """All tiers that hold weights, and that of a streamed cache."""
        dram = {"dram"} if self.bytes_at("cpu") else set()
        return super().tiers | dram | ({"hbm"} if self.bytes_at(self.main) else set())

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

    @property
    def host_costs(self) -> tuple[Provenance, ...]:
        """Costs of operations, and of tensors that are brought to the GPU."""
        costs = self.machine.host.eager_costs
        return (costs.operation, costs.tensor) if self.hooked else (costs.operation,)

    @property
    def cpu_costs(self) -> tuple[Provenance, ...]:  # type: ignore[override]
        """Rate of the pages of tensors that are copied from mapped files."""
        return (self.machine.host.fsdp_costs.page_limit,) if self.bytes_at("disk") else ()

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """Warnings about weights that were never written, about those that transformers does not offload, and
        about what is assumed of the page cache."""
        stored = (one.storage for module in self.modules for one in module.parameters)
        triton = any(one is not None and one.format is FORMATS["mxfp4"] for one in stored)
        on_gpu = (_ON_GPU,) if triton and self.target != "hbm" else ()
        if not self.options.initialized and self.bytes_at("cpu"):
            return (*on_gpu, "weights that were never written are copied faster than those of a real model")
        if self.options.page_cache is not None or not self.bytes_at("disk"):
            return on_gpu
        files = f"{format_bytes(self.bytes_at('disk'))} of files on {self.target}"
        if self.cached:
            text = f"{files} are read from the page cache in host memory"
            more = "the first pass, or other programs that use the memory, make it slower"
            return (*on_gpu, f"{text}; {more}")
        return (*on_gpu, f"{files} do not stay in the page cache: every pass reads the drive")

    @property
    def extrapolations(self) -> tuple[str, ...]:
        """Warnings about numbers used outside the range in which they were measured."""
        unmeasured = (_UNMEASURED,) if self.hooked and self.machine.host.eager is None else ()
        return (*unmeasured, *arithmetic_beyond(self.model, self.workload, self.machine))

    # -- memory ---------------------------------------------------------------------------------

    def tunables(self) -> Iterator[Tunable]:
        """Yield smaller numbers of layers on the GPUs for HBM, then larger ones for host memory."""
        if self.options.fixed:
            return
        inside = {call.layer for call, home in self.placed if call.layer >= 0 and isinstance(home, int)}
        word, path = "device_map (layers on the GPU)", ("strategy", "device_map")
        now = len(inside)
        values = (range(now - 1, -1, -1), range(now + 1, self.model.num_hidden_layers))
        yield Tunable(word, path, now, values)

    @property
    def memory_stages(self) -> tuple[MemoryStage, ...]:
        """Memory that each tier must hold while tokens are generated."""
        return (MemoryStage("", self.memory),)

    @cached_property
    def memory(self) -> tuple[MemoryTerm, ...]:
        """Memory that each tier must hold at its peak; on the GPUs that of the fullest one."""
        terms = [*max(self.on_gpus, key=lambda one: sum(term.size for term in one if term.tier == "hbm"))]
        if in_memory := self.stored.get("cpu", {}):
            pinned = self.options.pin_memory
            size = sum(in_memory.values())
            terms.append(MemoryTerm("dram", "weights", size, pinned=pinned, remedy=_MORE))
            if pinned:
                rounding = pinned_rounding(list(in_memory.values()))
                name = "rounding of pinned allocations"
                terms.append(MemoryTerm("dram", name, rounding, pinned=True, remedy=_MORE))
        if on_disk := self.stored.get("disk", {}):
            terms.append(MemoryTerm("dram", "tensor read from disk", max(on_disk.values())))
            terms.append(MemoryTerm(self.target, "weights", sum(on_disk.values())))
        return tuple(terms)

    @cached_property
    def on_gpus(self) -> tuple[tuple[MemoryTerm, ...], ...]:
        """Memory that each of the GPUs must hold at its peak."""
        layers: list[set[int]] = [set() for _ in range(self.options.num_gpus)]
        for call, gpu in zip(self.tree.calls, self.executed, strict=True):
            layers[gpu].add(call.layer)
        return tuple(self._on_gpu(gpu, here) for gpu, here in enumerate(layers))

    def _on_gpu(self, gpu: int, here: set[int]) -> tuple[MemoryTerm, ...]:
        """Return the memory of one GPU: the cache of the layers ``here``, and all activations."""
        layers = grouped([layer for number, layer in enumerate(self.model.layers) if number in here])
        part = replace(self.model, groups=layers)
        cache = self.cache_memory(part, copies=1)
        everywhere = [one for one in self.cache_memory(self.model, copies=1) if one.tier != "hbm"]
        on_gpu = (one for one in cache if one.tier == "hbm")
        terms = [*working_memory(self.model, self.workload, self.machine, cache=(*on_gpu, *everywhere))]
        if gpu == self.main and (loaded := max(map(sum, self.copied), default=0)):
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
    def _parts(self) -> tuple[tuple[Part, ...], ...]:
        """Parts of a pass, each layer being one; the calls of equal ones are one object."""
        known: dict[Hashable, tuple[Call, ...]] = {}
        found = []
        for (name, layer), members in groupby(
            zip(self.placed, self.executed, self.copied, strict=True),
            key=lambda one: (one[0][0].segment, one[0][0].layer),
        ):
            key = tuple([(call.number, gpu, sizes, home == "disk") for (call, home), gpu, sizes in members])
            if key not in known:
                known[key] = tuple([self._call(*one) for one in key])
            found.append(Part(name, known[key], layer))
        return (tuple(found),)

    def _call(self, number: int, gpu: int, sizes: tuple[int, ...], on_disk: bool) -> Call:
        """Return the call of a module, with what its hook does."""
        module = self.tree.modules[number]
        without = self.dispatched and module.kind == "container"
        hooked = self.hooked and (without or bool(module.parameters))
        return Call(module, gpu, Offloaded(hooked, sizes, on_disk))

    @cached_property
    def _new_memory(self) -> dict[Hashable, tuple[float, float]]:
        """Times [s] of new memory for the results of modules."""
        return {}

    def weights_hooks(self, _forward: ForwardPass) -> tuple[Hook, ...]:
        """Return the hooks that bring tensors and hidden states to the GPUs of the modules."""
        align = AlignDevices(
            self.new_tensors,
            known=self._new_memory,
            pinned=self.options.pin_memory,
            initialized=self.options.initialized,
            folder=self.options.folder,
            page_cache=not self.bytes_at("disk") or self.cached,
        )
        token = self.model.hidden_size * self.model.dtype_bytes
        return (align, *([HiddenStates(token, self.executed[0])] if self.options.num_gpus > 1 else ()))

    def _writer(self, name: str, hooks: Sequence[Hook]) -> PassWriter:
        """Return the driver of a pass, whose process has all GPUs; streams of hooks are on the main one."""
        count, main = self.options.num_gpus, self.main
        gpus = (*range(count), *[main for hook in hooks for _ in hook.streams])
        devices = (Device("host thread"), *[Device("GPU", gpu) for gpu in gpus]) if count > 1 else ()
        return PassWriter(
            name=name,
            machine=self.machine,
            hooks=hooks,
            gpus=((main,),),
            compute=count,
            routes=self._routes,
            devices=devices,
        )

    @cached_property
    def layer_gpus(self) -> tuple[int, ...]:
        """Number of the GPU that computes attention in each layer."""
        calls = zip(self.tree.calls, self.executed, strict=True)
        found = {call.layer: gpu for call, gpu in calls if self.tree.module(call).kind == "attention"}
        return tuple(found[layer] for layer in sorted(found))

    def new_tensors(self, module: Module, batch: Sequence[Sequences]) -> tuple[NewTensors, ...]:
        """Return the new tensors of a module's call: the product of a linear layer, or half of what other
        kernels write, as wide as the hidden states; attention also joins the cache, which may be fetched.

        The other half is in memory that the same call has given back: RMSNorm writes eight times the size of
        its input, and has four at once.
        """
        model = self.model
        token = round(model.dtype_bytes * tokens_of(module, batch, self.cache_form) * module.share)
        if module.kind == "linear":
            return (NewTensors(token * module.out_features, 1),)
        found = NewTensors(
            token * model.hidden_size, max(1, round(module.out_features / (2 * model.hidden_size)))
        )
        if module.kind != "attention" or self.cache.streamed:
            return (found,)
        held = sum(one.number * one.context for one in batch) * model.cache_width * model.dtype_bytes
        return found, NewTensors(held // 2, 0 if self.cache.static else 2 + 2 * self.cache.offloaded)
