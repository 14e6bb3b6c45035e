"""A run under DeepSpeed, which is a task of one process per rank (child process only)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed import comm
from deepspeed.accelerator import get_accelerator

from simoffload_calibrate.child import Job, synchronize
from simoffload_calibrate.deepspeed import build
from simoffload_calibrate.deepspeed.recorders import (
    BACKWARD,
    OPTIMIZER,
    ModuleTrace,
    StorageLog,
    gpu_activity,
    timed_parts,
)
from simoffload_calibrate.passes import TimedPasses, generation, run_facts

_REPETITIONS = 2
"""The number of timed generations; the first one allocates memory."""
_TRACED_STEPS = 2
"""The number of steps of the third generation that are traced; the last runs under the profiler."""


class Run:
    """One case on this rank: its model, and the passes that were timed."""

    def __init__(self, case: Mapping[str, Any], *, nvme_path: str) -> None:
        config = build.engine_config(case, nvme_path=nvme_path)
        begin = time.perf_counter()
        self._model = build.build(case, config)
        self._trace = ModuleTrace(self._model)
        self.engine = build.initialize(self._model, config)
        self._trace.after_initialize()
        self._storage = StorageLog(self._model, self.engine.optimizer)
        self.case, self.loading_s = case, time.perf_counter() - begin
        self._device = get_accelerator().current_device_name()
        self._times = TimedPasses(self._device)
        self.passes = self._times.passes
        self.traces: dict[str, Any] = {}

    def carry_out(self) -> None:
        """Run all passes of the case."""
        if self.case["workload"]["kind"] == "training":
            self._train()
        else:
            self._infer()

    # -- inference ------------------------------------------------------------------------------

    def _infer(self) -> None:
        for repetition in range(_REPETITIONS):
            self.generate(repetition)
        if not self.case["trace"]:
            return
        with torch.no_grad():
            step = self._generation()
            self.traces["prefill"] = self._traced(step)
            for index in range(1, _TRACED_STEPS):
                self.traces[f"decode {index}"] = self._traced(step)
            self.traces["gpu decode"] = gpu_activity(step)
            self.traces["gpu prefill"] = gpu_activity(self._generation())

    def generate(self, repetition: int, *, passes: int | None = None) -> None:
        """Time the passes of one generation: a prefill and decode steps."""
        with torch.no_grad():
            step = self._generation()
            for index in range(passes or self.case["workload"]["output_length"]):
                name = f"decode {index}" if index else "prefill"
                if self._storage.swapper is not None:
                    self._storage.start()
                self._times.add(name, repetition, step)
                if self._storage.swapper is not None:
                    self.passes[-1]["storage"] = self._storage.stop()

    def trace_decode(self, count: int) -> list[dict[str, Any]]:
        """Return traces of the first decode steps of a generation."""
        with torch.no_grad():
            step = self._generation()
            step()
            return [self._traced(step) for _ in range(count)]

    def _generation(self) -> Callable[[], None]:
        """Return a function that runs the next pass of a new generation at each call."""
        return generation(self._model, self.case, self._device, self.engine.module)

    def _traced(self, step: Callable[[], None]) -> dict[str, Any]:
        """Run a pass and return its time [s], and the times of every module."""
        synchronize()
        self._trace.start()
        if self._storage.swapper is not None:
            self._storage.start()
        begin = time.perf_counter()
        step()
        synchronize()
        seconds = time.perf_counter() - begin
        trace: dict[str, Any] = {"seconds": seconds, "modules": self._trace.stop()}
        if self._storage.swapper is not None:
            trace["storage"] = self._storage.stop()
        return trace

    # -- training -------------------------------------------------------------------------------

    def _train(self) -> None:
        for index in range(self.case["workload"]["steps"]):
            self.train_step(index)
        if self.case["trace"]:
            self.traces |= self.trace_step()
        if self.engine.skipped_steps:
            text = f"{self.engine.skipped_steps} optimizer steps were skipped: gradients are not finite"
            raise RuntimeError(text)

    def train_step(self, repetition: int) -> None:
        """Time the passes of one step, micro-step by micro-step."""
        tokens = self._tokens
        for micro_step in range(self._micro_steps):
            for name, part in self._parts(tokens):
                self._timed_part(name, repetition, micro_step, part)

    def trace_step(self) -> dict[str, Any]:
        """Return traces of the passes of one step, by their names."""
        traces: dict[str, Any] = {}
        for micro_step in range(self._micro_steps):
            self._traced_micro_step(micro_step, self._tokens, traces)
        return traces

    @property
    def _micro_steps(self) -> int:
        return int(self.case["workload"]["gradient_accumulation_steps"])

    @cached_property
    def _tokens(self) -> torch.Tensor:
        """The tokens on which every micro-step trains."""
        work = self.case["workload"]
        shape = (work["batch_size"], work["sequence_length"])
        return torch.randint(0, self.case["hf_config"]["vocab_size"], shape, device=self._device)

    def _parts(self, tokens: torch.Tensor) -> Iterator[tuple[str, Callable[[], None]]]:
        """Return the passes of a micro-step; each must run before the next is requested."""
        kept: dict[str, Any] = {}

        def forward() -> None:
            kept["loss"] = self.engine(input_ids=tokens, labels=tokens, use_cache=False).loss

        yield "forward", forward
        yield "backward", lambda: self.engine.backward(kept["loss"])
        yield "optimizer", self.engine.step

    def _timed_part(self, name: str, index: int, micro_step: int, part: Callable[[], None]) -> None:
        self._storage.start()
        self._times.add(name, index, part)
        self._storage.stop()
        self.passes[-1]["micro_step"] = micro_step
        if self._storage.sums():
            self.passes[-1]["storage_sums"] = self._storage.sums()

    def _traced_micro_step(self, micro_step: int, tokens: torch.Tensor, traces: dict[str, Any]) -> None:
        """Trace the first micro-step of a step, and the last, in which the optimizer runs."""
        last = micro_step == self._micro_steps - 1
        if micro_step and not last:
            for _, part in self._parts(tokens):
                part()
            return
        suffix = "" if last else ", first micro-step"
        methods = {"forward": (), "backward": BACKWARD, "optimizer": OPTIMIZER}
        for name, part in self._parts(tokens):
            if name == "forward":
                traces[f"forward{suffix}"] = self._traced(part)
                continue
            if name == "optimizer" and not last:
                part()
                continue
            synchronize()
            with timed_parts(self.engine.optimizer, methods[name]) as parts:
                begin = time.perf_counter()
                part()
                host = time.perf_counter() - begin
                synchronize()
                seconds = time.perf_counter() - begin
            trace = {"seconds": seconds, "host_seconds": host, "parts": parts}
            traces[f"{name} parts{suffix}"] = trace

    def record(self) -> dict[str, Any]:
        """Return everything that was measured, as plain values."""
        parameters = sum(getattr(p, "ds_numel", p.numel()) for p in self._model.parameters())
        return {
            **run_facts(self.case, self._model, ranks=comm.get_world_size()),
            "parameters": parameters,
            "dtype": build.dtype_of(self.case),
            "loading_s": round(self.loading_s, 3),
            "passes": self.passes,
            "traces": self.traces,
        }


def carry_out(job: Job) -> dict[str, Any]:
    """Run the case of a task and return its record."""
    deepspeed.init_distributed()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    swap_folder = Path(job.data["swap_folder"])
    run = Run(job.data["case"], nvme_path=str(swap_folder))
    try:
        run.carry_out()
        record = run.record()
    finally:
        build.forget(run.engine)
    comm.barrier()
    if job.rank == 0:
        shutil.rmtree(swap_folder / "zero_stage_3", ignore_errors=True)
    return record
