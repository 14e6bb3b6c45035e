"""Gemma 4's language models: heads of two sizes, embeddings of each layer, shared caches, and experts beside
the feed-forward network.

Modules and their order: transformers/models/gemma4/modeling_gemma4.py at 5.23.0. Layers with full attention
have heads of their own size, and may have one projection for keys and values, which are then normalized
differently and both cached. Operations are Gemma 3's and, for the router, our count. Not counted: that
``generate`` runs layers with shared caches for the last token of a prompt alone. Files of models that also
take images and sounds (``model_type: gemma4``) have this configuration under ``text_config``.
"""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists, Width, invalid
from simoffload.models.families.experts import Absent, ExpertsConfig
from simoffload.models.families.gemma import Gemma3Text, layer_tables
from simoffload.models.families.rotary import PerLayer, after, head_norms, own_attention, own_size
from simoffload.models.families.streams import unweighted_norm
from simoffload.models.modules import Heads, Module, Parameter, Traits


class Gemma4Text(Gemma3Text, ExpertsConfig):
    """The configuration of Gemma 4 text models: Hugging Face's ``Gemma4TextConfig``."""

    family: ClassVar[str] = "gemma4_text"
    aliases: ClassVar[tuple[str, ...]] = ("gemma4",)
    traits: ClassVar[Traits] = Gemma3Text.traits._replace(
        architecture="Gemma4ForCausalLM", operations=Gemma3Text.traits.operations._replace(router=9)
    )
    spellings: ClassVar[dict[str, str]] = {"num_experts_per_tok": "top_k_experts"}

    vocab_size: Extent = 262_144
    sliding_window: Extent | None = 512
    global_head_dim: Width = 512
    num_global_key_value_heads: Count | None = None
    per_layer_config: PerLayer | None = None
    attention_k_eq_v: Flag = False
    """Whether full attention has one projection for keys and values."""
    num_kv_shared_layers: Absent = 0
    """Last layers that attend to the cache of an earlier one of their kind."""
    use_double_wide_mlp: Flag = False
    """Whether those have a network twice as wide."""
    hidden_size_per_layer_input: Absent = 256
    vocab_size_per_layer_input: Extent = 262_144
    enable_moe_block: Flag = False
    num_experts: Absent = 0
    num_experts_per_tok: Absent = Field(0, alias="top_k_experts")
    moe_intermediate_size: Absent = 0

    def windows(self) -> tuple[int | None, ...]:
        """Return the sliding window of the attention of each layer; the last one never has one."""
        return (*super().windows()[:-1], None)

    @property
    def _kinds(self) -> list[tuple[bool, bool]]:
        """Whether each layer slides, and whether it uses the cache of an earlier one."""
        own = self.num_hidden_layers - self.num_kv_shared_layers
        return [(window is not None, index >= own) for index, window in enumerate(self.windows())]

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        super().checked()
        if any((slides, False) not in self._kinds for slides, _ in self._kinds):
            text = "num_kv_shared_layers leaves no layer of the same kind that has the cache of the last ones"
            raise invalid("num_kv_shared_layers", text, self.num_kv_shared_layers)
        needed = self.num_experts, self.num_experts_per_tok, self.moe_intermediate_size
        if self.enable_moe_block and not all(needed):
            text = "enable_moe_block needs num_experts, top_k_experts and moe_intermediate_size"
            raise invalid("enable_moe_block", text, True)
        return self

    def _heads(self, slides: bool) -> Heads:
        keys, width, own = self.derived().num_key_value_heads, self.derived().head_dim, self.per_layer_config
        if not slides:
            keys = (self.attention_k_eq_v and self.num_global_key_value_heads) or keys
            keys, width = (
                own_size(own, "num_key_value_heads", keys),
                own_size(own, "head_dim", self.global_head_dim),
            )
        return Heads(self.num_attention_heads, keys, width, width)

    def _attend(self, slides: bool, shared: bool) -> tuple[Module, ...]:
        heads, bias = self._heads(slides), self.attention_bias
        window = self.sliding_window if slides else None
        attend = own_attention(self.hidden_size, heads, bias, bias, borrowed=shared, window=window)
        queries, keys = head_norms(heads, single=True)
        values = unweighted_norm("self_attn.v_norm", heads.values, heads=heads.shared)
        norms = keys, values._replace(parallel="keys", heads=heads)
        found = after(after(attend, "self_attn.q_proj", queries), "self_attn.v_proj", *norms)
        one_projection = self.attention_k_eq_v and not slides
        return tuple(one for one in found if not one_projection or one.name != "self_attn.v_proj")

    def _network(self, shared: bool) -> tuple[Module, ...]:
        """Return the network of a layer, and experts that work on what it works on."""
        dense = self._gated(wide=self.intermediate_size * (2 if shared and self.use_double_wide_mlp else 1))
        if not self.enable_moe_block:
            return dense
        block, product, *experts = self._routed("", "router.proj")
        scales = {"router.scale": self.hidden_size, "router.per_expert_scale": self.num_experts}
        return (
            *dense,
            self._norm("post_feedforward_layernorm_1"),
            block._replace(name="router", parameters=tuple(map(Parameter, scales, scales.values()))),
            unweighted_norm("router.norm", self.hidden_size),
            product,
            self._norm("pre_feedforward_layernorm_2"),
            *experts,
            self._norm("post_feedforward_layernorm_2"),
        )

    def modules(self) -> ModuleLists:
        """Return the modules of ``Gemma4ForCausalLM`` in call order."""
        each, hidden, depth = self.hidden_size_per_layer_input, self.hidden_size, self.num_hidden_layers
        tables, more = layer_tables(depth, each, hidden, self.vocab_size_per_layer_input)
        made = {
            kind: self._layer("Gemma4Text", self._attend(*kind), self._network(kind[1]), *more)
            for kind in set(self._kinds)
        }
        rotated = [self._heads(slides).keys for slides in sorted({slides for slides, _ in made})]
        return self._lists("Gemma4", tuple(made[kind] for kind in self._kinds), *tables, rotated=rotated)
