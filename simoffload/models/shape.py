"""The shape of a model: sizes in Hugging Face's names, and its layers in call order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Annotated, NamedTuple, Self, TypeVar

from pydantic import Field, model_validator

from simoffload.bisection import first_that_holds
from simoffload.brief import brief
from simoffload.documents import Frozen
from simoffload.models.modules import DTYPE_BYTES, Attention, Dtype, Heads, Module, StatePart, Traits, linear

# -- routing ---------------------------------------------------------------------------------------
# How often a token is sent to each expert, and how many experts the tokens of a pass need together.
#
# A token chooses a fixed number of different experts. An expert's probability of being among them is its
# share of all choices; tokens choose independently of each other and alike in all layers. The mean number
# of experts that at least one of n tokens chooses is then the sum of 1 − (1 − p)^n over the experts,
# however the choices of one token depend on each other.


_ZIPF = 0.76
"""Exponent by default: the mean of those that two steps of llama.cpp on a DGX Spark (273 GB/s) need.

Read at 85 % of that rate, a decode step of 8 sequences leaves room for 24 of gpt-oss-120b's 128 experts in
each layer (146.65 tokens/s), and for 42.6 of Qwen3-30B-A3B's in Q8_0: 8 / 154.91 s times 232 GB/s is
11.98 GB, less 1.31 GB of other weights and 0.42 GB of cache, in 48 layers of 5.01 MB an expert. Even routing
would take 28.7 and 51.6. The exponents are 0.80 and 0.72. Source: benches/dgx-spark.md of ggml-org/llama.cpp
at 4c7e9893 (the published rows lcpp-spark-g120-b8 and lcpp-spark-q30-b8). The benchmark feeds random tokens;
those of a text may be routed otherwise.
"""


class Routing(Frozen):
    """A Routing states how unevenly tokens are routed to the experts of each layer: by ``zipf`` or by
    ``frequencies``."""

    zipf: Annotated[float, Field(ge=0, le=10)] | None = None
    """Exponent s: the expert of rank r is chosen in proportion to r^-s; 0 is even."""
    frequencies: tuple[Annotated[float, Field(ge=0, le=1e18)], ...] | None = None
    """Frequency with which each expert is chosen, in any unit, such as counts of a measured histogram."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.zipf is None) == (self.frequencies is None):
            raise ValueError('give one of "zipf" and "frequencies"')
        return self

    def problem(self, experts: int, chosen: int) -> str | None:
        """Return what is wrong with the routing for a model; None if it applies."""
        if not experts:
            return "the model has no experts"
        if self.frequencies is None:
            return None
        if len(self.frequencies) != experts:
            return f"{len(self.frequencies)} frequencies for {experts} experts; give one for each expert"
        if sum(one > 0 for one in self.frequencies) < chosen:
            return f"fewer experts than the {chosen} of each token have a frequency above 0"
        return None

    def probabilities(self, experts: int, chosen: int) -> tuple[float, ...]:
        """Return each expert's probability of being among the ``chosen`` of a token, the largest first."""
        if self.frequencies is not None:
            return _inclusion(tuple(sorted(self.frequencies, reverse=True)), chosen)
        return _inclusion(_zipf(float(self.zipf or 0), experts), chosen)


EVEN = Routing(zipf=0.0)
"""Every expert as often as the others."""
DEFAULT = Routing(zipf=_ZIPF)


@lru_cache(maxsize=64)
def _zipf(exponent: float, experts: int) -> tuple[float, ...]:
    """Return how often experts are chosen by Zipf's law, relative to the first."""
    return tuple([(rank + 1) ** -exponent for rank in range(experts)])


@lru_cache(maxsize=64)
def _inclusion(weights: tuple[float, ...], chosen: int) -> tuple[float, ...]:
    """Return probabilities in proportion to falling ``weights``, at most 1, with the sum ``chosen``."""

    def shares(certain: int) -> bool:
        """Return whether no weight after the first ``certain`` is chosen by every token; if so, nor is any
        after more."""
        return weights[certain] * (chosen - certain) <= sum(weights[certain:])

    found = first_that_holds(range(chosen), shares)
    certain = chosen if found is None else found
    rest = sum(weights[certain:])
    scale = (chosen - certain) / rest if rest else 0.0
    return (*([1.0] * certain), *(scale * weight for weight in weights[certain:]))


@lru_cache(maxsize=256)
def touched_share(probabilities: tuple[float, ...], tokens: int) -> float:
    """Return the mean part of the experts that at least one of ``tokens`` tokens chooses."""
    counts = Counter(probabilities)
    total = len(probabilities)
    return sum(times / total * (1.0 - (1.0 - chance) ** tokens) for chance, times in counts.items())


