"""MiniMax-Text-01 and MiniMax-M1: lightning attention in most layers, attention in the others; experts.

Modules and their order: transformers/models/minimax/modeling_minimax.py at 5.23.0. Operations are those
measured for Mixtral. Lightning attention (Qin et al., arXiv 2401.04658) keeps a matrix for each head, in the
type of the model also in vLLM (``linear_attention_state_dtype``, layers/mamba/mamba_utils.py).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simoffload.models.families.base import Count, Extent, ModuleLists, Width
from simoffload.models.families.experts import Experts, ExpertsConfig, expert_traits
from simoffload.models.families.recurrent import FULL, HALF, LINEAR
from simoffload.models.families.rotary import kinds_of_layers
from simoffload.models.modules import (
    Chunked,
    Module,
    StatePart,
    Traits,
    activation,
    container,
    linear,
    rms_norm,
)

_Kind = Literal["linear_attention", "full_attention"]


class MiniMax(ExpertsConfig):
    """The configuration of MiniMax-Text-01 models: Hugging Face's ``MiniMaxConfig``."""

    family: ClassVar[str] = "minimax"
    aliases: ClassVar[tuple[str, ...]] = ("minimax_text_01", "minimax_m1", "MiniMaxText01", "MiniMaxM1")
    traits: ClassVar[Traits] = expert_traits("MiniMaxForCausalLM", float16=False, in_gguf=False)
    spellings: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    experts_key: ClassVar[str] = "num_local_experts"
    width_key: ClassVar[str] = "intermediate_size"
    by_layer: ClassVar[tuple[str, ...]] = ("layer_types", "attn_type_list")

    max_position_embeddings: Annotated[int, Field(strict=True, ge=1, le=100_000_000)] | None = None
    num_key_value_heads: Count | None = 8
    num_local_experts: Experts = 8
    num_experts_per_tok: Experts = 2
    rotary_dim: Width | None = None
    block_size: Extent = 256
    layer_types: Annotated[tuple[_Kind, ...], kinds_of_layers(_Kind)] | None = None
    attn_type_list: tuple[Literal[0, 1], ...] | None = None
    """1 for each layer with full attention, in the files beside the first weights."""

    def _lightning(self) -> tuple[Module, ...]:
        hidden, wide, head = self.hidden_size, self._widths[0], self.derived().head_dim
        state, block = wide * head, self.block_size
        core = activation("self_attn.lightning", wide, reads=5, writes=2)._replace(
            hooked=False,
            keeps=(StatePart("recurrent state", fixed=HALF * state),),
            # Scores and their product with values (half of each, as it is causal), and two with the state, of
            # which each block has one in single precision, alone and with those before.
            chunked=Chunked(2 * block * wide + 4 * state, 2 * 4 * state // block),
        )
        return (
            container("self_attn"),
            linear("self_attn.qkv_proj", hidden, 3 * wide, parallel="column"),
            activation("self_attn.act_fn", 3 * wide, reads=1, writes=1),
            core,
            rms_norm("self_attn.norm", wide, parallel="heads"),
            linear("self_attn.output_gate", hidden, wide, parallel="column"),
            linear("self_attn.out_proj", wide, hidden, parallel="row"),
        )

    def modules(self) -> ModuleLists:
        """Return the modules of ``MiniMaxForCausalLM`` in call order."""
        rotated = (self.rotary_dim or self.derived().head_dim) / self.derived().head_dim
        mixers = {LINEAR: self._lightning(), FULL: self._self_attention(rotated=rotated)}
        made = {kind: self._normed(one, self._routed()) for kind, one in mixers.items()}
        listed = self.attn_type_list or [(one + 1) % 2 for one in range(self.num_hidden_layers)]
        kinds = self.layer_types or [FULL if one else LINEAR for one in listed]
        return self._around("MiniMax", *(made[one] for one in kinds))
