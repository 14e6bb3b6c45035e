"""Messages about refused files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simoffload.errors import InputError


def refusal_by(read: Callable[[Path], object], path: Path) -> str:
    """Return the message without the name of the file."""
    with pytest.raises(InputError) as caught:
        read(path)
    return str(caught.value).removeprefix(str(path))
