"""Quantization of a model: which of its tensors are stored in which format.

Usually only matrices of linear layers within the model's layers are quantized, experts included; the head,
embeddings, norms, routers and biases stay in the model's data type. gpt-fast quantizes the head, too,
DeepSpeed also embeddings, and GGUF stores every matrix in a type of its own (``gguf``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from simoffload.models.formats import FORMATS, GGUF_TYPES, WeightFormat, deepspeed, grouped
from simoffload.models.gguf import MIXTURES, GgufModel, Mixture, gguf_type
from simoffload.models.modules import Module, ModuleKind, Parameter, Storage
from simoffload.models.shape import ModelShape
from simoffload.models.shape import grouped as grouped_layers


class Matrix(NamedTuple):
    """A Matrix is a tensor of a module that is not a norm's, as far as a quantization depends on it."""

    name: str
    """Name of the tensor in Hugging Face's model, relative to the layer."""
    module: str
    """Name of its module, relative to the layer."""
    kind: ModuleKind
    columns: int
    """Number of weights in a row."""
    layer: int | None = None
    """Number of the layer; None outside the layers."""
    stacked: bool = False
    """Whether it is a parameter of its own, such as the matrices of all experts, not a linear layer's."""

    @property
    def is_head(self) -> bool:
        """Whether it is the output layer."""
        return self.layer is None and self.module == "lm_head"


@dataclass(frozen=True)
class Quantization:
    """A Quantization names the format of every tensor of a model."""

    name: str
    format: WeightFormat | None = None
    """Format of quantized matrices; None with a mixture."""
    mixture: Mixture | None = None
    """Mixture of a GGUF file."""
    kept: tuple[str, ...] = ()
    """Names of modules that are not quantized; "*" stands for any text, "re:" begins a regular expression."""
    head: bool = False
    """Whether the head is quantized."""
    embeddings: bool = False
    """Whether embeddings are quantized, too."""
    experts: bool = True
    """Whether experts in one tensor are quantized; programs that replace modules by quantized ones do not
    see them."""
    routers: bool = False
    """Whether routers of experts are quantized."""

    def format_of(self, matrix: Matrix, model: GgufModel) -> WeightFormat | None:
        """Return the format of a matrix; None: the model's data type."""
        if self.mixture is not None:
            if matrix.kind == "router":
                return self.small
            return gguf_type(
                self.mixture, model, name=matrix.name, columns=matrix.columns, layer=matrix.layer
            )
        chosen = {"linear": not matrix.is_head or self.head, "router": self.routers}
        if not chosen.get(matrix.kind, self.embeddings) or (matrix.stacked and not self.experts):
            return None
        return None if any(_matches(pattern, matrix) for pattern in self.kept) else self.format

    @property
    def small(self) -> WeightFormat | None:
        """Format of vectors; None: the model's data type."""
        return None if self.mixture is None else GGUF_TYPES["f32"]


def _matches(pattern: str, matrix: Matrix) -> bool:
    """Return whether a module or one around it has the name ``pattern``."""
    inside = "" if matrix.layer is None else f"model.layers.{matrix.layer}."
    full = f"{inside}{matrix.module}"
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), full) is not None
    escaped = re.escape(pattern.removesuffix(".")).replace(r"\*", ".*")
    return re.search(rf"(^|\.){escaped}(\.|$)", full) is not None


def _gpt_fast(name: str, bits: int, group: int | None, zero: int) -> Quantization:
    """Return a quantization of gpt-fast (quantize.py), which replaces all linear layers, the head included.

    Scales, and zero points of 4-bit groups, are of 2 B each.
    """
    return Quantization(name, grouped(name, bits, group, zero=Fraction(zero)), head=True)


QUANTIZATIONS: dict[str, Quantization] = {
    **{name: Quantization(name, one) for name, one in FORMATS.items()},
    "gpt-fast-int8": _gpt_fast("gpt-fast-int8", 8, None, 0),
    "gpt-fast-int4-g32": _gpt_fast("gpt-fast-int4-g32", 4, 32, 2),
    **{name: Quantization(name, mixture=mixture) for name, mixture in MIXTURES.items()},
}
"""Quantizations by the name that a scenario uses."""


def deepspeed_quantization(bits: int, group: int, *, dtype_bytes: int, kernel: bool) -> Quantization:
    """Return DeepSpeed's ``quantized_initialization``: the weights of all linear layers and embeddings.

    The classes are compared exactly (``WEIGHT_QUANTIZATION_LAYERS``), so OPT's embedding of positions, a
    class of its own, and experts in one tensor stay as they are.
    """
    made = deepspeed(bits, group, dtype_bytes=dtype_bytes, kernel=kernel)
    return Quantization(
        made.name, made, kept=("embed_positions",), head=True, embeddings=True, experts=False, routers=True
    )


def quantized(shape: ModelShape, quantization: Quantization) -> ModelShape:
    """Return the model with the storage of every tensor; layers with different formats become different
    ones."""
    routers = (module.out_features for module in shape.distinct_modules if module.kind == "router")
    model = GgufModel(
        layers=shape.num_hidden_layers,
        queries_per_key=shape.num_attention_heads // shape.num_key_value_heads,
        experts=next(routers, 1),
        tied=any(one.tied for module in shape.modules_after for one in module.parameters),
    )

    def stored(modules: tuple[Module, ...], layer: int | None) -> tuple[Module, ...]:
        return tuple(_stored(module, layer, quantization, model, owned) for module in modules)

    owned: dict[str, Storage | None] = {}
    before = stored(shape.modules_before, None)
    layers = [stored(layer, index) for index, layer in enumerate(shape.layers)]
    distinct = {layer: layer for layer in layers}  # equal layers are one object
    return replace(
        shape,
        name=f"{shape.name}, {quantization.name}",
        quantization=quantization.name,
        modules_before=before,
        groups=grouped_layers([distinct[layer] for layer in layers]),
        modules_after=stored(shape.modules_after, None),
    )


def _stored(
    module: Module,
    layer: int | None,
    quantization: Quantization,
    model: GgufModel,
    owned: dict[str, Storage | None],
) -> Module:
    """Return a module with the storage of its tensors; ``owned`` has that of tensors outside the layers."""
    found = []
    for one in module.parameters:
        storage = owned.get(one.name) if one.tied else _storage(module, one, layer, quantization, model)
        if layer is None and not one.tied:
            owned[one.name] = storage
        found.append(one._replace(storage=storage))
    return module._replace(parameters=tuple(found))


def _storage(
    module: Module, one: Parameter, layer: int | None, quantization: Quantization, model: GgufModel
) -> Storage | None:
    """Return the storage of a tensor; None: in the model's data type."""
    chosen = quantization.small
    if one.columns:
        stacked = not one.name.endswith(".weight")
        matrix = Matrix(one.name, module.name, module.kind, one.columns, layer, stacked)
        chosen = quantization.format_of(matrix, model)
    if chosen is None:
        return None
    columns = one.columns or one.numel
    return Storage(chosen, chosen.stored_bytes(one.numel // columns, columns))
