"""Waits of gradients for matrix products that occupy the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from simoffload.strategies.training.micro_step import KernelWaits
from tests.strategies.training.mode_cases import CPU, operations, part, plan_of

MILLISECOND = 10**9
WAIT = "wait for kernels of compute"


def test_gradients_next_to_products_take_as_long_as_measured() -> None:
    """On an H100, 64 gradients took 51.4 ms alone and 79.8 ms next to 110 products that took 66.6 ms; the
    record of kernels shows waits of 26.7 ms (docs/measurements/training.md)."""
    waits = KernelWaits()
    assert waits.bucket(64, round(51.4 * MILLISECOND)) == 0
    waits.launched(round(66.6 * MILLISECOND), kernels=110)
    assert waits.bucket(64, 0) / MILLISECOND == pytest.approx(26.7, rel=0.02)


def test_every_gradient_waits_if_products_outlast_the_bucket_and_none_without_products() -> None:
    waits = KernelWaits()
    waits.bucket(10, 1000)
    waits.launched(10**6, kernels=1000)
    assert waits.bucket(5, 1000) == 10 * 880
    assert waits.bucket(5, 1000) == 0


def test_products_before_the_first_bucket_delay_no_gradient() -> None:
    waits = KernelWaits()
    waits.launched(10**6, kernels=1000)
    assert waits.bucket(10, 1000) == 0


def waits_of(zero: Mapping[str, Any], **more: Any) -> int:
    """Return the number of waits in a backward pass."""
    plan = plan_of({"stage": 3, "reduce_bucket_size": 10**6, **zero}, **more)
    schedule = plan.schedule(part(plan, "backward"))
    found = [(op, times) for op, times in operations(schedule) if op.label == WAIT]
    assert all(op.fixed > 0 and schedule.streams[op.stream] == "reduce" for op, _ in found)
    return sum(times for _, times in found)


def test_buckets_wait_only_if_products_run_at_the_same_time() -> None:
    """They do not with one stream for both, nor if the host waits for a bucket's copies before it launches
    more kernels; gradients that stay on the GPU are not handled one by one."""
    assert waits_of({"offload_optimizer": CPU})
    assert not waits_of({})
    assert not waits_of({"offload_optimizer": CPU, "overlap_comm": False})
    assert not waits_of({"offload_optimizer": CPU}, version="0.19.4")
    assert not waits_of({"offload_optimizer": {"device": "cpu", "pin_memory": False}})
    assert not waits_of({"offload_optimizer": {"device": "nvme"}})
