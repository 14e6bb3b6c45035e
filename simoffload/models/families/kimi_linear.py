"""Kimi Linear: Kimi delta attention, latent attention without positions in every fourth layer; experts.

Modules and their order: transformers/models/kimi_linear/modeling_kimi_linear.py at 5.23.0. Operations are
those measured for Mixtral.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import model_validator

from simoffload.models.families.base import Count, Extent, ModuleLists, Width
from simoffload.models.families.deepseek import LatentConfig
from simoffload.models.families.experts import Experts, Index, expert_traits, without_lists
from simoffload.models.families.recurrent import LINEAR, TIME_IS_A_BOUND, DeltaAttention
from simoffload.models.families.rotary import kinds_of_layers
from simoffload.models.modules import Module, Traits, attention

_Kind = Literal["linear_attention", "full_attention"]
_Network = Literal["dense", "sparse"]


class KimiLinear(LatentConfig):
    """The configuration of Kimi Linear models: Hugging Face's ``KimiLinearConfig``."""

    family: ClassVar[str] = "kimi_linear"
    traits: ClassVar[Traits] = expert_traits("KimiLinearForCausalLM")
    experts_key: ClassVar[str] = "num_experts"
    spellings: ClassVar[dict[str, str]] = {
        "num_local_experts": "num_experts",
        "num_experts_per_token": "num_experts_per_tok",
        "num_shared_experts": "n_shared_experts",
        "num_expert_group": "n_group",
        "model_max_length": "max_position_embeddings",
    }

    q_lora_rank: Width | None = None
    num_experts: Experts = 256
    num_experts_per_tok: Experts = 8
    moe_intermediate_size: Extent = 1024
    first_k_dense_replace: Index | None = 1
    linear_num_heads: Count = 32
    linear_head_dim: Width = 128
    linear_conv_kernel_dim: Count = 4
    layer_types: Annotated[tuple[_Kind, ...], kinds_of_layers(_Kind)] | None = None
    """Kind of each layer; without it, every fourth has full attention, but the first."""
    mlp_layer_types: Annotated[tuple[_Network, ...], kinds_of_layers(_Network)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _inner_keys(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Return the keys with those of ``linear_attn_config``, in which layers are counted from 1."""
        inner = raw.get("linear_attn_config")
        if not isinstance(inner, dict):
            return raw
        names = {"num_heads": "linear_num_heads", "head_dim": "linear_head_dim"}
        names["short_conv_kernel_size"] = "linear_conv_kernel_dim"
        found = {names[key]: value for key, value in inner.items() if key in names}
        if "full_attn_layers" in inner and isinstance(raw.get("num_hidden_layers"), int):
            full, every = inner["full_attn_layers"], range(1, raw["num_hidden_layers"] + 1)
            found["layer_types"] = ["full_attention" if one in full else LINEAR for one in every]
        return {**found, **raw}

    @classmethod
    def replaced(cls, base: Any, overrides: Any) -> dict[str, Any]:
        """Return the replaced keys; with another number of layers the usual kinds apply, not a file's."""
        return without_lists(super().replaced(base, overrides), overrides, "layer_types", "mlp_layer_types")

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        self._one_for_each_layer("layer_types", self.layer_types)
        self._one_for_each_layer("mlp_layer_types", self.mlp_layer_types)
        return super().checked()

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what the shape does not contain, or only bounds."""
        return (TIME_IS_A_BOUND,)

    def _latent_attention(self) -> tuple[Module, ...]:
        width = self.num_attention_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        values = self.num_attention_heads * self.v_head_dim
        own = attention("self_attn.attention", query_width=width, value_width=values)
        return tuple(own if one.kind == "attention" else one for one in super()._latent_attention())

    def modules(self) -> ModuleLists:
        """Return the modules of ``KimiLinearForCausalLM`` in call order."""
        every = range(self.num_hidden_layers)
        net = DeltaAttention(self.linear_num_heads, self.linear_head_dim, self.linear_conv_kernel_dim)
        attends = (self._latent_attention(), net.modules(self.hidden_size))
        networks = (self._routed_and_shared(), self._gated())
        kinds = self.layer_types or ["full_attention" if one and one % 4 == 0 else LINEAR for one in every]
        dense = [one == "dense" for one in self.mlp_layer_types or ()] or self._dense
        made = {one: self._normed(attends[one[0]], networks[one[1]]) for one in _PAIRS}
        layers = [made[one == LINEAR, own] for one, own in zip(kinds, dense, strict=True)]
        return self._around("KimiLinear", *layers, rotary_outside=False)


_PAIRS = [(recurrent, dense) for recurrent in (False, True) for dense in (False, True)]
