"""Matching of many expressions at once, in a time that grows with the length of the name alone.

The expressions become one automaton (Thompson, "Regular expression search algorithm", 1968), and the sets of
states that it can be in are kept once they were met, so that each further character takes one look-up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from simoffload.models.name_expressions import (
    Ahead,
    Alternatives,
    Anchor,
    Characters,
    Node,
    Repetition,
    Sequence,
)

MOST_STATES = 20_000
"""Most states of one automaton, about one for each character of its expressions."""
_MOST_KEPT = 500_000
"""Most states in all sets that are kept: some tens of megabytes."""


class _State(NamedTuple):
    """A _State waits for a character, or for a place in the name; without both it leads on at once."""

    among: frozenset[str] | None
    place: str
    after: list[int]


class _Set:
    """The states that the automaton may be in, and the sets that follow by character."""

    def __init__(self, states: frozenset[int], *, matches: bool, matches_at_end: bool) -> None:
        self.states, self.matches, self.matches_at_end = states, matches, matches_at_end
        self.after: dict[str, _Set] = {}


class Automaton:
    """An Automaton matches names that any of some expressions matches, from the beginning up to any place."""

    def __init__(self, expressions: Iterable[Node]) -> None:
        """Build the automaton. Raises ValueError for more than ``MOST_STATES`` states."""
        self._states: list[_State] = []
        self._sets: dict[tuple[frozenset[int], bool], _Set] = {}
        self._kept = 0
        self._match = self._state()
        starts = [self._built(one, self._match) for one in expressions]
        self._start = self._set_of(starts, at_start=True)

    def match(self, name: str) -> bool:
        """Return whether an expression matches the beginning of a name."""
        now = self._start
        for character in name:
            if now.matches or not now.states:
                return now.matches
            after = now.after.get(character)
            if after is None:
                following = [
                    one
                    for state in now.states
                    if (among := self._states[state].among) is not None and character in among
                    for one in self._states[state].after
                ]
                after = now.after[character] = self._set_of(following)
            now = after
        return now.matches or now.matches_at_end

    def _state(self, *after: int, among: frozenset[str] | None = None, place: str = "") -> int:
        if len(self._states) >= MOST_STATES:
            raise ValueError(f"the patterns are too long, together more than {MOST_STATES:,} characters")
        self._states.append(_State(among, place, list(after)))
        return len(self._states) - 1

    def _built(self, node: Node, after: int) -> int:
        """Add the states of a part that lead to the state ``after``, and return the first of them."""
        match node:
            case Characters(among):
                return self._state(after, among=among)
            case Anchor(sign):
                return self._state(after, place=sign)
            case Sequence(parts):
                for part in reversed(parts):
                    after = self._built(part, after)
                return after
            case Alternatives(among_parts):
                return self._state(*(self._built(one, after) for one in among_parts))
            case Repetition(part, least, most):
                return self._repeated(part, least, most, after)
            case Ahead():
                raise TypeError("look-ahead is a condition of its own")

    def _repeated(self, part: Node, least: int, most: int | None, after: int) -> int:
        if most is None:
            again = self._state(after)
            self._states[again].after.append(self._built(part, again))
            after = again
        for _ in range((most or least) - least):
            after = self._state(after, self._built(part, after))
        for _ in range(least):
            after = self._built(part, after)
        return after

    def _set_of(self, states: Iterable[int], *, at_start: bool = False) -> _Set:
        """Return the set of states, and of those that they lead to at once."""
        reached = self._reached(states, "^" if at_start else "")
        waiting = frozenset(
            one for one in reached if self._states[one].among is not None or self._states[one].place == "$"
        )
        matches = self._match in reached
        known = self._sets.get((waiting, matches)) if not at_start else None
        if known is not None:
            return known
        at_end = self._match in self._reached(waiting, "^$" if at_start else "$")
        made = _Set(waiting, matches=matches, matches_at_end=at_end)
        if not at_start:
            self._keep(made)
        return made

    def _keep(self, made: _Set) -> None:
        """Keep a set; where they are too many, forget all but the first, to be found again where needed."""
        self._kept += len(made.states) + 1
        if self._kept > _MOST_KEPT:
            for one in (self._start, *self._sets.values()):
                one.after.clear()
            self._sets.clear()
            self._kept = len(made.states) + 1
        self._sets[made.states, made.matches] = made

    def _reached(self, states: Iterable[int], places: str) -> set[int]:
        """Return states and all that they lead to without a character, at a place that has these signs."""
        reached, left = set[int](), list(states)
        while left:
            one = left.pop()
            if one in reached:
                continue
            reached.add(one)
            state = self._states[one]
            if state.among is None and (not state.place or state.place in places):
                left += state.after
        return reached
