"""vLLM's engine: how many tokens it computes at once, and what it leaves of a GPU's memory for the cache.

Sources: wheel of vLLM 0.33.0, ``engine/arg_utils.py`` (``get_batch_defaults``: tokens of a step),
``v1/core/sched/scheduler.py`` (a prefill in chunks), ``v1/worker/gpu_worker.py``
(``determine_available_memory``: what is left for blocks of the cache), ``v1/worker/utils.py``
(``request_memory``: at the start that fraction of the memory must be free) and ``config/vllm.py`` (sizes of
CUDA graphs).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil, floor
from shlex import quote
from textwrap import fill
from typing import Any, ClassVar, NamedTuple

from simoffload.errors import InputError
from simoffload.hardware import Accelerator, Machine, TierKind
from simoffload.models import Kernel, ModelShape, Module, Sequences
from simoffload.strategies.base import ONE_GROUP, CacheGroups, Held
from simoffload.strategies.cache.kv_cache import BLOCK_TERMS, THREADS, VLLM_BLOCK, BlockMoves, Connector
from simoffload.strategies.memory import DISPLAY, activation_bytes, experts_bytes
from simoffload.strategies.passes.timing import CAPTURED, experts_kernel
from simoffload.units import format_bytes, formatted_apart, plural
from simoffload.workload import Inference

# --------------------------------------------------------------------------------------------------
# Real runs of vLLM with which predictions of compiled serving were compared: on which GPUs, and of what.
#
# They are the rows of validation/serving (vLLM 0.25.1, one GPU each); a test compares this table with them.


MOST_SEQUENCES = 256
"""Most sequences of a decode step in those runs."""
FEW_SEQUENCES = 32
"""Sequences from which on decode steps of another GPU have products that arithmetic limits, too (our
choice)."""


class ServedRuns(NamedTuple):
    """ServedRuns are what was served on GPUs of one kind."""

    gpu: str
    """Words with which the names of these GPUs begin in profiles."""
    weights: frozenset[Kernel]
    """Kernels of weights other than those of experts; empty for 16 bits."""
    experts: frozenset[Kernel]
    """Kernels of the weights of experts; empty for 16 bits."""
    in_place: frozenset[Kernel]
    """Kernels of weights other than those of experts that were read in host memory."""


_RUNS = (
    ServedRuns("NVIDIA H100 SXM5", frozenset({"", "int4"}), frozenset({"", "mxfp4"}), frozenset({""})),
    ServedRuns(
        "NVIDIA H200 SXM5", frozenset({"", "int4", "float8"}), frozenset({"", "mxfp4"}), frozenset({""})
    ),
)


def served_runs(gpu: str) -> ServedRuns | None:
    """Return the runs on a GPU of this name; None if there are none."""
    return next((one for one in _RUNS if gpu.startswith(one.gpu)), None)


class Stored(NamedTuple):
    """A Stored is a form in which a model's weights are stored, and the kernel that reads them."""

    form: str
    """Name of the format; empty for 16 bits."""
    kernel: Kernel
    """Kernel of vLLM; empty for 16 bits, and for a format of other programs."""
    experts: bool
    """Whether these are weights of experts."""

    def within(self, kernels: Container[Kernel]) -> bool:
        """Return whether one of the kernels reads them."""
        return self.kernel in kernels and bool(self.kernel or not self.form)

    def __str__(self) -> str:
        """Return the words for them in a sentence."""
        return ("experts" if self.experts else "weights") + (f" as {self.form}" if self.form else "")


def stored_weights(modules: Sequence[Module], gpu: Accelerator) -> tuple[Stored, ...]:
    """Return the forms of the weights of modules, each once; FP8 and FP4 are decoded on a GPU without their
    products."""
    found: list[Stored] = []
    for module in modules:
        for one in module.parameters:
            form = "" if one.storage is None else one.storage.format.name
            cost = None if one.storage is None else one.storage.format.dequantization
            native = cost is not None and gpu.native(cost.arithmetic)
            kernel: Kernel = "" if cost is None else cost.kernel if native else cost.decoding
            found.append(Stored(form, kernel, module.share < 1))
    return tuple(dict.fromkeys(found))


def unserved(stored: Sequence[Stored], gpu: str) -> Iterator[str]:
    """Yield what no run did of a model with such weights on a GPU, each to follow "no real run".

    Without runs on the GPU, those of another tell nothing about its kernels of formats and experts.
    """
    runs = served_runs(gpu)
    if runs is None:
        yield f"served a model on {gpu}"
        for form in dict.fromkeys(one.form for one in stored if one.form):
            yield f"served weights as {form} on {gpu}"
        if any(one.experts for one in stored):
            yield f"served experts on {gpu}"
        return
    unknown = [one for one in stored if not one.within(runs.experts if one.experts else runs.weights)]
    for form in dict.fromkeys(one.form for one in unknown):
        widest = min((one for one in unknown if one.form == form), key=lambda one: one.experts)
        yield f"served {widest} on {gpu}"


