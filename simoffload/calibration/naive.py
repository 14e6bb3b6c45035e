"""The prediction without a simulator: bytes over bandwidth, to set beside simulated times."""

from __future__ import annotations

from simoffload.hardware import Machine, Path
from simoffload.models import ModelShape, forward_cost
from simoffload.models.shape import SINGLE
from simoffload.strategies.plan import ForwardPass
from simoffload.strategies.timing import DEEPSPEED_ADAM
from simoffload.strategies.training.plan import ZeroTrainingPlan
from simoffload.strategies.zero_inference import ZeroInferencePlan

__all__ = ["naive_bounds", "naive_seconds", "naive_training"]


def naive_seconds(plan: ZeroInferencePlan, forward: ForwardPass) -> float:
    """[s] of a pass: the largest of its bounds, as if everything else were hidden behind it."""
    return max(naive_bounds(plan, forward).values())


def naive_bounds(plan: ZeroInferencePlan, forward: ForwardPass) -> dict[str, float]:
    """[s] of one pass by resource: what a rank moves or computes over the top rate of its profile.

    "copy": offloaded bytes of a rank over one GPU's rate from host memory; "read": its bytes on storage
    over its share of the storage's rate; "gather": received bytes over the GPU's own links (PCIe without
    such); "flops" over the data sheet's peak; "hbm": bytes over the rate of HBM. Persistent parameters do
    not move.
    """
    machine, place, model = plan.machine, plan.placement, plan.model
    settings, ranks, size = place.settings, place.ranks, place.dtype_bytes
    moving = [tensor for tensor in plan.tensors if not tensor.persistent]
    mine = sum(tensor.slice_numel for tensor in moving) * size
    bounds = _work(model, machine, forward)
    if settings.device != "none":
        bounds["copy"] = mine / _top(machine, machine.host_to_device(0, pinned=settings.pin_memory))
    read = sum(tensor.slice_numel for tensor in moving if tensor.on_nvme) * size
    if read:
        path = machine.storage_read(place.tier, 0, gds=settings.use_gds)
        bounds["read"] = read / _top(machine, path, sharing=ranks)
    if ranks > 1:
        bounds["gather"] = mine * (ranks - 1) / _top(machine, machine.gather(0, ranks))
    return bounds


def naive_training(plan: ZeroTrainingPlan) -> dict[str, float]:
    """[s] of a training step by phase: FLOP over the data sheet's peak or bytes over bandwidth, whichever is
    longer; Adam's bytes over the peak of host memory; all that storage moves counts as the optimizer's."""
    machine, settings, places, model = plan.machine, plan.settings, plan.places, plan.model
    peak = (getattr(machine.accelerator.compute, model.dtype) or machine.accelerator.compute.float32).value
    numel = sum(tensor.slice_numel for tensor in plan.parameters.tensors)
    trained = sum(tensor.slice_numel for tensor in plan.state.trained)
    here = machine.ranks_per_node(places.ranks)
    steps = plan.workload.gradient_accumulation_steps
    offloaded = settings.params.device not in (None, "none")
    down = numel * model.dtype_bytes / _top(machine, machine.host_to_device(0, pinned=True))
    copies = steps * down if offloaded else 0.0
    forward = max(plan.forward_flops / peak, copies)
    back = (2 * plan.forward_flops + plan.recomputed_flops) / peak
    if settings.optimizer_device == "none":
        adam = DEEPSPEED_ADAM * trained / machine.accelerator.hbm_rate
        up = 0.0
    else:
        adam = DEEPSPEED_ADAM * trained * here / machine.host.memory_bandwidth.value
        size = (steps * settings.gradient_bytes + SINGLE) * trained
        up = size / _top(machine, machine.device_to_host(0, pinned=True))
    for traffic in plan.traffic:
        read = _top(machine, machine.storage_read(traffic.tier, 0), sharing=here)
        write = _top(machine, machine.storage_write(traffic.tier, 0), sharing=here)
        adam += (traffic.read / read + traffic.written / write) / places.ranks
    times = {"forward": forward, "backward": max(back, copies, up), "optimizer": adam}
    return times | {"step": sum(times.values())}


def _work(model: ModelShape, machine: Machine, forward: ForwardPass) -> dict[str, float]:
    ((batch, tokens, context),) = forward.batch
    cost = forward_cost(model, batch=batch, new_tokens=tokens, context=context)
    gpu = machine.accelerator
    peak = getattr(gpu.compute, model.dtype) or gpu.compute.float32
    return {"flops": cost.flops / peak.value, "hbm": cost.bytes / gpu.hbm_rate}


def _top(machine: Machine, path: Path, *, sharing: int = 1) -> float:
    """[B/s] of one transfer as large as one likes, with ``sharing`` ranks on everything that it crosses."""
    alone = max(rate for _, rate in path.curve.points)
    shared = (machine.resources[index].capacity / float(share) for index, share in path.hops)
    return min(alone, min(shared, default=alone) / sharing)
