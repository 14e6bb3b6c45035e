"""The header of a GGUF file: its metadata, and name, type and size of every tensor; the data is never read.

The format, and what a file must keep to, are those of ggml/src/gguf.cpp and src/llama-model-loader.cpp of
llama.cpp@0c1e5709. The package ``gguf`` is not used: it maps the data as well, needs two more packages, and
has no bounds for counts, which a damaged file may set to anything.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from simoffload.documents import exists, file_errors, file_size, listing, quoted, suggest
from simoffload.errors import InputError, Problem, shortened
from simoffload.models.families import FAMILIES, FamilyConfig
from simoffload.models.formats import GGUF_NUMBERS, WeightFormat
from simoffload.models.modules import Module, Parameter, Storage
from simoffload.models.quantization import with_storage
from simoffload.models.shape import Layer, ModelShape
from simoffload.units import format_bytes

_SUFFIX = ".gguf"
Value = str | int | float | bool | tuple[int | float | bool, ...]
"""Values that metadata may have."""
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_LARGEST = 100_000_000
"""[B] The largest header; those of large vocabularies have 20 MB."""
_MOST = 100_000
"""Most tensors, and most keys; the largest files have some thousands."""
_LONGEST_NAME = 63
_LONGEST_KEY = 65_535
_MOST_DIMENSIONS = 4
_LARGEST_TENSOR = 2**63 - 1
_MOST_KEPT = 10_000
"""Most values of a list that is kept, one for each layer; those of a vocabulary are skipped."""
_STRING, _LIST = 8, 9
_NUMBERS = {
    number: struct.Struct(f"<{code}")
    for number, code in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
_LENGTH = struct.Struct("<Q")
_PART = re.compile(r"(?P<stem>.*)-(?P<part>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")


class GgufTensor(NamedTuple):
    """A GgufTensor is what a file says of one of its tensors."""

    name: str
    dimensions: tuple[int, ...]
    """Number of weights along each dimension, that of a row first."""
    format: WeightFormat

    @property
    def numel(self) -> int:
        """The number of its weights."""
        return prod(self.dimensions)

    @property
    def bytes(self) -> int:
        """Size [B] in the file."""
        columns = self.dimensions[0]
        return self.format.stored_bytes(self.numel // columns, columns) if columns else 0


class GgufHeader(NamedTuple):
    """A GgufHeader is the metadata and the tensors of a file, or of all parts of a split one."""

    path: str
    metadata: Mapping[str, Value]
    """Values by key; texts and long lists of the vocabulary are left out."""
    tensors: Mapping[str, GgufTensor]
    """What the file says of each tensor."""

    def refuse(self, message: str, key: str = "") -> NoReturn:
        """Raise an InputError about the file."""
        raise InputError([Problem(self.path, None, None, key, message)])

    @property
    def stem(self) -> str:
        """Name of the file without its ending and the number of its part."""
        name = Path(self.path).name
        split = _PART.fullmatch(name)
        return split["stem"] if split else name.removesuffix(_SUFFIX)


def read_gguf(path: str | Path) -> GgufHeader:
    """Read the header of a file, and of the other parts if it is one of a split file.

    Raises InputError for a file that llama.cpp would not load: a damaged or truncated one, unknown types of
    tensors, tensors that occur twice, and missing parts.
    """
    split = _PART.fullmatch(Path(path).name)
    if split is None:
        header, part = _read_part(Path(path))
        if part.among > 1:
            header.refuse(f"is one of {part.among} parts, which are called like {_part_name('NAME', 1, 5)}")
        return header
    count = int(split["count"])
    paths = [Path(path).with_name(_part_name(split["stem"], 1 + at, count)) for at in range(count)]
    lacking = next((one for one in paths if not exists(one)), None)
    if lacking is not None or not paths:
        text = f"no such file; it is a part of {split['stem']}, and all {count} belong in one folder"
        raise InputError.at("", text, path=str(lacking or path))
    read = [_read_part(one) for one in paths]
    for at, (header, part) in enumerate(read):
        if (part.number, part.among) != (at, count):
            header.refuse(
                f"is part {part.number + 1} of {part.among} by its metadata, {at + 1} of {count} by its name"
            )
    first, _ = read[0]
    tensors = {name: one for header, _ in read for name, one in header.tensors.items()}
    if len(tensors) < sum(len(header.tensors) for header, _ in read):
        first.refuse("a tensor is in several of its parts; are they of one model?")
    if len(tensors) != first.metadata.get("split.tensors.count", len(tensors)):
        number = first.metadata["split.tensors.count"]
        first.refuse(f"its parts have {len(tensors)} tensors instead of {number}; are they of one model?")
    return first._replace(tensors=tensors)


def _part_name(stem: str, part: int, count: int) -> str:
    return f"{stem}-{part:05}-of-{count:05}{_SUFFIX}"


class _FilePart(NamedTuple):
    number: int
    among: int


def _read_part(path: Path) -> tuple[GgufHeader, _FilePart]:
    """Return the header of one file, and which part of all it is."""
    size = file_size(path)
    with file_errors(path), path.open("rb") as file:
        reader = _HeaderReader(str(path), file, size)
        header = reader.header()
    number, count = (header.metadata.get(f"split.{key}", usual) for key, usual in (("no", 0), ("count", 1)))
    if not isinstance(number, int) or not isinstance(count, int):
        header.refuse("is not a whole number", "split.no" if isinstance(count, int) else "split.count")
    return header, _FilePart(number, count)


class _HeaderReader:
    """A _HeaderReader reads a header from its beginning, no further into the file than it must."""

    def __init__(self, path: str, file: BinaryIO, size: int) -> None:
        self._path, self._file, self._size = path, file, size
        self._content = bytearray()
        self._at = 0

    def header(self) -> GgufHeader:
        """Return the header. Raises InputError."""
        tensors, keys = self._counts()
        metadata: dict[str, Value] = {}
        seen = set[str]()
        for _ in range(keys):
            key = self._text(_LONGEST_KEY, "key")
            if key in seen:
                self._refuse("occurs twice", key)
            seen.add(key)
            value = self._value(key)
            if value is not None:
                metadata[key] = value
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            self._refuse(f"must be a power of two, not {alignment}", "general.alignment")
        return GgufHeader(self._path, metadata, self._tensors(tensors, alignment))

    def _counts(self) -> tuple[int, int]:
        """Return the numbers of tensors and of keys."""
        found = bytes(self._take(4)) if self._size >= 4 else b""
        if found != _MAGIC:
            self._refuse(f"is not a GGUF file: it begins with {found!r} instead of {_MAGIC!r}")
        version = self._number(4)
        if version & 0xFFFF == 0:
            self._refuse("is big-endian; convert it with gguf_convert_endian.py of llama.cpp")
        if version not in _VERSIONS:
            self._refuse(f"has version {version} of GGUF; known: 2 and 3 (llama.cpp writes 3)")
        counts = self._number(10), self._number(10)
        for what, count in zip(("tensors", "keys"), counts, strict=True):
            if count > _MOST:
                self._refuse(f"says that it has {count:,} {what}, of at most {_MOST:,}; it is damaged")
        return counts

    def _tensors(self, count: int, alignment: int) -> dict[str, GgufTensor]:
        """Return the tensors, which follow each other in the data, each from a multiple of ``alignment``."""
        found: dict[str, GgufTensor] = {}
        begin = end = 0
        for _ in range(count):
            one, offset = self._tensor()
            if one.name in found:
                self._refuse("the tensor occurs twice", one.name)
            if offset != begin:
                self._refuse(f"the tensor begins at byte {offset:,} of the data, not at {begin:,}", one.name)
            found[one.name] = one
            end = begin + one.bytes
            begin = -(-end // alignment) * alignment
        needed = -(-self._at // alignment) * alignment + end
        if count and needed > self._size:
            self._refuse(f"is truncated: it has {self._size:,} of {needed:,} bytes; was it downloaded whole?")
        return found

    def _tensor(self) -> tuple[GgufTensor, int]:
        """Return a tensor and the offset of its data [B]."""
        name = self._text(_LONGEST_NAME, "name of a tensor")
        ranks = self._number(4)
        if not 1 <= ranks <= _MOST_DIMENSIONS:
            self._refuse(f"the tensor has {ranks} dimensions, of 1 to {_MOST_DIMENSIONS}", name)
        dimensions = tuple(self._number(10) for _ in range(ranks))
        number, offset = self._number(4), self._number(10)
        if number not in GGUF_NUMBERS:
            self._refuse(f"the tensor has type {number}, which llama.cpp does not know or has dropped", name)
        one = GgufTensor(name, dimensions, GGUF_NUMBERS[number])
        if not 0 < one.numel <= _LARGEST_TENSOR:
            self._refuse(f"the tensor has dimensions {shortened(str(dimensions))}; it is damaged", name)
        if dimensions[0] % one.format.block:
            text = f"rows of {dimensions[0]} weights are no multiple of {one.format.block}"
            self._refuse(f"{text}, a block of {one.format.name}", name)
        return one, offset

    def _value(self, key: str) -> Value | None:
        """Return a value of metadata; None for a list that is not kept."""
        kind = self._number(4)
        if kind == _STRING:
            return self._text(self._size, "text", key)
        if kind in _NUMBERS:
            return self._number(kind)
        if kind != _LIST:
            self._refuse(f"has a value of the unknown type {kind}", key)
        kind, count = self._number(4), self._number(10)
        if kind == _STRING:
            self._skip_texts(count)
            return None
        if kind not in _NUMBERS:
            self._refuse(f"is a list of the unknown type {kind}", key)
        width = _NUMBERS[kind].size
        if count > _MOST_KEPT:
            self._take(count * width)
            return None
        return tuple(self._number(kind) for _ in range(count))

    def _number(self, kind: int) -> int:
        form = _NUMBERS[kind]
        value: int = form.unpack(self._take(form.size))[0]
        return value

    def _text(self, most: int, what: str, key: str = "") -> str:
        length = self._number(10)
        if length > most:
            self._refuse(f"the {what} has {length:,} bytes, of at most {most:,}; the file is damaged", key)
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            self._refuse(f"the {what} is not UTF-8; the file is damaged", key)

    def _skip_texts(self, count: int) -> None:
        for _ in range(count):
            self._take(_LENGTH.unpack(self._take(_LENGTH.size))[0])

    def _take(self, count: int) -> bytes:
        """Return the next bytes of the file."""
        end = self._at + count
        if end > len(self._content):
            if end > self._size:
                self._refuse(f"is truncated: its header does not end within {self._size:,} bytes")
            if end > _LARGEST:
                self._refuse(f"its header has more than {_LARGEST // 10**6} MB; the file is damaged")
            self._content += self._file.read(max(end - len(self._content), len(self._content), 1 << 16))
            if end > len(self._content):
                self._refuse("became shorter while it was read")
        found = bytes(self._content[self._at : end])
        self._at = end
        return found

    def _refuse(self, message: str, key: str = "") -> NoReturn:
        raise InputError([Problem(self._path, None, None, key and shortened(key), message)])


# -- the model that a GGUF file describes ----------------------------------------------------------
# A family with its sizes, and the type of every tensor of its modules.
#
# Keys and names of tensors are those of src/llama-arch.cpp and conversion/ of llama.cpp@0c1e5709. Where
# older files lack a key, the dimensions of a tensor give the size.


ARCHITECTURES: Mapping[str, str] = {
    "llama": "llama",
    "mistral3": "mistral",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "phimoe": "phimoe",
    "gpt-oss": "gpt_oss",
    "llama4": "llama4_text",
    "deepseek2": "deepseek_v2",
    "glm4moe": "glm4_moe",
    "minimax-m2": "minimax_m2",
    "olmo2": "olmo2",
    "gptneox": "gpt_neox",
    "falcon": "falcon",
    "bloom": "bloom",
}
"""The family of each ``general.architecture``."""
_SIGMOID = 2
"""Number of a router that weighs experts by sigmoid (``expert_gating_func``)."""
_KEYS: Mapping[str, str] = {
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "intermediate_size_mlp": "feed_forward_length",
    "sliding_window": "attention.sliding_window",
    "sliding_window_pattern": "attention.sliding_window_pattern",
    "num_experts_per_tok": "expert_used_count",
    "n_shared_experts": "expert_shared_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
    "kv_lora_rank": "attention.kv_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
    "rotary_dim": "rope.dimension_count",
    "full_attention_interval": "full_attention_interval",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
}
"""Keys of the metadata, after the architecture, by Hugging Face's; each family takes those that it has."""
_FILE_TYPES = {
    0: "f32",
    1: "f16",
    2: "q4_0",
    3: "q4_1",
    **dict(enumerate(("q8_0", "q5_0", "q5_1", "q2_k", "q3_k_s", "q3_k_m", "q3_k_l"), 7)),
    **dict(enumerate(("q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m", "q6_k"), 14)),
    **dict(enumerate(("iq2_xxs", "iq2_xs", "q2_k_s", "iq3_xs", "iq3_xxs", "iq1_s", "iq4_nl"), 19)),
    **dict(enumerate(("iq3_s", "iq3_m", "iq2_s", "iq2_m", "iq4_xs", "iq1_m", "bf16"), 26)),
    **dict(enumerate(("tq1_0", "tq2_0", "mxfp4_moe", "nvfp4", "q1_0", "q2_0"), 36)),
}
"""Mixture by its number in ``general.file_type`` (include/llama.h, ``llama_ftype``)."""

