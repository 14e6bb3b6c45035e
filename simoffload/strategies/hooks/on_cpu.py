"""Hook for modules that the CPU computes from weights in host memory, in turn with the GPU.

Reference: ggml/src/ggml-backend.cpp of llama.cpp@0c1e5709 (``ggml_backend_sched_split_graph``,
``compute_splits``). A module runs where its weights are. Where one on the CPU follows one on a GPU, the
host thread waits for the GPU, copies the hidden states, and all threads compute; so neither runs beside the
other. For many tokens the weights are copied to a GPU instead, the first one, on its compute stream
(``offload_op``). From one GPU to the next the first one's stream copies, and the host thread does not wait.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from math import hypot
from typing import NamedTuple

from simoffload.hardware import ProductKernel
from simoffload.models import ModelShape, Module, stored_bytes
from simoffload.results import cause_text
from simoffload.schedule import Cause, Dependency, Purpose
from simoffload.strategies.cache.cache_updates import CACHE_LABEL
from simoffload.strategies.passes.pass_writer import (
    COMPUTE,
    HOST,
    Call,
    Hook,
    Part,
    PassWriter,
    StagePass,
    mapped_read,
)
from simoffload.strategies.passes.timing import picoseconds

_SINGLE = 4
"""Size [B] of an element of hidden states, which are in single precision."""


class _Carried(NamedTuple):
    """A _Carried says where the hidden states of a pass are."""

    gpu: int = -1
    """Number of the GPU that has them; -1: host memory."""
    size: int = 0
    """Bytes for each token to bring to the GPU where it goes on."""
    begun: frozenset[int] = frozenset()
    """GPUs that have the other inputs of the pass."""


_BLOCKED = frozenset({"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"})
"""Types for which llamafile's ``sgemm`` multiplies blocks (ggml/src/ggml-cpu/llamafile/sgemm.cpp)."""
_DOT = frozenset({"mxfp4"})
"""Types with kernels of dot products alone; all others have tiles (ggml/src/ggml-cpu/tiled)."""
_CPU = Cause("cpu-products")


class MappedWeights(NamedTuple):
    """MappedWeights are pages of a file of which a part has room in memory.

    What every pass reads in the same order has room for itself or is read anew: Linux has evicted what comes
    next. Experts are chosen anew for each token, and of them the share is found that has room beside the
    former. Weights that a GPU has copied leave memory first, as nothing reads their pages again. Measured
    with a program that reads as llama.cpp does, on another machine than those with GPUs
    (docs/measurements/mapped-files.md). Around a missing page Linux reads others, and more behind them when
    some are touched (mm/filemap.c, ``do_sync_mmap_readahead`` and ``do_async_mmap_readahead``): twice the
    read-ahead for each matrix of an expert, but no page twice in a pass.
    """

    dense: int = 0
    """Size of the weights that the CPU reads in every pass [B]."""
    experts: int = 0
    """Size of the experts among which it reads those that tokens choose [B]."""
    room: int = 0
    """Memory for pages [B]."""
    ahead: int = 0
    """Bytes that Linux reads around a missing page [B]."""

    @property
    def lacking(self) -> bool:
        """Whether memory has no room for all that is read."""
        return self.room < self.dense + self.experts

    def faulted(self, *, read: float, stored: float, matrix: float) -> float:
        """Return what page faults bring of a module [B] of which a pass reads ``read`` [B] of ``stored`` [B];
        ``matrix``: size of a matrix of one of its experts [B], 0 if it has none."""
        if not matrix:
            return read * min(1.0, _missing(self.room, self.dense) / (1 - _ALL_READ))
        around = 1 + 2 * self.ahead / matrix
        return _missing(self.room - self.dense, self.experts) * min(stored, around * read)


_ALL_READ = 0.9
"""Share that has room of weights that every pass reads, up to which all are read from the file: all were at
0.9, and up to 4 % at 1.0 (docs/measurements/mapped-files.md); between the two nothing was measured, and a
straight line is assumed."""


def _missing(room: int, size: int) -> float:
    """Return the share of a size [B] that has no room; 0 of nothing."""
    return 1 - min(1.0, max(0, room) / size) if size else 0.0


