"""vLLM's engine: how many tokens it computes at once, and what it leaves of a GPU's memory for the cache.

Sources: wheel of vLLM 0.33.0, ``engine/arg_utils.py`` (``get_batch_defaults``: tokens of a step),
``v1/core/sched/scheduler.py`` (a prefill in chunks), ``v1/worker/gpu_worker.py``
(``determine_available_memory``: what is left for blocks of the cache) and ``config/vllm.py`` (sizes of
CUDA graphs).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape, Sequences
from simoffload.results import MemoryTerm
from simoffload.strategies.kv_cache import VLLM_BLOCK
from simoffload.units import plural

UTILIZATION = 0.92
"""Fraction of a GPU's memory that vLLM fills by default (``gpu_memory_utilization``, vllm/config/cache.py).
"""
FULLER = (0.95, 0.97)
"""Larger fractions that are tried where that is too little: vLLM refuses more than is free when its context
and those of its libraries are there, 1 to 2 GB; our choice."""
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
    ) -> tuple[MemoryTerm, ...]:
        """Return what the engine of a GPU needs beyond the model's work, and what it leaves free.

        ``alone``: no other GPU has parts of the model, so that there are no buffers of NCCL.
        """
        gpu, capacity = machine.accelerator, machine.tiers["hbm"].capacity
        context = min(gpu.reserved_bytes, _ALONE) if alone else gpu.reserved_bytes
        graphs = round(_GRAPH * stage.num_hidden_layers * len(graph_sizes(sequences))) if compiled else 0
        left = MemoryTerm(
            "hbm",
            f"left free by vLLM (gpu_memory_utilization {self.utilization:g})",
            capacity - int(self.utilization * capacity),
            remedy="raise gpu_memory_utilization",
            spare=True,
        )
        return (
            MemoryTerm("hbm", "CUDA context and workspace", context),
            *([MemoryTerm("hbm", "CUDA graphs", graphs)] if graphs else ()),
            left,
        )


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
