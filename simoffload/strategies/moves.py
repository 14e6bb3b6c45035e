"""Other places for the states of ZeRO's strategies, as ``fit`` tries them."""

from __future__ import annotations

from collections.abc import Iterator

from simoffload.documents import Edit
from simoffload.hardware import Machine, Tier
from simoffload.models import ModelShape
from simoffload.strategies.base import Move
from simoffload.strategies.placement import Placement

__all__ = ["gathered", "inference_moves", "lora_moves", "training_moves"]

_RANK = 16
"""Of adapters that are proposed, our choice; PEFT's own default is 8."""


def gathered(tier: str, *, ranks: int) -> str:
    """What must be added to "weights on hbm" of inference, lest it is taken for a model served from HBM."""
    return "" if tier != "hbm" or ranks == 1 else " (ZeRO-3, gathered for every token)"


def inference_moves(
    model: ModelShape, machine: Machine, *, ranks: int, buffer_size: int, before: tuple[Edit, ...] = ()
) -> Iterator[tuple[Move, ...]]:
    """Weights on each tier, the smaller ones first; ``before`` are edits that come before all others."""
    for tier in _smaller_first(machine):
        words = f"weights on {tier.name}{gathered(tier.name, ranks=ranks)}"
        weights = _weights(tier, model, ranks=ranks, buffer_size=buffer_size)
        yield (Move("tier", words, (*before, *weights)),)


def training_moves(
    model: ModelShape,
    machine: Machine,
    now: Placement,
    stages: tuple[Move, ...],
    *,
    ranks: int,
    buffer_size: int,
    before: tuple[Edit, ...] = (),
) -> Iterator[tuple[Move, ...]]:
    """Optimizer, weights, both on each tier; as they are partitioned, and in the ``stages`` above."""
    dram = next((one for one in machine.tiers.values() if one.kind == "dram"), None)

    def weights_on(tier: Tier) -> tuple[Edit, ...]:
        return _weights(tier, model, ranks=ranks, buffer_size=buffer_size)

    for tier in _smaller_first(machine):
        name = tier.name
        optimizer, weights = Edit(("strategy", "optimizer"), name), weights_on(tier)
        places: dict[tuple[str, str | None], tuple[str, tuple[Edit, ...]]] = {}
        places[now.weights, name] = f"optimizer on {name}", (optimizer,)
        places.setdefault((name, now.optimizer), (f"weights on {name}", weights))
        places.setdefault((name, name), (f"weights and optimizer on {name}", (*weights, optimizer)))
        if dram is not None and tier.kind not in {"dram", "hbm"} and name != now.optimizer:
            both = (*weights_on(dram), optimizer)
            places.setdefault((dram.name, name), (f"weights on {dram.name}, optimizer on {name}", both))
        if name != "hbm":
            both = (*weights_on(machine.tiers["hbm"]), optimizer)
            places.setdefault(("hbm", name), (f"weights on hbm, optimizer on {name}", both))
        places.pop((now.weights, now.optimizer), None)
        moves = [Move("tier", words, (*before, *edits)) for words, edits in places.values()]
        plain = [Move("tier", words, edits) for words, edits in places.values()]
        yield (*moves, *(stage.with_(move) for move in plain for stage in stages))


def _smaller_first(machine: Machine) -> list[Tier]:
    return sorted(machine.tiers.values(), key=lambda one: one.capacity)


def _weights(tier: Tier, model: ModelShape, *, ranks: int, buffer_size: int) -> tuple[Edit, ...]:
    """Weights on a tier; on storage with swap buffers that hold the largest parameter."""
    placed = Edit(("strategy", "weights"), tier.name)
    largest = -(-model.largest_parameter // ranks)
    if tier.kind in {"hbm", "dram"} or largest <= buffer_size:
        return (placed,)
    keys = ("strategy", "ds_config", "zero_optimization", "offload_param", "buffer_size")
    return (placed, Edit(keys, largest))


def lora_moves(model: ModelShape, *, before: tuple[Edit, ...] = ()) -> Iterator[Move]:
    """Adapters where PEFT puts them by default, of a rank that is our choice; then with 4-bit weights."""
    targets = list(model.traits.lora_targets)
    if not targets:
        return
    for quantize in ({}, {"quantize": "nf4"}):
        lora = Edit(("strategy", "lora"), {"r": _RANK, "target_modules": targets, **quantize})
        four_bit = ", frozen weights in nf4" if quantize else ""
        words = f"LoRA of rank {_RANK} on {' and '.join(targets)}{four_bit} (trains adapters, not the model)"
        yield Move("lora", words, (*before, lora))
