"""Gemma 3, text: Gemma 2 with norms on queries and keys, no caps, and five layers of six with a window.

Modules and their order: transformers/models/gemma3/modeling_gemma3.py at 5.23.0, which computes rotations for
each kind of layer. Operations are Llama's measured ones plus what this code adds: two in a norm, one for the
embedding's factor. The files of the models that process images (``model_type: gemma3``) have this
configuration under ``text_config``.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Count, Extent, ModuleLists
from simoffload.models.families.gemma2 import GemmaConfig
from simoffload.models.families.rotary import after
from simoffload.models.modules import EAGER, Operations, SavedActivations, Traits


class Gemma3Text(GemmaConfig):
    """The configuration of Gemma 3 text models: Hugging Face's ``Gemma3TextConfig``."""

    family: ClassVar[str] = "gemma3_text"
    within: ClassVar[str | None] = "gemma3"
    traits: ClassVar[Traits] = Traits(
        architecture="Gemma3ForCausalLM",
        attention="sdpa",
        operations=Operations(
            block=5, mlp=2, norm=10, activation=0, attention=25, eager=EAGER, rotary=15, router=0, embedding=3
        ),
        saved=SavedActivations(kept=3, product=True, masks=0, wide=2, narrow=1, scores=12, single_norm=True),
        leaf_modules=(),
        lora_targets=("q_proj", "v_proj"),
        float16=False,
    )
    spellings: ClassVar[dict[str, str]] = {"_sliding_window_pattern": "sliding_window_pattern"}

    num_attention_heads: Count = 8
    vocab_size: Extent = 262208
    sliding_window_pattern: Count = 6

    def slides(self, layer: int, /) -> bool:
        """Return whether it is not the last of ``sliding_window_pattern`` layers."""
        return (layer + 1) % self.sliding_window_pattern != 0

    def modules(self) -> ModuleLists:
        """Return the modules of ``Gemma3ForCausalLM`` in call order."""
        attend = self._self_attention(bias=self.attention_bias, output_bias=self.attention_bias)
        return self._gemma(
            "Gemma3",
            after(attend, "self_attn.v_proj", *self._head_norms(single=True)),
            rotations=len(set(self.windows())),
        )
