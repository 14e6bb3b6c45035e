"""FLOPs and HBM traffic of every module as Hugging Face's code runs it, in a forward pass and in training.

Not counted: construction of masks and ALiBi. Grouped keys and values that eager attention repeats for each
query head have a time in generation (strategies/passes/timing.py), and none in training.

In training no keys and values are cached, and all logits and the loss are computed. A backward kernel reads
the gradient and what the forward pass saved, and writes the gradient of its input: a linear layer multiplies
twice (input and weight gradients), other modules have twice the traffic of their forward pass. The backward
pass of fused attention multiplies five matrices where the forward pass multiplies two (Dao, FlashAttention-2,
arXiv 2307.08691).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simoffload.models.modules import (
    GROWING,
    SINGLE,
    Attention,
    CacheForm,
    Chunked,
    Heads,
    Module,
    Strided,
    activation,
    attended_rows,
)
from simoffload.models.shape import ModelShape

# Maximum, subtract, exponentiate, sum, divide.
_SOFTMAX_FLOPS = 5


class Sequences(NamedTuple):
    """Sequences of one batch that have the same length so far."""

    number: int
    new_tokens: int
    """Tokens that each of them feeds in: the prompt at prefill, 1 at a decode step."""
    context: int
    """Keys to which the last new token attends, itself included."""
    scored: int = 1
    """Tokens, the last ones, of which logits are computed: all that a draft proposes, and one."""

    @property
    def decodes(self) -> bool:
        """Whether all new tokens follow others and are scored, as in a decode step."""
        return self.new_tokens == self.scored and self.new_tokens < self.context


class ModuleCost(NamedTuple):
    """The work of one call of a module on the GPU."""

    flops: float
    """Floating-point operations [FLOP]; a multiplication and an addition are two."""
    bytes: float
    """Bytes [B] read from and written to HBM."""


class WeightCost(NamedTuple):
    """What a module's call pays for its tensors alone."""

    bytes: float
    """Bytes [B] read from and written to HBM."""
    unfused_bytes: float = 0.0
    """Bytes [B] of these that kernels move which write quantized weights in full, before the others."""
    fused_flops: float = 0.0
    """Operations [FLOP] in single precision with which fused kernels decode quantized weights."""
    native_flops: float = 0.0
    """Further such operations [FLOP] on a GPU that does not multiply the weights as they are stored."""
    arithmetic: str | None = None
    """Data type in which others do (``Accelerator.native``)."""
    kernels: int = 0
    """Number of kernels that write quantized weights in full."""
    operations: int = 0
    """Number of PyTorch operations that launch them, views included."""


def module_cost(
    shape: ModelShape,
    module: Module,
    *,
    batch: int,
    new_tokens: int,
    context: int,
    cache: CacheForm = GROWING,
) -> ModuleCost:
    """Count the work of one call of ``module``.

    Parameters
    ----------
    batch
        Sequences.
    new_tokens
        Tokens that each sequence feeds in: the prompt at prefill, 1 at a decode step.
    context
        Keys that the last new token attends to, itself included.
    cache
        How keys and values are kept.

    Raises
    ------
    ValueError
        Where a count is below 1 or ``context`` is shorter than ``new_tokens``.

    Notes
    -----
    A linear layer takes 2·in·out FLOPs a token and one more for each bias; other modules one for each
    element that a kernel writes. Logits are computed for the last position of each sequence only, as
    ``generate`` asks for (``logits_to_keep``). Older transformers compute them for all positions of a
    prefill: at 4.46.3 still for BLOOM and OPT, no longer for Llama and Mixtral.

    With a window a token attends to that many keys, and the cache keeps one less between passes.

    Attention counts the FLOPs of the keys that causality lets each token see. Eager code also moves the
    full score matrix several times; the fused kernels ("sdpa") keep scores on the chip.

    An expert's weights are read only if a token is routed to it (``ModelShape.touched_share``).

    Quantized weights are read as they are stored, if the product has a kernel that takes them for so many
    tokens. Otherwise they are written in full first, and read again (``formats.Dequantization``).
    """
    if batch < 1 or new_tokens < 1 or context < new_tokens:
        raise ValueError(
            "batch and new_tokens must be at least 1 and context at least new_tokens, got "
            f"batch={batch}, new_tokens={new_tokens}, context={context}"
        )
    if module.kind == "attention":
        return _attention_cost(shape, module, Sequences(batch, new_tokens, context), cache)
    tokens = tokens_of(module, [Sequences(batch, new_tokens, context)], cache)
    cost = _cost(shape, module, tokens=tokens, touched=shape.touched_share(module, tokens))
    return _with_states(shape, module, cost, batch=batch, new_tokens=new_tokens)


