"""LoRA: small trainable matrices next to frozen linear layers.

References: Hu et al., LoRA, arXiv 2106.09685; names and choice of layers as in Hugging Face's PEFT 0.18
(tuners/lora/layer.py, ``Linear.forward``; tuners/tuners_utils.py, ``_maybe_include_all_linear_layers``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from simoffload.documents import quoted
from simoffload.errors import InputError
from simoffload.models.modules import SINGLE, Module, adapter_sum, linear
from simoffload.models.shape import LayerGroup, ModelShape

ALL_LINEAR: Literal["all-linear"] = "all-linear"
"""PEFT's name for all linear layers but the output layer."""
Targets = Sequence[str] | Literal["all-linear"]


def with_lora(
    shape: ModelShape,
    *,
    r: int,
    target_modules: Targets = ALL_LINEAR,
    single: bool = False,
    autocast: bool = False,
) -> ModelShape:
    """Freeze a model and add adapters of rank ``r`` to every linear layer that one of the names matches.

    A name matches as in PEFT: the module's own or the end of its path after a dot. "all-linear" are all
    linear layers but the output layer; experts in one tensor and routers are not linear layers (transformers
    5: parameters). Each target is followed by ``lora_A`` (``r`` x in) and ``lora_B`` (out x ``r``), without
    bias or dropout, and the sum of both results. ``single``: they are in single precision, and compute in it
    unless under ``autocast``. Raises InputError for a rank below 1, a name that matches nothing and one that
    matches a module without a single matrix.
    """
    if r < 1:
        raise InputError.at("lora.r", f"{r} is not a valid rank; give at least 1")
    _check(shape.distinct_modules, target_modules)
    single = single and shape.dtype_bytes < SINGLE
    adapted = partial(_adapted, r=r, targets=target_modules, single=single, autocast=autocast)
    return replace(
        shape,
        modules_before=adapted(shape.modules_before),
        groups=tuple(LayerGroup(tuple(map(adapted, layers)), repeat) for layers, repeat in shape.groups),
        modules_after=adapted(shape.modules_after),
    )


def _adapted(
    modules: Sequence[Module], *, r: int, targets: Targets, single: bool, autocast: bool
) -> tuple[Module, ...]:
    found: list[Module] = []
    for module in modules:
        frozen = tuple(parameter._replace(trainable=False) for parameter in module.parameters)
        found.append(module._replace(parameters=frozen))
        if _is_target(module, targets):
            quantized = _is_quantized(module)
            cast_bytes = 0 if not single or (autocast and quantized) else 2 if autocast else SINGLE
            share, name, (wide, out) = module.share, module.name, (module.in_features, module.out_features)
            parts = (
                linear(f"{name}.lora_A", wide, r, share=share)._replace(cast_bytes=cast_bytes),
                linear(f"{name}.lora_B", r, out, share=share),
                adapter_sum(
                    f"{name}.lora",
                    wide,
                    out,
                    copied=quantized,
                    single=single,
                    autocast=autocast,
                    share=share,
                ),
            )
            found += (one._replace(expert=module.expert) for one in parts)
    return tuple(found)


def _is_target(module: Module, targets: Targets) -> bool:
    if targets == ALL_LINEAR:
        return module.kind == "linear" and module.parallel != "vocabulary" and _is_matrix(module)
    return any(_matches(module, target) for target in targets)


def _check(modules: Sequence[Module], targets: Targets) -> None:
    if not targets:
        raise InputError.at(
            "lora.target_modules", "is empty; name linear layers, for example q_proj and v_proj"
        )
    linears = ", ".join(sorted({one.name.rpartition(".")[2] for one in modules if _is_matrix(one)}))
    for target in [] if targets == ALL_LINEAR else targets:
        matched = [module for module in modules if _matches(module, target)]
        if not matched:
            raise InputError.at(
                "lora.target_modules", f"{quoted(target)} matches no module; linear layers: {linears}"
            )
        if not all(_is_matrix(module) for module in matched):
            raise InputError.at(
                "lora.target_modules", f"{quoted(target)} is not a linear layer; there are: {linears}"
            )


def _matches(module: Module, target: str) -> bool:
    return module.name == target or module.name.endswith(f".{target}")


def _is_quantized(module: Module) -> bool:
    return any(parameter.storage is not None for parameter in module.parameters)


def _is_matrix(module: Module) -> bool:
    """Return whether the module is one matrix; experts kept in one tensor are not."""
    return (
        module.kind in ("linear", "router")
        and bool(module.parameters)
        and module.parameters[0].numel == module.in_features * module.out_features
    )
