"""Groups of layers of which vLLM prefetches some: all numbers of layers that can be offloaded, as a split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simoffload.models import ModelShape, Module
from simoffload.strategies.terms import Split
from simoffload.units import plural


def stored_bytes_of(model: ModelShape) -> Callable[[Module], int]:
    """Return a function from a module to the size of its tensors [B]."""
    return lambda module: sum(one.stored_bytes(model.dtype_bytes) for one in module.parameters)


def group_of(layers: int, count: int) -> tuple[int, int]:
    """Return the size of the smallest group of layers, and its number of offloaded ones, with which ``count``
    of ``layers`` are offloaded: the last ones of each full group, and what is left of them in the rest."""
    for group in range(1, layers + 1):
        full, rest = divmod(layers, group)
        number, more = divmod(count, full)
        if number > group - rest:
            number, more = divmod(count + group - rest, full + 1)
        if not more and 0 < number <= group:
            return group, number
    raise ValueError(f"{count} of {layers} layers cannot be offloaded")


def prefetching(model: ModelShape, sizes: Mapping[str, int], *, gpus: int) -> Split:
    """Return a split by the number of layers of each GPU that stay on it, the others prefetched with two
    slots."""
    stages = sizes["pipeline_parallel_size"]
    layers = model.num_hidden_layers // stages
    several = {key: size for key, size in sizes.items() if size > 1}

    def section(resident: int) -> dict[str, Any]:
        offloaded = layers - resident
        if not offloaded:
            return {"kind": "vllm_cpu_offload", **several}
        group, number = group_of(layers, offloaded)
        keys = {"offload_group_size": group, "offload_num_in_group": number}
        keys |= {"offload_prefetch_step": min(2, offloaded)}
        more = {key: value for key, value in keys.items() if value > 1 or key == "offload_group_size"}
        return {"kind": "vllm_cpu_offload", **several, **more}

    def description(resident: int) -> str:
        offloaded = layers - resident
        how = f"with {offloaded} of {layers} layers prefetched" if offloaded else "without offload"
        return f"vLLM on {plural(gpus, 'GPU')} {how}"

    return Split(layers, section, description, "prefetch")
