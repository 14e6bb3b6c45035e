"""What a run gives to vLLM: the options of its engine, the model's config.json, and requests.

Keys are those of ``EngineArgs`` of vLLM 0.25.1 (``engine/arg_utils.py``) and of Hugging Face.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from simoffload.errors import InputError
from simoffload.models import FAMILIES, ModelShape
from simoffload.scenario.streams import StreamOptions
from simoffload.serving.requests import Requests, drawn
from simoffload.serving.traces import read_trace
from simoffload.strategies.cache.kv_cache import DEFAULT
from simoffload.strategies.programs.tensor_parallel import TensorParallel
from simoffload.strategies.programs.vllm import VllmCpuOffload

ServedStrategy = TensorParallel | VllmCpuOffload
_OFFLOADED = ("cpu_offload_gb", "offload_group_size", "offload_num_in_group", "offload_prefetch_step")
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}
"""The engine and its scheduler in one process, where steps are seen, without any network."""
_FEW_GRAPHS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Batch sizes whose CUDA graphs are captured for a first look: the others take half of the engine's start."""


def engine_settings(
    strategy: ServedStrategy, stream: StreamOptions | None, shape: ModelShape, hf_config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of an engine and the content of its config.json.

    Raises InputError for settings that a run with random weights on one replica does not follow.
    """
    _check(strategy, stream)
    form = "" if shape.quantization is None else shape.quantization
    options: dict[str, Any] = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "seed": 0,
        "dtype": shape.dtype,
        "gpu_memory_utilization": strategy.gpu_memory_utilization,
        "max_num_batched_tokens": strategy.max_num_batched_tokens,
        "num_gpu_blocks_override": strategy.kv_blocks,
        "tensor_parallel_size": strategy.tensor_parallel_size,
        "pipeline_parallel_size": strategy.pipeline_parallel_size,
        "enforce_eager": not strategy.compiled,
        "quantization": "fp8" if form == "fp8" else None,
    }
    if isinstance(strategy, VllmCpuOffload):
        options |= {key: getattr(strategy, key) for key in _OFFLOADED if getattr(strategy, key)}
    if stream is not None:
        stated = {
            "max_num_batched_tokens": stream.max_num_batched_tokens,
            "num_gpu_blocks_override": stream.kv_blocks,
            "max_num_seqs": stream.max_num_seqs,
            "block_size": stream.block_size,
            "enable_prefix_caching": None if stream.enable_prefix_caching else False,
            "async_scheduling": None if stream.async_scheduling else False,
        }
        options |= {key: value for key, value in stated.items() if value is not None}
    config = {
        **hf_config,
        "architectures": [FAMILIES[shape.family].traits.architecture],
        "torch_dtype": shape.dtype,
        **_quantization_config(form),
    }
    return {"options": {key: one for key, one in options.items() if one is not None}, "config": config}


def _check(strategy: ServedStrategy, stream: StreamOptions | None) -> None:
    tier = strategy.offload_tier if isinstance(strategy, VllmCpuOffload) else "dram"
    if strategy.data_parallel_size > 1:
        raise InputError.at("strategy.data_parallel_size", "one replica runs; set it to 1")
    if strategy.kv_cache != DEFAULT:
        raise InputError.at("strategy.kv_cache", "runs have vLLM's own cache in HBM; remove the section")
    if tier != "dram":
        raise InputError.at("strategy.offload_tier", f"vLLM offloads to dram, not to {tier}; remove it")
    if stream is not None and stream.scheduler != "vllm":
        raise InputError.at("stream.scheduler", f"vLLM has no {stream.scheduler} batches; remove it")


def _quantization_config(form: str) -> dict[str, Any]:
    """Return the keys of a config.json with which vLLM stores random weights in a form."""
    if form in ("", "fp8"):  # FP8 is an option of the engine, which quantizes at loading
        return {}
    bits, _, group = form.partition("-g")
    if bits in ("int4", "int8") and group:
        weights = {"num_bits": int(bits[3:]), "type": "int", "symmetric": True, "strategy": "group"}
        groups = {"group_0": {"targets": ["Linear"], "weights": {**weights, "group_size": int(group)}}}
        section: dict[str, Any] = {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "ignore": ["lm_head"],
            "config_groups": groups,
        }
    elif form == "mxfp4":
        kept = ("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head")
        section = {"quant_method": "mxfp4", "modules_to_not_convert": list(kept)}
    else:
        text = f'"{form}" cannot be run with random weights; use none, fp8, int4-g128 or, of gpt-oss, mxfp4'
        raise InputError.at("model.quantization", text)
    return {"quantization_config": section}


def quick_settings(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an engine that starts sooner, as it captures fewer CUDA graphs."""
    return {**engine, "options": {**engine["options"], "cudagraph_capture_sizes": list(_FEW_GRAPHS)}}


def environment(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that an engine needs, but for those that the user has set."""
    needed = dict(_ENVIRONMENT)
    if find_spec("flashinfer") is None:
        needed["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    if any(options.get(key) for key in _OFFLOADED):
        needed["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # that of 0.25 ignores offloading without a word
    return {key: os.environ.get(key, value) for key, value in needed.items()}


# -- requests --------------------------------------------------------------------------------------


def stream_requests(options: StreamOptions, root: Path | None, *, limit: int | None) -> dict[str, Any]:
    """Return the requests of a stream as columns; ``limit`` is the number of positions of the model.

    Raises InputError for a trace that cannot be read, and for requests that are too long.
    """
    if options.trace is None:
        requests = drawn(options)
    else:
        draw = np.random.default_rng(np.random.SeedSequence(options.seed, spawn_key=(0,)))
        requests = read_trace(options, root=root, draw=draw).requests
    longest = int((requests.prompt + requests.output).max())
    if limit is not None and longest > limit:
        raise InputError.at("stream", f"{longest} tokens in total exceed the {limit} positions of the model")
    return _columns(requests)


def _columns(requests: Requests) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "arrival": requests.arrival.tolist(),
        "prompt": requests.prompt.tolist(),
        "output": requests.output.tolist(),
    }
    if any(requests.runs):
        columns["runs"] = [one and [list(run) for run in one] for one in requests.runs]
    if not requests.is_open:
        columns["after"] = requests.after.tolist()
    return columns


def longest_request(works: Iterable[Mapping[str, Any]]) -> int:
    """Return the most tokens of a request of several runs, prompt and output together."""
    return max(
        max(map(sum, zip(one["prompt"], one["output"], strict=True)))
        if "prompt" in one
        else one["prompt_length"] + one["output_length"]
        for one in works
    )
