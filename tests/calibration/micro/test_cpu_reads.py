"""Reads of memory and of mapped files, products of ggml, and the ``cpu_products`` that they give."""

from __future__ import annotations

from math import hypot
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from simoffload.hardware import load_platform
from simoffload.hardware.quantities import saturating
from simoffload_calibrate.micro.profiles import profile_from_micro
from tests.calibration.micro.machine import GIB, MIB, record

BASE = "rtx-4090-desktop"
"""A desktop with 89.6 GB/s, whose ``cpu_products`` are those of its class: weights 0.9, experts 0.87."""


def profiles(folder: Path, sections: dict[str, Any]) -> dict[str, Any]:
    """Return the host that a record of these sections alone gives, after loading it as a platform."""
    raw = record(gpus=1) | {"sections": sections, "probes": []}
    for name, text in profile_from_micro(raw, BASE).items():
        (folder / name).write_text(text)
    load_platform(folder / "platform.yaml")
    host: dict[str, Any] = yaml.safe_load((folder / "host.yaml").read_text())
    return host


def reads(**rates: float) -> dict[str, Any]:
    """Return reads of 2 GiB at rates [B/s] by threads, of which nine tenths are within 10 %."""
    rows = [(int(name.removeprefix("by_")), 2 * GIB / rate) for name, rate in rates.items()]
    spread = [{"seconds": one, "seconds_spread": [one * 0.95, one * 1.05]} for _, one in rows]
    return {
        "reads": [{"threads": n, "bytes": 2 * GIB} | row for (n, _), row in zip(rows, spread, strict=True)]
    }


def test_weights_are_read_at_what_threads_read_at_most(tmp_path: Path) -> None:
    host = profiles(tmp_path, {"memory_reads": reads(by_1=20e9, by_8=44.8e9, by_16=40e9)})
    weights, experts = (host["cpu_products"][key] for key in ("weights", "experts"))
    assert (weights["value"], weights["origin"]) == (0.5, "measured")
    assert weights["source"].startswith(
        "calibrate micro: 44.8 GB/s of the peak read by 8 threads; 3 points; 1x NVIDIA H200"
    )
    assert weights["spread"] == pytest.approx(0.1 / 2 / 1.2816, abs=1e-4)
    assert (experts["value"], experts["origin"]) == (round(0.5 * 0.87 / 0.9, 4), "estimate")
    assert host["stream_fraction"]["value"] == 0.5, "reads are traffic that memory was seen to carry"
    assert host["cpu_products"]["thread"]["origin"] == "estimate", "from the class of the host"


def test_copies_that_carry_more_do_not_change_what_is_read(tmp_path: Path) -> None:
    rows = [{"threads": 8, "bytes": GIB, "seconds": 2 * GIB / 60e9}]
    host = profiles(tmp_path, {"memory_reads": reads(by_8=44.8e9), "dram": {"copies": rows}})
    assert host["cpu_products"]["weights"]["value"] == 0.5
    assert host["stream_fraction"]["value"] == round(60 / 89.6, 4)


def test_memory_that_is_faster_than_its_data_sheet_has_that_bandwidth(tmp_path: Path) -> None:
    host = profiles(tmp_path, {"memory_reads": reads(by_8=100e9)})
    assert host["memory_bandwidth"]["value"] == "100 GB/s"
    assert (host["stream_fraction"]["value"], host["cpu_products"]["weights"]["value"]) == (1.0, 1.0)


def test_page_faults_are_a_share_of_those_of_the_most_threads(tmp_path: Path) -> None:
    rows = [
        {"threads": n, "bytes": 512 * MIB, "seconds": 512 * MIB / rate} for n, rate in ((1, 2e9), (4, 3e9))
    ]
    section = {"filesystem": "ext4", "read_ahead": 4 * MIB, "reads": rows}
    host = profiles(tmp_path, {"page_faults": section})
    faults = host["cpu_products"]["page_faults"]
    assert (faults["value"], faults["origin"]) == ("1.8 GB/s", "estimate"), "memory was not full"
    told = "0.6 of the rate while memory had room, as on two machines: 2 GB/s by 1, 3 GB/s by 4 threads"
    assert f"{told}; 2 points" in faults["source"]
    ahead = host["read_ahead"]
    assert (ahead["value"], ahead["origin"]) == ("4096 KiB", "measured")
    assert host["cpu_products"]["weights"]["value"] == 0.9, "that of the class"


