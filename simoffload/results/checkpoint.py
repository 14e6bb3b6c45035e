"""What checkpoints cost a run, and the answer to a scenario of checkpoints alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

from simoffload.results.combined import combined
from simoffload.results.endurance import TierWear
from simoffload.results.passes import PassResult
from simoffload.results.result import SimulationResult, attributed
from simoffload.results.write_cache import CachedWrites

__all__ = ["CheckpointPhase", "CheckpointResult", "Checkpoints", "Outlook", "SavedPart"]

_FORMULAS = {
    "checkpoint_bytes": "bytes of all files of one checkpoint",
    "save_s": "from the call of save until everything is on storage",
    "blocking_s": "from the call of save until it returns",
    "stall_s": "blocking_s + what is still being written when training has to wait for it",
    "restore_s": "from the call of load until training can go on; starting the job is not in it",
    "bytes_per_s": "checkpoint_bytes / save_s, of all ranks together",
    "restore_bytes_per_s": "checkpoint_bytes / restore_s, of all ranks together",
    "interval_s": "training between two checkpoints",
    "stall_share": "stall_s / (interval_s + stall_s): of the time that passes without failures",
    "mtbf_s": "node_mtbf / number of hosts: between two failures of the run",
    "young_s": "sqrt(2 x stall_s x mtbf_s): the best interval to first order (Young 1974)",
    "daly_s": "the best interval to higher order (Daly 2006, eq. 37), no less than what runs behind it",
    "efficiency": "training done / time that passes, failures and restarts included, at interval_s (eq. 20)",
    "best_efficiency": "the same at daly_s",
    "lost_work_s": "training that a failure throws away on average, at interval_s or else at daly_s",
}


class Outlook(NamedTuple):
    """What checkpoints do to a run; what needs an interval or a failure rate is None without it."""

    stall_s: float
    """[s] that training stands still for one checkpoint."""
    blocking_s: float
    """[s] before the call returns."""
    background_s: float
    """[s] of work that goes on behind the training."""
    commit_s: float
    """[s] from the beginning until the checkpoint can be restored from."""
    restore_s: float
    """[s] to read it back, without the start of the job."""
    restart_s: float
    """[s] from a failure to the point where training goes on: detection and start, then restoring."""
    interval_s: float | None = None
    """[s] of training between checkpoints."""
    share: float | None = None
    """Fraction of the run time that stalls take."""
    mtbf_s: float | None = None
    """[s] between failures of the run."""
    young_s: float | None = None
    """[s] of training between checkpoints after Young."""
    daly_s: float | None = None
    """[s] of training between checkpoints after Daly, and no less than what runs behind it or one step."""
    efficiency: float | None = None
    """Training done per time that passes, at the given interval."""
    best_efficiency: float | None = None
    """The same at Daly's interval."""
    lost_work_s: float | None = None
    """[s] of training that a failure throws away on average, at the given interval, or else at Daly's."""


class SavedPart(NamedTuple):
    """Bytes that one or several ranks write, each as much as the others."""

    name: str
    size: int
    """[B] of each writer."""
    writers: int
    """Ranks."""
    device: str
    """Kind of tier that the bytes come from: hbm, dram or nvme."""
    files: int


