"""Tensors in which programs keep quantized weights: their number and sizes by hand, copies, and rounding."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import simoffload as so
from simoffload.models import Layer, load_model
from simoffload.models.formats import WeightFormat, fp8, gptq, packed
from simoffload.models.quantization import QUANTIZATIONS
from simoffload.scenario import LoadedScenario
from simoffload.strategies.base import memory_stages, pinned_block, pinned_rounding
from simoffload.strategies.programs.accelerate import AcceleratePlan
from simoffload.strategies.programs.vllm import VllmOffloadPlan
from simoffload.strategies.programs.zero_inference import ZeroInferencePlan
from tests.strategies import scenarios

GIB, MIB = 1 << 30, 1 << 20
ROUNDING = "rounding of pinned allocations"

# A layer of gpt-oss-120b: 128 experts, hidden and inner size 2880.
BLOCKS, SCALES = 128 * 2 * 2880 * 1440, 128 * 2 * 2880 * 90
DOWN_BLOCKS, DOWN_SCALES = 128 * 2880 * 1440, 128 * 2880 * 90


def scenario(platform: str, model: Any, **strategy: Any) -> LoadedScenario:
    work = {"batch_size": 1, "prompt_length": 512, "steps": 31}
    return scenarios.scenario(model=model, platform=platform, strategy=strategy, **work)


def terms(loaded: LoadedScenario, tier: str) -> dict[str, int]:
    (stage,) = memory_stages(loaded.plan())
    return {one.name: one.size for one in stage.terms if one.tier == tier}


# -- a weight ---------------------------------------------------------------------------------------

VALUES = 4096 * 11_008


@pytest.mark.parametrize(
    ("form", "tensors"),
    [
        (
            gptq(4, 128),
            {"qweight": VALUES // 2, "scales": 4096 * 86 * 2, "qzeros": 4096 * 86 // 2, "g_idx": 4 * 11_008},
        ),
        (gptq(4, 128, awq=True), {"qweight": VALUES // 2, "scales": 4096 * 86 * 2, "qzeros": 4096 * 86 // 2}),
        (
            packed(4, 128, symmetric=True),
            {"weight_packed": VALUES // 2, "weight_scale": 4096 * 86 * 2, "weight_shape": 16},
        ),
        (
            packed(4, 128, symmetric=False),
            {
                "weight_packed": VALUES // 2,
                "weight_scale": 4096 * 86 * 2,
                "weight_zero_point": 4096 * 86 // 2,
                "weight_shape": 16,
            },
        ),
        (packed(8, None, symmetric=True), {"weight": VALUES, "weight_scale": 4096 * 2}),
        (fp8(), {"weight": VALUES, "weight_scale": 4}),
        (fp8(per_row=True), {"weight": VALUES, "weight_scale": 4096 * 4}),
        (fp8(block=(128, 128)), {"weight": VALUES, "weight_scale_inv": 32 * 86 * 4}),
        ("int8", {"weight": VALUES, "SCB": 4096 * 4}),
        ("nf4", {"weight": VALUES // 2, "weight.absmax": VALUES // 64 * 4, "weight.quant_map": 64}),
        (
            "nf4-dq",
            {
                "weight": VALUES // 2,
                "weight.absmax": VALUES // 64,
                "weight.quant_map": 64,
                "weight.nested_absmax": VALUES // 64 // 256 * 4,
                "weight.nested_quant_map": 1024,
                "weight.nested_offset": 4,
            },
        ),
        ("mxfp4", {"blocks": VALUES // 2, "scales": VALUES // 32}),
        (
            "nvfp4",
            {"weight": VALUES // 2, "weight_scale": VALUES // 16, "weight_scale_2": 4, "input_scale": 4},
        ),
        ("gpt-fast-int8", {"weight": VALUES, "scales": 4096 * 2}),
        ("gpt-fast-int4-g32", {"weight": VALUES // 2, "scales_and_zeros": 4096 * 344 * 4}),
    ],
)
def test_tensors_of_a_weight(form: WeightFormat | str, tensors: dict[str, int]) -> None:
    """A weight of 4096 rows and 11,008 columns."""
    found = QUANTIZATIONS[form].format if isinstance(form, str) else form
    assert found is not None
    stored = found.stored(4096, 11_008)
    assert dict(zip(stored.names, stored.tensors, strict=True)) == tensors
    assert found.stored_bytes(4096, 11_008) == stored.bytes == sum(tensors.values())


# -- programs ---------------------------------------------------------------------------------------


def per_layer(layer: Layer) -> int:
    return sum(len(one.stored_tensors(2)) for module in layer for one in module.parameters)


@pytest.mark.parametrize(
    ("quantization", "each"),
    [("none", 1), ("int8", 2), ("nf4", 3), ("nf4-dq", 6), ("int4-g128", 4), ("fp8", 2), ("mxfp4", 2)],
)
def test_accelerate_copies_each_tensor(quantization: str, each: int) -> None:
    """Seven linear layers and two norms."""
    model = {"name": "llama-2-7b", "quantization": quantization}
    loaded = scenario("rtx-4090-desktop", model, kind="accelerate", device_map="cpu")
    found = loaded.plan()
    assert isinstance(found, AcceleratePlan)
    assert per_layer(found.model.layers[0]) == 7 * each + 2
    assert sum(map(len, found.copied)) == 32 * (7 * each + 2) + 3
    assert sum(map(sum, found.copied)) == found.model.weight_bytes
    assert found.bytes_at("cpu") == found.model.weight_bytes


@pytest.mark.parametrize(
    ("quantization", "home", "offloaded"),
    [("int4-g128", "cpu", True), ("int4-g128", 4, True), ("int4-g128", "cuda", False), ("fp8", "cpu", False)],
)
def test_the_script_offloads_buffers(quantization: str, home: Any, *, offloaded: bool) -> None:
    """GPTQ's tensors are buffers, which Accelerate leaves on the GPU by default."""
    model = {"name": "llama-2-7b", "quantization": quantization}
    loaded = scenario("rtx-4090-desktop", model, kind="accelerate", device_map=home)
    assert ("offload_buffers=True" in loaded.exports()["accelerate.py"]) == offloaded