# -- the shape of a model --------------------------------------------------------------------------


T = TypeVar("T")
Layer = tuple[Module, ...]
"""The modules of one layer, that of the layer itself first."""


def window_of(layer: Layer) -> int | None:
    """Return the number of tokens to which a token attends in a layer, itself included; None: all before it;
    0: the layer has no attention, and thus no keys and values."""
    return next((one.window for one in layer if one.attends), 0)


def _with_served_states(layer: Layer) -> Layer:
    """Return a layer whose states have the size that they have in serving engines."""

    def state(one: StatePart) -> StatePart:
        return one._replace(fixed=one.served) if one.fixed and one.served is not None else one

    return tuple([one._replace(keeps=tuple(map(state, one.keeps))) if one.keeps else one for one in layer])


class LayerGroup(NamedTuple):
    """A LayerGroup is a sequence of layers that occurs ``repeat`` times in a row."""

    layers: tuple[Layer, ...]
    repeat: int


def grouped(layers: Sequence[Layer]) -> tuple[LayerGroup, ...]:
    """Return the groups of a list of layers: one if it repeats a sequence as a whole (all layers alike, or
    several kinds in turn), otherwise one for each run of equal layers."""
    count = len(layers)
    for period in range(1, count // 2 + 1):
        if count % period == 0 and all(one == layers[at % period] for at, one in enumerate(layers)):
            return (LayerGroup(tuple(layers[:period]), count // period),)
    return tuple(LayerGroup((layer,), len(list(run))) for layer, run in groupby(layers))


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The properties of a model that the simulation needs.

    Modules are in the order in which their forward pre-hooks fire in transformers 5.23.0 (with either
    attention), the model itself first. The layers, between ``modules_before`` and ``modules_after``, come in
    ``groups``; most models have one group of one layer.
    """

    __repr__ = brief

    family: str
    name: str
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    """Number of key-value heads; lower than ``num_attention_heads`` where several query heads share one
    (grouped-query attention)."""
    head_dim: int
    intermediate_size: int
    """Width of the feed-forward network; of one expert for a mixture of experts."""
    vocab_size: int
    max_position_embeddings: int | None
    """Longest context [tokens]; None where the family sets no limit (BLOOM's ALiBi)."""
    dtype: Dtype
    """Data type of weights, activations and cache."""
    attention: Attention
    traits: Traits
    """Properties of the family beyond the shape."""
    projected_key_value_heads: int | None = None
    """Number of heads of keys that the projection computes, where transformers expands them to
    ``num_key_value_heads`` before it caches them; None where it caches what is computed."""
    value_head_dim: int | None = None
    """Width of a head of values where it is not that of keys, ``head_dim``."""
    latent_width: int | None = None
    """Elements that latent attention (MLA) caches for each token and layer, from which every pass computes
    keys and values; None where keys and values themselves are cached."""
    latent_rank: int | None = None
    """Part of ``latent_width`` from which values, and keys without positions, are computed; the rest are the
    rotated elements of keys, which all heads share."""
    num_experts: int = 0
    """Routed experts of a layer that has some; 0 in a dense model."""
    experts_per_token: int = 0
    routing: Routing = DEFAULT
    """How unevenly tokens are routed to the experts."""
    called_only: bool = False
    """Whether separate experts to which no token is routed are left out, so that the others are read."""
    served: bool = False
    """Whether its kernels are those of a serving engine, which read chosen rows of a cache alone, and keep
    some in types of their own."""
    softcapped: bool = False
    """Whether scores of eager attention are divided, passed through tanh and multiplied: three more
    kernels."""
    quantization: str | None = None
    """Name of the quantization of its weights; None if they are stored in ``dtype``."""
    cache_format: str = ""
    """Format of keys and values for which its checkpoint has scales; empty: none."""
    notes: tuple[str, ...] = ()
    """Sentences about what the shape does not contain, or only bounds; results have them as warnings."""
    predictors: tuple[int, ...] = ()
    """Number of the layer that each module which predicts a further token is like (``mtp``); they are no part
    of the model's own weights."""
    plain_predictors: bool = False
    """Whether these modules are not quantized, although the layers are."""
    draft_model: ModelShape | None = None
    """Model that proposes tokens to this one; None if none is named."""
    modules_before: tuple[Module, ...]
    groups: tuple[LayerGroup, ...]
    modules_after: tuple[Module, ...]

    @cached_property
    def dtype_bytes(self) -> int:
        """The size [B] of one element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def unquantized_name(self) -> str:
        """The name of the model without that of its quantization."""
        return self.name.removesuffix(f", {self.quantization}")

    @property
    def num_hidden_layers(self) -> int:
        """Length of the stack of layers, over all groups."""
        return sum(len(group.layers) * group.repeat for group in self.groups)

    @property
    def layer_list(self) -> str:
        """The name of the list of layers, next to the embedding: "h" in a ``transformer``, else "layers"."""
        *_, owner = (one.name for one in self.modules_before if one.kind == "embedding")
        parent = owner.rpartition(".")[0]
        return f"{parent}.{'h' if parent == 'transformer' else 'layers'}"

    @property
    def layer_names(self) -> tuple[str, ...]:
        """The full name of every layer."""
        name = self.layer_list
        return tuple(f"{name}.{index}" for index in range(self.num_hidden_layers))

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """All layers in call order; equal ones are the same object."""
        return tuple(layer for group in self.groups for layer in group.layers * group.repeat)

    def by_layer(self, value: Callable[[Layer], T]) -> tuple[T, ...]:
        """Return a value for each layer in call order, calculated once for those that are one object."""
        layers = {id(layer): layer for group in self.groups for layer in group.layers}
        values = {key: value(layer) for key, layer in layers.items()}
        return tuple([values[id(layer)] for layer in self.layers])

    @cached_property
    def kinds(self) -> tuple[tuple[Layer, int], ...]:
        """The layers that differ, each with the number of times that it occurs in all groups."""
        found: dict[Layer, int] = {}
        for group in self.groups:
            for layer in group.layers:
                found[layer] = found.get(layer, 0) + group.repeat
        return tuple(found.items())

    @property
    def uniform(self) -> bool:
        """Whether all layers have the same modules and tensors."""
        return len(self.groups) == 1 and len(self.groups[0].layers) == 1

    @cached_property
    def mtp(self) -> ModelShape | None:
        """The first module that predicts a further token (multi-token prediction), as a model of one layer;
        None in a model without any.

        Norms of the last hidden state and of the next token's embedding, a product of both, in 16 bits, a
        layer, and a norm; embeddings and head are those of the model, which passes them on. Source:
        ``MtpLayer`` and ``MtpModel`` in modeling_layers.py of transformers 5.23, ``deepseek_mtp.py`` of vLLM
        0.25; DeepSeek-V3, arXiv 2412.19437, section 2.2.
        """
        if not self.predictors:
            return None

        def shared(one: Module) -> Module:
            return one._replace(parameters=tuple(each._replace(tied=True) for each in one.parameters))

        def plain(one: Module) -> Module:
            return one._replace(parameters=tuple(each._replace(storage=None) for each in one.parameters))

        layer = self.layers[self.predictors[0]]
        layer = tuple(map(plain, layer)) if self.plain_predictors else layer
        norm = next(one for one in self.modules_after if one.kind == "norm")
        product = linear("eh_proj", 2 * self.hidden_size, self.hidden_size)
        before = (*map(shared, self.modules_before), norm._replace(name="enorm"), norm._replace(name="hnorm"))
        return replace(
            self,
            name=f"MTP of {self.name}",
            predictors=(),
            notes=(),
            modules_before=(*before, product),
            groups=grouped([layer]),
            modules_after=tuple(one if one.kind == "norm" else shared(one) for one in self.modules_after),
        )

    def as_served(self) -> Self:
        """Return the model as vLLM runs it, which caches keys and values as they are projected, reads only
        those rows of a cache that an indexer chooses, and has states of types of their own."""
        projected = self.projected_key_value_heads or self.num_key_value_heads
        parts = [part for one in self.distinct_modules for part in one.keeps or ()]
        served = any(one.served is not None or one.chosen is not None for one in parts)
        if projected == self.num_key_value_heads and served == self.served:
            return self
        changed = replace(self, num_key_value_heads=projected, projected_key_value_heads=None, served=served)
        if not any(one.fixed and one.served for one in parts):
            return changed
        made = {layer: _with_served_states(layer) for layer, _ in self.kinds}
        groups = (one._replace(layers=tuple(made[layer] for layer in one.layers)) for one in self.groups)
        return replace(changed, groups=tuple(groups))

    def with_hot_rows(self, rows: int | None) -> Self:
        """Return the model with the latent rows of which an indexer chooses in host memory, but ``rows`` of
        each sequence, by default twice as many as it chooses."""

        def hot(part: StatePart) -> StatePart:
            return part._replace(hot=rows or 2 * part.chosen) if part.chosen and part.heads == 1 else part

        def changed(layer: Layer, _: int) -> Layer:
            return tuple(
                one._replace(keeps=tuple(map(hot, one.keeps))) if one.keeps else one for one in layer
            )

        return self.with_layers(changed)

    def of_layers(self, count: int) -> Self:
        """Return the model with ``count`` layers: its first ones, more only of a model whose layers are
        alike."""
        if self.uniform:
            return replace(self, groups=(self.groups[0]._replace(repeat=count),))
        return replace(self, groups=grouped(self.layers[:count]))

    def with_layers(self, changed: Callable[[Layer, int], Layer]) -> Self:
        """Return the model with layers changed by their number; equal results are one object."""
        made: dict[Layer, Layer] = {}
        layers = [changed(layer, index) for index, layer in enumerate(self.layers)]
        return replace(self, groups=grouped([made.setdefault(one, one) for one in layers]))

    def with_fused_norms(self) -> Self:
        """Return the model with RMSNorm in one kernel, which reads and writes as much as a LayerNorm.

        transformers 5.23 loads it with ``use_kernels`` (integrations/hub_kernels.py, ``LigerRMSNorm``), and
        torchtitan has one (``fused_rmsnorm``): both save the input in its own type and one number per row.
        Its launch counts as that of a LayerNorm (an estimate).
        """

        def fused(modules: Layer) -> Layer:
            return tuple(one.fused_norm if one.kind == "norm" else one for one in modules)

        operations = self.traits.operations._replace(norm=1)
        return replace(
            self.with_layers(lambda layer, _: fused(layer)),
            modules_before=fused(self.modules_before),
            modules_after=fused(self.modules_after),
            traits=self.traits._replace(operations=operations),
        )

    def outside_and_kinds(self) -> tuple[tuple[Layer, int], ...]:
        """Return the modules before and after the layers, and every kind of layer, with their numbers."""
        return ((self.modules_before, 1), *self.kinds, (self.modules_after, 1))

    @cached_property
    def distinct_modules(self) -> tuple[Module, ...]:
        """The modules before the layers, those of each kind of layer, and those after them."""
        return tuple(module for modules, _ in self.outside_and_kinds() for module in modules)

    @cached_property
    def joint_outputs(self) -> dict[Module, int]:
        """The outputs of the product that vLLM makes of a linear layer and others of the same input: queries,
        keys and values, and both halves of a gated block."""
        found: dict[Module, int] = {}
        for modules, _ in self.kinds:
            parts: dict[tuple[str, int], list[Module]] = {}
            for one in modules:
                if one.kind == "linear" and one.parallel in ("column", "keys"):
                    block = one.name.rpartition(".")[0]
                    parts.setdefault((block, one.in_features), []).append(one)
            for group in parts.values():
                found |= dict.fromkeys(group, sum(one.out_features for one in group))
        return found

    @property
    def all_trainable(self) -> bool:
        """Whether every parameter is trained; not so with adapters."""
        return all(one.trainable for module in self.distinct_modules for one in module.parameters)

    @property
    def num_parameters(self) -> int:
        """The number of parameters in all distinct tensors: a tied weight counts once, as in Hugging Face."""
        return sum(count * parameters_of(modules) for modules, count in self.outside_and_kinds())

    @cached_property
    def weight_bytes(self) -> int:
        """The size [B] of all distinct tensors as they are stored."""
        return sum(count * stored_bytes(modules, self) for modules, count in self.outside_and_kinds())

    @property
    def least_read_bytes(self) -> int:
        """The bytes [B] of weights that every pass reads at least.

        Of experts only those of one token are included, as all tokens may be routed to the same ones;
        embeddings are not, as only some rows are read.
        """
        read = sum(count * self._least_read(modules) for modules, count in self.outside_and_kinds())
        return round(read)

    def _least_read(self, modules: Iterable[Module]) -> float:
        size = self.dtype_bytes
        return sum(
            module.share * sum(parameter.read_bytes(size) for parameter in module.parameters)
            for module in modules
            if module.kind != "embedding"
        )

    @property
    def largest_parameter(self) -> int:
        """The number of elements of the largest tensor as it is stored."""
        size = self.dtype_bytes
        owned = (one for module in self.distinct_modules for one in module.parameters)
        return max(-(-each // size) for one in owned for _, each in one.stored_tensors(size))

    def kv_cache_bytes(self, *, batch: int, tokens: int, windows: bool = True, block: int = 1) -> int:
        """Return the size [B] of all that grows with ``tokens`` positions of ``batch`` sequences, in all
        layers: keys and values, latent rows, keys of indexers.

        A sliding layer keeps those of its window, or without ``windows`` all of them. Every sequence has
        whole blocks of ``block`` positions; a window that begins within a block touches one more.
        """
        blocks, total = -(-tokens // block), 0
        for layer, count in self.kinds:
            for part in self.growing(layer):
                kept = blocks
                if part.window is not None and windows:
                    kept = min(blocks, -(-(part.window - 1) // block) + 1)
                total += count * round(kept * block // part.every * self.row_bytes(part))
        return batch * total

    def growing(self, layer: Layer) -> tuple[StatePart, ...]:
        """Return what a layer keeps in rows of its own that are all in HBM."""
        parts = [part for one in layer for part in self.parts_of(one)]
        return tuple([one for one in parts if not (one.fixed or one.borrowed or one.hot)])

    def row_bytes(self, part: StatePart, element: float | None = None) -> float:
        """Return the size [B] of a row; ``element`` is that of an element of the cache [B], by default the
        model's."""
        if self.served and part.served is not None:
            return part.served
        if self.served and part.packed is not None and element == 1:
            return part.packed
        return part.width * (self.dtype_bytes if element is None else element)

    def token_bytes(self, modules: Iterable[Module], element: float | None = None) -> float:
        """Return the size [B] of the rows that modules keep of a token, those of all parts together; a row of
        several tokens counts as its part of one."""
        parts = [part for one in modules for part in self.parts_of(one) if not (part.fixed or part.borrowed)]
        return sum([self.row_bytes(part, element) / part.every for part in parts])

    def heads_of(self, module: Module) -> Heads:
        """Return the sizes of attention of a module: its own, or those of the model."""
        return module.heads or Heads(
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
            self.value_head_dim or self.head_dim,
        )

    @property
    def attends(self) -> Module:
        """The attention of the first layer that has one. Raises StopIteration if none has."""
        return next(one for one in self.distinct_modules if one.attends)

    def expands(self, module: Module) -> bool:
        """Return whether attention of a module computes its keys and values from latent rows."""
        return self.latent_width is not None and module.heads is None

    def parts_of(self, module: Module) -> tuple[StatePart, ...]:
        """Return what a module keeps of each sequence."""
        if module.keeps is not None or module.kind != "attention":
            return module.keeps or ()
        if self.expands(module):
            return (StatePart("latent rows", self.latent_width or 0),)
        return (StatePart("keys and values", self.heads_of(module).row, window=module.window),)

    @property
    def state_bytes(self) -> int:
        """The size [B] of what linear attention keeps of one sequence, whatever its length."""
        return sum(count * one.state for layer, count in self.kinds for one in layer)

    @property
    def learned_positions(self) -> int | None:
        """Number of positions in a learned table, which no context may exceed; None where positions are
        computed (rotary embedding, ALiBi)."""
        return None if self.traits.operations.rotary else self.max_position_embeddings

    @property
    def sliding_window(self) -> int | None:
        """Number of tokens to which a token of a sliding layer attends; None without such layers."""
        return next((one.window for one in self.distinct_modules if one.window is not None), None)

    @property
    def num_sliding_layers(self) -> int:
        """Number of layers with a sliding window."""
        return sum(count for layer, count in self.kinds if any(one.window is not None for one in layer))

    def touched_share(self, module: Module, tokens: int) -> float:
        """Return the mean part of the tensors of ``module`` that ``tokens`` tokens need.

        Of experts it is the part that they choose together, and the same for one expert that is a module of
        its own.
        """
        if module.share == 1.0 or (self.called_only and module.expert is not None):
            return 1.0
        if not module.share:
            return 0.0
        if not self.num_experts:
            return 1.0 - (1.0 - module.share) ** tokens
        return touched_share(self.routing.probabilities(self.num_experts, self.experts_per_token), tokens)

    @property
    def active_parameters(self) -> int:
        """The number of parameters that serve one token: all but those of experts that are not chosen."""
        parts = self.outside_and_kinds()
        idle = sum(count * (1 - one.share) * one.num_parameters for part, count in parts for one in part)
        return self.num_parameters - round(idle)


def parameters_of(modules: Iterable[Module]) -> int:
    """Return the number of parameters of modules, a tied tensor left out."""
    return sum(parameter.numel for module in modules for parameter in module.parameters if not parameter.tied)


def stored_bytes(modules: Iterable[Module], shape: ModelShape) -> int:
    """Return the size [B] of the tensors of modules as they are stored, a tied tensor left out."""
    owned = (one for module in modules for one in module.parameters if not one.tied)
    return sum(one.stored_bytes(shape.dtype_bytes) for one in owned)
