"""EXAONE 4: OLMo 2's order of norms, with a norm on every head and a window in three layers of four.

Modules and their order: transformers/models/exaone4/modeling_exaone4.py at 5.23.0. Where there are windows,
the layers without one have no rotary positions. Operations are those measured for Llama.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from simoffload.models.families.base import Count, Extent, ModuleLists
from simoffload.models.families.rotary import SlidingConfig, llama_traits
from simoffload.models.modules import Traits, rms_norm


class Exaone4(SlidingConfig):
    """The configuration of EXAONE 4 models: Hugging Face's ``Exaone4Config``."""

    family: ClassVar[str] = "exaone4"
    traits: ClassVar[Traits] = llama_traits("Exaone4ForCausalLM", float16=False)

    max_position_embeddings: Extent | None = 2048
    sliding_window: Extent | None = 4096
    sliding_window_pattern: Count | Annotated[str, Field(pattern="^[LG]+$")] | None = 4

    def slides(self, layer: int, /) -> bool:
        """Return whether it is a local layer of the pattern: an "L", or not the last of so many layers."""
        pattern = self.sliding_window_pattern
        if isinstance(pattern, str):
            return pattern[layer % len(pattern)] == "L"
        return pattern is not None and (layer + 1) % pattern != 0

    def modules(self) -> ModuleLists:
        """Return the modules of ``Exaone4ForCausalLM`` in call order."""
        layers = {
            slides: (
                *self._normed_after(False, "q_norm", "k_norm", rotated=part),
                rms_norm("post_attention_layernorm", self.hidden_size),
                *self._gated(),
                rms_norm("post_feedforward_layernorm", self.hidden_size),
            )
            for slides, part in ((True, 1.0), (False, 0.0 if self.sliding_window else 1.0))
        }
        return self._around("Exaone4", *(layers[window is not None] for window in self.windows()))
