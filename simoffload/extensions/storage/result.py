"""Effect of checkpoints on a run, and the result of a scenario with only checkpoints.

The effect consists of the time for which training stops, the best interval, and the work that failures
destroy.

References
----------
J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974) 530-531,
doi:10.1145/361147.361115.
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
Computer Systems 22 (2006) 303-312, doi:10.1016/j.future.2004.11.016.
Both assume that failures are a Poisson process, that checkpoints are intact, and that the run is long.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import exp, expm1, sqrt
from typing import Any, ClassVar, Literal, NamedTuple

from simoffload.results import (
    CachedWrites,
    Passes,
    PassResult,
    SimulationResult,
    aggregate,
    all_passes,
    attributed,
    by_name,
    metric,
)


class Outlook(NamedTuple):
    """The Outlook is the effect of checkpoints on a run; None if interval or failure rate are missing."""

    stall_s: float
    """Time for which training stops for one checkpoint [s]."""
    blocking_s: float
    """Time until the save call returns [s]."""
    background_s: float
    """Duration of the work that continues in the background of training [s]."""
    commit_s: float
    """Time from the start of saving until the checkpoint can be restored [s]."""
    restore_s: float
    """Time to read the checkpoint, without the start of the job [s]."""
    restart_s: float
    """[s] from a failure until training continues: detection, start of the job, and restoring."""
    interval_s: float | None = None
    """[s] of training between checkpoints."""
    share: float | None = None
    """Fraction of the run time that stalls take."""
    mtbf_s: float | None = None
    """[s] between failures of the run."""
    young_s: float | None = None
    """[s] of training between checkpoints by Young's formula."""
    daly_s: float | None = None
    """[s] of training between checkpoints by Daly's formula; at least the background time of a checkpoint,
    and at least one step."""
    efficiency: float | None = None
    """Training time over elapsed time, at the given interval."""
    best_efficiency: float | None = None
    """Training time over elapsed time, at Daly's interval."""
    lost_work_s: float | None = None
    """[s] of training that a failure destroys on average, at the given interval, else at Daly's."""


StateDevice = Literal["hbm", "dram", "nvme"]
"""Kind of tier that holds states before they are saved: memory of GPUs, of hosts, or swap files."""


class SavedPart(NamedTuple):
    """A SavedPart is data that one or several ranks write, each the same number of bytes."""

    name: str
    size: int
    """[B] that each writer writes."""
    writers: int
    """Number of ranks that write."""
    device: StateDevice
    """Kind of tier from which the bytes are written."""
    files: int


class CheckpointPhase(NamedTuple):
    """A CheckpointPhase is one phase of saving a checkpoint."""

    result: PassResult
    background: bool
    """Whether the phase runs in the background of training."""

    def to_dict(self) -> dict[str, Any]:
        """Return the phase's name and time attribution as plain values."""
        return {"name": self.result.name, **attributed(self.result), "background": self.background}


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Checkpoints describe the checkpoints of a run: writers, files, times, and the effect on training."""

    tier: str
    contents: str
    """Contents in the scenario's terms: zero, sharded, model_only or consolidated."""
    writer: str
    """Writer of the checkpoint: torch_save, python or fast."""
    mode: str
    """Mode of saving: blocking, decoupled or snapshot."""
    keep: int
    """Number of checkpoints kept on the tier."""
    size: int
    """Size of one checkpoint on storage [B]."""
    written_by_host: tuple[int, ...]
    """Bytes that the ranks of each host write for one checkpoint [B]."""
    parts: tuple[SavedPart, ...]
    saving: tuple[CheckpointPhase, ...] = ()
    """Phases of saving; empty if the run does not fit."""
    restoring: tuple[PassResult, ...] = ()
    write_caches: tuple[CachedWrites, ...] = ()
    """Use of the drives' write caches by a checkpoint."""
    outlook: Outlook | None = None

    @property
    def written(self) -> int:
        """Bytes that all ranks write for one checkpoint [B]; more than its size if several write one file."""
        return sum(self.written_by_host)

    @property
    def files(self) -> int:
        """Number of files of one checkpoint, without those that hold only names and shapes."""
        return sum(part.files for part in self.parts)

    @cached_property
    def saved(self) -> PassResult | None:
        """All phases of saving as one pass."""
        if not self.saving:
            return None
        return aggregate("save", [(phase.result, Fraction(1)) for phase in self.saving])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **by_name(self, "tier contents writer mode keep bytes=size written_bytes=written parts saving"),
            "restoring": [{"name": one.name, **attributed(one)} for one in self.restoring],
            **by_name(self, "write_caches outlook"),
        }


def _restoring(result: CheckpointResult) -> Passes:
    return tuple((one, one.time_s) for one in result.checkpoint.restoring)


def _two_decimals(fraction: float) -> str:
    return f"{fraction * 100:.2f} %"


