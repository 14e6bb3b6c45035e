"""Numbers of a scenario by their paths, as ``--set`` names them, and the values that a search tries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from simoffload.documents import (
    Edit,
    Location,
    candidates,
    key_path,
    listing,
    parse_path,
    quoted,
    same_name,
    suggest,
)
from simoffload.errors import InputError, shortened
from simoffload.hardware import Library, spelled
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.profile_parameters import ProfileParameter, edit_of, profile_parameters, scaled
from simoffload.strategies import Strategy
from simoffload.units import in_unit, is_unit

BY, WITHIN = "--by", "--within"
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?) *([^\W\d_]\S*)?")
_SPAN = 1000
"""Ratio of the largest value that is tried to the present one, and of that to the smallest: our choice."""
_EXAMPLE = "write a path such as workload.batch_size, nodes or 'profiles.\"drive/ID\".read'"
_RANGE = 'write MIN..MAX, such as 1..64 or "1 GB/s..20 GB/s"'
_DECADE = 900
"""Number of values with three significant digits between a power of ten and the next one."""
_FINE = 12
"""Number of values of a range that are tried first, beside its ends."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A Quantity is a number of a scenario that a search changes.

    Its values are numbered: whole numbers by themselves, others by their order among all numbers of three
    significant digits, so that a search over values is one over whole numbers.
    """

    path: str
    now: float | None
    """Present value [unit]; None where the scenario does not state one."""
    unit: str
    """Unit as written; empty for a plain number."""
    is_count: bool
    """Whether it counts something, so that it is a whole number."""
    edits: Callable[[Any], tuple[Edit, ...]]
    """Function that returns the edits to a value as a scenario writes it."""
    step: int = 1
    """Number by which a count grows from one value to the next."""

    def written(self, index: int) -> Any:
        """Return a value as a scenario writes it."""
        if self.is_count:
            return index * self.step
        number = _number(index)
        return f"{number:f} {self.unit}" if self.unit else float(number)

    def text(self, index: int) -> str:
        """Return a value for people."""
        return f"{index * self.step:,}" if self.is_count else str(self.written(index))

    @property
    def now_text(self) -> str:
        """Return the present value for people; empty where there is none."""
        if self.now is None:
            return ""
        return f"{int(self.now):,}" if self.is_count else f"{self.now:.6g} {self.unit}".rstrip()

    def index(self, value: float) -> int:
        """Return the number of the largest value up to the given one [unit]."""
        if self.is_count:
            return int(value)
        exponent = Decimal(value).adjusted()
        rest = Decimal(value).scaleb(2 - exponent)
        return exponent * _DECADE + int(rest + Decimal("1e-9")) - 100

    def ends(self, within: str | None) -> tuple[int, int]:
        """Return the numbers of the first and the last value of a range ``MIN..MAX``, by default a thousandth
        and a thousand times the present value. Raises InputError."""
        if within is None:
            if self.is_count and self.now is not None:
                return min(1, int(self.now)), _SPAN * max(1, int(self.now))
            if not self.now:
                raise _refusal(
                    self.path, f"is 0, of which there is no multiple; give a range: {WITHIN} 1..64"
                )
            return self.index(self.now / _SPAN), self.index(self.now * _SPAN)
        low, high = (self.index(self._bound(one)) for one in _bounds(within))
        if low >= high:
            raise _refusal(within, f"MIN must be below MAX; {_RANGE}", WITHIN)
        return low, high

    def _bound(self, text: str) -> float:
        """Return an end of a range [unit]. Raises InputError."""
        try:
            value = in_unit(text, self.unit) if is_unit(self.unit) else float(text)
        except ValueError as error:
            why = str(error) if is_unit(self.unit) else f"{quoted(text)} is not a number; {_RANGE}"
            raise _refusal(self.path, why, WITHIN) from None
        if self.is_count and not value.is_integer():
            raise _refusal(self.path, f"must be a whole number, got {quoted(text)}", WITHIN)
        if not (0 <= value < float("inf")) or (value == 0 and not self.is_count):
            raise _refusal(self.path, f"must be above 0 and finite, got {quoted(text)}", WITHIN)
        return value

    def coarse(self, low: int, high: int) -> list[int]:
        """Return the numbers of values from one end to the other, both included: counts double from one to
        the next, others have the same ratio."""
        if high - low <= _FINE:
            return list(range(low, high + 1))
        if self.is_count:
            powers = (1 << power for power in range(high.bit_length()))
            found = {low, high, *(one for one in powers if low < one < high)}
        else:
            found = {low + (high - low) * part // _FINE for part in range(_FINE + 1)}
        if self.now is not None and low <= self.index(self.now) <= high and self.now > 0:
            found.add(self.index(self.now))
        return sorted(found)


def _number(index: int) -> Decimal:
    """Return a number of three significant digits, without zeros at its end."""
    power, rest = divmod(index, _DECADE)
    number = Decimal(100 + rest).scaleb(power - 2).normalize()
    return number if number.as_tuple().exponent <= 0 else number.quantize(Decimal(1))  # type: ignore[operator]


def _bounds(within: str) -> tuple[str, str]:
    low, dots, high = (part.strip() for part in within.partition(".."))
    if not (low and dots and high):
        raise _refusal(within, f"is not a range; {_RANGE}", WITHIN)
    unit = _QUANTITY.fullmatch(high)
    if unit and unit[2] and re.fullmatch(r"[0-9.eE+-]+", low):
        low = f"{low} {unit[2]}"
    return low, high


def quantity_at(evaluator: Evaluator, path: str, *, within: str | None = None) -> Quantity:
    """Return the number of a scenario at a path.

    The number of GPUs, of hosts and of sequences brings along the keys that depend on it. Raises InputError
    for a path that leads nowhere or to no number, and for one without a value where ``within`` gives none.
    """
    try:
        location = parse_path(path)
    except InputError:
        raise _refusal(path, f"is not the path of a key; {_EXAMPLE}") from None
    if location[0] == "profiles":
        return _of_profile(evaluator, location)
    if location[0] == "engine":
        raise _refusal(path, f"is an option of the simulator, which changes no answer; {_EXAMPLE}")
    value = _value_at(evaluator, location)
    now, unit, counts = _read(value, location, within)
    return Quantity(
        path=key_path(location), now=now, unit=unit, is_count=counts, edits=_edits(evaluator, location, now)
    )


def _read(value: Any, location: Location, within: str | None) -> tuple[float | None, str, bool]:
    """Return a value as a number, with its unit and whether it counts something. Raises InputError."""
    path, given = key_path(location), value
    if value is None and within is not None:
        value = _bounds(within)[1]
        value = int(value) if value.isdecimal() else value
    elif value is None:
        raise _refusal(path, f"is not set, so there is no value to start from; give a range: {WITHIN} 1..64")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (None if given is None else float(value)), "", isinstance(value, int)
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match and (match[2] is None or is_unit(match[2])):
        return (None if given is None else float(match[1])), match[2] or "", False
    what = f"{value if isinstance(value, str | bool) else 'a section'}"
    inner = [key_path((*location, *one)) for one in _numbers(value)]
    text = f"is not a number but {quoted(what)}" if not inner else "contains several numbers"
    raise _refusal(path, f"{text}; {'name one of ' + listing(inner) if inner else _EXAMPLE}")


def _edits(evaluator: Evaluator, location: Location, now: float | None) -> Callable[[Any], tuple[Edit, ...]]:
    """Return the function that makes the edits to a value, with those of the keys that depend on it."""
    strategy, machine = evaluator.strategy, evaluator.scenario.machine
    match location:
        case ("nodes",):
            each = machine.ranks_per_node(strategy.gpus)
            return lambda value: evaluator.spread(value, per_node=each)
        case ("workload", "batch_size"):
            return evaluator.batch
        case ("workload", "gradient_accumulation_steps" as key):
            return lambda value: (Edit(location, value), *strategy.sizes().along(key))
        case ("model", str(key)):
            return lambda value: (evaluator.model(key, value),)
        case ("strategy", str(key)) if key in {"ranks", *strategy.traits.gpu_keys} and now:
            return lambda value: _spread(strategy, location, value, int(now))
    return lambda value: (Edit(location, value),)


def _spread(strategy: Strategy, location: Location, value: int, now: int) -> tuple[Edit, ...]:
    """Return the edits for another number of GPUs, if those of the strategy set this key."""
    edits = strategy.sizes().gpus(strategy.gpus * value // now)
    return edits if Edit(location, value) in edits else (Edit(location, value),)


# -- values of the scenario ----------------------------------------------------------------------


def _tree(evaluator: Evaluator) -> dict[str, Any]:
    """Return everything that a scenario says, and the defaults of what it does not say."""
    scenario = evaluator.scenario
    defaults = scenario.scenario.model_dump(mode="json", exclude={"profiles", "engine"})
    tree: dict[str, Any] = _merged(defaults, scenario.document.data)
    if not isinstance(tree["model"], dict):
        tree["model"] = defaults["model"]
    shape = {key: getattr(scenario.model, key) for key in ("num_hidden_layers",)}
    tree["model"] = {**shape, **{key: one for key, one in tree["model"].items() if one is not None}}
    return tree


def _merged(node: Any, other: Any) -> Any:
    if not (isinstance(node, Mapping) and isinstance(other, Mapping)):
        return other
    return {**node, **{key: _merged(node.get(key), value) for key, value in other.items()}}


def _value_at(evaluator: Evaluator, location: Location) -> Any:
    """Return what the scenario has at a location. Raises InputError where it has nothing."""
    node: Any = _tree(evaluator)
    for depth, part in enumerate(location):
        if isinstance(node, Mapping) and part in node:
            node = node[part]
        elif isinstance(node, list) and str(part).isdecimal() and int(part) < len(node):
            node = node[int(part)]
        else:
            raise _unknown(evaluator, location, depth, node)
    return node


def _unknown(evaluator: Evaluator, location: Location, depth: int, node: Any) -> InputError:
    """Return the error for a key that does not exist, with the paths that may be meant."""
    paths = {key_path(one): str(one[-1]) for one in _numbers(_tree(evaluator))}
    wanted = str(location[-1])
    same = [path for path, key in paths.items() if key == wanted]
    inside = list(map(str, node)) if isinstance(node, Mapping) and depth else []
    hint = suggest(key_path(location), same) if same else suggest(str(location[depth]), inside)
    if same and not hint:
        hint = f"; did you mean {quoted(same[0])}?"
    hint = hint or suggest(key_path(location), paths) or f"; {_EXAMPLE}"
    return _refusal(key_path(location), f"the scenario has no such key{hint}")


def _numbers(node: Any, at: Location = ()) -> Iterator[Location]:
    """Yield the location of every number and quantity below a node."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _numbers(value, (*at, key))
    elif isinstance(node, str):
        match = _QUANTITY.fullmatch(node.strip())
        if match and match[2] and is_unit(match[2]):
            yield at
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield at


