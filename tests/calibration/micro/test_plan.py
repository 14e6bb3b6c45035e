"""The plan of sections, their numbers of processes, and the shapes that are measured."""

from __future__ import annotations

import pytest

from simoffload_calibrate.micro import command
from simoffload_calibrate.micro.plan import (
    SECTION_PLANS,
    SECTIONS,
    attention_shapes,
    counts_of,
    matmul_shapes,
    matmul_variants,
    ranks_of,
)


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 6, 8])
def test_one_group_of_processes_measures_all_that_needs_several(gpus: int) -> None:
    numbers = {ranks for plan in SECTION_PLANS.values() for ranks in ranks_of(plan, gpus)}
    assert numbers == {1, gpus}
    assert ranks_of(SECTION_PLANS["copies"], gpus) == [1]
    for name in ("hooks_decode", "hooks_training"):
        assert ranks_of(SECTION_PLANS[name], gpus) == sorted({1, gpus})
    for name in ("eager_together", "cpu_adam_together", "copies_together", "collectives"):
        assert ranks_of(SECTION_PLANS[name], gpus) == ([gpus] if gpus > 1 else [])
    assert ranks_of(SECTION_PLANS["copies_subsets"], gpus) == ([gpus] if gpus > 2 else [])


@pytest.mark.parametrize(
    ("gpus", "copying", "gathering"),
    [
        (2, [1, 2], [2]),
        (3, [1, 2, 3], [2, 3]),
        (4, [1, 2, 3, 4], [2, 4]),
        (6, [1, 2, 3, 4, 6], [2, 4, 6]),
        (8, [1, 2, 3, 4, 6, 8], [2, 4, 8]),
        (10, [1, 2, 3, 4, 6, 8, 10], [2, 4, 8, 10]),
    ],
)
def test_subsets_are_measured_within_the_group_of_all(
    gpus: int, copying: list[int], gathering: list[int]
) -> None:
    assert counts_of(SECTION_PLANS["copies_together"], gpus) == copying
    assert counts_of(SECTION_PLANS["collectives"], gpus) == gathering
    assert counts_of(SECTION_PLANS["cpu_adam_together"], gpus) == [gpus]


def test_the_command_knows_the_sections() -> None:
    """The parser has a list of its own, because it must not wait for imports."""
    assert command._SECTIONS == SECTIONS


def test_what_may_crash_or_changes_pytorch_has_processes_of_its_own() -> None:
    others = {
        name for name, plan in SECTION_PLANS.items() if plan.process != "plain" and plan.ranks != "most"
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
