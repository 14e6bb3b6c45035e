"""The modules of which a model consists, with their tensors, and what a family states beyond its shape.

Every function that builds a module builds one as Hugging Face's eager code runs it. ``in_features`` and
``out_features`` count the elements that the module's kernels read and write for each token, without
parameters and the key-value cache; for a linear layer they are its shape.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from simoffload.models.caching import CpuAttentionCode
from simoffload.models.stored_tensors import Parameter

ModuleKind = Literal[
    "container", "embedding", "norm", "linear", "activation", "dropout", "rotary", "attention", "router"
]


Parallel = Literal["whole", "column", "keys", "fused", "row", "experts", "heads", "vocabulary"]
"""How tensor parallelism divides a module among GPUs.

* ``whole``: not at all; every GPU has it.
* ``column``: a linear layer by its outputs.
* ``keys``: likewise, but by key-value heads, of which several GPUs keep the same one if there are fewer heads
  than GPUs; also a norm of each of them.
* ``fused``: by the heads of queries, keys and values, which a linear layer computes together.
* ``row``: a linear layer by its inputs, so that the results of all GPUs must be summed.
* ``experts``: all experts in one module, by the width of each, so that results must be summed.
* ``heads``: a module that processes what a GPU's own part of a layer by columns computes.
* ``vocabulary``: embedding and head, by the rows of the vocabulary.
"""


class Module(NamedTuple):
    """One module of a forward pass."""

    name: str
    """Name in Hugging Face's model, relative to the layer for a layer's module. The model itself and a layer
    itself have no name there and carry their class name."""
    kind: ModuleKind
    parameters: tuple[Parameter, ...] = ()
    """The tensors that the module itself owns, not through its children."""
    hooked: bool = True
    """Whether it is a real module, whose hooks are called. This is False for kind "attention", as scores,
    softmax and values are computed by the enclosing module between its projections, and for the activation of
    experts that compute it themselves."""
    in_features: int = 0
    """Elements read for each token that the module processes."""
    out_features: int = 0
    """Elements written for each token that the module processes."""
    share: float = 1.0
    """Mean fraction of the tokens that the module processes; below 1 for an expert."""
    touched: int = 1
    """Number of tensors that ZeRO-3's hooks process one by one: positional arguments, and results beyond the
    first."""
    width: int = 0
    """Elements of the result for each token, for an embedding, a norm and an activation."""
    strided: int = 0
    """Elements written for each token by kernels that PyTorch does not vectorize, biases excepted."""
    flat: bool = False
    """Whether a linear layer is called with all tokens of all sequences in one dimension."""
    cached: bool = False
    """Whether it processes all positions in the cache in every pass, not only new tokens."""
    saves_input: bool = True
    """Whether autograd keeps the input for this module; False where another module keeps it already."""
    parallel: Parallel = "whole"
    """How tensor parallelism divides it."""
    last_only: bool = False
    """Whether inference needs it for the last token of each sequence only: the head."""
    window: int | None = None
    """Number of tokens to which attention lets a token attend, itself included; None: all before it."""
    code: Literal["none", "block", "mlp"] = "none"
    """Whose operations the own code of a container counts as: those of a layer or of a feed-forward network
    (``Operations``)."""
    expert: int | None = None
    """Number of the expert of which it is a part, if that expert's modules are only called when a token is
    routed to it; None for all other modules."""
    state: int = 0
    """Size [B] of what it keeps of each sequence between passes, whatever the length: the state of linear
    attention, which keeps no keys and values."""

    @property
    def bias(self) -> Parameter | None:
        """The bias of a linear layer; None if it has none."""
        if self.kind not in ("linear", "router"):
            return None
        return next((one for one in self.parameters if one.name.endswith("bias")), None)

    @property
    def num_parameters(self) -> int:
        """The number of elements of all tensors that the module uses, tied ones included."""
        return sum(parameter.numel for parameter in self.parameters)


def container(
    name: str,
    *,
    reads: int = 0,
    writes: int = 0,
    touched: int = 0,
    code: Literal["none", "mlp"] = "none",
) -> Module:
    """Build a module that calls others, with the little arithmetic that it does itself."""
    return Module(name, "container", in_features=reads, out_features=writes, touched=touched, code=code)


def linear(
    name: str,
    in_features: int,
    out_features: int,
    *,
    bias: bool = False,
    share: float = 1.0,
    kind: Literal["linear", "router"] = "linear",
    tied_to: str | None = None,
    flat: bool = False,
    parallel: Parallel = "whole",
) -> Module:
    """Build a matrix multiplication; ``tied_to`` names the earlier tensor that serves as its weight.

    ``flat`` states that its input has one dimension for all tokens of all sequences.
    """
    weight = Parameter(
        tied_to or f"{name}.weight",
        in_features * out_features,
        tied=tied_to is not None,
        columns=in_features,
    )
    biases = (Parameter(f"{name}.bias", out_features),) if bias else ()
    return Module(
        name,
        kind,
        (weight, *biases),
        in_features=in_features,
        out_features=out_features,
        share=share,
        flat=flat,
        parallel=parallel,
    )


def head(
    width: int, vocabulary: int, *, name: str = "lm_head", bias: bool = False, tied_to: str | None = None
) -> Module:
    """Build the matrix multiplication that computes logits, of the last token only."""
    module = linear(name, width, vocabulary, bias=bias, tied_to=tied_to, parallel="vocabulary")
    return module._replace(last_only=True)


def embedding(
    name: str, rows: int, width: int, *, scaled: bool = False, parallel: Parallel = "vocabulary"
) -> Module:
    """Build a table of which every token reads one row; ``scaled``: the row is then multiplied by a
    number."""
    table, kernels = Parameter(f"{name}.weight", rows * width, columns=width), 2 if scaled else 1
    return Module(
        name,
        "embedding",
        (table,),
        in_features=kernels * width,
        out_features=kernels * width,
        width=width,
        parallel=parallel,
    )


def layer_norm(name: str, width: int, *, affine: bool = True, saves_input: bool = True) -> Module:
    """Build a LayerNorm, one fused kernel; without ``affine`` it owns nothing."""
    tensors = (Parameter(f"{name}.weight", width), Parameter(f"{name}.bias", width)) if affine else ()
    return Module(
        name, "norm", tensors, in_features=width, out_features=width, width=width, saves_input=saves_input
    )


def rms_norm(
    name: str, width: int, *, heads: int = 1, single: bool = False, parallel: Parallel = "whole"
) -> Module:
    """Build an RMSNorm, which eager code spells out in single precision, applied to each of ``heads``
    separately.

    Cast (1 read, 2 written), square (2, 2), mean (2, 0), scale (2, 2), cast back (2, 1), weight (1, 1; not
    vectorized); a single-precision element counts as two. ``single``: the weight comes before the cast back
    (2, 2).
    """
    wide = heads * width
    return Module(
        name,
        "norm",
        (Parameter(f"{name}.weight", width),),
        in_features=(11 if single else 10) * wide,
        out_features=(9 if single else 8) * wide,
        strided=wide,
        width=wide,
        parallel=parallel,
    )


def activation(name: str, width: int, *, reads: int, writes: int, share: float = 1.0) -> Module:
    """Build an element-wise function whose kernels read and write each of ``width`` elements that many
    times."""
    return Module(
        name,
        "activation",
        in_features=reads * width,
        out_features=writes * width,
        share=share,
        width=width,
        parallel="heads",
    )


def dropout(name: str) -> Module:
    """Build a dropout, which computes nothing in inference but has hooks."""
    return Module(name, "dropout")


def rotary(name: str, head_dim: int, *, by_position: int = 2) -> Module:
    """Build the module that computes cosines and sines; ``by_position`` is its number of positional
    arguments."""
    return Module(name, "rotary", out_features=2 * head_dim, touched=by_position + 1)


def attention(
    name: str,
    *,
    query_width: int,
    value_width: int | None = None,
    rotated_width: int = 0,
    joined_width: int = 0,
    scaled_width: int = 0,
) -> Module:
    """Build scores, softmax and values of one layer.

    Reads the queries and writes the result, which eager code copies once to merge the heads. Rotation of
    ``rotated_width`` elements of queries and keys takes five kernels, of which the products are not
    vectorized: times cosine (1 read, 1 written),
    negate a half (½, ½), join (1, 1), times sine (1, 1), add (2, 1). ``joined_width``: what is rotated is
    joined with what is not (1, 1). ``scaled_width``: what is multiplied by a number before (1, 1).
    ``value_width``: elements of the result, where values are not as wide as keys.
    """
    result = query_width if value_width is None else value_width
    return Module(
        name,
        "attention",
        hooked=False,
        in_features=query_width + result + 11 * rotated_width // 2 + joined_width + scaled_width,
        out_features=2 * result + 9 * rotated_width // 2 + joined_width + scaled_width,
        strided=2 * rotated_width,
        parallel="heads",
    )


Dtype = Literal["float16", "bfloat16", "float32"]

SINGLE = 4
"""Size [B] of an element in single precision."""
DTYPE_BYTES: dict[Dtype, int] = {"float16": 2, "bfloat16": 2, "float32": SINGLE}


Attention = Literal["eager", "sdpa"]
"""Transformers' implementations of attention: spelled out in Python, or PyTorch's fused
``scaled_dot_product_attention``."""

EAGER = 8
"""Additional operations of eager attention over the fused one, counted in transformers' code: scale, mask,
softmax, two casts, the second product, dropout, and the copy of the result."""


class Operations(NamedTuple):
    """PyTorch operations of a module's call beyond the call itself, by the kind of module.

    A number is the time of a module's own code over the time of one operation, which is ``operation`` in the
    host's profile. Numbers with a default are those of PyTorch's own modules, identical in all families: they
    come from per-module traces of small BLOOM, OPT, Llama and Mixtral models (validation/measured, fit set;
    transformers 5.17).
    """

    block: int
    """Operations of a layer's own code, such as the addition of residuals."""
    mlp: int
    """Operations of the own code of a feed-forward network that is a module."""
    norm: int
    activation: int
    attention: int
    """Operations of rotation, cache, scores, softmax and values, in fused attention or the only
    implementation."""
    eager: int
    """Additional operations of eager attention."""
    rotary: int
    """Operations for cosines and sines of the positions; 0 in a family without rotary positions."""
    router: int
    """Operations for the choice of experts; 0 in a family without experts."""
    experts: int = 22
    """Operations of all experts in one module: tokens are sorted by expert and gathered, multiplied in two
    grouped products, weighed and added (calls of PyTorch counted in transformers 5.23,
    ``grouped_mm_experts_forward``, without the activation function)."""
    grouped: int = 2
    """Grouped products of all experts in one module; 0 if the code multiplies them otherwise."""
    linear: int = 0
    embedding: int = 2
    dropout: int = -1
    """Operations of a dropout; -1 as its call launches nothing."""


