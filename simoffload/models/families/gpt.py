"""Families with LayerNorm that follow GPT: OPT, BLOOM, GPT-NeoX and Falcon."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field

from simoffload.models.families.base import (
    Count,
    Derived,
    Extent,
    FamilyConfig,
    Flag,
    ModuleLists,
    Width,
    invalid,
)
from simoffload.models.families.rotary import RopeParameters, RotatedPart, rotary_factor
from simoffload.models.modules import (
    EAGER,
    Attention,
    CpuAttentionCode,
    Module,
    Operations,
    SavedActivations,
    Traits,
    activation,
    attention,
    container,
    dropout,
    embedding,
    head,
    layer_norm,
    linear,
    rotary,
)

# -- OPT: learned positions (two more than ``max_position_embeddings``), biases, tied embedding ----
# Only OPT-350m normalizes after each half, has no final norm, and has an embedding narrower than its hidden
# size. Modules and their order: transformers/models/opt/modeling_opt.py at 5.23.0; the same at 4.46.3.
# ``OPTForCausalLM`` calls ``model.decoder`` directly, so the hooks of ``model`` never fire.


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


# -- bloom -----------------------------------------------------------------------------------------
# BLOOM: one fused projection for queries, keys and values, ALiBi, biases everywhere, tied embedding.
#
# Modules and their order: transformers/models/bloom/modeling_bloom.py at 5.23.0; the same at 4.46.3.


class Bloom(FamilyConfig):
    """The configuration of BLOOM models: Hugging Face's ``BloomConfig``."""

    family: ClassVar[str] = "bloom"
    traits: ClassVar[Traits] = Traits(
        architecture="BloomForCausalLM",
        tensor_plan=False,
        attention="eager",  # there is no other
        operations=Operations(
            block=1, mlp=2, norm=1, activation=7, attention=21, eager=0, rotary=0, router=0, linear=1
        ),
        # GELU spelled out in Python, forward and backward; scores copied with the mask before softmax.
        saved=SavedActivations(kept=1, product=True, masks=0, wide=5, narrow=3, scores=15),
        leaf_modules=(),
        cpu_attention=CpuAttentionCode(single=False, passes=9, returns_half=False, biases=True),
    )
    spellings: ClassVar[dict[str, str]] = {
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_embed": "hidden_size",
    }

    vocab_size: Extent = 250880
    tie_word_embeddings: Flag = True

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        self._whole_heads()
        return self

    def derived(self) -> Derived:
        """Return the model's sizes under the names that all families share: there are as many
        key-value heads as query heads, and the feed-forward network is four times as wide as the model."""
        return Derived(
            num_key_value_heads=self.num_attention_heads,
            head_dim=self.hidden_size // self.num_attention_heads,
            intermediate_size=4 * self.hidden_size,
            max_position_embeddings=None,
        )

    def modules(self) -> ModuleLists:
        """Return the modules of ``BloomForCausalLM`` in call order."""
        hidden, embedding_name = self.hidden_size, "transformer.word_embeddings"
        before = (
            container("BloomForCausalLM"),
            container("transformer"),
            embedding(embedding_name, self.vocab_size, hidden),
            layer_norm("transformer.word_embeddings_layernorm", hidden),
        )
        layer = (
            container("BloomBlock", touched=2),
            layer_norm("input_layernorm", hidden),
            container("self_attention", reads=2 * hidden, writes=hidden, touched=3),  # adds the residual
            linear("self_attention.query_key_value", hidden, 3 * hidden, bias=True, parallel="fused"),
            attention("self_attention.attention", query_width=hidden),
            dropout("self_attention.attention_dropout"),
            linear("self_attention.dense", hidden, hidden, bias=True, parallel="row"),
            layer_norm("post_attention_layernorm", hidden),
            container("mlp", reads=2 * hidden, writes=hidden, touched=2, code="mlp"),  # adds the residual
            linear("mlp.dense_h_to_4h", hidden, 4 * hidden, bias=True, parallel="column"),
            # Spelled out in Python: nine kernels, of which three take two operands.
            activation("mlp.gelu_impl", 4 * hidden, reads=12, writes=9),
            linear("mlp.dense_4h_to_h", 4 * hidden, hidden, bias=True, parallel="row"),
        )
        tied_to = f"{embedding_name}.weight" if self.tie_word_embeddings else None
        after = (
            layer_norm("transformer.ln_f", hidden),
            head(hidden, self.vocab_size, tied_to=tied_to),
        )
        return ModuleLists(before, (layer,) * self.num_hidden_layers, after)


# -- GPT-NeoX and Pythia ---------------------------------------------------------------------------
# Fused projection, partly rotated heads, the two halves of a layer in parallel.
#
# Modules and their order: transformers/models/gpt_neox/modeling_gpt_neox.py at 5.23.0. Operations: Llama's
# measured ones, minus two views for each of queries, keys and values, which here are three in all, plus two
# slices and a join for queries and for keys; its feed-forward network has no product of its own.


