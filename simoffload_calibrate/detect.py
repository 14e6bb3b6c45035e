"""A platform file for a machine, from what Linux says of it: nothing in it is measured."""

from __future__ import annotations

import datetime
import errno
import math
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from simoffload.documents import yaml_text
from simoffload.errors import InputError, printable
from simoffload.hardware.host import Host
from simoffload.hardware.library import Library
from simoffload.hardware.loading import load_platform
from simoffload.hardware.profiles import Accelerator, Nic
from simoffload.hardware.storage import LEAST_DRIVES, Drive
from simoffload.hardware.wiring import CPU, PlatformProfile
from simoffload.units import format_bytes, plural

# -- what Linux says of a machine ------------------------------------------------------------------
# CPUs, memory, PCI devices, drives and network, from /proc, /sys and tools.
#
# Everything is read through one :class:`System`, so that a recorded machine is read like this one. What is
# missing or cannot be read is remembered in ``System.missing`` and is never an error.


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


_PCI_CLASSES = {"VGA compatible controller": "0300", "3D controller": "0302", "Display controller": "0380"}
_VENDORS = {"NVIDIA Corporation": "10de", "Advanced Micro Devices": "1002"}


def _from_lspci(head: str) -> tuple[str, str]:
    """Return ids of manufacturer and class by the words of lspci; "" for those of no GPU."""
    classes, _, name = head.partition(": ")
    kind = next((code for text, code in _PCI_CLASSES.items() if text in classes), "")
    return next((code for text, code in _VENDORS.items() if name.startswith(text)), ""), kind


def missing_lines(system: System, uses: Sequence[tuple[str, str]]) -> list[str]:
    """Return one line for everything that could not be read, with what it is for."""
    purposes = dict(uses)
    return [
        f"{name} ({printable(why).lower()}){f': {purposes[name]}' if name in purposes else ''}"
        for name, why in system.missing.items()
    ]


# -- A platform file for a machine, from what it says of itself ------------------------------------
# Nothing in it is measured.


_STAND_IN = "rtx-4090"
"""The GPU of the file of a machine in which none was seen."""
_MOST_GPUS, _MOST_DRIVES, _MOST_PORTS = 64, 64, 64
_DESKS, _RACKS = {3, 4, 5, 6, 7, 9, 10, 13, 14, 16, 24, 30, 31, 35, 36}, {17, 23, 25, 28, 29}
"""Types of chassis (SMBIOS): desktops, towers and notebooks; servers and blades."""
_KERNEL_SHARE = 0.984
"""Part of the installed memory that Linux manages: it keeps 64 B for each page of 4 KiB to itself."""
_SAME_SIZE = 0.05
"""Relative difference of capacities that are called the same: they are sold in round numbers."""
_ADAM_SHARE = 0.7
"""Share of the memory's peak that CPU Adam reaches, as the shipped hosts have it."""
_FORMS = {"sxm", "pcie", "nvl", "40g", "80g", "96g", "32g", "16gb", "330w"}
"""Parts of a GPU's id that are not in the name of its type."""
_DATA_CENTRE = {480, 800, 960, 1600, 1920, 3200, 3840, 6400, 7680, 12800, 15360, 30720}
"""Capacities [GB] in which drives for data centres are sold."""
_PARTS = {
    "mzwlj": "samsung-pm1733",
    "mzwlr": "samsung-pm1733",
    "sb5ph27x": "solidigm-ps1010",
    "nvme_card": "gcp-local-ssd-1.5tb",
    "cs3040": "pny-cs3040-2tb",
}
"""Beginnings of drives' part numbers (from memory), and of the ids of their profiles."""
_CLASSES = {
    True: ((5, "micron-9550-pro-7.68tb"), (4, "micron-7450-pro-7.68tb"), (0, "dgx2-nvme-3.84tb")),
    False: ((4, "samsung-980-pro-2tb"), (0, "generic-dramless-gen4-2tb")),
}
"""The profile of a drive whose series has none, by whether it is one for data centres, from a generation
on."""
_NETWORKED = ("elastic block store", "nvme_card-pd")
"""Names of volumes that a cloud connects like drives."""
_USES = (
    ("nvidia-smi", "names of GPUs, their memory and links"),
    ("nvidia-smi-topo", "links between GPUs"),
    ("lspci", "names of PCI devices"),
    ("dmidecode", "memory modules and channels; the bandwidth is that of the host's profile"),
    ("systemd-detect-virt", "whether the machine is virtual; the CPU's flags say it, too"),
    ("/proc/cpuinfo", "the CPU and its cores"),
    ("/proc/meminfo", "the memory; it is that of the base"),
    ("/sys/bus/pci/devices", "PCI devices and their slots"),
)