# -- numbers of profiles -------------------------------------------------------------------------


def _of_profile(evaluator: Evaluator, location: Location) -> Quantity:
    """Return a number of a profile, by ``id`` or ``kind/id``; dots of the id need no quotes here."""
    number = _parameter(evaluator, location)
    name = evaluator.named(number.profile)
    path = key_path(edit_of(name, number.key, None).path)
    if ": " in number.text:  # a curve, of which all rates change by a factor

        def faster(value: float) -> tuple[Edit, ...]:
            change = scaled(number, value)
            return (edit_of(name, number.key, None if change is None else change[0]),)

        return Quantity(path=path, now=1.0, unit="", is_count=False, edits=faster)
    match = _QUANTITY.fullmatch(number.text)
    assert match is not None, number.text
    return Quantity(
        path=path,
        now=float(match[1]),
        unit=match[2] or "",
        is_count=number.text.isdecimal(),
        edits=lambda value: (edit_of(name, number.key, value),),
    )


def _parameter(evaluator: Evaluator, location: Location) -> ProfileParameter:
    """Return the number of a profile that a location names. Raises InputError."""
    known = [*profile_parameters(evaluator.scenario.machine), *_counts(evaluator)]
    text = ".".join(map(str, location[1:]))
    meant = [
        one
        for one in known
        if any(same_name(text.removesuffix(f".{one.key}"), form) for form in _forms(one))
        and text.endswith(f".{one.key}")
    ]
    if len({one.profile for one in meant}) == 1:
        return meant[0]
    path = key_path(location)
    if meant:
        names = ", ".join(dict.fromkeys(one.profile for one in meant))
        raise _refusal(path, f"several profiles have that name: {names}")
    profiles = {form: one.profile for one in known for form in _forms(one)}
    own = next((one for form, one in profiles.items() if _begins(text, form)), None)
    if own is None:
        name = str(location[1]) if len(location) > 1 else ""
        hint = candidates(name, profiles) if name else ""
        has = f" (has: {', '.join(dict.fromkeys(profiles.values()))})"
        raise _refusal(path, f"this platform uses no profile of that name{hint or has}")
    keys = [one.key for one in known if one.profile == own]
    key = max((text[len(form) + 1 :] for form in profiles if _begins(text, form)), key=len, default="")
    hint = suggest(key, keys) if key else ""
    raise _refusal(path, f"{own} has no such number{hint or f'; it has {listing(keys)}'}")


def _counts(evaluator: Evaluator) -> Iterator[ProfileParameter]:
    """Yield the numbers of profiles that need no origin, such as that of the drives of an array."""
    scenario = evaluator.scenario
    library, section = Library(scenario.document.root), scenario.document.data.get("profiles") or {}
    for use in scenario.machine.profiles:
        name = f"{use.kind}/{use.id}"
        with suppress(InputError):  # a file outside the folders of profiles
            changed = section.get(spelled(section, name)) or {}
            for key, value in library.find(use.id, (use.kind,)).document.data.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    yield ProfileParameter(name, key, str(changed.get(key, value)), "", "")


def _forms(number: ProfileParameter) -> tuple[str, str]:
    """Return both names of the profile of a number: ``kind/id`` and ``id``."""
    return number.profile, number.profile.partition("/")[2]


def _begins(text: str, name: str) -> bool:
    """Return whether a path below ``profiles`` begins with the name of a profile."""
    return same_name(text[: len(name)], name) and text[len(name) :][:1] in {"", "."}


def _refusal(path: str, message: str, option: str = BY) -> InputError:
    return InputError.at(shortened(path), message, path=option)
