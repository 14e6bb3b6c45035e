"""Timed steps of a model with random weights under PyTorch's FSDP (child process only)."""

from __future__ import annotations

import contextlib
import functools
import gc
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
    _flat_param,
    _limiter_utils,
    _runtime_utils,
    fully_sharded_data_parallel,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from simoffload.calibration.child import combined, synchronize
from simoffload.calibration.deepspeed.recorders import gpu_activity
from simoffload.models import ModelSpec
from simoffload.models.families import FAMILIES

__all__ = ["HookTimes", "measured"]

_WARM_UP = 2
_WHOLE_S = 10.0
"""[s] Intended time of all complete steps, within the limits of their number."""
_FEWEST, _MOST = 4, 8
_IN_PARTS = 3
_TINY_IN_PARTS, _TINY_TRACED = 8, 4
_MACHINE = ("AnonPages", "MemAvailable", "MemFree", "MemTotal", "Shmem", "Unevictable")
_PREFETCH = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST, "none": None}


def measured(job: Mapping[str, Any], hooks: HookTimes, device: str, *, threads: int) -> dict[str, Any]:
    """Run a job of ``runs`` and return its record; times are those of the slowest rank.

    Complete steps are timed with one wait at their end, steps in parts with a wait after each part.
    """
    settings = job["strategy"] or {}
    threads = settings.get("cpu_threads", threads)
    torch.set_num_threads(threads)
    # PyTorch does not release all memory of earlier models in this process, so peaks count from here.
    held = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    before = _machine_memory()
    begin = time.perf_counter()
    run = _FsdpTraining(job, device)
    synchronize()
    loading = time.perf_counter() - begin
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    tiny = job["part"] == "tiny"
    for _ in range(_WARM_UP):
        last = run.timed("", -1, run.step)
    run.passes.clear()
    number = max(_FEWEST, min(_MOST, int(_WHOLE_S / last)))
    for index in range(number):
        run.timed("step", index, run.step)
    memory = {**_memory(), "hbm_before": held, "machine_before": before, "machine": _machine_memory()}
    for index in range(_TINY_IN_PARTS if tiny else _IN_PARTS):
        run.in_parts(index)
    hook_times = hooks.traced(run.micro_steps, times=_TINY_TRACED if tiny else 1)
    activity = None if tiny else gpu_activity(run.micro_steps)
    return {
        **{key: job[key] for key in ("name", "part", "model", "workload")},
        "strategy": None if job["strategy"] is None else {**settings, "cpu_threads": threads},
        "ranks": dist.get_world_size(),
        "attention": getattr(run.inner.config, "_attn_implementation", None),
        "parameters": run.parameters,
        "loading_s": round(loading, 3),
        "memory": memory,
        "passes": run.passes,
        "traces": {"hooks": hook_times, "gpu forward and backward": activity},
    }


