"""The common parts of Llama and its descendants: rotary positions, grouped-query attention, sliding
windows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

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
from simoffload.models.modules import (
    EAGER,
    Module,
    Operations,
    SavedActivations,
    activation,
    attention,
    container,
    embedding,
    head,
    linear,
    rms_norm,
    rotary,
)
from simoffload.models.shape import Layer

LayerType = Literal["full_attention", "sliding_attention"]
"""Hugging Face's names of kinds of layers."""


LLAMA_OPERATIONS = Operations(
    block=5, mlp=2, norm=8, activation=0, attention=25, eager=EAGER, rotary=15, router=0
)
"""Operations measured for Llama, for families whose code of a layer equals Llama's."""
LLAMA_SAVED = SavedActivations(kept=3, product=True, masks=0, wide=2, narrow=1, scores=12)
"""Activations that autograd saves in such a layer."""


class RotaryConfig(FamilyConfig):
    """Grouped-query attention with rotary positions, as in Llama and its descendants."""

    vocab_size: Extent
    intermediate_size: Extent
    num_key_value_heads: Count | None = None
    head_dim: Width | None = None
    max_position_embeddings: Extent | None = None
    tie_word_embeddings: Flag = False

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        if self.head_dim is None:
            self._whole_heads()
        sizes = self.derived()
        if self.num_attention_heads % sizes.num_key_value_heads:
            raise invalid(
                "num_key_value_heads",
                f"num_attention_heads {self.num_attention_heads} is not a multiple of num_key_value_heads "
                f"{sizes.num_key_value_heads}",
                sizes.num_key_value_heads,
            )
        if sizes.head_dim % 2:
            raise invalid(
                "head_dim" if self.head_dim else "num_attention_heads",
                f"rotary positions need an even head_dim, not {sizes.head_dim}",
                sizes.head_dim,
            )
        return self

    def derived(self) -> Derived:
        """Return the model's sizes under the names that all families share; a size missing in
        config.json gets its default."""
        return Derived(
            num_key_value_heads=self.num_key_value_heads or self.num_attention_heads,
            head_dim=self.head_dim or self.hidden_size // self.num_attention_heads,
            intermediate_size=self.intermediate_size,
            max_position_embeddings=self.max_position_embeddings,
        )

    @property
    def _widths(self) -> tuple[int, int]:
        """The number of elements of all queries and of all keys of a token."""
        sizes = self.derived()
        return self.num_attention_heads * sizes.head_dim, sizes.num_key_value_heads * sizes.head_dim

    @property
    def _rotary_dim(self) -> int:
        """The elements of a head that rotary positions are computed for."""
        return self.derived().head_dim

    def _self_attention(
        self,
        *,
        bias: bool = False,
        output_bias: bool = False,
        rotary_within: bool = False,
        rotated: float = 1.0,
    ) -> tuple[Module, ...]:
        """Return grouped-query attention; ``rotated`` is the part of each head that has rotary positions."""
        hidden, (query_width, key_width) = self.hidden_size, self._widths
        both, head_dim = query_width + key_width, self.derived().head_dim
        return (
            container("self_attn"),
            linear("self_attn.q_proj", hidden, query_width, bias=bias, parallel="column"),
            linear("self_attn.k_proj", hidden, key_width, bias=bias, parallel="keys"),
            linear("self_attn.v_proj", hidden, key_width, bias=bias, parallel="keys"),
            *((rotary("self_attn.rotary_emb", head_dim),) if rotary_within else ()),
            attention(
                "self_attn.attention",
                query_width=query_width,
                rotated_width=both // head_dim * int(head_dim * rotated),
                joined_width=both if 0 < rotated < 1 else 0,
            ),
            linear("self_attn.o_proj", query_width, hidden, bias=output_bias, parallel="row"),
        )

    def _head_norms(self, *, single: bool = False) -> tuple[Module, Module]:
        """Return norms that treat every head of queries and of keys separately."""
        width, heads, keys = (
            self.derived().head_dim,
            self.num_attention_heads,
            self.derived().num_key_value_heads,
        )
        return (
            rms_norm("self_attn.q_norm", width, heads=heads, single=single, parallel="heads"),
            rms_norm("self_attn.k_norm", width, heads=keys, single=single, parallel="keys"),
        )

    def _normed_heads(self, bias: bool) -> tuple[Module, ...]:
        """Return attention that normalizes every head of queries and keys after its projection."""
        query_norm, key_norm = self._head_norms()
        attend = self._self_attention(bias=bias, output_bias=bias)
        return after(after(attend, "self_attn.q_proj", query_norm), "self_attn.k_proj", key_norm)

    def _gated(
        self, *, bias: bool = False, name: str = "mlp", wide: int | None = None, act: str = "act_fn"
    ) -> tuple[Module, ...]:
        hidden, wide = self.hidden_size, wide or self.intermediate_size
        return (
            container(name, touched=1, code="mlp"),
            linear(f"{name}.gate_proj", hidden, wide, bias=bias, parallel="column"),
            # The product with up_proj's result, which comes after it, is counted here.
            activation(f"{name}.{act}", wide, reads=3, writes=2),
            linear(f"{name}.up_proj", hidden, wide, bias=bias, parallel="column"),
            linear(f"{name}.down_proj", wide, hidden, bias=bias, parallel="row"),
        )

    def _normed(self, attend: Iterable[Module], feed_forward: Iterable[Module]) -> tuple[Module, ...]:
        """Return a layer that normalizes before each of its halves."""
        first, second = (
            rms_norm(name, self.hidden_size) for name in ("input_layernorm", "post_attention_layernorm")
        )
        return (first, *attend, second, *feed_forward)

    def _around(
        self,
        class_name: str,
        *layers: Layer,
        rotary_outside: bool = True,
        by_position: int = 2,
        model: str | None = None,
    ) -> ModuleLists:
        """Return the lists of a model with ``layers``, or with all layers like the only one given.

        ``model`` is the class of the model where it is not called like that of a layer.
        """
        hidden, embedding_name = self.hidden_size, "model.embed_tokens"
        positions = rotary("model.rotary_emb", self._rotary_dim, by_position=by_position)
        before = (
            container(model or f"{class_name}ForCausalLM"),
            container("model"),
            embedding(embedding_name, self.vocab_size, hidden),
            *((positions,) if rotary_outside else ()),
        )
        block = container(f"{class_name}DecoderLayer", reads=4 * hidden, writes=2 * hidden, touched=1)
        tied_to = f"{embedding_name}.weight" if self.tie_word_embeddings else None
        after = (
            rms_norm("model.norm", hidden),
            head(hidden, self.vocab_size, tied_to=tied_to),
        )
        blocks = {layer: (block, *layer) for layer in layers}
        every = layers if len(layers) > 1 else layers * self.num_hidden_layers
        return ModuleLists(before, tuple(blocks[layer] for layer in every), after)


