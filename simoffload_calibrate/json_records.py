"""Records as JSON files, read after a check of size and syntax."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from simoffload.documents import read_text
from simoffload.errors import InputError, Problem

_LARGEST = 256_000_000
"""[B] Size of the largest file: a run with traces takes about 0.1 MB, a measurement of one GPU 1.1 MB."""


def read_json(path: Path, *, remedy: str) -> Any:
    """Return the content of a JSON file without positions, which large files would make slow.

    Raises InputError for a file that cannot be read or is not valid JSON; errors about other files end with
    ``remedy``.
    """
    text = read_text(path, most=_LARGEST, remedy=remedy)
    try:
        return json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        rest = text[error.pos :].strip()  # of a file that was cut off it is empty or the beginning of a value
        ended = any(word.startswith(rest) for word in ("true", "false", "null", "-"))
        ended = ended or error.msg.startswith("Unterminated string")
        hint = "was the file cut off?" if ended else remedy
        reason = f"not valid JSON: {error.msg[0].lower()}{error.msg[1:]}; {hint}"
        raise InputError([Problem(str(path), error.lineno, error.colno, "", reason)]) from None
    except (ValueError, RecursionError) as error:
        raise InputError([Problem(str(path), None, None, "", f"not valid JSON: {error}; {remedy}")]) from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a number")