_NAMED = re.compile(
    r"(.+?)[-.]((?:ud-)?(?:i?q[1-8](?:_[0-9klmnsx]+)+|tq[12]_0)|b?f16|f32|(?:mx|nv)fp4(?:_moe)?)",
    re.IGNORECASE,
)
"""Name of a file that ends in that of its mixture."""


class GgufConfig(NamedTuple):
    """A GgufConfig is what a file says in Hugging Face's keys."""

    family: type[FamilyConfig]
    keys: dict[str, Any]
    quantization: str
    """Name of the mixture of types."""
    label: str
    """Name of the file without that of the mixture."""


def gguf_config(header: GgufHeader) -> GgufConfig:
    """Return the family and the sizes. Raises InputError for an architecture that no family has."""
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        header.refuse("missing, or not a text; is it a file of a language model?", "general.architecture")
    if architecture not in ARCHITECTURES:
        known = f"{suggest(architecture, ARCHITECTURES)}; known: {listing(list(ARCHITECTURES))}"
        header.refuse(f"{quoted(architecture)} is not supported{known}", "general.architecture")
    if not header.tensors:
        header.refuse("has no tensors; is it the file of a vocabulary?")
    sizes = _Sizes(header, architecture)
    family = FAMILIES[_family(sizes, architecture)]
    named = _NAMED.fullmatch(header.stem)
    label, quantization = (named[1], named[2].lower()) if named else (header.stem, _mixture(header))
    return GgufConfig(family, _config(sizes, family), quantization, label)


