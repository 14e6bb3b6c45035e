"""llama.cpp on several GPUs: where layers go, what each GPU holds, and what copies between them take."""

from __future__ import annotations

from dataclasses import replace

import pytest

import simoffload as so
from simoffload.cli import main
from simoffload.hardware import Machine
from simoffload.scenario import LoadedScenario, default_scenario
from simoffload.strategies.hooks.cpu_placement import divided_units
from simoffload.strategies.hooks.device_memory import CONTEXT
from simoffload.strategies.passes.pass_writer import PassWriter
from simoffload.strategies.programs.llama_cpp import LlamaPlan

GIB = 1 << 30
MEMORY = "profiles.host/desktop-ddr4-64gb.memory_capacity=128 GiB"


def scenario(model: str, *sets: str, gpus: int = 2, formats: str = "q8_0") -> LoadedScenario:
    work = "workload={kind: inference, batch_size: 1, prompt_length: 512, output_length: 32}"
    own = (work, "strategy.kind=llama_cpp", f"strategy.num_gpus={gpus}", "model.dtype=float16")
    quantized = (f"model.quantization={formats}",) if formats else ()
    return default_scenario(model, "rtx-4090-2gpu", overrides=(*own, *quantized, *sets))


def plan_of(one: LoadedScenario) -> LlamaPlan:
    plan = one.plan()
    assert isinstance(plan, LlamaPlan)
    return plan


def sizes(plan: LlamaPlan, gpu: int) -> dict[str, int]:
    return {one.name: one.size for one in plan.memory.on_gpus[gpu]}


def sent_s(machine: Machine, size: int) -> float:
    """Time [s] of a copy from one GPU to the other, through host memory over 8 lanes of PCIe 4."""
    path = machine.send(0, 1)
    links = [machine.resources[link].capacity / each for link, each in path.hops]
    return path.latency + size / min(path.curve.rate(size), *links)


@pytest.mark.parametrize(
    ("units", "weights", "found"),
    [
        (33, (1, 1), (17, 16)),
        (33, (3, 1), (25, 8)),
        (4, (1, 1, 2), (1, 1, 2)),
        (4, (1, 3), (1, 3)),  # the second unit begins where the part of the first GPU ends
        (2, (1, 1, 1), (1, 1, 0)),
        (0, (1, 1), (0, 0)),
    ],
)
def test_parts_divide_the_layers_and_the_head(
    units: int, weights: tuple[int, ...], found: tuple[int, ...]
) -> None:
    """A layer goes to the first GPU whose part ends behind the layer's beginning (``std::upper_bound``)."""
    assert divided_units(units, weights) == found


def test_each_gpu_holds_its_layers_their_cache_and_the_last_one_the_head() -> None:
    plan = plan_of(scenario("llama-3.1-8b", "strategy.tensor_split=1,1"))
    layer = sum(part.stored_bytes(2) for module in plan.model.layers[0] for part in module.parameters)
    head = sum(part.stored_bytes(2) for one in plan.model.modules_after for part in one.parameters)
    cache = 768 * 2 * 1024 * 2  # 544 tokens, padded, of 1,024 keys and values in 16 bits
    first, last = sizes(plan, 0), sizes(plan, 1)
    assert (first["weights"], last["weights"]) == (17 * layer, 15 * layer + head)
    assert (first["key-value cache"], last["key-value cache"]) == (17 * cache, 15 * cache)
    assert first["CUDA context"] == last["CUDA context"] == CONTEXT
    row, inputs = 512 * 4, 4 * (512 * 4096 * 4 + 512 * 768 * 2)  # four copies of hidden states and mask
    assert first["buffers of the graph"] == inputs + 2 * (14336 + 4096) * row
    assert last["buffers of the graph"] == inputs + (128256 + 4096) * row


