"""Optimizers of bitsandbytes: bytes of 8-bit and paged moments, and their place among the remedies."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload.errors import InputError
from simoffload.planning.remedies import smallest_changes
from simoffload.results.capacity import TierUse
from simoffload.scenario import LoadedScenario, read_scenario
from simoffload.simulation import fit, simulate
from simoffload.simulation.capacity import memory_footprint
from simoffload.strategies.training.state import PAGED, PAGED_OUT, moments, paged, update_traffic

FSDP = ["strategy.cpu_offload=false"]
"""Llama 3.1 8B on two H100 of 80 GB, whose moments do not fit."""


def fsdp(*overrides: str) -> LoadedScenario:
    return read_scenario("fsdp/llama-3.1-8b", overrides=[*FSDP, *overrides])


def sizes(use: TierUse) -> dict[str, int]:
    return {term.name: term.size for term in use.terms}


def of_tier(scenario: LoadedScenario, tier: str) -> dict[str, int]:
    return next(sizes(use) for use in memory_footprint(scenario) if use.tier == tier)


@pytest.mark.parametrize(
    ("numel", "bits", "size", "movable"),
    [
        (1_000_000, 32, 8_000_000, 8_000_000),
        (1_000_000, 8, 2 * (1_000_000 + 4 * 3907), 2_000_000),
        (99_999, 32, 799_992, 0),
        (4095, 8, 8 * 4095, 0),
    ],
)
def test_a_block_of_256_shares_a_scale_and_small_tensors_stay(
    numel: int, bits: int, size: int, movable: int
) -> None:
    assert (moments(numel, bits=bits), paged(numel, bits=bits)) == (size, movable)
    assert update_traffic(numel, bits=bits) == 12 * numel + 2 * size


def test_moments_under_fsdp_in_8_bit_take_a_quarter() -> None:
    plain, small = (of_tier(fsdp(f"strategy.optimizer={one}"), "hbm") for one in ("AdamW", "AdamW8bit"))
    assert small["moments"] == pytest.approx(plain["moments"] * (1 + 4 / 256) / 4, rel=1e-4)
    assert fit(fsdp("strategy.optimizer=AdamW8bit")).fits
    assert not fit(fsdp()).fits


def test_what_a_gpu_has_no_room_for_is_paged_out() -> None:
    """To the byte what is lacking, on the host of both ranks, and copied out and back in every step."""
    lacking = next(-use.headroom for use in memory_footprint(fsdp()) if use.tier == "hbm")
    scenario = fsdp("strategy.optimizer=PagedAdamW")
    hbm, dram = (of_tier(scenario, tier) for tier in ("hbm", "dram"))
    assert dram[PAGED_OUT] == 2 * lacking
    assert hbm[PAGED] == of_tier(fsdp(), "hbm")["moments"] - lacking
    result = simulate(scenario)
    moved = {
        cause.cause_text: cause.size
        for cause in result.passes[-1].shares
        if "GPU" in cause.cause_text and cause.size
    }
    assert moved["host to GPU"] == moved["GPU to host"] == 2 * lacking
    assert any("paged optimizer" in one for one in result.warnings)
    assert not any("hbm fits with" in one for one in result.warnings), "moments make room for others"


def test_so_it_is_under_zero() -> None:
    zero = "{optimizer: {type: PagedAdamW}, zero_optimization: {stage: 3}}"
    work = ["workload.batch_size=4", "workload.sequence_length=4096"]
    strategy = f"strategy={{kind: deepspeed, ranks: 2, ds_config: {zero}}}"
    scenario = read_scenario("fsdp/llama-3.1-8b", overrides=[strategy, *work])
    out = scenario.plan().paged_out  # type: ignore[attr-defined]
    assert 2 * out == max(one.size for one in scenario.plan().held if one.name == PAGED_OUT) > 0
    result = simulate(scenario)
    moved = {cause.cause_text: cause.size for cause in result.passes[-1].shares}
    assert moved["host to GPU"] == moved["GPU to host"] == pytest.approx(2 * out)
    assert any("paged optimizer" in one for one in result.warnings)


@pytest.mark.parametrize("program", ["fsdp", "zero"])
def test_they_are_among_the_remedies_of_training(program: str) -> None:
    """Paged moments keep the result, 8 bits and adapters come later, each with a word on quality."""
    zero: dict[str, Any] = {"optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 2}}
    overrides = [
        "strategy={kind: deepspeed, ranks: 2}",
        f"strategy.ds_config={zero}".replace("'", ""),
        "workload.batch_size=1",
        "workload.sequence_length=2048",
    ]
    scenario = read_scenario("fsdp/llama-3.1-8b", overrides=overrides) if program == "zero" else fsdp()
    found = smallest_changes(scenario)
    names = [one.description.partition(" of bitsandbytes")[0] for one in found]
    at = [names.index(f"optimizer {one}") for one in ("PagedAdamW", "AdamW8bit", "PagedAdamW8bit")]
    qlora = next(number for number, one in enumerate(found) if "QLoRA" in one.description)
    assert at == sorted(at)
    assert at[-1] < qlora
    assert [bool(found[one].quality) for one in (*at, qlora)] == [False, True, True, True]
    ranks = [one.rank for one in found]
    assert ranks == sorted(ranks)
    for one in found:
        assert fit(scenario.edited(*one.edits)).fits


def test_deepspeed_is_given_such_an_optimizer_by_the_program() -> None:
    scenario = read_scenario(
        "training/bloom-7b1",
        overrides=["strategy={kind: deepspeed, ranks: 8, ds_config: {optimizer: {type: PagedAdamW8bit}}}"],
    )
    exports = fit(scenario).provenance.exports
    assert "optimizer" not in exports["ds_config.json"]
    assert exports["ds_config.json"]["zero_allow_untested_optimizer"] is True
    assert "bnb.optim.PagedAdamW8bit(" in exports["optimizer.py"]


@pytest.mark.parametrize(
    "overrides",
    [
        ["strategy.optimizer=AdamW8bit", "strategy.cpu_offload=true"],
        ["strategy.optimizer=PagedAdamW", "strategy.mixed_precision=false"],
    ],
)
def test_what_is_not_modelled_is_refused(overrides: list[str]) -> None:
    with pytest.raises(InputError, match=r"strategy\.optimizer"):
        fit(fsdp(*overrides))
