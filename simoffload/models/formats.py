"""Formats in which weights are stored: their bytes, scales included, and what the GPU pays to use them.

A format describes one tensor; which tensors of a model have which format is in ``quantization``. Bytes are
those of packed weights, scales and zero points; not those of code tables (bitsandbytes, 1.1 kB per tensor)
and of GPTQ's ``g_idx`` (4 B per input feature), which are the same for any number of rows.

References: GPTQ arXiv 2210.17323; AWQ arXiv 2306.00978; QLoRA (NF4) arXiv 2305.14314; OCP Microscaling
Formats v1.0 (MXFP4); ggml/src/ggml-common.h of llama.cpp@0c1e5709 (block structures of GGUF types);
deepspeed/inference/quantization/utils.py at 0.19.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import ceil
from typing import Literal, NamedTuple

_INT8_RATE = 0.75
"""Read rate of a fused kernel with 8-bit weights over that of HBM in the profile.

Source: Llama-2-7B of gpt-fast on an A100 (row gptf-7b-int8-tp1, 155.58 tokens/s). 6.66 GB of weights, scales
and cache are read in the step of 6.43 ms less 10 kernels a layer (our count) at the profile's 3 us each:
1218 of 1631 GB/s.
"""
_INT4_RATE = 0.62
"""The same with 4-bit weights in groups of 32 (row gptf-7b-int4-tp1, 196.8 tokens/s): 4.18 GB in 5.08 ms
less the same kernels, 1015 of 1631 GB/s."""
_A100_FLOP_PER_BYTE = 19.5e12 / 1631e9
"""Single-precision rate over HBM rate of that GPU, from its profile."""


Kernel = Literal["", "int4", "int8", "float8", "mxfp4"]
"""Kind of kernel of serving engines that reads the stored weights; empty: of another program, or none."""


class Dequantization(NamedTuple):
    """A Dequantization is what a GPU pays to multiply with weights of a format.

    A fused kernel reads the stored weights, at a lower rate than kernels with 16-bit weights. Otherwise
    kernels of their own write all weights in the model's data type first, and the product reads those.
    """

    fused_rate: float = 1.0
    """Read rate of the fused kernel over that of kernels with unquantized weights, on an A100."""
    kernel: Kernel = ""
    """Kernel of vLLM, whose rates the profile of a GPU has (``compiled``); with it the rates here are those
    of other programs alone."""
    arithmetic: Literal["float8"] | None = None
    """Data type in which tensor cores multiply the stored weights; a GPU that has it reads them at the full
    rate. None: weights are always decoded."""
    most_tokens: int | None = None
    """Most tokens that the fused kernel takes; more are multiplied with weights that were written in full.
    None: any number; 0: there is no fused kernel."""
    elements: int = 1
    """Without a fused kernel: elements of the model's data type read and written for each weight, the
    product's own reading excepted."""
    bytes: float = 0.0
    """Without a fused kernel: further bytes [B] for each weight, reading the stored ones excepted."""
    kernels: int = 1
    """Number of kernels that write one weight in full."""
    operations: int = 1
    """Number of PyTorch operations for that, views included."""

    def fused_flops(self, stored: float) -> float:
        """Return the operations [FLOP] with which a fused kernel decodes ``stored`` bytes of weights.

        They are what an A100 could compute in the time that it loses. Weights are decoded outside of tensor
        cores, so that a GPU with more arithmetic for each byte of its HBM loses less (an estimate).
        """
        return stored * (1 / self.fused_rate - 1) * _A100_FLOP_PER_BYTE

    def fuses(self, tokens: float) -> bool:
        """Return whether the product of that many tokens has a fused kernel."""
        return self.most_tokens is None or tokens <= self.most_tokens


_FUSED_8 = Dequantization(_INT8_RATE, "int8")
_FUSED_4 = Dequantization(_INT4_RATE, "int4")
_PLAIN = Dequantization()
_FP8 = Dequantization(_INT8_RATE, "float8", "float8")
"""Tensor cores of Hopper, Ada and later take FP8 as it is; no loss of rate is assumed (an estimate). On other
GPUs kernels decode it (Marlin, vllm/model_executor/layers/quantization/fp8.py), at the rate of 8-bit integers
(an estimate)."""
_BITSANDBYTES = Dequantization(_INT4_RATE, most_tokens=1, operations=2)
"""One token has a fused kernel; more go through ``dequantize_4bit`` and a product (``matmul_4bit``,
bitsandbytes/autograd/_functions.py). The fused rate is that of other 4-bit kernels (an estimate)."""
_AWQ = Dequantization(_INT4_RATE, "int4", most_tokens=1023)
"""From 1024 tokens on weights are written in full first (AutoAWQ, awq/modules/linear/gemm.py)."""


