"""Memory that a forward pass needs in addition to the weights, and the activations of a training step.

The activations of training (the tensors that autograd saves, those of one layer's backward pass, and the
loss) are counted in the code of transformers 5.23 and PyTorch 2.13. The tests compare them with what autograd
saves and allocates for small models (bfloat16 and float32, eager and sdpa). Masks of dropout and statistics
of LayerNorm are those of CUDA: one byte per element, and two single-precision numbers per token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simoffload.hardware import Machine
from simoffload.models import SINGLE, Layer, ModelShape, Module, copied_experts
from simoffload.results import HeldKind
from simoffload.strategies.base import Held
from simoffload.workload import Inference, Training

KEPT_BY_MALLOC = 32 * 2**20
"""[B] Largest block of freed memory that malloc keeps and uses again: mallopt(3), DEFAULT_MMAP_THRESHOLD_MAX
on 64 bits; pages of larger ones are mapped and cleared anew (``new_memory`` of a host)."""
_HIDDEN_COPIES = 4  # input, residual, normalised, output of a block, counted in transformers' eager code

DISPLAY = 500_000_000
"""Memory of a GPU [B] that a desktop's display takes (an estimate, some 0.2 to 1 GB)."""
_CHUNK = 16 << 10
"""Tokens that vLLM's kernels of experts process at once (``VLLM_FUSED_MOE_CHUNK_SIZE``, vllm/envs.py)."""


def activation_bytes(model: ModelShape, *, batch: int, tokens: int, fused: bool = False) -> int:
    """Return the peak of a prefill's activations [B], counted in transformers' code (an estimate), or with
    ``fused`` in that of vLLM.

    It is the largest of these: the scores of eager attention (in the model's type, their softmax in single
    precision and its cast back); queries, keys, values and results of latent attention, which expands them;
    the two intermediates of the MLP; the tensors of experts. In addition the hidden states of the block and
    the logits of the last position in single precision.
    """
    together = batch * tokens
    hidden = _HIDDEN_COPIES * together * model.hidden_size * model.dtype_bytes
    heads = [model.heads_of(one) for one in model.distinct_modules if one.kind == "attention"]
    most = max([one.number for one in heads], default=0)
    scores = together * most * tokens * (2 * model.dtype_bytes + 4)
    if model.attention == "sdpa":
        scores = 0  # fused kernels keep them in on-chip memory
    inside = [one.width for one in model.distinct_modules if one.kind == "activation" and one.share == 1.0]
    wide = max(model.intermediate_size, *inside, 0)
    intermediate = 2 * together * wide * model.dtype_bytes
    chosen = min(together, _CHUNK) if fused else together
    routed = experts_bytes(model, chosen, fused=fused)
    expanded = 0
    if model.latent_width is not None:
        widest = max([one.number * one.widths for one in heads], default=0)
        expanded = 2 * together * widest * model.dtype_bytes
    logits = batch * model.vocab_size * (model.dtype_bytes + 4)
    return hidden + max(scores, expanded, intermediate, routed) + logits


def experts_bytes(model: ModelShape, tokens: int, *, fused: bool = True) -> int:
    """Return the size [B] of the buffers that experts in one module occupy at their peak for some tokens.

    In transformers (``grouped_mm_experts_forward``) there are, for each expert of a token, either its input,
    the result of the first product, the activation and its product with the other half, or its input, result,
    weighed result, and that in the order of tokens. vLLM 0.33 has two buffers for the results
    (``TritonExperts.workspace_shapes``).
    """
    if all(one.parallel != "experts" for one in model.distinct_modules):
        return 0
    hidden, wide = model.hidden_size, model.intermediate_size
    each = max(hidden + 4 * wide, 4 * hidden)
    if fused:
        each = max(wide, hidden) + max(2 * wide, hidden)
    return tokens * model.experts_per_token * each * model.dtype_bytes


def cache_bytes(model: ModelShape, workload: Inference, *, block: int = 0) -> int:
    """Return the largest size [B] of keys, values and states during generation, in a paged cache if
    ``block``, the tokens of a block, is not 0.

    Until the first decode step, transformers' sliding layers hold all of the prompt: what they keep of it is
    a view (``DynamicSlidingWindowLayer.update``). A paged cache holds no more than the blocks of the window
    (vLLM's ``SlidingWindowManager.remove_skipped_blocks``).
    """
    batch = workload.batch_size
    state = batch * model.state_bytes
    if block:
        return state + model.kv_cache_bytes(batch=batch, tokens=workload.max_context, block=block)
    end = model.kv_cache_bytes(batch=batch, tokens=workload.max_context)
    prompt = model.kv_cache_bytes(batch=batch, tokens=workload.prompt_length, windows=False)
    return state + max(end, prompt)


