"""Model families: one file each, from a configuration in Hugging Face's names to a list of modules.

A family of your own is a class that derives from :class:`FamilyConfig`, in a module that calls
:func:`register`; from then on every command, schema and message knows it.
"""

from __future__ import annotations

from typing import TypeVar

from simoffload.models.families.base import FamilyConfig
from simoffload.models.families.bloom import Bloom
from simoffload.models.families.falcon import Falcon
from simoffload.models.families.gemma2 import Gemma2
from simoffload.models.families.gemma3_text import Gemma3Text
from simoffload.models.families.gpt_neox import GptNeoX
from simoffload.models.families.llama import Llama
from simoffload.models.families.mistral import Mistral
from simoffload.models.families.mixtral import Mixtral
from simoffload.models.families.opt import Opt
from simoffload.models.families.phi3 import Phi3
from simoffload.models.families.qwen2 import Qwen2
from simoffload.models.families.qwen3 import Qwen3

__all__ = ["FAMILIES", "FamilyConfig", "register", "registered_outside"]

FAMILIES: dict[str, type[FamilyConfig]] = {}
"""By the ``model_type`` of Hugging Face's config.json."""

Family = TypeVar("Family", bound=type[FamilyConfig])


def register(family: Family) -> Family:
    """Make a family known; also a decorator. Worker processes import the module in which it is defined.

    A class that is defined anew, as by running a cell of a notebook again, takes the place of the old one.
    Raises ValueError where another family has its ``model_type``.
    """
    known = FAMILIES.get(family.family, family)
    if (known.__module__, known.__qualname__) != (family.__module__, family.__qualname__):
        raise ValueError(f"the family {family.family} is known already, as {known.__qualname__}")
    FAMILIES[family.family] = family
    return family


def registered_outside() -> tuple[type[FamilyConfig], ...]:
    """Families from outside of this package, which another process has to import first."""
    package = __name__.partition(".")[0]
    return tuple(one for one in FAMILIES.values() if one.__module__.partition(".")[0] != package)


for _family in (Bloom, Opt, Llama, Mixtral, Qwen2, Qwen3, Mistral, Gemma2, Gemma3Text, Phi3, GptNeoX, Falcon):
    register(_family)
