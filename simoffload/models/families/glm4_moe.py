"""GLM-4.5: attention with partly rotated heads, dense first layers, experts and a shared one.

Modules and their order: transformers/models/glm4_moe/modeling_glm4_moe.py at 5.23.0. Operations are those
measured for Mixtral. The layer that predicts a further token is left out, as in transformers.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists
from simoffload.models.families.experts import (
    Experts,
    FirstDenseConfig,
    Index,
    expert_traits,
)
from simoffload.models.families.rotary import after, rotary_factor
from simoffload.models.modules import Traits


class Glm4Moe(FirstDenseConfig):
    """The configuration of GLM-4.5 models: Hugging Face's ``Glm4MoeConfig``."""

    family: ClassVar[str] = "glm4_moe"
    traits: ClassVar[Traits] = expert_traits("Glm4MoeForCausalLM")
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "n_routed_experts"}

    num_key_value_heads: Count | None = 8
    n_routed_experts: Experts = 128
    num_experts_per_tok: Experts = 8
    moe_intermediate_size: Extent = 1408
    first_k_dense_replace: Index | None = 1
    attention_bias: Flag = False
    use_qk_norm: Flag = False
    partial_rotary_factor: float = 0.5
    rope_parameters: dict[str, Any] | None = None

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        rotary_factor(self.rope_parameters, self.partial_rotary_factor)
        return super().checked()

    def modules(self) -> ModuleLists:
        """Return the modules of ``Glm4MoeForCausalLM`` in call order."""
        factor = rotary_factor(self.rope_parameters, self.partial_rotary_factor)
        attend = self._self_attention(bias=self.attention_bias, rotated=factor)
        if self.use_qk_norm:
            attend = after(attend, "self_attn.v_proj", *self._head_norms())
        return self._mixed("Glm4Moe", attend, self._routed_and_shared(), self._dense)
