"""Llama 2 and 3: grouped-query attention, rotary positions, gated feed-forward network, RMSNorm.

Modules and their order: transformers/models/llama/modeling_llama.py at 5.23.0; the same at 4.46.3 (some
earlier releases computed the rotary embedding within every layer).
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.caching import CpuAttentionCode
from simoffload.models.families.base import Flag, ModuleLists
from simoffload.models.families.rotary import RotaryConfig, llama_traits
from simoffload.models.modules import Traits


class Llama(RotaryConfig):
    """The configuration of Llama models: Hugging Face's ``LlamaConfig``."""

    family: ClassVar[str] = "llama"
    traits: ClassVar[Traits] = llama_traits(
        "LlamaForCausalLM", cpu_attention=CpuAttentionCode(single=True, passes=8, returns_half=False)
    )

    attention_bias: Flag = False
    mlp_bias: Flag = False

    @property
    def own_traits(self) -> Traits:
        """The traits of the family, with what the version of transformers that attends on the CPU does not
        load."""
        code = self.traits.cpu_attention
        assert code is not None
        return self.traits._replace(cpu_attention=code._replace(obstacle=self.unknown_to_4_32))

    def modules(self) -> ModuleLists:
        """Return the modules of ``LlamaForCausalLM`` in call order."""
        attend = self._self_attention(bias=self.attention_bias, output_bias=self.attention_bias)
        return self._around("Llama", self._normed(attend, self._gated(bias=self.mlp_bias)))