def _mixture(header: GgufHeader) -> str:
    """Return the mixture that the metadata name, or else the type of most bytes."""
    kind = header.metadata.get("general.file_type")
    if isinstance(kind, int) and kind in _FILE_TYPES:
        return _FILE_TYPES[kind]
    by_type = Counter({one.format.name: 0 for one in header.tensors.values()})
    for one in header.tensors.values():
        by_type[one.format.name] += one.bytes
    return by_type.most_common(1)[0][0]


class _Sizes(NamedTuple):
    """The metadata of an architecture, and the tensors."""

    header: GgufHeader
    architecture: str

    def get(self, key: str) -> Any:
        """Return a value; of a list, with one for each layer, the one that all layers have."""
        value = self.header.metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, tuple):
            if len(set(value)) != 1:
                place = f"{self.architecture}.{key}"
                self.header.refuse("differs between layers, which no family here does", place)
            return value[0]
        return value

    def has(self, end: str) -> bool:
        """Return whether there is a tensor whose name ends so."""
        return self._first(end) is not None

    def width(self, end: str) -> int | None:
        """Return the length of rows of the first tensor whose name ends so."""
        found = self._first(end)
        return None if found is None else found.dimensions[0]

    def _first(self, end: str) -> GgufTensor | None:
        return next((one for name, one in self.header.tensors.items() if name.endswith(end)), None)


