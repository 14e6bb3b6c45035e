"""The result of a training scenario."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from simoffload.results.capacity import Estimate, TierUse
from simoffload.results.checkpoint import Checkpoints
from simoffload.results.endurance import CachedWrites, TierLifetime
from simoffload.results.metrics import Passes, all_passes, by_name, metric
from simoffload.results.passes import PassResult, Time, aggregate, seconds
from simoffload.results.result import SimulationResult
from simoffload.units import format_bytes, format_rate, format_seconds, per_second
from simoffload.workload import Dataset

if TYPE_CHECKING:
    import pandas as pd

# -- data loading of a training run ----------------------------------------------------------------
# Whether reading the dataset delays it, and why.


Limit = Literal["gpu", "link", "requests", "decode", "files", "copy", "cores", "look_ahead", "no_workers"]
"""Limit of the rate of loading: the GPU (it never waits), a full link or target, the time of a request
(latency and requests in flight), decoding in the workers, opening files, copies from the page cache, all
cores of the host, too few prefetched batches for the time of the optimizer, or reading between the steps
without workers."""


class Epoch(NamedTuple):
    """An Epoch has the times of one epoch, or of several equal ones in sequence."""

    first: int
    """Number of the first such epoch, counted from 1."""
    repeats: int
    hit_ratio: float
    """Fraction of the samples found in the hosts' page caches."""
    needed: float
    """[B/s] that storage must deliver to all ranks so that no GPU waits (mean over a step)."""
    reachable: float
    """[B/s] that storage delivers to the workers of all ranks, if all are as slow as the slowest rank."""
    first_batch_s: float
    """[s] until the first batch is ready, for which the GPU always waits."""
    batch_s: float
    """[s] that a rank's loader needs for each batch."""
    step_s: float
    """[s] of a step, including waiting for its batches."""
    starvation: float
    """Fraction of the step in which the GPU waits for data."""
    limit: Limit
    link: str
    """Name of the full resource, if ``limit`` is "link"."""
    duration_s: float
    """[s] of one such epoch."""


class DataLoading(NamedTuple):
    """DataLoading has the times of reading the dataset in a training run."""

    size: int
    """[B] of the dataset."""
    stored: int
    """[B] that the tier must hold; if its drives are local and the order of samples changes, each host has a
    copy."""
    fits: bool
    steps_per_epoch: int
    cache: int
    """[B] of each host's memory that are free for its page cache."""
    look_ahead: int
    """[B] of each host's memory for prefetched batches."""
    bridged_s: float
    """[s] without a new batch that the prefetched batches cover."""
    epochs: tuple[Epoch, ...]
    workers_needed: int | None
    """Smallest number of workers per rank with which no GPU waits in the first epoch; None if no number
    suffices."""
    remaining: Limit
    """Limit of the first epoch with that number of workers, or with the largest number that is tried."""

    @property
    def cold(self) -> Epoch:
        """First epoch, with cold page caches."""
        return self.epochs[0]

    @property
    def warm(self) -> Epoch:
        """Last epoch, with warm page caches."""
        return self.epochs[-1]

    @property
    def duration_s(self) -> float:
        """[s] of all epochs."""
        return sum(epoch.repeats * epoch.duration_s for epoch in self.epochs)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return self._asdict() | {
            "epochs": [epoch._asdict() for epoch in self.epochs],
            "duration_s": self.duration_s,
        }


def data_loading_sentences(dataset: Dataset, data_loading: DataLoading) -> tuple[str, ...]:
    """Return sentences: whether the GPUs wait for data, why, what would help, and the effect of the page
    cache."""
    cold, warm = data_loading.cold, data_loading.warm
    lines = [_verdict(cold)]
    if cold.limit != "gpu":
        lines.append(_cause(dataset, cold))
        lines.append(_remedy(data_loading))
    if data_loading.epochs[1:] and dataset.page_cache:
        found = (
            f"from epoch 2 on the page cache ({format_bytes(data_loading.cache, binary=True)} per host) has "
        )
        lines.append(found + f"{warm.hit_ratio * 100:.0f} % of what is read; {_verdict(warm)}")
    if not data_loading.fits:
        lines.append(f"{dataset.tier} is too small for {format_bytes(data_loading.stored)} of data")
    return tuple(lines)


def _verdict(epoch: Epoch) -> str:
    need = f"{format_rate(epoch.needed)} needed, {format_rate(epoch.reachable)} reachable"
    if epoch.limit == "gpu":
        return f"the GPUs do not wait for data: {need}"
    return f"the GPUs wait for data in {epoch.starvation * 100:.1f} % of the time: {need}"


