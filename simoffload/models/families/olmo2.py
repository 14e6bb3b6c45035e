"""OLMo 2: Llama with norms behind each half of a layer, and over all queries and all keys together.

Modules and their order: transformers/models/olmo2/modeling_olmo2.py at 5.23.0, whose code of a layer equals
Llama's except for the norms, which are modules; the operations are therefore those measured for Llama.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Extent, Flag, ModuleLists
from simoffload.models.families.rotary import RotaryConfig, llama_traits
from simoffload.models.modules import Traits, rms_norm


class Olmo2(RotaryConfig):
    """The configuration of OLMo 2 models: Hugging Face's ``Olmo2Config``."""

    family: ClassVar[str] = "olmo2"
    traits: ClassVar[Traits] = llama_traits("Olmo2ForCausalLM")

    max_position_embeddings: Extent | None = 2048
    attention_bias: Flag = False

    def modules(self) -> ModuleLists:
        """Return the modules of ``Olmo2ForCausalLM`` in call order."""
        layer = (
            *self._normed_whole(self.attention_bias),
            rms_norm("post_attention_layernorm", self.hidden_size),
            *self._gated(),
            rms_norm("post_feedforward_layernorm", self.hidden_size),
        )
        return self._around("Olmo2", layer)
