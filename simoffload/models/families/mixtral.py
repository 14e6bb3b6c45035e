"""Mixtral: Llama's attention and, instead of its feed-forward network, experts chosen by a router.

Modules and their order: transformers/models/mixtral/modeling_mixtral.py. The layout of the experts
decides what DeepSpeed fetches and when:

* ``fused`` (5.x): all experts of a layer are two tensors of one module. One of Mixtral-8x22B's holds
  1.6e9 elements, more than the swap buffers of the published ZeRO-Inference runs.
* ``separate`` (4.x, as in those runs): three linear modules per expert, every expert called in every
  pass, and the rotary embedding computed within every layer (at 4.46.3).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from simoffload.models.families.base import Count, Extent, ModuleLists
from simoffload.models.families.experts import Experts, ExpertsConfig, expert_traits
from simoffload.models.modules import Module, Traits, activation, container, linear
from simoffload.models.routing import EVEN, Routing


class Mixtral(ExpertsConfig):
    """The configuration of Mixtral models: Hugging Face's ``MixtralConfig``, and the layout of the
    experts."""

    family: ClassVar[str] = "mixtral"
    traits: ClassVar[Traits] = expert_traits(
        "MixtralForCausalLM",
        leaf_modules=("mlp", "block_sparse_moe"),
    )
    spellings: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    experts_key: ClassVar[str] = "num_local_experts"
    width_key: ClassVar[str] = "intermediate_size"
    routing: ClassVar[Routing] = EVEN
    """The few experts of Mixtral are chosen about equally often (Jiang et al., arXiv 2401.04088, figure
    7)."""

    vocab_size: Extent = 32000
    num_key_value_heads: Count | None = 8
    num_local_experts: Experts = 8
    num_experts_per_tok: Experts = 2
    expert_layout: Literal["fused", "separate"] = "fused"

    def modules(self) -> ModuleLists:
        """Return the modules of ``MixtralForCausalLM`` in call order."""
        separate = self.expert_layout == "separate"
        experts = self._separate_experts() if separate else self._routed()
        layer = self._normed(self._self_attention(rotary_within=separate), experts)
        return self._around("Mixtral", layer, rotary_outside=not separate)

    def _separate_experts(self) -> tuple[Module, ...]:
        block, router, *_ = self._routed("block_sparse_moe")
        modules = [block._replace(code="none"), router]
        for expert in range(self.num_local_experts):
            modules.extend(self._one_expert(f"block_sparse_moe.experts.{expert}"))
        return tuple(modules)

    def _one_expert(self, name: str) -> tuple[Module, ...]:
        hidden, wide = self.hidden_size, self.intermediate_size
        share = self.num_experts_per_tok / self.num_local_experts
        return (
            container(name),
            linear(f"{name}.w1", hidden, wide, share=share, parallel="column"),
            activation(f"{name}.act_fn", wide, reads=3, writes=2, share=share),
            linear(f"{name}.w3", hidden, wide, share=share, parallel="column"),
            linear(f"{name}.w2", wide, hidden, share=share, parallel="row"),
        )
