"""Metrics: each is declared once, and results, tables, JSON, sweeps, limits, pages and docs use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, TypeVar, overload

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
R = TypeVar("R")


class Unit(NamedTuple):
    """A Unit is a unit of metrics: how its numbers are written and read, and which are usually better."""

    name: str
    text: Callable[[float], str]
    better: Better = ""
    parse: Callable[[str], float] = float


_UNITS = {
    "bytes_per_s": Unit("B/s", lambda rate: format_rate(round(rate)), "higher", parse_rate),
    "_per_s": Unit("1/s", per_second, "higher"),
    "_s": Unit("s", format_seconds, "lower", parse_seconds),
    "_bytes": Unit("B", lambda size: format_bytes(round(size)), parse=parse_bytes),
    "tflops_per_gpu": Unit("TFLOP/s", lambda rate: f"{format_number(rate)} TFLOP/s", "higher"),
    "": Unit("", percent),
}
"""Units by the ends of the names of metrics; what has none of them is a fraction."""


@dataclass(frozen=True, eq=False)
class Metric:
    """A Metric is a number of a kind of result: how it is computed, and all that is said of it anywhere."""

    name: str
    """Name in results, JSON and tables of numbers, which ends with its unit."""
    value: Callable[[Any], float | None]
    """Function of a result; None where the result has no such number."""
    label: str
    """Name for people: "time per step"."""
    formula: str
    """How it is computed; ``{result.…}`` stands for words of the result."""
    unit: Unit
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
    elsewhere: str = ""
    """Names in other tools, for the reference."""

    @property
    def larger(self) -> bool:
        """Whether the larger value is the better one."""
        return self.better == "higher"

    def short(self, value: float) -> str:
        """Return a value below or beside a name that says what a rate counts."""
        return per_second(value, "") if self.unit.name == "1/s" else self.text(value)


class MetricAttribute:
    """A MetricAttribute is the attribute of results that is a metric; a result computes it once."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.__module__ = metric.value.__module__

    @overload
    def __get__(self, result: None, kind: Any = None) -> Self: ...

    @overload
    def __get__(self, result: object, kind: Any = None) -> float | None: ...

    def __get__(self, result: object | None, kind: Any = None) -> Self | float | None:
        if result is None:
            return self
        found = vars(result)[self.metric.name] = self.metric.value(result)
        return found

    def __reduce__(self) -> str:
        return self.metric.value.__qualname__  # its name in the module, which whoever unpacks it imports


def metric(
    label: str,
    formula: str,
    *,
    better: Better | None = None,
    text: Callable[[float], str] | None = None,
    title: str = "",
    **more: Any,
) -> Callable[[Callable[[R], float | None]], MetricAttribute]:
    """Return the decorator that makes a function of a result a metric of the same name.

    It is a method of the class of the results, or a function that is registered with the class. The unit is
    that with which the name ends, and says how values are written and which are better unless ``text`` and
    ``better`` do; all arguments are fields of ``Metric``.
    """

    def declared(value: Callable[[R], float | None]) -> MetricAttribute:
        name = value.__name__
        unit = next(unit for end, unit in _UNITS.items() if name.endswith(end))
        best = unit.better if better is None else better
        capital = title or label[:1].upper() + label[1:]
        shown = text or unit.text
        return MetricAttribute(Metric(name, value, label, formula, unit, shown, best, capital, **more))

    return declared
