"""Qwen2 and 2.5: Llama with biases on queries, keys and values; upper layers may have a sliding window.

Modules and their order: transformers/models/qwen2/modeling_qwen2.py at 5.23.0, whose code of a layer equals
Llama's except for the biases; the operations are therefore those measured for Llama.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import ModuleLists
from simoffload.models.families.rotary import UpperWindowsConfig, llama_traits
from simoffload.models.modules import Traits


class Qwen2(UpperWindowsConfig):
    """The configuration of Qwen2 models: Hugging Face's ``Qwen2Config``."""

    family: ClassVar[str] = "qwen2"
    traits: ClassVar[Traits] = llama_traits("Qwen2ForCausalLM")

    def modules(self) -> ModuleLists:
        """Return the modules of ``Qwen2ForCausalLM`` in call order."""
        return self._around("Qwen2", self._normed(self._self_attention(bias=True), self._gated()))
