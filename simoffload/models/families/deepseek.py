"""DeepSeek-V2, V3 and R1, and Kimi-K2: latent attention, experts, and shared experts."""

from __future__ import annotations

from typing import ClassVar, Self

from simoffload.models.families.base import Count, Derived, Extent, Flag, ModuleLists, Width, invalid
from simoffload.models.families.experts import Experts, FirstDenseConfig, Index, expert_traits
from simoffload.models.modules import Module, Traits, attention, container, linear, rms_norm

# -- DeepSeek-V2 -----------------------------------------------------------------------------------
# Latent attention (MLA), dense first layers, experts and shared ones.
#
# Modules and their order: transformers/models/deepseek_v2/modeling_deepseek_v2.py at 5.23.0, which caches
# the latent (``kv_lora_rank`` and ``qk_rope_head_dim`` elements for each token and layer) and expands that
# of all positions to keys and values in every pass (``expand_kv``). Serving engines multiply the expansion
# into queries and results instead (``compiled``). Operations are those measured for Mixtral.


class LatentConfig(FirstDenseConfig):
    """The common parts of DeepSeek-V2, V3 and Kimi-K2."""

    rotates: ClassVar[bool] = True
    """Whether attention has rotary positions."""

    num_key_value_heads: Count | None = None
    head_dim: Width | None = 64
    """Key of transformers for the rotated part of a head; ``qk_rope_head_dim`` counts."""
    q_lora_rank: Width | None = 1536
    kv_lora_rank: Width = 512
    qk_nope_head_dim: Width = 128
    qk_rope_head_dim: Width = 64
    v_head_dim: Width = 128
    attention_bias: Flag = False

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        if self.qk_rope_head_dim % 2:
            message = f"rotary positions need an even qk_rope_head_dim, not {self.qk_rope_head_dim}"
            raise invalid("qk_rope_head_dim", message, self.qk_rope_head_dim)
        return super().checked()

    def derived(self) -> Derived:
        """Return the model's sizes under the names that all families share; a size missing in
        config.json gets its default."""
        return (
            super()
            .derived()
            ._replace(
                num_key_value_heads=self.num_attention_heads,  # the expansion has keys for every head
                head_dim=self.qk_nope_head_dim + self.qk_rope_head_dim,
                value_head_dim=self.v_head_dim,
                latent_width=self.kv_lora_rank + self.qk_rope_head_dim,
                latent_rank=self.kv_lora_rank,
            )
        )

    @property
    def _rotary_dim(self) -> int:
        return self.qk_rope_head_dim

    def _latent_attention(self) -> tuple[Module, ...]:
        hidden, heads, rank = self.hidden_size, self.num_attention_heads, self.kv_lora_rank
        query_width = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        values, bias = heads * self.v_head_dim, self.attention_bias
        queries: tuple[Module, ...] = (linear("self_attn.q_proj", hidden, query_width, parallel="column"),)
        if self.q_lora_rank is not None:
            queries = (
                linear("self_attn.q_a_proj", hidden, self.q_lora_rank, bias=bias),
                rms_norm("self_attn.q_a_layernorm", self.q_lora_rank),
                linear("self_attn.q_b_proj", self.q_lora_rank, query_width, parallel="column"),
            )
        expanded = linear(
            "self_attn.kv_b_proj", rank, heads * self.qk_nope_head_dim + values, parallel="column"
        )
        return (
            container("self_attn"),
            *queries,
            linear("self_attn.kv_a_proj_with_mqa", hidden, rank + self.qk_rope_head_dim, bias=bias),
            rms_norm("self_attn.kv_a_layernorm", rank),
            expanded._replace(cached=True),
            attention(
                "self_attn.attention",
                query_width=query_width,
                value_width=values,
                rotated_width=(heads + 1) * self.qk_rope_head_dim if self.rotates else 0,
                joined_width=query_width if self.rotates else 0,
            ),
            linear("self_attn.o_proj", values, hidden, bias=bias, parallel="row"),
        )

    def _deepseek(self, class_name: str) -> ModuleLists:
        return self._mixed(class_name, self._latent_attention(), self._routed_and_shared(), self._dense)


class DeepseekV2(LatentConfig):
    """The configuration of DeepSeek-V2 models: Hugging Face's ``DeepseekV2Config``."""

    family: ClassVar[str] = "deepseek_v2"
    traits: ClassVar[Traits] = expert_traits(
        "DeepseekV2ForCausalLM",
        v1_runner=False,
    )
    spellings: ClassVar[dict[str, str]] = {"num_experts": "n_routed_experts"}

    n_routed_experts: Experts = 64
    num_experts_per_tok: Experts
    n_shared_experts: Experts = 2
    n_group: Experts | None = 1
    topk_group: Experts | None = 1
    moe_intermediate_size: Extent = 1407
    mlp_bias: Flag = False

    @property
    def _gated_bias(self) -> bool:
        return self.mlp_bias

    def modules(self) -> ModuleLists:
        """Return the modules of ``DeepseekV2ForCausalLM`` in call order."""
        return self._deepseek("DeepseekV2")


# -- DeepSeek-V3 and R1 ----------------------------------------------------------------------------
# DeepSeek-V2's layers with another router.
#
# Modules and their order: transformers/models/deepseek_v3/modeling_deepseek_v3.py at 5.23.0. The layer that
# predicts a further token is left out, as in transformers.


class DeepseekV3(LatentConfig):
    """The configuration of DeepSeek-V3 models: Hugging Face's ``DeepseekV3Config``."""

    family: ClassVar[str] = "deepseek_v3"
    traits: ClassVar[Traits] = expert_traits(
        "DeepseekV3ForCausalLM",
    )
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "n_routed_experts"}

    n_routed_experts: Experts = 256
    num_experts_per_tok: Experts = 8
    moe_intermediate_size: Extent = 2048
    first_k_dense_replace: Index | None = 3

    def modules(self) -> ModuleLists:
        """Return the modules of ``DeepseekV3ForCausalLM`` in call order."""
        return self._deepseek("DeepseekV3")


# -- Kimi-K2 ---------------------------------------------------------------------------------------
# The architecture of DeepSeek-V3, with more experts and fewer heads.
#
# Its code (modeling_deepseek.py beside its weights) is DeepSeek-V3's; modules are those of transformers
# 5.23.0.


class KimiK2(DeepseekV3):
    """The configuration of Kimi-K2 models, which has the keys of ``DeepseekV3Config``."""

    family: ClassVar[str] = "kimi_k2"
    aliases: ClassVar[tuple[str, ...]] = ("kimi_k25",)
    traits: ClassVar[Traits] = DeepseekV3.traits._replace(tensor_plan=False)
