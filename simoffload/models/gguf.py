"""Mixtures of GGUF: which tensor of a model has which type, as llama.cpp chooses them.

Read in src/llama-quant.cpp of llama.cpp@007dbbf3 (``llama_tensor_get_type_impl``, ``tensor_type_fallback``),
without options; types of up to 3.5 bits with an importance matrix (most of them cannot do without), others
without. Exceptions for the architecture Falcon are left out. Vectors and routers stay in single precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from simoffload.models.formats import GGUF_TYPES, WeightFormat

Role = Literal["query", "key", "value", "attention_output", "down", "gate_up", "other"]

_ROLES: dict[str, Role] = {
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "query_key_value": "value",
    "qkv_proj": "value",
    "kv_b_proj": "value",
    "o_proj": "attention_output",
    "out_proj": "attention_output",
    "dense": "attention_output",
    "down_proj": "down",
    "fc2": "down",
    "dense_4h_to_h": "down",
    "w2": "down",
    "gate_proj": "gate_up",
    "up_proj": "gate_up",
    "gate_up_proj": "gate_up",
    "w1": "gate_up",
    "w3": "gate_up",
}
"""Role of a matrix in a layer by the last part of its name in Hugging Face's models."""

_MANY_QUERIES = 4
"""Query heads per key-value head from which values are few enough to be stored in more bits."""
_EIGHT = 8
"""Number of experts (Mixtral's) for which keys and values are stored in 8 bits."""
_LAYERS_OF_70B = 80
"""Number of layers by which llama.cpp recognises a model of 70 B parameters."""


class Choice(NamedTuple):
    """A Choice is the type of the tensors of one role, which may be another one in some layers."""

    type: str = ""
    """Type; "" means that of the mixture."""
    exception: str = ""
    """Type in the layers of ``where``."""
    where: Literal["", "first eighth", "first sixteenth", "first 2", "first 4", "middle", "more bits"] = ""

    def of(self, layer: int, layers: int) -> str:
        """Return the type in layer number ``layer`` of ``layers``."""
        eighth = layers // 8
        special = {
            "": False,
            "first eighth": layer < eighth,
            "first sixteenth": layer < layers // 16,
            "first 2": layer < 2,
            "first 4": layer < 4,
            "middle": eighth <= layer < 7 * layers // 8,
            "more bits": layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2,
        }
        return self.exception if special[self.where] else self.type


@dataclass(frozen=True)
class Mixture:
    """A Mixture is the choice of types behind a name such as Q4_K_M."""

    type: str
    """Type of all matrices without a choice of their own."""
    roles: Mapping[Role, Choice] = field(default_factory=dict)
    grouped_value: str = ""
    """Type of values where several query heads share a key-value head; "" means that of ``roles``."""
    embedding: str = ""
    head: str = "q6_k"
    """Type of the head, and of embeddings that serve as the head."""
    output_of_eight: str = ""
    """Type of the output of attention in a model of eight experts."""
    expert: str = ""
    """Type of the matrices of experts; "" means that of ``roles``."""


_MORE = Choice("", "q6_k", "more bits")
_LESS = Choice("", "q5_k", "first eighth")


def _smallest(base: str, *, good: bool = False, output: str = "") -> Mixture:
    roles: dict[Role, Choice] = {}
    roles["value"] = Choice("iq3_s" if good else "q2_k")
    roles["down"] = Choice("", "iq3_s" if good else "q2_k", "first eighth")
    roles["attention_output"] = Choice("iq3_s" if good else output)
    embedding = "iq3_s" if good else "q2_k"
    return Mixture(base, roles, "q4_k", embedding, head="q5_k", output_of_eight="q5_k")


