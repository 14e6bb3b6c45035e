"""Qwen3.5 and 3.6 with experts: gated DeltaNet in three layers of four, gated attention in the fourth.

Modules and their order: transformers/models/qwen3_5_moe/modeling_qwen3_5_moe.py at 5.23.0. Operations are
those measured for Mixtral. The files of the models, which also process images, have this configuration under
``text_config``.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Count, Extent, ModuleLists
from simoffload.models.families.experts import Experts, ExpertsConfig, expert_traits
from simoffload.models.families.recurrent import DeltaNetConfig
from simoffload.models.modules import Module, Traits


class Qwen35MoeText(DeltaNetConfig, ExpertsConfig):
    """The configuration of Qwen3.5's models with experts: Hugging Face's ``Qwen3_5MoeTextConfig``."""

    family: ClassVar[str] = "qwen3_5_moe_text"
    aliases: ClassVar[tuple[str, ...]] = ("qwen3_5_moe",)
    traits: ClassVar[Traits] = expert_traits("Qwen3_5MoeForCausalLM", leaf_modules=("mlp",), float16=False)
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}

    vocab_size: Extent = 248_320
    num_attention_heads: Count = 16
    num_key_value_heads: Count | None = 2
    intermediate_size: Extent = 512
    """Without influence: no layer is dense."""
    num_experts: Experts = 256
    num_experts_per_tok: Experts = 8
    moe_intermediate_size: Extent = 512
    shared_expert_intermediate_size: Extent = 512

    @property
    def _network(self) -> tuple[Module, ...]:
        return self._routed_and_gated(self.shared_expert_intermediate_size)

    def modules(self) -> ModuleLists:
        """Return the modules of ``Qwen3_5MoeForCausalLM`` in call order."""
        kinds = [self._normed(attend, self._network) for attend in self._attends(joint=False)]
        return self._around("Qwen3_5Moe", *(kinds[one] for one in self._linear))
