"""Falcon: one head of keys and values for all queries (7B), or groups of them (40B and 180B).

Modules and their order: transformers/models/falcon/modeling_falcon.py at 5.23.0. It expands grouped keys and
values to every query head before it caches them: ``num_kv_heads`` makes the projection smaller, not the
cache. vLLM caches what is projected (``total_num_kv_heads`` in vllm/model_executor/models/falcon.py).
Operations: Llama's measured ones, minus six views of queries, keys and values, which are split in eleven
operations; plus one to transpose each weight, and one to add the result of attention. ALiBi (Falcon-RW) is
not modelled. Memory in training with eager attention is overestimated by up to 16 % for short sequences.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from simoffload.models.families.base import Count, Derived, Extent, FamilyConfig, Flag, ModuleLists, invalid
from simoffload.models.families.rotary import RopeParameters
from simoffload.models.modules import (
    EAGER,
    Attention,
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
    rotary,
)


class Falcon(FamilyConfig):
    """The configuration of Falcon models: Hugging Face's ``FalconConfig``."""

    family: ClassVar[str] = "falcon"
    traits: ClassVar[Traits] = Traits(
        architecture="FalconForCausalLM",
        tensor_plan=False,
        attention="sdpa",
        operations=Operations(
            block=6, mlp=1, norm=1, activation=0, attention=30, eager=EAGER, rotary=15, router=0, linear=1
        ),
        saved=SavedActivations(kept=1, product=True, masks=0, wide=2, narrow=1, scores=8),
        leaf_modules=(),
        lora_targets=("query_key_value",),
        half_softmax=True,
    )
    spellings: ClassVar[dict[str, str]] = {"n_embed": "hidden_size"}

    vocab_size: Extent = 65024
    num_kv_heads: Count | None = None
    ffn_hidden_size: Extent | None = None
    max_position_embeddings: Extent = 2048
    new_decoder_architecture: Flag = False
    multi_query: Flag = True
    parallel_attn: Flag = True
    num_ln_in_parallel_attn: Literal[1, 2] | None = None
    bias: Flag = False
    alibi: Flag = False
    rope_parameters: RopeParameters | None = None
    rope_scaling: RopeParameters | None = None
    tie_word_embeddings: Flag = True

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        self._whole_heads()
        if self.alibi:
            raise invalid("alibi", "is not modelled for Falcon; the family bloom has ALiBi", True)
        if self.num_attention_heads % (self.num_kv_heads or self.num_attention_heads):
            raise invalid(
                "num_kv_heads",
                f"num_attention_heads {self.num_attention_heads} is not a multiple of num_kv_heads "
                f"{self.num_kv_heads}",
                self.num_kv_heads,
            )
        if self.new_decoder_architecture and not self.parallel_attn:
            raise invalid("parallel_attn", "new_decoder_architecture needs parallel_attn", False)
        if self.num_ln_in_parallel_attn == 2 and not self.new_decoder_architecture:
            raise invalid("num_ln_in_parallel_attn", "2 needs new_decoder_architecture", 2)
        return self

    @property
    def _two_norms(self) -> bool:
        return self.new_decoder_architecture and self.num_ln_in_parallel_attn != 1

    @property
    def _projected(self) -> int:
        """The number of heads of keys that the projection computes."""
        if self.new_decoder_architecture:
            return self.num_kv_heads or self.num_attention_heads
        return 1 if self.multi_query else self.num_attention_heads

    @property
    def default_attention(self) -> Attention:
        """The default of the family; eager for one head of keys, for which PyTorch has no fused kernel."""
        return self.traits.attention if self._projected > 1 else "eager"

    def derived(self) -> Derived:
        """Return the model's sizes under the names that all families share; a size missing in
        config.json gets its default."""
        cached = self.num_attention_heads if self.new_decoder_architecture else self._projected
        return Derived(
            num_key_value_heads=cached,
            projected_key_value_heads=self._projected if self._projected < cached else None,
            head_dim=self.hidden_size // self.num_attention_heads,
            intermediate_size=self.ffn_hidden_size or 4 * self.hidden_size,
            max_position_embeddings=self.max_position_embeddings,
        )

    def modules(self) -> ModuleLists:
        """Return the modules of ``FalconForCausalLM`` in call order."""
        hidden, embedding_name = self.hidden_size, "transformer.word_embeddings"
        before = (
            container("FalconForCausalLM"),
            container("transformer"),
            embedding(embedding_name, self.vocab_size, hidden),
            rotary("transformer.rotary_emb", self.derived().head_dim, by_position=1),
        )
        tied_to = f"{embedding_name}.weight" if self.tie_word_embeddings else None
        after = (
            layer_norm("transformer.ln_f", hidden),
            head(hidden, self.vocab_size, tied_to=tied_to),
        )
        return ModuleLists(before, (self._layer(),) * self.num_hidden_layers, after)

    def _layer(self) -> tuple[Module, ...]:
        hidden, wide, bias = self.hidden_size, self.derived().intermediate_size, self.bias
        head_dim, width = self.derived().head_dim, hidden + 2 * self._projected * self.derived().head_dim
        keys = self.derived().num_key_value_heads * head_dim
        first: tuple[Module, ...] = (layer_norm("input_layernorm", hidden),)
        if self._two_norms:
            first = (layer_norm("ln_attn", hidden), layer_norm("ln_mlp", hidden, saves_input=False))
        between = () if self.parallel_attn else (layer_norm("post_attention_layernorm", hidden),)
        return (
            container("FalconDecoderLayer", reads=4 * hidden, writes=2 * hidden, touched=1),
            *first,
            container("self_attention", touched=1),
            linear("self_attention.query_key_value", hidden, width, bias=bias, parallel="fused"),
            attention("self_attention.attention", query_width=hidden, rotated_width=hidden + keys),
            linear("self_attention.dense", hidden, hidden, bias=bias, parallel="row"),
            *between,
            container("mlp", touched=1, code="mlp"),
            linear("mlp.dense_h_to_4h", hidden, wide, bias=bias, parallel="column"),
            activation("mlp.act", wide, reads=1, writes=1),
            linear("mlp.dense_4h_to_h", wide, hidden, bias=bias, parallel="row"),
        )
