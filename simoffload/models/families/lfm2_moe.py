"""LFM2 with experts: gated short convolutions in most layers, attention in the others.

Modules and their order: transformers/models/lfm2_moe/modeling_lfm2_moe.py at 5.23.0. Operations are those
measured for Mixtral.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Extent, ModuleLists
from simoffload.models.families.experts import Experts, ExpertsConfig, Index, expert_traits
from simoffload.models.families.recurrent import ShortConvolutionConfig
from simoffload.models.modules import Traits


class Lfm2Moe(ShortConvolutionConfig, ExpertsConfig):
    """The configuration of LFM2 models with experts: Hugging Face's ``Lfm2MoeConfig``."""

    family: ClassVar[str] = "lfm2_moe"
    traits: ClassVar[Traits] = expert_traits("Lfm2MoeForCausalLM", float16=False)
    spellings: ClassVar[dict[str, str]] = {
        "tie_embedding": "tie_word_embeddings",
        "num_local_experts": "num_experts",
    }

    intermediate_size: Extent = 7168
    moe_intermediate_size: Extent = 1792
    num_experts: Experts = 32
    num_experts_per_tok: Experts = 4
    num_dense_layers: Index = 2

    def modules(self) -> ModuleLists:
        """Return the modules of ``Lfm2MoeForCausalLM`` in call order."""
        block, router, experts, function = self._routed("feed_forward")
        mixture = (block, router, experts, function._replace(hooked=False))
        dense, first = self._network(self.intermediate_size), self.num_dense_layers
        every = range(self.num_hidden_layers)
        return self._convolved(
            "Lfm2Moe", [dense if one < first else mixture for one in every], "model.pos_emb"
        )