class GptNeoX(FamilyConfig):
    """The configuration of GPT-NeoX models: Hugging Face's ``GPTNeoXConfig``."""

    family: ClassVar[str] = "gpt_neox"
    traits: ClassVar[Traits] = Traits(
        architecture="GPTNeoXForCausalLM",
        attention="sdpa",
        operations=Operations(
            block=5, mlp=1, norm=1, activation=0, attention=28, eager=EAGER, rotary=15, router=0
        ),
        saved=SavedActivations(
            kept=1, product=True, masks=0, wide=2, narrow=1, scores=12, fused_projection=True
        ),
        leaf_modules=(),
    )

    intermediate_size: Extent
    max_position_embeddings: Extent = 2048
    rotary_pct: RotatedPart = 0.25
    rope_parameters: RopeParameters | None = None
    rope_scaling: RopeParameters | None = None
    attention_bias: Flag = True
    use_parallel_residual: Flag = True
    tie_word_embeddings: Flag = False

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        self._whole_heads()
        if self._rotated % 2 or not self._rotated:
            raise invalid(
                "num_attention_heads",
                f"rotary positions need an even number of rotated elements per head, not {self._rotated}",
                self.num_attention_heads,
            )
        return self

    @property
    def _rotated(self) -> int:
        """The number of elements of each head that are rotated."""
        factor = rotary_factor(self.rope_parameters, self.rotary_pct)
        return int(self.hidden_size // self.num_attention_heads * factor)

    def derived(self) -> Derived:
        """Return the model's sizes under the names that all families share; there are as many
        key-value heads as query heads."""
        return Derived(
            num_key_value_heads=self.num_attention_heads,
            head_dim=self.hidden_size // self.num_attention_heads,
            intermediate_size=self.intermediate_size,
            max_position_embeddings=self.max_position_embeddings,
        )

    def modules(self) -> ModuleLists:
        """Return the modules of ``GPTNeoXForCausalLM`` in call order."""
        hidden, embedding_name = self.hidden_size, "gpt_neox.embed_in"
        before = (
            container("GPTNeoXForCausalLM"),
            container("gpt_neox"),
            embedding(embedding_name, self.vocab_size, hidden),
            dropout("gpt_neox.emb_dropout"),
            rotary("gpt_neox.rotary_emb", self._rotated, by_position=1),
        )
        tied_to = f"{embedding_name}.weight" if self.tie_word_embeddings else None
        after = (
            layer_norm("gpt_neox.final_layer_norm", hidden),
            head(hidden, self.vocab_size, tied_to=tied_to),
        )
        return ModuleLists(before, (self._layer(),) * self.num_hidden_layers, after)

    def _layer(self) -> tuple[Module, ...]:
        hidden, wide, bias = self.hidden_size, self.intermediate_size, self.attention_bias
        rotated = 2 * self.num_attention_heads * self._rotated
        return (
            container("GPTNeoXLayer", reads=4 * hidden, writes=2 * hidden, touched=1),
            layer_norm("input_layernorm", hidden),
            container("attention", touched=1),
            linear("attention.query_key_value", hidden, 3 * hidden, bias=bias, parallel="fused"),
            attention(
                "attention.attention", query_width=hidden, rotated_width=rotated, joined_width=2 * hidden
            ),
            linear("attention.dense", hidden, hidden, bias=bias, parallel="row"),
            dropout("post_attention_dropout"),
            layer_norm("post_attention_layernorm", hidden, saves_input=not self.use_parallel_residual),
            container("mlp", touched=1, code="mlp"),
            linear("mlp.dense_h_to_4h", hidden, wide, bias=True, parallel="column"),
            activation("mlp.act", wide, reads=1, writes=1),
            linear("mlp.dense_4h_to_h", wide, hidden, bias=True, parallel="row"),
            dropout("post_mlp_dropout"),
        )


# -- falcon ----------------------------------------------------------------------------------------
# One head of keys and values for all queries (7B), or groups of them (40B and 180B).
#
# Modules and their order: transformers/models/falcon/modeling_falcon.py at 5.23.0. It expands grouped keys
# and values to every query head before it caches them: ``num_kv_heads`` makes the projection smaller, not
# the cache. vLLM caches what is projected (``total_num_kv_heads`` in vllm/model_executor/models/falcon.py).
# Operations: Llama's measured ones, minus six views of queries, keys and values, which are split in eleven
# operations; plus one to transpose each weight, and one to add the result of attention. ALiBi (Falcon-RW)
# is not modelled. Memory in training with eager attention is overestimated by up to 16 % for short
# sequences.


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
