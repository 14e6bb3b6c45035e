"""What Linux says of a machine: CPUs, memory, PCI devices, drives and network, from /proc, /sys and tools.

Everything is read through one :class:`System`, so that a recorded machine is read like this one. What is
missing or cannot be read is remembered in ``System.missing`` and is never an error.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from simoffload.errors import printable

_LARGEST, _MOST_ENTRIES, _SECONDS = 4 << 20, 4096, 20.0
"""Limits of a file or an output [B], of the entries of a folder, and of the time of a command [s]."""
_COMMANDS = "commands"
"""The folder of a recorded machine with the outputs of commands, each in a file NAME.txt."""
_TEXT = 120
"""[characters] of a name that is kept."""
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""Generation of PCI Express by its rate of a lane [GT/s]."""

_QUERY = "name,memory.total,pci.bus_id,pcie.link.gen.max,pcie.link.width.max"
_TOOLS = {
    "nvidia-smi": ("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"),
    "nvidia-smi-topo": ("nvidia-smi", "topo", "-m"),
    "lspci": ("lspci", "-D", "-vv"),
    "dmidecode": ("dmidecode", "--type", "memory"),
    "systemd-detect-virt": ("systemd-detect-virt", "--vm"),
}
"""The commands that are run, by the names of their recorded outputs."""


def number(text: str | None) -> float | None:
    """Return the number with which a text begins; None if it begins with none."""
    found = re.match(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)", text or "")
    return float(found[1]) if found else None


def name_text(text: str) -> str:
    """Return a name as one short line that is safe to print and to write."""
    return " ".join(printable(text.replace("\x00", "").replace("\n", " ")).split())[:_TEXT]


@dataclass
class System:
    """The files and commands of this machine, or of one that was recorded into a folder."""

    root: Path | None = None
    """The folder of a recorded machine, with the paths below it as on the machine; None: this machine."""
    missing: dict[str, str] = field(default_factory=dict)
    """Files and commands that could not be read, with the reason."""

    def text(self, path: str, *, expected: bool = False) -> str | None:
        """Return the text of a file; None, and remembered if it was ``expected``, if it cannot be read."""
        try:
            if not self._real(path).is_file():  # neither a folder nor a pipe, which would never end
                raise FileNotFoundError(errno.ENOENT, "not there")
            with self._real(path).open("rb") as file:
                return file.read(_LARGEST).decode("utf-8", "replace").strip()
        except (OSError, ValueError) as error:
            if expected:
                self.missing[path] = getattr(error, "strerror", None) or "cannot be read"
            return None

    def names(self, path: str) -> list[str]:
        """Return the names of the entries of a folder; none if there is no folder."""
        try:
            return sorted(os.listdir(self._real(path)))[:_MOST_ENTRIES]  # noqa: PTH208 (names alone)
        except (OSError, ValueError):
            return []

    def target(self, path: str) -> str:
        """Return the path of a file without links; "" if it is outside of the recorded folder or missing."""
        try:
            top, found = (self.root or Path("/")).resolve(), self._real(path).resolve(strict=True)
            return f"/{found.relative_to(top).as_posix()}"
        except (OSError, ValueError, RuntimeError):
            return ""

    def output(self, tool: str) -> str | None:
        """Return what one of the known tools prints; None, and remembered, if it is not there or fails."""
        if self.root is not None:
            text = self.text(f"{_COMMANDS}/{tool}.txt")
            if text is None:
                self.missing[tool] = "not recorded"
            return text
        environment = {**os.environ, "LC_ALL": "C"}
        try:
            done = subprocess.run(
                _TOOLS[tool], capture_output=True, timeout=_SECONDS, check=False, env=environment
            )
        except FileNotFoundError:
            self.missing[tool] = "not installed"
            return None
        except (OSError, subprocess.SubprocessError) as error:
            self.missing[tool] = getattr(error, "strerror", None) or "did not answer"
            return None
        text = done.stdout[:_LARGEST].decode("utf-8", "replace").strip()
        if not text:
            self.missing[tool] = f"failed with status {done.returncode}"
        return text or None

    def _real(self, path: str) -> Path:
        return (self.root or Path("/")) / path.lstrip("/")


class SlotLink(NamedTuple):
    """A link of PCI Express, with what it can move."""

    generation: int
    lanes: int

    @property
    def rate(self) -> float:
        """Its rate in lanes of the first generation."""
        return self.lanes * 2.0 ** (self.generation - 1)

    def __str__(self) -> str:
        return f"Gen{self.generation} x{self.lanes}"