def _family(sizes: _Sizes, architecture: str) -> str:
    if architecture == "llama" and sizes.get("expert_count"):
        return "mixtral"
    if architecture == "deepseek2" and sizes.get("expert_gating_func") == _SIGMOID:
        return "deepseek_v3"
    return ARCHITECTURES[architecture]


def _config(sizes: _Sizes, family: type[FamilyConfig]) -> dict[str, Any]:
    """Return the keys of a config.json, of which the family takes its own."""
    found = {key: sizes.get(name) for key, name in _KEYS.items()}
    found["sliding_window"] = found["sliding_window"] or None
    table = sizes.header.tensors.get("token_embd.weight")
    found["vocab_size"] = table.dimensions[-1] if table else sizes.get("vocab_size")
    layers, further = sizes.get("block_count"), sizes.get("nextn_predict_layers") or 0
    total = type(layers) is int and type(further) is int
    found["num_hidden_layers"] = layers - further if total else layers
    found["num_nextn_predict_layers"] = further or None
    found |= _feed_forward(sizes, family)
    if sizes.get("attention.kv_lora_rank") is not None:
        found |= _latent(sizes)
    rotated, width, heads = found["rotary_dim"], found.get("head_dim"), found["num_attention_heads"]
    if width is None and type(found["hidden_size"]) is int and type(heads) is int and heads:
        width = found["hidden_size"] // heads
    if type(rotated) is int and type(width) is int and width:
        found["partial_rotary_factor"] = found["rotary_pct"] = min(1.0, rotated / width)
    if type(values := sizes.get("ssm.inner_size")) is int and type(found["linear_num_value_heads"]) is int:
        found["linear_value_head_dim"] = values // max(found["linear_num_value_heads"], 1)
    return {key: value for key, value in (found | _flags(sizes)).items() if value is not None} | {
        key: None for key in ("q_lora_rank", "sliding_window") if found.get(key) is None
    }


