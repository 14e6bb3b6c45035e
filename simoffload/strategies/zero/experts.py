"""Blocks of experts under ZeRO-3: leaf modules, fetched as a whole, and experts that are fetched alone.

Leaf modules are those that DeepSpeed gives one hook, with the parameters of all modules in them. Read in
deepspeed/utils/z3_leaf_module.py and runtime/zero/leaf_module_config.py at 0.19.8. The engine marks them
before it sets its hooks, in inference as in training (``_configure_distributed_model``, engine.py).

Experts that are modules of their own, without leaf modules, are fetched when they are called, so those of
other experts stay where they are. At the first module that is not the one recorded DeepSpeed drops its
record: it waits for everything that it has prefetched, releases it, and prefetches nothing in the rest of the
pass; the next pass records (``trace_prologue``, ``_invalidate_trace`` and ``reset_step`` of
partitioned_param_coordinator.py, read at 0.19.8 and run: tests/calibration/separate_experts.py). If the
experts change from pass to pass, one pass records without prefetching and the next one breaks off, in turn.
Both are simulated as a pass that does not prefetch; what the second one has prefetched in vain, up to
``stage3_max_live_parameters``, is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from simoffload.errors import InputError, shortened
from simoffload.models import FAMILIES, Layer, LayerGroup, ModelShape, Sequences
from simoffload.models.modules import Traits
from simoffload.strategies.ds_config import OffloadSettings

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
                groups.append(LayerGroup(tuple(_layer(one, model, experts) for one in layers), times))
    return replace(model, groups=tuple(groups), called_only=True)


def _layer(layer: Layer, model: ModelShape, experts: int) -> Layer:
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