def test_a_layer_of_106_billion_parameters_in_47_fits_eight_times_into_12_gb() -> None:
    """CUDA takes less of a small card than of an H100. Published as run: GLM-4.5-Air in Q4_K_S with
    ``--n-gpu-layers 16`` on two RTX 3060, of which logs of llama.cpp say that 11,906 to 12,037 MiB are there.
    """
    card = "profiles.accelerator/rtx-4090"
    sets = (f"{card}.compute.float32=12.7 TFLOPS", "strategy.gpu_layers=16", MEMORY)
    fullest = 0
    for memory, fits in (("11906 MiB", True), ("11000 MiB", False)):
        one = scenario("glm-4.5-air", f"{card}.hbm_capacity={memory}", *sets, formats="q4_k_s")
        plan = plan_of(one)
        held = sizes(plan, 0)
        assert held["CUDA context"] == pytest.approx(108 << 20, rel=0.1)
        assert so.fit(one).fits == fits
        fullest = sum(held.values())
    assert 11000 << 20 < fullest < 11906 << 20


@pytest.mark.parametrize(("split", "units"), [("0,1", (0, 33)), ("1,0", (33, 0)), ("0,0", (17, 16))])
def test_a_gpu_may_have_no_layers(split: str, units: tuple[int, int]) -> None:
    """It then keeps what CUDA takes alone; zeros alone are no parts, as for llama.cpp."""
    plan = plan_of(scenario("llama-3.1-8b", f"strategy.tensor_split={split}"))
    assert plan.on_cpu.units == units
    for gpu, number in enumerate(units):
        if not number:
            assert sizes(plan, gpu) | {"CUDA context": 0} == dict.fromkeys(sizes(plan, gpu), 0)
            assert sizes(plan, gpu)["CUDA context"] == CONTEXT
    one = so.simulate(scenario("llama-3.1-8b", gpus=1))
    both = so.simulate(scenario("llama-3.1-8b", f"strategy.tensor_split={split}"))
    assert (both.tpot_s == pytest.approx(one.tpot_s, rel=1e-6)) == (0 in units)


def test_a_pattern_sends_tensors_to_another_gpu() -> None:
    """The network of the first layer goes to the last GPU: its bytes, and two copies of hidden states more,
    there and back; patterns keep the GPUs from computing parts of a prompt at the same time."""
    sets = ("strategy.tensor_split=1,1", "workload.output_length=2")
    plain = scenario("llama-3.1-8b", *sets)
    moved = scenario("llama-3.1-8b", *sets, "strategy.override_tensor=blk.0.ffn=CUDA1")
    before, after = plan_of(plain), plan_of(moved)
    network = 3 * 4096 * 14336 * 34 // 32 + 4096 * 4  # the norm, ffn_norm, too
    weights = [[sizes(plan, gpu)["weights"] for gpu in (0, 1)] for plan in (before, after)]
    assert weights[1] == [weights[0][0] - network, weights[0][1] + network]
    copy = sent_s(moved.machine, 4096 * 4)
    times = [so.simulate(one).tpot_s or 0 for one in (plain, moved)]
    assert times[1] - times[0] == pytest.approx(2 * copy, rel=0.02)


def test_a_token_takes_the_layers_of_both_and_one_copy_more() -> None:
    """The hidden states of a token, 4,096 in single precision, go from one GPU to the other once."""
    one, two = (scenario("llama-3.1-8b", gpus=gpus) for gpus in (1, 2))
    alone, both = so.simulate(one), so.simulate(two)
    copy = sent_s(two.machine, 4096 * 4)
    assert both.tpot_s == pytest.approx(alone.tpot_s + copy, rel=1e-3)  # type: ignore[operator]
    assert both.step is not None
    busy = {share.cause_text: share.busy_s for share in both.step.shares}
    assert busy["GPU 0 to GPU 1"] == pytest.approx(copy, rel=0.01)
    assert "GPU 1 to GPU 0" not in busy


def test_parts_of_a_prompt_are_computed_at_the_same_time() -> None:
    """Of eight parts both GPUs compute different ones but for the first and the last: 9 halves of a part
    instead of 16."""
    sets = ("workload.prompt_length=4096", "strategy.ubatch_size=512")
    alone, both = (so.simulate(scenario("llama-3.1-8b", *sets, gpus=gpus)).ttft_s for gpus in (1, 2))
    assert alone is not None
    assert both is not None
    assert both / alone == pytest.approx(9 / 16, rel=0.07)  # layers and head are no equal halves


