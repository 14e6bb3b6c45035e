"""What programs cannot do with the key-value cache, as errors of the section ``strategy.kv_cache``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from simoffload.documents import either
from simoffload.errors import InputError
from simoffload.models import ModelShape
from simoffload.strategies.tunables import NamesTier

if TYPE_CHECKING:
    from simoffload.strategies.cache.kv_cache import CacheEngine, KvCache

_SECTION = "strategy.kv_cache"
NATIVE: dict[str, str] = {"float16": "fp16", "bfloat16": "bf16"}
"""Format that is a model's data type of 16 bit."""


def _named(value: object) -> object:
    if not isinstance(value, str) or not value:
        raise PydanticCustomError("tier_type", "must be the name of a tier")
    return value


TierName = Annotated[str, BeforeValidator(_named), Field(min_length=1), NamesTier("any")]
"""Name of a tier of the platform, which only the machine can confirm."""


def refused(key: str, value: str, valid: Sequence[str], why: str, *, more: str = "") -> InputError:
    """Return the error for a value of ``kv_cache`` that the program does not have; ``more``: what else is
    possible."""
    choice = f"use {either(valid)}, or leave it out" if valid else "leave it out"
    return InputError.at(f"{_SECTION}.{key}", f'"{value}" is not possible: {why}; {choice}{more}')


def check_native(cache: KvCache, engine: CacheEngine, model: ModelShape) -> None:
    """Raise InputError for a format of 16 bit that is not the data type of the model."""
    own = NATIVE.get(model.dtype)
    if cache.format in NATIVE.values() and cache.format != own:
        why = f"{model.name} is in {model.dtype}, and its cache too, unless it has fewer bits"
        raise refused("format", str(cache.format), [*([own] if own else []), *engine.formats], why)


def check_streamed(cache: KvCache, tiers: Sequence[str]) -> None:
    """Raise InputError for a streamed cache that is not on one of ``tiers``, as of one on the GPU nothing
    would be streamed, and for one with a connector."""
    key = f"{_SECTION}.implementation"
    if cache.tier not in tiers:
        text = f"a streamed cache is not on the GPU, and tier is {cache.tier}"
        raise InputError.at(key, f"{text}; set tier to {either(tiers)}, or remove implementation")
    if cache.connector is not None:
        raise InputError.at(key, "a connector stores blocks of a cache in HBM; remove it, or implementation")


def check_cpu_attention(cache: KvCache, model: ModelShape) -> None:
    """Raise InputError for what DeepSpeed's example with attention on the CPU cannot do."""
    key = f"{_SECTION}.implementation"
    if not cache.attends_on_cpu:
        for option in ("pin_memory", "asynchronous"):
            if getattr(cache, option):
                text = "only a cache with implementation: cpu_attention has this choice; remove it"
                raise InputError.at(f"{_SECTION}.{option}", text)
        return
    if (code := model.traits.cpu_attention) is None:
        text = (
            "DeepSpeed's fork of transformers has attention on the CPU for OPT, BLOOM and Llama only, not "
            f"for {model.family}; remove it"
        )
        raise InputError.at(key, text)
    if code.obstacle:
        why = f"DeepSpeed's fork is of transformers 4.32, which does not load {model.name}: {code.obstacle}"
        valid = "it has linear and dynamic ones, with a factor and nothing else"
        others = "use dynamic or static, or a model such as llama-3-8b, whose positions are not scaled"
        raise InputError.at(key, f'"{cache.implementation}" is not possible: {why} ({valid}); {others}')
    if cache.tier == "hbm":
        raise refused("tier", cache.tier, ["dram"], "attention on the CPU needs the cache in host memory")
    if cache.format is not None:
        text = "the cache of cpu_attention has no format with fewer bits; remove it"
        raise InputError.at(f"{_SECTION}.format", text)


def check_quantized(cache: KvCache, model: ModelShape, *, more: str) -> None:
    """Raise InputError for what ``QuantizedCache`` refuses or has no option for; ``more`` is possible instead
    of offloading one."""
    text = "a quantized cache of transformers grows, and stays on the GPU"
    if cache.offloaded:
        raise InputError.at(f"{_SECTION}.tier", f"{text}; set it to hbm, or remove format{more}")
    if cache.static:
        raise InputError.at(f"{_SECTION}.implementation", f"{text}; set it to dynamic, or remove format")
    if model.num_sliding_layers:
        text = f"transformers quantizes no cache of a model with sliding layers such as {model.name}"
        raise InputError.at(f"{_SECTION}.format", f"{text}; remove it")
