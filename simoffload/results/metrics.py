"""Metrics: each is declared once, and results, tables, JSON, sweeps, limits, pages and docs use it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from simoffload.results.passes import PassResult
from simoffload.units import (
    format_bytes,
    format_number,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_rate,
    parse_seconds,
    per_second,
    percent,
)

Better = Literal["lower", "higher", ""]
"""Direction in which a number is the better one; "" for neither."""
Passes = tuple[tuple[PassResult, float], ...]
"""Passes with the time [s] of each."""


class Unit(NamedTuple):
    """A Unit is a unit of metrics: how its numbers are written and read, and which are usually better."""

    name: str
    text: Callable[[float], str]
    better: Better = ""
    parse: Callable[[str], float] = float


_UNITS = (
    Unit("s", format_seconds, "lower", parse_seconds),
    Unit("1/s", per_second, "higher"),
    Unit("B", lambda size: format_bytes(round(size)), parse=parse_bytes),
    Unit("B/s", lambda rate: format_rate(round(rate)), "higher", parse_rate),
    Unit("TFLOP/s", lambda rate: f"{format_number(rate)} TFLOP/s", "higher"),
    Unit("", percent),
)
_DOCSTRING = re.compile(r"(?P<label>[^:\[]+?)( \[(?P<unit>[^]]*)\])?: (?P<formula>.*?)\.?")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A Metric is a number of a kind of result, with all that is said of it anywhere."""

    name: str
    """Name in results, JSON and tables of numbers."""
    label: str
    """Name for people: "time per step"."""
    unit: Unit
    formula: str
    """How it is computed; ``{result.…}`` stands for words of the result."""
    text: Callable[[float], str]
    """Function that writes a value with its unit."""
    better: Better
    """Which numbers are better; a metric of which some are can be a limit."""
    title: str
    """Name for the beginning of a sentence."""
    of: Callable[[Any], Passes] | None = None
    """Passes of which it consists, whose errors are its error; without, it has no interval."""
    each: str = ""
    """Words after a value: "1.2 s per step"."""
    column: str = ""
    """Heading of its column in comparisons; "" for none."""
    is_part: bool = False
    """Whether it is a part of a step, of which it has a share."""
    optional: bool = False
    """Whether it is omitted where it has no value."""

    @property
    def larger(self) -> bool:
        """Whether the larger value is the better one."""
        return self.better == "higher"

    def short(self, value: float) -> str:
        """Return a value below or beside a name that says what a rate counts."""
        return per_second(value, "") if self.unit.name == "1/s" else self.text(value)


class MetricAttribute(cached_property[float | None]):
    """A MetricAttribute is the attribute of results that is a metric; a result computes it once."""

    def __init__(self, value: Callable[[Any], float | None], **fields: Any) -> None:
        """Read name, label, unit and formula from the docstring "Label [unit]: formula." of a function.

        Raises ValueError for a docstring of another form, and for an unknown unit.
        """
        super().__init__(value)
        self.__module__, name = value.__module__, value.__name__
        said = _DOCSTRING.fullmatch(" ".join((value.__doc__ or "").split()))
        unit = next((one for one in _UNITS if said and one.name == (said["unit"] or "")), None)
        if said is None or unit is None:
            known = ", ".join(one.name for one in _UNITS if one.name)
            raise ValueError(f'{name}: write its docstring as "Label [unit]: formula."; units: {known}')
        title = said["label"]
        label = title if title[1:2].isupper() else title[:1].lower() + title[1:]
        usual: dict[str, Any] = {"text": unit.text, "better": unit.better, "title": title}
        self.metric = Metric(name=name, label=label, unit=unit, formula=said["formula"], **usual | fields)

    def __reduce__(self) -> str:
        return self.func.__qualname__  # its name in the module, which whoever unpacks it imports


def metric(**fields: Any) -> Callable[[Callable[[Any], float | None]], MetricAttribute]:
    """Return the decorator that makes a function of a result a metric of its name.

    The docstring of the function is "Label [unit]: formula.", and ``fields`` are those of ``Metric``; the
    unit says how values are written and which are better, unless ``text`` and ``better`` do.
    """
    return partial(MetricAttribute, **fields)


whole = attrgetter("spent")
"""All passes of a result, of which what they make together consists."""
