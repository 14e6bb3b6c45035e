"""Names as people write them: one comparison for models, devices, machines and scenarios."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from simoffload.documents.document import either, quoted, suggest

_SEPARATORS = re.compile(r"[-_\s]+")
_BETWEEN_DIGITS = re.compile(r"(?<=[0-9])-(?=[0-9])")
_MAKER = re.compile(r"^(?:(?:nvidia|amd|intel|geforce|tesla|quadro|radeon|instinct)-+)+(?=.)")
"""Makers and their lines of products, which no id begins with."""
_LONGEST = 200  # characters of a name; no known one has as many
_SHORTEST = 2  # characters of a beginning that still means something


def folded(name: str) -> str:
    """Return a name without what people write differently: case, hyphens, underscores, spaces and a maker in
    front. A separator between two digits stays, so that gemma-2-2b is not gemma-22b.

    >>> folded("NVIDIA GeForce RTX 4090"), folded("rtx4090"), folded("gemma_2-2B")
    ('rtx4090', 'rtx4090', 'gemma2-2b')
    """
    return _folded(name[:_LONGEST])


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
    """Return the known name that a text means: the equal one, or else all that are equal when folded."""
    names = tuple(dict.fromkeys(known))
    if wanted in names:
        return (wanted,)
    text = folded(wanted)
    return tuple(name for name in names if text and folded(name) == text)


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
