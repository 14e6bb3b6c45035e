"""Machines, models and a short way from a plan to its times."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from simoffload.engine import execute
from simoffload.extensions.storage.program import CheckpointPlan, plan_checkpoint
from simoffload.extensions.storage.result import Outlook
from simoffload.hardware import Machine, load_platform
from simoffload.hardware.quantities import RateCurve
from simoffload.models import LayerGroup, ModelShape, load_model
from simoffload.models.modules import linear
from simoffload.strategies.base import Phase
from simoffload.workload import Checkpointing


@cache
def machine_of(platform: str, nodes: int = 1) -> Machine:
    return load_platform(platform).machine(nodes=nodes)


RATES = machine_of("h200-8nvme").host
NEW, CACHE = RATES.fresh_memory, RATES.cached_files
FRESH_FROM_GPU_S, FRESH_READ_S, FRESH_COPY_S = (
    1 / one.value for one in (NEW.from_gpu, NEW.from_page_cache, NEW.huge_pages)
)
PAGE_CACHE_S, FILE_COPY_S = 1 / CACHE.write.value, 1 / CACHE.copy_file.value
CRC32_S = 1 / RATES.checksum_rate.value
"""[s/B] beyond the copies: memory that is new, finding pages of the page cache, checksums."""


@cache
def phi() -> ModelShape:
    """Phi-3-mini as `from_pretrained` loads it: fp32; its fused projections are apart here."""
    sizes = {"num_hidden_layers": 32, "hidden_size": 3072, "intermediate_size": 8192, "vocab_size": 32064}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 32}
    return load_model({"family": "llama", "dtype": "float32", **sizes, **heads})


@cache
def squares(count: int, width: int) -> ModelShape:
    """fp32 matrices and nothing else."""
    shape = load_model({"family": "llama", "dtype": "float32", "num_hidden_layers": count, "hidden_size": 64,
                        "intermediate_size": 64, "num_attention_heads": 1, "vocab_size": 64})  # fmt: skip
    layers = (LayerGroup(((linear("w", width, width),),), count),)
    return replace(shape, modules_before=(), groups=layers, modules_after=())


def with_memcpy(machine: Machine, rate: int, *, pageable: int | None = None) -> Machine:
    """The machine with the rate of copies of a thread and, if given, of pageable memory to and from a GPU."""
    measured = machine.host.memcpy_rate.model_copy(update={"value": rate})
    found = {"memcpy_rate": measured}
    if pageable is not None:
        found["pageable"] = RateCurve.model_construct(
            **{**dict(machine.host.pageable_copies), "points": ((1, pageable),)}
        )
    return replace(machine, host=machine.host.model_copy(update=found))


def planned(
    model: ModelShape | str = "llama-3.1-8b",
    *,
    platform: str = "dgx-h100",
    nodes: int = 1,
    ranks: int = 8,
    tier: str = "raid",
    swap: str | None = None,
    machine: Machine | None = None,
    **workload: Any,
) -> CheckpointPlan:
    return plan_checkpoint(
        load_model(model) if isinstance(model, str) else model,
        Checkpointing.model_validate(workload),
        machine or machine_of(platform, nodes),
        ranks=ranks,
        tier=tier,
        swap=swap,
    )


def times(phases: tuple[Phase, ...]) -> list[tuple[Phase, float]]:
    """[s] of each phase."""
    return [(phase, execute(phase.schedule({})).makespan * 1e-12) for phase in phases]


def blocking(plan: CheckpointPlan) -> float:
    """[s] before the call of save returns."""
    return sum(time for phase, time in times(plan.save()) if not phase.background)


def behind(plan: CheckpointPlan) -> float:
    """[s] behind the training."""
    return sum(time for phase, time in times(plan.save()) if phase.background)


def restoring(plan: CheckpointPlan) -> float:
    """[s] of all phases of restoring."""
    return sum(time for _, time in times(plan.restore()))


def carried(phase: Phase) -> dict[str, int]:
    """[B] over each link."""
    schedule = phase.schedule({})
    links = (link.name for link in schedule.links)
    return dict(zip(links, execute(schedule).link_bytes, strict=True))


def outlook(plan: CheckpointPlan) -> Outlook:
    """What the times of the phases mean for the run."""
    return plan.outlook(blocking_s=blocking(plan), background_s=behind(plan), restore_s=restoring(plan))


def with_memory(machine: Machine, size: int) -> Machine:
    """[B] of host memory beyond what the system keeps."""
    dram = machine.tiers["dram"]._replace(capacity=size + machine.host.reserved_bytes)
    return replace(machine, tiers=machine.tiers | {"dram": dram})


FAST = {"type": "fast", "patched_torch": True, "checkpoint_serialization": False}
