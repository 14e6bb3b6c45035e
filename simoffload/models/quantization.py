"""Quantization of a model: which of its tensors are stored in which format.

Usually only matrices of linear layers within the model's layers are quantized, experts included; the head,
embeddings, norms, routers and biases stay in the model's data type. gpt-fast quantizes the head, too,
DeepSpeed also embeddings, and GGUF stores every matrix in a type of its own (``gguf``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple, TypeVar

from simoffload.errors import InputError
from simoffload.models.formats import FORMATS, GGUF_TYPES, WeightFormat, deepspeed, grouped
from simoffload.models.gguf import MIXTURES, UNSLOTH, GgufModel, Mixture, gguf_type
from simoffload.models.module_names import ModuleNames
from simoffload.models.modules import Dtype, Module, ModuleKind, Parameter, Storage
from simoffload.models.shape import Layer, LayerGroup, ModelShape
from simoffload.models.shape import grouped as grouped_layers
from simoffload.recent import Recent

_NO_NAMES = ModuleNames()
_NOTHING: Mapping[str, Storage | None] = {}


class Matrix(NamedTuple):
    """A Matrix is a tensor of a module that is not a norm's, as far as a quantization depends on it."""

    name: str
    """Name of the tensor in Hugging Face's model, relative to the layer."""
    module: str
    """Full name of its module."""
    kind: ModuleKind
    columns: int
    """Number of weights in a row."""
    layer: int | None = None
    """Number of the layer; None outside the layers."""
    stacked: bool = False
    """Whether it is a parameter of its own, such as the matrices of all experts, not a linear layer's."""

    @property
    def is_head(self) -> bool:
        """Whether it is the output layer."""
        return self.layer is None and self.module == "lm_head"


@dataclass(frozen=True)
class Quantization:
    """A Quantization names the format of every tensor of a model."""

    name: str
    format: WeightFormat | None = None
    """Format of quantized matrices; None with a mixture."""
    mixture: Mixture | None = None
    """Mixture of a GGUF file."""
    targets: ModuleNames | None = None
    """Names of the only modules that are quantized; None: all of the kinds below."""
    ignored: ModuleNames = _NO_NAMES
    """Names of modules that are not quantized."""
    linear: bool = True
    """Whether linear layers are quantized, beside experts in one tensor."""
    head: bool = False
    """Whether the head is quantized."""
    embeddings: bool = False
    """Whether embeddings are quantized, too."""
    experts: bool = True
    """Whether experts in one tensor are quantized; programs that replace modules by quantized ones do not
    see them."""
    routers: bool = False
    """Whether routers of experts are quantized."""
    dtype: Dtype | None = None
    """Data type of activations that its kernels need; None: any."""
    note: str = ""
    """Sentence about what is not known of it, which results have as a warning."""

    def format_of(self, matrix: Matrix, model: GgufModel) -> WeightFormat | None:
        """Return the format of a matrix; None: the model's data type."""
        if self.mixture is not None:
            if matrix.kind == "router":
                return self.vector_format
            return gguf_type(
                self.mixture, model, name=matrix.name, columns=matrix.columns, layer=matrix.layer
            )
        return self.format if self._covers(matrix) and self._names(matrix.module) else None

    def _covers(self, matrix: Matrix) -> bool:
        """Return whether matrices of this kind are quantized."""
        if matrix.stacked:
            return self.experts
        if matrix.kind == "linear":
            return self.head if matrix.is_head else self.linear
        return self.routers if matrix.kind == "router" else self.embeddings

    def _names(self, module: str) -> bool:
        """Return whether the lists of names leave the module quantized."""
        return (self.targets is None or self.targets.match(module)) and not self.ignored.match(module)

    @property
    def by_layer(self) -> bool:
        """Whether equal layers may have different formats."""
        lists = (self.ignored, self.targets or _NO_NAMES)
        return self.mixture is not None or any(one.by_layer for one in lists)

    @property
    def vector_format(self) -> WeightFormat | None:
        """Format of vectors; None: the model's data type."""
        return None if self.mixture is None else GGUF_TYPES["f32"]