def tokens_of(module: Module, batch: Sequence[Sequences], cache: CacheForm = GROWING) -> int:
    """Return the number of tokens that a module processes in a pass."""
    if module.last_only:
        return sum([one.number * one.scored for one in batch])
    if module.cached:
        return sum([one.number * cache.positions(one.context) for one in batch])
    return sum([one.number * one.new_tokens for one in batch])


def _cost(shape: ModelShape, module: Module, *, tokens: int, touched: float) -> ModuleCost:
    """Count the work of a module other than attention that reads the part ``touched`` of its weights."""
    seen = tokens * module.share
    traffic = seen * (module.in_features + module.out_features) * shape.dtype_bytes
    traffic += _weight_cost(shape, module, tokens=seen, touched=touched).bytes
    if module.kind in ("linear", "router"):
        return ModuleCost(seen * linear_flops(module), traffic)
    return ModuleCost(0.0 if module.kind == "embedding" else seen * module.out_features, traffic)


def _with_states(
    shape: ModelShape, module: Module, cost: ModuleCost, *, batch: int, new_tokens: int
) -> ModuleCost:
    """Return the cost of a module with that of its states, which every pass reads and writes once for each
    sequence, and of which kernels work on several new tokens by chunks."""
    chunked = module.chunked if new_tokens > 1 else Chunked()
    tokens = batch * new_tokens
    traffic = 2 * batch * module.state + tokens * chunked.traffic * shape.dtype_bytes
    return ModuleCost(cost.flops + tokens * chunked.flops, cost.bytes + traffic)


def weight_cost(shape: ModelShape, module: Module, *, tokens: int) -> WeightCost:
    """Return what a call with that many tokens pays for the module's tensors, dequantization included."""
    return _weight_cost(
        shape, module, tokens=tokens * module.share, touched=shape.touched_share(module, tokens)
    )


def _weight_cost(shape: ModelShape, module: Module, *, tokens: float, touched: float) -> WeightCost:
    size, rows_only = shape.dtype_bytes, module.kind == "embedding"  # what it reads counts as its input
    plain = sum(one.numel for one in module.parameters if one.storage is None)
    total = WeightCost(0.0 if rows_only else touched * plain * size)
    for one in module.parameters:
        if one.storage is None:
            continue
        stored, cost = touched * one.storage.read, one.storage.format.dequantization
        if cost.fuses(tokens):
            if not rows_only:
                key = "fused_flops" if cost.arithmetic is None else "native_flops"
                changed = {key: getattr(total, key) + cost.fused_flops(stored)}
                total = total._replace(bytes=total.bytes + stored, arithmetic=cost.arithmetic, **changed)
            continue
        written = stored + touched * one.numel * (cost.elements * size + cost.bytes)
        read = 0.0 if rows_only else touched * one.numel * size
        total = total._replace(
            bytes=total.bytes + written + read,
            unfused_bytes=total.unfused_bytes + written,
            kernels=total.kernels + cost.kernels,
            operations=total.operations + cost.operations,
        )
    return total


def copied_experts(shape: ModelShape, module: Module, tokens: int) -> int:
    """Return the bytes of the weights that batched products of experts copy, one expert's for each token that
    chose it; 0 for a module of which ``generate`` does not make such products.

    Source: ``batched_mm_experts_forward`` in integrations/moe.py of transformers 5.17.
    """
    quantized = any(one.storage is not None for one in module.parameters)
    if module.parallel != "experts" or quantized or not shape.traits.operations.grouped:
        return 0
    each = sum(one.numel for one in module.parameters) * shape.dtype_bytes // shape.num_experts
    return tokens * shape.experts_per_token * each


