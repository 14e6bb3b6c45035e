"""The plan of sections, their numbers of processes, and the shapes that are measured."""

from __future__ import annotations

import pytest

from simoffload_calibrate.micro.benchmarks import BenchmarkSetting, Microbenchmark, microbenchmarks

PLANS: dict[str, Microbenchmark] = {one.name: one for one in microbenchmarks() if one.runs}


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 6, 8])
def test_one_group_of_processes_measures_all_that_needs_several(gpus: int) -> None:
    numbers = {ranks for plan in PLANS.values() for ranks in plan.processes(gpus)}
    assert numbers == {1, gpus}
    assert PLANS["copies"].processes(gpus) == [1]
    for name in ("hooks_decode", "hooks_training"):
        assert PLANS[name].processes(gpus) == sorted({1, gpus})
    for name in ("eager_together", "cpu_adam_together", "copies_together", "collectives"):
        assert PLANS[name].processes(gpus) == ([gpus] if gpus > 1 else [])
    assert PLANS["copies_subsets"].processes(gpus) == ([gpus] if gpus > 2 else [])


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
    assert PLANS["copies_together"].numbers(gpus) == copying
    assert PLANS["collectives"].numbers(gpus) == gathering
    assert PLANS["cpu_adam_together"].numbers(gpus) == [gpus]


def test_what_may_crash_or_changes_pytorch_has_processes_of_its_own() -> None:
    others = {name for name, plan in PLANS.items() if plan.process != "plain" and plan.ranks != "most"}
    assert others == {"hooks_decode", "hooks_training", "cpu_adam", "storage", "storage_gds"}


def test_shapes_of_known_models() -> None:
    inputs = {name: PLANS[name].inputs(BenchmarkSetting(1, False, True)) for name in ("matmul", "attention")}
    shapes = inputs["matmul"]["matmul_shapes"]
    assert len(shapes) == len(set(shapes))
    assert {(4096, 4096), (4096, 16384), (16384, 4096), (4096, 14336), (9216, 36864)} <= set(shapes)
    assert set(inputs["matmul"]["matmul_variants"]) < set(shapes)
    widths = {
        shape["model"]: (shape["heads"], shape["kv_heads"], shape["head_dim"])
        for shape in inputs["attention"]["attention_shapes"]
    }
    assert widths["llama-3-8b"] == (32, 8, 128)
    assert widths["bloom-7b1"] == (32, 32, 128)
