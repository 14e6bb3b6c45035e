"""Templates of forward passes of inference under ZeRO-3, written once for all passes.

The calls that DeepSpeed makes depend on the model and on the tier of its weights (``InferenceLayers``). The
routes of transfers and the host's time for each call also depend on the machine (``ScheduleTemplates``). None
of these depends on the batch or the number of tokens, which only determine how long kernels take. A template
therefore has placeholders for the durations of kernels, which are filled in for each pass. Plans for the same
model, machine and placement, such as the points of a sweep over batch sizes, share their templates; plans for
other machines share the replay of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from simoffload.hardware import Machine
from simoffload.limits import count_elements
from simoffload.models import GROWING, CacheForm, ModelShape, Module, Sequences
from simoffload.recent import Recent
from simoffload.schedule import Op, Schedule
from simoffload.strategies.ds_config import OffloadSettings
from simoffload.strategies.hooks.zero import Partitioning, Zero
from simoffload.strategies.passes.pass_writer import Call, Hook, Part, PassWriter, Recurrence, StagePass
from simoffload.strategies.passes.streams import Routes
from simoffload.strategies.passes.timing import Timing
from simoffload.strategies.zero.coordinator import CoordinatorSink, Tensor, cut_tensors
from simoffload.strategies.zero.replay import LayeredModel, hook
from simoffload.strategies.zero.trace import Event, Trace, forward_pass, leaf_modules


class GatheredPeak(NamedTuple):
    """GatheredPeak is the maximum size of gathered parameters [elements]."""

    on_gpu: int
    """Largest size of all parameters that are gathered at the same time [elements]."""
    gather: int
    """Largest size of parameters that are gathered in one call [elements]."""


@dataclass(frozen=True)
class InferenceLayers(LayeredModel):
    """InferenceLayers are the hooks of a model's forward pass and its tensors as partitioned by ZeRO-3."""

    model: ModelShape
    placement: Partitioning

    @property
    def fetching(self) -> OffloadSettings:
        """DeepSpeed's settings of fetching parameters."""
        return self.placement.settings

    @property
    def ranks(self) -> int:
        """Number of GPUs among which the weights are partitioned."""
        return self.placement.ranks

    @cached_property
    def homogeneous(self) -> bool:
        """Whether the tensors of all layers are on the same tiers."""
        settings, model = self.fetching, self.model
        inside = (module for layer, _ in model.kinds for module in layer)
        if not model.uniform or any(parameter.tied for module in inside for parameter in module.parameters):
            return False
        small = sum(
            times * numel
            for modules, times in model.outside_and_kinds()
            for _, numel in _owned(modules, model.dtype_bytes)
            if numel <= settings.stage3_param_persistence_threshold
        )
        return small <= settings.stage3_model_persistence_threshold

    def trace_of(self, count: int) -> Trace:
        """Return the order of hooks in a forward pass through ``count`` layers."""
        return forward_pass(self.model, count, leaf_modules(self.fetching))

    def of_layers(self, count: int) -> tuple[Tensor, ...]:
        """Return the partitioned tensors of a model with ``count`` layers, each as a separate object."""
        model, place = self.model, self.placement
        size = model.dtype_bytes
        owned = list(_owned(model.modules_before, size))
        for layers, repeat in model.of_layers(count).groups:
            owned += [one for layer in layers for one in _owned(layer, size)] * repeat
        owned += _owned(model.modules_after, size)
        return tuple(cut_tensors(owned, place.settings, ranks=place.ranks, dtype_bytes=place.dtype_bytes))

    @property
    def visits(self) -> tuple[tuple[Module, ...], ...]:
        """Hooked modules in the order of their hooks, each with the modules without hooks that follow it."""
        visits: list[tuple[Module, ...]] = []
        for event in self.trace_of(self.count).forward:
            if event.kind == "fetch":
                visits.append(())
            if event.kind == "launch":
                visits[-1] += (event.instance.kernels,)
        return tuple(visits)

    @cached_property
    def counted(self) -> tuple[tuple[Tensor, int], ...]:
        """Tensors in the model's order, each with the number of times that it occurs; identical layers are
        listed once."""
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
        """Return the peak of gathered parameters in a pass after the first; raises InputError where DeepSpeed
        stops."""
        replayed = ((stack, self.decisions(stack)) for stack in self.stacks())
        decisions = next(one for stack, one in replayed if one.recur(stack.forward))
        return GatheredPeak(*decisions.peak)

    def replay(self, sink: CoordinatorSink) -> Iterator[Event]:
        """Replay a pass through all layers: yield each event, then make its calls to ``sink``."""
        coordinator = self.full.coordinator(self.fetching, self.ranks, sink, warm=True)
        for event in self.full.trace.forward:
            yield event
            hook(event, coordinator, self.full.parameters)


