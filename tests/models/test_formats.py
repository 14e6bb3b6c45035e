"""Bytes of weight formats, by hand and against published bits per weight."""

from __future__ import annotations

import pytest

from simoffload.models.formats import FORMATS, GGUF_TYPES, bitsandbytes, deepspeed, fp8, gptq, grouped
from simoffload.models.gguf import MIXTURES, GgufModel, gguf_type


@pytest.mark.parametrize(
    ("name", "rows", "columns", "size"),
    [
        # 512 rows of 1024 weights: packed + scales (and zero points + g_idx)
        ("fp8", 512, 1024, 524_288 + 4),
        ("fp8-channel", 512, 1024, 524_288 + 512 * 4),
        ("fp8-block128", 512, 1024, 524_288 + 4 * 8 * 4),
        ("fp8-block128", 500, 1000, 500_000 + 4 * 8 * 4),  # blocks at the edges are smaller
        ("int8", 512, 1024, 524_288 + 512 * 4),
        ("int4-g32", 512, 1024, 262_144 + 512 * 32 * 5 // 2 + 1024 * 4),
        ("int4-g64", 512, 1024, 262_144 + 512 * 16 * 5 // 2 + 1024 * 4),
        ("int4-g128", 512, 1024, 262_144 + 512 * 8 * 5 // 2 + 1024 * 4),
        # The last group of a row is smaller.
        ("int4-g128", 512, 1000, 256_000 + 512 * 8 * 5 // 2 + 1000 * 4),
        # Code tables: 16 and 256 numbers.
        ("nf4", 512, 1024, 262_144 + 8192 * 4 + 64),
        ("nf4-dq", 512, 1024, 262_144 + 8192 + 32 * 4 + 4 + 64 + 1024),
        ("mxfp4", 512, 1024, 262_144 + 512 * 32),
        ("nvfp4", 512, 1024, 262_144 + 512 * 64 + 2 * 4),
    ],
)
def test_bytes(name: str, rows: int, columns: int, size: int) -> None:
    assert FORMATS[name].stored_bytes(rows, columns) == size


@pytest.mark.parametrize(
    ("name", "rows", "columns", "obstacle"),
    [
        # Experts of Qwen3-235B on 4 and 8 GPUs.
        ("fp8-block128", 384, 4096, ""),
        ("fp8-block128", 192, 4096, "192 rows are not a multiple of 128"),
        ("fp8-block128", 4096, 192, "192 columns are not a multiple of 128"),
        ("int4-g128", 192, 4096, ""),
        ("int4-g128", 4096, 1376, "1376 columns are not a multiple of 128"),
        ("nvfp4", 4096, 24, "24 columns are not a multiple of 16"),
        ("mxfp4", 4096, 360, ""),
        ("fp8", 1, 1, ""),
        ("int8", 1, 1, ""),
    ],
)
def test_parts_have_whole_blocks(name: str, rows: int, columns: int, obstacle: str) -> None:
    assert FORMATS[name].obstacle(rows, columns) == obstacle


def test_scales_of_nf4_do_not_end_with_a_row() -> None:
    # 3 x 100 weights are 300: five scales, where groups of every row would be six.
    assert bitsandbytes(double_quantized=False).stored_bytes(3, 100) == 150 + 5 * 4 + 64


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("int4-g128", 4.156),  # GPTQ and AWQ with their zero points
        ("nf4-dq", 4.127),  # arXiv 2305.14314, section 3
        ("mxfp4", 4.25),  # OCP Microscaling Formats v1.0
        ("nvfp4", 4.5),
    ],
)
def test_published_bits_per_weight(name: str, bits: float) -> None:
    assert FORMATS[name].bits_per_weight == pytest.approx(bits, abs=0.0005)


def test_deepspeed() -> None:
    # A scale and a minimum of 2 B for 64 weights.
    assert deepspeed(4, 64, dtype_bytes=2, kernel=True).stored_bytes(1024, 1024) == 524_288 + 16_384 * 4
    assert deepspeed(8, 64, dtype_bytes=2, kernel=True).bits_per_weight == 8.5
    # The kernel writes 2 B for each weight; PyTorch's chain moves 16.5 B beyond reading the packed ones.
    chain = deepspeed(4, 64, dtype_bytes=2, kernel=False).dequantization
    assert chain.elements * 2 + chain.bytes == 16.5
    assert not chain.fuses(1)


def test_fused_kernels_have_their_limits() -> None:
    assert gptq(4, 128).dequantization.fuses(10**6)
    assert gptq(4, 128, awq=True).dequantization.fuses(1023)
    assert not gptq(4, 128, awq=True).dequantization.fuses(1024)
    assert bitsandbytes(double_quantized=True).dequantization.fuses(1)
    assert not bitsandbytes(double_quantized=True).dequantization.fuses(2)
    assert fp8().dequantization.arithmetic == "float8"
    assert fp8().dequantization.fused_rate == gptq(8, 128).dequantization.fused_rate
    assert gptq(4, 128).dequantization.fused_rate < gptq(8, 128).dequantization.fused_rate < 1.0


def test_fused_rates_follow_from_the_published_rows() -> None:
    # Llama-2-7B: matrices of 32 layers and the head, on an A100 with 2039 GB/s at 80 %.
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32_000 * 4096
    cache = 105 * 32 * 2 * 4096 * 2  # 5 tokens and the mean of 200
    kernels = 32 * 10 * 3e-6
    for bits, group, zero, tokens_per_s in ((8, None, 0, 155.58), (4, 32, 2, 196.8)):
        one = grouped("x", bits, group, zero=zero)
        size = weights * one.bits_per_weight / 8 + cache
        rate = size / (1 / tokens_per_s - kernels) / (2039e9 * 0.8)
        assert one.dequantization.fused_rate == pytest.approx(rate, abs=0.006)


def test_rates_of_gguf_follow_from_the_published_table() -> None:
    # Llama-3.1-8B: size of the file and of the embeddings [GiB], tokens per second.
    table = {"f16": (14.96, 0.978, 29.17), "q8_0": (7.95, 0.520, 50.93), "q6_k": (6.14, 0.401, 58.67)}
    table |= {"q4_k": (4.36, 0.275, 76.71), "q3_k": (3.41, 0.210, 71.68), "iq2_xxs": (2.23, 0.161, 79.86)}
    read = {name: (size - rows) * rate for name, (size, rows, rate) in table.items()}
    for name, each in read.items():
        expected = GGUF_TYPES[name].dequantization.fused_rate
        assert each / read["f16"] == pytest.approx(expected, abs=0.02)


# Llama-3.1-8B as llama.cpp's tools/quantize/README.md lists it [bits per weight].
_LLAMA_8B = {
    "iq1_s": 2.0042,
    "iq1_m": 2.1460,
    "iq2_xxs": 2.3824,
    "iq2_xs": 2.5882,
    "iq2_s": 2.7403,
    "iq2_m": 2.9294,
    "iq3_xxs": 3.2548,
    "iq3_xs": 3.4977,
    "iq3_s": 3.6606,
    "iq3_m": 3.7628,
    "iq4_xs": 4.4597,
    "iq4_nl": 4.6818,
    "q2_k": 3.1593,
    "q3_k_s": 3.6429,
    "q3_k_l": 4.2979,
    "q4_k_s": 4.6672,
    "q4_k_m": 4.8944,
    "q5_k_s": 5.5704,
    "q5_k_m": 5.7036,
    "q6_k": 6.5633,
    "q8_0": 8.5008,
}


@pytest.mark.parametrize(("name", "bits"), _LLAMA_8B.items())
def test_gguf_files_have_their_published_size(name: str, bits: float) -> None:
    model = GgufModel(layers=32, queries_per_key=4, experts=1, tied=False)
    hidden, wide, key, vocabulary = 4096, 14_336, 1024, 128_256
    shapes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }
    outside = {"model.embed_tokens": None, "lm_head": None}
    tensors = [(part, layer, shape) for layer in range(32) for part, shape in shapes.items()]
    total, weights = (2 * 32 + 1) * hidden * 4, (2 * 32 + 1) * hidden  # norms in single precision
    for part, layer, (rows, columns) in [*tensors, *((one, None, (vocabulary, hidden)) for one in outside)]:
        found = gguf_type(MIXTURES[name], model, name=f"{part}.weight", columns=columns, layer=layer)
        total += found.stored_bytes(rows, columns)
        weights += rows * columns
    assert 8 * total / weights == pytest.approx(bits, abs=0.00006)


@pytest.mark.parametrize(
    ("layers", "better"),
    # The first and last eighth, and every third between them.
    [(32, {0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31})],
)
def test_q4_k_m_alternates(layers: int, better: set[int]) -> None:
    model = GgufModel(layers, queries_per_key=1, experts=1, tied=False)
    found = [
        gguf_type(MIXTURES["q4_k_m"], model, name="mlp.down_proj.weight", columns=11_008, layer=layer).name
        for layer in range(layers)
    ]
    assert {layer for layer, name in enumerate(found) if name == "q6_k"} == better
    assert set(found) == {"q4_k", "q6_k"}


def test_gpt_oss_as_a_gguf_file() -> None:
    # gpt-oss-120b: the file has 63.4 GB for 116.83e9 parameters.
    model, mixture = GgufModel(36, queries_per_key=8, experts=128, tied=False), MIXTURES["mxfp4_moe"]
    hidden, wide, experts, vocabulary = 2880, 2880, 128, 201_088
    shapes = {
        "self_attn.q_proj.weight": (4096, hidden),
        "self_attn.k_proj.weight": (512, hidden),
        "self_attn.v_proj.weight": (512, hidden),
        "self_attn.o_proj.weight": (hidden, 4096),
        "mlp.experts.gate_up_proj": (experts * 2 * wide, hidden),
        "mlp.experts.down_proj": (experts * hidden, wide),
    }
    size = sum(
        gguf_type(mixture, model, name=name, columns=columns, layer=0).stored_bytes(rows, columns)
        for name, (rows, columns) in shapes.items()
    )
    biases = experts * (2 * wide + hidden) + 4096 + 2 * 512 + hidden + 64
    router, norms = experts * (hidden + 1), 2 * hidden
    table = gguf_type(mixture, model, name="lm_head.weight", columns=hidden, layer=None)
    assert table.name == "q8_0"
    total = 36 * (size + 4 * (biases + router + norms)) + 4 * hidden
    total += 2 * table.stored_bytes(vocabulary, hidden)
    assert total == pytest.approx(63.39e9, rel=0.0003)


def test_gguf_exceptions() -> None:
    def of(model: GgufModel, name: str, *, columns: int = 8192, layer: int | None = 10) -> str:
        return gguf_type(MIXTURES["q4_k_m"], model, name=name, columns=columns, layer=layer).name

    seventy = GgufModel(80, queries_per_key=8, experts=1, tied=False)
    assert of(seventy, "self_attn.v_proj.weight") == "q5_k"
    mixtral = GgufModel(32, queries_per_key=4, experts=8, tied=False)
    assert of(mixtral, "self_attn.k_proj.weight") == of(mixtral, "self_attn.v_proj.weight") == "q8_0"
    assert of(mixtral, "self_attn.o_proj.weight") == "q5_k"
    tied = GgufModel(16, queries_per_key=4, experts=1, tied=True)
    assert of(tied, "model.embed_tokens.weight", layer=None) == "q6_k"
    assert of(seventy, "model.embed_tokens.weight", layer=None) == "q4_k"
    # gpt-oss has rows of 2880 weights, which are no multiple of 256.
    assert of(seventy, "mlp.up_proj.weight", columns=2880) == "q5_0"
    assert of(seventy, "lm_head.weight", columns=2880, layer=None) == "q8_0"
    assert of(seventy, "mlp.up_proj.weight", columns=100) == "f16"


def test_gguf_blocks() -> None:
    # Q4_K: 256 weights of 4 bits, 12 B of 6-bit scales and minima, two of 2 B.
    assert GGUF_TYPES["q4_k"].stored_bytes(2, 512) == 2 * 2 * (128 + 12 + 4)
    assert GGUF_TYPES["q8_0"].stored_bytes(1, 32) == 34
