"""The best batch agrees with the throughput of every batch that fits, with and without service levels."""

from __future__ import annotations

import pytest

import simoffload as so
from simoffload.errors import InputError
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.reach import best_batch
from simoffload.planning.service_levels import parse_service
from simoffload.planning.targets import on_targets


@pytest.mark.parametrize(
    ("name", "slo"),
    [
        ("zenflow/qwen2.5-1.5b", ()),
        ("zenflow/qwen2.5-1.5b", ("step=1.6s",)),
        ("zero-offload-2020/gpt2-10b", ("step=14s",)),
    ],
)
def test_it_is_the_best_of_all(name: str, slo: tuple[str, ...]) -> None:
    scenario = so.load_scenario(name)
    evaluator, found = Evaluator(scenario), best_batch(scenario, slo=slo)
    unit, most = evaluator.strategy.sizes(found.batch.now).unit, found.batch.most
    assert most is not None
    times = {}
    for count in range(unit, most + 1, unit):
        _, result = evaluator.answer(*evaluator.batch(count))
        levels = [parse_service(text, type(result)) for text in slo]
        if all(level.kept(result) for level in levels):
            times[count] = result.unit_s or 0
    assert found.best is not None
    assert found.best.result is not None
    assert found.best.result.unit_s == pytest.approx(min(times.values()), rel=2e-3)
    assert int(found.best.value) in times


def test_none_keeps_the_service_level() -> None:
    found = best_batch("ddn/bloom-176b", slo="tpot=1s")
    assert found.best is None
    assert found.nearest is not None
    assert found.nearest.missed > 1
    assert found.to_dict()["slo"] == ["tpot ≤ 1 s"]


def test_none_fits() -> None:
    found = best_batch(so.load_scenario("ddn/bloom-176b", overrides=["strategy.weights=hbm"]))
    assert (found.best, found.nearest, found.batch.most) == (None, None, None)


def test_checkpoints_have_no_batch() -> None:
    with pytest.raises(InputError, match="checkpoints have no batch"):
        best_batch("checkpoint/mlperf-8b")


def test_all_placements() -> None:
    found = on_targets("ddn/bloom-176b", ["all"])
    assert list(found) == ["hbm", "dram", "raid", "nfs", "ai400x2"]
    assert list(on_targets("ddn/bloom-176b", ["raid", "all"])) == ["raid", "hbm", "dram", "nfs", "ai400x2"]
    assert list(on_targets("ddn/bloom-176b", ["raid", "dgx-h100:all"]))[:3] == [
        "raid",
        "dgx-h100:hbm",
        "dgx-h100:dram",
    ]
    with pytest.raises(InputError, match="nowhere"):
        on_targets("ddn/bloom-176b", ["nowhere:all"])
    training = on_targets("xinnor/llama-1b", ["all"])
    assert {"hbm+hbm", "hbm+dram"} <= training.keys()


def test_a_block_consists_of_equal_parts() -> None:
    """FlexGen's batch has several GPU batches of one size."""
    found = best_batch("flexgen/opt-6.7b-cache-on-disk", slo="tpot=3s")
    assert found.best is not None
    unit = so.load_scenario("flexgen/opt-6.7b-cache-on-disk").scenario.strategy.sizes(found.batch.now).unit
    assert int(found.best.value) % unit == 0
