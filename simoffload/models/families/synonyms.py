"""Names that families give to the same sizes, as a draft reads them, and keys without influence on sizes.

Collected from the configuration classes of transformers 5.23.0 (``attribute_map`` and attributes) and from
released files with code of their own: MiniMax, ERNIE 4.5, Hunyuan, Granite, DBRX, ChatGLM, Step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from simoffload.errors import shortened
from simoffload.models.families.linear_attention import FULL, LINEAR

SLIDING = "sliding_attention"
_NAMES: Mapping[str, str] = {
    "hidden_size": "n_embd n_embed d_model dim model_dim hidden_dim",
    "num_hidden_layers": "n_layer n_layers num_layers num_decoder_layers",
    "num_attention_heads": "n_head n_heads num_heads",
    "num_key_value_heads": "n_kv_heads num_kv_heads n_head_kv kv_n_heads num_query_groups "
    "multi_query_group_num num_attention_groups",
    "head_dim": "kv_channels attention_head_dim attention_head_size head_size",
    "intermediate_size": "ffn_dim n_inner ffn_hidden_size d_ff inner_size",
    "vocab_size": "padded_vocab_size n_vocab",
    "max_position_embeddings": "n_positions n_ctx max_seq_len seq_length max_sequence_length max_seq_length "
    "model_max_length context_length",
    "tie_word_embeddings": "tie_embeddings tied_embeddings share_embeddings",
    "attention_bias": "qkv_bias add_qkv_bias use_qkv_bias attn_bias",
    "attention_out_bias": "o_bias use_attention_out_bias",
    "mlp_bias": "use_mlp_bias",
    "hidden_act": "hidden_activation activation_function hidden_activation_function",
    "use_qk_norm": "qk_norm qk_layernorm use_qk_layernorm attention_qk_norm",
    "partial_rotary_factor": "rotary_pct rotary_percent rope_pct",
    "num_experts": "num_local_experts n_routed_experts moe_num_experts num_moe_experts n_experts "
    "num_routed_experts moe_experts",
    "num_experts_per_tok": "num_experts_per_token experts_per_token moe_k moe_topk moe_top_k moe_router_topk "
    "num_selected_experts n_experts_per_token n_experts_per_tok top_k_experts num_experts_per_topk "
    "num_activated_experts experts_top_k moe_num_active_experts",
    "moe_intermediate_size": "expert_intermediate_size expert_ffn_hidden_size moe_ffn_hidden_size "
    "expert_hidden_size expert_dim intermediate_size_expert ffn_dim_expert expert_ffn_size",
    "mlp_intermediate_size": "intermediate_size_mlp dense_intermediate_size intermediate_size_dense "
    "dense_ffn_hidden_size",
    "n_shared_experts": "num_shared_experts num_shared_expert moe_num_shared_experts moe_shared_experts "
    "n_shared_expert",
    "shared_expert_intermediate_size": "shared_intermediate_size moe_shared_expert_intermediate_size "
    "shared_experts_intermediate_size share_expert_dim shared_expert_hidden_size "
    "moe_shared_intermediate_size",
    "first_k_dense_replace": "num_dense_layers moe_layer_start_index n_dense_layers first_num_dense_layers",
    "decoder_sparse_step": "interleave_moe_layer_step moe_layer_interval moe_layer_freq moe_every_n_layers "
    "every_n_layers expert_layer_period",
    "layer_types": "attn_type_list layers_block_type layer_type_list block_types attention_types "
    "attn_types layers_types",
    "full_attention_interval": "global_attention_interval full_attn_interval global_attn_every_n_layers",
    "sliding_window": "sliding_window_size window_size attention_chunk_size local_attention_window",
    "sliding_window_pattern": "_sliding_window_pattern",
    "linear_num_key_heads": "linear_num_k_heads",
    "linear_num_value_heads": "linear_num_v_heads",
    "n_group": "num_expert_group n_groups",
    "topk_group": "topk_groups num_limited_groups",
}
SYNONYMS = {other: name for name, others in _NAMES.items() for other in others.split()}
"""The name that a draft uses, by the others."""
LAYER_KINDS = {
    **dict.fromkeys(("attention", "global", "global_attention", "full", "softmax", "1"), FULL),
    **dict.fromkeys(("local", "local_attention", "sliding", "sliding_window", "chunked_attention"), SLIDING),
    "0": LINEAR,
    "linear": LINEAR,
}
"""Kinds of attention by other names; 1 and 0 are those of ``attn_type_list`` (MiniMax)."""
DENSE_LAYERS = ("dense", "mlp")
NOT_COUNTED = re.compile(
    r"(vision|audio|speech|image|video|visual|encoder|talker|code2wav|projector)\w*_config$"
)
"""Sections of a model that takes more than text."""
FURTHER_TOKENS = re.compile(r"(^|_)(mtp|nextn)(_|$)")
"""Keys of modules that predict further tokens."""
_WITHOUT_INFLUENCE = re.compile(
    r"_token(_id|_index|_ids)?s?$|^_|(^|_)(dropout|drop|pdrop|eps|epsilon|init|initializer|std|rope|rotary|theta"
    r"|alibi|loss|coef|jitter|scoring|scaling|scale|multiplier|softcapping|softcap|capping|clip|beta|seed"
    r"|version|act|activation|penalty|beam|beams|deterministic|fused|flash|kernel|checkpointing|length)(_|$)"
    r"|^output_|^return_|^router_|router_bias|routing_bias|^unsloth"
)
_KNOWN = frozenset(
    (
        *("architectures", "model_type", "auto_map", "torch_dtype", "dtype", "use_cache"),
        *("is_decoder", "add_cross_attention", "torchscript", "use_bfloat16", "pruned_heads"),
        *("chunk_size_feed_forward", "tie_encoder_decoder", "finetuning_task", "problem_type"),
        *("tokenizer_class", "prefix", "id2label", "label2id", "task_specific_params", "do_sample"),
        *("early_stopping", "temperature", "top_k", "top_p", "typical_p", "no_repeat_ngram_size"),
        *("bad_words_ids", "num_return_sequences", "remove_invalid_values", "suppress_tokens"),
        *("begin_suppress_tokens", "attn_implementation", "pretraining_tp", "norm_topk_prob"),
        *("topk_method", "scoring_func", "ep_size", "shared_moe_mode", "quantization_config"),
        *("text_config", "use_sliding_window", "is_encoder_decoder", "moe_capacity", "pad_token"),
        *("bos_token", "eos_token", "rms_norm", "norm_topk", "transformers", "multi_query", "norm_min"),
        *("original_max_position_embeddings", "mrope_section", "spatial_merge_size"),
    )
)
_DECIDES = re.compile(
    r"mamba|ssm|rwkv|(^|_)lru(_|$)|recurrent|(^|_)conv|hybrid|block_type|layer_pattern|layers_pattern|attn_layer"
    r"|attention_layers|per_layer|expert|(^|_)moe(_|$)|lora_rank|latent|state_size|altup|laurel|kv_shared"
    r"|(en|de)coder_layers|^index_(n_heads|head_dim)|linear_attn|^linear_|layer_types|ffn_config|attn_config"
)
_STRUCTURE = re.compile(r"mamba|ssm|rwkv|recurrent|hybrid")


def has_influence(key: str) -> bool:
    """Return whether a key that a draft does not use may have an influence on sizes or times."""
    return key not in _KNOWN and _WITHOUT_INFLUENCE.search(key) is None


def decides(key: str, value: object) -> bool:
    """Return whether a key that a draft does not use describes tensors that it would lack."""
    if not value or not _DECIDES.search(key):
        return False
    return not isinstance(value, bool | str) or _STRUCTURE.search(key) is not None


def written(key: str, value: object) -> str:
    """Return a key with its value."""
    try:
        return f"{key}: {shortened(json.dumps(value))}"
    except (TypeError, ValueError):
        return f"{key}: {shortened(str(value))}"


def prepared(raw: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return keys of a config.json as a draft reads them: without null, one number for a list of equal ones,
    lists of kinds as texts, and a list of sparse layers as kinds of layers."""
    found: dict[str, Any] = {}
    for key, value in raw.items():
        if value is None or key not in known:
            continue
        name, listed = SYNONYMS.get(key, key), isinstance(value, list)
        if name == "layer_types" and listed:
            found[key] = [str(one) for one in value]
        elif name == "decoder_sparse_step" and listed:
            found["mlp_layer_types"] = ["sparse" if one else "dense" for one in value]
        elif name != "mlp_only_layers" and listed and value and _equal(value):
            found[key] = value[0]
        else:
            found[key] = value
    names = {SYNONYMS.get(key, key) for key in found}
    if "intermediate_size" not in names:
        width = next((found[one] for one in found if SYNONYMS.get(one, one) == "moe_intermediate_size"), None)
        if width is not None:
            found["intermediate_size"] = width
    if raw.get("multi_query") is True and "num_key_value_heads" not in names:
        found["num_key_value_heads"] = 1
    if "qk_norm_type" in names and "use_qk_norm" not in names:
        found["use_qk_norm"] = True
    return found


def _equal(values: list[Any]) -> bool:
    return all(type(one) is int and one == values[0] for one in values)