class PciDevice(NamedTuple):
    """A device on PCI Express."""

    route: tuple[str, ...]
    """Addresses from the root port to the device itself."""
    name: str
    vendor: str
    """Id of the manufacturer: "10de" is NVIDIA, "1002" AMD."""
    kind: str
    """The first four digits of the class: "0302" is a GPU without a display."""
    links: tuple[SlotLink | None, ...]
    """The links from the CPU's port to the first switch, and so on, and to the device; None: not seen."""

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU of NVIDIA or AMD."""
        return self.vendor in ("10de", "1002") and self.kind in ("0300", "0302", "0380", "1200")


class Disk(NamedTuple):
    """A drive, with its PCI device."""

    name: str
    model: str
    size: int
    """Capacity [B]; 0 if it was not seen."""
    route: tuple[str, ...]


class NetworkPort(NamedTuple):
    """A port of a network adapter."""

    name: str
    rate: float | None
    """[Gb/s]; None: not seen, as while no cable is connected."""
    fabric: str
    route: tuple[str, ...]


class SeenGpu(NamedTuple):
    """A GPU as the driver, or else the PCI bus, describes it."""

    name: str
    memory: float | None
    """[MiB] as the driver reports them."""
    route: tuple[str, ...]
    link: SlotLink | None
    """The best link that GPU and slot can have together, as the driver says; None: not seen."""


class Modules(NamedTuple):
    """The memory modules, as the firmware lists them."""

    sizes: tuple[int, ...]
    """[B]"""
    channels: int | None
    """Number of channels that have a module; None: not named by the firmware."""
    rate: float | None
    """[MT/s] at which they run."""
    kind: str


class SeenMachine:
    """What a machine says of itself."""

    def __init__(self, system: System) -> None:
        self.system = system

    @cached_property
    def _cpuinfo(self) -> str:
        return self.system.text("/proc/cpuinfo", expected=True) or ""

    @cached_property
    def cpu(self) -> str:
        """The name of the CPU; "" if it was not seen."""
        found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", self._cpuinfo, re.MULTILINE)
        return name_text(found[1]) if found else ""

    @cached_property
    def sockets(self) -> int:
        """The number of sockets with a CPU."""
        return max(1, len(set(re.findall(r"^physical id\s*:\s*(\d+)$", self._cpuinfo, re.MULTILINE))))

    @cached_property
    def cores(self) -> int:
        """The number of cores, of which several threads count once; 0 if they were not seen."""
        socket, found, threads = "0", set[tuple[str, str]](), 0
        for key, value in re.findall(
            r"^(processor|physical id|core id)\s*:\s*(\d+)$", self._cpuinfo, re.MULTILINE
        ):
            threads += key == "processor"
            socket = value if key == "physical id" else socket
            if key == "core id":
                found.add((socket, value))
        return len(found) or threads

    @cached_property
    def numa_nodes(self) -> int:
        """The number of NUMA nodes with cores; 0 if they were not seen."""
        nodes = "/sys/devices/system/node"
        return sum(
            bool(self.system.text(f"{nodes}/{name}/cpulist"))
            for name in self.system.names(nodes)
            if re.fullmatch(r"node\d+", name)
        )

    @cached_property
    def virtual(self) -> str | None:
        """The kind of virtual machine, "" for none; None if it was not seen."""
        stated = self.system.output("systemd-detect-virt")
        if stated:
            return "" if stated == "none" else name_text(stated)
        flags = re.search(r"^flags\s*:(.*)$", self._cpuinfo, re.MULTILINE)
        if flags:
            return "virtual" if "hypervisor" in flags[1].split() else ""
        return "virtual" if self.system.text("/sys/hypervisor/type") else None

    @cached_property
    def product(self) -> str:
        """Manufacturer and name of the machine; "" if they were not seen."""
        parts = (self.system.text(f"/sys/class/dmi/id/{key}") for key in ("sys_vendor", "product_name"))
        return name_text(" ".join(filter(None, parts)))

    @cached_property
    def chassis(self) -> int | None:
        """The type of its chassis in the tables of the firmware (SMBIOS, table 17 of DSP0134)."""
        found = number(self.system.text("/sys/class/dmi/id/chassis_type"))
        return None if found is None else int(found)

    @cached_property
    def memory(self) -> int:
        """The memory [B] that the kernel manages, less than what is installed; 0 if it was not seen."""
        text = self.system.text("/proc/meminfo", expected=True) or ""
        found = re.search(r"^MemTotal:\s*(\d{1,15}) kB", text, re.MULTILINE)
        return int(found[1]) * 1024 if found else 0

    @cached_property
    def modules(self) -> Modules | None:
        """The memory modules; None if the firmware's list was not seen."""
        text = self.system.output("dmidecode")
        sizes: list[int] = []
        places, rates, kinds = set[str](), set[float](), set[str]()
        for block in re.split(r"\n\s*\n", text or ""):
            keys = dict(re.findall(r"^\s+([A-Z][\w ]+): (.*)$", block, re.MULTILINE))
            size = re.fullmatch(r"(\d{1,9}) (MB|GB|TB)", keys.get("Size", "").strip())
            if "Memory Device" not in block or not size:
                continue
            sizes.append(int(size[1]) * {"MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}[size[2]])
            place = _channel(keys.get("Locator", ""), keys.get("Bank Locator", ""))
            places |= {place} if place else set()
            rate = number(keys.get("Configured Memory Speed") or keys.get("Configured Clock Speed"))
            rates |= {rate} if rate else set()
            kinds.add(name_text(keys.get("Type", "")))
        if not sizes:
            if text is not None:
                self.system.missing["dmidecode"] = "lists no memory modules (it needs root)"
            return None
        kind = min(kinds) if len(kinds) == 1 else ""
        return Modules(tuple(sizes), len(places) or None, min(rates, default=None), kind)

    @cached_property
    def _lspci(self) -> dict[str, str]:
        """What lspci says of each device, by its address."""
        blocks: dict[str, str] = {}
        for block in re.split(r"\n(?=(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] )", self._lspci_text):
            address, _, rest = block.partition(" ")
            full = address if address.count(":") == 2 else f"0000:{address}"
            if _BDF.fullmatch(full):
                blocks[full] = rest
        return blocks

    @cached_property
    def _lspci_text(self) -> str:
        return self.system.output("lspci") or ""

    @cached_property
    def devices(self) -> dict[str, PciDevice]:
        """The PCI devices, by address; without /sys those that lspci lists, whose switches are not seen."""
        folder = "/sys/bus/pci/devices"
        found: dict[str, PciDevice] = {}
        names = [name for name in self.system.names(folder) if _BDF.fullmatch(name)]
        if not names:
            self.system.missing[folder] = "no PCI devices"
        for address in names or self._lspci:
            route = _route(self.system.target(f"{folder}/{address}")) or (address,)
            vendor, kind = (
                (self.system.text(f"{folder}/{address}/{key}") or "").removeprefix("0x").lower()
                for key in ("vendor", "class")
            )
            head = self._lspci.get(address, "").partition("\n")[0]
            name = name_text(head.partition(": ")[2])
            if not vendor:
                vendor, kind = _from_lspci(head)
            upper = tuple(self._link(one) for one in route[1::2]) if len(route) > 1 else ()
            links = upper if len(route) % 2 == 0 else (*upper, self._link(address))
            found[address] = PciDevice(route, name, vendor, kind[:4], links)
        return found

    def _link(self, address: str) -> SlotLink | None:
        """Return the link from a device towards the CPU: as wide as it runs, at the best rate that both ends
        have, because idle devices run at a lower one."""
        path = f"/sys/bus/pci/devices/{address}"
        width = number(self.system.text(f"{path}/current_link_width"))
        speed = self._speed(path)
        above = self.system.target(path).rpartition("/")[0]
        if speed and _BDF.search(above.rpartition("/")[2]):
            speed = min(speed, self._speed(above) or speed)
        if not (width and speed):
            stated = self._lspci.get(address, "")
            able = re.search(r"LnkCap:.*?Speed ([\d.]+)GT/s.*?Width x(\d+)", stated)
            now = re.search(r"LnkSta:.*?Speed ([\d.]+)GT/s.*?Width x(\d+)", stated)
            speed, width = number(able[1] if able else None), number(now[2] if now else None)
        generation = _GENERATIONS.get(speed or 0.0)
        lanes = int(width or 0)
        return SlotLink(generation, lanes) if generation and 1 <= lanes <= 32 else None

    def _speed(self, path: str) -> float | None:
        return number(self.system.text(f"{path}/max_link_speed"))

    @cached_property
    def gpus(self) -> list[SeenGpu]:
        """The GPUs, in the order of the driver."""
        found = list(self._driver_gpus(self.system.output("nvidia-smi") or ""))
        if found:
            return found
        gpus = {address: one for address, one in self.devices.items() if one.is_gpu}
        folder, names = "/proc/driver/nvidia/gpus", dict[str, str]()
        for address in self.system.names(folder):
            text = self.system.text(f"{folder}/{address}/information") or ""
            model = re.search(r"^Model:\s*(.+)$", text, re.MULTILINE)
            names[address] = name_text(model[1]) if model else ""
        return [
            SeenGpu(names.get(address) or one.name, None, one.route, None) for address, one in gpus.items()
        ]

    def _driver_gpus(self, text: str) -> Iterator[SeenGpu]:
        for line in text.splitlines():
            parts = [part.strip() for part in line.split(",")]
            if len(parts) != 5 or not parts[0] or not re.search(r"[0-9a-f]+:", parts[2], re.IGNORECASE):
                continue
            address = parts[2].lower()[-12:]
            route = self.devices[address].route if address in self.devices else ()
            generation, lanes = (int(number(part) or 0) for part in parts[3:])
            link = SlotLink(generation, lanes) if 1 <= generation <= 6 and 1 <= lanes <= 32 else None
            yield SeenGpu(name_text(parts[0]), number(parts[1]), route, link)

    @cached_property
    def nvlinked(self) -> bool | None:
        """Whether every GPU has links of its own to the others; None if it was not seen."""
        rows = re.findall(r"^\s*GPU\d+\s+(.*)$", self.system.output("nvidia-smi-topo") or "", re.MULTILINE)
        gpus = [row.split() for row in rows if "X" in row.split()]
        cells = [row[: len(gpus)] for row in gpus]
        return all(cell == "X" or cell.startswith("NV") for row in cells for cell in row) if cells else None

    @cached_property
    def disks(self) -> list[Disk]:
        """All drives that are whole block devices."""
        folder, found = "/sys/class/block", list[Disk]()
        for name in self.system.names(folder):
            path = f"{folder}/{name}"
            if not re.fullmatch(r"nvme\d+n\d+|[svx]v?d[a-z]+", name):
                continue
            model = name_text(self.system.text(f"{path}/device/model") or "")
            size = number(self.system.text(f"{path}/size")) or 0.0
            found.append(Disk(name, model, int(size) * 512, _route(self.system.target(path))))
        return found

    @cached_property
    def arrays(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """Arrays of Linux's software RAID: name, level and the drives of their members."""
        text = self.system.text("/proc/mdstat") or ""
        found = []
        for name, level, members in re.findall(
            r"^(md\w+) : active (?:\(\S+\) )?raid(\d+) (.+)$", text, re.MULTILINE
        ):
            parts = (re.sub(r"\[\d+\].*$", "", one) for one in members.split())
            disks = (re.sub(r"(?<=\d)p\d+$", "", part) for part in parts)
            found.append((name, level, tuple(sorted(set(disks)))))
        return found

    @cached_property
    def ports(self) -> list[NetworkPort]:
        """The network ports on PCI, with cables connected or not, but no wireless ones."""
        found, folder = list[NetworkPort](), "/sys/class/infiniband"
        for name in self.system.names(folder):
            for port in self.system.names(f"{folder}/{name}/ports"):
                path = f"{folder}/{name}/ports/{port}"
                if (self.system.text(f"{path}/link_layer") or "").lower() == "infiniband":
                    down = "ACTIVE" not in (self.system.text(f"{path}/state") or "ACTIVE")
                    rate = None if down else number(self.system.text(f"{path}/rate"))
                    route = _route(self.system.target(f"{folder}/{name}"))
                    found.append(NetworkPort(name, rate, "InfiniBand", route))
        folder = "/sys/class/net"
        for name in self.system.names(folder):
            path = f"{folder}/{name}"
            route = _route(self.system.target(path))
            kind = self.system.text(f"{path}/type")
            if not route or kind not in ("1", None) or "wireless" in self.system.names(path):
                continue
            speed = number(self.system.text(f"{path}/speed"))
            found.append(NetworkPort(name, speed / 1000 if speed else None, "Ethernet", route))
        return found


def _route(path: str) -> tuple[str, ...]:
    """Return the addresses of PCI devices on a path of /sys, from the root port on."""
    return tuple(part for part in path.split("/") if _BDF.fullmatch(part))


def _channel(locator: str, bank: str) -> str:
    """Return the memory channel that the firmware names for a module; "" if it names none.

    As boards name them: "P0 CHANNEL A", "CPU1_DIMM_A1", "ChannelA-DIMM0", "Controller0-ChannelB".
    """
    for text in (bank, locator):
        found = re.search(r"^(.*?)CHANNEL[ _]?([A-P0-9]+)", text.upper())
        if found:
            return f"{found[1]}{found[2]}"
    found = re.search(r"^((?:CPU|P|PROC)? ?_?[0-9]?_?)DIMM[ _]?([A-P])[0-9]", locator.upper())
    return f"{found[1]}{found[2]}" if found else ""


_CLASSES = {"VGA compatible controller": "0300", "3D controller": "0302", "Display controller": "0380"}
_VENDORS = {"NVIDIA Corporation": "10de", "Advanced Micro Devices": "1002"}


def _from_lspci(head: str) -> tuple[str, str]:
    """Return ids of manufacturer and class by the words of lspci; "" for those of no GPU."""
    classes, _, name = head.partition(": ")
    kind = next((code for text, code in _CLASSES.items() if text in classes), "")
    return next((code for text, code in _VENDORS.items() if name.startswith(text)), ""), kind


def missing_lines(system: System, uses: Sequence[tuple[str, str]]) -> list[str]:
    """Return one line for everything that could not be read, with what it is for."""
    purposes = dict(uses)
    return [
        f"{name} ({printable(why).lower()}){f': {purposes[name]}' if name in purposes else ''}"
        for name, why in system.missing.items()
    ]
