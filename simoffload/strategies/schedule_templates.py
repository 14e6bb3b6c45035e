"""Forward passes of inference under ZeRO-3: what they have in common is replayed and written down once.

The calls that DeepSpeed makes depend on the model and on where its weights are kept (``InferenceLayers``);
what they move and how long the host takes for it depend on the machine, too (``ScheduleTemplates``). Neither
depends on the batch nor on the number of tokens: these decide how long kernels take. So a template has
numbers in place of kernels' durations, and a pass puts them in. Plans for the same model, machine and
placement (the points of a sweep over batch sizes, say) share their templates; plans on other machines share
their replays.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, TypeVar

from simoffload.hardware import Machine
from simoffload.limits import count_elements
from simoffload.models import ModelShape, Module, Sequences
from simoffload.schedule import Schedule
from simoffload.strategies.coordinator import CoordinatorSink, Tensor, cut_tensors
from simoffload.strategies.ds_config import OffloadSettings
from simoffload.strategies.forward import ForwardWriter, Partitioning
from simoffload.strategies.layer_period import LayeredModel
from simoffload.strategies.replay import Passes, Replay, hook
from simoffload.strategies.timing import Timing
from simoffload.strategies.trace import Event, Trace, forward_pass

K = TypeVar("K")
T = TypeVar("T")

_REMEMBERED = 16
"""Number of cached programs; a pair of them takes some 300 kB."""


class GatheredPeak(NamedTuple):
    """GatheredPeak is the maximum size of gathered parameters [elements]."""

    on_gpu: int
    """Maximum of simultaneously gathered parameters [elements]."""
    gather: int
    """Maximum size of one gathered batch [elements]."""


@dataclass(frozen=True)
class InferenceLayers(LayeredModel):
    """The hooks and tensors of a model's forward pass, as ZeRO-3 cuts them."""

    model: ModelShape
    placement: Partitioning

    @property
    def fetching(self) -> OffloadSettings:
        """DeepSpeed's settings of fetching, which determine what is fetched when."""
        return self.placement.settings

    @property
    def ranks(self) -> int:
        """GPUs that share the weights."""
        return self.placement.ranks

    @cached_property
    def homogeneous(self) -> bool:
        """Whether all layers' tensors are kept in the same places."""
        settings, model = self.fetching, self.model
        if any(parameter.tied for module in model.layer for parameter in module.parameters):
            return False
        parts = ((model.modules_before, 1), (model.layer, self.count), (model.modules_after, 1))
        small = sum(
            times * numel
            for modules, times in parts
            for _, numel in _owned(modules)
            if numel <= settings.param_persistence_threshold
        )
        return small <= settings.model_persistence_threshold

    def trace_of(self, count: int) -> Trace:
        """Lay out a forward pass through ``count`` layers."""
        return forward_pass(self.model, count)

    def of_layers(self, count: int) -> tuple[Tensor, ...]:
        """Cut and place all tensors of ``count`` layers, each its own object."""
        model, place = self.model, self.placement
        layers = _owned(model.layer) * count
        owned = (*_owned(model.modules_before), *layers, *_owned(model.modules_after))
        return tuple(cut_tensors(owned, place.settings, ranks=place.ranks, dtype_bytes=place.dtype_bytes))

    @property
    def visits(self) -> tuple[tuple[Module, ...], ...]:
        """Every hooked module in the order of its hook, each with the work without hooks that follows it."""
        visits: list[tuple[Module, ...]] = []
        for event in forward_pass(self.model, self.count).forward:
            if event.kind == "fetch":
                visits.append(())
            if event.kind == "launch":
                visits[-1] += (event.instance.module,)
        return tuple(visits)

    @cached_property
    def counted(self) -> tuple[tuple[Tensor, int], ...]:
        """Tensors in the model's order with their number; homogeneous layers are listed once."""
        if not self.homogeneous:
            return tuple((tensor, 1) for tensor in self.of_layers(self.count))
        first, last = self.layers.first_tensor, self.layers.tail_tensor
        return tuple(
            (tensor, self.count if first <= index < last else 1)
            for index, tensor in enumerate(self.of_layers(1))
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every parameter tensor with its partition."""
        if self.homogeneous:
            count_elements(len(self.layers.tensors) * self.count)
        return self.of_layers(self.count)

    @cached_property
    def peak(self) -> GatheredPeak:
        """Return the peak of gathered parameters in a pass with known trace; raises where DeepSpeed stops."""
        for stack in self.stacks():
            coordinator = stack.coordinator(self.fetching, self.ranks, CoordinatorSink(), warm=True)
            happen = partial(hook, coordinator=coordinator, parameters=stack.parameters)
            if Passes(stack, coordinator).go(happen, backward=False, skip=stack.forward):
                break
        return GatheredPeak(coordinator.peak_on_gpu, coordinator.largest_gather)

    def replay(self, sink: CoordinatorSink) -> Iterator[Event]:
        """Yield each event of a pass through all layers before ``sink`` is called for it."""
        coordinator = self.full.coordinator(self.fetching, self.ranks, sink, warm=True)
        for event in self.full.trace.forward:
            yield event
            hook(event, coordinator, self.full.parameters)


def _owned(modules: Sequence[Module]) -> tuple[tuple[str, int], ...]:
    """Return name and size [elements] of the tensors of hooked modules, a tied one once."""
    hooked = (module for module in modules if module.hooked)
    return tuple((one.name, one.numel) for module in hooked for one in module.parameters if not one.tied)


class _DurationSlots(Timing):
    """_DurationSlots replace a timing: modules that take time get numbers instead of durations."""

    def __init__(
        self, machine: Machine, model: ModelShape, modules: Sequence[Module], launched: Sequence[bool]
    ) -> None:
        super().__init__(machine=machine, model=model, batch=(Sequences(1, 1, 1),))
        numbered = enumerate(zip(modules, launched, strict=True))
        self._numbers = {module: -1 - number if takes else 0 for number, (module, takes) in numbered}

    def compute(self, module: Module) -> int:
        """Return the number of ``module``; 0 if it takes no time."""
        return self._numbers[module]


class ScheduleTemplates:
    """ScheduleTemplates hold the passes of one model on one machine, with its weights in one place."""

    def __init__(self, layered: InferenceLayers, machine: Machine) -> None:
        self.layered, self.machine = layered, machine
        self._written: dict[tuple[bool, tuple[bool, ...]], Schedule] = {}

    @cached_property
    def modules(self) -> tuple[Module, ...]:
        """Every module that may launch kernels, once."""
        return tuple(dict.fromkeys(self.layered.model.distinct_modules))

    def schedule(self, durations: Sequence[int], *, name: str, warm: bool) -> Schedule:
        """A pass in which modules keep the GPU busy for ``durations`` [ps]."""
        key = warm, tuple(map(bool, durations))
        if key not in self._written:
            self._written[key] = self._write(key[1], warm=warm)
        program = self._written[key]
        blocks = tuple(
            [
                block._replace(
                    ops=tuple(
                        [
                            op if op.fixed >= 0 else op._replace(fixed=durations[-1 - op.fixed])
                            for op in block.ops
                        ]
                    )
                )
                for block in program.blocks
            ]
        )
        return program._replace(name=name, blocks=blocks)

    def _write(self, launched: tuple[bool, ...], *, warm: bool) -> Schedule:
        """Write a pass with number -1 - n for the duration of the kernels of module n."""
        layered = self.layered
        timing = _DurationSlots(self.machine, layered.model, self.modules, launched)
        for stack in layered.stacks(warm=warm):
            writer = ForwardWriter(name="", placement=layered.placement, timing=timing)
            if Replay(stack, layered.fetching, writer, warm=warm).forward():
                break
        return writer.build()


class _Known(threading.local):
    """Cache of a thread, by the identity of models and machines, which never change; looking for a
    period and writing add to it."""

    def __init__(self) -> None:
        self.layered: OrderedDict[tuple[int, Partitioning], InferenceLayers] = OrderedDict()
        self.templates: OrderedDict[tuple[int, int], ScheduleTemplates] = OrderedDict()


_KNOWN = _Known()


def schedule_templates_of(model: ModelShape, machine: Machine, placement: Partitioning) -> ScheduleTemplates:
    """Return the programs for a model and a machine (the very same objects) and a placement."""
    layered = _recent(_KNOWN.layered, (id(model), placement), lambda: InferenceLayers(model, placement))
    return _recent(_KNOWN.templates, (id(layered), id(machine)), lambda: ScheduleTemplates(layered, machine))


def _recent(known: OrderedDict[K, T], key: K, make: Callable[[], T]) -> T:
    """Return the cached value of a key. It holds on to the objects that the key is of, so that no others can
    have their identities."""
    if key in known:
        known.move_to_end(key)
        return known[key]
    found = known[key] = make()
    if len(known) > _REMEMBERED:
        known.popitem(last=False)
    return found
