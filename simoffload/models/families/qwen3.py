"""Qwen3, dense: Llama with a norm on every head of queries and keys.

Modules and their order: transformers/models/qwen3/modeling_qwen3.py at 5.23.0, whose code of a layer equals
Llama's except for the two norms, which are modules; the operations are therefore those measured for Llama.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Flag, ModuleLists, Width
from simoffload.models.families.rotary import UpperWindowsConfig, llama_traits
from simoffload.models.modules import Traits


class Qwen3(UpperWindowsConfig):
    """The configuration of Qwen3 models: Hugging Face's ``Qwen3Config``."""

    family: ClassVar[str] = "qwen3"
    traits: ClassVar[Traits] = llama_traits("Qwen3ForCausalLM")

    head_dim: Width | None = 128
    attention_bias: Flag = False

    def modules(self) -> ModuleLists:
        """Return the modules of ``Qwen3ForCausalLM`` in call order."""
        attend = self._normed_heads(self.attention_bias)
        return self._around("Qwen3", self._normed(attend, self._gated()))