class _FsdpTraining:
    """One model under training on this rank."""

    def __init__(self, job: Mapping[str, Any], device: str) -> None:
        self._device, self._work = device, job["workload"]
        settings = job["strategy"]
        single = settings is not None and settings.get("mixed_precision", True)
        config = ModelSpec.model_validate(job["model"]).hf_config()
        self._vocabulary = config["vocab_size"]
        self.inner = _built(config, device, torch.float32 if single else torch.bfloat16)
        self.parameters = sum(parameter.numel() for parameter in self.inner.parameters())
        if self._work.get("gradient_checkpointing", True):
            self.inner.gradient_checkpointing_enable({"use_reentrant": False})
        self.inner.train()
        self._sharded = settings is not None
        self._model = _wrapped(self.inner, settings, device) if settings is not None else self.inner
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-5)
        gc.collect()
        shape = (self._work["batch_size"], self._work["sequence_length"])
        self._tokens = torch.randint(0, self._vocabulary, shape, device=device)
        self._loss: Any = None
        self._micro_steps = self._work.get("gradient_accumulation_steps", 1)
        self.passes: list[dict[str, Any]] = []

    def _forward(self) -> None:
        self._loss = self._model(input_ids=self._tokens, labels=self._tokens, use_cache=False).loss

    def _backward(self) -> None:
        self._loss.backward()
        self._loss = None

    def _update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _synchronized(self, index: int) -> Any:
        """Return the context of a micro-step; before the last one, gradients are summed up on the GPU."""
        last = index == self._micro_steps - 1
        return contextlib.nullcontext() if last or not self._sharded else self._model.no_sync()

    def step(self) -> None:
        """Run a step as a user would write it."""
        self._pass_all()
        self._update()

    def micro_steps(self) -> None:
        """Run a step without the optimizer."""
        self._pass_all()
        synchronize()
        self._optimizer.zero_grad()

    def _pass_all(self) -> None:
        for index in range(self._micro_steps):
            with self._synchronized(index):
                self._forward()
                self._backward()

    def in_parts(self, repetition: int) -> None:
        """Run a step with a wait after each part."""
        for index in range(self._micro_steps):
            with self._synchronized(index):
                self.timed("forward", repetition, self._forward, micro_step=index)
                self.timed("backward", repetition, self._backward, micro_step=index)
        self.timed("optimizer", repetition, self._update, micro_step=self._micro_steps - 1)

    def timed(self, name: str, repetition: int, work: Callable[[], None], **more: Any) -> float:
        """Record and return the slowest rank's time [s]; also record when this rank's call returned."""
        synchronize()
        begin = time.perf_counter()
        work()
        called = time.perf_counter() - begin
        synchronize()
        seconds = combined(time.perf_counter() - begin, "MAX", self._device)
        row = {"name": name, "repetition": repetition, "seconds": seconds, "call_seconds": called}
        self.passes.append({**row, **more})
        return seconds


def _built(config: Mapping[str, Any], device: str, dtype: Any) -> Any:
    """Build the model on the GPU, where its random numbers are cheap."""
    written = dict(config)
    family = FAMILIES[written["model_type"]]
    made = transformers.AutoConfig.for_model(written.pop("model_type"), **written)
    architecture = getattr(transformers, family.traits.architecture)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return architecture(made)
    finally:
        torch.set_default_dtype(before)


def _wrapped(model: Any, settings: Mapping[str, Any], device: str) -> Any:
    """Wrap the model in FSDP: every decoder layer is a unit, and the rest is the root."""
    layers = max((one for one in model.modules() if isinstance(one, torch.nn.ModuleList)), key=len)
    resharded_forward = settings.get("reshard_after_forward", True)
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=functools.partial(
            transformer_auto_wrap_policy, transformer_layer_cls={type(layers[0])}
        ),
        sharding_strategy=ShardingStrategy.FULL_SHARD
        if resharded_forward
        else ShardingStrategy.SHARD_GRAD_OP,
        cpu_offload=CPUOffload(offload_params=settings.get("cpu_offload", False)),
        backward_prefetch=_PREFETCH[settings.get("backward_prefetch", "pre")],
        limit_all_gathers=settings.get("limit_all_gathers", True),
        mixed_precision=half if settings.get("mixed_precision", True) else None,
        device_id=torch.device(device),
    )


def _memory() -> dict[str, Any]:
    """Return memory of this rank [B]: peaks on the GPU, memory of the process, pinned memory."""
    memory: dict[str, Any] = {}
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    for key, value in re.findall(r"^(Vm(?:RSS|HWM|Lck|Pin)|Rss\w+):\s+(\d+) kB", status, re.MULTILINE):
        memory[key] = int(value) * 1024
    if torch.cuda.is_available():
        memory["hbm_peak"] = torch.cuda.max_memory_allocated()
        memory["hbm_reserved_peak"] = torch.cuda.max_memory_reserved()
        free, total = torch.cuda.mem_get_info()
        memory["hbm_used_with_context"] = total - free
        with contextlib.suppress(Exception):
            stats = torch.cuda.host_memory_stats()
            memory["pinned"] = {key: value for key, value in stats.items() if "bytes.current" in key}
    return memory


def _machine_memory() -> dict[str, int]:
    text = Path("/proc/meminfo").read_text(encoding="utf-8")
    rows = re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)
    return {key: int(value) * 1024 for key, value in rows if key in _MACHINE}


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
    """A timer of FSDP's functions; a process creates one before any model is wrapped."""

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
        """Run ``work`` several times; return the last run's events and all runs' medians by name [us].

        An event is a name, begin and end [us], and whether it ran on the main thread. The time of a function
        includes the functions that it calls.
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
