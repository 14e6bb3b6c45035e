"""Quantization of a model: which of its tensors are stored in which format.

Usually only matrices of linear layers within the model's layers are quantized, experts included; the head,
embeddings, norms, routers and biases stay in the model's data type. gpt-fast quantizes the head, too,
DeepSpeed also embeddings, and GGUF stores every matrix in a type of its own (``gguf``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from simoffload.models.formats import FORMATS, GGUF_TYPES, WeightFormat, deepspeed, grouped
from simoffload.models.gguf import MIXTURES, GgufModel, Mixture, gguf_type


class Matrix(NamedTuple):
    """A Matrix is a tensor of a module that is not a norm's, as far as a quantization depends on it."""

    name: str
    """Name of the tensor in Hugging Face's model, relative to the layer."""
    module: str
    """Name of its module, relative to the layer."""
    kind: Literal["linear", "router", "embedding"]
    columns: int
    """Number of weights in a row."""
    layer: int | None = None
    """Number of the layer; None outside the layers."""
    stacked: bool = False
    """Whether it holds the matrices of several experts."""

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
