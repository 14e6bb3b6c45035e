"""Gemma 2 and 3: wide heads, four norms in a layer, and sliding windows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from simoffload.models.families.base import Count, Derived, Extent, Flag, ModuleLists, Width
from simoffload.models.families.rotary import SlidingConfig, after
from simoffload.models.modules import (
    EAGER,
    Module,
    Operations,
    SavedActivations,
    Traits,
    activation,
    container,
    embedding,
    head,
    linear,
    rms_norm,
    rotary,
)
from simoffload.models.shape import Layer

# -- gemma 2 ---------------------------------------------------------------------------------------
# Four norms in a layer, wide heads, scores capped by tanh, a window in every other layer.
#
# Modules and their order: transformers/models/gemma2/modeling_gemma2.py at 5.23.0. Operations are Llama's
# measured ones plus what this code adds: two in a norm, three for the cap of eager attention's scores, one
# for the embedding's factor. Not counted: the cap of the logits (three kernels on those of the last
# position).


def layer_tables(
    layers: int, each: int, hidden: int, vocabulary: int
) -> tuple[tuple[Module, ...], tuple[Module, ...]]:
    """Return the modules that give every layer ``each`` numbers of a token, by a table and by a product, and
    those of a layer that add them to its result (Gemma 3n and 4); none for 0."""
    name, every = "model.embed_tokens_per_layer", each * layers
    tables = (
        embedding(name, vocabulary, every, scaled=True),
        linear("model.per_layer_model_projection", hidden, every),
        rms_norm("model.per_layer_projection_norm", each, heads=layers, single=True),
    )
    of_layer = (
        linear("per_layer_input_gate", hidden, each),
        activation("act_fn", each, reads=3, writes=2),
        linear("per_layer_projection", each, hidden),
        rms_norm("post_per_layer_input_norm", hidden, single=True),
    )
    return (tables, of_layer) if each else ((), ())


class GemmaConfig(SlidingConfig):
    """The common parts of Gemma 2 and 3: wide heads, a scaled and tied embedding, four norms in a layer."""

    vocab_size: Extent
    num_key_value_heads: Count | None = 4
    head_dim: Width | None = 256
    sliding_window: Extent | None = 4096
    tie_word_embeddings: Flag = True
    attention_bias: Flag = False

    def _norm(self, name: str) -> Module:
        return rms_norm(name, self.hidden_size, single=True)

    def _layer(
        self, class_name: str, attend: Iterable[Module], network: Iterable[Module], *more: Module
    ) -> Layer:
        """Return a layer with norms before and after each half, and ``more`` after both; its own code adds
        the result of each to its input (2 read, 1 written)."""
        hidden, sums = self.hidden_size, 3 if more else 2
        return (
            container(f"{class_name}DecoderLayer", reads=2 * sums * hidden, writes=sums * hidden, touched=1),
            self._norm("input_layernorm"),
            *attend,
            self._norm("post_attention_layernorm"),
            self._norm("pre_feedforward_layernorm"),
            *network,
            self._norm("post_feedforward_layernorm"),
            *more,
        )

    def _lists(
        self, class_name: str, layers: tuple[Layer, ...], *tables: Module, rotated: Iterable[int]
    ) -> ModuleLists:
        """Return the lists of a model, with ``tables`` beside the embedding, that computes positions of heads
        of each width that is ``rotated``."""
        hidden, name = self.hidden_size, "model.embed_tokens"
        before = (
            container(f"{class_name}ForCausalLM"),
            container("model"),
            embedding(name, self.vocab_size, hidden, scaled=True),
            *tables,
            *(rotary("model.rotary_emb", width) for width in rotated),
        )
        tied_to = f"{name}.weight" if self.tie_word_embeddings else None
        return ModuleLists(
            before, layers, (self._norm("model.norm"), head(hidden, self.vocab_size, tied_to=tied_to))
        )

    def _gemma(self, class_name: str, attend: tuple[Module, ...], *, rotations: int) -> ModuleLists:
        layers = (self._layer(class_name, attend, self._gated()),) * self.num_hidden_layers
        return self._lists(class_name, layers, rotated=[self.derived().head_dim] * rotations)


class Gemma2(GemmaConfig):
    """The configuration of Gemma 2 models: Hugging Face's ``Gemma2Config``."""

    family: ClassVar[str] = "gemma2"
    traits: ClassVar[Traits] = Traits(
        architecture="Gemma2ForCausalLM",
        attention="eager",  # the fused kernels cannot cap scores
        operations=Operations(
            block=5,
            mlp=2,
            norm=10,
            activation=0,
            attention=25,
            eager=EAGER + 3,
            rotary=15,
            router=0,
            embedding=3,
        ),
        saved=SavedActivations(kept=3, product=True, masks=0, wide=2, narrow=1, scores=14, single_norm=True),
        leaf_modules=(),
        float16=False,
    )

    attn_logit_softcapping: float | None = 50.0

    def slides(self, layer: int, /) -> bool:
        """Return whether it is every other layer, beginning with the first."""
        return layer % 2 == 0

    def derived(self) -> Derived:
        """Return the model's sizes under the names that all families share; a size missing in
        config.json gets its default."""
        return super().derived()._replace(softcapped=self.attn_logit_softcapping is not None)

    def modules(self) -> ModuleLists:
        """Return the modules of ``Gemma2ForCausalLM`` in call order."""
        attend = self._self_attention(bias=self.attention_bias, output_bias=self.attention_bias)
        return self._gemma("Gemma2", attend, rotations=1)


# -- gemma 3, text ---------------------------------------------------------------------------------
# Gemma 2 with norms on queries and keys, no caps, and five layers of six with a window.
#
# Modules and their order: transformers/models/gemma3/modeling_gemma3.py at 5.23.0, which computes rotations
# for each kind of layer. Operations are Llama's measured ones plus what this code adds: two in a norm, one
# for the embedding's factor. The files of the models that process images (``model_type: gemma3``) have this
# configuration under ``text_config``.


class Gemma3Text(GemmaConfig):
    """The configuration of Gemma 3 text models: Hugging Face's ``Gemma3TextConfig``."""

    family: ClassVar[str] = "gemma3_text"
    aliases: ClassVar[tuple[str, ...]] = ("gemma3",)
    traits: ClassVar[Traits] = Traits(
        architecture="Gemma3ForCausalLM",
        attention="sdpa",
        operations=Operations(
            block=5, mlp=2, norm=10, activation=0, attention=25, eager=EAGER, rotary=15, router=0, embedding=3
        ),
        saved=SavedActivations(kept=3, product=True, masks=0, wide=2, narrow=1, scores=12, single_norm=True),
        leaf_modules=(),
        float16=False,
    )
    spellings: ClassVar[dict[str, str]] = {"_sliding_window_pattern": "sliding_window_pattern"}

    num_attention_heads: Count = 8
    vocab_size: Extent = 262208
    sliding_window_pattern: Count = 6

    def slides(self, layer: int, /) -> bool:
        """Return whether it is not the last of ``sliding_window_pattern`` layers."""
        return (layer + 1) % self.sliding_window_pattern != 0

    def modules(self) -> ModuleLists:
        """Return the modules of ``Gemma3ForCausalLM`` in call order."""
        attend = self._self_attention(bias=self.attention_bias, output_bias=self.attention_bias)
        return self._gemma(
            "Gemma3",
            after(attend, "self_attn.v_proj", *self._head_norms(single=True)),
            rotations=len(set(self.windows())),
        )
