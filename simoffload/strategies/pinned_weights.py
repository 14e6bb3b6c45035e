"""Weights that vLLM keeps in pinned host memory: padded for the kernels that take them, rounded by PyTorch.

Source: vLLM 0.33, ``layers/fused_moe/oracle/mxfp4.py``, ``layers/quantization/mxfp4.py`` and
``model_loader/utils.py`` in ``model_executor``.

* Experts in MXFP4: Triton's kernels, the default on Hopper, wrap their weights in tensors that are no
  parameters, and these stay on the GPU (``_swizzle_mxfp4``, ``device_loading_context``). Marlin's, the
  default on Ampere and Ada, keep parameters, so that the exported command names them on every card. They pad
  the width of each expert to a multiple of 128 and the hidden size to one of 256
  (``mxfp4_round_up_hidden_size_and_intermediate_size``).
* PyTorch rounds a pinned tensor up to a power of two, unless it is larger than the
  ``pinned_max_round_threshold_mb`` of ``PYTORCH_ALLOC_CONF`` (from PyTorch 2.10 on).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from simoffload.models import ModelShape, Module, Parameter
from simoffload.models.formats import FORMATS
from simoffload.strategies.memory import pinned_rounding

_EXPERT_ROWS = 128
"""Most tokens of an expert for which vLLM's kernels of experts read its weights once (``BLOCK_SIZE_M`` of the
files in ``fused_moe/configs`` is 16 to 128)."""
_WIDTH, _HIDDEN = 128, 256
"""Multiples of the width of an expert and of the hidden size that Marlin's kernels take."""
_WASTED = 0.5
"""Rounding, as a share of the weights, above which the exported command turns it off (our choice)."""
_ROUNDED = 1 << 20
"""[B] up to which tensors are rounded then."""
BACKEND = "--moe-backend marlin"
"""Option of vLLM for Marlin's kernels."""
_UNROUNDED = "PYTORCH_ALLOC_CONF=pinned_max_round_threshold_mb:1"


def of_marlin(model: ModelShape) -> ModelShape:
    """Return the model with experts in MXFP4 as Marlin's kernels keep them; itself if it has none."""
    kinds = {layer: tuple(_padded(model, one) for one in layer) for layer, _ in model.kinds}
    if all(layer == padded for layer, padded in kinds.items()):
        return model
    groups = (one._replace(layers=tuple(kinds[layer] for layer in one.layers)) for one in model.groups)
    return replace(model, groups=tuple(groups))


def _padded(model: ModelShape, module: Module) -> Module:
    if module.parallel != "experts":
        return module
    experts, hidden = model.num_experts, model.hidden_size

    def padded(one: Parameter) -> Parameter:
        if one.storage is None or one.storage.format is not FORMATS["mxfp4"]:
            return one
        rows = one.numel // one.columns // experts
        if one is last:
            rows, columns = _up(hidden, _HIDDEN), _up(one.columns, _WIDTH)
        else:  # one or two matrices, as wide as an expert each
            rows, columns = rows // width * _up(width, _WIDTH), _up(hidden, _HIDDEN)
        return one._replace(storage=one.storage.format.stored(experts * rows, columns).as_served())

    last = [one for one in module.parameters if one.columns][-1]
    width = last.columns
    return module._replace(parameters=tuple(map(padded, module.parameters)))


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


class PinnedWeights(NamedTuple):
    """PinnedWeights are the tensors of one process in pinned memory."""

    size: int
    """Size of the tensors [B]."""
    rounding: int
    """Bytes [B] that PyTorch adds."""
    unrounded: bool
    """Whether the exported command sets a size above which PyTorch adds none."""

    @property
    def environment(self) -> str:
        """Line before the exported command."""
        return f"export {_UNROUNDED}\n" if self.unrounded else ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Note on what that line prevents."""
        text = (
            "PyTorch would round pinned tensors up to powers of two, by more than half of their size in all"
        )
        return (f"{text}; without this setting they may not fit: {_UNROUNDED}",) if self.unrounded else ()


def pinned_weights(sizes: Sequence[int]) -> PinnedWeights:
    """Return what tensors of some sizes [B] occupy in pinned memory with the exported command."""
    size, rounding = sum(sizes), pinned_rounding(sizes)
    if rounding <= _WASTED * size:
        return PinnedWeights(size, rounding, unrounded=False)
    return PinnedWeights(size, pinned_rounding([one for one in sizes if one <= _ROUNDED]), unrounded=True)


class Readings(NamedTuple):
    """Readings are how kernels read the weights of a module in place."""

    touched: float
    """Share of the weights that are read."""
    rows: float
    """Rows that are multiplied with each of them."""
    times: int
    """How often they are read."""


def readings(model: ModelShape, module: Module, tokens: int, *, rows: int) -> Readings:
    """Return how often kernels read the weights of a module in host memory for ``tokens`` computed at once:
    for every tile of ``rows``, norms for every token, experts for those of their own."""
    touched = 1.0
    if module.share < 1:  # of experts, only those to which a token is routed
        touched, rows = model.touched_share(module, tokens), min(rows, _EXPERT_ROWS)
    elif module.kind == "norm":
        rows = 1
    computed = tokens * module.share / touched
    return Readings(touched, computed, max(1, ceil(computed / rows)))
