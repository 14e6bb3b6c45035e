"""Hardware as data: profiles of devices, platforms that connect them, and the resulting topology."""

from simoffload.hardware.library import ProfileInput, ProfileSummary, ProfileUse
from simoffload.hardware.machine import Machine
from simoffload.hardware.paths import Path, Resource, Tier
from simoffload.hardware.platforms import list_profiles, load_platform, load_profile
from simoffload.hardware.profiles import Accelerator, Host
from simoffload.hardware.quantities import Curve
from simoffload.hardware.topology import Platform

__all__ = [
    "Accelerator",
    "Curve",
    "Host",
    "Machine",
    "Path",
    "Platform",
    "ProfileInput",
    "ProfileSummary",
    "ProfileUse",
    "Resource",
    "Tier",
    "list_profiles",
    "load_platform",
    "load_profile",
]