class SavedActivations(NamedTuple):
    """Tensors that autograd saves and allocates in a layer, as far as families differ.

    Counted in the code of transformers 5.23 and PyTorch 2.13; tests compare the counts with real allocations.
    """

    kept: int
    """Number of tensors as wide as the feed-forward network that autograd keeps, in addition to the next
    layer's input."""
    product: bool
    """Whether the input of the last linear layer is a separate tensor (False: it is the activation's result,
    which is saved in any case)."""
    masks: int
    """Number of dropout masks as wide as the model in every layer, in the family's released configurations.
    With one, a layer's last operation saves a tensor, and checkpointing recomputes the layer to its end."""
    wide: int
    """Number of gradients as wide as the feed-forward network at the peak of its backward pass."""
    narrow: int
    """Number of gradients as wide as the model at that peak."""
    scores: int
    """Bytes [B] per score at the peak of eager attention: softmax, its gradient and that of the scores;
    16-bit where softmax stays in the model's data type."""
    fused_projection: bool = False
    """Whether queries and keys are copied out of a fused projection while values stay a view of it: fused
    attention keeps all of it, and copies its result."""
    single_norm: bool = False
    """Whether RMSNorm keeps the input that it normalized in single precision, to train its weight."""


class Traits(NamedTuple):
    """The properties that every family must state."""

    architecture: str
    """Hugging Face's class of the causal language model."""
    attention: Attention
    """The implementation of attention that transformers 5 uses by default."""
    operations: Operations
    saved: SavedActivations
    leaf_modules: tuple[str, ...]
    """Modules of a layer that DeepSpeed's coordinator treats as one in training (``z3_leaf_module``; it marks
    the blocks of experts that it knows)."""
    lora_targets: tuple[str, ...]
    """Linear layers that PEFT adapts by default (peft/utils/constants.py,
    TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING); for families that PEFT does not list, our choice."""
    tensor_plan: bool = True
    """Whether transformers 5 knows how to divide the layers among GPUs (``base_model_tp_plan``)."""
    in_gguf: bool = True
    """Whether llama.cpp computes the architecture, so that a GGUF file can hold it."""
    float16: bool = True
    """Whether float16 holds the activations; a model of which it does not is in bfloat16 by default."""
    half_softmax: bool = False
    """Whether softmax of eager attention stays in the model's data type (False: in single precision, and cast
    back)."""
    cpu_attention: CpuAttentionCode | None = None
    """Attention on the CPU in DeepSpeed's fork of transformers; None: it has none for the family."""