class Detected(NamedTuple):
    """The platform file of a machine, and how much of it was seen."""

    text: str
    """The content of the file, as YAML."""
    seen: tuple[str, ...]
    assumed: tuple[str, ...]
    """What stands in the file although it was not seen."""
    not_seen: tuple[str, ...]
    """What could not be read, one line each."""


def detect_machine(
    root: Path | None = None, *, identifier: str = "machine", gpus: Sequence[SeenGpu] = ()
) -> Detected:
    """Describe this machine, or one whose files and outputs of commands were recorded below ``root``.

    ``gpus`` are the GPUs as a program that uses them sees them, instead of those of the driver; what the PCI
    bus says of them still counts. Raises InputError if no valid platform can be made of it.
    """
    system = System(root)
    made = _Description(SeenMachine(system), Library(), identifier, gpus)
    keys = made.keys()
    not_seen = (*made.unseen, *missing_lines(system, _USES))
    remarks = [f"Assumed: {one}." for one in made.assumed] + [f"Not seen: {one}." for one in not_seen]
    head = [
        "Written by simoffload detect from what the machine says of itself; nothing was measured.",
        f"Everything that is not written here is that of {keys['base']}, which stands for this machine.",
        *remarks,
    ]
    text = "".join(f"# {line}\n" for line in head) + yaml_text(keys, flow=True)
    with TemporaryDirectory(prefix="simoffload-detect-") as folder:
        path = Path(folder) / "machine.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            load_platform(path)
        except InputError as error:
            problems = (one._replace(path="detect", line=None, column=None) for one in error.problems)
            raise InputError(problems) from None
    return Detected(text, tuple(made.seen), tuple(made.assumed), not_seen)


class _Wanted(NamedTuple):
    """A profile for something that was seen."""

    id: str
    exact: bool


def _tokens(name: str) -> list[str]:
    """Return the words of a name in lower case, with numbers and their units together."""
    text = re.sub(r"(?<=[0-9]) (?=[gt]b\b)", "", name.lower().replace("_", " "))
    return [word for word in re.split(r"[^a-z0-9.]+", text) if word]


