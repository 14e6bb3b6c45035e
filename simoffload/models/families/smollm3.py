"""SmolLM3: Llama's layer, of which every fourth has no rotary positions.

Modules and their order: transformers/models/smollm3/modeling_smollm3.py at 5.23.0. Operations are those
measured for Llama.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists
from simoffload.models.families.rotary import SlidingConfig, llama_traits
from simoffload.models.modules import Traits


class SmolLM3(SlidingConfig):
    """The configuration of SmolLM3: Hugging Face's ``SmolLM3Config``."""

    family: ClassVar[str] = "smollm3"
    traits: ClassVar[Traits] = llama_traits("SmolLM3ForCausalLM", float16=False)

    by_layer: ClassVar[tuple[str, ...]] = ("layer_types", "no_rope_layers")

    num_key_value_heads: Count | None = 4
    tie_word_embeddings: Flag = True
    attention_bias: Flag = False
    mlp_bias: Flag = False
    use_sliding_window: Flag = False
    sliding_window: Extent | None = None
    no_rope_layers: tuple[Annotated[int, Field(strict=True, ge=0, le=1)], ...] | None = None
    """1 for each layer that has rotary positions."""
    no_rope_layer_interval: Count = 4

    @property
    def _rotated(self) -> tuple[bool, ...]:
        every, listed = self.no_rope_layer_interval, self.no_rope_layers
        if listed is not None:
            return tuple(one == 1 for one in listed)
        return tuple((at + 1) % every != 0 for at in range(self.num_hidden_layers))

    def slides(self, layer: int, /) -> bool:
        """Return whether windows are enabled, which layers without rotary positions then have."""
        return self.use_sliding_window and not self._rotated[layer]

    def modules(self) -> ModuleLists:
        """Return the modules of ``SmolLM3ForCausalLM`` in call order."""
        bias, network = self.attention_bias, self._gated(bias=self.mlp_bias)
        layers = {
            rotates: self._normed(
                self._self_attention(bias=bias, output_bias=bias, rotated=float(rotates)), network
            )
            for rotates in set(self._rotated)
        }
        return self._around("SmolLM3", *(layers[rotates] for rotates in self._rotated))
