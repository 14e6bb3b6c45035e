"""GLM-4-0414 (dense): rotary positions on half of each head, one projection of gate and up, four norms.

Modules and their order: transformers/models/glm4/modeling_glm4.py at 5.23.0. Operations are those measured
for Llama, and in the feed-forward network Phi-3's.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists, Width
from simoffload.models.families.rotary import (
    LLAMA_OPERATIONS,
    RotaryConfig,
    RotatedPart,
    llama_traits,
    rotary_factor,
)
from simoffload.models.modules import Traits, activation, container, linear, rms_norm


class Glm4(RotaryConfig):
    """The configuration of dense GLM-4 models: Hugging Face's ``Glm4Config``."""

    family: ClassVar[str] = "glm4"
    traits: ClassVar[Traits] = llama_traits(
        "Glm4ForCausalLM", operations=LLAMA_OPERATIONS._replace(mlp=3), float16=False
    )

    num_key_value_heads: Count | None = 2
    head_dim: Width | None = 128
    max_position_embeddings: Extent | None = 131072
    attention_bias: Flag = True
    partial_rotary_factor: RotatedPart = 0.5

    def modules(self) -> ModuleLists:
        """Return the modules of ``Glm4ForCausalLM`` in call order."""
        hidden, wide = self.hidden_size, self.intermediate_size
        part = rotary_factor(self.rope_parameters, self.partial_rotary_factor)
        layer = (
            rms_norm("input_layernorm", hidden),
            *self._self_attention(bias=self.attention_bias, rotated=part),
            rms_norm("post_self_attn_layernorm", hidden),
            rms_norm("post_attention_layernorm", hidden),
            container("mlp", touched=1, code="mlp"),
            linear("mlp.gate_up_proj", hidden, 2 * wide, parallel="column"),
            activation("mlp.activation_fn", wide, reads=3, writes=2),
            linear("mlp.down_proj", wide, hidden, parallel="row"),
            rms_norm("post_mlp_layernorm", hidden),
        )
        return self._around("Glm4", layer)