def _blocking(result: CheckpointResult) -> Passes:
    phases = (one.result for one in result.checkpoint.saving if not one.background)
    return tuple((one, one.time_s) for one in phases)


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckpointResult(SimulationResult):
    """A CheckpointResult has the times of saving and restoring a checkpoint, and their effect on a run."""

    kind: ClassVar[str] = "checkpoint"
    offered: ClassVar[tuple[str, ...]] = ("blocking_s", "restore_s", "save_s")
    unit: ClassVar[str] = "checkpoint"
    unit_by: ClassVar[str] = "save_s"

    @property
    def checkpoint(self) -> Checkpoints:
        """The checkpoint, with its times if it fits."""
        found: Checkpoints = self.added["checkpoint"]
        return found

    @metric()
    def checkpoint_bytes(self) -> float:
        """Size [B]: bytes of all files of one checkpoint."""
        return float(self.checkpoint.size)

    @metric(of=all_passes, title="Time per checkpoint", each=" per checkpoint", column="saved")
    def save_s(self) -> float | None:
        """Time to save [s]: from the call of save until everything is on storage."""
        return self._effect("commit_s")

    @metric(of=all_passes, column="rate")
    def bytes_per_s(self) -> float | None:
        """Save rate [B/s]: checkpoint_bytes / save_s, of all ranks together."""
        return None if self.save_s is None else self.checkpoint.size / self.save_s

    @metric(of=_blocking)
    def blocking_s(self) -> float | None:
        """Time until the call returns [s]: from the call of save until it returns."""
        return self._effect("blocking_s")

    @metric(column="stall")
    def stall_s(self) -> float | None:
        """Training stall [s]: blocking_s + what is still being written when training has to wait for it."""
        return self._effect("stall_s")

    @metric(of=_restoring, column="restored")
    def restore_s(self) -> float | None:
        """Time to restore [s]: from the call of load until training can go on; starting the job is not in
        it."""
        return self._effect("restore_s")

    @metric(of=_restoring)
    def restore_bytes_per_s(self) -> float | None:
        """Restore rate [B/s]: checkpoint_bytes / restore_s, of all ranks together."""
        return self.checkpoint.size / self.restore_s if self.checkpoint.restoring and self.restore_s else None

    @metric(better="")
    def interval_s(self) -> float | None:
        """Checkpoint interval [s]: training between two checkpoints."""
        return self._effect("interval_s")

    @metric(better="lower")
    def stall_share(self) -> float | None:
        """Share of time stalled: stall_s / (interval_s + stall_s): of the time that passes without
        failures."""
        return self._effect("share")

    @metric(better="")
    def mtbf_s(self) -> float | None:
        """Time between failures [s]: node_mtbf / number of hosts: between two failures of the run."""
        return self._effect("mtbf_s")

    @metric(better="")
    def young_s(self) -> float | None:
        """Best interval, Young [s]: sqrt(2 x stall_s x mtbf_s): the best interval to first order (Young
        1974)."""
        return self._effect("young_s")

    @metric(better="")
    def daly_s(self) -> float | None:
        """Best interval, Daly [s]: the best interval to higher order (Daly 2006, eq. 37), no less than what
        runs behind it."""
        return self._effect("daly_s")

    @metric(better="higher", text=_two_decimals)
    def efficiency(self) -> float | None:
        """Efficiency: training done / time that passes, failures and restarts included, at interval_s (eq.
        20)."""
        return self._effect("efficiency")

    @metric(better="higher", text=_two_decimals)
    def best_efficiency(self) -> float | None:
        """Efficiency at the best interval: the same at daly_s."""
        return self._effect("best_efficiency")

    @metric()
    def lost_work_s(self) -> float | None:
        """Work lost per failure [s]: training that a failure throws away on average, at interval_s or else
        at daly_s."""
        return self._effect("lost_work_s")

    def _effect(self, name: str) -> float | None:
        """Return a field of the outlook; None without times."""
        found: float | None = getattr(self.checkpoint.outlook, name, None)
        return found

    @property
    def workload(self) -> dict[str, Any]:
        """Contents of the checkpoint, writer and mode."""
        one = self.checkpoint
        return {"kind": "checkpoint", "contents": one.contents, "writer": one.writer, "mode": one.mode}

    @property
    def step(self) -> PassResult | None:
        """All phases of saving combined, from the call until everything is on storage."""
        return self.checkpoint.saved

    @property
    def spent(self) -> Passes:
        """Each phase of saving with its time [s]."""
        return tuple((phase.result, phase.result.time_s) for phase in self.checkpoint.saving)

    @property
    def passes(self) -> tuple[PassResult, ...]:
        """The phases of saving, then those of restoring."""
        return (*(phase.result for phase in self.checkpoint.saving), *self.checkpoint.restoring)

    @property
    def usual_by(self) -> str:
        """Name of the compared time: the time until a checkpoint is on storage."""
        return "save_s"

    def particulars(self) -> dict[str, Any]:
        """Return parts, phases, outlook and drive wear as plain values."""
        return by_name(self, "checkpoint drive_lifetime")


