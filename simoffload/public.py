"""What public functions are given in Python: arguments are checked against their annotations, and refusals
name arguments where commands name options.

Commands call the functions at their homes, which this does not change.
"""

from __future__ import annotations

import inspect
import math
import re
import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from numbers import Integral, Real
from os import PathLike
from typing import Any, NamedTuple

from simoffload.brief import BriefTuple
from simoffload.documents import either, suggest
from simoffload.errors import InputError, Problem, SimoffloadError, shortened

# -- kinds of values -------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """A _Kind is a kind of value that an annotation names."""

    named_as: str
    """The kind in a message; "" for one of which users have none."""
    allows: Callable[[Any], bool]


_Arguments = Mapping[str, tuple[_Kind, ...]]
"""The kinds of values that each argument of a function may have."""
_MOST = 2.0**63


def _is_number(value: Any, kind: type, least: float = math.ulp(0.0)) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and bool(least <= value < _MOST)  # type: ignore[operator]


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


_PATH = _Kind("a path", lambda value: isinstance(value, PathLike))
_KINDS = {
    "None": _Kind("", lambda value: value is None),
    "Any": _Kind("", lambda _: True),
    "str": _Kind("a text", lambda value: isinstance(value, str)),
    "bool": _Kind("True or False", lambda value: isinstance(value, bool)),
    "int": _Kind("a whole number above 0", lambda value: _is_number(value, Integral)),
    "float": _Kind("a number above 0", lambda value: _is_number(value, Real)),
    "Path": _PATH,
    "FilePath": _PATH,
    "Callable": _Kind("a function such as print", _is_function),
    "Options": _Kind("a function", _is_function),
}
"""Kinds of values by their annotations; other names are those of classes."""
_FROM_ZERO = {
    "gpus": _Kind("a whole number from 0", lambda value: _is_number(value, Integral, 0)),
}
"""Arguments whose numbers may be zero."""
_INTERNAL = ("Evaluator",)
"""Classes that functions take and of which users know nothing."""


def _kinds(annotation: str, names: Mapping[str, Any]) -> Iterator[_Kind]:
    """Yield the kinds of an annotation; ``names`` of its module are those of its unions."""
    for part in re.split(r" \| (?![^\[]*\])", annotation):
        name, _, inner = re.sub(r"[\w.]+\.(?=\w)", "", part).rstrip("]").partition("[")
        union = names.get(name)
        if name in _KINDS:
            yield _KINDS[name]
        elif name == "Sequence":
            yield _sequence(tuple(_kinds(inner, names)))
        elif name == "Mapping":
            yield _mapping(tuple(_kinds(inner.partition(", ")[2], names)))
        elif name == "type":
            yield _Kind("a class of results", partial(_is_class, inner))
        elif union is not None and not isinstance(union, type):
            yield from _kinds(union if isinstance(union, str) else str(union), names)
        else:
            yield _instance(name)


def _sequence(inner: tuple[_Kind, ...]) -> _Kind:
    named_as = either([f"{one.named_as.partition(' ')[2]}s" for one in inner if one.named_as])

    def allows(value: Any) -> bool:
        listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return listed and all(any(one.allows(item) for one in inner) for item in value)

    return _Kind(f"a list of {named_as}", allows)


def _mapping(inner: tuple[_Kind, ...]) -> _Kind:
    named_as = [one.named_as for one in inner if one.named_as]

    def allows(value: Any) -> bool:
        named = isinstance(value, Mapping) and (not named_as or all(isinstance(key, str) for key in value))
        return named and all(any(one.allows(item) for one in inner) for item in value.values())

    return _Kind(f"a mapping of texts to {either(named_as)}" if named_as else "a mapping", allows)


def _instance(name: str) -> _Kind:
    """Return the kind of the objects of a class, which nothing need import to know it."""
    named_as = "" if name in _INTERNAL else f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
    return _Kind(named_as, lambda value: _is_class(name, type(value)))


def _is_class(name: str, value: Any) -> bool:
    """Return whether a value is the class of a name, or one that derives from it."""
    return isinstance(value, type) and name in (one.__name__ for one in value.__mro__)


# -- public functions ------------------------------------------------------------------------------


