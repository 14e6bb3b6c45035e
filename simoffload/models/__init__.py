"""Language models as modules in call order, with their parameters, FLOPs and bytes.

A family (BLOOM, OPT, Llama, …: ``families.FAMILIES``) converts a configuration with Hugging Face's names into
a :class:`ModelShape`. The released sizes are data (``sizes.yaml``); other shapes come from a scenario or a
``config.json``. :class:`ModelSpec` defines how a scenario describes a model.
"""

from __future__ import annotations

from simoffload.models.cost import ModuleCost, Sequences, batch_cost, forward_cost, module_cost
from simoffload.models.shape import Dtype, ModelShape, Module, ModuleKind, Parameter
from simoffload.models.spec import ModelSpec, list_models, load_model

__all__ = [
    "Dtype",
    "ModelShape",
    "ModelSpec",
    "Module",
    "ModuleCost",
    "ModuleKind",
    "Parameter",
    "Sequences",
    "batch_cost",
    "forward_cost",
    "list_models",
    "load_model",
    "module_cost",
]
