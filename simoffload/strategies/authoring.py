"""All that a program from outside the package needs: a strategy made of fields, homes and hooks.

A program is one class that derives from ``HookedStrategy``: its fields are the keys of the section
``strategy``, ``homes`` says where each tensor is kept, and ``hooks`` lists what happens around the modules of
a pass. Memory, tiers, schedules and the key-value cache follow from them. ``register`` makes the program
known to every command, ``register_cache_format`` a format of the key-value cache. CONTRIBUTING has examples.
"""

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape, Module
from simoffload.results import Change
from simoffload.schedule import Cause, Dependency
from simoffload.strategies.cache.kv_cache import register_cache_format
from simoffload.strategies.held import Held
from simoffload.strategies.homes import HBM, Home, Homes
from simoffload.strategies.hooked import HookedPlan, HookedStrategy
from simoffload.strategies.hooks.staging import Prefetched
from simoffload.strategies.passes.pass_writer import (
    COMPUTE,
    STAGING,
    Call,
    ForwardPass,
    Hook,
    Part,
    PassWriter,
    StagePass,
)
from simoffload.strategies.passes.streams import HOST
from simoffload.strategies.registry import register
from simoffload.strategies.tunables import Placement, Placements, Tunable, Tunables

__all__ = [
    "COMPUTE",
    "HBM",
    "HOST",
    "STAGING",
    "Call",
    "Cause",
    "Change",
    "Dependency",
    "Edit",
    "ForwardPass",
    "Held",
    "Home",
    "Homes",
    "Hook",
    "HookedPlan",
    "HookedStrategy",
    "InputError",
    "Machine",
    "ModelShape",
    "Module",
    "Part",
    "PassWriter",
    "Placement",
    "Placements",
    "Prefetched",
    "StagePass",
    "Tunable",
    "Tunables",
    "register",
    "register_cache_format",
]