def _cause(dataset: Dataset, epoch: Epoch) -> str:
    flight = format_bytes(dataset.in_flight, binary=True)
    workers = "one worker" if dataset.workers == 1 else f"{dataset.workers} workers"
    ahead = dataset.workers * dataset.prefetch_factor
    causes = {
        "link": f"{epoch.link} is saturated",
        "requests": f"requests wait for storage: {workers} per rank with {flight} in flight",
        "decode": f"decoding takes {workers} {format_seconds(dataset.decode_time)} a sample",
        "files": f"opening files takes {format_seconds(dataset.open_time)} each",
        "copy": "copying out of the page cache is the longest part of the workers' time",
        "cores": "all cores of the host are busy decoding and copying",
        "look_ahead": f"{ahead} batches, all that are prefetched, do not last from one optimizer step to the "
        "next",
        "no_workers": "without workers the training process reads between its steps",
    }
    return causes[epoch.limit]


def _remedy(data_loading: DataLoading) -> str:
    workers, needed = data_loading.workers_needed, format_rate(data_loading.cold.needed)
    if workers is not None and data_loading.cold.limit == "look_ahead":
        return f"a larger prefetch_factor or {workers} workers per rank would be enough"
    if workers is not None:
        return f"{workers} {'worker' if workers == 1 else 'workers'} per rank would be enough"
    if data_loading.remaining == "cores":
        return "no number of workers is enough: decoding needs more cores, or must cost less"
    return f"no number of workers is enough: storage must deliver {needed}"


# -- the result of a training scenario -------------------------------------------------------------


class TimedPhase(NamedTuple):
    """A TimedPhase is a part of a step that was simulated once and occurs ``times`` times."""

    name: str
    """Name of the phase: forward, backward or optimizer."""
    times: Fraction
    """Occurrences per step; a fraction for work that does not occur in every step (ZenFlow)."""
    result: PassResult

    @property
    def time_ps(self) -> Time:
        """Time of the phase in one step [ps]."""
        return self.times * self.result.time_ps

    @property
    def time_s(self) -> float:
        """Time of the phase in one step [s]."""
        return seconds(self.time_ps)

    def to_dict(self) -> dict[str, Any]:
        """Return the phase's number of occurrences and its time in a step."""
        return {
            "name": self.name,
            "pass": self.result.name,
            **by_name(self, "times time_s"),
            "time_ps": round(self.time_ps),
        }


class StorageTraffic(NamedTuple):
    """StorageTraffic is the bytes of one step of all ranks to and from a storage tier."""

    tier: str
    read: int
    """[B]"""
    written: int
    """[B]"""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return by_name(self, "tier read_bytes=read written_bytes=written")


class StorageRequests(NamedTuple):
    """StorageRequests counts the full-size requests of one rank up to the end of the first step."""

    tier: str
    block: int
    """[B] of a request (``aio.block_size``); smaller requests for remainders are not counted."""
    read: int
    written: int


