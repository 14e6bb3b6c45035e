"""Host times of FSDP's hooks and of what they call (child process only)."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch.distributed.fsdp import _flat_param, _limiter_utils, _runtime_utils, fully_sharded_data_parallel

__all__ = ["HookTimes"]

_FUNCTIONS = (
    "_root_pre_forward",
    "_pre_forward",
    "_post_forward",
    "_pre_backward_hook",
    "_post_backward_hook",
    "_post_backward_final_callback",
    "_unshard",
    "_reshard",
    "_prefetch_handle",
    "_reduce_grad",
    "_reduce_grad_no_shard",
    "_offload_grad",
)
_METHODS = (
    "pre_unshard",
    "unshard",
    "post_unshard",
    "_all_gather_flat_param",
    "_use_unsharded_flat_param",
    "prepare_gradient_for_backward",
    "prepare_gradient_for_optim",
    "reshard",
    "post_reshard",
)
_MICRO = 1e6


class HookTimes:
    """Puts a clock around FSDP's functions; one for a process, made before any model is wrapped."""

    def __init__(self) -> None:
        self._events: list[tuple[str, float, float, bool]] = []
        self._on = False
        self._main = threading.get_ident()
        for name in _FUNCTIONS:
            for module in (_runtime_utils, fully_sharded_data_parallel):
                self._watch(module, name, name)
        for name in _METHODS:
            self._watch(_flat_param.FlatParamHandle, name, f"handle.{name}")
        self._watch(_limiter_utils._FreeEventQueue, "dequeue_if_needed", "limiter.dequeue")  # noqa: SLF001
        self._watch(torch.cuda.Event, "synchronize", "wait for event")
        self._watch(torch.cuda.Stream, "synchronize", "wait for stream")

    def _watch(self, owner: Any, attribute: str, name: str) -> None:
        original: Callable[..., Any] | None = getattr(owner, attribute, None)
        if original is None:
            return

        @functools.wraps(original)
        def outer(*args: Any, **more: Any) -> Any:
            if not self._on:
                return original(*args, **more)
            begin = time.perf_counter()
            try:
                return original(*args, **more)
            finally:
                here = threading.get_ident() == self._main
                self._events.append((name, begin, time.perf_counter(), here))

        setattr(owner, attribute, outer)

    def traced(self, work: Callable[[], None], *, times: int = 1) -> dict[str, Any]:
        """Carry out ``work`` so many times; events of the last, and medians by name over all [us].

        An event is a name, begin and end [us], and whether it ran on the main thread. Times of a function
        contain those of what it calls.
        """
        rows: dict[str, list[float]] = {}
        last: list[tuple[str, float, float, bool]] = []
        begin = 0.0
        for _ in range(times):
            self._events, self._on = [], True
            begin = time.perf_counter()
            try:
                work()
            finally:
                self._on = False
            last = sorted(self._events, key=lambda event: event[1])
            for name, start, end, _main in last:
                rows.setdefault(name, []).append((end - start) * _MICRO)
        return {
            "median_us": {name: round(median(found), 2) for name, found in rows.items()},
            "count": {name: len(found) // times for name, found in rows.items()},
            "events": [
                [name, round((start - begin) * _MICRO, 1), round((end - begin) * _MICRO, 1), int(main)]
                for name, start, end, main in last
            ],
        }
