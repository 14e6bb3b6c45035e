"""``detect``: platforms of recorded machines, which load and say what was not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from simoffload.hardware import Machine, load_platform
from simoffload_calibrate.detect import Detected, detect_machine
from tests.hardware.machines import nvme, on_bus, pci, port, recorded, write_machine

Files = dict[str, str]
GEN5, GEN4 = "32.0 GT/s PCIe", "16.0 GT/s PCIe"


def keys(found: Detected) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(found.text)
    return data


def machine(found: Detected, folder: Path) -> Machine:
    path = folder / "found.yaml"
    path.write_text(found.text)
    return load_platform(path).machine()


def cpu(name: str, *, sockets: int = 1, cores: int = 8, flags: str = "fpu") -> Files:
    blocks = [
        f"processor\t: {thread}\nmodel name\t: {name}\nphysical id\t: {socket}\ncore id\t\t: {core}\n"
        f"flags\t\t: {flags}\n"
        for thread in range(2)
        for socket in range(sockets)
        for core in range(cores)
    ]
    return {"proc/cpuinfo": "\n".join(blocks)}


def modules(count: int, kind: str, speed: int, *, gigabytes: int) -> str:
    places = [f"P0 CHANNEL {letter}" for letter in "ABCDEFGHIJKL"[:count]]
    return "\n\n".join(
        f"Handle 0x{number:04x}, DMI type 17, 92 bytes\nMemory Device\n\tSize: {gigabytes} GB\n"
        f"\tLocator: DIMM 0\n\tBank Locator: {place}\n\tType: {kind}\n\tConfigured Memory Speed: {speed} MT/s"
        for number, place in enumerate(places)
    )


def desktop() -> tuple[Files, Files]:
    """Two cards that share the 16 lanes of the CPU, a drive at the CPU and one behind the chipset."""
    files = cpu("AMD Ryzen 9 9950X3D 16-Core Processor", cores=16)
    files |= {"proc/meminfo": "MemTotal: 63405684 kB", "sys/class/dmi/id/chassis_type": "3"}
    files |= {"commands/systemd-detect-virt.txt": "none"}
    gpus = ["0000:00:01.1/0000:01:00.0", "0000:00:01.4/0000:03:00.0"]
    chipset = "0000:00:02.1/0000:04:00.0"
    chains = dict.fromkeys(gpus, (GEN5, 8, "0x10de", "0x030000"))
    chains |= {chain.partition("/")[0]: (GEN5, 8, "0x1022", "0x060400") for chain in gpus}
    chains |= {"0000:00:01.2": (GEN5, 4, "0x1022", "0x060400")}
    chains |= {"0000:00:01.2/0000:02:00.0": (GEN4, 4, "0x144d", "0x010802")}
    chains |= {chipset: (GEN4, 4, "0x1022", "0x060400")}
    chains |= {f"{chipset}/0000:05:00.0": (GEN4, 4, "0x1022", "0x060400")}
    chains |= {f"{chipset}/0000:05:00.0/0000:06:00.0": (GEN4, 4, "0x15b7", "0x010802")}
    links: Files = {}
    for chain, (speed, width, vendor, kind) in chains.items():
        files |= pci(chain, speed=speed, width=width, vendor=vendor, kind=kind)
        links |= on_bus(chain)
    parts = (
        nvme(0, "0000:00:01.2/0000:02:00.0", "Samsung SSD 990 PRO 2TB", 2000.4),
        nvme(1, f"{chipset}/0000:05:00.0/0000:06:00.0", "WD_BLACK SN850X 4000GB", 4000.8),
        port("enp13s0", f"{chipset}/0000:05:00.0/0000:06:00.0", 2500),
    )
    for more, place in parts:
        files, links = files | more, links | place
    files["commands/nvidia-smi.txt"] = "\n".join(
        f"NVIDIA GeForce RTX 5090, 32607, 00000000:0{bus}:00.0, 5, 16" for bus in (1, 3)
    )
    return files, links


def test_this_virtual_machine_is_described(tmp_path: Path) -> None:
    found = detect_machine(recorded(tmp_path, "virtual"))
    data = keys(found)
    assert data["memory"] == "24 GB"
    assert data["drives"] == []
    assert data["network"] == "none"
    assert "A virtual machine (kvm)" in data["notes"]
    (host,) = data["profiles"].values()
    assert host["cpu"] == "Intel(R) Xeon(R) Processor"
    assert host["cpu_optimizer"]["cores"]["value"] == 2
    assert any("no GPU was seen" in one for one in found.assumed)
    assert any(one.startswith("nvidia-smi (not recorded)") for one in found.not_seen)
    assert any("vda" in one for one in found.not_seen)
    assert machine(found, tmp_path).gpus == 1


def test_nothing_is_marked_as_measured(tmp_path: Path) -> None:
    for name, tree in (("virtual", None), ("desktop", desktop())):
        folder = tmp_path / name
        found = detect_machine(write_machine(folder, *tree) if tree else recorded(folder, name))
        assert "origin: measured" not in found.text
        origins = {one.origin for one in machine(found, tmp_path).inputs() if one.profile == "machine"}
        assert origins <= {"estimate", "spec"}


def test_slots_drives_and_network_of_a_desktop(tmp_path: Path) -> None:
    found = detect_machine(write_machine(tmp_path / "root", *desktop()))
    data = keys(found)
    assert (data["gpu"], data["setting"], data["memory"]) == ("rtx-5090", "desk", "64 GB")
    assert data["switches"]["gpu-slot0"] == {"to": "cpu", "pcie": "gen5", "lanes": 8}
    assert data["drives"] == ["samsung-990-pro-2tb", "samsung-980-pro-2tb"]
    assert data["tiers"]["nvme1"] == {"at": ["switch-04-00-0"]}
    assert data["network"] == "2.5 Gb/s"
    assert data["profiles"]["drive/samsung-980-pro-2tb"]["capacity"]["value"] == "4000800000000 B"
    assert any("SN850X" in one and "has no profile" in one for one in found.assumed)
    built = machine(found, tmp_path)
    assert built.gpus == 2
    slots = [one.capacity for one in built.resources if one.name.startswith("cpu -> gpu-slot")]
    assert slots
    assert max(slots) < 32 * 10**9  # eight lanes of Gen5


def test_memory_channels_are_taken_from_the_firmware_alone(tmp_path: Path) -> None:
    files, links = desktop()
    bare = keys(detect_machine(write_machine(tmp_path / "bare", files, links)))
    assert all("memory_bandwidth" not in one for one in bare["profiles"].values())
    files["commands/dmidecode.txt"] = modules(2, "DDR5", 6000, gigabytes=32)
    found = keys(detect_machine(write_machine(tmp_path / "firmware", files, links)))
    host = next(one for key, one in found["profiles"].items() if key.startswith("host/"))
    assert host["memory_bandwidth"]["value"] == "96 GB/s"
    assert host["memory_bandwidth"]["origin"] == "spec"
    assert host["cpu_optimizer"]["limit"]["origin"] == "estimate"


def dgx(gpus: int = 8) -> tuple[Files, Files]:
    """A server with GPUs on a common board, eight adapters, four data drives in RAID0 and two in RAID1."""
    files = cpu("AMD EPYC 7742 64-Core Processor", sockets=2, cores=64)
    files |= {"proc/meminfo": "MemTotal: 1056469216 kB", "commands/systemd-detect-virt.txt": "none"}
    files |= {"sys/class/dmi/id/chassis_type": "23"}
    rows = "\n".join(f"NVIDIA A100-SXM4-40GB, 40960, 00000000:{bus:02X}:00.0, 4, 16" for bus in range(gpus))
    names = [f"GPU{number}" for number in range(gpus)]
    cells = ["\t".join(" X " if one == other else "NV12" for other in names) for one in names]
    topology = "\n".join(f"{name}\t{row}\tPXB\t48-63" for name, row in zip(names, cells, strict=True))
    files |= {"commands/nvidia-smi.txt": rows}
    files |= {"commands/nvidia-smi-topo.txt": "\t" + "\t".join(names) + f"\tNIC0\n{topology}"}
    links: Files = {}
    for number in range(8):
        place = f"sys/devices/pci0000:00/0000:{number}0:01.0/0000:{number}1:00.0/infiniband/mlx5_{number}"
        files |= {f"{place}/ports/1/link_layer": "InfiniBand", f"{place}/ports/1/rate": "200 Gb/sec (4X HDR)"}
        links[f"sys/class/infiniband/mlx5_{number}"] = place
    models = ["SAMSUNG MZWLJ3T8HBLS-00007"] * 4 + ["SAMSUNG MZ1LB1T9HALS-00007"] * 2
    for number, model in enumerate(models):
        more, place_of = nvme(
            number, f"0000:{number}0:03.0/0000:{number}2:00.0", model, [3840.8, 1920.4][number > 3]
        )
        files, links = files | more, links | place_of
    files["proc/mdstat"] = (
        "Personalities : [raid1] [raid0]\n"
        "md1 : active raid0 nvme3n1[3] nvme2n1[2] nvme1n1[1] nvme0n1[0]\n      15002423296 blocks\n"
        "md0 : active raid1 nvme5n1p2[1] nvme4n1p2[0]\n      1874716672 blocks [2/2] [UU]\n"
    )
    return files, links


def test_a_server_like_a_dgx_keeps_the_wiring_of_its_board(tmp_path: Path) -> None:
    found = detect_machine(write_machine(tmp_path / "root", *dgx()))
    data = keys(found)
    assert (data["base"], data["gpus"], data["memory"]) == ("dgx-a100", 8, "1024 GB")
    assert data["drives"] == ["raid0 4x samsung-pm1733-3.84tb", "micron-7450-pro-7.68tb"]
    assert data["network"] == "8x 200 Gb/s InfiniBand"
    assert "gpu_links" not in data
    platform = load_platform(_written(found, tmp_path))
    assert platform.profile.gpu_links == "switched"
    assert set(platform.profile.tiers) == {"raid", "nvme"}
    assert platform.profile.network == tuple(f"eth{number}" for number in range(8))
    assert any("RAID1" in one for one in found.assumed)


def _written(found: Detected, folder: Path) -> Path:
    path = folder / "found.yaml"
    path.write_text(found.text)
    return path


@pytest.mark.parametrize(
    ("name", "memory", "expected"),
    [
        ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090"),
        ("NVIDIA GeForce RTX 3070 Ti", 8192, "rtx-3070-ti"),
        ("NVIDIA H100 80GB HBM3", 81559, "h100-sxm"),
        ("NVIDIA H100 NVL", 95830, "h100-nvl"),
        ("NVIDIA H200", 143771, "h200-sxm"),
        ("NVIDIA A100 80GB PCIe", 81920, "a100-80g-pcie"),
        ("NVIDIA A100-SXM4-80GB", 81920, "a100-80g-sxm"),
        ("Tesla V100-SXM3-32GB", 32510, "v100-32g-sxm"),
        ("NVIDIA RTX A6000", 49140, "rtx-a6000"),
        ("NVIDIA L40S", 46068, "l40s"),
        ("Tesla T4", 15360, "t4"),
        ("NVIDIA GH200 480GB", 97871, "gh200-96g"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, "rtx-pro-6000-blackwell"),
    ],
)
def test_gpus_are_found_by_the_names_of_their_driver(
    tmp_path: Path, name: str, memory: int, expected: str
) -> None:
    rows = {"commands/nvidia-smi.txt": f"{name}, {memory}, 00000000:01:00.0, 4, 16"}
    found = detect_machine(write_machine(tmp_path / "root", rows, {}))
    assert keys(found)["gpu"] == expected
    assert not any("has no profile" in one for one in found.assumed)


def test_a_gpu_without_a_profile_is_stood_for_by_the_nearest(tmp_path: Path) -> None:
    rows = {"commands/nvidia-smi.txt": "NVIDIA GeForce RTX 4080 Ti, 16376, 00000000:01:00.0, 4, 16"}
    found = detect_machine(write_machine(tmp_path / "root", rows, {}))
    data = keys(found)
    assert data["gpu"] == "rtx-4080"
    assert data["profiles"]["accelerator/rtx-4080"]["hbm_capacity"]["value"] == "16048 MiB"
    assert any("RTX 4080 Ti" in one and "has no profile" in one for one in found.assumed)


@pytest.mark.parametrize(
    ("name", "memory", "gpu", "exact"),
    [
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 16376, "rtx-4070-ti-super", True),
        ("NVIDIA GeForce RTX 4060 Ti", 16380, "rtx-4060-ti-16gb", True),
        ("NVIDIA GeForce RTX 4060 Ti", 8188, "rtx-4060-ti-16gb", False),
        ("NVIDIA GB300", 284208, "gb300", True),
        ("NVIDIA B300 SXM6 AC", 275040, "b300-sxm", True),
        ("NVIDIA H100 PCIe", 81559, "h100-pcie", True),
    ],
)
def test_cards_are_told_apart_by_type_and_memory(
    tmp_path: Path, name: str, memory: int, gpu: str, exact: bool
) -> None:
    rows = {"commands/nvidia-smi.txt": f"{name}, {memory}, 00000000:01:00.0, 4, 16"}
    found = detect_machine(write_machine(tmp_path / "root", rows, {}))
    assert keys(found)["gpu"] == gpu
    assert any("has no profile" in one and name in one for one in found.assumed) is not exact


def test_lspci_stands_in_for_the_driver(tmp_path: Path) -> None:
    text = (
        "01:00.0 VGA compatible controller: NVIDIA Corporation AD102 [GeForce RTX 4090] (rev a1)\n"
        "\tLnkCap: Port #0, Speed 16GT/s, Width x16, ASPM L1\n"
        "\tLnkSta: Speed 2.5GT/s (downgraded), Width x8 (downgraded)\n"
    )
    found = detect_machine(write_machine(tmp_path / "root", {"commands/lspci.txt": text}, {}))
    data = keys(found)
    assert data["gpu"] == "rtx-4090"
    assert data["switches"]["gpu-slot0"] == {"to": "cpu", "pcie": "gen4", "lanes": 8}


@pytest.mark.parametrize("text", ["", "\x00\xff" * 2000, "9" * 100_000, "a,b,c,d,e\n" * 1000, "- : [\n"])
def test_malformed_files_are_not_seen(tmp_path: Path, text: str) -> None:
    files, links = desktop()
    made = write_machine(tmp_path / "root", dict.fromkeys(files, text), links)
    assert machine(detect_machine(made), tmp_path).gpus == 1


def test_an_empty_folder_is_a_machine_of_which_nothing_was_seen(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    found = detect_machine(tmp_path / "root")
    assert not found.seen
    assert {one.partition(" ")[0] for one in found.not_seen} >= {
        "/proc/cpuinfo",
        "/proc/meminfo",
        "nvidia-smi",
    }
