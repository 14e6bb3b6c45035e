"""Adapters under every program: memory by hand, times in closed form, what is refused, what is exported."""

from __future__ import annotations

from typing import Any

import pytest

import simoffload as so
from simoffload.documents import Document
from simoffload.errors import InputError
from simoffload.models import load_model
from simoffload.models.cost import backward_cost, training_cost
from simoffload.models.lora import with_lora
from simoffload.scenario import LoadedScenario, resolve
from simoffload.strategies.passes.timing import TrainingTiming

PROGRAMS: dict[str, dict[str, Any]] = {
    "resident": {"kind": "transformers"},
    "fsdp": {"kind": "fsdp", "ranks": 2},
    "zero": {"kind": "deepspeed", "ranks": 2, "ds_config": {"zero_optimization": {"stage": 3}}},
}
MATRICES = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
TARGETS = "strategy.lora.target_modules"
ADAPTERS = 41_943_040  # as PEFT prints it for rank 16 on all linear layers of Llama 3.1 8B


def scenario(program: str, *, quantization: str = "nf4-dq", **more: Any) -> LoadedScenario:
    model = {"name": "llama-3.1-8b", "dtype": "bfloat16", "quantization": quantization}
    section = {**PROGRAMS[program], "lora": {"r": 16}, **more}
    platform = "rtx-4090-2gpu" if section.get("ranks", 1) > 1 else "rtx-4090-desktop"
    work = {"kind": "training", "batch_size": 1, "sequence_length": 2048}
    data = {"name": "x", "model": model, "platform": platform, "workload": work, "strategy": section}
    return resolve(Document("", data))


def held(loaded: LoadedScenario, stage: str) -> dict[str, int]:
    found = loaded.plan().held
    return {one.name: one.size for one in found if (one.tier, one.stage) == ("hbm", stage) and one.size}


# -- memory ----------------------------------------------------------------------------------------


def test_memory_of_qlora_by_hand() -> None:
    found = held(scenario("resident"), "forward and backward")
    others = 2 * 128256 * 4096 + 65 * 4096  # embedding, head, norms
    assert found["parameters"] == MATRICES // 2 + 2 * others + 4 * ADAPTERS, "adapters in single precision"
    # 0.127 bit of scales for a weight, and two code tables of 1,088 bytes with an offset for each matrix.
    scales = MATRICES // 64 + MATRICES // 64 // 256 * 4 + 32 * 7 * 1092
    assert found["scales of quantized weights"] == scales
    assert found["a matrix in 16 bit, made for its use"] == 2 * 4096 * 14336
    assert found["optimizer moments"] == 8 * ADAPTERS
    assert not {"gradients", "master weights"} & set(found), "gradients replace activations"
    assert held(scenario("resident"), "optimizer step")["gradients"] == 4 * ADAPTERS


def test_packed_weights_are_divided_and_scales_are_not() -> None:
    alone, divided = (held(scenario(one), "forward and backward") for one in ("resident", "zero"))
    packed = alone["parameters"] - 2 * ADAPTERS  # under DeepSpeed they have the model's type
    assert divided["parameter partition"] == pytest.approx(packed / 2, rel=1e-5)
    same = "scales of quantized weights"
    assert alone[same] == divided[same] == held(scenario("fsdp"), "forward and backward")[same]


def test_34_billion_in_four_bits_train_on_two_cards_of_24_gb() -> None:
    """A batch of 2, published as run."""
    sizes = {"num_hidden_layers": 60, "hidden_size": 7168, "intermediate_size": 20480}
    heads = {"num_attention_heads": 56, "num_key_value_heads": 8, "vocab_size": 64000}
    model = {"family": "llama", "dtype": "bfloat16", "quantization": "nf4-dq", **sizes, **heads}
    work = {"kind": "training", "batch_size": 2, "sequence_length": 2048}
    section = {"kind": "fsdp", "ranks": 2, "lora": {"r": 8}}
    data = {"name": "34b", "model": model, "workload": work, "strategy": section}
    assert so.fit(resolve(Document("", {**data, "platform": "rtx-4090-2gpu"}))).fits


