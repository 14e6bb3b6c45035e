"""The version, and folders of files that come with the package: in the wheel, or beside it in a checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

__version__ = "0.1.0"


@cache
def shipped_folder(name: str) -> Path:
    """Return the path of the folder "hardware_profiles", "scenarios" or "traces"."""
    package = Path(__file__).parent
    packaged = package / "_data" / name
    return packaged if packaged.is_dir() else package.parent / name
