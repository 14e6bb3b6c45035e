"""BLOOM: one fused projection for queries, keys and values, ALiBi, biases everywhere, tied embedding.

Modules and their order: transformers/models/bloom/modeling_bloom.py at 5.23.0; the same at 4.46.3.
"""

from __future__ import annotations

from typing import ClassVar, Self

from simoffload.models.caching import CpuAttentionCode
from simoffload.models.families.base import Derived, Extent, FamilyConfig, Flag, ModuleLists
from simoffload.models.modules import (
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
)


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
        lora_targets=("query_key_value",),
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