_FEW = 700.0  # exp() of a larger number exceeds a float: such a run makes no progress


def stall_per_checkpoint(*, blocking_s: float, background_s: float = 0.0, window_s: float = 0.0) -> float:
    """Return the time [s] for which training stops for one checkpoint.

    The call returns after ``blocking_s`` [s]; ``background_s`` [s] of work then begin, and training waits for
    the part of it that is not done after ``window_s`` [s].
    """
    return blocking_s + max(0.0, background_s - window_s)


def stall_share(*, stall_s: float, interval_s: float) -> float:
    """Return the fraction of the run time for checkpoints, with one after every ``interval_s`` [s] of
    training."""
    return stall_s / (interval_s + stall_s)


def run_mtbf(*, node_mtbf_s: float, nodes: int) -> float:
    """Return the mean time [s] between failures of a run that any failing node stops: the rates of
    independent nodes are added."""
    return node_mtbf_s / nodes


def young_interval(*, cost_s: float, mtbf_s: float) -> float:
    """Return the training time [s] between checkpoints of ``cost_s`` [s] each, to first order: sqrt(2 C M).

    Young 1974; accurate if the cost is small compared with ``mtbf_s`` [s].
    """
    return sqrt(2 * cost_s * mtbf_s)


def daly_interval(*, cost_s: float, mtbf_s: float) -> float:
    """Return the training time [s] between checkpoints, to higher order.

    Daly 2006, eq. 37: sqrt(2CM) (1 + sqrt(C/2M)/3 + (C/2M)/9) - C if C < 2M, else M. The restart time does
    not change the optimum.
    """
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return sqrt(2 * cost_s * mtbf_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - cost_s


def efficiency(*, interval_s: float, cost_s: float, restart_s: float, mtbf_s: float) -> float:
    """Return the training time over the elapsed time, failures and checkpoints included.

    Daly 2006, eq. 20: interval / (M e^(R/M) (e^((interval + C)/M) - 1)), with R = ``restart_s`` [s] from a
    failure until training continues.
    """
    segment = (interval_s + cost_s) / mtbf_s
    if segment + restart_s / mtbf_s > _FEW:
        return 0.0
    return interval_s / (mtbf_s * exp(restart_s / mtbf_s) * expm1(segment))


def lost_work(*, segment_s: float, mtbf_s: float) -> float:
    """Return the work [s] that a failure destroys on average: the elapsed part of a segment (interval and
    checkpoint).

    It is the mean of the exponential distribution truncated at the segment's length L: M - L / (e^(L/M) - 1),
    a little less than half of the segment.
    """
    ratio = segment_s / mtbf_s
    if ratio < 1e-6:  # the series, because the formula is a difference of nearly equal numbers
        return segment_s / 2
    if ratio > _FEW:
        return mtbf_s
    return mtbf_s - segment_s / expm1(ratio)


def outlook(
    *,
    blocking_s: float,
    background_s: float,
    restore_s: float,
    overlap_s: float | None,
    interval_s: float | None,
    mtbf_s: float | None,
    restart_s: float,
) -> Outlook:
    """Return the effect of a checkpoint with the given times [s] on a run.

    ``overlap_s`` [s]: training time before training waits for the background work; None: until the next
    checkpoint. ``restart_s`` [s]: a restart without restoring. A checkpoint can be restored only when it is
    complete, so a failure also destroys the training during the background work.
    """
    window = interval_s if overlap_s is None else overlap_s
    stall = stall_per_checkpoint(
        blocking_s=blocking_s, background_s=background_s, window_s=background_s if window is None else window
    )
    restart = restart_s + restore_s
    result = Outlook(stall, blocking_s, background_s, blocking_s + background_s, restore_s, restart)
    if interval_s is not None:
        result = result._replace(
            interval_s=interval_s, share=stall_share(stall_s=stall, interval_s=interval_s)
        )
    if mtbf_s is None:
        return result
    hidden = blocking_s + background_s - stall
    least = background_s if overlap_s is None else overlap_s
    daly = max(daly_interval(cost_s=stall, mtbf_s=mtbf_s), least)

    def reached(interval: float) -> float:
        return efficiency(interval_s=interval, cost_s=stall, restart_s=restart + hidden, mtbf_s=mtbf_s)

    chosen = daly if interval_s is None else interval_s
    return result._replace(
        mtbf_s=mtbf_s,
        young_s=young_interval(cost_s=stall, mtbf_s=mtbf_s),
        daly_s=daly,
        efficiency=None if interval_s is None else reached(interval_s),
        best_efficiency=reached(daly) if daly else None,
        lost_work_s=lost_work(segment_s=chosen + stall, mtbf_s=mtbf_s) + hidden,
    )