def public(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a public function that refuses wrong arguments, with InputError in words of Python, and whose
    lists are shown in a few lines.

    A missing argument is a TypeError, as of any function.
    """
    signature, arguments = inspect.signature(function), _arguments(function)
    if arguments is None:
        return function
    unnamed = {one.name for one in signature.parameters.values() if one.kind is one.VAR_POSITIONAL}

    @wraps(function)
    def asked(*values: Any, **named: Any) -> Any:
        if unknown := [name for name in named if name not in arguments or name in unnamed]:
            raise InputError(_unknown(name, arguments) for name in unknown)
        try:
            given = signature.bind(*values, **named).arguments
        except TypeError:
            return function(*values, **named)  # which says what is missing
        wrong = [one for name, value in _each(given, signature) if (one := _wrong(name, value, arguments))]
        if wrong:
            raise InputError(wrong)
        try:
            found = function(*values, **named)
        except SimoffloadError as error:
            _translate(error, arguments)
            raise
        return BriefTuple(found) if type(found) is tuple else found

    asked.__module__, asked.__qualname__ = __package__, function.__name__  # where pickle finds it
    return asked


def _arguments(function: Callable[..., Any]) -> _Arguments | None:
    """Return the kinds of each argument; None for a function that takes any."""
    found: dict[str, tuple[_Kind, ...]] = {}
    names = inspect.unwrap(function).__globals__
    for one in inspect.signature(function).parameters.values():
        if one.kind is not one.VAR_KEYWORD:
            found[one.name] = _kinds_of(one.name, one.annotation, names)
        elif (options := re.fullmatch(r"Unpack\[(\w+)\]", one.annotation)) is None:
            return None
        else:
            fields = names[options[1]]
            there = vars(sys.modules[fields.__module__])
            for key, reference in fields.__annotations__.items():
                found[key] = (_KINDS["None"], *_kinds_of(key, reference.__forward_arg__, there))
    return found


def _kinds_of(name: str, annotation: str, names: Mapping[str, Any]) -> tuple[_Kind, ...]:
    return (_FROM_ZERO[name],) if name in _FROM_ZERO else tuple(_kinds(annotation, names))


def _each(given: Mapping[str, Any], signature: inspect.Signature) -> Iterator[tuple[str, Any]]:
    """Yield all values that are given, with the arguments that they are for."""
    for name, value in given.items():
        match signature.parameters[name].kind:
            case inspect.Parameter.VAR_KEYWORD:
                yield from value.items()
            case inspect.Parameter.VAR_POSITIONAL:
                yield from ((name, one) for one in value)
            case _:
                yield name, value


def _unknown(name: str, arguments: _Arguments) -> Problem:
    if name in arguments:
        return Problem("", None, None, name, "are given without this name, after the first argument")
    text = f"is no argument{suggest(name, arguments)}"
    if "overrides" in arguments:
        text += "; a key of a scenario goes into overrides, such as overrides={'workload.batch_size': 8}"
    return Problem("", None, None, name, text)


def _wrong(name: str, value: Any, arguments: _Arguments) -> Problem | None:
    kinds = arguments[name]
    if any(one.allows(value) for one in kinds):
        return None
    named_as = dict.fromkeys(one.named_as for one in kinds if one.named_as)
    return Problem("", None, None, name, f"must be {either(list(named_as))}, got {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= _MOST:
        return f"a number of {value.bit_length()} bits"
    plain = type(value).__module__ == "builtins"
    return shortened(reprlib.repr(value)) if plain else f"a {type(value).__name__}"


# -- options as arguments --------------------------------------------------------------------------

_OPTION = re.compile(
    r"--(?P<name>[a-z]+(?:-[a-z]+)*)"
    r"(?: (?P<value>[\w.]+=[\w.,-]*\w|[A-Z][A-Z:]+\b|[0-9]+\b|[a-z]+-[0-9]+\b))?"
)
_ASIDE = re.compile(r" \(--([a-z-]+)[^()]*\)")
"""What is translated of an option in parentheses, which is left out where the option is no argument."""
_ARGUMENTS = {
    "set": "overrides",
    "axis": "axes",
    "constraint": "constraints",
    "id": "identifier",
    "from": "base",
    "buffer-size": "size",
}
"""Arguments with other names than their options."""


def _translate(error: SimoffloadError, arguments: _Arguments) -> None:
    """Replace options by arguments in the message of an error."""
    translated = partial(_in_python, arguments=arguments)
    if isinstance(error, InputError):
        error.problems = tuple(
            one._replace(
                path=_argument(one.path) if one.path.startswith("--") else one.path,
                key=_argument(one.key) if one.key.startswith("--") else one.key,
                message=translated(one.message),
            )
            for one in error.problems
        )
        error.args = (error.problems,)
    else:
        error.args = tuple(translated(one) if isinstance(one, str) else one for one in error.args)


def _argument(option: str) -> str:
    name = option.removeprefix("--")
    return _ARGUMENTS.get(name, name.replace("-", "_"))


def _in_python(text: str, arguments: _Arguments) -> str:
    """Return a text with arguments where it has options that are arguments."""

    def written(found: re.Match[str]) -> str:
        name, value = _argument(found["name"]), found["value"]
        if name not in arguments:
            return found[0]
        if value is None:
            return f"{name}=True" if arguments[name] == (_KINDS["bool"],) else name
        if name == "overrides" and "=" in value:
            key, _, value = value.partition("=")
            return f'{key}="{value}"' if key in arguments else f'{name}={{"{key}": "{value}"}}'
        if name == "axes":
            return f'"{value}"'
        return f"{name}={value}" if value.isdigit() else f'{name}="{value}"'

    text = _ASIDE.sub(lambda found: found[0] if _argument(found[1]) in arguments else "", text)
    return _OPTION.sub(written, text)
