"""A model of layers that are alike, with as many of them as one wants, as training walks through it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import lcm
from typing import NamedTuple

from simoffload.errors import InputError
from simoffload.limits import count_elements
from simoffload.strategies.coordinator_sink import Layers, NullSink, Period, State, Tensor, period_of
from simoffload.strategies.ds_config.training import TrainingSettings
from simoffload.strategies.training.micro_step_replay import Bucket, Parameters, ReplayedStep, hook
from simoffload.strategies.training.state import TrainingState
from simoffload.strategies.training.storage_io import GradientSwapper, NoSink
from simoffload.strategies.training.trace import Event, Passes, SkippedLayers, micro_step
from simoffload.workload import Training

__all__ = ["ReplayPeaks", "TrainedLayers", "buckets", "gathered_peak"]

_GUESSES = (12, 48, 192)
"""Layers of the models in which a period of the coordinator is looked for."""
_LONGEST = 1000
"""Layers of the longest period of gradients that is looked for."""
_SETTLING = 6
"""Layers until what is written down repeats as the coordinator does (our choice; it is checked each time)."""


@dataclass(frozen=True)
class TrainedLayers:
    """The model's micro-step and tensors, of one layer or of a few."""

    state: TrainingState
    workload: Training

    @property
    def count(self) -> int:
        """Layers of the whole model."""
        return self.state.model.num_hidden_layers

    @property
    def settings(self) -> TrainingSettings:
        """DeepSpeed's."""
        return self.state.settings

    @cached_property
    def _known(self) -> dict[int, ReplayedStep]:
        """By the number of layers: parts of a step ask for the same few."""
        return {}

    def shortened(self, count: int) -> ReplayedStep:
        """A micro-step through ``count`` layers."""
        if count not in self._known:
            self._known[count] = self._cut(count)
        return self._known[count]

    def _cut(self, count: int) -> ReplayedStep:
        work, model = self.workload, replace(self.state.model, num_hidden_layers=count)
        trace = micro_step(model, checkpointing=work.gradient_checkpointing, reentrant=work.use_reentrant)
        parameters = Parameters.of(trace, self.state.of_layers(count))
        pieces = dict(trace.pieces(backward=False))
        first, end = (
            max((1 + i for one in pieces[visit] for i in parameters.owned[one.instance]), default=0)
            for visit in (-1, 0)
        )
        each = parameters.tensors[first:end]
        layers = Layers(
            first_step=0,
            steps=0,
            first_tensor=first,
            tensors=each,
            walked=count,
            left_out=self.count - count,
            again=True,
        )
        return ReplayedStep(trace, parameters, layers)

    @property
    def _layers(self) -> Layers:
        layers = self.shortened(1).layers
        assert layers is not None
        return layers

    # -- periods --------------------------------------------------------------------------------

    @cached_property
    def _coordinated(self) -> dict[bool, tuple[Period, Period, int] | None]:
        return {}

    def coordinated(self, *, warm: bool) -> tuple[Period, Period, int] | None:
        """The coordinator's periods in forward and backward, and how many layers it looks ahead."""
        if self.settings.stage < 3:
            return Period(0, 1), Period(0, 1), 0
        if warm not in self._coordinated:
            searched = (self._search(guess, warm=warm) for guess in _GUESSES if guess < self.count)
            self._coordinated[warm] = next((found for found in searched if found is not None), None)
        return self._coordinated[warm]

    def _search(self, guess: int, *, warm: bool) -> tuple[Period, Period, int] | None:
        step = self.shortened(guess)
        coordinator = step.coordinator(self.state, NullSink(), warm=warm)
        passes = Passes(step.trace, step.layers, coordinator)
        periods: list[Period] = []
        ahead = 0
        try:
            for backward in (False, True):
                states = passes.states(
                    partial(hook, coordinator=coordinator, parameters=step.parameters), backward=backward
                )
                period = period_of(states)
                if period is None:
                    return None
                periods.append(period)
                ahead = max(ahead, -(-coordinator.ahead // len(self._layers.tensors)))
                if not backward:
                    deque(states, maxlen=0)  # to the end of forward
        except InputError:
            return None  # where DeepSpeed would stop, the walk through the whole model says so
        return periods[0], periods[1], ahead

    def gradients(self, swapper: GradientSwapper | None) -> Period | None:
        """The period of what waits in the bucket and, if they go there, in swap buffers."""

        def reduce(tensors: Sequence[Tensor]) -> None:
            if swapper is not None:
                swapper.insert(NoSink(), tensors)

        bucket = Bucket(self.settings.reduce_bucket_size, reduce)
        before, layer, _ = self._completed
        bucket.add_all(before)

        def states() -> Iterator[State]:
            for _ in range(min(self.count, _LONGEST)):
                yield bucket.state, swapper.state if swapper is not None else None
                bucket.add_all(layer)

        return period_of(states())

    @cached_property
    def _completed(self) -> list[list[Tensor]]:
        """Gradients that come in backward before the layers, of a layer, and after them."""
        trace, parameters, *_ = self.shortened(1)
        return [
            [tensor for event in events for tensor in parameters.completed(event)]
            for _, events in trace.pieces(backward=True)
        ]

    def fill(self, swapper: GradientSwapper) -> None:
        """Leave in the swap buffers what backward has not filled one with."""
        before, layer, after = self._completed
        swapper.insert(NoSink(), before)
        met: dict[State, int] = {}
        left = self.count
        while left:
            if swapper.state in met:
                left %= met[swapper.state] - left
                met = {}
                if not left:
                    break
            met[swapper.state] = left
            swapper.insert(NoSink(), layer)
            left -= 1
        swapper.insert(NoSink(), after)

    # -- what is left out -----------------------------------------------------------------------

    def without(self, gradients: Period | None, *, warm: bool = True) -> ReplayedStep | None:
        """The shortest micro-step that stands for the whole one; None if there is none that is shorter.

        ``gradients`` is the period of their waiting, None where only forward matters.
        """
        coordinated = self.coordinated(warm=warm) if self.state.homogeneous else None
        if coordinated is None:
            return None
        forward, backward, ahead = coordinated
        kept = _reused(self._layers, self.settings.params.max_reuse_distance)
        kept = kept if self.settings.stage == 3 else 0
        start = max(2, forward.first)  # the first two layers' checkpoints are apart
        needed = start + forward.layers + _SETTLING + ahead + kept
        period_lcm = forward.layers
        if gradients is not None:
            period = lcm(backward.layers, gradients.layers)
            period_lcm = lcm(period_lcm, period)
            start_back = max(2, kept, backward.first, gradients.first)
            needed = max(needed, start_back + period + _SETTLING + ahead)
        walked = needed + (self.count - needed) % period_lcm
        if walked >= self.count:
            return None
        left = self.count - walked
        short = self.shortened(walked)._replace(
            forward=SkippedLayers(forward.layers, start, walked - kept, left // forward.layers)
        )
        if gradients is None:
            return short
        return short._replace(backward=SkippedLayers(period, start_back, walked, left // period))


def _reused(layers: Layers, distance: int) -> int:
    """Layers at the end of forward that backward may find still gathered, within the reuse ``distance``."""
    return -(-distance // max(1, sum(tensor.numel for tensor in layers.tensors))) + 1 if distance else 0


class _Reads(NullSink):
    """Counts what is read."""

    def __init__(self) -> None:
        self.slices: list[Tensor] = []
        self._repeated: list[tuple[int, int, int]] = []

    def repeat(self, first: int, times: int) -> None:
        """What has been read from number ``first`` on is read so many times more."""
        self._repeated.append((first, len(self.slices), times))

    @property
    def all(self) -> list[Tensor]:
        """What is read, in order."""
        found, done = [], 0
        for first, last, times in self._repeated:
            count_elements((last - first) * times)
            found += self.slices[done:last] + self.slices[first:last] * times
            done = last
        return found + self.slices[done:]

    def read(self, tensors: Sequence[Tensor], /) -> None:
        self.slices.extend(tensors)


class ReplayPeaks(NamedTuple):
    """What a walk finds out without a clock."""

    gathered: int
    """[elements] most that gathered parameters occupied at once."""
    largest: int
    """[elements] largest batch that was gathered in one call."""
    read: tuple[Tensor, ...]
    """Partitions that were read from storage."""
    while_reducing: int
    """[elements] most that gathered parameters occupied while a bucket was reduced."""


def gathered_peak(step: ReplayedStep, state: TrainingState, *, warm: bool = True) -> ReplayPeaks | None:
    """MicroStepReplay a micro-step of stage 3 for its peaks and reads; raises what DeepSpeed stops at.

    None if the layers that are left out are not as those before them.
    """
    reads, parameters = _Reads(), step.parameters
    coordinator = step.coordinator(state, reads, warm=warm)
    passes, while_reducing = Passes(step.trace, step.layers, coordinator), [0]
    bucket = Bucket(state.settings.reduce_bucket_size, lambda _: while_reducing.append(coordinator.on_gpu))

    def happen(event: Event) -> None:
        hook(event, coordinator, parameters)
        bucket.add_all(parameters.completed(event))

    for backward, skip in ((False, step.forward), (True, step.backward)):
        right = passes.go(
            happen,
            backward=backward,
            skip=skip,
            more=lambda: bucket.state,
            position=lambda: len(reads.slices),
            repeat=reads.repeat,
        )
        if not right:
            return None
    bucket.flush()
    return ReplayPeaks(
        coordinator.peak_on_gpu, coordinator.largest_gather, tuple(reads.all), max(while_reducing)
    )


def buckets(step: ReplayedStep, size: int) -> list[Sequence[Tensor]]:
    """The tensors of every bucket that a micro-step reduces, in order."""
    seen: list[Sequence[Tensor]] = []
    bucket = Bucket(size, seen.append)
    for event in step.trace.backward:
        bucket.add_all(step.parameters.completed(event))
    bucket.flush()
    return seen
