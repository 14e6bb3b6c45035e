"""Every way to offload weights with every key-value cache, as sections of scenarios: which of them exist.

``generate.py`` makes a page of the answers, and ``tests/strategies/test_combinations.py`` simulates each.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from simoffload.documents import parse_yaml, yaml_text
from simoffload.errors import InputError
from simoffload.scenario import LoadedScenario, resolve
from simoffload.strategies import registry

EXAMPLE = Path(__file__).parents[1] / "examples" / "three_tiers.py"
Section = Mapping[str, Any]

_PLAIN: Section = {"kind": "transformers"}
_ZERO: Section = {"kind": "deepspeed"}
_VLLM: Section = {"kind": "vllm"}
_FEW: Section = {"zero_optimization": {"stage": 3, "offload_param": {"buffer_size": 300_000_000}}}
FLEXGEN = "FlexGen"

WEIGHTS: Mapping[str, Section] = {
    "Accelerate, host memory": {"kind": "accelerate", "device_map": "cpu"},
    "Accelerate, disk": {"kind": "accelerate", "device_map": "disk", "offload_folder": "raid"},
    "Accelerate, several GPUs": {"kind": "accelerate", "num_gpus": 2, "device_map": 20},
    "ZeRO-Inference, host memory": {**_ZERO, "weights": "dram"},
    "ZeRO-Inference, NVMe": {**_ZERO, "weights": "raid", "ranks": 2, "ds_config": _FEW},
    "ZeRO-Inference, layers divided": {**_ZERO, "weights": "dram", "ranks": 2, "tensor_parallel_size": 2},
    "transformers": _PLAIN,
    "transformers, tensor parallel": {**_PLAIN, "tensor_parallel_size": 2},
    "transformers, pipeline": {**_PLAIN, "pipeline_parallel_size": 2},
    "vLLM, tensor parallel": {**_VLLM, "tensor_parallel_size": 2},
    "vLLM, pipeline": {**_VLLM, "pipeline_parallel_size": 2},
    "gpt-fast": {"kind": "gpt_fast", "tensor_parallel_size": 2},
    "vLLM, read in place": {**_VLLM, "cpu_offload_gb": 4},
    "vLLM, prefetched": {**_VLLM, "offload_group_size": 4},
    "vLLM, prefetched from NVMe": {**_VLLM, "offload_group_size": 4, "offload_tier": "raid"},
    FLEXGEN: {"kind": "flexgen", "weights_gpu_percent": 20, "weights_cpu_percent": 80},
    "homes and hooks": {"kind": "three_tiers", "disk": "raid", "pinned": 10, "pageable": 10},
}
"""Sections ``strategy`` by what is done with weights."""
CACHES: Mapping[str, Section] = {
    "in HBM": {},
    "offloaded": {"tier": "dram"},
    "static": {"implementation": "static"},
    "4 bits": {"format": "int4"},
    "fp8": {"format": "fp8"},
    "streamed, host memory": {"tier": "dram", "implementation": "streamed"},
    "streamed, storage": {"tier": "raid", "implementation": "streamed"},
    "attention on the CPU": {"tier": "dram", "implementation": "cpu_attention"},
    "blocks, at once": {"connector": {"tier": "dram", "prefix": 64}},
    "blocks, by layer": {"connector": {"tier": "dram", "prefix": 64, "layerwise": True}},
}
"""Sections ``strategy.kv_cache`` by the name of the cache."""
_FLEXGEN_KEYS: Mapping[str, Section] = {
    "in HBM": {},
    "offloaded": {"cache_gpu_percent": 0, "cache_cpu_percent": 100},
    "4 bits": {"compress_cache": True},
    "attention on the CPU": {"cache_gpu_percent": 0, "cache_cpu_percent": 100, "cpu_attention": True},
    "streamed, storage": {"cache_gpu_percent": 0, "cache_cpu_percent": 0, "disk": "raid"},
}
"""FlexGen's own keys for caches that it has."""


class Cell(NamedTuple):
    """A Cell is one way of offloading weights with one cache."""

    weights: str
    cache: str

    @property
    def strategy(self) -> dict[str, Any]:
        """Section ``strategy`` of its scenario."""
        section = WEIGHTS[self.weights]
        if self.weights == FLEXGEN and self.cache in _FLEXGEN_KEYS:
            return {**section, **_FLEXGEN_KEYS[self.cache]}
        return {**section, **({"kv_cache": dict(found)} if (found := CACHES[self.cache]) else {})}

    def load(self) -> LoadedScenario:
        """Return its scenario. Raises InputError if the program refuses it."""
        content = {
            "name": "combination",
            "model": "opt-6.7b",
            "platform": "dgx-a100",
            "workload": {"batch_size": 2, "prompt_length": 96, "output_length": 4},
            "strategy": self.strategy,
        }
        return resolve(parse_yaml(yaml_text(content), name="combination.yaml"))

    def answer(self) -> str:
        """Return "yes" if the real program has it, "what-if: …" or "no: …" with the reason."""
        try:
            what_if = self.load().plan().facts.hypothetical
        except InputError as error:
            return f"no: {'; '.join(f'`{one.key}`: {one.message}' for one in error.problems)}"
        return f"what-if: {what_if}" if what_if else "yes"


CELLS = [Cell(weights, cache) for weights in WEIGHTS for cache in CACHES]


@contextmanager
def example() -> Iterator[None]:
    """Let scenarios name the program of ``examples/three_tiers.py`` for the time of a ``with`` statement."""
    registered = dict(registry.registered)
    try:
        runpy.run_path(str(EXAMPLE), run_name="three_tiers")
        yield
    finally:
        registry.registered.clear()
        registry.registered.update(registered)
