"""DeepSpeed's own quantization: weights in 4 or 8 bits, and all-gathers of 8 bits (ZeRO++)."""

from __future__ import annotations

from typing import Any

import pytest

import simoffload as so
from simoffload.errors import InputError
from simoffload.models import load_model
from simoffload.strategies.hooks.zero import quantized_gather
from simoffload.strategies.passes.timing import PassTimings
from simoffload.strategies.programs.zero_inference import ZeroInferencePlan

_NAME = "zero-inference-2023/opt-30b"
_SECTION = "strategy.ds_config.weight_quantization.quantized_initialization"
_SEVERAL = ("strategy.ranks=4", "platform=dgx-a100", "workload.batch_size=1")
_GATHER = "strategy.ds_config.zero_optimization.zero_quantized_weights"


def plan(*overrides: str) -> ZeroInferencePlan:
    """Return the plan of OPT-30B in 4 bits."""
    found = so.load_scenario(_NAME, overrides=overrides).plan()
    assert isinstance(found, ZeroInferencePlan)
    return found


def decode(*overrides: str) -> dict[str, Any]:
    """Return bytes and times of one decode step by cause."""
    result = so.simulate(so.load_scenario(_NAME, overrides=overrides))
    return {share.cause_text: share for share in result.decode[0].shares}


@pytest.mark.parametrize(("bits", "each"), [(4, 0.5625), (8, 1.0625)])
def test_everything_moves_the_packed_size(bits: int, each: float) -> None:
    overrides = (f"{_SECTION}.num_bits={bits}",)
    found, plain = plan(*overrides), load_model("opt-30b")
    kept = {
        one.name for module in found.model.distinct_modules for one in module.parameters if not one.storage
    }
    assert "model.decoder.embed_positions.weight" in kept
    assert "model.decoder.embed_tokens.weight" not in kept
    # Linear layers and the table of tokens, which is also the head.
    packed = 48 * 12 * 7168**2 + 50_272 * 7168
    rest = plain.num_parameters - packed
    assert found.model.weight_bytes == packed * each + 2 * rest
    assert sum(2 * one.numel for one in found.tensors) == found.model.weight_bytes
    (head,) = found.model.modules_after[-1].parameters
    moved = sum(2 * one.numel for one in found.tensors if not one.persistent)
    assert decode(*overrides)["host to GPU"].size == moved + head.stored_bytes(2)


def bias_kernels() -> float:
    """Return the time [s] of the kernels that add biases under ZeRO-3, which quantized layers do not have."""
    found = plan("strategy.ds_config.weight_quantization=null")
    batch, modules = found.forward("decode 1", 1, 513).batch, found.model.distinct_modules
    with_kernels, within = (
        PassTimings(machine=found.machine, model=found.model, modules=modules, zero3=one).durations(batch)
        for one in (True, False)
    )
    layer = found.model.layers[0]
    calls = [48 if module in layer else 1 for module in modules]
    return 1e-12 * sum(
        count * (one - other) for count, one, other in zip(calls, with_kernels, within, strict=True)
    )


def test_weights_are_written_in_full_for_every_product() -> None:
    four, plain = decode(), decode("strategy.ds_config.weight_quantization=null")
    packed = 48 * 12 * 7168**2 + 2 * 50_272 * 7168  # the table is dequantized for both of its uses
    rate = plan().machine.accelerator.hbm_rate
    kernels = (48 * 6 + 2) * plan().machine.accelerator.kernel_latency_s
    head = (0.5625 + 2) * packed / rate + kernels - bias_kernels()
    busy = {one: shares["GPU compute"].busy_ps * 1e-12 for one, shares in ((4, four), (16, plain))}
    assert busy[4] - busy[16] == pytest.approx(head, rel=1e-6)


def test_bfloat16_has_no_kernel() -> None:
    def model(dtype: str, *more: str) -> float:
        found = plan(f"model={{name: opt-30b, dtype: {dtype}}}", *more).model
        one = next(module for module in found.layers[0] if module.name == "self_attn.q_proj")
        storage = one.parameters[0].storage
        assert storage is not None
        cost = storage.format.dequantization
        return cost.elements * 2 + cost.bytes

    assert model("float16") == 2
    assert model("bfloat16") == 16.5
    assert model("float16", f"{_SECTION}.group_dim=0", f"{_SECTION}.group_size=32") == 16.5
    assert model("float16", f"{_SECTION}.group_size=28") == 16.5


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        ([f"{_SECTION}.group_size=60"], "group_size", "is 7168, not a multiple of group_size 60"),
        ([f"{_SECTION}.symmetric=true"], "symmetric", "asymmetric quantization only"),
        ([f"{_SECTION}.num_bits=3"], "num_bits", "must be 4 or 8"),
        ([f"{_SECTION}={{num_bits: 4}}"], "group_size", "required key is missing"),
        (["model={name: opt-30b, quantization: int8}"], "initialization", "quantized already (int8)"),
        ([f"{_GATHER}=true"], "zero_quantized_weights", "corrupts weights"),
    ],
)
def test_what_deepspeed_would_refuse(overrides: list[str], key: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        so.load_scenario(_NAME, overrides=overrides).plan()
    assert key in str(caught.value)
    assert message in str(caught.value)


def test_older_versions_ignore_it() -> None:
    found = plan("strategy.deepspeed_version=0.10.2")
    assert found.model.quantization is None
    assert any("ignored by DeepSpeed 0.10.2" in warning for warning in found.warnings)


def test_training_cannot_have_it() -> None:
    scenario = so.load_scenario(
        "training/bloom-7b1",
        overrides=[f"{_SECTION}={{num_bits: 8, group_size: 64, group_dim: 1, symmetric: false}}"],
    )
    with pytest.raises(InputError, match="cannot be trained"):
        scenario.plan()


def test_the_exported_configuration_has_it() -> None:
    exported = so.load_scenario(_NAME).exports()["ds_config.json"]
    section = exported["weight_quantization"]["quantized_initialization"]
    assert section == {"num_bits": 4, "group_size": 64, "group_dim": 1, "symmetric": False}


def test_gathers_of_eight_bits() -> None:
    off = (*_SEVERAL, "strategy.ds_config.weight_quantization=null")
    plain, packed = decode(*off), decode(*off, f"{_GATHER}=true")
    assert packed["host to GPU"].size == plain["host to GPU"].size
    assert packed["all-gather"].size / plain["all-gather"].size == pytest.approx(0.5, abs=0.001)
    assert packed["GPU copies of gathered tensors"].busy_ps > plain["GPU copies of gathered tensors"].busy_ps
    assert not so.load_scenario(_NAME, overrides=[*off, f"{_GATHER}=true"]).plan().warnings


def test_sizes_of_a_quantized_gather() -> None:
    sizes = quantized_gather(16_001, 2)
    assert sizes.sent == 16_001 + 3 * 4
    assert sizes.quantized == 3 * 16_001 + 3 * 4
