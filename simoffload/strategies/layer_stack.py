"""A model whose layers are alike, as ZeRO-3 cuts it and a coordinator walks through it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from simoffload.errors import InputError
from simoffload.limits import count_elements
from simoffload.models import ModelShape, Module
from simoffload.strategies.coordinator import Coordinator
from simoffload.strategies.coordinator_sink import (
    CoordinatorSink,
    Layers,
    NullSink,
    Period,
    State,
    Tensor,
    cut_tensors,
    period_of,
)
from simoffload.strategies.forward import Partitioning, Visit

__all__ = ["GatherPeak", "LayerStack", "LayeredModel", "ShorterModel"]

_REMEMBERED = 8
"""Models of different depth that are kept."""
_FIRST_GUESS = 12
"""Layers of the first model in which a period is looked for, and"""
_MOST = 200
"""of the last one."""


def _visits(segment: str, modules: Sequence[Module]) -> list[Visit]:
    """Give work without hooks (attention between its projections) to the module called before it."""
    visits: list[Visit] = []
    for module in modules:
        if module.hooked:
            visits.append(Visit("" if visits else segment, module))
        else:
            visits[-1] = visits[-1]._replace(unhooked=(*visits[-1].unhooked, module))
    return visits


class LayerStack(NamedTuple):
    """A model, perhaps of fewer layers, as the coordinator walks through it."""

    visits: tuple[Visit, ...]
    tensors: tuple[Tensor, ...]
    uses: tuple[tuple[int, ...], ...]
    """Per visited module the indices of the tensors that it owns."""
    layers: Layers


class ShorterModel(NamedTuple):
    """How many layers to walk through, and which of them stand for the others."""

    walked: int
    """Layers to walk through."""
    layers: int
    """Of one period."""


class GatherPeak(NamedTuple):
    """The most that gathered parameters occupy [elements]."""

    on_gpu: int
    """At once."""
    gather: int
    """In one batch."""


@dataclass(frozen=True)
class LayeredModel:
    """The modules and tensors of a model, with as many layers as one wants of it."""

    model: ModelShape
    placement: Partitioning

    @cached_property
    def parts(self) -> tuple[tuple[Visit, ...], tuple[Visit, ...], tuple[Visit, ...]]:
        """Hooked modules before the layers, of a layer, and after the layers."""
        model = self.model
        parts = (("head", model.modules_before), ("layer", model.layer), ("tail", model.modules_after))
        head, layer, tail = (tuple(_visits(name, modules)) for name, modules in parts)
        return head, layer, tail

    @property
    def visits(self) -> tuple[Visit, ...]:
        """Every hooked module in the order of its pre-forward hook."""
        head, layer, tail = self.parts
        return (*head, *(layer * self.model.num_hidden_layers), *tail)

    @cached_property
    def homogeneous(self) -> bool:
        """Whether all layers' tensors are kept in the same places."""
        settings, (head, layer, tail) = self.placement.settings, self.parts
        if any(parameter.tied for visit in layer for parameter in visit.module.parameters):
            return False
        count = self.model.num_hidden_layers
        small = sum(
            times * parameter.numel
            for visits, times in ((head, 1), (layer, count), (tail, 1))
            for visit in visits
            for parameter in visit.module.parameters
            if parameter.numel <= settings.param_persistence_threshold and not parameter.tied
        )
        return small <= settings.model_persistence_threshold

    def layer_stack(self, count: int) -> LayerStack:
        """The model with ``count`` layers: tensors, and per visited module the indices of what it owns."""
        known = self._known.get(count)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[count] = self._cut(count)
        return known

    @cached_property
    def _known(self) -> dict[int, LayerStack]:
        """By the number of layers: finding a period and both kinds of passes ask for the same few."""
        return {}

    def _cut(self, count: int) -> LayerStack:
        place, (head, layer, tail) = self.placement, self.parts
        visits = (*head, *(layer * count), *tail)
        uses: list[tuple[int, ...]] = []
        owned: list[tuple[str, int]] = []
        shared: dict[str, int] = {}
        for visit in visits:
            for parameter in visit.module.parameters:
                if not parameter.tied:
                    shared[parameter.name] = len(owned)
                    owned.append((parameter.name, parameter.numel))
            uses.append(tuple(shared[parameter.name] for parameter in visit.module.parameters))
        cut = cut_tensors(owned, place.settings, ranks=place.ranks, dtype_bytes=place.dtype_bytes)
        tensors = tuple(cut)
        first = sum(not parameter.tied for visit in head for parameter in visit.module.parameters)
        each = sum(not parameter.tied for visit in layer for parameter in visit.module.parameters)
        layers = Layers(
            first_step=len(head),
            steps=len(layer),
            first_tensor=first,
            tensors=tensors[first : first + each],
            walked=count,
            left_out=self.model.num_hidden_layers - count,
        )
        return LayerStack(visits, tensors, tuple(uses), layers)

    @cached_property
    def counted(self) -> tuple[tuple[Tensor, int], ...]:
        """Tensors in the model's order, and how many of each; layers that are alike stand there once."""
        if not self.homogeneous:
            return tuple((tensor, 1) for tensor in self.layer_stack(self.model.num_hidden_layers).tensors)
        one = self.layer_stack(1)
        first, last = one.layers.first_tensor, one.layers.tail_tensor
        return tuple(
            (tensor, self.model.num_hidden_layers if first <= index < last else 1)
            for index, tensor in enumerate(one.tensors)
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every parameter tensor with its partition."""
        if not self.homogeneous:
            return tuple(tensor for tensor, _ in self.counted)
        one = self.layer_stack(1)
        first, last = one.layers.first_tensor, one.layers.tail_tensor
        count_elements((last - first) * self.model.num_hidden_layers)
        layers = one.tensors[first:last] * self.model.num_hidden_layers
        return (*one.tensors[:first], *layers, *one.tensors[last:])

    # -- walking ----------------------------------------------------------------------------------

    def coordinator(self, sink: CoordinatorSink, model: LayerStack, *, warm: bool) -> Coordinator:
        """A walk through a model of perhaps fewer layers."""
        return Coordinator(
            tensors=model.tensors,
            uses=model.uses,
            settings=self.placement.settings,
            ranks=self.placement.ranks,
            warm=warm,
            sink=sink,
            layers=model.layers,
        )

    @cached_property
    def peak(self) -> GatherPeak:
        """What gathered parameters occupy in a pass whose trace is known."""
        period = self.period(warm=True)
        depth = self.model.num_hidden_layers if period is None else period.walked
        coordinator_ = self.coordinator(NullSink(), self.layer_stack(depth), warm=True)
        coordinator_.run()
        return GatherPeak(coordinator_.peak_on_gpu, coordinator_.largest_gather)

    @cached_property
    def periods(self) -> dict[bool, ShorterModel | None]:
        """Those that were looked for, by whether the pass is warm."""
        return {}

    def period(self, *, warm: bool) -> ShorterModel | None:
        """The shortest model that stands for this one in a pass; None if there is none that is shorter."""
        if warm not in self.periods:
            self.periods[warm] = self._find_period(warm=warm) if self.homogeneous else None
        return self.periods[warm]

    def _find_period(self, *, warm: bool) -> ShorterModel | None:
        layers, guess = self.model.num_hidden_layers, _FIRST_GUESS
        while guess < min(layers, _MOST):
            try:
                found = _search(self.coordinator(NullSink(), self.layer_stack(guess), warm=warm), guess)
            except InputError:
                return None  # where DeepSpeed would stop, the walk through the whole model says so
            if found is not None:
                period, reach = found
                # One period more: what is written down may need one to be in its steady state, too.
                walked = max(period.first + 3 * period.layers, reach + period.layers)
                walked += (layers - walked) % period.layers
                return ShorterModel(walked, period.layers) if walked < layers else None
            guess *= 4
        return None


def _search(coordinator_: Coordinator, layers: int) -> tuple[Period, int] | None:
    """A state that comes again, and how many layers have mattered until then."""

    def states() -> Iterator[State | None]:
        for layer in range(layers):
            coordinator_.go_to_layer(layer)
            yield coordinator_.state(layer) if coordinator_.reach <= layers else None

    found = period_of(states())
    return None if found is None else (found, coordinator_.reach)
