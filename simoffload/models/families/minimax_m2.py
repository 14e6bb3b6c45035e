"""MiniMax-M2: experts in every layer, partly rotated heads, norms over all queries and all keys together.

Modules and their order: transformers/models/minimax_m2/modeling_minimax_m2.py at 5.23.0. Operations are those
measured for Mixtral. The router adds a bias, a buffer of one number for each expert, to its sigmoids. The
modules that predict further tokens (``num_mtp_modules``) are left out, as in transformers.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Count, ModuleLists, Width
from simoffload.models.families.experts import Experts, ExpertsConfig, expert_traits
from simoffload.models.families.rotary import rotary_factor
from simoffload.models.modules import Traits


class MiniMaxM2(ExpertsConfig):
    """The configuration of MiniMax-M2 models: Hugging Face's ``MiniMaxM2Config``."""

    family: ClassVar[str] = "minimax_m2"
    traits: ClassVar[Traits] = expert_traits("MiniMaxM2ForCausalLM", leaf_modules=("mlp",))
    spellings: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    experts_key: ClassVar[str] = "num_local_experts"
    width_key: ClassVar[str] = "intermediate_size"

    num_key_value_heads: Count | None = 8
    head_dim: Width | None = 128
    num_local_experts: Experts = 256
    num_experts_per_tok: Experts = 8
    rotary_dim: Width | None = None
    """Elements of a head that are rotated, as the released files state them; transformers 5 writes
    ``partial_rotary_factor`` of ``rope_parameters``."""

    def modules(self) -> ModuleLists:
        """Return the modules of ``MiniMaxM2ForCausalLM`` in call order."""
        part = 1.0 if self.rotary_dim is None else min(1.0, self.rotary_dim / self.derived().head_dim)
        attend = self._normed_whole(rotated=rotary_factor(self.rope_parameters, part))
        return self._around("MiniMaxM2", self._normed(attend, self._routed()))
