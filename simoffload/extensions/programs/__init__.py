"""Programs that few scenarios name: FlexGen, and PyTorch's FSDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simoffload.extending import Extension, Offer

if TYPE_CHECKING:
    from simoffload.hardware import Machine
    from simoffload.models import ModelShape


def _named_as_in_flexgen(model: ModelShape, _machine: Machine) -> bool:
    """FlexGen loads the tensors of one architecture, by their names."""
    return any(one.name.startswith("model.decoder.") for one in model.modules_before)


def _without_gguf(model: ModelShape, _machine: Machine) -> bool:
    from simoffload.strategies.requirements import methods_of

    return "gguf" not in methods_of(model)


EXTENSION = Extension(
    programs=(
        Offer("fsdp", f"{__name__}.fsdp:Fsdp", frozenset({"training"}), _without_gguf),
        Offer("flexgen", f"{__name__}.flexgen:FlexGen", frozenset({"inference"}), _named_as_in_flexgen),
    )
)
"""What this extension brings, by name."""
