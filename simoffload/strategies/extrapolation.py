"""Warnings about work that is outside the range in which a machine was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from simoffload.hardware import Curve, DeepSpeedCosts, FsdpCosts, Machine, Path
from simoffload.models import ModelShape, module_cost
from simoffload.strategies.ds_config import OffloadSettings
from simoffload.strategies.zero.coordinator import Tensor
from simoffload.units import format_bytes, format_flops
from simoffload.workload import Inference


def ranks_beyond(ranks: int, machine: Machine, *, costs: DeepSpeedCosts | FsdpCosts) -> Iterator[str]:
    """Yield a warning if a host has more ranks than the measurement of the host thread's ``costs`` had."""
    here, measured = machine.ranks_per_node(ranks), costs.ranks.value
    if here > measured:
        yield f"{here} ranks on a host; costs of the host thread were measured with up to {measured}"


def transfers_beyond(
    tensors: Sequence[Tensor], dtype_bytes: int, settings: OffloadSettings, machine: Machine, *, tier: str
) -> Iterator[str]:
    """Yield warnings about sizes of copies, and bytes in flight to storage, outside the measured curves."""
    gathered = [tensor for tensor in tensors if not tensor.persistent]
    if settings.device == "none" or not gathered:
        return
    for pinned in (True, False):
        copied = [
            tensor.slice_numel * dtype_bytes
            for tensor in gathered
            if settings.source(tensor.on_nvme) is pinned
        ]
        path = machine.host_to_device(0, pinned=pinned)
        yield from _sizes("copies", copied, path.curve, path)
    read_sizes = [tensor.slice_numel * dtype_bytes for tensor in gathered if tensor.on_nvme]
    if read_sizes:
        read = machine.storage_read(tier, 0, gds=settings.use_gds)
        if read.by_outstanding is not None:
            in_flight = [min(settings.outstanding_bytes, size) for size in read_sizes]
            yield from _sizes("bytes in flight", in_flight, read.by_outstanding, read)


def _sizes(what: str, sizes: Iterable[int], curve: Curve, path: Path) -> Iterator[str]:
    outside = sorted({size for size in sizes if size and not curve.covers(size)})
    if outside:
        low, high = format_bytes(outside[0]), format_bytes(outside[-1])
        span = low if low == high else f"{low} to {high}"
        first, last = (format_bytes(int(size)) for size in (curve.points[0][0], curve.points[-1][0]))
        yield f"{what} of {span} on {path.name}; measured from {first} to {last}"


def arithmetic_beyond(model: ModelShape, workload: Inference, machine: Machine) -> Iterator[str]:
    """Yield a warning about matrix multiplications of the prefill that are larger than any measured one."""
    curve = machine.accelerator.matmul_efficiency
    most = max(
        module_cost(
            model,
            module,
            batch=workload.batch_size,
            new_tokens=workload.prompt_length,
            context=workload.prompt_length,
        ).flops
        for module in model.distinct_modules
        if module.kind == "linear"
    )
    last = curve.points[-1][0]
    if curve.origin == "measured" and most > last:
        yield f"matrix multiplications of {format_flops(most)}; measured up to {format_flops(last)}"
