"""Attention on the CPU as a hook: the cache stays in host memory, where the host thread attends to it."""

from __future__ import annotations

from collections.abc import Sequence

from simoffload.models import ModelShape
from simoffload.results import cause_text
from simoffload.schedule import Cause, CauseKind, Dependency
from simoffload.strategies.cache.cache_updates import CACHE_LABEL
from simoffload.strategies.cache.cpu_attention import MemoryWork, cpu_attention, cpu_rate, new_memory
from simoffload.strategies.cache.kv_cache import KvCache
from simoffload.strategies.passes.pass_writer import COMPUTE, Call, Hook, PassWriter, StagePass
from simoffload.strategies.passes.streams import HOST
from simoffload.strategies.passes.timing import picoseconds


class AttentionOnCpu(Hook):
    """Each layer copies keys and values to host memory, and the CPU attends to those of earlier tokens."""

    def __init__(self, cache: KvCache, stages: Sequence[ModelShape]) -> None:
        """``stages``: the part of the model on a GPU of each stage."""
        self.streams, self._cache, self._stages = cache.streams, cache, stages

    state = Hook.of_modules

    def begin(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Find what each layer does."""
        self._work = cpu_attention(self._cache, self._stages[stage.stage], stage.batch)

    def kernels(self, call: Call, duration: int, after: tuple[Dependency, ...], out: PassWriter) -> bool:
        """Write the copies, the work of the CPU, and the GPU's kernels of attention.

        Keys and values of a prompt leave before the kernels are launched; for later tokens the kernels are
        those before the CPU's part.
        """
        if call.module.kind != "attention":
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
