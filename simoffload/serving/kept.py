"""What is kept on disk for later runs: simulated steps of a scenario, and how far a long stream is.

Files are in ``$XDG_CACHE_HOME/simoffload`` (``~/.cache/simoffload``). Each begins with a checksum; one that
is damaged, or cannot be read or written, is as one that is not there. Names are hashes of the scenario and
of the files of this package, so that nothing is found again after a change of either.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

import simoffload
from simoffload.scenario import LoadedScenario

__all__ = ["INTERVAL", "KeptSteps", "StreamCheckpoints", "key_of"]

INTERVAL = 30.0
"""Time [s] of which no more is lost when the process is killed (our choice)."""
_MOST_FILES = 64
"""Number of files of a kind of which the ones used last are kept (our choice)."""
_MOST_POINTS = 50_000
"""Number of steps that are kept of a scenario (our choice)."""


def _folder(kind: str) -> Path | None:
    """Return the folder for a kind of files; None where there is no home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(given) if Path(given).is_absolute() else Path.home() / ".cache") / "simoffload" / kind
    except RuntimeError:
        return None


@cache
def _version() -> str:
    """Return what changes with any file of this package."""
    root = Path(simoffload.__file__).parent
    found = sorted((str(one), one.stat().st_mtime_ns, one.stat().st_size) for one in root.rglob("*.py"))
    return f"{simoffload.__version__} {found}"


def key_of(scenario: LoadedScenario, *, without: tuple[str, ...] = ()) -> str:
    """Return a hash of what decides the result of a scenario, and of the program."""
    data = {key: value for key, value in scenario.document.data.items() if key not in without}
    found = scenario.cache.cache_key(data, root=scenario.document.root)
    return hashlib.sha256(f"{found} {_version()}".encode()).hexdigest()


def _read(path: Path | None) -> bytes | None:
    """Return what was written to a file; None if that is not what is there."""
    if path is None:
        return None
    try:
        data = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    return data[4:] if data[:4] == zlib.crc32(data[4:]).to_bytes(4, "big") else None


def _write(path: Path | None, data: bytes) -> None:
    """Replace a file as a whole, and remove the files of its folder that were used first."""
    if path is None:
        return
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            new.write_bytes(zlib.crc32(data).to_bytes(4, "big") + data)
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
        for old in sorted(path.parent.iterdir(), key=lambda one: one.stat().st_mtime)[:-_MOST_FILES]:
            old.unlink(missing_ok=True)


class KeptSteps:
    """KeptSteps are the times of simulated steps of a scenario, by their numbers."""

    def __init__(self, key: str) -> None:
        folder = _folder("steps")
        self._path = folder and folder / key
        self._written = 0

    def read(self) -> dict[tuple[int, int, int, int], tuple[float, float, float]]:
        """Return the steps of earlier runs."""
        found = {}
        with suppress(ValueError, TypeError, RecursionError):
            for a, b, c, d, *times in json.loads(_read(self._path) or b"[]"):
                time, host, busy = map(float, times)
                if isfinite(time + host + busy) and min(time, host, busy) >= 0:
                    found[int(a), int(b), int(c), int(d)] = time, host, busy
        self._written = len(found)
        return found

    def write(self, steps: Mapping[tuple[int, int, int, int], Sequence[float]]) -> None:
        """Keep steps, if there are new ones."""
        if self._written < len(steps) <= _MOST_POINTS:
            self._written = len(steps)
            _write(self._path, json.dumps([[*point, *times[:3]] for point, times in steps.items()]).encode())


class _Plain(pickle.Unpickler):
    """Reads what a checkpoint consists of, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of a replica; raises UnpicklingError for any other."""
        if module.startswith("simoffload.serving.") or (module, name) in _BUILTIN:
            found = super().find_class(module, name)
            if (module, name) in _BUILTIN or (isinstance(found, type) and found.__module__ == module):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is not part of a checkpoint")


_BUILTIN = {("array", "array"), ("array", "_array_reconstructor"), ("collections", "deque")}


class StreamCheckpoints:
    """StreamCheckpoints have the parts of a long stream, so that a run of the same command goes on with them.

    Parts that ended since the last interval are in memory until the next one.
    """

    def __init__(self, key: str) -> None:
        self._folder, self._key = _folder("streams"), key
        self._saved = time.monotonic()
        self._ended: dict[str, Any] = {}

    def _path(self, part: str) -> Path | None:
        name = hashlib.sha256(f"{self._key} {part}".encode()).hexdigest()
        return self._folder and self._folder / f"{self._key[:16]}-{name}"

    def load(self, part: str) -> Any:
        """Return how far a part is; None if that is not known."""
        data = _read(self._path(part))
        with suppress(Exception):  # whatever a file leads to that is not of this version
            return None if data is None else _Plain(io.BytesIO(data)).load()
        return None

    def note(self, part: str, state: Any, *, ended: bool = False) -> None:
        """Write how far a part is, and what ended before, if an interval is over."""
        if ended:
            self._ended[part] = state
        if time.monotonic() - self._saved >= INTERVAL:
            for name, one in {**self._ended, part: state}.items():
                _write(self._path(name), pickle.dumps(one, protocol=5))
            self._ended.clear()
            self._saved = time.monotonic()

    def clear(self) -> None:
        """Remove all parts, once the stream has its answer."""
        for one in self._files():
            with suppress(OSError):
                one.unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        if self._folder is not None and self._folder.is_dir():
            yield from self._folder.glob(f"{self._key[:16]}-*")