def test_zero_divides_each_tensor() -> None:
    """Scales of a row in FP8 are 16 KiB and more, so small that they stay gathered."""
    model = {"name": "llama-2-7b", "quantization": "fp8-channel"}
    found = scenario("rtx-4090-desktop", model, kind="deepspeed", weights="dram").plan()
    assert isinstance(found, ZeroInferencePlan)
    sizes = Counter(2 * one.numel for one in found.tensors if one.name.startswith("mlp.down_proj"))
    assert sizes == {VALUES: 32, 4096 * 4: 32}
    assert all(one.persistent for one in found.tensors if one.name.endswith("weight_scale"))
    assert sum(2 * one.numel for one in found.tensors) == found.model.weight_bytes


def test_deepspeed_keeps_values_and_scales_in_one_tensor() -> None:
    quantized = {"num_bits": 4, "group_size": 64, "group_dim": 1, "symmetric": False}
    config = {"weight_quantization": {"quantized_initialization": quantized}}
    loaded = scenario("rtx-4090-desktop", "opt-6.7b", kind="deepspeed", weights="dram", ds_config=config)
    found = loaded.plan()
    assert isinstance(found, ZeroInferencePlan)
    assert Counter(one.name for one in found.tensors)["self_attn.q_proj.weight"] == 32
    (size,) = {2 * one.numel for one in found.tensors if one.name == "self_attn.q_proj.weight"}
    assert size == 4096 * 4096 // 2 + 4096 * 64 * 2 * 2


def test_experts_of_gpt_oss_are_blocks_and_scales() -> None:
    (experts,) = (one for one in load_model("gpt-oss-120b").layers[0] if one.name == "mlp.experts")
    tensors = dict(each for one in experts.parameters for each in one.stored_tensors(2))
    assert tensors == {
        "mlp.experts.gate_up_proj_blocks": BLOCKS,
        "mlp.experts.gate_up_proj_scales": SCALES,
        "mlp.experts.gate_up_proj_bias": 128 * 5760 * 2,
        "mlp.experts.down_proj_blocks": DOWN_BLOCKS,
        "mlp.experts.down_proj_scales": DOWN_SCALES,
        "mlp.experts.down_proj_bias": 128 * 2880 * 2,
    }
    packed_sizes = (BLOCKS, SCALES, DOWN_BLOCKS, DOWN_SCALES)
    assert list(map(pinned_block, packed_sizes)) == [GIB, 64 * MIB, 512 * MIB, 32 * MIB]
    assert pinned_rounding(packed_sizes) / sum(packed_sizes) == pytest.approx(0.0114, abs=0.0001)
    assert pinned_rounding([BLOCKS + SCALES]) / (BLOCKS + SCALES) > 0.9, "as one tensor"


def test_offload_of_experts_that_transformers_keeps_on_the_gpu_is_a_what_if() -> None:
    for model, home, warned in (
        ("gpt-oss-20b", 4, True),
        ("gpt-oss-20b", "cuda", False),
        ("opt-6.7b", 4, False),
    ):
        found = scenario("rtx-4090-desktop", model, kind="accelerate", device_map=home).plan().warnings
        assert any("is a what-if" in one for one in found) == warned


@pytest.mark.parametrize(
    "strategy",
    [
        {"kind": "accelerate", "device_map": "cpu", "pin_memory": True},
        {"kind": "deepspeed", "weights": "dram"},
    ],
)
def test_pinned_gpt_oss_is_hardly_larger_than_its_weights(strategy: dict[str, Any]) -> None:
    """Beside the layers, embedding and head of 1.16 GB each take blocks of 2 GiB."""
    found = terms(scenario("rtx-4090-desktop", "gpt-oss-120b", **strategy), "dram")
    outside = 2 * (2 * GIB - 2 * 201_088 * 2880)
    assert (found[ROUNDING] - outside) / found["weights"] < 0.024
    assert found[ROUNDING] / found["weights"] < 0.055


# -- vLLM -------------------------------------------------------------------------------------------

