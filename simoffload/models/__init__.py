"""Language models as modules in call order, with their parameters, FLOPs and bytes.

A family (BLOOM, OPT, Llama, …: ``families.FAMILIES``) converts a configuration with Hugging Face's names into
a :class:`ModelShape`. The released sizes are data (``sizes.yaml``); other shapes come from a scenario or a
``config.json``. :class:`ModelSpec` defines how a scenario describes a model.
"""

from __future__ import annotations

from simoffload.models.cost import (
    ModuleCost,
    Sequences,
    WeightCost,
    absorbed_kernels,
    attention_kernels,
    backward_cost,
    backward_products,
    batch_cost,
    forward_cost,
    loss_module,
    module_cost,
    tokens_of,
    training_backward_flops,
    training_cost,
    training_forward_flops,
    weight_cost,
)
from simoffload.models.families import FAMILIES
from simoffload.models.modules import (
    GROWING,
    SINGLE,
    Attention,
    CacheForm,
    CpuAttentionCode,
    Dtype,
    Module,
    ModuleKind,
    Parameter,
    Repeated,
)
from simoffload.models.shape import Layer, LayerGroup, ModelShape, parameters_of, window_of
from simoffload.models.sizes import canonical_model, is_model, list_models, resembled_model
from simoffload.models.spec import GGUF, ModelSpec, is_model_file, load_model

__all__ = [
    "FAMILIES",
    "GGUF",
    "GROWING",
    "SINGLE",
    "Attention",
    "CacheForm",
    "CpuAttentionCode",
    "Dtype",
    "Layer",
    "LayerGroup",
    "ModelShape",
    "ModelSpec",
    "Module",
    "ModuleCost",
    "ModuleKind",
    "Parameter",
    "Repeated",
    "Sequences",
    "WeightCost",
    "absorbed_kernels",
    "attention_kernels",
    "backward_cost",
    "backward_products",
    "batch_cost",
    "canonical_model",
    "forward_cost",
    "is_model",
    "is_model_file",
    "list_models",
    "load_model",
    "loss_module",
    "module_cost",
    "parameters_of",
    "resembled_model",
    "tokens_of",
    "training_backward_flops",
    "training_cost",
    "training_forward_flops",
    "weight_cost",
    "window_of",
]
