"""What DeepSpeed reads from and writes to storage, operation by operation (child process only)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["StorageLog"]

_PARAMETERS = {"aio_read_handle": "read", "aio_write_handle": "write"}
_OPTIMIZER = {"read_aio_handle": "read", "write_aio_handle": "write", "aio_handle": ""}
"""Attributes of DeepSpeed's swappers and the direction of each; one without serves both in turn."""


class _Handle:
    """Stands in for an aio handle and notes what is asked of it."""

    def __init__(self, handle: Any, log: StorageLog, owner: str, direction: str) -> None:
        self._handle, self._log, self._owner, self._direction = handle, log, owner, direction
        self._last = "read"  # what a wait waits for: DeepSpeed ends one kind before it begins the other

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
    """The operations of the swappers of parameters and of the optimizer while it is on.

    Rows, of parameters only: operation ("read", "write", "wait read", "wait write"), tensor, size [B], begin
    [us] since the start of the pass, duration of the call [us], swap buffers that are free afterwards. Sums,
    of both: count, bytes and seconds by swapper and operation.
    """

    def __init__(self, model: Any, optimizer: Any = None) -> None:
        """``optimizer`` is DeepSpeed's around the real one; it may be None."""
        self._rows: list[list[Any]] = []
        self._sums: dict[str, dict[str, dict[str, float]]] = {}
        self._start = 0.0
        self._on = False
        self._names: dict[str, str] = {}
        self.swapper: Any = None
        """Of parameters; None where they are not on storage."""
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
        """Begin to record a pass."""
        self._rows, self._sums, self._on, self._start = [], {}, True, time.perf_counter()

    def stop(self) -> list[list[Any]]:
        """End the recording and hand over the rows."""
        self._on = False
        return self._rows

    def sums(self) -> dict[str, dict[str, dict[str, float]]]:
        """Of the last recording: by "parameters" and "optimizer", then by operation; empty without any."""
        return self._sums

    def note(self, owner: str, operation: str, begin: float, *, size: int = 0, name: str = "") -> None:
        """Add a call that began at ``begin`` [s] and has just returned."""
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
