"""Bytes over bandwidth, with exact numbers."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload.documents import Document
from simoffload.models import Sequences
from simoffload.scenario import resolve
from simoffload.strategies.passes.pass_writer import ForwardPass
from simoffload.strategies.programs.zero_inference import ZeroInferencePlan
from simoffload_calibrate.compare import naive_bounds, naive_seconds
from tests.calibration.recorded import ds_config

STEP = ForwardPass("decode 1", (Sequences(8, 1, 65),))


def plan(config: dict[str, Any], **strategy: Any) -> ZeroInferencePlan:
    data = {"name": "naive", "model": {"name": "opt-6.7b", "tie_word_embeddings": False},
            "platform": "dgx-h200", "strategy": {"ds_config": config, **strategy},
            "workload": {"batch_size": 8, "prompt_length": 64, "output_length": 2}}  # fmt: skip
    found = resolve(Document("", data)).plan()
    assert isinstance(found, ZeroInferencePlan)
    return found


def rate(found: ZeroInferencePlan, *, pinned: bool) -> float:
    """[B/s] Rate of large copies from host memory."""
    return max(rate for _, rate in found.machine.host_to_device(0, pinned=pinned).curve.points)


def test_one_rank_copies_what_does_not_persist() -> None:
    found = plan(ds_config())
    small = sum(tensor.numel for tensor in found.tensors if tensor.numel <= 100_000)
    moved = (found.model.num_parameters - small) * 2
    bounds = naive_bounds(found, STEP)
    assert bounds.keys() == {"copy", "flops", "hbm"}
    assert bounds["copy"] == pytest.approx(moved / rate(found, pinned=True))
    assert naive_seconds(found, STEP) == bounds["copy"]


def test_what_persists_does_not_move() -> None:
    bounds = naive_bounds(plan(ds_config(stage3_param_persistence_threshold=10**12)), STEP)
    assert bounds["copy"] == 0.0
    assert bounds["hbm"] > bounds["flops"] > 0


def test_pageable_memory_has_its_own_rate() -> None:
    found = plan(ds_config(offload_param={"pin_memory": False}))
    pinned = naive_bounds(plan(ds_config()), STEP)["copy"]
    ratio = rate(found, pinned=True) / rate(found, pinned=False)
    assert naive_bounds(found, STEP)["copy"] == pytest.approx(pinned * ratio)


def test_ranks_share_the_weights_and_gather_the_rest() -> None:
    one, four = (
        naive_bounds(plan(ds_config(stage3_param_persistence_threshold=0), ranks=ranks), STEP)
        for ranks in (1, 4)
    )
    assert four["copy"] == pytest.approx(one["copy"] / 4, rel=1e-3)
    found = plan(ds_config(), ranks=4)
    links = found.machine.accelerator.interconnect
    assert links is not None
    received = found.model.num_parameters * 2 * 3 / 4
    assert four["gather"] == pytest.approx(received / links.rate, rel=1e-3)


def test_ranks_share_the_drives() -> None:
    config = ds_config("nvme", offload_param={"buffer_size": 10**9}, stage3_param_persistence_threshold=0)
    one, four = (naive_bounds(plan(config, ranks=ranks, weights="raid"), STEP) for ranks in (1, 4))
    assert four["read"] == pytest.approx(one["read"], rel=0.01)
    assert four["copy"] == pytest.approx(one["copy"] / 4, rel=0.01)


def test_without_offload_nothing_is_copied() -> None:
    assert naive_bounds(plan(ds_config("none")), STEP).keys() == {"flops", "hbm"}
    assert naive_bounds(plan(ds_config("none"), ranks=2), STEP).keys() == {"flops", "hbm", "gather"}
