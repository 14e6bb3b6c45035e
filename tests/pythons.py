"""Finds the Pythons of this machine that the package supports; prints their paths, one for each version:
python pythons.py."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

MINORS = range(11, 15)
"""Versions 3.x that are tried."""
_FOLDERS = ("~/.pyenv/versions/*/bin", "~/.local/share/uv/python/*/bin", "/opt/python*/bin")
"""Folders beyond those of PATH in which programs put Pythons that are installed side by side."""


def _candidates(minor: int) -> Iterator[Path]:
    name = f"python3.{minor}"
    for folder in os.get_exec_path():
        yield Path(folder, name)
    for pattern in _FOLDERS:
        parent = Path(pattern).expanduser()
        yield from sorted(Path(parent.anchor).glob(str((parent / name).relative_to(parent.anchor))))


def _works(python: Path, minor: int) -> bool:
    """Return whether a program is this Python, can make environments, and is none itself."""
    code = (
        "import sys, ensurepip, venv;"
        f"sys.exit(sys.version_info[:2] != (3, {minor}) or sys.prefix != sys.base_prefix)"
    )
    try:
        return not subprocess.run([python, "-I", "-c", code], capture_output=True, check=False).returncode
    except OSError:
        return False


def found() -> dict[int, Path]:
    """Return the path of one Python of each version 3.x."""
    pythons = {}
    for minor in MINORS:
        one = next((one for one in _candidates(minor) if one.exists() and _works(one, minor)), None)
        if one is not None:
            pythons[minor] = one
    return pythons


if __name__ == "__main__":
    print(*found().values(), sep="\n")
