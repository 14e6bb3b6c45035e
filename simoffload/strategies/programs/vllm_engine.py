"""vLLM's engine: how many tokens it computes at once, and what it leaves of a GPU's memory for the cache.

Sources: wheel of vLLM 0.33.0, ``engine/arg_utils.py`` (``get_batch_defaults``: tokens of a step),
``v1/core/sched/scheduler.py`` (a prefill in chunks), ``v1/worker/gpu_worker.py``
(``determine_available_memory``: what is left for blocks of the cache), ``v1/worker/utils.py``
(``request_memory``: at the start that fraction of the memory must be free) and ``config/vllm.py`` (sizes of
CUDA graphs).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from itertools import chain
from math import floor
from typing import NamedTuple

from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape, Module, Sequences
from simoffload.models.formats import Kernel
from simoffload.strategies.cache.kv_cache import VLLM_BLOCK
from simoffload.strategies.held import Held
from simoffload.units import format_bytes, plural

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
    ServedRuns("NVIDIA H200 SXM5", frozenset({""}), frozenset({"", "mxfp4"}), frozenset({""})),
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


def stored_weights(modules: Sequence[Module], *, native_float8: bool) -> tuple[Stored, ...]:
    """Return the forms of the weights of modules, each once; FP8 is decoded on a GPU without its products."""
    found: list[Stored] = []
    for module in modules:
        for one in module.parameters:
            form = "" if one.storage is None else one.storage.format.name
            kernel = "" if one.storage is None else one.storage.format.dequantization.kernel
            if kernel == "float8" and not native_float8:
                kernel = "int8"
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
_CONTEXT, _DISPLAY = 500_000_000, 500_000_000
"""Memory of a GPU [B] that is not free when vLLM starts: its CUDA context, and on desktops what the display
takes (an estimate, some 0.2 to 1 GB)."""
_GIB = 1 << 30
_ALONE = 850_000_000
"""CUDA context and libraries [B] of a process that does not communicate: vLLM 0.25.1 on one H200 had 0.844 GB
beyond PyTorch's memory, with five CUDA graphs."""
_GRAPH = 5_550_000 / 32
"""Driver's memory [B] of the CUDA graphs of one batch size for each layer: in the same runs, with 51 sizes
instead of 5 there were 255 MB more, for 32 layers."""
_LARGEST_GRAPH = 512
_MOST_SEQUENCES = 1024


class VllmEngine(NamedTuple):
    """A VllmEngine has the limits of vLLM's engine for a plan."""

    tokens: int
    """Number of tokens that a GPU computes at once at most (``max_num_batched_tokens``)."""
    utilization: float = UTILIZATION
    """Fraction of a GPU's memory that is filled."""
    blocks: int | None = None
    """Number of blocks of the cache on each GPU that the user states; None: as many as fit."""

    @classmethod
    def of(
        cls, machine: Machine, *, sequences: int, tokens: int | None, utilization: float, blocks: int | None
    ) -> VllmEngine:
        """Return the engine for a number of sequences, which none of its steps may lack a token for.

        Raises InputError for fewer tokens than sequences, which vLLM refuses.
        """
        if tokens is None:
            return cls(max(sequences, default_tokens(machine)), utilization, blocks)
        if tokens < sequences:
            text = f"{tokens:,} is fewer than the {sequences:,} sequences of the batch; raise it"
            raise InputError.at("strategy.max_num_batched_tokens", f"{text}, or lower workload.batch_size")
        return cls(tokens, utilization, blocks)

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

    def at_once(self, tokens: int) -> int:
        """Return how many of ``tokens`` are computed at once."""
        return min(self.tokens, tokens)

    def memory(
        self, stage: ModelShape, machine: Machine, *, sequences: int, compiled: bool, alone: bool
    ) -> tuple[Held, ...]:
        """Return what the engine of a GPU needs beyond the model's work, and what it leaves free.

        ``alone``: no other GPU has parts of the model, so that there are no buffers of NCCL.
        """
        gpu, capacity = machine.accelerator, machine.tiers["hbm"].capacity
        context = min(gpu.reserved_bytes, _ALONE) if alone else gpu.reserved_bytes
        graphs = round(_GRAPH * stage.num_hidden_layers * len(graph_sizes(sequences))) if compiled else 0
        left = Held(
            "hbm",
            f"left free by vLLM (gpu_memory_utilization {self.utilization:g})",
            capacity - int(self.utilization * capacity),
            remedy="raise gpu_memory_utilization",
            spare=True,
        )
        return (
            Held("hbm", "CUDA context and workspace", context),
            *([Held("hbm", "CUDA graphs", graphs)] if graphs else ()),
            left,
        )


def _taken(machine: Machine) -> tuple[int, str]:
    """Return the memory of a GPU [B] that is not free when vLLM starts, and what takes it."""
    size, parts = _CONTEXT, ["its CUDA context"]
    if machine.accelerator.has_display:
        size += _DISPLAY
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


def block_bytes(stage: ModelShape, *, element: float) -> int:
    """Return the size [B] of a block of the cache in all layers of a stage; ``element`` is that of a number
    in it [B]."""
    own = stage.kv_cache_bytes(batch=1, tokens=VLLM_BLOCK, windows=False, block=VLLM_BLOCK)
    return round(own * element / stage.dtype_bytes)


def default_tokens(machine: Machine) -> int:
    """Return how many tokens ``vllm serve`` computes at once by default: 16,384 on GPUs with 160 GiB and
    more, 8,192 with 70 GiB and more except the A100 and GB10, else 2,048."""
    gpu, capacity = machine.accelerator, machine.tiers["hbm"].capacity
    if capacity >= 160 * _GIB:
        return 16_384
    small = gpu.is_unified or "a100" in gpu.name.lower()
    return 8_192 if capacity >= 70 * _GIB and not small else 2_048


def graph_sizes(sequences: int) -> tuple[int, ...]:
    """Return the batch sizes of which vLLM captures CUDA graphs for ``sequences`` at most: 1, 2, 4, then by 8
    and from 256 on by 16, up to twice the sequences and 512."""
    most = min(2 * min(sequences, _MOST_SEQUENCES), _LARGEST_GRAPH)
    sizes: Iterator[int] = chain((1, 2, 4), range(8, 256, 8), range(256, _LARGEST_GRAPH + 1, 16))
    return tuple(one for one in sizes if one <= most)


def check_blocks(blocks: int, *, sequences: int, tokens: int) -> None:
    """Raise InputError for fewer blocks than the sequences need with ``tokens`` each: vLLM would compute some
    of them later."""
    needed = sequences * -(-tokens // VLLM_BLOCK)
    if blocks < needed:
        text = f"{plural(blocks, 'block')} of {VLLM_BLOCK} tokens are fewer than the {needed:,} that "
        text += f"{plural(sequences, 'sequence')} with {tokens:,} tokens need"
        raise InputError.at("strategy.kv_blocks", f"{text}; raise it, or lower workload.batch_size")
