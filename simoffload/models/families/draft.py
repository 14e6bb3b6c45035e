"""A draft: the modules that the keys of a config.json of an unknown family most probably describe.

What is known of many families is put together: attention with a norm before it, grouped-query or latent, with
full, sliding or linear attention in each layer; a gated feed-forward network, or experts and shared ones; and
an embedding and a head. Tensors that no key names are not in it. Operations are those measured for Mixtral.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from simoffload.documents import listing
from simoffload.models.families.base import Count, Derived, Flag, ModuleLists, Width, invalid
from simoffload.models.families.deepseek_v2 import LatentConfig
from simoffload.models.families.experts import Index, Positions, expert_traits
from simoffload.models.families.linear_attention import FULL, LINEAR, DeltaNet
from simoffload.models.families.rotary import RotaryConfig, RotatedPart, after, rotary_factor
from simoffload.models.families.synonyms import (
    DENSE_LAYERS,
    LAYER_KINDS,
    SLIDING,
    SYNONYMS,
    prepared,
    usual_name,
)
from simoffload.models.modules import Module, Traits

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
        self._one_for_each_layer("layer_types", self.layer_types)
        self._one_for_each_layer("mlp_layer_types", self.mlp_layer_types)
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
