"""Llama 2 and 3, and families with Llama's layer: Mistral, OLMo 2, Phi-3."""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists
from simoffload.models.families.rotary import (
    RotaryConfig,
    RotatedPart,
    SlidingConfig,
    llama_traits,
    rotary_factor,
)
from simoffload.models.modules import (
    EAGER,
    CpuAttentionCode,
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

# -- llama 2 and 3 ---------------------------------------------------------------------------------
# Grouped-query attention, rotary positions, gated feed-forward network, RMSNorm.
#
# Modules and their order: transformers/models/llama/modeling_llama.py at 5.23.0; the same at 4.46.3 (some
# earlier releases computed the rotary embedding within every layer).


class Llama(RotaryConfig):
    """The configuration of Llama models: Hugging Face's ``LlamaConfig``."""

    family: ClassVar[str] = "llama"
    traits: ClassVar[Traits] = llama_traits(
        "LlamaForCausalLM", cpu_attention=CpuAttentionCode(single=True, passes=8, returns_half=False)
    )

    attention_bias: Flag = False
    mlp_bias: Flag = False

    @property
    def own_traits(self) -> Traits:
        """The traits of the family, with what the version of transformers that attends on the CPU does not
        load."""
        code = self.traits.cpu_attention
        assert code is not None
        return self.traits._replace(cpu_attention=code._replace(obstacle=self.unknown_to_4_32))

    def modules(self) -> ModuleLists:
        """Return the modules of ``LlamaForCausalLM`` in call order."""
        attend = self._self_attention(bias=self.attention_bias, output_bias=self.attention_bias)
        return self._around("Llama", self._normed(attend, self._gated(bias=self.mlp_bias)))


# -- mistral ---------------------------------------------------------------------------------------
# Llama's modules; every layer has a sliding window, if the configuration has one.
#
# Modules and their order: transformers/models/mistral/modeling_mistral.py at 5.23.0, whose code of a layer
# equals Llama's; the operations are therefore those measured for Llama. The files of Mistral Small 3.1 and
# later (``model_type: mistral3``), which also take images, have this configuration under ``text_config``.


class Mistral(SlidingConfig):
    """The configuration of Mistral models: Hugging Face's ``MistralConfig``."""

    family: ClassVar[str] = "mistral"
    aliases: ClassVar[tuple[str, ...]] = ("mistral3", "ministral", "ministral3")
    traits: ClassVar[Traits] = llama_traits("MistralForCausalLM")

    num_key_value_heads: Count | None = 8
    sliding_window: Extent | None = 4096

    def modules(self) -> ModuleLists:
        """Return the modules of ``MistralForCausalLM`` in call order."""
        return self._around("Mistral", self._normed(self._self_attention(), self._gated()))


# -- OLMo 2 ----------------------------------------------------------------------------------------
# Llama with norms behind each half of a layer, and over all queries and all keys together.
#
# Modules and their order: transformers/models/olmo2/modeling_olmo2.py at 5.23.0, whose code of a layer
# equals Llama's except for the norms, which are modules; the operations are therefore those measured for
# Llama.


class Olmo2(RotaryConfig):
    """The configuration of OLMo 2 models: Hugging Face's ``Olmo2Config``."""

    family: ClassVar[str] = "olmo2"
    traits: ClassVar[Traits] = llama_traits("Olmo2ForCausalLM")

    max_position_embeddings: Extent | None = 2048
    attention_bias: Flag = False

    def modules(self) -> ModuleLists:
        """Return the modules of ``Olmo2ForCausalLM`` in call order."""
        layer = (
            *self._normed_whole(self.attention_bias),
            rms_norm("post_attention_layernorm", self.hidden_size),
            *self._gated(),
            rms_norm("post_feedforward_layernorm", self.hidden_size),
        )
        return self._around("Olmo2", layer)


# -- Phi-3 and Phi-4 -------------------------------------------------------------------------------
# Llama with fused projections (queries, keys and values; gate and up) and dropouts.
#
# Modules and their order: transformers/models/phi3/modeling_phi3.py at 5.23.0. Operations are Llama's
# measured ones plus what this code adds: in attention three slices of the fused projection and, for queries
# and for keys, two slices and a join of the rotated and the other part; in the feed-forward network one to
# split it.


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
    )

    vocab_size: Extent = 32064
    sliding_window: Extent | None = None
    partial_rotary_factor: RotatedPart = 1.0

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
