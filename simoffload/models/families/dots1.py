"""dots.llm1: Qwen3's attention, dense first layers, experts and shared ones.

Modules and their order: transformers/models/dots1/modeling_dots1.py at 5.23.0. Operations are those measured
for Mixtral.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Extent, Flag, ModuleLists
from simoffload.models.families.experts import Experts, FirstDenseConfig, Index, expert_traits
from simoffload.models.families.rotary import SlidingConfig
from simoffload.models.modules import Traits


class Dots1(FirstDenseConfig, SlidingConfig):
    """The configuration of dots.llm1 models: Hugging Face's ``Dots1Config``."""

    family: ClassVar[str] = "dots1"
    traits: ClassVar[Traits] = expert_traits("Dots1ForCausalLM", float16=False)
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "n_routed_experts"}

    n_routed_experts: Experts
    moe_intermediate_size: Extent = 1408
    attention_bias: Flag = False
    sliding_window: Extent | None = 4096
    max_window_layers: Index | None = 62

    def slides(self, layer: int, /) -> bool:
        """Return whether it is one of the upper layers."""
        return layer >= (self.max_window_layers or 0)

    def modules(self) -> ModuleLists:
        """Return the modules of ``Dots1ForCausalLM`` in call order."""
        attend = self._normed_heads(self.attention_bias)
        return self._mixed("Dots1", attend, self._routed_and_shared(), self._dense)
