"""Patterns of module names, with which a config.json lists what is quantized and what is not: expressions as
trees, and the matching of many at once.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from simoffload.documents import quoted

# -- regular expressions of module names as trees --------------------------------------------------
# The forms that configurations use, and no others.
#
# Configurations come from anywhere, and Python's ``re`` may need a time that grows exponentially with the
# length of a name, in which nothing can interrupt it. An ``Automaton`` (``name_automaton``) matches what is
# read here.


VALID = (
    r"valid are characters, ., \., \d, \w, \s, [a-z], (a|b), (?:a|b), *, +, ?, {2,3}, ^, $, "
    "and (?!a) or (?=a) after text of a fixed length"
)
"""What an expression may contain, for messages."""
_DEEPEST = 20
"""Most groups that may be inside of each other."""
_MOST_REPEATS = 100
"""Largest number of repetitions in braces."""

_ASCII = frozenset(map(chr, range(128)))
_ANY = _ASCII - {"\n"}
_WORD = frozenset(f"{string.ascii_letters}{string.digits}_")
_SHORT: Mapping[str, frozenset[str]] = {
    "d": frozenset(string.digits),
    "w": _WORD,
    "s": frozenset(string.whitespace),
    "D": _ASCII - frozenset(string.digits),
    "W": _ASCII - _WORD,
    "S": _ASCII - frozenset(string.whitespace),
}
"""Characters that a letter after a backslash stands for; names of modules are ASCII."""


class Characters(NamedTuple):
    """Characters are a part that matches any one of some characters."""

    among: frozenset[str]


class Anchor(NamedTuple):
    """An Anchor matches only at the beginning ("^") or at the end ("$") of a name."""

    sign: str


class Sequence(NamedTuple):
    """A Sequence is parts after each other."""

    parts: tuple[Node, ...]


class Alternatives(NamedTuple):
    """Alternatives are parts of which one matches."""

    among: tuple[Node, ...]


class Repetition(NamedTuple):
    """A Repetition is a part that comes ``least`` to ``most`` times; None: any number of times."""

    part: Node
    least: int
    most: int | None


class Ahead(NamedTuple):
    """An Ahead is what must follow, or must not, without being part of the match."""

    part: Node
    wanted: bool


Node = Characters | Anchor | Sequence | Alternatives | Repetition | Ahead

ANY_TEXT = Repetition(Characters(_ANY), 0, None)
"""The expression ``.*``, which matches any text."""


def literal(text: str) -> Sequence:
    """Return the expression that matches exactly this text."""
    return Sequence(tuple(Characters(frozenset(one)) for one in text))


def read_expression(text: str) -> Node:
    """Read an expression. Raises ValueError with the place of what is not valid."""
    return _ExpressionReader(text).read()


class _ExpressionReader:
    """A _ExpressionReader reads an expression by recursive descent."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def read(self) -> Node:
        """Return the whole expression as a tree."""
        found = self._choice()
        if self._at < len(self._text):
            raise self._error("has no ( before it")
        return found

    def _error(self, message: str, *, start: int | None = None) -> ValueError:
        start = self._at if start is None else start
        what = self._text[start : max(self._at, start) + 1][:20]
        return ValueError(f"{quoted(what) if what else 'the end'} at character {start + 1} {message}")

    def _next(self, text: str) -> bool:
        """Pass a text if it comes next, and return whether it does."""
        found = self._text.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def _choice(self) -> Node:
        among = [self._sequence()]
        while self._next("|"):
            among.append(self._sequence())
        return among[0] if len(among) == 1 else Alternatives(tuple(among))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._repeated())
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self) -> Node:
        part = self._part()
        start = self._at
        times = self._times()
        if times is None:
            return part
        if isinstance(part, Anchor | Ahead):
            raise self._error("repeats no text", start=start)
        self._next("?")  # whether it takes much or little text does not change what is matched
        if self._text[self._at : self._at + 1] in ("*", "+", "?", "{"):
            raise self._error("repeats a repetition", start=start)
        return Repetition(part, *times)

    def _times(self) -> tuple[int, int | None] | None:
        """Pass what says how often the last part comes; None if nothing does."""
        for sign, times in {"*": (0, None), "+": (1, None), "?": (0, 1)}.items():
            if self._next(sign):
                return times
        start = self._at
        if not self._next("{"):
            return None
        inside, brace, _ = self._text[self._at :].partition("}")
        self._at += len(inside) + len(brace)
        least, comma, most = inside.partition(",")
        numbers = [int(one) if one.isdecimal() and len(one) < 4 else -1 for one in (least, most or least)]
        if not brace or min(numbers) < 0 or max(numbers) > _MOST_REPEATS or numbers[0] > numbers[1]:
            raise self._error(
                f"is not {{2}}, {{2,3}} or {{2,}} with numbers up to {_MOST_REPEATS}", start=start
            )
        return numbers[0], None if comma and not most else numbers[1]

    def _part(self) -> Node:
        sign = self._text[self._at]
        if sign in "*+?{":
            raise self._error("has nothing before it to repeat")
        if sign == "(":
            return self._group()
        if sign == "[":
            return Characters(self._class())
        if sign == "\\":
            return Characters(self._escaped())
        self._at += 1
        if sign in "^$":
            return Anchor(sign)
        return Characters(_ANY if sign == "." else frozenset(sign))

    def _group(self) -> Node:
        start = self._at
        ahead = {"(?=": True, "(?!": False}.get(self._text[start : start + 3])
        self._at += 1
        if ahead is not None:
            self._at += 2
        elif not self._next("?:") and self._next("?"):
            raise self._error("is not supported", start=start)
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(f"is inside more than {_DEEPEST} groups", start=start)
        inner = self._choice()
        self._depth -= 1
        if not self._next(")"):
            raise self._error("has no ) after it", start=start)
        return inner if ahead is None else Ahead(inner, ahead)

    def _escaped(self) -> frozenset[str]:
        start = self._at
        self._at += 2
        sign = self._text[start + 1 : self._at]
        if sign in _SHORT:
            return _SHORT[sign]
        if not sign or sign.isalnum() or not sign.isascii():
            self._at -= 1
            raise self._error("is not supported", start=start)
        return frozenset(sign)

    def _class(self) -> frozenset[str]:
        start = self._at
        self._at += 1
        excluded, found = self._next("^"), frozenset[str]()
        first = self._at
        while self._at == first or not self._next("]"):
            if self._at >= len(self._text):
                raise self._error("has no ] after it", start=start)
            low = self._member()
            dash, after = self._text[self._at : self._at + 1], self._text[self._at + 1 : self._at + 2]
            if len(low) == 1 and dash == "-" and after not in ("]", ""):
                self._at += 1
                high = self._member()
                if len(high) != 1 or not low <= _ASCII or not high <= _ASCII or min(high) < min(low):
                    raise self._error("has a range that is not valid", start=start)
                low = frozenset(map(chr, range(ord(min(low)), ord(min(high)) + 1)))
            found |= low
        return _ASCII - found if excluded else found

    def _member(self) -> frozenset[str]:
        if self._text[self._at] == "\\":
            return self._escaped()
        self._at += 1
        return frozenset(self._text[self._at - 1])


