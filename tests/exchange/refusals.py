"""What is said of files that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simoffload.errors import InputError


def refusal_by(read: Callable[[Path], object], path: Path) -> str:
    """The message without the name of the file."""
    with pytest.raises(InputError) as caught:
        read(path)
    return str(caught.value).removeprefix(str(path))
