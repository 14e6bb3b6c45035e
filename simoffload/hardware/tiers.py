"""Kinds of tiers, one row each: other code asks a row what it can do, and compares no names."""

from __future__ import annotations

from typing import Literal, NamedTuple

Access = Literal["gpu", "memory", "peer", "blocks", "file", "objects"]
"""How a GPU comes to the bytes of a tier: its own memory; ``memory`` of the host, which it copies itself; and
through buffers in the host's memory that of a ``peer``, another host (RDMA), ``blocks`` of drives and the
``file`` of a server, in requests whose size and number the program chooses, and ``objects``, which a client
fetches in parts of its own."""
_OF_DRIVES = ("read", "write", "write_cache.rate_after", "read_by_outstanding")


class TierKind(NamedTuple):
    """A TierKind says what programs can do with a tier, and what it is to machines and reports."""

    name: str
    access: Access
    """How a GPU comes to its bytes: "gpu", "memory", "peer", "blocks", "file" or "objects"."""
    scope: str = "in all"
    """Whose memory counts as one tier."""
    device: Literal["none", "cpu", "nvme"] | None = None
    """DeepSpeed's name for its device; None where it has none. Of several tiers of a device, the one whose
    kind is first in ``TIER_KINDS`` is used."""
    local: bool = False
    """Whether it is in the host, and not behind its network adapters."""
    rates: tuple[str, ...] = ()
    """Keys of the profile of a tier, or of its drives, that are rates of storage."""
    unseen: str = ""
    """What it is, in words, if no recorded real run used one."""

    @property
    def is_gpu(self) -> bool:
        """Whether it is the memory of the GPUs."""
        return self.access == "gpu"

    @property
    def is_host(self) -> bool:
        """Whether it is memory of the host, from which GPUs copy."""
        return self.access == "memory"

    @property
    def is_memory(self) -> bool:
        """Whether it is memory of this machine."""
        return self.access in ("gpu", "memory")

    @property
    def is_storage(self) -> bool:
        """Whether it is on drives or servers and not in memory, of this host or of another one."""
        return self.access in ("blocks", "file", "objects")

    @property
    def is_dram(self) -> bool:
        """Whether it is the DRAM of the host, which programs have that ask for no other memory."""
        return self.name == HOST.name

    @property
    def place(self) -> Literal["gpu", "cpu", "disk"] | None:
        """What programs with three places call it; None where they have none for it."""
        return "gpu" if self.is_gpu else "cpu" if self.is_dram else "disk" if self.has_files else None

    def chosen_by(self, choice: Literal["any", "storage", "files"]) -> bool:
        """Return whether a key can name it that names ``any`` tier, ``storage``, or a tier with ``files``."""
        return self.is_storage if choice == "storage" else self.has_files if choice == "files" else True

    @property
    def has_files(self) -> bool:
        """Whether programs open files on it, and choose the size and number of their requests."""
        return self.access in ("blocks", "file")


GPU = TierKind("hbm", "gpu", "per GPU", "none", local=True)
HOST = TierKind("dram", "memory", "per host", "cpu", local=True)
NVME = TierKind("nvme", "blocks", device="nvme", local=True, rates=_OF_DRIVES)
NVMEOF = TierKind("nvmeof", "blocks", device="nvme", rates=_OF_DRIVES, unseen="drives over NVMe-oF")
NFS = TierKind(
    "nfs", "file", device="nvme", rates=("read", "write", "per_connection"), unseen="an NFS server"
)
PFS = TierKind("pfs", "file", device="nvme", rates=("read", "write"), unseen="a parallel filesystem")
REMOTE = TierKind("remote", "peer", device="nvme", unseen="the memory of another host")
TIER_KINDS = {one.name: one for one in (GPU, HOST, NVME, NVMEOF, NFS, PFS, REMOTE)}
"""Every kind of tier; ``register_tier`` adds those from outside."""


def in_hbm(tier: str) -> bool:
    """Return whether the tier of a name is the memory of the GPUs, where no row is at hand."""
    return tier == GPU.name


def in_dram(tier: str) -> bool:
    """Return whether the tier of a name is the DRAM of the host, where no row is at hand."""
    return tier == HOST.name


class Tier(NamedTuple):
    """A memory or storage tier in which weights can be stored."""

    name: str
    kind: str
    """Name of its row in ``TIER_KINDS``."""
    capacity: int
    """Capacity [B] per GPU (hbm), per host (dram), otherwise of the whole target (local drives: of all
    hosts)."""
    device: str
    """Id of the device's profile."""
    reserved: int = 0
    """Capacity [B] that is not available for weights: context and workspace (hbm), operating system
    (dram)."""
    pool: str = ""
    """Name of the tier whose memory this one is, too (hbm in unified memory); "" if it has its own."""

    @property
    def row(self) -> TierKind:
        """What the tier can do."""
        return TIER_KINDS[self.kind]
