"""OPT: learned positions (two more than ``max_position_embeddings``), biases, tied embedding.

Only OPT-350m normalizes after each half, has no final norm, and has an embedding narrower than its hidden
size. Modules and their order: transformers/models/opt/modeling_opt.py at 5.23.0; the same at 4.46.3.
``OPTForCausalLM`` calls ``model.decoder`` directly, so the hooks of ``model`` never fire.
"""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from simoffload.models.caching import CpuAttentionCode
from simoffload.models.families.base import (
    Derived,
    Extent,
    FamilyConfig,
    Flag,
    ModuleLists,
    Width,
)
from simoffload.models.modules import (
    EAGER,
    Module,
    Operations,
    SavedActivations,
    Traits,
    activation,
    attention,
    container,
    embedding,
    head,
    layer_norm,
    linear,
)

# OPTLearnedPositionalEmbedding keeps the rows that fairseq reserved for padding.
_POSITION_OFFSET = 2


class Opt(FamilyConfig):
    """The configuration of OPT models: Hugging Face's ``OPTConfig``."""

    family: ClassVar[str] = "opt"
    traits: ClassVar[Traits] = Traits(
        architecture="OPTForCausalLM",
        tensor_plan=False,
        in_gguf=False,
        attention="sdpa",
        operations=Operations(
            block=8, mlp=0, norm=1, activation=0, attention=15, eager=EAGER, rotary=0, router=0
        ),
        saved=SavedActivations(kept=1, product=False, masks=2, wide=2, narrow=1, scores=12),
        leaf_modules=(),
        lora_targets=("q_proj", "v_proj"),
        cpu_attention=CpuAttentionCode(single=True, passes=8, returns_half=True),
    )

    vocab_size: Extent = 50272
    ffn_dim: Extent
    max_position_embeddings: Extent = 2048
    word_embed_proj_dim: Width | None = None
    do_layer_norm_before: Flag = True
    remove_final_layer_norm: Flag = Field(default=False, alias="_remove_final_layer_norm")
    enable_bias: Flag = True
    layer_norm_elementwise_affine: Flag = True
    tie_word_embeddings: Flag = True

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        self._whole_heads()
        return self

    def derived(self) -> Derived:
        """Return the model's sizes under the names that all families share; there are as many
        key-value heads as query heads."""
        return Derived(
            num_key_value_heads=self.num_attention_heads,
            head_dim=self.hidden_size // self.num_attention_heads,
            intermediate_size=self.ffn_dim,
            max_position_embeddings=self.max_position_embeddings,
        )

    def modules(self) -> ModuleLists:
        """Return the modules of ``OPTForCausalLM`` in call order."""
        hidden, embedding_name = self.hidden_size, "model.decoder.embed_tokens"
        narrow = self.word_embed_proj_dim or hidden
        before = [
            container("OPTForCausalLM"),
            container("model.decoder"),
            embedding(embedding_name, self.vocab_size, narrow),
            embedding(
                "model.decoder.embed_positions",
                self.max_position_embeddings + _POSITION_OFFSET,
                hidden,
                parallel="whole",
            ),
        ]
        after = []
        if self.do_layer_norm_before and not self.remove_final_layer_norm:
            after.append(self._norm("model.decoder.final_layer_norm"))
        if narrow != hidden:
            before.append(linear("model.decoder.project_in", narrow, hidden))
            after.append(linear("model.decoder.project_out", hidden, narrow))
        tied_to = f"{embedding_name}.weight" if self.tie_word_embeddings else None
        after.append(head(narrow, self.vocab_size, tied_to=tied_to))
        return ModuleLists(tuple(before), (self._layer(),) * self.num_hidden_layers, tuple(after))

    def _layer(self) -> tuple[Module, ...]:
        hidden, bias = self.hidden_size, self.enable_bias
        attend = (
            container("self_attn"),
            linear("self_attn.q_proj", hidden, hidden, bias=bias, parallel="column"),
            linear("self_attn.k_proj", hidden, hidden, bias=bias, parallel="keys"),
            linear("self_attn.v_proj", hidden, hidden, bias=bias, parallel="keys"),
            attention("self_attn.attention", query_width=hidden, scaled_width=hidden),
            linear("self_attn.out_proj", hidden, hidden, bias=bias, parallel="row"),
        )
        feed_forward = (
            linear("fc1", hidden, self.ffn_dim, bias=bias, flat=True, parallel="column"),
            activation("activation_fn", self.ffn_dim, reads=1, writes=1),
            linear("fc2", self.ffn_dim, hidden, bias=bias, flat=True, parallel="row"),
        )
        block = container(
            "OPTDecoderLayer", reads=4 * hidden, writes=2 * hidden, touched=1
        )  # adds two residuals
        first, second = self._norm("self_attn_layer_norm"), self._norm("final_layer_norm")
        if self.do_layer_norm_before:
            return (block, first, *attend, second, *feed_forward)
        return (block, *attend, first, *feed_forward, second)

    def _norm(self, name: str) -> Module:
        return layer_norm(name, self.hidden_size, affine=self.layer_norm_elementwise_affine)
