"""Profiles made of a record load, simulate, and say where their numbers are from."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import simoffload
from simoffload.errors import InputError
from simoffload.hardware import Accelerator, Platform, load_platform
from simoffload_calibrate.detect import SeenGpu, detect_machine
from simoffload_calibrate.micro.profiles import base_platform, check_names, profile_from_micro
from tests.calibration.micro import machine
from tests.calibration.micro.machine import GIB, PCIE, record
from tests.hardware.machines import recorded

SCENARIO = """\
name: measured
model: bloom-560m
platform: {platform}
workload: {{batch_size: 2, prompt_length: 8, output_length: 3}}
strategy:
  ranks: {ranks}
  weights: {weights}
  ds_config: {{zero_optimization: {{offload_param: {{buffer_size: 4e8}}}}}}
"""


@cache
def files(raw: str, base: str) -> dict[str, str]:
    """The profiles of a record in JSON, most of which are the same one."""
    return profile_from_micro(json.loads(raw), base)


def written(folder: Path, raw: dict[str, Any], base: str = "dgx-h200") -> Platform:
    for name, text in files(json.dumps(raw), base).items():
        (folder / name).write_text(text)
    return load_platform(folder / "platform.yaml")


def test_every_file_loads_and_carries_the_measurements(tmp_path: Path) -> None:
    platform = written(tmp_path, record())
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "accelerator.yaml",
        "drive.yaml",
        "host.yaml",
        "pcie.yaml",
        "platform.yaml",
    ]
    host, gpu = platform.host, platform.accelerator
    assert platform.profile.id == "measured-4x-nvidia-h200"
    assert platform.profile.gpus == ("cpu",) * 4
    assert host.memory_capacity.value == 512 * GIB
    assert host.memory_rate == pytest.approx(4 * PCIE * 0.8, rel=1e-3)
    assert host.memory_bandwidth.origin == "spec"
    assert gpu.hbm_rate == pytest.approx(machine.HBM * machine.HBM_SHARE)
    assert gpu.matmul_rate(1e11, "bfloat16") == pytest.approx(machine.PEAK / 2)
    assert gpu.interconnect is not None
    assert gpu.interconnect.rate == pytest.approx(machine.NVLINK)
    assert platform.gpu_pcie_link.pcie.host_to_device.top == PCIE


def test_measured_numbers_say_so(tmp_path: Path) -> None:
    host = written(tmp_path, record()).host
    hook = host.deepspeed.hook
    assert (hook.origin, hook.date) == ("measured", datetime.date(2026, 11, 21))
    assert hook.residual == pytest.approx(0, abs=2e-3)
    assert hook.spread is not None
    assert 0.03 < hook.spread < 0.06, "of the cost and of the factor, each at least 3 %"
    assert host.host_factor is not None
    assert host.host_factor.value == pytest.approx(machine.FACTOR, rel=0.01)
    for rendered in (
        "calibrate micro",
        "cost of the reference host (docs/measurements/host-thread.md) x 1.5 and",
        "points, largest residual",
        "NVIDIA H200",
        "torch 2.11.0",
    ):
        assert rendered in hook.source
    assert host.reserved.residual is None
    assert "calibrate micro" not in host.reserved.source


@pytest.mark.parametrize(("ranks", "weights"), [(1, "dram"), (4, "dram"), (2, "drive")])
def test_scenarios_run_on_it(tmp_path: Path, ranks: int, weights: str) -> None:
    written(tmp_path, record())
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SCENARIO.format(platform="./platform.yaml", ranks=ranks, weights=weights))
    result = simoffload.simulate(simoffload.load_scenario(scenario))
    assert result.fits


def test_eight_ranks_are_in_range_where_eight_were_measured(tmp_path: Path) -> None:
    """The record of a machine with four GPUs, taken for one with eight."""
    path = Path(__file__).parents[3] / "validation/measured/holdout/h200-4x-k/micro.json"
    raw = json.loads(path.read_text())
    hooks = raw["sections"]["hooks"]
    hooks["training"] = []  # they take most of the time of the fit
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SCENARIO.format(platform="./platform.yaml", ranks=8, weights="dram"))

    def warnings() -> list[str]:
        written(tmp_path, raw)
        plan = simoffload.load_scenario(scenario).plan()
        return [one for one in plan.basis.extrapolations if "ranks on a host" in one]

    raw["machine"]["gpu"]["count"] = 8
    assert warnings() == ["8 ranks on a host; costs of the host thread were measured with up to 4"]
    for run in hooks["runs"]:
        run["ranks"] = {1: 1, 4: 8}[run["ranks"]]
    for name in ("copies_together", "collectives", "cpu_adam_together"):
        raw["sections"][name] = {"8": raw["sections"][name]["4"]}
    for row in raw["sections"]["copies_together"]["8"]["together"]:
        row["seconds"] *= 2
    for row in raw["sections"]["collectives"]["8"]["calls"]:
        row["ranks"] = 8
    for row in raw["sections"]["cpu_adam_together"]["8"]["together"]:
        row["processes"] = 8
    assert warnings() == []
    assert load_platform(tmp_path / "platform.yaml").host.deepspeed.ranks.value == 8


def test_without_faster_links_gpus_talk_over_pcie(tmp_path: Path) -> None:
    raw = record()
    for section in raw["sections"]["collectives"].values():
        for row in section["calls"]:
            row["seconds"] *= 20
    platform = written(tmp_path, raw)
    assert platform.profile.gpu_links == "none"
    assert written(tmp_path, record(gpus=1)).profile.gpu_links == "none"


def test_links_faster_than_their_data_sheet(tmp_path: Path) -> None:
    raw = record()
    for section in raw["sections"]["collectives"].values():
        for row in section["calls"]:
            row["seconds"] /= 2
    link = written(tmp_path, raw).accelerator.interconnect
    assert link is not None
    assert link.per_direction.origin == "measured"
    assert link.rate == pytest.approx(2 * machine.NVLINK, rel=1e-3)


def test_memory_faster_than_its_data_sheet(tmp_path: Path) -> None:
    raw = record(gpus=1)
    raw["sections"]["dram"]["copies"][-1]["seconds"] /= 10
    host = written(tmp_path, raw).host
    assert host.memory_bandwidth.origin == "measured"
    assert host.memory_rate == pytest.approx(2 * 4 * 12e9 * 10, rel=1e-3)


def test_sections_that_are_missing_leave_the_base_alone(tmp_path: Path) -> None:
    raw = record()
    raw["sections"] = {}
    platform, base = written(tmp_path, raw), load_platform("dgx-h200")
    assert platform.accelerator.matmul_efficiency == base.accelerator.matmul_efficiency
    assert platform.host.deepspeed == base.host.deepspeed
    assert platform.gpu_pcie_link.pcie.host_to_device == base.gpu_pcie_link.pcie.host_to_device
    assert not (tmp_path / "drive.yaml").exists()


def test_a_fast_filesystem_gets_enough_lanes(tmp_path: Path) -> None:
    raw = record()
    for row in raw["sections"]["storage"]["sweep"]:
        row["seconds"] /= 8
    written(tmp_path, raw)
    drive = simoffload.load_platform(tmp_path / "platform.yaml").targets["drive"]
    assert drive.read.rate == pytest.approx(40e9)


@pytest.mark.parametrize(
    ("gpu", "platform"),
    [
        ("NVIDIA H200", "dgx-h200"),
        ("NVIDIA H100 80GB HBM3", "dgx-h100"),
        ("NVIDIA H100 NVL", "h100-2nvme"),
        ("NVIDIA A100-SXM4-80GB", "dgx-a100-80g"),
        ("NVIDIA A100-SXM4-40GB", "dgx-a100"),
        ("Tesla V100-SXM3-32GB", "dgx-2"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA H20", "hgx-h20"),
        ("NVIDIA H800", "hgx-h800"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090-workstation"),
        ("NVIDIA GB10", "dgx-spark"),
    ],
)
def test_the_base_is_a_platform_with_the_same_gpu(gpu: str, platform: str) -> None:
    assert base_platform(gpu) == platform
    load_platform(platform)


def detected(raw: dict[str, Any], folder: Path, *, gpu: str | None, count: int = 1) -> dict[str, Any]:
    """The record with what ``detect`` says of the recorded virtual machine, with these GPUs in it."""
    seen = SeenGpu(gpu, 150_754_820_096 / 2**20, (), None) if gpu else None
    found = detect_machine(recorded(folder / "root", "virtual"), gpus=[seen] * count if seen else ())
    known = {**raw["machine"]["gpu"], "name": gpu, "count": count} if gpu else None
    return {**raw, "detected": found.text, "machine": {**raw["machine"], "gpu": known}}


def measured_texts(texts: dict[str, str]) -> list[str]:
    """Sources of the numbers that are called measured."""

    def statements(node: Any) -> Iterator[dict[str, Any]]:
        if isinstance(node, dict) and "origin" in node:
            yield node
        elif isinstance(node, dict | list):
            for one in node.values() if isinstance(node, dict) else node:
                yield from statements(one)

    known = [one for text in texts.values() for one in statements(yaml.safe_load(text))]
    return [str(one["source"]) for one in known if one["origin"] == "measured"]


@pytest.mark.parametrize(("gpu", "count"), [("NVIDIA H200", 1), ("Imagined 1", 2), (None, 1)])
def test_what_was_detected_gives_what_was_not_measured(tmp_path: Path, gpu: str | None, count: int) -> None:
    raw = detected(record(gpus=count), tmp_path, gpu=gpu, count=count)
    if gpu is None:
        raw["sections"] = {key: raw["sections"][key] for key in ("dram", "storage")}
    texts = profile_from_micro(raw)
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    platform = load_platform(tmp_path / "platform.yaml")
    host = platform.host
    assert len(platform.profile.gpus) == count
    assert list(platform.targets) == ["drive"], "the virtual machine has no other local drive"
    assert host.cpu_optimizer.numa_nodes.value == 1
    assert host.drive_slots == {}, "as detect says of virtual machines"
    assert (host.memcpy_rate.origin, host.memcpy_rate.value) == ("measured", 12e9)
    assert all(source.startswith("calibrate micro: ") for source in measured_texts(texts))
    assert yaml.safe_load(texts["accelerator.yaml"])["hbm_efficiency"]["origin"] == (
        "measured" if gpu else "estimate"
    )


def test_a_gpu_without_profile_is_as_fast_as_it_was_measured(tmp_path: Path) -> None:
    """The record of an H200 with the name of a GPU that detect does not know, so that one with an eighth
    of its bandwidth gives its other numbers."""
    texts = profile_from_micro(
        detected(record(gpus=1), tmp_path, gpu="NVIDIA GeForce RTX 3070 Ti Laptop GPU")
    )
    data = yaml.safe_load(texts["accelerator.yaml"])
    assert data["id"].endswith("-accelerator")
    assert data["name"].startswith("NVIDIA GeForce RTX 3070 Ti Laptop GPU, with the speeds of ")
    gpu = Accelerator.model_validate(data)
    assert gpu.hbm_rate == pytest.approx(machine.HBM * machine.HBM_SHARE, rel=1e-3)
    assert gpu.hbm_bandwidth.origin == "measured"
    known = profile_from_micro(record(gpus=1), "dgx-h200")["accelerator.yaml"]
    other = Accelerator.model_validate(yaml.safe_load(known))
    for flops in (1e10, 1e12):
        assert gpu.matmul_rate(flops, "bfloat16") == pytest.approx(
            other.matmul_rate(flops, "bfloat16"), rel=0.02
        )


def test_what_was_detected_must_be_a_platform() -> None:
    with pytest.raises(InputError, match="detected: "):
        profile_from_micro({**record(gpus=1), "detected": "kind: platform"})


@pytest.mark.parametrize("gpu", ["", "Imagined 1"])
def test_without_a_base_there_are_no_profiles(gpu: str) -> None:
    with pytest.raises(InputError, match="--from: missing"):
        base_platform(gpu)
    assert base_platform(gpu, "dgx-2") == "dgx-2"


def test_names_are_checked() -> None:
    check_names("dgx-h200", "mine")
    check_names(None, None)
    with pytest.raises(InputError, match="--id: "):
        check_names(None, "Not An Id")
    with pytest.raises(InputError, match='--from: there is no platform "dgx-h20"'):
        check_names("dgx-h20", None)
    with pytest.raises(InputError, match="--id: "):
        profile_from_micro(record(), "dgx-h200", identifier="Not An Id")


def test_text_of_the_machine_cannot_break_a_profile(tmp_path: Path) -> None:
    raw = record()
    raw["machine"]["cpu"] = 'odd: "CPU" {x}\n\x1b[2J' + "x" * 3000
    platform = written(tmp_path, raw)
    assert "\x1b" not in platform.host.deepspeed.hook.source


def test_memory_of_a_gpu_is_what_cuda_has(tmp_path: Path) -> None:
    """615 MiB less than nvidia-smi shows of an H200, which records keep, too."""
    raw = record()
    cuda, shown = 150_109_880_320, 143_771 << 20
    gpu = {**raw["machine"]["gpu"], "memory": cuda}
    platform = written(tmp_path, {**raw, "machine": {**raw["machine"], "gpu": gpu, "hbm": shown}})
    assert platform.accelerator.hbm_capacity is not None
    assert platform.accelerator.hbm_capacity.value == cuda


def test_numbers_that_cannot_be_true_are_refused_with_a_word(tmp_path: Path) -> None:
    """A block of pinned memory that PyTorch had already, a copy faster than its link, and a latency of which
    the measurements are far away: the base's numbers remain, and each is named."""
    raw, refused = record(), list[str]()
    raw["sections"]["dram"]["pinning"] = [{"bytes": 1 << 30, "seconds": 5.9e-6}]
    for row in raw["sections"]["copies"]["alone"]:
        if row["direction"] == "d2h" and row["pinned"]:
            row["seconds"] /= 100
    for name, text in profile_from_micro(raw, "dgx-h200", refused=refused.append).items():
        (tmp_path / name).write_text(text)
    platform = load_platform(tmp_path / "platform.yaml")
    base = load_platform("dgx-h200")
    assert platform.host.pinned_allocation == base.host.pinned_allocation
    assert platform.gpu_pcie_link.pcie.device_to_host == base.gpu_pcie_link.pcie.device_to_host
    assert platform.gpu_pcie_link.pcie.host_to_device != base.gpu_pcie_link.pcie.host_to_device
    assert {"host.pinned_allocation", "pcie.device_to_host"} <= {text.partition(":")[0] for text in refused}
    assert any("above the peak of host memory" in text for text in refused)
    assert "pinned_allocation" not in yaml.safe_load((tmp_path / "host.yaml").read_text())["notes"]
    nothing: list[str] = []
    profile_from_micro(record(), "dgx-h200", refused=nothing.append)
    assert nothing == []
