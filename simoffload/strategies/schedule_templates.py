"""What all forward passes of a model under ZeRO-3 have in common, written down once.

The calls that DeepSpeed makes depend on the model and on where its weights are kept (``LayeredModel``); what
they move and how long the host takes for it on the machine, too (``ScheduleTemplates``). Neither depends on
the batch nor on how many tokens there are: these decide how long kernels take. So a template has numbers in
place of kernels' durations, and a pass puts them in. Plans for the same model, machine and placement (the
points of a sweep over batch sizes, say) share their templates, those on other machines their replays.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

from simoffload.hardware import Machine
from simoffload.models import ModelShape, Module, Sequences
from simoffload.schedule import Schedule
from simoffload.strategies.coordinator import Coordinator
from simoffload.strategies.coordinator_sink import Layers
from simoffload.strategies.forward import ForwardWriter, Partitioning
from simoffload.strategies.layer_stack import LayeredModel, LayerStack
from simoffload.strategies.timing import Timing

__all__ = ["ScheduleTemplates", "schedule_templates_of"]

K = TypeVar("K")
T = TypeVar("T")

_REMEMBERED = 16
"""Programs that are kept for other plans; a pair of them takes some 300 kB."""


class _DurationSlots(Timing):
    """Stands in for a timing: modules that take time get numbers in place of durations."""

    def __init__(
        self, machine: Machine, model: ModelShape, modules: Sequence[Module], launched: Sequence[bool]
    ) -> None:
        super().__init__(machine=machine, model=model, batch=(Sequences(1, 1, 1),))
        numbered = enumerate(zip(modules, launched, strict=True))
        self._numbers = {module: -1 - number if takes else 0 for number, (module, takes) in numbered}

    def compute(self, module: Module) -> int:
        """The number of ``module``; 0 if it takes no time."""
        return self._numbers[module]


class ScheduleTemplates:
    """The passes of one model on one machine, with its weights in one place."""

    def __init__(self, layered: LayeredModel, machine: Machine) -> None:
        self.layered, self.machine = layered, machine
        self._written: dict[tuple[bool, tuple[bool, ...]], Schedule] = {}

    @cached_property
    def modules(self) -> tuple[Module, ...]:
        """Every module that may launch kernels, once."""
        visits = (visit for part in self.layered.parts for visit in part)
        return tuple(dict.fromkeys(module for one in visits for module in (one.module, *one.unhooked)))

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
        """A pass with number -1 - n for the duration of the kernels of module n."""
        period = self.layered.period(warm=warm)
        if period is not None:
            coordinator, writer, model = self._writing(period.walked, launched, warm=warm)
            if _repeats(coordinator, writer, model.layers, period.layers):
                coordinator.run()
                return writer.finish()
        coordinator, writer, _ = self._writing(self.layered.model.num_hidden_layers, launched, warm=warm)
        coordinator.run()
        return writer.finish()

    def _writing(
        self, layers: int, launched: tuple[bool, ...], *, warm: bool
    ) -> tuple[Coordinator, ForwardWriter, LayerStack]:
        layered = self.layered
        model = layered.layer_stack(layers)
        timing = _DurationSlots(self.machine, layered.model, self.modules, launched)
        writer = ForwardWriter(name="", placement=layered.placement, timing=timing, visits=model.visits)
        return layered.coordinator(writer, model, warm=warm), writer, model


def _repeats(coordinator: Coordinator, writer: ForwardWriter, layers: Layers, period: int) -> bool:
    """Walk until a state comes again, and let what was written since then stand for what is left out."""
    met: dict[tuple[object, ...], tuple[int, int]] = {}
    for layer in range(layers.walked):
        coordinator.go_to_layer(layer)
        if coordinator.reach > layers.walked:
            return False
        state = coordinator.state(layer), writer.state(coordinator.handles())
        if state in met and met[state][0] == layer - period:
            writer.builder.repeat(met[state][1], layers.left_out // period)
            return True
        met[state] = layer, writer.builder.segments
    return False


class _Known(threading.local):
    """What a thread has worked out, by the identity of models and machines, which never change; looking for a
    period and writing add to it."""

    def __init__(self) -> None:
        self.layered: OrderedDict[tuple[int, Partitioning], LayeredModel] = OrderedDict()
        self.templates: OrderedDict[tuple[int, int], ScheduleTemplates] = OrderedDict()


_KNOWN = _Known()


def schedule_templates_of(model: ModelShape, machine: Machine, placement: Partitioning) -> ScheduleTemplates:
    """The programs for a model and a machine (the very same objects) and a placement."""
    layered = _recent(_KNOWN.layered, (id(model), placement), lambda: LayeredModel(model, placement))
    return _recent(_KNOWN.templates, (id(layered), id(machine)), lambda: ScheduleTemplates(layered, machine))


def _recent(known: OrderedDict[K, T], key: K, make: Callable[[], T]) -> T:
    """What was made for a key before. It holds on to the objects that the key is of, so that no others can
    have their identities."""
    if key in known:
        known.move_to_end(key)
        return known[key]
    found = known[key] = make()
    if len(known) > _REMEMBERED:
        known.popitem(last=False)
    return found
