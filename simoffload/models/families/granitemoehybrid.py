"""Granite 4 hybrids: Mamba-2 in most layers, attention in the others; experts and a network for all tokens.

Modules and their order: transformers/models/granitemoehybrid/modeling_granitemoehybrid.py at 5.23.0.
Operations are those measured for Mixtral. Products with the constants of embedding, residuals and logits are
not counted.
"""

from __future__ import annotations

from typing import ClassVar, Self

from simoffload.models.families.base import Derived, Extent, ModuleLists
from simoffload.models.families.experts import Index, expert_traits
from simoffload.models.families.recurrent import LINEAR, Mamba2Config, MixersConfig
from simoffload.models.families.rotary import RotaryConfig
from simoffload.models.modules import Module, Traits, activation, container, linear


class GraniteMoeHybrid(Mamba2Config, MixersConfig):
    """The configuration of Granite 4 hybrids: Hugging Face's ``GraniteMoeHybridConfig``."""

    family: ClassVar[str] = "granitemoehybrid"
    traits: ClassVar[Traits] = expert_traits("GraniteMoeHybridForCausalLM", float16=False)
    spellings: ClassVar[dict[str, str]] = {"layer_types": "layers_block_type"}
    experts_key: ClassVar[str] = "num_local_experts"
    width_key: ClassVar[str] = "intermediate_size"

    num_local_experts: Index = 8
    num_experts_per_tok: Index = 2
    shared_intermediate_size: Extent = 1024
    position_embedding_type: str | None = None

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        self._one_for_each_layer("layers_block_type", self.layers_block_type)
        return super().checked() if self.num_local_experts else RotaryConfig.checked(self)

    def derived(self) -> Derived:
        """Return the model's sizes under the names that all families share."""
        sizes, count = super().derived(), self.num_local_experts
        if not count:
            return sizes._replace(intermediate_size=self.shared_intermediate_size)
        return sizes._replace(num_experts=count, experts_per_token=self.num_experts_per_tok)

    def _network(self) -> tuple[Module, ...]:
        hidden, wide = self.hidden_size, self.shared_intermediate_size
        return (
            *(self._routed("block_sparse_moe", "router") if self.num_local_experts else ()),
            container("shared_mlp", touched=1, code="mlp"),
            linear("shared_mlp.input_linear", hidden, 2 * wide, parallel="column"),
            activation("shared_mlp.activation", wide, reads=3, writes=2),
            linear("shared_mlp.output_linear", wide, hidden, parallel="row"),
        )

    def modules(self) -> ModuleLists:
        """Return the modules of ``GraniteMoeHybridForCausalLM`` in call order."""
        rotated, bias = self.position_embedding_type == "rope", self.attention_bias
        attend = self._self_attention(bias=bias, output_bias=bias, rotated=float(rotated))
        network = self._network()
        kinds = [self._normed(attend, network), self._normed(self._mamba(), network)]
        layers = (kinds[one == LINEAR] for one in self.layers_block_type)
        return self._around("GraniteMoeHybrid", *layers, rotary_outside=rotated)
