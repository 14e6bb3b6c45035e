"""The model's tensors as ZeRO partitions and places them."""

from __future__ import annotations

from collections.abc import Sequence

from simoffload.strategies.coordinator import Tensor
from simoffload.strategies.ds_config.training import TrainingSettings
from simoffload.strategies.partition import partitioned_tensor
from simoffload.strategies.training.swap import sub_groups
from simoffload.strategies.training.trace import Instance, MicroStep
from simoffload.strategies.training.walk import Parameters

__all__ = ["partitioned"]


def partitioned(
    trace: MicroStep, settings: TrainingSettings, *, ranks: int, dtype_bytes: int, kept: bool = True
) -> Parameters:
    """All tensors in the order of their first use, a tied one once, and who needs and who trains them.

    ``kept`` = some sub-groups may stay in host memory.
    """
    tensors: list[Tensor] = []
    owned: dict[Instance, tuple[int, ...]] = {}
    trained: dict[Instance, tuple[int, ...]] = {}
    shared: dict[tuple[int, str], int] = {}
    persistent = 0
    for event in trace.forward:
        one = event.instance
        if one in owned:
            continue
        mine, own = [], []
        for parameter in one.module.parameters if one.owns else ():
            if parameter.tied:
                mine.append(shared[-1, parameter.name])
                continue
            shared[one.layer, parameter.name] = len(tensors)
            mine.append(len(tensors))
            if parameter.trainable:
                own.append(len(tensors))
            tensor = _tensor(parameter.name, parameter.numel, persistent, settings, ranks, dtype_bytes)
            persistent += parameter.numel if tensor.persistent else 0
            tensors.append(tensor)
        owned[one], trained[one] = tuple(mine), tuple(own)
    for event in trace.backward:
        owned.setdefault(event.instance, ())
        trained.setdefault(event.instance, ())
    placed = _kept_in_memory(tensors, settings) if kept else tensors
    return Parameters(tuple(placed), owned, trained)


def _tensor(
    name: str, numel: int, persistent: int, settings: TrainingSettings, ranks: int, dtype_bytes: int
) -> Tensor:
    tensor = partitioned_tensor(
        name,
        numel,
        persistent=persistent,
        settings=settings.params,
        ranks=ranks if settings.stage > 0 else 1,
        dtype_bytes=dtype_bytes,
    )
    return tensor if settings.stage == 3 else tensor._replace(persistent=False)


def _kept_in_memory(tensors: Sequence[Tensor], settings: TrainingSettings) -> list[Tensor]:
    """Sub-groups that ``max_in_cpu`` has room for stay in host memory."""
    if settings.params.device != "nvme":
        return list(tensors)
    room = settings.params.max_in_cpu
    kept: list[Tensor] = []
    for group in sub_groups(tensors, settings.sub_group_size):
        stays = group.numel <= room
        room -= group.numel
        kept += [tensor._replace(on_nvme=tensor.on_nvme and not stays) for tensor in group.tensors]
    return kept
