"""ERNIE 4.5 with experts: Llama's attention, dense first layers, experts and shared ones.

Modules and their order: transformers/models/ernie4_5_moe/modeling_ernie4_5_moe.py at 5.23.0. Operations are
those measured for Mixtral, with one more for the bias of experts, which is a module within the router. The
layers that predict further tokens are left out, as in transformers.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists
from simoffload.models.families.experts import EXPERT_OPERATIONS, Experts, ExpertsConfig, Index, expert_traits
from simoffload.models.families.rotary import after
from simoffload.models.modules import Module, Parameter, Traits, activation

_Last = Annotated[int, Field(strict=True, ge=-1, le=100_000)]


class Ernie4p5Moe(ExpertsConfig):
    """The configuration of ERNIE 4.5 models with experts: Hugging Face's ``Ernie4_5_MoeConfig``."""

    family: ClassVar[str] = "ernie4_5_moe"
    traits: ClassVar[Traits] = expert_traits(
        "Ernie4_5_MoeForCausalLM", operations=EXPERT_OPERATIONS._replace(router=5), float16=False
    )
    spellings: ClassVar[dict[str, str]] = {"num_experts": "moe_num_experts", "moe_k": "num_experts_per_tok"}
    experts_key: ClassVar[str] = "moe_num_experts"

    num_key_value_heads: Count | None = 4
    tie_word_embeddings: Flag = True
    use_bias: Flag | None = False
    moe_intermediate_size: Extent = 1536
    num_experts_per_tok: Experts = 6
    moe_num_experts: Experts = 64
    moe_num_shared_experts: Index | None = 2
    moe_layer_start_index: Index | None = 1
    moe_layer_end_index: _Last | None = -1
    moe_layer_interval: Count | None = 1

    @property
    def _gated_bias(self) -> bool:
        return bool(self.use_bias)

    @property
    def _dense(self) -> list[bool]:
        first, last, layers = (
            self.moe_layer_start_index or 0,
            self.moe_layer_end_index,
            self.num_hidden_layers,
        )
        last = layers - 1 if last in (-1, None) else last
        return [
            not (first <= at <= last) or (at + 1) % (self.moe_layer_interval or 1) != 0
            for at in range(layers)
        ]

    def _experts_and_shared(self) -> tuple[Module, ...]:
        block, *routed = self._routed()
        name = "mlp.gate.moe_statics"
        bias = activation(name, self._experts, reads=2, writes=1)._replace(
            parallel="whole", parameters=(Parameter(f"{name}.e_score_correction_bias", self._experts),)
        )
        shared: tuple[Module, ...] = ()
        if number := self.moe_num_shared_experts:
            wide = number * self._width
            shared = self._gated(name="mlp.shared_experts", wide=wide, bias=self._gated_bias)
        return (block, *shared, *after(routed, "mlp.gate", bias))

    def modules(self) -> ModuleLists:
        """Return the modules of ``Ernie4_5_MoeForCausalLM`` in call order."""
        attend = self._self_attention(bias=self._gated_bias, output_bias=self._gated_bias)
        return self._mixed("Ernie4_5_Moe", attend, self._experts_and_shared(), self._dense)