def products(*, cores: int, half: int = 24, meeting: float = 0.0) -> list[dict[str, Any]]:
    """Return products on memory of 44.8 GB/s by threads of 6 GB/s, 4 with MXFP4, at 20 GFLOP/s with dot
    products, 30 in blocks, and in tiles 100, of which half with ``half`` tokens; all threads meet twice for
    one token."""
    rows = []
    for name in ("q4_k", "q6_k", "q8_0", "mxfp4"):
        for tokens in (1, 8, 32, 512):
            for threads in {1, cores} if tokens == 1 else {cores}:
                rate = saturating(threads * (4e9 if name == "mxfp4" else 6e9), 44.8e9)
                tiles = 20e9 if tokens == 8 else 100e9 * tokens / (tokens + half)
                speed = {"q8_0": 30e9, "mxfp4": 20e9}.get(name, tiles)
                size, flops = 9 * MIB, 2 * 4096**2 * tokens
                seconds = hypot(size / rate, flops / (threads * speed) if tokens > 1 else 0.0)
                seconds += 2 * meeting if tokens == 1 < threads else 0.0
                row = {"format": name, "tokens": tokens, "threads": threads, "bytes": size, "flops": flops}
                rows.append(row | {"seconds": seconds, "seconds_spread": [seconds * 0.95, seconds * 1.05]})
    return rows


def test_kernels_are_those_of_the_products(tmp_path: Path) -> None:
    meetings = [{"threads": n, "seconds": n * 1e-7, "seconds_spread": [n * 1e-7] * 2} for n in (1, 16)]
    ggml = {"products": products(cores=16, meeting=1.6e-6), "meetings": meetings}
    found = profiles(tmp_path, {"memory_reads": reads(by_16=44.8e9), "ggml": ggml})["cpu_products"]
    assert {key: one["value"] for key, one in found.items() if one["origin"] == "measured"} == {
        "thread": "6 GB/s",
        "dot_thread": "4 GB/s",
        "dot": "20 GFLOP/s",
        "blocked": "30 GFLOP/s",
        "tiled": "100 GFLOP/s",
        "tiled_rows": 24,
        "operation": "1.6 us",
        "weights": 0.5,
    }
    assert [found[key]["spread"] for key in ("dot_thread", "tiled")] == [pytest.approx(0.039, abs=1e-4)] * 2
    assert (
        "products of ggml with one token on one thread, q4_k, q6_k, q8_0; 3 points"
        in found["thread"]["source"]
    )


def test_experts_are_read_at_what_their_products_take_beside_meetings(tmp_path: Path) -> None:
    meetings = [{"threads": 16, "seconds": 2e-6}]
    rows = []
    for name, of_a_thread in (("q4_k", 6e9), ("mxfp4", 4e9)):
        seconds = 7 * MIB / saturating(16 * of_a_thread, 30e9) + 2 * 2e-6
        rows.append({"format": name, "threads": 16, "bytes": 7 * MIB, "seconds": seconds})
    ggml = {"products": products(cores=16), "meetings": meetings, "experts": rows}
    found = profiles(tmp_path, {"memory_reads": reads(by_16=44.8e9), "ggml": ggml})["cpu_products"]
    assert found["experts"]["value"] == pytest.approx(30 / 89.6, rel=1e-3)
    assert found["experts"]["origin"] == "measured"
    assert "products of ggml with chosen experts, q4_k, mxfp4; 2 points" in found["experts"]["source"]


def test_a_change_of_device_is_what_a_chain_of_changes_takes_more(tmp_path: Path) -> None:
    times = {"gpu": 80e-6, "cpu": 20e-6, "both": 64 * 17e-6 + 50e-6}
    rows = [{"where": where, "operations": 64, "seconds": one} for where, one in times.items()]
    found = profiles(tmp_path, {"ggml": {"products": [], "changes": rows}})["cpu_products"]["switch"]
    assert (found["value"], found["origin"]) == ("17 us", "measured")
    assert "chain of 64 small operations of ggml on the GPU and the CPU in turn" in found["source"]


