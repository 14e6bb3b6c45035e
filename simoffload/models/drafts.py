"""Drafts of models of unknown families, from the keys of their config.json: synonyms of keys, and a family of
the parts that the keys show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, ValidationError, model_validator

from simoffload.documents import Document, Location, either, listing, nearest, quoted, suggest, validate
from simoffload.errors import InputError, Problem, shortened
from simoffload.models.families import FAMILIES
from simoffload.models.families.base import Count, Derived, FamilyConfig, Flag, ModuleLists, Width, invalid
from simoffload.models.families.deepseek import LatentConfig
from simoffload.models.families.experts import Index, Positions, expert_traits
from simoffload.models.families.recurrent import FULL, LINEAR, DeltaNet
from simoffload.models.families.rotary import RotaryConfig, RotatedPart, after, rotary_factor
from simoffload.models.modules import Module, Traits

# -- synonyms --------------------------------------------------------------------------------------
# Names that families give to the same sizes, as a draft reads them, and keys without influence on sizes.
#
# Collected from the configuration classes of transformers 5.23.0 (``attribute_map`` and attributes) and
# from released files with code of their own: MiniMax, ERNIE 4.5, Hunyuan, Granite, DBRX, ChatGLM, Step.


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


# -- A draft ---------------------------------------------------------------------------------------
# The modules that the keys of a config.json of an unknown family most probably describe.
#
# What is known of many families is put together: attention with a norm before it, grouped-query or latent,
# with full, sliding or linear attention in each layer; a gated feed-forward network, or experts and shared
# ones; and an embedding and a head. Tensors that no key names are not in it. Operations are those measured
# for Mixtral.


_LINEAR_KEYS = (
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim"),
    *("linear_value_head_dim", "linear_conv_kernel_dim"),
)
_LATENT = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


class DraftConfig(LatentConfig):
    """The keys of a config.json that a draft understands, by the names that most families use."""

    family: ClassVar[str] = "draft"
    traits: ClassVar[Traits] = expert_traits("AutoModelForCausalLM", leaf_modules=("mlp",), tensor_plan=False)
    spellings: ClassVar[Mapping[str, str]] = SYNONYMS
    experts_key: ClassVar[str] = "num_experts"

    model_type: str = "unknown"
    head_dim: Width | None = None
    attention_bias: Flag = False
    attention_out_bias: Flag | None = None
    mlp_bias: Flag = False
    use_qk_norm: Flag = False
    qk_norm_type: str = ""
    partial_rotary_factor: RotatedPart = 1.0
    rotary_dim: Width | None = None
    hidden_act: str = "silu"
    num_experts: Index = 0
    num_experts_per_tok: Index = 0
    moe_intermediate_size: Index = 0
    """0: experts have the width of a dense layer, as in Mixtral."""
    mlp_intermediate_size: Index = 0
    """Width of dense layers where ``intermediate_size`` is that of experts."""
    n_shared_experts: Index = 0
    shared_expert_intermediate_size: Index = 0
    decoder_sparse_step: Count = 1
    moe_layer_end_index: Index | None = None
    """Number of the last layer with experts."""
    mlp_only_layers: Positions | None = None
    mlp_layer_types: tuple[str, ...] | None = None
    kv_lora_rank: Index = 0
    q_lora_rank: Width | None = None
    layer_types: tuple[str, ...] | None = None
    full_attention_interval: Count | None = None
    use_sliding_window: Flag | None = None
    sliding_window: Index | None = None
    sliding_window_pattern: Count | None = None
    max_window_layers: Index | None = None
    linear_num_key_heads: Count | None = None
    linear_num_value_heads: Count | None = None
    linear_key_head_dim: Width | None = None
    linear_value_head_dim: Width | None = None
    linear_conv_kernel_dim: Annotated[int, Field(strict=True, ge=1, le=1000)] | None = None

    @classmethod
    def usual_name(cls, key: str, keys: Mapping[str, Any]) -> str:
        """Return the first spelling of a key, which may depend on the others beside it."""
        return usual_name(key, keys)

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, raw: object) -> object:
        return prepared(raw, cls.known_keys()) if isinstance(raw, Mapping) else raw

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other, or
        for layers whose weights are not known."""
        self._within_depth("mlp_only_layers", self.mlp_only_layers)
        if self.num_experts and not self.num_experts_per_tok:
            text = f"is missing, or has a name that is not known, beside num_experts {self.num_experts}"
            raise invalid("num_experts_per_tok", f"num_experts_per_tok {text}", None)
        if self.shared_expert_intermediate_size and not self.num_experts:
            text = "there is no key with the number of experts that a draft knows beside the width of shared"
            raise invalid("shared_expert_intermediate_size", text, self.shared_expert_intermediate_size)
        if self.kv_lora_rank and (lacking := [key for key in _LATENT if key not in self.model_fields_set]):
            text = (
                f"{lacking[0]} is missing beside kv_lora_rank {self.kv_lora_rank}: latent attention needs it"
            )
            raise invalid(lacking[0], text, None)
        strange = [
            kind
            for kind in self.kinds_of_attention
            if kind not in (FULL, SLIDING) and not self._has_net(kind)
        ]
        if strange:
            raise invalid("layer_types", self._without_weights(strange), strange[0])
        return super().checked()

    def _has_net(self, kind: str) -> bool:
        return kind == LINEAR and all(getattr(self, key) for key in _LINEAR_KEYS)

    @property
    def full_cache_bytes(self) -> int:
        """Size [B] of the cache of a token in 16 bits if all layers have full attention: an upper bound."""
        sizes = self.derived()
        width = sizes.latent_width or 2 * sizes.num_key_value_heads * sizes.head_dim
        return 2 * width * self.num_hidden_layers

    def _without_weights(self, strange: list[str]) -> str:
        depth = self.num_hidden_layers
        known = depth - len(strange)
        cached = self.full_cache_bytes // depth * known
        names = ", ".join(dict.fromkeys(strange))
        return (
            f"{len(strange)} of {depth} layers are of the kind {names}, of whose weights a "
            f"draft knows nothing, so that it has no size; the {known} others cache {cached:,} "
            "bytes per token in 16 bits, a lower bound (draft)"
        )

    @property
    def kinds_of_attention(self) -> tuple[str, ...]:
        """The kind of attention of each layer."""
        depth = self.num_hidden_layers
        if self.layer_types is not None:
            return tuple(LAYER_KINDS.get(one, one) for one in self.layer_types)
        if self.full_attention_interval is not None:
            other = LINEAR if self.linear_num_value_heads or not self.sliding_window else SLIDING
            interval = self.full_attention_interval
            return tuple(FULL if (at + 1) % interval == 0 else other for at in range(depth))
        if not self.sliding_window or self.use_sliding_window is False:
            return (FULL,) * depth
        if (period := self.sliding_window_pattern) is not None:
            return tuple(FULL if (at + 1) % period == 0 else SLIDING for at in range(depth))
        if self.use_sliding_window and self.max_window_layers is not None:
            return tuple(SLIDING if at >= self.max_window_layers else FULL for at in range(depth))
        return (FULL,) * depth  # nothing states which layers have the window: an upper bound of the cache

    @property
    def _dense(self) -> list[bool]:
        if self.mlp_layer_types is not None:
            return [one in DENSE_LAYERS for one in self.mlp_layer_types]
        first, only, step = (
            self.first_k_dense_replace or 0,
            self.mlp_only_layers or (),
            self.decoder_sparse_step,
        )
        last = self.num_hidden_layers if self.moe_layer_end_index is None else self.moe_layer_end_index
        return [
            not self.num_experts or not first <= at <= last or at in only or (at + 1) % step != 0
            for at in range(self.num_hidden_layers)
        ]

    @property
    def _width(self) -> int:
        return self.moe_intermediate_size or self.intermediate_size

    @property
    def _gated_bias(self) -> bool:
        return self.mlp_bias

    def derived(self) -> Derived:
        """Return the model's sizes under the names that all families share."""
        sizes = super().derived() if self.kv_lora_rank else RotaryConfig.derived(self)
        width = self._width if self.num_experts else self.intermediate_size
        return sizes._replace(
            intermediate_size=width,
            num_experts=self.num_experts,
            experts_per_token=self.num_experts_per_tok if self.num_experts else 0,
        )

    @property
    def _rotary_dim(self) -> int:
        return self.qk_rope_head_dim if self.kv_lora_rank else self.derived().head_dim

    def windows(self) -> tuple[int | None, ...]:
        """Return the sliding window of the attention of each layer; None for one without."""
        return tuple(
            (self.sliding_window or None) if one == SLIDING else None for one in self.kinds_of_attention
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Clauses about what the keys leave open, and what was taken instead."""
        found, stated_keys = [], self.model_fields_set
        sizes = self.derived()
        usual = {
            "num_key_value_heads": not self.kv_lora_rank and sizes.num_key_value_heads,
            "head_dim": not self.kv_lora_rank and sizes.head_dim,
            "tie_word_embeddings": str(self.tie_word_embeddings).lower(),
        }
        taken = [f"{key} {value}" for key, value in usual.items() if value and key not in stated_keys]
        if taken:
            found.append(
                f"no key states {listing([one.split()[0] for one in taken])}; taken: {listing(taken)}"
            )
        if self.num_experts and not self.moe_intermediate_size:
            found.append(f"experts are as wide as intermediate_size ({self.intermediate_size:,})")
        if self.hidden_act not in ("silu", "swish", "swiglu"):
            found.append(
                f"feed-forward networks with hidden_act {self.hidden_act} are taken to be gated (three "
                "matrices), so that weights are an upper bound"
            )
        stated = (self.layer_types, self.full_attention_interval, self.sliding_window_pattern)
        open_ = self.use_sliding_window is None or self.max_window_layers is None
        windowed = self.sliding_window and self.use_sliding_window is not False
        if windowed and open_ and all(one is None for one in stated):
            found.append(
                f"no key states which layers have the window of {self.sliding_window:,} tokens, so that none "
                "has it, and the cache is an upper bound"
            )
        return tuple(found)

    def _attends(self) -> dict[str, tuple[Module, ...]]:
        """Return the modules of each kind of attention that occurs."""
        found: dict[str, tuple[Module, ...]] = {}
        kinds = set(self.kinds_of_attention)
        if LINEAR in kinds:
            net = DeltaNet(*(getattr(self, key) for key in _LINEAR_KEYS))
            found[LINEAR] = net.modules(self.hidden_size)
        if kinds - {LINEAR}:
            own = self._latent_attention() if self.kv_lora_rank else self._grouped_attention()
            found |= {FULL: own, SLIDING: own}
        return found

    def _grouped_attention(self) -> tuple[Module, ...]:
        head, bias = self.derived().head_dim, self.attention_bias
        part = self.partial_rotary_factor if self.rotary_dim is None else min(1.0, self.rotary_dim / head)
        out = bias if self.attention_out_bias is None else self.attention_out_bias
        factor = rotary_factor(self.rope_parameters, part)
        if self.use_qk_norm and self.qk_norm_type == "per_layer":
            return self._normed_whole(bias, rotated=factor)
        attend = self._self_attention(bias=bias, output_bias=out, rotated=factor)
        return after(attend, "self_attn.v_proj", *self._head_norms()) if self.use_qk_norm else attend

    def _networks(self) -> tuple[tuple[Module, ...], tuple[Module, ...]]:
        """Return experts with shared ones, and the network of dense layers."""
        dense = self._gated(wide=self.mlp_intermediate_size or None, bias=self.mlp_bias)
        if not self.num_experts:
            return (), self._gated(bias=self.mlp_bias)
        shared = self.shared_expert_intermediate_size or self.n_shared_experts * self._width
        more = self._gated(name="mlp.shared_experts", wide=shared, bias=self.mlp_bias) if shared else ()
        return (*self._routed(), *more), dense

    def modules(self) -> ModuleLists:
        """Return the modules in call order, with the names that most families use."""
        attends, networks = self._attends(), self._networks()
        kinds = list(zip(self.kinds_of_attention, self._dense, strict=True))
        made = {(kind, dense): self._normed(attends[kind], networks[dense]) for kind, dense in set(kinds)}
        return self._around("Draft", *(made[kind] for kind in kinds), model="DraftForCausalLM")


# -- drafts of models of unknown families, from the keys of their config.json ----------------------
# A draft is marked wherever it appears: its name ends in "(draft)", and results have a warning with every
# key that was not understood. Where such a key describes tensors, there is no draft at all.


MARK = " (draft)"
"""End of the name of a draft."""


def similar_families(keys: Mapping[str, Any], family: str) -> str:
    """Return which families a configuration of an unknown one is like: those that know most of its keys, and
    among them those that take the fewest sizes from defaults; of several, or where no key tells, the nearest
    by name."""
    telling = {
        key: value
        for key, value in keys.items()
        if not (value is None or is_known(key, value) or is_taken_lightly(key, value) or _counted_out(key))
    }
    if not telling:
        return suggest(family, FAMILIES)
    ranks = {name: rank for name, one in FAMILIES.items() if (rank := _rank(one, keys, telling)) is not None}
    best = min(ranks.values(), default=None)
    if best is None or sum(best) > len(telling) / 2:
        return ""
    found = [name for name, rank in ranks.items() if rank == best]
    found = nearest(family, found) or found[:_MOST_ALIKE]
    return f", and its keys are those of {either(found)}: give it as model_type or family"


_MOST_ALIKE = 3
"""Families that a message names: our choice."""


def _rank(
    family: type[FamilyConfig], keys: Mapping[str, Any], telling: Mapping[str, Any]
) -> tuple[int, int] | None:
    """Return how many of the keys a family does not know, of which those that describe tensors count four
    times (our choice), and how many sizes it takes from defaults; None where it cannot have such a
    configuration."""
    unknown = telling.keys() - family.known_keys()
    try:
        config = family.model_validate(keys)
    except ValidationError:
        return None
    fields = type(config).model_fields.items()
    weighed = sum(4 if decides(key, telling[key]) else 1 for key in unknown)
    return weighed, sum(1 for name, one in fields if one.default and name not in config.model_fields_set)


def drafted(
    document: Document, at: Location, overrides: Mapping[str, Any]
) -> tuple[FamilyConfig, tuple[str, ...]]:
    """Return the configuration that the keys describe, with ``overrides``, and the notes about it.

    Raises InputError for sizes that are missing or cannot be, and for keys that describe tensors and are not
    understood.
    """
    outer = dict(document.data)
    inner = DraftConfig.replaced(_at(outer, at), overrides)
    unused = _unused(inner, outer if at else {})
    not_understood = {key: value for key, value in unused.items() if not is_taken_lightly(key, value)}
    strange = {key: value for key, value in not_understood.items() if decides(key, value)}
    if inner.get("is_encoder_decoder"):
        strange["is_encoder_decoder"] = inner["is_encoder_decoder"]
    if strange:
        raise InputError([_refused(document, at, inner, strange)])
    if overrides:
        config = validate(Document(document.path, {"model": inner}), DraftConfig, at=("model",))
    else:
        config = validate(document, DraftConfig, at=at)
    lightly = [key for key in unused if key not in not_understood]
    return config, (
        _status(config, not_understood, lightly, similar_families(inner, config.model_type)),
        *_notes(config, inner),
    )


def _at(data: Mapping[str, Any], at: Location) -> Mapping[str, Any]:
    inner: Any = data
    for key in at:
        inner = inner[key]
    return dict(inner)


def _unused(inner: Mapping[str, Any], outer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a draft neither uses nor knows to have no influence."""
    known = DraftConfig.known_keys()
    return {
        key: value
        for key, value in [*outer.items(), *inner.items()]
        if key not in known and value is not None and not is_known(key, value) and not _counted_out(key)
    }


def _counted_out(key: str) -> bool:
    """Return whether a key belongs to parts that have a note of their own."""
    return (NOT_COUNTED.search(key) or FURTHER_TOKENS.search(key)) is not None


def _refused(
    document: Document, at: Location, inner: Mapping[str, Any], strange: Mapping[str, Any]
) -> Problem:
    """Return the problem with keys that describe tensors and are not understood."""
    keys = listing([written(key, value) for key, value in strange.items()])
    sizes = {key: value for key, value in inner.items() if key not in strange}
    try:
        width = DraftConfig.model_validate(sizes).full_cache_bytes
        bound = f" (a draft without them would cache at most {width:,} bytes per token in 16 bits)"
    except ValidationError:
        bound = ""
    first = next(iter(strange))
    text = (
        f"no draft, as {'these describe' if len(strange) > 1 else 'this describes'} tensors that a draft "
        f"would lack: {keys}{bound}; to draft it nevertheless without them, write null instead of the "
        "value, in a copy of the file or as a key of model"
    )
    return document.problem((*at, first), text)


def _status(config: DraftConfig, not_understood: Mapping[str, Any], lightly: list[str], like: str) -> str:
    """Return the sentence that marks a draft, with what became of each key that it does not use."""
    keys = "; ".join(written(key, value) for key, value in not_understood.items())
    why = f"not understood: {keys}" if keys else "every other key was used or has no influence on sizes"
    taken = f"; taken by their names to have no influence on sizes: {', '.join(lightly)}" if lightly else ""
    kind = f"{quoted(config.model_type)} is not known{like}"
    return (
        f"all sizes and times are those of a draft, as the family {kind}; {why}{taken}. Tensors that no key "
        "names are not in it"
    )


def _notes(config: DraftConfig, inner: Mapping[str, Any]) -> tuple[str, ...]:
    """Return sentences about what a draft assumes, and what is not in it."""
    sentences = [f"draft: {one}" for one in config.assumptions]
    further = [written(key, value) for key, value in inner.items() if FURTHER_TOKENS.search(key) and value]
    if further:
        sentences.append(f"draft: modules that predict further tokens are not counted ({'; '.join(further)})")
    positions = config.max_position_embeddings
    if positions and not any("rope" in key or "rotary" in key for key in inner):
        table = positions * config.hidden_size
        sentences.append(
            f"draft: no key states rotary positions; learned ones ({table:,} parameters) are not in it"
        )
    return tuple(sentences)
