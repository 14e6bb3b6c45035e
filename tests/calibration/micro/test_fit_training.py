"""CPU Adam by threads and processes, as a profile has it."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload.units import parse_rate
from simoffload_calibrate.micro.fit_programs import fit_cpu_optimizer

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


def check_seconds(threads: int, numel: int, processes: int = 1) -> float:
    """Of 12 bytes a gradient, by the same law at a tenth of the rates."""
    return seconds(threads, processes) * 12 / 28 * 10 * numel / NUMBER


def checked(sections: dict[str, Any]) -> tuple[float, float]:
    found = fit_cpu_optimizer(sections, {"cores": 64, "numa_nodes": 1})
    return parse_rate(found["overflow_thread"].value), parse_rate(found["overflow_limit"].value)


def test_the_overflow_check_by_threads() -> None:
    """Few threads check an eighth, all threads check all; the part in a quick measurement is too small."""
    steps = alone(1, 4, 16)
    steps[-1]["overflow_check_seconds"] = check_seconds(16, NUMBER)
    few = [
        {"threads": n, "parameters": NUMBER // 8, "seconds": check_seconds(n, NUMBER // 8)} for n in (1, 4)
    ]
    small = {"threads": 4, "parameters": 4 << 20, "seconds": 1e-6}
    sections = {"cpu_adam": {"steps": steps, "overflow_checks": [*few, small]}}
    assert checked(sections) == pytest.approx((THREAD / 10, LIMIT / 10), rel=1e-3)
    assert rates(sections) == pytest.approx((THREAD, LIMIT), rel=1e-3)


def test_the_overflow_check_of_processes_at_once() -> None:
    slowest = check_seconds(16, NUMBER, processes=4)
    row = {"threads": 16, "processes": 4, "parameters": NUMBER, "seconds": [seconds(16, 4)]}
    row["overflow_check_seconds"] = [slowest * 0.9, slowest]
    one = {"threads": 1, "parameters": NUMBER // 8, "seconds": check_seconds(1, NUMBER // 8)}
    sections = {
        "cpu_adam": {"steps": alone(1), "overflow_checks": [one]},
        "cpu_adam_together": {"4": {"together": [row]}},
    }
    assert checked(sections) == pytest.approx((THREAD / 10, LIMIT / 10), rel=1e-3)


def test_threads_beyond_cores_give_the_turn_of_a_region() -> None:
    """Four processes with 64 threads each on 64 cores: three further threads on each."""
    row = {"threads": 16, "processes": 4, "parameters": NUMBER, "seconds": [seconds(16, 4)]}
    row |= {"scale_seconds": [0.10, 0.09], "round_seconds": [0.05, 0.04], "crowded_threads": 64}
    crowded = row | {"scale_crowded_seconds": [0.11, 0.118], "round_crowded_seconds": [0.074, 0.06]}
    found = fit_cpu_optimizer(
        {"cpu_adam": {"steps": alone(1)}, "cpu_adam_together": {"4": {"together": [crowded]}}},
        {"cores": 64, "numa_nodes": 1},
    )
    assert (found["turn"].value, found["turn"].points) == ("7000 us", 2), "of 18 and 24 ms for three"
    quicker = crowded | {"scale_crowded_seconds": [0.08], "round_crowded_seconds": [0.03]}
    sections = {"cpu_adam": {"steps": alone(1)}, "cpu_adam_together": {"4": {"together": [quicker]}}}
    assert "turn" not in fit_cpu_optimizer(sections, {"cores": 64}), "noise is not a time"


def test_a_record_without_overflow_checks_gives_the_rates_of_adam() -> None:
    found = fit_cpu_optimizer({"cpu_adam": {"steps": alone(1, 4, 16)}}, {"cores": 64, "numa_nodes": 1})
    assert set(found) == {"cores", "numa_nodes", "thread", "limit"}


def test_small_steps_lie_in_caches_and_do_not_count() -> None:
    small = {"threads": 64, "parameters": 64 << 20, "seconds": 1e-3}
    sections = {"cpu_adam": {"steps": [*alone(1, 4, 16), small]}}
    assert rates(sections) == pytest.approx((THREAD, LIMIT), rel=1e-3)
    assert fit_cpu_optimizer({"cpu_adam": {"steps": alone(1)}}, {"cores": 8}) == {}
