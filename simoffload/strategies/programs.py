"""What all forward passes of a model under ZeRO-3 have in common, written down once.

The calls that DeepSpeed makes depend on the model and on where its weights are kept (``Walks``); what they
move and how long the host takes for it on the machine, too (``Programs``). Neither depends on the batch nor
on how many tokens there are: these decide how long kernels take. So a program has numbers in place of
kernels' durations, and a pass puts them in. Plans for the same model, machine and placement (the points of a
sweep over batch sizes, say) share their programs, those on other machines their walks.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

from simoffload.hardware import Machine
from simoffload.models import ModelShape, Module
from simoffload.schedule import Schedule
from simoffload.strategies.actions import Actions, Idle, Layers
from simoffload.strategies.coordinator import Coordinator
from simoffload.strategies.forward import ForwardWriter, Partitioning
from simoffload.strategies.layered import LayeredModel, ShorterModel, Walkable, find_period
from simoffload.strategies.timing import Timing

__all__ = ["Peak", "Programs", "Walks", "programs_of"]

K = TypeVar("K")
T = TypeVar("T")

_REMEMBERED = 16
"""Programs that are kept for other plans; a pair of them takes some 300 kB."""


class Peak(NamedTuple):
    """The most that gathered parameters occupy [elements]."""

    on_gpu: int
    """At once."""
    gather: int
    """In one batch."""


class _Numbered(Timing):
    """Stands in for a timing: modules that take time get numbers in place of durations."""

    def __init__(
        self, machine: Machine, model: ModelShape, modules: Sequence[Module], launched: Sequence[bool]
    ) -> None:
        super().__init__(machine=machine, model=model, batch=1, new_tokens=1, context=1)
        numbered = enumerate(zip(modules, launched, strict=True))
        self._numbers = {module: -1 - number if takes else 0 for number, (module, takes) in numbered}

    def compute(self, module: Module) -> int:
        """The number of ``module``; 0 if it takes no time."""
        return self._numbers[module]


class _Periods(dict[bool, ShorterModel | None]):
    """By whether the pass is warm, found when asked for."""

    def __init__(self, walks: Walks) -> None:
        self._walks = walks

    def __missing__(self, warm: bool) -> ShorterModel | None:
        self[warm] = self._walks.find_period(warm=warm)
        return self[warm]


class Walks:
    """How the coordinator goes through one model, with its weights in one place."""

    def __init__(self, model: ModelShape, placement: Partitioning) -> None:
        self.model, self.placement = model, placement
        self.layered = LayeredModel(model, placement)
        """The model as the coordinator walks through it."""
        self.periods = _Periods(self)
        """How many layers stand for all of them; None if each has to be walked through."""

    @cached_property
    def peak(self) -> Peak:
        """What gathered parameters occupy in a pass whose trace is known."""
        period = self.periods[True]
        depth = self.model.num_hidden_layers if period is None else period.walked
        walk = self.coordinator(Idle(), self.layered.walkable(depth), warm=True)
        walk.run()
        return Peak(walk.peak_on_gpu, walk.largest_gather)

    def coordinator(self, actions: Actions, model: Walkable, *, warm: bool) -> Coordinator:
        """A walk through a model of perhaps fewer layers."""
        return Coordinator(
            tensors=model.tensors,
            uses=model.uses,
            settings=self.placement.settings,
            ranks=self.placement.ranks,
            warm=warm,
            actions=actions,
            layers=model.layers,
        )

    def find_period(self, *, warm: bool) -> ShorterModel | None:
        """Look for layers that repeat."""
        if not self.layered.alike:
            return None
        return find_period(
            self.model.num_hidden_layers,
            lambda count: self.coordinator(Idle(), self.layered.walkable(count), warm=warm),
        )


class Programs:
    """The passes of one model on one machine, with its weights in one place."""

    def __init__(self, walks: Walks, machine: Machine) -> None:
        self.walks, self.machine = walks, machine
        self._written: dict[tuple[bool, tuple[bool, ...]], Schedule] = {}

    @cached_property
    def modules(self) -> tuple[Module, ...]:
        """Every module that may launch kernels, once."""
        visits = (visit for part in self.walks.layered.parts for visit in part)
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
        period = self.walks.periods[warm]
        if period is not None:
            walk, writer, model = self._writing(period.walked, launched, warm=warm)
            if _repeats(walk, writer, model.layers, period.layers):
                walk.run()
                return writer.finish()
        walk, writer, _ = self._writing(self.walks.model.num_hidden_layers, launched, warm=warm)
        walk.run()
        return writer.finish()

    def _writing(
        self, layers: int, launched: tuple[bool, ...], *, warm: bool
    ) -> tuple[Coordinator, ForwardWriter, Walkable]:
        walks = self.walks
        model = walks.layered.walkable(layers)
        timing = _Numbered(self.machine, walks.model, self.modules, launched)
        writer = ForwardWriter(name="", placement=walks.placement, timing=timing, visits=model.visits)
        return walks.coordinator(writer, model, warm=warm), writer, model


def _repeats(walk: Coordinator, writer: ForwardWriter, layers: Layers, period: int) -> bool:
    """Walk until a state comes again, and let what was written since then stand for what is left out."""
    met: dict[tuple[object, ...], tuple[int, int]] = {}
    for layer in range(layers.walked):
        walk.go_to_layer(layer)
        if walk.reach > layers.walked:
            return False
        state = walk.state(layer), writer.state(walk.handles())
        if state in met and met[state][0] == layer - period:
            writer.builder.repeat(met[state][1], layers.left_out // period)
            return True
        met[state] = layer, writer.builder.segments
    return False


class _Known(threading.local):
    """What a thread has worked out, by the identity of models and machines, which never change; looking for a
    period and writing add to it."""

    def __init__(self) -> None:
        self.walks: OrderedDict[tuple[int, Partitioning], Walks] = OrderedDict()
        self.programs: OrderedDict[tuple[int, int], Programs] = OrderedDict()


_KNOWN = _Known()


def programs_of(model: ModelShape, machine: Machine, placement: Partitioning) -> Programs:
    """The programs for a model and a machine (the very same objects) and a placement."""
    walks = _recent(_KNOWN.walks, (id(model), placement), lambda: Walks(model, placement))
    return _recent(_KNOWN.programs, (id(walks), id(machine)), lambda: Programs(walks, machine))


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
