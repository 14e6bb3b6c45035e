"""Writing the optimizer's step down: one sub-group after the other, on the CPU, on the GPU or from storage.

Sources: ``step`` and what it calls in deepspeed/runtime/zero/stage3.py and stage_1_and_2.py (0.19.6), and
partitioned_optimizer_swapper.py, pipelined_optimizer_swapper.py. Everything on the host is one after the
other; only a pipelined swapper reads one sub-group ahead and writes one behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simoffload.schedule import Dependency
from simoffload.strategies.coordinator import Tensor
from simoffload.strategies.ds_config.training import TrainingSettings
from simoffload.strategies.forward import COMM, COMPUTE, IO
from simoffload.strategies.stream_writer import HOST
from simoffload.strategies.timing import effective_rate, picoseconds
from simoffload.strategies.training.swap import GradientSwapper, SubGroup
from simoffload.strategies.training.timing import TrainingTiming
from simoffload.strategies.training.writer import WRITE, MicroStepWriter

__all__ = ["CPU_ADAM", "OptimizerStep", "Update"]

CPU_ADAM = "CPU Adam"
_CPU_LOOPS = "CPU casts and scaling"
_ADAM = 28
"""[B] a parameter: weight, gradient, two moments read, three of them written."""
_SCALE = 8
"""[B] a gradient that is multiplied in place (``unscale_and_clip_grads``)."""
_SINGLE = 4


class Update(NamedTuple):
    """Where a sub-group's state lies, and where its updated parameters go."""

    group: SubGroup
    on_gpu: bool
    """The optimizer runs on the GPU."""
    swapped: bool
    """States and gradients are on storage."""
    params: str
    """hbm, dram or nvme: the place of its 16-bit parameters."""


