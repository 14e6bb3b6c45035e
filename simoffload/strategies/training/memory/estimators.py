"""What others would say: DeepSpeed's own estimators of model states, and a rule of thumb.

None of them counts activations, buckets, pinned or swap buffers; they stand beside the full account so that
the difference shows. Source: ``estimate_zero2_model_states_mem_needs`` (deepspeed/runtime/zero/
stage_1_and_2.py) and ``estimate_zero3_model_states_mem_needs`` (stage3.py), the same at 0.18.3 and 0.19.8. At
0.9.1 ZeRO-2 without offload was 4P + 16P/G.
"""

from __future__ import annotations

from simoffload.models import ModelShape
from simoffload.results.capacity import Estimate

__all__ = [
    "Estimate",
    "estimates_for",
    "largest_module_numel",
    "white_paper_rule",
    "zero2_estimate",
    "zero3_estimate",
]


def zero2_estimate(
    total_params: int,
    *,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    additional_buffer_factor: float = 1.5,
) -> Estimate:
    """Reproduce ``estimate_zero2_model_states_mem_needs``, to the byte."""
    total_gpus = num_nodes * num_gpus_per_node
    factor = additional_buffer_factor
    if cpu_offload:
        host = total_params * max(4 * total_gpus, 16) * factor
        gpu = 2 * total_params
        formula = f"GPU 2P; host P x max(4G, 16) x {factor}"
    else:
        host = total_params * 4 * num_gpus_per_node * factor
        gpu = 2 * total_params + int(18 * total_params / total_gpus)
        formula = f"GPU 2P + 18P/G; host 4P x g x {factor}"
    return Estimate("DeepSpeed's estimate for ZeRO-2", int(host), int(gpu), None, formula)


def zero3_estimate(
    total_params: int,
    largest_layer_params: int,
    *,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    cpu_offload_params: bool = True,
    zero_init: bool = True,
    additional_buffer_factor: float = 1.5,
) -> Estimate:
    """Reproduce ``estimate_zero3_model_states_mem_needs``, to the byte.

    ``largest_layer_params`` are those of the largest module, its children's not counted, as
    ``model_to_params`` finds them (:func:`largest_module_numel`).
    """
    total_gpus, share = num_nodes * num_gpus_per_node, 1 / num_nodes
    factor, largest = additional_buffer_factor, 4 * largest_layer_params
    if not cpu_offload:
        gpu = largest + int(18 * total_params / total_gpus)
        host = (largest_layer_params if zero_init else total_params) * 4 * num_gpus_per_node * factor
        formula = f"GPU 4L + 18P/G; host {'4L' if zero_init else '4P'} x g x {factor}"
        return Estimate(_ZERO_3, int(host), int(gpu), None, formula)
    states = 18 if cpu_offload_params else 16
    gpu = largest if cpu_offload_params else largest + int(2 * total_params / total_gpus)
    if zero_init:
        host = total_params * states * share * factor
    else:
        host = total_params * max(4 * num_gpus_per_node, states * share) * factor
    on_gpu = "4L" if cpu_offload_params else "4L + 2P/G"
    on_host = f"{states}P/n" if zero_init else f"P x max(4g, {states}/n)"
    return Estimate(_ZERO_3, int(host), int(gpu), None, f"GPU {on_gpu}; host {on_host} x {factor}")


_ZERO_3 = "DeepSpeed's estimate for ZeRO-3"


def white_paper_rule(model: ModelShape) -> Estimate:
    """240 x layers x hidden^2 [B]: 12 h^2 parameters a layer, 20 B for each.

    Source: Rajbhandari et al., ZeRO-Infinity, arXiv 2104.07857, equations 1 and 2, repeated in DDN's white
    paper "Large Language Models". It leaves out embeddings and activations; a gated feed-forward network or
    grouped queries are not 12 h^2.
    """
    total = 240 * model.num_hidden_layers * model.hidden_size**2
    return Estimate("white paper's rule", None, None, total, "240 x layers x hidden^2 over all tiers")


def estimates_for(
    model: ModelShape, *, stage: int, ranks: int, nodes: int, offload_optimizer: bool, offload_params: bool
) -> tuple[Estimate, ...]:
    """What applies to a run: DeepSpeed's estimator for its stage (from 1), and the rule.

    DeepSpeed's know no storage; what is there counts as in host memory. None knows frozen weights: beside
    adapters they are named as what full training would need.
    """
    per_node, total = -(-ranks // nodes), model.num_parameters
    found = [white_paper_rule(model)]
    if stage in (1, 2):
        rule = zero2_estimate(
            total, num_gpus_per_node=per_node, num_nodes=nodes, cpu_offload=offload_optimizer
        )
        found.insert(0, rule)
    elif stage == 3:
        rule = zero3_estimate(
            total,
            largest_module_numel(model),
            num_gpus_per_node=per_node,
            num_nodes=nodes,
            cpu_offload=offload_optimizer,
            cpu_offload_params=offload_params,
        )
        found.insert(0, rule)
    modules = (*model.modules_before, *model.layer, *model.modules_after)
    if all(parameter.trainable for module in modules for parameter in module.parameters):
        return tuple(found)
    return tuple(one._replace(name=f"{one.name}, if all weights were trained") for one in found)


def largest_module_numel(model: ModelShape) -> int:
    """[elements] of the module that owns most, its children's not counted."""
    modules = (*model.modules_before, *model.layer, *model.modules_after)
    return max(module.num_parameters for module in modules)