def prompt_in_layer(model: ModelShape, workload: Inference) -> int:
    """Return the size [B] of the keys and values of all prompts in one layer.

    While a prefill attends to them they are whole and in the model's type, also those of a layer that then
    keeps only its window (``DynamicSlidingWindowLayer.update``) or fewer bits.
    """
    widest = max([model.token_bytes(layer) for layer, _ in model.kinds], default=0)
    return round(workload.batch_size * workload.prompt_length * widest)


CACHE_TERM = "key-value cache"
"""Name of the memory of keys and values."""


def cache_term(
    tier: str, size: int, *, name: str = CACHE_TERM, pinned: bool = False, kind: HeldKind = "cache"
) -> Held:
    """Return the memory of keys and values on a tier."""
    remedy = "lower batch_size, prompt_length or output_length"
    return Held(tier, name, size, pinned=pinned, remedy=remedy, kind=kind)


def working_memory(
    model: ModelShape,
    workload: Inference,
    machine: Machine,
    *,
    cache: Sequence[Held] | None = None,
    fused: bool = False,
    program: Sequence[Held] | None = None,
    at_once: int | None = None,
    copies: bool = False,
) -> tuple[Held, ...]:
    """Return the memory that every strategy needs: the ``cache``, by default all of it in HBM, that of the
    ``program``, by default activations, CUDA and NCCL, and in DRAM the operating system.

    ``fused``: in code like vLLM's instead of transformers'. ``at_once``: number of tokens that are computed
    at once, by default all. ``copies``: whether decode steps copy weights of experts, in the room of the
    prompt's activations.
    """
    batch, length = workload.batch_size, workload.prompt_length
    largest = dequantized_bytes(model, tokens=batch * length if at_once is None else at_once)
    if program is None:
        size = activation_bytes(model, batch=batch, tokens=length, fused=fused)
        working = Held("hbm", "activations", size, remedy="lower batch_size or prompt_length")
        modules = (one for layer, _ in model.kinds for one in layer) if copies else ()
        copied = max((copied_experts(model, one, batch) for one in modules), default=0)
        if copied > size:
            name = "experts copied for each token"
            working = Held("hbm", name, copied, remedy="lower batch_size")
        program = (
            working,
            Held("hbm", "CUDA context and workspace", machine.accelerator.reserved_bytes),
        )
    return (
        *([Held("hbm", "largest weight written in full", largest)] if largest else ()),
        *([cache_term("hbm", cache_bytes(model, workload))] if cache is None else cache),
        *program,
        system_memory(machine),
    )


def dequantized_bytes(model: ModelShape, *, tokens: int) -> int:
    """Return the size [B] of the largest quantized weight that kernels write in full before it is used; 0 if
    none is."""
    return max(
        (
            one.numel * model.dtype_bytes
            for module in model.distinct_modules
            for one in module.parameters
            if one.storage is not None and not one.storage.format.dequantization.fuses(tokens * module.share)
        ),
        default=0,
    )


def scales_of(model: ModelShape) -> int:
    """Return the size [B] of the scales and tables of quantized weights, which are no parameters: every GPU
    has all of them (``QuantState``)."""
    return sum(
        count * sum(sum(one.storage.tensors[1:]) for one in module.parameters if one.storage and not one.tied)
        for modules, count in model.outside_and_kinds()
        for module in modules
    )


def held_quantized(model: ModelShape, workload: Training) -> Iterator[Held]:
    """Yield what a GPU holds beside packed weights: their scales, and the largest matrix written in full."""
    if model.quantization is None:
        return
    yield Held("hbm", "scales of quantized weights", scales_of(model), kind="weights")
    yield Held(
        "hbm", "a matrix in 16 bit, made for its use", dequantized_bytes(model, tokens=workload.tokens)
    )


def system_memory(machine: Machine, *, remedy: str = "") -> Held:
    """Return the DRAM that the operating system and the processes occupy."""
    return Held("dram", "operating system and processes", machine.host.reserved_bytes, remedy=remedy)


_LOSS = 12
"""[B] per logit at the start of the backward pass: log-softmax, its gradient and that of the loss, all in
single precision (transformers casts logits; ``ForCausalLMLoss``). The forward pass does not need more: logits
in 16 bit and in single precision, and log-softmax."""
_TOKEN_IDS = 16
"""[B] per token: input and label, 64 bit."""


