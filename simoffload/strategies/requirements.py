"""What programs require of a GPU and of a model, so that they start at all.

NVIDIA's GPUs state a compute capability; a GPU of another manufacturer, or of an unknown capability, is never
refused for one. Sources: vLLM 0.25.1 (each method's ``get_min_capability`` in
``model_executor/layers/quantization``; Marlin's kernels, ``utils/marlin_utils*.py``: 7.5), transformers 5
(``quantizers``), and the table of bitsandbytes 0.50 (docs, installation).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, get_args

from simoffload.documents import either
from simoffload.errors import InputError
from simoffload.hardware import Accelerator, Machine
from simoffload.models import Dtype, Method, ModelShape

VLLM = "vLLM"
TRANSFORMERS = "transformers"


class Least(NamedTuple):
    """A Least is the lowest compute capability with which a program has its kernels."""

    capability: float
    source: str
    otherwise: str = ""
    """What the program does on other GPUs, if it does not refuse them."""


_VLLM = Least(7.5, "docs/getting_started/installation/gpu.cuda.inc.md of vLLM 0.21 and later")
_BFLOAT16 = Least(8.0, "vllm/platforms/cuda.py, check_if_supports_dtype")
_FLOAT8_CACHE = Least(
    8.0, "vllm/v1/attention/backends: flashinfer.py takes FP8 from 8.0 on, triton_attn.py from 8.9"
)
"""Lowest capability of vLLM as a whole, in bfloat16, and for a cache in FP8: that of the first kernel of
attention that takes it."""
_BNB_4, _BNB_8 = (Least(one, "bitsandbytes 0.50, installation.md") for one in (6.0, 7.5))
_WRITTEN_OUT = "writes all weights out in bfloat16 there"
METHODS: Mapping[str, Mapping[Method, Least]] = {
    VLLM: {
        "fp8": Least(7.5, "fp8.py and online/base.py (Marlin's kernels; products in FP8 from 8.9 on)"),
        "gptq": Least(7.5, "utils/marlin_utils.py, query_marlin_supported_quant_types"),
        "awq": Least(7.5, "auto_awq.py"),
        "compressed-tensors": Least(7.5, "compressed_tensors/schemes/compressed_tensors_wNa16.py"),
        "bitsandbytes-4bit": Least(7.0, "bitsandbytes.py"),
        "bitsandbytes-8bit": _BNB_8,
        "mxfp4": Least(8.0, "mxfp4.py"),
        "mxfp8": Least(8.0, "modelopt.py, ModelOptMxFp8Config (Marlin's kernels below 10.0)"),
        "nvfp4": Least(7.5, "compressed_tensors/schemes/compressed_tensors_w4a4_nvfp4.py (Marlin's kernels)"),
    },
    TRANSFORMERS: {
        "fp8": Least(8.9, "quantizer_finegrained_fp8.py", _WRITTEN_OUT),
        "bitsandbytes-4bit": _BNB_4,
        "bitsandbytes-8bit": _BNB_8,
        "mxfp4": Least(7.5, "quantizer_mxfp4.py", _WRITTEN_OUT),
    },
}
"""Lowest capability by program and method of quantization; a method that is not listed has no known one."""


DTYPES: Mapping[Method, tuple[Dtype, ...]] = dict.fromkeys(get_args(Method), get_args(Dtype)) | {
    "fp8": ("bfloat16", "float16"),
    "gptq": ("float16", "bfloat16"),
    "awq": ("float16", "bfloat16"),
    "mxfp4": ("bfloat16",),
    "mxfp8": ("bfloat16",),
    "nvfp4": ("bfloat16", "float16"),
}
"""Data types that vLLM takes with quantized weights, by method: any where it has no rule."""


NO_VLLM = "strategy.kind to deepspeed"
"""Setting that does without vLLM."""


def check_capability(
    program: str,
    model: ModelShape,
    machine: Machine,
    *,
    cache_format: str | None = None,
    without: str = NO_VLLM,
) -> None:
    """Raise InputError if the GPU lacks what a program needs for the model; ``without`` names settings that
    do without the program."""
    gpu = machine.accelerator
    if program == VLLM and cache_format == "nvfp4":
        _check_float4_cache(gpu)
    if gpu.compute_capability is None:
        return
    has = gpu.compute_capability.value
    for key, what, least, remedy in _needs(program, model, cache_format, without):
        if has < least.capability:
            text = f"{what} needs compute capability {least.capability:.1f}, and {gpu.id} has {has:.1f}"
            text += f" ({program} {least.otherwise})" if least.otherwise else ""
            raise InputError.at(key, f"{text}; {remedy}, or take a newer GPU")


def _check_float4_cache(gpu: Accelerator) -> None:
    """Raise InputError for a GPU without the only kernels of attention that take a cache in NVFP4: those of
    TensorRT-LLM for capability 10 (``trtllm-gen``, vllm/v1/attention/backends/flashinfer.py)."""
    stated = gpu.compute_capability
    if stated is None or int(stated.value) != 10:
        has = "not stated" if stated is None else f"{stated.value:.1f}"
        text = f"a cache in nvfp4 in {VLLM} needs compute capability 10 (B200, GB200, B300), and that of"
        raise InputError.at("strategy.kv_cache.format", f"{text} {gpu.id} is {has}; set it to fp8")


def lacks_vllm(machine: Machine) -> bool:
    """Return whether vLLM does not run on the GPUs of a machine, whatever the model."""
    stated = machine.accelerator.compute_capability
    return stated is not None and stated.value < _VLLM.capability


def _needs(
    program: str, model: ModelShape, cache_format: str | None, without: str
) -> Iterator[tuple[str, str, Least, str]]:
    """Yield what a program needs: the key of a scenario, a name, the capability, and what would do."""
    serves = program == VLLM
    if serves:
        yield "strategy.kind", program, _VLLM, f"set {without}"
    if serves and model.dtype == "bfloat16":
        other = "float16" if model.traits.float16 else "float32"
        yield "model.dtype", f"bfloat16 in {program}", _BFLOAT16, f"set model.dtype to {other}"
    for method in sorted(methods_of(model)):
        if found := METHODS.get(program, {}).get(method):
            named = f"{model.quantization} in {program}"
            yield "model.quantization", named, found, "set model.quantization to another format, such as none"
    if serves and cache_format == "fp8":
        other = "set it to the model's data type"
        yield "strategy.kv_cache.format", f"a cache in fp8 in {program}", _FLOAT8_CACHE, other


def methods_of(model: ModelShape) -> frozenset[Method]:
    """Return the methods by which weights of a model are quantized."""
    found = {
        one.storage.format.method
        for module in model.distinct_modules
        for one in module.parameters
        if one.storage is not None
    }
    return frozenset(one for one in found if one)


def check_dtype(model: ModelShape) -> None:
    """Raise InputError for a data type that vLLM refuses: of a family whose activations overflow in float16
    (``_FLOAT16_NOT_SUPPORTED_MODELS``, vllm/config/model.py), or of its kernels for quantized weights
    (``get_supported_act_dtypes``)."""
    if model.dtype == "float16" and not model.traits.float16:
        text = f"vLLM refuses float16 for {model.family}, whose activations overflow"
        raise InputError.at("model.dtype", f"{text}; set model.dtype to bfloat16 or float32")
    for method in sorted(methods_of(model)):
        takes = DTYPES[method]
        if model.dtype not in takes:
            text = f"vLLM refuses {model.dtype} with {model.quantization}"
            raise InputError.at("model.dtype", f"{text}; set model.dtype to {either(takes)}")
