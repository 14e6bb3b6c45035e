"""Hardware as data: profiles of devices, platforms that connect them, and the resulting topology."""

from simoffload.hardware.changes import Changes, Equipment, Parts, spelled
from simoffload.hardware.costs import Costs, DeviceCosts, DeviceKind, Power, RentKind
from simoffload.hardware.detect import Detected, SeenGpu, detect_machine
from simoffload.hardware.ggml import GgmlKernels, ProductKernel
from simoffload.hardware.host import Host
from simoffload.hardware.library import (
    KINDS,
    Entry,
    Library,
    ProfileInput,
    ProfileSummary,
    ProfileUse,
    is_path,
)
from simoffload.hardware.loading import list_profiles, load_platform, load_profile, platform_from
from simoffload.hardware.machine import (
    MEMORY,
    DeviceGroup,
    Machine,
    Platform,
    memory_warnings,
    profile_warnings,
)
from simoffload.hardware.parts import (
    Drives,
    GpuSlots,
    ShortForm,
    inherited,
    installed_memory,
    platforms_for_more,
    platforms_with,
)
from simoffload.hardware.paths import Demand, Path, Resource, Tier, TierKind, fair_rates, loads
from simoffload.hardware.profiles import Accelerator, Nic, Pcie, Profile, together
from simoffload.hardware.program_costs import DeepSpeedCosts, FsdpCosts, TrainingCosts
from simoffload.hardware.quantities import Curve, Provenance, RateCurve, Sourced, id_fault
from simoffload.hardware.spreads import (
    DEFAULT_SPREADS,
    FEW_READINGS,
    P90,
    Spread,
    TimeInput,
    evidence_sentence,
    machine_spreads,
    profile_evidence,
    repeated_reads,
)
from simoffload.hardware.storage import LEAST_DRIVES, LOCAL_KINDS, STORAGE_KINDS, Drive, Raid
from simoffload.hardware.targets import PcieLink, Ports, Target, adapter_rate
from simoffload.hardware.unmeasured import ggml_kernels, shipped_unmeasured
from simoffload.hardware.wiring import CPU, SWITCHES, PlatformProfile, Setting

__all__ = [
    "CPU",
    "DEFAULT_SPREADS",
    "FEW_READINGS",
    "KINDS",
    "LEAST_DRIVES",
    "LOCAL_KINDS",
    "MEMORY",
    "P90",
    "STORAGE_KINDS",
    "SWITCHES",
    "Accelerator",
    "Changes",
    "Costs",
    "Curve",
    "DeepSpeedCosts",
    "Demand",
    "Detected",
    "DeviceCosts",
    "DeviceGroup",
    "DeviceKind",
    "Drive",
    "Drives",
    "Entry",
    "Equipment",
    "FsdpCosts",
    "GgmlKernels",
    "GpuSlots",
    "Host",
    "Library",
    "Machine",
    "Nic",
    "Parts",
    "Path",
    "Pcie",
    "PcieLink",
    "Platform",
    "PlatformProfile",
    "Ports",
    "Power",
    "ProductKernel",
    "Profile",
    "ProfileInput",
    "ProfileSummary",
    "ProfileUse",
    "Provenance",
    "Raid",
    "RateCurve",
    "RentKind",
    "Resource",
    "SeenGpu",
    "Setting",
    "ShortForm",
    "Sourced",
    "Spread",
    "Target",
    "Tier",
    "TierKind",
    "TimeInput",
    "TrainingCosts",
    "adapter_rate",
    "detect_machine",
    "evidence_sentence",
    "fair_rates",
    "ggml_kernels",
    "id_fault",
    "inherited",
    "installed_memory",
    "is_path",
    "list_profiles",
    "load_platform",
    "load_profile",
    "loads",
    "machine_spreads",
    "memory_warnings",
    "platform_from",
    "platforms_for_more",
    "platforms_with",
    "profile_evidence",
    "profile_warnings",
    "repeated_reads",
    "shipped_unmeasured",
    "spelled",
    "together",
]