def _phase(name: str) -> Callable[[TrainingResult], Passes]:
    """Return the function that gives the phases of a name."""
    return lambda result: tuple((phase.result, phase.time_s) for phase in result.phases if phase.name == name)


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingResult(SimulationResult):
    """A TrainingResult has the times and the memory of one step of a long run."""

    kind: ClassVar[str] = "training"
    offered: ClassVar[tuple[str, ...]] = ("step_s", "tflops_per_gpu", "tokens_per_s")

    optimizer_target: str
    """Tier that holds the optimizer states."""
    batch_size: int
    sequence_length: int
    gradient_accumulation_steps: int
    forward_flops: float = 0.0
    """[FLOP] of the forward passes of one step on one GPU."""
    backward_flops: float = 0.0
    """Backward passes of one step on one GPU [FLOP], without recomputation; fewer with frozen weights."""
    recomputed_flops: float = 0.0
    """[FLOP] that checkpointing computes again in one step on one GPU."""
    phases: tuple[TimedPhase, ...] = ()
    memory_stages: tuple[tuple[str, tuple[TierUse, ...]], ...] = ()
    """Memory use of every tier at each stage of the run."""
    traffic: tuple[StorageTraffic, ...] = ()
    requests: tuple[StorageRequests, ...] = ()
    """Storage requests of start-up and first step."""
    estimates: tuple[Estimate, ...] = ()
    """Memory by DeepSpeed's own estimators and a rule of thumb, for comparison with the memory stages."""
    checkpoint: Checkpoints | None = None
    """Checkpoints that the run saves; None if the scenario has none."""
    dataset: Dataset | None = None
    """Dataset that the run reads."""
    data_loading: DataLoading | None = None
    """Times of data loading; None without a dataset or without times."""
    write_caches: tuple[CachedWrites, ...] = ()
    """Use of the drives' write caches by a step."""
    drive_lifetime: tuple[TierLifetime, ...] = ()
    """Lifetime of the drives that steps and checkpoints write to."""

    @property
    def workload(self) -> dict[str, Any]:
        """Batch size, sequence length and gradient accumulation steps."""
        return {"kind": "training", **by_name(self, "batch_size sequence_length gradient_accumulation_steps")}

    @property
    def spent(self) -> Passes:
        """Each phase with its time [s] in one step."""
        return tuple((phase.result, phase.time_s) for phase in self.phases)

    @property
    def targets(self) -> tuple[str, ...]:
        """Tiers of the weights and of the optimizer."""
        return self.target, self.optimizer_target

    @property
    def tokens(self) -> int:
        """Number of tokens trained on per step."""
        samples = self.batch_size * self.gradient_accumulation_steps * self.replicas
        return samples * self.sequence_length

    @property
    def lengths(self) -> tuple[int]:
        """[tokens] of a sequence."""
        return (self.sequence_length,)

    @property
    def passes(self) -> tuple[PassResult, ...]:
        """Every phase that was simulated."""
        return tuple(phase.result for phase in self.phases)

    @cached_property
    def step(self) -> PassResult | None:
        """Complete step, with its phases combined."""
        if not self.phases:
            return None
        return aggregate("step", [(phase.result, phase.times) for phase in self.phases])

    @metric(of=all_passes, each=" per step", column="step")
    def step_s(self) -> float | None:
        """Time per step [s]: forward_s + backward_s + optimizer_s: one optimizer step."""
        return self._time_of("")

    @metric(of=_phase("forward"), column="forward", is_part=True)
    def forward_s(self) -> float | None:
        """Forward passes [s]: forward passes of all micro-steps of a step."""
        return self._time_of("forward")

    @metric(of=_phase("backward"), column="backward", is_part=True)
    def backward_s(self) -> float | None:
        """Backward passes [s]: backward passes of all micro-steps, with recomputation and reduction of
        gradients."""
        return self._time_of("backward")

    @metric(of=_phase("optimizer"), column="opt. step", is_part=True)
    def optimizer_s(self) -> float | None:
        """Optimizer step [s]: from the end of the last backward pass to the end of the step."""
        return self._time_of("optimizer")

    def _time_of(self, name: str) -> float | None:
        """Return the time [s] of the phases of a name in one step, or of all; None without any."""
        times = [phase.time_ps for phase in self.phases if name in ("", phase.name)]
        return seconds(sum(times)) if self.phases else None

    @metric(of=all_passes, column="tokens/s")
    def tokens_per_s(self) -> float | None:
        """Throughput [1/s]: batch_size x sequence_length x gradient_accumulation_steps x replicas /
        step_s."""
        return self.samples_per_s * self.sequence_length if self.samples_per_s else None

    @metric(of=all_passes, text=partial(per_second, unit=" samples/s"))
    def samples_per_s(self) -> float | None:
        """Throughput in sequences [1/s]: batch_size x gradient_accumulation_steps x replicas / step_s."""
        samples = self.batch_size * self.gradient_accumulation_steps * self.replicas
        return samples / self.step_s if self.step_s else None

    @metric(of=all_passes, is_listed=False)
    def per_token_s(self) -> float | None:
        """Time per token of all sequences [s]: 1 / tokens_per_s."""
        return 1 / self.tokens_per_s if self.tokens_per_s else None

    @metric(of=all_passes)
    def tflops_per_gpu(self) -> float | None:
        """Model FLOP/s per GPU [TFLOP/s]: FLOP of forward and backward / step_s / 1e12 (recomputation is not
        counted)."""
        done = self.forward_flops + self.backward_flops
        return done / self.step_s * 1e-12 if self.step_s else None

    @metric(of=all_passes)
    def hardware_tflops_per_gpu(self) -> float | None:
        """FLOP/s per GPU, with recomputation [TFLOP/s]: FLOP carried out, recomputation included / step_s /
        1e12."""
        done = self.forward_flops + self.backward_flops + self.recomputed_flops
        return done / self.step_s * 1e-12 if self.step_s else None

    @property
    def step_by(self) -> str:
        """Name of the time of one update of the weights."""
        return "step_s"

    def particulars(self) -> dict[str, Any]:
        """Return phases, storage traffic, memory stages, checkpoints, data loading and drive wear."""
        memory = [{"stage": name, "tiers": [_held(use) for use in uses]} for name, uses in self.memory_stages]
        return {
            **by_name(self, "requests_to_first_step=requests memory_estimates=estimates optimizer_target"),
            **by_name(self, "phases forward_flops recomputed_flops storage_per_step=traffic write_caches"),
            "memory": memory,
            **by_name(self, "checkpoint data_loading drive_lifetime"),
        }

    def to_frame(self) -> pd.DataFrame:
        """Return one row per simulated phase and cause, as for any result, and the number of times that the
        phase occurs in a step."""
        frame = super().to_frame()
        rows = [phase for phase in self.phases for _ in phase.result.shares]
        frame.insert(0, "phase", [phase.name for phase in rows])
        frame.insert(1, "times", [float(phase.times) for phase in rows])
        return frame


def _held(use: TierUse) -> dict[str, Any]:
    """Return the content of a tier at one stage of the run, as plain values."""
    terms = [by_name(term, "name bytes=size") for term in use.terms]
    return by_name(use, "tier needed_bytes=needed fits") | {"terms": terms}
