"""Qwen1.5-MoE and Qwen2-MoE: Qwen2's attention, experts, and a shared expert with a gate of its own.

Modules and their order: transformers/models/qwen2_moe/modeling_qwen2_moe.py at 5.23.0. Operations are those
measured for Mixtral.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists
from simoffload.models.families.experts import Experts, SparseStepConfig, expert_traits
from simoffload.models.families.rotary import SlidingConfig
from simoffload.models.modules import Traits, linear


class Qwen2Moe(SparseStepConfig, SlidingConfig):
    """The configuration of Qwen2-MoE models: Hugging Face's ``Qwen2MoeConfig``."""

    family: ClassVar[str] = "qwen2_moe"
    traits: ClassVar[Traits] = expert_traits(
        "Qwen2MoeForCausalLM",
        leaf_modules=("mlp",),
    )

    num_key_value_heads: Count | None = 16
    num_experts: Experts = 60
    num_experts_per_tok: Experts = 4
    moe_intermediate_size: Extent = 1408
    shared_expert_intermediate_size: Extent = 5632
    qkv_bias: Flag = True
    use_sliding_window: Flag = False
    sliding_window: Annotated[int, Field(strict=True, ge=0, le=10_000_000)] | None = 4096
    """0, as transformers writes it, where windows are not enabled."""
    max_window_layers: Annotated[int, Field(strict=True, ge=0, le=100_000)] = 28

    def slides(self, layer: int, /) -> bool:
        """Return whether it is every other one of the lower layers, if windows are enabled."""
        return self.use_sliding_window and layer % 2 == 0 and layer < self.max_window_layers

    def modules(self) -> ModuleLists:
        """Return the modules of ``Qwen2MoeForCausalLM`` in call order."""
        block, *routed = self._routed()
        gate = linear("mlp.shared_expert_gate", self.hidden_size, 1, flat=True)
        shared = self._gated(name="mlp.shared_expert", wide=self.shared_expert_intermediate_size)
        attend = self._self_attention(bias=self.qkv_bias)
        return self._mixed("Qwen2Moe", attend, (block, *shared, *routed, gate), self._dense)
