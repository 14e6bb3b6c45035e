"""What reading a dataset means for a training run."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

__all__ = ["Epoch", "Limit", "Reading"]

Limit = Literal["gpu", "link", "requests", "decode", "files", "copy", "cores", "look_ahead", "no_workers"]
"""What sets the pace: the GPU (nothing waits), a full link or target, the wait of every request (latency and
requests in flight), decoding in the workers, opening files, copies out of the page cache, all cores of the
host, too few batches made ahead for the optimizer's pause, or reading between the steps without workers."""


class Epoch(NamedTuple):
    """One epoch, or several in a row that are alike."""

    first: int
    """Its number, from 1."""
    repeats: int
    hit_ratio: float
    """Fraction of the samples found in the hosts' page caches."""
    needed: float
    """[B/s] that must come from storage, for all ranks, so that no GPU waits (mean over a step)."""
    reachable: float
    """[B/s] that storage delivers to the workers of all ranks, at the pace of the slowest rank."""
    first_batch_s: float
    """[s] until the first batch is there; the GPU waits that long in any case."""
    batch_s: float
    """[s] between two batches that a rank's loader can make."""
    step_s: float
    """[s] of a step that waits for its batches where it must."""
    starvation: float
    """Fraction of the step in which the GPU waits for data."""
    limit: Limit
    link: str
    """Name of the full resource, if ``limit`` is "link"."""
    duration_s: float
    """[s] of one such epoch."""


class Reading(NamedTuple):
    """What reading a dataset means for a training run."""

    size: int
    """[B] of the dataset."""
    stored: int
    """[B] that the tier must hold: a copy in every host where drives are local and the order changes."""
    fits: bool
    steps_per_epoch: int
    cache: int
    """[B] of each host's memory left for its page cache."""
    look_ahead: int
    """[B] of each host's memory in batches made ahead."""
    bridged_s: float
    """[s] without a new batch that full queues bridge."""
    epochs: tuple[Epoch, ...]
    workers_needed: int | None
    """Fewest workers per rank with which no GPU waits in the first epoch; None: however many there are."""
    remaining: Limit
    """What limits the first epoch with that many workers, or with more than anyone starts."""

    @property
    def cold(self) -> Epoch:
        """The first epoch."""
        return self.epochs[0]

    @property
    def warm(self) -> Epoch:
        """The last epoch."""
        return self.epochs[-1]

    @property
    def duration_s(self) -> float:
        """[s] of all epochs."""
        return sum(epoch.repeats * epoch.duration_s for epoch in self.epochs)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; sizes, rates and times are numbers."""
        return self._asdict() | {
            "epochs": [epoch._asdict() for epoch in self.epochs],
            "duration_s": self.duration_s,
        }
