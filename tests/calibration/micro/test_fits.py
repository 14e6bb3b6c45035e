"""Fits give back the numbers of an imagined machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import simoffload as so
from simoffload.documents import parse_yaml
from simoffload.hardware import load_platform
from simoffload.models import Attention, Sequences, attention_kernels, load_model
from simoffload.scenario import resolve
from simoffload.units import parse_bytes, parse_flops, parse_rate, parse_seconds
from simoffload_calibrate.micro.fit_parts import (
    Roofline,
    bytes_text,
    central,
    fit_attention,
    fit_drive,
    fit_float16,
    fit_hbm,
    fit_interconnect,
    fit_kernel_latency,
    fit_matmul,
    fit_memory,
    fit_pageable,
    fit_pcie,
    fit_strided,
    flops_text,
    rate_text,
    seconds_text,
)
from simoffload_calibrate.micro.fit_programs import fit_eager
from simoffload_calibrate.small_models import eager_cases
from tests.calibration.micro import machine
from tests.calibration.micro.machine import GIB, HBM, HBM_SHARE, KERNEL, PEAK, record


@pytest.fixture
def sections() -> dict[str, Any]:
    found: dict[str, Any] = record()["sections"]
    return found


def test_pcie(sections: dict[str, Any]) -> None:
    found = fit_pcie(sections)
    assert found["host_to_device"].value[0] == ["4 KiB", "50 GB/s"]
    assert found["host_to_device"].value[-1] == ["1 GiB", "50 GB/s"]
    assert len(found["device_to_host"].value) == 5
    assert fit_pageable(sections)["pageable"].value[2] == ["1 MiB", "10 GB/s"]
    assert found["both_ways"].value == 0.8
    assert found["latency"].value == "6 us"


def test_memory_is_what_slows_gpus_down(sections: dict[str, Any]) -> None:
    found = fit_memory(sections)
    assert found["memcpy_rate"].value == "12 GB/s"
    assert found["memory_rate"].value == pytest.approx(4 * 50e9 * 0.8)
    assert found["memory_rate"].what == "4 GPUs copying at once, 80% of the rate of one alone"


def test_copies_that_slow_each_other_more_take_more_of_the_memory(sections: dict[str, Any]) -> None:
    found = fit_memory(sections)
    assert found["from_gpu_traffic"].value == 2.0
    assert found["from_gpu_traffic"].what == (
        "160 GB/s of pinned copies to GPUs over 80 GB/s: 4 GPUs copying at once, 40% of the rate of one alone"
    )
    assert "pageable_traffic" not in found, "four copies of pageable memory were as fast as one"


def test_memory_that_slows_nobody_is_what_was_seen_at_most() -> None:
    found = fit_memory(record(slowed=1.0)["sections"])
    assert found["memory_rate"].value == pytest.approx(4 * 50e9)
    alone = fit_memory(record(gpus=1)["sections"])
    assert alone["memory_rate"].value == pytest.approx(2 * 4 * 12e9)  # four threads read and write
    assert "from_gpu_traffic" not in fit_memory(record(slowed=1.0)["sections"]), "nothing to compare with"
    assert fit_memory({}) == {}


def test_interconnect(sections: dict[str, Any]) -> None:
    found = fit_interconnect(sections)
    assert found is not None
    rate, latency, fitted = found
    assert rate == pytest.approx(machine.NVLINK)
    assert latency == pytest.approx(machine.GATHER_LATENCY)
    assert fitted.residual == pytest.approx(0, abs=1e-9)
    assert fitted.points == 8
    assert fit_interconnect({}) is None


@pytest.mark.parametrize(
    ("name", "rates"), [("h200-4x-d", (189.5, 1.256, 5.594)), ("h200-4x-k", (178.2, 1.198, 5.329))]
)
def test_records_of_groups_of_processes_give_what_they_gave(name: str, rates: tuple[float, ...]) -> None:
    """Their rows do not name GPUs, and each number of GPUs has a section of its own."""
    path = Path(__file__).parents[3] / "validation" / "measured" / "holdout" / name / "micro.json"
    found = fit_memory(json.loads(path.read_text())["sections"])
    memory = round(found["memory_rate"].value / 1e9, 1)
    assert (memory, found["from_gpu_traffic"].value, found["pageable_traffic"].value) == rates


def test_collectives_of_subgroups_are_rows_of_the_group_of_all(sections: dict[str, Any]) -> None:
    apart = fit_interconnect(sections)
    rows = [
        {**row, "ranks": int(ranks)}
        for ranks, section in sections["collectives"].items()
        for row in section["calls"]
    ]
    assert fit_interconnect({"collectives": {"4": {"calls": rows}}}) == apart
    assert apart is not None
    assert apart[2].what.startswith("all-gathers of 32 KiB to 1 GiB among 2, 4 GPUs")


def test_copies_of_subsets_are_rows_of_the_group_of_all(sections: dict[str, Any]) -> None:
    apart = fit_memory(sections)
    rows = [
        {**row, "gpus": list(range(int(ranks)))}
        for ranks, section in sections["copies_together"].items()
        for row in reversed(section["together"])
    ]
    rows.append({**rows[0], "gpus": [0], "seconds": rows[0]["seconds"][:1]})
    sections["copies_together"] = {"4": {"together": rows}}
    assert fit_memory(sections) == apart


def test_residuals_are_told(sections: dict[str, Any]) -> None:
    sections["collectives"]["4"]["calls"][-1]["seconds"] *= 1.2
    found = fit_interconnect(sections)
    assert found is not None
    assert found[2].residual is not None
    assert 0.02 < found[2].residual < 0.2


def test_gpu_memory_and_kernels(sections: dict[str, Any]) -> None:
    assert {key: one.value for key, one in fit_hbm(sections, HBM).items()} == {"hbm_efficiency": HBM_SHARE}
    latency = fit_kernel_latency(sections)
    assert latency is not None
    assert (latency[0], latency[1].value) == (KERNEL, "2 us")
    assert fit_hbm({}, HBM) == {}
    assert fit_kernel_latency({}) is None


def test_efficiency_is_of_the_multiplications_that_arithmetic_bounds(sections: dict[str, Any]) -> None:
    roofline = Roofline(peak=PEAK, hbm_rate=HBM * HBM_SHARE, latency=KERNEL)
    found = fit_matmul(sections, roofline)
    assert found is not None
    assert {share for _, share in found.value} == {machine.GEMM_SHARE}
    assert found.points == 6  # 512 tokens and more
    assert found.residual == pytest.approx(0, abs=1e-6)
    assert fit_matmul(sections, roofline, "float16") is None


def test_float16_is_compared_with_the_same_multiplications_in_bfloat16() -> None:
    shape = {"form": "linear", "in": 4096, "out": 4096}
    points = [
        {**shape, "tokens": tokens, "dtype": dtype, "seconds": tokens * (1.25 if dtype == "float16" else 1)}
        for tokens in (64, 512, 4096)
        for dtype in ("bfloat16", "float16")
    ]
    found = fit_float16({"matmul": {"points": points}})
    assert found is not None
    assert (found.value, found.points) == (0.8, 2)
    assert fit_float16({"matmul": {"points": points[::2]}}) is None


def test_attention_is_the_share_of_its_ideal_speed_by_new_tokens() -> None:
    gpu = load_platform("dgx-h200").accelerator
    assert gpu.strided_rate is not None
    kinds: dict[str, Attention] = {"fused": "sdpa", "eager": "eager"}
    rows: list[dict[str, Any]] = []
    for batch, new, context, share in (
        (8, 1, 2048, 0.9),
        (8, 1, 64, 0.1),
        (1, 512, 512, 0.1),
        (8, 512, 512, 0.5),
    ):
        row: dict[str, Any] = {
            "model": "opt-6.7b",
            "heads": 32,
            "kv_heads": 32,
            "head_dim": 128,
            "batch": batch,
        }
        row |= {"new": new, "context": context}
        for key, kind in kinds.items():
            model = replace(load_model("opt-6.7b"), attention=kind)
            cost = attention_kernels(model, model.attends, Sequences(batch, new, context))
            ideal = cost.flops / gpu.matmul_rate(cost.flops, "bfloat16") + cost.bytes / gpu.hbm_rate
            copied = 4 * batch * 32 * new * 128 if (key, new) == ("fused", 512) else 0
            row[f"{key}_seconds"] = ideal / share + copied / gpu.strided_rate.value
        rows.append(row)
    rows.append(
        {**rows[-1], "model": "llama-3-8b", "kv_heads": 8, "fused_seconds": 1.0, "eager_seconds": 1.0}
    )
    found = fit_attention({"attention": {"points": rows}}, gpu)
    assert {key: one.value for key, one in found.items()} == {
        "fused_attention": [[1, 0.9], [512, 0.5]],
        "eager_attention": [[1, 0.9], [512, 0.5]],
    }
    assert fit_attention({}, gpu) == {}


def test_kernels_that_are_not_vectorized_have_rates_of_their_own() -> None:
    row = {"bytes": 2e9, "strided_rate_seconds": 2e-3, "join_rate_seconds": 4e-3}
    found = fit_strided({"kernels": {"strided": row}})
    assert {key: one.value for key, one in found.items()} == {
        "strided_rate": "1000 GB/s",
        "join_rate": "500 GB/s",
    }
    assert fit_strided({}) == {}


def test_points_of_the_efficiency_rise(sections: dict[str, Any]) -> None:
    found = fit_matmul(sections, Roofline(peak=PEAK, hbm_rate=HBM * HBM_SHARE, latency=0.0))
    assert found is not None
    work = [parse_flops(flops) for flops, _ in found.value]
    assert work == sorted(set(work))


def test_drive(sections: dict[str, Any]) -> None:
    found = fit_drive(sections["storage"])
    assert found["read"].value == "5 GB/s"
    assert found["write"].value == "2.5 GB/s"
    assert found["read_latency"].value == "79.18 us"
    assert found["capacity"].value == "1000 GiB"
    assert found["read_by_outstanding"].value == [
        ["1 MiB", "1 GB/s"],
        ["8 MiB", "3 GB/s"],
        ["32 MiB", "5 GB/s"],
    ]


def test_what_was_not_measured_is_missing() -> None:
    assert fit_pcie({}) == {}


def test_texts_read_back() -> None:
    assert parse_bytes(bytes_text(3 * GIB)) == 3 * GIB
    assert parse_bytes(bytes_text(12345)) == 12345
    assert parse_rate(rate_text(54.32e9)) == 54_320_000_000
    assert parse_rate(rate_text(1.2345678e6)) == 1_235_000
    assert parse_seconds(seconds_text(1.23456e-3)) == pytest.approx(1.235e-3)
    assert parse_seconds(seconds_text(1.5e-7)) == pytest.approx(1.5e-7)
    assert parse_flops(flops_text(2.7e13)) == pytest.approx(2.7e13)


def test_central() -> None:
    assert central([9.0, 10.0, 12.0]) == (10.0, pytest.approx(0.2), 3)


def test_host_without_deepspeed() -> None:
    """Times simulated with an imagined host give its costs back."""
    costs = {"operation": 11e-6, "hook": 11e-6, "tensor": 130e-6, "all_reduce": 310e-6}
    known = {"origin": "measured", "source": "a test", "date": "2026-11-23"}
    eager = {key: {"value": f"{value * 1e6} us", **known} for key, value in costs.items()}
    runs: list[dict[str, Any]] = []
    for case in (*eager_cases(1), *eager_cases(2)):
        run = case.request.model_dump(mode="json", exclude_unset=True)
        document = (
            {"name": "small", "platform": "dgx-h100"}
            | {key: run[key] for key in ("model", "workload", "strategy")}
            | {"profiles": {f"host/{load_platform('dgx-h100').host.id}": {"eager": eager}}}
        )
        answer = so.simulate(resolve(parse_yaml(json.dumps(document), name="small.yaml")))
        assert isinstance(answer, so.InferenceResult)
        runs.append(run | {"seconds": answer.tpot_s})
    sections = {"eager": {"runs": runs[:-1]}, "eager_together": {"2": {"runs": runs[-1:]}}}
    found = fit_eager(sections, load_platform("dgx-h100").machine(nodes=1))
    for key, value in costs.items():
        assert parse_seconds(found[key].value) == pytest.approx(value, rel=0.05), key
