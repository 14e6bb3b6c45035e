"""Timed passes of a model with random weights and tokens, and the facts of its run (child process only)."""

from __future__ import annotations

import ctypes
import inspect
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers

from simoffload.models import FAMILIES
from simoffload_calibrate.child import combined, synchronize


class TimedPasses:
    """The passes of a run with their times, those of the slowest rank, and the energy of its GPUs."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._drawn = _energy_counter(torch.cuda.current_device()) if torch.cuda.is_available() else None
        self.passes: list[dict[str, Any]] = []

    def add(self, name: str, repetition: int, work: Callable[[], None]) -> None:
        """Carry out one pass and keep its time [s]."""
        synchronize()
        drawn = self._drawn() if self._drawn else 0.0
        # Reading the counter takes 3 to 15 ms, on each rank another time: they begin together all the same.
        combined(0.0, "MAX", self._device)
        begin = time.perf_counter()
        work()
        synchronize()
        slowest = combined(time.perf_counter() - begin, "MAX", self._device)
        self.passes.append({"name": name, "repetition": repetition, "seconds": slowest})
        if self._drawn:
            self.passes[-1]["gpu_joules"] = combined(self._drawn() - drawn, "SUM", self._device)


def configuration(case: Mapping[str, Any]) -> Any:
    """Return the configuration of the case's model with its implementation of attention."""
    written = dict(case["hf_config"])
    found = transformers.AutoConfig.for_model(written.pop("model_type"), **written)
    if case["attention"] is not None:
        found._attn_implementation = case["attention"]  # noqa: SLF001 (it has no public name)
    return found


def architecture(case: Mapping[str, Any]) -> Any:
    """Return the class of the case's model."""
    family = FAMILIES[case["hf_config"]["model_type"]]
    return getattr(transformers, family.traits.architecture)


def generation(
    model: torch.nn.Module, case: Mapping[str, Any], device: str, call: Callable[..., Any] | None = None
) -> Callable[[], None]:
    """Return a function that runs the next pass of a new generation at each call.

    ``call`` runs the model's forward function; by default the model itself does.
    """
    work = case["workload"]
    shape = (work["batch_size"], work["prompt_length"])
    tokens = torch.randint(0, case["hf_config"]["vocab_size"], shape, device=device)
    state: dict[str, Any] = {"tokens": tokens, "cache": new_cache(model, case)}
    last_only = "logits_to_keep" in inspect.signature(model.forward).parameters
    more = {"logits_to_keep": 1} if last_only else {}
    run = call or model

    def step() -> None:
        output = run(input_ids=state["tokens"], past_key_values=state["cache"], use_cache=True, **more)
        state["tokens"] = output.logits[:, -1:].argmax(-1)
        state["cache"] = output.past_key_values

    return step


def new_cache(model: torch.nn.Module, case: Mapping[str, Any]) -> Any:
    """Return the empty cache that ``generate`` would make for the case's section ``kv_cache``; None for the
    default one, which the model makes.

    Source: ``_prepare_cache_for_generation`` in generation/utils.py of transformers 5.23.
    """
    section, work = case.get("kv_cache"), case["workload"]
    if section is None:
        return None
    config: Any = model.config
    config = config.get_text_config(decoder=True)
    if section["format"] is not None:
        backend = {"backend": "fp8"} if section["format"] == "fp8" else {"backend": "quanto"}
        bits = {} if section["format"] == "fp8" else {"nbits": int(section["format"].removeprefix("int"))}
        return transformers.QuantizedCache(**backend, config=config, **bits)
    offloading = section["tier"] not in ("hbm", "gpu")
    if section["implementation"] == "static":
        room = work["prompt_length"] + work["output_length"] - 1
        return transformers.StaticCache(config=config, max_cache_len=room, offloading=offloading)
    return transformers.DynamicCache(config=config, offloading=offloading)


_FACTS = ("name", "model", "workload", "ds_config", "strategy", "kv_cache")


def run_facts(case: Mapping[str, Any], model: torch.nn.Module, *, ranks: int) -> dict[str, Any]:
    """Return what a record states of a run besides its times, as plain values."""
    memory = {"hbm_peak": torch.cuda.max_memory_allocated()} if torch.cuda.is_available() else {}
    facts = {key: case[key] for key in _FACTS if case.get(key)}
    return {
        **facts,
        "ranks": ranks,
        "attention": getattr(model.config, "_attn_implementation", None),
        "threads": {
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
            "torch": torch.get_num_threads(),
            "cores": len(os.sched_getaffinity(0)),
        },
        "memory": memory,
    }


_NVML = "libnvidia-ml.so.1"
_MILLI = 1e-3


def _energy_counter(gpu: int) -> Callable[[], float] | None:
    """Return a function that reads the energy of a GPU since its driver was loaded [J]; None without a
    counter.

    The driver updates the counter about ten times a second (nvmlDeviceGetTotalEnergyConsumption counts [mJ],
    from Volta on).
    """
    try:
        library = ctypes.CDLL(_NVML)
    except OSError:
        return None
    handle = ctypes.c_void_p()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(gpu, ctypes.byref(handle)):
        return None
    counted = ctypes.c_ulonglong()

    def read() -> float:
        library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(counted))
        return counted.value * _MILLI

    return None if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(counted)) else read
