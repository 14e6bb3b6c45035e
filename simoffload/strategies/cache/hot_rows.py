"""Rows of sparse attention in host memory, with a buffer of some rows of each sequence in HBM (HiSparse).

Source: ``--enable-hisparse`` of SGLang 0.5.13 (docs/advanced_features/hisparse_guide), and
``hisparse_config`` of vLLM (vllm/v1/kv_offload/sparse/hisparse_runtime.py at 072eec2a), which keeps rows on
the GPU as long as there is room; here all are in host memory, as in SGLang, the rows of a layer once for all
GPUs that share it.

An indexer chooses rows for each new token. Those that the buffer does not have are gathered from pinned host
memory by a kernel, before attention begins, into the places of those that were not used for longest. It reads
rows of 576 to 1,152 B, in packets of at most 128 B as kernels read weights in place (``HostReads``), and if
the rows of all layers lie far apart, no more of them than addresses of their pages are found (``HostRows``;
269 gathers on an H200, docs/measurements/hybrid-models.md). Rows of new tokens are written to host memory
beside the computation, at the same rate. The rows of a prompt stay in HBM until its prefill ends.

Not counted: the time in which the kernel looks rows up in the buffer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import inf
from shlex import quote
from typing import Annotated

from pydantic import Field

from simoffload.documents import Frozen
from simoffload.errors import InputError
from simoffload.models import ModelShape, Module, Sequences, StatePart
from simoffload.strategies.base import Held
from simoffload.strategies.passes.pass_writer import HOST, Call, Hook, PassWriter
from simoffload.strategies.passes.timing import copy_cause, picoseconds

_KEY = "strategy.kv_cache.hot_buffer"
_ROWS = "latent rows"
"""Name of the memory of all rows."""
_MOST_ROWS = 32_768
"""Most rows of a buffer in vLLM, whose places are numbers of 16 bits."""


class HotBuffer(Frozen):
    """A HotBuffer has some of the rows of each sequence in HBM, where all are in host memory."""

    hit_rate: Annotated[float, Field(ge=0, le=1)]
    """Part of the rows that an indexer chooses for a token which the buffer has; depends on the text, and is
    measured (``vllm:hisparse`` metrics)."""
    rows: Annotated[int, Field(strict=True, ge=1, le=_MOST_ROWS)] | None = None
    """Rows of each sequence in HBM, in each layer (``device_buffer_size``); None: twice as many as an indexer
    chooses, as in vLLM and SGLang."""

    def applied(self, model: ModelShape) -> ModelShape:
        """Return the model with its chosen rows in host memory. Raises InputError for one that has none, and
        for a buffer with fewer rows than are chosen."""
        found, name = model.with_hot_rows(self.rows), model.unquantized_name
        parts = [part for one in found.distinct_modules for part in hot_parts(found, one)]
        if not parts:
            text = (
                f"{name} has no latent rows of which an indexer chooses; remove it, or use a model that has"
            )
            raise InputError.at(_KEY, f"{text} some, such as deepseek-v3.2 or glm-5.2")
        chosen = max(part.chosen or 0 for part in parts)
        if self.rows is not None and self.rows < chosen:
            text = f"{self.rows:,} are fewer than the {chosen:,} rows that an indexer of {name} chooses"
            raise InputError.at(f"{_KEY}.rows", f"{text} for a token; raise it, or leave it out")
        return found

    def gathered(self, part: StatePart, batch: Iterable[Sequences]) -> float:
        """Return the number of rows that are gathered for the new tokens of a step."""
        found = 0.0
        for one in batch:
            if one.decodes and one.context // part.every > part.hot:
                found += one.number * one.new_tokens * (part.chosen or 0) * (1 - self.hit_rate)
        return found


def hot_parts(model: ModelShape, module: Module) -> tuple[StatePart, ...]:
    """Return what a module keeps in rows of which all are in host memory."""
    return tuple([part for part in model.parts_of(module) if part.hot])


class GatheredRows(Hook):
    """Rows that are missing in the buffer are gathered before attention, and new ones are written back."""

    streams = ("rows", "rows back")
    joined = ("rows back",)
    state = Hook.of_modules

    def __init__(self, buffer: HotBuffer, stages: Sequence[ModelShape], element: float) -> None:
        self._buffer, self._stages, self._element = buffer, stages, element

    def before(self, call: Call, out: PassWriter) -> None:
        """Let attention wait for the rows that are missing."""
        size, rate = self._rows(call, out, lambda part: self._buffer.gathered(part, out.now.batch))
        if size:
            route, fixed = self._way(rate, out, to_device=True)
            stream, after = self.stream("rows"), (*out.so_far(HOST), *out.on_gpu())
            copy = out.add("copy", stream, fixed=fixed, size=size, route=route, label="rows", after=after)
            out.await_(stream, copy)

    def after(self, call: Call, out: PassWriter) -> None:
        """Write the rows of new tokens to host memory."""
        tokens = sum(one.number * one.new_tokens for one in out.now.batch)
        size, rate = self._rows(call, out, lambda part: tokens / part.every)
        if size:
            route, fixed = self._way(rate, out, to_device=False)
            stream, after = self.stream("rows back"), out.on_gpu()
            out.add("copy", stream, fixed=fixed, size=size, route=route, label="rows", after=after)

    def _rows(self, call: Call, out: PassWriter, rows: Callable[[StatePart], float]) -> tuple[int, float]:
        """Return the size [B] of so many ``rows`` of each part, and the most of it per second [B/s] for the
        pages on which they are."""
        stage, limit = self._stages[out.stage_number], out.machine.accelerator.rows
        tokens = sum(one.number * one.context for one in out.now.batch)
        span, size, rate = tokens * _token_bytes(stage, self._element), 0.0, inf
        for part in hot_parts(stage, call.module):
            row = stage.row_bytes(part, self._element)
            size, rate = size + rows(part) * row, min(rate, limit.rate(row, span))
        return round(size), rate

    def _way(self, rate: float, out: PassWriter, *, to_device: bool) -> tuple[int, int]:
        """Return the route of a kernel that moves rows, at most at a ``rate`` [B/s], and its latency [ps]."""
        cause, gpu = copy_cause(to_device=to_device, pinned=True).of_cache("dram"), out.machine.accelerator
        way = out.machine.host_to_device if to_device else out.machine.device_to_host
        path, hops = out.way((cause, "rows"), partial(way, pinned=True))
        rate = min(path.curve.points[-1][1] * gpu.reads.rate_share.value, rate)
        route = out.builder.route(cause=cause, hops=hops, cap=int(rate))
        return route, picoseconds(gpu.kernels.kernel_latency.value)


def _total(stage: ModelShape, size: Callable[[StatePart], float]) -> float:
    return sum(
        count * size(part) for layer, count in stage.kinds for one in layer for part in hot_parts(stage, one)
    )


def _token_bytes(stage: ModelShape, element: float) -> float:
    """Return the size [B] of the rows of a token in the layers of a stage."""
    return _total(stage, lambda part: stage.row_bytes(part, element) / part.every)


def hot_bytes(stage: ModelShape, element: float) -> int:
    """Return the size [B] of the buffers of a sequence in the layers of a stage."""
    return round(_total(stage, lambda part: part.hot * stage.row_bytes(part, element)))


def rows_memory(
    model: ModelShape, fullest: ModelShape, *, prompts: int, prompt: int, tokens: int, element: float
) -> Iterator[Held]:
    """Yield the rows of ``prompts`` that are computed at once, of the stage with most, and on a host those of
    ``tokens`` in all sequences together."""

    size, remedy = round(prompts * prompt * _token_bytes(fullest, element)), "lower batch_size"
    yield Held("hbm", "rows of prompts until they are in host memory", size, kind="staging")
    yield Held("dram", _ROWS, round(tokens * _token_bytes(model, element)), True, remedy, kind="cache")


def options(buffer: HotBuffer, held: Iterable[Held]) -> tuple[str, ...]:
    """Return the options of ``vllm serve`` for a buffer, with a pool of the size of all rows of a host."""
    size = sum(one.size for one in held if one.name == _ROWS)
    pool = {"host_pool_gib": max(1, -(-size // (1 << 30)))}
    transfer = {"kv_connector": "HiSparseConnector", "kv_role": "kv_both", "kv_connector_extra_config": pool}
    rows = {} if buffer.rows is None else {"device_buffer_size": buffer.rows}
    configs = {"attention": {"hisparse_config": rows}, "kv-transfer": transfer}
    return tuple([f"--{name}-config {quote(json.dumps(config))}" for name, config in configs.items()])
