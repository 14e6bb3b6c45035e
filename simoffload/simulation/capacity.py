"""Fields that all results have before timing: memory needs, remedies and provenance."""

from __future__ import annotations

import platform as interpreter
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

from simoffload.documents import quoted
from simoffload.errors import SimulationError
from simoffload.results import MemoryStage, ResultProvenance, TierUse, peak_uses
from simoffload.scenario import LoadedScenario
from simoffload.shipped import __version__
from simoffload.strategies import Plan, base
from simoffload.units import format_bytes

BEYOND = "beyond the calibrated range"
"""Start of the warnings for which a sweep has the column ``extrapolates``."""
_ON_CPU = "computes layers or experts on the CPU, which can be several times faster"
_UNKNOWN = "error unknown, see docs/CALIBRATION.md"


def memory_footprint(scenario: LoadedScenario) -> tuple[TierUse, ...]:
    """Return the memory that every tier must hold, without a result, for searches over many scenarios.

    Raises InputError for settings that DeepSpeed refuses.
    """
    return peak_uses(memory_stages(scenario, scenario.plan()), scenario.machine.tiers)


def memory_stages(scenario: LoadedScenario, plan: Plan) -> tuple[MemoryStage, ...]:
    """Return the memory stages of a plan, with the needs of what is added to the run."""
    stages = base.memory_stages(plan)
    for add in scenario.additions("stages"):
        stages = add(scenario, plan, stages)
    _check_tiers(scenario, stages)
    return stages


def _check_tiers(scenario: LoadedScenario, stages: tuple[MemoryStage, ...]) -> None:
    """Raise SimulationError for a memory term on a tier that the machine does not have, as it would not be
    counted."""
    tiers, kind = scenario.machine.tiers, scenario.scenario.strategy.kind
    for term in (term for stage in stages for term in stage.terms if term.tier not in tiers):
        text = f"strategy {kind}: its memory term {quoted(term.name)} is on a tier {quoted(term.tier)}"
        raise SimulationError(f"{text}, which {scenario.machine.platform} lacks (has: {', '.join(tiers)})")


def common(scenario: LoadedScenario, plan: Plan) -> dict[str, Any]:
    """Return the fields that results of all kinds share."""
    uses, basis = peak_uses(memory_stages(scenario, plan), scenario.machine.tiers), plan.basis
    beyond = (f"{BEYOND} ({_UNKNOWN}): {text}" for text in basis.extrapolations)
    return {
        **identity(
            scenario,
            target=base.target(plan),
            phrase=_several(scenario, plan),
        ),
        "capacity": uses,
        "advice": _advice(scenario, plan, uses),
        "warnings": (
            *scenario.warnings,
            *scenario.link_warnings(plan),
            *plan.warnings,
            *not_simulated(scenario),
            *(use.narrow for use in uses if use.narrow),
            *_what_if(plan),
            *scenario.context_warnings,
            *beyond,
        ),
        "extrapolations": basis.extrapolations,
        "evidence": basis.evidence,
        "uncompared": basis.uncompared,
    }


def _several(scenario: LoadedScenario, plan: Plan) -> str:
    """Return a phrase for weights that several tiers hold during inference, of which those count that hold a
    tenth, or that GPUs hold although the rest of them is elsewhere; "" otherwise."""
    beside = base.weights_tiers(plan) if scenario.scenario.workload.kind == "inference" else ()
    if not beside:
        return ""
    gpus = "GPU" if scenario.scenario.strategy.gpus == 1 else "GPUs"
    if not (large := base.offloaded_tiers(plan)):
        return f"{{}} in the {gpus}"
    tiers = plan.machine.tiers
    held = sum(one.size for one in plan.held if one.kind == "weights" and tiers[one.tier].row.is_gpu)
    if len(large) == 1 and tiers[large[0]].row.is_host and 10 * held >= plan.model.weight_bytes:
        return f"{{}} in {gpus} and host memory"
    return f"{{}} on {' and '.join(beside)}" if len(beside) > 1 else ""