def batch_cost(
    shape: ModelShape, module: Module, batch: Sequence[Sequences], cache: CacheForm = GROWING
) -> ModuleCost:
    """Count the work of one call of ``module`` for sequences of different lengths.

    Their tokens go through all modules together, as in continuous batching (Yu et al., Orca, OSDI 2022), and
    through attention and states each on its own. Raises what :func:`module_cost` raises.
    """
    if (len(batch) == 1 and batch[0].scored == 1) or module.kind == "attention" or module.state:
        costs = [
            module_cost(shape, module, batch=number, new_tokens=tokens, context=context, cache=cache)
            for number, tokens, context, _ in batch
        ]
        return ModuleCost(sum(cost.flops for cost in costs), sum(cost.bytes for cost in costs))
    tokens = tokens_of(module, batch, cache)
    return module_cost(shape, module, batch=tokens, new_tokens=1, context=1)


def forward_cost(shape: ModelShape, *, batch: int, new_tokens: int, context: int) -> ModuleCost:
    """Sum :func:`module_cost` over a whole forward pass; raises what that raises."""

    def total(modules: tuple[Module, ...]) -> ModuleCost:
        costs = [
            module_cost(shape, module, batch=batch, new_tokens=new_tokens, context=context)
            for module in modules
        ]
        return ModuleCost(sum(cost.flops for cost in costs), sum(cost.bytes for cost in costs))

    parts = [(count, total(modules)) for modules, count in shape.outside_and_kinds()]
    return ModuleCost(
        sum(count * cost.flops for count, cost in parts), sum(count * cost.bytes for count, cost in parts)
    )


def linear_flops(module: Module) -> int:
    """Return the FLOPs [FLOP] of one token, counted from the tensors, so that experts kept in one tensor
    count like separate ones."""
    return sum(
        parameter.numel if parameter.name.endswith("bias") else 2 * parameter.numel
        for parameter in module.parameters
    )


def _vectors(shape: ModelShape, module: Module) -> int:
    """Return the elements that attention reads and writes for each token, without keys, values and scores.

    Fused kernels write the result in the layout of the queries, so that heads need no copy to be merged.
    """
    merged = 2 * _result_width(shape.heads_of(module)) if shape.attention == "sdpa" else 0
    return module.in_features + module.out_features - merged


def _result_width(heads: Heads) -> int:
    """Return the elements of the result of attention for one token."""
    return heads.number * heads.values


def _copied_keys(shape: ModelShape, module: Module) -> int:
    """Return the elements that latent attention reads and writes for each position to join its expanded keys
    with the rotated part (``expand_kv``)."""
    return 2 * shape.num_attention_heads * shape.head_dim if shape.expands(module) else 0


def _attended(shape: ModelShape, module: Module, sequences: Sequences, cache: CacheForm) -> tuple[int, int]:
    """Return the rows on which attention works, summed over the new tokens of a sequence, and those that it
    reads.

    Kernels that read chosen rows only gather them for each token.
    """
    _, new, context, _ = sequences
    fused, total, read = shape.attention == "sdpa", 0, 0
    for part in shape.parts_of(module):
        chosen = part.chosen if shape.served else None
        if part.every == 1 and chosen is None:
            rows, held = cache.seen(new_tokens=new, context=context, window=part.window, fused=fused)
        else:
            rows = attended_rows(new_tokens=new, context=context, every=part.every, chosen=chosen)
            held = context // part.every if chosen is None else rows
        total, read = total + rows, read + held
    return total, read


def _scores_bytes(shape: ModelShape, module: Module, new_tokens: int, held: int) -> int:
    """Return the traffic [B] of the scores of one sequence: of eager attention, and of an indexer, whose sum
    over its heads is written and read in single precision once, in transformers before it also the scores of
    each head (product, ReLU)."""
    heads = shape.heads_of(module)
    if not heads.values:
        return new_tokens * held * 2 * SINGLE * (1 if shape.served else 1 + 2 * heads.number)
    if shape.attention != "eager":
        return 0
    return heads.number * new_tokens * held * attention_scores_bytes(shape)