def unserved_in_place(stored: Sequence[Stored], gpu: str) -> Iterator[str]:
    """Yield the same of weights that kernels read in host memory."""
    runs = served_runs(gpu)
    if runs is None:
        yield f"served weights in host memory on {gpu}"
        return
    unknown = [one for one in stored if one.experts or not one.within(runs.in_place)]
    yield from dict.fromkeys(f"served {one} in host memory on {gpu}" for one in unknown[:1])


UTILIZATION = 0.92
"""Fraction of a GPU's memory that vLLM fills by default (``gpu_memory_utilization``, vllm/config/cache.py).
"""
_FULLER = (0.95, 0.97)
"""Larger fractions that are tried where that is too little; our choice."""
_TIGHT = 0.98
"""Fraction from which a warning states what must be free; our choice."""
_CONTEXT = 552_000_000
"""Memory of a GPU [B] that the CUDA context takes before vLLM starts: total less free on an H200, driver
580.159.04 (docs/measurements/vllm.md). NCCL is initialized before vLLM looks, too."""
_GIB = 1 << 30
_LIBRARIES = 150_000_000
"""Memory [B] that a process which does not communicate takes beyond PyTorch's while it is profiled: 145 to
168 MB in eight engines of vLLM 0.25.1 on an H200 (docs/measurements/vllm.md)."""
_GRAPHS, _GRAPH = 218_000_000, 193_000
"""Estimate [B] of vLLM's model runner V1 for its CUDA graphs: of all, and for each layer and size, from 533
MB (32 layers, 51 sizes) and 690 MB (48, 51); for 24 layers and 83 sizes it gives 602, where vLLM had 619."""
_GRAPH_OF_SIZE = 20_000_000
"""Memory [B] of CUDA graphs of runner V2 for each size: 0.90 to 1.01 GiB for 51 in four engines with 32 and
40 layers, 0.09 GiB for 4 with 4 layers (docs/measurements/h200-2026-11-28/vllm-memory.json)."""
_PROCESSORS = 132
"""Rows of logits in single precision that top-k keeps beside those of sequences, one for each multiprocessor
of an H100 (vLLM 0.25, ``v1/sample/ops/topk_topp_triton.py``)."""


class EngineCode(NamedTuple):
    """An EngineCode says which code of vLLM runs, as far as its memory depends on it."""

    compiled: bool = True
    """Whether the model is compiled and captured in CUDA graphs."""
    alone: bool = True
    """Whether no other GPU has parts of the model, so that there are no buffers of NCCL."""
    v1: bool = False
    """Whether it is model runner V1, which samples with more memory."""


def runs_v1(model: ModelShape) -> bool:
    """Return whether vLLM runs the model with its model runner V1, if all weights are on GPUs."""
    return model.traits.v1_runner and bool(model.num_experts)


