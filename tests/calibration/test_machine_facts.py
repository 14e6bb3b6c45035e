"""The facts beside a record are read as `detect` reads a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from simoffload_calibrate.detect import System
from simoffload_calibrate.runs import machine_facts

CPUINFO = "processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\nflags\t\t: fpu{flag} sse\n"


def recorded(folder: Path, **files: str) -> System:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return System(folder)


@pytest.mark.parametrize(("flag", "virtual"), [(" hypervisor", True), ("", False)])
def test_cpu_and_gpus_are_those_of_the_machine(tmp_path: Path, flag: str, virtual: bool) -> None:
    rows = "\n".join(
        f"NVIDIA H200, {memory}, 00000000:0{bus}:00.0, 5, 16" for bus, memory in ((1, 143771), (2, 1))
    )
    files = {
        "proc__cpuinfo": CPUINFO.format(flag=flag),
        "commands__nvidia-smi.txt": rows,
        "sys__module__nvidia__version": "570.86.15\n",
        "sys__devices__system__node__node0__cpulist": "0-95",
        "sys__devices__system__node__node1__cpulist": "96-191",
    }
    facts = machine_facts(recorded(tmp_path, **files))
    assert facts["cpu"] == "AMD EPYC 9654 96-Core Processor"
    assert (facts["virtual"], facts["numa_nodes"], facts["governor"]) == (virtual, 2, None)
    assert (facts["gpus"], facts["gpu"], facts["driver"]) == (2, "NVIDIA H200", "570.86.15")
    assert facts["hbm"] == 143771 * 1024**2


def test_memory_of_a_gpu_that_is_the_hosts_is_left_out(tmp_path: Path) -> None:
    row = {"commands__nvidia-smi.txt": "NVIDIA GB10, [N/A], 0000000F:01:00.0, 1, 1"}
    facts = machine_facts(recorded(tmp_path, **row))
    assert (facts["gpus"], facts["gpu"]) == (1, "NVIDIA GB10")
    assert "hbm" not in facts


def test_a_machine_that_says_nothing_has_facts(tmp_path: Path) -> None:
    facts = machine_facts(System(tmp_path))
    assert (facts["gpus"], facts["virtual"], facts["numa_nodes"]) == (0, None, 1)
    assert facts["cpu"]
