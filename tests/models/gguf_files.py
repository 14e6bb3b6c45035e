"""GGUF files for tests: a header as llama.cpp writes it, before a hole instead of data."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

TYPES = {
    "f32": (0, 1, 4),
    "f16": (1, 1, 2),
    "q8_0": (8, 32, 34),
    "q4_k": (12, 256, 144),
    "q5_k": (13, 256, 176),
    "q6_k": (14, 256, 210),
    "iq3_xxs": (18, 256, 98),
    "iq4_xs": (23, 256, 136),
    "bf16": (30, 1, 2),
}
"""Number of a type, weights of a block, and its bytes."""


class Tensor(NamedTuple):
    name: str
    dimensions: tuple[int, ...]
    type: str = "f32"

    @property
    def bytes(self) -> int:
        _, weights, size = TYPES[self.type]
        numel = 1
        for one in self.dimensions:
            numel *= one
        return numel // weights * size


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(one: Any) -> bytes:
    if isinstance(one, str):
        return struct.pack("<I", 8) + text(one)
    if isinstance(one, bool):
        return struct.pack("<I?", 7, one)
    if isinstance(one, int):
        return struct.pack("<II", 4, one)
    if isinstance(one, float):
        return struct.pack("<If", 6, one)
    if one and isinstance(one[0], str):
        return struct.pack("<IIQ", 9, 8, len(one)) + b"".join(map(text, one))
    return struct.pack("<IIQ", 9, 5, len(one)) + struct.pack(f"<{len(one)}i", *one)


def header(metadata: Mapping[str, Any], tensors: Iterable[Tensor]) -> tuple[bytes, int]:
    """Everything before the data, padded, and the size of the data."""
    tensors = list(tensors)
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    parts += [text(key) + value(one) for key, one in metadata.items()]
    offset = 0
    for name, dimensions, kind in tensors:
        ranks = len(dimensions)
        parts.append(text(name) + struct.pack(f"<I{ranks}QIQ", ranks, *dimensions, TYPES[kind][0], offset))
        offset += -(-Tensor(name, dimensions, kind).bytes // 32) * 32
    raw = b"".join(parts)
    return raw + bytes(-len(raw) % 32), offset


def written(path: Path, metadata: Mapping[str, Any], tensors: Iterable[Tensor]) -> Path:
    """Write a file whose data is a hole."""
    head, size = header(metadata, tensors)
    path.write_bytes(head)
    os.truncate(path, len(head) + size)
    return path


def tensors_of(table: str, layers: Mapping[str, Iterable[int]], sizes: Mapping[str, int]) -> list[Tensor]:
    """The tensors of a table with one of ``kind: name dimension,…`` in each line, for the layers of each
    kind; kind "-" is outside of them."""
    found: list[Tensor] = []
    for line in filter(None, map(str.strip, table.splitlines())):
        kind, name, dimensions = line.split()
        shape = tuple(sizes[one] if one in sizes else int(one) for one in dimensions.split(","))
        matrix = "norm" not in name and name.endswith("weight") and len(shape) > 1 and shape[0] % 32 == 0
        places = ("",) if kind == "-" else (f"blk.{layer}." for layer in layers[kind])
        found += (Tensor(f"{place}{name}", shape, "q8_0" if matrix else "f32") for place in places)
    return found


def llama(*, layers: int = 2, vocabulary: int = 512, hidden: int = 256, wide: int = 512) -> dict[str, Any]:
    """The metadata of a small Llama."""
    keys = {
        "block_count": layers,
        "context_length": 2048,
        "embedding_length": hidden,
        "feed_forward_length": wide,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "rope.dimension_count": hidden // 4,
    }
    words = [f"word{at}" for at in range(vocabulary)]
    return {
        "general.architecture": "llama",
        "general.file_type": 15,
        "tokenizer.ggml.tokens": words,
        **{f"llama.{key}": one for key, one in keys.items()},
    }


def llama_tensors(
    *, layers: int = 2, vocabulary: int = 512, hidden: int = 256, wide: int = 512
) -> list[Tensor]:
    """Its tensors, in several types; values of the first layer are in another one."""
    found = [
        Tensor("token_embd.weight", (hidden, vocabulary), "q4_k"),
        Tensor("output_norm.weight", (hidden,)),
    ]
    found += [
        Tensor("output.weight", (hidden, vocabulary), "q6_k"),
        Tensor("rope_freqs.weight", (hidden // 8,)),
    ]
    for layer in range(layers):
        at = f"blk.{layer}."
        found += [Tensor(f"{at}{name}_norm.weight", (hidden,)) for name in ("attn", "ffn")]
        found += [
            Tensor(f"{at}attn_q.weight", (hidden, hidden), "q4_k"),
            Tensor(f"{at}attn_k.weight", (hidden, hidden // 2), "q4_k"),
            Tensor(f"{at}attn_v.weight", (hidden, hidden // 2), "q4_k" if layer else "q6_k"),
            Tensor(f"{at}attn_output.weight", (hidden, hidden), "q4_k"),
            Tensor(f"{at}ffn_gate.weight", (hidden, wide), "q4_k"),
            Tensor(f"{at}ffn_up.weight", (hidden, wide), "q4_k"),
            Tensor(f"{at}ffn_down.weight", (wide, hidden), "q6_k"),
        ]
    return found