class Scales(NamedTuple):
    """Scales are the numbers that a tile of weights shares, such as a scale and a zero point."""

    bytes: Fraction
    """Size [B] per tile."""
    columns: int | None = None
    """Weights of a row that share them; None: all of a row."""
    rows: int | None = 1
    """Rows that share them; None: all."""
    flat: bool = False
    """Whether a tile continues in the next row: the tensor is cut as one sequence."""

    def size(self, rows: int, columns: int) -> Fraction:
        """Return the size of all scales of a tensor [B]."""
        if self.flat:
            return self.bytes * ceil(Fraction(rows * columns, self.columns or rows * columns))
        across = ceil(Fraction(columns, self.columns or columns))
        return self.bytes * across * ceil(Fraction(rows, self.rows or rows))


@dataclass(frozen=True, eq=False)
class WeightFormat:
    """A WeightFormat states how one tensor of weights is stored; formats are compared by identity."""

    name: str
    bits: Fraction
    """Bits per weight; for a GGUF type its scales included."""
    scales: tuple[Scales, ...] = ()
    dequantization: Dequantization = _PLAIN
    block: int = 1
    """Number of columns must be a multiple of this, otherwise the program chooses another format."""
    unit: tuple[int, int] = (1, 1)
    """Rows and columns of which every part of a divided tensor must have a multiple."""

    def stored_bytes(self, rows: int, columns: int) -> int:
        """Return the size [B] of a tensor of ``rows`` times ``columns`` weights, scales included."""
        packed = ceil(self.bits * rows * columns / 8)
        return ceil(packed + sum((one.size(rows, columns) for one in self.scales), Fraction(0)))

    def obstacle(self, rows: int, columns: int) -> str:
        """Return why kernels cannot take a part with so many rows and columns of a divided tensor; empty if
        they can."""
        found = [
            f"{count} {name} are not a multiple of {unit}"
            for name, count, unit in zip(("rows", "columns"), (rows, columns), self.unit, strict=True)
            if count % unit
        ]
        return " and ".join(found)

    @property
    def bits_per_weight(self) -> float:
        """Number of bits per weight, scales included, of a tensor so large that scales of a row or of the
        whole tensor do not count."""
        tiles = ((one, one.columns and one.rows and one.columns * one.rows) for one in self.scales)
        return float(self.bits + sum(8 * one.bytes / weights for one, weights in tiles if weights))


@cache
def grouped(
    name: str,
    bits: int,
    group: int | None,
    *,
    scale: int = 2,
    zero: Fraction = Fraction(0),
    served: bool = True,
) -> WeightFormat:
    """Return integers in ``group`` columns of a row with one scale and zero point; None: the whole row.

    ``scale`` and ``zero`` are the sizes [B] of both. Kernels are fused, and take whole groups
    (vllm/model_executor/layers/quantization/gptq.py, awq.py). ``served``: whether they are those of vLLM.
    """
    cost = _FUSED_4 if bits <= 4 else _FUSED_8
    cost = cost if served else cost._replace(kernel="")
    return WeightFormat(name, Fraction(bits), (Scales(scale + zero, group),), cost, unit=(1, group or 1))


@cache
def gptq(bits: int, group: int | None, *, awq: bool = False) -> WeightFormat:
    """Return the format of GPTQ and AWQ: a scale of 2 B and a packed zero point per group of a row."""
    size = "channel" if group is None else f"g{group}"
    made = grouped(f"int{bits}-{size}", bits, group, zero=Fraction(bits, 8))
    if not awq:
        return made
    return WeightFormat(f"awq-{made.name}", made.bits, made.scales, _AWQ, unit=made.unit)


@cache
def bitsandbytes(*, double_quantized: bool) -> WeightFormat:
    """Return bitsandbytes' 4-bit format: a scale for 64 weights in the order of the whole tensor.

    It is of 4 B, or of 1 B and with a scale of its own (4 B) for 256 scales, and one offset (4 B).
    """
    if not double_quantized:
        return WeightFormat("nf4", Fraction(4), (_flat(4, 64),), _BITSANDBYTES)
    nested = (_flat(1, 64), _flat(4, 64 * 256), Scales(Fraction(4), None, None))
    return WeightFormat("nf4-dq", Fraction(4), nested, _BITSANDBYTES)


@cache
def fp8(*, block: tuple[int, int] | None = None, per_row: bool = False, scale: int = 4) -> WeightFormat:
    """Return FP8 with a scale for a block of rows and columns, for every row, or for the tensor.

    Kernels take whole blocks (``validate_fp8_block_shape``, vllm/model_executor/layers/quantization/utils/
    fp8_utils.py).
    """
    rows, columns = block or ((1, None) if per_row else (None, None))
    name = "fp8-channel" if per_row else "fp8" if block is None else f"fp8-block{block[0]}"
    scales = Scales(Fraction(scale), columns, rows)
    return WeightFormat(name, Fraction(8), (scales,), _FP8, unit=block or (1, 1))


