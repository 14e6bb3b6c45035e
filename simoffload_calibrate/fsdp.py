"""A training run under PyTorch's FSDP, which is a task of one process per rank (child process only).

A unit is a decoder layer, as ``transformer_auto_wrap_policy`` makes them of a class; checkpointing is that of
transformers. What is timed is what the recorded runs have (docs/measurements/fsdp.md): whole steps with a
wait at their end, and three more with a wait after each part.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import distributed
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from simoffload_calibrate.child import Job, release_memory
from simoffload_calibrate.passes import TimedPasses, architecture, configuration, run_facts

_WARM_UP, _IN_PARTS = 2, 3
"""Numbers of steps that are not timed, and of those that are timed part by part."""
_SPREAD = 0.02
"""The standard deviation of random weights, as in the models' own initialization."""
_PREFETCH = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST, "none": None}


def _filled(case: Mapping[str, Any]) -> torch.nn.Module:
    """Return the case's model in host memory with random weights, in single precision unless the shards have
    the model's type; zeros would not do, as products of them draw less power."""
    work, strategy = case["workload"], case["strategy"]
    dtype = torch.float32 if strategy["mixed_precision"] else getattr(torch, case["dtype"])
    with torch.device("meta"):
        model: Any = architecture(case)._from_config(configuration(case), dtype=dtype)  # noqa: SLF001
    model.to_empty(device="cpu")
    for name, buffer in model.named_buffers():  # frequencies of rotary positions, which any numbers stand for
        if buffer.is_floating_point():
            model.get_buffer(name).copy_(torch.rand(buffer.shape))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0.0, _SPREAD)
        else:
            parameter.data.fill_(1.0)
    model.tie_weights()
    if work["gradient_checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": work["use_reentrant"]})
    model.config.use_cache = False
    model.train()
    assert isinstance(model, torch.nn.Module)
    return model


def _wrapped(case: Mapping[str, Any], model: torch.nn.Module, device: str) -> FullyShardedDataParallel:
    strategy, dtype = case["strategy"], getattr(torch, case["dtype"])
    names = set(getattr(model, "_no_split_modules", None) or ())
    layers = {type(one) for one in model.modules() if type(one).__name__ in names}
    mixed = MixedPrecision(param_dtype=dtype, reduce_dtype=dtype, buffer_dtype=dtype)
    full = strategy["reshard_after_forward"]
    return FullyShardedDataParallel(
        model,
        sharding_strategy=ShardingStrategy.FULL_SHARD if full else ShardingStrategy.SHARD_GRAD_OP,
        cpu_offload=CPUOffload(offload_params=strategy["cpu_offload"]),
        auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls=layers),
        backward_prefetch=_PREFETCH[strategy["backward_prefetch"]],
        mixed_precision=mixed if strategy["mixed_precision"] else None,
        limit_all_gathers=strategy["limit_all_gathers"],
        device_id=torch.device(device),
    )


class _Steps:
    """Training steps of one case on this rank."""

    def __init__(self, case: Mapping[str, Any], device: str) -> None:
        work = case["workload"]
        self.model = _wrapped(case, _filled(case), device)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        shape = (work["batch_size"], work["sequence_length"])
        self._tokens = torch.randint(0, case["hf_config"]["vocab_size"], shape, device=device)
        self._micro_steps = int(work["gradient_accumulation_steps"])

    def parts(self) -> Iterator[tuple[str, int, Callable[[], None]]]:
        """Yield the passes of a step with their micro-steps; each must run before the next is asked for."""
        for number in range(self._micro_steps):
            last, kept = number == self._micro_steps - 1, dict[str, Any]()
            with contextlib.nullcontext() if last else self.model.no_sync():
                yield "forward", number, partial(self._forward, kept)
                yield "backward", number, lambda kept=kept: kept.pop("loss").backward()  # type: ignore[misc]
        yield "optimizer", self._micro_steps - 1, self._update

    def _forward(self, kept: dict[str, Any]) -> None:
        kept["loss"] = self.model(input_ids=self._tokens, labels=self._tokens, use_cache=False).loss

    def _update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()

    def step(self) -> None:
        """Carry out all passes of a step, without a wait between them."""
        for _, _, part in self.parts():
            part()


def carry_out(job: Job) -> dict[str, Any]:
    """Run the case of a task and return its record."""
    case, threads = job.data["case"], torch.get_num_threads()
    if not distributed.is_initialized():
        distributed.init_process_group("gloo" if job.device == "cpu" else "nccl", rank=0, world_size=1)
    if job.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    try:
        torch.set_num_threads(case["strategy"]["cpu_threads"] or (1 if job.ranks > 1 else threads))
        return _measured(case, job)
    finally:
        torch.set_num_threads(threads)
        release_memory()


def _measured(case: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """Return the record of a case, whose model is released with the return."""
    begin = time.perf_counter()
    steps = _Steps(case, job.device)
    loading, times = time.perf_counter() - begin, TimedPasses(job.device)
    for _ in range(_WARM_UP):
        steps.step()
    for number in range(case["workload"]["steps"]):
        times.add("step", number, steps.step)
    for number in range(_IN_PARTS):
        for name, micro_step, part in steps.parts():
            times.add(name, number, part)
            times.passes[-1]["micro_step"] = micro_step
    return {
        **run_facts(case, steps.model.module, ranks=job.ranks),
        "dtype": case["dtype"],
        "loading_s": round(loading, 3),
        "passes": times.passes,
    }
