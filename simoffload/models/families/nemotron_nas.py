"""Llama-Nemotron: Llama's layers, of which a search has made attention and network narrower, one product, or
nothing.

Modules as in modeling_decilm.py beside the weights (Llama-3_3-Nemotron-Super-49B-v1) and, but for the linear
layers, in vLLM's model_executor/models/nemotron_nas.py at 00bd1493; transformers has no code of its own.
Operations are those measured for Llama.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field, model_validator

from simoffload.documents import Frozen
from simoffload.models.families.base import Count, Derived, Extent, Flag, ModuleLists
from simoffload.models.families.rotary import RotaryConfig, llama_traits
from simoffload.models.modules import Module, Traits, container, linear, rms_norm

_STEP = 256
"""The width of a network is a multiple of it (``_find_multiple`` of vLLM's code)."""


class _Half(Frozen):
    model_config = ConfigDict(extra="ignore")

    no_op: Flag = False
    replace_with_linear: Flag = False
    sparsify: None = None
    """Not modelled, like ``moe``, ``num_sink_tokens`` and ``parallel_blocks``; a value is refused."""
    moe: None = None

    @model_validator(mode="after")
    def _has_sizes(self) -> Self:
        sizes = self.model_dump(include={"n_heads_in_group", "ffn_mult", "intermediate_size"})
        if not (self.no_op or self.replace_with_linear or any(sizes.values())):
            raise ValueError(f"needs {' or '.join(sizes)}, or true for no_op or replace_with_linear")
        return self


class _Attention(_Half):
    n_heads_in_group: Count | None = None
    """Heads of queries for each one of keys."""
    window_length: Extent | None = None
    num_sink_tokens: None = None


class _Network(_Half):
    ffn_mult: Annotated[float, Field(gt=0, le=1000)] | None = None
    intermediate_size: Extent | None = None

    def width(self, hidden: int) -> int:
        """Return the width: two thirds of ``ffn_mult`` times the model's, if none is stated."""
        return self.intermediate_size or -(-int(2 * (self.ffn_mult or 0.0) * hidden / 3) // _STEP) * _STEP


class _Block(Frozen):
    model_config = ConfigDict(extra="ignore")

    attention: _Attention
    ffn: _Network
    parallel_blocks: None = None


class NemotronNas(RotaryConfig):
    """The configuration of Llama-Nemotron models: ``DeciLMConfig`` beside their weights."""

    family: ClassVar[str] = "nemotron-nas"
    traits: ClassVar[Traits] = llama_traits("DeciLMForCausalLM", tensor_plan=False, float16=False)

    intermediate_size: Extent = 1
    """Without influence: ``block_configs`` states the width of every network."""
    block_configs: tuple[_Block, ...]
    attention_bias: Flag = False
    mlp_bias: Flag = False

    @model_validator(mode="before")
    @classmethod
    def _without_none(cls, raw: dict[str, Any]) -> dict[str, Any]:
        return {key: one for key, one in raw.items() if one is not None}

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        self._one_for_each_layer("block_configs", self.block_configs)
        return super().checked()

    def derived(self) -> Derived:
        """Return the model's sizes under the names that all families share: the largest of all layers."""
        heads = max(
            self.num_attention_heads // (one.attention.n_heads_in_group or 1_000_000)
            for one in self.block_configs
        )
        wide = max(one.ffn.width(self.hidden_size) for one in self.block_configs)
        return super().derived()._replace(num_key_value_heads=max(1, heads), intermediate_size=wide)

    def windows(self) -> tuple[int | None, ...]:
        """Return the sliding window of the attention of each layer; None for one without."""
        return tuple(one.attention.window_length for one in self.block_configs)

    def _layer(self, block: _Block) -> tuple[Module, ...]:
        attention, network, hidden = block.attention, block.ffn, self.hidden_size
        bias, found = self.attention_bias, list[Module]()
        if not attention.no_op:
            shared = self.num_attention_heads // (attention.n_heads_in_group or 1)
            own = self._self_attention(bias=bias, output_bias=bias, shared=shared)
            one = (container("self_attn"), linear("self_attn.linear_attn", hidden, hidden))
            found += [rms_norm("input_layernorm", hidden), *(one if attention.replace_with_linear else own)]
        if not network.no_op:
            mlp = self._gated(wide=network.width(hidden), bias=self.mlp_bias)
            one = (container("mlp"), linear("mlp.linear_mlp", hidden, hidden))
            found += [
                rms_norm("post_attention_layernorm", hidden),
                *(one if network.replace_with_linear else mlp),
            ]
        return tuple(found)

    def modules(self) -> ModuleLists:
        """Return the modules of ``DeciLMForCausalLM`` in call order."""
        kinds = {one: self._layer(one) for one in dict.fromkeys(self.block_configs)}
        return self._around("DeciLM", *(kinds[one] for one in self.block_configs))
