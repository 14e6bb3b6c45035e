"""Patterns of module names, with which a config.json lists what is quantized and what is not."""

from __future__ import annotations

from collections.abc import Iterable

from simoffload.documents import quoted
from simoffload.models.name_automaton import Automaton
from simoffload.models.name_expressions import (
    ANY_TEXT,
    VALID,
    Alternatives,
    Anchor,
    Condition,
    Node,
    Repetition,
    Sequence,
    conditions_of,
    literal,
    read_expression,
)

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
