"""Properties of a model family beyond the shape of its models; every family states all of them."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["EAGER", "Attention", "Operations", "SavedActivations", "Traits"]

Attention = Literal["eager", "sdpa"]
"""Transformers' implementations of attention: spelled out in Python, or PyTorch's fused
``scaled_dot_product_attention``."""

EAGER = 8
"""Additional operations of eager attention over the fused one, counted in transformers' code: scale, mask,
softmax, two casts, the second product, dropout, and the copy of the result."""


class Operations(NamedTuple):
    """PyTorch operations of a module's call beyond the call itself, by the module's kind.

    They are multiples of ``operation`` in the host's profile: the time of a module's own code over the time
    of one operation. Those with a default are PyTorch's own modules, identical in all families: from
    per-module traces of small BLOOM, OPT, Llama and Mixtral models (validation/measured, fit set;
    transformers 5.17).
    """

    block: int
    """Operations of a layer's own code, such as the addition of residuals."""
    mlp: int
    """Operations of the own code of the module ``mlp``, where there is one."""
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
    linear: int = 0
    embedding: int = 2
    dropout: int = -1
    """Operations of a dropout; -1 as its call launches nothing."""


class SavedActivations(NamedTuple):
    """What autograd keeps and allocates in a layer, as far as families differ.

    Counted in the code of transformers 5.23 and PyTorch 2.13; tests compare it with real allocations.
    """

    kept: int
    """Number of tensors as wide as the feed-forward network that autograd keeps, in addition to the next
    layer's input."""
    product: bool
    """Whether that input is a tensor of its own (False: the activation's result, which is kept anyway)."""
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
    half_softmax: bool = False
    """Whether softmax of eager attention stays in the model's data type (False: in single precision, and cast
    back)."""
