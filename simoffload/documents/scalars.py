"""Plain scalars by the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema).

PyYAML's own loaders follow YAML 1.1, in which ``1e9`` is text, ``NO`` is false, ``12:30`` is 750 and
``017`` is 15.
"""

from __future__ import annotations

import math
import re

__all__ = ["Scalar", "is_text", "parse_number", "parse_scalar"]

Scalar = str | int | float | bool | None

_KEYWORDS: dict[str, bool | None] = {
    **dict.fromkeys(["", "~", "null", "Null", "NULL"]),
    **dict.fromkeys(["true", "True", "TRUE"], True),
    **dict.fromkeys(["false", "False", "FALSE"], False),
}
_DECIMAL = re.compile(r"[-+]?[0-9]+")
_PREFIXED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MOST_DIGITS = 30
_LONGEST_FLOAT = 60


def parse_number(text: str) -> int | float | None:
    """Read a number; None if the text is none.

    Raises ValueError for one that is too long to be meant, or beyond the range of a float.
    """
    if _DECIMAL.fullmatch(text) or _PREFIXED.fullmatch(text):
        if len(text) > _MOST_DIGITS:
            raise ValueError(f"an integer may have {_MOST_DIGITS} digits, and this one has {len(text)}")
        bases = {"0o": 8, "0x": 16}
        return int(text, bases.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        if len(text) > _LONGEST_FLOAT:
            raise ValueError(f"a number may have {_LONGEST_FLOAT} characters, and this one has {len(text)}")
        number = float(text)
        if math.isinf(number):
            raise ValueError(f"{text} is too large for a number (at most 1.8e308)")
        return number
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return None


def parse_scalar(text: str) -> Scalar:
    """Read a plain (unquoted) scalar: a word such as ``true``, a number, or else text.

    Raises ValueError like ``parse_number``.
    """
    if text in _KEYWORDS:
        return _KEYWORDS[text]
    number = parse_number(text)
    return text if number is None else number


def is_text(plain: str) -> bool:
    """Whether a plain scalar is read as text."""
    try:
        return isinstance(parse_scalar(plain), str)
    except ValueError:
        return False
