"""Division of a model among GPUs (tensor and pipeline parallelism), and its modules with fused kernels.

Tensor parallelism as in Megatron-LM (Shoeybi et al., arXiv 1909.08053) and vLLM 0.33
(``model_executor/layers/linear.py``, ``vocab_parallel_embedding.py``): a linear layer whose result a head or
an activation function processes is divided by columns (its outputs), the one after it by rows (its inputs),
so that the results of the second are summed over the GPUs. Key-value heads are replicated where there are
fewer than GPUs; norms, routers and projections to a latent space (whose whole result a norm needs) are
replicated. Token embedding and head are divided by the vocabulary, in parts of equal size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from simoffload.errors import InputError
from simoffload.models import (
    Layer,
    ModelShape,
    Module,
    ModuleCost,
    Parameter,
    Sequences,
    attention_kernels,
)
from simoffload.models.modules import Operations
from simoffload.models.shape import grouped
from simoffload.strategies.timing import PassTimings, Timing

Role = Literal["whole", "column", "row", "experts", "divided"]
"""How a module is divided: not at all; by its outputs, by its inputs, or both one after the other (all
experts in one module); "divided": it has no weights and processes what a column-parallel layer computes."""

_TENSOR, _PIPELINE = "strategy.tensor_parallel_size", "strategy.pipeline_parallel_size"


class DividedModel(NamedTuple):
    """A DividedModel is the part of a model that one GPU of each pipeline stage has."""

    stages: tuple[ModelShape, ...]
    reduced: frozenset[str] = frozenset()
    """Names of the modules whose results are summed over the GPUs of a stage."""
    gathered: frozenset[str] = frozenset()
    """Names of the modules whose results are parts that the GPUs of a stage gather: the head."""


def divide(model: ModelShape, *, tensor: int, pipeline: int, fused: bool) -> DividedModel:
    """Return the part of a model on one GPU of each stage, for ``tensor`` GPUs in each of ``pipeline``
    stages.

    ``fused``: with the kernels of vLLM or torch.compile (``_fused``). Raises InputError if the model cannot
    be divided into equal parts.
    """
    _check(model, tensor, pipeline)
    parts: dict[Layer, Layer] = {}
    reduced: set[str] = set()
    for kind, _ in model.kinds:
        placed = _divided_layer(model, kind, tensor)
        parts[kind] = tuple(_fused_layer(placed) if fused else (module for module, _ in placed))
        reduced |= _reduced(placed)
    outside = [
        tuple(_fused(module) if fused else module for module in _divided_outside(model, modules, tensor))
        for modules in (model.modules_before, model.modules_after)
    ]
    traits = model.traits._replace(operations=_FUSED_OPERATIONS) if fused else model.traits
    part = replace(
        model,
        num_attention_heads=model.num_attention_heads // tensor,
        num_key_value_heads=_key_value_heads(model, tensor),
        intermediate_size=-(-model.intermediate_size // tensor),
        modules_before=outside[0],
        groups=grouped([parts[layer] for layer in model.layers]),
        modules_after=outside[1],
        traits=traits,
    )
    stages = tuple(_stage(part, number, pipeline) for number in range(pipeline))
    if tensor == 1:
        return DividedModel(stages)
    embeddings = {one.name for one in model.modules_before if _is_vocabulary(model, one)}
    heads = frozenset(one.name for one in model.modules_after if _is_head(model, one))
    return DividedModel(stages, frozenset(reduced | embeddings), heads)


def _check(model: ModelShape, tensor: int, pipeline: int) -> None:
    """Raise InputError unless heads, key-value heads and layers can be divided equally."""
    heads, shared, layers = model.num_attention_heads, model.num_key_value_heads, model.num_hidden_layers
    if heads % tensor or (shared % tensor and tensor % shared):
        possible = [
            one for one in range(1, heads + 1) if not (heads % one or (shared % one and one % shared))
        ]
        problem = f"{tensor} GPUs cannot divide {heads} attention heads and {shared} key-value heads equally"
        raise InputError.at(_TENSOR, f"{problem}; use {_listed(possible)}")
    if layers % pipeline:
        possible = [one for one in range(1, layers + 1) if not layers % one]
        problem = f"{pipeline} stages cannot divide {layers} layers equally"
        raise InputError.at(_PIPELINE, f"{problem}; use {_listed(possible)}")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _stage(model: ModelShape, number: int, stages: int) -> ModelShape:
    """Return one stage: a part of the layers, with the embedding in the first and the head in the last."""
    if stages == 1:
        return model
    last, count = number == stages - 1, model.num_hidden_layers // stages
    after = tuple(_untied(module) for module in model.modules_after) if last else ()
    return replace(
        model,
        groups=grouped(model.layers[number * count : (number + 1) * count]),
        num_sliding_layers=model.num_sliding_layers // stages,
        num_encoder_layers=min(count, max(0, model.num_encoder_layers - number * count)),
        modules_before=model.modules_before if number == 0 else (),
        modules_after=after,
    )


def _untied(module: Module) -> Module:
    """Return a module of the last stage, which has a copy of a tensor that an earlier stage owns."""
    return module._replace(parameters=tuple(one._replace(tied=False) for one in module.parameters))


# -- the parts of one GPU ------------------------------------------------------------------------


def _divided_layer(model: ModelShape, layer: Layer, degree: int) -> list[tuple[Module, Role]]:
    """Return the part of every module of a layer on one of ``degree`` GPUs, with its role."""
    return [(_part(model, module, role, degree), role) for module, role in _roles(model, layer)]


def _roles(model: ModelShape, layer: Layer) -> Iterable[tuple[Module, Role]]:
    """Yield the modules of a layer with their roles, from their order and shapes.

    A linear layer after attention or an activation function is divided by rows if its result is as wide as
    the model; all others by columns, unless a norm follows that needs the whole result.
    """
    inside = False
    for module, after in zip(layer, (*layer[1:], None), strict=True):
        if module.kind in ("attention", "activation"):
            inside = True
            yield module, "divided"
        elif module.kind == "norm":
            weights = sum(one.numel for one in module.parameters if one.name.endswith("weight"))
            yield module, "divided" if 0 < weights < module.width else "whole"
        elif module.kind != "linear":
            yield module, "whole"
        elif len(_weights(module)) > 1:
            yield module, "experts"
        elif inside and module.out_features == model.hidden_size:
            inside = False
            yield module, "row"
        elif after is not None and _needs_all(after):
            yield module, "whole"
        else:
            yield module, "column"


def _needs_all(norm: Module) -> bool:
    """Whether a norm normalizes its whole input at once, not each head separately."""
    return norm.kind == "norm" and norm.parameters[:1] != () and norm.parameters[0].numel == norm.width


def _weights(module: Module) -> list[Parameter]:
    return [one for one in module.parameters if not one.name.endswith("bias")]


def _part(model: ModelShape, module: Module, role: Role, degree: int) -> Module:
    """Return the part of a module of a layer on one of ``degree`` GPUs."""
    if role == "whole" or degree == 1:
        return module
    if role == "column":
        return _columns(module, _width(model, module, module.out_features, degree))
    if role == "row":
        width = _width(model, module, module.in_features, degree)
        weights = _weights(module)
        kept = tuple(
            one.part(one.numel // module.in_features * width, columns=width) if one in weights else one
            for one in module.parameters
        )
        return module._replace(parameters=kept, in_features=width)
    if role == "experts":
        return _experts(model, module, degree)
    if module.kind == "norm":  # of each head
        heads = _width(model, module, module.width, degree) / module.width
        return module._replace(
            in_features=round(module.in_features * heads),
            out_features=round(module.out_features * heads),
            strided=round(module.strided * heads),
            width=round(module.width * heads),
        )
    return module._replace(
        in_features=module.in_features // degree,
        out_features=module.out_features // degree,
        strided=module.strided // degree,
        width=_equal(module, module.width, degree),
    )


def _columns(module: Module, width: int) -> Module:
    """Return a linear layer, or an embedding by its rows, with ``width`` outputs."""
    kept = tuple(one.part(one.numel // module.out_features * width) for one in module.parameters)
    return module._replace(parameters=kept, out_features=width)


def _experts(model: ModelShape, module: Module, degree: int) -> Module:
    """Return experts that are tensors of one module: each GPU has a part of the width of every expert."""
    parts = {one: _equal(module, one.numel, degree) for one in _weights(module)}
    *_, by_inputs = parts  # each row of the last matrix is divided
    kept = tuple(
        one.part(parts[one], columns=one.columns // degree if one is by_inputs else None)
        if one in parts
        else one
        for one in module.parameters
    )
    first, *_, last = ((one.numel - part) // model.hidden_size for one, part in parts.items())
    return module._replace(
        parameters=kept,
        in_features=module.in_features - last,
        out_features=module.out_features - first,
    )


def _width(model: ModelShape, module: Module, width: int, degree: int) -> int:
    """Return the part of ``width`` elements on one of ``degree`` GPUs, which may be of keys and values."""
    size = model.head_dim
    keys, own_keys = model.num_key_value_heads * size, _key_value_heads(model, degree) * size
    queries = model.num_attention_heads * size
    if width == keys:
        return own_keys
    if width == queries + 2 * keys:
        return queries // degree + 2 * own_keys
    return _equal(module, width, degree)


def _equal(module: Module, count: int, degree: int) -> int:
    if count % degree:
        raise InputError.at(_TENSOR, f"{degree} GPUs cannot divide the {count} elements of {module.name}")
    return count // degree


def _key_value_heads(model: ModelShape, degree: int) -> int:
    return max(1, model.num_key_value_heads // degree)


def _divided_outside(model: ModelShape, modules: Iterable[Module], degree: int) -> Iterable[Module]:
    """Yield the modules outside the layers, with embedding and head divided by the vocabulary."""
    rows = -(-model.vocab_size // degree)
    for module in modules:
        if _is_vocabulary(model, module):
            table = module.parameters[0]
            part = table.part(table.numel // model.vocab_size * rows)
            yield module._replace(parameters=(part, *module.parameters[1:]))
        elif _is_head(model, module):
            yield _columns(module, rows)
        else:
            yield module


def _is_vocabulary(model: ModelShape, module: Module) -> bool:
    return module.kind == "embedding" and module.num_parameters == model.vocab_size * module.width


def _is_head(model: ModelShape, module: Module) -> bool:
    return module.kind == "linear" and module.out_features == model.vocab_size


def _reduced(placed: Sequence[tuple[Module, Role]]) -> frozenset[str]:
    """Return the modules after which results are summed: the projection after attention, and the last of the
    feed-forward network."""
    attends = [number for number, (module, _) in enumerate(placed) if module.kind == "attention"]
    sums = [number for number, (_, role) in enumerate(placed) if role in ("row", "experts")]
    first = [number for number in sums if attends and number > attends[0]][:1]
    return frozenset(placed[number][0].name for number in (*first, *sums[-1:]))


# -- fused kernels -------------------------------------------------------------------------------

_FUSED_OPERATIONS = Operations(
    block=0, mlp=0, norm=0, activation=0, attention=2, eager=0, rotary=0, router=1, embedding=0
)
"""Operations beyond the first kernel of a module: attention also rotates, and writes to the cache; the router
also chooses experts (vLLM 0.33, csrc/pos_encoding_kernels.cu, cache_kernels.cu, moe/topk_softmax_kernels.cu).
"""


def _fused(module: Module) -> Module:
    """Return a module as one kernel that reads each operand and writes each result once.

    A norm also adds the residual (two tensors read, two written); an activation function multiplies two
    inputs; cosines and sines are in a table.
    """
    if module.kind == "norm":
        return module._replace(in_features=2 * module.width, out_features=2 * module.width, strided=0)
    if module.kind == "activation":
        return module._replace(in_features=2 * module.width, out_features=module.width, strided=0)
    if module.kind in ("rotary", "embedding"):
        return module._replace(in_features=module.width, out_features=module.width, strided=0)
    return module._replace(strided=0)


def _fused_layer(placed: Sequence[tuple[Module, Role]]) -> list[Module]:
    """Return the modules of a layer with fused kernels: the layers that read the same input are one product
    (vLLM's ``QKVParallelLinear``, ``MergedColumnParallelLinear``), and norms add the residuals.

    What is left to a container is the sum of its experts' results.
    """
    found: dict[tuple[str, int] | int, Module] = {}
    for number, (module, role) in enumerate(placed):
        parent = module.name.rpartition(".")[0]
        key = (parent, module.in_features) if role == "column" and parent else number
        if module.kind == "container" and not _has_experts(module, placed):
            found[key] = module._replace(in_features=0, out_features=0)
        else:
            found[key] = _joined(found[key], module) if key in found else _fused(module)
    return list(found.values())


def _has_experts(block: Module, placed: Sequence[tuple[Module, Role]]) -> bool:
    return any(one.share < 1 and one.name.startswith(f"{block.name}.") for one, _ in placed)


def _joined(one: Module, other: Module) -> Module:
    return one._replace(
        name=f"{one.name}+{other.name.rpartition('.')[2]}",
        parameters=(*one.parameters, *other.parameters),
        out_features=one.out_features + other.out_features,
    )


class FusedTiming(Timing):
    """A FusedTiming has the durations of fused kernels: a paged cache is not copied when it grows."""

    _cached = False

    def cost(self, module: Module) -> ModuleCost:
        """Return FLOP and HBM bytes of one call of ``module``.

        Attention reads the cache once; before it, queries and keys are rotated (read and written), and keys
        and values written to the cache (read and written).
        """
        if module.kind != "attention":
            return super().cost(module)
        model = self._model
        kernels = [attention_kernels(model, one) for one in self._batch]
        heads = 2 * model.num_attention_heads + 6 * model.num_key_value_heads
        rotated = self._tokens(module) * heads * model.head_dim * model.dtype_bytes
        return ModuleCost(sum(one.flops for one in kernels), rotated + sum(one.bytes for one in kernels))


class FusedPassTimings(PassTimings):
    """FusedPassTimings are the durations of modules with fused kernels."""

    def timing(self, batch: tuple[Sequences, ...]) -> Timing:
        """Return the timing of one pass."""
        return FusedTiming(machine=self._machine, model=self._model, batch=batch, zero3=False)
