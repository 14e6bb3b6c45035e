"""What an answer draws: every device idles, and draws more in proportion to how busy it is.

P = idle + (active - idle) x busy (drdobbs.com 215800830). A GPU is busy while it computes or copies in its
own memory; a CPU while host threads run, each on one core, or all cores update; memory, adapters, drives and
servers as far as their bandwidth is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from simoffload.hardware import Machine
from simoffload.hardware.machine import DeviceGroup
from simoffload.planning.costs.price_list import CostList
from simoffload.results.attribution import Group
from simoffload.results.checkpoint import CheckpointResult
from simoffload.results.inference import InferenceResult
from simoffload.results.passes import PassResult
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult

__all__ = ["Draw", "Energy", "activity", "energy"]

_ALL_CORES = frozenset(("CPU Adam", "CPU casts and scaling"))
"""Causes of the host that keep every core busy; the others keep one a rank."""


class Draw(NamedTuple):
    """What equal devices draw on average."""

    key: str
    number: float
    idle_w: float
    """[W] of one."""
    active_w: float
    busy: float
    """Fraction of the time, or of the bandwidth."""

    @property
    def watts(self) -> float:
        """[W] of all of them."""
        return self.number * (self.idle_w + (self.active_w - self.idle_w) * self.busy)


class Energy(NamedTuple):
    """Power while the work goes on, without what the site adds."""

    draws: tuple[Draw, ...]
    missing: tuple[str, ...]
    """Keys of devices whose power the list does not know."""
    time_s: float
    """[s] of the work."""

    @property
    def watts(self) -> float:
        """[W] on average over the work."""
        return sum(draw.watts for draw in self.draws)


def activity(result: SimulationResult) -> tuple[tuple[PassResult, float], ...]:
    """Passes that stand for the work, and the time [s] of each: a generation, a step, a checkpoint.

    All decode steps count as the first one that was simulated.
    """
    match result:
        case InferenceResult(prefill=PassResult() as prefill):
            decode = [(result.decode[0], result.decode_total_s)] if result.decode else []
            return ((prefill, prefill.time_s), *decode)
        case TrainingResult():
            return tuple((phase.result, phase.time_s) for phase in result.phases)
        case CheckpointResult():
            return tuple((phase.result, phase.result.time_s) for phase in result.checkpoint.saving)
    return ()


def energy(
    machine: Machine, result: SimulationResult, parts: Iterable[DeviceGroup], costs: CostList
) -> Energy | None:
    """Power and energy of the work; None where it does not fit."""
    work = activity(result)
    total = sum(time for _, time in work)
    if not total:
        return None
    draws, missing = [], []
    for part in parts:
        known = costs.power(part)
        if known is None:
            missing.append(part.key)
            continue
        power, each = known
        busy = sum(time * _busy(part, one, machine, result) for one, time in work) / total
        draws.append(Draw(part.key, part.number * each, power.idle.value, power.active.value, busy))
    return Energy(tuple(draws), tuple(missing), total)


def _busy(part: DeviceGroup, one: PassResult, machine: Machine, result: SimulationResult) -> float:
    """Fraction of a pass in which such devices are busy, on average over all of them."""
    if not one.time_s:
        return 0.0
    if part.kind == "accelerator":
        return min(1.0, one.gpus_s / one.time_s / machine.gpus)
    if part.kind == "host":
        all_cores = sum(share.busy_s for share in one.shares if share.cause in _ALL_CORES) / one.time_s
        threads = (_share(one, "host") - all_cores) * machine.ranks_per_node(result.ranks)
        cores = threads / machine.host.cpu_optimizer.cores.value
        linked = sum(use.size / (use.capacity * one.time_s) for use in one.links if use.unit == "core-ns")
        return min(1.0, min(1.0, cores + all_cores) * machine.nodes_of(result.gpus) / machine.nodes + linked)
    used = {use.link: use.size / (use.capacity * one.time_s) for use in one.links}
    loads = [min(1.0, sum(used.get(link, 0.0) for link in links)) for links in part.links]
    return sum(loads) / len(loads)


def _share(one: PassResult, group: Group) -> float:
    """Fraction of a pass in which something of a group is busy, on the rank that has most of it."""
    return sum(share.busy_s for share in one.shares if share.group == group) / one.time_s
