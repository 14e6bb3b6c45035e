"""Axes: what is varied, and the values it takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from simoffload.documents import Document, Location, key_path, parse_path, read_option, validate
from simoffload.errors import InputError, Problem, shortened
from simoffload.planning.sweep.ranges import expand
from simoffload.planning.sweep.section import AxisSection

__all__ = ["Axis", "axes_of", "parse_axis", "same_names"]

AXIS_OPTION = "--axis"
_RANGE = re.compile(r"\s*range\s*\((.*)\)\s*", re.DOTALL)


class Axis(NamedTuple):
    """Something that is varied."""

    name: str
    """Of its column, and in constraints: the path unless the axis has a name of its own."""
    location: Location
    """Where in the scenario its values go."""
    values: tuple[Any, ...]
    texts: tuple[str, ...]
    """The values as they were written."""
    written: Problem
    """Where the axis is written, for what turns out to be wrong with it."""

    @property
    def short(self) -> str:
        """The last key of the path."""
        return str(self.location[-1])


class _Place(NamedTuple):
    """Where an axis is written: in a file, or on the command line."""

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
        return problem._replace(key=problem.key.replace(f'"{path}"', path, 1))

    def error(self, message: str) -> InputError:
        return InputError((self.problem(message),))


def axes_of(
    document: Document, location: Location, axes: dict[str, AxisSection], *, most: int
) -> Iterator[Axis]:
    """The axes of a mapping at a location of a document. Raises InputError."""
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
        raise InputError((Problem(AXIS_OPTION, None, None, "", text),))
    called = _RANGE.fullmatch(values)
    if values.lstrip().startswith("range") and (called is None or "=" not in called[1]):
        text = "write a range as range(min=1, max=64, step=1) or range(min=1, max=64, n=7, scale=log)"
        raise InputError((Problem(AXIS_OPTION, None, None, path, text),))
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
    if spec.range is None:
        values, texts = _choices(spec.choices or [], place.at("choices"), most)
    else:

        def complain(key: str, message: str) -> InputError:
            return place.at("range", key).error(message)

        values = expand(spec.range, complain, most=most)
        texts = tuple(map(str, values))
    return Axis(name, location, values, texts, place.problem(""))


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
    """A name that two axes share, if there is one."""
    names = [axis.name for axis in axes]
    return next((name for name in names if names.count(name) > 1), None)