def _feed_forward(sizes: _Sizes, family: type[FamilyConfig]) -> dict[str, Any]:
    """Return the widths of feed-forward networks, those of experts under the keys of the family."""
    found = {"intermediate_size": sizes.width("ffn_down.weight") or sizes.get("feed_forward_length")}
    found["ffn_hidden_size"] = found["intermediate_size_mlp"] = found["intermediate_size"]
    experts = sizes.get("expert_count")
    if experts:
        found[getattr(family, "experts_key", "num_experts")] = experts
        width = sizes.width("ffn_down_exps.weight") or sizes.get("expert_feed_forward_length")
        found[getattr(family, "width_key", "moe_intermediate_size")] = width
        shared = sizes.width("ffn_down_shexp.weight")
        found["shared_expert_intermediate_size"] = shared or sizes.get("expert_shared_feed_forward_length")
    return found


def _latent(sizes: _Sizes) -> dict[str, Any]:
    """Return the sizes of latent attention; newer files have those of all heads apart (``…_mla``)."""
    rotated = sizes.get("rope.dimension_count")
    width = sizes.get("attention.key_length_mla") or sizes.get("attention.key_length")
    total = type(width) is int and type(rotated) is int
    return {
        "head_dim": None,
        "num_key_value_heads": None,
        "q_lora_rank": sizes.get("attention.q_lora_rank"),
        "qk_nope_head_dim": width - rotated if total else None,
        "v_head_dim": sizes.get("attention.value_length_mla") or sizes.get("attention.value_length"),
    }


