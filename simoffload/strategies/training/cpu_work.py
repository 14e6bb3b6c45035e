"""What a rank's threads do in host memory: Adam, and PyTorch's loops over elements.

A mode that leaves cores to the process of its optimizer binds only the thread that calls (Linux:
``sched_setaffinity`` of one thread; psutil's ``cpu_affinity``). The training process's OpenMP threads, which
exist by then, keep all cores.
"""

from __future__ import annotations

from simoffload.strategies.checkpoint.host_costs import FREED_S, FRESH_CAST_S
from simoffload.strategies.stream_writer import HOST
from simoffload.strategies.training.facts import StepFacts
from simoffload.strategies.training.writer import MicroStepWriter

__all__ = ["CPU_ADAM", "CPU_LOOPS", "CpuWork"]

CPU_ADAM = "CPU Adam"
CPU_LOOPS = "CPU casts and scaling"
_SCALE = 8
"""[B] a gradient: read and written."""


class CpuWork:
    """Writes work onto a stream: of the training process onto the host's, which then waits, or of so many
    ``threads`` of another process onto its own."""

    def __init__(
        self, out: MicroStepWriter, facts: StepFacts, *, threads: int | None = None, stream: int = HOST
    ) -> None:
        self._out = out
        self._machine = facts.timing.machine
        self._threads = threads or facts.places.threads
        self._processes = facts.processes
        self._stream = stream

    def adam(self, traffic: int) -> None:
        """DeepSpeed's Adam, ``traffic`` [B]."""
        rate = self._machine.host.cpu_optimizer.rate(self._threads, processes=self._processes)
        self._work(CPU_ADAM, traffic, rate)

    def scale(self, numel: int) -> None:
        """Gradients in single precision multiplied in place (``unscale_and_clip_grads``): a byte takes as
        long as one of Adam's ("scale" beside "cpu_adam" in calibrate micro: 27 GB/s of one thread each)."""
        rate = self._machine.host.cpu_optimizer.rate(self._threads, processes=self._processes)
        self._work(CPU_LOOPS, _SCALE * numel, rate)

    def fresh(self, size: int) -> None:
        """Memory that was never written is written by all threads, and given back by one: the kernel maps and
        clears its pages first and takes them back afterwards."""
        self._out.spend((FRESH_CAST_S / self._threads + FREED_S) * size)

    def loops(self, traffic: int) -> None:
        """Element-by-element work of PyTorch, ``traffic`` [B]."""
        rate = self._machine.host.elementwise_rate(self._threads, processes=self._processes)
        self._work(CPU_LOOPS, traffic, rate)

    def _work(self, name: str, traffic: int, rate: int) -> None:
        out = self._out
        out.flush()
        route = out.cpu_work(name, rate)
        after = out.host_so_far() if self._stream != HOST else ()
        out.add("cpu", self._stream, size=traffic, route=route, label=name, after=after)