_SCORE_GRADIENTS = 3
"""Number of gradients as wide as the model during attention's backward pass: residual, result and input."""
_RMS_GRADIENTS = 4


class Activations(NamedTuple):
    """Activations are the sizes [B] on one GPU; the peak is ``kept`` plus the larger of ``layer`` and
    ``loss``."""

    kept: int
    """Activations saved for all other layers: with checkpointing their inputs, otherwise all saved tensors.
    """
    layer: int
    """Tensors that one layer saved or recomputed, and the gradients in its backward pass."""
    loss: int
    """Logits, and tensors saved by the last norm and, without checkpointing, by the last layer."""
    on_host: int
    """Activation checkpoints in host memory (``cpu_checkpointing``)."""

    @property
    def peak(self) -> int:
        """Activation memory at its peak [B]."""
        return self.kept + max(self.layer, self.loss)


def activations_of(model: ModelShape, workload: Training, *, cpu_checkpointing: bool = False) -> Activations:
    """Return the activations of a micro-step.

    Notes
    -----
    Korthikanti et al. (arXiv 2205.05198, eq. 1) count sbh·(34 + 5·a·s/h) for a layer of a GPT with dropout
    in 16 bit. The code of transformers differs: eager attention saves its softmax in single precision in
    addition to the 16-bit copy, and no mask, because the released families train without attention dropout;
    RMSNorm saves a single-precision copy of its input; a gated feed-forward network saves four wide tensors.
    """
    batch, length, size = workload.batch_size, workload.sequence_length, model.dtype_bytes
    tokens = workload.tokens
    saved = {layer: saved_by_layer(model, layer, batch=batch, length=length) for layer, _ in model.kinds}
    working = max(
        _layer_peak(model, layer, batch=batch, length=length, saved=size) for layer, size in saved.items()
    )
    last = _norms(model.modules_after)
    tail = sum(_norm(model, module, keeps_output=True) for module in last) * tokens
    gradients = sum(_norm_gradients(module, size) for module in last)
    loss = tail + (max(_LOSS * model.vocab_size, gradients) + _TOKEN_IDS) * tokens
    narrow = tokens * model.hidden_size * size
    if not workload.gradient_checkpointing:
        every = sum(count * saved[layer] for layer, count in model.kinds)
        largest = max(saved.values())  # of the layer whose backward pass has the peak
        return Activations(every - largest, working, loss + largest, 0)
    # A pre-normalizing LayerNorm keeps the very tensor that is the checkpoint.
    shared = narrow if _normalizes_first(model) else 0
    inputs = model.num_hidden_layers * narrow
    if cpu_checkpointing:
        # Two stay on the GPU: that of the present layer and the one being copied.
        on_gpu = min(inputs, 2 * narrow)
        return Activations(on_gpu, working - shared, loss, inputs)
    return Activations(inputs, working - shared, loss, 0)


def saved_by_layer(model: ModelShape, layer: Layer, *, batch: int, length: int) -> int:
    """Return the bytes [B] that autograd saves for ``layer`` between its forward and its backward pass."""
    size, tokens = model.dtype_bytes, batch * length
    code = model.traits.saved
    total = code.masks * tokens * model.hidden_size
    inputs: dict[int, float] = {}
    """Tensors that are saved only if a linear layer saves its input, by width."""
    for module in layer:
        if module.kind == "norm":
            total += tokens * _norm(model, module, keeps_output=False)
            if not module.saves_input:  # of two parallel halves: the input of the second
                total += tokens * module.width * size
            elif _of_stream(module):
                inputs[module.width] = tokens * module.width * size
        elif module.kind == "attention":
            total += _attention(model, module, batch=batch, length=length)
            own = model.heads_of(module)
            eager = model.attention == "eager"
            inputs[own.number * own.values] = tokens * own.number * own.values * size if eager else 0
        elif module.kind == "activation":
            wide = tokens * module.width * module.share
            total += int(code.kept * wide * size)
            inside = module.width if module.share == 1.0 else model.intermediate_size
            inputs[inside] = wide * size if code.product else 0
            if module.share < 1.0:  # an expert gathers its tokens and weights its results
                total += int((2 * model.hidden_size / model.intermediate_size + 1) * wide * size)
        elif module.share == 1.0 and _trains(module):
            cast = tokens * module.in_features * module.cast_bytes
            total += cast or int(inputs.pop(module.in_features, 0))
            if module.name.endswith("lora_A"):
                inputs[module.out_features] = tokens * module.out_features * size
    return total


