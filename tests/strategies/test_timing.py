"""GPU times of modules: biases under ZeRO-3, and attention at the speed that was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simoffload.hardware import Machine, load_platform
from simoffload.models import ModelShape, Module, Sequences, attention_kernels, load_model, module_cost
from simoffload.strategies.timing import Timing, TrainingTiming

OPT = load_model("opt-30b")
BATCH = Sequences(16, 512, 512)
PICO = 1e-12


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_platform("dgx-h200").machine(nodes=1)


def module(model: ModelShape, name: str) -> Module:
    return next(one for one in model.layer if one.name == name)


def gpu_s(machine: Machine, name: str, *, zero3: bool, model: ModelShape = OPT) -> float:
    timing = Timing(machine=machine, model=model, batch=(BATCH,), zero3=zero3)
    return timing.compute(module(model, name)) * PICO


def test_zero3_adds_the_bias_in_a_kernel_that_reads_and_writes_the_result(machine: Machine) -> None:
    added = gpu_s(machine, "self_attn.q_proj", zero3=True) - gpu_s(machine, "self_attn.q_proj", zero3=False)
    gpu, result = machine.accelerator, 16 * 512 * OPT.hidden_size * 2
    assert added == pytest.approx(2 * result / gpu.hbm_rate + gpu.kernel_latency_s)


@pytest.mark.parametrize("name", ["fc1", "fc2"])
def test_the_bias_of_a_flat_input_is_added_within_the_product(machine: Machine, name: str) -> None:
    assert gpu_s(machine, name, zero3=True) == gpu_s(machine, name, zero3=False)


def test_a_layer_without_bias_has_no_such_kernel(machine: Machine) -> None:
    llama = load_model("llama-3-8b")
    times = {gpu_s(machine, "mlp.up_proj", zero3=zero3, model=llama) for zero3 in (True, False)}
    assert len(times) == 1


def test_backward_sums_the_gradient_of_a_bias(machine: Machine) -> None:
    timing = TrainingTiming(machine=machine, model=OPT, batch=4, length=512, zero3=False)
    layer = module(OPT, "fc2")
    without = layer._replace(parameters=layer.parameters[:1])
    gpu, result = machine.accelerator, 4 * 512 * OPT.hidden_size * 2
    bias_s = (timing.backward(layer) - timing.backward(without)) * PICO
    assert bias_s == pytest.approx(result / gpu.hbm_rate + gpu.kernel_latency_s, rel=0.02)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_has_the_measured_share_of_its_ideal_speed(machine: Machine, attention: str) -> None:
    model = replace(OPT, attention=attention)
    gpu = machine.accelerator
    curve = gpu.fused_attention if attention == "sdpa" else gpu.eager_attention
    assert curve is not None
    name = "self_attn.attention"
    kernels = attention_kernels(model, BATCH)
    total = module_cost(model, module(model, name), batch=16, new_tokens=512, context=512)
    ideal = kernels.flops / gpu.matmul_rate(kernels.flops, "float16") + kernels.bytes / gpu.hbm_rate
    expected = ideal / curve.at(512) + (total.bytes - kernels.bytes) / gpu.hbm_rate
    found = gpu_s(machine, name, zero3=True, model=model)
    assert found == pytest.approx(expected + 16 * gpu.kernel_latency_s)
    assert total.bytes > kernels.bytes


def test_attention_of_an_unmeasured_gpu_reaches_its_roofline(machine: Machine) -> None:
    gpu = machine.accelerator.model_copy(update={"fused_attention": None})
    unmeasured = replace(machine, accelerator=gpu)
    cost = module_cost(OPT, module(OPT, "self_attn.attention"), batch=16, new_tokens=512, context=512)
    roofline = max(cost.flops / gpu.matmul_rate(cost.flops, "float16"), cost.bytes / gpu.hbm_rate)
    found = gpu_s(unmeasured, "self_attn.attention", zero3=True)
    assert found == pytest.approx(roofline + 16 * gpu.kernel_latency_s)


def test_sequences_of_different_lengths_have_their_own_speed(machine: Machine) -> None:
    parts = [Sequences(8, 1, 600), Sequences(4, 512, 512)]
    name = "self_attn.attention"

    def seconds(*batch: Sequences) -> float:
        timing = Timing(machine=machine, model=OPT, batch=batch, zero3=True)
        return timing.compute(module(OPT, name)) * PICO - 16 * machine.accelerator.kernel_latency_s

    assert seconds(*parts) == pytest.approx(sum(seconds(part) for part in parts))


def test_backward_of_attention_takes_a_multiple_of_its_forward(machine: Machine) -> None:
    timing = TrainingTiming(machine=machine, model=OPT, batch=4, length=512, zero3=True)
    layer, latency = module(OPT, "self_attn.attention"), machine.accelerator.kernel_latency_s
    forward = timing.compute(layer) * PICO - 16 * latency
    assert timing.backward(layer) * PICO - 32 * latency == pytest.approx(2.5 * forward)
