"""DeepSeek-V3 and R1: DeepSeek-V2's layers with another router.

Modules and their order: transformers/models/deepseek_v3/modeling_deepseek_v3.py at 5.23.0. The layer that
predicts a further token is left out, as in transformers.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Extent, ModuleLists
from simoffload.models.families.deepseek_v2 import LatentConfig
from simoffload.models.families.experts import Experts, Index, expert_traits
from simoffload.models.modules import Traits


class DeepseekV3(LatentConfig):
    """The configuration of DeepSeek-V3 models: Hugging Face's ``DeepseekV3Config``."""

    family: ClassVar[str] = "deepseek_v3"
    traits: ClassVar[Traits] = expert_traits(
        "DeepseekV3ForCausalLM",
        lora_targets=("kv_a_proj_with_mqa", "kv_b_proj"),
    )
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "n_routed_experts"}

    n_routed_experts: Experts = 256
    num_experts_per_tok: Experts = 8
    moe_intermediate_size: Extent = 2048
    first_k_dense_replace: Index | None = 3

    def modules(self) -> ModuleLists:
        """Return the modules of ``DeepseekV3ForCausalLM`` in call order."""
        return self._deepseek("DeepseekV3")
