"""Model families, one file a lineage: from a configuration in Hugging Face's names to a list of modules.

A file that is no lineage's has the name of its family and defines that one class. A family of your own is a
class that derives from :class:`FamilyConfig`, in a module that calls
:func:`register`; from then on every command, schema and message includes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules
from typing import TypeVar

from simoffload.models.families.base import FamilyConfig

__all__ = [
    "FAMILIES",
    "OWN_FILES",
    "FamilyConfig",
    "family_called",
    "family_of_class",
    "register",
    "registered_outside",
]

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
"""Families of lineages that share a file: the module and class of each."""
_SHARED = {
    "base",
    "experts",
    "recurrent",
    "rotary",
    "sparse",
    "streams",
    *(one.partition(".")[0] for one in _OWN.values()),
}
OWN_FILES = tuple(one.name for one in iter_modules(__path__) if one.name not in _SHARED)
"""Families with a file of their own, which has the name of the family."""


class _Families(MutableMapping[str, type[FamilyConfig]]):
    """The package's own families, each imported on first use, and those that were registered."""

    def __init__(self) -> None:
        self._known: dict[str, type[FamilyConfig] | None] = dict.fromkeys((*_OWN, *OWN_FILES))

    def __getitem__(self, name: str) -> type[FamilyConfig]:
        name = _key(name)
        family = self._known[name]
        if family is None:
            module, _, kind = _OWN.get(name, name).partition(".")
            found = vars(import_module(f"{__name__}.{module}"))
            family = self._known[name] = found[kind] if kind else _only(found)
        return family

    def __setitem__(self, name: str, family: type[FamilyConfig]) -> None:
        self._known[_key(name)] = family

    def __delitem__(self, name: str) -> None:
        del self._known[_key(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: object) -> bool:
        return _key(name) in self._known  # without importing it


def _key(name: object) -> str:
    """Return the name of a family as files have it."""
    return str(name).replace("-", "_")


def _only(found: Mapping[str, object]) -> type[FamilyConfig]:
    """Return the family that a file defines."""
    named = [one for one in found.values() if isinstance(one, type) and issubclass(one, FamilyConfig)]
    return next(one for one in named if one.__module__ == found["__name__"] and not isabstract(one))


FAMILIES = _Families()
"""All known families, by the ``model_type`` of Hugging Face's config.json."""


def family_called(model_type: object) -> type[FamilyConfig] | None:
    """Return the family of a ``model_type``, of which it may be an alias; None for an unknown one."""
    if model_type in FAMILIES:
        return FAMILIES[str(model_type)]
    return next((one for one in FAMILIES.values() if model_type in one.aliases), None)


def family_of_class(name: str) -> type[FamilyConfig] | None:
    """Return the first family of an architecture, such as "LlamaForCausalLM"; None for an unknown one."""
    return next((one for one in FAMILIES.values() if one.traits.architecture == name), None)


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
    return tuple(FAMILIES[name] for name in FAMILIES if name not in (*_OWN, *OWN_FILES))
