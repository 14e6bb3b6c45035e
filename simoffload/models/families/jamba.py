"""Jamba: Mamba in most layers, attention without positions in the others; experts in every other layer.

Modules and their order: transformers/models/jamba/modeling_jamba.py at 5.23.0. Operations are those measured
for Mixtral. The scan of Mamba (Gu and Dao, arXiv 2312.00752) updates each element of the state with every
token (three products and sums).
"""

from __future__ import annotations

from functools import cache
from typing import ClassVar, Literal

from simoffload.models.families.base import Count, Flag, ModuleLists, Width
from simoffload.models.families.experts import Experts, ExpertsConfig, Index, expert_traits
from simoffload.models.families.recurrent import states, update
from simoffload.models.modules import Chunked, Module, Parameter, Traits, container, linear, rms_norm
from simoffload.models.shape import Layer


class Jamba(ExpertsConfig):
    """The configuration of Jamba models: Hugging Face's ``JambaConfig``."""

    family: ClassVar[str] = "jamba"
    traits: ClassVar[Traits] = expert_traits("JambaForCausalLM", float16=False)
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}
    width_key: ClassVar[str] = "intermediate_size"

    num_key_value_heads: Count | None = 8
    num_experts: Experts = 16
    num_experts_per_tok: Experts = 2
    expert_layer_period: Count = 2
    expert_layer_offset: Index = 1
    attn_layer_period: Count = 8
    attn_layer_offset: Index = 4
    mamba_d_state: Width = 16
    mamba_d_conv: Count = 4
    mamba_expand: Count = 2
    mamba_dt_rank: Width | Literal["auto"] = "auto"
    mamba_conv_bias: Flag = True
    mamba_proj_bias: Flag = False

    def _mamba(self) -> tuple[Module, ...]:
        hidden, state, bias = self.hidden_size, self.mamba_d_state, self.mamba_proj_bias
        inner, kernel = self.mamba_expand * hidden, self.mamba_d_conv
        rank = -(-hidden // 16) if self.mamba_dt_rank == "auto" else self.mamba_dt_rank
        own = [Parameter("mamba.A_log", inner * state), Parameter("mamba.D", inner)]
        own += [Parameter("mamba.dt_proj.weight", inner * rank, columns=rank)]  # read by the mixer itself
        own += [Parameter("mamba.dt_proj.bias", inner)]
        own += [Parameter("mamba.conv1d.weight", inner * kernel)]
        own += [Parameter("mamba.conv1d.bias", inner)] if self.mamba_conv_bias else []
        scanned = Chunked(inner * (6 * state + 2 * rank), 0)
        core = update("mamba.scan", convolved=inner, result=inner, more=2 * inner, chunked=scanned)
        return (
            container("mamba")._replace(parameters=tuple(own), parallel="heads"),
            linear("mamba.in_proj", hidden, 2 * inner, bias=bias, parallel="column"),
            linear("mamba.x_proj", inner, rank + 2 * state, parallel="row"),
            rms_norm("mamba.dt_layernorm", rank),
            rms_norm("mamba.b_layernorm", state),
            rms_norm("mamba.c_layernorm", state),
            core._replace(keeps=states(matrices=inner * state, inputs=inner, kernel=kernel, served=2)),
            linear("mamba.out_proj", inner, hidden, bias=bias, parallel="row"),
        )

    def modules(self) -> ModuleLists:
        """Return the modules of ``JambaForCausalLM`` in call order."""
        mixers, names = (
            (self._mamba(), self._self_attention(rotated=0.0)),
            ("input_layernorm", "pre_ff_layernorm"),
        )
        networks = self._gated(name="feed_forward"), self._routed("feed_forward", "router")
        every = range(self.num_hidden_layers)
        full = [one % self.attn_layer_period == self.attn_layer_offset for one in every]
        sparse = [one % self.expert_layer_period == self.expert_layer_offset for one in every]
        kinds = list(zip(full, sparse, strict=True))
        made = {one: self._normed(mixers[one[0]], networks[one[1]], *names) for one in dict.fromkeys(kinds)}
        found = self._around(
            "Jamba", *(made[one] for one in kinds), rotary_outside=False, norm="model.final_layernorm"
        )
        return found._replace(layers=tuple(map(self._called, full, found.layers)))

    @staticmethod
    @cache
    def _called(full: bool, layer: Layer) -> Layer:
        """Return a layer under the name of its class."""
        block, *inside = layer
        return (block._replace(name=f"Jamba{'Attention' if full else 'Mamba'}DecoderLayer"), *inside)