def _gpt_fast(name: str, bits: int, group: int | None, zero: int) -> Quantization:
    """Return a quantization of gpt-fast (quantize.py), which replaces all linear layers, the head included.

    Scales, and zero points of 4-bit groups, are of 2 B each, and in one tensor.
    """
    names = ("weight", "scales_and_zeros" if zero else "scales")
    made = grouped(name, bits, group, names=names, zero=Fraction(zero))
    own_kernels = made.dequantization._replace(kernel="")
    return Quantization(name, replace(made, dequantization=own_kernels), head=True)


def bitsandbytes_quantization(
    one: WeightFormat, *, ignored: ModuleNames = _NO_NAMES, head: bool = False
) -> Quantization:
    """Return a quantization of bitsandbytes, which replaces linear layers and leaves experts in one tensor
    (bitsandbytes-foundation/bitsandbytes, issue 1849)."""
    return Quantization(one.name, one, ignored=ignored, head=head, experts=False)


def _note(mixture: str) -> str:
    if not mixture.startswith(UNSLOTH):
        return ""
    return (
        f"Unsloth chooses the types of {mixture} for each model: sizes and times are those of a mixture "
        "about as large (some 7 % off, an estimate); the file itself, named as the model, has its own types"
    )


QUANTIZATIONS: dict[str, Quantization] = {
    **{name: Quantization(name, one) for name, one in FORMATS.items()},
    **{name: bitsandbytes_quantization(FORMATS[name]) for name in ("nf4", "nf4-dq")},
    "gpt-fast-int8": _gpt_fast("gpt-fast-int8", 8, None, 0),
    "gpt-fast-int4-g32": _gpt_fast("gpt-fast-int4-g32", 4, 32, 2),
    **{name: Quantization(name, mixture=mixture, note=_note(name)) for name, mixture in MIXTURES.items()},
}
"""Quantizations by the name that a scenario uses."""


def deepspeed_quantization(bits: int, group: int, *, dtype_bytes: int, kernel: bool) -> Quantization:
    """Return DeepSpeed's ``quantized_initialization``: the weights of all linear layers and embeddings.

    The classes are compared exactly (``WEIGHT_QUANTIZATION_LAYERS``), so OPT's embedding of positions, a
    class of its own, and experts in one tensor stay as they are.
    """
    made = deepspeed(bits, group, dtype_bytes=dtype_bytes, kernel=kernel)
    ignored = ModuleNames(["embed_positions"])
    return Quantization(
        made.name, made, ignored=ignored, head=True, embeddings=True, experts=False, routers=True
    )


Kept = TypeVar("Kept")
"""What says how a tensor is kept: its format, or its storage itself."""