def test_experts_on_the_cpu_keep_their_products_of_prompts_on_the_first_gpu() -> None:
    """A product with weights in host memory is the first GPU's from 32 tokens on: each layer of the second
    one sends its hidden states there, and gets them back."""
    sets = ("strategy.cpu_moe=all", "strategy.tensor_split=1,1", "strategy.load_mode=none")
    result = so.simulate(scenario("qwen3-30b-a3b", *sets, "workload.output_length=2"))
    assert result.prefill is not None
    causes = {one.cause_text: one.busy_s for one in result.prefill.shares}
    plan = plan_of(scenario("qwen3-30b-a3b", *sets))
    layers, each = plan.on_cpu.units[1] - 1, sent_s(plan.machine, 512 * 2048 * 4)
    assert causes["GPU 1 to GPU 0"] == pytest.approx(layers * each, rel=0.05)
    assert causes["GPU 0 to GPU 1"] == pytest.approx((layers + 1) * each, rel=0.05)
    assert not any("to GPU 1" in one and "weights" in one for one in causes)


@pytest.mark.parametrize(
    ("model", "formats", "layers"), [("llama-3.3-70b", "q4_k_m", 80), ("llama-3.1-8b", "q8_0", 32)]
)
def test_fit_changes_nothing_where_all_has_room(model: str, formats: str, layers: int) -> None:
    plan = plan_of(scenario(model, formats=formats))
    assert (plan.on_cpu.before, sum(plan.on_cpu.units)) == (0, layers + 1)
    assert min(plan.memory.spare) >= 0


def test_fit_fills_the_last_gpu_with_whole_layers_first() -> None:
    """One more layer on either GPU would leave less than 1 GiB of it."""
    plan = plan_of(scenario("llama-3.3-70b", MEMORY))
    (first, last), before = plan.on_cpu.units, plan.on_cpu.before
    assert before > 0
    assert first + last + before == 81
    for units, gpu in (((first + 1, last), 0), ((first, last + 1), 1)):
        more = plan.on_cpu._replace(units=units, before=before - 1)
        larger = replace(plan, on_cpu=more, homes=more.homes(plan.model))
        assert larger.memory.spare[gpu] < 0 <= plan.memory.spare[gpu]


def test_fit_gives_experts_to_the_first_gpu_first() -> None:
    """The first one has whole layers, the last one the rest, with experts as far as it has room."""
    plan = plan_of(scenario("gpt-oss-120b", MEMORY, formats=""))
    first, last = plan.on_cpu.units
    assert (plan.on_cpu.before, first + last) == (0, 37)
    assert first < plan.on_cpu.experts.start < plan.on_cpu.experts.stop == 36
    assert min(plan.memory.spare) >= 0
    more = plan.on_cpu._replace(units=(first + 1, last - 1))
    larger = replace(plan, on_cpu=more, homes=more.homes(plan.model))
    assert larger.memory.spare[0] < 0
    one = plan_of(scenario("gpt-oss-120b", MEMORY, gpus=1, formats=""))
    assert len(one.on_cpu.experts) > len(plan.on_cpu.experts) + 8


