"""The definition of a sweep: its axes, the constraints on its points, and the grid of points."""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from itertools import permutations
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeGuard

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
from simpleeval import DEFAULT_OPERATORS, EvalWithCompoundTypes

from simoffload.documents import (
    Document,
    Edit,
    Location,
    edited,
    key_path,
    parse_path,
    quoted,
    read_option,
    renamed_key,
    suggest,
    validate,
    without,
)
from simoffload.errors import InputError, Problem, WorkLimitError, shortened
from simoffload.extensions.sweep.journal import AFTER
from simoffload.progress import steps
from simoffload.results import declared_metrics, interval_columns
from simoffload.scenario import (
    RENAMED,
    LoadedScenario,
    ScenarioCache,
    completed,
    old_form,
    opened,
    renamed,
    resolve,
)
from simoffload.scenario.cache import canonical
from simoffload.shipped import __version__
from simoffload.strategies import in_new_form
from simoffload.units import (
    parse_bytes,
    parse_flops,
    parse_flops_rate,
    parse_rate,
    parse_seconds,
    parse_watts,
)
from simoffload.workload import Inference

# -- axes of a sweep -------------------------------------------------------------------------------
# The section ``sweep`` of a scenario, what is varied, and the values it takes.


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
        numbers = _spaced_numbers(low.value, high.value, count, log=spec.scale == "log")
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


def _spaced_numbers(low: Decimal, high: Decimal, count: int, *, log: bool) -> list[Decimal]:
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


_ENDS = re.compile(r"(\d+)\.\.+(\d+)")
"""Both ends of a range, as ``reach --within`` takes them."""


def _choices(values: list[Any], place: _Place, most: int) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    if len(values) > most:
        raise place.error(f"{len(values):,} values are more than the {most:,} that a sweep may have")
    for one in values:
        if isinstance(one, str) and (ends := _ENDS.fullmatch(one)):
            first, last = ends.groups()
            text = (
                f"write the values, such as {first},{last}, or {{range: {{min: {first}, max: {last}, n: 4}}}}"
            )
            raise place.error(f"{quoted(one)} is no value; {text}")
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


# -- conditions on points, such as ``workload.batch_size * strategy.ranks <= 256`` -----------------
# A condition is an expression of Python with numbers, text, names, arithmetic, comparison, ``and``, ``or``,
# ``not`` and ``in``, and nothing else; simpleeval evaluates it. Text with a unit is a number in SI units.


Choice = tuple[int, ...]
"""Index of the value of each axis at a point."""
Term = Callable[[Choice], Any]
"""Function that returns the value of a name in a condition at a point."""
Find = Callable[[str], Term]
"""Function that resolves a name. Raises ConstraintError if the name is unknown."""

_LONGEST = 500
_UNREADABLE = "cannot be read; write e.g. workload.batch_size * strategy.ranks <= 256"
_PARSERS = (parse_rate, parse_bytes, parse_seconds, parse_flops_rate, parse_flops, parse_watts)


class ConstraintError(ValueError):
    """A ConstraintError is raised for a condition that cannot be parsed or evaluated."""


def operand(value: Any) -> Any:
    """Return a value as conditions see it: of text with a unit its number in SI units."""
    for parse in _PARSERS if isinstance(value, str) else ():
        try:
            return parse(value)
        except ValueError:
            continue
    return value


