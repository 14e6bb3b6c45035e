"""Formats in which weights are stored: their bytes, scales included, and what the GPU pays to use them.

A format describes one weight; which weights of a model have which format is in ``quantization``. A program
keeps a weight in several tensors (``stored_tensors``), whose names and sizes are those of the modules into
which transformers 5.23 loads a checkpoint. vLLM 0.33 repacks them and drops what its kernels do not use
(``process_weights_after_loading``).

References: GPTQ arXiv 2210.17323; AWQ arXiv 2306.00978; QLoRA (NF4) arXiv 2305.14314; OCP Microscaling
Formats v1.0 (MXFP4, MXFP8); ggml/src/ggml-common.h of llama.cpp@0c1e5709 (block structures of GGUF types);
deepspeed/inference/quantization/utils.py at 0.19.6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import ceil
from typing import Literal, NamedTuple

from simoffload.models.modules import Scales, Storage

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


Kernel = Literal["", "int4", "int8", "float4", "float8", "mxfp4"]
"""Kind of kernel of serving engines that reads the stored weights; empty: of another program, or none."""
Method = Literal[
    "",
    "fp8",
    "gptq",
    "awq",
    "compressed-tensors",
    "bitsandbytes-4bit",
    "bitsandbytes-8bit",
    "mxfp4",
    "mxfp8",
    "nvfp4",
    "deepspeed",
    "gguf",
]
"""Method of quantization, by which programs choose kernels; empty: of a program that has one of its own."""


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
    arithmetic: Literal["float4", "float8", "mxfloat8"] | None = None
    """Data type in which tensor cores multiply the stored weights; a GPU that has it reads them at the full
    rate (``Accelerator.native``). None: weights are always decoded."""
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

    @property
    def decoding(self) -> Kernel:
        """Kind of kernel that decodes the weights where tensor cores do not take them as they are."""
        kernels: dict[Kernel, Kernel] = {"float8": "int8", "float4": "int4"}
        return kernels.get(self.kernel, self.kernel)

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
_MXFP8 = _FP8._replace(arithmetic="mxfloat8")
_FP4 = Dequantization(_INT4_RATE, "float4", "float4")
"""Tensor cores of Blackwell take FP4 with scales of groups; elsewhere kernels decode it (Marlin), at the
rate of 4-bit integers (an estimate)."""
_BITSANDBYTES = Dequantization(_INT4_RATE, most_tokens=1, operations=2)
"""One token has a fused kernel; more go through ``dequantize_4bit`` and a product (``matmul_4bit``,
bitsandbytes/autograd/_functions.py). The fused rate is that of other 4-bit kernels (an estimate)."""
_NESTED = _BITSANDBYTES._replace(kernels=3, operations=4)
"""Double quantization decodes the scales first, and adds their offset (``dequantize_4bit``,
bitsandbytes/functional.py)."""
_AWQ = Dequantization(_INT4_RATE, "int4", most_tokens=1023)
"""From 1024 tokens on weights are written in full first (AutoAWQ, awq/modules/linear/gemm.py)."""


@dataclass(frozen=True, eq=False)
class WeightFormat:
    """A WeightFormat states how one tensor of weights is stored; formats are compared by identity."""

    name: str
    bits: Fraction
    """Bits per weight; for a GGUF type its scales included."""
    values: str = "weight"
    """Name of the tensor of packed values in the module."""
    scales: tuple[Scales, ...] = ()
    """Tensors beside the packed values."""
    joined: bool = False
    """Whether all of it is one tensor."""
    dequantization: Dequantization = _PLAIN
    block: int = 1
    """Number of columns must be a multiple of this, otherwise the program chooses another format."""
    method: Method = ""
    """Method of quantization, by which programs choose kernels."""
    unit: tuple[int, int] = (1, 1)
    """Rows and columns of which every part of a divided tensor must have a multiple."""

    def stored_bytes(self, rows: int, columns: int) -> int:
        """Return the size [B] of a weight of ``rows`` times ``columns`` elements in all of its tensors."""
        return self.stored(rows, columns).bytes

    def stored(self, rows: int, columns: int) -> Storage:
        """Return the tensors that hold a weight of ``rows`` times ``columns`` elements."""
        sizes = [self.bits * rows * columns / 8, *(one.size(rows, columns) for one in self.scales)]
        return Storage(self, (ceil(sum(sizes)),) if self.joined else tuple(map(ceil, sizes)))

    @property
    def in_buffers(self) -> bool:
        """Whether modules keep it in buffers, which are not parameters: those of GPTQ and AWQ do
        (gptqmodel/nn_modules/qlinear)."""
        return self.values == "qweight"

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
    names: tuple[str, ...] = ("weight", "weight_scale", "weight_zero_point"),
    scale: int = 2,
    zero: Fraction = Fraction(0),
    others: tuple[Scales, ...] = (),
    method: Method = "",
) -> WeightFormat:
    """Return integers in ``group`` columns of a row with one scale and zero point; None: the whole row.

    ``scale`` and ``zero`` are the sizes [B] of both, which are in one tensor if there are only two ``names``;
    ``others`` are further tensors. Kernels are fused, and take whole groups
    (vllm/model_executor/layers/quantization/gptq.py, awq.py).
    """
    cost = _FUSED_4 if bits <= 4 else _FUSED_8
    values, first, *second = names
    apart = bool(second and zero)
    scales = [Scales(first, Fraction(scale) if apart else scale + zero, group)]
    scales += [Scales(second[0], zero, group)] if apart else []
    unit = (1, group or 1)
    return WeightFormat(
        name, Fraction(bits), values, (*scales, *others), dequantization=cost, method=method, unit=unit
    )


_G_IDX = Scales("g_idx", Fraction(4), 1, None, dropped=True)
"""Group of each input feature, which vLLM 0.33 does not load (``AutoGPTQLinearMethod.create_weights``)."""
_WEIGHT_SHAPE = Scales("weight_shape", Fraction(16), None, None)
"""Two 64-bit numbers: the shape before packing (``CompressedTensorsWNA16``)."""


@cache
def gptq(bits: int, group: int | None, *, awq: bool = False) -> WeightFormat:
    """Return the format of GPTQ and AWQ: a scale of 2 B and a packed zero point per group of a row.

    References: gptqmodel/nn_modules/qlinear (``qweight``, ``qzeros``, ``scales``, ``g_idx``);
    awq/modules/linear/gemm.py (without ``g_idx``).
    """
    size = "channel" if group is None else f"g{group}"
    names, others = ("qweight", "scales", "qzeros"), () if awq else (_G_IDX,)
    name, zero = f"int{bits}-{size}", Fraction(bits, 8)
    made = grouped(name, bits, group, names=names, zero=zero, others=others, method="gptq")
    return replace(made, name=f"awq-{name}", dequantization=_AWQ, method="awq") if awq else made


@cache
def packed(bits: int, group: int | None, *, symmetric: bool) -> WeightFormat:
    """Return integers of compressed-tensors: a scale of 2 B per group of a row, a packed zero point unless
    they are ``symmetric``, and the shape (``pack-quantized``).

    With 8 bits and a scale for a whole row they are not packed (``int-quantized``).
    """
    plain = bits == 8 and group is None
    return grouped(
        f"int{bits}-{'channel' if group is None else f'g{group}'}",
        bits,
        group,
        names=("weight" if plain else "weight_packed", "weight_scale", "weight_zero_point"),
        zero=Fraction(0 if symmetric else bits, 8),
        others=() if plain else (_WEIGHT_SHAPE,),
        method="compressed-tensors",
    )


@cache
def bitsandbytes(*, double_quantized: bool) -> WeightFormat:
    """Return bitsandbytes' 4-bit format: a scale for 64 weights in the order of the whole tensor.

    It is of 4 B, or of 1 B and with a scale of its own (4 B) for 256 scales, and one offset (4 B). A code
    table has the values of 4 bits, another one those of scales of 1 B, in 4 B each (``QuantState``,
    bitsandbytes/functional.py).
    """

    def part(name: str, size: int, weights: int | None = None) -> Scales:
        return Scales(
            f"weight.{name}", Fraction(size), weights, None if weights is None else 1, weights is not None
        )

    first = (part("absmax", 1 if double_quantized else 4, 64), part("quant_map", 64))
    nested = (part("nested_absmax", 4, 64 * 256), part("nested_quant_map", 1024), part("nested_offset", 4))
    scales = (*first, *nested) if double_quantized else first
    name = "nf4-dq" if double_quantized else "nf4"
    cost = _NESTED if double_quantized else _BITSANDBYTES
    return WeightFormat(name, Fraction(4), "weight", scales, dequantization=cost, method="bitsandbytes-4bit")


_INPUT_SCALE = Scales("input_scale", Fraction(4), None, None)
"""Scale of the input of a product, measured before (``activation_scheme: static``)."""


@cache
def fp8(
    *,
    block: tuple[int, int] | None = None,
    per_row: bool = False,
    scale: int = 4,
    static: bool = False,
) -> WeightFormat:
    """Return FP8 with a scale for a block of rows and columns, for every row, or for the tensor; ``static``:
    also with one for the input.

    Kernels take whole blocks (``validate_fp8_block_shape``, vllm/model_executor/layers/quantization/utils/
    fp8_utils.py).
    """
    rows, columns = block or ((1, None) if per_row else (None, None))
    name = "fp8-channel" if per_row else "fp8" if block is None else f"fp8-block{block[0]}"
    scales = (Scales("weight_scale_inv" if block else "weight_scale", Fraction(scale), columns, rows),)
    return WeightFormat(
        name,
        Fraction(8),
        "weight",
        (*scales, _INPUT_SCALE) if static else scales,
        dequantization=_FP8,
        method="fp8",
        unit=block or (1, 1),
    )


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
    pair = Scales("scales", Fraction(2 * dtype_bytes), group)
    name = f"deepspeed-int{bits}-g{group}"
    return WeightFormat(
        name, Fraction(bits), "weight", (pair,), joined=True, dequantization=cost, method="deepspeed"
    )


_GGUF_BLOCKS: dict[str, tuple[int, int, int]] = {
    "f32": (0, 4, 1),
    "f16": (1, 2, 1),
    "q4_0": (2, 18, 32),
    "q4_1": (3, 20, 32),
    "q5_0": (6, 22, 32),
    "q5_1": (7, 24, 32),
    "q8_0": (8, 34, 32),
    "q8_1": (9, 36, 32),
    "q2_k": (10, 84, 256),
    "q3_k": (11, 110, 256),
    "q4_k": (12, 144, 256),
    "q5_k": (13, 176, 256),
    "q6_k": (14, 210, 256),
    "q8_k": (15, 292, 256),
    "iq2_xxs": (16, 66, 256),
    "iq2_xs": (17, 74, 256),
    "iq3_xxs": (18, 98, 256),
    "iq1_s": (19, 50, 256),
    "iq4_nl": (20, 18, 32),
    "iq3_s": (21, 110, 256),
    "iq2_s": (22, 82, 256),
    "iq4_xs": (23, 136, 256),
    "i8": (24, 1, 1),
    "i16": (25, 2, 1),
    "i32": (26, 4, 1),
    "i64": (27, 8, 1),
    "f64": (28, 8, 1),
    "iq1_m": (29, 56, 256),
    "bf16": (30, 2, 1),
    "tq1_0": (34, 54, 256),
    "tq2_0": (35, 66, 256),
    "mxfp4": (39, 17, 32),
    "nvfp4": (40, 36, 64),
    "q1_0": (41, 18, 128),
    "q2_0": (42, 18, 64),
}
"""Number in files, size [B] of a block and number of weights in it, for every type of GGUF
(ggml/include/ggml.h, ``ggml_type``; numbers that are missing were removed)."""


_GGUF_RATES = ((16, 1.0), (8, 0.93), (5, 0.82), (4, 0.76), (2.6, 0.55), (2, 0.40), (0, 0.33))
"""Read rate of llama.cpp's fused kernels over that with 16-bit weights, from so many bits on.

