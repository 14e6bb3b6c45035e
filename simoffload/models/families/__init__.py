"""Model families: one file each, from a configuration in Hugging Face's names to a list of modules."""

from __future__ import annotations

from simoffload.models.families.base import FamilyConfig
from simoffload.models.families.bloom import Bloom
from simoffload.models.families.llama import Llama
from simoffload.models.families.mixtral import Mixtral
from simoffload.models.families.opt import Opt

__all__ = ["FAMILIES", "FamilyConfig"]

FAMILIES: dict[str, type[FamilyConfig]] = {config.family: config for config in (Bloom, Opt, Llama, Mixtral)}
"""By the ``model_type`` of Hugging Face's config.json."""
