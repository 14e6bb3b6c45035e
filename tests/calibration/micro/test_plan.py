"""What is measured, on how many processes."""

from __future__ import annotations

import pytest

from simoffload.calibration.micro.plan import (
    SECTIONS,
    MeasurementStage,
    attention_shapes,
    matmul_shapes,
    matmul_variants,
    stages,
)
from simoffload.cli import calibrating


@pytest.mark.parametrize(
    ("gpus", "ranks"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (8, [1, 2, 4, 8])]
)
def test_groups_of_gpus(gpus: int, ranks: list[int]) -> None:
    assert [stage.ranks for stage in stages(tuple(SECTIONS), gpus)] == ranks


def test_only_what_was_chosen() -> None:
    assert list(stages(("collectives",), 2)) == [MeasurementStage(2, ("collectives",))]
    both = [MeasurementStage(1, ("copies", "dram")), MeasurementStage(2, ("copies_together",))]
    assert list(stages(("copies", "dram"), 2)) == both
    assert list(stages(("hooks",), 2)) == []  # DeepSpeed's runner has processes of its own
    assert list(stages(("collectives",), 1)) == []


def test_the_command_knows_the_sections() -> None:
    """The parser has its own list: it must not wait for imports."""
    assert tuple(SECTIONS) == calibrating._SECTIONS


def test_shapes_of_known_models() -> None:
    shapes = matmul_shapes()
    assert len(shapes) == len(set(shapes))
    assert {(4096, 4096), (4096, 16384), (16384, 4096), (4096, 14336), (9216, 36864)} <= set(shapes)
    assert set(matmul_variants()) < set(shapes)
    widths = {
        shape["model"]: (shape["heads"], shape["kv_heads"], shape["head_dim"]) for shape in attention_shapes()
    }
    assert widths["llama-3-8b"] == (32, 8, 128)
    assert widths["bloom-176b"] == (112, 112, 128)
