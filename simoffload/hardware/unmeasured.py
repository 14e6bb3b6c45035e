"""Numbers of hosts and accelerators that their profiles do not state: those of other machines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Literal, TypeVar

from simoffload.documents import Frozen, read_document, validate
from simoffload.hardware.memory_costs import GpuAllocation, NewMemory, PageCache
from simoffload.hardware.profiles import Profile
from simoffload.hardware.quantities import Sourced
from simoffload.hardware.thread_costs import EagerReference, FsdpReference
from simoffload.shipped import shipped_folder
from simoffload.units import BytesPerSecond

UNMEASURED = "unmeasured"
"""The kind of these profiles, and the folder of their files."""
ELSEWHERE = "elsewhere"
"""Id of the profile that is used; one of the user's folder takes precedence over the shipped one."""


class UnmeasuredHost(Frozen):
    """Sections of hosts, in place of those that a host's profile does not have."""

    new_memory: NewMemory
    """Rates for hosts that do not state ``new_memory``."""
    page_cache: PageCache
    """Rates for hosts that do not state ``page_cache``."""
    checksum: Sourced[BytesPerSecond]
    """Rate for hosts that do not state ``checksum``."""
    pinned_allocation: Sourced[BytesPerSecond]
    """Rate for hosts that do not state ``pinned_allocation``."""
    fsdp: FsdpReference
    """Times under FSDP, which are scaled to the host's own thread."""
    eager: EagerReference
    """Multiples of the host's own time of an operation under DeepSpeed."""


class UnmeasuredAccelerator(Frozen):
    """Sections of accelerators, in place of those that an accelerator's profile does not have."""

    allocation: GpuAllocation
    """Times for accelerators that do not state ``allocation``."""


class Unmeasured(Profile):
    """Numbers that apply to hosts and accelerators on which they were not measured."""

    kind: Literal["unmeasured"]
    host: UnmeasuredHost
    """Sections for hosts that do not state them."""
    accelerator: UnmeasuredAccelerator
    """Sections for accelerators that do not state them."""

    def used_by(self, host: Profile, accelerator: Profile) -> Iterator[str]:
        """Yield the keys of the sections that stand for those that two profiles lack."""
        for part, profile in (("host", host), ("accelerator", accelerator)):
            for key in type(getattr(self, part)).model_fields:
                if getattr(profile, key) is None:
                    yield f"{part}.{key}"


P = TypeVar("P", bound=Profile)


def completed(profile: P, elsewhere: UnmeasuredHost | UnmeasuredAccelerator) -> P:
    """Return a profile with the numbers of another machine in place of those that it lacks, but for those
    that must be scaled first."""
    plain = {key: one for key, one in elsewhere if not isinstance(one, FsdpReference | EagerReference)}
    return profile.model_copy(
        update={key: one for key, one in plain.items() if getattr(profile, key) is None}
    )


@cache
def shipped_unmeasured() -> Unmeasured:
    """Return the shipped profile, for hosts and accelerators that were not loaded with a platform."""
    path = shipped_folder("hardware_profiles") / UNMEASURED / f"{ELSEWHERE}.yaml"
    return validate(read_document(path), Unmeasured)