def attention_kernels(
    shape: ModelShape,
    module: Module,
    sequences: Sequences,
    *,
    backward: bool = False,
    cache: CacheForm = GROWING,
) -> ModuleCost:
    """Return the part of the cost of attention that its kernels for scores, softmax and values have, in one
    pass.

    The remaining bytes are those of rotation, scaling and the cache.
    """
    number, new_tokens, *_ = sequences
    heads = shape.heads_of(module)
    own = heads.number * heads.widths + (0 if shape.attention == "sdpa" else 2 * _result_width(heads))
    keys, held = _attended(shape, module, sequences, cache)
    vectors = number * held * _read_bytes(shape, module, cache)
    vectors += number * own * new_tokens * shape.dtype_bytes
    flops = number * heads.number * keys * (2 * heads.widths + _SOFTMAX_FLOPS)
    bytes_moved = vectors + number * _scores_bytes(shape, module, new_tokens, held)
    products, traffic = _BACKWARD[shape.attention] if backward else (1, 1)
    return ModuleCost(float(products * flops), float(traffic * bytes_moved))


def _read_bytes(shape: ModelShape, module: Module, cache: CacheForm) -> float:
    """Return the bytes [B] that kernels read of a row: of expanded latent rows keys and values."""
    element = cache.paged or shape.dtype_bytes
    if module.keeps and module.heads is not None:
        return shape.row_bytes(module.keeps[0], element)
    return shape.heads_of(module).row * element


def absorbed_kernels(
    shape: ModelShape, module: Module, sequences: Sequences, cache: CacheForm = GROWING
) -> ModuleCost:
    """Return the cost of the kernels of latent attention that reads the latent cache itself.

    The expansion is multiplied into queries and results instead, so that all heads attend to one head as wide
    as the cache, whose first ``latent_rank`` elements are the values (DeepSeek-V2, arXiv 2405.04434, section
    2.1.2).
    """
    number, new_tokens, *_ = sequences
    width, rank = shape.latent_width or 0, shape.latent_rank or 0
    keys, held = _attended(shape, module, sequences, cache)
    flops = number * shape.num_attention_heads * keys * (2 * (width + rank) + _SOFTMAX_FLOPS)
    vectors = number * width * held * (cache.paged or shape.dtype_bytes)
    vectors += number * shape.num_attention_heads * (width + rank) * new_tokens * shape.dtype_bytes
    return ModuleCost(float(flops), float(vectors))


def _attention_cost(shape: ModelShape, module: Module, sequences: Sequences, cache: CacheForm) -> ModuleCost:
    batch, new_tokens, context, _ = sequences
    heads = shape.heads_of(module)
    keys, held = _attended(shape, module, sequences, cache)
    flops = batch * heads.number * keys * (2 * heads.widths + _SOFTMAX_FLOPS)
    # The append moves the cache within HBM; the kernels read keys and values.
    appended = 0.0
    for part in shape.parts_of(module):
        if not part.borrowed:
            added = cache.append_bytes(
                new_tokens=new_tokens,
                context=context,
                window=part.window,
                width=part.width,
                size=shape.dtype_bytes,
            )
            appended += batch * added / part.every
    vectors = batch * (held * _copied_keys(shape, module) + new_tokens * _vectors(shape, module))
    bytes_moved = batch * held * _read_bytes(shape, module, cache) + vectors * shape.dtype_bytes
    bytes_moved += batch * _scores_bytes(shape, module, new_tokens, held)
    return ModuleCost(float(flops), float(bytes_moved + appended))


def attention_scores_bytes(shape: ModelShape) -> int:
    """Return the bytes [B] moved for each score of eager attention.

    They are: product written, scaled (read, written), masked (read, written), softmax to single precision
    (read, 4 B written), cast back (4 B read, written), times values (read); if capped: divided, tanh,
    multiplied (each read, written).
    """
    size = shape.dtype_bytes
    if shape.traits.half_softmax:
        return 8 * size
    cast_back = 4 + size if size < 4 else 0
    return 7 * size + 4 + cast_back + (6 * size if shape.softcapped else 0)


_BACKWARD: dict[Attention, tuple[float, float]] = {"sdpa": (2.5, 4.25), "eager": (2.0, 2.0)}
"""FLOP and bytes of the backward pass of attention kernels over those of the forward pass.

Fused attention has five products for two. It moves 17 tensors of the size of the queries for 4: it reads
queries, keys, values, the result and its gradient twice (6), adds up the gradient of the queries in single
precision (cleared, read, written: 6), rounds it (3), and writes those of keys and values (2).
"""


