"""An imagined machine under measurement: sections without processes, and probes with known levels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any

from simoffload_calibrate.micro.bench import Bench
from simoffload_calibrate.micro.benchmarks import Context, MeasurementRequest, MeasurementSection

QUIET = 4e-6
"""[s] Time of a call on a quiet host."""


def probe(level: float = 1.0) -> dict[str, Any]:
    """Return a probe of a host that is ``level`` times as slow as a quiet one."""
    quantiles = dict.fromkeys(("p10", "p25", "p50", "p75", "p90"), QUIET * level)
    return {"seconds": 1.6, "steal": 0.0, "calls": {"launch": quantiles, "module": quantiles}}


class FakeBench:
    """A machine with given sections, whose probes have given levels and from then on the last of these."""

    facts: Mapping[str, Any] = {"cpu": "Some Xeon", "cores": 8, "memory": 1 << 37, "gpu": None}
    skipped: Mapping[str, str] = {}
    preparation: float = 0.0
    compilation: float = 0.0

    def __init__(self, sections: Sequence[MeasurementSection], levels: Iterable[float] = (1.0,)) -> None:
        self.sections = sections
        known = tuple(levels)
        self._levels = chain(known, repeat(known[-1]))

    def detect(self) -> str:
        return ""

    def prepare(self) -> None: ...

    def probe(self) -> Mapping[str, Any]:
        return probe(next(self._levels))


def opened(bench: Bench) -> Callable[..., Any]:
    """Return a replacement of ``session.open_bench`` that opens the given machine."""

    @contextmanager
    def open_bench(_request: MeasurementRequest, _progress: Callable[[str], None]) -> Iterator[Bench]:
        yield bench

    return open_bench


class Copies:
    """A section that returns the next list of times in every round and records its calls."""

    def __init__(self, *rounds: Sequence[float]) -> None:
        self.calls: list[Context] = []
        self._rounds = rounds

    def __call__(self, context: Context) -> Mapping[str, Any]:
        found = self._rounds[min(len(self.calls), len(self._rounds) - 1)]
        self.calls.append(context)
        return {"copies": [{"threads": 1, "bytes": 100, "seconds": list(found)}]}
