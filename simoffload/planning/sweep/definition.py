"""Definition of a sweep: a scenario, its axes and constraints, and which points are equal."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from simoffload import __version__
from simoffload.documents import (
    Document,
    Edit,
    Location,
    edited,
    key_path,
    quoted,
    rename_keys,
    renamed_key,
    suggest,
    validate,
    without,
)
from simoffload.errors import InputError, Problem, WorkLimitError, shortened
from simoffload.planning.sweep.axes import Axis, SweepSection, axes_of, parse_axis, same_names
from simoffload.planning.sweep.constraints import Choice, ConstraintError, Term, compile_constraint, operand
from simoffload.planning.sweep.journal import AFTER
from simoffload.progress import steps
from simoffload.results import declared_metrics, interval_columns
from simoffload.scenario import RENAMED, SWEEP, ScenarioCache, completed, opened, resolve
from simoffload.scenario.cache import canonical

_TRIED = 64
"""Number of combinations tried before a value, or a scenario, is refused as invalid in all of them."""
_CHECKED = 1000
"""Number of values of an axis that are checked before anything runs; of more, as many at equal distances."""
_REPORTED = 10
"""Number of different problems of an axis after which no more are looked for."""
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
        """Warnings about renamed keys: of the axes, and of the scenario that they vary."""
        found = [
            axis.written._replace(message=renamed_key(RENAMED[path]))
            for axis in self.grid.axes
            if (path := key_path(axis.location)) in RENAMED
        ]
        varied = {key_path(axis.location) for axis in self.grid.axes}
        scenario = rename_keys(self.grid.document(0), RENAMED, []).warnings
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
    has_section = document.data.get(SWEEP) is not None
    section = validate(document, SweepSection, at=(SWEEP,)) if has_section else SweepSection()
    found = {axis.location: axis for axis in axes_of(document, (SWEEP, "axes"), section.axes, most=most)}
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
    return replace(without(document, SWEEP), marks=marks)


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
        if axis.location[0] == SWEEP:
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
        text = f"{sizes} = {grid.size:,} points are more than {most:,}; take fewer values, or --max-points"
        raise InputError.at("sweep.axes", text)


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
        resolve(grid.document(index), cache=cache)
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
        return compile_constraint(text, lambda name: _find(name, grid), first=(0,) * len(grid.axes))
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
