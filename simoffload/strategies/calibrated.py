"""What of a plan lies outside of the range in which its machine was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from simoffload.hardware import Curve, Machine, Path
from simoffload.models import ModelShape, module_cost
from simoffload.strategies.actions import Tensor
from simoffload.strategies.ds_config import OffloadSettings
from simoffload.units import format_bytes, format_flops
from simoffload.workload import Inference

__all__ = ["arithmetic_beyond", "ranks_beyond", "transfers_beyond"]


def ranks_beyond(ranks: int, machine: Machine) -> Iterator[str]:
    """More ranks on a host than the host thread's costs were measured with."""
    here, measured = machine.ranks_per_node(ranks), machine.host.deepspeed.ranks.value
    if here > measured:
        yield f"{here} ranks on a host; costs of the host thread were measured with up to {measured}"


def transfers_beyond(
    tensors: Sequence[Tensor], dtype_bytes: int, settings: OffloadSettings, machine: Machine, *, tier: str
) -> Iterator[str]:
    """Sizes of copies, and bytes in flight to storage, that the measured curves do not reach."""
    moved = [tensor for tensor in tensors if not tensor.persistent]
    if settings.device == "none" or not moved:
        return
    for pinned in (True, False):
        copied = [
            tensor.slice_numel * dtype_bytes for tensor in moved if settings.source(tensor.on_nvme) is pinned
        ]
        path = machine.host_to_device(0, pinned=pinned)
        yield from _sizes("copies", copied, path.curve, path)
    read_sizes = [tensor.slice_numel * dtype_bytes for tensor in moved if tensor.on_nvme]
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
    """Matrix multiplications of the prefill that are larger than any that was measured."""
    curve = machine.accelerator.matmul_efficiency
    most = max(
        module_cost(
            model,
            module,
            batch=workload.batch_size,
            new_tokens=workload.prompt_length,
            context=workload.prompt_length,
        ).flops
        for module in (*model.layer, *model.modules_after)
        if module.kind == "linear"
    )
    last = curve.points[-1][0]
    if curve.origin == "measured" and most > last:
        yield f"matrix multiplications of {format_flops(most)}; measured up to {format_flops(last)}"
