"""Leaf modules of ZeRO-3: modules that DeepSpeed gives one hook, with the parameters of all modules in them.

Read in deepspeed/utils/z3_leaf_module.py and runtime/zero/leaf_module_config.py at 0.19.8. The engine marks
them before it sets its hooks, in inference as in training (``_configure_distributed_model``, engine.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simoffload.errors import shortened
from simoffload.models import FAMILIES, Layer, ModelShape
from simoffload.models.modules import Traits
from simoffload.strategies.ds_config.settings import OffloadSettings

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
    """Return the leaf modules of a version; before ds_config had a section for them it had none by
    default."""
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
