"""OLMo 3: OLMo 2's layer, with a window in three layers of four.

Modules and their order: transformers/models/olmo3/modeling_olmo3.py at 5.23.0, which computes rotations for
each kind of layer. Operations are those measured for Llama.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Extent, Flag, ModuleLists
from simoffload.models.families.rotary import SlidingConfig, llama_traits
from simoffload.models.modules import Traits, rms_norm, rotary


class Olmo3(SlidingConfig):
    """The configuration of OLMo 3 models: Hugging Face's ``Olmo3Config``."""

    family: ClassVar[str] = "olmo3"
    traits: ClassVar[Traits] = llama_traits("Olmo3ForCausalLM", float16=False)

    max_position_embeddings: Extent | None = 2048
    attention_bias: Flag = False
    sliding_window: Extent | None = 4096

    def slides(self, layer: int, /) -> bool:
        """Return whether it is not every fourth layer."""
        return (layer + 1) % 4 != 0

    def modules(self) -> ModuleLists:
        """Return the modules of ``Olmo3ForCausalLM`` in call order."""
        layer = (
            *self._normed_whole(self.attention_bias),
            rms_norm("post_attention_layernorm", self.hidden_size),
            *self._gated(),
            rms_norm("post_feedforward_layernorm", self.hidden_size),
        )
        lists = self._around("Olmo3", layer, rotary_outside=False)
        rotations = rotary("model.rotary_emb", self._rotary_dim, by_position=3)
        return lists._replace(before=(*lists.before, *(rotations for _ in set(self.windows()))))
