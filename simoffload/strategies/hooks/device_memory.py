"""What llama.cpp keeps on each GPU and in host memory: weights, cache, and buffers of graphs.

Compared with what it reports in docs/measurements/llama-cpp.md, on one GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from simoffload.hardware import Machine
from simoffload.models import ModelShape, Module, StatePart, stored_bytes
from simoffload.strategies.base import Held, Homes
from simoffload.strategies.hooks.cpu_placement import CpuPlacement
from simoffload.strategies.hooks.on_cpu import MappedWeights
from simoffload.strategies.memory import DISPLAY, cache_term, system_memory
from simoffload.workload import READ_AHEAD, Inference

# -- buffers in which ggml keeps what a graph computes, on the GPU and in host memory --------------
# Reference: ggml/src/ggml-alloc.c of llama.cpp@0c1e5709; compared with what llama.cpp reports in
# docs/measurements/llama-cpp.md.


_SINGLE = 4
"""Size [B] of an element, in single precision."""


@dataclass(frozen=True)
class GraphBuffers:
    """GraphBuffers are the sizes of the buffers of a graph of ``tokens`` of ``batch`` sequences."""

    model: ModelShape
    placement: CpuPlacement
    tokens: int
    batch: int
    cells: Callable[[int | None], int]
    """Function that returns the tokens of a sequence that the cache of a layer with a window has room for."""
    brings: bool
    """Whether weights on the CPU are brought to the first GPU for so many tokens."""
    copies: int = 1
    """Copies of the inputs of a GPU, of which all are kept if there are several."""

    @cached_property
    def _masks(self) -> list[int]:
        """Sizes of the masks of attention, in 16 bits [B]."""
        windows = {one.window for one in self.model.distinct_modules if one.kind == "attention"}
        row = self.tokens * self.batch * 2
        return [row * self.cells(window) for window in windows]

    @property
    def on_host(self) -> int:
        """Size of the buffers of a graph in host memory [B]: embeddings, their copy, and masks."""
        return 2 * self.tokens * self.model.hidden_size * _SINGLE + sum(self._masks)

    def on_gpu(self, gpu: int) -> int:
        """Return the size of the buffers of a graph on a GPU [B]: the largest one of its moments.

        At the end these are logits and hidden states, above which the results of experts of the last layer
        leave a gap if the GPU computes them (``ggml_gallocr``); without the head the results of the widest
        product (an estimate); and where a tensor is brought to the GPU, that tensor with what is read and
        written; with such a tensor of another GPU's layer two of them.
        """
        model, row, last = self.model, self.tokens * _SINGLE, self.placement.gpu(-1)
        hidden, logits = model.hidden_size * row, model.vocab_size * row
        sizes = [0 if self.placement.head or gpu != last else logits + hidden + self._gap]
        layered = self.placement.units[gpu] > 0
        if gpu != last and layered:
            layers = (one for layer, _ in model.kinds for one in layer)
            wide = max(one.out_features for one in layers if one.kind == "linear" and one.share == 1)
            sizes += [2 * wide * row + 2 * hidden]
        if self.copies > 1 and layered:
            sizes = [one + self.copies * (hidden + sum(self._masks)) for one in sizes]
        if not self.brings or gpu:
            return max(sizes)
        sizes += [logits + hidden + size for _, size in self._brought(-1, model.modules_after)]
        mask = max(self._masks)
        kinds = {
            (id(layer), self.placement.decides(number)): number for number, layer in enumerate(model.layers)
        }
        for number in kinds.values():
            brought = list(self._brought(number, model.layers[number]))
            # Of a layer of another GPU they are alone there: two matrices at once, and what they multiply.
            if brought and self.placement.gpu(number):
                sizes.append(hidden + sum(sorted(size for _, size in brought)[-2:]))
                continue
            sizes += [
                size + mask + 3 * hidden + chosen * (wide * row + hidden) for (chosen, wide), size in brought
            ]
        return max(sizes)

    @property
    def _gap(self) -> int:
        """Size of what experts of the last layer leave below the logits [B]."""
        model = self.model
        hidden, chosen = model.hidden_size * self.tokens * _SINGLE, model.experts_per_token
        last = [one for one in model.layers[-1] if one.parallel == "experts" and one.parameters]
        if not last or self.placement.holds(model.num_hidden_layers - 1, last[0]):
            return 0
        wide = self._widths(last[0])[1] * self.tokens * _SINGLE
        return hidden + max(2 * chosen * wide, (chosen + 1) * hidden)

    def _widths(self, module: Module) -> tuple[int, int]:
        """Return how many experts of a token a module has, 1 if none, and the width within its network."""
        model = self.model
        if module.parallel == "experts":
            numel = sum(one.numel for one in module.parameters)  # of gate, up and down
            return model.experts_per_token, numel // (3 * model.num_experts * model.hidden_size)
        return 1, max(module.in_features, module.out_features)

    def _brought(self, layer: int, modules: Sequence[Module]) -> Iterator[tuple[tuple[int, int], int]]:
        """Yield the widths and the size [B] of each tensor that is brought to the GPU for many tokens; gate
        and up are two."""
        for one in modules:
            if one.parameters and self.placement.holds(layer, one):
                for part in one.parameters:
                    size = part.stored_bytes(self.model.dtype_bytes)
                    yield self._widths(one), size // (2 if "gate_up" in part.name else 1)


# -- what llama.cpp keeps on each GPU and in host memory -------------------------------------------


CONTEXT = 527 << 20
"""Memory that CUDA takes before llama.cpp asks what is free [B]: 80,552 of 81,079 MiB on an H100
(docs/measurements/h100-2026-11-27)."""
_RATE_OF_CONTEXT = 67e12
"""[FLOP/s] in single precision of that H100."""
MARGIN = 1 << 30
"""Memory of each GPU [B] that ``--fit`` leaves free (``--fit-target``, 1024 MiB)."""
_CELLS = 256
"""Tokens by which the cache grows (``n_ctx`` is padded to it)."""
_DRIVE = "add memory, or a drive (--drive) from which pages of the mapped file that have no room are read"
_AGAIN, _OF_MISSING = 1.33, 1.75
"""What is read from the file before tokens find all that the CPU reads in memory, over that, or over what has
no room of the file if it is less: medians of 9 cases. In 18 it was 0.74 to 2.6 times as much
(docs/measurements/mapped-files.md, Settling)."""
_COPIES = 4
"""Copies of the inputs of a graph with which several GPUs compute parts of a prompt at the same time
(``GGML_SCHED_MAX_COPIES``)."""


def context_bytes(machine: Machine) -> int:
    """Return the memory of a GPU that CUDA takes [B]: less on a smaller card for desktops.

    CUDA keeps local memory for the threads of all multiprocessors, of which the rate in single precision is
    a measure among such cards (an estimate). Logs of llama.cpp ("VRAM: 12037 MiB", "11929 MiB free") have 108
    MiB on an RTX 3060 (here 100), 164 on an RTX 5060 Ti (here 186) and 276 on an RTX 3090 (here 280).
    """
    gpu = machine.accelerator
    rate = gpu.compute.float32.value if gpu.has_display else _RATE_OF_CONTEXT
    return round(CONTEXT * min(1.0, rate / _RATE_OF_CONTEXT))


def rooms(machine: Machine, gpus: int) -> tuple[int, ...]:
    """Return the memory of each of some GPUs [B], of the first one without what a display takes."""
    display = DISPLAY if machine.accelerator.has_display else 0
    return tuple(machine.tiers["hbm"].capacity - display * (gpu == 0) for gpu in range(gpus))


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """A DeviceMemory says what a placement needs on each device."""

    model: ModelShape
    workload: Inference
    machine: Machine
    placement: CpuPlacement
    homes: Homes
    cache_element: float
    """Size [B] of an element of the cache, over that of the model's data type."""
    ubatch_size: int
    least: int | None
    """Tokens from which on weights are brought to the first GPU; None: never."""
    pinned: bool
    """Whether weights in host memory are page-locked, and not pages of a file."""
    file: str | None
    """Tier of the file to which pages that have no room leave; "" if the machine has no drive, None if none
    leave."""
    draft: tuple[Held, ...] = ()
    """What a model that proposes tokens holds, on the first GPU and in host memory."""

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """What the fullest GPU holds, and host memory with what its system takes, and the file."""
        size, remedy = self.weights_on_cpu, _DRIVE if self.file == "" else ""
        on_host = Held("dram", "weights", size, pinned=self.pinned, remedy=remedy, kind="weights")
        found = [on_host]
        if self.file and size > self.left:
            complete = size + sum(one.size for (one, *_) in self.on_gpus)
            file = Held(self.file, "file of the weights", complete, kind="weights")
            found = [on_host._replace(size=self.left), file]
        fullest = max(self.on_gpus, key=lambda one: sum(part.size for part in one))
        return (*fullest, *found, *self._beside)

    @cached_property
    def left(self) -> int:
        """Host memory that is left for weights [B]."""
        return max(0, self.machine.tiers["dram"].capacity - sum(one.size for one in self._beside))

    @cached_property
    def pages(self) -> MappedWeights:
        """Pages of the file, of which those that have no room leave memory if they may. Embeddings need none:
        a token reads a row of them, unless the CPU multiplies with them."""
        before, layers = self.model.modules_before, enumerate(self.model.layers)
        experts = round(
            sum(
                self.placement.share(at, one) * stored_bytes([one], self.model)
                for at, layer in layers
                for one in layer
                if one.share < 1 and one.parameters and self.placement.holds(at, one)
            )
        )
        rows = 0 if self._multiplies_rows else stored_bytes(before, self.model)
        dense, ahead = max(0, self.weights_on_cpu - experts - rows), self.machine.host.read_ahead
        room = self.left if self.file else dense + experts
        return MappedWeights(dense, experts, room, ahead.value if ahead else READ_AHEAD)

    @property
    def _multiplies_rows(self) -> bool:
        """Whether the CPU computes the head, whose weights are the embeddings."""
        after = (part for one in self.model.modules_after for part in one.parameters)
        return self.placement.head and any(part.tied for part in after)

    @property
    def lacks_pages(self) -> bool:
        """Whether pages are read for each token: memory has no room for all that the CPU reads."""
        return bool(self.file) and self.pages.lacking

    @property
    def _settles(self) -> bool:
        """Whether experts have room only once Linux has dropped the pages of weights that are on GPUs."""
        left = bool(self.file and self.pages.experts) and self.left
        return self.weights_on_cpu <= left < self.model.weight_bytes

    @property
    def settling(self) -> float:
        """Bytes that the first tokens after loading read from the file [B], so that experts have room."""
        if not self._settles:
            return 0.0
        missing = self.model.weight_bytes - self.left
        return min(_AGAIN * (self.pages.dense + self.pages.experts), _OF_MISSING * missing)

    @property
    def uncompared(self) -> tuple[str, ...]:
        """What it does that no run was compared with."""
        found = ("read pages while Linux drops others",) * self._settles
        apart = len(self.placement.units) > 1 and not self.machine.accelerator.interconnect
        return found + ("divided layers among GPUs without links",) * apart

    @property
    def page_warnings(self) -> Iterator[str]:
        """Yield what to do where pages of experts are missing."""
        pages, host = self.pages, self.machine.host
        if self._settles:
            rate, size = host.products.page_faults.value, self.settling
            text = "memory has no room for all of the mapped file, so that the first tokens read about"
            text += f" {size / 1e9:.1f} GB of it again, for {size / rate:.1f} s at {rate / 1e9:.1f} GB/s,"
            text += " which is not simulated"
            yield f"{text}; strategy.load_mode=none (-lm none) keeps what the CPU computes in memory"
        if not self.lacks_pages or not pages.experts:
            return
        share = self.left / (pages.dense + pages.experts)
        text = f"memory has room for {share:.0%} of what the CPU reads of the mapped file"
        if host.read_ahead is None:
            text += f", and Linux's usual {pages.ahead >> 10} KiB around each missing page are assumed; state"
            yield f"{text} profiles.host/{host.id}.read_ahead (read_ahead_kb of the drive)"
        elif pages.ahead > READ_AHEAD:
            text += f", and Linux reads {pages.ahead >> 10:,} KiB around each missing page; lower that"
            yield f"{text} (blockdev --setra 256 DRIVE): tokens took 1/3 to 1/12 of the time"
        else:
            yield f"{text}: add memory, or take a smaller format"

    @property
    def spare(self) -> tuple[int, ...]:
        """Memory of each GPU that is left beyond what ``--fit`` leaves [B]; below zero if it is too small."""
        free = zip(rooms(self.machine, len(self.on_gpus)), self.on_gpus, strict=True)
        return tuple(room - MARGIN - sum(one.size for one in held) for room, held in free)

    @cached_property
    def on_gpus(self) -> tuple[tuple[Held, ...], ...]:
        """Memory that each GPU holds, in their order."""
        return tuple(map(self.on_gpu, range(len(self.placement.units))))

    def on_gpu(self, gpu: int) -> tuple[Held, ...]:
        """Return what one of the GPUs holds."""
        model, batch = self.model, self.workload.batch_size
        weights = self._weights["hbm", gpu] + self.placement.kept_bytes(model, gpu)
        weights += self._tied if gpu == self.placement.gpu(-1) else 0
        cache = round(batch * self._caches[gpu] * self.cache_element) + batch * self._states[gpu]
        buffers, remedy = (
            self.buffers.on_gpu(gpu),
            "lower gpu_layers, or raise cpu_moe; auto chooses what fits",
        )
        return (
            Held("hbm", "weights", weights, remedy=remedy, kind="weights"),
            cache_term("hbm", cache),
            Held("hbm", "buffers of the graph", buffers, remedy="lower ubatch_size"),
            Held("hbm", "CUDA context", context_bytes(self.machine)),
            *(one for one in self.draft if gpu == 0 and self.machine.row(one.tier).is_gpu),
        )

    @cached_property
    def _beside(self) -> tuple[Held, ...]:
        """What is in host memory beside weights."""
        batch = self.workload.batch_size
        cache = round(batch * self._caches[-1] * self.cache_element) + batch * self._states[-1]
        size, remedy = self.buffers.on_host, "lower ubatch_size"
        buffers = Held("dram", "buffers of the graph", size, pinned=True, remedy=remedy)
        found = [cache_term("dram", cache)] if cache else []
        drafts = (one for one in self.draft if not self.machine.row(one.tier).is_gpu)
        return *found, buffers, *drafts, system_memory(self.machine)

    @cached_property
    def weights_on_cpu(self) -> int:
        """Size of the weights in host memory [B]."""
        row = self.machine.row
        stored = sum(size for (tier, _), size in self._weights.items() if row(tier).is_dram)
        return stored - self.placement.kept_bytes(self.model)

    @cached_property
    def _weights(self) -> Counter[tuple[str, int]]:
        """Sizes of the weights [B] by tier and GPU."""
        found = Counter[tuple[str, int]]()
        for home, sizes in self.homes.all.items():
            found[home.tier, home.gpu] += sum(sizes)
        return found

    @cached_property
    def _caches(self) -> Counter[int]:
        def size(part: StatePart) -> float:
            rows = 0 if part.fixed or part.borrowed else self.cells(part.window) // part.every
            return rows * self.model.row_bytes(part)

        return self.placement.cache_bytes(self.model, size)

    @cached_property
    def _states(self) -> Counter[int]:
        return self.placement.cache_bytes(self.model, lambda part: part.fixed)

    @cached_property
    def _tied(self) -> int:
        """Size of the copy of embeddings that is the head on a GPU [B]."""
        tied = [part for one in self.model.modules_after for part in one.parameters if part.tied]
        stored = (part.stored_bytes(self.model.dtype_bytes) for part in tied)
        return 0 if self.placement.head else sum(stored)

    def cells(self, window: int | None = None) -> int:
        """Return the tokens of a sequence for which the cache of a layer has room."""
        most = self.workload.room
        least = most if window is None else min(most, window + self.ubatch_size)
        return -(-least // _CELLS) * _CELLS

    @cached_property
    def buffers(self) -> GraphBuffers:
        """Buffers in which a graph keeps what it computes."""
        work, placement = self.workload, self.placement
        tokens = min(self.ubatch_size, work.batch_size * (work.prompt_length + work.output_length))
        brings = self.least is not None and tokens >= self.least
        several = len(placement.units) > 1 and sum(placement.units) > self.model.num_hidden_layers
        overlap = several and not (placement.experts or placement.overridden or placement.attends)
        copies = _COPIES if overlap and not placement.networks else 1
        return GraphBuffers(self.model, placement, tokens, work.batch_size, self.cells, brings, copies)