def loss_module(shape: ModelShape) -> Module:
    """Return the loss as a module without hooks: logits cast to single precision (1 read, 2 written; not
    vectorized), and log-softmax, which reads a row for its maximum, its sum and its result (6, 2); backward,
    a tensor is cleared (0, 2), log-softmax reads it twice and its result once (6, 2), and casts back (2, 1).

    Counted in transformers' ``ForCausalLMLoss`` and PyTorch's ``cunn_SoftMaxForward`` and ``...Backward``
    (aten/src/ATen/native/cuda/SoftMax.cu); an element of the model's data type counts as two bytes.
    """
    width = shape.vocab_size
    loss = activation("loss", width, reads=7, writes=4)
    return loss._replace(hooked=False, strided=Strided(width, 3 * width), more=(13 - 22) * width)


def training_cost(shape: ModelShape, module: Module, *, batch: int, length: int) -> ModuleCost:
    """Return the work of the forward pass of ``module`` on ``batch`` sequences of ``length`` tokens."""
    if module.kind == "attention":
        return _attention(shape, module, batch=batch, length=length)
    cost = _cost(shape, module, tokens=batch * length, touched=1.0)
    return _with_states(shape, module, cost, batch=batch, new_tokens=length)


def backward_cost(shape: ModelShape, module: Module, *, batch: int, length: int) -> ModuleCost:
    """Return the work of the backward pass of ``module``, including writing its parameter gradients once."""
    forward = training_cost(shape, module, batch=batch, length=length)
    trained = sum(parameter.numel for parameter in module.parameters if parameter.trainable)
    gradients = trained * shape.dtype_bytes
    more = batch * length * module.share * module.more * shape.dtype_bytes
    if module.kind == "attention":
        sequences = Sequences(batch, length, length)
        kernels = attention_kernels(shape, module, sequences, backward=True)
        rest = forward.bytes - attention_kernels(shape, module, sequences).bytes
        return ModuleCost(kernels.flops, kernels.bytes + 2 * rest + more)
    if module.kind == "embedding":  # the gradient of the whole table is cleared, then rows are added
        return ModuleCost(0.0, 2 * forward.bytes + gradients if trained else 0.0)
    if module.kind in ("linear", "router"):
        # A frozen weight (LoRA) has no gradient: one product instead of two.
        products = backward_products(module)
        return ModuleCost(products * forward.flops, products * forward.bytes)
    if trained and module.more:  # of a norm in several kernels: input times gradient (2 read, 1 written), sum
        more += 4 * batch * length * module.width * shape.dtype_bytes
    return ModuleCost(2 * forward.flops, 2 * forward.bytes + gradients + more)


def backward_products(module: Module) -> int:
    """Return the matrix multiplications of a linear layer's backward pass: for its input, and for a trained
    weight."""
    return 2 if any(parameter.trainable for parameter in module.parameters) else 1


def training_backward_flops(shape: ModelShape, *, batch: int, length: int) -> float:
    """Return the FLOPs [FLOP] of one backward pass, without recomputation."""

    def total(modules: tuple[Module, ...]) -> float:
        return sum(backward_cost(shape, one, batch=batch, length=length).flops for one in modules)

    return sum(count * total(modules) for modules, count in shape.outside_and_kinds())


def training_forward_flops(shape: ModelShape, *, batch: int, length: int) -> tuple[float, float]:
    """Return the FLOPs [FLOP] of all layers, and of the modules outside of them, in one forward pass."""

    def total(modules: tuple[Module, ...]) -> float:
        return sum(training_cost(shape, module, batch=batch, length=length).flops for module in modules)

    layers = sum(count * total(layer) for layer, count in shape.kinds)
    return layers, total((*shape.modules_before, *shape.modules_after))


def _attention(shape: ModelShape, module: Module, *, batch: int, length: int) -> ModuleCost:
    heads = shape.heads_of(module)
    keys, held = _attended(shape, module, Sequences(1, length, length), GROWING)
    width = heads.row + _copied_keys(shape, module)
    vectors = length * (width + _vectors(shape, module))
    traffic = vectors * shape.dtype_bytes + _scores_bytes(shape, module, length, held)
    flops = heads.number * keys * (2 * heads.widths + _SOFTMAX_FLOPS)
    return ModuleCost(float(batch * flops), float(batch * traffic))
