"""LoRA: small trainable matrices next to frozen linear layers, and 4-bit base weights (QLoRA).

References: Hu et al., LoRA, arXiv 2106.09685; Dettmers et al., QLoRA, arXiv 2305.14314; names as in Hugging
Face's PEFT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simoffload.documents import quoted
from simoffload.errors import InputError
from simoffload.models.formats import bitsandbytes
from simoffload.models.modules import Module, linear
from simoffload.models.shape import LayerGroup, ModelShape


def with_lora(shape: ModelShape, *, r: int, target_modules: Sequence[str]) -> ModelShape:
    """Freeze a model and add adapters of rank ``r`` to every linear layer that one of the names matches.

    A name matches as in PEFT: the module's own or the end of its path after a dot. Each target is followed by
    ``lora_A`` (``r`` x in) and ``lora_B`` (out x ``r``), without bias or dropout. Raises InputError for a
    rank below 1, a name that matches nothing and one that matches a module without a single matrix.
    """
    if r < 1:
        raise InputError.at("lora.r", f"{r} is not a valid rank; give at least 1")
    _check(shape.distinct_modules, target_modules)
    return replace(
        shape,
        modules_before=_adapted(shape.modules_before, r, target_modules),
        groups=tuple(
            LayerGroup(tuple(_adapted(layer, r, target_modules) for layer in layers), repeat)
            for layers, repeat in shape.groups
        ),
        modules_after=_adapted(shape.modules_after, r, target_modules),
    )


def nf4_bits() -> float:
    """Return the bits per weight in bitsandbytes' NF4 with double quantization, its share of the scales
    included."""
    return bitsandbytes(double_quantized=True).bits_per_weight


def _adapted(modules: Sequence[Module], r: int, targets: Sequence[str]) -> tuple[Module, ...]:
    found: list[Module] = []
    for module in modules:
        frozen = tuple(parameter._replace(trainable=False) for parameter in module.parameters)
        found.append(module._replace(parameters=frozen))
        if any(_matches(module, target) for target in targets):
            share, name = module.share, module.name
            found.append(linear(f"{name}.lora_A", module.in_features, r, share=share))
            found.append(linear(f"{name}.lora_B", r, module.out_features, share=share))
    return tuple(found)


def _check(modules: Sequence[Module], targets: Sequence[str]) -> None:
    if not targets:
        raise InputError.at(
            "lora.target_modules", "is empty; name linear layers, for example q_proj and v_proj"
        )
    for target in targets:
        matched = [module for module in modules if _matches(module, target)]
        linears = ", ".join(sorted({one.name.rpartition(".")[2] for one in modules if _is_matrix(one)}))
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


def _is_matrix(module: Module) -> bool:
    """Return whether the module is one matrix; experts kept in one tensor are not."""
    return (
        module.kind in ("linear", "router")
        and bool(module.parameters)
        and module.parameters[0].numel == module.in_features * module.out_features
    )
