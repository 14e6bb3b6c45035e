"""The plan of sections, their numbers of processes, and the shapes that are measured."""

from __future__ import annotations

import pytest

from simoffload.calibration.micro.plan import (
    SECTION_PLANS,
    SECTIONS,
    attention_shapes,
    matmul_shapes,
    matmul_variants,
    ranks_of,
)
from simoffload.cli import calibrating


@pytest.mark.parametrize(
    ("gpus", "ranks"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (8, [1, 2, 4, 8])]
)
def test_groups_of_gpus(gpus: int, ranks: list[int]) -> None:
    assert ranks_of(SECTION_PLANS["hooks_decode"], gpus) == ranks
    assert ranks_of(SECTION_PLANS["copies_together"], gpus) == ranks[1:]
    assert ranks_of(SECTION_PLANS["copies"], gpus) == [1]
    assert ranks_of(SECTION_PLANS["hooks_training"], gpus) == sorted({1, gpus})


def test_the_command_knows_the_sections() -> None:
    """The parser has a list of its own, because it must not wait for imports."""
    assert calibrating._SECTIONS == SECTIONS


def test_what_may_crash_or_changes_pytorch_has_processes_of_its_own() -> None:
    others = {
        name for name, plan in SECTION_PLANS.items() if plan.process != "plain" and plan.ranks != "several"
    }
    assert others == {"hooks_decode", "hooks_training", "cpu_adam", "storage", "storage_gds"}


def test_shapes_of_known_models() -> None:
    shapes = matmul_shapes()
    assert len(shapes) == len(set(shapes))
    assert {(4096, 4096), (4096, 16384), (16384, 4096), (4096, 14336), (9216, 36864)} <= set(shapes)
    assert set(matmul_variants()) < set(shapes)
    widths = {
        shape["model"]: (shape["heads"], shape["kv_heads"], shape["head_dim"]) for shape in attention_shapes()
    }
    assert widths["llama-3-8b"] == (32, 8, 128)
    assert widths["bloom-7b1"] == (32, 32, 128)
