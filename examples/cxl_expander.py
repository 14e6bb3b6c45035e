"""A kind of tier: memory behind CXL, which the CPU maps and GPUs copy from as from DRAM.

``python cxl_expander.py compare cxl_expander.yaml --on dram,cxl,nvme`` sets it beside the others.
"""

from pathlib import Path
from typing import Literal

from simoffload.cli import main
from simoffload.hardware.library import Entry, Library
from simoffload.hardware.profiles import Profile, Slot
from simoffload.hardware.quantities import Sourced
from simoffload.hardware.storage import Service
from simoffload.hardware.targets import Link, Target, pcie_link, register_tier
from simoffload.hardware.tiers import TierKind
from simoffload.units import BytesPerSecond, PositiveBytes, Seconds


class Expander(Profile):
    """A CXL memory expander in a slot of the host."""

    kind: Literal["cxl"]
    capacity: Sourced[PositiveBytes]
    read: Sourced[BytesPerSecond]
    """Rate of reads of all its memory."""
    write: Sourced[BytesPerSecond]
    latency: Sourced[Seconds]
    """What it adds to the latency of a copy from DRAM."""
    pcie: Slot
    """Its own side of the slot: CXL has the wires of PCIe."""


def target(library: Library, entry: Entry, _link: Link) -> Target:
    """Return what the topology has to know of it: a device with a cable of its own."""
    one = entry.profile
    assert isinstance(one, Expander)
    read, write = (Service(rate, one.latency.value, rate) for rate in (one.read.value, one.write.value))
    cable = pcie_link(library, one.pcie, entry, "pcie")
    return Target(one.id, "cxl", one.capacity.value, read, write, drives=1, pcie_link=cable)


CXL = TierKind("cxl", "memory", local=True, rates=("read", "write"), unseen="memory behind CXL")
register_tier(CXL, Expander, target, Path(__file__).parent)

if __name__ == "__main__":
    raise SystemExit(main())
