"""GLM-5, 5.1 and 5.2: the layers of DeepSeek-V3.2, of which some read the rows that an earlier one chose.

Modules and their order: transformers/models/glm_moe_dsa/modeling_glm_moe_dsa.py at 5.23.0, which computes
attention to all rows and hides those that are not chosen; layers that share an indexer: Bai et al., arXiv
2603.12201. Operations are those measured for Mixtral. The layer that predicts a further token is left out, as
in transformers.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from simoffload.models.families.base import Count, ModuleLists, Width, invalid
from simoffload.models.families.experts import Index, expert_traits
from simoffload.models.families.rotary import kinds_of_layers
from simoffload.models.families.sparse import IndexedConfig
from simoffload.models.modules import Traits

_Kind = Literal["full", "shared"]


class GlmMoeDsa(IndexedConfig):
    """The configuration of GLM-5 models: Hugging Face's ``GlmMoeDsaConfig``."""

    family: ClassVar[str] = "glm_moe_dsa"
    traits: ClassVar[Traits] = expert_traits("GlmMoeDsaForCausalLM", float16=False)
    spellings: ClassVar[dict[str, str]] = {
        "num_local_experts": "n_routed_experts",
        "num_experts": "n_routed_experts",
    }
    by_layer: ClassVar[tuple[str, ...]] = ("mlp_layer_types", "indexer_types", "index_topk_pattern")

    q_lora_rank: Width = 2048
    qk_nope_head_dim: Width = 192
    v_head_dim: Width = 256
    index_n_heads: Count = 32
    indexer_types: Annotated[tuple[_Kind, ...], kinds_of_layers(_Kind)] | None = None
    """Whether a layer has an indexer; without it, ``index_topk_pattern`` or ``index_topk_freq`` says so."""
    index_topk_pattern: Annotated[str, Field(pattern="^[FS]*$")] | tuple[_Kind, ...] | None = None
    index_topk_freq: Index | None = 1
    index_skip_topk_offset: Index | None = 2

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        if self._shared[0]:
            key = "index_topk_pattern" if self.indexer_types is None else "indexer_types"
            raise invalid(
                key, f"{key}: the first layer has no indexer before it that it could share", "shared"
            )
        return super().checked()

    @property
    def _shared(self) -> tuple[bool, ...]:
        """Which layers read the rows that an earlier one chose."""
        kinds = self.indexer_types or self.index_topk_pattern
        if kinds is not None:
            return tuple(one in ("shared", "S") for one in kinds)
        every, first = max(self.index_topk_freq or 1, 1), self.index_skip_topk_offset or 0
        return tuple(max(at - first + 1, 0) % every != 0 for at in range(self.num_hidden_layers))

    def modules(self) -> ModuleLists:
        """Return the modules of ``GlmMoeDsaForCausalLM`` in call order."""
        return self._indexed("GlmMoeDsa", self._shared)
