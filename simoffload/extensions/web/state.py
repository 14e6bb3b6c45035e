"""The state of a page: variants of scenarios, which the address of the page holds as compressed text."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any, NamedTuple

from simoffload.documents import Location, parse_path, split_assignment
from simoffload.errors import InputError, Problem

MOST_VARIANTS = 6
_MOST_EDITS = 200
_LARGEST = 1_000_000
"""[B] of a state: as large as the largest document."""
_REPLACED = {
    "platform": ("equipment", "profiles", "nodes"),
    "model": ("strategy.ds_config",),
    "workload": ("checkpoint", "dataset", "stream"),
}
"""Sections whose edits do not go with another value of a key."""


class Variant(NamedTuple):
    """A Variant is a scenario with changes."""

    base: str
    """Name of a shipped scenario or of a model, or the text of a scenario file."""
    edits: tuple[str, ...] = ()
    """Assignments as ``--set`` takes them, in the order in which they are made."""
    prices: tuple[tuple[str, float], ...] = ()
    """Prices by kind/id of the profile, in the currency of the shipped list."""
    config: str = ""
    """Text of a config.json that ``model.config`` names."""
    price_list: str = ""
    """Text of a list of prices, which ``prices`` change."""

    def edited(self, *assignments: str) -> Variant:
        """Return the variant with further assignments, in place of those that they replace."""
        edits = self.edits
        for assignment in assignments:
            path, text = split_assignment(assignment)
            dropped = [parse_path(path), *map(parse_path, _REPLACED.get(path, ()))]
            edits = tuple(one for one in edits if not any(_is_in(one, where) for where in dropped))
            edits = edits if text is None else (*edits, assignment)
        return self._replace(edits=edits)

    def priced(self, key: str, amount: float) -> Variant:
        """Return the variant with another price of a device."""
        return self._replace(prices=tuple(({**dict(self.prices), key: amount}).items()))

    def given(self, path: str) -> str | None:
        """Return the text that an edit assigns to a path; None if none does."""
        pairs = (split_assignment(one) for one in self.edits)
        return next((text for own, text in pairs if own == path), None)


def _is_in(assignment: str, where: Location) -> bool:
    return parse_path(split_assignment(assignment)[0])[: len(where)] == where


RUN, BUY, USERS, TUNE, TRILLIONS = "run", "buy", "users", "fine-tune", "trillions"
ASKS = (RUN, BUY, USERS, TUNE, TRILLIONS)
"""What a person wants to know: it decides how the page begins and what its headline says."""


class State(NamedTuple):
    """A State is all that a page shows: its variants, which of them its inputs change, and what is asked."""

    variants: tuple[Variant, ...]
    at: int = 0
    asks: str = RUN

    @property
    def current(self) -> Variant:
        """The variant that inputs change."""
        return self.variants[self.at]

    def changed(self, variant: Variant) -> State:
        """Return the state with another variant in place of the current one."""
        return self._replace(variants=(*self.variants[: self.at], variant, *self.variants[self.at + 1 :]))

    def kept(self, variant: Variant | None = None) -> State:
        """Return the state with one more variant, by default a copy of the current one, as the current one.

        Raises InputError if there are as many variants as a page compares.
        """
        if len(self.variants) >= MOST_VARIANTS:
            raise InputError.at("", f"a page compares at most {MOST_VARIANTS} variants; remove one first")
        return State((*self.variants, variant or self.current), len(self.variants), self.asks)

    def removed(self) -> State:
        """Return the state without the current variant, unless that is the only one."""
        rest = (*self.variants[: self.at], *self.variants[self.at + 1 :])
        return State(rest, max(0, self.at - 1), self.asks) if rest else self

    @property
    def text(self) -> str:
        """The state as text for an address."""
        packed = zlib.compress(json.dumps(self).encode(), 9)
        return base64.urlsafe_b64encode(packed).decode().rstrip("=")

    @classmethod
    def of(cls, text: str) -> State:
        """Read a state from the text of an address. Raises InputError for any other text."""
        try:
            packed = base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))
            unpacking = zlib.decompressobj()
            data = json.loads(unpacking.decompress(packed, _LARGEST))
            return cls._checked(data)
        except (InputError, ValueError, TypeError, LookupError, OverflowError, RecursionError, zlib.error):
            problem = Problem("", None, None, "", "this address is damaged or too long; it holds no scenario")
            raise InputError([problem]) from None

    @classmethod
    def _checked(cls, data: Any) -> State:
        variants, at, *more = data  # an older address does not say what is asked
        found = tuple(
            Variant(
                _text(base),
                tuple(map(_assignment, edits)),
                tuple((_text(key), float(amount)) for key, amount in prices),
                _text(config),
                _text(price_list),
            )
            for base, edits, prices, config, price_list in variants
        )
        if not 0 < len(found) <= MOST_VARIANTS or max(len(one.edits) for one in found) > _MOST_EDITS:
            raise ValueError(data)
        return cls(found, range(len(found))[int(at)], ASKS[ASKS.index(more[0])] if more else RUN)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    value.encode()  # no half of a surrogate pair
    return value


def _assignment(value: Any) -> str:
    path, text = split_assignment(_text(value))
    parse_path(path)
    if text is None:
        raise ValueError(value)
    return str(value)