def test_what_memory_hides_is_not_measured(tmp_path: Path) -> None:
    """A thread that is as fast as the memory, and more tokens that are no slower than their reading."""
    rows = [{**row, "seconds": row["bytes"] / 44e9} for row in products(cores=1)]
    sections = {"memory_reads": reads(by_1=44.8e9), "ggml": {"products": rows, "meetings": []}}
    found = profiles(tmp_path, sections)["cpu_products"]
    assert [key for key, one in found.items() if one["origin"] == "measured"] == ["weights"]


def test_kernels_without_tiles_are_as_fast_with_few_tokens(tmp_path: Path) -> None:
    sections = {"memory_reads": reads(by_16=44.8e9), "ggml": {"products": products(cores=16, half=0)}}
    found = profiles(tmp_path, sections)["cpu_products"]
    assert (found["tiled"]["value"], found["tiled_rows"]["value"]) == ("100 GFLOP/s", 1)


@pytest.mark.deepspeed  # the only environment with PyTorch
def test_this_machine(tmp_path: Path) -> None:
    """Reads and page faults of this machine, whose numbers are positive and make a platform."""
    pytest.importorskip("torch", reason="calibration runs PyTorch")
    from simoffload_calibrate.micro.benchmarks import MeasurementRequest
    from simoffload_calibrate.micro.session import measure

    asked = MeasurementRequest(("memory_reads", "page_faults"), None, tmp_path, 128 * MIB, quick=True)
    raw = measure(asked, progress=lambda _: None)
    assert list(tmp_path.iterdir()) == [], "the file is removed"
    counts = [row["threads"] for row in raw["sections"]["memory_reads"]["reads"]]
    assert counts[0] == 1
    assert counts == sorted(set(counts))
    for row in raw["sections"]["memory_reads"]["reads"]:
        assert 1e8 < row["bytes"] / row["seconds"] < 1e12
    if "page_faults" in raw["skipped"]:
        assert "Linux keeps the file in memory" in raw["skipped"]["page_faults"]
    else:
        for row in raw["sections"]["page_faults"]["reads"]:
            assert row["bytes"] == 32 * MIB
            assert 1e6 < row["bytes"] / row["seconds"] < 1e11


@pytest.mark.deepspeed
def test_without_ggml_a_line_says_what_gives_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="calibration runs PyTorch")
    from simoffload_calibrate.child import Job
    from simoffload_calibrate.micro import cpu
    from simoffload_calibrate.micro.benchmarks import SkippedError

    other = "profiles import llama-bench gives the same numbers"
    job = Job(0, 1, "cpu", {}, {}, 1e9)
    monkeypatch.setattr(cpu, "find_spec", lambda _: None)
    with pytest.raises(
        SkippedError, match=rf"ggml is not installed \(pip install llama-cpp-python\); {other}"
    ):
        cpu.measure_products(job)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(cpu, "find_spec", lambda _: spec)
    with pytest.raises(SkippedError, match=rf"lib has no libggml-cpu.so of its own for this CPU; {other}"):
        cpu.measure_products(job)
    (tmp_path / "lib").mkdir()
    for name in ("base", "cpu"):
        (tmp_path / "lib" / f"libggml-{name}.so").write_text("no library")
    with pytest.raises(SkippedError, match=r"ggml cannot be loaded: .*libggml-base\.so"):
        cpu.measure_products(job)


@pytest.mark.deepspeed
def test_a_file_that_stays_in_memory_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="calibration runs PyTorch")
    from simoffload_calibrate.child import Job
    from simoffload_calibrate.micro.benchmarks import SkippedError
    from simoffload_calibrate.micro.cpu import measure_page_faults

    shared = Path("/dev/shm")
    if not shared.is_dir():
        pytest.skip("this machine has no filesystem in memory")
    storage = {"scratch": str(shared), "size": 16 * MIB}
    with pytest.raises(SkippedError, match="Linux keeps the file in memory"):
        measure_page_faults(Job(0, 1, "cpu", {"storage": storage}, {}, 1e9))
    assert not (shared / "mapped").exists()
    missing = {"scratch": str(tmp_path / "none"), "size": 16 * MIB}
    with pytest.raises(SkippedError, match="a file cannot be written and mapped: No such file"):
        measure_page_faults(Job(0, 1, "cpu", {"storage": missing}, {}, 1e9))
