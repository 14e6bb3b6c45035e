"""Updates of a key-value cache that is offloaded or streamed: what each layer moves, and when."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache, cached_property
from itertools import pairwise
from math import ceil
from shlex import quote
from typing import NamedTuple

from simoffload.hardware import Machine
from simoffload.models import SINGLE, CpuAttentionCode, Layer, ModelShape, Sequences, StatePart, window_of
from simoffload.results import cause_text
from simoffload.schedule import Cause, CauseKind, Dependency, Op, OpKind, Schedule, alone_rate, transfer_time
from simoffload.strategies.base import Held, Traffic, pinned_block, pinned_rounding
from simoffload.strategies.cache.kv_cache import VLLM_BLOCK, KvCache
from simoffload.strategies.memory import KEPT_BY_MALLOC, cache_bytes, cache_term, prompt_in_layer
from simoffload.strategies.passes.pass_writer import (
    COMPUTE,
    DEPTH,
    HOST,
    REQUEST,
    Call,
    Hook,
    Part,
    PassWriter,
    StagePass,
)
from simoffload.strategies.passes.timing import picoseconds
from simoffload.workload import Inference


class LayerUpdate(NamedTuple):
    """A LayerUpdate is what one layer moves when it adds keys and values to an offloaded cache."""

    fetched: tuple[int, ...]
    """Sizes [B] of the tensors of the next offloaded layer that are copied to the GPU; () if there are none.
    """
    joined: int
    """Size [B] of the traffic within HBM that joins cached and new tokens."""
    stored: tuple[int, ...]
    """Sizes [B] of the tensors that are copied to host memory."""

    @property
    def size(self) -> int:
        """Size [B] of all that is copied."""
        return sum(self.fetched) + sum(self.stored)


def layer_updates(
    cache: KvCache, shard: ModelShape, batch: Sequence[Sequences], *, length: int
) -> tuple[LayerUpdate | None, ...]:
    """Return the update of each layer of ``shard`` in a pass; None for a layer whose cache stays in HBM.

    ``length`` is the number of tokens for which a static cache has room.
    """
    layers = shard.layers
    if not cache.offloaded:
        return (None,) * len(layers)
    moves = shard.by_layer(lambda layer: _moves(cache, shard, layer))
    offloaded = [number for number, moving in enumerate(moves) if moving]

    def sizes(contexts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        return shard.by_layer(lambda layer: tensor_sizes(cache, shard, layer, batch, contexts, length=length))

    own = sizes([one.context for one in batch])
    before = sizes([one.context - one.new_tokens for one in batch])
    joined = shard.by_layer(lambda layer: _joined(cache, shard, layer, batch))
    found: list[LayerUpdate | None] = [None] * len(layers)
    for number, following in zip(offloaded, (*offloaded[1:], *offloaded[:1]), strict=True):
        # The last one fetches the first layer, which this pass has updated already.
        fetched = (own if following <= number else before)[following]
        found[number] = LayerUpdate(fetched, joined[number], own[number])
    return tuple(found)


def tensor_sizes(
    cache: KvCache,
    shard: ModelShape,
    layer: Layer,
    batch: Sequence[Sequences],
    contexts: Sequence[int],
    *,
    length: int,
) -> tuple[int, ...]:
    """Return the sizes [B] of the tensors of a layer's cache with ``contexts`` tokens of each sequence.

    They are keys and values, or with latent attention the latent vectors and the rotated elements of keys,
    and the keys of an indexer. States of recurrent layers are not among them: they stay where they are
    (``Cache.prefetch`` of transformers 5.23).
    """
    found = []
    for part, width in _rows(shard, layer):
        tokens = 0
        for one, context in zip(batch, contexts, strict=True):
            if not context:
                continue
            kept = max(length, context) if cache.static else context
            if part.window is not None:  # a growing cache keeps no token that the next one does not see
                kept = min(kept, part.window if cache.static else part.window - 1)
            tokens += one.number * kept // part.every
        found.append(tokens * width * shard.dtype_bytes)
    return tuple(found) if any(found) else ()


def _rows(shard: ModelShape, layer: Layer) -> tuple[tuple[StatePart, int], ...]:
    """Return the elements of a row of each tensor in which a layer keeps something that grows."""
    found: list[tuple[StatePart, int]] = []
    for module in layer:
        for part in shard.parts_of(module):
            if part.fixed or part.borrowed:
                continue
            heads, first = shard.heads_of(module), part.width
            if module.kind == "attention" and shard.expands(module):
                first = shard.latent_rank or part.width
            elif module.kind == "attention" and not heads.joint:
                first = heads.shared * heads.keys
            found += [(part, width) for width in (first, part.width - first) if width]
    return tuple(found)


def _moves(cache: KvCache, shard: ModelShape, layer: Layer) -> bool:
    """Return whether an offloaded cache moves what a layer keeps: not of a sliding layer of a static one."""
    return bool(_rows(shard, layer)) and not (cache.static and window_of(layer))


def _joined(cache: KvCache, shard: ModelShape, layer: Layer, batch: Sequence[Sequences]) -> int:
    """Return the traffic [B] of ``torch.cat``, which reads and writes all of the tensors; in place only new
    tokens."""
    total = 0
    for part, width in _rows(shard, layer):
        tokens = 0
        for number, new_tokens, context, _ in batch:
            held = context if part.window is None else min(context, part.window - 1 + new_tokens)
            tokens += number * (new_tokens if cache.static else held) // part.every
        total += tokens * width
    return 2 * total * shard.dtype_bytes


CACHE_LABEL = "keys and values"
"""Label of copies of an offloaded cache."""


# -- memory --------------------------------------------------------------------------------------


def cache_memory(
    cache: KvCache, shard: ModelShape, workload: Inference, *, copies: int, paged: bool
) -> tuple[Held, ...]:
    """Return the memory of the cache of one GPU that has ``shard`` of the model, and with ``copies`` such
    parts on a host that of its host memory.

    ``paged``: in blocks as in vLLM, of which every sequence has whole ones.
    """
    if cache.offloaded:
        return _offloaded_memory(cache, shard, workload, copies)
    states = workload.batch_size * shard.state_bytes
    if cache.static:
        return (cache_term("hbm", sum(map(sum, _tensors(cache, shard, workload))) + states),)
    size = cache_bytes(shard, workload, block=VLLM_BLOCK if paged else 0)
    if cache.format is None:
        return (cache_term("hbm", size),)
    if cache.residual:
        return _quantized_memory(cache, shard, workload)
    stored = cache_term("hbm", round(size * cache.element_bytes(shard.dtype_bytes) / shard.dtype_bytes))
    if paged:
        return (stored,)
    tokens = workload.batch_size * workload.max_context
    rows = [[width for _, width in _rows(shard, layer)] for layer, _ in shard.kinds]
    first, second = (tokens * width for width in (*max(rows, key=sum), 0, 0)[:2])
    # In single precision before and after the scale is multiplied (Fp8QuantizedLayer), values after keys.
    decoded = max(2 * SINGLE * first, shard.dtype_bytes * first + 2 * SINGLE * second)
    return (stored, Held("hbm", _DECODED, decoded))


_DECODED = "decoded keys and values of a layer"


def _quantized_memory(cache: KvCache, shard: ModelShape, workload: Inference) -> tuple[Held, ...]:
    """Return the memory of a cache whose last tokens are in the model's type, at its largest update.

    An update decodes all quantized tokens of a layer, and joins them with the others (``torch.cat``). The one
    that would make ``residual`` tokens of the others quantizes all, after which there are none
    (``QuantizedLayer.update``). The largest is the last such update, in its first layer, or the last update
    of all. What quantization itself needs is not counted.
    """
    prompt, steps, period = workload.prompt_length, workload.decode_steps, cache.residual
    token = shard.kv_cache_bytes(batch=workload.batch_size, tokens=1)
    element = cache.element_bytes(shard.dtype_bytes) / shard.dtype_bytes
    found = []
    for step in (steps // period * period, steps):
        again = bool(step) and step % period == 0
        recent = period - 1 if again else step % period
        quantized = prompt + step - recent - again
        joined = (quantized + prompt + step) * bool(step)
        found.append(
            (round(quantized * token * element), recent * token, joined * token // len(shard.layers))
        )
    stored, recent, decoded = max(found, key=sum)
    terms = (("tokens that are not quantized yet", recent), (_DECODED, decoded))
    more = (Held("hbm", name, size) for name, size in terms if size)
    return (cache_term("hbm", stored), *more)


def _tensors(cache: KvCache, shard: ModelShape, workload: Inference) -> tuple[tuple[int, ...], ...]:
    """Return the sizes [B] of the tensors of each layer at the longest context."""
    longest = workload.max_context
    batch = (Sequences(workload.batch_size, 1, longest),)
    return shard.by_layer(lambda layer: tensor_sizes(cache, shard, layer, batch, [longest], length=longest))


def _offloaded_memory(
    cache: KvCache, shard: ModelShape, workload: Inference, copies: int
) -> tuple[Held, ...]:
    """Return the layers on the GPU, which are the one in use, the next one and what ``torch.cat`` makes, and
    all in pinned memory.

    ``Tensor.to`` makes a new pinned tensor in every pass while that of the pass before is still being read,
    as the host thread is ahead of the GPU; PyTorch keeps blocks that have become too small.
    """
    sizes = _tensors(cache, shard, workload)
    moves = shard.by_layer(lambda layer: _moves(cache, shard, layer))
    offloaded = [sum(one) for one, moving in zip(sizes, moves, strict=True) if moving]
    pairs = zip(offloaded, (*offloaded[1:], *offloaded[:1]), strict=True)
    most = max((one + following for one, following in pairs), default=0)
    two = "key-value cache of two layers"
    found = [cache_term("hbm", min(most, sum(offloaded)), name=two, kind="staging")]
    if kept := sum(map(sum, sizes)) - sum(offloaded):
        found.append(cache_term("hbm", kept, name="key-value cache of sliding layers"))
    if states := workload.batch_size * shard.state_bytes:
        found.append(cache_term("hbm", states, name="states of recurrent layers"))
    if not cache.static:
        last = (Sequences(workload.batch_size, 1, workload.max_context),)
        joined = [_joined(cache, shard, layer, last) // 2 for layer, _ in shard.kinds]
        largest = max(*joined, prompt_in_layer(shard, workload))
        found.append(Held("hbm", "joined keys and values of a layer", largest))
    final = [size for one, moving in zip(sizes, moves, strict=True) if moving for size in one]
    rounding = pinned_rounding(final)
    blocks = shard.by_layer(lambda layer: _pinned_blocks(cache, shard, layer, workload))
    pool = sum(one for one, moving in zip(blocks, moves, strict=True) if moving)
    return (
        *found,
        cache_term("dram", copies * sum(final), pinned=True),
        Held("dram", "rounding of pinned allocations", copies * rounding, pinned=True),
        Held("dram", "pinned blocks of earlier passes", copies * (pool - sum(final) - rounding), pinned=True),
    )


def _pinned_blocks(cache: KvCache, shard: ModelShape, layer: Layer, workload: Inference) -> int:
    """Return the size [B] of the pinned blocks of a layer's tensors: of each power of two that a tensor has
    filled in some pass one block, or two if it has done so in several passes."""
    first, last = workload.prompt_length, workload.max_context
    found = 0
    for at in range(len(_rows(shard, layer))):

        def block(context: int, at: int = at) -> int:
            batch = (Sequences(workload.batch_size, 1, context),)
            sizes = tensor_sizes(cache, shard, layer, batch, [context], length=last)
            return pinned_block(sizes[at]) if sizes else 0

        context = first
        while context <= last:
            end = bisect_right(range(context, last + 1), block(context), key=block) + context
            found += block(context) * min(2, end - context)
            context = end
    return found


# --------------------------------------------------------------------------------------------------
# A streamed key-value cache: on any tier but the GPU, read layer by layer, and written once.
#
# No program has it. It is what FlexGen does with its cache (``programs.flexgen``), for every model and
# strategy and without the waits between FlexGen's slots:
#
# * In each pass, the keys and values that a layer has of earlier tokens are read from the tier, those of the
#   next layer during the computation of the present one. From host memory they cross the link; from storage,
#   and from the memory of another host, they first come into one of two pinned buffers. There is room for two
#   layers on the GPU: a layer takes the place of the one before the present one, as soon as the new keys and
#   values of that have left the GPU.
# * Attention reads keys and values as they are stored, and decodes them in the kernel, as vLLM's kernels do
#   with a cache in 8 bit. Nothing is joined or copied within HBM.
# * Behind a layer's attention, keys and values of new tokens only are copied to host memory, and then written
#   to the tier, in whole pages. Copies, reads and writes have a stream each. A pass ends with its last write,
#   so that the next pass reads what this one has written.
#
# A tier holds one tensor of keys and one of values for each layer and GPU, in which the new tokens of all
# sequences are next to each other, so that each pass writes one piece of each. Of a layer with a sliding
# window it keeps one token less than the window, as the next token sees itself.


PAGE = 4096
"""[B] of which files are read and written whole numbers, as Linux requires without the page cache (O_DIRECT:
the logical block size of the drive, 4 KiB on most)."""

Parts = Sequence[tuple[ModelShape, int]]
"""Parts of a model that GPUs have, each with the number of GPUs that have it."""


class StreamedUpdate(NamedTuple):
    """A StreamedUpdate is what one layer moves in a pass."""

    first: bool
    """Whether the layer is the first one of a pass."""
    own: tuple[int, ...] | None
    """Sizes [B] of the layer's tensors before the pass; None unless it is the first one of a pass that
    loads."""
    following: tuple[int, ...] | None
    """Sizes [B] of those of the next layer; None for the last one, and in a pass that loads nothing."""
    stored: tuple[int, ...]
    """Sizes [B] of keys and values of the new tokens."""

    @property
    def size(self) -> int:
        """Size [B] of all that is copied over the link."""
        return sum(self.own or ()) + sum(self.following or ()) + sum(self.stored)


CacheUpdate = LayerUpdate | StreamedUpdate
"""What one layer moves when its cache is updated."""


def on_tier(sizes: Sequence[int], *, paged: bool) -> int:
    """Return what tensors, or pieces of them, take on their tier [B]: whole pages, if it has such."""
    return sum(-(-size // PAGE) * PAGE if paged else size for size in sizes)


# -- bytes ---------------------------------------------------------------------------------------


def streamed_updates(
    cache: KvCache, shard: ModelShape, batch: Sequence[Sequences]
) -> tuple[StreamedUpdate, ...]:
    """Return what each layer of ``shard`` moves in a pass."""
    loads = any(one.new_tokens < one.context for one in batch)

    def sizes(*, past: bool) -> tuple[tuple[int, ...], ...]:
        return shard.by_layer(lambda layer: _stored(cache, shard, layer, batch, past=past))

    before, new = sizes(past=True), sizes(past=False)
    return tuple(
        StreamedUpdate(
            first=not number,
            own=before[0] if loads and not number else None,
            following=before[number + 1] if loads and number + 1 < len(before) else None,
            stored=stored,
        )
        for number, stored in enumerate(new)
    )


def _stored(
    cache: KvCache, shard: ModelShape, layer: Layer, batch: Sequence[Sequences], *, past: bool
) -> tuple[int, ...]:
    """Return the sizes [B] of a layer's tensors as they are stored: of the tokens before the new ones, if
    ``past``, or of the new ones."""
    tokens = [one.context - one.new_tokens if past else one.new_tokens for one in batch]
    sizes = tensor_sizes(cache, shard, layer, batch, tokens, length=0)
    element = cache.element_bytes(shard.dtype_bytes) / shard.dtype_bytes
    return tuple(ceil(size * element) for size in sizes)


def streamed_traffic(
    cache: KvCache, parts: Parts, batches: Sequence[Sequence[Sequences]], machine: Machine
) -> tuple[int, int]:
    """Return the bytes that all GPUs read from the tier and write to it when they process ``batches``, each
    of which writes pieces of its own."""
    paged = machine.tiers[cache.tier].row.has_files
    kinds = [(part, layer, gpus * count) for part, gpus in parts for layer, count in part.kinds]
    read, written = (
        sum(
            times * on_tier(_stored(cache, part, layer, batch, past=past), paged=paged)
            for part, layer, times in kinds
            for batch in batches
        )
        for past in (True, False)
    )
    return read, written


# -- memory --------------------------------------------------------------------------------------


def streamed_memory(
    cache: KvCache,
    shard: ModelShape,
    workload: Inference,
    machine: Machine,
    *,
    copies: int,
    parts: Parts,
    traffic: Traffic,
) -> tuple[Held, ...]:
    """Return the memory of the cache: of one GPU with ``shard`` of the model, of a host with ``copies`` such
    parts, and of a tier for the ``parts`` of all GPUs.

    A prompt's keys and values are whole, and in the model's type, until those that are kept are encoded.
    """
    layers = _kept(cache, shard, workload)
    most = max((sum(one) + sum(other) for one, other in pairwise(layers)), default=sum(layers[0]))
    found = [cache_term("hbm", most, name="key-value cache of two layers", kind="staging")]
    if (prompt := prompt_in_layer(shard, workload)) > max(map(sum, layers)):
        name = "keys and values of a prompt in a layer"
        found.append(cache_term("hbm", prompt, name=name, kind="working"))
    pinned = [size for one in layers for size in one]
    row = machine.row(cache.tier)
    if row.is_dram:
        found.append(cache_term(cache.tier, copies * sum(pinned), pinned=True))
    else:
        kept = ((one, gpus) for own, gpus in parts for one in _kept(cache, own, workload))
        stored = sum(gpus * on_tier(one, paged=row.has_files) for one, gpus in kept)
        found.append(cache_term(cache.tier, stored)._replace(traffic=traffic))
        pinned = [] if row.is_host else list(_buffers(cache, shard, workload))
        name, size = "buffers of the cache", copies * sum(pinned)
        found.append(cache_term("dram", size, name=name, pinned=True, kind="staging"))
    rounding = copies * pinned_rounding(pinned)
    return (*found, Held("dram", "rounding of pinned allocations", rounding, pinned=True))


def _kept(cache: KvCache, shard: ModelShape, workload: Inference) -> tuple[tuple[int, ...], ...]:
    """Return the sizes [B] of the tensors of each layer at the longest context."""
    batch = (Sequences(workload.batch_size, workload.max_context, workload.max_context),)
    return shard.by_layer(lambda layer: _stored(cache, shard, layer, batch, past=False))


def _buffers(cache: KvCache, shard: ModelShape, workload: Inference) -> Iterator[int]:
    """Yield the sizes [B] of the pinned buffers of a GPU, two in each direction: for a layer at the longest
    context, if there are decode steps, and for a layer of the prompt."""
    prompt = workload.model_copy(update={"output_length": 1})
    for work in (workload, prompt) if workload.decode_steps else (prompt,):
        yield from max(_kept(cache, shard, work), key=sum) * 2


# --------------------------------------------------------------------------------------------------
# Pinned memory of an offloaded cache: how long decode steps wait until more of it is allocated.
#
# Reference: PyTorch 2.11, ``CachingHostAllocator`` (aten/src/ATen/core/CachingHostAllocator.h). In every pass
# ``Tensor.to`` makes new pinned tensors for keys and values of each layer. The blocks of the tensors before
# are free when their copies to the GPU have ended, but the host thread is ahead of the GPU and needs some
# earlier. It then allocates new ones (``cudaHostAlloc``), one or two in a step, until there are at most two
# for each tensor. Without work that is queued the GPU waits for that.
#
# The replay of a step finds out when the host thread needs blocks and when blocks become free. It neglects
# that transfers share links, which hardly moves the ends of copies. Compared with measured steps in
# docs/measurements/kv-cache.md.


Tensors = Sequence[Sequence[int]]
"""Sizes [B] of the tensors that each offloaded layer copies to host memory."""

Blocks = tuple[tuple[int, ...], ...]
"""Sizes [B] of the pinned blocks of these tensors."""

_GENERATIONS = 2
"""Number of the generation of a process whose steps are predicted: runs are compared by their second one."""
_HOST = "host"


def allocation_waits(
    steps: int, tensors: Callable[[int], Tensors], schedule: Callable[[int], Schedule], *, rate: float
) -> dict[int, int]:
    """Return how long decode steps wait for new pinned blocks [ps], by their number from 1; others do not
    wait.

    ``tensors`` returns those of a step (0: the prefill), whose sizes never become smaller, and ``schedule`` a
    step that does not wait. New memory comes at ``rate`` [B/s].
    """

    @cache
    def blocks(step: int) -> Blocks:
        return tuple(tuple(map(pinned_block, sizes)) for sizes in tensors(step))

    waits: dict[int, int] = {}
    free: Counter[int] = Counter()
    replays: dict[int, _Replay] = {}
    for _ in range(_GENERATIONS):
        waits = {}
        needed = Counter(block for layer in blocks(0) for block in layer)
        free = (free | needed) - needed
        for first, behind in _runs(steps, blocks):
            for step in range(first, behind):
                like = min(step, first + 1)  # the first step of a run fetches smaller blocks
                if like not in replays:
                    replays[like] = _Replay(schedule(like), rate)
                waited, allocated = replays[like].run(blocks(step - 1), blocks(step), free)
                if waited:
                    waits[step] = waited
                elif step > first and not allocated:
                    break
        free.update(block for layer in blocks(steps) for block in layer)
    return waits


def _runs(steps: int, blocks: Callable[[int], Blocks]) -> Iterator[tuple[int, int]]:
    """Yield the first step, and the one behind the last, of runs of steps with equal blocks."""

    def total(step: int) -> int:
        return sum(map(sum, blocks(step)))

    first = 1
    while first <= steps:
        numbers = range(first, steps + 1)
        behind = first + bisect_right(numbers, total(first), key=total)
        yield first, behind
        first = behind


class _Replayed(NamedTuple):
    """A _Replayed is an operation of a step."""

    stream: int
    time: int
    """[ps] that it takes."""
    after: tuple[Dependency, ...]
    host: int | None
    """Stream of the host thread that needs pinned blocks for it: a copy of a cache to host memory."""
    frees: bool
    """Whether blocks are free behind it: a copy of a cache to the GPU."""


class _Replay:
    """A _Replay goes through the operations of a step in their order, with the blocks that are free."""

    def __init__(self, schedule: Schedule, rate: float) -> None:
        """Take a step that does not wait, and the rate [B/s] at which new memory comes."""
        self._streams, self._rate = len(schedule.streams), rate
        rates = [alone_rate(schedule, route=route, rank=0) for route in range(len(schedule.routes))]

        def replayed(op: Op) -> _Replayed:
            time = op.fixed + (transfer_time(op.size, rates[op.route]) if op.size else 0)
            cause = schedule.routes[op.route].cause if op.kind == "copy" and op.route >= 0 else None
            moves = cause is not None and cause.moves_cache
            out = moves and cause is not None and cause.kind == "gpu-to-host"
            host = (
                next(one.stream for one in op.after if schedule.streams[one.stream] == _HOST) if out else None
            )
            return _Replayed(op.stream, time, op.after, host, moves and not out)

        self._ops = [op for block in schedule.blocks for op in list(map(replayed, block.ops)) * block.repeat]

    def run(self, before: Blocks, after: Blocks, free: Counter[int]) -> tuple[int, int]:
        """Return how much longer the step takes because of allocations [ps], and their number.

        ``before`` and ``after`` are the blocks of the layers' tensors before and after the step, ``free``
        those that are free, which become those that are free behind it.
        """
        self._allocated = 0
        end = self._end((before, after, free))
        return end - self._enough if self._allocated else 0, self._allocated

    @cached_property
    def _enough(self) -> int:
        """End of the step [ps] if there are enough blocks."""
        return self._end(None)

    def _end(self, pool: tuple[Blocks, Blocks, Counter[int]] | None) -> int:
        """Return the end of the step [ps] with a ``pool`` of blocks; None: there are enough."""
        ends: list[list[int]] = [[] for _ in range(self._streams)]
        before, after, free = pool or ((), (), Counter[int]())
        stored = iter(after)
        fetched = iter(before[1:])  # the last update fetches the first layer, for the next step
        copied: deque[tuple[int, tuple[int, ...]]] = deque()
        free.update(before[0] if before else ())  # which the step before has fetched
        for stream, time, awaited, host, frees in self._ops:
            if host is not None and pool:
                ends[host][-1] = self._taken(next(stored), ends[host][-1], copied, free)
            own = ends[stream]
            start = own[-1] if own else 0
            for other, back, _ in awaited:
                others = ends[other]
                if back < len(others) and others[-1 - back] > start:
                    start = others[-1 - back]
            own.append(start + time)
            if frees and pool:
                copied.append((own[-1], next(fetched, ())))
        for _, blocks in copied:
            free.update(blocks)
        return max(own[-1] for own in ends if own)

    def _taken(
        self, needed: Sequence[int], now: int, copied: deque[tuple[int, tuple[int, ...]]], free: Counter[int]
    ) -> int:
        """Take blocks whose copies have ended, or allocate them; return when all are there [ps]."""
        for block in needed:
            while copied and copied[0][0] <= now:
                free.update(copied.popleft()[1])
            if free[block]:
                free[block] -= 1
            else:
                now += picoseconds(block / self._rate)
                self._allocated += 1
        return now


# --------------------------------------------------------------------------------------------------
# Hooks of a key-value cache that each layer updates in a pass: offloaded to host memory, or streamed.
#
# *Offloaded*: transformers 5.23.0, ``Cache.update`` of ``cache_utils.py``. When layer l adds keys and values,
#
# 1. the compute stream waits for the prefetch stream, so that the cache of layer l is there; 2. the prefetch
# stream waits for the compute stream, and then copies the cache of the next offloaded layer to    the GPU;
# the last layer does so for the first one of the next pass; 3. the compute stream joins the cached and the
# new tokens (dynamic: ``torch.cat``; static: in place); 4. the compute stream copies the whole result to host
# memory, before the kernels of attention.
#
# Both copies are of pinned memory, and nothing blocks the host thread.
#
# *Streamed*: what no program has (``cache.cache_updates``). Copies, reads and writes have a stream each.


Updates = Callable[[StagePass], Sequence[CacheUpdate | None]]
"""Function from what is written of a stage to what each of its layers moves."""


class MovedCache(Hook):
    """Keys and values of a layer move between the GPU and another tier when it computes attention."""

    def __init__(
        self, cache: KvCache, updates: Updates, machine: Machine, *, gpus: Sequence[int], main: int
    ) -> None:
        """``gpus``: the GPU of each layer, of a process that drives several; ``main``: that on which the
        cache's own streams are."""
        self.streams, self._tier = cache.streams(machine), cache.tier
        self._updates_of, self._gpus, self._main = updates, gpus, main

    def begin(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Find what each layer moves; if some are left out, the last one is still that of the model."""
        updates, last = self._updates_of(stage), max(part.layer for part in stage.parts)
        self._updates = (*updates[:last], updates[-1]) if last >= 0 else ()

    def state(self, part: Part) -> Hashable:
        """Return what a layer moves, and to which GPU."""
        return (self._updates[part.layer], self._following(part.layer)) if part.layer >= 0 else None

    def _following(self, layer: int) -> int:
        """Return the GPU of the next layer."""
        return self._gpus[(layer + 1) % len(self._gpus)] if self._gpus else self._main

    def enter(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        """Note what the layer moves."""
        self._now = self._updates[part.layer] if part.layer >= 0 else None
        self._to = self._following(part.layer)

    def kernels(self, call: Call, duration: int, after: tuple[Dependency, ...], out: PassWriter) -> bool:
        """Write attention with the update of the layer's cache."""
        if self._now is None or not call.module.attends:
            return False
        if isinstance(self._now, LayerUpdate):
            self._offloaded(self._now, call, duration, after, out)
        else:
            self._streamed(self._now, call, duration, after, out)
        return True

    # -- offloaded ------------------------------------------------------------------------------

    def _offloaded(
        self, update: LayerUpdate, call: Call, duration: int, after: tuple[Dependency, ...], out: PassWriter
    ) -> None:
        """Write the copies of the next layer's cache and of this one's, and what joins it with new tokens.

        The prefetch stream is one of the main GPU (``torch.Stream()``), so that copies to another one are on
        its compute stream. ``duration`` includes the time of joining.
        """
        compute, prefetch, to = COMPUTE + call.gpu, self.first, self._to
        host, joining = out.so_far(HOST), out.now.timing.joining(call.module, update.joined, duration)
        ahead = bool(update.fetched) and to == self._main
        if update.fetched:
            behind = out.so_far(HOST, compute) if ahead else host
            stream = prefetch if to == self._main else COMPUTE + to
            self._copy(stream, update.fetched, behind, to, out, to_device=True)
        # The copy that the layer before has begun; in the first layer the pass before has.
        own = Dependency(out.first + prefetch, 1 if ahead else 0)
        out.add("compute", compute, fixed=joining, label="torch.cat", after=(*after, own))
        if update.stored:  # a layer with a window of one token keeps none
            self._copy(compute, update.stored, host, call.gpu, out, to_device=False)
        out.add("compute", compute, fixed=duration - joining, after=host)

    # -- streamed -------------------------------------------------------------------------------

    def _streamed(
        self,
        update: StreamedUpdate,
        call: Call,
        duration: int,
        after: tuple[Dependency, ...],
        out: PassWriter,
    ) -> None:
        """Write the loads ahead, attention of ``duration`` [ps], and the stores behind it."""
        load, store = (Dependency(out.first + self.stream(one)) for one in ("load", "store"))
        ahead = update.following is not None
        if update.own is not None:
            self._load(update.own, call.gpu, out, ahead=False)
        if update.following is not None:
            self._load(update.following, self._to, out, ahead=True)
        # The layer is there; and the new tokens of the layer before the last one have left their place.
        waits = (load._replace(back=int(ahead)), store._replace(back=1))
        out.add("compute", COMPUTE + call.gpu, fixed=duration, after=(*after, *waits))
        computed = Dependency(out.first + COMPUTE + call.gpu)
        if "write" not in self.streams:
            self._copy(self.stream("store"), update.stored, (computed,), call.gpu, out, to_device=False)
            return
        write = Dependency(out.first + self.stream("write"), 1)
        self._copy(self.stream("store"), update.stored, (computed, write), call.gpu, out, to_device=False)
        self._file("write", update.stored, store, out, latency=update.first)

    def _load(self, sizes: Sequence[int], gpu: int, out: PassWriter, *, ahead: bool) -> None:
        """Load a layer: the next one, if ``ahead``, into the place of the layer before this one."""
        after = [Dependency(out.first + self.stream("store"))] if ahead else []
        if "read" in self.streams:
            # A buffer is free again when the layer before the last one has left it.
            left = Dependency(out.first + self.stream("load"), 1)
            self._file("read", sizes, left, out, latency=not ahead)
            after.append(Dependency(out.first + self.stream("read")))
        self._copy(self.stream("load"), sizes, tuple(after), gpu, out, to_device=True)

    def _file(
        self, kind: OpKind, sizes: Sequence[int], after: Dependency, out: PassWriter, *, latency: bool
    ) -> None:
        """Read or write files. The latency shows once: requests of two layers are in flight at a time."""
        stored, written = out.machine.tiers[self._tier].row.has_files, kind == "write"
        size, fixed, route = on_tier(sizes, paged=stored), 0, -1
        if size:
            block = min(size, REQUEST)
            in_flight = DEPTH * block if written else min(2 * size, DEPTH * block)
            route, fixed = out.file(
                self._tier, size, block=block, in_flight=in_flight, written=written, cache=self._tier
            )
        fixed = fixed if latency else 0
        stream = self.stream("write" if written else "read")
        out.add(kind, stream, fixed=fixed, size=size, route=route, label=CACHE_LABEL, after=(after,))

    # -- both -----------------------------------------------------------------------------------

    def _copy(
        self,
        stream: int,
        sizes: Sequence[int],
        after: tuple[Dependency, ...],
        gpu: int,
        out: PassWriter,
        *,
        to_device: bool,
    ) -> None:
        size, (route, fixed) = sum(sizes), (-1, 0)
        if sizes:
            own = gpu if self._gpus else None
            route, fixed = out.copies(sizes, to_device=to_device, pinned=True, cache=self._tier, gpu=own)
        out.add("copy", stream, fixed=fixed, size=size, route=route, label=CACHE_LABEL, after=after)


# -- attention on the CPU --------------------------------------------------------------------------
# Attention on the CPU over a cache in host memory, as in DeepSpeed's example of ZeRO-Inference since 2023.
#
# Reference: tjruwase/transformers@35515d7d (branch kvcache-offload-cpu, of transformers 4.32),
# modeling_opt.py, modeling_llama.py and modeling_bloom.py where they test ``kv_offload``;
# DeepSpeedExamples, inference/huggingface/zero_inference/model-support.md. The buffer has room for the
# longest context from the start. What copies do: ``copy_kernel_cuda`` of PyTorch
# (aten/src/ATen/native/cuda/Copy.cu).
#
# *Prompt.* Each layer copies keys and values to the buffer, on a stream of its own, before its kernels of
# attention are launched. As the buffer is longer than the prompt, its part for the prompt is not
# contiguous: PyTorch copies to a new pageable tensor, for which the host thread waits in any case, and the
# CPU copies that to the buffer. Neither pinned memory nor ``non_blocking`` lets the copy run beside the
# computation; with ``non_blocking`` the GPU casts to the buffer's type first, so that more bytes cross
# PCIe.
#
# *Later tokens.* Each layer copies keys and values of the new tokens, the query in single precision and the
# mask to host memory, and the host thread waits. PyTorch's CPU kernels then compute scores, softmax and
# result in single precision. The result goes back to the GPU; keys and values never do. A product of one
# query with all keys reads each key once for two operations, so that host memory limits its rate if the
# cores are many.


ONE_QUERY = 0.31
"""Rate at which a thread reads keys, or values, in a product with one query of each head, as a share of that
of loops: ``torch.bmm`` in single precision, whichever dimension of the cache is the outer one
(docs/measurements/kv-cache.md, Products on the CPU)."""


class MemoryWork(NamedTuple):
    """MemoryWork is what the CPU moves in host memory."""

    traffic: int = 0
    """Size [B] of what it reads and writes."""
    new: int = 0
    """Size [B] of the memory that the kernel maps and clears for it; included in ``traffic`` as written."""
    returned_pages: int = 0
    """Size [B] of the memory that it returns to the kernel."""
    products: int = 0
    """Part of ``traffic`` [B] that is keys and values read by batched products."""


class CpuAttention(NamedTuple):
    """A CpuAttention is what the cache of one layer moves in a pass."""

    prompt: tuple[int, ...] = ()
    """Sizes [B] of keys and values of prompts that are copied to host memory; () if there are no prompts."""
    stored: MemoryWork = MemoryWork()
    """What the CPU does to copy them to the buffer."""
    sent: tuple[int, ...] = ()
    """Sizes [B] of keys, values, queries and masks of later tokens that are copied to host memory."""
    attended: MemoryWork = MemoryWork()
    """What the CPU does for the attention of these tokens."""
    returned: int = 0
    """Size [B] of its result, which is copied to the GPU."""
    tier: str = ""
    """Name of the tier that holds the cache."""


def cpu_attention(cache: KvCache, model: ModelShape, batch: Sequence[Sequences]) -> CpuAttention:
    """Return what each layer moves in a pass.

    Sequences without earlier tokens are prompts.
    """
    prompts = [one for one in batch if one.new_tokens == one.context]
    later = [one for one in batch if one.new_tokens < one.context]
    found = CpuAttention(tier=cache.tier)
    if prompts:
        found = _stored_apart(cache, model, sum(one.number * one.new_tokens for one in prompts))
    if later:
        sent, work, returned = _attended(model, later)
        found = found._replace(sent=sent, attended=work, returned=returned)
    return found


def _code(model: ModelShape) -> CpuAttentionCode:
    code = model.traits.cpu_attention
    assert code is not None, f"{model.family}: checked with the section kv_cache"
    return code


def element_bytes(model: ModelShape) -> int:
    """Return the size of an element of the buffer [B]: that of single precision where ``torch.empty`` got no
    data type."""
    return SINGLE if _code(model).single else model.dtype_bytes


def _width(model: ModelShape) -> int:
    """Return the elements of the keys of one token in one layer, which are those of its values, too."""
    return model.num_key_value_heads * model.head_dim


def new_memory(*sizes: int) -> int:
    """Return the size [B] of those tensors that are too large for glibc to use their memory again."""
    return sum(size for size in sizes if size > KEPT_BY_MALLOC)


def _stored_apart(cache: KvCache, model: ModelShape, tokens: int) -> CpuAttention:
    """Return the copies of keys and values of ``tokens`` tokens to the buffer, whose pages are new unless
    they are pinned."""
    size, element = model.dtype_bytes, element_bytes(model)
    copied = element if cache.asynchronous else size
    numel = tokens * _width(model)
    work = MemoryWork(
        2 * numel * (copied + element),
        0 if cache.pin_memory else 2 * numel * element,
        new_memory(numel * copied, numel * copied),
    )
    return CpuAttention((numel * copied,) * 2, work, tier=cache.tier)


def _attended(model: ModelShape, batch: Sequence[Sequences]) -> tuple[tuple[int, ...], MemoryWork, int]:
    """Return the sizes of copies to host memory, the work of the CPU and the size of the result [B].

    Keys and values are read as they are kept; a buffer in 16 bit is first cast to new tensors, and heads of
    grouped queries are first repeated in new tensors (``repeat_kv``).
    """
    code, size, element = _code(model), model.dtype_bytes, element_bytes(model)
    hidden = model.num_attention_heads * model.head_dim
    tokens = sum(one.number * one.new_tokens for one in batch)
    cached = sum(one.number * one.context for one in batch) * _width(model)
    repeated = sum(one.number * one.context for one in batch) * hidden
    pairs = sum(one.number * one.new_tokens * one.context for one in batch)
    scores = pairs * model.num_attention_heads * SINGLE
    own = tokens * _width(model)
    mask = pairs * model.num_attention_heads * SINGLE + pairs if code.biases else pairs * size

    read, fresh = cached, 0
    if repeated > cached:
        read = fresh = repeated
    elif element < SINGLE:
        fresh = cached
    traffic = 2 * (cached * element + fresh * SINGLE) if fresh else 0  # read to repeat or cast them
    traffic += 2 * read * SINGLE + 2 * own * (size + element) + code.passes * scores
    new = new_memory(fresh * SINGLE, fresh * SINGLE)
    work = MemoryWork(traffic, new, new, 2 * read * SINGLE)
    sent = (own * size, own * size, tokens * hidden * SINGLE, mask)
    return sent, work, tokens * hidden * (size if code.returns_half else SINGLE)


def cpu_rate(machine: Machine, work: MemoryWork, *, ranks: int) -> int:
    """Return the rate [B/s] of the traffic of ``work`` by one of ``ranks`` processes.

    Products have the rate of their threads, up to that of the memory; everything else has the rate of
    PyTorch's loops over existing tensors. New memory takes longer, as in FSDP's AdamW and Accelerate's copies
    of mapped files (docs/measurements/fsdp.md).
    """
    cpu, processes = machine.host.cpu_optimizer, machine.ranks_per_node(ranks)
    threads = machine.cores_per_rank(ranks)
    share = cpu.limit.value / max(cpu.numa_nodes.value, processes)
    costs, seconds = machine.host.fsdp_costs, 0.0
    if read := work.products:
        seconds += read / costs.adamw_rate(ONE_QUERY * threads, traffic=read, new=0, share=share)
    if others := work.traffic - work.products:
        seconds += others / costs.adamw_rate(threads, traffic=others, new=work.new, share=share)
    return int(work.traffic / seconds)


def cpu_attention_memory(
    cache: KvCache, model: ModelShape, workload: Inference, *, copies: int
) -> tuple[Held, ...]:
    """Return the memory of the cache of one GPU: its layer in HBM, and with ``copies`` GPUs on a host that of
    its host memory.

    OPT and Llama have one buffer for keys and values of all layers, BLOOM one for each of both.
    """
    code, width, batch = _code(model), _width(model), workload.batch_size
    remedy = "lower batch_size, prompt_length or output_length"
    numel = model.num_hidden_layers * batch * workload.max_context * width
    buffers = (2 * numel * SINGLE,) if code.single else (numel * element_bytes(model),) * 2
    prompt = cpu_attention(cache, model, (Sequences(batch, workload.prompt_length, workload.prompt_length),))
    last = cpu_attention(cache, model, (Sequences(batch, 1, workload.max_context),))
    layer = 2 * batch * workload.prompt_length * width
    on_gpu = layer * (model.dtype_bytes + (element_bytes(model) if cache.asynchronous else 0) // 2)
    terms = [
        Held("hbm", "keys and values of a layer", on_gpu, remedy=remedy, kind="staging"),
        cache_term("dram", copies * sum(buffers), pinned=cache.pin_memory),
    ]
    if cache.pin_memory:
        rounding = copies * pinned_rounding(buffers)
        terms.append(Held("dram", "rounding of the pinned cache", rounding, pinned=True))
    temporary = max(prompt.prompt[0], last.attended.new)
    return (*terms, Held("dram", "copies of a layer's cache", copies * temporary, remedy=remedy))


COMMAND = "zero-inference.sh"
"""File with the command of DeepSpeed's example."""
_EXAMPLE = """\
# in inference/huggingface/zero_inference of DeepSpeedExamples, which writes its own ds_config, with
# pip install git+https://github.com/tjruwase/transformers@kvcache-offload-cpu
# --model takes the name on Hugging Face
"""


def example_command(
    cache: KvCache, model: ModelShape, workload: Inference, options: Sequence[str], *, ranks: int
) -> str:
    """Return the command that runs the model with the cache, and with ``options`` for its weights."""
    flags = {"--pin_kv_cache": cache.pin_memory, "--async_kv_offload": cache.asynchronous}
    command = (
        f"deepspeed --num_gpus {ranks} run_model.py --model {quote(model.unquantized_name)}",
        f"--batch-size {ranks * workload.batch_size} --prompt-len {workload.prompt_length}",
        f"--gen-len {workload.output_length}",
        *options,
        "--kv-offload",
        *(flag for flag, given in flags.items() if given),
    )
    return _EXAMPLE + " ".join(command) + "\n"


# --------------------------------------------------------------------------------------------------
# Attention on the CPU as a hook: the cache stays in host memory, where the host thread attends to it.


class AttentionOnCpu(Hook):
    """Each layer copies keys and values to host memory, and the CPU attends to those of earlier tokens."""

    def __init__(self, cache: KvCache, stages: Sequence[ModelShape]) -> None:
        """``stages``: the part of the model on a GPU of each stage."""
        self.streams, self._cache, self._stages = ("cache",), cache, stages

    state = Hook.of_modules

    def begin(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Find what each layer does."""
        self._work = cpu_attention(self._cache, self._stages[stage.stage], stage.batch)

    def kernels(self, call: Call, duration: int, after: tuple[Dependency, ...], out: PassWriter) -> bool:
        """Write the copies, the work of the CPU, and the GPU's kernels of attention.

        Keys and values of a prompt leave before the kernels are launched; for later tokens the kernels are
        those before the CPU's part.
        """
        if not call.module.attends:
            return False
        work, compute = self._work, COMPUTE + call.gpu
        if work.prompt:
            out.flush()
            pages = out.machine.host.fresh_memory.from_gpu.value
            new = picoseconds(new_memory(*work.prompt) / pages)
            behind = out.so_far(HOST, compute)
            self._copy(out, self.first, work.prompt, to_device=False, longer=new, behind=behind)
            self._on_cpu(out, "cache-stores", work.stored)
            out.flush()
            after = (*out.so_far(HOST), *(one for one in after if one.stream != out.first + HOST))
        out.add("compute", compute, fixed=duration, after=after)
        if work.sent:
            self._copy(out, compute, work.sent, to_device=False)
            self._on_cpu(out, "cpu-attention", work.attended)
            out.flush()
            self._copy(out, compute, (work.returned,), to_device=True, behind=out.so_far(HOST))
        return True

    def _copy(
        self,
        out: PassWriter,
        stream: int,
        sizes: Sequence[int],
        *,
        to_device: bool,
        longer: int = 0,
        behind: tuple[Dependency, ...] = (),
    ) -> None:
        """Write copies of pageable memory, for which the host waits."""
        route, latency = out.copies(sizes, to_device=to_device, pinned=False, cache=self._work.tier)
        fixed, size = latency + longer, sum(sizes)
        out.add("copy", stream, fixed=fixed, size=size, route=route, label=CACHE_LABEL, after=behind)
        out.host_waits(stream)
        out.spend(out.costs.copy_call.value * len(sizes))

    def _on_cpu(self, out: PassWriter, kind: CauseKind, work: MemoryWork) -> None:
        out.flush()
        cause = Cause(kind).of_cache(self._work.tier)
        route = out.cpu_work(cause, cpu_rate(out.machine, work, ranks=out.ranks))
        out.add("cpu", HOST, size=work.traffic, route=route, label=cause_text(Cause(kind)))
        out.spend(work.returned_pages / out.machine.host.fresh_memory.released.value)
