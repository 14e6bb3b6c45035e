"""Times of every module of a pass: the host thread by hooks, the GPU by events (child process only).

Hooks run in the order of registration: those registered before ``deepspeed.initialize`` run before
DeepSpeed's own, those registered after it run after them. So for every module t0 is the beginning of its
fetch, t1 its end, t2 the end of launching its kernels, t3 the end of its release.
"""

from __future__ import annotations

import time
from typing import Any

import torch

__all__ = ["ModuleTrace"]


class ModuleTrace:
    """Four host times and two GPU times of every module call, while it is on."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Register the hooks that must come first."""
        self._model = model
        self._on = False
        self._gpu = torch.cuda.is_available()
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
        """Begin to record a pass."""
        self._rows, self._open, self._on = [], [], True
        self._start_event = self._event()
        self._start = time.perf_counter()

    def stop(self) -> dict[str, Any]:
        """End the recording; columns of host and GPU times [us] since the beginning of the pass."""
        self._on = False
        if self._gpu:
            torch.cuda.synchronize()
        columns: dict[str, Any] = {"module": [row[0] for row in self._rows]}
        for index, key in enumerate(("fetch", "fetched", "launched", "released"), start=1):
            columns[key] = [round((row[index] - self._start) * 1e6, 1) for row in self._rows]
        if self._gpu:
            for index, key in ((5, "gpu_start"), (6, "gpu_end")):
                columns[key] = [
                    round(self._start_event.elapsed_time(row[index]) * 1e3, 1) for row in self._rows
                ]
        return columns

    def _event(self) -> Any:
        if not self._gpu:
            return None
        event = torch.cuda.Event(enable_timing=True)
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
