"""The plan of a measurement: sections, their processes and rounds, and the shapes of known models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from simoffload.errors import InputError, Problem
from simoffload.models import ModelShape, load_model

__all__ = [
    "SECTIONS",
    "SECTION_PLANS",
    "Context",
    "MeasurementRequest",
    "MeasurementSection",
    "SectionPlan",
    "SkippedError",
    "attention_shapes",
    "counts_of",
    "matmul_shapes",
    "matmul_variants",
    "missing_sections",
    "ranks_of",
    "refusal",
]


class MeasurementRequest(NamedTuple):
    """A request for a measurement, as the user stated it."""

    sections: tuple[str, ...]
    """The names of the sections to measure, of ``SECTIONS``."""
    gpus: int | None
    """The number of GPUs to use; None for all."""
    storage: Path | None
    """The folder in which storage is measured."""
    storage_size: int | None
    """[B] Size of the files that are written; None for 2 GiB or a quarter of the free space."""
    quick: bool
    """Whether to measure one round with fewer points."""
    record: Path | None = None
    """The file that is rewritten after every section, so that a run that ends early loses nothing."""
    seconds: float | None = None
    """[s] Time limit of the measurement; None for the usual time."""
    resumed: Mapping[str, Any] | None = None
    """The record of an earlier run that this one continues."""


def refusal(option: str, message: str) -> InputError:
    """Return an InputError about an option of the command line."""
    return InputError((Problem(option, None, None, "", message),))


class SkippedError(Exception):
    """A section cannot be measured on this machine, or failed; the text of the exception is the reason."""


class Context(NamedTuple):
    """The circumstances of one measurement of a section."""

    round: int
    """The number of the round, counted from 1."""
    again: int
    """The number of earlier measurements of the section in this round."""
    seconds: float
    """[s] Time limit, after which the section returns the results that it has."""


class MeasurementSection(NamedTuple):
    """A section of the measurement on this machine, which is measured in several rounds."""

    name: str
    """The key of the section in the record."""
    run: Callable[[Context], Mapping[str, Any]]
    """The function that measures and returns the results. It raises SkippedError."""
    seconds: float
    """[s] Expected time of a round."""
    building: float = 0.0
    """[s] Additional time of the first round."""
    rounds: tuple[int, ...] = (1, 2, 3)
    """The rounds in which the section is measured."""
    host: bool = True
    """Whether a slow host thread changes the results; times that depend on the GPU alone do not change."""
    once: bool = False
    """Whether later rounds only measure what time did not allow in an earlier one."""

    @property
    def expected_rounds(self) -> int:
        """The number of rounds in which it is measured if time suffices."""
        return 1 if self.once else len(self.rounds)


class SectionPlan(NamedTuple):
    """The plan of a section on any machine."""

    section: str
    """The name of the section on the command line."""
    process: Literal["plain", "deepspeed", "separate"]
    """The kind of process: DeepSpeed replaces functions of PyTorch, and a separate process may crash."""
    seconds: float
    """[s] Time of a round on a slow host: an H100's virtual machine at 1.4 times its shortest time; of each
    number of GPUs in ``counts``."""
    building: float
    """[s] Additional time of the first round, in which memory is allocated and models are built."""
    quick: float | None
    """[s] Time of the only round of a quick measurement, ``building`` included; of each number of GPUs. None:
    not part of it."""
    rounds: tuple[int, ...] = (1, 2, 3)
    """The rounds in which the section is measured."""
    host: bool = True
    """Whether a slow host thread changes the results."""
    once: bool = False
    """Whether later rounds only measure what time did not allow in an earlier one."""
    ranks: Literal["one", "most", "extremes"] = "one"
    """The numbers of processes: "most" is one for each GPU, "extremes" one and the most."""
    fewest: int = 2
    """The fewest GPUs with which "most" is measured."""
    counts: tuple[int, ...] = ()
    """Numbers of GPUs that work at once within the group of all; all of them are always measured."""


SECTION_PLANS = {
    "copies": SectionPlan("copies", "plain", 4.5, 0.5, 5.0),
    "kernels": SectionPlan("kernels", "plain", 0.8, 0.2, 0.8, rounds=(1,), host=False),
    "dram": SectionPlan("dram", "plain", 1.4, 0.8, 0.7),
    "hbm": SectionPlan("hbm", "plain", 0.7, 0.2, 0.7, rounds=(1,), host=False),
    "matmul": SectionPlan("matmul", "plain", 8.0, 0.5, 3.5, rounds=(1, 3), host=False),
    "hooks_decode": SectionPlan("hooks", "deepspeed", 10.0, 22.0, 24.0, ranks="extremes"),
    "eager": SectionPlan("eager", "plain", 2.0, 5.4, 4.0, rounds=(1,)),
    "eager_together": SectionPlan("eager", "deepspeed", 2.0, 6.0, 6.0, rounds=(1,), ranks="most"),
    "cpu_adam": SectionPlan("cpu_adam", "deepspeed", 2.3, 2.1, 1.8, rounds=(1, 2)),
    "hooks_training": SectionPlan("hooks", "deepspeed", 16.0, 36.0, 28.0, ranks="extremes"),
    "storage": SectionPlan("storage", "deepspeed", 35.0, 5.0, 20.0, rounds=(1, 2)),
    "copies_together": SectionPlan(
        "copies", "deepspeed", 1.3, 3.5, 1.0, rounds=(1, 2), ranks="most", counts=(1, 2, 3, 4, 6, 8)
    ),
    "copies_subsets": SectionPlan(
        "copies", "deepspeed", 10.0, 0.5, None, rounds=(1, 2), host=False, once=True, ranks="most", fewest=3
    ),
    "collectives": SectionPlan(
        "collectives", "deepspeed", 2.2, 3.0, 2.5, rounds=(1,), ranks="most", counts=(2, 4, 8)
    ),
    "cpu_adam_together": SectionPlan("cpu_adam", "deepspeed", 7.0, 4.0, 2.5, rounds=(1, 2), ranks="most"),
    "attention": SectionPlan("attention", "plain", 3.0, 0.5, 1.2, rounds=(1,), host=False),
    "storage_gds": SectionPlan("storage", "separate", 10.0, 10.0, 20.0, rounds=(1,), host=False),
}
"""The sections in the order of a round: short ones, and those that matter most to predictions, come first."""
SECTIONS = tuple(dict.fromkeys(plan.section for plan in SECTION_PLANS.values()))
"""The names of sections on the command line."""

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


def ranks_of(plan: SectionPlan, gpus: int) -> list[int]:
    """Return the numbers of processes on which a section is measured: 1, the number of GPUs, or both; none if
    these are too few."""
    chosen = {"one": [1], "most": [gpus] if gpus >= plan.fewest else [], "extremes": sorted({1, gpus})}
    return chosen[plan.ranks]


def counts_of(plan: SectionPlan, ranks: int) -> list[int]:
    """Return the numbers of GPUs that work at once in a group of ``ranks``, in rising order."""
    return sorted({*(count for count in plan.counts if count < ranks), ranks})


_GIVES = {
    "copies": "host_to_device, device_to_host, pageable, both_ways and latency of pcie.yaml",
    "copies_together": "stream_fraction, from_gpu_traffic and pageable_traffic of host.yaml",
    "collectives": "interconnect of accelerator.yaml",
    "hbm": "hbm_efficiency of accelerator.yaml",
    "matmul": "matmul_efficiency and float16_share of accelerator.yaml",
    "attention": "fused_attention and eager_attention of accelerator.yaml",
    "kernels": "kernel_latency, strided_rate and join_rate of accelerator.yaml",
    "dram": "memcpy_rate, stream_fraction and pinned_allocation of host.yaml",
    "hooks": "deepspeed and training of host.yaml",
    "hooks_decode": "deepspeed of host.yaml",
    "hooks_training": "training of host.yaml",
    "eager": "eager of host.yaml",
    "eager_together": "eager.all_reduce of host.yaml",
    "cpu_adam": "cpu_optimizer of host.yaml",
    "cpu_adam_together": "cpu_optimizer of host.yaml",
}
"""The values of profiles that each section gives."""


_WITHOUT = {
    "storage": "no drive.yaml is written",
    "copies_subsets": "platform.yaml does not show which GPUs share a switch or a socket",
}
"""What the lack of a section means where no value comes from the other platform instead."""


def missing_sections(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each section that a record lacks because its run ended early."""
    begun = {one["section"] for one in raw.get("rounds", ())}
    sentences = []
    for key in raw.get("unfinished", ()):
        name = str(key).partition("/")[0]
        effect = _WITHOUT.get(name, "no value of the profiles depends on it")
        if given := _GIVES.get(name):
            effect = f"{given} come from the other platform"
        verb = "completed" if key in begun else "measured"
        sentences.append(f"{key} was not {verb} because the run ended early: {effect}")
    return tuple(sentences)


def _linear_shapes(model: ModelShape) -> Iterator[tuple[int, int]]:
    for module in (*model.layers[0], *model.modules_after):
        if module.kind == "linear" and module.in_features and module.out_features:
            yield module.in_features, module.out_features


def matmul_shapes() -> list[tuple[int, int]]:
    """Return the pairs (in, out) of the linear layers of known models, each once, common models first."""
    return list(dict.fromkeys(pair for name in _MODELS for pair in _linear_shapes(load_model(name))))


def matmul_variants() -> list[tuple[int, int]]:
    """Return the pairs that are also measured in float16, with bias, and as the operator ``@``."""
    return list(dict.fromkeys(pair for name in _VARIANT_MODELS for pair in _linear_shapes(load_model(name))))


def attention_shapes() -> list[dict[str, Any]]:
    """Return family, heads and width of the attention of known models."""
    shapes = []
    for name in _ATTENTION_MODELS:
        model = load_model(name)
        shapes.append(
            {
                "model": name,
                "family": model.family,
                "heads": model.num_attention_heads,
                "kv_heads": model.num_key_value_heads,
                "head_dim": model.head_dim,
            }
        )
    return shapes