@pytest.mark.parametrize("model", ["llama-3.3-70b", "qwen3-30b-a3b"])
def test_repeated_layers_are_what_they_would_be_alone(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = ("strategy.gpu_layers=30", "workload.prompt_length=700", MEMORY)
    one = scenario(model, *sets, formats="q4_k_m")
    repeated = so.simulate(one).metrics()
    monkeypatch.setattr(PassWriter, "verify", True)
    assert so.simulate(scenario(model, *sets, formats="q4_k_m")).metrics() == repeated


def test_what_is_not_measured_is_said_and_widens_the_interval() -> None:
    one, two = (so.simulate(scenario("llama-3.1-8b", gpus=gpus)) for gpus in (1, 2))
    widths = []
    for result in (one, two):
        low, high = so.confidence(result).interval("tpot_s")
        widths.append(high / low)
    assert widths[1] > 1.05 * widths[0]
    assert [result.uncompared for result in (one, two)] == [(), ("divided layers among GPUs without links",)]


@pytest.mark.parametrize(
    ("sets", "command"),
    [
        (("strategy.tensor_split=3,1",), "-c 768 -ts 3,1\n"),
        (("strategy.tensor_split=[1, 2.5]",), "-c 768 -ts 1,2.5\n"),
        ((), "-c 768\n"),
        (("strategy.num_gpus=1",), "-c 768 -dev CUDA0\n"),
    ],
)
def test_the_command_names_the_gpus(sets: tuple[str, ...], command: str) -> None:
    (found,) = scenario("llama-3.1-8b", *sets).exports().values()
    assert found == f"llama-server -m llama-3.1-8b-Q8_0.gguf {command}"


def test_gpus_of_amd_have_the_names_of_rocm() -> None:
    own = ("strategy.kind=llama_cpp", "strategy.num_gpus=2", "model.dtype=float16")
    one = default_scenario("qwen3-30b-a3b", "mi300x-8gpu", overrides=own)
    assert "-c 8192 -dev ROCm0,ROCm1\n" in one.exports()["llama-server.sh"]
    there, cuda = ("strategy.override_tensor=" + f"blk.2.ffn_.*_exps={name}0" for name in ("ROCm", "CUDA"))
    assert default_scenario("qwen3-30b-a3b", "mi300x-8gpu", overrides=(*own, there)).plan()
    with pytest.raises(so.InputError, match=r'cannot be on "CUDA0".*the devices are CPU, ROCm0, ROCm1 '):
        default_scenario("qwen3-30b-a3b", "mi300x-8gpu", overrides=(*own, cuda)).plan()


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (("strategy.tensor_split=1,2,3",), "has 3 numbers, but num_gpus is 2; give one for each GPU"),
        (("strategy.tensor_split=1,-1",), "tensor_split"),
        (("strategy.override_tensor=blk.0.ffn_down=CUDA2",), "the devices are CPU, CUDA0, CUDA1"),
        (("strategy.num_gpus=1", "strategy.override_tensor=blk.0=CUDA1"), "the devices are CPU, CUDA0 ("),
        (
            ("strategy.override_tensor=blk.0.ffn_up_exps=CUDA1", "model=qwen3-30b-a3b"),
            "divides mlp.experts of layer 0 among GPUs, which is not simulated",
        ),
        (("strategy.tensor_split=a,b",), "tensor_split"),
        (("strategy.split_mode=row",), "row is not simulated (llama.cpp calls row deprecated"),
        (("strategy.num_gpus=3",), "3 GPUs, but the platform has 2 GPUs"),
        (("strategy.num_gpus=-1",), "num_gpus"),
        (("strategy.num_gpus=0", "strategy.gpu_layers=3"), "num_gpus is 0: no GPU has layers; remove it"),
    ],
)
def test_mistakes_get_one_message(
    sets: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ("strategy.kind=llama_cpp", "platform=rtx-4090-2gpu", "strategy.num_gpus=2", *sets)
    assert main(["run", "llama-3.1-8b", *(f"--set={one}" for one in own)]) == 2
    assert message in capsys.readouterr().err


def test_a_second_card_is_a_purchase() -> None:
    """Both cards have half of the lanes; layers that the CPU computed are then on GPUs."""
    own = ("strategy.kind=llama_cpp", "model.quantization=q4_k_m")
    one = default_scenario("llama-3.3-70b", "rtx-4090-desktop", overrides=own)
    advice = so.advise(one)
    (second,) = [found for found in advice.helping if found.change.key == "second-card"]
    assert (
        second.change.description
        == "a second NVIDIA GeForce RTX 4090 24 GB, each with 8 lanes, as boards divide 16"
    )
    assert second.gain > 3


def test_without_a_gpu_the_cpu_computes_everything() -> None:
    """``-dev none``: no tensor, no context and no buffer is on the GPU, and nothing is copied to it."""
    alone = scenario("qwen3-8b", "strategy.num_gpus=0", MEMORY, formats="q4_k_m")
    result = so.simulate(alone)
    assert {use.tier for use in result.capacity} == {"dram"}
    copied = {share.cause.kind for share in result.decode[0].shares if share.size}
    assert copied == {"cpu-products"}
    assert result.bottleneck_share == pytest.approx(1, abs=1e-3)
    assert result.provenance.exports["llama-server.sh"].endswith(" -dev none\n")
