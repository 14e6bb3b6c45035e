"""ERNIE 4.5, dense: Llama's layer.

Modules and their order: transformers/models/ernie4_5/modeling_ernie4_5.py at 5.23.0, whose code of a layer
equals Llama's. Operations are those measured for Llama.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Count, Flag, ModuleLists, Width
from simoffload.models.families.rotary import RotaryConfig, llama_traits
from simoffload.models.modules import Traits


class Ernie4p5(RotaryConfig):
    """The configuration of dense ERNIE 4.5 models: Hugging Face's ``Ernie4_5Config``."""

    family: ClassVar[str] = "ernie4_5"
    traits: ClassVar[Traits] = llama_traits("Ernie4_5ForCausalLM", float16=False)

    num_key_value_heads: Count | None = 2
    head_dim: Width | None = 128
    tie_word_embeddings: Flag = True
    use_bias: Flag | None = False

    def modules(self) -> ModuleLists:
        """Return the modules of ``Ernie4_5ForCausalLM`` in call order."""
        bias = bool(self.use_bias)
        attend = self._self_attention(bias=bias, output_bias=bias)
        return self._around("Ernie4_5", self._normed(attend, self._gated(bias=bias)))