class Condition(NamedTuple):
    """A Condition is whether an expression without look-ahead must match or must not."""

    expression: Node
    wanted: bool = True


def conditions_of(expression: Node) -> list[Condition]:
    """Return the conditions that together mean an expression: itself without look-ahead, and one for each.

    What is looked at begins at a fixed place if all before it has a fixed length; ValueError is raised
    otherwise.
    """
    parts = expression.parts if isinstance(expression, Sequence) else (expression,)
    kept: list[Node] = []
    found: list[Condition] = []
    before: int | None = 0
    for part in parts:
        if isinstance(part, Ahead):
            if before is None or _looks_ahead(part.part):
                raise ValueError("what it looks ahead at begins at no fixed place")
            skipped = Repetition(Characters(_ANY), before, before)
            found.append(Condition(Sequence((skipped, part.part)), part.wanted))
            continue
        if _looks_ahead(part):
            raise ValueError("it looks ahead inside of a group")
        kept.append(part)
        length = _length(part)
        before = None if before is None or length is None else before + length
    return [Condition(Sequence(tuple(kept))), *found]


def _looks_ahead(node: Node) -> bool:
    if isinstance(node, Ahead):
        return True
    if isinstance(node, Repetition):
        return _looks_ahead(node.part)
    if isinstance(node, Sequence | Alternatives):
        return any(map(_looks_ahead, node.parts if isinstance(node, Sequence) else node.among))
    return False


def _length(node: Node) -> int | None:
    """Return how many characters every match of a part has; None if matches differ."""
    match node:
        case Characters():
            return 1
        case Repetition(part, least, most):
            one = _length(part)
            return one * least if one is not None and least == most else None
        case Sequence(parts):
            lengths = [_length(part) for part in parts]
            known = [length for length in lengths if length is not None]
            return sum(known) if len(known) == len(lengths) else None
        case Alternatives(among):
            different = {_length(one) for one in among}
            return different.pop() if len(different) == 1 else None
    return 0


