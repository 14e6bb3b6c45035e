"""GPUs that people have: each answers by the name that they type, on a machine of its class."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simoffload.hardware import load_platform
from tests.cli.conftest import Program

DESKS = {
    "RTX 3060 12GB": "rtx-3060-desktop",
    "RTX 4060 Ti": "rtx-4060-ti-16gb-desktop",
    "NVIDIA GeForce RTX 4070": "rtx-4070-desktop",
    "RTX 4070 Ti Super": "rtx-4070-ti-super-desktop",
    "rtx-4080-super": "rtx-4080-super-desktop",
    "RTX 5060 Ti 16 GB": "rtx-5060-ti-desktop",
    "rtx5070ti": "rtx-5070-ti-desktop",
    "RTX 5080": "rtx-5080-desktop",
}
RACKS = {
    "A10": "a10-server",
    "NVIDIA L4": "l4-server",
    "l20": "l20-server",
    "H100 PCIe": "h100-pcie-server",
    "B200": "hgx-b200",
    "B300": "hgx-b300",
    "GB200": "gb200",
    "gb300": "gb300",
    "MI325X": "mi325x-8gpu",
    "AMD Instinct MI355X": "mi355x-8gpu",
}


@pytest.mark.parametrize("gpu", [*DESKS, *RACKS])
def test_a_card_answers_on_a_machine_of_its_class(program: Program, gpu: str) -> None:
    for model in ("gpt-oss-20b", "qwen3-8b"):
        answer = program("run", model, "--gpu", gpu, "--json")
        assert answer.status == 0, answer.err
        data = json.loads(answer.out)
        assert data["platform"] == (DESKS | RACKS)[gpu]
        assert data["fits"]
        assert data["metrics"]["tokens_per_s"] > 0
    assert load_platform(data["platform"]).profile.setting == ("desk" if gpu in DESKS else "rack")


@pytest.mark.parametrize("gpu", ["RTX 4060 Ti 8GB", "RTX 3060 8 GB", "H100", "A100"])
def test_a_name_of_another_card_or_of_several_is_refused(program: Program, gpu: str) -> None:
    answer = program("run", "qwen3-8b", "--gpu", gpu)
    assert answer.status == 2
    assert f'there is no accelerator "{gpu}"; did you mean' in answer.err


def test_copies_to_a_gpu_of_a_superchip_have_the_rate_of_copy_engines() -> None:
    """Not the 450 GB/s of NVLink-C2C, which two GPUs share and no copy engine reaches."""
    machine = load_platform("gb300").machine()
    alone = [
        min(float(machine.resources[index].capacity / share) for index, share in path.hops)
        for path in (machine.host_to_device(0, pinned=True), machine.device_to_host(0, pinned=True))
    ]
    assert alone == [210e9, 192e9]


def test_the_report_of_a_run_says_what_would_be_better(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    question = ("run", "gpt-oss-120b", "--gpu", "rtx-4090", "--memory", "64GB")
    answer = program(*question, "--output-dir", "out")
    (following,) = (line for line in answer.out.splitlines() if line.startswith("  next "))
    page = Path("out/report.html").read_text()
    assert page.index('class="verdict"') < page.index('class="better"') < page.index('class="facts"')
    better = json.loads(Path("out/report.json").read_text())["better"]
    assert following.removeprefix("  next").split("·")[0].strip() in better
