"""Numbers of hosts and accelerators that their profiles do not state: those of other machines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Literal, TypeVar

from simoffload.documents import Frozen, read_document, validate
from simoffload.hardware.ggml import CpuClasses, GgmlElsewhere, GgmlKernels
from simoffload.hardware.profiles import Accelerator, HostReads, HostRows, PowerRates, Profile
from simoffload.hardware.program_costs import (
    CompiledKernels,
    CompiledReference,
    EagerReference,
    FsdpReference,
    GpuAllocation,
    Multiples,
    NewMemoryReference,
    PageCache,
    UnmeasuredKernels,
)
from simoffload.hardware.quantities import Provenance, RateCurve, Sourced
from simoffload.shipped import shipped_folder
from simoffload.units import BytesPerSecond

UNMEASURED = "unmeasured"
"""The kind of these profiles, and the folder of their files."""
ELSEWHERE = "elsewhere"
"""Id of the profile that is used; one of the user's folder takes precedence over the shipped one."""


class UnmeasuredHost(Frozen):
    """Sections of hosts, in place of those that a host's profile does not have."""

    new_memory: NewMemoryReference
    """Rates for hosts that do not state ``new_memory``, some of which are scaled to the host's thread."""
    page_cache: PageCache
    """Rates for hosts that do not state ``page_cache``."""
    checksum: Sourced[BytesPerSecond]
    """Rate for hosts that do not state ``checksum``."""
    pageable: RateCurve
    """Rates for hosts that do not state ``pageable``."""
    pinned_allocation: Sourced[BytesPerSecond]
    """Rate for hosts that do not state ``pinned_allocation``."""
    fsdp: FsdpReference
    """Times under FSDP, which are scaled to the host's own thread."""
    eager: EagerReference
    """Multiples of the host's own time of an operation under DeepSpeed."""
    compiled: CompiledReference
    """The same for the thread of a serving engine."""
    cpu_products: CpuClasses
    """Products on the CPU by the class of the host."""


class UnmeasuredAccelerator(Frozen):
    """Sections of accelerators, in place of those that an accelerator's profile does not have."""

    allocation: GpuAllocation
    """Times for accelerators that do not state ``allocation``."""
    host_reads: HostReads
    """Rows and rate for accelerators that do not state ``host_reads``."""
    host_rows: HostRows
    """Limits for accelerators that do not state ``host_rows``."""
    compiled: UnmeasuredKernels
    """Kernels of compiled serving for accelerators that do not state them, number by number."""
    ggml: GgmlElsewhere
    """Kernels of llama.cpp for accelerators that do not state ``ggml``."""
    power_rates: PowerRates
    """Rates at a power limit for accelerators that do not state ``power_rates``."""


class Unmeasured(Profile):
    """Numbers that apply to hosts and accelerators on which they were not measured."""

    kind: Literal["unmeasured"]
    host: UnmeasuredHost
    """Sections for hosts that do not state them."""
    accelerator: UnmeasuredAccelerator
    """Sections for accelerators that do not state them."""

    def used_by(self, host: Profile, accelerator: Accelerator) -> Iterator[str]:
        """Yield the keys of the sections, or of their numbers, that stand for those that two profiles
        lack."""
        for part, profile in (("host", host), ("accelerator", accelerator)):
            for key, section in getattr(self, part):
                own = getattr(profile, key)
                if isinstance(section, PowerRates) and accelerator.power_limit is None:
                    continue
                if own is None and not isinstance(
                    section, CpuClasses | GgmlElsewhere
                ):  # few programs ask for them
                    yield f"{part}.{key}"
                elif isinstance(section, UnmeasuredKernels):
                    yield from (f"{part}.{key}.{one}" for one in _lacking(own, section))


def _lacking(own: CompiledKernels, kernels: UnmeasuredKernels) -> dict[str, Provenance]:
    """Return the numbers of ``kernels`` that others lack, by key."""
    return {key: one for key, one in kernels if one is not None and getattr(own, key) is None}


P = TypeVar("P", bound=Profile)
_SCALED = (NewMemoryReference, FsdpReference, Multiples, CpuClasses)


def completed(profile: P, elsewhere: UnmeasuredHost | UnmeasuredAccelerator) -> P:
    """Return a profile with the numbers of another machine in place of those that it lacks, but for those
    that must be scaled first."""
    update: dict[str, Frozen] = {}
    for key, section in elsewhere:
        own = getattr(profile, key)
        if isinstance(section, UnmeasuredKernels):
            update[key] = own.model_copy(update=_lacking(own, section))
        elif isinstance(section, GgmlElsewhere):
            assert isinstance(profile, Accelerator)
            update[key] = own or ggml_kernels(profile, section)
        elif own is None and not isinstance(section, _SCALED):
            update[key] = section
    return profile.model_copy(update=update)


def ggml_kernels(gpu: Accelerator, elsewhere: GgmlElsewhere) -> GgmlKernels:
    """Return the kernels of llama.cpp on a GPU whose profile does not state them."""
    capability, sheet = gpu.compute_capability, gpu.compute
    return elsewhere.of(
        None if capability is None else capability.value,
        peak=(sheet.float16 or sheet.float32).value,
        single=sheet.float32.value,
        measured=gpu.hbm_efficiency.origin == "measured" and gpu.compiled.read_efficiency is None,
    )


@cache
def shipped_unmeasured() -> Unmeasured:
    """Return the shipped profile, for hosts and accelerators that were not loaded with a platform."""
    path = shipped_folder("hardware_profiles") / UNMEASURED / f"{ELSEWHERE}.yaml"
    return validate(read_document(path), Unmeasured)
