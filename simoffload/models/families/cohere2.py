"""Command R7B and Command A: attention and the network after one norm; a window in three layers of four.

Modules and their order: transformers/models/cohere2/modeling_cohere2.py at 5.23.0; layers without a window
have no rotary positions. Operations are those measured for Llama. The norm, a LayerNorm without a bias that
this code spells out, counts as an RMSNorm.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists
from simoffload.models.families.rotary import SlidingConfig, llama_traits
from simoffload.models.modules import Traits, rms_norm


class Cohere2(SlidingConfig):
    """The configuration of Command R7B and Command A: Hugging Face's ``Cohere2Config``."""

    family: ClassVar[str] = "cohere2"
    traits: ClassVar[Traits] = llama_traits("Cohere2ForCausalLM", float16=False)

    max_position_embeddings: Extent | None = 8192
    tie_word_embeddings: Flag = True
    attention_bias: Flag = False
    sliding_window: Extent | None = 4096
    sliding_window_pattern: Count = 4

    def slides(self, layer: int, /) -> bool:
        """Return whether it is not the last of so many layers."""
        return (layer + 1) % self.sliding_window_pattern != 0

    def modules(self) -> ModuleLists:
        """Return the modules of ``Cohere2ForCausalLM`` in call order."""
        bias = self.attention_bias
        layers = {
            rotates: (
                rms_norm("input_layernorm", self.hidden_size, single=True),
                *self._self_attention(bias=bias, output_bias=bias, rotated=float(rotates)),
                *self._gated(),
            )
            for rotates in (True, False)
        }
        return self._around("Cohere2", *(layers[window is not None] for window in self.windows()))