def _flags(sizes: _Sizes) -> dict[str, Any]:
    """Return what the tensors tell: ties, biases, and norms of heads."""
    heads, keys = sizes.get("attention.head_count"), sizes.get("attention.head_count_kv")
    two_norms = sizes.has("attn_norm_2.weight")
    biased = sizes.has("attn_q.bias") or sizes.has("attn_qkv.bias")
    return {
        "tie_word_embeddings": "output.weight" not in sizes.header.tensors,
        "attention_bias": biased,
        "bias": biased,
        "mlp_bias": sizes.has("ffn_up.bias"),
        "lm_head_bias": "output.bias" in sizes.header.tensors,
        "use_qk_norm": sizes.has("attn_q_norm.weight") or None,
        "num_kv_heads": keys,
        "multi_query": keys == 1,
        "new_decoder_architecture": two_norms or keys not in (1, heads),
        "num_ln_in_parallel_attn": 2 if two_norms else 1,
    }


# -- tensors of modules ------------------------------------------------------------------------------

_Stems = tuple[tuple[str, ...], ...]


def _either(*alternatives: str) -> _Stems:
    return tuple(tuple(one.split()) for one in alternatives)


_OUTSIDE: Mapping[str, _Stems] = {
    **dict.fromkeys(("embed_tokens", "word_embeddings", "embed_in"), _either("token_embd")),
    "word_embeddings_layernorm": _either("token_embd_norm"),
    **dict.fromkeys(("norm", "ln_f", "final_layer_norm"), _either("output_norm")),
    "lm_head": _either("output"),
    "rotary_emb": _either("rope_freqs", "rope_factors_long rope_factors_short"),
}
"""Tensors outside the layers by the last part of the name of Hugging Face's module."""
_IN_LAYER: Mapping[str, _Stems] = {
    "input_layernorm": _either("attn_norm"),
    "ln_attn": _either("attn_norm_2"),
    "ln_mlp": _either("attn_norm"),
    "post_attention_layernorm": _either("post_attention_norm", "ffn_norm"),
    "pre_feedforward_layernorm": _either("ffn_norm"),
    "post_feedforward_layernorm": _either("post_ffw_norm"),
    "q_proj": _either("attn_q", "attn_qkv"),
    "k_proj": _either("attn_k", "attn_qkv"),
    "v_proj": _either("attn_v", "attn_qkv"),
    **dict.fromkeys(("qkv_proj", "query_key_value"), _either("attn_qkv", "attn_q attn_k attn_v")),
    **dict.fromkeys(("o_proj", "dense"), _either("attn_output")),
    "q_norm": _either("attn_q_norm"),
    "k_norm": _either("attn_k_norm"),
    "sinks": _either("attn_sinks"),
    "q_a_proj": _either("attn_q_a"),
    "q_a_layernorm": _either("attn_q_a_norm"),
    "q_b_proj": _either("attn_q_b"),
    "kv_a_proj_with_mqa": _either("attn_kv_a_mqa"),
    "kv_a_layernorm": _either("attn_kv_a_norm"),
    "kv_b_proj": _either("attn_k_b attn_v_b", "attn_kv_b"),
    "in_proj_qkvz": _either("attn_qkv attn_gate", "ssm_in"),
    "in_proj_ba": _either("ssm_ba"),
    "linear_attn.conv1d": _either("ssm_conv1d"),
    "linear_attn.dt": _either("ssm_dt"),
    "linear_attn.A_log": _either("ssm_a"),
    "linear_attn.norm": _either("ssm_norm"),
    "linear_attn.out_proj": _either("ssm_out"),
    "gate": _either("ffn_gate_inp"),
    "router": _either("ffn_gate_inp"),
    "e_score_correction": _either("exp_probs_b"),
    "gate_proj": _either("ffn_gate"),
    **dict.fromkeys(("up_proj", "dense_h_to_4h"), _either("ffn_up")),
    **dict.fromkeys(("down_proj", "dense_4h_to_h"), _either("ffn_down")),
    "gate_up_proj": _either("ffn_gate ffn_up", "ffn_up"),
    "experts.gate_up_proj": _either("ffn_gate_exps ffn_up_exps", "ffn_gate_up_exps"),
    "experts.down_proj": _either("ffn_down_exps"),
    "shared_expert_gate": _either("ffn_gate_inp_shexp"),
    **{
        f"{shared}.{part}_proj": _either(f"ffn_{part}_shexp")
        for shared in ("shared_expert", "shared_experts")
        for part in ("gate", "up", "down")
    },
}
"""Tensors of a layer by the last parts of the name of Hugging Face's tensor; of several lists the first that
the file has. A tensor of several matrices is divided among them."""
_SECOND = frozenset(
    {
        *(
            (family, "post_attention_layernorm")
            for family in FAMILIES
            if family not in ("gemma2", "gemma3_text", "olmo2", "gpt_oss", "qwen3_next", "glm4_moe")
        ),
        ("phi3", "gate_up_proj"),
    }
)
"""Families and modules whose files have the second list of tensors, not the first."""
_BARE = "ssm_a"
"""Tensor whose name has no ending."""
_SCALES = (".scale", ".input_scale")
"""Endings of single numbers that NVFP4 has beside a matrix."""
_MOST_NAMED = 5


