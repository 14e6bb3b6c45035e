"""Mistral: Llama's modules; every layer has a sliding window, if the configuration has one.

Modules and their order: transformers/models/mistral/modeling_mistral.py at 5.23.0, whose code of a layer
equals Llama's; the operations are therefore those measured for Llama. The files of Mistral Small 3.1 and
later (``model_type: mistral3``), which also take images, have this configuration under ``text_config``.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Count, Extent, ModuleLists
from simoffload.models.families.rotary import SlidingConfig, llama_traits
from simoffload.models.modules import Traits


class Mistral(SlidingConfig):
    """The configuration of Mistral models: Hugging Face's ``MistralConfig``."""

    family: ClassVar[str] = "mistral"
    within: ClassVar[str | None] = "mistral3"
    traits: ClassVar[Traits] = llama_traits("MistralForCausalLM")

    num_key_value_heads: Count | None = 8
    sliding_window: Extent | None = 4096

    def modules(self) -> ModuleLists:
        """Return the modules of ``MistralForCausalLM`` in call order."""
        return self._around("Mistral", self._normed(self._self_attention(), self._gated()))
