"""This script derives what ggml's kernels reach on GPUs of an architecture from logs of llama-bench.

``llama_cpp/logs.csv`` has a row per published rate of a model all on the GPU, by compute capability. A row is
input if the CRC-32 of its ``id`` (card, model, type and test) is even, which was decided before any was
predicted, and judges otherwise. ``python -m validation.llama_cpp_shares`` prints the shares with which the
middle input row of each architecture comes out as published, and how far off the others then are; type them
into ``hardware_profiles/unmeasured/elsewhere.yaml`` and run it again until they stay, as one changes others.
"""

from __future__ import annotations

import csv
import sys
import zlib
from collections.abc import Iterator
from functools import cache
from math import log, sqrt
from pathlib import Path
from statistics import median
from typing import NamedTuple

from simoffload.hardware import shipped_unmeasured
from simoffload.models import load_model
from simoffload.planning.errors import Comparable, calibration_errors
from validation.llama_cpp import predicted_rate
from validation.measured import Observed

_LOGS = Path(__file__).parent / "llama_cpp" / "logs.csv"
_EXPERTS = "experts"
"""Number of all architectures that decides prompts of mixtures."""
_NUMBERS = {
    (False, False): "prompts",
    (False, True): _EXPERTS,
    (True, False): "reads",
    (True, True): "expert_reads",
}
"""Numbers of an architecture, by whether a row is of generation and of a mixture of experts."""
_DESKS = ("7.5", "8.6", "8.9", "12.0")
"""Architectures of cards for desks, whose rates of arithmetic are alike; those of data centres are as
measured on an H100."""
_OLDER = ("build 6413", "build 7100")
"""Logs of builds before MXFP4 was multiplied in 4 bits (pull request 17906, 2025-12), whose such prompts on
Blackwell are those of another program."""
_SEVERAL = 3
"""Rows from which on an architecture has a share of its own; our choice."""


class Logged(NamedTuple):
    """A Logged is a published rate with its prediction, in tokens/s."""

    name: str
    source: str
    capability: str
    number: str
    """Number of its architecture that decides it."""
    judges: bool
    measured: float
    predicted: float
    compared: Comparable

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured

    @property
    def inside(self) -> bool:
        """Whether the measured rate is within the 80 % interval, without the errors of its source."""
        low, high = self.factors
        return low <= self.ratio <= high

    @property
    def factors(self) -> tuple[float, float]:
        """P10 and P90 of a time over the predicted one, without the errors of its source."""
        return calibration_errors().factors(self.compared, without=self.source)


@cache
def logged() -> tuple[Logged, ...]:
    """Predict all rows."""
    return tuple(_predicted())


def _predicted() -> Iterator[Logged]:
    for row in csv.DictReader(_LOGS.read_text("utf-8").splitlines()):
        if "mxfp4" in row["id"] and row["prompt"] and any(build in row["source"] for build in _OLDER):
            continue
        lengths = {key: int(row[key] or 0) for key in ("prompt", "generated", "depth")}
        rates = predicted_rate(row["model"], row["platform"], row["overrides"].split(";"), **lengths)
        number = _NUMBERS[bool(row["generated"]), load_model(row["model"]).num_experts > 0]
        judges = zlib.crc32(row["id"].encode()) % 2 == 1
        measured = float(row["rate"])
        yield Logged(row["id"], row["source"], row["group"], number, judges, measured, *rates)


@cache
def needed() -> tuple[tuple[Logged, float], ...]:
    """Return the share with which each input row comes out as published, to first order."""
    return tuple((one, known(one.capability, one.number) / one.ratio) for one in logged() if not one.judges)


def known(capability: str, number: str) -> float:
    """Return a share of an architecture that is shipped, or one of all."""
    elsewhere = shipped_unmeasured().accelerator.ggml
    of = elsewhere if number == _EXPERTS else elsewhere.architectures[capability]
    return float(getattr(of, number).value)


def derived(capability: str, number: str, *, without: str = "") -> float | None:
    """Return a share of an architecture from the input rows of other sources than ``without``.

    It is the median of its own rows, or of those of all cards for desks if they are few; that of experts is
    of all rows. None without rows.
    """
    rows = [(one, share) for one, share in needed() if (one.number, one.source == without) == (number, False)]
    own = [share for one, share in rows if number == _EXPERTS or one.capability == capability]
    if capability in _DESKS and len(own) < _SEVERAL:
        own = [share for one, share in rows if one.capability in _DESKS]
    return median(own) if own else None


def observed_logs() -> Iterator[Observed]:
    """Yield the times of input rows, as they are with shares from other sources alone."""
    for one, share in needed():
        if other := derived(one.capability, one.number, without=one.source):
            yield Observed(one.compared, one.source, True, other / share)


def spread(number: str) -> float:
    """Return the standard deviation of the logarithm of a share that is predicted from other sources."""
    found = [(share, derived(one.capability, number, without=one.source), one) for one, share in needed()]
    errors = [log(share / other) for share, other, one in found if other and one.number == number]
    return sqrt(sum(error**2 for error in errors) / len(errors))


def report() -> Iterator[str]:
    """Yield lines with the shares, and the ratios of both halves."""
    yield "capability number           now derived rows; judging: rows ratio inside"
    for capability in shipped_unmeasured().accelerator.ggml.architectures:
        for number in _NUMBERS.values():
            rows = [one for one in logged() if (one.capability, one.number) == (capability, number)]
            judging = [one for one in rows if one.judges]
            now, other = known(capability, number), derived(capability, number)
            judged = f"{median(one.ratio for one in judging):5.2f}" if judging else "    -"
            share = "      -" if other is None else f"{other:7.3f}"
            counts = f"{len(rows) - len(judging):4}           {len(judging):4}"
            inside = sum(one.inside for one in judging)
            yield f"{capability:10} {number:14} {now:5.3f} {share} {counts} {judged} {inside:5}"
    for number in _NUMBERS.values():
        yield f"spread of {number}, without the row's source: {spread(number):.2f}"
        for part, judges in (("input", False), ("judging", True)):
            rows = [one for one in logged() if (one.judges, one.number) == (judges, number)]
            error = sum(abs(1 / one.ratio - 1) for one in rows) / len(rows)
            inside, ratio = sum(one.inside for one in rows), median(one.ratio for one in rows)
            width = median(one.factors[1] / one.factors[0] for one in rows)
            text = f"  {part}: {len(rows)} rows, median ratio {ratio:.2f}, mean error {error:.2f}"
            yield f"{text}, inside {inside}, P90/P10 {width:.2f}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in report())
