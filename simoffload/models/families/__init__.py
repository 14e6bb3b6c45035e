"""Model families, one file a lineage: from a configuration in Hugging Face's names to a list of modules.

A family of your own is a class that derives from :class:`FamilyConfig`, in a module that calls
:func:`register`; from then on every command, schema and message includes it.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import TypeVar

from simoffload.models.families.base import FamilyConfig

__all__ = ["FAMILIES", "FamilyConfig", "register", "registered_outside"]

_OWN = {
    "bloom": "gpt.Bloom",
    "opt": "gpt.Opt",
    "llama": "llama.Llama",
    "mixtral": "mixtures.Mixtral",
    "qwen2": "qwen.Qwen2",
    "qwen3": "qwen.Qwen3",
    "mistral": "llama.Mistral",
    "gemma2": "gemma.Gemma2",
    "gemma3_text": "gemma.Gemma3Text",
    "phi3": "llama.Phi3",
    "gpt_neox": "gpt.GptNeoX",
    "falcon": "gpt.Falcon",
    "qwen2_moe": "qwen.Qwen2Moe",
    "qwen3_moe": "qwen.Qwen3Moe",
    "deepseek_v2": "deepseek.DeepseekV2",
    "deepseek_v3": "deepseek.DeepseekV3",
    "kimi_k2": "deepseek.KimiK2",
    "gpt_oss": "mixtures.GptOss",
    "llama4_text": "mixtures.Llama4Text",
    "glm4_moe": "mixtures.Glm4Moe",
    "phimoe": "mixtures.PhiMoe",
    "olmo2": "llama.Olmo2",
    "minimax_m2": "mixtures.MiniMaxM2",
    "qwen3_next": "qwen.Qwen3Next",
}
"""The package's own families: the module and class of each."""


class _Families(MutableMapping[str, type[FamilyConfig]]):
    """The package's own families, each imported on first use, and those that were registered."""

    def __init__(self) -> None:
        self._known: dict[str, type[FamilyConfig] | None] = dict.fromkeys(_OWN)

    def __getitem__(self, name: str) -> type[FamilyConfig]:
        family = self._known[name]
        if family is None:
            module, kind = _OWN[name].split(".")
            family = self._known[name] = getattr(import_module(f"{__name__}.{module}"), kind)
        return family

    def __setitem__(self, name: str, family: type[FamilyConfig]) -> None:
        self._known[name] = family

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: object) -> bool:
        return name in self._known  # without importing it


FAMILIES = _Families()
"""All known families, by the ``model_type`` of Hugging Face's config.json."""

Family = TypeVar("Family", bound=type[FamilyConfig])


def register(family: Family) -> Family:
    """Register a family; also a decorator. Worker processes import the module in which it is defined.

    A class that is defined again, as by running a cell of a notebook again, replaces the old one. Raises
    ValueError where another family has its ``model_type``.
    """
    known = FAMILIES.get(family.family, family)
    if (known.__module__, known.__qualname__) != (family.__module__, family.__qualname__):
        raise ValueError(f"the family {family.family} is already registered, as {known.__qualname__}")
    FAMILIES[family.family] = family
    return family


def registered_outside() -> tuple[type[FamilyConfig], ...]:
    """Return the families from outside of this package, which another process has to import first."""
    return tuple(FAMILIES[name] for name in FAMILIES if name not in _OWN)
