"""Weights that DeepSpeed quantizes: at loading (``weight_quantization``) and in all-gathers (ZeRO++).

Read at 0.19.6: deepspeed/inference/quantization/utils.py, and ``Init`` and ``CUDAQuantizer`` in
deepspeed/runtime/zero/partition_parameters.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from simoffload.documents import quoted
from simoffload.errors import InputError
from simoffload.models import ModelShape
from simoffload.models.quantization import deepspeed_quantization, quantized
from simoffload.strategies.ds_config.keys import DeepSpeedConfig
from simoffload.strategies.ds_config.settings import OffloadSettings

_FIRST = (0, 10, 3)
"""Version from which weights can be quantized at loading (DeepSpeed's commit aa4a740)."""
_KEY = "weight_quantization.quantized_initialization"
_KERNEL_GROUPS = 8
"""Groups must be a multiple of this for the kernel of DeepSpeed (``DeQuantizer.dequantize``)."""
_GATHERED_GROUP = 8000
"""Weights with one scale in a quantized all-gather (``target_group_size``); about that many are in a group.
"""
_SCALE = 4
"""Size [B] of a scale in a quantized all-gather."""


def with_quantized_weights(
    model: ModelShape, config: DeepSpeedConfig, settings: OffloadSettings
) -> tuple[ModelShape, tuple[str, ...]]:
    """Return the model as DeepSpeed loads it, and warnings.

    Raises InputError, with DeepSpeed's key, for tensors that cannot be cut into groups and for quantizations
    that cannot be combined.
    """
    section = config.quantized_initialization
    if section is None:
        return model, ()
    if settings.version < _FIRST:
        version = ".".join(map(str, settings.version))
        return model, (f"ds_config {_KEY} is ignored by DeepSpeed {version}; it came with 0.10.3",)
    if model.quantization is not None:
        text = f"the weights are quantized already ({model.quantization}); write model.quantization: none"
        raise InputError.at(_KEY, text)
    if settings.quantized_gather:
        text = "true corrupts weights that are stored in 4 or 8 bits; leave it out"
        raise InputError.at("zero_optimization.zero_quantized_weights", text)
    by_columns = section.group_dim == 1
    found = _quantized(model, section.num_bits, section.group_size, by_columns=by_columns)
    for module in found.distinct_modules:
        for one in module.parameters:
            size = one.columns if by_columns else one.numel // max(1, one.columns)
            if one.storage is not None and size % section.group_size:
                text = (
                    f"DeepSpeed would stop here: dimension {section.group_dim} of {quoted(one.name)} is "
                    f"{size}, not a multiple of group_size {section.group_size}"
                )
                raise InputError.at(f"{_KEY}.group_size", text)
    return found, ()


@lru_cache(maxsize=16)
def _quantized(model: ModelShape, bits: int, group: int, *, by_columns: bool) -> ModelShape:
    """Return the quantized model, the same object for the same arguments."""
    kernel = model.dtype == "float16" and by_columns and group % _KERNEL_GROUPS == 0
    return quantized(model, deepspeed_quantization(bits, group, dtype_bytes=model.dtype_bytes, kernel=kernel))


class GatheredSizes(NamedTuple):
    """GatheredSizes are what a quantized all-gather of some elements moves."""

    sent: int
    """Size [B] of packed weights and scales."""
    quantized: int
    """Bytes [B] read and written in HBM by the kernel that packs them."""


def quantized_gather(numel: int, dtype_bytes: int) -> GatheredSizes:
    """Return the sizes of ``numel`` elements in a quantized all-gather: a byte each, and scales."""
    scales = -(-numel // _GATHERED_GROUP) * _SCALE
    return GatheredSizes(numel + scales, (dtype_bytes + 1) * numel + scales)