# -- times -----------------------------------------------------------------------------------------


def timing(quantization: str) -> TrainingTiming:
    loaded = scenario("resident", quantization=quantization)
    model = with_lora(load_model(loaded.scenario.model), r=16)
    return TrainingTiming(machine=loaded.machine, model=model, batch=1, length=2048, zero3=False)


def test_four_bit_weights_are_written_in_full_for_each_product() -> None:
    """Beyond the product: packed weights and scales are read, 16-bit ones written; three kernels."""
    plain, packed = timing("none"), timing("nf4-dq")
    gpu = packed.machine.accelerator
    modules = {one.name: one for one in packed._model.layers[0]}
    module = modules["mlp.up_proj"]
    numel = 4096 * 14336
    stored = numel // 2 + numel // 64 + numel // 64 // 256 * 4 + 1092
    writes = (stored + 2 * numel) / gpu.hbm_rate + 3 * gpu.kernel_latency_s
    same = next(one for one in plain._model.layers[0] if one.name == "mlp.up_proj")
    for now, then in ((packed.compute, plain.compute), (packed.backward, plain.backward)):
        assert now(module) - then(same) == pytest.approx(writes * 1e12, rel=1e-6)


def test_a_frozen_layer_has_one_product_in_backward_and_an_adapter_two() -> None:
    found = timing("none")
    modules = {one.name: one for one in found._model.layers[0]}
    assert found.backward(modules["mlp.up_proj"]) == pytest.approx(
        found.compute(modules["mlp.up_proj"]), rel=3e-3
    )
    assert found.backward(modules["mlp.up_proj.lora_A"]) == pytest.approx(
        2 * found.compute(modules["mlp.up_proj.lora_A"]), rel=3e-3
    )


def test_the_sum_of_an_adapter_takes_its_traffic() -> None:
    """Scaled and added: 5 passes over the result in forward; 2 over its gradient and 3 over that of the input
    in backward; with 4-bit weights a copy of the result beside."""
    for quantization, forward in (("none", 5), ("nf4-dq", 7)):
        found = timing(quantization)
        gpu = found.machine.accelerator
        sum_ = next(one for one in found._model.layers[0] if one.name == "mlp.up_proj.lora")
        latency = 3 * gpu.kernel_latency_s
        traffic = 2048 * 14336 * 2 / gpu.hbm_rate
        assert found.compute(sum_) == pytest.approx((forward * traffic + latency) * 1e12, rel=1e-6)
        back = 2 * traffic + 3 * 2048 * 4096 * 2 / gpu.hbm_rate
        assert found.backward(sum_) == pytest.approx((back + 2 * latency) * 1e12, rel=1e-6)


def test_plain_peft_keeps_adapters_in_single_precision() -> None:
    """Their sums move 4 passes over the input and 13 over the result; backward 8, and 12 or 9 (4 bits)."""
    wide, out = 4096, 14336
    for quantization, back in (("none", 12), ("nf4-dq", 9)):
        shape = scenario("resident", quantization=quantization, mixed_precision=False).plan().model
        sum_ = next(one for one in shape.layers[0] if one.name == "mlp.up_proj.lora")
        assert training_cost(shape, sum_, batch=1, length=1).bytes == 2 * (4 * wide + 13 * out)
        assert backward_cost(shape, sum_, batch=1, length=1).bytes == 2 * (8 * wide + back * out)


def test_autocast_casts_the_input_of_an_adapter_and_casts_it_back() -> None:
    wide, out = 4096, 14336
    shape = scenario("resident", quantization="none").plan().model
    sum_ = next(one for one in shape.layers[0] if one.name == "mlp.up_proj.lora")
    assert training_cost(shape, sum_, batch=1, length=1).bytes == 2 * (6 * wide + 5 * out)
    assert backward_cost(shape, sum_, batch=1, length=1).bytes == 2 * ((3 + 6) * wide + 2 * out)


