"""A document: the plain tree of a file and the position of each part, the words of problems with it, and the
base class of everything that is read from files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict

from simoffload.errors import InputError, Problem, shortened

# -- names as people write them --------------------------------------------------------------------
# One comparison for models, devices, machines and scenarios.


_SEPARATORS = re.compile(r"[-_\s]+")
_BETWEEN_DIGITS = re.compile(r"(?<=[0-9])-(?=[0-9])")
_MAKER = re.compile(r"^(?:(?:nvidia|amd|intel|geforce|tesla|quadro|radeon|instinct)-+)+(?=.)")
"""Makers and their lines of products, which no id begins with."""
_SERIES = "rtx"
"""Beginning of ids that people leave out where only one is meant: 4090."""
_LONGEST_NAME = 200  # characters of a name; no known one has as many
_SHORTEST = 2  # characters of a beginning that still means something


def folded(name: str) -> str:
    """Return a name without what people write differently: case, hyphens, underscores, spaces and a maker in
    front. A separator between two digits stays, so that gemma-2-2b is not gemma-22b.

    >>> folded("NVIDIA GeForce RTX 4090"), folded("rtx4090"), folded("gemma_2-2B")
    ('rtx4090', 'rtx4090', 'gemma2-2b')
    """
    return _folded(name[:_LONGEST_NAME])


@lru_cache(maxsize=4096)
def _folded(name: str) -> str:
    text = _SEPARATORS.sub("-", name.strip().lower()).strip("-")
    text = _MAKER.sub("", text)
    return "".join(part if part == "-" else part.replace("-", "") for part in _parts(text))


def _parts(text: str) -> list[str]:
    """Split a text around the hyphens that stand between two digits."""
    ends = [match.start() for match in _BETWEEN_DIGITS.finditer(text)]
    starts = [0, *(end + 1 for end in ends)]
    pieces = [text[start:end] for start, end in zip(starts, [*ends, len(text)], strict=True)]
    return [part for piece in pieces for part in ("-", piece)][1:]


def same_name(one: str, other: str) -> bool:
    """Return whether two names differ only in what :func:`folded` removes."""
    return one == other or folded(one) == folded(other)


def named(wanted: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the known name that a text means: the equal one, or else all that are equal when folded, or
    that are so without the series in front."""
    names = tuple(dict.fromkeys(known))
    if wanted in names:
        return (wanted,)
    text = folded(wanted)
    meant = (text, f"{_SERIES}{text}") if text else ()
    return next(filter(None, (tuple(n for n in names if folded(n) == one) for one in meant)), ())


def _begins(name: str, text: str) -> bool:
    """Whether a name begins with a text that ends in no number of it: a10 does not begin a100."""
    after = name[len(text) : len(text) + 1]
    return name.startswith(text) and not (text[-1].isdigit() and after.isdigit())


