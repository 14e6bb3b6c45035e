"""OLMoE: experts in every layer, and norms on all heads of queries together and of keys.

Modules and their order: transformers/models/olmoe/modeling_olmoe.py at 5.23.0. Operations are those measured
for Mixtral; limits on queries, keys and values (``clip_qkv``) are left out.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Extent, Flag, ModuleLists
from simoffload.models.families.experts import Experts, ExpertsConfig, expert_traits
from simoffload.models.modules import Traits


class Olmoe(ExpertsConfig):
    """The configuration of OLMoE models: Hugging Face's ``OlmoeConfig``."""

    family: ClassVar[str] = "olmoe"
    traits: ClassVar[Traits] = expert_traits("OlmoeForCausalLM", float16=False)
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}
    experts_key: ClassVar[str] = "num_experts"
    width_key: ClassVar[str] = "intermediate_size"

    max_position_embeddings: Extent | None = 4096
    attention_bias: Flag = False
    num_experts: Experts = 64
    num_experts_per_tok: Experts = 8

    def modules(self) -> ModuleLists:
        """Return the modules of ``OlmoeForCausalLM`` in call order."""
        return self._around("Olmoe", self._normed(self._normed_whole(self.attention_bias), self._routed()))
