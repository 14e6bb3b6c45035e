"""Kimi Linear: Kimi delta attention, latent attention without positions in every fourth layer; experts.

Modules and their order: transformers/models/kimi_linear/modeling_kimi_linear.py at 5.23.0. Operations are
those measured for Mixtral. Kimi K3 is such a model with gates of one product, experts of latent vectors, and
before each half of a layer a weighed sum of what earlier blocks of layers have left (attention residuals);
of this transformers has no code: modeling_kimi_linear.py beside its weights, and vLLM's kimi_k3.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import model_validator

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists, Width
from simoffload.models.families.deepseek import LatentConfig
from simoffload.models.families.experts import Experts, Index, ListedDenseConfig, expert_traits
from simoffload.models.families.recurrent import FULL, LINEAR, DeltaAttention
from simoffload.models.families.rotary import after, before, block_sum, gated_result, kinds_of_layers
from simoffload.models.modules import Module, Traits, linear

_Kind = Literal["linear_attention", "full_attention"]


class KimiLinear(LatentConfig, ListedDenseConfig):
    """The configuration of Kimi Linear models: Hugging Face's ``KimiLinearConfig``."""

    family: ClassVar[str] = "kimi_linear"
    aliases: ClassVar[tuple[str, ...]] = ("kimi_k3",)
    traits: ClassVar[Traits] = expert_traits("KimiLinearForCausalLM", float16=False)
    experts_key: ClassVar[str] = "num_experts"
    rotates: ClassVar[bool] = False
    spellings: ClassVar[dict[str, str]] = {
        "num_local_experts": "num_experts",
        "num_experts_per_token": "num_experts_per_tok",
        "num_shared_experts": "n_shared_experts",
        "num_expert_group": "n_group",
        "model_max_length": "max_position_embeddings",
    }

    q_lora_rank: Width | None = None
    num_experts: Experts = 256
    num_experts_per_tok: Experts = 8
    moe_intermediate_size: Extent = 1024
    first_k_dense_replace: Index | None = 1
    linear_num_heads: Count = 32
    linear_head_dim: Width = 128
    linear_conv_kernel_dim: Count = 4
    layer_types: Annotated[tuple[_Kind, ...], kinds_of_layers(_Kind)] | None = None
    """Kind of each layer; without it, every fourth has full attention, but the first."""
    use_full_rank_gate: Flag = False
    mla_use_output_gate: Flag = False
    routed_expert_hidden_size: Width | None = None
    latent_moe_use_norm: Flag = False
    attn_res_block_size: Count | None = None
    """Layers of a block whose sum later layers read again."""

    @model_validator(mode="before")
    @classmethod
    def _inner_keys(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Return the keys with those of ``linear_attn_config``, in which layers are counted from 1."""
        inner: dict[str, Any] = given if isinstance(given := raw.get("linear_attn_config"), dict) else {}
        found = {_INNER.get(key, key): value for key, value in inner.items()}
        if "full_attn_layers" in inner and isinstance(raw.get("num_hidden_layers"), int):
            full, every = inner["full_attn_layers"], range(1, raw["num_hidden_layers"] + 1)
            found["layer_types"] = [FULL if one in full else LINEAR for one in every]
        return {**found, **raw}

    def _latent_attention(self) -> tuple[Module, ...]:
        plain, values = super()._latent_attention(), self.num_attention_heads * self.v_head_dim
        gate = linear("self_attn.g_proj", self.hidden_size, values, parallel="column")
        if not self.mla_use_output_gate:
            return plain
        return after((gated_result(one, values) for one in plain), "self_attn.attention", gate)

    def _summed(self, name: str) -> tuple[Module, ...]:
        """Return the sum of what a mean number of blocks of layers has left."""
        layers, size = self.num_hidden_layers, self.attn_res_block_size
        return block_sum(name, self.hidden_size, rows=1 + -(-layers // size) // 2 if size else 0)

    def _normed(self, attend: Iterable[Module], more: Iterable[Module], *names: str) -> tuple[Module, ...]:
        layer = (*self._summed("self_attention_res"), *super()._normed(attend, more, *names))
        return before(layer, "post_attention_layernorm", *self._summed("mlp_res"))

    def modules(self) -> ModuleLists:
        """Return the modules of ``KimiLinearForCausalLM`` in call order."""
        sizes = self.linear_num_heads, self.linear_head_dim, self.linear_conv_kernel_dim
        net = DeltaAttention(*sizes, self.use_full_rank_gate)
        attends = (self._latent_attention(), net.modules(self.hidden_size))
        sparse = self._routed_and_shared(self.routed_expert_hidden_size, normed=self.latent_moe_use_norm)
        networks, every = (sparse, self._gated()), range(self.num_hidden_layers)
        kinds = self.layer_types or [FULL if one and one % 4 == 0 else LINEAR for one in every]
        made = {(one, own): self._normed(attends[one], networks[own]) for one in (0, 1) for own in (0, 1)}
        layers = [made[one == LINEAR, own] for one, own in zip(kinds, self._dense, strict=True)]
        found = self._around("KimiLinear", *layers, rotary_outside=False)
        return found._replace(after=(*self._summed("model.output_attn_res"), *found.after))


_INNER = {
    "num_heads": "linear_num_heads",
    "head_dim": "linear_head_dim",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
"""Keys of ``linear_attn_config`` that transformers has under other names."""
