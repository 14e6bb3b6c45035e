"""A model of layers that are alike, with as many of them as one wants, as training walks through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm

from simoffload.errors import InputError
from simoffload.strategies.actions import Idle, Tensor
from simoffload.strategies.coordinator import Layers
from simoffload.strategies.ds_config.training import TrainingSettings
from simoffload.strategies.layer_period import Passes, Period, Skip, State, reused
from simoffload.strategies.training.state import TrainingState
from simoffload.strategies.training.storage_io import GradientSwapper, NoSink
from simoffload.strategies.training.trace import micro_step
from simoffload.strategies.training.walk import Bucket, Parameters, WalkedStep, hook
from simoffload.workload import Training

__all__ = ["TrainedLayers"]

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
    def _known(self) -> dict[int, WalkedStep]:
        """By the number of layers: parts of a step ask for the same few."""
        return {}

    def shortened(self, count: int) -> WalkedStep:
        """A micro-step through ``count`` layers."""
        if count not in self._known:
            self._known[count] = self._cut(count)
        return self._known[count]

    def _cut(self, count: int) -> WalkedStep:
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
        return WalkedStep(trace, parameters, layers)

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
            found = None
            for guess in _GUESSES:
                if guess >= self.count or found is not None:
                    break
                found = self._search(guess, warm=warm)
            self._coordinated[warm] = found
        return self._coordinated[warm]

    def _search(self, guess: int, *, warm: bool) -> tuple[Period, Period, int] | None:
        step = self.shortened(guess)
        walk = step.coordinator(self.state, Idle(), warm=warm)
        passes = Passes(step.trace, step.layers, walk)
        periods: list[Period] = []
        ahead = 0
        try:
            for backward in (False, True):
                met: dict[State, int] = {}
                for visit, events in step.trace.pieces(backward=backward):
                    if len(periods) == backward and 0 <= visit < guess:
                        state = passes.state(visit, backward=backward)
                        if state is None:
                            return None
                        if state in met:
                            periods.append(Period(met[state], visit - met[state]))
                            ahead = max(ahead, -(-walk.ahead // len(self._layers.tensors)))
                            if backward:
                                return periods[0], periods[1], ahead
                        met[state] = visit
                    for event in events:
                        hook(event, walk, step.parameters)
        except InputError:
            pass  # where DeepSpeed would stop, the walk through the whole model says so
        return None

    def gradients(self, swapper: GradientSwapper | None) -> Period | None:
        """The period of what waits in the bucket and, if they go there, in swap buffers."""

        def reduce(tensors: Sequence[Tensor]) -> None:
            if swapper is not None:
                swapper.insert(NoSink(), tensors)

        bucket = Bucket(self.settings.reduce_bucket_size, reduce)
        before, layer, _ = self._completed
        bucket.add_all(before)
        met: dict[State, int] = {}
        for visit in range(min(self.count, _LONGEST)):
            state = (bucket.state, swapper.state if swapper is not None else None)
            if state in met:
                return Period(met[state], visit - met[state])
            met[state] = visit
            bucket.add_all(layer)
        return None

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

    def without(self, gradients: Period | None, *, warm: bool = True) -> WalkedStep | None:
        """The shortest micro-step that stands for the whole one; None if there is none that is shorter.

        ``gradients`` is the period of their waiting, None where only forward matters.
        """
        coordinated = self.coordinated(warm=warm) if self.state.homogeneous else None
        if coordinated is None:
            return None
        forward, backward, ahead = coordinated
        kept = reused(self._layers, self.settings.params.max_reuse_distance)
        kept = kept if self.settings.stage == 3 else 0
        start = max(2, forward.first)  # the first two layers' checkpoints are apart
        needed = start + forward.layers + _SETTLING + ahead + kept
        whole = forward.layers
        if gradients is not None:
            period = lcm(backward.layers, gradients.layers)
            whole = lcm(whole, period)
            start_back = max(2, kept, backward.first, gradients.first)
            needed = max(needed, start_back + period + _SETTLING + ahead)
        walked = needed + (self.count - needed) % whole
        if walked >= self.count:
            return None
        left = self.count - walked
        short = self.shortened(walked)._replace(
            forward=Skip(forward.layers, start, walked - kept, left // forward.layers)
        )
        if gradients is None:
            return short
        return short._replace(backward=Skip(period, start_back, walked, left // period))
