"""Metrics: each is declared once, and results, tables, JSON, sweeps, limits, pages and docs use it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import simoffload.units as units

if TYPE_CHECKING:
    from simoffload.results.passes import PassResult

# -- conversion of results to plain values for JSON and tables -------------------------------------


def plain(value: Any) -> Any:
    """Convert a value to numbers, texts, lists and dictionaries.

    An object with a method ``to_dict`` is converted by it; of any other dataclass or named tuple all fields
    are converted. Raises TypeError for other types.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Fraction):
        return float(value)
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "_fields"):
        return {name: plain(getattr(value, name)) for name in value._fields}
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, list | tuple | Set):
        return [plain(inner) for inner in value]
    raise TypeError(f"{type(value).__name__} has no plain value")


def by_name(one: object, names: str) -> dict[str, Any]:
    """Return attributes of an object by name, as plain values.

    ``names`` are separated by spaces, in the order of the output; ``key=attribute`` renames an attribute, as
    in ``bytes=size``.
    """
    pairs = (name.partition("=") for name in names.split())
    return {key: plain(getattr(one, attribute or key)) for key, _, attribute in pairs}


def interval_columns(metric: str) -> tuple[str, str, str]:
    """Return the names of the columns of a metric and of both ends of its interval."""
    return metric, f"{metric}_p10", f"{metric}_p90"


def with_intervals(
    metrics: Mapping[str, float | None], intervals: Mapping[str, tuple[float, float]]
) -> dict[str, float | None]:
    """Return metrics by the names of their columns, each followed by both ends of its interval, if it has
    one."""
    found: dict[str, float | None] = {}
    for name, value in metrics.items():
        found |= dict(zip(interval_columns(name), (value, *intervals.get(name, ())), strict=False))
    return found


# -- metrics ---------------------------------------------------------------------------------------


V = TypeVar("V")
Better = Literal["lower", "higher", ""]
"""Direction in which a number is the better one; "" for neither."""
Passes: TypeAlias = "tuple[tuple[PassResult, float], ...]"
"""Passes with the time [s] of each."""


class MetricUnit(NamedTuple):
    """A MetricUnit says how numbers in a unit are written and read, and which of them are usually better."""

    name: str
    text: Callable[[float], str]
    better: Better = ""
    parse: Callable[[str], float] = float


