"""The model that a GGUF file describes: a family with its sizes, and the type of every tensor of its modules.

Keys and names of tensors are those of src/llama-arch.cpp and conversion/ of llama.cpp@0c1e5709. Where older
files lack a key, the dimensions of a tensor give the size.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from simoffload.documents import listing, quoted, suggest
from simoffload.errors import shortened
from simoffload.models.families import FAMILIES, FamilyConfig
from simoffload.models.gguf_file import GgufHeader, GgufTensor
from simoffload.models.modules import Module
from simoffload.models.quantization import with_storage
from simoffload.models.shape import Layer, ModelShape
from simoffload.models.stored_tensors import Parameter, Storage
from simoffload.units import format_bytes

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
    r"(.+)[-.]((?:i?q[1-8](?:_[0-9klmsx]+)+)|b?f16|f32|(?:mx|nv)fp4(?:_moe)?|tq[12]_0)", re.IGNORECASE
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
