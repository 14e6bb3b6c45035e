"""MiMo-V2: experts, keys wider than values, and other heads in the layers that have a window.

Modules and their order: transformers/models/mimo_v2_flash/modeling_mimo_v2_flash.py at 5.23.0. Layers with a
window have twice the heads of keys, and sinks, which the fused kernels of PyTorch do not know. Operations are
those measured for Mixtral plus one that scales values and, in eager attention, those of gpt-oss for sinks.
The released files have older names of keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import model_validator

from simoffload.models.families.base import Count, Derived, Extent, Flag, ModuleLists, Width, invalid
from simoffload.models.families.experts import (
    EXPERT_OPERATIONS,
    Experts,
    Index,
    ListedDenseConfig,
    expert_traits,
)
from simoffload.models.families.rotary import RotatedPart, SlidingConfig, own_attention, rotary_factor
from simoffload.models.modules import EAGER, Heads, Module, Parameter, Traits


class MiMoV2Flash(ListedDenseConfig, SlidingConfig):
    """The configuration of MiMo-V2 models: Hugging Face's ``MiMoV2FlashConfig``."""

    family: ClassVar[str] = "mimo_v2_flash"
    aliases: ClassVar[tuple[str, ...]] = ("mimo_v2",)
    traits: ClassVar[Traits] = expert_traits(
        "MiMoV2FlashForCausalLM",
        attention="eager",
        operations=EXPERT_OPERATIONS._replace(attention=26, eager=EAGER + 6),
        half_softmax=True,
    )
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "n_routed_experts"}

    num_key_value_heads: Count | None = 4
    swa_num_key_value_heads: Count | None = None
    head_dim: Width | None = 192
    v_head_dim: Width = 128
    sliding_window: Extent | None = 129
    n_routed_experts: Experts = 256
    num_experts_per_tok: Experts = 8
    moe_intermediate_size: Extent = 2048
    first_k_dense_replace: Index | None = 1
    partial_rotary_factor: RotatedPart = 0.334
    attention_bias: Flag = False

    @model_validator(mode="before")
    @classmethod
    def _as_now(cls, raw: object) -> object:
        if not isinstance(raw, Mapping):
            return raw
        keys, window = dict(raw), raw.get("sliding_window_size")
        if type(window) is int:
            keys["sliding_window"] = window + 1  # the token itself
        names = ("full_attention", "sliding_attention"), ("dense", "sparse")
        lists = ("hybrid_layer_pattern", "layer_types"), ("moe_layer_freq", "mlp_layer_types")
        for (older, newer), values in zip(lists, names, strict=True):
            if isinstance(listed := raw.get(older), list):
                keys[newer] = [values[bool(one)] for one in listed]
        return keys

    def slides(self, layer: int, /) -> bool:
        """Return whether it is neither the first nor the last of six layers."""
        return layer > 0 and (layer + 1) % 6 != 0

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        if self.num_attention_heads % (keys := self._heads(True).shared):
            text = f"is not a multiple of the {keys} heads of keys of layers with a window"
            number = self.num_attention_heads
            raise invalid("num_attention_heads", f"num_attention_heads {number} {text}", number)
        return super().checked()

    def derived(self) -> Derived:
        """Return the model's sizes under the names that all families share."""
        return super().derived()._replace(value_head_dim=self.v_head_dim)

    def _heads(self, slides: bool) -> Heads:
        sizes, keys = self.derived(), self.derived().num_key_value_heads
        keys = (self.swa_num_key_value_heads or 2 * keys) if slides else keys
        return Heads(self.num_attention_heads, keys, sizes.head_dim, self.v_head_dim)

    def _attend(self, slides: bool) -> tuple[Module, ...]:
        kind = (self.rope_parameters or {}).get("sliding_attention" if slides else "full_attention")
        factor = rotary_factor(kind, self.partial_rotary_factor)
        bias, heads = self.attention_bias, self._heads(slides)
        block, *attend = own_attention(self.hidden_size, heads, bias, rotated=factor)
        sinks = (Parameter("self_attn.sinks", self.num_attention_heads),) if slides else ()
        return (block._replace(parameters=sinks, parallel="heads"), *attend)

    def modules(self) -> ModuleLists:
        """Return the modules of ``MiMoV2FlashForCausalLM`` in call order."""
        kinds = list(zip((one is not None for one in self.windows()), self._dense, strict=True))
        networks = self._routed(), self._gated()
        made = {kind: self._normed(self._attend(kind[0]), networks[kind[1]]) for kind in set(kinds)}
        rotations = len({slides for slides, _ in made})
        return self._around("MiMoV2Flash", *(made[kind] for kind in kinds), rotations=rotations)
