"""What DeepSpeed reads from and writes to storage, operation by operation (child process only)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

__all__ = ["StorageLog"]


class _Handle:
    """Stands in for an aio handle and notes what is asked of it."""

    def __init__(self, handle: Any, log: StorageLog, direction: str) -> None:
        self._handle, self._log, self._direction = handle, log, direction

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
        self._log.note(operation, before, size=size, name=Path(path).name)
        return result

    def wait(self, *arguments: Any) -> Any:
        before = time.perf_counter()
        result = self._handle.wait(*arguments)
        self._log.note(f"wait {self._direction}", before)
        return result


class StorageLog:
    """The operations of the parameter swapper while it is on.

    Rows: operation ("read", "write", "wait read", "wait write"), tensor, size [B], begin [us] since the
    start of the pass, duration of the call [us], swap buffers that are free afterwards.
    """

    def __init__(self, model: Any) -> None:
        self._rows: list[list[Any]] = []
        self._start = 0.0
        self._on = False
        self._names: dict[str, str] = {}
        self.swapper: Any = None
        for name, parameter in model.named_parameters():
            swapper = getattr(parameter, "nvme_swapper", None)
            if swapper is not None:
                self.swapper = swapper
            self._names[f"{getattr(parameter, 'ds_id', -1)}_param.tensor.swp"] = name
        if self.swapper is not None:
            for attribute, direction in (("aio_read_handle", "read"), ("aio_write_handle", "write")):
                setattr(self.swapper, attribute, _Handle(getattr(self.swapper, attribute), self, direction))

    def start(self) -> None:
        """Begin to record a pass."""
        self._rows, self._on, self._start = [], True, time.perf_counter()

    def stop(self) -> list[list[Any]]:
        """End the recording and hand over the rows."""
        self._on = False
        return self._rows

    def note(self, operation: str, begin: float, *, size: int = 0, name: str = "") -> None:
        """Add a row for a call that began at ``begin`` [s] and has just returned."""
        if self._on:
            duration = time.perf_counter() - begin
            tensor = self._names.get(name, name)
            free = self.swapper.available_swap_in_buffers()
            when = (begin - self._start) * 1e6
            self._rows.append([operation, tensor, size, round(when, 1), round(duration * 1e6, 1), free])