@dataclass
class _Description:
    """Puts together the keys of a platform file, and says where they are from."""

    machine: SeenMachine
    library: Library
    identifier: str
    stated: Sequence[SeenGpu] = ()
    seen: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    switches: dict[str, dict[str, Any]] = field(default_factory=dict)
    profiles: dict[str, dict[str, Any]] = field(default_factory=dict)
    ports: list[NetworkPort] = field(default_factory=list)

    def keys(self) -> dict[str, Any]:
        """Return the keys of the file, in its order."""
        machine, gpu = self.machine, self._gpu
        parts: dict[str, Any] = {"gpu": gpu.id, "gpus": self._count}
        if memory := self._memory():
            parts["memory"] = memory
        host = self._host()
        tiers = self._drives()
        parts["drives"] = [text for text, _ in tiers]
        parts["network"] = self._network()
        places = self._gpu_places()
        name = ", ".join(filter(None, (f"{self._count}x {self._named_gpu}", machine.cpu, memory)))
        keys: dict[str, Any] = {"kind": "platform", "id": self.identifier, "name": name}
        keys |= {"notes": self._notes()}
        keys |= {"base": self._base.id, **({"host": host} if host != self._base.host else {})}
        keys |= parts
        if setting := self._setting():
            keys["setting"] = setting
        keys |= self._links()
        if not self._keeps_wiring:
            keys["wiring"] = [self._statement({"about": self._wired()}, "simoffload detect")]
            if any(place != CPU for place in places):
                keys["gpus"] = places
        nics = dict(self._port_places())
        at = {name: {"at": [place]} for name, place in self._tier_places(tiers)}
        keys |= {"switches": self.switches} if self.switches else {}
        keys |= {"nics": nics} if nics else {}
        keys |= {"tiers": at} if at else {}
        keys |= {"profiles": self.profiles} if self.profiles else {}
        return keys

    def _notes(self) -> str:
        virtual = self.machine.virtual
        name = f" ({virtual})" if virtual and virtual != "virtual" else ""
        kind = "" if virtual is None else f"A virtual machine{name}. " if virtual else "Bare metal. "
        product = f"{self.machine.product}. " if self.machine.product else ""
        return f"{product}{kind}From what the machine says of itself; nothing was measured.".strip()

    def _statement(
        self, content: Mapping[str, Any], source: str = "", *, spec: bool = False
    ) -> dict[str, Any]:
        today = datetime.datetime.now(tz=datetime.UTC).date()
        origin = "spec" if spec else "estimate"
        return {
            **content,
            "origin": origin,
            "source": source or "simoffload detect",
            "date": today.isoformat(),
        }

    # -- GPUs -----------------------------------------------------------------------------------

    @cached_property
    def _gpus(self) -> list[SeenGpu]:
        """The GPUs of the most frequent type."""
        gpus = self.machine.gpus
        if self.stated:
            known = [*gpus, *self.stated[len(gpus) :]]
            gpus = [
                own._replace(name=one.name, memory=one.memory)
                for own, one in zip(known, self.stated, strict=False)
            ]
        if not gpus:
            return []
        (name, _), *others = Counter(one.name for one in gpus).most_common()
        if others:
            self.unseen.append(f"GPUs of other types are left out: {', '.join(one for one, _ in others)}")
        return [one for one in gpus if one.name == name][:_MOST_GPUS]

    @property
    def _count(self) -> int:
        return max(1, len(self._gpus))

    @property
    def _named_gpu(self) -> str:
        return self._gpus[0].name if self._gpus and self._gpus[0].name else self._gpu.name

    @cached_property
    def _gpu(self) -> Accelerator:
        """The profile of the GPUs, or the nearest one."""
        if not self._gpus:
            self.assumed.append(
                f"a {_STAND_IN}, because no GPU was seen; name the one that is meant, "
                "or use the CPU alone with --gpus 0"
            )
            return self._accelerator(_STAND_IN)
        first = self._gpus[0]
        found = self._nearest_gpu(first)
        gpu = self._accelerator(found.id)
        self.seen.append(f"{len(self._gpus)}x {first.name or 'a GPU without a name'}")
        if not found.exact:
            what = first.name or "the GPU, whose name was not seen"
            self.assumed.append(f"{gpu.id} for {what}, which has no profile: its speed is that of {gpu.id}")
            if first.memory and gpu.hbm_capacity and 512 <= first.memory <= 1 << 20:
                source = f"the driver's of {first.name}, less 2 % that it keeps"
                size = f"{round(first.memory * 0.98)} MiB"
                self.profiles[f"accelerator/{gpu.id}"] = {
                    "name": f"{first.name}, with the speeds of {gpu.name}",
                    "hbm_capacity": self._statement({"value": size}, source),
                }
        return gpu

    def _accelerator(self, name: str) -> Accelerator:
        profile = self.library.find(name, ("accelerator",)).profile
        assert isinstance(profile, Accelerator)
        return profile

    def _nearest_gpu(self, seen: SeenGpu) -> _Wanted:
        """Return the profile whose type is in the name; among several that of its memory and form; else the
        one of the most similar name."""
        bracket = re.search(r"\[([^\]]+)\]", seen.name)
        tokens = _tokens(bracket[1] if bracket else seen.name)
        known = [self._accelerator(one.id) for one in self.library.summaries("accelerator")]
        types = {one.id: [part for part in one.id.split("-") if part not in _FORMS] for one in known}
        joined = "".join(tokens)
        fit = [one for one in known if set(types[one.id]) <= set(tokens)]
        if fit:
            longest = max(len(types[one.id]) for one in fit)
            fit = [one for one in fit if len(types[one.id]) == longest]
            best = min(fit, key=lambda one: self._unlike(one, seen, tokens))
            beyond = {"ti", "super", "d", "laptop", "mobile", "max", "q", "m", "ada"} - set(types[best.id])
            exact = not beyond & set(tokens) and self._unlike(best, seen, tokens)[0] <= 1
            return _Wanted(best.id, exact)
        display = {"geforce", "rtx", "gtx", "titan", "quadro"} & set(tokens)

        def similar(one: Accelerator) -> tuple[bool, int, float]:
            own = "".join(types[one.id])
            same = next((n for n, (a, b) in enumerate(zip(own, joined, strict=False)) if a != b), len(own))
            memory = _memory_of(one)
            apart = abs(memory - seen.memory * 2**20) if seen.memory else -memory
            return bool(display) != (one.display is not None), -same, apart

        return _Wanted(min(known, key=similar).id, exact=False)

    def _unlike(self, gpu: Accelerator, seen: SeenGpu, tokens: Sequence[str]) -> tuple[int, bool, int, str]:
        """Return how far a profile is from a GPU of its type: by memory, form and what else its id says."""
        capacity, named = _memory_of(gpu), [one for one in tokens if re.fullmatch(r"\d+gb", one)]
        reported = (seen.memory or (float(named[0][:-2]) * 1024 if named else 0.0)) * 2**20
        apart = 0 if not (reported and capacity) else int(abs(capacity / reported - 1) / 0.08)
        is_card = "pcie" in tokens or "nvl" in tokens
        return apart, is_card != (gpu.interconnect is None), len(gpu.id), gpu.id

    # -- the base -------------------------------------------------------------------------------

    @cached_property
    def _base(self) -> PlatformProfile:
        """The shipped platform with as many such GPUs, virtual if this one is, or else the nearest one."""
        platforms = [
            one
            for summary in self.library.summaries("platform")
            if isinstance(one := self.library.find(summary.id, ("platform",)).profile, PlatformProfile)
        ]

        def unlike(one: PlatformProfile) -> tuple[Any, ...]:
            gpu = self._accelerator(one.accelerator)
            rented = self._find_host(one.host).drive_slots == {}
            generation = gpu.pcie.profile != self._gpu.pcie.profile
            linked = bool(gpu.interconnect) != bool(self._gpu.interconnect)
            enough = len(one.gpus) < self._count
            more = abs(len(one.gpus) - self._count)
            virtual = bool(self.machine.virtual) != rented
            return gpu.id != self._gpu.id, linked, generation, enough, virtual, more, one.id

        base = min(platforms, key=unlike)
        if base.accelerator != self._gpu.id:
            self.assumed.append(f"the rest of {base.id}, because no shipped platform has a {self._gpu.id}")
        return base

    @property
    def _keeps_wiring(self) -> bool:
        """Whether switches and slots are those of the base: those of GPUs on a common board are alike, and a
        virtual machine hides its own."""
        return bool(self._gpu.interconnect) or bool(self.machine.virtual) or self._gpu.is_unified

    def _find_host(self, name: str) -> Host:
        profile = self.library.find(name, ("host",)).profile
        assert isinstance(profile, Host)
        return profile

    def _setting(self) -> str | None:
        chassis = self.machine.chassis
        if self.machine.virtual or chassis is None:
            return None
        return "desk" if chassis in _DESKS else "rack" if chassis in _RACKS else None

    # -- host -----------------------------------------------------------------------------------

    def _host(self) -> str:
        """Return the host's profile, that with this CPU or the base's, and note what differs on this one."""
        machine, tokens = self.machine, set(_tokens(self.machine.cpu))
        host = self._find_host(self._base.host)
        hosts = [self._find_host(one.id) for one in self.library.summaries("host")]
        models = {one.id: {word for word in _tokens(one.cpu) if re.search(r"\d{3}", word)} for one in hosts}
        same = [one for one in hosts if models[one.id] and models[one.id] <= tokens]
        if same and not machine.virtual:
            host = host if host in same else same[0]
        elif machine.cpu and _is_server(host.cpu) != _is_server(machine.cpu):
            host = min(hosts, key=self._unlike_host)
        change: dict[str, Any] = {}
        if machine.cpu:
            sockets = f"{machine.sockets}x " if machine.sockets > 1 else ""
            change |= {"name": f"{sockets}{machine.cpu}", "cpu": f"{sockets}{machine.cpu}"}
            self.seen.append(f"{sockets}{machine.cpu}")
            self.assumed.append(f"times of the CPU's thread as those of {host.id}")
        cpu: dict[str, Any] = {}
        if 0 < machine.cores < 100_000:
            cpu["cores"] = self._statement({"value": machine.cores}, "/proc/cpuinfo", spec=True)
            self.seen.append(plural(machine.cores, "core"))
        if 0 < machine.numa_nodes < 1000:
            cpu["numa_nodes"] = self._statement(
                {"value": machine.numa_nodes}, "/sys/devices/system/node", spec=True
            )
        change |= self._bandwidth(cpu)
        if cpu:
            change["cpu_optimizer"] = cpu
        if machine.virtual:
            change["drive_slots"] = {}
        if change:
            self.profiles[f"host/{host.id}"] = change
        return host.id

    def _unlike_host(self, host: Host) -> tuple[Any, ...]:
        """Return how far a host is from this one: by the class of CPU, virtual or not, maker and cores."""
        cpu, machine = host.cpu_optimizer, self.machine
        makers = [{"amd", "intel"} & set(_tokens(name)) for name in (host.cpu, machine.cpu)]
        cores = abs(math.log(cpu.cores.value / max(1, machine.cores)))
        rented = host.drive_slots == {}
        other = _is_server(host.cpu) != _is_server(machine.cpu)
        return other, rented != bool(machine.virtual), makers[0] != makers[1], cores, host.id

    def _bandwidth(self, cpu: dict[str, Any]) -> dict[str, Any]:
        """Return the memory's bandwidth if the firmware names channels and rate; CPU Adam follows from it."""
        modules = self.machine.modules
        if modules is None or not modules.rate or modules.channels is None or self.machine.virtual:
            if modules is not None and not self.machine.virtual:
                self.unseen.append("memory channels: the firmware does not name them")
            return {}
        peak = modules.channels * 8 * modules.rate / 1e3
        if not 1 <= peak <= 10_000:
            return {}
        about = f"{modules.channels} channels x 8 B x {modules.rate:g} MT/s {modules.kind}".strip()
        self.seen.append(f"{plural(modules.channels, 'memory channel')} of {modules.kind}-{modules.rate:g}")
        limit = f"{_ADAM_SHARE} of the memory's peak, as on other hosts"
        cpu["limit"] = self._statement({"value": f"{peak * _ADAM_SHARE:.4g} GB/s"}, limit)
        return {
            "memory_bandwidth": self._statement(
                {"value": f"{peak:.4g} GB/s"}, f"dmidecode: {about}", spec=True
            )
        }

    def _memory(self) -> str:
        """Return the installed memory: of the modules, or rounded up from what the kernel manages."""
        modules, total = self.machine.modules, self.machine.memory
        if modules is not None and not self.machine.virtual and sum(modules.sizes) >= total:
            self.seen.append(f"{plural(len(modules.sizes), 'memory module')}")
            return f"{sum(modules.sizes) // 2**30} GB"
        if not 2**28 <= total < 2**60:
            return ""
        step = 1 if self.machine.virtual else 8 if total > 20 * 2**30 else 4
        installed = -(-int(total / (1 if self.machine.virtual else _KERNEL_SHARE)) // (step * 2**30)) * step
        self.seen.append(f"{format_bytes(total, binary=True)} of memory in use by Linux")
        self.assumed.append(f"{installed} GB of memory installed, rounded up from that")
        return f"{installed} GB"

    # -- wiring ---------------------------------------------------------------------------------

    def _wired(self) -> str:
        if not self.machine.devices:
            return f"as {self._base.id}: slots and switches were not seen"
        return "slots and switches as /sys shows them; what shares them is not all listed"

    def _gpu_places(self) -> list[str]:
        if self._keeps_wiring:
            if self._gpus and self.machine.virtual:
                self.unseen.append("slots and switches: a virtual machine hides them")
            return []
        return [
            self._place(
                one.route, self._gpu.pcie.profile, self._gpu.pcie.lanes.value, f"gpu-slot{n}", one.link
            )
            for n, one in enumerate(self._gpus)
        ]

    def _place(
        self, route: Sequence[str], own: str, lanes: int, name: str, link: SlotLink | None = None
    ) -> str:
        """Return the vertex of a device: ``cpu``, its switch, or a slot that is slower than the device."""
        device = self.machine.devices.get(route[-1]) if route else None
        links = device.links if device else ()
        vertex = CPU
        for address, one in zip(route[1::2], links[:-1], strict=False):
            if one is not None:
                switch = f"switch-{address.removeprefix('0000:').replace(':', '-').replace('.', '-')}"
                self.switches.setdefault(switch, {"to": vertex, **_cable(one)})
                vertex = switch
        last = (links[-1] if links else None) or link
        generation = int(found[1]) if (found := re.fullmatch(r"gen(\d)", own)) else 0
        if last is None or not generation or last.rate >= SlotLink(generation, lanes).rate:
            return vertex
        self.seen.append(f"{name}: {last}")
        self.switches[name] = {"to": vertex, **_cable(last)}
        return name

    def _links(self) -> dict[str, Any]:
        """Return ``gpu_links`` where the driver says something else than the base."""
        linked = self.machine.nvlinked if self._count > 1 else None
        if linked is None:
            return {}
        if linked and not self._gpu.interconnect:
            self.unseen.append(f"NVLink between the GPUs is left out: {self._gpu.id} has none in its profile")
        switched = self._base.gpu_links == "switched" and bool(self._gpu.interconnect)
        return {"gpu_links": "none"} if switched and not linked else {}

    # -- drives ---------------------------------------------------------------------------------

    def _drives(self) -> list[tuple[str, tuple[Disk, ...]]]:
        """Return the storage tiers: how ``drives`` names each, and its drives."""
        disks = [one for one in self.machine.disks if one.name.startswith("nvme")][:_MOST_DRIVES]
        others = [one for one in self.machine.disks if one not in disks]
        if others:
            names = ", ".join(f"{one.name} {one.model}".strip() for one in others[:4])
            self.unseen.append(f"drives that are not NVMe are left out: {names}")
        networked = [
            one for one in disks if one.model.lower().startswith(_NETWORKED) or "elastic" in one.model.lower()
        ]
        if networked:
            self.unseen.append(
                f"volumes over a network are left out: {', '.join(one.name for one in networked)}"
            )
        local = {one.name: one for one in disks if one not in networked}
        found: list[tuple[str, tuple[Disk, ...]]] = []
        wanted = {name: self._drive(disk) for name, disk in local.items()}
        self._capacities(local, wanted)
        for array, level, members in self.machine.arrays:
            held = [local[one] for one in members if one in local]
            if not held:
                continue
            ids = {wanted[one.name] for one in held}
            text, count = f"raid{level} {len(held)}x {min(ids)}", len(held)
            if (
                len(ids) > 1
                or int(level) not in LEAST_DRIVES
                or count < max(2, LEAST_DRIVES[int(level)])
                or (level == "10" and count % 2)
            ):
                self.assumed.append(
                    f"one drive for the array {array} (RAID{level} of {plural(count, 'drive')})"
                )
                text, held = min(ids), held[:1]
            else:
                self.seen.append(f"{array}: RAID{level} of {plural(count, 'drive')}")
            found.append((text, tuple(held)))
            for one in members:
                local.pop(one, None)
        found += [(wanted[name], (disk,)) for name, disk in local.items()]
        used = {f"drive/{text.rpartition(' ')[2]}" for text, _ in found}
        for key in [one for one in self.profiles if one.startswith("drive/") and one not in used]:
            del self.profiles[key]
        return found

    def _drive(self, disk: Disk) -> str:
        """Return the profile of a drive: of its series, or else of its class."""
        known = {one.id: one.name for one in self.library.summaries("drive")}
        model = disk.model.lower()
        tokens = _tokens(disk.model)
        part = next((series for start, series in _PARTS.items() if start in model), None)
        series = [name for name in known if part and name.startswith(part)]
        if not series:
            series = [name for name in known if _series(name) and _series(name) <= set(tokens)]
        what = f"{disk.name}: {disk.model or 'a drive without a name'}"
        if disk.size:
            what += f", {format_bytes(disk.size)}"
        if series:
            self.seen.append(what)
            return min(series, key=lambda name: abs(self._capacity(name) - disk.size))
        gigabytes = round(disk.size / 1e9 / 10) * 10
        data_centre = any(abs(gigabytes - one) <= 10 for one in _DATA_CENTRE)
        device = self.machine.devices.get(disk.route[-1]) if disk.route else None
        link = device.links[-1] if device and device.links else None
        generation = link.generation if link else 4
        kind = "drives for data centres" if data_centre else "consumer drives"
        name = next(name for least, name in _CLASSES[data_centre] if generation >= least)
        self.assumed.append(
            f"{name} for {what}: it has no profile; taken as one of the {kind} of Gen{generation}"
        )
        return name

    def _capacity(self, name: str) -> int:
        profile = self.library.find(name, ("drive",)).profile
        assert isinstance(profile, Drive)
        return profile.capacity.value

    def _capacities(self, disks: Mapping[str, Disk], wanted: Mapping[str, str]) -> None:
        """Note the capacity of drives whose profile has another one."""
        for profile in dict.fromkeys(wanted.values()):
            sizes = {disks[name].size for name, one in wanted.items() if one == profile and disks[name].size}
            drive = self.library.find(profile, ("drive",)).profile
            assert isinstance(drive, Drive)
            if not sizes or all(abs(size / drive.capacity.value - 1) <= _SAME_SIZE for size in sizes):
                continue
            size = min(sizes)
            if max(sizes) > size * (1 + _SAME_SIZE):
                self.assumed.append(
                    f"{format_bytes(size)} for every {profile}, the smallest of their capacities"
                )
            if size < 2**30:
                continue
            change: dict[str, Any] = {
                "capacity": self._statement({"value": f"{size} B"}, "/sys/class/block", spec=True)
            }
            if drive.write_cache and drive.write_cache.capacity.value >= size / 4:
                share = drive.write_cache.capacity.value / drive.capacity.value
                cache = self._statement({"value": f"{int(size * share)} B"}, f"in proportion to {profile}")
                change["write_cache"] = {"capacity": cache}
            if drive.endurance and drive.endurance.tbw:
                change["endurance"] = None
            self.profiles[f"drive/{profile}"] = change

    def _tier_places(self, tiers: Sequence[tuple[str, tuple[Disk, ...]]]) -> Iterator[tuple[str, str]]:
        """Yield the vertex of each tier by its name, where it was seen and is not the CPU's own slot."""
        counts = {"nvme": 0, "raid": 0}
        for text, disks in tiers:
            kind = "raid" if " " in text else "nvme"
            name = kind + (str(counts[kind]) if counts[kind] else "")
            counts[kind] += 1
            if self._keeps_wiring:
                continue
            profile = self.library.find(text.rpartition(" ")[2], ("drive",)).profile
            assert isinstance(profile, Drive)
            own, lanes = profile.pcie.profile, profile.pcie.lanes.value
            places = {self._place(one.route, own, lanes, f"{one.name}-slot") for one in disks}
            yield name, min(places) if len(places) == 1 else CPU

    # -- network --------------------------------------------------------------------------------

    def _network(self) -> str:
        """Return the adapters as ``network`` names them, the fastest first."""
        nics = [
            one
            for summary in self.library.summaries("nic")
            if isinstance(one := self.library.find(summary.id, ("nic",)).profile, Nic)
        ]
        ports, dark = dict[tuple[float, str], list[NetworkPort]](), []
        for port in self.machine.ports[:_MOST_PORTS]:
            rates = [one.link_rate.value * 8 / 1e9 for one in nics if one.fabric == port.fabric.lower()]
            lower = [rate for rate in rates if port.rate and rate <= port.rate * 1.01]
            if not lower:
                dark.append(port.name)
                continue
            rate = max(lower)
            if port.rate and rate < port.rate * 0.99:
                self.assumed.append(f"{rate:g} Gb/s for {port.name}, which has {port.rate:g} Gb/s")
            ports.setdefault((rate, port.fabric), []).append(port)
        if dark:
            self.unseen.append(f"rates of network ports, which are left out: {', '.join(dark)}")
        if not ports:
            return "none"
        texts = []
        for (rate, fabric), group in sorted(ports.items(), key=lambda item: (-item[0][0], item[0][1])):
            suffix = "" if fabric == "Ethernet" else f" {fabric}"
            texts.append(f"{f'{len(group)}x ' if len(group) > 1 else ''}{rate:g} Gb/s{suffix}")
            self.ports += group
        self.seen.append(f"network: {', '.join(texts)}")
        return ", ".join(texts)

    def _port_places(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the vertex of each adapter behind a switch, by the name that ``network`` gives it."""
        for number, port in enumerate(() if self._keeps_wiring else self.ports):
            if (place := self._place(port.route, "", 0, "")) != CPU:
                yield f"eth{number}", {"at": place}


def _series(identifier: str) -> set[str]:
    """Return the parts of a drive's id that its model name has: maker and number of the series."""
    parts = identifier.split("-")
    return set(parts[:2]) if re.fullmatch(r"\d{3,4}", "".join(parts[1:2])) else set()


def _is_server(cpu: str) -> bool:
    """Return whether a CPU is one of servers and workstations, with more memory channels than desktops."""
    return bool(re.search(r"xeon|epyc|threadripper|opteron|neoverse|grace|altra", cpu, re.IGNORECASE))


def _memory_of(gpu: Accelerator) -> int:
    return gpu.hbm_capacity.value if gpu.hbm_capacity else 0


def _cable(link: SlotLink) -> dict[str, Any]:
    """Return the keys of a cable; Gen1 and Gen2 as fewer lanes of Gen3, which is the oldest profile."""
    if link.generation >= 3:
        return {"pcie": f"gen{link.generation}", "lanes": link.lanes}
    return {"pcie": "gen3", "lanes": max(1, link.lanes >> (3 - link.generation))}
