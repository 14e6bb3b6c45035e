"""Plans of small runs in each mode, and what their schedules move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

from simoffload.documents import Document
from simoffload.engine import execute
from simoffload.hardware import Machine, load_platform
from simoffload.results import cause_text
from simoffload.results.passes import PassResult
from simoffload.results.timeline import Timeline
from simoffload.results.training import TrainingResult
from simoffload.scenario import LoadedScenario, resolve
from simoffload.schedule import Op, Schedule
from simoffload.simulation import simulate
from simoffload.strategies.plan import StepPart
from simoffload.strategies.programs.zero_training import ZeroTrainingPlan

MODEL: dict[str, Any] = {
    "family": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "dtype": "bfloat16",
}
LAYER = 4 * 256 * 256 + 3 * 256 * 512
"""Elements of a layer's matrices; it has two norms of 256 besides."""
MATRICES = 3 * LAYER + 2 * 1000 * 256
NUMEL = MATRICES + 7 * 256
CPU = {"device": "cpu", "pin_memory": True}
LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12, "vocab_size": 32_000}
LARGE_NUMEL = 12 * (4 * 1024**2 + 3 * 1024 * 4096 + 2 * 1024) + 2 * 32_000 * 1024 + 1024
BIG: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 2048, "vocab_size": 2048}
"""Its matrices are large enough to be swapped."""
BIG_OUTSIDE = 2 * 2048 * 1024
BIG_LAYERS = 3 * (4 * 1024**2 + 3 * 1024 * 2048)
BIG_MATRICES = BIG_OUTSIDE + BIG_LAYERS
BIG_NUMEL = BIG_MATRICES + 7 * 1024
"""Norms are too small to be swapped; the optimizer's states of their sub-group are not."""
FIRST = "backward, first micro-step"
MIDDLE = "backward, middle micro-steps"
LAST = "backward, last micro-step"


@cache
def machine(name: str = "dgx-a100") -> Machine:
    return load_platform(name).machine()


def loaded(
    zero: Mapping[str, Any],
    *,
    ranks: int = 1,
    platform: str = "dgx-a100",
    version: str = "0.19.8",
    model: Mapping[str, Any] | None = None,
    places: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    **work: Any,
) -> LoadedScenario:
    """A scenario with ``zero_optimization`` and other sections."""
    settings = {"zero_optimization": zero, **(config or {})}
    strategy = {"kind": "deepspeed", "ranks": ranks, "deepspeed_version": version}
    short = {"batch_size": 1, "sequence_length": 64, "gradient_checkpointing": False}
    content = {
        "name": "a mode",
        "model": {**MODEL, **(model or {})},
        "platform": platform,
        "workload": {"kind": "training", **short, **work},
        "strategy": {**strategy, "ds_config": settings, **(places or {})},
    }
    return replace(resolve(Document("", content)), machine=machine(platform))


def plan_of(zero: Mapping[str, Any], **keys: Any) -> ZeroTrainingPlan:
    found = loaded(zero, **keys).plan()
    assert isinstance(found, ZeroTrainingPlan)
    return found


def simulated(zero: Mapping[str, Any], **keys: Any) -> TrainingResult:
    """A whole step."""
    result = simulate(loaded(zero, **keys))
    assert isinstance(result, TrainingResult)
    assert result.fits
    return result


def part(plan: ZeroTrainingPlan, title: str) -> StepPart:
    (found,) = [one for one in plan.parts if one.title == title]
    return found


def operations(schedule: Schedule) -> list[tuple[Op, int]]:
    """Every operation and how often it happens on a rank."""
    return [(op, block.repeat) for block in schedule.blocks for op in block.ops]


def carried(schedule: Schedule) -> Counter[str]:
    """[B] that a rank moves, by the name of the route."""
    sizes: Counter[str] = Counter()
    for op, times in operations(schedule):
        if op.size:
            sizes[cause_text(schedule.routes[op.route].cause)] += op.size * times
    return sizes


def moved(plan: ZeroTrainingPlan, one: StepPart) -> Counter[str]:
    """[B] that a rank moves in one part, by the name of the route."""
    return carried(plan.schedule(one))


def moved_in_cycle(plan: ZeroTrainingPlan) -> dict[str, Fraction]:
    """[B] that a rank moves from update to update."""
    sizes: dict[str, Fraction] = {}
    cycles = Fraction(plan.workload.gradient_accumulation_steps, plan.step.cycle)
    for one in plan.parts:
        for name, size in moved(plan, one).items():
            sizes[name] = sizes.get(name, Fraction(0)) + size * one.times / cycles
    return sizes


def host_and_gpu(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Copies between host memory and the GPU, by direction, pinned or not."""
    total: dict[str, Any] = {"down": 0, "up": 0}
    for name, size in sizes.items():
        if name.startswith("host to GPU"):
            total["down"] += size
        elif name.startswith("GPU to host"):
            total["up"] += size
    return total


def waited(one: PassResult) -> float:
    """[s] in which a pass waits for an update on the CPU."""
    return {share.cause_text: share.exposed_s for share in one.shares}["waiting for the CPU update"]


def timeline(plan: ZeroTrainingPlan, one: StepPart) -> Timeline:
    return execute(plan.schedule(one))