def candidates(wanted: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?`` with all known names that begin with the text, or else the most similar
    ones; "" without any."""
    names, text = tuple(dict.fromkeys(known)), folded(wanted)
    begin = [name for name in names if len(text) >= _SHORTEST and _begins(folded(name), text)]
    return f"; did you mean {either([quoted(one) for one in begin])}?" if begin else suggest(wanted, names)


# -- A document ------------------------------------------------------------------------------------


Location = tuple[str | int, ...]
"""Keys and list indices from the top of a document."""

MOST_PROBLEMS = 50
"""Problems that an error lists; of further ones it gives only the number."""


class Position(NamedTuple):
    """Line and column at which an entry of a file begins, counted from 1; columns are characters."""

    line: int
    column: int


class Mark(NamedTuple):
    """The origin of one entry of a document; the positions are None if it did not come from a file."""

    value: Position | None
    key: Position | None = None
    text: str | None = None
    """The text of an unquoted scalar, exactly as written."""
    file: str = ""
    """The other file, or the option of the command line, from which the entry comes."""
    root: Path | None = None
    """The folder from which relative paths in the entry start, where it is that of another file."""


def key_path(location: Location) -> str:
    """Write a location as a path of keys: ``tiers[1].capacity``."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            name = part if re.fullmatch(r"[\w/-]{1,40}", part) else quoted(part)
            path += f".{name}" if path else name
    return path


def input_error(problems: Iterable[Problem]) -> InputError:
    """Join problems into one error: each once, in the order of the file, at most ``MOST_PROBLEMS``."""
    ordered = sorted(
        dict.fromkeys(problems),
        key=lambda problem: (problem.line is None, problem.line or 0, problem.column or 0),
    )
    omitted = len(ordered) - MOST_PROBLEMS
    if omitted > 0:
        rest = Problem(ordered[0].path, None, None, "", f"and {omitted} more problems")
        ordered = [*ordered[:MOST_PROBLEMS], rest]
    return InputError(ordered)


@dataclass(frozen=True, eq=False)
class Document:
    """The content of a file, with the position of each part."""

    path: str
    """The file as the user named it."""
    data: Any
    """The tree: dictionaries with text keys, lists, text, numbers, booleans and None."""
    root: Path | None = None
    """The folder from which relative paths in the document start."""
    marks: Mapping[Location, Mark] = field(default_factory=dict, repr=False)
    warnings: tuple[Problem, ...] = ()
    """Warnings about the document, such as those about renamed keys; each names its place."""

    def position(self, location: Location) -> Position | None:
        """Return where a value, or else the nearest entry around it, begins; None if nothing is known."""
        return self.nearest(location).value

    def key_position(self, location: Location) -> Position | None:
        """Return where the key of an entry begins; for an entry of a list, where its value begins."""
        mark = self.marks.get(location)
        return mark.key if mark is not None and mark.key is not None else self.position(location)

    def nearest(self, location: Location) -> Mark:
        """Return the origin of an entry, or else of the nearest one around it."""
        ends = range(len(location), -1, -1)
        return next((self.marks[location[:end]] for end in ends if location[:end] in self.marks), Mark(None))

    def written(self, location: Location) -> str | None:
        """Return an unquoted scalar exactly as written: ``1e9``, where the tree has 1000000000.0."""
        mark = self.marks.get(location)
        return mark.text if mark else None

    def problem(self, location: Location, message: str, *, at_key: bool = False) -> Problem:
        """Return a problem with a value of this document (with its key if ``at_key``)."""
        line, column = (self.key_position(location) if at_key else self.position(location)) or (None, None)
        mark = self.nearest(location)
        return Problem(mark.file or self.path, line, column, key_path(location), message)

    def shares(self, section: str, other: Document) -> bool:
        """Return whether another document has the same section, which edits keep unless they change it."""
        return self.data.get(section) is other.data.get(section)


class DocumentLocation(NamedTuple):
    """An entry of a document, given by the keys that lead to it."""

    document: Document
    keys: tuple[str | int, ...]

    @property
    def folder(self) -> Path:
        """The folder from which relative paths in this entry start."""
        root = self.document.nearest(self.keys).root or self.document.root
        return Path(self.document.path).parent if root is None else root

    def problem(self, message: str, *, at_key: bool = False) -> Problem:
        """Return a problem located at this entry (at its key if ``at_key``)."""
        return self.document.problem(self.keys, message, at_key=at_key)

    def error(self, message: str) -> InputError:
        """Return a problem located at this entry, as an exception."""
        return InputError((self.problem(message),))

    @contextmanager
    def referring(self) -> Iterator[None]:
        """Report any problem with a file that is read within this context as one problem at this entry."""
        try:
            yield
        except InputError as error:
            raise InputError(
                one
                if one.line or one.key
                else self.problem(f"{one.path}: {one.message}" if one.path else one.message)
                for one in error.problems
            ) from None


_LONGEST = 40
_MOST_SIMILAR = 3
_MOST_CHOICES = 30


def quoted(text: str) -> str:
    """Return the text in quotes, shortened to 40 characters."""
    return f'"{shortened(text, _LONGEST)}"'


def suggest(word: str, choices: Iterable[str]) -> str:
    """Return ``; did you mean "x" or "y"?`` for the choices most similar to the word, or "" without any."""
    near = nearest(word, choices)
    return f"; did you mean {either([quoted(one) for one in near])}?" if near else ""


def nearest(word: str, choices: Iterable[str]) -> list[str]:
    """Return the choice most similar to the word, or up to three that are equally similar."""
    by_folded = {choice.casefold(): choice for choice in choices}
    folded = word[:_LONGEST].casefold()
    near = get_close_matches(folded, by_folded, n=_MOST_SIMILAR)
    likeness = [SequenceMatcher(None, one, folded).ratio() for one in near]
    return [by_folded[one] for one, ratio in zip(near, likeness, strict=True) if ratio == likeness[0]]


def listing(names: Sequence[str]) -> str:
    """Return the names separated by commas; after 30 names only the number of the others is given."""
    shown = ", ".join(names[:_MOST_CHOICES])
    omitted = len(names) - _MOST_CHOICES
    return f"{shown} and {omitted} more" if omitted > 0 else shown


def either(phrases: Sequence[str]) -> str:
    """Return ``a``, ``a or b`` or ``a, b or c``; a long list is cut."""
    if len(phrases) > _MOST_CHOICES:
        return listing(phrases)
    return " or ".join(filter(None, [", ".join(phrases[:-1]), phrases[-1]]))


class Frozen(BaseModel):
    """A section of a file, whose values cannot be changed and whose unknown keys are refused.

    Its validator is built at its first use, because most programs read only a few kinds of sections.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Keys that a user may expect here, with what to write instead."""
    written_as: ClassVar[str] = ""
    """How a value that is no mapping is written as one, with {} in its place; "" where no form is usual."""
