"""Gemma 3, text: Gemma 2 with norms on queries and keys, no caps, and five layers of six with a window.

Modules and their order: transformers/models/gemma3/modeling_gemma3.py at 5.23.0, which computes rotations for
each kind of layer. Operations are Llama's measured ones plus what this code adds: two in a norm, one for the
embedding's factor. The files of the models that process images (``model_type: gemma3``) have this
configuration under ``text_config``.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Count, Derived, Extent, ModuleLists
from simoffload.models.families.gemma2 import GemmaConfig
from simoffload.models.families.rotary import after
from simoffload.models.modules import EAGER, Operations, SavedActivations, Traits, rms_norm


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
    )
    spellings: ClassVar[dict[str, str]] = {"_sliding_window_pattern": "sliding_window_pattern"}

    num_attention_heads: Count = 8
    vocab_size: Extent = 262208
    sliding_window_pattern: Count = 6

    def pattern(self) -> int:
        """Return the number of all layers but the last of every ``sliding_window_pattern``."""
        return self.num_hidden_layers - self.num_hidden_layers // self.sliding_window_pattern

    def modules(self) -> ModuleLists:
        """Return the modules of ``Gemma3ForCausalLM`` in call order."""
        sizes: Derived = self.derived()
        norms = (
            rms_norm("self_attn.q_norm", sizes.head_dim, heads=self.num_attention_heads, single=True),
            rms_norm("self_attn.k_norm", sizes.head_dim, heads=sizes.num_key_value_heads, single=True),
        )
        attend = self._self_attention(bias=self.attention_bias, output_bias=self.attention_bias)
        kinds = 2 if 0 < sizes.num_sliding_layers < self.num_hidden_layers else 1
        return self._gemma("Gemma3", after(attend, "self_attn.v_proj", *norms), rotations=kinds)
