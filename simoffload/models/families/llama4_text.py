"""Llama 4 (text): experts, a shared one, dense layers in turn, and layers without rotary positions.

Modules and their order: transformers/models/llama4/modeling_llama4.py at 5.23.0. Operations are those
measured for Mixtral. Two things differ from that code: it multiplies every expert with every token, the
inputs of those not chosen being zero, while only the chosen ones count here, as in serving engines; and
attention in chunks counts as a sliding window of the same length, which has the same cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists, Width
from simoffload.models.families.experts import (
    EXPERT_OPERATIONS,
    Experts,
    ExpertsConfig,
    Positions,
    expert_traits,
    without_lists,
)
from simoffload.models.families.rotary import after, kinds_of_layers
from simoffload.models.modules import Module, Traits

Rotated = Literal[0, 1]
LayerType = Literal["full_attention", "chunked_attention"]
Step = Annotated[int, Field(strict=True, ge=1, le=100_000)]


class Llama4Text(ExpertsConfig):
    """The configuration of Llama 4's language model: Hugging Face's ``Llama4TextConfig``."""

    family: ClassVar[str] = "llama4_text"
    within: ClassVar[str | None] = "llama4"
    traits: ClassVar[Traits] = expert_traits(
        "Llama4ForCausalLM", operations=EXPERT_OPERATIONS._replace(grouped=0)
    )
    spellings: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    experts_key: ClassVar[str] = "num_local_experts"
    width_key: ClassVar[str] = "intermediate_size"

    max_position_embeddings: Annotated[int, Field(strict=True, ge=1, le=100_000_000)] | None = None
    num_key_value_heads: Count | None = 8
    head_dim: Width | None = 128
    intermediate_size_mlp: Extent = 16384
    num_local_experts: Experts = 16
    num_experts_per_tok: Experts = 1
    interleave_moe_layer_step: Step = 1
    moe_layers: Positions | None = None
    no_rope_layer_interval: Step = 4
    no_rope_layers: Annotated[tuple[Rotated, ...], kinds_of_layers(Rotated)] | None = None
    """1 for each layer that has rotary positions."""
    layer_types: Annotated[tuple[LayerType, ...], kinds_of_layers(LayerType)] | None = None
    attention_chunk_size: Extent | None = 8192
    use_qk_norm: Flag = True
    attention_bias: Flag = False

    @classmethod
    def replaced(cls, base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the replaced keys; with another number of layers the pattern applies, not a file's
        lists."""
        merged = super().replaced(base, overrides)
        return without_lists(merged, overrides, "moe_layers", "no_rope_layers", "layer_types")

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        self._one_for_each_layer("no_rope_layers", self.no_rope_layers or None)
        self._one_for_each_layer("layer_types", self.layer_types)
        self._within_depth("moe_layers", self.moe_layers)
        return super().checked()

    @property
    def _rotated(self) -> list[bool]:
        given, interval = self.no_rope_layers, self.no_rope_layer_interval
        if given:
            return [bool(one) for one in given]
        return [(index + 1) % interval != 0 for index in range(self.num_hidden_layers)]

    def windows(self) -> tuple[int | None, ...]:
        """Return the length of the chunks in which layers attend: those listed as chunked, by default the
        rotated ones; None for the others."""
        kinds = self.layer_types
        chunked = self._rotated if kinds is None else [kind == "chunked_attention" for kind in kinds]
        return tuple(self.attention_chunk_size if one else None for one in chunked)

    def modules(self) -> ModuleLists:
        """Return the modules of ``Llama4ForCausalLM`` in call order."""
        step, given = self.interleave_moe_layer_step, self.moe_layers
        sparse = [
            (index + 1) % step == 0 if given is None else index in given
            for index in range(self.num_hidden_layers)
        ]
        shared = self._gated(name="feed_forward.shared_expert", act="activation_fn")
        experts = (*self._routed("feed_forward", "router"), *shared)
        dense = self._gated(name="feed_forward", wide=self.intermediate_size_mlp, act="activation_fn")
        blocks = {
            (rotated, mixed): self._normed(self._attend(rotated), experts if mixed else dense)
            for rotated in (False, True)
            for mixed in (False, True)
        }
        layers = [blocks[kind] for kind in zip(self._rotated, sparse, strict=True)]
        return self._around("Llama4Text", *layers, model="Llama4ForCausalLM")

    def _attend(self, rotated: bool) -> tuple[Module, ...]:
        bias = self.attention_bias
        attend = self._self_attention(bias=bias, output_bias=bias, rotated=1.0 if rotated else 0.0)
        if not (rotated and self.use_qk_norm):
            return attend
        queries, keys = map(_l2_norm, self._widths)
        return after(attend, "self_attn.v_proj", queries, keys._replace(parallel="keys"))


def _l2_norm(width: int) -> Module:
    """Return a norm without a weight: cast (1 read, 2 written), square (2, 2), mean (2, 0), scale (2, 2),
    cast back (2, 1); a single-precision element counts as two."""
    return Module(
        "self_attn.qk_norm",
        "norm",
        in_features=9 * width,
        out_features=7 * width,
        width=width,
        parallel="heads",
    )