def compile_constraint(text: str, find: Find) -> Callable[[Choice], bool]:
    """Turn a condition into a function of a point. Raises ConstraintError, as that function does."""
    if len(text) > _LONGEST:
        raise ConstraintError(f"longer than {_LONGEST} characters; split it into several")
    reader = _NameReader(find)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        is_negation = isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not)
        if not is_negation and not isinstance(tree, ast.Compare | ast.BoolOp):
            raise ConstraintError("is not a condition; compare something, e.g. workload.batch_size <= 64")
        tree = reader.visit(tree)
    except ConstraintError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConstraintError(_UNREADABLE) from None
    evaluator = EvalWithCompoundTypes(operators=_OPERATORS, functions={})

    def holds(choice: Choice) -> bool:
        evaluator.names = {name: term(choice) for name, term in reader.terms.items()}
        try:
            return bool(evaluator.eval(text, previously_parsed=tree))
        except ZeroDivisionError:
            raise ConstraintError("divides by zero") from None
        except OverflowError:
            raise ConstraintError("has a number that is too large") from None
        except RecursionError:
            raise ConstraintError(_UNREADABLE) from None

    return holds


class _NameReader(ast.NodeTransformer):
    """Refuses what conditions may not hold, and writes the rest as simpleeval reads it: a path as one name,
    text with a unit as a number."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self.terms: dict[str, Term] = {}
        """Resolved names of the condition."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Read the parts of an operation; whatever else comes here is refused."""
        if type(getattr(node, "op", node)) in {ast.And, ast.Or, *_OPERATORS}:
            return super().generic_visit(node)
        raise ConstraintError(f'"{shortened(ast.unparse(node))}" is not possible in a condition')

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Make text with a unit a number in SI units; other text and numbers stay."""
        is_value = isinstance(node.value, bool | int | float | str)
        return ast.Constant(operand(node.value)) if is_value else self.generic_visit(node)

    def visit_Name(self, node: ast.expr) -> ast.AST:
        """Find what a name or a path stands for."""
        name = ast.unparse(node).replace("'", '"')
        self.terms[name] = self._find(name)
        return ast.Name(name, ast.Load())

    visit_Attribute = visit_Subscript = visit_Name  # noqa: N815

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Read all sides; lists stand behind ``in`` only."""
        sides = (node.left, *node.comparators)
        for left, op, right in zip(sides, node.ops, node.comparators, strict=False):
            is_listed = isinstance(op, ast.In | ast.NotIn)
            if type(op) not in _OPERATORS or _is_list(left) or _is_list(right) != is_listed:
                wrong = shortened(ast.unparse(left if _is_list(left) else right))
                raise ConstraintError(f'"{wrong}": write "x in (1, 2)" or "x == 1"')
        left, *others = (
            ast.Tuple([self.visit(one) for one in side.elts]) if _is_list(side) else self.visit(side)
            for side in sides
        )
        return ast.Compare(left, node.ops, others)


def _is_list(node: ast.expr) -> TypeGuard[ast.Tuple | ast.List]:
    return isinstance(node, ast.Tuple | ast.List)


