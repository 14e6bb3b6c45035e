"""Mistral Small 4: latent attention, experts and a shared one.

Modules and their order: transformers/models/mistral4/modeling_mistral4.py at 5.23.0, whose attention is
DeepSeek-V3's but for a factor of queries by their position. Operations are those measured for Mixtral.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Extent, ModuleLists, Width
from simoffload.models.families.deepseek import LatentConfig
from simoffload.models.families.experts import Experts, expert_traits
from simoffload.models.modules import Traits


class Mistral4(LatentConfig):
    """The configuration of Mistral Small 4: Hugging Face's ``Mistral4Config``."""

    family: ClassVar[str] = "mistral4"
    traits: ClassVar[Traits] = expert_traits("Mistral4ForCausalLM", tensor_plan=False, float16=False)
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "n_routed_experts"}

    q_lora_rank: Width | None = 1024
    kv_lora_rank: Width = 256
    qk_nope_head_dim: Width = 64
    n_routed_experts: Experts = 128
    num_experts_per_tok: Experts = 4
    moe_intermediate_size: Extent = 2048

    def modules(self) -> ModuleLists:
        """Return the modules of ``Mistral4ForCausalLM`` in call order."""
        return self._deepseek("Mistral4")