MARLIN = (
    128 * 2 * 2944 * 3072 // 2,
    128 * 2 * 2944 * 3072 // 32,
    128 * 3072 * 2944 // 2,
    128 * 3072 * 2944 // 32,
)
"""[B] Experts of a layer, padded to 2944 times 3072."""


def offloaded(platform: str, model: Any, **strategy: Any) -> VllmOffloadPlan:
    found = scenario(platform, model, kind="vllm", **strategy).plan()
    assert isinstance(found, VllmOffloadPlan)
    return found


def test_vllm_pads_offloaded_experts() -> None:
    plan = offloaded("rtx-4090-desktop", "gpt-oss-120b", cpu_offload_gb=100)
    (stage,) = plan.offloaded
    sizes = stage[0]["mlp.experts"]
    assert tuple(one for one in sizes if one > 2 * MIB) == MARLIN
    assert len(sizes) == 6, "with two biases"
    whole = offloaded("rtx-4090-desktop", "gpt-oss-120b").model.weight_bytes
    more = sum(MARLIN) - BLOCKS - SCALES - DOWN_BLOCKS - DOWN_SCALES
    assert sum(one.weight_bytes for one in plan.divided.stages) == whole + 36 * more


def test_a_part_of_an_expert_is_padded_for_itself() -> None:
    plan = offloaded("dgx-h100", "gpt-oss-120b", tensor_parallel_size=2, cpu_offload_gb=100)
    (stage,) = plan.offloaded
    blocks, *_ = stage[0]["mlp.experts"]
    assert blocks == 128 * 2 * 1536 * 3072 // 2, "1440 is no multiple of 128"


def test_without_offload_nothing_is_padded() -> None:
    plan = offloaded("dgx-h100", "gpt-oss-120b")
    assert sum(one.weight_bytes for one in plan.divided.stages) == plan.model.weight_bytes
    (text,) = scenario("dgx-h100", "gpt-oss-120b", kind="vllm").exports().values()
    assert "marlin" not in text
    assert "PYTORCH" not in text


def test_the_command_turns_off_rounding_that_doubles_memory() -> None:
    """Padded blocks of 1.08 GiB would take 2 GiB."""
    loaded = scenario("rtx-4090-desktop", "gpt-oss-120b", kind="vllm", cpu_offload_gb=45)
    assert pinned_rounding(MARLIN) / sum(MARLIN) > 0.8
    found = terms(loaded, "dram")
    assert found[ROUNDING] < 0.001 * found["weights"]
    (text,) = loaded.exports().values()
    assert text.startswith("export PYTORCH_ALLOC_CONF=pinned_max_round_threshold_mb:1\n")
    assert "--cpu-offload-gb 45 \\\n  --moe-backend marlin" in text
    assert any("PYTORCH_ALLOC_CONF" in one for one in loaded.plan().warnings)
    plain = scenario("rtx-4090-desktop", "llama-3.1-70b", kind="vllm", cpu_offload_gb=45)
    assert 0.1 < terms(plain, "dram")[ROUNDING] / terms(plain, "dram")["weights"] < 0.5
    assert not any("rounding" in one or "PYTORCH" in one for one in plain.plan().warnings)


@pytest.mark.parametrize("gpus", [1, 2])
def test_gpt_oss_fits_a_desktop_with_64_gb(gpus: int) -> None:
    """48 GiB of 66 stay in host memory for one RTX 4090, 2 x 14 for two."""
    loaded = scenario(
        "rtx-4090-2gpu",
        "gpt-oss-120b",
        kind="vllm",
        tensor_parallel_size=gpus,
        cpu_offload_gb=48 if gpus == 1 else 14,
    )
    assert so.fit(loaded).fits
    assert so.simulate(loaded).tpot_s < 1  # type: ignore[operator]


@pytest.mark.parametrize(
    ("quantization", "names"),
    [
        ("fp8", ["weight", "weight_scale"]),
        ("int4-g128", ["qweight", "scales", "qzeros"]),
        ("mxfp4", ["blocks", "scales"]),
    ],
)
def test_vllm_joins_tensors_of_queries_keys_and_values(quantization: str, names: list[str]) -> None:
    """Each kind of tensor with its own kind; ``g_idx`` is dropped."""
    model = {"name": "llama-3.1-8b", "quantization": quantization, "dtype": "bfloat16"}
    plan = offloaded("dgx-h100", model, cpu_offload_gb=100)
    (stage,) = plan.divided.stages
    (qkv,) = (one for one in stage.layers[0] if one.name.startswith("self_attn.q_proj+"))
    (weight,) = qkv.parameters
    assert weight.storage is not None
    assert list(weight.storage.names) == names
    separate = [one for one in plan.model.layers[0] if one.name[-6:] in ("q_proj", "k_proj", "v_proj")]
    apart = [
        one.storage.as_served().tensors for module in separate for one in module.parameters if one.storage
    ]
    assert weight.storage.tensors == tuple(map(sum, zip(*apart, strict=True)))
    assert plan.offloaded[0][0][qkv.name] == weight.storage.tensors
