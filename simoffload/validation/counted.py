"""Published figures that need no simulation: counts of bytes and requests, and Adam on the CPU by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from simoffload.scenario import LoadedScenario
from simoffload.simulation import fit
from simoffload.strategies.timing import Implementation, cpu_adam_s
from simoffload.strategies.training.plan import ZeroTrainingPlan
from simoffload.strategies.training.storage_io import Transfer

__all__ = ["PLANNED"]

_BILLION = 1e9
_GIB = 1 << 30


def _plan(scenario: LoadedScenario) -> ZeroTrainingPlan:
    plan = scenario.plan()
    if not isinstance(plan, ZeroTrainingPlan):
        raise TypeError(f"{scenario.name}: this figure is about training under ZeRO")
    return plan


def _first_transfers(scenario: LoadedScenario) -> Iterable[Transfer]:
    """From the start of the run to the end of its first step."""
    return (transfer for stage in _plan(scenario).first_io for transfer in stage.transfers)


def _requests(scenario: LoadedScenario, *, written: bool) -> float:
    aio = _plan(scenario).settings.params
    transferred = (one for one in _first_transfers(scenario) if one.written is written)
    return float(sum(one.full_requests(block=aio.block_size, threads=aio.threads) for one in transferred))


def _bytes_transferred(scenario: LoadedScenario, *, written: bool) -> float:
    transferred = sum(one.size for one in _first_transfers(scenario) if one.written is written)
    return transferred * scenario.scenario.strategy.ranks / _GIB


def _space(scenario: LoadedScenario) -> float:
    return sum(use.needed for use in fit(scenario).capacity if use.kind not in {"hbm", "dram"}) / _GIB


def _adam(scenario: LoadedScenario, numel: float, implementation: Implementation = "deepspeed") -> float:
    """[s] on one rank's threads, as many ranks working on a host as the scenario has."""
    ranks = scenario.machine.ranks_per_node(scenario.scenario.strategy.ranks)
    threads = _plan(scenario).places.threads
    return cpu_adam_s(
        scenario.machine.host, numel, threads=threads, processes=ranks, implementation=implementation
    )


PLANNED: dict[str, Callable[[LoadedScenario], float]] = {
    "weights_gb": lambda scenario: scenario.model.weight_bytes / 1e9,
    # up to the end of the first step; requests of a whole aio block each, by one rank
    "requests_read": lambda scenario: _requests(scenario, written=False),
    "requests_written": lambda scenario: _requests(scenario, written=True),
    "first_read_gib": lambda scenario: _bytes_transferred(scenario, written=False),
    "first_written_gib": lambda scenario: _bytes_transferred(scenario, written=True),
    "space_gib": _space,
    "checkpoint_gib": lambda scenario: scenario.plan().movable[0] / _GIB,
    # all of the model's parameters on one rank
    "cpu_adam_ms": lambda scenario: 1e3 * _adam(scenario, scenario.model.num_parameters),
    "cpu_adam_s_per_billion": lambda scenario: _adam(scenario, _BILLION),
    "torch_adam_s_per_billion": lambda scenario: _adam(scenario, _BILLION, "torch"),
}
"""Metrics of a scenario itself."""