class CheckpointPhase(NamedTuple):
    """A part of saving."""

    result: PassResult
    background: bool
    """It goes on behind the training."""


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Checkpoints of a run: who writes what where, how long it takes, what it costs."""

    tier: str
    contents: str
    """As the scenario names it: zero, sharded, model_only, consolidated."""
    writer: str
    """torch_save, python or fast."""
    mode: str
    """blocking, decoupled or snapshot."""
    keep: int
    """Checkpoints that lie on the tier at a time."""
    size: int
    """[B] of one on storage."""
    written_by_host: tuple[int, ...]
    """[B] that the ranks of each host write for one."""
    parts: tuple[SavedPart, ...]
    saving: tuple[CheckpointPhase, ...] = ()
    """Empty where the run does not fit."""
    restoring: tuple[PassResult, ...] = ()
    write_caches: tuple[CachedWrites, ...] = ()
    """What became of its bytes on drives with a write cache."""
    outlook: Outlook | None = None

    @property
    def written(self) -> int:
        """[B] that all ranks write for one; more than its size where several write one file."""
        return sum(self.written_by_host)

    @property
    def files(self) -> int:
        """Files of one checkpoint, those with names and shapes only left out."""
        return sum(part.files for part in self.parts)

    @property
    def saved(self) -> PassResult | None:
        """All phases of saving put together."""
        if not self.saving:
            return None
        return combined("save", [(phase.result, Fraction(1)) for phase in self.saving])

    def metrics(self) -> dict[str, float | None]:
        """All metrics by name, as ``CheckpointResult.formulas`` explains them [B], [s], [B/s], fractions."""
        found: dict[str, float | None] = dict.fromkeys(_FORMULAS)
        found["checkpoint_bytes"] = float(self.size)
        outlook = self.outlook
        if outlook is None:
            return found
        said = outlook._asdict()
        return (
            found
            | {name: said[name] for name in found.keys() & said.keys()}
            | {
                "save_s": outlook.commit_s,
                "bytes_per_s": self.size / outlook.commit_s,
                "restore_bytes_per_s": self.size / outlook.restore_s,
                "stall_share": outlook.share,
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; seconds and bytes are numbers."""
        return {
            "tier": self.tier,
            "contents": self.contents,
            "writer": self.writer,
            "mode": self.mode,
            "keep": self.keep,
            "bytes": self.size,
            "written_bytes": self.written,
            "parts": [part._asdict() for part in self.parts],
            "saving": [
                {"name": one.result.name, **attributed(one.result), "background": one.background}
                for one in self.saving
            ],
            "restoring": [{"name": one.name, **attributed(one)} for one in self.restoring],
            "write_caches": [one.to_dict() for one in self.write_caches],
            "outlook": self.outlook._asdict() if self.outlook else None,
        }


@dataclass(frozen=True, kw_only=True)
class CheckpointResult(SimulationResult):
    """Saving one checkpoint, restoring from it, and what both mean for a run."""

    formulas: ClassVar[Mapping[str, str]] = _FORMULAS
    unit: ClassVar[str] = "checkpoint"

    checkpoint: Checkpoints
    wear: tuple[TierWear, ...] = ()
    """Of the drives that checkpoints go to, where the interval is known."""

    @property
    def workload(self) -> dict[str, Any]:
        """What is saved, and how."""
        one = self.checkpoint
        return {"kind": "checkpoint", "contents": one.contents, "writer": one.writer, "mode": one.mode}

    def metrics(self) -> dict[str, float | None]:
        """All metrics by name: see ``formulas``."""
        return self.checkpoint.metrics()

    @property
    def step(self) -> PassResult | None:
        """Saving, from the call until everything is on storage."""
        return self.checkpoint.saved

    @property
    def passes(self) -> tuple[PassResult, ...]:
        """The phases of saving, then those of restoring."""
        return (*(phase.result for phase in self.checkpoint.saving), *self.checkpoint.restoring)

    @property
    def step_time_s(self) -> float | None:
        """[s] until a checkpoint is on storage."""
        return self.checkpoint.outlook.commit_s if self.checkpoint.outlook else None

    @property
    def per_token_s(self) -> None:
        """Nothing: a checkpoint makes no tokens."""
        return

    @property
    def unit_s(self) -> float | None:
        """[s] until a checkpoint is on storage."""
        return self.step_time_s

    @property
    def compared_by(self) -> str:
        """Time until a checkpoint is on storage."""
        return "save_s"

    def particulars(self) -> dict[str, Any]:
        """Parts, phases, outlook, and wear of drives."""
        return {
            "checkpoint": self.checkpoint.to_dict(),
            "wear": [one.to_dict() for one in self.wear],
        }
