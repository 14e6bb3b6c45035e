"""The common parts of Llama and its descendants: rotary positions, grouped-query attention, sliding
windows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import inf
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field

from simoffload.documents import either, listing, quoted
from simoffload.errors import shortened
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
    Heads,
    Module,
    Operations,
    SavedActivations,
    StatePart,
    Traits,
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


def kinds_of_layers(kinds: Any) -> BeforeValidator:
    """Return the check of a list with an entry for each layer, which reports all unknown entries together."""
    known = get_args(kinds)

    def checked(listed: object) -> object:
        unknown = [one for one in listed if one not in known] if isinstance(listed, list) else []
        if unknown:
            found = listing(list(dict.fromkeys(shortened(json.dumps(one)) for one in unknown)))
            raise ValueError(
                f"lists {found}; each entry must be {either([json.dumps(one) for one in known])}"
            )
        return listed

    return BeforeValidator(checked)


ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "su", "mrope")
"""Kinds of rotary positions that transformers 5.23 has (modeling_rope_utils.py), and two former names."""
_SCALED = ("linear", "dynamic", "yarn", "llama3")
"""Kinds that need a ``factor``."""


def _rope(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters, which may be those of each kind of layer. Raises ValueError."""
    each = [one for one in parameters.values() if isinstance(one, dict)]
    if each and len(each) < len(parameters):
        raise ValueError("must have the keys of one kind of positions, or a mapping for each kind of layers")
    for one in each or [parameters]:
        kind = one.get("rope_type", one.get("type", "default"))
        if kind not in ROPE_TYPES:
            raise ValueError(f"rope_type {quoted(str(kind))} is unknown; known: {', '.join(ROPE_TYPES)}")
        if kind in _SCALED and "factor" not in one:
            raise ValueError(f"rope_type {quoted(kind)} needs the key factor")
        for key, most in (("factor", inf), ("rope_theta", inf), ("partial_rotary_factor", 1)):
            value = one.get(key, 1)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
                limit = ", at most 1" if most == 1 else ""
                raise ValueError(f"{key} must be a number above 0{limit}, got {quoted(str(value))}")
    return parameters


RopeParameters = Annotated[dict[str, Any], AfterValidator(_rope)]
"""Rotary positions, which have no influence on sizes, except for the part of a head that is rotated."""
RotatedPart = Annotated[float, Field(strict=True, gt=0, le=1)]


PerLayer = dict[str, dict[str, Width]]
"""Sizes that some layers have of their own, by their numbers: ``per_layer_config`` of transformers 5."""


def own_size(sizes: PerLayer | None, key: str, other: int) -> int:
    """Return the size that such layers, which are of one kind, have; ``other`` where none is listed."""
    return next((one[key] for one in (sizes or {}).values() if key in one), other)


LLAMA_OPERATIONS = Operations(
    block=5, mlp=2, norm=8, activation=0, attention=25, eager=EAGER, rotary=15, router=0
)
"""Operations measured for Llama, for families whose code of a layer equals Llama's."""
LLAMA_SAVED = SavedActivations(kept=3, product=True, masks=0, wide=2, narrow=1, scores=12)
"""Activations that autograd saves in such a layer."""


def llama_traits(architecture: str, **changes: Any) -> Traits:
    """Return the traits of a family whose code of a layer equals Llama's, with ``changes`` of them."""
    common = Traits(
        architecture=architecture,
        attention="sdpa",
        operations=LLAMA_OPERATIONS,
        saved=LLAMA_SAVED,
        leaf_modules=(),
    )
    return common._replace(**changes)