def tensor_names(shape: ModelShape, layer: int, one: Parameter) -> tuple[str, ...]:
    """Return the names of the tensors in which files have a parameter of a layer, -1 outside of them; () of a
    model that llama.cpp does not have."""
    base, ending, stems = _stems(one, inside=layer >= 0)
    if not stems:
        return ()
    second = (shape.family, base.rpartition(".")[2]) in _SECOND
    prefix = f"blk.{layer}." if layer >= 0 else ""
    chosen = stems[min(second, len(stems) - 1)]
    return tuple(f"{prefix}{stem}{'' if stem == _BARE else ending}" for stem in chosen)


def _stems(one: Parameter, *, inside: bool) -> tuple[str, str, _Stems]:
    """Return the name of a parameter without its ending, that ending, and the lists of its tensors."""
    base, ending = one.name.removesuffix(".weight"), ".weight"
    if base.endswith(("_bias", ".bias")):
        base, ending = base[: -len(".bias")], ".bias"
    table, parts = (_IN_LAYER if inside else _OUTSIDE), base.split(".")
    return base, ending, table.get(".".join(parts[-2:])) or table.get(parts[-1], ())


def stored_as(shape: ModelShape, header: GgufHeader, quantization: str) -> ModelShape:
    """Return the model with every tensor in the form in which the file has it.

    What is in no module, such as layers that predict further tokens, is left out with a note. Raises
    InputError where the file lacks a tensor or has one of another size.
    """
    tensors = _Tensors(header)
    shape = _with_additions(shape, header)

    def stored(modules: Layer, layer: int | None) -> tuple[Storage | None, ...]:
        prefix = "" if layer is None else f"blk.{layer}."
        owned = (one for module in modules for one in module.parameters)
        return tuple(None if one.tied else tensors.storage(one, prefix) for one in owned)

    made = with_storage(shape, quantization, stored, lambda _, storage: storage)
    note = tensors.left_out(shape.family)
    return replace(made, notes=(*made.notes, note)) if note else made