def test_adapters_of_16_bits_are_faster_and_those_of_deepspeed_and_fsdp_are_such() -> None:
    steps = {}
    for program in PROGRAMS:
        for single in (True, False):
            lora = {"r": 16, "autocast_adapter_dtype": single}
            found = so.simulate(scenario(program, lora=lora, quantization="none"))
            steps[program, single] = found.step_s or 0.0
    assert steps["resident", False] < 0.97 * steps["resident", True]
    assert steps["fsdp", False] == steps["fsdp", True]
    assert steps["zero", False] == steps["zero", True]


def test_frozen_weights_cost_a_third_less_than_trained_ones() -> None:
    """Two products for each of forward, recomputation and the gradient of the input, in place of eight."""
    lora = so.simulate(scenario("resident", quantization="none"))
    flops = 2 * (MATRICES + 128256 * 4096) * 2048
    rate = flops * 3 / (lora.step_s or 0.0)
    assert 0.4 * 165e12 < rate < 165e12, "tensor cores of an RTX 4090: 165 TFLOP/s"
    packed = so.simulate(scenario("resident"))
    assert 0.95 < (packed.step_s or 0.0) / (lora.step_s or 1.0) < 1.3, "under 4 bits PEFT casts no inputs"


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_trains_adapters_on_weights_of_16_and_of_4_bits(program: str) -> None:
    for quantization in ("none", "nf4", "nf4-dq"):
        result = so.simulate(scenario(program, quantization=quantization, ranks=2))
        assert result.fits
        assert result.step_s is not None


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "more", "key", "message"),
    [
        (
            "resident",
            {"quantization": "int4-g128"},
            "model.quantization",
            "quantization: nf4-dq or nf4",
        ),
        ("fsdp", {"quantization": "q4_k_m"}, "model.quantization", "are not modelled"),
        ("resident", {"lora": None}, "model.quantization", "with strategy.lora: {r: 16}"),
        ("zero", {"weights": "dram"}, "strategy.weights", "all parameters on the GPUs alone"),
        (
            "fsdp",
            {"lora": {"r": 8, "target_modules": ["query"]}},
            "strategy.lora.target_modules",
            "no module",
        ),
        ("zero", {"lora": {"r": 8, "target_modules": "all"}}, "strategy.lora.target_modules", "all-linear"),
    ],
)
def test_what_real_programs_refuse_is_refused(
    program: str, more: dict[str, Any], key: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        scenario(program, **more).plan()
    problem = caught.value.problems[0]
    assert (problem.key, message in problem.message) == (key, True), problem


def test_adapters_are_not_for_inference() -> None:
    work = {"kind": "inference", "batch_size": 1, "prompt_length": 8, "output_length": 2}
    data = {**scenario("resident", quantization="none").document.data, "workload": work}
    with pytest.raises(InputError, match="adapters are trained"):
        resolve(Document("", data)).plan()


# -- what is exported ------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS)
def test_files_for_peft_and_bitsandbytes(program: str) -> None:
    files = scenario(program).exports()
    assert files["adapter_config.json"] == {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 16,
        "target_modules": "all-linear",
    }
    assert files["quantization_config.json"] == {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8" if program == "resident" else "bfloat16",
    }
    assert files["requirements.txt"] == "peft==0.21.2\nbitsandbytes==0.50.2\n"
    assert "quantization_config.json" not in scenario(program, quantization="none").exports()


def test_the_old_key_quantizes_with_a_warning() -> None:
    old = scenario("resident", quantization="none", lora={"r": 16, "quantize": "nf4"})
    assert held(old, "optimizer step") == held(scenario("resident"), "optimizer step")
    assert any("model.quantization: nf4-dq" in one for one in old.plan().warnings)
