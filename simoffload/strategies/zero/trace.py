"""The order in which DeepSpeed's hooks fire in a forward pass or a micro-step: fetches, kernels, gradients.

The order is that of real runs of OPT, BLOOM and Llama under DeepSpeed 0.19.8 and transformers 5.23, with
which the tests compare it. Backward visits modules in reverse; hooks after backward fire only for modules
that get a tensor as a positional argument. With non-reentrant checkpointing a layer is recomputed when
autograd needs the first tensor that forward saved, and recomputation stops when the last such tensor exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from simoffload.errors import InputError, shortened
from simoffload.models import FAMILIES, Layer, LayerGroup, ModelShape, Module, Sequences, Traits, loss_module
from simoffload.strategies.ds_config import OffloadSettings
from simoffload.strategies.passes.pass_writer import Call, Part

# --------------------------------------------------------------------------------------------------
# Blocks of experts under ZeRO-3: leaf modules, fetched as a whole, and experts that are fetched alone.
#
# Leaf modules are those that DeepSpeed gives one hook, with the parameters of all modules in them. Read in
# deepspeed/utils/z3_leaf_module.py and runtime/zero/leaf_module_config.py at 0.19.8. The engine marks them
# before it sets its hooks, in inference as in training (``_configure_distributed_model``, engine.py).
#
# Experts that are modules of their own, without leaf modules, are fetched when they are called, so those of
# other experts stay where they are. At the first module that is not the one recorded DeepSpeed drops its
# record: it waits for everything that it has prefetched, releases it, and prefetches nothing in the rest of
# the pass; the next pass records (``trace_prologue``, ``_invalidate_trace`` and ``reset_step`` of
# partitioned_param_coordinator.py, read at 0.19.8 and run: tests/calibration/separate_experts.py). If the
# experts change from pass to pass, one pass records without prefetching and the next one breaks off, in turn.
# Both are simulated as a pass that does not prefetch; what the second one has prefetched in vain, up to
# ``stage3_max_live_parameters``, is not counted.


_FIRST = (0, 18, 0)
"""Version from which ds_config names leaf modules (DeepSpeed's commit 7d9a2f2, pull request 7604)."""


class LeafModules(NamedTuple):
    """LeafModules name the modules that are leaf modules."""

    classes: tuple[str, ...] | None
    """Names of classes; None: DeepSpeed's own list."""
    suffixes: tuple[str, ...]
    """Ends of the names of modules."""

    def of(self, model: ModelShape, layer: Layer) -> tuple[str, ...]:
        """Return the names of the leaf modules in a layer, relative to the layer.

        Of classes, only that of the family's block of experts is known.
        """
        traits = model.traits
        named = self.classes is None or _block(traits) in map(_last, self.classes)
        routed = any(module.kind == "router" for module in layer)
        found = traits.leaf_modules if named and routed else ()
        return tuple(
            module.name
            for module in layer[1:]
            if module.kind == "container"
            and (module.name in found or any(f".{module.name}".endswith(end) for end in self.suffixes))
        )


def _block(traits: Traits) -> str:
    """Return the class of a family's block of experts, as far as the name is that of DeepSpeed's own list."""
    return f"{traits.architecture.removesuffix('ForCausalLM')}SparseMoeBlock"


def _last(name: str) -> str:
    return name.rpartition(".")[2]


NO_LEAVES = LeafModules((), ())


def leaf_modules(settings: OffloadSettings) -> LeafModules:
    """Return the leaf modules of a version; there were none before ds_config had a section for them."""
    section, before = settings.leaf_module, settings.version < _FIRST
    if section is None:
        return NO_LEAVES if before else LeafModules(None, ())
    return LeafModules(() if before and section.classes is None else section.classes, section.name_suffixes)


def leaf_warnings(settings: OffloadSettings) -> Iterator[str]:
    """Yield warnings about names that are not known, and about a version that does not know the section."""
    section, where = settings.leaf_module, "ds_config zero_optimization.leaf_module"
    if section is None:
        return
    if settings.version < _FIRST:
        yield (
            f"DeepSpeed {'.'.join(map(str, settings.version))} stops at {where}, which came with 0.18.0; it "
            "is taken as a call of set_z3_leaf_modules"
        )
    known = {_block(one.traits) for one in FAMILIES.values() if one.traits.leaf_modules}
    other = [one for one in section.classes or () if _last(one) not in known]
    for key, names in (("classes", other), ("names", section.names)):
        if names:
            yield (
                f"{where}.{key}: {shortened(', '.join(names))} not modelled; write the ends of the modules' "
                "names in name_suffixes"
            )


_CHANGES = 0.5
"""Mean number of experts per pass, over all layers, that are not called as in most passes, from which the
recorded order is taken not to last (our choice)."""


def fetches_called(model: ModelShape, settings: OffloadSettings) -> bool:
    """Return whether only the parameters of called experts are fetched."""
    leaves = leaf_modules(settings)
    return any(_fetches_called(layer, leaves.of(model, layer)) for layer, _ in model.kinds)


def _fetches_called(layer: Layer, leaves: Sequence[str]) -> bool:
    return any(
        module.expert is not None and not any(module.name.startswith(f"{leaf}.") for leaf in leaves)
        for module in layer
    )


def tokens_of(batch: Iterable[Sequences]) -> int:
    """Return the number of tokens that the sequences of a pass feed in."""
    return sum(one.number * one.new_tokens for one in batch)


def order_lasts(model: ModelShape, tokens: int) -> bool:
    """Return whether passes of ``tokens`` tokens call the same experts in all layers, as a rule."""
    chances = model.routing.probabilities(model.num_experts, model.experts_per_token)
    missed = [(1.0 - chance) ** tokens for chance in chances]
    changing = sum(min(one, 1.0 - one) for one in missed)
    layers = sum(count for layer, count in model.kinds if any(one.expert is not None for one in layer))
    return layers * changing < _CHANGES


def only_called(model: ModelShape, tokens: int) -> ModelShape:
    """Return the model with the experts that ``tokens`` tokens call on average.

    The mean is a fraction: some layers, the first ones, have one expert more than the others.
    """
    chances = model.routing.probabilities(model.num_experts, model.experts_per_token)
    mean = sum(1.0 - (1.0 - chance) ** tokens for chance in chances)
    total = round(mean * model.num_hidden_layers)
    if total == model.num_experts * model.num_hidden_layers:
        return model
    fewer, rest = divmod(total, model.num_hidden_layers)
    groups: list[LayerGroup] = []
    for layers, repeat in model.groups:
        more = min(rest // len(layers), repeat)
        rest -= more * len(layers)
        for experts, times in ((fewer + 1, more), (fewer, repeat - more)):
            if times:
                groups.append(LayerGroup(tuple(_with_called(one, model, experts) for one in layers), times))
    return replace(model, groups=tuple(groups), called_only=True)


def _with_called(layer: Layer, model: ModelShape, experts: int) -> Layer:
    """Return a layer of which only ``experts`` experts are called, which share the tokens."""
    share = min(1.0, model.experts_per_token / experts)
    return tuple(
        module if module.expert is None else module._replace(share=share)
        for module in layer
        if module.expert is None or module.expert < experts
    )


def refuse_ranks(ranks: int) -> None:
    """Raise InputError if several ranks would call different experts, which DeepSpeed stops or hangs at."""
    if ranks > 1:
        raise InputError.at(
            "strategy.ranks",
            f"{ranks} ranks cannot run separate experts without leaf modules: each calls the experts of its "
            "own tokens, and DeepSpeed hangs or stops (Detected a disagreement on list contents) where ranks "
            'gather different parameters; add ds_config zero_optimization.leaf_module.name_suffixes: ["'
            'block_sparse_moe"], or use expert_layout: fused',
        )


KERNELS: dict[str, Literal["forward", "backward"]] = {"launch": "forward", "back": "backward"}
"""Kernels that are launched at an event, by its kind; none at others."""


@dataclass(frozen=True, eq=False, slots=True)
class Instance:
    """An Instance is a module of one layer, or outside the layers, compared by identity.

    Identity is a cheap key: all events of the same module in a trace share one Instance.
    """

    module: Module
    layer: int = -1
    owns: bool = True
    """Whether its parameters are fetched and released for it; false inside a leaf module, which owns them."""
    launched: Module | None = None
    """The module without the parameters that a leaf module has from those in it; None if it is the same."""

    @property
    def kernels(self) -> Module:
        """The module whose kernels are launched."""
        return self.launched or self.module


class Event(NamedTuple):
    """An Event is a hook, a launch or the completion of gradients on the host thread."""

    kind: Literal["fetch", "launch", "release", "back", "gradients", "checkpoint"]
    """fetch, release: the hook before or after a module. launch, back: its forward or backward kernels are
    launched. gradients: the gradients of its own parameters are complete. checkpoint: a layer begins of which
    only the input is saved."""
    instance: Instance
    backward: bool = False
    """Whether it is a hook of the backward pass; recomputation has the hooks of forward."""
    segment: str = ""
    """Name of the part of the schedule that begins with the event; "" if none begins."""


Begins = tuple[int, ...]
"""The number of events of a pass before each layer, in the order of the pass, and before what follows."""


class Trace(NamedTuple):
    """A Trace is the list of events of a forward pass and, in training, of the backward pass after it."""

    forward: tuple[Event, ...]
    forward_begins: Begins
    backward: tuple[Event, ...] = ()
    backward_begins: Begins = (0,)

    @property
    def layers(self) -> int:
        """Length of the stack of layers that was traced."""
        return len(self.forward_begins) - 1

    def pieces(self, *, backward: bool) -> Iterator[tuple[int, tuple[Event, ...]]]:
        """Yield the events before the layers (number -1), of each in the pass's order, and after them."""
        events = self.backward if backward else self.forward
        begins = self.backward_begins if backward else self.forward_begins
        yield -1, events[: begins[0]]
        for visit, (begin, end) in enumerate(pairwise(begins)):
            yield visit, events[begin:end]
        yield self.layers, events[begins[-1] :]


def forward_pass(model: ModelShape, count: int, leaves: LeafModules = NO_LEAVES) -> Trace:
    """Return the events of a forward pass of inference through ``count`` of the model's layers.

    Work without hooks, such as attention between its projections, belongs to the module that was called
    before it; the hook after that module fires after this work.
    """
    events = list(_inference(map(Instance, model.modules_before), "head"))
    begins = [len(events)]
    merged: dict[int, list[Instance]] = {}  # equal layers are the same object
    for index, layer in enumerate(model.of_layers(count).layers):
        if id(layer) not in merged:
            merged[id(layer)] = _merged(layer, index, leaves.of(model, layer))
        events += _inference(_at(index, merged[id(layer)]), "layer")
        begins.append(len(events))
    events += _inference(map(Instance, model.modules_after), "tail")
    return Trace(tuple(events), tuple(begins))


def _at(layer: int, instances: Iterable[Instance]) -> Iterator[Instance]:
    """Yield the modules of another layer with the same modules."""
    return (Instance(one.module, layer, one.owns, one.launched) for one in instances)


def _inference(instances: Iterable[Instance], segment: str) -> Iterator[Event]:
    left: Instance | None = None
    for one in instances:
        if one.module.hooked:
            if left is not None:
                yield Event("release", left)
            yield Event("fetch", one, segment="" if left is not None else segment)
            left = one
        yield Event("launch", one)
    if left is not None:
        yield Event("release", left)


def micro_step(model: ModelShape, *, checkpointing: bool, reentrant: bool = False) -> Trace:
    """Return the events of a micro-step; reentrant checkpointing recomputes a layer at once."""
    layers = [_instances(model, layer, index) for index, layer in enumerate(model.layers)]
    before = [Instance(module) for module in model.modules_before]
    after = [Instance(module) for module in model.modules_after]
    loss = Instance(loss_module(model))
    inside = not reentrant and _stops_inside(model)
    forward = list(_forward(before, "head"))
    begins = [len(forward)]
    for layer in layers:
        events = list(_forward(layer, "layer"))
        if checkpointing:
            events.insert(1, Event("checkpoint", layer[0]))
        forward += events
        begins.append(len(forward))
    forward += _forward(after, "tail")
    forward.append(Event("launch", loss))
    backward = [Event("back", loss, segment="loss backward")]
    backward += _outside(before, after)
    begins_back = [len(backward)]
    for layer in reversed(layers):
        backward += _layer(layer, checkpointing=checkpointing, stops_inside=inside)
        begins_back.append(len(backward))
    rest = [one for one in reversed(before) if one.module.kind not in ("container", "rotary")]
    events = [event for one in rest for event in _back(one)]
    if events:
        events[0] = events[0]._replace(segment="head backward")
    return Trace(tuple(forward), tuple(begins), tuple(backward + events), tuple(begins_back))


def parts_of_training(model: ModelShape, trace: Trace, *, backward: bool, layers: int) -> tuple[Part, ...]:
    """Return the parts of a pass of training through so many ``layers``, which have a call for each event.

    Equal layers have the same calls, with the number of the layer in the order of the pass. Those that the
    trace leaves out are equal to its last one.
    """
    known: dict[int, tuple[Call, ...]] = {}
    parts = []
    for visit, events in trace.pieces(backward=backward):
        if 0 <= visit < trace.layers:
            number = id(model.layers[trace.layers - 1 - visit if backward else visit])
            if number not in known:
                known[number] = tuple(map(_call, events))
            parts.append(Part(events[0].segment, known[number], visit))
            if visit == trace.layers - 1:
                parts += [parts[-1]._replace(layer=more) for more in range(trace.layers, layers)]
        elif events:
            parts.append(Part(events[0].segment, tuple(map(_call, events))))
    return tuple(parts)


def _call(event: Event) -> Call:
    module = event.instance.kernels if event.kind == "launch" else event.instance.module
    return Call(module, facts=event.kind, kernels=KERNELS.get(event.kind, "none"))


def _instances(model: ModelShape, modules: Layer, layer: int) -> list[Instance]:
    """Return the modules of a layer in training, where blocks of experts are leaf modules."""
    routed = any(module.kind == "router" for module in modules)
    leaves = model.traits.leaf_modules if routed else ()
    # The hook after backward of a leaf module fires: it gets one for its whole backward pass.
    return [
        replace(one, module=one.module._replace(touched=1), launched=None) if one.launched else one
        for one in _merged(modules, layer, leaves)
    ]


def _merged(modules: Layer, layer: int, leaves: Sequence[str]) -> list[Instance]:
    """Return the modules of a layer; those inside a leaf module have neither hooks nor parameters."""
    found = []
    for module in modules:
        if any(module.name.startswith(f"{leaf}.") for leaf in leaves):
            found.append(Instance(module._replace(hooked=False), layer, owns=False))
        elif module.name in leaves:
            within = [one for one in modules if one.name.startswith(f"{module.name}.")]
            held = tuple(parameter for one in within for parameter in one.parameters)
            found.append(Instance(module._replace(parameters=held), layer, launched=module))
        else:
            found.append(Instance(module, layer))
    return found


def _stops_inside(model: ModelShape) -> bool:
    """Return whether recomputation can stop in a layer's last linear module, whose input is the last saved
    tensor.

    If dropout follows that module and saves its mask, as in OPT, the layer is recomputed to its end before
    its backward pass begins.
    """
    return not (model.traits.saved.masks and model.layers[-1][-1].kind == "linear")


def _forward(instances: Sequence[Instance], segment: str) -> Iterator[Event]:
    leaf: Instance | None = None
    for index, one in enumerate(instances):
        first = segment if index == 0 else ""
        if leaf is not None and one.owns:
            yield Event("release", leaf)
            leaf = None
        if one.module.hooked:
            yield Event("fetch", one, segment=first)
        yield Event("launch", one, segment="" if one.module.hooked else first)
        if one.module.kind == "container" and one.module.parameters and one.module.hooked:
            leaf = one  # released after the modules in it
        elif one.module.hooked:
            yield Event("release", one)
    if leaf is not None:
        yield Event("release", leaf)


def _outside(before: Sequence[Instance], after: Sequence[Instance]) -> list[Event]:
    """Return backward's events before the layers: the model, its head, the stack, its last norm."""
    containers = [one for one in before if one.module.kind == "container" and one.module.hooked]
    root, stacks = containers[0], containers[1:]
    events = [Event("fetch", root, backward=True)]
    for one in reversed(after):
        while stacks and one.module.name.startswith(f"{stacks[0].module.name}."):
            events.append(Event("fetch", stacks.pop(0), backward=True))
        events += _back(one)
    return events + [Event("fetch", one, backward=True) for one in stacks]


def _layer(layer: Sequence[Instance], *, checkpointing: bool, stops_inside: bool) -> list[Event]:
    block, inner = layer[0], layer[1:]
    events = [Event("fetch", block, backward=True, segment="layer backward")]
    again = _recomputation(inner, stops_inside=stops_inside) if checkpointing else []
    if again and not stops_inside:
        events, again = events + again, []
    containers = {one.module.name: one for one in inner if one.module.kind == "container"}
    first_child = {name: _first_child(inner, name) for name in containers}
    entered: set[str] = set()
    for one in reversed([one for one in inner if one.module.kind != "container"]):
        for name in _parents(one.module.name, containers):
            if name not in entered:
                entered.add(name)
                events.append(Event("fetch", containers[name], backward=True))
        mine = _back(one)
        if again and one.module.parameters:
            hook = 1 if one.module.hooked else 0
            mine, again = [*mine[:hook], *again, *mine[hook:]], []
        events += mine
        for name, child in first_child.items():
            if child is one:
                events += _leave(containers[name])
    return [*events, *_leave(block)]


def _leave(container: Instance) -> list[Event]:
    """Return a container's last backward events: its kernels and gradients, and its hook if any."""
    events = [Event("back", container)] if container.module.out_features else []
    if container.module.parameters:
        events.append(Event("gradients", container))
    if container.module.touched:
        events.append(Event("release", container, backward=True))
    return events


def _parents(name: str, containers: dict[str, Instance]) -> list[str]:
    """Return the containers around a module, the outermost first."""
    return sorted((one for one in containers if name.startswith(f"{one}.")), key=len)


def _first_child(inner: Sequence[Instance], name: str) -> Instance | None:
    inside = (
        one for one in inner if one.module.name.startswith(f"{name}.") and one.module.kind != "container"
    )
    return next(inside, None)


def _back(one: Instance) -> list[Event]:
    """Return the backward events of a module without children."""
    work = [Event("back", one)]
    if one.module.parameters and one.owns:
        work.append(Event("gradients", one))
    if not one.module.hooked:
        return work
    if one.module.kind == "rotary":
        return []
    hooks = [] if one.module.kind == "embedding" else [Event("release", one, backward=True)]
    return [Event("fetch", one, backward=True), *work, *hooks]


def _recomputation(inner: Sequence[Instance], *, stops_inside: bool) -> list[Event]:
    events = list(_forward(inner, ""))
    if stops_inside:
        last = max(index for index, event in enumerate(events) if event.instance.module.parameters)
        # The hook after the module in which it stops does not fire; its kernels do run.
        events = [event for index, event in enumerate(events) if index < last or event.kind == "launch"]
    events[0] = events[0]._replace(segment="")
    return [Event("checkpoint", inner[0]), *events]