# -- matching of many expressions at once, in a time that grows with the length of the name alone --
# The expressions become one automaton (Thompson, "Regular expression search algorithm", 1968), and the sets
# of states that it can be in are kept once they were met, so that each further character takes one look-up.


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


# -- patterns of module names, with which a config.json lists what is quantized and what is not ----


_REGEX = "re:"
_LONGEST_PATTERN = 1000
"""Length of the longest pattern [characters]."""
_MOST_CONDITIONS = 100
"""Most patterns that look ahead, each of which is matched by itself."""
_OUTER = "language_model."
"""Prefix of a text model's names within a model that takes more than text (transformers 5)."""


class ModuleNames:
    """ModuleNames match the full names of modules, and of all modules inside of those.

    A pattern is a name or some neighbouring parts of one ("mlp.gate"), in which "*" stands for any text, or a
    regular expression after "re:", which matches from the beginning of the name.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        """Read the patterns. Raises ValueError for one that is too long or not valid, and for too many."""
        self._exact, simple = set[str](), list[Node]()
        self._conditional: list[list[tuple[Automaton, bool]]] = []
        for pattern in patterns:
            if len(pattern) > _LONGEST_PATTERN:
                raise ValueError(
                    f"a name has {len(pattern):,} characters; at most {_LONGEST_PATTERN:,} may be"
                )
            plain = _plain(pattern)
            if not plain.startswith(_REGEX) and "*" not in plain:
                self._exact.add(plain)
                continue
            first, *more = _conditions(plain)
            if not more:
                simple.append(first.expression)
                continue
            if len(self._conditional) >= _MOST_CONDITIONS:
                raise ValueError(f"more than {_MOST_CONDITIONS} patterns have (?=a) or (?!a)")
            self._conditional.append([(Automaton([part]), wanted) for part, wanted in (first, *more)])
        self._simple = Automaton(simple) if simple else None

    def __bool__(self) -> bool:
        """Return whether there are any patterns."""
        return bool(self._exact or self._expressions)

    @property
    def _expressions(self) -> bool:
        return self._simple is not None or bool(self._conditional)

    @property
    def by_layer(self) -> bool:
        """Whether names that differ in the number of the layer alone may be matched differently."""
        return self._expressions or any(part.isdecimal() for one in self._exact for part in one.split("."))

    def match(self, name: str) -> bool:
        """Return whether a pattern matches the module called ``name``, or one around it."""
        return any(self._matches(one) for one in _spellings(name))

    def _matches(self, name: str) -> bool:
        if self._exact and not self._exact.isdisjoint(_parts(name)):
            return True
        if self._simple is not None and self._simple.match(name):
            return True
        return any(all(one.match(name) == wanted for one, wanted in each) for each in self._conditional)


def _plain(pattern: str) -> str:
    """Return a pattern without the text at both ends that stands for any other parts of a name."""
    if pattern.startswith(_REGEX):
        return pattern
    return pattern.removeprefix("*.").removesuffix(".*").removesuffix(".")


def _conditions(pattern: str) -> list[Condition]:
    """Return what a pattern means; raises ValueError for a regular expression that is not valid."""
    if not pattern.startswith(_REGEX):
        return [Condition(_with_any_text(pattern))]
    try:
        return conditions_of(read_expression(pattern.removeprefix(_REGEX)))
    except ValueError as error:
        raise ValueError(f"the pattern {quoted(pattern)} is not understood: {error}; {VALID}") from None


def _with_any_text(pattern: str) -> Node:
    """Return the expression for neighbouring parts of a name, in which "*" stands for any text."""
    outside = Repetition(Sequence((ANY_TEXT, literal("."))), 0, 1)
    first, *others = (literal(text) for text in pattern.split("*"))
    texts = (part for text in others for part in (ANY_TEXT, text))
    return Sequence((outside, first, *texts, Alternatives((literal("."), Anchor("$")))))


def _spellings(name: str) -> tuple[str, ...]:
    """Return the names of a module of a text model, alone and within a model that takes more than text."""
    inside = name.replace("model.", f"model.{_OUTER}", 1) if name.startswith("model.") else name
    return tuple(dict.fromkeys((name, _OUTER + name, inside)))


def _parts(name: str) -> list[str]:
    """Return every sequence of neighbouring parts of a name."""
    parts = name.split(".")
    ends = range(1, len(parts) + 1)
    return [".".join(parts[begin:end]) for end in ends for begin in range(end)]