_OF_LLAMA_CPP: dict[str, Mixture] = {
    "q8_0": Mixture("q8_0", head="q8_0"),
    "mxfp4_moe": Mixture("q8_0", head="q8_0", expert="mxfp4"),
    "q6_k": Mixture("q6_k"),
    "q5_k_m": Mixture("q5_k", {"value": _MORE, "down": _MORE}),
    "q5_k_s": Mixture("q5_k"),
    "q5_1": Mixture("q5_1"),
    "q5_0": Mixture("q5_0"),
    "q4_k_m": Mixture("q4_k", {"value": _MORE, "down": _MORE}, output_of_eight="q5_k"),
    "q4_k_s": Mixture(
        "q4_k",
        {"value": Choice("", "q5_k", "first 4"), "down": _LESS},
        output_of_eight="q5_k",
    ),
    "q4_1": Mixture("q4_1"),
    "q4_0": Mixture("q4_0"),
    "q3_k_l": Mixture(
        "q3_k", {"value": Choice("q5_k"), "down": Choice("q5_k"), "attention_output": Choice("q5_k")}
    ),
    "q3_k_m": Mixture(
        "q3_k",
        {
            "value": Choice("q4_k", "q5_k", "first 2"),
            "down": Choice("q4_k", "q5_k", "first sixteenth"),
            "attention_output": Choice("q4_k"),
        },
        output_of_eight="q5_k",
    ),
    "q3_k_s": Mixture("q3_k", output_of_eight="q5_k"),
    "q2_k": Mixture(
        "q2_k",
        {"value": Choice("q3_k"), "down": Choice("q3_k"), "attention_output": Choice("q3_k")},
        "q4_k",
        output_of_eight="q5_k",
    ),
    "iq4_nl": Mixture("iq4_nl", {"down": _LESS}, "q5_k", output_of_eight="q5_k"),
    "iq4_xs": Mixture("iq4_xs", {"down": _LESS}, "q5_k", output_of_eight="q5_k"),
    "iq3_m": Mixture(
        "iq3_s",
        {
            "value": Choice("q4_k"),
            "down": Choice("", "q4_k", "first eighth"),
            "attention_output": Choice("q4_k"),
        },
        output_of_eight="q5_k",
    ),
    "iq3_s": Mixture("iq3_s", grouped_value="q4_k", output_of_eight="q5_k"),
    "iq3_xs": Mixture(
        "iq3_s",
        {
            "query": Choice("iq3_xxs"),
            "key": Choice("iq3_xxs"),
            "gate_up": Choice("", "iq3_xxs", "middle"),
        },
        "q4_k",
        output_of_eight="q5_k",
    ),
    "iq3_xxs": Mixture(
        "iq3_xxs",
        {"query": Choice("iq2_s"), "key": Choice("iq2_s"), "attention_output": Choice("iq3_s")},
        "q4_k",
        "iq3_s",
        head="q5_k",
        output_of_eight="q5_k",
    ),
    "iq2_m": _smallest("iq2_s", good=True),
    "iq2_s": _smallest("iq2_xs", good=True),
    "iq2_xs": _smallest("iq2_xs"),
    "iq2_xxs": _smallest("iq2_xxs"),
    "iq1_m": _smallest("iq1_m", output="iq2_xxs"),
    "iq1_s": _smallest("iq1_s", output="iq2_xxs"),
}
"""Mixtures by llama.cpp's name, in lower case."""
_OUTSIDE_OF_EIGHT = {
    "q6_k_l": "q6_k",
    "q5_k_l": "q5_k_m",
    "q4_k_l": "q4_k_m",
    "q3_k_xl": "q3_k_l",
    "q2_k_l": "q2_k",
}
"""llama.cpp's mixtures by the names of files in which embeddings and head are in Q8_0. The names are not
llama.cpp's but of bartowski's quantizations, whose model cards say so; they are made with the options
``--token-embedding-type`` and ``--output-tensor-type`` of llama-quantize (pull request 6239 of llama.cpp).
From the names' documentation, an estimate: no such file was read."""
UNSLOTH = "ud-"
"""Beginning of the names of Unsloth's dynamic mixtures."""
_PROJECTIONS: tuple[Role, ...] = ("query", "key", "value")
_ATTENTION: tuple[Role, ...] = (*_PROJECTIONS, "attention_output")
_DYNAMIC: dict[str, Mixture] = {
    "q8_k_xl": Mixture("q8_0", dict.fromkeys(_PROJECTIONS, Choice("bf16")), embedding="bf16", head="bf16"),
    "q6_k_xl": Mixture(
        "q6_k",
        dict.fromkeys(_ATTENTION, Choice("q8_0")),
        embedding="q8_0",
        head="q8_0",
    ),
    "q5_k_xl": _OF_LLAMA_CPP["q5_k_m"],
    "q4_k_xl": replace(_OF_LLAMA_CPP["q4_k_m"], expert="q4_k"),
    "q3_k_xl": replace(_OF_LLAMA_CPP["q3_k_m"], expert="q3_k"),
    "q2_k_xl": _OF_LLAMA_CPP["q2_k"],
    "iq3_xxs": _OF_LLAMA_CPP["iq3_xs"],
    "iq2_m": _OF_LLAMA_CPP["iq2_m"],
    "iq2_xxs": _OF_LLAMA_CPP["iq2_m"],
    "iq1_m": _OF_LLAMA_CPP["iq2_s"],
    "iq1_s": _OF_LLAMA_CPP["iq2_xs"],
    "tq1_0": _OF_LLAMA_CPP["iq2_xxs"],
}
"""Mixtures about as large as Unsloth's dynamic ones (2.0), by their names without "ud-": an estimate, as
Unsloth chooses the type of every tensor for each model. UD-IQ1_S of Qwen3-30B-A3B has 8.42 GiB (issue 14199
of llama.cpp), here 8.45."""
_SAME = ("q6_k", "q5_k_m", "q5_k_s", "q4_k_m", "q4_k_s", "iq4_nl", "iq4_xs", "q3_k_m", "q3_k_s", "iq3_s")
"""Names of llama.cpp that Unsloth uses for dynamic mixtures, too."""

