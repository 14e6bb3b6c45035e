"""What is to be measured: sections, on how many processes each, and the shapes of known models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from simoffload.models import ModelShape, load_model

__all__ = [
    "RANKS",
    "SECTIONS",
    "MeasurementSection",
    "MeasurementStage",
    "attention_shapes",
    "lacking",
    "matmul_shapes",
    "matmul_variants",
    "stages",
]


class MeasurementSection(NamedTuple):
    """A part of the measurement that can be chosen."""

    alone: tuple[str, ...]
    """Names of the work on one process."""
    together: str | None
    """Name of the work on two and more processes."""
    limit: float
    """[s] after which it is stopped; a first compilation of DeepSpeed's operations is in it."""


SECTIONS = {
    "copies": MeasurementSection(("copies",), "copies_together", 180),
    "collectives": MeasurementSection((), "collectives", 120),
    "hbm": MeasurementSection(("hbm",), None, 60),
    "matmul": MeasurementSection(("matmul",), None, 180),
    "attention": MeasurementSection(("attention",), None, 180),
    "kernels": MeasurementSection(("kernels",), None, 60),
    "dram": MeasurementSection(("dram",), None, 120),
    "hooks": MeasurementSection((), None, 600),
    "storage": MeasurementSection(("storage", "storage_gds"), None, 900),
    "cpu_adam": MeasurementSection(("cpu_adam",), "cpu_adam_together", 600),
}
"""By the name that the user gives it, in the order in which they run."""

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
_ATTENTION_MODELS = ("opt-6.7b", "llama-3-8b", "bloom-7b1", "opt-1.3b", "llama-3-70b", "bloom-176b")
RANKS = (1, 2, 4, 8)
"""Processes that sections which need several are run on, as far as there are GPUs."""


class MeasurementStage(NamedTuple):
    """A MeasurementStage is a set of measurements that share worker processes."""

    ranks: int
    sections: tuple[str, ...]
    """Names of the sections that the worker runs."""


def stages(chosen: Sequence[str], gpus: int) -> Iterator[MeasurementStage]:
    """One process first, then groups of 2, 4 and 8 and all GPUs."""
    sections = [section for name, section in SECTIONS.items() if name in chosen]
    alone = tuple(name for section in sections for name in section.alone)
    if alone:
        yield MeasurementStage(1, alone)
    together = tuple(section.together for section in sections if section.together)
    for ranks in sorted({*(group for group in RANKS if group <= gpus), gpus} - {1}):
        if together:
            yield MeasurementStage(ranks, together)


_GIVES = {
    "copies": "host_to_device, device_to_host, pageable, both_ways and latency of pcie.yaml",
    "copies_together": "stream_fraction, from_gpu_traffic and pageable_traffic of host.yaml",
    "collectives": "interconnect of accelerator.yaml",
    "hbm": "hbm_efficiency of accelerator.yaml",
    "matmul": "matmul_efficiency of accelerator.yaml",
    "kernels": "kernel_latency of accelerator.yaml",
    "dram": "memcpy_rate and stream_fraction of host.yaml",
    "hooks": "deepspeed and training of host.yaml",
    "cpu_adam": "cpu_optimizer of host.yaml",
    "cpu_adam_together": "cpu_optimizer of host.yaml",
}
"""By work the numbers of profiles that come from it."""


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
