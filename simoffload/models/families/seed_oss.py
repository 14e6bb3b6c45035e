"""Seed-OSS: Llama's layer with biases on queries, keys and values.

Modules and their order: transformers/models/seed_oss/modeling_seed_oss.py at 5.23.0, whose code of a layer
equals Llama's in inference. Operations are those measured for Llama.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Count, Flag, ModuleLists, Width
from simoffload.models.families.rotary import RotaryConfig, llama_traits
from simoffload.models.modules import Traits


class SeedOss(RotaryConfig):
    """The configuration of Seed-OSS models: Hugging Face's ``SeedOssConfig``."""

    family: ClassVar[str] = "seed_oss"
    traits: ClassVar[Traits] = llama_traits("SeedOssForCausalLM", float16=False)

    num_key_value_heads: Count | None = 8
    head_dim: Width | None = 128
    attention_bias: Flag = True
    attention_out_bias: Flag = False
    mlp_bias: Flag = False

    def modules(self) -> ModuleLists:
        """Return the modules of ``SeedOssForCausalLM`` in call order."""
        attend = self._self_attention(bias=self.attention_bias, output_bias=self.attention_out_bias)
        return self._around("SeedOss", self._normed(attend, self._gated(bias=self.mlp_bias)))