MIXTURES: dict[str, Mixture] = {
    **_OF_LLAMA_CPP,
    **{
        name: replace(_OF_LLAMA_CPP[base], embedding="q8_0", head="q8_0")
        for name, base in _OUTSIDE_OF_EIGHT.items()
    },
    **{f"{UNSLOTH}{name}": one for name, one in _DYNAMIC.items()},
    **{f"{UNSLOTH}{name}": _OF_LLAMA_CPP[name] for name in _SAME},
}
"""Mixtures by their name in lower case: llama.cpp's, those with embeddings and head in Q8_0, Unsloth's."""

_FALLBACKS = {
    "q6_k": "q8_0",
    "q5_k": "q5_1",
    "q4_k": "q5_0",
    "q3_k": "q4_0",
    "q2_k": "q4_0",
    **{name: "iq4_nl" for name in GGUF_TYPES if name.startswith("iq")},
}
"""Type of a matrix whose rows cannot be cut into blocks of 256."""


class GgufModel(NamedTuple):
    """What a mixture depends on beside the tensor itself."""

    layers: int
    queries_per_key: int
    """Query heads that share a key-value head."""
    experts: int
    """Experts of a layer; 1 in a dense model."""
    tied: bool
    """Whether embeddings serve as the head."""


def gguf_type(
    mixture: Mixture, model: GgufModel, *, name: str, columns: int, layer: int | None
) -> WeightFormat:
    """Return the type of a matrix with rows of ``columns`` weights.

    ``name`` is Hugging Face's, relative to the layer; ``layer`` is None for the head and embeddings.
    """
    if layer is None:
        chosen = mixture.head if "lm_head" in name or model.tied else mixture.embedding
        if chosen == mixture.head and columns % GGUF_TYPES[chosen].block:
            chosen = "q8_0"
    else:
        if mixture.expert and ".experts." in f".{name}":
            return _fitting(mixture.expert, columns)
        role = _ROLES.get(name.removesuffix(".weight").rpartition(".")[2], "other")
        chosen = _in_layer(mixture, model, role, layer)
    return _fitting(chosen or mixture.type, columns)


def _in_layer(mixture: Mixture, model: GgufModel, role: Role, layer: int) -> str:
    chosen = mixture.roles.get(role, Choice()).of(layer, model.layers)
    if model.experts == _EIGHT:
        if role in ("key", "value"):
            return "q4_k" if mixture.head == "q5_k" and mixture.type.startswith(("iq1", "iq2")) else "q8_0"
        if role == "attention_output" and mixture.output_of_eight:
            return mixture.output_of_eight
    if role != "value":
        return chosen
    if mixture.grouped_value and model.queries_per_key >= _MANY_QUERIES:
        chosen = mixture.grouped_value
    large = model.layers == _LAYERS_OF_70B and model.queries_per_key > 1
    return "q5_k" if large and (chosen or mixture.type) in ("q3_k", "q4_k") else chosen


def _fitting(name: str, columns: int) -> WeightFormat:
    """Return the type itself, or one with smaller blocks if rows cannot be cut into blocks of it."""
    chosen = GGUF_TYPES[name]
    if columns % chosen.block:
        chosen = GGUF_TYPES[_FALLBACKS.get(name, "f16")]
    return GGUF_TYPES["f16"] if columns % chosen.block else chosen