Source: tokens per second of Llama-3.1-8B times the bytes read, over those of F16 (tools/quantize/README.md of
llama.cpp, whose table does not name the machine; an estimate for others): Q8_0 0.93, Q6_K 0.83, Q5_K_M 0.82,
Q4_K_M 0.76, Q4_K_S 0.77, IQ4_XS 0.74, Q3_K_S 0.56, IQ3_S 0.55, Q2_K 0.55, IQ2_XXS 0.41, IQ1_S 0.33.
"""


def _gguf(name: str, size: int, weights: int) -> WeightFormat:
    bits = Fraction(8 * size, weights)
    rate = next(rate for least, rate in _GGUF_RATES if bits >= least)
    return WeightFormat(name, bits, dequantization=Dequantization(rate), block=weights, method="gguf")


GGUF_TYPES = {name: _gguf(name, size, weights) for name, (_, size, weights) in _GGUF_BLOCKS.items()}
"""Types of tensors in a GGUF file by name."""
GGUF_NUMBERS = {number: GGUF_TYPES[name] for name, (number, _, _) in _GGUF_BLOCKS.items()}
"""The same by the number that files have."""

_MXFP4 = WeightFormat(
    "mxfp4",
    Fraction(4),
    "blocks",
    (Scales("scales", Fraction(1), 32),),
    dequantization=_FUSED_4._replace(kernel="mxfp4"),
    method="mxfp4",
)
"""Parts may have any width, as vLLM pads them (``Mxfp4MoEMethod.create_weights``)."""
_MX_FLOAT8 = WeightFormat(
    "mxfp8",
    Fraction(8),
    "weight",
    (Scales("weight_scale", Fraction(1), 32),),
    dequantization=_MXFP8,
    method="mxfp8",
    unit=(1, 32),
)
"""Bytes of a scale of E8M0 for 32 weights (OCP Microscaling Formats v1.0)."""


@cache
def nvfp4(group: int | None = 16, *, decoded: bool = False) -> WeightFormat:
    """Return NVFP4: a scale in FP8 per group of a row, and one for the tensor.

    Unless it is ``decoded``, inputs are rounded to FP4, too, with a scale of their own; otherwise kernels
    decode the weights on every GPU (Marlin, ``MarlinNvFp4LinearKernel`` of vLLM).
    """
    group = group or 16
    tensor = Scales("weight_scale_2", Fraction(4), None, None)
    return WeightFormat(
        "nvfp4" + ("-a16" if decoded else "") + ("" if group == 16 else f"-g{group}"),
        Fraction(4),
        "weight",
        (Scales("weight_scale", Fraction(1), group), tensor, *(() if decoded else (_INPUT_SCALE,))),
        dequantization=_FUSED_4 if decoded else _FP4,
        method="nvfp4",
        unit=(1, group),
    )


FORMATS: dict[str, WeightFormat] = {
    one.name: one
    for one in (
        fp8(),
        fp8(per_row=True),
        fp8(block=(128, 128)),
        grouped("int8", 8, None, names=("weight", "SCB"), scale=4, method="bitsandbytes-8bit"),
        gptq(8, 128),
        gptq(4, 32),
        gptq(4, 64),
        gptq(4, 128),
        bitsandbytes(double_quantized=False),
        bitsandbytes(double_quantized=True),
        _MXFP4,
        _MX_FLOAT8,
        nvfp4(),
        nvfp4(decoded=True),
    )
}
"""Formats that apply to all linear layers of a model alike, by name."""