_UNITS = (
    MetricUnit("s", units.format_seconds, "lower", units.parse_seconds),
    MetricUnit("1/s", units.per_second, "higher"),
    MetricUnit("B", lambda size: units.format_bytes(round(size)), parse=units.parse_bytes),
    MetricUnit("B/s", lambda rate: units.format_rate(round(rate)), "higher", units.parse_rate),
    MetricUnit("TFLOP/s", lambda rate: f"{units.format_number(rate)} TFLOP/s", "higher"),
    MetricUnit("W", units.format_watts, "lower"),
    MetricUnit("J", lambda energy: f"{units.format_number(energy)} J", "lower"),
    MetricUnit("kWh", lambda energy: f"{units.format_number(energy)} kWh", "lower"),
    MetricUnit("currency", units.format_number, "lower"),
    MetricUnit("", units.percent),
)
_NUMBER = re.compile(r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?) *([^\d\s.].*)")
_ALSO = {"tokens/s": ("token/s", "tok/s", "t/s")}
"""What benchmark tools write for a unit."""
_DOCSTRING = re.compile(r"(?P<label>[^:\[]+?)( \[(?P<unit>[^]]*)\])?: (?P<formula>.*?)\.?")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A Metric is a number of a kind of result, with all that is said of it anywhere."""

    name: str
    """Name in results, JSON and tables of numbers."""
    label: str
    """Name for people: "time per step"."""
    unit: MetricUnit
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
    is_listed: bool = True
    """Whether people read it in reports, and not only programs."""

    @property
    def larger(self) -> bool:
        """Whether the larger value is the better one."""
        return self.better == "higher"

    @property
    def written_unit(self) -> str:
        """The unit as people write it: "tokens/s", "ms"; "" for a number without one."""
        return self.text(1.0).partition(" ")[2] or self.unit.name

    def parse(self, text: str) -> float:
        """Read a value with its unit, as "17 tokens/s" or "200 ms", or without one where numbers have one
        unit. Raises ValueError."""
        if self.unit.parse is not float:
            return self.unit.parse(text)
        with suppress(ValueError):
            return float(text)
        if found := _NUMBER.fullmatch(text.strip()):
            number, unit = float(found[1]), found[2]
            if units.is_unit(self.unit.name):
                return units.in_unit(text.strip(), self.unit.name)
            if unit in (self.written_unit, *_ALSO.get(self.written_unit, ())):
                return number / float(self.text(1.0).partition(" ")[0])  # a fraction is written as percent
        raise ValueError(f"is no number in {self.written_unit or '1'}")

    def short(self, value: float) -> str:
        """Return a value below or beside a name that says what a rate counts."""
        return units.per_second(value, "") if self.unit.name == "1/s" else self.text(value)


class MetricAttribute(cached_property[V], Generic[V]):
    """A MetricAttribute is the attribute of results that is a metric; a result computes it once."""

    def __init__(self, value: Callable[[Any], V], **fields: Any) -> None:
        """Read name, label, unit and formula from the docstring "Label [unit]: formula." of a function.

        Raises ValueError for a docstring of another form, and for an unknown unit.
        """
        super().__init__(value)
        self.__module__, name = value.__module__, value.__name__
        stated = _DOCSTRING.fullmatch(" ".join((value.__doc__ or "").split()))
        unit = next((one for one in _UNITS if stated and one.name == (stated["unit"] or "")), None)
        if stated is None or unit is None:
            known = ", ".join(one.name for one in _UNITS if one.name)
            removed = "; python -OO removes docstrings: use -O" if sys.flags.optimize > 1 else ""
            text = f'{name}: write its docstring as "Label [unit]: formula."; units: {known}{removed}'
            raise ValueError(text)
        title = stated["label"]
        label = title if title[1:2].isupper() else title[:1].lower() + title[1:]
        usual: dict[str, Any] = {"text": unit.text, "better": unit.better, "title": title}
        self.metric = Metric(name=name, label=label, unit=unit, formula=stated["formula"], **usual | fields)

    def __reduce__(self) -> str:
        return self.func.__qualname__  # its name in the module, which whoever unpacks it imports


def metric(**fields: Any) -> Callable[[Callable[[Any], V]], MetricAttribute[V]]:
    """Return the decorator that makes a function of a result a metric of its name.

    The docstring of the function is "Label [unit]: formula.", and ``fields`` are those of ``Metric``; the
    unit says how values are written and which are better, unless ``text`` and ``better`` do.
    """
    return partial(MetricAttribute, **fields)


def declared_in(kind: type) -> dict[str, Metric]:
    """Return the metrics that a class itself declares, by name."""
    return {one.metric.name: one.metric for one in vars(kind).values() if isinstance(one, MetricAttribute)}


class WithMetrics:
    """Something with metrics, which its class declares with ``metric``."""

    declared: ClassVar[dict[str, Metric]] = {}
    """Metrics of this kind by name, in the order of reading."""

    def __init_subclass__(cls) -> None:
        cls.declared = cls.declared | declared_in(cls)

    def metrics(self) -> dict[str, Any]:
        """Return all metrics by name; None for those without a value, unless they are omitted then."""
        found = ((one, getattr(self, name)) for name, one in self.declared.items())
        return {one.name: value for one, value in found if value is not None or not one.optional}

    @classmethod
    def register(cls, attribute: MetricAttribute[Any]) -> MetricAttribute[Any]:
        """Give this kind a further metric, which all commands then know; also a decorator.

        Registering a metric again, for example by running a cell of a notebook twice, replaces the earlier
        one. Raises ValueError if there is something else of that name.
        """
        name, others = attribute.metric.name, {*dir(cls), *getattr(cls, "__dataclass_fields__", ())}
        known = registered.get((cls, name))
        if name in others and (known is None or known.__module__ != attribute.__module__):
            raise ValueError(f"{cls.__name__} has {name} already; give the metric another name")
        same = [one.name for one in cls.declared.values() if one.column == attribute.metric.column != ""]
        if same not in ([], [name]):
            raise ValueError(f"{name}: {same[0]} has the column {attribute.metric.column}; name another one")
        attribute.__set_name__(cls, name)
        setattr(cls, name, attribute)
        cls.declared[name] = attribute.metric
        registered[cls, name] = attribute
        return attribute


registered: dict[tuple[type[WithMetrics], str], MetricAttribute[Any]] = {}
"""Metrics that were registered after their class was made, by the class and their names."""
all_passes = attrgetter("spent")
"""All passes of a result, of which what they make together consists."""
