"""Gemma 2 and 3: wide heads, four norms in a layer, and sliding windows."""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Count, Derived, Extent, Flag, ModuleLists, Width
from simoffload.models.families.rotary import SlidingConfig, after
from simoffload.models.modules import (
    EAGER,
    Module,
    Operations,
    SavedActivations,
    Traits,
    container,
    embedding,
    head,
    rms_norm,
    rotary,
)

# -- gemma 2 ---------------------------------------------------------------------------------------
# Four norms in a layer, wide heads, scores capped by tanh, a window in every other layer.
#
# Modules and their order: transformers/models/gemma2/modeling_gemma2.py at 5.23.0. Operations are Llama's
# measured ones plus what this code adds: two in a norm, three for the cap of eager attention's scores, one
# for the embedding's factor. Not counted: the cap of the logits (three kernels on those of the last
# position).


class GemmaConfig(SlidingConfig):
    """The common parts of Gemma 2 and 3: wide heads, a scaled and tied embedding, four norms in a layer."""

    vocab_size: Extent
    num_key_value_heads: Count | None = 4
    head_dim: Width | None = 256
    sliding_window: Extent | None = 4096
    tie_word_embeddings: Flag = True
    attention_bias: Flag = False

    def _gemma(self, class_name: str, attend: tuple[Module, ...], *, rotations: int) -> ModuleLists:
        hidden, embedding_name = self.hidden_size, "model.embed_tokens"
        before = (
            container(f"{class_name}ForCausalLM"),
            container("model"),
            embedding(embedding_name, self.vocab_size, hidden, scaled=True),
            *(rotary("model.rotary_emb", self.derived().head_dim) for _ in range(rotations)),
        )
        layer = (
            container(f"{class_name}DecoderLayer", reads=4 * hidden, writes=2 * hidden, touched=1),
            rms_norm("input_layernorm", hidden, single=True),
            *attend,
            rms_norm("post_attention_layernorm", hidden, single=True),
            rms_norm("pre_feedforward_layernorm", hidden, single=True),
            *self._gated(),
            rms_norm("post_feedforward_layernorm", hidden, single=True),
        )
        tied_to = f"{embedding_name}.weight" if self.tie_word_embeddings else None
        after = (
            rms_norm("model.norm", hidden, single=True),
            head(hidden, self.vocab_size, tied_to=tied_to),
        )
        return ModuleLists(before, (layer,) * self.num_hidden_layers, after)


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