def _of_numbers(action: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation that is refused for all but numbers."""

    def value(*operands: Any) -> Any:
        for one in operands:
            if isinstance(one, bool) or not isinstance(one, int | float):
                raise ConstraintError(f'"{shortened(str(one))}" is not a number')
        return action(*operands)

    return value


def _equal(left: Any, right: Any) -> bool:
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str) and one != "auto" and isinstance(other, int | float):
            raise ConstraintError(f'compares text ("{shortened(one)}") with a number')
    return bool(left == right)


_OF_NUMBERS = "Add Sub Mult Div FloorDiv Mod USub Lt LtE Gt GtE"
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    **{one: _of_numbers(DEFAULT_OPERATORS[one]) for one in (getattr(ast, n) for n in _OF_NUMBERS.split())},
    **{one: DEFAULT_OPERATORS[one] for one in (ast.Not, ast.In, ast.NotIn)},
    ast.Eq: _equal,
    ast.NotEq: lambda left, right: not _equal(left, right),
}
"""Implementation of each supported operation for simpleeval."""


# -- definition of a sweep -------------------------------------------------------------------------
# A scenario, its axes and constraints, and which points are equal.


_TRIED = 64
"""Number of combinations tried before a value, or a scenario, is refused as invalid in all of them."""
_CHECKED = 1000
"""Number of values of an axis that are checked before anything runs; of more, as many at equal distances."""
_REPORTED = 10
"""Number of different problems of an axis after which no more are looked for."""
NAME = "sweep"
"""The section of a scenario file that lists what a sweep varies."""
MOST_POINTS = 1_000_000


def reserved() -> frozenset[str]:
    """Return the names of columns that no axis may have."""
    return frozenset({"index", *AFTER, *(col for one in declared_metrics() for col in interval_columns(one))})


@dataclass(frozen=True)
class Grid:
    """A scenario and its axes: all combinations, the last axis changing fastest."""

    base: Document
    """Base scenario without its section ``sweep``."""
    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """Number of combinations before constraints."""
        return math.prod(len(axis.values) for axis in self.axes)

    def choice(self, index: int) -> Choice:
        """Return the index of the value of each axis in a combination."""
        digits = []
        for axis in reversed(self.axes):
            index, digit = divmod(index, len(axis.values))
            digits.append(digit)
        return tuple(reversed(digits))

    def values(self, index: int) -> tuple[Any, ...]:
        """Return the values of a combination, by axis."""
        return tuple(axis.values[i] for axis, i in zip(self.axes, self.choice(index), strict=True))

    def neighbourhood(self, index: int) -> Choice:
        """Return a key that sorts combinations so that those that differ only in their workload are
        neighbours: a worker can then use for one what it worked out for another."""
        pairs = list(zip(self.axes, self.choice(index), strict=True))
        outer = [digit for axis, digit in pairs if axis.location[0] != "workload"]
        return (*outer, *[digit for axis, digit in pairs if axis.location[0] == "workload"])

    def document(self, index: int) -> Document:
        """Return the scenario of a combination. Raises InputError for an axis that leads nowhere."""
        pairs = zip(self.axes, self.values(index), strict=True)
        return edited(self.base, (Edit(axis.location, value) for axis, value in pairs))

    def resolved(
        self, index: int, cache: ScenarioCache, *, similar: LoadedScenario | None = None
    ) -> LoadedScenario:
        """Return the scenario of a combination with all profiles. Raises InputError for one that is invalid,
        and for a context of an axis that prompt and output exceed."""
        scenario = resolve(self.document(index), cache=cache, similar=similar)
        if any(axis.location == _CONTEXT for axis in self.axes):
            work = scenario.scenario.workload
            if isinstance(work, Inference) and work.no_room:
                raise InputError.at(key_path(_CONTEXT), work.no_room)
        return scenario


_CONTEXT = ("workload", "context")


@dataclass(frozen=True)
class Sweep:
    """A Sweep is the complete definition of the points to compute."""

    grid: Grid
    constraints: tuple[str, ...]
    holds: tuple[Callable[[Choice], bool], ...]
    """Constraints compiled to functions of a point."""
    cache: ScenarioCache
    """Cache of what the scenarios of all points share."""
    of_options: tuple[str, ...] = ()
    """The constraints of the command line."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about renamed keys and kinds: of the axes, and of the scenario that they vary."""
        found = [
            axis.written._replace(message=renamed_key(RENAMED[path]))
            for axis in self.grid.axes
            if (path := key_path(axis.location)) in RENAMED
        ]
        kinds = (axis for axis in self.grid.axes if axis.location == ("strategy", "kind"))
        for axis in kinds:
            forms = {one: in_new_form({"kind": one})[1] for one in axis.values if isinstance(one, str)}
            texts = [old_form(text) for text in forms.values() if text]
            found += [axis.written._replace(message="; ".join(texts))] if texts else []
        varied = {key_path(axis.location) for axis in self.grid.axes}
        scenario = renamed(self.grid.document(0), []).warnings
        return tuple(map(str, (*found, *(one for one in scenario if one.key not in varied))))

    def combinations(self) -> Iterator[int]:
        """Yield the combinations that the constraints leave. Raises InputError for one that cannot be
        decided."""
        for index in range(self.grid.size):
            choice = self.grid.choice(index) if self.holds else ()
            for text, holds in zip(self.constraints, self.holds, strict=True):
                try:
                    if not holds(choice):
                        break
                except ConstraintError as error:
                    option = text in self.of_options
                    message = f"{error} ({self.described(index)})"
                    raise _constraint_error(text, message, option=option) from None
            else:
                yield index

    def described(self, index: int) -> str:
        """Return the description of a combination in words."""
        texts = (axis.texts[i] for axis, i in zip(self.grid.axes, self.grid.choice(index), strict=True))
        pairs = zip(self.grid.axes, texts, strict=True)
        return ", ".join(f"{axis.name} = {shortened(text)}" for axis, text in pairs)

    def identity(self, index: int) -> str:
        """Return a hash of a combination's scenario, equal for scenarios whose results cannot differ."""
        document = completed(self.grid.document(index), self.cache, [])
        return self.cache.cache_key(document.data, root=document.root)

    def description(self) -> dict[str, Any]:
        """Return the definition as plain values; the sweep's hash covers them and all file contents."""
        data = completed(self.grid.base, self.cache, []).data
        return {
            "version": __version__,
            "scenario": data,
            "axes": [
                {"name": axis.name, "path": key_path(axis.location), "values": list(axis.values)}
                for axis in self.grid.axes
            ],
            "constraints": list(self.constraints),
        }


def define_sweep(
    document: Document, *, axes: Sequence[str] = (), constraints: Sequence[str] = (), most: int = MOST_POINTS
) -> Sweep:
    """Read the section ``sweep`` of a scenario, and more axes and constraints as the command line has them.

    An axis of the command line replaces one of the section with the same path. Raises InputError for an
    invalid section or axis, for a value that the scenario cannot have, and for more than ``most``
    combinations.
    """
    has_section = document.data.get(NAME) is not None
    section = validate(document, SweepSection, at=(NAME,)) if has_section else SweepSection()
    found = {axis.location: axis for axis in axes_of(document, (NAME, "axes"), section.axes, most=most)}
    own = [parse_axis(text, most=most) for text in axes]
    _refuse_twice(own)
    found |= {axis.location: axis for axis in own}
    if not found:
        text = "nothing to vary: write axes into the section sweep, or give --axis workload.batch_size=1,2,4"
        raise InputError.at("", text, path=document.path)
    grid = Grid(_base_of(document, tuple(found)), tuple(found.values()))
    _check_names(grid, most)
    cache = ScenarioCache()
    grid = replace(grid, base=_with_files(grid, cache))
    _check_values(grid, cache)
    texts = (*section.constraints, *constraints)
    holds = [_constraint(text, grid) for text in section.constraints]
    holds += [_constraint(text, grid, option=True) for text in constraints]
    return Sweep(grid, texts, tuple(holds), cache, tuple(constraints))


def _base_of(document: Document, varied: tuple[Location, ...]) -> Document:
    """Return the scenario without its section ``sweep``, and without the line numbers of the values that
    change."""
    marks = {
        location: mark
        for location, mark in document.marks.items()
        if not any(location[: len(one)] == one for one in varied)
    }
    return replace(without(document, NAME), marks=marks)


def _refuse_twice(axes: Sequence[Axis]) -> None:
    locations = [axis.location for axis in axes]
    for location in locations:
        if locations.count(location) > 1:
            raise InputError.at(key_path(location), "is given twice", path="--axis")


def _check_names(grid: Grid, most: int) -> None:
    for axis in grid.axes:
        if axis.name in reserved():
            raise InputError(
                (axis.written._replace(message=f"{quoted(axis.name)} is the name of another column"),)
            )
        if axis.location[0] == NAME:
            text = "an axis cannot vary the section sweep; vary a key of the scenario"
            raise InputError((axis.written._replace(message=text),))
    twice = same_names(grid.axes)
    if twice is not None:
        second = [axis for axis in grid.axes if axis.name == twice][1]
        raise InputError((second.written._replace(message=f"another axis is also called {quoted(twice)}"),))
    for one, other in permutations(grid.axes, 2):
        if one.location == other.location[: len(one.location)]:
            text = f"is within the axis {shortened(one.name)}; vary one of them"
            raise InputError((other.written._replace(message=text),))
    if grid.size > most:
        sizes = " x ".join(f"{len(axis.values):,}" for axis in grid.axes)
        text = f"{sizes} = {grid.size:,} points are more than {most:,}; take fewer values"
        raise InputError.at("sweep.axes", f"{text} (--max-points allows more)")


def _with_files(grid: Grid, cache: ScenarioCache) -> Document:
    """Return the base with the content of a file in place of its path where an axis reaches into it."""
    base = grid.base
    for axis in grid.axes:
        base = opened(base, axis.location[:-1], cache)
    return base


# ---- values that no scenario can have are found before anything runs ----


def _check_values(grid: Grid, cache: ScenarioCache) -> None:
    """Raise InputError for values of axes that are invalid whatever the other axes are, and for a scenario
    that is invalid whatever the axes are.

    Each value is checked once, with the first values of the other axes. One that is invalid there is checked
    with other values of these, too: what is refused only in combination is a row of the table.
    """
    problems: list[Problem] = []
    for position, axis in enumerate(grid.axes):
        reasons: dict[tuple[str, str], dict[int, str]] = {}
        for i in _spaced(len(axis.values), _CHECKED):
            for one in _refusal(grid, position, i, cache):
                message = one.message if one.key == key_path(axis.location) else f"{one.key}: {one.message}"
                reasons.setdefault((one.key, one.message.partition(", got ")[0]), {})[i] = message
            if len(reasons) > _REPORTED:
                break
        problems += map(axis.refused, reasons.values())
    if problems:
        raise InputError(problems)
    first = _problems(grid, 0, cache)
    if first and all(_problems(grid, index, cache) for index in _spaced(grid.size, _TRIED)):
        raise InputError(first)


def _refusal(grid: Grid, position: int, value: int, cache: ScenarioCache) -> list[Problem]:
    """Return why a value of an axis is invalid with all values of the other axes that are tried; empty if it
    is not."""
    found: list[Problem] = []
    for index in _with_value(grid, position, value):
        problems = _problems(grid, index, cache)
        concern = [one for one in problems if _concerns(one, grid.axes[position])]
        if not concern:
            return []
        found = found or concern
    return found


def _with_value(grid: Grid, position: int, value: int) -> Iterator[int]:
    """Yield combinations with a value of an axis: all others at their first values, then one of them changed,
    then all of them."""
    sizes = [len(axis.values) for axis in grid.axes]
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    base = value * strides[position]
    yield base
    others = [i for i, size in enumerate(sizes) if i != position and size > 1]
    for i in others:
        yield from (base + digit * strides[i] for digit in _spaced(sizes[i], _TRIED // len(others))[1:])
    for index in _spaced(grid.size, _TRIED)[1:] if len(others) > 1 else ():
        yield index + (value - grid.choice(index)[position]) * strides[position]


def _spaced(size: int, most: int) -> Sequence[int]:
    """Return the indices below a size; of more than ``most``, as many (at least two) from end to end."""
    most = max(2, most)
    return range(size) if size <= most else [(size - 1) * i // (most - 1) for i in range(most)]


def _problems(grid: Grid, index: int, cache: ScenarioCache) -> tuple[Problem, ...]:
    try:
        grid.resolved(index, cache)
    except InputError as error:
        return error.problems
    except WorkLimitError:  # of this combination alone, whose row says so
        pass
    return ()


def _concerns(problem: Problem, axis: Axis) -> bool:
    """Return whether a problem is at an axis, within its values, or at a section around it."""
    path, key = key_path(axis.location), problem.key
    return bool(key) and (f"{key}.".startswith(f"{path}.") or f"{path}.".startswith(f"{key}."))


# ---- names in constraints ----


def _constraint(text: str, grid: Grid, *, option: bool = False) -> Callable[[Choice], bool]:
    try:
        return compile_constraint(text, lambda name: _find(name, grid))
    except ConstraintError as error:
        raise _constraint_error(text, str(error), option=option) from None


def _constraint_error(text: str, message: str, *, option: bool) -> InputError:
    place = "--constraint" if option else "sweep constraint"
    return InputError.at(f'"{shortened(text)}"', message, path=place)


def _find(name: str, grid: Grid) -> Term:
    """Return the meaning of a name: an axis, something in its values, or a value of the scenario."""
    for field in ("name", "short"):
        meant = [i for i, axis in enumerate(grid.axes) if getattr(axis, field) == name]
        if len(meant) > 1:
            paths = " or ".join(key_path(grid.axes[i].location) for i in meant)
            raise ConstraintError(
                f"{quoted(name)} may be {paths}; write the path, or give the axes a name each"
            )
        if meant:
            return _axis_value(meant[0], grid.axes[meant[0]], ())
    parts = tuple(name.split("."))
    for i, axis in enumerate(grid.axes):
        place = tuple(map(str, axis.location))
        if parts[: len(place)] == place:
            return _axis_value(i, axis, parts[len(place) :])
    node: Any = grid.base.data
    for part in parts:
        if not isinstance(node, dict) or part not in node:
            known = [axis.name for axis in grid.axes] + [axis.short for axis in grid.axes]
            listed = ", ".join(axis.name for axis in grid.axes)
            raise ConstraintError(
                f"there is no {quoted(name)}{suggest(name, known) or f'; the axes are {listed}'}"
            )
        node = node[part]
    fixed = operand(node)
    return lambda _choice: fixed


def _axis_value(position: int, axis: Axis, within: tuple[str, ...]) -> Term:
    """Return a function of a point: the value of an axis there, or what that holds below a path."""

    def inner(node: Any) -> Any:
        for part in within:
            node = node.get(part) if isinstance(node, dict) else None
        return operand(node)

    table = [inner(value) for value in axis.values]
    return lambda choice: table[choice[position]]


@dataclass(frozen=True)
class Points:
    """The points of a sweep by number, in the order of the grid; numbers count from 0."""

    combination: array[int]
    """Combination of each point, as its number in the grid."""
    first: array[int]
    """For each point the first one with the same scenario, which is simulated for all of them."""
    sweep_hash: str
    """Hash of everything that the results depend on."""

    def __len__(self) -> int:
        return len(self.combination)

    @property
    def unique(self) -> list[int]:
        """Numbers of the points that are simulated."""
        return [point for point, first in enumerate(self.first) if point == first]

    @property
    def duplicates(self) -> int:
        """Number of points with the scenario of an earlier point."""
        return sum(point != first for point, first in enumerate(self.first))


def find_points(sweep: Sweep) -> Points:
    """Number the points of a sweep. Raises InputError where the constraints leave none."""
    # Equal points are equal wherever their values are written.
    sweep = replace(sweep, grid=replace(sweep.grid, base=replace(sweep.grid.base, marks={})))
    combination, first = array("q"), array("q")
    known: dict[bytes, int] = {}
    hashed = hashlib.sha256(canonical(sweep.description()).encode("utf-8", "surrogatepass"))
    for index in steps(sweep.combinations(), total=sweep.grid.size):
        identity = bytes.fromhex(sweep.identity(index))
        point = len(combination)
        combination.append(index)
        first.append(known.setdefault(identity, point))
        hashed.update(identity)
    if not combination:
        text = f"none of {sweep.grid.size:,} combinations meets the constraints"
        raise InputError.at("sweep.constraints", text)
    return Points(combination, first, hashed.hexdigest())