def _owned(modules: Sequence[Module], dtype_bytes: int) -> tuple[tuple[str, int], ...]:
    """Return name and size [elements] of the tensors of hooked modules; a tied tensor is listed once.

    Those of a quantized weight count as the elements that their bytes fill, as which DeepSpeed holds them.
    """
    owned = (one for module in modules if module.hooked for one in module.parameters if not one.tied)
    return tuple(
        (name, -(-size // dtype_bytes)) for one in owned for name, size in one.stored_tensors(dtype_bytes)
    )


class ScheduleTemplates:
    """ScheduleTemplates are the templates for one model on one machine with one placement of its weights and
    one form of its cache."""

    def __init__(
        self, layered: InferenceLayers, machine: Machine, cache: CacheForm = GROWING, *, tensor: int = 1
    ) -> None:
        """``tensor``: number of GPUs that share each layer."""
        self.layered, self.machine, self._cache, self._tensor = layered, machine, cache, tensor
        self._written: dict[tuple[bool, tuple[bool, ...]], Schedule] = {}
        self._routes: Routes = {}

    @cached_property
    def modules(self) -> tuple[Module, ...]:
        """Every module that may launch kernels, once."""
        return tuple(dict.fromkeys(self.layered.model.distinct_modules))

    def schedule(self, durations: Sequence[int], *, name: str, warm: bool) -> Schedule:
        """Return the schedule of a pass in which the modules occupy the GPU for ``durations`` [ps]."""
        key = warm, tuple(map(bool, durations))
        if key not in self._written:
            slots = [-1 - number if takes else 0 for number, takes in enumerate(key[1])]
            self._written[key] = self.write(slots, (Sequences(1, 1, 1),), tuple, name="", warm=warm)
        program = self._written[key]

        def timed(op: Op) -> Op:
            return op if op.fixed >= 0 else op._replace(fixed=durations[-1 - op.fixed])

        return program._replace(name=name, blocks=program.with_operations(timed))

    def write(
        self,
        slots: Sequence[int],
        batch: tuple[Sequences, ...],
        hooks: Callable[[], tuple[Hook, ...]],
        *,
        name: str,
        warm: bool,
    ) -> Schedule:
        """Return a pass in which the kernels of a module take the time in its slot: a duration, or in a
        template a placeholder -1 - n for module n. No template has further ``hooks``, such as of a cache."""
        layered, place = self.layered, self.layered.placement
        known = dict(zip(self.modules, slots, strict=True))
        known |= {module._replace(hooked=False): slot for module, slot in known.items()}  # in a leaf module
        timing = Timing(
            machine=self.machine,
            model=layered.model,
            batch=batch,
            zero3=True,
            cache=self._cache,
            known=known,
        )
        for stack in layered.stacks(warm=warm):
            recurrence = Recurrence(stack.forward)
            out = PassWriter(
                name=name,
                machine=self.machine,
                hooks=(Zero(layered.decisions(stack, warm=warm).of(backward=False), place), *hooks()),
                gpus=(range(place.ranks * self._tensor),),
                routes=self._routes,
            )
            written = out.write([StagePass(parts(stack.trace), timing, batch, recurrence=recurrence)])
            if recurrence.found:
                break
        return written


def parts(trace: Trace) -> tuple[Part, ...]:
    """Return the parts of a forward pass, in which layers of the same modules share their calls."""
    known: dict[tuple[int, ...], tuple[Call, ...]] = {}
    found = []
    for number, events in trace.pieces(backward=False):
        modules = [event.instance.kernels for event in events if event.kind == "launch"]
        calls = known.setdefault(tuple(map(id, modules)), tuple(map(Call, modules)))
        if 0 <= number < trace.layers:
            found.append(Part("layer", calls, number))
        else:
            found.append(Part("head" if number < 0 else "tail", calls))
    return tuple(found)


_LAYERED = Recent[tuple[int, Partitioning], InferenceLayers]()
_TEMPLATES = Recent[tuple[int, int, CacheForm, int], ScheduleTemplates]()


def schedule_templates_of(
    model: ModelShape,
    machine: Machine,
    placement: Partitioning,
    cache: CacheForm = GROWING,
    *,
    tensor: int = 1,
) -> ScheduleTemplates:
    """Return the templates for a model and a machine (the same objects, not equal ones), a placement and a
    form of the cache."""
    layered = _LAYERED.get((id(model), placement), lambda: InferenceLayers(model, placement))
    key = id(layered), id(machine), cache, tensor
    return _TEMPLATES.get(key, lambda: ScheduleTemplates(layered, machine, cache, tensor=tensor))
