"""A run under DeepSpeed, which is a task of one process per rank (child process only)."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch._dynamo  # before zero.Init: newer torch imports it lazily and then meets patched tensors
import transformers
from deepspeed import comm
from deepspeed.accelerator import get_accelerator

from simoffload_calibrate.child import Job, release_memory, synchronize
from simoffload_calibrate.deepspeed.recorders import (
    BACKWARD,
    OPTIMIZER,
    ModuleTrace,
    StorageLog,
    gpu_activity,
    timed_parts,
)
from simoffload_calibrate.passes import TimedPasses, architecture, configuration, generation, run_facts

# -- models ----------------------------------------------------------------------------------------

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def dtype_of(case: Mapping[str, Any]) -> str:
    """Return the case's dtype; bfloat16 instead of float16 on a CPU that cannot compute in float16.

    Both have 2 B, so the same bytes move in the same order; times on a CPU are not used.
    """
    accelerator = get_accelerator()
    if (
        case["dtype"] == "float16"
        and accelerator.device_name() == "cpu"
        and not accelerator.is_fp16_supported()
    ):
        return "bfloat16"
    return str(case["dtype"])


def engine_config(case: Mapping[str, Any], *, nvme_path: str) -> dict[str, Any]:
    """Return the case's ``ds_config`` with batch, dtype and swap folder filled in."""
    config: dict[str, Any] = {**case["ds_config"]}
    zero = {**config.get("zero_optimization", {})}
    for part in ("offload_param", "offload_optimizer"):
        if zero.get(part):
            zero[part] = {**zero[part]}
            if zero[part].get("device") == "nvme":
                zero[part]["nvme_path"] = nvme_path
    config["zero_optimization"] = zero
    work = case["workload"]
    config["train_micro_batch_size_per_gpu"] = work["batch_size"]
    config.pop("train_batch_size", None)
    config["gradient_accumulation_steps"] = work.get("gradient_accumulation_steps", 1)
    dtype = dtype_of(case)
    config["fp16"] = {"enabled": dtype == "float16", "loss_scale": 1.0}
    config["bf16"] = {"enabled": dtype == "bfloat16"}
    if work["kind"] == "training":
        config.setdefault("optimizer", {"type": "AdamW", "params": {"lr": 1e-5}})
    else:
        zero.pop("offload_optimizer", None)
        config.pop("optimizer", None)
        config.pop("scheduler", None)
    config.setdefault("steps_per_print", 10**9)
    return config


@contextlib.contextmanager
def _layers_initialize() -> Iterator[None]:
    """Skip the model's own initialization, which fails on partitioned tensors and takes minutes.

    Layers fill their weights with random numbers on the GPU when they are created. Zeros would not do: a GPU
    draws less power for products of zeros and then runs faster, and DeepSpeed skips the optimizer's step when
    gradients are not finite.
    """
    model_class: Any = transformers.PreTrainedModel
    initialize = model_class.init_weights
    model_class.init_weights = lambda model: model.tie_weights()
    try:
        yield
    finally:
        model_class.init_weights = initialize


def build(case: Mapping[str, Any], config: dict[str, Any]) -> torch.nn.Module:
    """Construct the model inside ``zero.Init``, which partitions every parameter when it is created."""
    training = case["workload"]["kind"] == "training"
    with (
        _layers_initialize(),
        deepspeed.zero.Init(config_dict_or_path=config, dtype=DTYPES[dtype_of(case)]),
    ):
        model: torch.nn.Module = architecture(case)(configuration(case))
    _fill_others(model)
    if training and case["workload"]["gradient_checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": case["workload"]["use_reentrant"]})
    model.train(training)
    return model


def _fill_others(model: torch.nn.Module) -> None:
    """Fill matrices of modules that do not initialize themselves, such as experts and routers."""
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            continue
        for parameter in module.parameters(recurse=False):
            if len(getattr(parameter, "ds_shape", ())) > 1:
                with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                    torch.nn.init.normal_(parameter.data, 0.0, 0.02)


def initialize(model: torch.nn.Module, config: dict[str, Any]) -> Any:
    """Return DeepSpeed's engine around the model."""
    with contextlib.suppress(AttributeError):
        model.config.use_cache = "optimizer" not in config
    parameters = model.parameters() if "optimizer" in config else None
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=parameters)
    return engine


def forget(engine: Any) -> None:
    """Release all memory of a run, including pinned host memory."""
    with contextlib.suppress(Exception):
        engine.destroy()
    release_memory()


# -- the worker ------------------------------------------------------------------------------------

_REPETITIONS = 2
"""The number of timed generations; the first one allocates memory."""
_TRACED_STEPS = 2
"""The number of steps of the third generation that are traced; the last runs under the profiler."""


class Run:
    """One case on this rank: its model, and the passes that were timed."""

    def __init__(self, case: Mapping[str, Any], *, nvme_path: str) -> None:
        config = engine_config(case, nvme_path=nvme_path)
        begin = time.perf_counter()
        self._model = build(case, config)
        self._trace = ModuleTrace(self._model)
        self.engine = initialize(self._model, config)
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
            "dtype": dtype_of(self.case),
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
        forget(run.engine)
    comm.barrier()
    if job.rank == 0:
        shutil.rmtree(swap_folder / "zero_stage_3", ignore_errors=True)
    return record
