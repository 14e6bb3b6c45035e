"""Mixtral: Llama's attention and, instead of its feed-forward network, experts chosen by a router.

Modules and their order: transformers/models/mixtral/modeling_mixtral.py. The layout of the experts
decides what DeepSpeed fetches and when:

* ``fused`` (5.x): all experts of a layer are two tensors of one module. One of Mixtral-8x22B's holds
  1.6e9 elements, more than the swap buffers of the published ZeRO-Inference runs.
* ``separate`` (4.x, as in those runs): three linear modules per expert, every expert called in every
  pass, and the rotary embedding computed within every layer (at 4.46.3).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from simoffload.models.families.base import Count, Derived, Extent, ModuleLists, invalid
from simoffload.models.families.rotary import RotaryConfig
from simoffload.models.modules import (
    EAGER,
    Module,
    Operations,
    Parameter,
    SavedActivations,
    Traits,
    activation,
    container,
    linear,
)
from simoffload.models.routing import EVEN, Routing

Experts = Annotated[int, Field(strict=True, ge=1, le=1024)]


class Mixtral(RotaryConfig):
    """The configuration of Mixtral models: Hugging Face's ``MixtralConfig``, and the layout of the
    experts."""

    family: ClassVar[str] = "mixtral"
    traits: ClassVar[Traits] = Traits(
        architecture="MixtralForCausalLM",
        attention="sdpa",
        operations=Operations(
            block=5, mlp=2, norm=8, activation=0, attention=25, eager=EAGER, rotary=15, router=4
        ),
        saved=SavedActivations(kept=3, product=True, masks=0, wide=2, narrow=1, scores=12),
        leaf_modules=("mlp", "block_sparse_moe"),
        lora_targets=("q_proj", "v_proj"),
    )
    spellings: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    routing: ClassVar[Routing] = EVEN
    """The few experts of Mixtral are chosen about equally often (Jiang et al., arXiv 2401.04088, figure
    7)."""

    vocab_size: Extent = 32000
    num_key_value_heads: Count | None = 8
    num_local_experts: Experts = 8
    num_experts_per_tok: Experts = 2
    expert_layout: Literal["fused", "separate"] = "fused"

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        super().checked()
        if self.num_experts_per_tok > self.num_local_experts:
            raise invalid(
                "num_experts_per_tok",
                f"num_experts_per_tok {self.num_experts_per_tok} is more than num_local_experts "
                f"{self.num_local_experts}",
                self.num_experts_per_tok,
            )
        return self

    def derived(self) -> Derived:
        """Return the model's sizes under the names that all families share; a size missing in
        config.json gets its default."""
        return (
            super()
            .derived()
            ._replace(num_experts=self.num_local_experts, experts_per_token=self.num_experts_per_tok)
        )

    @property
    def _share(self) -> float:
        return self.num_experts_per_tok / self.num_local_experts

    def modules(self) -> ModuleLists:
        """Return the modules of ``MixtralForCausalLM`` in call order."""
        separate = self.expert_layout == "separate"
        experts = self._separate_experts() if separate else self._fused_experts()
        layer = self._normed(self._self_attention(rotary_within=separate), experts)
        return self._around("Mixtral", layer, rotary_outside=not separate)

    def _block(self, name: str) -> tuple[Module, Module]:
        """Return the sum of the chosen experts' results, weighed (1 read, 1 written) and added (2, 1), and
        the router."""
        summed = self.num_experts_per_tok * self.hidden_size
        return (
            container(name, reads=3 * summed, writes=2 * summed),
            linear(f"{name}.gate", self.hidden_size, self.num_local_experts, kind="router"),
        )

    def _fused_experts(self) -> tuple[Module, ...]:
        hidden, wide, experts = self.hidden_size, self.intermediate_size, self.num_local_experts
        name = "mlp.experts"
        both = Module(
            name,
            "linear",
            (
                Parameter(f"{name}.gate_up_proj", experts * 2 * wide * hidden, columns=hidden),
                Parameter(f"{name}.down_proj", experts * hidden * wide, columns=wide),
            ),
            in_features=experts * (hidden + wide),
            out_features=experts * (2 * wide + hidden),
            share=self._share,
        )
        act = activation(f"{name}.act_fn", experts * wide, reads=3, writes=2, share=self._share)
        return (*self._block("mlp"), both, act)

    def _separate_experts(self) -> tuple[Module, ...]:
        modules: list[Module] = [*self._block("block_sparse_moe")]
        for expert in range(self.num_local_experts):
            modules.extend(self._one_expert(f"block_sparse_moe.experts.{expert}"))
        return tuple(modules)

    def _one_expert(self, name: str) -> tuple[Module, ...]:
        hidden, wide, share = self.hidden_size, self.intermediate_size, self._share
        return (
            container(name),
            linear(f"{name}.w1", hidden, wide, share=share),
            activation(f"{name}.act_fn", wide, reads=3, writes=2, share=share),
            linear(f"{name}.w3", hidden, wide, share=share),
            linear(f"{name}.w2", wide, hidden, share=share),
        )
