"""Runs whose memory is accounted for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from simoffload.hardware import Machine, load_platform
from simoffload.models import ModelShape, load_model
from simoffload.results.capacity import MemoryStage, tier_uses
from simoffload.strategies.base import stages_of
from simoffload.strategies.ds_config import LATEST, DeepSpeedConfig
from simoffload.strategies.ds_config.settings import TrainingSettings, resolve_training
from simoffload.strategies.training.memory import TrainingMemory
from simoffload.strategies.training.micro_step import ReplayPeaks
from simoffload.strategies.training.state import Places, TrainingState
from simoffload.workload import Training

_DEVICES: dict[str, Literal["none", "cpu", "nvme"]] = {"hbm": "none", "dram": "cpu"}


def workload(batch: int = 1, length: int = 512, *, accumulation: int = 1, **more: Any) -> Training:
    """A micro-step."""
    return Training(
        kind="training",
        batch_size=batch,
        sequence_length=length,
        gradient_accumulation_steps=accumulation,
        **more,
    )


def gpt(layers: int, hidden: int, heads: int) -> ModelShape:
    """A GPT-2 of Megatron's as the nearest family has it: four times as wide inside, tied embedding."""
    sizes = {
        "family": "opt",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "ffn_dim": 4 * hidden,
        "num_attention_heads": heads,
        "vocab_size": 50304,
        "max_position_embeddings": 1024,
        "attention": "eager",
    }
    return load_model(sizes)


def settings_for(
    model: ModelShape, zero: Mapping[str, Any], *, version: str = LATEST, **sections: Any
) -> TrainingSettings:
    """Resolve ``zero_optimization`` and other sections."""
    config = DeepSpeedConfig.model_validate({"zero_optimization": zero, **sections})
    found, _ = resolve_training(
        config, version=version, hidden_size=model.hidden_size, dtype_bytes=model.dtype_bytes
    )
    return found


def account(
    model: ModelShape,
    zero: Mapping[str, Any],
    *,
    platform: str = "dgx-a100",
    ranks: int = 1,
    weights: str = "hbm",
    optimizer: str = "hbm",
    work: Training | None = None,
    version: str = LATEST,
    sections: Mapping[str, Any] | None = None,
    peak: ReplayPeaks | None = None,
) -> tuple[Machine, tuple[MemoryStage, ...]]:
    """The machine and the moments of a run on it."""
    machine = load_platform(platform).machine()
    settings = settings_for(model, zero, version=version, **(sections or {}))
    kinds = [_DEVICES.get(machine.tiers[tier].kind, "nvme") for tier in (weights, optimizer)]
    settings = settings._replace(params=settings.params._replace(device=kinds[0]), optimizer_device=kinds[1])
    state = TrainingState(model, settings, Places(ranks, weights, optimizer))
    held = TrainingMemory(state, work or workload(), machine, peak).held()
    return machine, stages_of(list(held))


def sizes(memory_stages: Sequence[MemoryStage], tier: str, moment: int = 1) -> dict[str, int]:
    """[B] of every term of a tier at a moment."""
    found: dict[str, int] = {}
    for term in memory_stages[moment].terms:
        if term.tier == tier and term.size:
            found[term.name] = found.get(term.name, 0) + term.size
    return found


def fits(machine: Machine, memory_stages: Sequence[MemoryStage]) -> bool:
    """Whether every tier is large enough at every moment."""
    return all(use.fits for moment in memory_stages for use in tier_uses(moment.terms, machine.tiers))
