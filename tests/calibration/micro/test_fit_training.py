"""CPU Adam by threads and processes, as a profile has it."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload.calibration.micro.fit_deepspeed import fit_cpu_optimizer
from simoffload.units import parse_rate

THREAD, LIMIT = 25e9, 240e9
NUMBER = 512 << 20


def seconds(threads: int, processes: int, *, nodes: int = 1) -> float:
    """Of 28 bytes a parameter, by the law that ``CpuOptimizer`` states."""
    share = LIMIT / max(nodes, processes)
    return float(28 * NUMBER * ((threads * THREAD) ** -2 + share**-2) ** 0.5)


def rates(sections: dict[str, Any], *, nodes: int = 1) -> tuple[float, float]:
    found = fit_cpu_optimizer(sections, {"cores": 64, "numa_nodes": nodes})
    return parse_rate(found["thread"].value), parse_rate(found["limit"].value)


def alone(*counts: int, nodes: int = 1) -> list[dict[str, Any]]:
    return [{"threads": n, "parameters": NUMBER, "seconds": seconds(n, 1, nodes=nodes)} for n in counts]


@pytest.mark.parametrize("nodes", [1, 2])
def test_threads_of_one_process(nodes: int) -> None:
    sections = {"cpu_adam": {"steps": alone(1, 4, 16, 64, nodes=nodes)}}
    assert rates(sections, nodes=nodes) == pytest.approx((THREAD, LIMIT), rel=1e-3)


def test_processes_at_once_tell_what_they_share() -> None:
    """The slowest of them counts; one thread alone says nothing about the limit."""
    slowest = seconds(16, 4)
    row = {"threads": 16, "processes": 4, "parameters": NUMBER, "seconds": [slowest, slowest * 0.9]}
    sections = {"cpu_adam": {"steps": alone(1)}, "cpu_adam_together": {"4": {"together": [row]}}}
    assert rates(sections) == pytest.approx((THREAD, LIMIT), rel=1e-3)
    shared_by_nodes = seconds(16, 4, nodes=2)
    assert shared_by_nodes == slowest, "four processes have a quarter each, on one node or on two"
    assert rates(sections, nodes=2)[1] == pytest.approx(LIMIT, rel=0.02)


def test_small_steps_lie_in_caches_and_do_not_count() -> None:
    small = {"threads": 64, "parameters": 64 << 20, "seconds": 1e-3}
    sections = {"cpu_adam": {"steps": [*alone(1, 4, 16), small]}}
    assert rates(sections) == pytest.approx((THREAD, LIMIT), rel=1e-3)
    assert fit_cpu_optimizer({"cpu_adam": {"steps": alone(1)}}, {"cores": 8}) == {}
