"""Qwen3-Next: gated DeltaNet in three layers of four, gated attention in the fourth; experts.

Modules and their order: transformers/models/qwen3_next/modeling_qwen3_next.py at 5.23.0. Operations are those
measured for Mixtral; the time of linear attention is a lower bound. The module that predicts a further token
is left out, as in transformers.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists, Width, invalid
from simoffload.models.families.experts import Experts, SparseStepConfig, expert_traits, without_lists
from simoffload.models.families.linear_attention import (
    TIME_IS_A_BOUND,
    DeltaNet,
    every_nth,
    is_linear,
)
from simoffload.models.families.rotary import RotatedPart, kinds_of_layers, rotary_factor
from simoffload.models.modules import Module, Traits, linear
from simoffload.models.shape import parameters_of

_Kind = Literal["linear_attention", "full_attention"]


class Qwen3Next(SparseStepConfig):
    """The configuration of Qwen3-Next models: Hugging Face's ``Qwen3NextConfig``."""

    family: ClassVar[str] = "qwen3_next"
    traits: ClassVar[Traits] = expert_traits("Qwen3NextForCausalLM", leaf_modules=("mlp",))
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}

    num_key_value_heads: Count | None = 2
    head_dim: Width | None = 256
    attention_bias: Flag = False
    partial_rotary_factor: RotatedPart = 0.25
    num_experts: Experts = 512
    num_experts_per_tok: Experts = 10
    moe_intermediate_size: Extent = 512
    shared_expert_intermediate_size: Extent = 512
    full_attention_interval: Count = 4
    layer_types: Annotated[tuple[_Kind, ...], kinds_of_layers(_Kind)] | None = None
    """Kind of each layer; without it, every ``full_attention_interval``-th has full attention."""
    linear_num_key_heads: Count = 16
    linear_num_value_heads: Count = 32
    linear_key_head_dim: Width = 128
    linear_value_head_dim: Width = 128
    linear_conv_kernel_dim: Count = 4

    @classmethod
    def replaced(cls, base: Any, overrides: Any) -> dict[str, Any]:
        """Return the replaced keys; with another number of layers the interval applies, not a file's list."""
        return without_lists(super().replaced(base, overrides), overrides, "layer_types")

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        self._one_for_each_layer("layer_types", self.layer_types)
        if self.linear_num_value_heads % self.linear_num_key_heads:
            message = (
                f"linear_num_value_heads {self.linear_num_value_heads} is not a multiple of "
                f"linear_num_key_heads {self.linear_num_key_heads}"
            )
            raise invalid("linear_num_value_heads", message, self.linear_num_value_heads)
        return super().checked()

    @property
    def _linear(self) -> tuple[bool, ...]:
        """Which layers have linear attention."""
        return is_linear(self.layer_types or every_nth(self.num_hidden_layers, self.full_attention_interval))

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what the shape does not contain, or only bounds."""
        left_out = (
            "the module that predicts a further token (mtp of the checkpoint, "
            f"{self.further_parameters:,} parameters) is not counted, as transformers does not load it"
        )
        return (left_out, TIME_IS_A_BOUND) if any(self._linear) else (left_out,)

    @property
    def further_parameters(self) -> int:
        """The number of parameters of the module that predicts a further token: a layer with full attention
        and experts, a product of its two inputs, and norms of these and of the result."""
        layer = self._normed(self._gated_attention(), self._networks[0])
        return parameters_of(layer) + 2 * self.hidden_size**2 + 3 * self.hidden_size

    def _gated_attention(self) -> tuple[Module, ...]:
        """Return attention whose first projection also computes a gate of the result, which is read with it
        (sigmoid 1 read, 1 written; product 2, 1)."""
        hidden, (query_width, _) = self.hidden_size, self._widths
        wide = linear(
            "self_attn.q_proj", hidden, 2 * query_width, bias=self.attention_bias, parallel="column"
        )
        factor = rotary_factor(self.rope_parameters, self.partial_rotary_factor)
        rotated = {one.name: one for one in self._self_attention(rotated=factor)}["self_attn.attention"]
        gated = rotated._replace(
            in_features=rotated.in_features + 3 * query_width,
            out_features=rotated.out_features + 2 * query_width,
        )
        new = {wide.name: wide, gated.name: gated}
        return tuple(new.get(one.name, one) for one in self._normed_heads(self.attention_bias))

    @property
    def _networks(self) -> tuple[tuple[Module, ...], tuple[Module, ...]]:
        """Experts with a shared one, and the network of dense layers."""
        block, *routed = self._routed()
        gate = linear("mlp.shared_expert_gate", self.hidden_size, 1, flat=True)
        shared = self._gated(name="mlp.shared_expert", wide=self.shared_expert_intermediate_size)
        return (block, *shared, *routed, gate), self._gated()

    def modules(self) -> ModuleLists:
        """Return the modules of ``Qwen3NextForCausalLM`` in call order."""
        net = DeltaNet(
            self.linear_num_key_heads,
            self.linear_num_value_heads,
            self.linear_key_head_dim,
            self.linear_value_head_dim,
            self.linear_conv_kernel_dim,
        )
        networks = self._networks
        attends = self._gated_attention(), net.modules(self.hidden_size)
        made = {
            (recurrent, dense): self._normed(attends[recurrent], networks[dense])
            for recurrent in (False, True)
            for dense in (False, True)
        }
        return self._around(
            "Qwen3Next", *(made[kind] for kind in zip(self._linear, self._dense, strict=True))
        )