class RotaryConfig(FamilyConfig):
    """Grouped-query attention with rotary positions, as in Llama and its descendants."""

    vocab_size: Extent
    intermediate_size: Extent
    num_key_value_heads: Count | None = None
    head_dim: Width | None = None
    max_position_embeddings: Extent | None = None
    tie_word_embeddings: Flag = False
    rope_parameters: RopeParameters | None = None
    rope_scaling: RopeParameters | None = None

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
    def unknown_to_4_32(self) -> str:
        """What transformers 4.32 refuses of the rotary positions (``_rope_scaling_validation`` of
        ``LlamaConfig``: all but linear and dynamic ones with a factor); "" if it refuses nothing."""
        scaling = self.rope_scaling or {}
        both = scaling, self.rope_parameters or {}
        kinds = [one.get("rope_type", one.get("type", "default")) for one in both]
        for kind in kinds:
            if kind not in ("default", "linear", "dynamic"):
                return f"rope_scaling of type {kind}"
        more = sorted(scaling.keys() - {"rope_type", "type", "factor"})
        return f"rope_scaling with {', '.join(more)}" if more else ""

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
        name: str = "self_attn",
        shared: int | None = None,
    ) -> tuple[Module, ...]:
        """Return grouped-query attention; ``rotated`` is the part of each head that has rotary positions, and
        ``shared`` the number of key heads of this layer, where it is not the model's."""
        sizes = self.derived()
        keys = shared or sizes.num_key_value_heads
        heads = Heads(self.num_attention_heads, keys, sizes.head_dim, sizes.head_dim)
        attend = own_attention(
            self.hidden_size, heads, bias=bias, output_bias=output_bias, rotated=rotated, name=name
        )
        if rotary_within:
            attend = after(attend, f"{name}.v_proj", rotary(f"{name}.rotary_emb", sizes.head_dim))
        return attend if shared else tuple(one._replace(heads=None) for one in attend)

    def _head_norms(self, *, single: bool = False) -> tuple[Module, Module]:
        """Return norms that treat every head of queries and of keys separately."""
        sizes = self.derived()
        heads = Heads(self.num_attention_heads, sizes.num_key_value_heads, sizes.head_dim, sizes.head_dim)
        queries, keys = head_norms(heads, single=single)
        return queries._replace(heads=None), keys._replace(heads=None)

    def _normed_heads(self, bias: bool, *, rotated: float = 1.0) -> tuple[Module, ...]:
        """Return attention that normalizes every head of queries and keys after its projection."""
        query_norm, key_norm = self._head_norms()
        attend = self._self_attention(bias=bias, output_bias=bias, rotated=rotated)
        return after(after(attend, "self_attn.q_proj", query_norm), "self_attn.k_proj", key_norm)

    def _normed_after(self, bias: bool, *names: str, rotated: float = 1.0) -> tuple[Module, ...]:
        """Return attention that normalizes every head of queries and keys by modules of these names when all
        projections are done."""
        both = zip(names, self._head_norms(), strict=True)
        norms = [
            one._replace(
                name=f"self_attn.{name}",
                parameters=tuple(part._replace(name=f"self_attn.{name}.weight") for part in one.parameters),
            )
            for name, one in both
        ]
        attend = self._self_attention(bias=bias, output_bias=bias, rotated=rotated)
        return after(attend, "self_attn.v_proj", *norms)

    def _normed_whole(self, bias: bool = False, *, rotated: float = 1.0) -> tuple[Module, ...]:
        """Return attention that normalizes all heads of queries together, and all of keys."""
        query_width, key_width = self._widths
        attend = self._self_attention(bias=bias, output_bias=bias, rotated=rotated)
        attend = after(attend, "self_attn.q_proj", rms_norm("self_attn.q_norm", query_width))
        return after(attend, "self_attn.k_proj", rms_norm("self_attn.k_norm", key_width))

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

    def _ungated(self, name: str, wide: int, *, bias: bool = False) -> tuple[Module, ...]:
        """Return a feed-forward network whose function is a squared ReLU in two kernels (1 read, 1 written
        each)."""
        return (
            container(name, touched=1, code="mlp"),
            linear(f"{name}.up_proj", self.hidden_size, wide, bias=bias, parallel="column"),
            activation(f"{name}.act_fn", wide, reads=2, writes=2),
            linear(f"{name}.down_proj", wide, self.hidden_size, bias=bias, parallel="row"),
        )

    def _normed(
        self, attend: Iterable[Module], feed_forward: Iterable[Module], *names: str
    ) -> tuple[Module, ...]:
        """Return a layer that normalizes before each of its halves, by norms with Llama's or other names."""
        names = names or ("input_layernorm", "post_attention_layernorm")
        first, second = (rms_norm(name, self.hidden_size) for name in names)
        return (first, *attend, second, *feed_forward)

    def _around(
        self,
        class_name: str,
        *layers: Layer,
        rotary_outside: bool = True,
        by_position: int = 2,
        model: str | None = None,
        norm: str = "model.norm",
        own: tuple[int, int] = (4, 2),
        rotations: int = 1,
    ) -> ModuleLists:
        """Return the lists of a model with ``layers``, or with all layers like the only one given.

        ``model`` is the class of the model where it is not called like that of a layer, and ``own`` how often
        the own code of a layer reads and writes the hidden state; positions may be computed several times.
        """
        hidden, embedding_name = self.hidden_size, "model.embed_tokens"
        positions = rotary("model.rotary_emb", self._rotary_dim, by_position=by_position)
        before = (
            container(model or f"{class_name}ForCausalLM"),
            container("model"),
            embedding(embedding_name, self.vocab_size, hidden),
            *((positions,) * rotations if rotary_outside else ()),
        )
        block = container(
            f"{class_name}DecoderLayer", reads=own[0] * hidden, writes=own[1] * hidden, touched=1
        )
        tied_to = f"{embedding_name}.weight" if self.tie_word_embeddings else None
        after = (
            rms_norm(norm, hidden),
            head(hidden, self.vocab_size, tied_to=tied_to),
        )
        blocks = {layer: (block, *layer) for layer in layers}
        every = layers if len(layers) > 1 else layers * self.num_hidden_layers
        return ModuleLists(before, tuple(blocks[layer] for layer in every), after)