def _with_additions(shape: ModelShape, header: GgufHeader) -> ModelShape:
    """Return the model with the tensors that Hugging Face has in buffers: factors of rotation, and what
    routers add to scores."""

    def added(module: Module, name: str, tensors: Iterator[str]) -> Module:
        numel = sum(header.tensors[one].numel for one in tensors if one in header.tensors)
        more = (Parameter(name, numel),) if numel else ()
        return module._replace(parameters=(*module.parameters, *more))

    factors = next((at for at, one in enumerate(shape.modules_before) if one.kind == "rotary"), None)
    names = [f"{one}.weight" for each in _OUTSIDE["rotary_emb"] for one in each]
    before = tuple(
        added(one, f"{one.name}.weight", iter(names)) if at == factors else one
        for at, one in enumerate(shape.modules_before)
    )

    def with_scores(layer: Layer, index: int) -> Layer:
        corrected = iter([f"blk.{index}.exp_probs_b.bias"])
        return tuple(
            added(one, f"{one.name}.e_score_correction_bias", corrected) if one.kind == "router" else one
            for one in layer
        )

    return replace(shape, modules_before=before).with_layers(with_scores)


class _Tensors:
    """The tensors of a file, and how many weights of each are in modules."""

    def __init__(self, header: GgufHeader) -> None:
        self._header = header
        self._used: Counter[str] = Counter()

    def storage(self, one: Parameter, prefix: str) -> Storage:
        """Return the form of a parameter: the bytes of its tensors, with the type of the largest one."""
        found = self._found(one, prefix)
        total = sum(tensor.numel for tensor in found)
        names = " and ".join(tensor.name for tensor in found)
        if total != one.numel and (total < one.numel or len(found) > 1):
            self._header.refuse(f"has {total:,} weights; by the metadata they are {one.numel:,}", names)
        size, rest = divmod(sum(tensor.bytes for tensor in found) * one.numel, total)
        if rest:
            self._header.refuse(f"cannot be divided into parts of {one.numel:,} weights", names)
        for tensor in found:
            self._used[tensor.name] += tensor.numel * one.numel // total
            size += sum(scale.bytes for scale in self._scales(tensor))
        largest = max(found, key=lambda tensor: tensor.bytes)
        return Storage(largest.format, (size,))

    def _found(self, one: Parameter, prefix: str) -> list[GgufTensor]:
        """Return the tensors of a parameter."""
        base, ending, stems = _stems(one, inside=bool(prefix))
        for each in stems:
            bare = [f"{prefix}{stem}" for stem in each]
            names = [
                f"{name}{ending}" if f"{name}{ending}" in self._header.tensors else name for name in bare
            ]
            if all(name in self._header.tensors for name in names):
                return [self._header.tensors[name] for name in names]
        wanted = " or ".join(" and ".join(f"{prefix}{one}{ending}" for one in each) for each in stems)
        return self._header.refuse(f"has no tensor {wanted or base}; is it the file of a whole model?")

    def _scales(self, tensor: GgufTensor) -> Iterator[GgufTensor]:
        for ending in _SCALES:
            scale = self._header.tensors.get(tensor.name.removesuffix(".weight") + ending)
            if scale is not None and scale.name not in self._used:
                self._used[scale.name] += scale.numel
                yield scale

    def left_out(self, family: str) -> str:
        """Return a note about the tensors that are in no module, or "" if all are. Raises InputError for
        parts of a tensor that are in none."""
        for name, numel in self._used.items():
            if numel != self._header.tensors[name].numel:
                total = self._header.tensors[name].numel
                self._header.refuse(f"has {total:,} weights; by the metadata they are {numel:,}", name)
        others = [one for name, one in self._header.tensors.items() if name not in self._used]
        if not others:
            return ""
        named = ", ".join(shortened(one.name) for one in others[:_MOST_NAMED])
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        size = format_bytes(sum(one.bytes for one in others))
        return f"{size} of the file are in no module of {family} and left out: {named}{more}"
