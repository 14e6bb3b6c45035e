"""Axes of a sweep: the section ``sweep`` of a scenario, what is varied, and the values it takes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from simoffload.documents import Document, Location, key_path, parse_path, quoted, read_option, validate
from simoffload.errors import InputError, Problem, shortened

_QUANTITY = re.compile(r"([-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?) *([^\W\d_].{0,20})?")
_FORMS = "write {choices: [1, 2, 4]} or {range: {min: 1, max: 8, step: 1}}"


class Bound(NamedTuple):
    """An end or a step of a range: a number, or a quantity such as ``10 GB/s``."""

    value: Decimal
    unit: str
    """Unit as written; empty for a plain number."""
    written: int | float | str

    def __str__(self) -> str:
        return shortened(str(self.written))


def _bound(written: Any) -> Bound:
    match = None
    if isinstance(written, int | float | str) and not isinstance(written, bool):
        match = _QUANTITY.fullmatch(str(written).strip())
    try:
        if match:
            return Bound(Decimal(match[1]), match[2] or "", written)
    except InvalidOperation:
        pass
    raise ValueError(f'must be a number or a quantity such as 10 GB/s, got "{shortened(str(written))}"')


def _word(name: str) -> str:
    if not name.isidentifier():
        raise ValueError("must be a word of letters, digits and _, which constraints can use")
    return name


_BOUND_SCHEMA = {"anyOf": [{"type": "number"}, {"type": "string"}]}
_Bound = Annotated[Bound, PlainValidator(_bound), WithJsonSchema(_BOUND_SCHEMA)]
_Word = Annotated[str, AfterValidator(_word), Field(json_schema_extra={"pattern": r"^[^\W\d]\w*$"})]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _one_of(*keys: str) -> ConfigDict:
    """Return the JSON schema of an object that gives exactly one of some keys; null counts as not given."""
    given: list[JsonValue] = [
        {"required": [key], "properties": {key: {"not": {"type": "null"}}}} for key in keys
    ]
    return ConfigDict(json_schema_extra={"oneOf": given})


class RangeSection(_Section):
    """Values from min to max, numbers or quantities such as 10 GB/s; give either step or n."""

    model_config = _one_of("step", "n")

    min: _Bound
    """Lower end of the range, its first value."""
    max: _Bound
    """Upper end of the range, which no value exceeds."""
    step: _Bound | None = None
    """Distance between neighbouring values of the range."""
    n: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Number of values, including both ends."""
    scale: Literal["linear", "log"] = "linear"
    """Spacing of the ``n`` values between the ends."""

    @model_validator(mode="after")
    def _is_decided(self) -> Self:
        if (self.step is None) == (self.n is None):
            raise ValueError("give either step or n (how many values)")
        return self