def _attention(model: ModelShape, module: Module, *, batch: int, length: int) -> int:
    """Return the bytes of queries, keys and values, and of the probabilities (eager) or of result and sums
    (fused)."""
    size, tokens = model.dtype_bytes, batch * length
    own = model.heads_of(module)
    heads, key_heads, widths = own.number, own.shared, own.widths
    if model.attention == "sdpa":
        sums = SINGLE * tokens * heads
        # Values that are a view keep queries and keys before rotation; the result is copied.
        fused = 2 * heads * own.keys + key_heads * own.keys
        fused = fused if model.traits.saved.fused_projection else 0
        return tokens * size * ((heads + key_heads) * widths + fused) + sums
    # Keys and values are repeated for every query head. Softmax is in single precision, then cast.
    copies = SINGLE + (size if size < SINGLE else 0) + (size if model.softcapped else 0)
    if model.traits.half_softmax:
        copies = size
    inputs = tokens * size * (heads * own.keys + heads * widths)
    return inputs + batch * heads * length * length * copies


def _layer_peak(model: ModelShape, layer: Layer, *, batch: int, length: int, saved: int) -> int:
    """Return the peak of a layer's backward pass: in its feed-forward network or in its attention."""
    code, size, tokens = model.traits.saved, model.dtype_bytes, batch * length
    narrow = tokens * model.hidden_size * size
    wide, experts = _wide(model, layer)
    forward = saved + code.narrow * narrow + int((code.wide * wide + 2 * experts) * tokens * size)
    if model.attention == "sdpa":
        return forward
    norms = _norms(layer)
    kept = sum(_norm(model, one, keeps_output=True) for one in norms[:1]) * tokens
    kept += sum(_norm(model, one, keeps_output=False) for one in norms if not _of_stream(one)) * tokens
    heads = [model.heads_of(one) for one in layer if one.kind == "attention"]
    wide_queries = max([one.number * one.keys for one in heads], default=0)
    kept += 3 * tokens * wide_queries * size + _SCORE_GRADIENTS * narrow
    scores = code.scores * size // 2 if model.traits.half_softmax else code.scores
    most = max([one.number for one in heads], default=0)
    return max(forward, kept + scores * batch * most * length * length)


def _wide(model: ModelShape, layer: Layer) -> tuple[float, float]:
    """Return the elements per token inside the feed-forward network and at the inputs of its experts."""
    acts = [module for module in layer if module.kind == "activation"]
    wide = sum(module.width * module.share for module in acts)
    routed = sum(module.width * module.share for module in acts if module.share < 1.0)
    return wide, routed * model.hidden_size / model.intermediate_size


def _norm(model: ModelShape, module: Module, *, keeps_output: bool) -> int:
    """Return the bytes per token [B] that a norm saves.

    LayerNorm saves its input and two statistics. RMSNorm, a sequence of operations, saves a single-precision
    copy of its input, one statistic per head and, if its weight is trained, the normalized input.
    """
    width, size = module.width, model.dtype_bytes
    output = width * size if keeps_output else 0
    if _is_layer_norm(module):
        return (width * size if module.saves_input else 0) + 2 * SINGLE + output
    scaled = width * (SINGLE if model.traits.saved.single_norm else size) if _trains(module) else 0
    heads = width // (module.parameters[0].numel if module.parameters else model.head_dim)
    return width * SINGLE + heads * SINGLE + scaled + output


def _norm_gradients(module: Module, size: int) -> int:
    """Return the bytes per token [B] in a norm's backward pass; RMSNorm needs four single-precision
    tensors."""
    return module.width * (size if _is_layer_norm(module) else _RMS_GRADIENTS * SINGLE)


def _is_layer_norm(module: Module) -> bool:
    """Return whether the norm is one fused kernel, which reads as much as it writes; RMSNorm is not."""
    return module.in_features == module.out_features


def _of_stream(module: Module) -> bool:
    """Return whether the norm is applied to the hidden states of the layer, not to queries or keys."""
    return "." not in module.name


def _norms(modules: Sequence[Module]) -> list[Module]:
    return [module for module in modules if module.kind == "norm"]


def _normalizes_first(model: ModelShape) -> bool:
    working = [module for module in model.layers[0] if module.kind != "container"]
    return working[0].kind == "norm" and _is_layer_norm(working[0])


def _trains(module: Module) -> bool:
    return any(parameter.trainable for parameter in module.parameters)