class SlidingConfig(RotaryConfig):
    """A model in which some layers have a sliding window, as ``layer_types`` or a pattern specifies."""

    sliding_window: Extent | None
    layer_types: Annotated[tuple[LayerType, ...], kinds_of_layers(LayerType)] | None = None

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


def own_attention(
    hidden: int,
    heads: Heads,
    bias: bool = False,
    output_bias: bool = False,
    *,
    rotated: float = 1.0,
    borrowed: bool = False,
    window: int | None = None,
    name: str = "self_attn",
) -> tuple[Module, ...]:
    """Return grouped-query attention with heads of its own sizes, of each of which a part is ``rotated``; it
    may have no keys and values but those ``borrowed`` of an earlier layer with this ``window``."""
    queries, result = heads.number * heads.keys, heads.number * heads.values
    keys, values = heads.shared * heads.keys, heads.shared * heads.values
    both = queries + (0 if borrowed else keys)
    kept = StatePart("keys and values", heads.row, window=window, borrowed=True)
    projected = (
        linear(f"{name}.k_proj", hidden, keys, bias=bias, parallel="keys")._replace(heads=heads),
        linear(f"{name}.v_proj", hidden, values, bias=bias, parallel="keys")._replace(
            heads=heads._replace(keys=heads.values)
        ),
    )
    return (
        container(name),
        linear(f"{name}.q_proj", hidden, queries, bias=bias, parallel="column"),
        *(() if borrowed else projected),
        attention(
            f"{name}.attention",
            query_width=queries,
            value_width=result,
            rotated_width=both // heads.keys * int(heads.keys * rotated),
            joined_width=both if 0 < rotated < 1 else 0,
        )._replace(heads=heads, keeps=(kept,) if borrowed else None),
        linear(f"{name}.o_proj", result, hidden, bias=output_bias, parallel="row"),
    )


def head_norms(heads: Heads, *, single: bool = False) -> tuple[Module, Module]:
    """Return norms that treat every head of queries and of keys separately."""
    width = heads.keys
    queries = rms_norm("self_attn.q_norm", width, heads=heads.number, single=single, parallel="heads")
    keys = rms_norm("self_attn.k_norm", width, heads=heads.shared, single=single, parallel="keys")
    return queries._replace(heads=heads), keys._replace(heads=heads)


def after(modules: Iterable[Module], name: str, *more: Module) -> tuple[Module, ...]:
    """Return the modules, with ``more`` inserted after the one called ``name``."""
    found: list[Module] = []
    for module in modules:
        found += [module, *more] if module.name == name else [module]
    return tuple(found)


def before(modules: Iterable[Module], name: str, *more: Module) -> tuple[Module, ...]:
    """Return the modules, with ``more`` inserted before the one called ``name``."""
    found: list[Module] = []
    for module in modules:
        found += [*more, module] if module.name == name else [module]
    return tuple(found)


def gated_result(module: Module, width: int, *, gates: int | None = None) -> Module:
    """Return attention whose result of ``width`` elements has as many gates, or fewer ``gates``, each for
    several (sigmoid 1 read, 1 written; product 2, 1); any other module as it is."""
    if module.kind != "attention":
        return module
    wide = width if gates is None else gates
    return module._replace(
        in_features=module.in_features + 2 * width + wide, out_features=module.out_features + width + wide
    )


def block_sum(name: str, width: int, *, rows: int) -> tuple[Module, ...]:
    """Return the sum of ``rows`` vectors, weighed by the scores of their norms (product 2 read, 1 written for
    each, sum 1 read); () of none."""
    if not rows:
        return ()
    norm = rms_norm(f"{name}_norm", width, heads=rows)
    more = norm.in_features + 4 * rows * width, norm.out_features + rows * width
    return norm._replace(in_features=more[0], out_features=more[1]), linear(f"{name}_proj", width, 1)


def rotary_factor(parameters: Mapping[str, Any] | None, given: float) -> float:
    """Return the fraction of a head that is rotated: from ``rope_parameters`` (transformers 5), else
    ``given``."""
    return float((parameters or {}).get("partial_rotary_factor", given))
