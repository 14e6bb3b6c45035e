"""Commands of vLLM start on the machine for which they are printed: enough memory is free, and the GPU has
the compute capability for the data type, the format and the cache; on every shipped GPU."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import product
from typing import get_args

import pytest

import simoffload as so
from simoffload.errors import InputError
from simoffload.hardware import Accelerator, list_profiles, load_platform, load_profile
from simoffload.hardware.machine import Machine
from simoffload.models import ModelShape, load_model
from simoffload.models.formats import FORMATS, Method
from simoffload.strategies.programs.vllm import Vllm
from simoffload.strategies.programs.vllm_engine import fuller, most_utilization
from simoffload.strategies.requirements import DTYPES, METHODS, TRANSFORMERS, VLLM
from simoffload.workload import Inference

LEAST = {
    "vllm": 7.5,  # vLLM's documentation: "compute capability 7.5 or higher"
    "bfloat16": 8.0,  # vllm/platforms/cuda.py: "only … with compute capability of at least 8.0"
    "mxfp4": 8.0,  # Mxfp4Config.get_min_capability
    "cache": 8.0,  # FP8 in FlashInferBackend.supports_compute_capability; TritonAttentionBackend needs 8.9
}
"""What vLLM 0.25.1 needs; formats that are not listed need no more than all of vLLM."""
NO_FLOAT16 = {"gemma2", "gemma3_text"}  # _FLOAT16_NOT_SUPPORTED_MODELS in vllm/config/model.py
GPUS = [one.id for one in list_profiles() if one.kind == "accelerator"]
MODELS = [
    *product(["qwen3-0.6b"], ["float16", "bfloat16"], [None, "fp8", "int4-g128", "nf4", "int8"]),
    ("gemma-3-1b", None, None),
    ("gemma-2-2b", None, "fp8"),
    ("gpt-oss-20b", None, None),
]
STRATEGIES = [
    *(Vllm(kv_cache={"format": form}) for form in (None, "fp8")),
    Vllm(enforce_eager=True, data_parallel_size=2),
    Vllm(cpu_offload_gb=1),
]
WORK = Inference(kind="inference", batch_size=1, prompt_length=64, output_length=8)


@cache
def model(name: str, dtype: str | None, quantization: str | None) -> ModelShape:
    keys = {"name": name, "dtype": dtype, "quantization": quantization}
    return load_model({key: value for key, value in keys.items() if value is not None})


@cache
def machine(gpu: str) -> Machine:
    profile = load_profile("accelerator", gpu)
    assert isinstance(profile, Accelerator)
    base = load_platform("dgx-spark" if profile.is_unified else "dgx-h100").machine()
    hbm = base.tiers["hbm"]
    if profile.hbm_capacity is not None:
        hbm = hbm._replace(capacity=profile.hbm_capacity.value)
    return replace(base, accelerator=profile, tiers={**base.tiers, "hbm": hbm})


def problems(command: str, served: ModelShape, where: Machine) -> list[str]:
    """Reasons why vLLM would not start; an independent list of its rules."""
    gpu, found = where.accelerator, []
    has = gpu.compute_capability.value if gpu.compute_capability else 99.0
    share = float((re.findall(r"--gpu-memory-utilization (\S+)", command) or ["0.92"])[0])
    capacity = where.tiers["hbm"].capacity
    taken = 0.5e9 + (0.5e9 if gpu.has_display else 0) + (where.host.reserved_bytes if gpu.is_unified else 0)
    if share * capacity > capacity - taken:
        found.append(f"{share} of the memory is not free")
    (dtype,) = re.findall(r"--dtype (\S+)", command)
    needs = {"vllm"} | {dtype} | ({"cache"} if "--kv-cache-dtype fp8" in command else set())
    needs |= {served.quantization or ""}
    found += [one for one in needs if has < LEAST.get(one, 0)]
    return [*found, *(["float16"] if dtype == "float16" and served.family in NO_FLOAT16 else [])]


@pytest.mark.parametrize("gpu", GPUS)
def test_every_printed_command_starts(gpu: str) -> None:
    """A combination is refused, or its command breaks no rule of vLLM; most GPUs take most of them."""
    printed, refusals = 0, set[str]()
    for (name, dtype, form), strategy in product(MODELS, STRATEGIES):
        served = model(name, dtype, form)
        try:
            plan = strategy.plan(served, WORK, machine(gpu))
        except InputError as error:
            refusals.add(" ".join(str(error).split("needs")[1].split()[:2]))
            continue
        command = strategy.exports(plan)["vllm-serve.sh"]
        assert problems(command, served, machine(gpu)) == [], (name, dtype, form, strategy)
        printed += 1
    capability = machine(gpu).accelerator.compute_capability
    total = len(MODELS) * len(STRATEGIES)
    expected = total if capability is None or capability.value >= 8 else 0 if capability.value < 7.5 else 15
    assert printed == expected
    assert refusals <= {"compute capability"}


def test_every_method_has_its_entry() -> None:
    """Of vLLM every method that it has; formats of a scenario all have a method."""
    assert {one.method for one in FORMATS.values()} <= METHODS[VLLM].keys()
    assert METHODS[VLLM].keys() == set(get_args(Method)) - {"", "deepspeed", "gguf"}
    assert METHODS[TRANSFORMERS].keys() <= METHODS[VLLM].keys()
    assert DTYPES.keys() == set(get_args(Method))


def test_shipped_gpus_of_nvidia_state_their_capability() -> None:
    """Those of AMD have none, so that nothing is refused for it."""
    without = [gpu for gpu in GPUS if machine(gpu).accelerator.compute_capability is None]
    assert without == ["mi300x", "mi325x", "mi355x"]
    shown = {gpu for gpu in GPUS if machine(gpu).accelerator.has_display}
    assert {"rtx-4090", "rtx-5090", "gb10"} <= shown
    assert not shown & {"h100-sxm", "l40s", "t4", "v100-32g-sxm", "mi300x"}


@pytest.mark.parametrize(
    ("gpu", "most", "tried"),
    [
        ("rtx-4090", 0.95, (0.95,)),
        ("rtx-3070-ti", 0.87, ()),
        ("gb10", 0.95, (0.95,)),
        ("h100-sxm", 0.99, (0.95, 0.97)),
    ],
)
def test_memory_that_is_free_at_the_start(gpu: str, most: float, tried: tuple[float, ...]) -> None:
    """A display takes some; what is not free is neither tried nor accepted."""
    assert most_utilization(machine(gpu)) == most
    assert fuller(machine(gpu)) == tried
    assert Vllm(gpu_memory_utilization=most).plan(model("qwen3-0.6b", None, None), WORK, machine(gpu))
    with pytest.raises(InputError, match=f"set it to {most:g} or less"):
        Vllm(gpu_memory_utilization=1).plan(model("qwen3-0.6b", None, None), WORK, machine(gpu))


@pytest.mark.parametrize("size", [300_000_000, 500_000_000])
@pytest.mark.parametrize("stated", [{}, {"gpu_memory_utilization": 0.5}])
def test_a_gpu_that_is_too_small_for_vllm_is_refused(size: int, stated: dict[str, float]) -> None:
    """No fraction below 0 is named, stated or not."""
    where = machine("t4")
    small = replace(where, tiers={**where.tiers, "hbm": where.tiers["hbm"]._replace(capacity=size)})
    assert most_utilization(small) == 0
    assert fuller(small) == ()
    with pytest.raises(InputError, match=r"vLLM does not start on a GPU with .*\(its CUDA context"):
        Vllm(**stated).plan(model("qwen3-0.6b", None, None), WORK, small)


def test_a_tight_fraction_is_warned_of() -> None:
    """On a card without a display 0.98 starts if nothing else uses the GPU."""
    plan = Vllm(gpu_memory_utilization=0.98).plan(model("qwen3-0.6b", None, None), WORK, machine("h100-sxm"))
    assert any("vLLM starts only if 0.98 of a GPU's memory is free" in one for one in plan.warnings)


def scenario(*overrides: str) -> so.LoadedScenario:
    work = "workload={kind: inference, batch_size: 1, prompt_length: 64, output_length: 8}"
    return so.load_scenario("serving/gpt-oss-120b", overrides=[work, *overrides])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            (
                "model={name: qwen3-0.6b, quantization: fp8}",
                "platform=dgx-2",
                "strategy={kind: vllm}",
            ),
            "strategy.kind: vLLM needs compute capability 7.5, and v100-32g-sxm has 7.0",
        ),
        (
            (
                "model=bloom-560m",
                "platform=dgx-2",
                "strategy={kind: vllm, tensor_parallel_size: 2}",
            ),
            "v100-32g-sxm has 7.0; set strategy.kind to deepspeed, transformers or accelerate, or take",
        ),
        (
            ("model={name: qwen3-0.6b, quantization: fp8}", "platform=dgx-2", "strategy={kind: accelerate}"),
            "fp8 in transformers needs compute capability 8.9, and v100-32g-sxm has 7.0 (transformers writes",
        ),
        (
            ("model={name: gpt-oss-20b, dtype: float16}", "strategy={kind: vllm}"),
            "vLLM refuses float16 with mxfp4; set model.dtype to bfloat16",
        ),
        (
            ("model={name: gemma-3-1b, dtype: float16}", "strategy={kind: vllm}"),
            "vLLM refuses float16 for gemma3_text, whose activations overflow; set model.dtype to bfloat16",
        ),
        (
            ("strategy={kind: vllm, gpu_memory_utilization: nan}",),
            'strategy.gpu_memory_utilization: must be a finite number, got "nan"',
        ),
    ],
)
def test_what_a_program_refuses_is_refused(overrides: tuple[str, ...], message: str) -> None:
    """One clear message: what, where, and what would do."""
    with pytest.raises(InputError, match=re.escape(message)):
        scenario(*overrides).plan()


def test_gemma_is_in_bfloat16_by_default() -> None:
    """As released; other families stay in float16."""
    assert [model(name, None, None).dtype for name in ("gemma-2-2b", "gemma-3-1b", "qwen3-0.6b")] == [
        "bfloat16",
        "bfloat16",
        "float16",
    ]
