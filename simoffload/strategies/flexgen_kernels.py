"""GPU kernels with which FlexGen stores tensors in 4 bits and writes them in full again.

Reference: FMInference/FlexLLMGen@004ffef, ``flexllmgen/compression.py``. PyTorch vectorizes only those whose
operands have the same layout. The others compute an address for each element, which takes longer than the
memory on an H100, and as long if all is in the L2 cache (docs/measurements/gpu.md, FlexGen's 4 bits). Their
time is therefore stated in additions of a bias in place, whose rate is an accelerator's ``strided_rate``.
"""

from __future__ import annotations

from typing import NamedTuple

from simoffload.hardware import Accelerator

_BIAS_BYTES = 4
"""[B] that the addition of a bias in place reads and writes for each element in 16 bit."""


class Kernel(NamedTuple):
    """A Kernel is an operation of PyTorch on a tensor, with its work per element of that tensor in full
    width."""

    traffic: float
    """HBM traffic [B], counted."""
    additions: float = 0.0
    """Its time on an H100 as a number of additions of a bias; 0 if it is vectorized."""


Kernels = tuple[Kernel, ...]

_SHIFT_AND_MASK: Kernels = (Kernel(1.0), Kernel(1.0))
"""Of packed bytes, each read and written."""

EXPAND_WEIGHT: Kernels = (
    *_SHIFT_AND_MASK,
    Kernel(1.5, 0.511),  # cast to even rows
    Kernel(1.5, 0.511),  # cast to odd rows
    Kernel(4.0, 1.472),  # divide by the scale
    Kernel(4.0, 1.104),  # add the minimum
)
"""``decompress`` of weights, whose groups are along rows."""

EXPAND_CACHE: Kernels = (
    *_SHIFT_AND_MASK,
    Kernel(2.5, 0.607),  # cast to even elements: all sectors are written
    Kernel(2.5, 0.607),  # cast to odd elements
    Kernel(4.0, 1.163),
    Kernel(4.0, 0.983),
)
"""``decompress`` of keys or values, whose groups are along the innermost dimension."""

_CLAMP_AND_ROUND: Kernels = (Kernel(4.0), Kernel(4.0))
_SMALL: Kernels = (Kernel(0.0),) * 4
"""Range of each group, its quotient, and scales and minima in one tensor; and one for the tensor's copy."""

SQUEEZE_KEYS: Kernels = (
    Kernel(2.0, 9.456),  # minimum
    Kernel(2.0, 9.456),  # maximum
    Kernel(4.0, 1.538),  # subtract the minimum
    Kernel(4.0, 1.534),  # multiply by the scale
    *_CLAMP_AND_ROUND,
    Kernel(3.0, 0.891),  # cast to bytes
    Kernel(1.0, 0.381),  # shift every other
    Kernel(1.5, 0.438),  # or with the others
    Kernel(1.0, 1.647),  # in the order of the cache
    *_SMALL,
)
"""``compress`` of the keys of a prompt, which are transposed."""

SQUEEZE_VALUES: Kernels = (
    Kernel(2.0, 2.411),
    Kernel(2.0, 2.409),
    Kernel(4.0, 1.039),
    Kernel(4.0, 1.176),
    *_CLAMP_AND_ROUND,
    Kernel(3.0, 0.891),
    Kernel(1.0, 0.380),
    Kernel(1.5, 0.428),
    Kernel(1.0, 0.402),
    *_SMALL,
)
"""The same of values, and of the keys of a new token."""

PAD: Kernels = (Kernel(4.0),)
"""Copy of keys or values whose heads are filled up to whole groups (``torch.cat``), or no longer are
(``contiguous``)."""


def kernels_s(kernels: Kernels, numel: int, gpu: Accelerator) -> float:
    """Return the time [s] of kernels on a tensor of ``numel`` elements, one after the other: each takes the
    longer of the times of its traffic and its addresses."""
    addition = _BIAS_BYTES / gpu.strided_rate.value if gpu.strided_rate else 0.0
    return sum(
        max(one.traffic / gpu.hbm_rate, one.additions * addition) * numel + gpu.kernel_latency_s
        for one in kernels
    )
