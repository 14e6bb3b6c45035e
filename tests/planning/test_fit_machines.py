"""How many machines: the DDN slides' question, by their rule and with everything counted."""

from __future__ import annotations

import json
from functools import cache

import pytest

import simoffload
from simoffload.documents import parse_json
from simoffload.errors import InputError
from simoffload.planning.sizing import MachinesNeeded
from simoffload.scenario import read_scenario, resolve
from simoffload.simulation import fit

DGX_HBM = 8 * int(39.39 * 2**30)


@cache
def needed_by(name: str) -> MachinesNeeded:
    return simoffload.machines_needed(read_scenario(name))


def counts(name: str, *overrides: str, tiers: tuple[str, ...] | None = None) -> dict[str, int | None]:
    needed = simoffload.machines_needed(read_scenario(name, overrides=overrides), tiers=tiers)
    return {"rule": needed.by_rule} | {count.tier: count.machines for count in needed.counts}


@pytest.mark.parametrize(
    ("model", "weights", "machines"),
    [
        ("7b1", 14_138_032_128, 1),
        ("176b", 352_494_542_848, 2),
        ("mod-1", 2_421_312_798_720, 8),
        ("mod-2", 48_331_214_192_640, 143),
    ],
)
def test_the_slides_rule_for_inference_is_weights_over_hbm(model: str, weights: int, machines: int) -> None:
    needed = needed_by(f"ddn/bloom-{model}")
    assert (needed.gpus, needed.hbm) == (8, DGX_HBM)
    assert needed.states == weights
    assert needed.by_rule == machines == -(-weights // DGX_HBM)


@pytest.mark.parametrize(
    ("model", "layers", "hidden", "machines"),
    [
        ("7b1", 30, 4096, 1),
        ("176b", 70, 14_336, 11),
        ("mod-1", 960, 10_240, 72),
        ("mod-2", 4800, 20_480, 1429),
    ],
)
def test_for_training_it_is_the_white_papers(model: str, layers: int, hidden: int, machines: int) -> None:
    needed = needed_by(f"training/bloom-{model}")
    assert needed.states == 240 * layers * hidden**2
    assert needed.by_rule == machines == -(-needed.states // DGX_HBM)


@pytest.mark.parametrize(
    ("model", "machines"),
    [
        ("7b1", {"hbm": 1, "dram": 1, "raid": 1, "nfs": 1, "ai400x2": 1}),
        ("176b", {"hbm": 3, "dram": 1, "raid": 1, "nfs": 1, "ai400x2": 1}),
        ("mod-1", {"hbm": 14, "dram": 4, "raid": 1, "nfs": 1, "ai400x2": 1}),
        ("mod-2", {"hbm": 881, "dram": 50, "raid": 4, "nfs": 1, "ai400x2": 1}),
    ],
)
def test_inference_with_everything_counted(model: str, machines: dict[str, int]) -> None:
    """One machine holds what it holds in the white paper: its matrix of models and targets."""
    assert {count.tier: count.machines for count in needed_by(f"ddn/bloom-{model}").counts} == machines


@pytest.mark.parametrize(
    ("model", "machines"),
    [
        ("7b1", {"hbm": 1, "dram": 1, "raid": 1, "nfs": 1, "ai400x2": 1}),
        ("176b", {"hbm": 33, "dram": 4, "raid": 1, "nfs": 1, "ai400x2": 1}),
        ("mod-1", {"hbm": 159, "dram": 26, "raid": 3, "nfs": 3, "ai400x2": 3}),
        ("mod-2", {"hbm": 7541, "dram": 688, "raid": 63, "nfs": None, "ai400x2": None}),
    ],
)
def test_training_with_everything_counted(model: str, machines: dict[str, int | None]) -> None:
    assert {count.tier: count.machines for count in needed_by(f"training/bloom-{model}").counts} == machines


@pytest.mark.parametrize(
    ("name", "moved", "machines"),
    [("ddn/bloom-176b", "hbm", 3), ("ddn/bloom-mod-2", "hbm", 881), ("training/bloom-176b", "dram+dram", 4)],
)
def test_fit_says_the_same_of_that_many_and_of_one_less(name: str, moved: str, machines: int) -> None:
    for nodes, enough in ((machines, True), (machines - 1, False)):
        many = read_scenario(name, overrides=[f"nodes={nodes}", f"strategy.ranks={8 * nodes}"])
        assert fit(many.on(moved)).fits is enough


def test_settings_follow_where_deepspeed_would_refuse_the_rest() -> None:
    """ZenFlow needs an offloaded optimizer, stage 2 offloads no parameters, and the batch is of two ranks."""
    assert counts("zenflow/qwen2.5-3b", tiers=("cpu",)) == {"rule": 1, "hbm": 1, "dram": 1}


def test_where_no_number_is_enough_it_says_why() -> None:
    needed = simoffload.machines_needed(read_scenario("superoffload/qwen3-14b"), tiers=("dram",))
    assert [(count.tier, count.machines) for count in needed.counts] == [("hbm", None), ("dram", 1)]
    assert needed.counts[0].why.startswith("gh200 has no network between hosts")
    assert "; with 1 machine hbm needs" in needed.counts[0].why


def test_checkpoints_and_unknown_tiers_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"checkpoint/mlperf-1t:22:9: workload\.kind: machines are counted for"
    ):
        simoffload.machines_needed(read_scenario("checkpoint/mlperf-1t"))
    with pytest.raises(InputError, match='tiers: no tier "tape" on platform "dgx-a100"'):
        simoffload.machines_needed(read_scenario("ddn/bloom-7b1"), tiers=("tape",))


def test_a_strategy_is_counted_where_it_can_be() -> None:
    """FSDP knows HBM and host memory; it is not counted as ZeRO elsewhere."""
    data = {
        "name": "fsdp",
        "model": "llama-2-7b",
        "platform": "dgx-a100",
        "workload": {"kind": "training", "batch_size": 1, "sequence_length": 128},
        "strategy": {"kind": "fsdp", "ranks": 8},
    }
    fsdp = resolve(parse_json(json.dumps(data), name="fsdp.json"))
    needed = simoffload.machines_needed(fsdp, tiers=("dram", "raid"))
    assert [(count.tier, count.machines) for count in needed.counts] == [
        ("hbm", 1),
        ("dram", 1),
        ("raid", None),
    ]
    assert needed.counts[2].why.startswith('fsdp cannot be on "raid+raid": ')
