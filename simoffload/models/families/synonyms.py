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
from simoffload.models.families.base import invalid
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
_ONE_FOR_ALL = (
    *("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "mlp_intermediate_size"),
    *("num_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts"),
    *("shared_expert_intermediate_size", "sliding_window"),
)
"""Sizes that some files list for each layer."""
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
    r"(^|_)(dropout|dropout_prob|dropout_rate|pdrop|eps|epsilon|initializer_range|std|theta|seed|beta"
    r"|loss_coeff?|loss_coefficient|loss_alpha|loss_weight|jitter_noise|softcapping|softcap|capacity_factor"
    r"|scaling_factor|token_id|token_ids|token_index|checkpointing)$"
    r"|^(rope|rotary|mrope|no_rope|unsloth|output|return)_(?!\w*(size|rank|hidden))"
)
"""Endings, and a few beginnings, of keys that influence no size."""
_KNOWN = frozenset(
    (
        *("architectures", "model_type", "auto_map", "torch_dtype", "dtype", "use_cache"),
        *("is_decoder", "torchscript", "use_bfloat16", "transformers_version", "_name_or_path"),
        *("_attn_implementation", "_attn_implementation_autoset", "_experts_implementation", "_commit_hash"),
        *("chunk_size_feed_forward", "finetuning_task", "problem_type", "gradient_checkpointing"),
        *("tokenizer_class", "prefix", "id2label", "label2id", "task_specific_params", "do_sample"),
        *("early_stopping", "temperature", "top_k", "top_p", "typical_p", "no_repeat_ngram_size"),
        *("encoder_no_repeat_ngram_size", "length_penalty", "repetition_penalty", "diversity_penalty"),
        *("exponential_decay_length_penalty", "min_length", "max_length", "num_beams", "num_beam_groups"),
        *("output_scores", "output_attentions", "output_hidden_states", "output_router_logits"),
        *("return_dict", "return_dict_in_generate", "tf_legacy_loss", "forced_bos_token_id"),
        *("forced_eos_token_id", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id"),
        *("decoder_start_token_id", "bad_words_ids", "num_return_sequences", "remove_invalid_values"),
        *("begin_suppress_tokens", "suppress_tokens", "attn_implementation", "pretraining_tp"),
        *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps"),
        *("initializer_range", "init_std", "initializer_factor", "attention_dropout", "hidden_dropout"),
        *("dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "rope_theta", "rope_scaling", "alibi"),
        *("attn_logit_softcapping", "final_logit_softcapping", "attn_scale", "activation"),
        *("norm_topk_prob", "topk_method", "scoring_func", "ep_size", "shared_moe_mode", "moe_capacity"),
        *("routed_scaling_factor", "router_aux_loss_coef", "router_z_loss_coef", "router_jitter_noise"),
        *("input_jitter_noise", "router_dtype", "aux_loss_alpha", "seq_aux"),
        *("quantization_config", "text_config", "use_sliding_window", "is_encoder_decoder", "pad_token"),
        *("bos_token", "eos_token", "rms_norm", "norm_topk", "transformers", "multi_query", "norm_min"),
        *("original_max_position_embeddings", "mrope_section", "spatial_merge_size"),
    )
)
_USUALLY_EMPTY = ("add_cross_attention", "pruned_heads", "tie_encoder_decoder")
"""Keys that every older file has, without influence on sizes as long as they are false or empty."""
_DECIDES = re.compile(
    r"mamba|ssm|rwkv|(^|_)lru(_|$)|recurrent|(^|_)conv|hybrid|block_type|layer_pattern|layers_pattern|attn_layer"
    r"|attention_layers|per_layer|expert|(^|_)moe(_|$)|lora_rank|latent|state_size|altup|laurel|kv_shared"
    r"|(en|de)coder_layers|^index_(n_heads|head_dim)|linear_attn|^linear_|layer_types|ffn_config|attn_config"
    r"|^router_\w*(size|dim|rank)$|^add_cross_attention$"
)
_STRUCTURE = re.compile(r"mamba|ssm|rwkv|recurrent|hybrid|ratio|cross_attention")


def is_known(key: str, value: object) -> bool:
    """Return whether a key that a draft does not use is known to have no influence on sizes and times."""
    return key in _KNOWN or (key in _USUALLY_EMPTY and not value)


def is_taken_lightly(key: str, value: object) -> bool:
    """Return whether the name of a key that a draft does not use tells that no size depends on it."""
    return _WITHOUT_INFLUENCE.search(key) is not None and not isinstance(value, Mapping)


def decides(key: str, value: object) -> bool:
    """Return whether a key that a draft does not use describes tensors that it would lack."""
    if not value or not _DECIDES.search(key):
        return False
    return not isinstance(value, bool | str | float) or _STRUCTURE.search(key) is not None


def usual_name(key: str, keys: Mapping[str, Any]) -> str:
    """Return the name that a draft uses for one of several keys. ``hidden_dim`` beside another name of
    ``hidden_size`` is the width of the feed-forward network, as in params.json of Mistral."""
    if key == "hidden_dim":
        others = {SYNONYMS.get(one, one): value for one, value in keys.items() if one != key}
        beside = others.get("hidden_size")
        if "intermediate_size" not in others and beside is not None and beside != keys[key]:
            return "intermediate_size"
    return SYNONYMS.get(key, key)


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
    depth = next((raw[key] for key in raw if SYNONYMS.get(key, key) == "num_hidden_layers"), None)
    for key, value in raw.items():
        if value is None or key not in known:
            continue
        name, listed = SYNONYMS.get(key, key), isinstance(value, list)
        if name == "layer_types" and listed:
            found[key] = [str(one) for one in value]
        elif name == "decoder_sparse_step" and listed:
            found["mlp_layer_types"] = ["sparse" if one else "dense" for one in value]
        elif name in _ONE_FOR_ALL and listed:
            found[key] = _one_for_all(key, value, depth)
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


def _one_for_all(key: str, values: list[Any], depth: object) -> Any:
    """Return the value that a list has for every layer. Raises ValidationError where there is none."""
    if type(depth) is int and len(values) != depth:
        raise invalid(key, f"{key} lists {len(values)} layers, num_hidden_layers is {depth}", values)
    if not values or any(type(one) is not type(values[0]) or one != values[0] for one in values):
        raise invalid(key, "layers differ, and a draft knows one value for all of them", values)
    return values[0]
