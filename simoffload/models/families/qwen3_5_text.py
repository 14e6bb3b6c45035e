"""Qwen3.5 and 3.6, dense: gated DeltaNet in three layers of four, gated attention in the fourth.

Modules and their order: transformers/models/qwen3_5/modeling_qwen3_5.py at 5.23.0. Operations are Llama's
measured ones. The files of the models, which also process images, have this configuration under
``text_config``.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Count, Extent, ModuleLists
from simoffload.models.families.recurrent import DeltaNetConfig
from simoffload.models.families.rotary import llama_traits
from simoffload.models.modules import Traits


class Qwen35Text(DeltaNetConfig):
    """The configuration of Qwen3.5's dense language models: Hugging Face's ``Qwen3_5TextConfig``."""

    family: ClassVar[str] = "qwen3_5_text"
    aliases: ClassVar[tuple[str, ...]] = ("qwen3_5",)
    traits: ClassVar[Traits] = llama_traits("Qwen3_5ForCausalLM", float16=False)

    vocab_size: Extent = 248_320
    num_attention_heads: Count = 16
    num_key_value_heads: Count | None = 4

    def modules(self) -> ModuleLists:
        """Return the modules of ``Qwen3_5ForCausalLM`` in call order."""
        kinds = [self._normed(attend, self._network) for attend in self._attends(joint=False)]
        return self._around("Qwen3_5", *(kinds[one] for one in self._linear))
