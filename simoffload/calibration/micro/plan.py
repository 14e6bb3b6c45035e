"""What is to be measured: sections, on how many processes each, how often, and the shapes of known models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from simoffload.models import ModelShape, load_model

__all__ = [
    "RANKS",
    "SECTIONS",
    "WORKS",
    "Context",
    "MeasurementSection",
    "SkippedError",
    "Work",
    "attention_shapes",
    "lacking",
    "matmul_shapes",
    "matmul_variants",
    "ranks_of",
]


class SkippedError(Exception):
    """A section cannot be measured here, or failed; its text says why."""


class Context(NamedTuple):
    """What a section is told when it is to measure."""

    round: int
    """1 for the first round."""
    again: int
    """How often the section was measured in this round before."""
    seconds: float
    """[s] that it may take; it then hands back what it has."""


class MeasurementSection(NamedTuple):
    """A part of the measurement, carried out in several rounds."""

    name: str
    """Its key in the record."""
    run: Callable[[Context], Mapping[str, Any]]
    """Measures and returns what was found. Raises SkippedError."""
    seconds: float
    """[s] that a round takes about."""
    building: float = 0.0
    """[s] that the first round takes longer."""
    rounds: tuple[int, ...] = (1, 2, 3)
    """The rounds that it is measured in."""
    host: bool = True
    """Whether a slow host thread changes what is found; times that the GPU takes by itself do not change."""


class Work(NamedTuple):
    """A section as the worker knows it."""

    section: str
    """The name that the user gives it."""
    process: Literal["plain", "deepspeed", "apart"]
    """DeepSpeed replaces functions of PyTorch and so has a process of its own, as has what may crash."""
    seconds: float
    """[s] of a round on a slow host: an H100's virtual machine whose thread took 1.4 times its quiet time."""
    building: float
    """[s] added in the first round: memory is allocated and models are built."""
    quick: float
    """[s] of the only round of a quick measurement, building included."""
    rounds: tuple[int, ...] = (1, 2, 3)
    host: bool = True
    ranks: Literal["one", "several", "any", "ends"] = "one"
    """Numbers of processes: "any" is one and several, "ends" one and the most."""


WORKS = {
    "copies": Work("copies", "plain", 4.5, 0.5, 5.0),
    "kernels": Work("kernels", "plain", 0.8, 0.2, 0.8, rounds=(1, 3), host=False),
    "dram": Work("dram", "plain", 1.4, 0.8, 0.7),
    "hbm": Work("hbm", "plain", 0.7, 0.2, 0.7, rounds=(1, 3), host=False),
    "matmul": Work("matmul", "plain", 8.0, 0.5, 3.5, rounds=(1, 3), host=False),
    "hooks_decode": Work("hooks", "deepspeed", 10.0, 22.0, 24.0, ranks="any"),
    "cpu_adam": Work("cpu_adam", "deepspeed", 2.0, 2.0, 1.6),
    "hooks_training": Work("hooks", "deepspeed", 16.0, 36.0, 28.0, ranks="ends"),
    "storage": Work("storage", "deepspeed", 35.0, 5.0, 20.0, rounds=(1, 2)),
    "copies_together": Work("copies", "deepspeed", 4.0, 1.0, 4.0, rounds=(1, 2), ranks="several"),
    "collectives": Work("collectives", "deepspeed", 3.0, 1.0, 3.0, rounds=(1, 2), ranks="several"),
    "cpu_adam_together": Work("cpu_adam", "deepspeed", 4.0, 3.0, 2.0, rounds=(1, 2), ranks="several"),
    "attention": Work("attention", "plain", 3.0, 0.5, 1.2, rounds=(1,), host=False),
    "storage_gds": Work("storage", "apart", 10.0, 10.0, 20.0, rounds=(1,), host=False),
}
"""In the order of a round: what predictions need most, and what is short, comes first."""
SECTIONS = tuple(dict.fromkeys(work.section for work in WORKS.values()))
"""Names that the user gives."""

_MODELS = (
    "opt-6.7b",
    "llama-3-8b",
    "opt-1.3b",
    "bloom-7b1",
    "opt-30b",
    "opt-66b",
    "llama-3-70b",
    "bloom-176b",
)
_VARIANT_MODELS = ("opt-6.7b", "llama-3-8b")
_ATTENTION_MODELS = ("opt-6.7b", "llama-3-8b", "bloom-7b1")
RANKS = (1, 2, 4, 8)
"""Processes that sections which need several are run on, as far as there are GPUs."""


def ranks_of(work: Work, gpus: int) -> list[int]:
    """Numbers of processes that a section is measured on: one, groups of 2, 4 and 8, and all GPUs."""
    groups = sorted({*(group for group in RANKS if group <= gpus), gpus})
    chosen = {"one": groups[:1], "several": groups[1:], "any": groups, "ends": sorted({1, gpus})}
    return chosen[work.ranks]


_GIVES = {
    "copies": "host_to_device, device_to_host, pageable, both_ways and latency of pcie.yaml",
    "copies_together": "stream_fraction, from_gpu_traffic and pageable_traffic of host.yaml",
    "collectives": "interconnect of accelerator.yaml",
    "hbm": "hbm_efficiency of accelerator.yaml",
    "matmul": "matmul_efficiency of accelerator.yaml",
    "kernels": "kernel_latency of accelerator.yaml",
    "dram": "memcpy_rate and stream_fraction of host.yaml",
    "hooks": "deepspeed and training of host.yaml",
    "hooks_decode": "deepspeed of host.yaml",
    "hooks_training": "training of host.yaml",
    "cpu_adam": "cpu_optimizer of host.yaml",
    "cpu_adam_together": "cpu_optimizer of host.yaml",
}
"""By section the numbers of profiles that come from it."""


def lacking(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """What profiles lack of a record whose run was ended early, a sentence for each section."""
    sentences = []
    for key in raw.get("unfinished", ()):
        given = _GIVES.get(str(key).partition("/")[0])
        what = f"the other platform gives {given}" if given else "no number of the profiles depends on it"
        what = "there is no drive.yaml" if key == "storage" else what
        sentences.append(f"{key} was not measured, as the run ended before: {what}")
    return tuple(sentences)


def _linear_shapes(model: ModelShape) -> Iterator[tuple[int, int]]:
    for module in (*model.layer, *model.modules_after):
        if module.kind == "linear" and module.in_features and module.out_features:
            yield module.in_features, module.out_features


def matmul_shapes() -> list[tuple[int, int]]:
    """Pairs (in, out) of the linear layers of known models, each once; the most common models first."""
    return list(dict.fromkeys(pair for name in _MODELS for pair in _linear_shapes(load_model(name))))


def matmul_variants() -> list[tuple[int, int]]:
    """Those pairs that are also measured in float16, with bias, and spelled with ``@``."""
    return list(dict.fromkeys(pair for name in _VARIANT_MODELS for pair in _linear_shapes(load_model(name))))


def attention_shapes() -> list[dict[str, Any]]:
    """Family, heads and width of the attention of known models."""
    found = []
    for name in _ATTENTION_MODELS:
        model = load_model(name)
        found.append(
            {
                "model": name,
                "family": model.family,
                "heads": model.num_attention_heads,
                "kv_heads": model.num_key_value_heads,
                "head_dim": model.head_dim,
            }
        )
    return found
