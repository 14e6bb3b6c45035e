"""Recorders of a running model: module times, GPU activity, storage operations and host times.

PyTorch is imported when a recorder is used, which happens only in child processes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simoffload_calibrate.child import synchronize

if TYPE_CHECKING:
    import torch


class ModuleTrace:
    """A recorder of four host times and two GPU times of every module call.

    Hooks run in the order of registration: those registered before ``deepspeed.initialize`` run before
    DeepSpeed's own, those registered after it run after them. So a module's row holds the beginning and the
    end of its fetch, the end of launching its kernels, and the end of its release.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        """Register the hooks that must come first."""
        self._model = model
        self._on = False
        self._cuda = _cuda()
        self._rows: list[list[Any]] = []
        self._open: list[list[Any]] = []
        self._start = 0.0
        self._start_event: Any = None
        for name, module in model.named_modules():
            module.register_forward_pre_hook(self._begin(name or type(module).__name__))
            module.register_forward_hook(self._launched)

    def after_initialize(self) -> None:
        """Register the hooks that must come last."""
        for module in self._model.modules():
            module.register_forward_pre_hook(self._fetched)
            module.register_forward_hook(self._released)

    def start(self) -> None:
        """Start the recording of a pass."""
        self._rows, self._open, self._on = [], [], True
        self._start_event = self._event()
        self._start = time.perf_counter()

    def stop(self) -> dict[str, Any]:
        """End the recording and return columns of host and GPU times [us] since the beginning of the pass."""
        self._on = False
        synchronize()
        columns: dict[str, Any] = {"module": [row[0] for row in self._rows]}
        for index, key in enumerate(("fetch", "fetched", "launched", "released"), start=1):
            columns[key] = [round((row[index] - self._start) * 1e6, 1) for row in self._rows]
        if self._cuda is not None:
            for index, key in ((5, "gpu_start"), (6, "gpu_end")):
                columns[key] = [
                    round(self._start_event.elapsed_time(row[index]) * 1e3, 1) for row in self._rows
                ]
        return columns

    def _event(self) -> Any:
        if self._cuda is None:
            return None
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def _begin(self, name: str) -> Any:
        def hook(_module: torch.nn.Module, _inputs: Any) -> None:
            if self._on:
                row = [name, time.perf_counter(), 0.0, 0.0, 0.0, None, None]
                self._rows.append(row)
                self._open.append(row)

        return hook

    def _fetched(self, _module: torch.nn.Module, _inputs: Any) -> None:
        if self._on:
            row = self._open[-1]
            row[5] = self._event()
            row[2] = time.perf_counter()

    def _launched(self, _module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if self._on:
            row = self._open[-1]
            row[3] = time.perf_counter()
            row[6] = self._event()

    def _released(self, _module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if self._on:
            self._open.pop()[4] = time.perf_counter()


def _cuda() -> Any:
    """Return ``torch.cuda``, or None on a machine without a GPU."""
    import torch

    return torch.cuda if torch.cuda.is_available() else None


def gpu_activity(work: Callable[[], None]) -> dict[str, Any] | None:
    """Run ``work`` under the CUDA profiler and return its GPU activities by kind; None without a GPU.

    Kinds: "copy" (host to device), "return" (device to host), "gather" (NCCL), "move" (copies within the
    GPU), "compute". Each has its number and its busy time, the sum of durations [us]. The profiler slows the
    host thread but not kernels.
    """
    if _cuda() is None:
        work()
        return None
    import torch

    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        work()
        synchronize()
    kinds: dict[str, list[float]] = {}
    first, last = float("inf"), 0.0
    with contextlib.suppress(AttributeError):
        for event in profiler.profiler.kineto_results.events():
            if "cuda" not in str(event.device_type()).lower():
                continue
            duration = event.duration_ns() / 1e3
            begin = event.start_ns() / 1e3
            first, last = min(first, begin), max(last, begin + duration)
            row = kinds.setdefault(_kind(event.name()), [0.0, 0.0, 0.0])
            row[0] += duration
            row[1] += 1
    return {
        "span_us": round(last - first, 1) if kinds else 0.0,
        "busy_us": {kind: round(row[0], 1) for kind, row in kinds.items()},
        "count": {kind: int(row[1]) for kind, row in kinds.items()},
    }


def _kind(name: str) -> str:
    lower = name.lower()
    if "memcpy" in lower:
        return "copy" if "htod" in lower else "return" if "dtoh" in lower else "move"
    if "nccl" in lower:
        return "gather"
    if "catarray" in lower or "memset" in lower:
        return "move"
    return "compute"


_PARAMETERS = {"aio_read_handle": "read", "aio_write_handle": "write"}
_OPTIMIZER = {"read_aio_handle": "read", "write_aio_handle": "write", "aio_handle": ""}
"""Attributes of DeepSpeed's swappers with their directions; one without a direction alternates."""


class _Handle:
    """A wrapper of an aio handle that records its calls."""

    def __init__(self, handle: Any, log: StorageLog, owner: str, direction: str) -> None:
        self._handle, self._log, self._owner, self._direction = handle, log, owner, direction
        self._last = (
            "read"  # the operation of the next wait: DeepSpeed ends one kind before it begins the other
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def async_pread(self, buffer: Any, path: str, *rest: Any) -> Any:
        return self._submit("read", self._handle.async_pread, buffer, path, *rest)

    def async_pwrite(self, buffer: Any, path: str, *rest: Any) -> Any:
        return self._submit("write", self._handle.async_pwrite, buffer, path, *rest)

    def _submit(self, operation: str, submit: Any, buffer: Any, path: str, *rest: Any) -> Any:
        before = time.perf_counter()
        result = submit(buffer, path, *rest)
        size = buffer.numel() * buffer.element_size()
        self._last = operation
        self._log.note(self._owner, operation, before, size=size, name=Path(path).name)
        return result

    def wait(self, *arguments: Any) -> Any:
        before = time.perf_counter()
        result = self._handle.wait(*arguments)
        self._log.note(self._owner, f"wait {self._direction or self._last}", before)
        return result


class StorageLog:
    """A recorder of the storage operations of DeepSpeed's swappers of parameters and of the optimizer.

    Rows, for parameters only, have the operation ("read", "write", "wait read", "wait write"), tensor, size
    [B], begin [us] since the start of the pass, duration of the call [us], and free swap buffers afterwards.
    Sums, for both swappers, have count, bytes and seconds by swapper and operation.
    """

    def __init__(self, model: Any, optimizer: Any = None) -> None:
        """Wrap the handles of all swappers; ``optimizer`` is DeepSpeed's wrapper and may be None."""
        self._rows: list[list[Any]] = []
        self._sums: dict[str, dict[str, dict[str, float]]] = {}
        self._start = 0.0
        self._on = False
        self._names: dict[str, str] = {}
        self.swapper: Any = None
        """The swapper of parameters; None if they are not on storage."""
        for name, parameter in model.named_parameters():
            swapper = getattr(parameter, "nvme_swapper", None)
            if swapper is not None:
                self.swapper = swapper
            self._names[f"{getattr(parameter, 'ds_id', -1)}_param.tensor.swp"] = name
        self._watch(self.swapper, "parameters", _PARAMETERS)
        swapper = getattr(optimizer, "optimizer_swapper", None)
        self._watch(swapper, "optimizer", _OPTIMIZER)
        self._watch(getattr(swapper, "gradient_swapper", None), "optimizer", _OPTIMIZER)

    def _watch(self, swapper: Any, owner: str, handles: Mapping[str, str]) -> None:
        for attribute, direction in handles.items():
            handle = getattr(swapper, attribute, None)
            if handle is not None:
                setattr(swapper, attribute, _Handle(handle, self, owner, direction))

    def start(self) -> None:
        """Start the recording of a pass."""
        self._rows, self._sums, self._on, self._start = [], {}, True, time.perf_counter()

    def stop(self) -> list[list[Any]]:
        """End the recording and return the rows."""
        self._on = False
        return self._rows

    def sums(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return the sums of the last recording by "parameters" or "optimizer" and by operation."""
        return self._sums

    def note(self, owner: str, operation: str, begin: float, *, size: int = 0, name: str = "") -> None:
        """Record a call that began at ``begin`` [s] and has just returned."""
        if not self._on:
            return
        duration = time.perf_counter() - begin
        sums = self._sums.setdefault(owner, {}).setdefault(
            operation, {"count": 0, "bytes": 0, "seconds": 0.0}
        )
        for key, value in (("count", 1), ("bytes", size), ("seconds", duration)):
            sums[key] += value
        if owner == "parameters":
            tensor = self._names.get(name, name)
            free = self.swapper.available_swap_in_buffers()
            when = (begin - self._start) * 1e6
            self._rows.append([operation, tensor, size, round(when, 1), round(duration * 1e6, 1), free])


_PRIVATE = "_DeepSpeedZeroOptimizer_Stage3"
"""The prefix of mangled names (class of deepspeed/runtime/zero/stage3.py)."""
BACKWARD = (
    "reduce_ready_partitions_and_remove_grads",
    "__add_grad_to_ipg_bucket",
    "__reduce_and_partition_ipg_grads",
    "__avg_scatter_contiguous_grads",
    "__avg_scatter_grads",
    "partition_grads",
    "_offload_grad_partition_at_boundary",
    "_swap_out_offload_fp32_gradients",
    "independent_gradient_partition_epilogue",
)
"""Methods of the ZeRO-3 optimizer that run during the backward pass."""
OPTIMIZER = (
    "step",
    "_pre_step",
    "_partition_all_parameters",
    "_overflow_check_and_loss_scale_update",
    "_get_norm_groups",
    "_prepare_fp32_grad_for_sub_group",
    "_optimizer_states_and_gradient_swap_in",
    "unscale_and_clip_grads",
    "_optimizer_step",
    "_reassign_or_swap_out_partitioned_parameters",
    "_optimizer_states_and_gradient_swap_out",
    "_post_step",
)
"""Methods of the ZeRO-3 optimizer that run during its step."""

Parts = dict[str, dict[str, float]]
"""The "count" and the total "seconds" of the calls, nested ones included, by name."""


@contextlib.contextmanager
def timed_parts(subject: object, names: Sequence[str]) -> Iterator[Parts]:
    """Time how long methods of DeepSpeed's optimizer keep the host thread, while the context lasts.

    Methods are wrapped on the instance; those that a version of DeepSpeed lacks are skipped. Nothing waits
    for the GPU between them. The result has the methods that were called.
    """
    parts: Parts = {}
    wrapped: list[str] = []
    try:
        for name in names:
            attribute = f"{_PRIVATE}{name}" if name.startswith("__") else name
            method = getattr(subject, attribute, None)
            if callable(method) and attribute not in vars(subject):
                setattr(subject, attribute, _timed(method, name.strip("_"), parts))
                wrapped.append(attribute)
        yield parts
    finally:
        for attribute in wrapped:
            delattr(subject, attribute)


def _timed(method: Callable[..., Any], name: str, parts: Parts) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        try:
            return method(*arguments, **named)
        finally:
            row = parts.setdefault(name, {"count": 0, "seconds": 0.0})
            row["count"] += 1
            row["seconds"] += time.perf_counter() - begin

    return call
