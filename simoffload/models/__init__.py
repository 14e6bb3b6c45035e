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
from simoffload.models.formats import FORMATS, Kernel, Method
from simoffload.models.gguf_file import read_gguf, tensor_names
from simoffload.models.lora import nf4_bits, with_lora
from simoffload.models.module_names import ANY_TEXT, VALID, Automaton, conditions_of, read_expression
from simoffload.models.modules import (
    GROWING,
    SINGLE,
    Attention,
    CacheForm,
    CpuAttentionCode,
    Dtype,
    Module,
    ModuleKind,
    Operations,
    Parallel,
    Parameter,
    Repeated,
    Traits,
)
from simoffload.models.quantization import QUANTIZATIONS, deepspeed_quantization, has_gguf, in_gguf, quantized
from simoffload.models.shape import (
    Layer,
    LayerGroup,
    ModelShape,
    grouped,
    parameters_of,
    stored_bytes,
    window_of,
)
from simoffload.models.sizes import (
    canonical_model,
    find_model,
    is_model,
    list_models,
    resembled_model,
    similar_models,
)
from simoffload.models.spec import (
    GGUF,
    ModelSpec,
    is_model_file,
    load_model,
    model_file,
    model_label,
    states_form,
)

__all__ = [
    "ANY_TEXT",
    "FAMILIES",
    "FORMATS",
    "GGUF",
    "GROWING",
    "QUANTIZATIONS",
    "SINGLE",
    "VALID",
    "Attention",
    "Automaton",
    "CacheForm",
    "CpuAttentionCode",
    "Dtype",
    "Kernel",
    "Layer",
    "LayerGroup",
    "Method",
    "ModelShape",
    "ModelSpec",
    "Module",
    "ModuleCost",
    "ModuleKind",
    "Operations",
    "Parallel",
    "Parameter",
    "Repeated",
    "Sequences",
    "Traits",
    "WeightCost",
    "absorbed_kernels",
    "attention_kernels",
    "backward_cost",
    "backward_products",
    "batch_cost",
    "canonical_model",
    "conditions_of",
    "deepspeed_quantization",
    "find_model",
    "forward_cost",
    "grouped",
    "has_gguf",
    "in_gguf",
    "is_model",
    "is_model_file",
    "list_models",
    "load_model",
    "loss_module",
    "model_file",
    "model_label",
    "module_cost",
    "nf4_bits",
    "parameters_of",
    "quantized",
    "read_expression",
    "read_gguf",
    "resembled_model",
    "similar_models",
    "states_form",
    "stored_bytes",
    "tensor_names",
    "tokens_of",
    "training_backward_flops",
    "training_cost",
    "training_forward_flops",
    "weight_cost",
    "window_of",
    "with_lora",
]
