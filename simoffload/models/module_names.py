"""Patterns of module names, with which a config.json lists what is quantized and what is not.

Patterns become regular expressions of Python, which may take a time that grows exponentially with the length
of a name. Patterns are therefore refused if there are too many ways to match them (``_paths``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import comb

from simoffload.documents import quoted

_REGEX = "re:"
_LONGEST_PATTERN = 1000
"""Length of the longest pattern [characters]."""
_LONGEST_NAME = 80
"""Length of a long name of a module [characters]."""
_MOST_PATHS = 20_000_000
"""Most ways to match all patterns together."""
_OUTER = "language_model."
"""Prefix of a text model's names within a model that takes more than text (transformers 5)."""


class ModuleNames:
    """ModuleNames match the full names of modules, and of all modules inside of those.

    A pattern is a name or some neighbouring parts of one ("mlp.gate"), in which "*" stands for any text, or a
    regular expression after "re:", which matches from the beginning of the name.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        """Compile the patterns.

        Raises ValueError for one that is too long or is not a regular expression, and if matching them may
        take too long.
        """
        self._exact, self._compiled, paths = set[str](), list[re.Pattern[str]](), 0
        for pattern in patterns:
            if len(pattern) > _LONGEST_PATTERN:
                raise ValueError(
                    f"a name has {len(pattern):,} characters; at most {_LONGEST_PATTERN:,} may be"
                )
            plain = _plain(pattern)
            if not plain.startswith(_REGEX) and "*" not in plain:
                self._exact.add(plain)
                continue
            expression = _expression(plain)
            try:
                self._compiled.append(re.compile(expression))
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"{quoted(pattern)} is not a regular expression: {error}") from None
            paths += _paths(expression)
            if paths > _MOST_PATHS:
                advice = "use fewer of *, +, ?, {} and |, and none of *, + and {} after a group"
                raise ValueError(f"{quoted(pattern)} would take too long to match: {advice}")

    def __bool__(self) -> bool:
        """Return whether there are any patterns."""
        return bool(self._exact or self._compiled)

    @property
    def by_layer(self) -> bool:
        """Whether names that differ in the number of the layer alone may be matched differently."""
        return bool(self._compiled) or any(part.isdecimal() for one in self._exact for part in one.split("."))

    def match(self, name: str) -> bool:
        """Return whether a pattern matches the module called ``name``, or one around it."""
        return any(self._matches(one) for one in _spellings(name))

    def _matches(self, name: str) -> bool:
        if self._exact and not self._exact.isdisjoint(_parts(name)):
            return True
        return any(one.match(name) for one in self._compiled)


def _plain(pattern: str) -> str:
    """Return a pattern without the text at both ends that stands for any other parts of a name."""
    if pattern.startswith(_REGEX):
        return re.sub(r"(?<!\\)(\.\*)+\$?$", "", pattern)
    return pattern.removeprefix("*.").removesuffix(".*").removesuffix(".")


def _expression(pattern: str) -> str:
    if pattern.startswith(_REGEX):
        return pattern.removeprefix(_REGEX)
    escaped = re.escape(pattern).replace(r"\*", ".*")
    return rf"(?:.*\.)?{escaped}(?:\.|$)"


def _paths(expression: str) -> int:
    """Return a bound on the ways in which an expression can match a long name.

    ``n`` repetitions can share its characters in (length + n over n) ways. Alternatives of a group multiply
    that, and so does everything that is optional. Repetitions of a group have no bound.
    """
    plain = re.sub(r"\\.", "x", expression)  # escaped characters
    plain = re.sub(r"\[\^?\]?[^\]]*\]", "x", plain)  # classes of characters
    plain = re.sub(r"\(\?(:|=|!|<=|<!|P<\w+>)", "(", plain)
    if re.search(r"\)[*+{]", plain):
        return _MOST_PATHS + 1
    repetitions = len(re.findall(r"[*+{]", plain))
    optional = re.sub(r"(?<=[*+?}])\?", "", plain).count("?")
    alternatives = 1
    for group in re.split(r"[()]", plain):
        alternatives *= 1 + group.count("|")
    return comb(_LONGEST_NAME + repetitions, repetitions) * alternatives * (1 << optional)


def _spellings(name: str) -> tuple[str, ...]:
    """Return the names of a module of a text model, alone and within a model that takes more than text."""
    inside = name.replace("model.", f"model.{_OUTER}", 1) if name.startswith("model.") else name
    return tuple(dict.fromkeys((name, _OUTER + name, inside)))


def _parts(name: str) -> list[str]:
    """Return every sequence of neighbouring parts of a name."""
    parts = name.split(".")
    ends = range(1, len(parts) + 1)
    return [".".join(parts[begin:end]) for end in ends for begin in range(end)]
