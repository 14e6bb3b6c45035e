"""The parts that a model has beside its language model: towers and projectors of images and sounds.

They are tensors without work: a text passes by them, while they stay in memory (``towers.yaml``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, TypeAdapter

from simoffload.documents import Frozen, listing, parse_yaml
from simoffload.models.drafts import NOT_COUNTED
from simoffload.models.modules import Module, Parameter

_MOST = 10**12
"""Elements of a tensor, far above any, so that a typing error is not counted."""
_LONGEST = 1000
"""Layers of a tower, likewise."""


class Tower(Frozen):
    """A Tower is one entry of ``towers.yaml``."""

    name: str
    section: str = "vision_config"
    kinds: tuple[str, ...] = ()
    has: str = ""
    within: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    covers: tuple[str, ...] = ("tower", "projector")
    defaults: dict[str, int | float | str] = Field(default_factory=dict)
    sizes: dict[str, str] = Field(default_factory=dict)
    each: dict[str, str] = Field(default_factory=dict)
    conditions: dict[str, str] = Field(default_factory=dict, alias="if")
    tensors: dict[str, str]

    def is_in(self, kind: object, section: Mapping[str, Any]) -> bool:
        """Return whether a section of a model of the type ``kind`` describes it."""
        known = section.get("model_type") in self.kinds or (self.has and self.has in section)
        return (known or not (self.kinds or self.has)) and (not self.within or kind in self.within)


@cache
def _towers() -> tuple[Tower, ...]:
    text = Path(__file__).with_name("towers.yaml").read_text(encoding="utf-8")
    found = parse_yaml(text, name="towers.yaml").data
    return tuple(TypeAdapter(dict[str, Tower]).validate_python(found).values())


class Sizes(NamedTuple):
    """Sizes are what the keys of a configuration mean; a key that is missing raises KeyError."""

    keys: Mapping[str, Any]
    tower: Tower

    def of(self, text: str) -> int:
        """Return a sum of products."""
        return sum(self._product(one.split()) for one in text.split("+"))

    def _product(self, factors: list[str]) -> int:
        found, divides = 1.0, False
        for word in factors:
            if word != "/":
                value = self._number(word)
                found = found // value if divides else found * value
            divides = word == "/"
        if not 0 <= found <= _MOST:
            raise KeyError(" ".join(factors))
        return int(found)

    def _number(self, word: str) -> float:
        if word.isdecimal():
            return int(word)
        key, _, index = word.partition(".")
        value = self.keys.get(key, self.tower.defaults.get(key))
        if key in self.tower.sizes:
            value = self.of(self.tower.sizes[key])
        if isinstance(value, str):
            value = self._number(value)
        if isinstance(value, list):
            value = len(value) if not index else value[int(index)] if int(index) < len(value) else None
        if not isinstance(value, int | float):
            raise KeyError(key)
        return value

    def has(self, name: str) -> bool:
        """Return whether a tensor, or what begins with a name, is there."""
        for begin, key in self.tower.conditions.items():
            try:
                if name.startswith(begin) and not self._number(key):
                    return False
            except KeyError:
                return False
        return True


def _tensors(sizes: Sizes) -> Iterator[Parameter]:
    """Yield the tensors of a tower."""
    for name, text in sizes.tower.tensors.items():
        plain = name.lstrip("=/")
        rows, has_bias, columns = text.partition(";")
        length = sizes.of(rows)
        numel = length * (sizes.of(columns) if columns.strip() else 1)
        each = [("" if name.startswith("=") else ".weight", numel)]
        each += [(".bias", length)] if has_bias else []
        prefix, repeated, _ = plain.partition(".N")
        times = sizes.of(sizes.tower.each[prefix]) if repeated else 1
        if times > _LONGEST:
            raise KeyError(sizes.tower.each[prefix])
        for number in range(times):
            full = plain.replace(".N", f".{number}", 1)
            owner = full if "/" in name[:2] else f"{sizes.tower.name}.{full}"
            yield from (Parameter(owner + end, numel) for end, numel in each if sizes.has(plain + end))


class Beside(NamedTuple):
    """What a model has beside its language model."""

    modules: tuple[Module, ...] = ()
    notes: tuple[str, ...] = ()


def beside(outer: Iterable[Mapping[str, Any]], text_hidden_size: int) -> Beside:
    """Return the parts of a model that takes more than text, as modules that do nothing, and sentences about
    what they are and what of them is not counted.

    ``outer`` are the configurations around that of the language model, which is ``text_hidden_size`` wide.
    """
    made: list[Module] = []
    open_: list[str] = []
    for model in outer:
        assumed = [one for one in _towers() if model.get("model_type") in one.assumed]
        usual = {one.section: {"model_type": one.kinds[0]} for one in assumed if one.section not in model}
        for section, keys in {**model, **usual}.items():
            if NOT_COUNTED.search(section) and keys:
                modules, lacking = _parts({**model, section: keys}, section, text_hidden_size)
                made += modules
                open_ += [lacking] if lacking else []
    return Beside(tuple(made), tuple(_sentences(made, open_)))


def _parts(model: Mapping[str, Any], section: str, width: int) -> tuple[list[Module], str]:
    """Return the parts that a section describes, and what of them is not counted."""
    keys = model[section] if isinstance(model[section], Mapping) else {}
    found = [one for one in _towers() if one.section == section and one.is_in(model.get("model_type"), keys)]
    sizes = {"text_hidden_size": width, **model, **keys}
    covered = {part for one in found for part in one.covers}
    part = section.removesuffix("_config")
    if "tower" not in covered:
        return [], f"{part} and its projector"
    try:
        modules = [_module(one, Sizes(sizes, one)) for one in found]
    except KeyError as error:
        return [], f"{part} and its projector (no {error.args[0]} in {section})"
    return modules, "" if "projector" in covered else f"the projector of {part}"


def _module(tower: Tower, sizes: Sizes) -> Module:
    return Module(tower.name, "container", tuple(_tensors(sizes)), hooked=False, share=0.0)


def _sentences(made: Iterable[Module], open_: Sequence[str]) -> Iterator[str]:
    if open_:
        yield f"not counted, beside the language model: {listing(open_)}"
    parts = [f"{one.name} ({one.num_parameters:,})" for one in made]
    if parts:
        yield (f"parameters of {listing(parts)} are in memory, too, in 16 bits, and do no work for a text")
