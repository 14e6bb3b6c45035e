"""Write GGUF files of known shapes with random weights, for measurements of llama.cpp without any download.

The tensors, their types and the metadata are those of published files (types of Q4_K_M as llama-quantize
chooses them, MXFP4 as in releases of gpt-oss). Blocks are random and legal: quants are drawn evenly, scales
are small, so that weights have mean 0. Matrices that write to the residual stream have 1/64 of the usual
size, which leaves the embedding of the token in charge: routers then choose different experts for different
tokens. Needs numpy alone.

Usage: python random_gguf.py SHAPE FORMAT FILE [--layers N] [--sparse]
``--sparse`` writes metadata only and a file of the full size full of holes, enough for ``llama-fit-params``.
"""

from __future__ import annotations

import argparse
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

ALIGNMENT = 32
BLOCKS: dict[str, tuple[int, int, int]] = {  # number in GGUF, weights of a block, its bytes
    "f32": (0, 1, 4),
    "f16": (1, 1, 2),
    "q8_0": (8, 32, 34),
    "q4_k": (12, 256, 144),
    "q6_k": (14, 256, 210),
    "mxfp4": (39, 32, 17),
}
POOL = 32 << 20  # bytes of random blocks that tensors of a type are cut from
LLAMA = {"arch": "llama", "vocab": 128256, "base": 5e5, "context": 131072}
QWEN_MOE = {"arch": "qwen3moe", "vocab": 151936, "base": 1e6, "context": 40960, "experts": 128, "used": 8}
GPT_OSS = {"arch": "gpt-oss", "vocab": 201088, "base": 1.5e5, "context": 131072, "used": 4, "window": 128}
SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.2-3b": LLAMA | {"layers": 28, "hidden": 3072, "ffn": 8192, "heads": 24, "kv": 8, "head": 128},
    "llama-3.1-8b": LLAMA | {"layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32, "kv": 8, "head": 128},
    "llama-3.3-70b": LLAMA | {"layers": 80, "hidden": 8192, "ffn": 28672, "heads": 64, "kv": 8, "head": 128},
    "qwen3-30b-a3b": QWEN_MOE | {"layers": 48, "hidden": 2048, "ffn": 768, "heads": 32, "kv": 4, "head": 128},
    "qwen3-235b-a22b": QWEN_MOE
    | {"layers": 94, "hidden": 4096, "ffn": 1536, "heads": 64, "kv": 4, "head": 128},
    "gpt-oss-20b": GPT_OSS
    | {"layers": 24, "hidden": 2880, "ffn": 2880, "heads": 64, "kv": 8, "head": 64, "experts": 32},
    "gpt-oss-120b": GPT_OSS
    | {"layers": 36, "hidden": 2880, "ffn": 2880, "heads": 64, "kv": 8, "head": 64, "experts": 128},
}


def more_bits(layer: int, layers: int) -> bool:
    """Return whether Q4_K_M keeps values and second matrices of a layer in Q6_K (llama-quant.cpp)."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def type_of(name: str, layer: int, layers: int, quantization: str) -> str:
    """Return the type of a matrix in a file of ``quantization``."""
    if quantization == "q4_k_m":
        high = name == "output" or (
            name in ("attn_v", "ffn_down", "ffn_down_exps") and more_bits(layer, layers)
        )
        return "q6_k" if high else "q4_k"
    if quantization == "mxfp4":
        return "mxfp4" if name.endswith("_exps") else "q8_0"
    return quantization


def tensors(shape: dict[str, Any], quantization: str) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return name, type and dimensions, the fastest first, of every tensor."""
    hidden, ffn, layers, head = shape["hidden"], shape["ffn"], shape["layers"], shape["head"]
    queries, keys, experts = shape["heads"] * head, shape["kv"] * head, shape.get("experts", 0)
    gpt_oss = shape["arch"] == "gpt-oss"

    def matrix(prefix: str, name: str, *dims: int, layer: int = 0) -> tuple[str, str, tuple[int, ...]]:
        return f"{prefix}{name}.weight", type_of(name, layer, layers, quantization), dims

    found = [matrix("", "token_embd", hidden, shape["vocab"]), ("output_norm.weight", "f32", (hidden,))]
    found.append(matrix("", "output", hidden, shape["vocab"]))
    for layer in range(layers):
        at = f"blk.{layer}."
        found.append((f"{at}attn_norm.weight", "f32", (hidden,)))
        found.append((f"{at}{'post_attention' if gpt_oss else 'ffn'}_norm.weight", "f32", (hidden,)))
        for name, dims in (
            ("attn_q", (hidden, queries)),
            ("attn_k", (hidden, keys)),
            ("attn_v", (hidden, keys)),
            ("attn_output", (queries, hidden)),
        ):
            found.append(matrix(at, name, *dims, layer=layer))
            if gpt_oss:
                found.append((f"{at}{name}.bias", "f32", dims[1:]))
        if shape["arch"] == "qwen3moe":
            found += [(f"{at}attn_{name}_norm.weight", "f32", (head,)) for name in "qk"]
        suffix, rest = ("_exps", (experts,)) if experts else ("", ())
        if experts:
            found.append((f"{at}ffn_gate_inp.weight", "f32", (hidden, experts)))
        if gpt_oss:
            found.append((f"{at}ffn_gate_inp.bias", "f32", (experts,)))
            found.append((f"{at}attn_sinks.weight", "f32", (shape["heads"],)))
        for name, inner in (
            ("ffn_gate", (hidden, ffn)),
            ("ffn_up", (hidden, ffn)),
            ("ffn_down", (ffn, hidden)),
        ):
            found.append(matrix(at, name + suffix, *inner, *rest, layer=layer))
            if gpt_oss:
                found.append((f"{at}{name}{suffix}.bias", "f32", (inner[1], experts)))
    return found


