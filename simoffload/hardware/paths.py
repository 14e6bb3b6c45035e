"""What strategies plan with: capacities that are shared, and the paths of bytes over them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from simoffload.hardware.curve import Curve

__all__ = ["Path", "Resource", "Tier", "TierKind"]

TierKind = Literal["hbm", "dram", "nvme", "nfs", "pfs", "nvmeof"]


class Resource(NamedTuple):
    """A capacity that concurrent transfers share."""

    name: str
    capacity: int
    """[B/s]"""
    kind: str
    """pcie, duplex (both directions of a cable), dram, drive, nic, server or nvlink."""


class Tier(NamedTuple):
    """A place where weights may lie."""

    name: str
    kind: TierKind
    capacity: int
    """[B] per GPU (hbm), per host (dram), else of the whole target (local drives: of all hosts)."""
    device: str
    """Id of the profile."""
    reserved: int = 0
    """[B] of the capacity that is not for weights: context and workspace (hbm), operating system (dram)."""


@dataclass(frozen=True)
class Path:
    """How bytes get from one place to another."""

    name: str
    hops: tuple[tuple[int, Fraction], ...]
    """Pairs (index into ``Machine.resources``, bytes on it per byte of payload), by rising index."""
    latency: float
    """[s] once per transfer."""
    curve: Curve
    """Rate [B/s] of one transfer alone, by its size [B]."""
    request_latency: float = 0.0
    """[s] of one request, unloaded (storage)."""
    request_rate: int = 0
    """[B/s] at which one request streams (storage)."""
    chunk: int = 0
    """[B] after which a request goes on to the next device of an array; 0 = never (storage)."""
    width: int = 1
    """Devices that one request can stream from (storage)."""
    by_outstanding: Curve | None = None
    """Measured rate [B/s] by the bytes in flight, where the drive's profile has it."""

    def outstanding_rate(self, outstanding: int, *, block: int) -> int:
        """[B/s] that ``outstanding`` [B] in flight in requests of ``block`` [B] reach at most.

        The measured curve where there is one, else Little's law: outstanding bytes over the time of one
        request. Only for storage.
        """
        if self.by_outstanding is not None:
            return self.by_outstanding.rate(outstanding)
        devices = min(self.width, -(-block // self.chunk)) if self.chunk else 1
        per_request = self.request_latency + block / (self.request_rate * devices)
        return max(1, int(outstanding / per_request))
