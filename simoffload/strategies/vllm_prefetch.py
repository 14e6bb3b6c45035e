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


def groups(layers: int) -> tuple[tuple[int, int, int], ...]:
    """Return all numbers of ``layers`` that can be offloaded, each with the size of a group and its offloaded
    layers, the smallest of several equal ones."""
    found: dict[int, tuple[int, int]] = {}
    for group in range(1, layers + 1):
        for number in range(1, group + 1):
            full, rest = divmod(layers, group)
            count = full * number + max(0, rest - (group - number))
            found.setdefault(count, (group, number))
    return tuple((count, *found[count]) for count in sorted(found))


def prefetching(model: ModelShape, sizes: Mapping[str, int], *, gpus: int) -> Split:
    """Return a split by the number of layers of each GPU that stay on it, the others prefetched with two
    slots."""
    stages = sizes["pipeline_parallel_size"]
    layers = model.num_hidden_layers // stages
    choices = (*groups(layers)[::-1], (0, 0, 0))
    several = {key: size for key, size in sizes.items() if size > 1}

    def section(count: int) -> dict[str, Any]:
        offloaded, group, number = choices[count]
        if not offloaded:
            return {"kind": "vllm_cpu_offload", **several}
        keys = {"offload_group_size": group, "offload_num_in_group": number}
        keys |= {"offload_prefetch_step": min(2, offloaded)}
        more = {key: value for key, value in keys.items() if value > 1 or key == "offload_group_size"}
        return {"kind": "vllm_cpu_offload", **several, **more}

    def description(count: int) -> str:
        offloaded, *_ = choices[count]
        how = f"with {offloaded} of {layers} layers prefetched" if offloaded else "without offload"
        return f"vLLM on {plural(gpus, 'GPU')} {how}"

    return Split(len(choices) - 1, section, description, "prefetch")