def quantized(shape: ModelShape, quantization: Quantization) -> ModelShape:
    """Return the model with the storage of every tensor; layers with different formats become different
    ones."""
    routers = (module.out_features for module in shape.distinct_modules if module.kind == "router")
    model = GgufModel(
        layers=shape.num_hidden_layers,
        queries_per_key=shape.num_attention_heads // shape.num_key_value_heads,
        experts=next(routers, 1),
        tied=any(one.tied for module in shape.modules_after for one in module.parameters),
    )

    names = shape.layer_names

    def formats(modules: Layer, layer: int | None) -> tuple[WeightFormat | None, ...]:
        prefix = "" if layer is None else f"{names[layer]}."
        return tuple(
            _format(module, one, prefix + module.name, layer, quantization, model)
            for module in modules
            for one in module.parameters
        )

    def storage(one: Parameter, form: WeightFormat | None) -> Storage | None:
        columns = one.columns or one.numel
        return None if form is None else form.stored(one.numel // columns, columns)

    if quantization.note:
        shape = replace(shape, notes=(*shape.notes, quantization.note))
    return with_storage(shape, quantization.name, formats, storage, by_layer=quantization.by_layer)


def with_storage(
    shape: ModelShape,
    name: str,
    kept: Callable[[Layer, int | None], tuple[Kept, ...]],
    storage: Callable[[Parameter, Kept], Storage | None],
    *,
    by_layer: bool = True,
) -> ModelShape:
    """Return the model with the ``storage`` of every tensor under the ``name`` of a quantization.

    ``kept`` says how the tensors of modules are kept, of those of the layer of a number or of others; it may
    differ between equal layers if ``by_layer``. Tied tensors are kept as those that own them.
    """
    before = _stored(shape.modules_before, kept(shape.modules_before, None), storage)
    owned = {one.name: one.storage for module in before for one in module.parameters}
    if by_layer:
        made: dict[tuple[int, tuple[Kept, ...]], Layer] = {}  # equal layers are one object
        layers = []
        for index, layer in enumerate(shape.layers):
            key = id(layer), kept(layer, index)
            if key not in made:
                made[key] = _stored(layer, key[1], storage)
            layers.append(made[key])
        groups = grouped_layers(layers)
    else:
        kinds = {id(layer): _stored(layer, kept(layer, 0), storage) for layer, _ in shape.kinds}
        groups = tuple(
            LayerGroup(tuple(kinds[id(layer)] for layer in group.layers), group.repeat)
            for group in shape.groups
        )
    return replace(
        shape,
        name=f"{shape.name}, {name}",
        quantization=name,
        modules_before=before,
        groups=groups,
        modules_after=_stored(shape.modules_after, kept(shape.modules_after, None), storage, owned),
    )


def _format(
    module: Module,
    one: Parameter,
    full_name: str,
    layer: int | None,
    quantization: Quantization,
    model: GgufModel,
) -> WeightFormat | None:
    """Return the format of a tensor; None: the model's data type."""
    if not one.columns:
        return quantization.vector_format
    stacked = not one.name.endswith(".weight")
    matrix = Matrix(one.name, full_name, module.kind, one.columns, layer, stacked)
    return quantization.format_of(matrix, model)


def _stored(
    modules: Layer,
    kept: tuple[Kept, ...],
    storage: Callable[[Parameter, Kept], Storage | None],
    owned: Mapping[str, Storage | None] = _NOTHING,
) -> Layer:
    """Return modules with the storage of their tensors; ``owned`` has that of tied ones."""
    remaining = iter(kept)

    def stored(one: Parameter) -> Storage | None:
        how = next(remaining)
        return owned.get(one.name) if one.tied else storage(one, how)

    return tuple(
        module._replace(parameters=tuple(one._replace(storage=stored(one)) for one in module.parameters))
        for module in modules
    )


_GGUF_OF = {"mxfp4": "mxfp4_moe"}
"""Mixtures of GGUF with the weights of a released format as they are."""


def in_gguf(model: ModelShape) -> ModelShape:
    """Return the model as a GGUF file has it: 16 bits and types of GGUF as they are, MXFP4 of a release as
    its mixture, and with the fused attention of llama.cpp. Raises InputError for other formats, and for
    architectures that llama.cpp lacks."""
    return _IN_GGUF.get(id(model), lambda: (model, _in_gguf(model)))[1]


def has_gguf(model: ModelShape) -> bool:
    """Return whether a GGUF file can have the model with its weights as they are."""
    try:
        in_gguf(model)
    except InputError:
        return False
    return True


_IN_GGUF: Recent[int, tuple[ModelShape, ModelShape]] = Recent()
"""Models with what ``in_gguf`` returned for them."""


def _in_gguf(model: ModelShape) -> ModelShape:
    if not model.traits.in_gguf:
        unknown = f"llama.cpp does not know {model.traits.architecture}"
        text = f"{unknown}; choose another program, or another model"
        raise InputError.at("strategy.kind", text)
    formats = {
        one.storage.format for module in model.distinct_modules for one in module.parameters if one.storage
    }
    if strange := [one for one in formats if GGUF_TYPES.get(one.name) is not one]:
        name = _GGUF_OF.get(strange[0].name)
        if name is None or len(strange) > 1:
            text = f"llama.cpp has no tensors in {strange[0].name}; set model.quantization to a type of GGUF"
            raise InputError.at("strategy.kind", f"{text}, such as q4_k_m or q8_0")
        model = quantized(replace(model, name=model.unquantized_name), QUANTIZATIONS[name])
    if model.attention != "sdpa" or model.softcapped:
        return replace(model, attention="sdpa", softcapped=False)
    return model