class OptimizerStep:
    """Writes one step onto the streams of a micro-step's writer."""

    def __init__(
        self,
        out: MicroStepWriter,
        *,
        settings: TrainingSettings,
        timing: TrainingTiming,
        threads: int,
        optimizer_tier: str,
        weights_tier: str,
        dtype_bytes: int,
    ) -> None:
        self._out = out
        self._settings = settings
        self._timing = timing
        self._threads = threads
        self._processes = min(out.ranks, timing.machine.gpus_per_node)
        self._tier = optimizer_tier
        self._weights_tier = weights_tier
        self._size = dtype_bytes
        self._costs = timing.machine.host.training
        self._ahead: int | None = None
        self._writing = False

    def write(
        self, updates: Sequence[Update], *, persistent: Sequence[Tensor], swapper: GradientSwapper | None
    ) -> None:
        """The whole step: norm, sub-groups, and what brings parameters back to the GPU."""
        out, costs = self._out, self._costs
        out.part("optimizer")
        tensors = sum(len(update.group.tensors) for update in updates)
        out.spend(costs.step_call.value + costs.updated_parameter.value * tensors)
        if swapper is not None and any(update.swapped for update in updates):
            swapper.flush(out)
        for index, update in enumerate(updates):
            out.part("sub-group")
            out.spend(costs.sub_group_call.value)
            following = updates[index + 1] if index + 1 < len(updates) else None
            if update.on_gpu:
                self._on_gpu(update)
            else:
                self._on_cpu(update, following)
        out.part("after the step")
        if self._settings.stage == 3 and persistent:
            out.wait(out.gather(persistent, prefetch=False))
        elif self._settings.stage in (1, 2):
            self._gather_all(updates)
        out.host_waits(WRITE)
        out.host_waits(COMPUTE)

    # -- where the update is done ---------------------------------------------------------------

    def _on_gpu(self, update: Update) -> None:
        """Gradients to single precision, scaled, Adam, and cast back, all in HBM."""
        numel = update.group.numel
        out = self._out
        casts = self._timing.hbm_traffic((self._settings.gradient_bytes + 4 + 8 + 4 + self._size) * numel)
        out.flush()
        fixed = casts + self._timing.gpu_adam(numel)
        out.add("update", COMPUTE, fixed=fixed, label="Adam", after=out.host_so_far())

    def _on_cpu(self, update: Update, following: Update | None) -> None:
        numel = update.group.numel
        if update.swapped:
            self._swap_in(update, following)
        self.loops(_SCALE * numel)
        self.adam(_ADAM * numel)
        self._give_back(update)
        if update.swapped:
            self._swap_out(update, last=following is None)

    def adam(self, traffic: int) -> None:
        """DeepSpeed's CPU Adam, for which the host thread waits."""
        host = self._timing.machine.host
        rate = host.cpu_optimizer.rate(self._threads, processes=self._processes)
        self._cpu(CPU_ADAM, traffic, rate)

    def loops(self, traffic: int) -> None:
        """Element-by-element work of PyTorch on the CPU."""
        host = self._timing.machine.host
        self._cpu(_CPU_LOOPS, traffic, host.elementwise_rate(self._threads, processes=self._processes))

    def _cpu(self, name: str, traffic: int, rate: int) -> None:
        out, machine = self._out, self._timing.machine
        out.flush()
        paths = [machine.cpu_work(rank, rate) for rank in range(out.ranks)]
        out.add("cpu", HOST, size=traffic, route=out.route(name, paths, rate), label=name)

    def _give_back(self, update: Update) -> None:
        """Cast to 16 bit on the CPU, then to where the parameters are.

        A copy between devices and types casts at its source, into a new pageable tensor (PyTorch,
        aten/src/ATen/native/cuda/Copy.cu); stages 1 and 2 have a pinned one of their own.
        """
        numel, out = update.group.numel, self._out
        self.loops((_SINGLE + self._size) * numel)
        size = self._size * numel
        if update.params == "hbm":
            pinned = self._settings.stage < 3 and self._settings.pin_memory
            out.to_gpu(size, pinned=pinned)
        elif update.params == "nvme":
            for tensor in update.group.tensors:
                if tensor.on_nvme:
                    written = out.aligned(tensor.slice_numel * self._size)
                    out.write(written, tier=self._weights_tier, label=tensor.name)
            out.wait_writes()

    def _gather_all(self, updates: Sequence[Update]) -> None:
        """Every rank gets the others' updated parameters."""
        out, machine = self._out, self._timing.machine
        if out.ranks == 1:
            return
        left = sum(update.group.numel for update in updates)
        bucket = max(1, self._settings.allgather_bucket_size // out.ranks)
        paths = [machine.gather(rank, out.ranks) for rank in range(out.ranks)]
        while left > 0:
            part = min(left, bucket)
            left -= part
            size = part * self._size * (out.ranks - 1)
            route = out.route("all-gather", paths, effective_rate(paths[0], [size]))
            out.spend(out.costs.collective_call.value)
            out.flush()
            out.add(
                "gather",
                COMM,
                fixed=picoseconds(paths[0].latency),
                size=size,
                route=route,
                after=(*out.host_so_far(), *out.so_far(COMPUTE)),
                collective=True,
            )
        out.host_waits(COMM)

    # -- storage --------------------------------------------------------------------------------

    def _swap_in(self, update: Update, following: Update | None) -> None:
        """Read master, moments and gradient; with ``pipeline_read`` this was begun one sub-group ago."""
        out = self._out
        if self._ahead is None:
            self._ahead = self._read(update)
        out.host_waits(IO, self._ahead)
        self._ahead = None
        if self._settings.pipeline_read and following is not None and following.swapped:
            self._ahead = self._read(following)

    def _read(self, update: Update) -> int:
        out = self._out
        size = out.aligned(update.group.numel * _SINGLE)
        states = [size] * 3
        out.flush()
        after: tuple[Dependency, ...] = out.host_so_far()
        for part in states:
            ordinal = out.read_state(part, tier=self._tier, label="optimizer states", after=after)
        if not self._settings.pipelined:
            # The gradient is asked for only when the states are there.
            out.host_waits(IO)
            out.flush()
            after = out.host_so_far()
        return out.read_state(
            self._gradients(update, size), tier=self._tier, label="gradients", after=after, last=ordinal
        )

    def _gradients(self, update: Update, size: int) -> int:
        held = out_numel(update, self._out)
        return min(size, held) if held else 0

    def _swap_out(self, update: Update, *, last: bool) -> None:
        """Write master and moments; with ``pipeline_write`` the wait comes one sub-group later."""
        out = self._out
        if self._writing:
            out.wait_writes()
            self._writing = False
        size = out.aligned(update.group.numel * _SINGLE)
        for _ in range(3):
            out.write(size, tier=self._tier, label="optimizer states")
        if self._settings.pipeline_write and not last:
            self._writing = True
        else:
            out.wait_writes()


def out_numel(update: Update, out: MicroStepWriter) -> int:
    """[B] of a sub-group's gradients that lie on storage."""
    swapper = out.swapper
    if swapper is None:
        return 0
    return sum(tensor.slice_numel * _SINGLE for tensor in update.group.tensors if swapper.swapped(tensor))
