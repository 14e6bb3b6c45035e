"""Ling 3: Kimi delta attention, and latent attention with a gate in the last layer of each group; experts.

Modules and their order: transformers/models/bailing_hybrid/modeling_bailing_hybrid.py at 5.23.0. Operations
are those measured for Mixtral.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from simoffload.models.families.base import Count, Extent, ModuleLists, Width
from simoffload.models.families.deepseek import LatentConfig
from simoffload.models.families.experts import Experts, Index, expert_traits
from simoffload.models.families.recurrent import LINEAR, DeltaAttention, every_nth
from simoffload.models.families.rotary import after, gated_result, kinds_of_layers
from simoffload.models.modules import Module, Traits, linear

_Kind = Literal["linear_attention", "full_attention"]


class BailingHybrid(LatentConfig):
    """The configuration of Ling 3 models: Hugging Face's ``BailingHybridConfig``."""

    family: ClassVar[str] = "bailing_hybrid"
    traits: ClassVar[Traits] = expert_traits("BailingHybridForCausalLM", float16=False)
    further: ClassVar[int] = 1
    experts_key: ClassVar[str] = "num_experts"
    spellings: ClassVar[dict[str, str]] = {
        "num_local_experts": "num_experts",
        "num_experts_per_token": "num_experts_per_tok",
        "num_shared_experts": "n_shared_experts",
        "num_expert_group": "n_group",
        "num_mtp_layers": "num_nextn_predict_layers",
        "model_max_length": "max_position_embeddings",
    }

    q_lora_rank: None = None
    head_dim: Width | None = 128
    """Of Kimi delta attention, unless ``linear_head_dim`` states it."""
    linear_head_dim: Width | None = None
    short_conv_kernel_size: Count = 4
    layer_group_size: Count = 6
    num_experts: Experts = 512
    num_experts_per_tok: Experts = 8
    n_group: Experts | None = 8
    topk_group: Experts | None = 4
    moe_intermediate_size: Extent = 768
    first_k_dense_replace: Index | None = 2
    layer_types: Annotated[tuple[_Kind, ...], kinds_of_layers(_Kind)] | None = None

    def _latent_attention(self) -> tuple[Module, ...]:
        values = self.num_attention_heads * self.v_head_dim
        gate = linear("self_attn.g_proj", self.hidden_size, self.num_attention_heads, parallel="column")
        plain = super()._latent_attention()
        gated = (gated_result(one, values, gates=self.num_attention_heads) for one in plain)
        return after(gated, "self_attn.attention", gate)

    def modules(self) -> ModuleLists:
        """Return the modules of ``BailingHybridForCausalLM`` in call order."""
        head = self.linear_head_dim or self.head_dim or 128
        net = DeltaAttention(self.num_attention_heads, head, self.short_conv_kernel_size, True, True)
        attends = (self._latent_attention(), net.modules(self.hidden_size))
        networks = (self._routed_and_shared(), self._gated())
        kinds = self.layer_types or every_nth(self.num_hidden_layers, self.layer_group_size)
        made = {(one, own): self._normed(attends[one], networks[own]) for one in (0, 1) for own in (0, 1)}
        layers = (made[one == LINEAR, own] for one, own in zip(kinds, self._dense, strict=True))
        return self._around("BailingHybrid", *layers)
