"""What follows from what tiers hold: stages of memory, targets, tiers and traffic."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from simoffload.results import MemoryTerm, StorageTraffic
from simoffload.strategies import base
from simoffload.strategies.base import INITIALISATION, Held

TIERS = {"hbm": None, "dram": None, "raid": None, "nfs": None}


def plan(*found: Held) -> Any:
    return SimpleNamespace(
        held=found, machine=SimpleNamespace(tiers=TIERS), model=SimpleNamespace(weight_bytes=7)
    )


def test_what_is_always_held_is_listed_last_in_each_stage() -> None:
    found = plan(
        Held("raid", "files", 1),
        Held("hbm", "weights", 2, stage=INITIALISATION),
        Held("hbm", "weights", 2, stage="step"),
        Held("dram", "cast", 3, pinned=True, remedy="less", once=True, stage="step"),
    )
    begin, step = base.memory_stages(found)
    assert (begin.name, begin.once, step.name, step.once) == (INITIALISATION, True, "step", False)
    assert begin.terms == (MemoryTerm("hbm", "weights", 2), MemoryTerm("raid", "files", 1))
    cast = MemoryTerm("dram", "cast", 3, pinned=True, remedy="less", once=True)
    assert step.terms == (begin.terms[0], cast, begin.terms[1])
    (only,) = base.memory_stages(plan(Held("hbm", "weights", 2)))
    assert only == ("", (MemoryTerm("hbm", "weights", 2),), False)


@pytest.mark.parametrize(
    ("kinds", "target", "optimizer", "tiers"),
    [
        ({"hbm": "weights"}, "hbm", "", {"hbm"}),
        ({"raid": "weights", "dram": "weights", "hbm": "staging"}, "raid", "", {"raid", "dram"}),
        ({"hbm": "weights", "nfs": "optimizer", "dram": "optimizer"}, "hbm", "nfs", {"hbm", "nfs", "dram"}),
        ({"dram": "working", "nfs": "checkpoints"}, "nfs", "", {"nfs"}),
        ({"nfs": "checkpoints", "hbm": "weights", "raid": "cache"}, "hbm", "", {"nfs", "hbm", "raid"}),
    ],
)
def test_targets_are_the_last_tiers_that_hold_states(
    kinds: dict[str, Any], target: str, optimizer: str, tiers: set[str]
) -> None:
    found = plan(*(Held(tier, "some", 1, kind=kind) for tier, kind in kinds.items()))
    assert (base.target(found), base.optimizer_target(found)) == (target, optimizer)
    assert base.state_tiers(found) == tiers


def test_checkpoints_move_as_a_whole_and_otherwise_the_weights() -> None:
    assert base.movable(plan(Held("hbm", "weights", 3, kind="weights"))) == (7, "weights")
    saved = Held("nfs", "saved checkpoint", 5, kind="checkpoints")
    assert base.movable(plan(saved, Held("dram", "buffer", 9))) == (5, "checkpoint")


def test_traffic_is_counted_once_for_all_stages_and_rounded_by_tier() -> None:
    third = Fraction(1, 3)
    moments = Held("raid", "moments", 4, traffic=lambda: (third, 1))
    found = plan(
        moments._replace(stage="step"),
        moments._replace(stage="update"),
        Held("raid", "gradients", 4, stage="step", traffic=lambda: (third, 2 * third)),
        Held("nfs", "parameters", 4, traffic=lambda: (6, 0)),
        Held("dram", "parameters", 4),
    )
    assert base.traffic(found) == (StorageTraffic("raid", 1, 2), StorageTraffic("nfs", 6, 0))
