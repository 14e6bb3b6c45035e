"""GLM-4.7-Flash: latent attention, a dense first layer, experts and a shared one.

Modules and their order: transformers/models/glm4_moe_lite/modeling_glm4_moe_lite.py at 5.23.0, whose
attention is DeepSeek-V3's. Operations are those measured for Mixtral. The layer that predicts a further token
is left out, as in transformers.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Extent, ModuleLists, Width
from simoffload.models.families.deepseek import LatentConfig
from simoffload.models.families.experts import Experts, Index, ListedDenseConfig, expert_traits
from simoffload.models.modules import Traits


class Glm4MoeLite(LatentConfig, ListedDenseConfig):
    """The configuration of GLM-4.7-Flash: Hugging Face's ``Glm4MoeLiteConfig``."""

    family: ClassVar[str] = "glm4_moe_lite"
    traits: ClassVar[Traits] = expert_traits("Glm4MoeLiteForCausalLM", float16=False)
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "n_routed_experts"}

    q_lora_rank: Width | None = 768
    qk_nope_head_dim: Width = 192
    v_head_dim: Width = 256
    n_routed_experts: Experts = 64
    num_experts_per_tok: Experts = 4
    moe_intermediate_size: Extent = 1536
    first_k_dense_replace: Index | None = 1

    def modules(self) -> ModuleLists:
        """Return the modules of ``Glm4MoeLiteForCausalLM`` in call order."""
        return self._deepseek("Glm4MoeLite")