@cache
def deepspeed(bits: int, group: int, *, dtype_bytes: int, kernel: bool) -> WeightFormat:
    """Return DeepSpeed's quantized initialization: a scale and a minimum in the model's data type per group.

    ``F.linear`` and ``F.embedding`` write the whole weight in full at every call: with ``kernel`` in one
    kernel. Otherwise as a chain of PyTorch's (``DeQuantizer``): 4-bit weights are shifted or masked and
    copied, twice (3.5 B for each weight beyond reading the packed ones), and the copy into a cleared
    tensor (1 B and 2 elements), division and addition (4 elements) follow. Seven operations take the weight,
    its scales and minima out of the tensor that holds them all.
    """
    views, four_bit = 7, bits == 4
    sequence = Dequantization(
        most_tokens=0,
        elements=6,
        bytes=4.5 if four_bit else 0.0,
        kernels=8 if four_bit else 4,
        operations=views + (13 if four_bit else 6),
    )
    cost = Dequantization(most_tokens=0, operations=views + 3) if kernel else sequence
    pair = Scales(Fraction(2 * dtype_bytes), group)
    return WeightFormat(f"deepspeed-int{bits}-g{group}", Fraction(bits), (pair,), cost)


def _flat(size: int, weights: int) -> Scales:
    return Scales(Fraction(size), weights, flat=True)


_GGUF_BLOCKS: dict[str, tuple[int, int]] = {
    "q8_0": (34, 32),
    "q6_k": (210, 256),
    "q5_k": (176, 256),
    "q5_1": (24, 32),
    "q5_0": (22, 32),
    "q4_k": (144, 256),
    "q4_1": (20, 32),
    "q4_0": (18, 32),
    "q3_k": (110, 256),
    "q2_k": (84, 256),
    "iq4_nl": (18, 32),
    "iq4_xs": (136, 256),
    "iq3_s": (110, 256),
    "iq3_xxs": (98, 256),
    "iq2_s": (82, 256),
    "iq2_xs": (74, 256),
    "iq2_xxs": (66, 256),
    "iq1_m": (56, 256),
    "iq1_s": (50, 256),
    "mxfp4": (17, 32),
    "f16": (2, 1),
    "f32": (4, 1),
}
"""Size [B] of a block and number of weights in it, for every type of GGUF."""


_GGUF_RATES = ((16, 1.0), (8, 0.93), (5, 0.82), (4, 0.76), (2.6, 0.55), (2, 0.40), (0, 0.33))
"""Read rate of llama.cpp's fused kernels over that with 16-bit weights, from so many bits on.

Source: tokens per second of Llama-3.1-8B times the bytes read, over those of F16 (tools/quantize/README.md of
llama.cpp, whose table does not name the machine; an estimate for others): Q8_0 0.93, Q6_K 0.83, Q5_K_M 0.82,
Q4_K_M 0.76, Q4_K_S 0.77, IQ4_XS 0.74, Q3_K_S 0.56, IQ3_S 0.55, Q2_K 0.55, IQ2_XXS 0.41, IQ1_S 0.33.
"""


def _gguf(name: str, size: int, weights: int) -> WeightFormat:
    bits = Fraction(8 * size, weights)
    rate = next(rate for least, rate in _GGUF_RATES if bits >= least)
    return WeightFormat(name, bits, (), Dequantization(rate), weights)


GGUF_TYPES = {name: _gguf(name, *block) for name, block in _GGUF_BLOCKS.items()}
"""Types of tensors in a GGUF file by name."""

_MXFP4 = WeightFormat("mxfp4", Fraction(4), (Scales(Fraction(1), 32),), _FUSED_4._replace(kernel="mxfp4"))
"""Parts may have any width, as vLLM pads them (``Mxfp4MoEMethod.create_weights``)."""
_NVFP4 = WeightFormat(
    "nvfp4",
    Fraction(4),
    (Scales(Fraction(1), 16), Scales(Fraction(4), None, None)),
    _FUSED_4,
    unit=(1, 16),
)

FORMATS: dict[str, WeightFormat] = {
    one.name: one
    for one in (
        fp8(),
        fp8(per_row=True),
        fp8(block=(128, 128)),
        grouped("int8", 8, None, scale=4),
        gptq(8, 128),
        gptq(4, 32),
        gptq(4, 64),
        gptq(4, 128),
        bitsandbytes(double_quantized=False),
        bitsandbytes(double_quantized=True),
        _MXFP4,
        _NVFP4,
    )
}
"""Formats that apply to all linear layers of a model alike, by name."""