def metadata(shape: dict[str, Any], name: str) -> dict[str, str | int | float]:
    """Return the keys of the header."""
    arch = shape["arch"]
    keys: dict[str, str | int | float] = {
        "vocab_size": shape["vocab"],
        "context_length": shape["context"],
        "embedding_length": shape["hidden"],
        "block_count": shape["layers"],
        "feed_forward_length": shape["ffn"],
        "attention.head_count": shape["heads"],
        "attention.head_count_kv": shape["kv"],
        "attention.key_length": shape["head"],
        "attention.value_length": shape["head"],
        "rope.dimension_count": shape["head"],
        "rope.freq_base": shape["base"],
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    if "experts" in shape:
        keys |= {"expert_count": shape["experts"], "expert_used_count": shape["used"]}
        keys["expert_feed_forward_length"] = shape["ffn"]
    if "window" in shape:
        keys["attention.sliding_window"] = shape["window"]
        keys |= {"rope.scaling.type": "yarn", "rope.scaling.factor": 32.0}
        keys["rope.scaling.original_context_length"] = 4096
    header: dict[str, str | int | float] = {"general.architecture": arch, "general.name": name}
    return (
        header
        | {f"{arch}.{key}": value for key, value in keys.items()}
        | {"tokenizer.ggml.model": "no_vocab"}
    )


def text(value: str) -> bytes:
    """Return a string of GGUF."""
    return struct.pack("<Q", len(value)) + value.encode()


def header(found: list[tuple[str, str, tuple[int, ...]]], keys: dict[str, str | int | float]) -> bytes:
    """Return everything before the data: version 3, little endian."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(found), len(keys))]
    for key, value in keys.items():
        kind, packed = {
            str: lambda v: (8, text(v)),
            int: lambda v: (4, struct.pack("<I", v)),
            float: lambda v: (6, struct.pack("<f", v)),
        }[type(value)](value)
        parts.append(text(key) + struct.pack("<I", kind) + packed)
    offset = 0
    for name, kind, dims in found:
        parts.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, BLOCKS[kind][0], offset))
        offset += padded(size(kind, dims))
    raw = b"".join(parts)
    return raw + bytes(-len(raw) % ALIGNMENT)


def size(kind: str, dims: tuple[int, ...]) -> int:
    """Return the bytes of a tensor."""
    _, weights, octets = BLOCKS[kind]
    return int(np.prod(dims, dtype=np.int64)) // weights * octets


def padded(octets: int) -> int:
    """Return ``octets`` up to the next multiple of the alignment."""
    return -(-octets // ALIGNMENT) * ALIGNMENT


def pool(kind: str, deviation: float, random: np.random.Generator) -> bytes:
    """Return random blocks of a type whose weights have mean 0 and about this standard deviation."""
    _, _, octets = BLOCKS[kind]
    if kind in ("f32", "f16"):
        values = random.standard_normal(POOL // octets, dtype=np.float32) * np.float32(deviation)
        return values.astype(np.float32 if kind == "f32" else np.float16).tobytes()
    blocks = random.integers(0, 256, (POOL // octets, octets), dtype=np.uint8)

    def halves(at: int, value: float) -> None:
        blocks[:, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)

    if kind == "q8_0":  # d, 32 int8: deviation of evenly drawn quants is 73.9
        halves(0, deviation / 73.9)
    elif kind == "q4_k":  # d, dmin, 6-bit scales and minima, quants of 0 to 15: d*s*q - dmin*m
        halves(0, deviation / 276)
        halves(2, 7.5 * deviation / 276)
    elif kind == "q6_k":  # quants of -32 to 31, int8 scales, d
        halves(208, deviation / (73.9 * 18.5))
    else:  # mxfp4: exponent of a power of two, quants of -6 to 6 with a deviation of about 2.9
        blocks[:, 0] = 127 + round(np.log2(deviation / 2.9))
    return blocks.tobytes()


def write(
    file: BinaryIO, found: list[tuple[str, str, tuple[int, ...]]], keys: dict[str, str | int | float]
) -> None:
    """Write the whole file."""
    file.write(header(found, keys))
    random = np.random.default_rng(20261127)
    pools: dict[tuple[str, float], bytes] = {}
    for name, kind, dims in found:
        octets, block = size(kind, dims), BLOCKS[kind][2]
        if "norm" in name:
            file.write(np.ones(octets // 4, np.float32).tobytes())
        else:
            residual = "attn_output" in name or "ffn_down" in name
            deviation = 0.02 / 64 if residual else 0.05 if "gate_inp" in name else 0.02
            source = pools.setdefault((kind, deviation), b"") or pool(kind, deviation, random)
            pools[kind, deviation] = source
            start = int(random.integers(0, len(source) // block)) * block
            left = octets
            while left:
                piece = source[start : start + left]
                file.write(piece)
                left, start = left - len(piece), 0
        file.write(bytes(padded(octets) - octets))


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("format", choices=["q4_k_m", "q8_0", "mxfp4", "f16"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--sparse", action="store_true")
    given = parser.parse_args()
    shape = SHAPES[given.shape] | ({"layers": given.layers} if given.layers else {})
    found, keys = tensors(shape, given.format), metadata(shape, given.shape)
    with given.file.open("wb") as file:
        if given.sparse:
            head = header(found, keys)
            file.write(head)
            file.truncate(len(head) + sum(padded(size(kind, dims)) for _, kind, dims in found))
        else:
            write(file, found, keys)


if __name__ == "__main__":
    main()
