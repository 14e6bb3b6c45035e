"""Tensors in which a program keeps the weights of a model: one, or several for a quantized weight.

A quantized weight is kept as packed values, scales, zero points, and others that do not grow with it, such as
code tables. Each is a tensor of its own, which is copied, pinned, and divided among processes.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from simoffload.models.formats import WeightFormat


class Scales(NamedTuple):
    """Scales are one of the tensors that a program keeps beside the packed values, with some bytes for each
    tile of weights."""

    name: str
    """Name of the tensor in the module, such as "weight_scale"."""
    bytes: Fraction
    """Size [B] per tile."""
    columns: int | None = None
    """Weights of a row that share them; None: all of a row."""
    rows: int | None = 1
    """Rows that share them; None: all."""
    flat: bool = False
    """Whether a tile continues in the next row: the tensor is cut as one sequence."""
    dropped: bool = False
    """Whether kernels of vLLM do not use it, so that it does not keep it."""

    def size(self, rows: int, columns: int) -> Fraction:
        """Return the size of all scales of a tensor [B]."""
        if self.flat:
            return self.bytes * ceil(Fraction(rows * columns, self.columns or rows * columns))
        across = ceil(Fraction(columns, self.columns or columns))
        return self.bytes * across * ceil(Fraction(rows, self.rows or rows))


class Storage(NamedTuple):
    """A Storage is the form in which a quantized weight is kept."""

    format: WeightFormat
    tensors: tuple[int, ...]
    """Sizes [B] of its tensors: packed values, then those that the format has beside them."""
    served: bool = False
    """Whether vLLM keeps it, without what its kernels do not use."""

    @property
    def bytes(self) -> int:
        """Size [B] of all its tensors."""
        return sum(self.tensors)

    @property
    def read(self) -> int:
        """Size [B] of the tensors that kernels read."""
        return self.as_served().bytes

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its tensors in the module."""
        form = self.format
        scales = () if form.joined else (one.name for one in form.scales if not (self.served and one.dropped))
        return (form.values, *scales)

    def as_served(self) -> Storage:
        """Return the tensors that vLLM keeps."""
        if self.served or self.format.joined:
            return self._replace(served=True)
        values, *scales = self.tensors
        kept = (size for one, size in zip(self.format.scales, scales, strict=True) if not one.dropped)
        return Storage(self.format, (values, *kept), served=True)

    def merged(self, other: Storage) -> Storage:
        """Return the tensors of this weight and of another one of the same format that kernels multiply as
        one."""
        return self._replace(tensors=tuple(map(sum, zip(self.tensors, other.tensors, strict=True))))


class Parameter(NamedTuple):
    """One parameter tensor of a module."""

    name: str
    """Name in Hugging Face's model; relative to the layer for a layer's tensor."""
    numel: int
    """Number of elements of the tensor."""
    tied: bool = False
    """Whether it is the tensor of the same name that an earlier module owns (``lm_head`` and the
    embedding)."""
    trainable: bool = True
    columns: int = 0
    """Number of elements of a row, which may share scales; 0 for a vector, or where it is not known."""
    storage: Storage | None = None
    """Form in which it is kept; None: in the model's data type."""

    def stored_bytes(self, dtype_bytes: int) -> int:
        """Return the size [B] of the tensor where it is kept; ``dtype_bytes`` is that of an element."""
        return self.numel * dtype_bytes if self.storage is None else self.storage.bytes

    def read_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes [B] of it that kernels read."""
        return self.numel * dtype_bytes if self.storage is None else self.storage.read

    def stored_tensors(self, dtype_bytes: int) -> tuple[tuple[str, int], ...]:
        """Return name and size [B] of the tensors in which it is kept: itself, or those of its format.

        Those of experts in one tensor have its name before their own, such as ``gate_up_proj_blocks``.
        """
        if self.storage is None:
            return ((self.name, self.numel * dtype_bytes),)
        owner = self.name.removesuffix("weight")
        before = owner if owner.endswith(".") else f"{self.name}_"
        return tuple(
            (before + name, size) for name, size in zip(self.storage.names, self.storage.tensors, strict=True)
        )

    def as_served(self) -> Parameter:
        """Return it as vLLM keeps it."""
        return self if self.storage is None else self._replace(storage=self.storage.as_served())

    def part(self, numel: int, *, columns: int | None = None) -> Parameter:
        """Return a part of the tensor with ``numel`` elements: some of its rows, or with fewer ``columns``
        some of each."""
        width = columns or self.columns or numel
        if self.storage is None:
            return self._replace(numel=numel, columns=width if self.columns else 0)
        stored = self.storage.format.stored(numel // width, width)
        return self._replace(numel=numel, columns=width if self.columns else 0, storage=stored)
