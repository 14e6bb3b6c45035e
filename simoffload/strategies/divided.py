"""Division of a model among GPUs (tensor and pipeline parallelism), and its modules with fused kernels.

Every module states how it is divided (``Module.parallel``), as in Megatron-LM (Shoeybi et al., arXiv
1909.08053) and vLLM 0.33 (``model_executor/layers/linear.py``, ``vocab_parallel_embedding.py``): a linear
layer whose result a head or an activation function processes is divided by columns (its outputs), the one
after it by rows (its inputs), so that the results of the second are summed over the GPUs. Key-value heads are
replicated where there are fewer than GPUs; norms, routers and projections to a latent space (whose whole
result a norm needs) are replicated. Token embedding and head are divided by the vocabulary, in parts of equal
size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from simoffload.errors import InputError
from simoffload.models import Layer, ModelShape, Module, Operations, Parallel, Parameter, Strided, grouped

# --------------------------------------------------------------------------------------------------
# The numbers of parts and replicas among which the GPUs of a strategy are divided.


class Degrees(NamedTuple):
    """Degrees are the numbers of parts and of replicas among which the GPUs are divided."""

    tensor: int
    """Number of GPUs that share each layer."""
    pipeline: int
    """Number of stages, each with a part of the layers."""
    data: int
    """Number of replicas of the model."""

    @property
    def ranks(self) -> int:
        """Number of processes, each with one GPU."""
        return self.tensor * self.pipeline * self.data

    def gpu(self, stage: int, rank: int) -> int:
        """Return the GPU of a rank of a stage; the ranks of a replica are on neighbouring GPUs (vLLM 0.33,
        distributed/parallel_state.py)."""
        replica, part = divmod(rank, self.tensor)
        return (replica * self.pipeline + stage) * self.tensor + part


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

    ``fused``: with the kernels of vLLM or torch.compile (``_fused``), attention among them. Raises InputError
    if the model cannot be divided into equal parts.
    """
    _check(model, tensor, pipeline)
    division, reduced = (model, frozenset()) if tensor == 1 else _among(model, tensor)
    if fused:
        traits = model.traits._replace(operations=_FUSED_OPERATIONS, half_softmax=False)
        division = replace(division, attention="sdpa", softcapped=False, traits=traits)
        layer, outside = partial(_fused_layer, model), lambda modules: tuple(map(_fused, _served(modules)))
        division = _with_modules(division, layer, outside)
    stages = tuple(_stage(division, number, pipeline) for number in range(pipeline))
    if tensor == 1:
        return DividedModel(stages)
    embeddings, heads = (
        frozenset(one.name for one in modules if one.parallel == "vocabulary")
        for modules in (model.modules_before, model.modules_after)
    )
    return DividedModel(stages, embeddings | reduced, heads)


