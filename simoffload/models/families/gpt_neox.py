"""GPT-NeoX and Pythia: fused projection, partly rotated heads, the two halves of a layer in parallel.

Modules and their order: transformers/models/gpt_neox/modeling_gpt_neox.py at 5.23.0. Operations: Llama's
measured ones, minus two views for each of queries, keys and values, which here are three in all, plus two
slices and a join for queries and for keys; its feed-forward network has no product of its own.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from simoffload.models.families.base import Derived, Extent, FamilyConfig, Flag, ModuleLists, invalid
from simoffload.models.families.rotary import rotary_factor
from simoffload.models.modules import (
    EAGER,
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
        lora_targets=("query_key_value",),
    )

    intermediate_size: Extent
    max_position_embeddings: Extent = 2048
    rotary_pct: float = 0.25
    rope_parameters: dict[str, Any] | None = None
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
