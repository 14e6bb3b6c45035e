"""The result of a training scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from simoffload.results.capacity import Estimate, TierUse
from simoffload.results.metrics import Passes, all_passes, by_name, metric
from simoffload.results.passes import PassResult, Time, aggregate, seconds
from simoffload.results.result import SimulationResult
from simoffload.units import format_bytes, format_rate, per_second
from simoffload.workload import Dataset

if TYPE_CHECKING:
    import pandas as pd


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


class CachedWrites(NamedTuple):
    """CachedWrites are the bytes that a step or a checkpoint writes to drives with a write cache.

    For a tier with separate drives on each host, they are those of the host that writes the most.
    """

    tier: str
    unit: str
    """Unit of work that writes: a "step" or a "checkpoint"."""
    written: int
    """[B]"""
    cached: int
    """Part of the written bytes that fits into the cache [B]."""
    capacity: int
    """Capacity of the write caches of all drives of the tier [B]."""
    rate: int
    """Mean write rate over all bytes in the simulation [B/s]."""
    cache_rate: int
    """Write rate into the cache [B/s]."""
    rate_after: int
    """Write rate once the cache is full [B/s]."""

    @property
    def exceeded(self) -> bool:
        """Whether more bytes are written than fit into the cache."""
        return self.cached < self.written

    @property
    def sentence(self) -> str:
        """Sentence about the bytes written, the part that fits into the cache, and the resulting rate."""
        written, cached, capacity = map(format_bytes, (self.written, self.cached, self.capacity))
        cache = f"into the write cache of {capacity}"
        into = format_rate(self.cache_rate)
        if not self.exceeded:
            return f"{self.tier}: the {written} that a {self.unit} writes fit {cache}: {into}"
        found = f"only {cached} of them fit" if self.cached else "none of them fits"
        if self.cached < min(self.written, self.capacity):
            cache += ", which the drives have no time to empty"
        rates = f"{into} into the cache, {format_rate(self.rate_after)} after"
        return (
            f"{self.tier}: a {self.unit} writes {written}, and {found} {cache}: "
            f"{format_rate(self.rate)} on average ({rates})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, with the sentence."""
        return {**self._asdict(), "sentence": self.sentence}


def cache_warnings(found: Iterable[CachedWrites]) -> tuple[str, ...]:
    """Return a warning for each tier to which more bytes are written than fit into its caches."""
    return tuple(f"write cache exceeded: {one.sentence}" for one in found if one.exceeded)


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
    dataset: Dataset | None = None
    """Dataset that the run reads."""
    write_caches: tuple[CachedWrites, ...] = ()
    """Use of the drives' write caches by a step."""

    @property
    def checkpoint(self) -> Any:
        """Checkpoints that the run saves; None if the scenario has none."""
        return self.added.get("checkpoint")

    @property
    def data_loading(self) -> Any:
        """Times of data loading; None without a dataset or without times."""
        return self.added.get("data_loading")

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