def _among(model: ModelShape, tensor: int) -> tuple[ModelShape, frozenset[str]]:
    """Return the part of a model on one of several GPUs, and the modules of layers whose results are
    summed."""
    reduced = frozenset(name for layer, _ in model.kinds for name in _reduced(layer))
    if not reduced:
        text = f"the family {model.family} does not state how its modules are divided (Module.parallel)"
        raise InputError.at(_TENSOR, f"{text}; use 1")
    part = replace(
        model,
        num_attention_heads=model.num_attention_heads // tensor,
        num_key_value_heads=max(1, model.num_key_value_heads // tensor),
        intermediate_size=-(-model.intermediate_size // tensor),
    )

    def divided(modules: Layer) -> Layer:
        return tuple(_part(model, one, tensor) for one in modules)

    return _with_modules(part, divided, divided), reduced


def _with_modules(
    model: ModelShape, layer: Callable[[Layer], Layer], outside: Callable[[Layer], Layer]
) -> ModelShape:
    """Return a model with other modules in its layers, and outside of them."""
    changed = {kind: layer(kind) for kind, _ in model.kinds}
    return replace(
        model,
        modules_before=outside(model.modules_before),
        groups=tuple(
            one._replace(layers=tuple(changed[layer] for layer in one.layers)) for one in model.groups
        ),
        modules_after=outside(model.modules_after),
    )


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
        modules_before=model.modules_before if number == 0 else (),
        modules_after=after,
    )


def _untied(module: Module) -> Module:
    """Return a module of the last stage, which has a copy of a tensor that an earlier stage owns."""
    return module._replace(parameters=tuple(one._replace(tied=False) for one in module.parameters))


# -- the parts of one GPU ------------------------------------------------------------------------


def _part(model: ModelShape, module: Module, degree: int) -> Module:
    """Return the part of a module on one of ``degree`` GPUs.

    Raises InputError for a part that cuts blocks of quantized weights, which kernels take as a whole.
    """
    if not module.share:  # vLLM divides the matrices of a tower as those of layers
        tensors = tuple(one.part(-(-one.numel // degree)) for one in module.parameters)
        return module._replace(parameters=tensors)
    part = _PARTS[module.parallel](model, module, degree)
    for tensor, one in zip(module.parameters, part.parameters, strict=True):
        if one.storage is None or one.numel == tensor.numel:
            continue
        stored, columns = one.storage.format, one.columns or one.numel
        if obstacle := stored.obstacle(one.numel // columns, columns):
            text = f"{degree} GPUs cannot divide {one.name}, which is stored as {stored.name}: {obstacle}"
            raise InputError.at(_TENSOR, f"{text}; lower it, and raise pipeline_parallel_size")
    return part


def _column(_model: ModelShape, module: Module, degree: int) -> Module:
    return _columns(module, _equal(module, module.out_features, degree))


def _by_keys(model: ModelShape, module: Module, degree: int) -> Module:
    if module.kind != "norm":
        return _columns(module, _keys(model, module, module.out_features, degree))
    return _scaled(module, _keys(model, module, module.width, degree))


def _fused_heads(model: ModelShape, module: Module, degree: int) -> Module:
    queries = model.num_attention_heads * model.head_dim
    keys = (module.out_features - queries) // 2
    return _columns(module, queries // degree + 2 * _keys(model, module, keys, degree))


def _row(_model: ModelShape, module: Module, degree: int) -> Module:
    width = _equal(module, module.in_features, degree)
    weight, *biases = module.parameters
    part = weight.part(weight.numel // degree, columns=width)
    return module._replace(parameters=(part, *biases), in_features=width)


def _experts(_model: ModelShape, module: Module, degree: int) -> Module:
    """Return all experts with a part of the width of each; the bias of the last matrix is added to a sum."""
    weights = [one for one in module.parameters if not one.name.endswith("bias")]
    *_, last = weights

    def part(one: Parameter) -> Parameter:
        if one is last:
            return one.part(_equal(module, one.numel, degree), columns=one.columns // degree)
        if one.name.startswith(last.name):
            return one
        return one.part(_equal(module, one.numel, degree))

    first, *_, inner = (one.numel // weights[0].columns for one in weights)
    return module._replace(
        parameters=tuple(map(part, module.parameters)),
        in_features=module.in_features - inner + inner // degree,
        out_features=module.out_features - first + first // degree,
    )


def _own_heads(_model: ModelShape, module: Module, degree: int) -> Module:
    """Return the part of a module that processes heads or columns; a norm has one weight for all heads, and a
    tensor of one element, such as a factor of an activation function, serves all of them."""
    part = _scaled(module, _equal(module, module.width, degree), degree)
    if module.kind == "norm":
        return part
    tensors = (
        one.part(_equal(module, one.numel, degree)) if one.numel > 1 else one for one in module.parameters
    )
    keeps = None if module.keeps is None else tuple(one.part(degree) for one in module.keeps)
    return part._replace(
        parameters=tuple(tensors),
        keeps=keeps,
        heads=module.heads and module.heads.part(degree),
        chunked=module.chunked.part(degree),
    )


def _vocabulary(model: ModelShape, module: Module, degree: int) -> Module:
    rows = -(-model.vocab_size // degree)
    if module.kind != "embedding":
        return _columns(module, rows)
    (table,) = module.parameters
    return module._replace(parameters=(table.part(table.numel // model.vocab_size * rows),))


_PARTS: dict[Parallel, Callable[[ModelShape, Module, int], Module]] = {
    "whole": lambda _model, module, _degree: module,
    "column": _column,
    "keys": _by_keys,
    "fused": _fused_heads,
    "row": _row,
    "experts": _experts,
    "heads": _own_heads,
    "vocabulary": _vocabulary,
}


def _columns(module: Module, width: int) -> Module:
    """Return a linear layer with ``width`` outputs."""
    kept = tuple(one.part(one.numel // module.out_features * width) for one in module.parameters)
    return module._replace(parameters=kept, out_features=width)


def _scaled(module: Module, width: int, degree: int | None = None) -> Module:
    """Return a module without a matrix with a result of ``width`` elements, or with 1 / ``degree`` of its
    work."""
    part, all_of_it = (1, degree) if degree else (width, module.width)
    return module._replace(
        in_features=module.in_features * part // all_of_it,
        out_features=module.out_features * part // all_of_it,
        strided=module.strided.part(part, all_of_it),
        width=width,
    )


def _keys(model: ModelShape, module: Module, width: int, degree: int) -> int:
    """Return how many of ``width`` elements of keys, or of values, are on one of ``degree`` GPUs."""
    each = module.heads.keys if module.heads else model.head_dim
    heads = width // each
    return _equal(module, heads, degree) * each if degree % heads else each


def _equal(module: Module, count: int, degree: int) -> int:
    if count % degree:
        raise InputError.at(_TENSOR, f"{degree} GPUs cannot divide the {count} elements of {module.name}")
    return count // degree


def _reduced(layer: Layer) -> frozenset[str]:
    """Return the modules after which results are summed: the last by rows in each half of a layer, as the
    results of experts and of shared ones are summed together."""
    last = {one.name.partition(".")[0]: one.name for one in layer if one.parallel in ("row", "experts")}
    return frozenset(last.values())


# -- fused kernels -------------------------------------------------------------------------------

_FUSED_OPERATIONS = Operations(
    block=0, mlp=0, norm=0, activation=0, attention=2, eager=0, rotary=0, router=1, experts=0, embedding=0
)
"""Operations beyond the first kernel of a module: attention also rotates, and writes to the cache; the router
also chooses experts (vLLM 0.33, csrc/pos_encoding_kernels.cu, cache_kernels.cu, moe/topk_softmax_kernels.cu).
"""


def _served(modules: Layer) -> Layer:
    """Return modules with the tensors that are left of quantized weights when vLLM has loaded them."""
    return tuple(
        one._replace(parameters=tuple(parameter.as_served() for parameter in one.parameters))
        for one in modules
    )


def _fused(module: Module) -> Module:
    """Return a module as one kernel that reads each operand and writes each result once.

    A norm also adds the residual (two tensors read, two written); an activation function multiplies two
    inputs; cosines and sines are in a table. The expansion of a latent cache is absorbed: it is multiplied
    into queries and results of new tokens (``FusedTiming``).
    """
    if module.kind == "norm":
        return module._replace(in_features=2 * module.width, out_features=2 * module.width, strided=Strided())
    if module.kind == "activation" and not module.state:
        return module._replace(in_features=2 * module.width, out_features=module.width, strided=Strided())
    if module.kind in ("rotary", "embedding"):
        return module._replace(in_features=module.width, out_features=module.width, strided=Strided())
    return module._replace(strided=Strided(), cached=False)


def _fused_layer(model: ModelShape, layer: Layer) -> Layer:
    """Return the modules of a layer with fused kernels: the layers that read the same input are one product
    (vLLM's ``QKVParallelLinear``, ``MergedColumnParallelLinear``), and norms add the residuals.

    What is left to a container is the sum of its experts' results, of which each is read once: 25.7 us for
    2,048 tokens of Qwen3-30B-A3B, 75 MB, on an H100 (``moe`` of vllm-kernels.json,
    docs/measurements/vllm.md).
    """
    chosen = model.experts_per_token * model.hidden_size
    found: dict[tuple[str, int, bool] | int, Module] = {}
    for number, module in enumerate(_served(layer)):
        parent = module.name.rpartition(".")[0]
        merges = parent and module.kind == "linear" and module.parallel in ("column", "keys")
        key = (parent, module.in_features, module.cached) if merges else number
        if module.kind == "container":
            summed = (chosen, model.hidden_size) if _has_experts(module, layer) else (0, 0)
            found[key] = _fused(module)._replace(in_features=summed[0], out_features=summed[1])
        else:
            found[key] = _joined(found[key], module) if key in found else _fused(module)
    return tuple(found.values())


def _has_experts(block: Module, layer: Layer) -> bool:
    return any(one.share < 1 and one.name.startswith(f"{block.name}.") for one in layer)


def _joined(one: Module, other: Module) -> Module:
    """Return two linear layers as one, with one weight and one bias unless their formats differ."""
    name = f"{one.name}+{other.name.rpartition('.')[2]}"
    tensors: dict[object, Parameter] = {}
    for tensor in (*one.parameters, *other.parameters):
        kind = tensor.name.rpartition(".")[2]
        key = kind, None if tensor.storage is None else tensor.storage.format
        tensors[key] = _merged(tensors[key], tensor, f"{name}.{kind}") if key in tensors else tensor
    return one._replace(
        name=name, parameters=tuple(tensors.values()), out_features=one.out_features + other.out_features
    )


def _merged(one: Parameter, other: Parameter, name: str) -> Parameter:
    storage = one.storage
    if storage is not None and other.storage is not None:
        storage = storage.merged(other.storage)
    return one._replace(name=name, numel=one.numel + other.numel, storage=storage)
