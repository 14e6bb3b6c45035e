"""Regular expressions of module names as trees: the forms that configurations use, and no others.

Configurations come from anywhere, and Python's ``re`` may need a time that grows exponentially with the
length of a name, in which nothing can interrupt it. An ``Automaton`` (``name_automaton``) matches what is
read here.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import NamedTuple

from simoffload.documents import quoted

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