def not_simulated(scenario: LoadedScenario) -> tuple[str, ...]:
    """Return a sentence about programs that compute on the CPU, where a model that generates exceeds the GPUs
    of a desktop, or of a machine with unified memory.

    "Several times": a CPU reads weights in host memory where they are, two channels of DDR5 at 60 to 88 GB/s,
    instead of copying them over 16 lanes of PCIe 4 (some 25 GB/s), and of a mixture only the experts that
    tokens take (discussions 477 and pull request 232 of ikawrakow/ik_llama.cpp).
    """
    machine, model, work = scenario.machine, scenario.model, scenario.scenario.workload
    choice = scenario.choice
    if choice is not None and not choice.among:  # llama.cpp was among the programs
        return ()
    if work.kind != "inference" or not machine.is_personal or scenario.scenario.strategy.traits.on_cpu:
        return ()
    has = machine.gpus * (machine.tiers["hbm"].capacity - machine.accelerator.reserved_bytes)
    needed = model.weight_bytes + model.kv_cache_bytes(batch=1, tokens=work.room)
    if needed <= has:
        return ()
    gpus = {1: "the GPU", 2: "both GPUs"}.get(machine.gpus, f"the {machine.gpus} GPUs together")
    text = f"the model ({format_bytes(needed, binary=True)} with the cache of a sequence) does not fit {gpus}"
    return (f"{text}: llama.cpp (strategy.kind llama_cpp) {_ON_CPU}",)


def identity(scenario: LoadedScenario, *, target: str, phrase: str = "") -> dict[str, Any]:
    """Return the fields that identify a result: names, counts and provenance.

    ``phrase``: where the weights are, if the strategy has none for its placement.
    """
    inner, model, machine = scenario.scenario, scenario.model, scenario.machine
    placement = scenario.placements
    return {
        "name": scenario.name,
        "model": model.name,
        "dtype": model.dtype,
        "parameters": model.num_parameters,
        "platform": machine.platform,
        "target": target,
        "placement_name": placement.name,
        "placement_words": placement.phrase or phrase,
        "ranks": inner.strategy.ranks,
        "gpus": inner.strategy.gpus,
        "replicas": inner.strategy.replicas,
        "provenance": ResultProvenance(
            scenario=scenario.document.data,
            profiles=tuple((use.kind, use.id, use.sha256) for use in machine.profiles),
            inputs=tuple(machine.inputs()),
            versions=dict(_versions()),
            program=inner.strategy.description.program,
        ),
    }


@cache
def _versions() -> Mapping[str, str]:
    """Return the versions on which the numbers depend; cached, because looking one up reads files."""
    return {"simoffload": __version__, "simpy": version("simpy"), "python": interpreter.python_version()}


def _advice(scenario: LoadedScenario, plan: Plan, uses: tuple[TierUse, ...]) -> tuple[str, ...]:
    """Return a sentence for each tier that is too small: by how much, and what would help."""
    return tuple(f"{use.sentence()}; {_remedy(scenario, plan, use, uses)}" for use in uses if not use.fits)


def _remedy(scenario: LoadedScenario, plan: Plan, use: TierUse, uses: tuple[TierUse, ...]) -> str:
    """Return what would help, as far as this plan shows it; the ``remedies`` of a result are tried with other
    plans."""
    largest = max(use.terms, key=lambda term: term.size)
    if largest.remedy:
        return f"{largest.remedy} (largest part: {largest.name})"
    if len(base.weights_tiers(plan)) > 1:
        return f"largest part: {largest.name}"
    least, what = base.movable(plan)
    needed = {one.tier: one.needed for one in uses}
    for tier in sorted(scenario.machine.tiers.values(), key=lambda tier: tier.capacity):
        if tier.row.is_gpu or tier.name == base.target(plan):
            continue
        if tier.capacity - needed.get(tier.name, tier.reserved) >= least:
            size = format_bytes(tier.capacity, binary=tier.row.is_host)
            return f"smallest tier that holds the {what}: {tier.name} ({size})"
    return "no other tier of this platform is large enough"


def _what_if(plan: Plan) -> tuple[str, ...]:
    """Return a warning about a plan that no program carries out."""
    what = plan.facts.hypothetical
    return (f"what if: {what}; no real run was compared with it",) if what else ()
