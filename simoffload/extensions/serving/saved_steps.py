"""What is kept on disk for later runs: simulated steps of a scenario, and how far a long stream is.

Both are in ``$XDG_CACHE_HOME/simoffload`` (``~/.cache/simoffload``), a file for the steps of a scenario and
a folder for a stream. Each file begins with a checksum; one that is damaged, or cannot be read or written, is
as one that is not there. Names are hashes of the scenario and of the files of this package, so that nothing
is found again after a change of either. Nothing is kept with anything registered from outside the package,
whose code is in no name.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from math import isfinite
from pathlib import Path
from shutil import rmtree
from typing import Any
from uuid import uuid4

from simoffload.extending import from_outside
from simoffload.limits import Limits
from simoffload.models import families
from simoffload.results import registered
from simoffload.scenario import LoadedScenario
from simoffload.shipped import __version__
from simoffload.strategies import registry
from simoffload.strategies.cache.kv_cache import formats_from_outside
from simoffload.strategies.ds_config import extensions

__all__ = ["INTERVAL", "SavedSteps", "StreamCheckpoints", "key_of"]

INTERVAL = 30.0
"""Time [s] of which no more is lost when the process is killed (our choice)."""
_ALIVE = 3
"""Intervals without a file after which a process is taken to have ended (our choice)."""
_MOST_BYTES = 1 << 30
"""Size [B] of everything beyond which what was used first is removed (our choice)."""
_OLDEST = 30 * 86400.0
"""Time [s] after its last use after which everything is removed (our choice)."""
_MOST_POINTS = 50_000
"""Number of steps that are kept of a scenario (our choice)."""


def _folder(kind: str) -> Path:
    """Return the folder for a kind of what is kept; one that cannot be where nothing is to be kept."""
    outside = families.registered_outside(), registry.registered_outside(), formats_from_outside()
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with suppress(RuntimeError):  # there is no home
        if not any((*outside, registered, extensions, *from_outside())):
            return (given if given.is_absolute() else Path.home() / ".cache") / "simoffload" / kind
    return Path(os.devnull) / kind


@cache
def _version() -> str:
    """Return what changes with any file of this package."""
    root = Path(__file__).parents[2]
    with suppress(OSError):  # a file that is being replaced
        found = sorted((str(one), one.stat().st_mtime_ns, one.stat().st_size) for one in root.rglob("*.py"))
        return f"{__version__} {found}"
    return uuid4().hex


def key_of(scenario: LoadedScenario, *, without: tuple[str, ...] = ()) -> str:
    """Return a hash of what decides the result of a scenario, which limits do not, and of the program."""
    data = {key: value for key, value in scenario.document.data.items() if key not in without}
    options = (data.get("engine") or {}).items()
    data["engine"] = {key: value for key, value in options if key not in Limits._fields}
    found = scenario.cache.cache_key(data, root=scenario.document.root)
    return _hash(f"{found} {_version()}")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path) -> bytes | None:
    """Return what was written to a file; None if that is not what is there."""
    try:
        data = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    return data[4:] if data[:4] == zlib.crc32(data[4:]).to_bytes(4, "big") else None


def _write(path: Path, data: bytes, entry: Path) -> None:
    """Replace a file of an entry of its kind's folder as a whole, and remove entries that were used first."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with new.open("wb") as file:
                file.writelines((zlib.crc32(data).to_bytes(4, "big"), data))
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
        _prune(entry)


def _prune(own: Path) -> None:
    """Remove entries of all kinds by age and total size, but streams of this process and of others at work.

    Steps are removed whoever uses them, as they can be simulated again.
    """
    entries, total = list[tuple[float, int, str, bool]](), 0
    for kind in own.parent.parent.iterdir():
        for one in os.scandir(kind):
            with suppress(OSError):  # another process removed it
                entries.append((*_age_and_size(one), one.path, one.is_dir()))
    for age, size, path, is_stream in sorted(entries):
        total += size
        at_work = is_stream and (path == str(own) or age <= _ALIVE * INTERVAL)
        if (total > _MOST_BYTES or age > _OLDEST) and not at_work:
            with suppress(OSError):
                rmtree(path) if is_stream else Path(path).unlink()


def _age_and_size(entry: os.DirEntry[str]) -> tuple[float, int]:
    """Return the time since the last use [s], and the size [B]."""
    found = [one.stat() for one in (entry, *(Path(entry).rglob("*") if entry.is_dir() else ()))]
    return time.time() - max(one.st_mtime for one in found), sum(one.st_size for one in found)


class SavedSteps:
    """SavedSteps are the times of simulated steps of a scenario, by their numbers."""

    def __init__(self, key: str) -> None:
        self._path = _folder("steps") / key

    def read(self) -> dict[tuple[int, int, int, int], tuple[float, float, float]]:
        """Return the steps of earlier runs."""
        found = {}
        with suppress(ValueError, TypeError, RecursionError, OverflowError):
            for a, b, c, d, *times in json.loads(_read(self._path) or b"[]"):
                time, host, busy = map(float, times)
                if isfinite(time + host + busy) and time > 0 and min(host, busy) >= 0:
                    found[int(a), int(b), int(c), int(d)] = time, host, busy
        return found

    def write(self, steps: Mapping[tuple[int, int, int, int], Sequence[float]]) -> None:
        """Keep steps, if there are new ones, beside those of earlier runs."""
        known = self.read()
        if steps.keys() - known.keys():
            kept = islice({**steps, **known}.items(), _MOST_POINTS)
            data = json.dumps([[*point, *times[:3]] for point, times in kept])
            _write(self._path, data.encode(), self._path)


class _Plain(pickle.Unpickler):
    """Reads what a checkpoint consists of, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of a replica; raises UnpicklingError for any other."""
        if module.startswith("simoffload.extensions.serving.") or (module, name) in _BUILTIN:
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
        self._folder = _folder("streams") / _hash(key)
        self._own = self._folder / uuid4().hex
        """Folder of this process, as the same command may run twice at once."""
        self._saved = time.monotonic()
        self._ended: dict[str, Any] = {}

    def load(self, part: str) -> Any:
        """Return how far a part is; None if that is not known."""
        with suppress(Exception):  # whatever a file leads to that is not of this version
            found = self._folder.glob(f"*/{_hash(part)}")
            *older, latest = sorted(found, key=lambda one: one.stat().st_mtime)
            for one in older:
                one.unlink()
            data = _read(latest)
            return None if data is None else _Plain(io.BytesIO(data)).load()
        return None

    def note(self, part: str, state: Any, *, ended: bool = False) -> None:
        """Write how far a part is, and what ended before, if an interval is over."""
        if ended:
            self._ended[part] = state
        if time.monotonic() - self._saved >= INTERVAL:
            for name, one in {**self._ended, part: state}.items():
                _write(self._own / _hash(name), pickle.dumps(one, protocol=5), self._folder)
            self._ended.clear()
            self._saved = time.monotonic()

    def advice(self) -> str:
        """Return what to tell whoever stopped the stream, if anything of it is kept."""
        with suppress(OSError):
            if any(self._folder.glob("*/*")):
                return "; the same command goes on from what is kept"
        return ""

    def clear(self) -> None:
        """Remove all parts, once the stream has its answer, but those of another process that is at work."""
        with suppress(OSError):
            for one in self._folder.iterdir():
                if one == self._own or time.time() - one.stat().st_mtime > _ALIVE * INTERVAL:
                    rmtree(one)
            self._folder.rmdir()