class VllmEngine(NamedTuple):
    """A VllmEngine has the limits of vLLM's engine for a plan."""

    tokens: int
    """Number of tokens that a GPU computes at once at most (``max_num_batched_tokens``)."""
    utilization: float = UTILIZATION
    """Fraction of a GPU's memory that is filled."""
    blocks: int | None = None
    """Number of blocks of the cache on each GPU that the user states; None: as many as fit."""
    captured: int = CAPTURED
    """Most tokens of a step for which CUDA graphs are captured; the exported command says so."""
    code: EngineCode = EngineCode()
    """Which code of vLLM is running."""
    groups: CacheGroups = ONE_GROUP
    """Groups of layers that have blocks of their own."""
    needed: int = 0
    """Number of blocks of the cache that the sequences of the workload hold at most."""
    reserve: str = ""
    """Name of what is left free by code that is not vLLM's; "" for vLLM's."""
    lowered: str = ""
    """Warning about CUDA graphs of more tokens than a step has, which vLLM does not capture; "" for none."""

    @classmethod
    def of(
        cls,
        model: ModelShape,
        machine: Machine,
        workload: Inference,
        *,
        tokens: int | None,
        utilization: float | None,
        blocks: int | None,
        captured: int | None,
        code: EngineCode,
        connector: Connector | None,
        element: float | None = None,
        tensor: int = 1,
    ) -> VllmEngine:
        """Return the engine for a workload, of which no step may lack a token for a sequence; None: as vLLM
        chooses.

        Raises InputError for fewer tokens than sequences, which vLLM refuses, for a fraction of memory with
        which it does not start, and for fewer blocks than the sequences need, of which it would compute some
        later.
        """
        sequences, length = workload.batch_size, workload.max_context
        most = tokens or max(sequences, default_tokens(machine))
        groups = ONE_GROUP
        if connector is None or _kind(connector, machine).groups:
            groups = cache_groups(model, step=most, element=element, tensor=tensor)
        needed = needed_blocks(groups, sequences=sequences, length=length, stated=blocks)
        if workload.room > length:  # vLLM starts with blocks for one sequence of max_model_len
            longest = needed_blocks(groups, sequences=1, length=workload.room, stated=blocks)
            needed = max(needed, longest)
        fills = checked_utilization(utilization, machine)
        if tokens is not None and tokens < sequences:
            text = f"{tokens:,} is fewer than the {sequences:,} sequences of the batch; raise it"
            raise InputError.at("strategy.max_num_batched_tokens", f"{text}, or lower workload.batch_size")
        graphs = graph_sizes(min(captured or model.traits.largest_graph or CAPTURED, most))[-1]
        lowered = ""
        if captured is not None and captured > most:
            lowered = (
                f"max_cudagraph_capture_size {captured:,} is more than the {most:,} tokens of a step, and "
                f"vLLM captures graphs up to {graphs:,}; lower it, or raise max_num_batched_tokens"
            )
        found = cls(most, fills, blocks, graphs, code, groups, needed, lowered=lowered)
        if utilization is None:  # a share beside which graphs have room, if there is one
            return found._replace(utilization=min(fills, found.most(model, machine) or fills))
        return found

    def chunks(self, batch: Sequence[Sequences]) -> list[tuple[Sequences, ...]]:
        """Return the steps in which a batch is computed: each has as many tokens as vLLM computes at once,
        first the rest of a prompt that was begun, then whole prompts, then a part of the next one.

        Decode steps that vLLM adds to those of others, of prompts that are complete, are left out.
        """
        found: list[tuple[Sequences, ...]] = []
        parts: list[Sequences] = []
        room = self.tokens
        for one in batch:
            before, left, done = one.context - one.new_tokens, one.number, 0
            while left:
                prompts = 0 if done else min(left, room // one.new_tokens)
                if prompts:
                    parts.append(one._replace(number=prompts))
                    left, room = left - prompts, room - prompts * one.new_tokens
                elif room:
                    taken = min(room, one.new_tokens - done)
                    done, room = done + taken, room - taken
                    parts.append(Sequences(1, taken, before + done))
                    if done == one.new_tokens:
                        left, done = left - 1, 0
                if left and not room:
                    found.append(tuple(parts))
                    parts, room = [], self.tokens
        return [*found, tuple(parts)]

    def memory(self, stage: ModelShape, machine: Machine, *, sequences: int) -> tuple[Held, ...]:
        """Return what the engine of a GPU needs beyond weights and blocks, and what it leaves free.

        Blocks get the stated share of the GPU's memory less weights, the peak of a step of as many tokens as
        are computed at once with ``sequences``, what libraries took meanwhile, and, with model runner V1, an
        estimate for CUDA graphs. What is taken before vLLM starts, and the graphs of runner V2, are in what
        the share leaves free (``gpu_worker.py``, ``determine_available_memory``;
        docs/measurements/vllm.md).
        """
        graphs, free = self._graphs(stage), self._free(machine)
        held = DISPLAY if machine.accelerator.has_display else 0  # in no other part
        return (
            Held(
                "hbm",
                "activations",
                self._peak(stage, sequences=sequences),
                remedy="lower batch_size" if self.reserve else "lower max_num_batched_tokens or batch_size",
            ),
            Held("hbm", "CUDA context and workspace", self._context(machine) + _LIBRARIES),
            *([Held("hbm", "CUDA graphs", graphs)] if graphs else ()),
            Held(
                "hbm",
                self.reserve or f"left free by vLLM (gpu_memory_utilization {self.utilization:g})",
                max(0, free - self._beyond(stage, machine)) + min(held, free),
                remedy="" if self.reserve else "raise gpu_memory_utilization",
                spare=True,
            ),
        )

    def most(self, model: ModelShape, machine: Machine) -> float:
        """Return the largest fraction of the memory, in hundredths, beside which the rest has room; 0 for
        none."""
        rest = self._beyond(model, machine)
        return max(0, floor(100 * (1 - rest / machine.tiers["hbm"].capacity))) / 100

    def short(self, stage: ModelShape, machine: Machine) -> tuple[str, ...]:
        """Return a warning if what is not within the share of the memory does not fit beside it: vLLM stops
        while it captures graphs."""
        needed, free = self._beyond(stage, machine), self._free(machine)
        if needed <= free:
            return ()
        need, left = formatted_apart(needed, free, binary=True)
        text = f"gpu_memory_utilization {self.utilization:g} leaves {left} of the GPU free, and {need} are "
        text += f"needed there, for CUDA graphs among others; set it to {self.most(stage, machine):g}"
        return (f"{text}, for which the blocks are counted, or lower max_cudagraph_capture_size",)

    def _free(self, machine: Machine) -> int:
        capacity = machine.tiers["hbm"].capacity
        return capacity - int(self.utilization * capacity)

    def _context(self, machine: Machine) -> int:
        return _CONTEXT if self.code.alone else max(_CONTEXT, machine.accelerator.reserved_bytes)

    def _beyond(self, stage: ModelShape, machine: Machine) -> int:
        """Return the memory [B] that is needed outside of the share that vLLM fills."""
        before = _taken(machine)[0] - _CONTEXT + self._context(machine)
        return before + (0 if self.code.v1 else self._graphs(stage))

    def _graphs(self, stage: ModelShape) -> int:
        """Return the memory [B] of CUDA graphs."""
        sizes = len(graph_sizes(self.captured)) if self.code.compiled else 0
        if not self.code.v1 or not sizes:
            return sizes * _GRAPH_OF_SIZE
        return _GRAPHS + _GRAPH * stage.num_hidden_layers * sizes

    def _peak(self, stage: ModelShape, *, sequences: int) -> int:
        """Return the peak [B] of the step with which vLLM profiles memory: in a layer, while a stage with the
        head samples a token of every sequence, or while code is compiled, with a copy of the GPU's part of
        the embedding as an input.

        Traces of allocations of three models on an H200 have these parts (docs/measurements/vllm.md). With
        model runner V1 three copies of all logits in single precision exist at once, and buffers of experts
        are kept.
        """
        size = stage.dtype_bytes
        rows = sequences * stage.vocab_size if stage.modules_after else 0
        inside = activation_bytes(stage, batch=1, tokens=self.tokens, fused=True)
        states = 2 * self.tokens * stage.hidden_size * size
        kept = experts_bytes(stage, self.tokens) if experts_kernel(stage) != "mxfp4" else 0
        sampled = states + kept + rows * (size + 4)
        if self.code.v1:
            sampled += 8 * rows + 4 * min(_PROCESSORS, sequences) * stage.vocab_size
        first = (one for one in stage.modules_before if one.kind == "embedding")
        table = max((one.numel for module in first for one in module.parameters), default=0) * size
        return max(inside, sampled, states + table if self.code.compiled else 0)


def _taken(machine: Machine) -> tuple[int, str]:
    """Return the memory of a GPU [B] that is not free when vLLM starts, and what takes it."""
    size, parts = _CONTEXT, ["its CUDA context"]
    if machine.accelerator.has_display:
        size += DISPLAY
        parts.append("a display")
    if machine.accelerator.is_unified:
        size += machine.host.reserved_bytes
        parts.append("the operating system")
    return size, f"{', '.join(parts[:-1])} and {parts[-1]}" if parts[1:] else parts[0]


def most_utilization(machine: Machine) -> float:
    """Return the largest fraction, in hundredths, of a GPU's memory that is free when vLLM starts; 0 for a
    GPU that is too small for vLLM."""
    return max(0, floor(100 * (1 - _taken(machine)[0] / machine.tiers["hbm"].capacity))) / 100


def fuller(machine: Machine) -> tuple[float, ...]:
    """Return larger fractions than the default one that may be tried on a machine."""
    most = most_utilization(machine)
    return tuple(dict.fromkeys(one for each in _FULLER if (one := min(each, most)) > UTILIZATION))


def checked_utilization(stated: float | None, machine: Machine) -> float:
    """Return the fraction that vLLM fills: ``stated``, or the default one, less where not so much is free.

    Raises InputError for one with which vLLM does not start, and for a GPU that is too small for any.
    """
    most, gpu = most_utilization(machine), machine.accelerator
    if not most:
        size, what = _taken(machine)
        has = format_bytes(machine.tiers["hbm"].capacity, binary=True)
        text = f"vLLM does not start on a GPU with {has}, of which about {format_bytes(size, binary=True)} "
        raise InputError.at("strategy.kind", f"{text}are not free ({what}); choose a larger GPU")
    if stated is None:
        return min(UTILIZATION, most)
    if stated > most:
        text = f"{_start(stated, machine)}; set it to {most:g} or less"
        if gpu.has_display and not gpu.is_unified:
            text += f", or display of accelerator/{gpu.id} to false if none is connected"
        raise InputError.at("strategy.gpu_memory_utilization", text)
    return stated


def _start(utilization: float, machine: Machine) -> str:
    """Return a sentence about what vLLM needs beside a fraction of the memory."""
    size, what = _taken(machine)
    capacity = machine.tiers["hbm"].capacity
    left = format_bytes(capacity - int(utilization * capacity), binary=True)
    begins = f"vLLM starts only if {utilization:g} of a GPU's memory is free, which leaves {left}"
    return f"{begins}, and {what} take{'s' if what == 'its CUDA context' else ''} about " + format_bytes(
        size, binary=True
    )


def tight(utilization: float, machine: Machine) -> tuple[str, ...]:
    """Return a warning about a fraction that leaves little to other programs."""
    if utilization < _TIGHT:
        return ()
    return (f"gpu_memory_utilization: {_start(utilization, machine)}: nothing else may use the GPU",)


class _LayerRows(NamedTuple):
    """The _LayerRows are the layers that keep rows of one kind, or states."""

    layers: int = 0
    bytes: float = 0.0
    """Size [B] for each token, or of the states of a sequence, in all of these layers."""

    @property
    def each(self) -> float:
        """Size [B] in one layer."""
        return self.bytes / self.layers if self.layers else 0.0

    def of_group(self, groups: int, pages: int = 1) -> float:
        """Return the size [B] of one of the ``pages`` of the layers of a group."""
        return -(-self.layers // max(1, groups // pages)) * self.each / pages


def _kept_rows(
    model: ModelShape, element: float | None = None, tensor: int = 1
) -> tuple[_LayerRows, _LayerRows, _LayerRows]:
    """Return the layers that keep all tokens, those with a window, and recurrent ones, of which modules keep
    nothing but states, each on one of ``tensor`` GPUs; states beside rows of a window, and these beside rows
    of all tokens, are left out (``_beside``)."""
    found = [[0, 0.0], [0, 0.0], [0, 0.0]]
    for layer, count in model.kinds:
        sizes = [0.0, 0.0, 0.0]
        for one in layer:
            parts = model.parts_of(one)
            rows = [part for part in parts if not (part.fixed or part.hot)]
            if one.keeps is None and not model.expands(one) and tensor > 1:
                rows = [part._replace(width=model.heads_of(one).part(tensor).row) for part in rows]
            for part in rows:
                size = 0.0 if part.borrowed else model.row_bytes(part, element) / part.every
                sizes[part.window is not None] += size
            sizes[2] += 0 if rows else sum(part.part(tensor).fixed for part in parts)
        if sizes[1]:
            sizes[2] = 0.0
        if sizes[0]:
            sizes[1] = 0.0
        for kind, size in enumerate(sizes):
            if size:
                found[kind][0] += count
                found[kind][1] += count * size
    full, sliding, states = (_LayerRows(int(layers), size) for layers, size in found)
    return full, sliding, states


def cache_groups(
    model: ModelShape, *, step: int, element: float | None = None, tensor: int = 1
) -> CacheGroups:
    """Return the groups of layers that have blocks of their own, with ``step`` new tokens at most in a step.

    ``element`` is the size of a number in the cache [B], by default that of the model's type, and ``tensor``
    the number of GPUs that divide a layer.

    Groups have as many layers as the kind of layer with fewest, or, if the kind with most has less than half
    as many more, as that one. Blocks beside recurrent layers have as many tokens, a multiple of 16, as keys
    and values of a layer need room to hold a state. Windows and states beside compressed rows in the same
    layers have blocks of 256 tokens, of which a sequence holds as many as they need.

    Source: ``_get_kv_cache_groups_uniform_page_size`` in ``v1/core/kv_cache_utils.py`` and
    ``_align_hybrid_block_size`` in ``platforms/interface.py`` of vLLM 0.25.1.
    """
    full, sliding, states = _kept_rows(model, element, tensor)
    if beside := _beside(model, element):
        more = ceil((model.state_bytes + beside) / (_COMPRESSED * full.bytes))
        return CacheGroups(1, more, 1, step, _COMPRESSED, recurrent=True)
    recurrent = bool(states.layers and full.layers and not sliding.layers)
    other = states if recurrent else sliding
    if not (full.layers or other.layers):  # no layer has attention over earlier tokens
        return ONE_GROUP
    numbers = [one.layers for one in (full, other) if one.layers]
    size = max(numbers) if max(numbers) < 1.5 * min(numbers) else min(numbers)
    count, more = -(-full.layers // size), -(-other.layers // size)
    if not recurrent:
        least = min(one.each for one in (full, other) if one.layers)
        pages = max(1, round(full.each / least)), max(1, round(other.each / least))
        found = CacheGroups(count * pages[0], more * pages[1], model.sliding_window or 1, step)
        return found._replace(size=VLLM_BLOCK * max(pages), pages=pages)
    tokens = states.each / full.each
    return CacheGroups(count, more, 1, step, VLLM_BLOCK * ceil(tokens / VLLM_BLOCK), recurrent=True)


BLOCKS = "strategy.kv_blocks, or lower workload.batch_size"
"""What to raise where there are too few blocks for a batch, and what else to change."""


def needed_blocks(
    groups: CacheGroups,
    *,
    sequences: int,
    length: int,
    stated: int | None,
    size: int | None = None,
    remedy: str = BLOCKS,
) -> int:
    """Return the blocks of ``size`` tokens, by default those of the groups, that sequences of so many tokens
    hold at most.

    Raises InputError, which tells to raise the key with which ``remedy`` begins, if fewer are ``stated``.
    """
    size = size or groups.size
    needed = max(sequences * groups.held(length, size), groups.peak(0, length, size))
    if stated is not None and stated < needed:
        key, comma, other = remedy.partition(",")
        text = f"{plural(stated, 'block')} of {size} tokens are fewer than the {needed:,} that "
        text += f"{plural(sequences, 'sequence')} with {length:,} tokens need{'s' if sequences == 1 else ''}"
        raise InputError.at(key, f"{text}; raise it{comma}{other}")
    return needed


def block_bytes(stage: ModelShape, groups: CacheGroups, *, element: float) -> int:
    """Return the size [B] of a block of the cache in the layers of a stage that are in one of the model's
    groups; ``element`` is that of a number in it [B]."""
    full, sliding, states = _kept_rows(stage, element)
    if groups.number == 1:
        return round(groups.size * (full.bytes + sliding.bytes))
    if groups.recurrent:
        return round(max(groups.size * full.of_group(groups.full), states.of_group(groups.sliding)))
    sizes = full.of_group(groups.full, groups.pages[0]), sliding.of_group(groups.sliding, groups.pages[1])
    return round(groups.size * max(sizes))


def unpaged_bytes(stage: ModelShape, groups: CacheGroups) -> int:
    """Return the size [B] of the states of a sequence that are in no block."""
    if _beside(stage):
        return 0
    _, _, states = _kept_rows(stage)
    return stage.state_bytes - (round(states.bytes) if groups.recurrent else 0)


_COMPRESSED = 256
"""Tokens of a block beside compressed rows (``models/deepseek_v4/compressor.py`` of vLLM 0.25.1)."""


def _beside(model: ModelShape, element: float | None = None) -> int:
    """Return the size [B] of windows of a sequence in layers that also keep rows of all tokens; ``element``
    is that of a number in them [B], by default that of the model's type."""
    total = 0.0
    for layer, count in model.kinds:
        rows = model.growing(layer)
        if any(one.window is None for one in rows):
            total += count * sum(model.row_bytes(one, element) * (one.window or 0) for one in rows)
    return round(total)


LEAST_TOKENS = 2_048
"""Tokens that ``vllm serve`` computes at once by default on the smallest GPUs."""


def default_tokens(machine: Machine) -> int:
    """Return how many tokens ``vllm serve`` computes at once by default: 16,384 on GPUs with 160 GiB and
    more, 8,192 with 70 GiB and more except the A100 and GB10, else 2,048."""
    gpu, capacity = machine.accelerator, machine.tiers["hbm"].capacity
    if capacity >= 160 * _GIB:
        return 16_384
    small = gpu.is_unified or "a100" in gpu.name.lower()
    return 8_192 if capacity >= 70 * _GIB and not small else LEAST_TOKENS


def default_sequences(machine: Machine) -> int:
    """Return how many sequences ``vllm serve`` runs at once by default: 1,024 where it computes 8,192 tokens
    or more, else 256."""
    return 1024 if default_tokens(machine) > LEAST_TOKENS else 256


def graph_sizes(most: int) -> tuple[int, ...]:
    """Return the numbers of tokens for which vLLM captures CUDA graphs, up to ``most``: 1, 2, 4, then by 8
    and from 256 on by 16."""
    sizes: Iterator[int] = chain((1, 2, 4), range(8, 256, 8), range(256, most + 1, 16))
    return tuple(one for one in sizes if one <= most)


def chosen_graph(model: ModelShape, sequences: int) -> int:
    """Return the most tokens for which vLLM captures CUDA graphs if nothing is stated
    (``config/vllm.py``)."""
    return model.traits.largest_graph or graph_sizes(min(2 * sequences, CAPTURED))[-1]


# --------------------------------------------------------------------------------------------------
# The part of an exported vLLM command that is about a connector: its options, and what they cannot express.
#
# Sources: wheels of vLLM 0.33.0 (``distributed/kv_transfer/kv_connector/v1``, ``v1/kv_offload``, ``envs.py``,
# ``distributed/mooncake_store.py``) and of LMCache 0.5.6 (``v1/config.py``,
# ``integration/vllm/vllm_v1_adapter.py``, ``v1/storage_backend``).
#
# Blocks of 16 tokens in host memory or in files are those of vLLM's own OffloadingConnector; larger ones,
# transfers layer by layer and GPUDirect Storage are LMCache's; the memory of other hosts is a store of
# Mooncake.


_GIB, _MIB = 1 << 30, 1 << 20


@dataclass(frozen=True)
class ConnectorCommand(ABC):
    """A ConnectorCommand writes what one of vLLM's connectors needs, and what it does otherwise than the
    simulation."""

    moves: BlockMoves
    terms: tuple[Held, ...]
    """Memory of the plan, in which the blocks of one generation are."""
    compiled: bool
    """Whether kernels are replayed from CUDA graphs."""
    program: ClassVar[str]
    """Name of the connector in vLLM."""
    groups: ClassVar[bool] = True
    """Whether it knows groups of layers (``SupportsHMA``); otherwise vLLM keeps all tokens in all layers."""
    environment: ClassVar[Mapping[str, str]] = {}
    """Environment variables that it needs, by name."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Settings of the connector, ``kv_connector_extra_config`` of vLLM."""

    @abstractmethod
    def differences(self) -> Iterator[str]:
        """Yield sentences about what the connector does otherwise than the simulation."""

    @property
    def role(self) -> str:
        """Whether it loads and stores, ``kv_role`` of vLLM: both."""
        return "kv_both"

    @property
    def option(self) -> str:
        """The option of ``vllm serve`` that names and configures the connector."""
        names = {"kv_connector": self.program, "kv_role": self.role}
        config = json.dumps({**names, "kv_connector_extra_config": self.settings})
        return f"--kv-transfer-config {quote(config)}"

    @property
    def before(self) -> str:
        """What is before ``vllm serve``: comments on what to prepare and on the differences, and assignments
        of environment variables. In the layout BLHNC a block is contiguous over all layers."""
        tier, found = self.moves.connector.tier, list[str]()
        if tokens := self.moves.connector.loaded:
            found.append(
                f"The simulation loads {plural(tokens, 'token')} of each prompt: earlier requests must have "
                "stored them, and HBM must not hold them any more."
            )
        if self._row.has_files:
            found.append(f"Replace {self._directory} by a directory on {tier}.")
        comments = (
            fill(one, 100, initial_indent="# ", subsequent_indent="#   ")
            for one in (*found, *self.differences())
        )
        layout = {"VLLM_KV_CACHE_LAYOUT": "BLHNC"} if self._across_layers else {}
        variables = (f"{name}={value} \\" for name, value in {**layout, **self.environment}.items())
        return "".join(f"{line}\n" for line in (*comments, *variables))

    def _gib(self, parts: int) -> int:
        """Return one of equal ``parts`` of all blocks of a generation, prefixes and new ones, in whole
        GiB."""
        moves = self.moves
        hosts = moves.machine.nodes_of(moves.degrees.ranks) if self._row.is_dram else 1
        held = hosts * sum(one.size for one in self.terms if one.name in BLOCK_TERMS)
        return max(1, -(-held // (parts * _GIB)))

    @property
    def _row(self) -> TierKind:
        return self.moves.machine.row(self.moves.connector.tier)

    @property
    def _directory(self) -> str:
        return f"/mnt/{self.moves.connector.tier}"

    @property
    def _across_layers(self) -> bool:
        return self.moves.connector.cross_layer_blocks


class _Offloading(ConnectorCommand):
    """Blocks of 16 tokens in host memory, and in files behind it."""

    program = "OffloadingConnector"

    @property
    def settings(self) -> dict[str, Any]:
        size = self._gib(self.moves.degrees.data) * _GIB
        found: dict[str, Any] = {"cpu_bytes_to_use": size, "offload_prompt_only": False}
        if self._row.has_files:
            threads = {"n_read_threads": THREADS, "n_write_threads": THREADS}
            files = {"type": "fs", "root_dir": self._directory, **threads}
            found |= {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [files]}
        return found

    def differences(self) -> Iterator[str]:
        if self._row.has_files:
            yield (
                "vLLM keeps blocks in host memory on their way (cpu_bytes_to_use), and reads files only of "
                "those that are not there any more; the simulation has pinned buffers."
            )
        if not self.moves.connector.store:
            yield "vLLM has no option that turns stores off; the simulation stores nothing."


class _LMCache(ConnectorCommand):
    """Chunks of any size, layer by layer or not, in host memory, in files, or by GPUDirect Storage."""

    program = "LMCacheConnectorV1"
    groups = False
    environment: ClassVar = {"PYTHONHASHSEED": "0"}  # keys of chunks are then equal in all processes
    _across_layers = False

    @property
    def settings(self) -> dict[str, Any]:
        one, each = self.moves.connector, self._gib(self.moves.degrees.ranks)
        found: dict[str, Any] = {
            "chunk_size": one.block_tokens,
            "use_layerwise": one.layerwise,
            "save_decode_cache": one.store and not one.layerwise,
            "local_cpu": not self._row.has_files,
            "max_local_cpu_size": each,
        }
        if one.direct:
            found |= {"gds_path": self._directory, "gds_buffer_size": each * _GIB // _MIB}
            found["extra_config"] = {"disk_io_threads": THREADS}
        elif self._row.has_files:
            found |= {"local_disk": self._directory, "max_local_disk_size": each}
            found["extra_config"] = {"disk_io_threads": THREADS, "use_odirect": True}
        piecewise = {"use_layerwise": True} if one.layerwise else {}  # which vLLM itself reads
        return piecewise | {f"lmcache.{name}": value for name, value in found.items()}

    def differences(self) -> Iterator[str]:
        one, each = self.moves.connector, f"{self._gib(self.moves.degrees.ranks)} GiB"
        yield "LMCache copies with kernels of its own; the simulation copies parts of blocks by DMA."
        if self._row.access == "objects":
            yield "Set lmcache.remote_url to the address of the object store."
        if one.direct:
            yield (
                f"LMCache's buffer takes {each} of each GPU (gds_buffer_size), which the simulation does not "
                "count."
            )
        elif self._row.has_files:
            yield (
                f"LMCache's buffers take {each} of host memory for each GPU (max_local_cpu_size), more than "
                "those of the simulation."
            )
        if one.layerwise and self.compiled:
            yield "With use_layerwise vLLM has several CUDA graphs for a pass; the simulation has one."
        if not one.store:
            yield (
                "LMCache stores new blocks, too, except of requests with lmcache.skip_save in "
                "kv_transfer_params; the simulation stores nothing."
            )
        elif not one.layerwise and self.moves.workload.decode_steps:
            yield (
                "LMCache stores blocks as soon as they are full, and passes wait for that; the simulation "
                "stores equal parts during all decode steps."
            )
        if any(stage.num_sliding_layers for stage in self.moves.stages):
            yield "LMCache loads all blocks of sliding layers; the simulation those of the window."


class _Mooncake(ConnectorCommand):
    """Blocks in the memory of other hosts."""

    program = "MooncakeStoreConnector"
    environment: ClassVar = {"MOONCAKE_CONFIG_PATH": "mooncake.json"}

    @property
    def role(self) -> str:
        """The role of a consumer, which stores nothing, for a connector without stores."""
        return super().role if self.moves.connector.store else "kv_consumer"

    @property
    def settings(self) -> dict[str, Any]:
        return {"save_decode_cache": True} if self.moves.connector.store else {}

    def differences(self) -> Iterator[str]:
        one = self.moves.connector
        yield (
            "Write mooncake.json with metadata_server, master_server_address, protocol and device_name of "
            "your Mooncake store."
        )
        if not one.direct:
            yield "Mooncake transfers to and from GPU memory; the simulation by way of host memory."
        if one.layerwise:
            yield "Mooncake transfers all layers of a block at once; the simulation layer by layer."
        if one.block_tokens != VLLM_BLOCK:
            yield f"vLLM has blocks of {VLLM_BLOCK} tokens; the simulation of {one.block_tokens}."


def _kind(one: Connector, machine: Machine) -> type[ConnectorCommand]:
    """Return the connector of vLLM that does most of what is simulated."""
    access = machine.tiers[one.tier].row.access
    if access == "peer":
        return _Mooncake
    if one.block_tokens == VLLM_BLOCK and access != "objects" and not (one.layerwise or one.direct):
        return _Offloading
    return _LMCache


def connector_command(moves: BlockMoves, terms: tuple[Held, ...], *, compiled: bool) -> ConnectorCommand:
    """Return the command of the connector of vLLM that does most of what is simulated."""
    return _kind(moves.connector, moves.machine)(moves, terms, compiled)
