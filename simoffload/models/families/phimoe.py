"""Phi-3.5-MoE: Llama's attention with biases, LayerNorm, and experts.

Modules and their order: transformers/models/phimoe/modeling_phimoe.py at 5.23.0. Operations are those
measured for Mixtral plus what this code adds: its router (``sparsemixer``) takes 24 in inference, and
LayerNorm is one kernel.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists
from simoffload.models.families.experts import EXPERT_OPERATIONS, Experts, ExpertsConfig, expert_traits
from simoffload.models.families.rotary import SlidingConfig
from simoffload.models.modules import Traits, head, layer_norm


class PhiMoe(ExpertsConfig, SlidingConfig):
    """The configuration of Phi-3.5-MoE: Hugging Face's ``PhimoeConfig``."""

    family: ClassVar[str] = "phimoe"
    traits: ClassVar[Traits] = expert_traits(
        "PhimoeForCausalLM",
        operations=EXPERT_OPERATIONS._replace(norm=1, router=24),
    )
    spellings: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    experts_key: ClassVar[str] = "num_local_experts"
    width_key: ClassVar[str] = "intermediate_size"

    vocab_size: Extent = 32064
    num_key_value_heads: Count | None = 8
    num_local_experts: Experts = 16
    num_experts_per_tok: Experts = 2
    sliding_window: Extent | None = None
    attention_bias: Flag = False
    lm_head_bias: Flag = False

    def modules(self) -> ModuleLists:
        """Return the modules of ``PhimoeForCausalLM`` in call order."""
        hidden = self.hidden_size
        layer = (
            layer_norm("input_layernorm", hidden),
            *self._self_attention(bias=self.attention_bias, output_bias=self.attention_bias),
            layer_norm("post_attention_layernorm", hidden),
            *self._routed(router="router"),
        )
        lists = self._around("Phimoe", layer)
        tied_to = "model.embed_tokens.weight" if self.tie_word_embeddings else None
        logits = head(hidden, self.vocab_size, bias=self.lm_head_bias, tied_to=tied_to)
        return lists._replace(after=(layer_norm("model.norm", hidden), logits))
