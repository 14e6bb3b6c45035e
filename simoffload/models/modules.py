"""The modules of which a model consists, with their tensors, and what a family states beyond its shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, overload

from simoffload.limits import count_elements

if TYPE_CHECKING:
    from simoffload.models.formats import WeightFormat

# -- what attention pays for the way in which keys and values are kept -----------------------------
# Counted in transformers 5.23.0, ``cache_utils.py``, and for paged caches in vLLM 0.33.


class CacheForm(NamedTuple):
    """A CacheForm is the way in which keys and values are kept on the GPU, by default as in transformers'
    ``DynamicCache``, whose ``torch.cat`` reads and writes all of them in every pass."""

    room: int = 0
    """Number of tokens for which a cache of fixed size has room, and on all of which attention works
    (``StaticCache``); 0: the cache grows."""
    first: float = 0.0
    """Traffic [B] within HBM per element when a prompt is written to a quantized cache; 0: not quantized."""
    later: float = 0.0
    """Traffic [B] within HBM per element in every later pass, which decodes all of a quantized cache."""
    paged: float = 0.0
    """Size [B] of an element that kernels read from a paged cache, to which new tokens are written in place;
    0: that of the model's type."""
    offloaded: bool = False
    """Whether it leaves the GPU between passes (``offloading=True``)."""
    operations: int = 0
    """Number of PyTorch operations of an update beyond the two of ``torch.cat``."""

    @property
    def joins(self) -> bool:
        """Whether ``torch.cat`` also copies the prompt, as it joins it with an empty cache."""
        return not self.room and not self.first and not self.paged

    def slowly_joined(self, *, new_tokens: int, context: int, window: int | None) -> int:
        """Return the number of positions of each sequence that ``torch.cat`` copies element by element.

        It does so where keys and values are no contiguous tensor: those of a prompt, which are transposed,
        and those that a full sliding layer keeps, which are a view of the last ones
        (``DynamicSlidingWindowLayer.update``) unless copies to another device have made them contiguous.
        """
        if not self.joins:
            return 0
        if new_tokens == context:
            return context
        if window is None or self.offloaded or context - new_tokens < window:
            return 0
        return self.held(new_tokens=new_tokens, context=context, window=window)

    def positions(self, context: int) -> int:
        """Return the number of positions on which a pass works whose last token has ``context`` keys."""
        return max(self.room, context)

    def held(self, *, new_tokens: int, context: int, window: int | None) -> int:
        """Return the number of positions of which attention reads keys and values."""
        if not self.room:
            return context if window is None else min(context, window - 1 + new_tokens)
        if window is None:
            return self.positions(context)
        return new_tokens if new_tokens > window else min(window, self.positions(context))

    def seen(self, *, new_tokens: int, context: int, window: int | None, fused: bool) -> tuple[int, int]:
        """Return the keys on which attention works, summed over the new tokens of a sequence, and the
        positions that it reads.

        In a cache of fixed size it works on all positions, those that the mask hides included. Fused kernels
        (``sdpa``) get a prompt without the empty positions (integrations/sdpa_attention.py).
        """
        held = self.held(new_tokens=new_tokens, context=context, window=window)
        if not self.room:
            return attended_rows(new_tokens=new_tokens, context=context, chosen=window), held
        if fused and window is None and new_tokens == context:
            return attended_rows(new_tokens=new_tokens, context=context), context
        return new_tokens * held, held

    def append_bytes(
        self, *, new_tokens: int, context: int, window: int | None, width: int, size: int
    ) -> float:
        """Return the traffic [B] within HBM that adds the new tokens of one sequence to the cache.

        ``width`` is the number of elements of a token, ``size`` that of an element in the model's type [B]. A
        full sliding cache of fixed size is rolled and copied back.
        """
        if self.room:
            if window is None or context <= window:
                return 2 * new_tokens * width * size
            return (2 if new_tokens == context else 4) * min(window, self.room) * width * size
        if self.paged:
            return new_tokens * width * (size + self.paged)
        held = self.held(new_tokens=new_tokens, context=context, window=window)
        if self.first:
            return held * width * (self.first if new_tokens == context else self.later)
        return 2 * held * width * size


GROWING = CacheForm()


def attended_rows(*, new_tokens: int, context: int, every: int = 1, chosen: int | None = None) -> int:
    """Return the rows to which ``new_tokens`` tokens attend, summed; the last one's context is ``context``.

    Each attends to the full rows of ``every`` tokens up to itself, at most to ``chosen``, as those of a
    window.
    """

    def until(last: int) -> int:
        growing = last if chosen is None else min(last, chosen * every - 1)
        full = growing // every
        return (
            every * full * (full - 1) // 2
            + full * (growing - full * every + 1)
            + (last - growing) * (chosen or 0)
        )

    return until(context) - until(context - new_tokens)