class SlidingConfig(RotaryConfig):
    """A model in which some layers have a sliding window, as ``layer_types`` or a pattern specifies."""

    sliding_window: Extent | None
    layer_types: tuple[LayerType, ...] | None = None

    @classmethod
    def replaced(cls, base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the replaced keys; with another number of layers the family's pattern applies, not a file's
        list."""
        merged = super().replaced(base, overrides)
        if "num_hidden_layers" in overrides and "layer_types" not in overrides:
            merged.pop("layer_types", None)
        return merged

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        if self.layer_types is not None and len(self.layer_types) != self.num_hidden_layers:
            raise invalid(
                "layer_types",
                f"layer_types lists {len(self.layer_types)} layers, num_hidden_layers is "
                f"{self.num_hidden_layers}",
                len(self.layer_types),
            )
        return super().checked()

    def slides(self, _layer: int, /) -> bool:
        """Return whether a layer has the window where ``layer_types`` is not given: by default all have."""
        return True

    def windows(self) -> tuple[int | None, ...]:
        """Return the sliding window of the attention of each layer; None for one without."""
        types = self.layer_types
        return tuple(
            (self.sliding_window or None)
            if (self.slides(layer) if types is None else types[layer] == "sliding_attention")
            else None
            for layer in range(self.num_hidden_layers)
        )


class UpperWindowsConfig(SlidingConfig):
    """A model whose layers from ``max_window_layers`` on have a sliding window, if windows are enabled."""

    use_sliding_window: Flag = False
    sliding_window: Extent | None = 4096
    max_window_layers: Annotated[int, Field(strict=True, ge=0, le=100_000)] = 28

    def slides(self, layer: int, /) -> bool:
        """Return whether it is one of the upper layers, if windows are enabled."""
        return self.use_sliding_window and layer >= self.max_window_layers


def after(modules: Iterable[Module], name: str, *more: Module) -> tuple[Module, ...]:
    """Return the modules, with ``more`` inserted after the one called ``name``."""
    found: list[Module] = []
    for module in modules:
        found += [module, *more] if module.name == name else [module]
    return tuple(found)


def rotary_factor(parameters: Mapping[str, Any] | None, given: float) -> float:
    """Return the fraction of a head that is rotated: from ``rope_parameters`` (transformers 5), else
    ``given``."""
    factor = (parameters or {}).get("partial_rotary_factor", given)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 1:
        raise invalid("rope_parameters", "partial_rotary_factor must be a number above 0, at most 1", factor)
    return float(factor)
