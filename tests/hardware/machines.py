"""Recorded machines: their files and links, written into a folder for ``detect --root``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "machines"


def write_machine(folder: Path, files: Mapping[str, str], links: Mapping[str, str]) -> Path:
    """Write files and symbolic links below a folder, which is returned; paths have no slash in front."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, target in links.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        place = folder / target
        place.mkdir(parents=True, exist_ok=True)
        path.symlink_to(place)
    return folder


def recorded(folder: Path, name: str) -> Path:
    """Write a machine that was recorded into ``machines/NAME.yaml`` below a folder."""
    record: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return write_machine(folder, record["files"], record["links"])


def pci(
    chain: str, *, speed: str = "", width: int = 0, vendor: str = "0x1022", kind: str = "0x060400"
) -> dict[str, str]:
    """Return the files of a device whose addresses from the root port on are separated by slashes."""
    path = f"sys/devices/pci0000:00/{chain}"
    files = {f"{path}/vendor": vendor, f"{path}/class": kind}
    if width:
        link = {"max_link_speed": speed, "current_link_width": str(width), "max_link_width": "16"}
        files |= {f"{path}/{key}": value for key, value in link.items()}
    return files


def on_bus(chain: str) -> dict[str, str]:
    """Return the link by which Linux lists a device."""
    return {f"sys/bus/pci/devices/{chain.rpartition('/')[2]}": f"sys/devices/pci0000:00/{chain}"}


def nvme(number: int, chain: str, model: str, gigabytes: float) -> tuple[dict[str, str], dict[str, str]]:
    """Return the files and links of a drive."""
    name = f"nvme{number}n1"
    path = f"sys/devices/pci0000:00/{chain}/nvme/nvme{number}/{name}"
    files = {f"{path}/size": str(int(gigabytes * 1e9 / 512)), f"{path}/device/model": model}
    return files, {f"sys/class/block/{name}": path}


def port(name: str, chain: str, megabits: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the files and links of an Ethernet port."""
    path = f"sys/devices/pci0000:00/{chain}/net/{name}"
    return {f"{path}/type": "1", f"{path}/speed": str(megabits)}, {f"sys/class/net/{name}": path}