class AxisSection(_Section):
    """The values of one path."""

    model_config = _one_of("choices", "range")

    choices: Annotated[list[Any], Field(min_length=1)] | None = None
    """Values of the axis, in this order."""
    range: RangeSection | None = None
    """Range from which the values of the axis are made."""
    name: _Word | None = None
    """Name of the axis in columns and constraints; by default the path."""

    @model_validator(mode="before")
    @classmethod
    def _is_mapping(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise ValueError(f"must be a mapping; {_FORMS}")
        return data

    @model_validator(mode="after")
    def _is_decided(self) -> Self:
        if (self.choices is None) == (self.range is None):
            raise ValueError(f"give either choices or range; {_FORMS}")
        return self


class SweepSection(_Section):
    """Section that defines what ``simoffload sweep`` varies; other commands ignore it."""

    axes: dict[str, AxisSection] = {}
    """Paths in the scenario, such as workload.batch_size, with the values they take."""
    constraints: tuple[str, ...] = ()
    """Points to keep, such as "workload.batch_size * strategy.ranks <= 256"."""


Complaint = Callable[[str, str], Exception]
"""Makes the exception for what is wrong with a key."""
Value = int | float | str

_DIGITS = Context(prec=12)
"""Significant digits of values between two ends: enough for any setting, no trace of binary fractions."""
_EXACT = Context(prec=40)


def expand(spec: RangeSection, complain: Complaint, *, most: int) -> tuple[Value, ...]:
    """Return all values of a range, with both ends where the step meets them.

    Between ends that are written as whole numbers, n gives whole numbers, each once; between 1.0 and 8.0 it
    does not. Raises what ``complain`` makes.
    """
    low, high = spec.min, spec.max
    if low.unit != high.unit:
        raise complain("max", f"must have the unit of min, {low.unit or 'which is a plain number'}")
    if low.value > high.value:
        raise complain("min", f"{low} is above max, {high}; exchange them")
    if spec.scale == "log" and low.value <= 0:
        raise complain("min", f"must be above 0 on a logarithmic scale, got {low}")
    if spec.step is not None:
        numbers = _stepped(spec, spec.step, complain, most)
    else:
        count = spec.n or 1
        if count > most:
            raise complain("n", f"{count:,} values are more than the {most:,} that a sweep may have")
        numbers = _spaced(low.value, high.value, count, log=spec.scale == "log")
        if isinstance(low.written, int) and isinstance(high.written, int):
            numbers = _rounded(numbers, complain)
    floats = any(isinstance(one.written, float) for one in (low, high, spec.step) if one)
    return tuple(_plain(number, low.unit, floats=floats) for number in numbers)


def _rounded(numbers: list[Decimal], complain: Complaint) -> list[Decimal]:
    """Return whole numbers, each once."""
    between = numbers[-1] - numbers[0] + 1
    if between < len(numbers):
        low, high = numbers[0], numbers[-1]
        text = f"there are only {between} whole numbers from {low} to {high}; write {low}.0 for fractions"
        raise complain("n", text)
    return list(dict.fromkeys(number.to_integral_value(ROUND_HALF_UP) for number in numbers))


def _spaced(low: Decimal, high: Decimal, count: int, *, log: bool) -> list[Decimal]:
    if count == 1 or low == high:
        return [low]
    if not log:
        gaps = [_DIGITS.create_decimal(low + (high - low) * i / (count - 1)) for i in range(1, count - 1)]
        return [low, *gaps, high]
    ratio = math.log(float(high / low)) / (count - 1)
    inner = (Decimal(float(low) * math.exp(ratio * i)) for i in range(1, count - 1))
    return [low, *(_DIGITS.create_decimal(number) for number in inner), high]


def _stepped(spec: RangeSection, step: Bound, complain: Complaint, most: int) -> list[Decimal]:
    low = spec.min
    if spec.scale == "log":
        raise complain("step", "a logarithmic scale has no step; give n (how many values)")
    if step.unit != low.unit:
        unit = f" in {low.unit}, as min" if low.unit else ""
        raise complain("step", f'must be a number{unit}, got "{step}"')
    if step.value <= 0:
        raise complain("step", f"must be above 0, got {step}")
    count = _EXACT.divide(spec.max.value - low.value, step.value).to_integral_value(ROUND_FLOOR) + 1
    if count > most:
        raise complain("step", f"gives more than the {most:,} values that a sweep may have")
    return [low.value + i * step.value for i in range(int(count))]


def _plain(number: Decimal, unit: str, *, floats: bool) -> Value:
    if unit:
        return f"{_decimal_text(number)} {unit}"
    if number == number.to_integral_value() and not floats:
        return int(number)
    return float(number)


def _decimal_text(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


AXIS_OPTION = "--axis"
_NAMED = 3
"""Number of values that a message names."""
_RANGE = re.compile(r"\s*range\s*\((.*)\)\s*", re.DOTALL)


class Axis(NamedTuple):
    """An Axis is a path of a scenario that is varied, with its values."""

    name: str
    """Name of the column and in constraints: the path unless the axis has a name of its own."""
    location: Location
    """Place of the values within the scenario."""
    values: tuple[Any, ...]
    texts: tuple[str, ...]
    """Values of the axis as written."""
    written: Problem
    """Place where the axis is defined, for error messages."""
    places: tuple[Problem, ...] = ()
    """Place where each value is written in a file; () for a range, and on the command line."""

    @property
    def short(self) -> str:
        """Last key of the axis's path."""
        return str(self.location[-1])

    def refused(self, messages: Mapping[int, str]) -> Problem:
        """Return the error for values of the axis that the scenario refuses.

        ``messages`` maps the index of each such value to its message; they may differ only in the value that
        was refused.
        """
        (first, message), *others = messages.items()
        if len(messages) == len(self.values):
            return self.written._replace(message=message)
        place = self.places[first] if self.places else self.written
        if others:
            names = [quoted(self.texts[i]) for i in messages]
            message = message.partition(", got ")[0]
            message = f"{' and '.join(names[:_NAMED])}{' and more' if names[_NAMED:] else ''}: {message}"
        elif quoted(self.texts[first]) not in message and not message.endswith(f"got {self.texts[first]}"):
            message = f"{quoted(self.texts[first])}: {message}"
        return place._replace(message=message)


class _Place(NamedTuple):
    """The place where an axis is written: in a file, or on the command line."""

    document: Document
    location: Location

    def at(self, *keys: str | int) -> _Place:
        return self._replace(location=(*self.location, *keys))

    def problem(self, message: str) -> Problem:
        return self.as_shown(self.document.problem(self.location, message))

    def as_shown(self, problem: Problem) -> Problem:
        """A problem with the path of an axis as it was written in the option."""
        if self.document.path != AXIS_OPTION:
            return problem
        path = str(self.location[0])
        return problem._replace(key=problem.key.replace(quoted(path), path, 1))

    def error(self, message: str) -> InputError:
        return InputError((self.problem(message),))


def axes_of(
    document: Document, location: Location, axes: dict[str, AxisSection], *, most: int
) -> Iterator[Axis]:
    """Yield the axes of a mapping in a document. Raises InputError."""
    for path, spec in axes.items():
        yield _axis(path, spec, _Place(document, (*location, path)), most)


def parse_axis(text: str, *, most: int) -> Axis:
    """Read ``path=1,2,4``, ``path=range(min=1, max=8, step=1)`` or ``path={choices: …}``.

    Raises InputError.
    """
    path, equals, values = text.partition("=")
    path = path.strip()
    if not equals or not values.strip():
        text = f'"{shortened(text)}" has no values; write e.g. workload.batch_size=1,2,4'
        raise InputError.at("", text, path=AXIS_OPTION)
    called = _RANGE.fullmatch(values)
    if values.lstrip().startswith("range") and (called is None or "=" not in called[1]):
        text = "write a range as range(min=1, max=64, step=1) or range(min=1, max=64, n=7, scale=log)"
        raise InputError.at(path, text, path=AXIS_OPTION)
    if called is not None:
        values = "{range: {" + called[1].replace("=", ": ") + "}}"
    elif not values.lstrip().startswith(("{", "[")):
        values = f"[{values}]"
    tree = read_option(values, option=AXIS_OPTION, key=path)
    data = {"choices": tree.data} if isinstance(tree.data, list) else tree.data
    prefix = (path, "choices") if isinstance(tree.data, list) else (path,)
    marks = {(*prefix, *location): mark for location, mark in tree.marks.items()}
    place = _Place(Document(AXIS_OPTION, {path: data}, None, marks), (path,))
    try:
        spec = validate(place.document, AxisSection, at=(path,))
    except InputError as error:
        raise InputError(map(place.as_shown, error.problems)) from None
    return _axis(path, spec, place, most)


def _axis(path: str, spec: AxisSection, place: _Place, most: int) -> Axis:
    try:
        location = parse_path(path)
    except InputError as error:
        raise place.error(error.problems[0].message) from None
    name = spec.name or key_path(location)
    places: tuple[Problem, ...] = ()
    if spec.range is None:
        values, texts = _choices(spec.choices or [], place.at("choices"), most)
        if place.document.path != AXIS_OPTION:
            places = tuple(place.at("choices", i).problem("") for i in range(len(values)))
    else:

        def complain(key: str, message: str) -> InputError:
            return place.at("range", key).error(message)

        values = expand(spec.range, complain, most=most)
        texts = tuple(map(str, values))
    return Axis(name, location, values, texts, place.problem(""), places)


def _choices(values: list[Any], place: _Place, most: int) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    if len(values) > most:
        raise place.error(f"{len(values):,} values are more than the {most:,} that a sweep may have")
    written = (place.document.written((*place.location, i)) for i in range(len(values)))
    return tuple(values), tuple(_text(*pair) for pair in zip(values, written, strict=True))


def _text(value: Any, written: str | None) -> str:
    if isinstance(value, str):
        return value
    return written if written is not None else json.dumps(value, ensure_ascii=False)


def same_names(axes: Sequence[Axis]) -> str | None:
    """Return a name that two axes share; None if there is none."""
    names = [axis.name for axis in axes]
    return next((name for name in names if names.count(name) > 1), None)
