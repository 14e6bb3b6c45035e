"""Quantization of a model: which of its tensors are stored in which format.

Usually only matrices of linear layers within the model's layers are quantized, experts included; the head,
embeddings, norms, routers and biases stay in the model's data type. gpt-fast quantizes the head, too,
DeepSpeed also embeddings, and GGUF stores every matrix in a type of its own (``gguf``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple, TypeVar

from simoffload.documents import named, nearest, quoted
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
    """Format of quantized matrices; None with a mixture, and where only ``others`` are quantized."""
    others: tuple[tuple[ModuleNames, WeightFormat], ...] = ()
    """Names of modules in formats of their own, which go before ``format``."""
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
    cache: str = ""
    """Format in which serving engines keep keys and values of the model unless told otherwise; empty: in its
    data type."""
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
        for names, one in self.others:
            if (matrix.is_head or self._covers(matrix)) and names.match(matrix.module):
                return None if self.ignored.match(matrix.module) else one
        return self.format if self._covers(matrix) and self._names(matrix.module) else None

    @property
    def formats(self) -> tuple[WeightFormat, ...]:
        """All formats of matrices, other than those of a mixture."""
        return (*(one for _, one in self.others), *filter(None, (self.format,)))

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

    def leaves_out(self, *names: str) -> bool:
        """Return whether the lists of names leave a module out that has one of these ``names``."""
        if self.mixture is not None:
            return False
        named = [*(modules for modules, _ in self.others), *filter(None, (self.targets,))]
        covered = self.format is not None and self.targets is None
        covered = covered or any(one.match(name) for one in named for name in names)
        return not covered or any(map(self.ignored.match, names))

    @property
    def by_layer(self) -> bool:
        """Whether equal layers may have different formats."""
        lists = (self.ignored, self.targets or _NO_NAMES, *(names for names, _ in self.others))
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
        "about as large (an estimate); the file itself, named as the model, has its own types"
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
    model = GgufModel(
        layers=shape.num_hidden_layers,
        queries_per_key=shape.num_attention_heads // shape.num_key_value_heads,
        experts=shape.num_experts or 1,
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

    if shape.predictors:
        largest = max(shape.layers[shape.predictors[0]], key=lambda module: module.num_parameters).name
        plain = quantization.leaves_out(f"model.layers.{model.layers}.{largest}", f"mtp.layers.0.{largest}")
        shape = replace(shape, plain_predictors=plain)
    if quantization.note:
        shape = replace(shape, notes=(*shape.notes, quantization.note))
    if form := quantization.cache:
        note = (
            f"the checkpoint has scales for keys and values in {form}, in which vLLM keeps them unless "
            f"kv_cache.format states another type, such as {'fp16' if shape.dtype == 'float16' else 'bf16'}"
        )
        shape = replace(shape, cache_format=form, notes=(*shape.notes, note))
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
    if not module.share:
        return None  # a part that does no work for a text
    if not one.columns:
        return quantization.vector_format
    stacked = module.parallel == "experts" and not one.name.endswith(".weight")
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


# -- words in names of releases --------------------------------------------------------------------
# AWQ, FP8-dynamic, UD-Q4_K_XL: in which form the weights are stored.


UNQUANTIZED = "none"
"""Form of weights in 16 bits."""
USUAL_GGUF = "q4_k_m"
"""Mixture that llama.cpp and Ollama take where a name says none (``common_get_hf_file``)."""
_SIXTEEN = {"bf16", "fp16", "f16", "unquantized", UNQUANTIZED}
_FOUR_BIT_INTEGERS = {"awq", "gptq", "int4", "w4a16", "autoround"}
_EIGHT_BIT_INTEGERS = {"int8", "8bit", "8-bit", "w8a16"}
_UNKNOWN: Mapping[str, str] = {
    **dict.fromkeys(("mlx",), "a format of Apple's MLX, which no program here runs"),
    **dict.fromkeys(("exl2", "exl3"), "a format of ExLlama, which is not modelled"),
    **dict.fromkeys(("hqq", "onnx", "ggml"), "not modelled"),
    **dict.fromkeys(("w8a8", "w4a8"), "arithmetic with integers of 8 bits, which is not modelled"),
    **dict.fromkeys(("w4afp8", "fp6"), "not modelled"),
}
"""What is stated of forms that are known and not modelled."""
_NEAREST: Mapping[str, str] = {"w8a8": "int8-g128", "w4a8": "int4-g128", "w4afp8": "int4-g128", "fp6": "q6_k"}
"""The modelled form with weights about as large; otherwise the usual one of GGUF."""
_UNSIZED = {"kv", "i1", "imatrix", "unsloth", "dynamic", "block"}
"""Words that say nothing of the size of weights by themselves."""
_GROUP = re.compile(r"g(?:roup)?(\d+)")
_CHOICES = (
    ("int4-g128 (GPTQ, AWQ)", "nf4-dq (bitsandbytes)", "q4_k_m (GGUF)"),
    ("fp8", "int8-g128 (GPTQ)", "int8 (bitsandbytes)", "q8_0 (GGUF)"),
)
"""Forms of 4 and of 8 bits."""
_WIDTH = re.compile(r"w\d+a\d+|\d+-?bits?|\d(?:\.\d+)?bpw|quantized")


_SHORT = {"q2": "q2_k", "q6": "q6_k", "q8": "q8_0"}
_SHORT |= {f"q{bits}{k}": f"q{bits}_k_m" for bits in (3, 4, 5) for k in ("", "_k", "-k")}
"""The mixtures that people mean by a width alone: our choice; Q3_K, Q4_K and Q5_K are aliases of those called
M in llama.cpp (tools/quantize/quantize.cpp)."""


class Form(NamedTuple):
    """A Form is what words of a name say of the weights."""

    name: str | None
    """Quantization, or "none" for 16 bits; None: that of the release."""
    note: str = ""
    """Sentence for results about what was taken."""
    wrong: str = ""
    """Why the form is not known; "" if it is."""
    instead: tuple[str, ...] = ()
    """Forms that can be given instead, with what they are."""


def form_of(terms: Sequence[str], released: Quantization | None) -> Form:
    """Return the form that words of a name stand for, in the order of the name, of a model that was
    ``released`` in a form."""
    stated = set(terms)
    if len(terms) > 1 and (compound := _listed("-".join(terms))):
        return Form(compound)
    for word in terms:
        if why := _UNKNOWN.get(word):
            near = _NEAREST.get(word, USUAL_GGUF)
            return Form(None, wrong=f"its weights are in {word}, {why}", instead=(near,))
    listed = [found for word in terms if (found := _listed(word))]
    gguf = "gguf" in stated or any(one in MIXTURES for one in listed)
    if gguf and released is not None and released.name == "mxfp4":
        return _as_released(listed, stated)
    if "unquantized" in stated or (not listed and stated & _SIXTEEN):
        return Form(UNQUANTIZED)
    if name := _named(stated, listed):
        same = released is not None and released.format is not None and released.format.method == name
        return Form(None if same or (released and released.name == name) else name)
    return _usual(terms, stated)


def _listed(word: str) -> str:
    """Return the quantization that a word is the name of; "" for none."""
    return next(iter(named(_SHORT.get(word, word), QUANTIZATIONS)), "")


def _as_released(listed: Sequence[str], stated: set[str]) -> Form:
    """Return the form of a GGUF file of a release in MXFP4, whose experts stay so in every published one."""
    other = [one for one in listed if one not in ("mxfp4", "mxfp4_moe")] + sorted(stated & _SIXTEEN)
    if not other:
        return Form(None)
    return Form(
        None,
        f"experts are in MXFP4 as released, as they are in GGUF files called {other[0].upper()}; the other "
        "tensors, which such files have in that type, are taken as released, too",
    )


def _named(stated: set[str], listed: Sequence[str]) -> str:
    """Return the quantization that the words name, or that they have together; "" if they name none."""
    group = next((found[1] for word in stated if (found := _GROUP.fullmatch(word))), "128")
    integers = f"int4-g{group}"
    if "fp8" in stated:
        return "fp8-channel" if "dynamic" in stated else "fp8-block128" if "block" in stated else "fp8"
    if stated & {"nvfp4a16", "fp4a16"}:
        return "nvfp4-a16"
    if stated & {"bnb"}:
        return "int8" if stated & _EIGHT_BIT_INTEGERS else "nf4-dq"
    if stated & {"gptq", "w8a16"} and stated & _EIGHT_BIT_INTEGERS:
        return "int8-g128"
    if stated & _FOUR_BIT_INTEGERS and "qat" not in stated:
        return integers if integers in QUANTIZATIONS else ""
    return next(iter(listed), "nvfp4" if "fp4" in stated else "")


def _usual(terms: Sequence[str], stated: set[str]) -> Form:
    """Return the form of words that do not name one, as far as they say enough."""
    if "qat" in stated:  # the releases of Gemma
        return Form("q4_0")
    if "gguf" in stated:
        mixture = next((word for word in terms if re.match(r"(?:ud-)?(?:i?q|tq)[1-8]", word)), "")
        if not mixture:
            return Form(USUAL_GGUF)
        terms = (mixture,)
    if vague := next((word for word in terms if _WIDTH.fullmatch(word)), ""):
        return Form(None, wrong=f"{quoted(vague)} does not say in which form", instead=_CHOICES["8" in vague])
    if stated <= _UNSIZED:
        return Form(None)
    word = next(word for word in terms if word not in _UNSIZED)
    near = tuple(nearest(word.replace("-", "_"), QUANTIZATIONS)) or ("fp8", "int4-g128", "q4_k_m")
    return Form(None, wrong=f"no form of weights is called {quoted(word)}", instead=near)


# -- models in GGUF files --------------------------------------------------------------------------


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
