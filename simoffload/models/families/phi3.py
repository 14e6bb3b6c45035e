"""Phi-3 and Phi-4: Llama with fused projections (queries, keys and values; gate and up) and dropouts.

Modules and their order: transformers/models/phi3/modeling_phi3.py at 5.23.0. Operations are Llama's measured
ones plus what this code adds: in attention three slices of the fused projection and, for queries and for
keys, two slices and a join of the rotated and the other part; in the feed-forward network one to split it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from simoffload.models.families.base import Extent, ModuleLists
from simoffload.models.families.rotary import SlidingConfig, rotary_factor
from simoffload.models.modules import (
    EAGER,
    Module,
    Operations,
    SavedActivations,
    Traits,
    activation,
    attention,
    container,
    dropout,
    linear,
    rms_norm,
)


class Phi3(SlidingConfig):
    """The configuration of Phi-3 models: Hugging Face's ``Phi3Config``."""

    family: ClassVar[str] = "phi3"
    traits: ClassVar[Traits] = Traits(
        architecture="Phi3ForCausalLM",
        attention="sdpa",
        operations=Operations(
            block=5, mlp=3, norm=8, activation=0, attention=34, eager=EAGER, rotary=15, router=0
        ),
        saved=SavedActivations(
            kept=3, product=True, masks=0, wide=2, narrow=1, scores=12, fused_projection=True
        ),
        leaf_modules=(),
        lora_targets=("qkv_proj",),
    )

    vocab_size: Extent = 32064
    sliding_window: Extent | None = None
    partial_rotary_factor: float = 1.0
    rope_parameters: dict[str, Any] | None = None

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        rotary_factor(self.rope_parameters, self.partial_rotary_factor)
        return super().checked()

    def modules(self) -> ModuleLists:
        """Return the modules of ``Phi3ForCausalLM`` in call order."""
        layer = (
            rms_norm("input_layernorm", self.hidden_size),
            *self._fused_attention(),
            dropout("resid_attn_dropout"),
            rms_norm("post_attention_layernorm", self.hidden_size),
            container("mlp", touched=1, code="mlp"),
            linear("mlp.gate_up_proj", self.hidden_size, 2 * self.intermediate_size, parallel="column"),
            activation("mlp.activation_fn", self.intermediate_size, reads=3, writes=2),
            linear("mlp.down_proj", self.intermediate_size, self.hidden_size, parallel="row"),
            dropout("resid_mlp_dropout"),
        )
        return self._around("Phi3", layer, by_position=1)

    def _fused_attention(self) -> tuple[Module, ...]:
        hidden, (query_width, key_width) = self.hidden_size, self._widths
        both = query_width + key_width
        factor = rotary_factor(self.rope_parameters, self.partial_rotary_factor)
        rotated = both // self.derived().head_dim * int(self.derived().head_dim * factor)
        return (
            container("self_attn"),
            linear("self_attn.qkv_proj", hidden, query_width + 2 * key_width, parallel="fused"),
            attention(
                "self_attn.attention", query_width=query_width, rotated_width=rotated, joined_width=both
            ),
            linear("self_attn.o_proj", query_width, hidden, parallel="row"),
        )
