"""Qwen3-MoE: Qwen3's attention, and experts without a shared one.

Modules and their order: transformers/models/qwen3_moe/modeling_qwen3_moe.py at 5.23.0. Operations are those
measured for Mixtral.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists, Width
from simoffload.models.families.experts import Experts, SparseStepConfig, expert_traits
from simoffload.models.families.rotary import SlidingConfig
from simoffload.models.modules import Traits


class Qwen3Moe(SparseStepConfig, SlidingConfig):
    """The configuration of Qwen3-MoE models: Hugging Face's ``Qwen3MoeConfig``."""

    family: ClassVar[str] = "qwen3_moe"
    traits: ClassVar[Traits] = expert_traits(
        "Qwen3MoeForCausalLM",
        leaf_modules=("mlp",),
    )
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}

    num_key_value_heads: Count | None = 4
    head_dim: Width | None = None
    attention_bias: Flag = False
    num_experts: Experts = 128
    num_experts_per_tok: Experts = 8
    moe_intermediate_size: Extent = 768
    use_sliding_window: Flag = False
    sliding_window: Extent | None = 4096

    def slides(self, _layer: int, /) -> bool:
        """Return whether windows are enabled, which all layers then have."""
        return self.use_sliding_window

    def modules(self) -> ModuleLists:
        """Return the modules of ``Qwen3MoeForCausalLM`` in call order."""
        attend = self._normed_heads(self.attention_bias)
        return self._mixed("Qwen3Moe", attend, self._routed(), self._dense)