class CpuAttentionCode(NamedTuple):
    """What attention on the CPU does in DeepSpeed's fork of transformers (kvcache-offload-cpu).

    Counted in tjruwase/transformers@35515d7d, for one new token of each sequence.
    """

    single: bool
    """Whether the buffer of keys and values is in single precision (False: in the model's data type, and cast
    in every step)."""
    passes: int
    """How often scores are read or written in single precision."""
    returns_half: bool
    """Whether the CPU casts the result to the model's data type, before it is copied to the GPU."""
    biases: bool = False
    """Whether a bias of every score is copied to host memory (ALiBi), in single precision."""
    obstacle: str = ""
    """What of the model the fork's version of transformers does not load; "" if it loads the model."""


# -- modules ---------------------------------------------------------------------------------------
# The modules of which a model consists, with their tensors, and what a family states beyond its shape.
#
# Every function that builds a module builds one as Hugging Face's eager code runs it. ``in_features`` and
# ``out_features`` count the elements that the module's kernels read and write for each token, without
# parameters and the key-value cache; for a linear layer they are its shape.


ModuleKind = Literal[
    "container",
    "embedding",
    "norm",
    "linear",
    "activation",
    "dropout",
    "rotary",
    "attention",
    "router",
    "adapter",
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


class Heads(NamedTuple):
    """Heads are the sizes of the attention of one module."""

    number: int
    """Number of heads of queries."""
    shared: int
    """Heads of keys and values, each for several of queries."""
    keys: int
    """Elements of a head of keys."""
    values: int
    """Width of a head of values; 0 where only scores are computed, as by an indexer."""
    joint: bool = False
    """Whether values are the rows of keys themselves, which are kept and read once."""

    @property
    def widths(self) -> int:
        """The elements of one head of keys and one of values."""
        return self.keys + self.values

    @property
    def row(self) -> int:
        """The elements that are kept of a token."""
        return self.shared * (self.keys if self.joint else self.widths)

    def part(self, degree: int) -> Heads:
        """Return those on one of ``degree`` GPUs."""
        return self._replace(number=self.number // degree, shared=max(1, self.shared // degree))


class StatePart(NamedTuple):
    """A StatePart is one thing that a module keeps of every sequence between passes.

    It grows with the sequence, by a row for each token or for some tokens together, or ends with a window, or
    has a ``fixed`` size.
    """

    name: str
    """What it is: "keys and values", "latent rows", "indexer keys", "recurrent state", …"""
    width: int = 0
    """Elements of a row, in the type of the cache."""
    served: int | None = None
    """Size [B] of a row, or of a part without rows, in serving engines that keep it in a type or length of
    its own; None: as the others."""
    every: int = 1
    """Tokens of a row; above 1 where several are compressed to one."""
    window: int | None = None
    """Last tokens of which rows are kept, the new one included; None: all."""
    chosen: int | None = None
    """Most rows that sparse attention reads for a token, where an indexer chooses them; None: all."""
    fixed: int = 0
    """Size [B] whatever the length of the sequence, of a part without rows."""
    borrowed: bool = False
    """Whether the rows are those that an earlier layer keeps."""
    heads: int = 1
    """Heads whose elements a row has, which GPUs divide among them."""
    packed: int | None = None
    """Size [B] of a row in an FP8 cache of a serving engine, scales included; None: 1 B an element."""
    hot: int = 0
    """Rows of each sequence in HBM, where all rows are in host memory; 0: all are in HBM."""

    def part(self, degree: int) -> StatePart:
        """Return it on one of ``degree`` GPUs, among which states are divided, and rows by heads."""
        served = -(-self.served // degree) if self.fixed and self.served is not None else self.served
        width = self.width // min(self.heads, degree)
        return self._replace(fixed=-(-self.fixed // degree), width=width, served=served)


class Strided(NamedTuple):
    """What kernels that PyTorch does not vectorize do for each token, biases excepted: they broadcast a row
    or a column, change the type, or have operands of different strides."""

    written: int = 0
    """Elements written, by all of these kernels together."""
    traffic: int = 0
    """Elements that they read and write; one in single precision counts as two."""

    def part(self, numerator: int, denominator: int) -> Strided:
        """Return a part of it."""
        return Strided(self.written * numerator // denominator, self.traffic * numerator // denominator)


class Chunked(NamedTuple):
    """What kernels that update a state do for each token of a prompt, beyond what they read and write of each
    token anyway, as they update it once for all tokens of a chunk."""

    flops: int = 0
    """Products of matrices [FLOP]."""
    traffic: int = 0
    """Elements that they write and read again, states between chunks among them."""
    kernels: int = 0
    """Kernels of a prompt in vLLM, with those of the convolution and for states of the cache."""

    def part(self, degree: int) -> Chunked:
        """Return that on one of ``degree`` GPUs."""
        return self._replace(flops=self.flops // degree, traffic=self.traffic // degree)


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
    """Elements of the result for each token, for an embedding, a norm and an activation; of the input for the
    sum of an adapter."""
    strided: Strided = Strided()
    """Kernels of the forward pass that are not vectorized."""
    strided_back: Strided = Strided()
    """Kernels of the backward pass that are not vectorized."""
    more: int = 0
    """Elements that element-wise kernels of the backward pass read and write for each token beyond twice
    those of the forward pass, without those for gradients of its weights."""
    cast_bytes: int = 0
    """[B] of an element of the copy of its input in another type, which training keeps instead of the input;
    0 if there is none."""
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
    heads: Heads | None = None
    """Sizes of attention, where those of the model are not its own."""
    keeps: tuple[StatePart, ...] | None = None
    """What it keeps of each sequence between passes; None: keys and values of attention, nothing of another
    module."""
    chunked: Chunked = Chunked()
    """What the update of its state does for each token of a prompt."""

    @property
    def attends(self) -> bool:
        """Whether it is the attention of a layer, not the scores of an indexer alone."""
        return self.kind == "attention" and (self.heads is None or self.heads.values > 0)

    @property
    def state(self) -> int:
        """Size [B] of what it keeps of each sequence whatever the length."""
        return sum(one.fixed for one in self.keeps or ())

    @property
    def bias(self) -> Parameter | None:
        """The bias of a linear layer; None if it has none."""
        if self.kind not in ("linear", "router"):
            return None
        return next((one for one in self.parameters if one.name.endswith("bias")), None)

    @property
    def fused_norm(self) -> Module:
        """The same norm in one kernel."""
        return self._replace(
            in_features=self.width, out_features=self.width, strided=Strided(), strided_back=Strided(), more=0
        )

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

    Cast (1 read, 2 written), square (2, 2), mean (2, 0), scale (2, 2), cast back (2, 1), weight (1, 1); a
    single-precision element counts as two. ``single``: the weight comes before the cast back (2, 2). Cast,
    scale and weight are not vectorized.

    Backward, as in the kernels of docs/measurements/engine-parts.md: weight (1, 1), cast (1, 2), scale (2,
    2), times the input (4, 2), sum (2, 0), mean (0, 2), square (2, 2 and 4, 2), a copy (2, 2), sum of both
    (4, 2), cast back (2, 1). Weight, cast, scale and mean are not vectorized.
    """
    wide = heads * width
    traffic = 11 if single else 9
    return Module(
        name,
        "norm",
        (Parameter(f"{name}.weight", width),),
        in_features=(11 if single else 10) * wide,
        out_features=(9 if single else 8) * wide,
        strided=Strided(3 * wide, traffic * wide),
        strided_back=Strided(4 * wide, (traffic + 2) * wide),
        more=6 * wide,
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


def adapter_sum(
    name: str,
    in_features: int,
    out_features: int,
    *,
    copied: bool = False,
    single: bool = False,
    autocast: bool = False,
    share: float = 1.0,
) -> Module:
    """Build what PEFT does around the two products of an adapter: the result of the second one is scaled (1
    read, 1 written) and added to that of the frozen layer (2, 1), which is ``copied`` first (1, 1) if its
    weights have 4 bits (tuners/lora/bnb.py). Backward, the gradient is scaled (1, 1), and the two of the
    input are added (2, 1).

    ``single``: the adapter is in single precision (PEFT's ``autocast_adapter_dtype``), so that its input is
    cast (1, 2), its products read and write one element more (in, out; backward 2 each), scaling is (2, 2),
    and the sum in single precision (3, 2) is cast back (2, 1); a ``copied`` result is added after the cast
    (2, 1; 2, 1). Backward, the gradient is cast (1, 2), and that of the frozen layer back (2, 1), if it is
    not copied; that of the input is cast back (2, 1). Casts to single precision and the sum are not
    vectorized. With ``autocast`` the products have 16 bits all the same: the input is cast and cast back (1,
    2; 2, 1), as is its gradient. Beside 4 bits nothing is cast then (``requires_conversion`` of bnb.py).
    """
    single = single and not (copied and autocast)
    wide, out = in_features, out_features
    reads, writes, back = (4 if copied else 3) * out, (3 if copied else 2) * out, 2 * out + 3 * wide
    strided = strided_back = Strided()
    if single and autocast:
        reads, writes, back = reads + 3 * wide, writes + 3 * wide, back + 6 * wide
        strided = strided_back = Strided(wide, 3 * wide)
    elif single:
        strided_back = Strided(out, 3 * out)
        reads, writes = 2 * wide + 7 * out, 2 * wide + 6 * out
        back = (9 if copied else 12) * out + 8 * wide
        strided = Strided(wide + (0 if copied else out), 3 * wide + (0 if copied else 5 * out))
    return Module(
        name,
        "adapter",
        in_features=reads,
        out_features=writes,
        strided=strided,
        strided_back=strided_back,
        more=back - 2 * (reads + writes),
        share=share,
        width=wide,
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
    ``rotated_width`` elements of queries and keys takes five kernels, none of them vectorized: times cosine
    (1 read, 1 written), negate a half (½, ½), join (1, 1), times sine (1, 1), add (2, 1). Backward: both
    products (2, 2), negate a half (½, ½), two halves into cleared tensors (1, 1; 0, 2), their sum (2, 1),
    that of both parts (2, 1), and a copy that is contiguous (1, 1), of which clearing and the first sum are
    vectorized (docs/measurements/engine-parts.md). ``joined_width``: what is rotated is joined with what is
    not (1, 1). ``scaled_width``: what is multiplied by a number before (1, 1). ``value_width``: elements of
    the result, where values are not as wide as keys.
    """
    result = query_width if value_width is None else value_width
    return Module(
        name,
        "attention",
        hooked=False,
        in_features=query_width + result + 11 * rotated_width // 2 + joined_width + scaled_width,
        out_features=2 * result + 9 * rotated_width // 2 + joined_width + scaled_width,
        strided=Strided(9 * rotated_width // 2, 10 * rotated_width),
        strided_back=Strided(11 * rotated_width // 2, 12 * rotated_width),
        more=-3 * rotated_width,
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
    adapter: int = 2
    """Operations of the sum of an adapter: scaling and addition (our count)."""


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
    largest_graph: int | None = None
    """Most tokens of a step for which vLLM captures CUDA graphs of this architecture
    (``model_executor/models/config.py``); None: as of any other."""
    v1_runner: bool = False
    """Whether vLLM 0.25 runs the model with its model runner V1 (``config/vllm.py``,
    ``use_v2_model_runner``)."""


# -- tensors in which a program keeps the weights of a model ---------------------------------------
# One, or several for a quantized weight.
#
# A quantized weight is kept as packed values, scales, zero points, and others that do not grow with it,
# such as code tables. Each is a tensor of its own, which is copied, pinned, and divided among processes.


class Scales(NamedTuple):
    """Scales are one of the tensors that a program keeps beside the packed values, with some bytes for each
    tile of weights."""

    name: str
    """Name of the tensor in the module, such as "weight_scale"."""
    bytes: Fraction
    """Size [B] per tile."""
    columns: int | None = None
    """Weights of a row that share them; None: all of a row."""
    rows: int | None = 1
    """Rows that share them; None: all."""
    flat: bool = False
    """Whether a tile continues in the next row: the tensor is cut as one sequence."""
    dropped: bool = False
    """Whether kernels of vLLM do not use it, so that it does not keep it."""

    def size(self, rows: int, columns: int) -> Fraction:
        """Return the size of all scales of a tensor [B]."""
        if self.flat:
            return self.bytes * ceil(Fraction(rows * columns, self.columns or rows * columns))
        across = ceil(Fraction(columns, self.columns or columns))
        return self.bytes * across * ceil(Fraction(rows, self.rows or rows))


class Storage(NamedTuple):
    """A Storage is the form in which a quantized weight is kept."""

    format: WeightFormat
    tensors: tuple[int, ...]
    """Sizes [B] of its tensors: packed values, then those that the format has beside them."""
    served: bool = False
    """Whether vLLM keeps it, without what its kernels do not use."""

    @property
    def bytes(self) -> int:
        """Size [B] of all its tensors."""
        return sum(self.tensors)

    @property
    def read(self) -> int:
        """Size [B] of the tensors that kernels read."""
        return self.as_served().bytes

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its tensors in the module."""
        form = self.format
        scales = () if form.joined else (one.name for one in form.scales if not (self.served and one.dropped))
        return (form.values, *scales)

    def as_served(self) -> Storage:
        """Return the tensors that vLLM keeps."""
        if self.served or self.format.joined:
            return self._replace(served=True)
        values, *scales = self.tensors
        kept = (size for one, size in zip(self.format.scales, scales, strict=True) if not one.dropped)
        return Storage(self.format, (values, *kept), served=True)

    def merged(self, other: Storage) -> Storage:
        """Return the tensors of this weight and of another one of the same format that kernels multiply as
        one."""
        return self._replace(tensors=tuple(map(sum, zip(self.tensors, other.tensors, strict=True))))


class Parameter(NamedTuple):
    """One parameter tensor of a module."""

    name: str
    """Name in Hugging Face's model; relative to the layer for a layer's tensor."""
    numel: int
    """Number of elements of the tensor."""
    tied: bool = False
    """Whether it is the tensor of the same name that an earlier module owns (``lm_head`` and the
    embedding)."""
    trainable: bool = True
    columns: int = 0
    """Number of elements of a row, which may share scales; 0 for a vector, or where it is not known."""
    storage: Storage | None = None
    """Form in which it is kept; None: in the model's data type."""

    def stored_bytes(self, dtype_bytes: int) -> int:
        """Return the size [B] of the tensor where it is kept; ``dtype_bytes`` is that of an element."""
        return self.numel * dtype_bytes if self.storage is None else self.storage.bytes

    def read_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes [B] of it that kernels read."""
        return self.numel * dtype_bytes if self.storage is None else self.storage.read

    def stored_tensors(self, dtype_bytes: int) -> tuple[tuple[str, int], ...]:
        """Return name and size [B] of the tensors in which it is kept: itself, or those of its format.

        Those of experts in one tensor have its name before their own, such as ``gate_up_proj_blocks``.
        """
        if self.storage is None:
            return ((self.name, self.numel * dtype_bytes),)
        owner = self.name.removesuffix("weight")
        before = owner if owner.endswith(".") else f"{self.name}_"
        return tuple(
            (before + name, size) for name, size in zip(self.storage.names, self.storage.tensors, strict=True)
        )

    def as_served(self) -> Parameter:
        """Return it as vLLM keeps it."""
        return self if self.storage is None else self._replace(storage=self.storage.as_served())

    def part(self, numel: int, *, columns: int | None = None) -> Parameter:
        """Return a part of the tensor with ``numel`` elements: some of its rows, or with fewer ``columns``
        some of each."""
        width = columns or self.columns or numel
        if self.storage is None:
            return self._replace(numel=numel, columns=width if self.columns else 0)
        stored = self.storage.format.stored(numel // width, width)
        return self._replace(numel=numel, columns=width if self.columns else 0, storage=stored)


# -- sequences in which pieces occur several times in a row, as the tensors of equal layers do -----


T = TypeVar("T")
U = TypeVar("U")


class Repeated(Sequence[T]):
    """A Repeated is a sequence of pieces, each with the number of times that it occurs in a row.

    What is calculated from ``counted``, or by ``map``, takes as long as for the items that differ.
    """

    def __init__(self, *pieces: tuple[Iterable[T], int]) -> None:
        found = ((tuple(items), times) for items, times in pieces)
        self.pieces = tuple((items, times) for items, times in found if items and times > 0)

    @classmethod
    def once(cls, items: Iterable[T]) -> Repeated[T]:
        """Return a sequence in which nothing is known to repeat."""
        return cls((items, 1))

    @cached_property
    def counted(self) -> tuple[tuple[T, int], ...]:
        """The items of each piece with the number of times that the piece occurs."""
        return tuple([(one, times) for items, times in self.pieces for one in items])

    @property
    def distinct(self) -> tuple[T, ...]:
        """The items of each piece."""
        return tuple([one for items, _ in self.pieces for one in items])

    def map(self, value: Callable[[T], U]) -> Repeated[U]:
        """Return the values of all items, calculated once for those of each piece."""
        return Repeated(*((map(value, items), times) for items, times in self.pieces))

    def where(self, holds: Callable[[T], bool]) -> Repeated[T]:
        """Return the items for which a condition holds."""
        return Repeated(*((filter(holds, items), times) for items, times in self.pieces))

    def total(self, size: Callable[[T], int]) -> int:
        """Return the sum of the sizes of all items."""
        return sum(times * size(one) for one, times in self.counted)

    # -- as a sequence --------------------------------------------------------------------------

    @cached_property
    def _items(self) -> tuple[T, ...]:
        count_elements(len(self))
        found: tuple[T, ...] = ()
        for items, times in self.pieces:
            found += items * times
        return found

    def __len__(self) -> int:
        return sum(len(items) * times for items, times in self.pieces)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return self._items[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._items == tuple(other)

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        return f"Repeated{self.pieces}"
