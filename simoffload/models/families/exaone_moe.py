"""K-EXAONE: attention with a window in three layers of four, without rotary positions in the fourth; experts.

Modules and their order: transformers/models/exaone_moe/modeling_exaone_moe.py at 5.23.0. Operations are those
measured for Mixtral. The layer that predicts a further token is left out, as in transformers.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from simoffload.models.families.base import Count, Extent, ModuleLists
from simoffload.models.families.experts import Experts, Index, ListedDenseConfig, expert_traits
from simoffload.models.families.rotary import SlidingConfig
from simoffload.models.modules import Traits


class ExaoneMoe(ListedDenseConfig, SlidingConfig):
    """The configuration of K-EXAONE models: Hugging Face's ``ExaoneMoeConfig``."""

    family: ClassVar[str] = "exaone_moe"
    traits: ClassVar[Traits] = expert_traits("ExaoneMoeForCausalLM", float16=False)
    spellings: ClassVar[dict[str, str]] = {
        "num_experts": "n_routed_experts",
        "num_shared_experts": "n_shared_experts",
    }

    num_key_value_heads: Count | None = 32
    n_routed_experts: Experts = 64
    num_experts_per_tok: Experts = 8
    moe_intermediate_size: Extent = 1024
    first_k_dense_replace: Index | None = 1
    sliding_window: Extent | None = 4096
    sliding_window_pattern: Count | Annotated[str, Field(pattern="^[LG]+$")] | None = 4

    def slides(self, layer: int, /) -> bool:
        """Return whether it is a local layer of the pattern: an "L", or not the last of so many layers."""
        pattern = self.sliding_window_pattern
        if isinstance(pattern, str):
            return pattern[layer % len(pattern)] == "L"
        return pattern is not None and (layer + 1) % pattern != 0

    def modules(self) -> ModuleLists:
        """Return the modules of ``ExaoneMoeForCausalLM`` in call order."""
        full = 0.0 if self.sliding_window else 1.0
        attends = [self._normed_after(False, "q_norm", "k_norm", rotated=part) for part in (full, 1.0)]
        kinds = [int(window is not None) for window in self.windows()]
        return self._of_kinds("ExaoneMoe", attends, self._routed_and_shared(), self._dense, kinds)
