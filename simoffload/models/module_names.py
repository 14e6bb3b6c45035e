"""Patterns of module names, with which a config.json lists what is quantized and what is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from simoffload.documents import quoted

# -- regular expressions ---------------------------------------------------------------------------
# Configurations come from anywhere, and Python's ``re`` may need a time that grows exponentially with the
# length of a name, in which nothing can interrupt it; RE2's grows with the length alone.


VALID = (
    r"valid is the syntax of RE2, which has neither look-around nor \1, and (?=a) and (?!a) at the beginning "
    "of a name"
)
"""What an expression may contain, for messages."""
_LONGEST = 100_000
"""Length of the longest expression [characters]; RE2 writes to stderr about those that are much longer."""


class Expression:
    """An Expression is a regular expression, with what it looks ahead at from the beginning of a name."""

    def __init__(self, text: str, *, at_start: bool = False) -> None:
        """Read an expression that is found anywhere in a name, or ``at_start``. Raises ValueError for what is
        not valid."""
        rest = text.removeprefix("^")
        fixed = at_start or rest != text
        self.ahead: list[tuple[Callable[[str], object], bool]] = []
        while fixed and rest.startswith(("(?=", "(?!")):
            # The parenthesis that ends it is the first one before which all is valid.
            end = next((at for at in _places(")", rest) if _is_valid(rest[3:at])), None)
            if end is None:
                break
            self.ahead.append((_search(f"^(?:{rest[3:end]})"), rest[2] == "="))
            rest = rest[end + 1 :]
        if self.ahead and any(_is_valid(rest[:at]) for at in _places("|", rest)):
            raise ValueError("after what it looks ahead at, | is in no group")
        _search(rest if fixed else text)
        self.text = f"^(?:{rest})" if at_start or self.ahead else text
        """What remains without look-ahead, to be found anywhere in a name."""
        self._search = _search(self.text)

    def found_in(self, name: str) -> bool:
        """Return whether the expression is found in a name."""
        ahead = ((search(name) is not None) is wanted for search, wanted in self.ahead)
        return self._search(name) is not None and all(ahead)


def _search(text: str) -> Callable[[str], object]:
    """Return what searches an expression in a name by RE2; ValueError is raised for what is not valid."""
    import re2  # only models with such patterns need it

    if len(text) > _LONGEST:
        raise ValueError(f"the patterns are too long, together more than {_LONGEST:,} characters")
    options = re2.Options()
    options.log_errors = False
    try:
        search: Callable[[str], object] = re2.compile(text, options).search
    except re2.error as error:
        raise ValueError(error.args[0].decode()) from None
    return search


def _is_valid(text: str) -> bool:
    try:
        _search(text)
    except ValueError:
        return False
    return True


def _places(sign: str, text: str) -> list[int]:
    return [at for at, one in enumerate(text) if one == sign]


# -- patterns --------------------------------------------------------------------------------------


_REGEX = "re:"
_LONGEST_PATTERN = 1000
"""Length of the longest pattern [characters]."""
_OUTER = "language_model."
"""Prefix of a text model's names within a model that takes more than text (transformers 5)."""
_EXPERT = re.compile(r"\.experts\.(\d+)(?:\..+)?$")
"""End of the name of one expert, or of a matrix of one; transformers 5 keeps those of all in one module."""
_ELSEWHERE: tuple[Mapping[str, str], ...] = (
    {"mlp": "block_sparse_moe"},
    {"mlp": "ffn", "self_attn": "attn", "lm_head": "head"},
)
"""Parts of names in checkpoints that transformers 5 renames when it loads them (conversion_mapping.py):
of Mixtral's experts, and of DeepSeek's own files."""


class ModuleNames:
    """ModuleNames match the full names of modules, and of all modules inside of those.

    A pattern is a name or some neighbouring parts of one ("mlp.gate"), in which "*" stands for any text, or a
    regular expression after "re:", which matches from the beginning of the name. The name of the first expert
    of a layer stands for all of them.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        """Read the patterns. Raises ValueError for one that is too long or not valid, and for too many."""
        self._exact, self._beginnings, simple = set[str](), set[str](), list[str]()
        self._expressions: list[Expression] = []
        for pattern in patterns:
            if len(pattern) > _LONGEST_PATTERN:
                raise ValueError(
                    f"a name has {len(pattern):,} characters; at most {_LONGEST_PATTERN:,} may be"
                )
            plain = _plain(pattern)
            if not plain.startswith(_REGEX) and "*" not in plain:
                one_expert = _EXPERT.search(plain)
                if one_expert is None:
                    self._exact.add(plain)
                elif int(one_expert[1]) == 0:
                    self._exact.add(plain[: one_expert.start()] + ".experts")
            elif not plain.startswith(_REGEX) and plain.find("*") == len(plain) - 1 > 0:
                self._beginnings.add(plain[:-1])
            elif (expression := _expression(plain)).ahead:
                self._expressions.append(expression)
            else:
                simple.append(expression.text)
        if simple:
            self._expressions.append(Expression("|".join(simple)))

    def __bool__(self) -> bool:
        """Return whether there are any patterns."""
        return bool(self._exact or self._beginnings or self._expressions)

    @property
    def by_layer(self) -> bool:
        """Whether names that differ in the number of the layer alone may be matched differently."""
        numbered = (part.isdecimal() for one in self._exact for part in one.split("."))
        return bool(self._expressions or self._beginnings) or any(numbered)

    def match(self, name: str) -> bool:
        """Return whether a pattern matches the module called ``name``, or one around it."""
        return any(self._matches(one) for one in _spellings(name))

    def _matches(self, name: str) -> bool:
        if self._exact and not self._exact.isdisjoint(_parts(name)):
            return True
        if self._beginnings and not self._beginnings.isdisjoint(_begun(name)):
            return True
        return any(one.found_in(name) for one in self._expressions)


def _plain(pattern: str) -> str:
    """Return a pattern without the text at both ends that stands for any other parts of a name."""
    if pattern.startswith(_REGEX):
        return pattern
    return pattern.removeprefix("*.").removesuffix(".*").removesuffix(".")


def _expression(pattern: str) -> Expression:
    """Return what a pattern means; raises ValueError for a regular expression that is not valid."""
    if not pattern.startswith(_REGEX):
        neighbours = ".*".join(map(re.escape, pattern.split("*")))
        return Expression(rf"^(?:.*\.)?{neighbours}(?:\.|$)")
    try:
        return Expression(pattern.removeprefix(_REGEX), at_start=True)
    except ValueError as error:
        raise ValueError(f"the pattern {quoted(pattern)} is not understood: {error}; {VALID}") from None


def _spellings(name: str) -> tuple[str, ...]:
    """Return the names of a module of a text model: alone, within a model that takes more than text, and as
    checkpoints may have it."""
    inside = name.replace("model.", f"model.{_OUTER}", 1) if name.startswith("model.") else name
    parts = name.split(".")
    others = (".".join(renamed.get(part, part) for part in parts) for renamed in _ELSEWHERE)
    return tuple(dict.fromkeys((name, _OUTER + name, inside, *others)))


def _parts(name: str) -> list[str]:
    """Return every sequence of neighbouring parts of a name."""
    parts = name.split(".")
    ends = range(1, len(parts) + 1)
    return [".".join(parts[begin:end]) for end in ends for begin in range(end)]


def _begun(name: str) -> Iterator[str]:
    """Yield every text that begins at the beginning of a part of a name."""
    begin = 0
    while True:
        yield from (name[begin:end] for end in range(begin + 1, len(name) + 1))
        begin = name.find(".", begin) + 1
        if begin == 0:
            return