class CpuSettings(NamedTuple):
    """CpuSettings say how the CPU computes, and when the GPU does instead."""

    threads: int
    cores: int
    """Cores of the host, on which more threads take turns."""
    least: int | None
    """Tokens from which on weights are copied to the GPU; None: never."""
    pinned: bool
    """Whether weights in host memory are page-locked."""
    pages: MappedWeights = MappedWeights()
    """Pages of the file of the weights, some of which page faults bring; by default none."""
    file: str = ""
    """Name of the tier that holds the file of the weights."""
    alone: bool = False
    """Whether no GPU is used, so that nothing is copied to one."""

    @property
    def turns(self) -> int:
        """Turns in which each core runs its threads before all of them have met."""
        return -(-self.threads // self.cores)

    @property
    def at_once(self) -> float:
        """Threads that compute at the same time: each has an equal part of a product, and all wait for the
        core with the most of them."""
        return self.threads / self.turns


class OnCpu(Hook):
    """The CPU computes the modules that are in host memory, in turn with the GPUs of the process."""

    carry: _Carried = _Carried()

    def __init__(
        self, model: ModelShape, layers: Sequence[Mapping[str, Fraction]], settings: CpuSettings
    ) -> None:
        """``layers``: the modules of each layer on the CPU by name with the share of each, and behind them
        those outside."""
        self._model, self._layers, self._settings = model, layers, settings

    def state(self, part: Part) -> Hashable:
        """Return what the CPU computes of a part."""
        return frozenset(self._layers[part.layer].items())

    def begin(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Begin with the embeddings, which are in host memory."""
        least = self._settings.least
        self._copies = least is not None and stage.tokens >= least
        self.carry = _Carried()

    def enter(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        """Note what the CPU computes of a part."""
        self._here = self._layers[part.layer]

    def _on_cpu(self, module: Module) -> bool:
        if module.name not in self._here:
            return False
        return not self._copies or module.kind == "embedding"

    def launch(self, call: Call, out: PassWriter) -> bool:
        """Go on with the CPU, or with a GPU, and copy weights to it; a decode step is one CUDA graph for
        each stretch on a GPU."""
        module, each, here = call.module, self._model.hidden_size * _SINGLE, self.carry
        if self._on_cpu(module):
            if here.gpu >= 0:
                attends = module.kind == "attention"
                size = self._attended_width * _SINGLE if attends else each
                tensors = 3 if attends else 2 if self._chosen(module) else 1  # queries, keys, values; experts
                self._switch(out, here.gpu, out.now.tokens * size, tensors, to_device=False)
                out.host_waits(COMPUTE + here.gpu)
            self.carry = here._replace(gpu=-1, size=each * max(1, self._chosen(module)))
            return True
        if here.gpu != call.gpu:
            inputs = 0 if call.gpu in here.begun else _INPUTS
            if here.gpu < 0:
                size = max(1, out.now.tokens * here.size)
                self._switch(out, call.gpu, size, 1 + inputs, to_device=True)
            else:
                if inputs:
                    self._switch(out, call.gpu, out.now.tokens * _SINGLE, inputs, to_device=True)
                out.send(here.gpu, call.gpu, out.now.tokens * each)
            self.carry = _Carried(call.gpu, 0, here.begun | {call.gpu})
        if module.name in self._here:
            self._bring(call, out)
        return not out.now.timing.launch_s(module)

    def kernels(self, call: Call, duration: int, after: tuple[Dependency, ...], out: PassWriter) -> bool:  # noqa: ARG002
        """Compute a module on the CPU."""
        module = call.module
        if not self._on_cpu(module):
            return False
        out.flush()
        self._fault(module, out)
        seconds, traffic = self._seconds(module, out)
        meetings = self._meetings(module) * self._settings.turns
        fixed = picoseconds(meetings * out.machine.host.products.operation.value)
        route = out.cpu_work(_CPU, max(1, int(traffic / seconds)))
        out.add("cpu", HOST, fixed=fixed, size=traffic, route=route, label=cause_text(_CPU))
        rest = round(duration * (1 - self._here[module.name]))
        if rest:  # tensors of it that are on the GPU
            out.add("compute", COMPUTE + call.gpu, fixed=rest, after=out.so_far(HOST))
            out.host_waits(COMPUTE + call.gpu)
        return True

    def _fault(self, module: Module, out: PassWriter) -> None:
        """Bring the pages of weights that are not in memory."""
        complete, read = stored_bytes([module], self._model), self._read(module, out)
        stored, matrix = complete * float(self._here[module.name]), 0.0
        if self._chosen(module):  # gate and up, fused or not, and down; biases are no matrices
            weights = [one.name for one in module.parameters if not one.name.endswith("bias")]
            count = sum(1 + ("gate_up" in name) for name in weights)
            matrix = complete / (self._model.num_experts * count) if count else 0.0
        if size := round(self._settings.pages.faulted(read=read, stored=stored, matrix=matrix)):
            most = out.machine.host.products.page_faults.value
            purpose: Purpose = "page faults of experts" if self._chosen(module) else "page faults"
            file = self._settings.file
            route, fixed = mapped_read(out, file, size, traffic=size, most=most, purpose=purpose)
            out.add("read", HOST, fixed=fixed, size=size, route=route, label=purpose)

    def _meetings(self, module: Module) -> int:
        """Count how often all threads meet for a module: of experts in three products, and in their sum if
        the CPU weighs them."""
        weighs = any(name.endswith((".gate", ".router")) for name in self._here)
        return meetings(module, weighed=self._model.experts_per_token if weighs else 0)

    def _chosen(self, module: Module) -> int:
        """Return how many experts of a token a module computes; 0 if it has none."""
        return self._model.experts_per_token if module.share < 1 else 0

    def _read(self, module: Module, out: PassWriter) -> float:
        """Return the bytes of weights in host memory that a pass reads of a module [B]."""
        stored = stored_bytes([module], self._model) * float(self._here[module.name])
        if module.kind == "embedding":
            rows = max(1, sum(one.numel for one in module.parameters) // module.width)
            return out.now.tokens * stored / rows
        return stored * self._model.touched_share(module, out.now.tokens)

    def _seconds(self, module: Module, out: PassWriter) -> tuple[float, int]:
        """Return the time of a module on the CPU [s], and the bytes [B]. Those of its bytes and of its
        arithmetic overlap in part: the root of the sum of their squares."""
        host, threads, tokens = out.machine.host, self._settings.at_once, out.now.tokens
        cost, products, kernel = out.now.timing.cost(module), host.products, kernel_of(module)
        traffic = max(1, round(self._read(module, out)))
        chosen = self._chosen(module)
        rows = tokens * chosen / max(1.0, self._model.num_experts * self._model.touched_share(module, tokens))
        speed = products.kernel_rate(kernel, rows if chosen else tokens)
        if not module.parameters:  # attention reads the cache, others the hidden states
            traffic = max(1, round(cost.bytes))
            speed = products.dot.value
            if module.kind == "attention" and tokens == sum(one.number for one in out.now.batch):
                speed = products.attention.value
        bandwidth = host.memory_bandwidth.value
        rate = products.read_rate(kernel, bandwidth, threads=threads, experts=bool(chosen))
        arithmetic = (
            float(self._here[module.name]) * cost.flops / (threads * speed)
            if tokens > 1 or not module.parameters
            else 0.0
        )
        return hypot(traffic / rate, arithmetic), traffic

    @property
    def _attended_width(self) -> int:
        """Elements of queries, keys and values of a token."""
        model = self._model
        return (model.num_attention_heads + 2 * model.num_key_value_heads) * model.head_dim

    def _switch(self, out: PassWriter, gpu: int, size: int, tensors: int, *, to_device: bool) -> None:
        """Write the copy of ``tensors`` between a GPU and the CPU, each with what the change takes."""
        out.flush()
        if self._settings.alone:
            return
        route, _ = out.copies([size], to_device=to_device, pinned=True, gpu=gpu)
        fixed = tensors * picoseconds(out.machine.host.products.switch.value)
        stream = COMPUTE + gpu
        after = out.so_far(HOST, stream)
        out.add("copy", stream, fixed=fixed, size=size, route=route, label="hidden states", after=after)

    def _bring(self, call: Call, out: PassWriter) -> None:
        """Copy the weights of a module to its GPU, or the cache of attention: of experts those that are used,
        whose numbers the host thread reads first."""
        module, stream, model, cache = call.module, COMPUTE + call.gpu, self._model, ""
        size = round(self._read(module, out))
        if module.kind == "attention":
            cache = "dram"
            size = round(sum(one.number * one.context for one in out.now.batch) * model.token_bytes([module]))
        if not size:
            return
        out.flush()
        if not cache:
            self._fault(module, out)
        pinned, label = self._settings.pinned, CACHE_LABEL if cache else "weights"
        route, fixed = out.copies([size], to_device=True, pinned=pinned, cache=cache, gpu=call.gpu)
        if self._chosen(module):
            fixed += picoseconds(out.machine.host.products.switch.value)
        out.add("copy", stream, fixed=fixed, size=size, route=route, label=label, after=out.so_far(HOST))
        if not pinned or self._chosen(module):
            out.host_waits(stream)

    def finish(self, out: PassWriter) -> bool:
        """End the pass when the GPUs have computed the logits."""
        for gpu in range(out.compute):
            out.host_waits(COMPUTE + gpu)
        out.flush()
        return True


def meetings(module: Module, *, weighed: int = 0) -> int:
    """Count how often all threads meet for a module: of experts in three products, twice each, and in the sum
    of ``weighed`` ones."""
    if module.parallel == "experts" and module.parameters:
        return 6 + (1 + weighed if weighed else 0)
    return _MEETINGS.get(module.kind, 1)


_MEETINGS = {"norm": 3, "attention": 5, "router": 8, "linear": 2, "container": 0, "rotary": 0}
"""Meetings of all threads for a module: a norm, its weight and the addition behind a block; two rotations,
two writes to the cache, attention; the product of a router and six operations that choose experts."""
_INPUTS = 5
"""Inputs of a pass, such as positions and the mask, that are copied to the GPU beside the hidden states."""


def kernel_of(module: Module) -> ProductKernel:
    """Return the kind of kernel that multiplies the weights of a module with many tokens."""
    stored = [one.storage.format.name for one in module.parameters if one.storage is not None]
    name = stored[0] if stored else "f32"
    return "dot" if name in _DOT else "blocked" if name in _BLOCKED else "tiled"
